"""A guard for models whose output should resemble its input: an output is kept only if it is sound.

A model folder declares it by the key ``guard`` of config.json: each of `Thresholds` by name, and ``list``,
the name of a file with the words of the language, one a line as it is usually written, and if there is one,
``speller``, the name of a file of `nartk.data.gec.speller`, by which the model reads misspelt words spelled.

An output is unsound by its mean or lowest log-probability, its length, phrases that it repeats, words and
letters of the source that it lacks, or words that neither the source nor the list has. Then the sentence is
decoded in smaller pieces (`nartk.data.clauses`), and what is unsound even so stays as it is in the source
(`serving.lines`).

Single edits are undone first: those that make a word that exists nowhere, that change what is no plain word,
such as ``e.g.this``, or a mark beside another one, and those that are not probable enough: an output is
weighed against what it is without the edit, by the model's probabilities of the two. A word's own probability
would not tell, since two corrections may share what there is ("go" in "she go", "goes" and "went").
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from nartk.errors import CheckpointError
from nartk.files import Folder, JsonObject, read_file
from nartk.processors import named_file
from nartk.protocols.hypothesis import Guarded, Hypothesis
from nartk.protocols.paragraph import bare, edits
from nartk.vocab import UNKNOWN

if TYPE_CHECKING:
    from nartk.data.clauses import Clause
    from nartk.data.gec.speller import Offer, Speller
    from nartk.processors import OutputProcessor

KEY, LIST, SPELLER = "guard", "list", "speller"
Block: TypeAlias = tuple[int, int, int, int]  # tokens of a source from, to, and of an output
Change: TypeAlias = Sequence[Block]  # those that belong together
_MOST_BYTES = 100_000_000  # of the list of words
_PHRASE = 3  # tokens
_FEW = 3  # words of a sentence of which one may be another
# Weight of the model's log-probability of a sentence with a word beside the speller's of the word. Chosen on
# each half of 500 real misspellings, and the best on the other half.
_HEED = 0.3
_MOST_LOSS = 700.0  # nats, whose exponential is a number
_PARTS = re.compile(r"[^\W\d_]{2,}")
_IS_COMPOUND = re.compile(r"""\w.*[^\w\s'’`"“”-].*\w""").search  # e.g.this, U.S.A, code
# Of code: an operator, a flag of a command (grep -rn), a loop (for i in range ( 3 )), in tokens.
_CODE = re.compile(r"(?<!\S)([=!<>+*/:-]?=+|\|\|?|\*\*|-[a-z]{1,2}|for \w+ in \w+ \()(?!\S)")
_IS_MARK = re.compile(r"[!?]+").fullmatch
# Of each threshold but `edit`, what it bounds, and whether from above.
BOUNDS = {
    "mean": ("mean log-probability", False),
    "lowest": ("lowest log-probability", False),
    "shortest": ("length ratio", False),
    "longest": ("length ratio", True),
    "repeated": ("repeated phrases", True),
    "words": ("share of words kept", False),
    "letters": ("share of letters kept", False),
    "strange": ("share of words that exist nowhere", True),
}


@dataclass(frozen=True)
class Thresholds:
    """Bounds that a sound output keeps.

    Attributes:
        mean: Least mean log-probability of a token, nats.
        lowest: Least log-probability of any token, nats.
        shortest, longest: Words of the output a word of the source, at least and at most; one more or less
            does not count.
        repeated: Most repetitions of phrases of three tokens beyond those of the source.
        words: Least share of the source's words that the output has, or other forms of them.
        letters: Least share of the source's letters that the output has, in their order.
        strange: Largest share of the output's words that neither the source nor the list of words has.
        edit: Least probability of a single edit, where an output and the same without the edit are all that
            there may be; 0: none is weighed.
    """

    mean: float
    lowest: float
    shortest: float
    longest: float
    repeated: float
    words: float
    letters: float
    strange: float
    edit: float


@dataclass(frozen=True)
class Guard:
    """Judges outputs.

    Attributes:
        path: The file of the words.
        spelling: The file of the speller; None: there is none.
        can_score: True if the model gives a text a probability, by which it chooses among spellings.
    """

    thresholds: Thresholds
    path: Path
    spelling: Path | None = None
    can_score: bool = True

    @cached_property
    def words(self) -> Mapping[str, str]:
        """Words in small letters, and how each is usually written."""
        text = read_file(self.path, most=_MOST_BYTES).decode("utf-8", "replace")
        return {word.lower(): word for word in text.split("\n")}

    @cached_property
    def speller(self) -> Speller | None:
        """Spells misspelt words for the model; None: they stay."""
        if self.spelling is None:
            return None
        from nartk.data.gec.speller import read_speller

        return read_speller(self.spelling)

    def knows(self, word: str) -> bool:
        """Tells whether a word in small letters exists."""
        return word in self.words or (self.speller is not None and word in self.speller)

    def is_misspelt(self, word: str) -> bool:
        """Tells whether a word in small letters is a known misspelling."""
        return self.speller is not None and word in self.speller.known

    def clauses(self, text: str, written: str, *, whole: bool = False) -> list[Clause]:
        """The pieces of a sentence that are decoded first, at least one.

        Args:
            text: The sentence as the model reads it, not empty.
            written: The sentence as the model would write it.
            whole: True if it is one piece, whatever it holds.
        """
        from nartk.data.clauses import clauses

        read, spelled = text.split(), written.split()
        found = clauses(read, spelled if len(spelled) == len(read) else read, self.words, whole=whole)
        return found if whole else [*map(self._spell, found)]

    def _spell(self, clause: Clause) -> Clause:
        """A piece in which the model reads misspelt words spelled."""
        words = (token.lower() for token in clause.read if token.isalpha())
        # Most pieces have no such word: the speller is read for the others alone.
        if clause.is_capitals or all(word in self.words for word in words) or self.speller is None:
            return clause
        offers = self.speller.offers(clause.read)
        read = clause.reading({i: texts[0].text for i, texts in offers.items()})
        return replace(read, offers={i: texts for i, texts in offers.items() if len(texts) > 1})

    def spellings(self, clause: Clause) -> tuple[str, ...]:
        """A piece with the words that have several offers as they stand, and the texts whose probability
        behind it chooses among these: with the first offers, and with each other one. Empty: there are none.
        """
        if not (clause.offers and self.can_score):
            return ()
        plain = clause.reading({i: clause.read[i] for i in clause.offers})
        return plain.text, clause.text, *(clause.reading({i: one.text}).text for i, one in _others(clause))

    def spell(self, clause: Clause, scores: Iterable[float]) -> Clause:
        """A piece with the words that are chosen.

        Args:
            scores: Log-probability of each text of `spellings` behind the first of them, nats.
        """
        own, *theirs = scores
        best = {i: texts[0] for i, texts in clause.offers.items()}
        for (i, offer), score in zip(_others(clause), theirs, strict=True):
            weighed = replace(offer, score=offer.score + _HEED * (score - own))
            best[i] = max(best[i], weighed, key=lambda each: each.score)
        return clause.reading({i: offer.text for i, offer in best.items()})

    def variants(self, clause: Clause, text: str) -> tuple[str, ...]:
        """The texts that an output is weighed against: it without each of the edits that have to be probable.

        Args:
            text: Text that the model wrote for the piece.
        """
        given, words = clause.given, text.split()
        return tuple(
            " ".join(_without(clause.spelled, words, [(change, ("weighed",))], given)[0])
            for change in _changes(clause.spelled, clause.restore(words))
            if self.thresholds.edit and not _are_given(change, clause.corrected, words)
        )

    def judge(
        self, clause: Clause, hypothesis: Hypothesis, output: OutputProcessor, gains: Sequence[float] = ()
    ) -> tuple[str, tuple[Guarded, ...], tuple[str, ...]]:
        """An output's text in the place of its piece, the edits in it that were undone, and what speaks
        against it: nothing, if it is sound.

        Args:
            gains: Log-probability of the output less that of each of its `variants`, nats.
        """
        source = [*clause.spelled]
        text = output.decode(hypothesis.tokens)
        if text == clause.text == " ".join(source):
            return text, (), ()
        written = clause.restore(text.split())
        tokens, undone = self.mend(source, written, gains, clause.corrected)
        reasons = []
        if tokens != source:
            # The thresholds are fitted on outputs whose edits were not weighed: of one that says a phrase
            # again and again, what its probable edits leave would look sound.
            unweighed = self.mend(source, written, (), clause.corrected)[0] if gains else tokens
            reasons = self.reasons(source, unweighed, hypothesis.positional_scores)
            reasons += [f"{found[0]!r} is code" for found in _CODE.finditer(" ".join(clause.read))]
        if not reasons:  # an output that drops much was better decoded in pieces
            tokens, dropping = self.with_words(source, tokens, clause.corrected)
            undone += dropping
        return " ".join(tokens), tuple(undone), tuple(reasons)

    def mend(
        self,
        source: Sequence[str],
        output: Sequence[str],
        gains: Sequence[float] = (),
        corrected: Sequence[str] = (),
    ) -> tuple[list[str], list[Guarded]]:
        """The tokens of an output without the edits that are not sound, and these.

        Args:
            source, output: Tokens.
            gains: Log-probability of the output less that of it without each edit that has to be probable,
                nats; empty: none has to be.
            corrected: Texts that the model read in place of each token, which need not be probable, and stay
                where an edit does not; empty: it read the tokens.
        """
        known = {token.lower() for token in source}
        weighed = iter(gains)
        verdicts: list[tuple[Change, list[str]]] = []
        for change in _changes(source, output):
            reasons = [each for block in change for each in self._against(source, output, block, known)]
            if gains and not _are_given(change, corrected, output):
                reasons += self._improbable(next(weighed))
            verdicts.append((change, reasons))
        return _without(source, output, verdicts, corrected)

    def with_words(
        self, source: Sequence[str], output: Sequence[str], corrected: Sequence[str] = ()
    ) -> tuple[list[str], list[Guarded]]:
        """The tokens of an output without the edits that drop a word or put one in its place that is nothing
        like it, and these; arguments as in `mend`.
        """
        from nartk.data.gec.edits import lost_word

        words = bare(source)
        twice = {one for one, other in pairwise(words) if one == other}
        verdicts = []
        for change in _changes(source, output):
            old, new = _sides(change, source, output)
            is_given = _are_given(change, corrected, output)
            reason = "" if is_given else lost_word(old, new, twice=twice, knows=self.knows)
            verdicts.append((change, [reason] if reason else []))
        return _without(source, output, verdicts, corrected)

    def _against(
        self, source: Sequence[str], output: Sequence[str], block: Block, known: set[str]
    ) -> Iterator[str]:
        """Reasons against the change of a block, but for its probability."""
        from nartk.data.gec.edits import altered

        i, stop, j, last = block
        mine, theirs = source[i:stop], output[j:last]
        for token in theirs:
            if UNKNOWN in token or self._is_strange(token, known):
                yield f"{token!r} is no word"
        if "".join(mine) != "".join(theirs) or any(map(_IS_COMPOUND, theirs)):
            yield from (f"{token!r} is not a word" for token in filter(_IS_COMPOUND, mine))
        yield from (f"{token!r} is changed" for token in altered(source, i, stop, theirs, self.is_misspelt))
        marks = [*source[max(0, i - 1) : i], *mine]
        if not theirs and len(marks) > 1 and all(map(_IS_MARK, marks)):
            yield "a mark is dropped behind another one"
        if stop == len(source) and theirs[-1:] == ["."] and mine and (mine[-1] == "," or _IS_MARK(mine[-1])):
            yield f"{mine[-1]!r} at the end is replaced"  # "Best regards,"

    def _improbable(self, gain: float) -> Iterator[str]:
        """A reason against an edit by which a text gains so little log-probability, nats."""
        least = self.thresholds.edit
        probability = 1 / (1 + math.exp(min(-gain, _MOST_LOSS)))
        if probability < least or least == 1:
            yield f"probability {probability:.3f}, below {least:g}"

    def reasons(
        self, source: Sequence[str], output: Sequence[str], scores: Sequence[float] | None
    ) -> list[str]:
        """Lists the thresholds that an output breaks.

        Args:
            source, output: Tokens.
            scores: The log-probability of each token that the model wrote; None: there are none.
        """
        if [*source] == [*output]:
            return []
        found = []
        for name, value in self.evidence(source, output, scores).items():
            what, is_most = BOUNDS[name]
            limit = getattr(self.thresholds, name)
            if value > limit if is_most else value < limit:
                found.append(f"{what} {value:.3g}, {'above' if is_most else 'below'} {limit:g}")
        return found

    def evidence(
        self, source: Sequence[str], output: Sequence[str], scores: Sequence[float] | None
    ) -> dict[str, float]:
        """Measures the value that each threshold bounds; log-probabilities only where there are any."""
        found = {"mean": math.fsum(scores) / len(scores), "lowest": min(scores)} if scores else {}
        mine, theirs = bare(source), bare(output)
        size = max(1, len(mine))
        known = {token.lower() for token in source}
        return found | {
            "shortest": (len(theirs) + 1) / size,
            "longest": (len(theirs) - 1) / size,
            "repeated": repeated(source, output),
            "words": 1 - words_lost(mine, theirs) / size,
            "letters": letters_kept(source, output),
            "strange": sum(self._is_strange(token, known) for token in output) / max(1, len(theirs)),
        }

    def _is_strange(self, token: str, known: set[str]) -> bool:
        """Tells whether a token, or a part of it, is a word that is neither in the source nor in the list."""
        lower = token.lower()
        if lower in known or self.knows(lower):
            return False
        if UNKNOWN in token:
            return True
        return any(part not in known and not self.knows(part) for part in _PARTS.findall(lower))


def _others(clause: Clause) -> Iterator[tuple[int, Offer]]:
    """The offers but for the first of each token, with the token's number."""
    for i, texts in clause.offers.items():
        yield from ((i, each) for each in texts[1:])


def _changes(source: Sequence[str], output: Sequence[str]) -> list[list[Block]]:
    """The blocks of `edits` that differ; together are those between which a word moves."""
    found: list[list[Block]] = []
    for block in edits(source, output):
        old, new = _sides([block], source, output)
        if old == new:
            continue
        lost, made = _only(old, new), _only(new, old)
        for change in found:
            before, after = _sides(change, source, output)
            if lost & _only(after, before) or made & _only(before, after):
                change.append(block)
                break
        else:
            found.append([block])
    return found


def _sides(change: Change, source: Sequence[str], output: Sequence[str]) -> tuple[list[str], list[str]]:
    """The tokens of a source that a change replaces, and those of the output."""
    old = [token for i, stop, _, _ in change for token in source[i:stop]]
    return old, [token for _, _, j, last in change for token in output[j:last]]


def _only(tokens: Sequence[str], others: Sequence[str]) -> set[str]:
    """The tokens in small letters that others lack."""
    return {*map(str.lower, tokens)} - {*map(str.lower, others)}


def _without(
    source: Sequence[str],
    output: Sequence[str],
    verdicts: Sequence[tuple[Change, Sequence[str]]],
    corrected: Sequence[str],
) -> tuple[list[str], list[Guarded]]:
    """The tokens of an output without the changes that something speaks against, and these."""
    found, at = list[str](), 0
    for (i, stop, j, last), is_kept in sorted(
        (block, not why) for change, why in verdicts for block in change
    ):
        before = " ".join(corrected[i:stop]).split() if corrected else source[i:stop]
        found += [*output[at:j], *(output[j:last] if is_kept else before)]
        at = last
    undone = [
        Guarded("undone", " ".join(_sides(change, source, output)[0]), tuple(why))
        for change, why in verdicts
        if why
    ]
    return [*found, *output[at:]], undone


def _are_given(change: Change, corrected: Sequence[str], output: Sequence[str]) -> bool:
    """Tells whether a change writes what the model read in place of the source's words, but for capitals."""
    return bool(corrected) and all(
        " ".join(corrected[i:stop]).lower() == " ".join(output[j:last]).lower() for i, stop, j, last in change
    )


def words_lost(source: Sequence[str], output: Sequence[str]) -> int:
    """Counts the words of a source that an output lacks.

    Where there are words enough, one that begins like it may be another form of it.
    """
    lost = Counter(source) - Counter(output)
    gained = Counter(output) - Counter(source) if len(source) >= _FEW else Counter()
    for word in lost:
        for other in [*gained]:
            begin = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(word, other, strict=False)))
            if begin >= 2 and 2 * begin >= min(len(word), len(other)):
                forms = min(lost[word], gained[other])
                lost[word] -= forms
                gained[other] -= forms
    return lost.total()


