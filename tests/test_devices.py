"""Every strategy keeps its tensors on the scorer's device: a check that needs no GPU.

While decoding, a tensor that is made without a device is of a subclass of its own, as if it lay on the host
and all others on a GPU. The two meet only by way of `.to`, or where torch lets them: a number without
dimensions, or an index.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from scripted import decode
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from transformers_small import random_config, random_model, random_requests, vocabulary

from nartk.models.transformer_scorer import TransformerScorer
from nartk.registry import make_strategy, options_of, strategies

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


@pytest.fixture(scope="module")
def scorer() -> TransformerScorer:
    config = random_config(random.Random(3))
    return TransformerScorer(random_model(config, 3), vocabulary(config.tgt_vocab))


NAMES = sorted(strategies())


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_strategies_keep_to_the_scorers_device(name: str, exact: bool, scorer: TransformerScorer) -> None:
    known = options_of(name)
    if "exact" not in known and not exact:
        pytest.skip("one mode alone")
    strategy = make_strategy(name, {"exact": exact} if "exact" in known else {})
    if not isinstance(scorer, strategy.needs):
        pytest.skip(f"needs a {strategy.needs.__name__}")
    requests = random_requests(random.Random(1), 7, len(scorer.vocab), limits=[2, 5, 9])
    requests[3] = dataclasses.replace(requests[3], prefix=(5, 6))
    wanted = decode(strategy, scorer, requests, batch_size=3, trace=True)
    with Apart():
        found = decode(strategy, scorer, requests, batch_size=3, trace=True)
    assert [each.hypotheses for each in found] == [each.hypotheses for each in wanted]


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
