"""The trace of a run: what `nartk-decode --trace` writes and `nartk-trace` draws, a JSON object a line.

Each line stands on its own, so that what `head`, `grep` or `cat` make of traces is a trace. Log-probabilities
and margins are in nats; what has no number is null. Version 1 has these keys:

    nartk_trace     the version, 1; keys may be added to it, and readers pass over those that they do not know
    line            the sentence's number in the input, from 1
    id              its name in the input, any JSON value; its number where it has none
    signature       what reproduces the output

and either, where a line failed,

    error           {"code", "name", "where", "message", "fix"}, all text

or

    source_text     the line
    output_text     what came of it
    source          its pieces as the model reads the line's sentences, with eos; not those of what a guard
                    had decoded in pieces
    output          the output's pieces, with eos unless the length limit cut it off
    origin          of each piece of the output, where it came from, one of
                      draft     proposed by the drafter and accepted
                      verifier  the verifier's own, where nothing was proposed: after a draft that stood
                                to its end, or without one; of beam search, all that no draft foresaw
                      rollback  the verifier's own, in the place of a proposed token that it took back: the
                                first where output and draft part, of several drafts all; what was
                                proposed behind it is lost, and is not in the trace
                      prefix    forced
                      model     a non-autoregressive model's
    pass            of each, the pass that settled it, from 1; 0 where the strategy does not count it
    margin          of each, how far the best logit lay above the second best; may be null
    lprob           of each, its log-probability; null where the strategy has none
    score           what the strategy ranks by, or null
    nbest           the further outputs, best first: [{"text", "score"}]
    passes          how often the verifier, or the model, ran
    drafted         tokens proposed
    accepted        those of them that stood
    seconds         from the sentence's entry into the batch to its end
    guard           where the model's guard did something, what: [{"done", "text", "reasons"}], done one of
                      split     the text was not sound as a whole, and was decoded in pieces
                      kept      the text was not sound, and stays as it is in the source
                      undone    the text stays, where a single edit would have changed it
    graph           of strategies on a DA-Transformer's graph alone, what is likely in it:
                      size      vertices of the whole graph
                      vertices  those shown, ascending
                      words     of each, [[word, log-probability]], likeliest first
                      links     [[from, to, log-probability]]
                      path      the vertices of the output's path; [] where all paths count together
                      emitted   the word at each vertex of the path after the first
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any, NoReturn, TypeAlias, TypeGuard

from nartk.errors import InputEncodingError, InputFileError, InputFormatError, NartkError
from nartk.files import JsonObject
from nartk.protocols.hypothesis import GraphTrace, Hypothesis, Result

VERSION = 1
ORIGINS = ("draft", "verifier", "rollback", "prefix", "model")
_MOST = 2**53  # integers below it are exact in every JSON reader
_MOST_PASSES = 10**6  # of a sentence
_ERROR_KEYS = ("code", "name", "where", "message", "fix")
_SHOWN = 60  # characters of a wrong value that an error shows
_WRITTEN, _AGAIN = "give what nartk-decode --trace wrote", "write the trace again"  # remedies
_Check: TypeAlias = Callable[[object], bool]


# Writing


def head(line: int, id: object, signature: str) -> JsonObject:
    """The keys that begin every line of a trace."""
    return {"nartk_trace": VERSION, "line": line, "id": id, "signature": signature}


def describe(
    result: Result,
    *,
    nbest: int,
    text: str,
    source: Sequence[str],
    words: Callable[[Iterable[int]], list[str]],
) -> JsonObject:
    """The keys of a sentence after `head`.

    Args:
        nbest: Hypotheses that were asked for.
        text: The line, and `source` its pieces.
        words: Gives the words of target ids.
    """
    best, *others = result.hypotheses[:nbest]
    lprobs = best.positional_scores
    described = {
        "source_text": text,
        "output_text": best.text,
        "source": list(source),
        "output": words(best.tokens),
        "origin": [],
        "pass": [],
        "margin": [],
        **provenance(best),
        "lprob": None if lprobs is None else [*map(finite, lprobs)],
        "score": finite(best.score),
        "nbest": [{"text": other.text, "score": finite(other.score)} for other in others],
        "passes": result.passes,
        "drafted": result.drafted,
        "accepted": result.accepted,
        "seconds": result.seconds,
    }
    if best.guarded:
        described["guard"] = [asdict(each) for each in best.guarded]
    if result.graph is not None:
        described["graph"] = describe_graph(result.graph, words)
    return described


def provenance(hypothesis: Hypothesis) -> JsonObject:
    """Per token where it came from, in which pass, and the margin in nats; nothing without a trace."""
    if hypothesis.trace is None:
        return {}
    return {
        "origin": [token.origin for token in hypothesis.trace],
        "pass": [token.verifier_pass for token in hypothesis.trace],
        "margin": [finite(token.margin) for token in hypothesis.trace],
    }


def describe_error(error: NartkError) -> dict[str, str]:
    """The key `error`."""
    return {key: getattr(error, key) for key in _ERROR_KEYS}


def finite(number: float | None) -> float | None:
    """The number, or None where JSON has no word for it."""
    return number if number is not None and math.isfinite(number) else None


def describe_graph(graph: GraphTrace, words: Callable[[Iterable[int]], list[str]]) -> JsonObject:
    """The key `graph`; `words` gives the words of target ids."""
    return {
        "size": graph.size,
        "vertices": list(graph.vertices),
        "words": [
            [[word, finite(lprob)] for word, (_, lprob) in zip(words(i for i, _ in each), each, strict=True)]
            for each in graph.words
        ],
        "links": [[a, b, finite(lprob)] for a, b, lprob in graph.links],
        "path": list(graph.path),
        "emitted": words(graph.emitted),
    }


# Reading


@dataclass(frozen=True)
class Traced:
    """One line of a trace; the module's text says what its keys hold.

    Attributes:
        error: The error if the line failed; then the rest is empty.
        passes_at: The key `pass`.
        graph: The key `graph` as it stands.
    """

    line: int
    id: object
    signature: str
    error: dict[str, str] | None = None
    source_text: str = ""
    output_text: str = ""
    source: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    origin: tuple[str, ...] = ()
    passes_at: tuple[int, ...] = ()
    margin: tuple[float | None, ...] = ()
    lprob: tuple[float | None, ...] | None = None
    score: float | None = None
    nbest: tuple[tuple[str, float | None], ...] = ()
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    graph: JsonObject | None = None


def read_trace(file: IO[bytes], name: str) -> Iterator[Traced | NartkError]:
    """Yields what each line says, or what is wrong with it; blank lines are passed over.

    Args:
        file: Opened in binary mode.
        name: File name for error messages.

    Raises:
        InputFileError: The file is empty, no trace, or one of another version.
    """
    first: NartkError | None = None  # held back until a valid line shows that the file is a trace
    is_trace = False
    for number, raw in enumerate(file, start=1):
        if not raw.strip():
            continue
        found: Traced | NartkError
        try:
            found = _read(raw, is_trace=is_trace)
            if not is_trace and first is not None:
                yield first
            is_trace = True
        except NartkError as error:
            error.where = f"{name}:{number}"
            if isinstance(error, InputFileError):
                raise
            found = error
            first = error if first is None else first
        if is_trace:
            yield found
    if not is_trace:
        raise InputFileError(
            "is empty" if first is None else f"not a trace: {first.message}",
            fix=_WRITTEN,
            where=name if first is None else first.where,
        )


def _read(raw: bytes, *, is_trace: bool) -> Traced:
    """Reads a line; raises an InputFileError if the file is no trace or another version's."""
    try:
        values = json.loads(raw.decode("utf-8").strip(), parse_constant=_refuse)
    except UnicodeDecodeError as error:
        raise InputEncodingError(f"not UTF-8 at byte {error.start + 1}", fix=_AGAIN) from error
    except json.JSONDecodeError as error:
        raise _damaged(f"{error.msg} at character {error.colno}") from error
    except RecursionError as error:
        raise _damaged("nested too deeply") from error
    except ValueError as error:  # an integer of too many digits
        raise _damaged(str(error)) from error
    if not isinstance(values, dict) or "nartk_trace" not in values:
        message = "no object with the key 'nartk_trace'"
        if not is_trace:
            raise InputFileError(f"not a trace: {message}", fix=_WRITTEN)
        raise InputFormatError(message, fix=_AGAIN)
    if values["nartk_trace"] != VERSION:
        raise InputFileError(
            f"a trace of version {_show(values['nartk_trace'])}, this nartk reads version {VERSION}",
            fix="draw it with the nartk that wrote it, or write it again",
        )
    return _traced(values)


