"""The search of CTC models: from frames that say a word or nothing to outputs (Graves et al. 2006).

An output is what remains of the frames' labels when runs of a label are merged and blanks are left out.
Symbols: B rows, T frames, K prefixes kept of each row, C candidate words of a frame, V words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.ngram_lm import NGram
from nartk.decoders.tensor_best import best_of
from nartk.errors import StrategyMismatchError
from nartk.rows import steps, these
from nartk.scorer import Frames
from nartk.vocab import Vocab


def require_blank(strategy: str, scorer: Any) -> int:
    """The model's blank; raises StrategyMismatchError where its frames always say a word."""
    if scorer.blank is None:
        raise StrategyMismatchError(
            f"strategy {strategy!r} needs a model whose frames may be blank, this model has no blank"
        )
    return int(scorer.blank)


def silent_words(vocab: Vocab, blank: int) -> list[int]:
    """The words that stand in no output and are not the blank: bos, pad and eos."""
    return [word for word in (vocab.bos, vocab.pad, vocab.eos) if word != blank]


@dataclass(frozen=True)
class Collapsed:
    """What labels say.

    Attributes:
        tokens: [B,T] int64, 0 past the end.
        lengths: [B] int64.
        places: [B,T] int64, the token that each frame merged into; -1 for blanks and past the length.
    """

    tokens: Tensor
    lengths: Tensor
    places: Tensor


def collapse(labels: Tensor, lengths: Tensor, blank: int) -> Collapsed:
    """Merges runs in labels [B,T], of which lengths [B] count, and leaves out blanks."""
    inside = steps(labels.shape[1], labels.device) < lengths[:, None]
    spoken = inside & (labels != blank)
    first = spoken & _changes(labels)
    places = torch.where(spoken, first.cumsum(1) - 1, -1)
    # What is no token goes to a further column.
    into = torch.where(spoken, places, labels.shape[1])
    tokens = F.pad(torch.zeros_like(labels), (0, 1)).scatter(1, into, labels)[:, :-1]
    return Collapsed(tokens, first.sum(1), places)


def greedy_labels(frames: Frames, blank: int, silent: list[int]) -> Collapsed:
    """What the likeliest labels but the `silent` ones say, of equals any."""
    return collapse(_likeliest(frames, silent)[1], frames.lengths, blank)


def _likeliest(frames: Frames, silent: list[int]) -> tuple[Tensor, Tensor]:
    """The likeliest label of each frame but the `silent` ones, its log-probability first: [B,T]."""
    never = these(tuple(silent), frames.log_probs.device)
    best, labels = frames.log_probs.max(2)
    if bool(torch.isin(labels, never).any()):  # trained models say none; the copy costs three times the rest
        best, labels = frames.log_probs.index_fill(2, never, float("-inf")).max(2)
    return best, labels


@dataclass(frozen=True)
class Prefixes:
    """The best outputs of each row, best first.

    Attributes:
        tokens: [B,K,T] int64, 0 past the end.
        lengths: [B,K] int64; -1 where there is no further output.
        scores: [B,K] float64, natural logarithm: of the sum over all labellings that were kept, plus what
            the language model gives.
    """

    tokens: Tensor
    lengths: Tensor
    scores: Tensor


@dataclass(frozen=True)
class _Beam:
    """K prefixes of each of B rows; dead ones have minus infinity in both scores.

    All are different, but for dead copies of the empty prefix behind it: since prefixes come before their
    extensions where scores are equal, no dead extension is ever taken.

    Attributes:
        tokens: [B,K,T] int64; lengths: [B,K].
        last: [B,K] the last token; -1 of the empty prefix.
        blank, word: [B,K] float64, natural log-probability of the labellings that end with a blank, or not.
        extra: [B,K] float64, what the language model and the bonus give.
        states: [B,K] int64, of the language model.
        shared: [B,K,K] int64, with how many equal tokens two prefixes begin.
    """

    tokens: Tensor
    lengths: Tensor
    last: Tensor
    blank: Tensor
    word: Tensor
    extra: Tensor
    states: Tensor
    shared: Tensor