def repeated(source: Sequence[str], output: Sequence[str]) -> int:
    """Counts the output's repetitions of phrases beyond those of the source."""
    counts = []
    for side in (source, output):
        tokens = [token.lower() for token in side]
        phrases = [*zip(*(tokens[i:] for i in range(_PHRASE)), strict=False)]
        counts.append(len(phrases) - len({*phrases}))
    return max(0, counts[1] - counts[0])


def letters_kept(source: Sequence[str], output: Sequence[str]) -> float:
    """The share of the source's letters and digits that the output has, word by word in their order.

    Where there are words enough, one may be another.
    """
    from difflib import SequenceMatcher

    lost = most = 0
    for i, stop, j, last in edits(source, output):
        if source[i:stop] == output[j:last]:
            continue
        mine, theirs = ("".join(bare(side)) for side in (source[i:stop], output[j:last]))
        if mine != theirs:
            blocks = SequenceMatcher(None, mine, theirs, autojunk=False).get_matching_blocks()
            here = len(mine) - sum(block.size for block in blocks)
            lost += here
            if stop - i == last - j == 1:
                most = max(most, here)
    words = bare(source)
    if len(words) >= _FEW:
        lost -= most
    return 1 - lost / max(1, len("".join(words)))


def read_guard(settings: object, folder: Folder, where: str) -> Guard | None:
    """The guard that a model folder's config.json declares; None: it declares none.

    Raises:
        CheckpointError: A threshold is missing or no number, or the file of words is missing.
    """
    if settings is None:
        return None
    names = [item.name for item in fields(Thresholds)]
    if not isinstance(settings, dict) or {*settings} - {SPELLER} != {*names, LIST}:
        raise CheckpointError(f"{KEY!r} has not the keys {', '.join([*names, LIST])}", where=where)
    values: JsonObject = {name: settings[name] for name in names}
    for name, value in values.items():
        if type(value) not in (int, float):
            raise CheckpointError(f"{name!r} of {KEY!r} is {value!r}, no number", where=where)
    spelling = named_file(folder, settings, SPELLER) if SPELLER in settings else None
    return Guard(Thresholds(**values), named_file(folder, settings, LIST), spelling)
