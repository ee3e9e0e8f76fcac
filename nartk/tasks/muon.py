"""`--optimizer nartk_muon`: Muon for the matrices of layers, torch's fused AdamW for all other weights."""

# No `from __future__ import annotations` here: fairseq reads the options' types from the class.
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam, FairseqAdamConfig
from torch import Tensor, nn

from nartk.architectures.settings import setting

_TABLE = "nartk_is_table"  # attribute of a weight whose rows belong to words


@dataclass
class MuonConfig(FairseqAdamConfig):
    """Options of the optimizer: those of `adam`, and Muon's own."""

    muon_momentum: float = setting(0.95, "momentum of the matrices that Muon moves, in [0, 1)")


def mark_tables(network: nn.Module, words: int) -> None:
    """Marks the weights whose rows belong to words: embeddings, and layers that score `words` words.

    A batch moves few of their rows, so that the directions of a matrix as a whole mean nothing there.
    """
    for module in network.modules():
        if hasattr(module, "num_embeddings") or getattr(module, "out_features", None) == words:
            setattr(module.weight, _TABLE, True)


class MuonAndAdamW(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) and AdamW as one optimizer.

    Muon moves a matrix by its momentum with all singular values made about equal. Steps are scaled by
    0.2 sqrt(max(rows, columns)), so that they are as long as AdamW's are usually and both share one learning
    rate (Liu et al. 2025, arXiv:2502.16982, equation 4). Differences from the paper: torch's Muon, with five
    iterations in bf16; q, k and v that are projected by one matrix are one matrix here too.

    Processes that train together share the matrices out and send each other what they made of them: the same
    weights as each would have computed.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        weight_decay: float,
        momentum: float,
    ) -> None:
        weights = list(params)
        matrices = [each for each in weights if each.ndim == 2 and not hasattr(each, _TABLE)]
        moved = {*map(id, matrices)}
        self._shares = _shares(matrices, dist.get_world_size() if dist.is_initialized() else 1)
        others = [each for each in weights if id(each) not in moved]
        shared: dict[str, Any] = {"lr": lr, "weight_decay": weight_decay}
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            muon = torch.optim.Muon(matrices, momentum=momentum, adjust_lr_fn="match_rms_adamw", **shared)
            self._parts.append(muon)
        if others:
            self._parts.append(torch.optim.AdamW(others, betas=betas, eps=eps, fused=True, **shared))
        super().__init__([group for part in self._parts for group in part.param_groups], {})
        self._share()

    def _share(self) -> None:
        """Lets both parts work on the groups and the state of the whole, which a checkpoint holds."""
        for part, group in zip(self._parts, self.param_groups, strict=True):
            part.param_groups, part.state = [group], self.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # its overloads are of closures
        """Moves all weights that have a gradient. There is no closure."""
        away = {each: each.grad for share in self._others() for each in share if each.grad is not None}
        for each in away:
            each.grad = None  # or it would be moved here as well
        for part in self._parts:
            part.step()
        for each, gradient in away.items():
            each.grad = gradient
            momentum = self.state[each].setdefault("momentum_buffer", torch.zeros_like(each))
            momentum.lerp_(gradient, 1 - self.param_groups[0]["momentum"])
        if len(self._shares) > 1:
            self._exchange()

    def _others(self) -> list[list[nn.Parameter]]:
        """Matrices that the other processes move."""
        mine = dist.get_rank() if len(self._shares) > 1 else 0
        return self._shares[:mine] + self._shares[mine + 1 :]

    def _exchange(self) -> None:
        """Gives all processes each matrix as the process has it that moves it."""
        for rank, share in enumerate(self._shares):
            if not share:  # more processes than matrices
                continue
            sent = torch.cat([each.flatten() for each in share])
            dist.broadcast(sent, rank)
            for each, piece in zip(share, sent.split([each.numel() for each in share]), strict=True):
                each.copy_(piece.view_as(each))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._share()


def _shares(matrices: Iterable[nn.Parameter], processes: int) -> list[list[nn.Parameter]]:
    """The matrices that each process moves, so that all have about as much to multiply."""
    shares: list[list[nn.Parameter]] = [[] for _ in range(processes)]
    costs = [0] * processes
    for each in sorted(matrices, key=_cost, reverse=True):
        least = costs.index(min(costs))
        shares[least].append(each)
        costs[least] += _cost(each)
    return shares


def _cost(matrix: Tensor) -> int:
    """Products of numbers in a step of the iteration, but for a factor."""
    return matrix.numel() * min(matrix.shape)


@register_optimizer("nartk_muon", dataclass=MuonConfig)
class FairseqMuon(FairseqAdam):
    """Takes the options of fairseq's `adam`; its betas and eps are of the weights that AdamW moves."""

    supports_flat_params = False  # matrices have to stay matrices

    def __init__(self, cfg: MuonConfig, params: Iterable[nn.Parameter]) -> None:
        FairseqOptimizer.__init__(self, cfg)
        self._optimizer = MuonAndAdamW(params, momentum=cfg.muon_momentum, **self.optimizer_config)