def prefix_beam_search(
    frames: Frames,
    *,
    blank: int,
    silent: list[int],
    eos: int,
    beam_size: int,
    candidates: int,
    lm: NGram | None = None,
    lm_weight: float = 0.0,
    word_bonus: float = 0.0,
) -> Prefixes:
    """Sums up all labellings of each prefix while it goes from frame to frame.

    A prefix stays what it is with a blank or with its last word again, and is extended by one of the
    `candidates` likeliest words of a frame, or by any word that makes it another prefix of the beam: both
    are then one. The `beam_size` best prefixes are kept, of equals the one that ranked first before. With a
    beam and candidates large enough, the scores are the exact log-probabilities.

    Args:
        blank: The label that says nothing; `silent` words are never said.
        lm: Scores each token after those before it, and `eos` in the end, times `lm_weight`.
        word_bonus: Added for each token, nats.

    Source: Graves 2012, "Supervised sequence labelling with recurrent neural networks", section 7.5;
    Hannun et al. 2014, https://arxiv.org/abs/1408.2873, algorithm 1, whose language model weighs words.
    """
    log_probs = frames.log_probs
    batch, length, size = log_probs.shape
    never = torch.tensor([blank, *silent], dtype=torch.int64, device=log_probs.device)
    words = best_of(log_probs.index_fill(2, never, float("-inf")).flatten(0, 1), min(candidates, size)).view(
        batch, length, -1
    )
    chances = log_probs.gather(2, words).double()
    chances = chances.masked_fill(torch.isin(words, never), float("-inf"))  # [B,T,C]
    beam = _empty(batch, beam_size, length, 0 if lm is None else lm.start, log_probs.device)
    for t in range(length):
        beam = _advance(
            beam,
            t < frames.lengths,
            log_probs[:, t].double(),
            words[:, t],
            chances[:, t],
            blank=blank,
            lm=lm,
            lm_weight=lm_weight,
            word_bonus=word_bonus,
        )
    totals = torch.logaddexp(beam.blank, beam.word) + beam.extra
    if lm is not None:
        ends, _ = lm.advance(beam.states, torch.tensor(eos, device=log_probs.device))
        totals = totals + lm_weight * ends
    order = best_of(totals.float(), beam_size)
    totals, lengths = totals.gather(1, order), beam.lengths.gather(1, order)
    tokens = beam.tokens.gather(1, order[:, :, None].expand(-1, -1, length))
    return Prefixes(tokens, lengths.masked_fill(totals == float("-inf"), -1), totals)


def _empty(batch: int, size: int, length: int, start: int, device: torch.device) -> _Beam:
    """The empty prefix, and K - 1 dead ones."""
    zeros = torch.zeros(batch, size, dtype=torch.int64, device=device)
    dead = torch.full((batch, size), float("-inf"), dtype=torch.float64, device=device)
    alive = dead.clone()
    alive[:, 0] = 0.0
    return _Beam(
        tokens=zeros[:, :, None].expand(-1, -1, length),
        lengths=zeros,
        last=zeros - 1,
        blank=alive,
        word=dead,
        extra=torch.zeros_like(dead),
        states=zeros + start,
        shared=zeros[:, :, None].expand(-1, -1, size),
    )


