"""Beam search: the k best hypotheses of a sentence grow side by side."""

from __future__ import annotations

from typing import Any, ClassVar

from nartk.decoders.language_model import WithLanguageModel
from nartk.decoders.loop.constrained import Constrained
from nartk.decoders.search.beam_constraints import BeamConstraints
from nartk.decoders.search.beam_drafts import DRAFTS, make_beam_drafter
from nartk.decoders.search.beam_rows import Ranking
from nartk.decoders.search.beam_search import BeamSearch
from nartk.decoders.search.fusion import AddedScores, Diversity, Fusion, NGramScores
from nartk.decoders.search.interleaved import Interleaved
from nartk.errors import UsageError, named
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.passes import PassScorer
from nartk.protocols.runs import Batching, Run
from nartk.registry import HEAVIEST, WIDEST, option, register_decoder
from nartk.vocab import Vocab

_MAX_DRAFT = 3


@register_decoder("beam")
class BeamStrategy(WithLanguageModel, Constrained):
    """Keeps the best hypotheses and extends them all by a word a pass.

    A hypothesis ends with eos where eos is among the best `beam_size` candidates; a sentence is done as
    `early_stopping` says or when `max_len` is reached, where the candidates at hand end as they are. With one
    hypothesis this is greedy search. The default are the rules of Hugging Face's `generate`, whose scores a
    repetition penalty multiplies, so that they are no log-probabilities of the model's. ``first`` are those
    of fairseq's SequenceGenerator, but for `max_len`, where fairseq adds an eos: where eos is often among the
    candidates it gives back short outputs that are less likely than greedy search's.

    With --lm each word's score has `lm_weight` times its log-probability by a language model added (shallow
    fusion). What is added changes scores and ranks; `positional_scores` are the model's own.

    With --draft a pass also scores what the hypotheses may go on with. As long as all that are kept are among
    this, the next words are chosen without a pass, by the same rules: the hypotheses are the same.
    """

    needs = (PassScorer,)
    promise = Promise(Guarantee.APPROXIMATE, "the best of k hypotheses; the same in any batch")

    own: ClassVar[frozenset[str]] = Constrained.own | {"nbest"}

    beam_size: int = option(5, "hypotheses of a sentence that are kept", low=1, high=WIDEST, implies=True)
    length_penalty: float = option(
        1.0, "scores are divided by length ** this; more favours long outputs", low=-50, high=50
    )
    nbest: int = option(
        1, "hypotheses given back, at most the beam size", low=1, most="beam_size", implies=True
    )
    early_stopping: str = option(
        "false",
        "the best that end are given back, as in Hugging Face's generate, once (true) there are so many, "
        "(false) none that goes on scores better at its length, (never) at the longest one; or (first) the "
        "first that end, as in fairseq",
        choices=("first", "true", "false", "never"),
    )
    renormalize: bool = option(
        False, "scores are of the words that constraints leave, not of all", does_nothing=True
    )
    candidates: int = option(
        30,
        "words that extend each hypothesis with --lm, the model's likeliest",
        low=1,
        high=WIDEST,
        does_nothing=True,
    )
    draft: str = option(
        "none",
        "what a hypothesis may go on with: the source, the words that were best after the same word before, "
        "or both: fewer passes, each of which verifies more, which costs a CPU more than it saves",
        choices=tuple(DRAFTS),
    )
    max_draft: int = option(_MAX_DRAFT, "longest draft of a hypothesis, tokens", low=1)

    beam_groups: int = option(
        1,
        "groups of hypotheses, each of which pays for the words of the groups before it: diverse beam search",
        low=1,
        most="beam_size",
        does_nothing=True,
    )
    diversity_penalty: float = option(
        0.5,
        "what a word costs for each hypothesis of an earlier group that has it at the same position, nats",
        low=0.0,
        high=HEAVIEST,
        does_nothing=True,
    )

    def __post_init__(self) -> None:
        is_renormalized = self.renormalize and self.interleaved() is None
        if self.beam_groups > 1 and (self.beam_size % self.beam_groups or is_renormalized):
            groups = named("beam_groups", self.beam_groups)
            if is_renormalized:
                raise UsageError(f"{groups} with {named('renormalize', True)}", fix="leave one of them out")
            raise UsageError(
                f"{groups} of {self.beam_size} hypotheses, which is no multiple", fix="give equal groups"
            )
        if self.draft == "none" and self.max_draft != _MAX_DRAFT:
            raise UsageError(
                f"{named('max_draft')} is {self.max_draft}, but nothing is drafted",
                fix=f"choose what with {named('draft')}: source, recycling or both",
            )

    def owned(self, vocab: Vocab) -> dict[str, Any]:
        return {**super().owned(vocab), "nbest": self.nbest}

    def begin(self, scorer: PassScorer, batching: Batching) -> Run:
        """Begins a run. Its `batching` counts sentences, each of which has `beam_size` hypotheses."""
        vocab, is_greedy = scorer.vocab, self.beam_size == 1
        interleaved = None if is_greedy else self.interleaved()
        groups = 1 if interleaved is not None else max(self.beam_groups, 1)
        size = self.beam_size // groups
        added, rules = self.added(scorer), self.constraints(vocab)
        only_best = is_greedy and not added
        constraints = BeamConstraints(rules, vocab.eos, only_best, renormalize=self.renormalize)
        constraints = constraints.of_run(scorer)
        if groups > 1:
            added = [*added, Diversity(constraints, self.diversity_penalty, size, vocab.pad)]
        stopping = "first" if is_greedy else self.early_stopping
        return BeamSearch(
            scorer,
            constraints,
            Ranking(size, vocab.ends, self.length_penalty, stopping, counts_ended=groups > 1),
            batching,
            nbest=self.nbest,
            drafter=make_beam_drafter(scorer, self.draft, self.max_draft),
            fusion=Fusion(added) if added else None,
            groups=groups,
            interleaved=interleaved,
            candidates=self.candidates if self.lm else 0,
        )

    def interleaved(self) -> Interleaved | None:
        """Groups as fairseq has them, which a subclass may have; None: those of Hugging Face's `generate`."""
        return None

    def added(self, scorer: PassScorer) -> list[AddedScores[Any]]:
        """Scores that are added to the model's; a subclass may add more."""
        lm = self.language_model(scorer.vocab)
        return [] if lm is None else [NGramScores(lm, self.lm_weight)]
