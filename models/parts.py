"""Makes the layers of networks from parts (`nartk.architectures.parts`), which have their names and shapes.

A module of a group of parts says by annotations which classes compute its layers, and in `forward` how.

Symbols: B rows, S positions, d features.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache
from types import NoneType
from typing import Any, NamedTuple, TypeAlias, get_args, get_type_hints

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures import parts
from nartk.architectures.settings import Config

AnyNorm: TypeAlias = nn.LayerNorm | nn.RMSNorm
_AVERAGED = 100  # batches, over about which batch norm's running statistics are means


class PartModule(nn.Module):
    """The layers of a group of parts, under the names of the parts.

    A subclass annotates them: a group with the subclass that computes it, numbered ones with ``Sequence[X]``
    of one, a single layer with the class that `layer_of` returns, and what a configuration may lack with
    ``| None``. Layers are made in the order of the parts; parts without weights are left out,
    but for numbered ones, of which there may be none.

    Args:
        given: Layers that are not to be made, by name.
    """

    def __init__(self, part: parts.Group, config: Config, **given: nn.Module) -> None:
        super().__init__()
        layers = _layers(type(self))  # type: ignore[arg-type]  # mypy takes __hash__ for the instances'
        for name, layer in layers.items():
            if layer.optional:
                setattr(self, name, None)
        for name, each in part.parts.items():
            if name in given:
                setattr(self, name, given[name])
            elif isinstance(each, parts.Numbered) or parts.weight_shapes(each):
                setattr(self, name, _made(each, layers[name].module, config))


class _Annotation(NamedTuple):
    module: type  # its class; of numbered ones, theirs; of several classes, the first
    optional: bool


@cache
def _layers(module: Hashable) -> Mapping[str, _Annotation]:
    """The layers that a class of modules annotates."""
    found = {}
    for name, hint in get_type_hints(module).items():
        classes = get_args(hint)
        layer = next((each for each in classes if each is not NoneType), hint)
        if isinstance(layer, type) and issubclass(layer, nn.Module | nn.Parameter):
            found[name] = _Annotation(layer, NoneType in classes)
    return found


def _made(part: parts.Part, module: type, config: Config) -> Any:
    if isinstance(part, parts.Numbered):
        return nn.ModuleList(_made(each, module, config) for each in part.parts)
    return module(part, config) if isinstance(part, parts.Group) else layer_of(part, config)


def layer_of(part: parts.Part, config: Config) -> Any:
    """The module of a part that is a single layer, or its parameter.

    Words, positions and biases of attention scores are random as models need them; of all others the initial
    weights are torch's own.
    """
    match part:
        case parts.Convolution():
            convolution = nn.Conv1d if len(part.kernel) == 1 else nn.Conv2d
            return convolution(part.inputs, part.outputs, part.kernel, part.stride, part.padding)  # type: ignore[arg-type]
        case parts.Linear():
            return nn.Linear(part.inputs, part.outputs, part.bias)
        case parts.Depthwise():
            return DepthwiseModule(part.channels, part.kernel, bias=part.bias, sides=part.sides)
        case parts.BatchNorm():
            return BatchNormModule(part.features, part.eps)
        case parts.Norm():
            return (nn.LayerNorm if part.bias else nn.RMSNorm)(part.features, part.eps)
        case parts.OutputWords():
            output = nn.Linear(part.features, part.count, part.bias)
            nn.init.normal_(output.weight, std=part.features**-0.5)
            return output
        case parts.Words():
            words = nn.Embedding(part.count, part.features, padding_idx=config.pad)
            nn.init.normal_(words.weight, std=part.features**-0.5)
            nn.init.zeros_(words.weight[config.pad])
            return words
        case parts.Positions():
            positions = nn.Embedding(part.count, part.features)
            nn.init.normal_(positions.weight, std=part.features**-0.5)
            return positions
        case parts.Distances():
            return DistancesModule(part, config.d_model**-0.5)
        case parts.HeadVectors():
            return nn.Parameter(nn.init.xavier_uniform_(torch.empty(part.heads, part.features)))
        case parts.Factor():
            return nn.Parameter(torch.ones(1))
        case parts.Constants():
            constants = nn.Module()
            for name, size in part.sizes.items():
                constants.register_buffer(name, torch.zeros(size))
            return constants
    raise TypeError(f"no module computes a {type(part).__name__}")


class BatchNormModule(nn.Module):
    """Batch norm over positions [B,S,d] of which only those count that are kept.

    Evaluation uses running means and variances: the mean of all batches so far, then one that goes a
    hundredth of the way to each batch. torch goes a tenth, which follows the last ten batches; batches of
    speech are of few sounds of alike length, and are no sample of all.

    Attributes:
        fixed: Training uses the running statistics too, and leaves them as they are.
        updates: Steps of training so far, of which the running statistics know.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, features: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))
        self.register_buffer("running_mean", torch.zeros(features))
        self.register_buffer("running_var", torch.ones(features))
        self.eps = eps
        self.fixed, self.updates = False, 0

    def forward(self, x: Tensor, kept: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        if self.training and not self.fixed:
            wide = x if x.dtype == torch.float64 else x.float()
            counted, count = kept[:, :, None].to(wide.dtype), kept.sum()
            mean = (wide * counted).sum((0, 1)) / count
            var = ((wide - mean).square() * counted).sum((0, 1)) / count
            share = 1.0 / min(self.updates + 1, _AVERAGED)
            with torch.no_grad():
                unbiased = var * (count / (count - 1).clamp(min=1))
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)
        scale = self.weight * (var + self.eps).rsqrt()
        return x * scale.to(x.dtype) + (self.bias - mean * scale).to(x.dtype)


