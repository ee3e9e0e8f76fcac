"""A trace as one page of HTML that asks for nothing from outside, and its figures.

The page holds the trace as JSON in which no markup can stand. Its script draws by `textContent` alone, and
its policy runs no other script.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files

from nartk.errors import number_of
from nartk.files import JsonObject
from nartk.protocols.hypothesis import DecodeStats
from nartk.tracing import ORIGINS, Traced

_BARS = 40  # of the histogram
_MARKS = ("▁", "Ġ")  # of the space before a piece: sentencepiece's, and byte-level BPE's
_WORD = re.compile(r"\s*\S+\s*")
_ALIKE = 0.5  # share of the words of sources and outputs that both have, from which on they are compared


def settled(traced: Traced) -> list[int]:
    """Number of tokens that each pass of a sentence settled, from pass 1 to the last that settled any."""
    counts = Counter(traced.passes_at)
    return [counts[number] for number in range(1, max(counts, default=0) + 1)]


def histogram(trace: Iterable[Traced]) -> Counter[int]:
    """Number of passes by the number of tokens that they settled."""
    return Counter(count for traced in trace for count in settled(traced))


def bars(counts: Counter[int], most: int = _BARS) -> list[tuple[int, int, int]]:
    """A histogram as at most so many bars of equal width without gaps: lowest value, highest, count."""
    if not counts:
        return []
    low, high = min(counts), max(counts)
    width = -(-(high - low + 1) // most)
    summed: Counter[int] = Counter()
    for value, count in counts.items():
        summed[(value - low) // width] += count
    return [
        (low + i * width, min(low + (i + 1) * width - 1, high), summed[i])
        for i in range((high - low) // width + 1)
    ]


def diff(source: str, output: str) -> list[tuple[str, str]]:
    """The output's words against the source's, in order, as pairs of a mark and a text.

    The mark is `del` for what the source alone has, `ins` for what the output alone has, and empty for both.
    """
    before, after = _WORD.findall(source), _WORD.findall(output)
    found: list[tuple[str, str]] = []
    matcher = difflib.SequenceMatcher(None, source.split(), output.split())
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        old, new = "".join(before[start:end]).strip(), "".join(after[new_start:new_end]).strip()
        pairs = [("", old)] if tag == "equal" else [("del", old), ("ins", new)]
        found += [pair for pair in pairs if pair[1]]
    return found


def stats(trace: Sequence[Traced]) -> DecodeStats:
    """The statistics of the sentences that were decoded; its seconds are the sum of theirs."""
    decoded = [traced for traced in trace if traced.passes]
    return DecodeStats(
        seconds=sum(traced.seconds for traced in decoded),
        sentences=len(decoded),
        tokens=sum(len(traced.output) for traced in decoded),
        passes=sum(traced.passes for traced in decoded),
        drafted=sum(traced.drafted for traced in decoded),
        accepted=sum(traced.accepted for traced in decoded),
        latencies=[traced.seconds for traced in decoded],
    )


def counts(total: DecodeStats) -> str:
    """Sentences, tokens and passes, in words."""
    sentences, tokens = number_of(total.sentences, "sentence"), number_of(total.tokens, "token")
    return f"{sentences}, {tokens}, {number_of(total.passes, 'pass')}"


def summary(trace: Sequence[Traced]) -> str:
    """The trace in a line."""
    total = stats(trace)
    drafted = f", {total.accepted} of {total.drafted} drafted tokens accepted" if total.drafted else ""
    failed = sum(traced.error is not None for traced in trace)
    return f"{counts(total)}{drafted}" + (f", {number_of(failed, 'line')} failed" if failed else "")


def page(
    trace: Sequence[Traced], *, name: str, damaged: int = 0, speech: Mapping[int, JsonObject] | None = None
) -> str:
    """The page.

    Args:
        name: Name of the trace.
        damaged: Lines of it that could not be read.
        speech: Alignments of recordings by index in the trace (`nartk.tracing.speech.for_page`).
    """
    style, script = (
        "".join(_part(f"{name}.{suffix}") for name in ("draw", "page")) for suffix in ("css", "js")
    )
    parts = {
        "policy": f"default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"style-src '{_hash(style)}'; script-src '{_hash(script)}'",
        "style": style,
        "script": script,
        "data": embed(_data(trace, name, damaged, {} if speech is None else speech)),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _part("page.html"))


def embed(values: object) -> str:
    """JSON that can stand inside a script element: ASCII without `<`, so that nothing in it ends one."""
    text = json.dumps(values, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _part(name: str) -> str:
    return (files("nartk.tracing") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _data(trace: Sequence[Traced], name: str, damaged: int, speech: Mapping[int, JsonObject]) -> JsonObject:
    signatures = list(dict.fromkeys(traced.signature for traced in trace))
    numbers = {signature: i for i, signature in enumerate(signatures)}
    marked = {
        traced.signature for traced in trace if any(piece.startswith(_MARKS) for piece in traced.output)
    }
    total = stats(trace)
    origins = Counter(origin for traced in trace for origin in traced.origin)
    return {
        "name": name,
        "damaged": damaged,
        "failed": sum(traced.error is not None for traced in trace),
        "signatures": signatures,
        "marked": [signature in marked for signature in signatures],
        "origins": [[origin, origins[origin]] for origin in ORIGINS],
        "bars": bars(histogram(trace)),
        "sentences": total.sentences,
        "tokens": total.tokens,
        "passes": total.passes,
        "drafted": total.drafted,
        "accepted": total.accepted,
        "tokensPerSecond": _round(total.tokens_per_second),
        "latency": {key: _round(value) for key, value in total.latency_ms.items()},
        "lines": [
            _line(traced, numbers[traced.signature], changes)
            | ({"speech": speech[index]} if index in speech else {})
            for index, (traced, changes) in enumerate(zip(trace, _changes(trace), strict=True))
        ],
    }


def _changes(trace: Sequence[Traced]) -> list[list[tuple[str, str]]]:
    """The `diff` of each line that has changed; empty for models whose outputs are unlike their sources."""
    found = [diff(traced.source_text, traced.output_text) for traced in trace]
    kept: Counter[str] = Counter()
    words: Counter[str] = Counter()
    for traced, pairs in zip(trace, found, strict=True):
        for mark, text in pairs:
            sides = 1 if mark else 2
            words[traced.signature] += sides * len(text.split())
            kept[traced.signature] += 0 if mark else sides * len(text.split())
    alike = {signature for signature in words if kept[signature] >= _ALIKE * words[signature]}
    return [
        pairs if traced.signature in alike and any(mark for mark, _ in pairs) else []
        for traced, pairs in zip(trace, found, strict=True)
    ]


def _line(traced: Traced, signature: int, changes: list[tuple[str, str]]) -> JsonObject:
    found: JsonObject = {"line": traced.line, "of": signature}
    if traced.id != traced.line:
        found["id"] = traced.id if isinstance(traced.id, str) else json.dumps(traced.id, ensure_ascii=False)
    if traced.error is not None:
        return found | {"error": traced.error}
    found |= {
        "source": traced.source_text,
        "text": traced.output_text,
        "output": traced.output,
        "origin": "".join(str(ORIGINS.index(origin)) for origin in traced.origin),
        "pass": traced.passes_at,
        "margin": [*map(_round, traced.margin)],
        "lprob": None if traced.lprob is None else [*map(_round, traced.lprob)],
        "score": _round(traced.score),
        "nbest": [(text, _round(score)) for text, score in traced.nbest],
        "passes": traced.passes,
        "drafted": traced.drafted,
        "accepted": traced.accepted,
        "ms": _round(1000 * traced.seconds),
    }
    if changes:
        found["diff"] = changes
    if traced.graph is not None:
        graph = traced.graph
        found["graph"] = {
            **{key: graph[key] for key in ("size", "vertices", "path", "emitted")},
            "words": [[[word, _round(lprob)] for word, lprob in each] for each in graph["words"]],
            "links": [[a, b, _round(lprob)] for a, b, lprob in graph["links"]],
        }
    return found


def _round(number: float | None) -> float | None:
    """Four digits: more than anyone reads, and a page half as large."""
    return None if number is None else float(f"{number:.4g}")