def _damaged(message: str) -> InputFormatError:
    return InputFormatError(f"damaged: {message}", fix=_AGAIN)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _traced(values: JsonObject) -> Traced:
    line, signature = (_get(values, key) for key in ("line", "signature"))
    name = values.get("id", line)
    if "error" in values:
        return Traced(line, name, signature, error=_get(values, "error"))
    found = {key: _get(values, key) for key in _CHECKS if key not in ("line", "signature", "error", "graph")}
    for key in ("origin", "pass", "margin", "lprob"):
        if found[key] is not None and len(found[key]) != len(found["output"]):
            raise _damaged(f"{key!r} has {len(found[key])} entries, 'output' has {len(found['output'])}")
    graph = None if values.get("graph") is None else _get(values, "graph")
    found["passes_at"] = found.pop("pass")
    nbest = tuple((each["text"], each["score"]) for each in found.pop("nbest"))
    lists: JsonObject = {key: tuple(each) if isinstance(each, list) else each for key, each in found.items()}
    return Traced(line, name, signature, nbest=nbest, graph=graph, **lists)


def _get(values: JsonObject, key: str) -> Any:
    if key not in values:
        raise _damaged(f"no key {key!r}")
    good, wanted = _CHECKS[key]
    if not good(values[key]):
        raise _damaged(f"{key!r} is {_show(values[key])}, not {wanted}")
    return values[key]


