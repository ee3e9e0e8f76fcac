"""Every strategy keeps its tensors on the scorer's device: a check that needs no GPU.

While decoding, a tensor that is made without a device is of a subclass of its own, as if it lay on the host
and all others on a GPU. The two meet only by way of `.to`, or where torch lets them: a number without
dimensions, or an index.
"""

from __future__ import annotations

import random
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from support.scripted import decode
from support.speech_models import random_speeches
from support.transformers_small import random_requests, vocabulary
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from nartk.architectures import architectures
from nartk.models.da_transformer import DaTransformer
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy, options_of, speaks, strategies

FACTORIES = {
    getattr(torch, name)
    for name in ("tensor", "as_tensor", "arange", "zeros", "ones", "full", "empty", "eye", "linspace")
} | {torch.rand, torch.randn, torch.randint, torch.randperm, torch.from_numpy}
MAY_MIX = {Tensor.to, Tensor.__getitem__, torch.Tensor.device.__get__}


class Host(Tensor):
    """A tensor that nobody put on a device."""


class Apart(TorchFunctionMode):
    """Refuses functions of tensors on the host and on the device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if func in FACTORIES:
            made = func(*args, **kwargs)
            return made if kwargs.get("device") is not None else made.as_subclass(Host)
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        hosts = [each for each in given if isinstance(each, Host)]
        if func is Tensor.to and any(isinstance(each, (torch.device, str)) for each in args[1:]):
            return func(args[0].as_subclass(Tensor), *args[1:], **kwargs)
        if func is Tensor.cpu:
            return args[0].as_subclass(Host)
        if func is Tensor.numpy and not hosts:
            raise RuntimeError("numpy() of a tensor on the device")
        if hosts and len(hosts) < len(given) and func not in MAY_MIX:
            if any(each.dim() for each in hosts):
                raise RuntimeError(f"{func.__name__} of tensors on the host and on the device")
            return _plain(func(*args, **kwargs))
        result = func(*args, **kwargs)
        if func is Tensor.__getitem__ and not isinstance(args[0], Host):
            return _plain(result)
        return result


def _plain(result: Any) -> Any:
    return result.as_subclass(Tensor) if isinstance(result, Host) else result


@cache
def scorer_of(kind: str, seed: int = 3) -> Any:
    found = architectures()[kind]
    torch.manual_seed(seed)
    known = {item.name for item in fields(found.config)}
    sizes = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "heads")}
    sizes |= {"src_vocab": 30, "tgt_vocab": 30, "d_model": 32, "encoder_ffn": 48, "decoder_ffn": 48}
    sizes |= {"max_source_len": 128, "max_target_len": 128}
    config = found.config(**{name: size for name, size in sizes.items() if name in known})
    return found.scorer(found.network(config).eval(), vocabulary(30))


def requests_for(kind: str) -> list[Request]:
    """What the architecture reads: words, frames if it has features of these, or what another has encoded."""
    requests = random_requests(random.Random(1), 7, 30, limits=[2, 5, 9])
    features = getattr(architectures()[kind].config(), "input_features", None)
    features = getattr(scorer_of(kind), "encoded_features", features)
    if features is None:
        return requests
    sources = random_speeches(1, [20 + 9 * request.index for request in requests], features)
    return [replace(each, source=source) for each, source in zip(requests, sources, strict=True)]


PAIRS = [
    (kind, name)
    for kind in architectures()
    for name in strategies()
    if speaks(make_strategy(name, {}), scorer_of(kind))
    and "drafter" not in options_of(name)
    # Which need blank frames, and those that fire have none.
    and not (kind in ("cif", "paraformer", "sanm_paraformer") and name in ("ctc-greedy", "ctc-beam"))
]


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_strategies_keep_to_the_scorers_device(kind: str, name: str) -> None:
    scorer = scorer_of(kind)
    strategy = make_strategy(name, {})
    requests = requests_for(kind)
    wanted = decode(strategy, scorer, requests, batch_size=3, trace=True)
    with Apart():
        found = decode(strategy, scorer, requests, batch_size=3, trace=True)
    assert [each.hypotheses for each in found] == [each.hypotheses for each in wanted]


def test_a_model_that_leaves_the_device_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Known to be wrong: sizes counted on the host."""
    requests = random_requests(random.Random(1), 3, 30)
    monkeypatch.setattr(DaTransformer, "sizes", lambda self, lengths, scale: torch.full((3,), 8))
    with Apart(), pytest.raises(RuntimeError, match="on the host and on the device"):
        decode(make_strategy("dag-greedy", {}), scorer_of("dag"), requests)


def test_a_tensor_without_a_device_is_noticed() -> None:
    """Known to be wrong: what works on the CPU and would fail on a GPU."""
    x = torch.zeros(3)
    with Apart():
        assert (x + torch.arange(3, device="cpu")).tolist() == [0, 1, 2]
        assert (x + torch.arange(3).to("cpu")).tolist() == [0, 1, 2]
        assert (x + torch.tensor(2)).tolist() == [2, 2, 2]
        assert x[torch.tensor([0, 1])].shape == (2,)
        with pytest.raises(RuntimeError, match="on the host and on the device"):
            x + torch.arange(3)
        with pytest.raises(RuntimeError, match="on the host and on the device"):
            torch.cat([x, (2 * torch.ones(3)).sqrt()])
        with pytest.raises(RuntimeError, match="numpy"):
            x.numpy()
