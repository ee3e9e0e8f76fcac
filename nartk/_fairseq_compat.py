"""Makes fairseq 0.12.2 run on Python >= 3.11, torch >= 2.6 and numpy >= 1.24.

`_fairseq_hook` calls :func:`cure`, and tells why this file does not import the package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

_FAMILY = ("fairseq", "fairseq_cli", "hydra", "omegaconf")

# torch._transformer_encoder_layer_fwd as fairseq calls it: 19 positional arguments, the last one the mask.
_FAIRSEQ_FAST_PATH_ARGS = 19
_KEY_PADDING_MASK = 1


def cure() -> None:
    """Applies every cure to the running interpreter. Calling it twice does no harm."""
    import dataclasses

    if not hasattr(dataclasses.dataclass, "_nartk"):
        dataclasses.dataclass = _lenient(dataclasses.dataclass)
    _cure_torch()
    _cure_numpy()
    if not any(type(finder).__qualname__ == _UserDir.__qualname__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _UserDir())


class _UserDir:
    """Has ``--user-dir nartk`` mean this package from any folder.

    fairseq looks in the folder where one stands and beside itself, where an editable install is not.
    """

    def find_spec(self, name: str, path: Any = None, target: object = None) -> ModuleSpec | None:
        if name != "fairseq.utils":
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            module.import_user_module = _anywhere(module.import_user_module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _anywhere(import_user_module: Callable[[Any], None]) -> Callable[[Any], None]:
    import functools
    import os
    from argparse import Namespace
    from importlib.util import find_spec

    @functools.wraps(import_user_module)
    def wrapped(args: Any) -> None:
        # A folder of that name may be a checkout, which holds the package and is none.
        if getattr(args, "user_dir", None) == "nartk" and not os.path.isfile("nartk/__init__.py"):
            found = find_spec("nartk")  # which imports nothing
            if found is not None and found.origin is not None:
                args = Namespace(user_dir=os.path.dirname(found.origin))
        import_user_module(args)

    return wrapped


def _lenient(dataclass: Callable[..., Any]) -> Callable[..., Any]:
    """`dataclass` that lets fairseq's configs use one another as defaults, as it could before Python 3.11.

    Python refuses a default whose class has no hash. Not `default_factory`: fairseq reads `Field.default`.
    """
    import dataclasses
    import functools
    import inspect

    @functools.wraps(dataclass)
    def wrapped(cls: type | None = None, /, **options: Any) -> Any:
        if cls is None:
            return lambda cls: wrapped(cls, **options)
        if _root(cls) in _FAMILY:
            for name in inspect.get_annotations(cls):
                default = cls.__dict__.get(name)
                if isinstance(default, dataclasses.Field):
                    default = default.default
                type_ = type(default)
                if type_.__hash__ is None and _root(type_) in _FAMILY:
                    type_.__hash__ = object.__hash__
        return dataclass(cls, **options)

    wrapped._nartk = True  # type: ignore[attr-defined]
    return wrapped


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def safe_globals() -> list[Any]:
    """Lists the types in a fairseq checkpoint besides tensors and plain values; none of them can run code.

    Options are a Namespace, and logged BLEU statistics are numpy arrays of numbers.
    """
    import argparse

    import numpy

    rebuilders = [value.__reduce__()[0] for value in (numpy.zeros(1), numpy.float64(0))]
    types = {type(numpy.dtype(name)) for name in ("float32", "float64", "int32", "int64")}
    return [argparse.Namespace, numpy.ndarray, numpy.dtype, *rebuilders, *types]


def _cure_torch() -> None:
    import functools

    import torch

    # torch.load refuses what it does not know since 2.6.
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals(safe_globals())

    fast_path: Callable[..., Any] = torch._transformer_encoder_layer_fwd
    if hasattr(fast_path, "_nartk"):
        return

    @functools.wraps(fast_path)
    def with_mask_type(*args: Any, **kwargs: Any) -> Any:
        # fairseq does not say what kind of mask it passes, and torch now insists.
        if len(args) == _FAIRSEQ_FAST_PATH_ARGS and args[-1] is not None and not kwargs:
            return fast_path(*args, _KEY_PADDING_MASK)
        return fast_path(*args, **kwargs)

    with_mask_type._nartk = True  # type: ignore[attr-defined]
    torch._transformer_encoder_layer_fwd = with_mask_type


def _cure_numpy() -> None:
    import numpy

    for name, type_ in (("float", float), ("int", int), ("bool", bool)):
        if name not in vars(numpy):
            setattr(numpy, name, type_)
