"""Drafts with a small autoregressive model, which reads in contexts of its own.

Symbols: K drafted tokens, N tokens of a pass, n of them scored, V words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from operator import eq
from typing import ClassVar, Protocol

import numpy as np

from nartk.decoders.drafters.own_layers import OwnLayers
from nartk.decoders.loop.drafter import Draft, Drafter, DrafterOptions, PlainDrafter
from nartk.decoders.loop.packing import Unread, pack
from nartk.decoders.loop.prompting import prompts_of
from nartk.decoders.loop.rows import Row
from nartk.errors import StrategyMismatchError, UsageError, named
from nartk.protocols.chains import ChainRule, Chains, DraftsChains
from nartk.protocols.encoded import GivesEncoded, ReadsEncoded, sources_of
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import FloatArray, PassScorer, Scores, Source, Want, costs_of
from nartk.registry import option, register_drafter

DRAFTER_HELP = (
    "name or folder of the small autoregressive model that drafts; where none is given, the one in the "
    "model's own folder, drafter/, if it is there; self:layers=K: the first K decoder layers of the model "
    "itself; self:skip=decoder.3.self,decoder.3.ffn: all but these sublayers"
)
WORDS_HELP = (
    "the small model picks among so many words, those that the model writes most often by the "
    "word_counts.json in the small model's folder; 0: among all"
)
WITHIN = "drafter"  # in a model's folder, the folder of what drafts for it


@register_drafter("small-model")
class SmallModelDrafts(DrafterOptions):
    """Proposes the best words with which a small autoregressive model goes on."""

    needs: ClassVar[type | tuple[type, ...]] = (PassScorer,)
    of_model = True

    drafter: str = option("", DRAFTER_HELP, model=True, smaller=True, itself=True, within=WITHIN)
    block_size: int = option(5, "longest draft, tokens", low=1)
    stop_below: float = option(
        0.0,
        "a draft ends with the word that takes the product of its probabilities below this; 0: none does",
        low=0.0,
        high=1.0,
        does_nothing=True,
    )
    drafter_words: int = option(0, WORDS_HELP, low=0, does_nothing=True)

    def make_drafter(self, scorer: PassScorer) -> Drafter:
        return SmallModel(scorer, self.block_size, PickBest(), stop_below=self.stop_below)


def small_model(auxiliary: Mapping[str, object], strategy: str) -> PassScorer | OwnLayers:
    """The auxiliary model ``drafter``, or the layers of the model itself in its place.

    Raises:
        UsageError: There is none.
        StrategyMismatchError: It does not output one word after the other.
    """
    if "drafter" not in auxiliary:
        raise UsageError(
            f"strategy {strategy!r} drafts with a second model, and {named('drafter')} names none",
            fix=f"name a small autoregressive model with {named('drafter')}",
        )
    scorer = auxiliary["drafter"]
    if not isinstance(scorer, (PassScorer, OwnLayers)):
        raise StrategyMismatchError(
            f"{named('drafter')} needs a PassScorer, the model it names is none",
            fix=f"name an autoregressive model, or draft with this one by {named('strategy', 'gad')}",
        )
    return scorer


class Pick(Protocol):
    """Chooses tokens from what the small model scored."""

    @property
    def keeps_logits(self) -> bool:
        """Tells whether drafts carry the logits that it chose from."""

    def want(self, index: Sequence[int], positions: Sequence[int]) -> Want:
        """Values read to choose a token at each position of the outputs of requests of these indices."""

    def __call__(self, scores: Scores) -> tuple[list[int], list[float]]:
        """A token for each of the n, -1 where none is drafted, and its log-probability."""


@dataclass(frozen=True)
class PickBest:
    """The likeliest word, where it is likely enough.

    Args:
        fallback: Least probability of a word that is drafted.
    """

    keeps_logits: ClassVar[bool] = False

    fallback: float = 0.0

    @property
    def least(self) -> float:
        """Least log-probability of a word that is drafted, of fp32."""
        return float(np.float32(math.log(self.fallback))) if self.fallback > 0 else -math.inf

    def want(self, index: Sequence[int], positions: Sequence[int]) -> Want:
        return Want()

    def __call__(self, scores: Scores) -> tuple[list[int], list[float]]:
        words, log_probs = scores.best.tolist(), scores.log_probs.tolist()
        if self.fallback > 0:
            least = self.least
            words = [word if score >= least else -1 for word, score in zip(words, log_probs, strict=True)]
        return words, log_probs


@dataclass(slots=True, eq=False)
class SmallModelRow(Unread):
    """Tokens that the small model has read for a row: its prompt, the output's tokens, and `drafted`.

    Attributes:
        prompt: The tokens that it reads before the output.
        drafted: Tokens of the last draft that it has read.
        unread: Tokens that it reads next.
    """

    prompt: tuple[int, ...]
    drafted: list[int] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)

    def catch_up(self, output: Sequence[int]) -> None:
        """Makes what is not read of an output, its last token at least, unread; `cells` are those to keep."""
        if self.cells == 0:
            self.unread = [*self.prompt, *output]
            return
        before = len(self.prompt)
        known = self.cells - len(self.drafted)
        same = sum(1 for _ in takewhile(bool, map(eq, self.drafted, islice(output, known - before, None))))
        self.cells, self.drafted = min(known + same, before + len(output) - 1), []
        self.unread = list(output[self.cells - before :])


@dataclass(slots=True)
class _Turn:
    """A row's part in drafting.

    Attributes:
        most: Longest draft, tokens.
        total: Sum of `log_probs`, one after the other, as the engine adds them.
    """

    row: Row
    reader: SmallModelRow
    most: int
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    logits: list[FloatArray] = field(default_factory=list)
    total: float = 0.0
    passes: int = 0

    def draft(self) -> Draft:
        logits = np.stack(self.logits) if self.logits else None
        return Draft(self.tokens, None, self.log_probs, logits, self.passes)


class SmallModel(PlainDrafter):
    """Goes on from the output with a small model, up to eos, a token that is not picked, or `longest` tokens.

    It catches up with the output in the pass that drafts the first token: what was rejected is truncated, and
    what the verifier output instead is read. The likeliest words are drafted in one call where the scorer
    `DraftsChains`; any others, and by other scorers, in a call a word.

    Args:
        scorer: Its words are the verifier's; or the layers of the verifier that draft.
        longest: Most tokens of a draft.
        verifier: Scorer of the verifier, of whose encoded sources one that `ReadsEncoded` drafts, or of whose
            layers some do.
        stop_below: Product of a draft's probabilities below which it ends; the word that takes it there is
            drafted, since it has cost a pass already.

    Raises:
        StrategyMismatchError: It reads encoded sources, and the verifier shows none; or the verifier's layers
            are to draft, which it gives no view of.
        UsageError: The verifier has no such layers.
    """

    pays = 1.1  # its weights drive the verifier's out of the caches, which predicted times do not know

    def __init__(
        self,
        scorer: PassScorer | OwnLayers,
        longest: int,
        pick: Pick,
        verifier: object = None,
        *,
        stop_below: float = 0.0,
    ) -> None:
        self._is_own = isinstance(scorer, OwnLayers)  # sources are the verifier's, which it frees
        if isinstance(scorer, OwnLayers):
            scorer = scorer.of(verifier)
        self.scorer, self.longest, self.pick = scorer, longest, pick
        self._least = math.log(stop_below) if stop_below > 0 else -math.inf
        self._gives: GivesEncoded | None = None
        if isinstance(scorer, ReadsEncoded):
            if not isinstance(verifier, GivesEncoded):
                raise StrategyMismatchError(
                    f"{named('drafter')} reads what a verifier has encoded, and this one shows nothing of it",
                    fix="name a small model that reads sources itself",
                )
            self._gives = verifier
        self.ends, self.costs = scorer.vocab.ends, costs_of(scorer)
        self._chains: DraftsChains | None = None
        if isinstance(pick, PickBest) and isinstance(scorer, DraftsChains):
            self._chains, self._rule = scorer, ChainRule(sorted(self.ends), self._least, pick.least)

    def start_time(self, source: float) -> float:
        return self.costs.encoding * source

    def draft_time(self, rows: int, levels: int) -> float:
        """A pass a level, of which the first one reads what was output in a rejected token's place too."""
        passes, costs = min(levels, self.longest), self.costs
        return super().draft_time(rows, passes) + costs.run(2 * rows) + (passes - 1) * costs.run(rows)

    def start(self, requests: Sequence[Request], memory: Sequence[int]) -> list[SmallModelRow]:
        own = memory if self._is_own else self._encoded(requests, memory)
        try:
            prompts = prompts_of(self.scorer, own, [request.prompt for request in requests])
            contexts = self.scorer.open(len(requests)).tolist()
        except BaseException:
            self._free(own)
            raise
        begun = zip(prompts, own, contexts, strict=True)
        return [
            SmallModelRow(prompt.tokens, memory=source, context=context) for prompt, source, context in begun
        ]

    def _encoded(self, requests: Sequence[Request], memory: Sequence[int]) -> list[int]:
        """Handles of the requests' sources, encoded for it, where `memory` are the verifier's."""
        sources: Sequence[Source] = [request.source for request in requests]
        if self._gives is not None:
            sources = sources_of(self._gives.encodings(memory))
        handles: list[int] = self.scorer.encode(sources).tolist()
        return handles

    def stop(self, states: Sequence[SmallModelRow]) -> None:
        self.scorer.close([reader.context for reader in states])
        self._free([reader.memory for reader in states])

    def _free(self, own: Sequence[int]) -> None:
        if not self._is_own:
            self.scorer.free(own)

    def draft(self, rows: Sequence[Row], budgets: Sequence[int]) -> list[Draft]:
        mosts = [min(budget, self.longest) for budget in budgets]
        turns = [_Turn(row, row.state, most) for row, most in zip(rows, mosts, strict=True)]
        going = [turn for turn in turns if turn.most > 0]
        self._catch_up(going)
        if self._chains is not None and going:
            self._draft_at_once(self._chains, going)
        else:
            while going:
                self._step(going)
                going = [turn for turn in going if turn.reader.unread]
        return [turn.draft() for turn in turns]

    def _catch_up(self, turns: Sequence[_Turn]) -> None:
        """Gives back the cells of what is not output, and notes what is to be read."""
        contexts, lengths = [], []
        for turn in turns:
            reader, before = turn.reader, turn.reader.cells
            reader.catch_up(turn.row.tokens)
            if reader.cells < before:
                contexts.append(reader.context)
                lengths.append(reader.cells)
        if contexts:
            self.scorer.truncate(contexts, lengths)

    def _draft_at_once(self, scorer: DraftsChains, turns: Sequence[_Turn]) -> None:
        """All steps in one call."""
        readers = [turn.reader for turn in turns]
        chains = Chains(
            [reader.memory for reader in readers],
            [reader.context for reader in readers],
            [reader.unread for reader in readers],
            [turn.most for turn in turns],
        )
        for turn, chain in zip(turns, scorer.draft_chains(chains, self._rule), strict=True):
            reader, again = turn.reader, chain.passes - 1
            reader.cells += len(reader.unread) + again
            reader.drafted, reader.unread = chain.tokens[:again], []
            turn.tokens, turn.log_probs, turn.passes = chain.tokens, chain.log_probs, chain.passes

    def _step(self, turns: Sequence[_Turn]) -> None:
        """One pass, in which each row reads what it has not read and picks a token; what it reads next."""
        packed = pack([turn.reader for turn in turns])
        work = packed.work
        positions = [len(turn.row.tokens) + len(turn.tokens) for turn in turns]
        want = self.pick.want([turn.row.request.index for turn in turns], positions)
        scores = self.scorer.run(work, replace(want, only=packed.only))
        words, log_probs = self.pick(scores)
        if self.pick.keeps_logits:
            for turn, word, logits in zip(turns, words, scores.rows(range(len(turns))), strict=True):
                if word >= 0:
                    turn.logits.append(logits)
        self.scorer.commit(scores, np.arange(len(work.tokens), dtype=np.int32))
        for turn, word, log_prob in zip(turns, words, log_probs, strict=True):
            reader = turn.reader
            reader.cells += len(reader.unread)
            reader.drafted += turn.tokens[-1:]
            reader.unread = []
            turn.passes += 1
            if word >= 0:
                turn.tokens.append(word)
                turn.log_probs.append(log_prob)
                turn.total += log_prob
                is_sure = turn.total >= self._least
                if word not in self.ends and len(turn.tokens) < turn.most and is_sure:
                    reader.unread = [word]
