"""The likeliest word of each fire (Gao et al. 2022, https://arxiv.org/abs/2206.08317), with hotwords.

Symbols: B sentences, N fires, V words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nartk.decoders.graphs.hotwords import Hotwords
from nartk.decoders.native import Found, Native, Output
from nartk.decoders.strategy import Strategy
from nartk.errors import UsageError, named
from nartk.guarantee import Guarantee, Promise
from nartk.hypothesis import Request
from nartk.parallel import FireScorer, TimedFrames, always_banned
from nartk.passes import FloatArray, IntArray, Want
from nartk.registry import HEAVIEST, option, register_decoder
from nartk.vocab import Vocab

if TYPE_CHECKING:
    from nartk.processors import OutputProcessor

_BETWEEN = " / "  # hotwords
_WEIGHT = 3.0


@register_decoder("paraformer")
class ParaformerGreedy(Native):
    """Takes the likeliest word of each fire; the first eos, or the last fire, ends the output.

    A token's log-probability is the model's; eos behind the last fire, which no fire emits, has 0: there the
    output ends. A score is their sum. With hotwords the words of all fires together are those with the
    largest sum of log-probabilities and bonus, and the output's bonus is a part of its score.
    """

    needs = FireScorer
    promise = Promise(Guarantee.APPROXIMATE, "the likeliest word of each fire")
    is_streamed: ClassVar[bool] = True

    hotwords: str = option(
        "",
        "words and phrases that are favoured, as written in a sentence: 'nartk / New York' are two",
        does_nothing=True,
    )
    hotword_weight: float = option(
        _WEIGHT,
        "added to an output's score for each token of each hotword that it holds, nats",
        low=0.0,
        high=HEAVIEST,
        does_nothing=True,
    )

    def __post_init__(self) -> None:
        if not self.hotwords and self.hotword_weight != _WEIGHT:
            raise UsageError(
                f"{named('hotword_weight')} is {self.hotword_weight}, but there are no hotwords",
                fix=f"name some with {named('hotwords')}",
            )

    def in_pieces(self, output: OutputProcessor) -> Strategy:
        vocab = output.vocab
        found = [vocab.to_words(output.encode(text)) for text in self._texts()]
        for text, words in zip(self._texts(), found, strict=True):
            if vocab.words[vocab.unk] in words:
                raise UsageError(
                    f"{named('hotwords')} names {text!r}, of which the model's dictionary has only "
                    f"{' '.join(words)!r}",
                    fix="leave out what the model cannot write",
                )
        changed: Any = {"hotwords": _BETWEEN.join(map(" ".join, found))}
        return replace(self, **changed)

    def search(self, scorer: FireScorer, memory: IntArray, requests: Sequence[Request]) -> list[Found]:
        vocab, counts = scorer.vocab, scorer.frames(memory)
        phrases = self._phrases(vocab)
        silent = [word for word in (vocab.bos, vocab.pad) if word != vocab.eos]
        scores = scorer.read_frames(memory, Want(banned=always_banned(silent, counts.sum()), margin=True))
        ends = np.cumsum(counts)[:-1]
        spans = scorer.spans(memory) if isinstance(scorer, TimedFrames) else [None] * len(counts)
        if not phrases:
            parts = (scores.best, scores.log_probs, scores.margins)
            rows = zip(*(np.split(each, ends) for each in parts), spans, strict=True)
            return [
                Found([_output(*(each.tolist() for each in row), eos=vocab.eos, spans=own)])
                for *row, own in rows
            ]
        hotwords, found = Hotwords.of(phrases), []
        rows_of = np.split(scores.rows(np.arange(counts.sum(), dtype=np.int32)), ends)
        for logits, times in zip(rows_of, spans, strict=True):
            wide = logits.astype(np.float64)
            log_probs = wide - np.logaddexp.reduce(wide, 1, keepdims=True)
            words, bonus = hotwords.best(log_probs, self.hotword_weight, eos=vocab.eos, silent=silent)
            own = log_probs[np.arange(len(words)), words].tolist()
            found.append(Found([_output(words, own, None, eos=vocab.eos, bonus=bonus, spans=times)]))
        return found

    def _texts(self) -> list[str]:
        return self.hotwords.split(_BETWEEN) if self.hotwords else []

    def _phrases(self, vocab: Vocab) -> list[tuple[int, ...]]:
        """The ids of the hotwords, written in words of the dictionary."""
        found = []
        for text in self._texts():
            words = tuple(vocab.ids(text.split()))
            if not words or {vocab.bos, vocab.pad, vocab.eos, vocab.unk} & {*words}:
                raise UsageError(
                    f"{named('hotwords')} names {text!r}, which is not made of words of the dictionary",
                    fix="give words of the model's dictionary, as in 'a b / c'",
                )
            found.append(words)
        return found


def _output(
    words: list[int],
    log_probs: list[float],
    margins: list[float] | None,
    *,
    eos: int,
    bonus: float = 0.0,
    spans: FloatArray | None = None,
) -> Output:
    """What fires [N] emit, up to the first eos; behind the last fire eos is certain."""
    size = words.index(eos) + 1 if eos in words else len(words) + 1
    tokens, scores = [*words, eos][:size], [*log_probs, 0.0][:size]
    known = None if margins is None else [*margins, math.inf][:size]
    times = None if spans is None else [(float(a), float(b)) for a, b in spans[: size - 1].tolist()]
    return Output(tokens, math.fsum(scores) + bonus, scores, margins=known, spans=times)
