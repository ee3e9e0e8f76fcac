"""Glancing: how many words training shows, and which."""

from __future__ import annotations

import sys
from collections import Counter
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
import torch
from support.losses import losses_of
from torch import Tensor

from nartk.architectures import architecture
from nartk.errors import UsageError
from nartk.models.glancing import Schedule, reveal
from nartk.models.losses import Training

SHARES = ("0", "0.05", "0.1", "0.29", "0.3", "0.35", "0.5", "0.57", "0.7", "1")


def batch(device: torch.device, rows: int = 64, width: int = 120) -> tuple[Tensor, Tensor]:
    """Which places are wrong, and which may be shown: random ones, and rows with all of them or none."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, width + 1, (rows, 1), generator=draw)
    wrong = torch.rand(rows, width, generator=draw) < torch.rand(rows, 1, generator=draw)
    wrong[:3] = torch.tensor([False, True, True])[:, None]
    lengths[1] = 100  # all of a hundred wrong, where a share in binary falls short of the one in decimals
    return wrong.to(device), (torch.arange(width) < lengths).to(device)


@pytest.mark.parametrize("nearest", [False, True])
@pytest.mark.parametrize("share", SHARES)
def test_number_random_shows_the_share_of_the_wrong_words(
    share: str, nearest: bool, device: torch.device
) -> None:
    wrong, kept = batch(device)
    shown = reveal(wrong, kept, float(share), "number-random", nearest=nearest)
    assert not bool((shown & ~kept).any())
    for i in range(len(wrong)):
        count = int((wrong[i] & kept[i]).sum())
        assert int(shown[i].sum()) == (Fraction(share) * count + Fraction(nearest, 2)) // 1, (share, count)


@pytest.mark.parametrize("nearest", [False, True])
@pytest.mark.parametrize("share", SHARES)
def test_fixed_shows_the_share_of_all_words(share: str, nearest: bool, device: torch.device) -> None:
    wrong, kept = batch(device)
    shown = reveal(wrong, kept, float(share), "fixed", nearest=nearest)
    assert not bool((shown & ~kept).any())
    wanted = [(Fraction(share) * int(row.sum()) + Fraction(nearest, 2)) // 1 for row in kept]
    assert shown.sum(1).tolist() == wanted


def test_cmlm_shows_any_number_but_all_evenly(device: torch.device) -> None:
    torch.manual_seed(0)
    kept = (torch.arange(6) < 5).to(device).expand(8000, 6)
    counts = Counter(reveal(kept, kept, 0.0, "cmlm").sum(1).tolist())
    assert sorted(counts) == [0, 1, 2, 3, 4]
    # 1600 are expected of each, give or take 36 (one standard deviation)
    assert all(abs(count - 1600) < 5 * 36 for count in counts.values())
    counts = Counter(reveal(kept, kept, 0.0, "cmlm", nearest=True).sum(1).tolist())
    # The DA-Transformer's program rounds to the nearest: 800, 1600, 1600, 1600, 1600, 800.
    assert all(abs(counts[i] - (800 if i in (0, 5) else 1600)) < 5 * 36 for i in range(6))
    nothing = torch.zeros_like(kept)
    assert not bool(reveal(nothing, nothing, 0.0, "cmlm").any())


@pytest.mark.parametrize("strategy", ["number-random", "fixed"])
def test_every_choice_is_as_likely(strategy: str, device: torch.device) -> None:
    """Which words are shown does not depend on which are wrong, as in the paper's random selection."""
    torch.manual_seed(0)
    kept = torch.tensor([True, True, False, True, True], device=device).expand(6000, 5)
    wrong = torch.tensor([True, True, True, True, False], device=device).expand(6000, 5)
    share = 0.7 if strategy == "number-random" else 0.5  # two of three, two of four
    found = Counter(tuple(row.nonzero().flatten().tolist()) for row in reveal(wrong, kept, share, strategy))
    assert sorted(found) == sorted(combinations([0, 1, 3, 4], 2))
    # 1000 are expected of each, give or take 29
    assert all(abs(count - 1000) < 5 * 29 for count in found.values())


def test_a_schedule_goes_linearly_and_stays() -> None:
    assert Schedule.parse("0.5").at(0) == Schedule.parse("0.5").at(10**9) == 0.5
    falling = Schedule.parse("0.5:0.3@300k")
    assert falling == Schedule(0.5, 0.3, 300_000)
    for update, share in ((0, "0.5"), (75_000, "0.45"), (150_000, "0.4"), (300_000, "0.3"), (10**9, "0.3")):
        assert falling.at(update) == pytest.approx(float(share), abs=1e-12)
    assert Schedule.parse("0:1@4").at(1) == 0.25


@pytest.mark.parametrize(
    "text", ["", "x", "0.5:0.3", "0.5@3", "1.1", "0.5:1.5@9", "-0.1", "0.5:0.3@k", "0..5"]
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="schedule"):
        Schedule.parse(text)


@pytest.mark.parametrize("name", ["nat", "ctc", "dag", "blockwise"])
def test_both_passes_drop_the_same_features(
    name: str, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    """As the programs of GLAT, of CTC with it and of the DA-Transformer, which seed both alike."""
    torch.manual_seed(0)
    sizes = dict.fromkeys(("src_vocab", "tgt_vocab", "d_model", "encoder_ffn", "decoder_ffn"), 16)
    declared = architecture(name)
    config = declared.config(**sizes, encoder_layers=1, decoder_layers=2, dropout=0.3)
    model = declared.network(config).to(device)
    original, filled, states = model.fill, [], []

    def fill(*given: Any) -> Tensor:
        filled.append(original(*given))
        return filled[-1]

    def random_state() -> Tensor:
        return torch.get_rng_state() if device.type == "cpu" else torch.cuda.get_rng_state(device)

    def nothing(wrong: Tensor, *_: Any, **__: Any) -> Tensor:
        torch.rand(3, device=device)
        states.append(random_state())
        return torch.zeros_like(wrong)

    monkeypatch.setattr(model, "fill", fill)
    monkeypatch.setattr(sys.modules[type(model).__module__], "reveal", nothing)
    words = torch.tensor([[5, 6, 7, 8, 9, 2], [7, 9, 4, 6, 2, 1]], device=device)
    losses_of(model, words, words, training=Training(glancing="0.5"), update=0)
    first, second = filled
    assert torch.equal(first, second)
    # What is drawn next is what would have been drawn without a second pass.
    assert torch.equal(states[0], random_state())
    losses_of(model, words, words, training=Training(), update=0)
    assert not torch.equal(first, filled[2])
    assert not torch.equal(states[0], random_state())
