"""The blockwise drafter: its network, its loss and its scorer."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.losses import losses_of
from support.parallel_models import canvas_of
from support.scorers import BlockwiseReference
from support.transformers_small import padded, vocabulary

from nartk.architectures.blockwise import BlockwiseConfig
from nartk.models.blockwise import MASK, Blockwise
from nartk.models.glancing import STRATEGIES
from nartk.models.losses import Training
from nartk.protocols.passes import Want

WORDS, EOS = 24, 2
TINY = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_ffn": 32, "decoder_ffn": 32}
HEADS = {"encoder_heads": 2, "decoder_heads": 2, "dropout": 0.0}


def network(*, block: int = 5, seed: int = 0) -> Blockwise:
    torch.manual_seed(seed)
    model = Blockwise(BlockwiseConfig(src_vocab=WORDS, tgt_vocab=WORDS, block=block, **TINY, **HEADS))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "layers" in name and weight.dim() == 2:
                weight.mul_(3.0)
    return model


def sentence(rng: random.Random, longest: int) -> list[int]:
    return [*(rng.randrange(4, WORDS) for _ in range(rng.randint(1, longest))), EOS]


def test_the_loss_is_the_cross_entropy_of_what_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    model = network().double()
    sources, targets = ([sentence(rng, 9) for _ in range(12)] for _ in range(2))
    drawn = torch.rand(12, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: drawn)
    found = losses_of(
        model,
        padded(sources, left=True),
        padded(targets),
        training=Training(label_smoothing=0.0),
        update=0,
    )
    total, count = 0.0, 0
    for source, target, share in zip(sources, targets, drawn.tolist(), strict=True):
        start = int(share * len(target))
        canvas = torch.tensor([[*target[:start], *[MASK] * 5]])
        encoded, kept = model.encode(torch.tensor([source])), torch.ones_like(canvas, dtype=torch.bool)
        logits = model.logits(canvas, kept, encoded.memory, encoded.mask)[0]
        words = torch.tensor(target[start : start + 5])
        total += F.cross_entropy(logits[start : start + len(words)], words, reduction="sum").item()
        count += len(words)
    assert found.total.item() == pytest.approx(total, rel=1e-12)
    assert int(found.tokens) == count
    assert found.parts["words"].item() == pytest.approx(total / count, rel=1e-12)
    assert float(found.parts["shown"]) == 0.0


def test_what_glancing_shows_is_left_out_of_the_loss() -> None:
    rng = random.Random(1)
    model = network(block=8)
    sources, targets = (
        padded([sentence(rng, 9) for _ in range(40)]),
        padded([sentence(rng, 9) for _ in range(40)]),
    )
    torch.manual_seed(2)
    plain = losses_of(model, sources, targets, training=Training(), update=0)
    torch.manual_seed(2)
    shown = losses_of(model, sources, targets, training=Training(glancing="1.0:0@10"), update=0)
    assert int(shown.tokens) < int(plain.tokens)
    assert float(shown.parts["shown"]) == pytest.approx(1 - int(shown.tokens) / int(plain.tokens))
    torch.manual_seed(2)
    late = losses_of(model, sources, targets, training=Training(glancing="1.0:0@10"), update=10)
    assert torch.equal(late.total, plain.total)
    # None of it while validating, whose loss would be that of another task.
    model.eval()
    for strategy in STRATEGIES:
        torch.manual_seed(2)
        training = Training(glancing="1.0", glancing_strategy=strategy)
        assert torch.equal(losses_of(model, sources, targets, training=training, update=0).total, plain.total)


def test_gradients() -> None:
    rng = random.Random(3)
    model = network(block=3).double()
    source, target = (
        padded([sentence(rng, 4) for _ in range(3)]),
        padded([sentence(rng, 4) for _ in range(3)]),
    )
    names = [name for name, _ in model.named_parameters()]
    chosen = [names.index(n) for n in ("decoder.layers.1.ffn.down.bias", "encoder.norm.weight")]
    weights = list(model.parameters())

    def loss(*values: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(4)
        swapped = {names[i]: value for i, value in zip(chosen, values, strict=True)}
        return torch.func.functional_call(
            _Loss(model), {f"model.{k}": v for k, v in swapped.items()}, (source, target)
        )

    inputs = [weights[i].detach().clone().requires_grad_() for i in chosen]
    assert torch.autograd.gradcheck(loss, inputs)


class _Loss(torch.nn.Module):
    def __init__(self, model: Blockwise) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        training = Training(label_smoothing=0.1)
        return losses_of(self.model, source, target, training=training, update=0).total


def test_it_learns_to_go_on_where_a_prefix_ends() -> None:
    """Targets count on from the source's first word; the drafter must say the next five words at once."""
    torch.manual_seed(6)
    config = BlockwiseConfig(
        src_vocab=WORDS, tgt_vocab=WORDS, block=5, **{**TINY, **HEADS, "d_model": 32, "encoder_ffn": 64}
    )
    model = Blockwise(config)
    rng = random.Random(6)
    firsts = [[first, EOS] for first in range(4, WORDS - 8)]
    targets = [[*(first + i for i in range(1, 8)), EOS] for first, _ in firsts]
    source, target = padded(firsts), padded(targets)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    training = Training(label_smoothing=0.0, glancing="0.5:0@200")
    for update in range(400):
        optimizer.zero_grad()
        losses = losses_of(model, source, target, training=training, update=update)
        (losses.total / losses.tokens).backward()
        optimizer.step()
    scorer = BlockwiseReference(model, vocabulary(WORDS))
    starts = [rng.randrange(8) for _ in targets]
    canvases = [[*target[:start], *[MASK] * 5] for target, start in zip(targets, starts, strict=True)]
    filled = scorer.fill(canvas_of(scorer.encode(firsts), canvases), Want()).best
    words = np.split(filled, np.cumsum([len(canvas) for canvas in canvases])[:-1])
    right = total = 0
    for said, target_row, start in zip(words, targets, starts, strict=True):
        wanted = target_row[start : start + 5]
        right += int((said[start : start + len(wanted)] == wanted).sum())
        total += len(wanted)
    assert right > 0.95 * total
