"""Joint CTC/attention decoding in one pass (Watanabe et al. 2017; Hori et al. 2017, arXiv:1706.02737).

An autoregressive decoder and a CTC head read the same encoded source. Each hypothesis of a beam search is
scored by both: CTC keeps the decoder from repeating or leaving out parts of a recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from nartk.decoders.ctc_greedy import require_blank
from nartk.decoders.language_model import WithLanguageModel
from nartk.decoders.loop.constrained import Constrained
from nartk.decoders.search.beam_constraints import BeamConstraints
from nartk.decoders.search.beam_rows import Ended, Ranking
from nartk.decoders.search.beam_search import BeamSearch
from nartk.decoders.search.fusion import AddedScores, CtcScores, Fusion, NGramScores
from nartk.errors import UsageError, named
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.parallel import FrameScorer
from nartk.protocols.passes import PassScorer
from nartk.protocols.runs import Batching, Run
from nartk.registry import HEAVIEST, WIDEST, option, register_decoder


@register_decoder("joint-ctc")
class JointCtc(WithLanguageModel, Constrained):
    """Keeps the best hypotheses by the decoder's and CTC's scores together, word by word.

    A word adds (1 - w) times its log-probability by the decoder, w times what it takes from CTC's
    log-probability of all outputs that begin so, and with a language model `lm_weight` times that model's
    log-probability, and `word_bonus`; eos, that the frames say nothing more. So a score is (1 - w) times the
    decoder's log-probability of the output, plus w times CTC's, plus the language model's share and a bonus
    for each word; `positional_scores` are its parts. What no labelling of the frames gives costs 1e10 nats.

    The candidates of a hypothesis, which CTC scores, are the decoder's likeliest words, and all words if
    `ctc_weight` is 1. With `pre_beam_ratio` they are chosen as ESPnet's pre-beam does, by decoder and
    language model together; if `ctc_weight` is 0 they are all words. The search ends when no hypothesis that
    goes on is better than those to be given back, or can become so by the bonus of as many words as are
    allowed: without a length penalty, nothing else makes it better.

    ESPnet's command decodes with w 0.5, a beam of 20, a pre-beam of 1.5 times that, no bonus, and weight 1
    for a language model. Its search differs in this: it goes on with one hypothesis less for each that has
    ended; it stops when those that ended with each of the last three lengths are ten nats worse than the
    best; and at the greatest length it adds an eos.
    """

    needs = (PassScorer, FrameScorer)
    needs_blank: ClassVar[bool] = True
    promise = Promise(
        Guarantee.APPROXIMATE, "the best of k hypotheses by decoder and CTC; the same in any batch"
    )
    fuses_scores: ClassVar[bool] = True  # no token's score tells how sure the model is of it

    beam_size: int = option(10, "hypotheses of a sentence that are kept", low=1, high=WIDEST)
    ctc_weight: float = option(
        0.3, "w, weight of CTC's log-probabilities; the decoder's is 1 - w; ESPnet's is 0.5", low=0, high=1
    )
    candidates: int = option(
        30, "words that extend each hypothesis, the decoder's likeliest", low=1, high=WIDEST
    )
    pre_beam_ratio: float = option(
        0.0,
        "candidates in their place: the beam size times this, the best by decoder and language model; "
        "ESPnet's is 1.5; 0: off",
        low=0,
        high=WIDEST,
        does_nothing=True,
    )
    word_bonus: float = option(
        0.0,
        "added to a score for each word, nats, eos too; more favours long outputs (ESPnet's penalty)",
        low=-HEAVIEST,
        high=HEAVIEST,
        does_nothing=True,
    )
    length_penalty: float = option(
        0.0, "scores are divided by length ** this; more favours long outputs", low=-50, high=50
    )
    nbest: int = option(1, "hypotheses given back, at most the beam size", low=1, most="beam_size")

    def __post_init__(self) -> None:
        if self.pre_beam_ratio and self.ctc_weight == 1:
            raise UsageError(
                f"{named('pre_beam_ratio', self.pre_beam_ratio)} with {named('ctc_weight', 1)}, where all "
                "words are candidates",
                fix="leave one of them out",
            )

    def begin(self, scorer: Any, batching: Batching) -> Run:
        """Begins a run. Its `batching` counts sentences, each of which has `beam_size` hypotheses."""
        vocab, blank = scorer.vocab, require_blank(self.name, scorer)
        constraints = BeamConstraints(self.constraints(vocab), vocab.eos, False).of_run(scorer)
        added: list[AddedScores[Any]] = []
        if (lm := self.language_model(vocab)) is not None:
            added.append(NGramScores(lm, self.lm_weight))
        if self.ctc_weight:
            added.append(CtcScores(scorer, blank, self.ctc_weight))
        kept, read = self._widths(len(vocab), lm is not None)
        return BeamSearch(
            scorer,
            constraints,
            BestRanking(
                self.beam_size,
                vocab.ends,
                self.length_penalty,
                "false",
                nbest=self.nbest,
                bonus=max(0.0, self.word_bonus),
            ),
            batching,
            nbest=self.nbest,
            fusion=Fusion(added, is_joint=True, weight=1 - self.ctc_weight, bonus=self.word_bonus, kept=kept),
            candidates=read,
        )

    def _widths(self, words: int, has_lm: bool) -> tuple[int, int]:
        """Candidates of a hypothesis, and how many of the decoder's likeliest words they are chosen from."""
        if self.ctc_weight == 1:
            return words, words
        if not self.pre_beam_ratio:
            count = min(max(self.candidates, self.beam_size + 1), words)
            return count, count
        if self.ctc_weight == 0:  # nothing is spared: every word is a candidate
            return words, words
        count = min(max(int(self.pre_beam_ratio * self.beam_size), self.beam_size), words)
        return count, words if has_lm else count


@dataclass(frozen=True)
class BestRanking(Ranking):
    """Ends a search when no hypothesis that goes on is better than the `nbest` that have ended.

    Attributes:
        bonus: Most that each further word may add to a sum, at least 0.
    """

    nbest: int = field(kw_only=True)
    bonus: float = field(kw_only=True)

    def is_done(self, finished: Sequence[Ended], best: float, length: int, longest: int) -> bool:
        if len(finished) < self.nbest:
            return False
        lengths: Sequence[int] = (length,)
        if self.bonus:
            lengths = range(length if self.length_penalty else longest, longest + 1)
        most = max(self.score(best + self.bonus * (each - length), each) for each in lengths)
        return most <= finished[self.nbest - 1].score