def _advance(
    beam: _Beam,
    active: Tensor,
    log_probs: Tensor,
    words: Tensor,
    chances: Tensor,
    *,
    blank: int,
    lm: NGram | None,
    lm_weight: float,
    word_bonus: float,
) -> _Beam:
    """One frame: log_probs [B,V], its best words [B,C] and their chances; rows not `active` [B] stay."""
    size = beam.lengths.shape[1]
    total = torch.logaddexp(beam.blank, beam.word)  # [B,K]
    known = beam.last >= 0
    last = beam.last.clamp(min=0)
    again = log_probs.gather(1, last).masked_fill(~known, float("-inf"))  # [B,K] the last word's
    # To prefixes that stay: their last word goes on, or extends the prefix that lacks only it. before is
    # [B,K,K], whether the second is the first and a word more; of empty ones the first is alive, if any is.
    mine = beam.lengths[:, :, None]
    before = (beam.shared == mine) & (mine + 1 == beam.lengths[:, None])
    has_parent, parent = before.any(1), before.long().argmax(1)  # [B,K]
    from_blank, from_all = beam.blank.gather(1, parent), total.gather(1, parent)
    entered = torch.where(beam.last.gather(1, parent) == beam.last, from_blank, from_all) + again
    entered = entered.masked_fill(~has_parent, float("-inf"))
    stays_blank = total + log_probs[:, blank, None]
    stays_word = torch.logaddexp(beam.word + again, entered)
    on = active[:, None]
    stays_blank = torch.where(on, stays_blank, beam.blank)
    stays_word = torch.where(on, stays_word, beam.word)

    # To prefixes that are extended by a word.
    repeated = words[:, None] == beam.last[:, :, None]  # [B,K,C]: a blank must lie between
    grown = torch.where(repeated, beam.blank[:, :, None], total[:, :, None]) + chances[:, None]
    # Extensions that are prefixes of the beam went to these already.
    taken = (before[..., None] & (beam.last[:, None, :, None] == words[:, None, None])).any(2)
    grown = grown.masked_fill(taken | ~active[:, None, None], float("-inf"))
    extra, states = beam.extra[:, :, None] + word_bonus, beam.states[:, :, None]
    if lm is not None:
        said, states = lm.advance(states, words[:, None])
        extra = extra + lm_weight * said
    extra, states = extra.expand_as(grown), states.expand_as(grown)

    # The best of K prefixes that stay and K * C extensions.
    ranks = torch.cat([torch.logaddexp(stays_blank, stays_word) + beam.extra, (grown + extra).flatten(1)], 1)
    best = best_of(ranks.float(), size)  # [B,K]
    extended = best >= size
    origin = torch.where(extended, (best - size).div(words.shape[1], rounding_mode="floor"), best)
    word = words.gather(1, (best - size).clamp(min=0) % words.shape[1])

    def choose(stay: Tensor, extension: Tensor) -> Tensor:
        return torch.cat([stay, extension.flatten(1)], 1).gather(1, best)

    dead = torch.full_like(grown, float("-inf"))
    lengths = beam.lengths.gather(1, origin)
    tokens = beam.tokens.gather(1, origin[:, :, None].expand_as(beam.tokens))
    end = lengths[:, :, None]
    shared = _shared(beam.shared, tokens, lengths, origin, extended, word)
    newest = torch.where(extended[:, :, None], word[:, :, None], tokens.gather(2, end))
    return _Beam(
        tokens=tokens.scatter(2, end, newest),
        lengths=lengths + extended,
        last=torch.where(extended, word, beam.last.gather(1, origin)),
        blank=choose(stays_blank, dead),
        word=choose(stays_word, grown),
        extra=choose(beam.extra, extra),
        states=choose(beam.states, states),
        shared=shared,
    )


def _shared(
    shared: Tensor, tokens: Tensor, lengths: Tensor, origin: Tensor, extended: Tensor, word: Tensor
) -> Tensor:
    """With how many equal tokens prefixes begin [B,K,K], after some were extended by a word [B,K].

    Args:
        shared: [B,K,K] of the prefixes before, of which `origin` [B,K] were taken.
        tokens, lengths: [B,K,T] and [B,K] of those taken, before they were extended.
    """
    size = origin.shape[1]
    old = shared.gather(1, origin[:, :, None].expand_as(shared)).gather(2, origin[:, None].expand_as(shared))
    mine, theirs = lengths[:, :, None], lengths[:, None]
    next_of_theirs = tokens.gather(2, lengths[:, None].expand(-1, size, -1)).mT  # [B,K,K] behind my length
    grows = extended[:, :, None] & (old == mine) & (mine < theirs) & (next_of_theirs == word[:, :, None])
    new = old + grows + grows.mT
    same = torch.eye(size, dtype=torch.bool, device=shared.device)
    return torch.where(same, (lengths + extended)[:, :, None], new)


def _changes(labels: Tensor) -> Tensor:
    """Whether each of labels [B,T] differs from the one before it."""
    return F.pad(labels[:, 1:] != labels[:, :-1], (1, 0), value=True)