def train_batch_norm(network: nn.Module, updates: int, fixed_after: int) -> None:
    """Tells each batch norm of a network how many steps of training there were.

    Args:
        fixed_after: Steps after which its running statistics are fixed, and are used in training too; below
            0: never.
    """
    for module in network.modules():
        if isinstance(module, BatchNormModule):
            module.updates, module.fixed = updates, 0 <= fixed_after <= updates


class DepthwiseModule(nn.Conv1d):
    """A convolution of each feature by itself, [B,S,d] -> the same shape; what is not kept is 0 to it."""

    def __init__(self, features: int, kernel: int, *, bias: bool, sides: tuple[int, int]) -> None:
        both = min(sides)
        super().__init__(features, features, kernel, padding=both, groups=features, bias=bias)
        self.more = sides[0] - both, sides[1] - both  # zeros that one side alone has

    def forward(self, input: Tensor, kept: Tensor | None = None) -> Tensor:
        x = input if kept is None else input.masked_fill(~kept[:, :, None], 0.0)
        x = x.transpose(1, 2)
        return super().forward(F.pad(x, self.more) if any(self.more) else x).transpose(1, 2)


class DistancesModule(nn.Embedding):
    """Biases of attention scores by how far a key is from its query, for each head (Raffel et al. 2020)."""

    table: Tensor  # buckets of the distances from -farthest to farthest

    def __init__(self, part: parts.Distances, std: float) -> None:
        super().__init__(part.buckets, part.heads)
        nn.init.normal_(self.weight, std=std)
        self.farthest = part.farthest
        self.register_buffer("table", torch.from_numpy(part.table), persistent=False)

    def mask(self, queries: Tensor, kept: Tensor) -> Tensor:
        """Biases to add to scores: minus infinity at the keys that are not seen.

        Args:
            queries: [...,K], positions of queries; those of keys are 0 to T - 1.
            kept: [...,K or 1,T] bool, which keys a query sees.

        Returns:
            [...,H,K,T].
        """
        distances = torch.arange(kept.shape[-1], device=kept.device) - queries[..., None]
        at = distances.clamp(-self.farthest, self.farthest) + self.farthest
        biases: Tensor = self(self.table[at]).movedim(-1, -3)  # [...,K,T,H] -> [...,H,K,T]
        return biases.masked_fill(~kept.unsqueeze(-3), -torch.inf)