def _show(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def _is_number(value: object) -> TypeGuard[float]:
    # An integer beyond a float's range is compared without being made one.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_number_or_null(value: object) -> bool:
    return value is None or _is_number(value)


def _list_of(good: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(good, value))


def _row_of(*goods: _Check) -> _Check:
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(goods)
        and all(good(each) for good, each in zip(goods, value, strict=True))
    )


def _object_of(**goods: _Check) -> _Check:
    return lambda value: (
        isinstance(value, dict) and all(key in value and good(value[key]) for key, good in goods.items())
    )


def _is_graph(value: object) -> bool:
    """True if a graph's lists fit each other."""
    if not isinstance(value, dict) or not _has_graph_lists(value):
        return False
    size, vertices, words, links, path, emitted = (value[key] for key in _GRAPH)
    return (
        vertices == sorted({*vertices})
        and all(vertex < size for vertex in vertices)
        and len(words) == len(vertices)
        and {*path, *(end for link in links for end in link[:2])} <= {*vertices}
        and path == sorted({*path})
        and len(emitted) == max(0, len(path) - 1)
    )


_GRAPH: dict[str, _Check] = {
    "size": _is_count,
    "vertices": _list_of(_is_count),
    "words": _list_of(_list_of(_row_of(_is_text, _is_number_or_null))),
    "links": _list_of(_row_of(_is_count, _is_count, _is_number_or_null)),
    "path": _list_of(_is_count),
    "emitted": _list_of(_is_text),
}
_has_graph_lists = _object_of(**_GRAPH)
# Of each key, what it may hold, and how an error calls that.
_CHECKS: dict[str, tuple[_Check, str]] = {
    "line": (_is_count, "a number"),
    "signature": (_is_text, "text"),
    "error": (
        _object_of(**dict.fromkeys(_ERROR_KEYS, _is_text)),
        f"an object of the texts {', '.join(_ERROR_KEYS)}",
    ),
    "source_text": (_is_text, "text"),
    "output_text": (_is_text, "text"),
    "source": (_list_of(_is_text), "a list of texts"),
    "output": (_list_of(_is_text), "a list of texts"),
    "origin": (_list_of(lambda value: value in ORIGINS), f"a list of {', '.join(ORIGINS)}"),
    "pass": (
        _list_of(lambda value: _is_count(value) and value <= _MOST_PASSES),
        f"a list of numbers from 0 to {_MOST_PASSES}",
    ),
    "margin": (_list_of(_is_number_or_null), "a list of numbers and nulls"),
    "lprob": (lambda value: value is None or _list_of(_is_number_or_null)(value), "a list of numbers"),
    "score": (_is_number_or_null, "a number"),
    "nbest": (_list_of(_object_of(text=_is_text, score=_is_number_or_null)), "a list of texts with scores"),
    "passes": (_is_count, "a number from 0 on"),
    "drafted": (_is_count, "a number from 0 on"),
    "accepted": (_is_count, "a number from 0 on"),
    "seconds": (lambda value: _is_number(value) and value >= 0, "a number from 0 on"),
    "graph": (_is_graph, "a graph whose lists fit each other"),
}
