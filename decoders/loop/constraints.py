"""Forced, forbidden and penalized words of outputs: the same for greedy, beam search and sampling.

Every rule looks at the output before a token alone, never at a draft or at other rows, so that drafts change
nothing. Repetitions and forbidden sequences count the start token as a token of the output, as fairseq and
Hugging Face's `generate` do. Symbols: N verified tokens, V words.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Self, cast

import numpy as np

from nartk.decoders.loop.momentum import GREEDY, Momentum
from nartk.decoders.loop.packing import levels_of
from nartk.decoders.loop.rows import Known
from nartk.decoders.loop.shortlist import Shortlist, ShortlistFile, open_shortlist
from nartk.decoders.loop.timestamps import TimestampRules
from nartk.errors import UsageError, named
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import (
    CopiesSource,
    FloatArray,
    IntArray,
    PassScorer,
    Ragged,
    ReadsWords,
    Scores,
    Want,
)
from nartk.protocols.prompts import Prompted
from nartk.vocab import Vocab

_ALL = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Constraints:
    """Rules for outputs. A forced prefix, which each request has of its own, goes before all of them.

    Attributes:
        min_len: Shortest output, tokens without eos; 0: any.
        repetition_penalty: Logits of words that the output holds are divided by it where they are above 0 and
            multiplied elsewhere (Keskar et al. 2019, arXiv:1909.05858, section 4.1); 1: none.
        momentum: Rule of greedy search by which repeated words pay in probability.
        suppressed: Words that are never output.
        forbidden: Sequences of words that no output holds, none empty.
        no_repeat_ngram: Length of n-grams that never recur in an output; 0: all may.
        no_source_ngram: Length of n-grams of a source that occur in none of its outputs; 0: all may.
        forced_bos: The word that outputs begin with; -1: any.
        forced_eos: True if the last token is eos where an output reaches its longest length.
        suppressed_first: Words that no output begins with, behind `forced_bos`.
        also_eos: Words that end an output besides eos.
        shortlist: File that lists the words of an output by those of its source; None: all may be output.
    """

    min_len: int = 0
    repetition_penalty: float = 1.0
    momentum: Momentum = GREEDY
    suppressed: tuple[int, ...] = ()
    forbidden: tuple[tuple[int, ...], ...] = ()
    no_repeat_ngram: int = 0
    no_source_ngram: int = 0
    forced_bos: int = -1
    forced_eos: bool = False
    suppressed_first: tuple[int, ...] = ()
    also_eos: tuple[int, ...] = ()
    shortlist: ShortlistFile | None = None

    @property
    def are_banning(self) -> bool:
        return bool(
            self.min_len
            or self.suppressed
            or self.suppressed_first
            or self.forbidden
            or self.no_repeat_ngram
            or self.no_source_ngram
        )

    @property
    def are_penalizing(self) -> bool:
        return self.repetition_penalty != 1.0 or self.momentum.strength > 0

    @property
    def are_forcing(self) -> bool:
        return self.forced_bos >= 0 or self.forced_eos

    def forced(self, length: int, longest: int, eos: int) -> int:
        """The word that follows an output of so many tokens, of at most `longest`; -1: any may."""
        if self.forced_eos and length == longest - 1:
            return eos
        return self.forced_bos if length == 0 else -1

    def beginning(self, request: Request, eos: int, ends: Collection[int]) -> tuple[list[int], bool]:
        """Tokens that an output is forced to begin with, and whether it is forced as a whole.

        Args:
            ends: The words that end an output, eos among them.
        """
        prefix = request.prefix or (() if self.forced_bos < 0 else (self.forced_bos,))
        found: list[int] = []
        for word in prefix[: request.max_len]:
            own = self.forced(len(found), request.max_len, eos)
            found.append(word if own < 0 else own)
            if found[-1] in ends:
                break
        return found, bool(found) and (found[-1] in ends or len(found) == request.max_len)

    def banned(self, output: Sequence[int], eos: int, source: tuple[int, ...] = ()) -> list[int]:
        """The words that may not follow the start token and an output of a source, in words of outputs.

        Behind eos, where only drafts go on, any may.
        """
        ends = (eos, *self.also_eos)
        if any(end in output[1:] for end in ends):
            return []
        words, length = list(self.suppressed), len(output) - 1
        if length < self.min_len:
            words += ends
        if length == int(self.forced_bos >= 0):
            words += self.suppressed_first
        for *before, last in self.forbidden:
            if not before or list(output[-len(before) :]) == before:
                words.append(last)
        if self.no_repeat_ngram:
            words += repeating(output, self.no_repeat_ngram)
        if self.no_source_ngram:
            n = self.no_source_ngram
            words += _followers(source, n).get(tuple(output[len(output) - n + 1 :]), [])
        return words

    def penalize(self, logits: FloatArray, output: Sequence[int]) -> FloatArray:
        """Logits [V] after the start token and an output, with what it pays for repeating itself."""
        repeated = np.unique(np.array(output, np.int64))
        penalty, before = np.float32(self.repetition_penalty), logits[repeated]
        found = logits.copy()
        found[repeated] = np.where(before > 0, before / penalty, before * penalty)
        return found

    def best(self, logits: FloatArray, output: Sequence[int], banned: Sequence[int]) -> tuple[int, float]:
        """The best word after the start token and an output by its logits [V], of those that may follow.

        With it comes its log-probability under the model itself.
        """
        found = self.penalize(logits, output)
        found[[*banned]] = -np.inf
        word = self.momentum.best(found, output[1:]) if self.momentum.strength else int(found.argmax())
        return word, log_prob(logits, word)

    def ranked(
        self, logits: FloatArray, output: Sequence[int], banned: Sequence[int], count: int
    ) -> tuple[list[int], list[float], list[float]]:
        """The best words after the start token and an output by logits [V], at most `count` that may follow.

        With them come their probabilities of those that are left, and log-probabilities under the model.
        """
        found = self.penalize(logits, output).astype(np.float64)
        found[[*banned]] = -np.inf
        words = np.argsort(-found, kind="stable")[:count]  # of equal ones the first
        words = words[: max(int((found[words] > -np.inf).sum()), 1)]
        probs = np.exp(found[words] - np.logaddexp.reduce(found))
        return words.tolist(), probs.tolist(), [log_prob(logits, word) for word in words.tolist()]


def repeating(output: Sequence[int], n: int) -> list[int]:
    """The words after which the last n tokens of an output would have occurred in it before."""
    begins = len(output) - n + 1
    if begins < 0:
        return []
    before = output[begins:]
    return [output[i + n - 1] for i in range(begins) if output[i : i + n - 1] == before]


@lru_cache(maxsize=1024)
def _followers(source: tuple[int, ...], n: int) -> Mapping[tuple[int, ...], list[int]]:
    """Last words of the n-grams of a source, by the words before them."""
    found: dict[tuple[int, ...], list[int]] = {}
    for i in range(len(source) - n + 1):
        if (word := source[i + n - 1]) >= 0:
            found.setdefault(source[i : i + n - 1], []).append(word)
    return found


def log_prob(logits: FloatArray, word: int) -> float:
    """The log-probability of a word under logits [V], computed in fp64."""
    precise = logits.astype(np.float64)
    precise -= precise.max()
    return float(precise[word] - np.log(np.exp(precise).sum()))


@dataclass(frozen=True)
class RowConstraints:
    """The rules, and the prefixes of rows that draft and verify. A request may have rules of its own.

    Attributes:
        rules: Rules of requests that have none of their own.
        eos: The word that ends an output.
        start: The token that outputs begin after; each run sets it, and the next three, by `of_run`.
        ends: The words that end an output.
        source_words: [source words], the word of an output that is each source word, or -1; None: sources
            have no such words.
        vocabularies: Those of sources and outputs; None: sources have no words.
        shortlists: Lists of words, of each file that the rules of a request of the run name; `including`
            sets them.
        timestamps: Rules of outputs with timestamps; None: the model has none.
        are_forcing: True if an output of the run begins with forced tokens; `including` sets it.
        are_parting: True if a request of the run has words that do not follow its prefix; so does it.
        are_timed: True if a request of the run asks for timestamps; so does it.
        are_banning, are_penalizing, are_fixing: True if rules of a request of the run forbid words, make
            repetitions pay, or fix a word at a place; so does it.
        reads_drafts: True if log-probabilities of drafted chains are read, for acceptances that compare them:
            `Scores.given_log_probs` before each drafted token.
        renormalize: True if log-probabilities are of the words that are left alone: of beam search's
            hypotheses, and of outputs with timestamps.
    """

    rules: Constraints
    eos: int
    start: int = field(default=-1, kw_only=True)
    ends: Collection[int] = field(default=(), kw_only=True)
    are_forcing: bool = field(default=False, kw_only=True)
    are_parting: bool = field(default=False, kw_only=True)
    are_timed: bool = field(default=False, kw_only=True)
    are_banning: bool = field(default=False, kw_only=True)
    are_penalizing: bool = field(default=False, kw_only=True)
    are_fixing: bool = field(default=False, kw_only=True)
    source_words: IntArray | None = field(default=None, kw_only=True)
    vocabularies: tuple[Vocab, Vocab] | None = field(default=None, kw_only=True, repr=False)
    shortlists: Mapping[ShortlistFile, Shortlist] = field(default_factory=dict, kw_only=True)
    timestamps: TimestampRules | None = field(default=None, kw_only=True)
    reads_drafts: bool = field(default=False, kw_only=True)
    renormalize: bool = field(default=False, kw_only=True)

    def of_run(self, scorer: PassScorer) -> Self:
        """The same for a run.

        Raises:
            UsageError: A rule reads words of sources that are none of the model's outputs.
        """
        found = replace(
            self,
            start=scorer.start_token,
            ends=scorer.vocab.ends,
            source_words=scorer.source_to_target if isinstance(scorer, CopiesSource) else None,
            vocabularies=_vocabularies(scorer),
            timestamps=TimestampRules(scorer.prompts, self.eos) if isinstance(scorer, Prompted) else None,
        )
        return found._with_rules(self.rules)

    def _with_rules(self, rules: Constraints) -> Self:
        if rules.no_source_ngram and self.source_words is None:
            raise UsageError(
                f"{named('no_source_ngram', rules.no_source_ngram)} with a model whose sources have no words "
                "of its outputs",
                fix="leave it out",
            )
        return replace(
            self,
            shortlists=self._opened(rules.shortlist),
            are_forcing=self.are_forcing or rules.forced_bos >= 0,
            are_banning=self.are_banning or rules.are_banning,
            are_penalizing=self.are_penalizing or rules.are_penalizing,
            are_fixing=self.are_fixing or rules.are_forcing,
        )

    def _opened(self, file: ShortlistFile | None) -> Mapping[ShortlistFile, Shortlist]:
        """The shortlists with that of a further file."""
        if file is None or file in self.shortlists:
            return self.shortlists
        if self.vocabularies is None:
            raise UsageError(
                f"{named('shortlist')} is {file.path!r}, but the model's sources have no words",
                fix="leave it out",
            )
        return {**self.shortlists, file: open_shortlist(file, *self.vocabularies)}

    def including(self, request: Request) -> Self:
        """The same for a run that has admitted this request, too.

        Raises:
            UsageError: Same as in `of_run`, of the request's rules.
        """
        timed = self.timestamps is not None and self.timestamps.bind(request.prompt)
        forcing, parting, timed = (
            self.are_forcing or bool(request.prefix),
            self.are_parting or bool(request.after_prefix),
            self.are_timed or timed,
        )
        found = self
        if (forcing, parting, timed) != (self.are_forcing, self.are_parting, self.are_timed):
            found = replace(self, are_forcing=forcing, are_parting=parting, are_timed=timed)
        return found if request.rules is None else found._with_rules(request.rules)

    @property
    def are_none(self) -> bool:
        """Tells whether there is nothing to keep to."""
        return not (
            self.are_forcing
            or self.reads_drafts
            or self.are_timed
            or self.are_banning
            or self.are_penalizing
            or self.are_fixing
            or self.shortlists
        )

    def rules_of(self, request: Request) -> Constraints:
        """The rules that a request's output keeps to."""
        return self.rules if request.rules is None else request.rules

    def begin(self, row: Known) -> None:
        """Lets a row's output begin with what is forced."""
        rules = self.rules_of(row.request)
        output, is_whole = rules.beginning(row.request, self.eos, self.ends)
        row.force(output, is_whole=is_whole)

    def want(self, want: Want, rows: Sequence[Known]) -> Want:
        """Adds to `want` the values of a pass that `words` reads."""
        if self.are_banning or self.are_parting:
            want = replace(want, banned=Ragged.of(self.banned(rows)))
        if self.shortlists:
            want = replace(want, words=self.listed(rows))
        if self.reads_drafts or any(row.pending or row.closing >= 0 for row in rows):
            given = [word for row in rows for word in self._given(row)]
            want = replace(want, given=np.array(given, np.int32))
        return want

    def left(self, scores: Scores, want: Want, rows: Sequence[Known]) -> Scores:
        """Scores of a pass without the words that its logits forbid; `known` and `words` read these."""
        rules = self.timestamps
        if rules is None or not self.are_timed:
            return scores
        outputs = [
            output if rules.bind(row.prompt) else None for row in rows for output in outputs_before(row)
        ]
        return rules.left(scores, want, outputs, renormalize=self.renormalize)

    def _given(self, row: Known) -> list[int]:
        """The word after each scored token of a row whose log-probability is read; -1: none is."""
        drafted = row.draft.tokens if self.reads_drafts else [-1] * len(row.draft.tokens)
        known = row.tokens[len(row.tokens) - row.pending :]
        return [*known, *drafted, -1] if row.closing < 0 else [*known, row.closing]

    def known(self, row: Known, scores: Scores) -> list[float]:
        """The log-probability of each token that an output is forced to begin with.

        That of a word that the rules force is 0; that of one that a prefix forces, the model's own.
        """
        given = scores.given_log_probs[row.node - row.pending : row.node].tolist()
        rules = self.rules_of(row.request)
        return [
            log_prob if rules.forced(i, row.request.max_len, self.eos) < 0 else 0.0
            for i, log_prob in enumerate(given)
        ]

    def words(self, scores: Scores, rows: Sequence[Known]) -> tuple[list[int], list[float]]:
        """The word [n] that is output after each scored token of a pass, and its log-probability."""
        words, log_probs = self.chosen(scores, rows)
        for i, word, log_prob in self.forced(scores, rows):
            words[i], log_probs[i] = word, log_prob
        return words, log_probs

    def forced(self, scores: Scores, rows: Sequence[Known]) -> Iterator[tuple[int, int, float]]:
        """The scored tokens that one word alone may follow, each with it and its log-probability."""
        if self.are_forcing:
            for row in rows:
                if row.closing >= 0:
                    yield row.node, row.closing, float(scores.given_log_probs[row.node])
        if self.are_fixing:
            positions = ((row.request, length) for row in rows for length in lengths(row))
            for i, (request, length) in enumerate(positions):
                word = self.rules_of(request).forced(length, request.max_len, self.eos)
                if word >= 0:
                    yield i, word, 0.0

    def chosen(self, scores: Scores, rows: Sequence[Known]) -> tuple[list[int], list[float]]:
        """The same where nothing forces one: the best words."""
        words, log_probs = scores.best.tolist(), scores.log_probs.tolist()
        for i, logits, output, banned, rules in self.penalized(scores, rows):
            words[i], log_probs[i] = rules.best(logits, output, banned)
        return words, log_probs

    def penalized(
        self, scores: Scores, rows: Sequence[Known], *, all_rows: bool = False
    ) -> Iterator[tuple[int, FloatArray, list[int], list[int], Constraints]]:
        """The scored tokens after which repetitions pay: logits [V], output and banned words, and rules.

        Args:
            all_rows: True if the others are given, too.
        """
        if not (self.are_penalizing or all_rows):
            return
        rules = [self.rules_of(row.request) for row in rows for _ in lengths(row)]
        chosen = [i for i, each in enumerate(rules) if each.are_penalizing or all_rows]
        if not chosen:
            return
        outputs, banned, logits = self.outputs(rows), self.banned(rows), scores.rows(chosen)
        for i, row in zip(chosen, logits, strict=True):
            yield i, row, outputs[i], banned[i], rules[i]

    def outputs(self, rows: Sequence[Known]) -> list[list[int]]:
        """The start token and the output that each scored token ends: the word scored there follows it."""
        return [[self.start, *output] for row in rows for output in outputs_before(row)]

    def listed(self, rows: Sequence[Known]) -> Ragged:
        """The words that the shortlists of rows leave after each of `outputs`; an empty list leaves all."""
        lists: list[IntArray] = []
        for row in rows:
            rules, source = self.rules_of(row.request), cast("Any", row.request.source)
            words = _ALL
            if rules.shortlist is not None:
                forced = () if rules.forced_bos < 0 else (rules.forced_bos,)
                also = (*sorted(self.ends), *forced, *row.request.prefix)
                words = self.shortlists[rules.shortlist].of(source, also)
            lists += [words] * len(lengths(row))
        offsets = np.zeros(len(lists) + 1, np.int32)
        np.cumsum([len(each) for each in lists], out=offsets[1:])
        return Ragged(offsets, np.concatenate(lists))

    def banned(self, rows: Sequence[Known]) -> list[list[int]]:
        """The words that may not follow each of `outputs`."""
        found: list[list[int]] = []
        for row in rows:
            request, words, source = row.request, self.source_words, ()
            rules, ids = self.rules_of(request), cast("Any", request.source)
            if rules.no_source_ngram and words is not None:
                source = tuple(words[list(ids)].tolist())
            for output in outputs_before(row):
                found.append(rules.banned([self.start, *output], self.eos, source))
                if request.after_prefix and len(output) == len(request.prefix):
                    found[-1] += request.after_prefix
        return found


def _vocabularies(scorer: PassScorer) -> tuple[Vocab, Vocab] | None:
    if not isinstance(scorer, ReadsWords):
        return None
    return scorer.vocab if scorer.source_vocab is None else scorer.source_vocab, scorer.vocab


def outputs_before(row: Known) -> list[list[int]]:
    """The output that each scored token of a row ends, one for each: the word scored there follows it."""
    known = [row.tokens[:length] for length in range(len(row.tokens) - row.pending, len(row.tokens))]
    outputs = [row.tokens]
    parents = row.draft.parents
    for i, token in enumerate(row.draft.tokens):
        before = i - 1 if parents is None else parents[i]
        outputs.append([*outputs[before + 1], token])
    return [*known, *outputs]


def lengths(row: Known) -> Sequence[int]:
    """Number of tokens of each of `outputs_before`."""
    done = len(row.tokens)
    if row.draft.parents is None:
        return range(done - row.pending, done + 1 + len(row.draft.tokens))
    return [*range(done - row.pending, done), *(done + level for level in levels_of(row.draft))]
