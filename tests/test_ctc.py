"""CTC: alignment, collapsing and search against all labellings; the model, its training and serving."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.labellings import INF, all_outputs, collapsed
from support.memory import rising_at_most
from support.scripted import decode
from support.scripted_graphs import ScriptedFrames
from torch import Tensor

from nartk.decoders.ctc_greedy import best_path
from nartk.decoders.graphs.ctc_alignment import aligned
from nartk.decoders.graphs.ngram_lm import read_arpa
from nartk.errors import UsageError
from nartk.models.ctc_alignment import (
    NO_STATE,
    ctc_best_states,
    fewest_frames,
    labels_of,
    tokens_of,
)
from nartk.protocols.hypothesis import Hypothesis, Request
from nartk.registry import make_strategy
from nartk.vocab import SPECIALS, Vocab

# Alignment


def states_by_hand(labels: Sequence[int], blank: int) -> list[int]:
    """The states of a labelling: 2u + 1 in word u, 2u in the blank before it."""
    states, words, last = [], 0, blank
    for label in labels:
        words += label not in (blank, last)
        states.append(2 * words if label == blank else 2 * words - 1)
        last = label
    return states


def best_by_hand(log_probs: np.ndarray, target: Sequence[int], blank: int) -> tuple[list[int], float]:
    """States and score of the likeliest of all labellings; of ties the farthest on where they last differ."""
    length, size = log_probs.shape
    best: tuple[float, list[int]] = (-INF, [])
    for labels in itertools.product(range(size), repeat=length):
        if collapsed(labels, blank) != tuple(target):
            continue
        score = float(sum(log_probs[t, label] for t, label in enumerate(labels)))
        found = (score, states_by_hand(labels, blank)[::-1])
        best = max(best, found) if score > -INF else best
    return best[1][::-1], best[0]


def random_rows(
    seed: int, rows: int, *, length: int, size: int, words: int, whole: bool, blank: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random frames and targets of random lengths, NaN and nonsense past these."""
    draw = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(rows, length, size, generator=draw, dtype=torch.float64) * 2
    log_probs = (log_probs > 0).double() if whole else log_probs.log_softmax(-1)
    log_probs[torch.rand(log_probs.shape, generator=draw) < 0.05] = -INF
    targets = torch.randint(0, size - 1, (rows, words), generator=draw)
    targets += targets >= blank
    lengths = torch.randint(0, length + 1, (rows,), generator=draw)
    counts = torch.randint(0, words + 1, (rows,), generator=draw)
    log_probs[torch.arange(length) >= lengths[:, None]] = math.nan
    targets[torch.arange(words) >= counts[:, None]] = 77
    return log_probs, targets, lengths, counts


def check_alignments(seeds: range, device: torch.device) -> None:
    impossible = 0
    for seed in seeds:
        size, length, blank = 2 + seed % 3, 1 + seed % 6, seed // 2 % 2
        batch = random_rows(
            seed, 12, length=length, size=size, words=seed % 5, whole=seed % 2 == 0, blank=blank
        )
        log_probs, targets, lengths, counts = (x.to(device) for x in batch)
        found = ctc_best_states(log_probs, targets, lengths, counts, blank=blank).cpu()
        labels = labels_of(found, batch[1], blank=blank)
        for row in range(12):
            frames, words = int(lengths[row]), batch[1][row, : counts[row]].tolist()
            states, score = best_by_hand(batch[0][row, :frames].numpy(), words, blank)
            assert found[row].tolist() == states + [NO_STATE] * (length - len(states)), (seed, row)
            impossible += score == -INF
            runs = aligned(batch[0][row, :frames].numpy(), words, blank)
            assert (runs is None) == (score == -INF or not frames)
            if runs is not None:
                wanted = [
                    [i for i, each in enumerate(states) if each == 2 * u + 1] for u in range(len(words))
                ]
                assert runs.tolist() == [[each[0], each[-1] + 1] for each in wanted]
            if states:
                assert collapsed(labels[row, :frames].tolist(), blank) == tuple(words)
                assert [words[u] if u >= 0 else blank for u in tokens_of(found[row, :frames])] == labels[
                    row, :frames
                ].tolist()
            alone = ctc_best_states(
                *(x[row : row + 1] for x in (log_probs, targets, lengths, counts)), blank=blank
            )
            assert torch.equal(alone.cpu()[0], found[row])
    assert impossible > 0


