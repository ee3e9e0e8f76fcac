"""Rates of learners' errors by type: the tables that the noise follows, and fitting them to M2 files."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from pathlib import Path

from nartk.data.gec.confusions import AGREEMENT, ARTICLES, DROPPED, EXTRAS, PREPOSITIONS, PRONOUNS, confusions
from nartk.data.gec.lexicon import NOUNS, VERBS, lexicon
from nartk.data.m2 import M2Edit, M2Sentence, noop
from nartk.data.text import corpora, read_corpus
from nartk.errors import InputFileError, InputFormatError, UsageError
from nartk.files import JsonObject

ERROR_TYPES = (
    "spelling",
    "casing",
    "punctuation",
    "article",
    "preposition",
    "noun_number",
    "agreement",
    "verb_form",
    "pronoun",
    "confusion",
    "derivation",
    "spacing",
    "order",
    "missing",
    "extra",
)
REWRITE = "rewrite"  # an edit of another kind: a change of style, content words or several words at once
DEFAULT_RATES = "gec-en"
LISTED = 0.4  # share of the misspellings of words of the list that are taken from there

_BOUNDS = (
    ("unchanged", 0.0, 1.0),
    ("edits_per_token", 0.0, 1.0),
    ("dispersion", 0.01, 1000.0),
    ("rewrites", 0.0, 1.0),
    ("listed", 0.0, 1.0),
)
_STEADY = 50.0  # dispersion of a corpus whose counts vary no more than Poisson's


@dataclass(frozen=True)
class NoiseRates:
    """Rates of learners' errors.

    Attributes:
        unchanged: Share of sentences without any error.
        edits_per_token: Edits per source token in the sentences with errors, rewrites left out. Noise puts
            at least one edit into such a sentence, so it exceeds low rates where sentences are short.
        dispersion: Shape of the gamma distribution that a sentence's rate follows; small is heavy-tailed.
        weights: Weight of each kind among the edits, rewrites left out; they need not sum to 1.
        rewrites: Share of a real corpus' edits that the generator has no kind for; noising ignores it.
        origin: Source of the numbers.
        listed: Share of misspellings from the list of known ones among those of the words that it has; the
            others follow `nartk.data.gec.spelling`.
    """

    unchanged: float
    edits_per_token: float
    dispersion: float
    weights: tuple[tuple[str, float], ...]
    rewrites: float = 0.0
    origin: str = ""
    listed: float = LISTED

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            value = getattr(self, name)
            if not _is_number(value) or not low <= value <= high:
                raise UsageError(
                    f"the rate {name!r} is {value!r}, not from {low:g} to {high:g}", fix="correct it"
                )
        for error_type, weight in self.weights:
            if error_type not in ERROR_TYPES:
                raise UsageError(
                    f"no kind of error is called {error_type!r}", fix=f"take one of {', '.join(ERROR_TYPES)}"
                )
            if not _is_number(weight) or not 0 <= weight < math.inf:
                raise UsageError(f"the weight of {error_type!r} is {weight!r}", fix="give a number from 0 on")
        if not any(weight > 0 for _, weight in self.weights):
            raise UsageError("no kind of error has a weight above 0", fix="give one a weight")

    def to_dict(self) -> JsonObject:
        """The rates as JSON holds them."""
        return {**asdict(self), "weights": dict(self.weights)}

    @classmethod
    def from_dict(cls, table: object) -> NoiseRates:
        """Reads what `to_dict` gives.

        Raises:
            InputFormatError: Not such a table.
            UsageError: A rate out of its bounds.
        """
        names = [one.name for one in fields(cls)]
        needed = {"unchanged", "edits_per_token", "dispersion", "weights"}
        if not isinstance(table, dict) or not needed <= set(table) <= set(names):
            raise InputFormatError(
                "this is no table of rates", fix=f"give a JSON object with {', '.join(names)}"
            )
        if not isinstance(table["weights"], dict):
            raise InputFormatError("the weights are no JSON object", fix="give each kind of error its weight")
        return cls(**{**table, "weights": tuple(table["weights"].items())})


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@lru_cache(maxsize=1)
def _shipped() -> JsonObject:
    tables: JsonObject = json.loads((corpora() / "rates.json").read_text(encoding="utf-8"))
    return tables


def rates_names() -> list[str]:
    """Names of the tables that ship."""
    return sorted(_shipped())


def load_rates(name: str = DEFAULT_RATES) -> NoiseRates:
    """A shipped table by its name, or one from a JSON file.

    Raises:
        InputFileError: Neither a shipped name nor a file that can be read.
        InputFormatError: The file holds something else.
        UsageError: A rate out of its bounds.
    """
    if name in _shipped():
        return NoiseRates.from_dict(_shipped()[name])
    try:
        table = json.loads(Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputFileError(
            f"no table of rates at {name!r} ({error})",
            fix=f"give a JSON file that nartk-noise --fit wrote, or one of {', '.join(rates_names())}",
        ) from None
    return NoiseRates.from_dict(table)


@lru_cache(maxsize=1)
def _vocabulary() -> frozenset[str]:
    """Lower-cased words of the shipped text that occur twice at least."""
    counts = Counter(token.lower() for sentence in read_corpus() for token in sentence)
    return frozenset(word for word, count in counts.items() if count > 1)


def _is_word(token: str) -> bool:
    return token in _vocabulary() or lexicon().is_known(token)


def _distance(left: str, right: str) -> int:
    """Levenshtein distance in letters, with the swap of two neighbours as one edit."""
    before, above = [0] * (len(right) + 1), [0] * (len(right) + 1)
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        before, above, row = above, row, [i]
        for j, b in enumerate(right, start=1):
            cost = min(above[j - 1] + (a != b), above[j] + 1, row[j - 1] + 1)
            if i > 1 and j > 1 and a == right[j - 2] and left[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
    return row[-1]


def _looks_like(wrong: str, right: str) -> bool:
    """True if a word reads as a misspelling of the other."""
    return _distance(wrong, right) <= max(1, len(right) // 3)


def _one_word_error(wrong: str, right: str) -> str:
    """Kind of the error that wrote the lower-cased token `wrong` for `right`."""
    book = lexicon()
    pair = {wrong, right}
    if pair <= set(ARTICLES):
        return "article"
    if wrong in AGREEMENT.get(right, ()):
        return "agreement"
    tags = book.tags.get(right, {})
    best = max(tags, key=lambda tag: tags[tag]) if tags else "NN"
    for tag in (best, *tags):
        if tag in NOUNS and wrong == book.reinflect(right, tag, "NN" if tag == "NNS" else "NNS"):
            return "noun_number"
        if tag in ("VBP", "VBZ") and wrong == book.reinflect(right, tag, "VBZ" if tag == "VBP" else "VBP"):
            return "agreement"
        if tag in VERBS and wrong in [book.reinflect(right, tag, new) for new in VERBS]:
            return "verb_form"
    if not tags and wrong.rstrip("s") == right.rstrip("s"):
        return "noun_number"
    if pair <= set(PRONOUNS):
        return "pronoun"
    if pair <= set(PREPOSITIONS):
        return "preposition"
    if wrong in confusions().get(right, ()):
        return "confusion"
    if wrong in book.family(right):
        return "derivation"
    if not _is_word(wrong):
        return "spelling" if _looks_like(wrong, right) else REWRITE
    # Two real words one letter apart are a slip where they are long enough not to be neighbours by chance.
    return "spelling" if len(right) > 3 and _distance(wrong, right) == 1 else REWRITE


def classify(wrong: Sequence[str], right: Sequence[str]) -> str:
    """The error that wrote the tokens `wrong` where `right` belongs: one of `ERROR_TYPES`, or `REWRITE`.

    Looks at the words alone, so it serves M2 files of any set of error types.
    """
    wrong, right = [token.lower() for token in wrong], [token.lower() for token in right]
    if "".join(wrong) == "".join(right):
        return "casing" if wrong == right else "spacing"
    bare = [re.sub(r"[\W_]", "", "".join(side)) for side in (wrong, right)]
    if bare[0] == bare[1]:
        return "punctuation"
    if sorted(wrong) == sorted(right):
        return "order"
    if len(wrong) == len(right) == 1:
        return _one_word_error(wrong[0], right[0])
    if not wrong or not right:
        lone = (wrong or right)[0] if len(wrong) + len(right) == 1 else ""
        if lone in ARTICLES:
            return "article"
        if lone in PREPOSITIONS:
            return "preposition"
        return ("extra" if wrong else "missing") if lone in DROPPED or lone in EXTRAS else REWRITE
    if len(wrong) != len(right) and all(map(str.isalpha, (*wrong, *right))) and _looks_like(*bare):
        return "spacing"
    return "verb_form" if len(wrong) + len(right) == 3 and _shares_a_verb(wrong, right) else REWRITE


def _shares_a_verb(wrong: Sequence[str], right: Sequence[str]) -> bool:
    return any(_one_word_error(a, b) in ("verb_form", "agreement") for a in wrong for b in right)


def align(wrong: Sequence[str], right: Sequence[str], annotator: int = 0) -> list[M2Edit]:
    """Edits without types that turn `wrong` into `right`: runs of as many tokens split into single ones.

    A plain longest-common-subsequence alignment, good enough to count kinds; the errant package does better.
    """
    edits = []
    matcher = difflib.SequenceMatcher(None, wrong, right, autojunk=False)
    for operation, i, j, k, m in matcher.get_opcodes():
        if operation == "equal":
            continue
        if j - i == m - k and sorted(wrong[i:j]) != sorted(right[k:m]):
            edits += [
                M2Edit(i + n, i + n + 1, "UNK", right[k + n], annotator=annotator) for n in range(j - i)
            ]
        else:
            edits.append(M2Edit(i, j, "UNK", " ".join(right[k:m]), annotator=annotator))
    return edits or [noop(annotator)]


def fit_rates(sentences: Iterable[M2Sentence], *, origin: str) -> NoiseRates:
    """Measures the rates of an annotated corpus; each annotator of a sentence is one reading of it.

    Args:
        sentences: The corpus.
        origin: Description of the corpus for the table.

    Raises:
        InputFormatError: The corpus has no edit that the generator has a kind for.
    """
    error_types: Counter[str] = Counter()
    rates: list[float] = []  # edits a token, of each reading with edits
    tokens = readings = unchanged = 0
    for sentence in sentences:
        size = len(sentence.source)
        for annotator in sentence.annotators if size else ():
            edits = sentence.edits_of(annotator)
            readings += 1
            if not edits:
                unchanged += 1
                continue
            found = Counter(classify(sentence.source[e.start : e.end], e.alternatives[0]) for e in edits)
            error_types += found
            rates.append((found.total() - found[REWRITE]) / size)
            tokens += size
    known = error_types.total() - error_types[REWRITE]
    if known == 0:
        raise InputFormatError("the corpus has no edits to measure", fix="give an annotated M2 file")
    mean = sum(rates) / len(rates)
    variance = sum((rate - mean) ** 2 for rate in rates) / len(rates)
    # Counts vary as Poisson's around rates that vary as a gamma: variance = mean / length + mean² / shape.
    excess = variance - mean * len(rates) / tokens
    shape = mean * mean / excess if excess > mean * mean / _STEADY else _STEADY
    return NoiseRates(
        unchanged=round(unchanged / readings, 4),
        edits_per_token=round(known / tokens, 4),
        dispersion=round(max(shape, 0.1), 3),
        weights=tuple((error_type, round(error_types[error_type] / known, 4)) for error_type in ERROR_TYPES),
        rewrites=round(error_types[REWRITE] / error_types.total(), 4),
        origin=origin,
    )