def test_alignment_is_the_likeliest_of_all_labellings(device: torch.device) -> None:
    check_alignments(range(60), device)


def test_a_long_alignment_stays_in_its_band() -> None:
    """Of a recording that is heard clearly a narrow band finds what all states do, in memory of the band."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        tokens, labels = rng.integers(1, 5, 60).tolist(), []
        for token in tokens:
            labels += [0] * int(rng.integers(1, 4)) + [token] * int(rng.integers(1, 4))
        log_probs = np.full((len(labels), 5), -3.0, np.float32)
        log_probs[np.arange(len(labels)), labels] = -0.2
        every, narrow = aligned(log_probs, tokens, 0), aligned(log_probs, tokens, 0, band=16)
        assert every is not None
        assert narrow is not None
        assert every.tolist() == narrow.tolist()
        assert [labels[begin] for begin, _ in every.tolist()] == tokens
    with rising_at_most(40_000):
        log_probs = np.full((20_000, 3), -1.0, np.float32)
        aligned(log_probs, [1, 2] * 4_000, 0)


@pytest.mark.slow
def test_alignment_is_the_likeliest_of_all_labellings_many_times(device: torch.device) -> None:
    check_alignments(range(60, 1060), device)


def test_ties_go_as_far_as_they_can(device: torch.device) -> None:
    draw = torch.Generator().manual_seed(0)
    log_probs = torch.randint(-1, 1, (150, 5, 3), generator=draw).double()
    targets = torch.tensor([[1, 2, 1], [1, 1, 2], [2, 1, 2]]).repeat(50, 1)
    lengths, counts = torch.full((150,), 5), torch.randint(1, 4, (150,), generator=draw)
    found = ctc_best_states(*(x.to(device) for x in (log_probs, targets, lengths, counts)), blank=0).tolist()
    other = 0
    for row, states in enumerate(found):
        words = targets[row, : counts[row]].tolist()
        assert states == best_by_hand(log_probs[row].numpy(), words, 0)[0]
        # A rule that likes late blanks finds others: there are ties.
        shaken = log_probs[row].numpy() + 1e-6 * np.arange(5)[:, None] * (np.arange(3) == 0)
        other += states != best_by_hand(shaken, words, 0)[0]
    assert other > 20


def test_a_known_bad_alignment_is_noticed() -> None:
    """The rule that goes past a blank between equal words, too, finds other labellings."""
    log_probs = torch.tensor([[[-9.0, -0.1], [-9.0, -0.1], [-9.0, -0.1]]])
    found = ctc_best_states(log_probs, torch.tensor([[1, 1]]), torch.tensor([3]), torch.tensor([2]), blank=0)
    assert found.tolist() == [[1, 2, 3]] == [best_by_hand(log_probs[0].numpy(), [1, 1], 0)[0]]


def test_alignment_and_torchs_loss_agree(device: torch.device) -> None:
    """The best labelling is no likelier than all together, and as likely where it is the only one."""
    alone = 0
    for seed in range(40):
        log_probs, targets, lengths, counts = random_rows(
            seed, 16, length=7, size=4, words=4, whole=False, blank=0
        )
        log_probs = log_probs.nan_to_num(nan=-1.0, neginf=-30.0)
        targets, lengths = targets.where(targets < 77, 1), lengths.clamp(min=1)
        loss = F.ctc_loss(log_probs.transpose(0, 1), targets, lengths, counts, reduction="none")
        states = ctc_best_states(
            *(x.to(device) for x in (log_probs, targets, lengths, counts)), blank=0
        ).cpu()
        labels = labels_of(states, targets, blank=0)
        said = log_probs.gather(2, labels.clamp(min=0)[:, :, None]).squeeze(2).masked_fill(labels < 0, 0.0)
        need = fewest_frames(targets, counts)
        possible = need <= lengths
        assert torch.equal(loss < INF, possible)
        assert torch.equal((labels >= 0).any(1), possible)
        assert (said.sum(1)[possible] <= -loss[possible] + 1e-9).all()
        tight = possible & (need == lengths)
        torch.testing.assert_close(said.sum(1)[tight], -loss[tight])
        alone += int(tight.sum())
    assert alone > 20


def test_alignment_refuses_what_does_not_fit() -> None:
    frames, words = torch.zeros(2, 3, 4), torch.ones(2, 2, dtype=torch.int64)
    two = torch.tensor([2, 2])
    with pytest.raises(UsageError, match=r"`input_lengths` \[2, 4\] are not all between 0 and 3"):
        ctc_best_states(frames, words, torch.tensor([2, 4]), two, blank=0)
    with pytest.raises(UsageError, match=r"`target_lengths` \[-1, 2\] are not all between 0 and 2"):
        ctc_best_states(frames, words, two, torch.tensor([-1, 2]), blank=0)
    with pytest.raises(UsageError, match="`log_probs` has 2 rows, `targets` 3, `input_lengths` 2"):
        ctc_best_states(frames, torch.ones(3, 2, dtype=torch.int64), two, two, blank=0)
    with pytest.raises(UsageError, match=r"not \[B,T,V\]"):
        ctc_best_states(frames[0], words, two, two, blank=0)


# Search


def test_greedy_scores_are_those_of_the_frames() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        labels = rng.integers(0, 4, rng.integers(1, 12)) * 2
        scores = np.log(rng.random(len(labels)))
        found = best_path(labels.tolist(), scores.tolist(), 4, 2)
        runs = [list(run) for _, run in itertools.groupby(range(len(labels)), lambda t, of=labels: of[t])]
        spoken = [run for run in runs if labels[run[0]] != 4]
        assert found.tokens == [*(labels[run[0]] for run in spoken), 2]
        wanted = [*(scores[run].sum() for run in spoken), scores[labels == 4].sum()]
        assert found.log_probs == pytest.approx(wanted, rel=1e-12, abs=1e-12)
        assert found.score == pytest.approx(scores.sum(), rel=1e-12)


TOY = Vocab(("a", "b", "</s>", "c", "<s>", "<unk>", "<pad>"), 4, 6, 2, 5)
IMPOSSIBLE = [4, 5, 6]  # of its words
TOY_LM = (
    "\\data\\\nngram 1=5\nngram 2=4\n\n\\1-grams:\n-99\t<s>\t-0.2\n-0.5\t</s>\n-0.4\ta\t-0.3\n"
    "-0.7\tb\t-0.1\n-1.1\tc\n\n\\2-grams:\n-0.2\t<s> a\n-0.9\ta b\n-0.1\tb b\n-0.6\tc </s>\n\n\\end\\\n"
)


def search(
    frames: Sequence[np.ndarray], vocab: Vocab, blank: int, *, batch: int = 4, **options: Any
) -> list[tuple[Hypothesis, ...]]:
    """What ctc-beam finds in log-probabilities [T,V]."""
    requests = [Request(i, (i, 2), 99) for i in range(len(frames))]
    strategy = make_strategy("ctc-beam", options)
    found = decode(strategy, ScriptedFrames(frames, vocab, blank), requests, batch_size=batch)
    return [result.hypotheses for result in found]


@pytest.mark.parametrize("with_lm", [False, True], ids=["alone", "lm"])
def test_prefix_beam_search_equals_all_labellings(with_lm: bool, tmp_path: Path) -> None:
    path = tmp_path / "toy.arpa"
    path.write_text(TOY_LM)
    lm = read_arpa(path, TOY) if with_lm else None
    weighed = {"lm": str(path), "lm_weight": 0.7} if with_lm else {}
    for seed in range(24):
        rng = np.random.default_rng(seed)
        length, blank = 1 + seed % 6, (0, 1, 3)[seed % 3]
        frames = [1.5 * rng.standard_normal((count, 7)) for count in (length, max(1, length - 1), 1)]
        for each in frames:
            if seed % 5 == 0:
                each[rng.random(each.shape) < 0.2] = -INF
                each[:, blank] = 0.5
            each[:, IMPOSSIBLE] = -INF
            each -= np.logaddexp.reduce(each, 1)[:, None]
        options = {"beam_size": 130, "candidates": 4, "nbest": 130, "word_bonus": 0.4, **weighed}
        for log_probs, found in zip(frames, search(frames, TOY, blank, **options), strict=True):
            wanted = all_outputs(log_probs, blank, [2, *IMPOSSIBLE])
            for output in wanted:
                wanted[output] += 0.4 * len(output)
                if lm is not None:
                    said = [4, *output, 2]
                    wanted[output] += 0.7 * sum(lm.score(said[:i], said[i]) for i in range(1, len(said)))
            outputs = [hypothesis.tokens[:-1] for hypothesis in found]
            assert all(hypothesis.tokens[-1] == 2 for hypothesis in found)
            assert len(outputs) == len(set(outputs)) == len(wanted)
            scores = [hypothesis.score for hypothesis in found]
            ranked = sorted(wanted.values(), reverse=True)
            np.testing.assert_allclose(scores, [wanted[output] for output in outputs], rtol=0, atol=1e-5)
            np.testing.assert_allclose(scores, ranked, rtol=0, atol=1e-5)


def beam_by_hand(
    log_probs: np.ndarray, blank: int, silent: Sequence[int], size: int, candidates: int
) -> dict[tuple[int, ...], float]:
    """Prefix beam search with dictionaries, as Hannun et al. 2014 write it, without a language model."""
    beam = {(): (0.0, -INF)}
    for frame in log_probs:
        order = sorted(
            (v for v in range(len(frame)) if v != blank and v not in silent), key=lambda v: -frame[v]
        )
        new: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [-INF, -INF])
        for prefix, (in_blank, in_word) in beam.items():
            both = np.logaddexp(in_blank, in_word)
            new[prefix][0] = np.logaddexp(new[prefix][0], both + frame[blank])
            if prefix:
                new[prefix][1] = np.logaddexp(new[prefix][1], in_word + frame[prefix[-1]])
            for word in range(len(frame)):
                longer = (*prefix, word)
                if word in order[:candidates] or longer in beam:
                    before = in_blank if prefix and prefix[-1] == word else both
                    new[longer][1] = np.logaddexp(new[longer][1], before + frame[word])
        ranked = sorted(new, key=lambda prefix: -np.logaddexp(*new[prefix]))
        beam = {prefix: (new[prefix][0], new[prefix][1]) for prefix in ranked[:size]}
    return {prefix: float(np.logaddexp(*scores)) for prefix, scores in beam.items()}


def words_of(size: int) -> Vocab:
    return Vocab.from_words([f"w{i}" for i in range(size - len(SPECIALS))])


def random_frames(rng: np.random.Generator, counts: Sequence[int], size: int) -> list[np.ndarray]:
    """Log-probabilities [T,V] as fp32 has them; the specials but bos, the blank, are impossible."""
    found = []
    for count in counts:
        scores = rng.standard_normal((count, size))
        scores[:, 1:4] = -INF
        found.append((scores - np.logaddexp.reduce(scores, 1)[:, None]).astype(np.float32).astype(float))
    return found


def test_narrow_beams_equal_dictionaries() -> None:
    """Long inputs and few places: prefixes fall out of the beam and come back while longer ones stay."""
    for seed in range(30):
        frames = random_frames(np.random.default_rng(seed), (25, 25, 20, 3), 9)
        size, candidates = (2, 3, 5, 9)[seed % 4], 1 + seed % 5
        options = {"beam_size": size, "candidates": candidates, "nbest": size}
        for log_probs, found in zip(frames, search(frames, words_of(9), 0, **options), strict=True):
            every = beam_by_hand(log_probs, 0, [1, 2, 3], size, candidates)
            wanted = {output: score for output, score in every.items() if score > -INF}
            assert [hypothesis.tokens[:-1] for hypothesis in found] == list(wanted), seed
            scores = [hypothesis.score for hypothesis in found]
            np.testing.assert_allclose(scores, list(wanted.values()), rtol=0, atol=1e-5)


def test_a_search_does_not_depend_on_its_batch() -> None:
    rng = np.random.default_rng(1)
    frames = random_frames(rng, rng.integers(1, 32, 9).tolist(), 300)
    options = {"beam_size": 7, "candidates": 5, "nbest": 7}
    many, few, alone = (search(frames, words_of(300), 0, batch=size, **options) for size in (9, 4, 1))
    assert many == few == alone
