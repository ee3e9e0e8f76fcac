"""Traces: what is written is read back, what is damaged is named, and graphs are as enumeration has them."""

from __future__ import annotations

import io
import json
import math
import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny
from support.pass_strategies import only
from support.realtable import EOS
from support.scripted_graphs import ScriptedGraphs
from support.scripted_passes import ScriptPasses, decode
from support.traced_graph import GRAPH

from nartk.cli.decode import main as decode_main
from nartk.cli.trace import main
from nartk.decoders.graphs import trace
from nartk.decoders.graphs.trace import reach_probs
from nartk.errors import InputFileError, NartkError
from nartk.protocols.hypothesis import GraphTrace, Hypothesis, Request, Result, TokenTrace
from nartk.protocols.outputs import Text
from nartk.protocols.passes import FloatArray
from nartk.registry import make_strategy
from nartk.tracing import ORIGINS, Traced, describe, head, plot, read_trace
from nartk.tracing.page import bars, histogram, page, settled, stats

WORDS = ("<s>", "<pad>", "</s>", "<unk>", "she", "goes", "home")
SIGNATURE = "strategy:iad|model:abc"


def to_words(ids: Any) -> list[str]:
    return [WORDS[i] for i in ids]


def result(**changes: Any) -> Result:
    trace = (
        TokenTrace("draft", 1, 2.5),
        TokenTrace("verifier", 1, 0.25),
        TokenTrace("verifier", 2, math.inf),
    )
    best = Hypothesis((4, 5, 2), -0.75, (-0.25, -0.5, 0.0), trace, output=Text("she goes"))
    other = Hypothesis((4, 6, 2), None, None, None, output=Text("she home"))
    return Result(**{"index": 0, "hypotheses": (best, other), "seconds": 0.5, "passes": 2, "drafted": 3,
                     "accepted": 1, **changes})  # fmt: skip


def record(line: int = 1, *, asked: int = 2, **changes: Any) -> dict[str, Any]:
    described = describe(result(), nbest=asked, text="she go", source=["she", "go", "</s>"], words=to_words)
    return {**head(line, line, SIGNATURE), **described, **changes}


def failed(line: int = 1) -> dict[str, Any]:
    error = {"code": "E203", "name": "InputTooLong", "where": "in:1", "message": "9 tokens > 8", "fix": ""}
    return {**head(line, "name", SIGNATURE), "error": error}


def read(*lines: dict[str, Any] | bytes | str) -> list[Traced | NartkError]:
    raw = [
        x if isinstance(x, bytes) else (x if isinstance(x, str) else json.dumps(x)).encode() for x in lines
    ]
    return list(read_trace(io.BytesIO(b"\n".join(raw)), "t.jsonl"))


# The schema


def test_what_is_written_is_read_back() -> None:
    (found,) = read(record(7, graph=GRAPH))
    assert found == Traced(
        line=7,
        id=7,
        signature=SIGNATURE,
        source_text="she go",
        output_text="she goes",
        source=("she", "go", "</s>"),
        output=("she", "goes", "</s>"),
        origin=("draft", "verifier", "verifier"),
        passes_at=(1, 1, 2),
        margin=(2.5, 0.25, None),  # JSON has no infinity
        lprob=(-0.25, -0.5, 0.0),
        score=-0.75,
        nbest=(("she home", None),),
        passes=2,
        drafted=3,
        accepted=1,
        seconds=0.5,
        graph=GRAPH,
    )


def test_a_failed_line_is_read_back() -> None:
    (found,) = read(failed(3))
    assert isinstance(found, Traced)
    assert (found.line, found.id, found.output) == (3, "name", ())
    assert found.error is not None
    assert found.error["message"] == "9 tokens > 8"


def test_outputs_that_were_not_asked_for_are_not_written() -> None:
    assert record(asked=1)["nbest"] == []


def test_keys_of_later_versions_do_no_harm() -> None:
    assert read(record(later=[1])) == read(record())


def test_a_graph_is_written_in_words() -> None:
    graph = GraphTrace(
        9, (0, 4, 8), ((), ((4, -0.5),), ((2, -math.inf),)), ((0, 4, -0.25), (4, 8, 0.0)), (0, 4, 8), (4, 2)
    )
    found = describe(result(graph=graph), nbest=1, text="", source=[], words=to_words)["graph"]
    assert found == {
        "size": 9,
        "vertices": [0, 4, 8],
        "words": [[], [["she", -0.5]], [["</s>", None]]],
        "links": [[0, 4, -0.25], [4, 8, 0.0]],
        "path": [0, 4, 8],
        "emitted": ["she", "</s>"],
    }
    assert isinstance(read(record(graph=found))[0], Traced)


# What is wrong with a file


def refusal(*lines: dict[str, Any] | bytes | str) -> str:
    with pytest.raises(InputFileError) as caught:
        read(*lines)
    assert (caught.value.code, caught.value.exit_code) == ("E201", 2)
    return str(caught.value)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "error[E201 InputFile] t.jsonl: is empty. Fix: give what nartk-decode --trace wrote."),
        (["", "  "], "error[E201 InputFile] t.jsonl: is empty. Fix: give what nartk-decode --trace wrote."),
        (
            ["", '{"id": 1, "output": []}', record()],
            "error[E201 InputFile] t.jsonl:2: not a trace: no object with the key 'nartk_trace'. "
            "Fix: give what nartk-decode --trace wrote.",
        ),
        (["[1]"], "error[E201 InputFile] t.jsonl:1: not a trace: no object with the key 'nartk_trace'. "
         "Fix: give what nartk-decode --trace wrote."),
        (
            ["She go home .", "\xff"],
            "error[E201 InputFile] t.jsonl:1: not a trace: damaged: Expecting value at character 1"
            ". Fix: give what nartk-decode --trace wrote.",
        ),
        (
            [record(), record(nartk_trace=2)],
            "error[E201 InputFile] t.jsonl:2: a trace of version 2, this nartk reads version 1. "
            "Fix: draw it with the nartk that wrote it, or write it again.",
        ),
        (
            [record(nartk_trace="x" * 1000)],
            f'error[E201 InputFile] t.jsonl:1: a trace of version "{"x" * 59}..., this nartk reads version 1'
            ". Fix: draw it with the nartk that wrote it, or write it again.",
        ),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(lines: list[Any], message: str) -> None:
    assert refusal(*lines) == message


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in record().items() if name != key}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"nartk_trace": 1, "li', "Unterminated string"),
        (b"\xff", "not UTF-8 at byte 1"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"nartk_trace": 1, "line": NaN}', "NaN is no JSON"),
        (b'{"nartk_trace": 1, "line": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
        (b"{}", "no object with the key 'nartk_trace'"),
        (without("margin"), "no key 'margin'"),
        (without("signature"), "no key 'signature'"),
        (record(line=-1), "'line' is -1, not a number"),
        (record(line=True), "'line' is true, not a number"),
        (record(line=10**300), "'line' is 1000"),
        (record(source_text=None), "'source_text' is null, not text"),
        (record(output=["a", 1, "b"]), "'output' is [\"a\", 1, \"b\"], not a list of texts"),
        (
            record(origin=["draft", "luck", "draft"]),
            "not a list of draft, verifier, rollback, prefix, model",
        ),
        (record(origin=["draft", [], "draft"]), "not a list of draft"),
        (record(**{"pass": [1, 1]}), "'pass' has 2 entries, 'output' has 3"),
        (record(**{"pass": [1, 1, 1.5]}), "'pass' is [1, 1, 1.5], not a list of numbers from 0 to 1000000"),
        (record(**{"pass": [1, 1, 10**7]}), "not a list of numbers from 0 to 1000000"),
        (record(margin=[1, None, "x"]), "not a list of numbers and nulls"),
        (record(margin=[1, None, 10**400]), "not a list of numbers and nulls"),
        (b'{"nartk_trace": 1, "line": 1, "signature": "", "error": {"code": 1}}', "'error' is"),
        (record(lprob=[-1.0]), "'lprob' has 1 entries, 'output' has 3"),
        (record(nbest=[{"text": "a"}, 3]), "'nbest' is"),
        (record(seconds=-1), "'seconds' is -1, not a number from 0 on"),
        (record(graph={**GRAPH, "vertices": [0, 5, 3, 8]}), "'graph' is"),
        (record(graph={**GRAPH, "path": [0, 4, 8]}), "'graph' is"),
        (record(graph={**GRAPH, "emitted": []}), "'graph' is"),
        (record(graph={**GRAPH, "links": [[0, 7, -1.0]]}), "'graph' is"),
        (record(graph={**GRAPH, "size": 8}), "'graph' is"),
        (record(graph={"size": 8}), "'graph' is"),
        (record(graph=[]), "'graph' is"),
    ],
)  # fmt: skip
def test_a_damaged_line_is_named_and_costs_itself_alone(line: Any, message: str) -> None:
    for place in (1, 0):
        if line == b"{}" and place == 0:
            continue  # at the head it says that the file is no trace
        lines: list[Any] = [record(1), record(2)]
        lines.insert(place, line)
        found = read(*lines)
        assert [each.line for each in found if isinstance(each, Traced)] == [1, 2]
        (error,) = (each for each in found if isinstance(each, NartkError))
        assert error.where == f"t.jsonl:{place + 1}"
        assert error.code in ("E202", "E204")
        assert message in error.message
        assert len(str(error)) < 300


def test_graphs_that_fit_are_taken() -> None:
    """Else the graphs above might all be refused for another reason."""
    for graph in (GRAPH, {**GRAPH, "path": [], "emitted": []}, None):
        assert isinstance(read(record(graph=graph))[0], Traced)


def test_flipped_bits_are_named_or_harmless() -> None:
    lines = [json.dumps(record(line, graph=GRAPH)).encode() for line in range(1, 4)]
    draw = random.Random(0)
    named = 0
    for _ in range(500):
        flipped = bytearray(lines[1])
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        with suppress(InputFileError):  # of another version
            found = read(lines[0], bytes(flipped), lines[2])
            sound = [each for each in found if isinstance(each, Traced)]
            assert (sound[0].line, sound[-1].line) == (1, 3)
            named += len(found) > len(sound)
            page(sound, name="t")
    assert named > 200


# Figures


def traced(passes_at: tuple[int, ...], **changes: Any) -> Traced:
    count = len(passes_at)
    values: dict[str, Any] = {
        "line": 1, "id": 1, "signature": "", "output": ("x",) * count, "origin": ("draft",) * count,
        "passes_at": passes_at, "margin": (None,) * count, "passes": max(passes_at, default=0), **changes,
    }  # fmt: skip
    return Traced(**values)


def test_tokens_a_pass_by_hand() -> None:
    assert settled(traced((1, 1, 2, 4, 4, 4))) == [2, 1, 0, 3]
    assert settled(traced((2, 0, 1, 2))) == [1, 2]  # pass 0 is none
    assert settled(traced(())) == settled(traced((0, 0))) == []
    assert histogram([traced((1, 1, 2)), traced((1, 1)), traced(())]) == {2: 2, 1: 1}


@pytest.mark.parametrize("most", [1, 3, 40])
def test_bars_hold_all_there_is(most: int) -> None:
    rng = random.Random(most)
    for _ in range(50):
        values = [rng.randrange(rng.choice((2, 60, 300))) for _ in range(rng.randint(1, 30))]
        found = bars(Counter(values), most)
        assert len(found) <= most
        assert (found[0][0], found[-1][1]) == (min(values), max(values))
        assert all(b[0] == a[1] + 1 for a, b in pairwise(found))
        assert [sum(low <= value <= high for value in values) for low, high, _ in found] == [
            n for *_, n in found
        ]
    assert bars(Counter()) == []


def test_statistics_leave_blank_and_failed_lines_out() -> None:
    found = [traced((1, 1, 2), seconds=0.5, drafted=3, accepted=1), traced(()), traced((1,), seconds=0.25)]
    total = stats(found)
    assert (total.sentences, total.tokens, total.passes, total.drafted, total.accepted) == (2, 4, 3, 3, 1)
    assert total.seconds == 0.75


# Graphs of DA-Transformers, against enumeration of all paths

DAG = {
    "dag-greedy": {},
    "dag-lookahead": {"merge_repeats": True},
    "dag-viterbi": {},
    "dag-joint-viterbi": {},
    "dag-sample": {"nbest": 3},
    "dag-beam": {},
}


def scripted(**changes: int) -> ScriptedGraphs:
    return ScriptedGraphs(5, **{"graphs": 6, "largest": 9, "words": 9, **changes})


def reach_by_hand(graphs: ScriptedGraphs, i: int) -> list[float]:
    """The probability of coming to each vertex: the sum over all paths through it."""
    found = [0.0] * graphs.sizes[i]
    for path in graphs.paths(i):
        chance = math.exp(sum(graphs.links[i][a][b] for a, b in pairwise(path)))
        for vertex in path:
            found[vertex] += chance
    return found


def misses(graphs: ScriptedGraphs, reaching: Callable[[FloatArray], Any]) -> int:
    """Of how many graphs the probabilities are wrong."""
    return sum(
        reaching(np.array(links, np.float32)).tolist() != pytest.approx(reach_by_hand(graphs, i), abs=1e-5)
        for i, links in enumerate(graphs.links)
    )


def one_edge(links: FloatArray) -> Any:
    """Known bad: comes to a vertex by the edge from the first alone."""
    return np.append(1.0, np.exp(links[0, 1:]))


def test_reach_is_the_sum_over_all_paths() -> None:
    graphs = scripted()
    assert misses(graphs, reach_probs) == 0
    assert misses(graphs, one_edge) > 0


@pytest.mark.parametrize("name", DAG)
def test_graphs_as_enumeration_has_them(name: str) -> None:
    graphs = scripted()
    strategy = make_strategy(name, DAG[name])
    plain = list(strategy.run(graphs, graphs.requests(), batch_size=4))
    assert [each.graph for each in plain] == [None] * 6
    found = list(strategy.run(graphs, graphs.requests(), batch_size=4, trace=True))
    assert [[h.tokens for h in each.hypotheses] for each in found] == [
        [h.tokens for h in each.hypotheses] for each in plain
    ]
    for each in found:
        i, graph = each.index, each.graph
        assert graph is not None
        size, path = graphs.sizes[i], graph.path
        assert graph.size == size
        often = [v for v, chance in enumerate(reach_by_hand(graphs, i)) if chance >= 0.01]
        assert graph.vertices == tuple(sorted({*often, *path, 0, size - 1}))
        for vertex, words in zip(graph.vertices[1:-1], graph.words[1:-1], strict=True):
            lprobs = graphs.lprobs(i, vertex)
            best = sorted(range(3, 9), key=lambda word: -lprobs[word])[:3]
            assert [word for word, _ in words] == best
            assert [lprob for _, lprob in words] == pytest.approx([lprobs[word] for word in best], abs=1e-5)
        assert graph.words[0] == ()
        assert graph.words[-1] == ((2, pytest.approx(graphs.lprobs(i, size - 1)[2], abs=1e-5)),)
        taken = set(pairwise(path))
        links = {(a, b): lprob for a, b, lprob in graph.links}
        assert links == {
            (a, b): pytest.approx(graphs.links[i][a][b], abs=1e-6)
            for a in graph.vertices
            for b in graph.vertices
            if graphs.links[i][a][b] >= math.log(0.05) or (a, b) in taken
        }
        if name == "dag-beam":
            assert (path, graph.emitted) == ((), ())
            continue
        assert (path[0], path[-1], graph.emitted[-1]) == (0, size - 1, 2)
        said = [w for w, v in zip(graph.emitted, (None, *graph.emitted), strict=False) if w != v]
        tokens = said if "merge_repeats" in DAG[name] else list(graph.emitted)
        assert tokens == list(each.hypotheses[0].tokens)
        words_of = zip(path[1:], graph.emitted, strict=True)
        total = sum(graphs.links[i][a][b] for a, b in taken)
        total += sum(graphs.lprobs(i, vertex)[word] for vertex, word in words_of)
        penalty = len(graph.emitted) if "viterbi" in name else 1
        assert each.hypotheses[0].score == pytest.approx(total / penalty, abs=1e-4)


def test_a_large_graph_is_shown_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = scripted(largest=11)
    monkeypatch.setattr(trace, "_VERTICES", 3)
    for each in make_strategy("dag-greedy", {}).run(graphs, graphs.requests(), batch_size=8, trace=True):
        graph = each.graph
        assert graph is not None
        chances = reach_by_hand(graphs, each.index)
        often = sorted(range(len(chances)), key=lambda v: -chances[v])[:3]
        assert set(graph.vertices) <= {*graph.path, *often, 0, graph.size - 1}
        assert set(graph.path) <= set(graph.vertices)


# Where tokens came from


@pytest.mark.parametrize(
    ("drafts", "origins"),
    [
        # Of 5 6 7 8 9 eos, 5 6 are accepted and 7 replaces 1; after that nothing is proposed.
        ([[5, 6, 1, 1]], "ddrvvv"),
        # The same with branches: 7 replaces 1 and 3.
        ([[5, 6, 1, 1], [5, 6, 3], [5, 7]], "ddrvvv"),
        # 1 is rejected, its neighbour 6 is accepted to its end.
        ([[5, 1], [5, 6]], "ddvvvv"),
        ([[5, 1]], "drvvvv"),
        ([[5, 6, 7, 8, 9, EOS]], "dddddd"),
        ([[4]], "rvvvvv"),
    ],
)
def test_a_token_in_the_place_of_a_drafted_one_is_a_rollback(drafts: list[list[int]], origins: str) -> None:
    output = [5, 6, 7, 8, 9, EOS]
    scorer = ScriptPasses(10, {(4, EOS): output})
    (found,) = decode(only(drafts), scorer, [Request(0, (4, EOS), 20)], trace=True)
    assert list(found.hypotheses[0].tokens) == output
    assert "".join(each.origin[0] for each in found.hypotheses[0].trace or ()) == origins


# The commands


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.corrector(tmp_path_factory.mktemp("corrector")))


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def trace_of(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> Path:
    give_stdin(monkeypatch, "she go to school yesterday .\n\nthe cat\u2028sees it .\n".encode() + b"\xff\n")
    path = tmp_path / "trace.jsonl"
    out = str(tmp_path / "out.txt")
    assert decode_main([model, "--trace", str(path), "--output", out, "--quiet", *flags]) == 3
    return path


@pytest.mark.parametrize(
    "flags",
    ["iad --no-adaptive", "greedy", "beam --nbest 3", "sample --nbest 2"],
)
def test_every_strategys_trace_is_read_back(
    flags: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = trace_of(model, tmp_path, monkeypatch, "--strategy", *flags.split())
    with path.open("rb") as file:
        found = [each for each in read_trace(file, "t") if isinstance(each, Traced)]
    assert [each.line for each in found] == [1, 2, 3, 4]
    assert [each.error is None for each in found] == [True, True, True, False]
    assert {each.signature.split("|")[0] for each in found} == {f"strategy:{flags.split()[0]}"}
    first, blank = found[:2]
    assert (first.source_text, blank.output, blank.passes) == ("she go to school yesterday .", (), 0)
    assert first.output_text == " ".join(first.output[:-1])
    assert len(first.nbest) == (int(flags.split()[-1]) - 1 if "nbest" in flags else 0)
    assert first.lprob is not None
    assert set(first.origin) <= {*ORIGINS}
    if "sample" not in flags:
        assert first.output_text == "she goes to school yesterday ."
    if "iad" in flags:
        assert sum(settled(first)) == len(first.output) == first.passes + first.accepted
        assert first.origin.count("draft") == first.accepted
        assert first.origin[first.output.index("goes")] == "rollback"  # the input has another word there
    capsys.readouterr()


def test_the_command_draws_all_it_can(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    path = trace_of(model, tmp_path, monkeypatch)
    capsys.readouterr()
    files = {form: tmp_path / f"out.{form}" for form in ("html", "png", "svg")}
    flags = [f"--{form}={file}" for form, file in files.items()]
    sizes = []
    for extra in ([], ["--line", "1"]):
        assert main([str(path), *flags, *extra]) == 0
        assert files["html"].read_text().startswith("<!DOCTYPE html>")
        assert files["png"].read_bytes().startswith(b"\x89PNG")
        assert "</svg>" in files["svg"].read_text()
        sizes.append(files["html"].stat().st_size)
    assert sizes[1] < sizes[0]
    said = capsys.readouterr()
    assert said.out == ""
    for form, file in files.items():
        output = tmp_path / f"again.{form}"
        assert main([str(path), "-o", str(output), "--line", "1", "--quiet"]) == 0
        assert output.read_bytes()[:4] == file.read_bytes()[:4]
    assert re.fullmatch(
        r"nartk: 2 sentences, 13 tokens, \d+ passes, \d+ of \d+ drafted tokens accepted, 1 line failed\n"
        r"nartk: 1 sentence, 7 tokens, \d+ passes, \d+ of \d+ drafted tokens accepted\n",
        said.err,
    )
    assert main([str(path), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore")  # matplotlib's own, of letters that its font lacks
@pytest.mark.parametrize(
    "words", [["$", "a$b$", "\\frac", "_{", "中", "🙂", "\n"], [], ["w"] * 12], ids=["odd", "none", "many"]
)
def test_any_words_can_be_drawn(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.setattr(plot, "_MOST_TOKENS", 10)
    count = len(words)
    values = {
        "output": words,
        "origin": [ORIGINS[i % 5] for i in range(count)],
        "pass": [i // 2 for i in range(count)],
        "margin": [None] * count,
        "lprob": None,
    }
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(record(**values)))
    for flags in ([], ["--line", "1"]):
        assert (
            main([str(path), "--png", str(tmp_path / "o.png"), "--svg", str(tmp_path / "o.svg"), *flags]) == 0
        )
        assert (tmp_path / "o.png").stat().st_size > 1000


def test_a_damaged_line_is_left_out_with_exit_code_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, html = tmp_path / "t.jsonl", tmp_path / "t.html"
    path.write_text("\n".join([json.dumps(record(1)), "{", json.dumps(record(2))]))
    assert main([str(path), "--html", str(html)]) == 3
    first, second = capsys.readouterr().err.splitlines()
    assert first == (
        f"nartk: error[E204 InputFormat] {path}:2: damaged: "
        "Expecting property name enclosed in double quotes at character 2. Fix: write the trace again."
    )
    assert second.startswith("nartk: 2 sentences, 6 tokens, 4 passes")
    assert '"damaged":1' in html.read_text()


def test_a_trace_comes_by_stdin_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    give_stdin(monkeypatch, json.dumps(record()).encode())
    assert main(["-", "--html", str(tmp_path / "t.html")]) == 0
    assert '"name":"stdin"' in (tmp_path / "t.html").read_text()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ([], 2, r"E101 Usage\] the following arguments are required: TRACE"),
        (["TRACE", "--line", "0"], 2, r"E101 Usage\] --line is 0. Fix: count sentences from 1\."),
        (
            ["TRACE", "--line", "9"],
            2,
            r"E101 Usage\] --line is 9, not in the trace. Fix: choose from 4 to 5\.",
        ),
        (["nowhere"], 2, r"E201 InputFile\] nowhere: cannot read: No such file or directory"),
        (["EMPTY"], 2, r"E201 InputFile\] .*empty: is empty"),
        (["FOLDER"], 2, r"E201 InputFile\] .*: cannot read: Is a directory"),
        (
            ["TRACE", "--html", "nowhere/t.html"],
            6,
            r"E501 Output\] nowhere/t.html: cannot write: No such file",
        ),
        (["TRACE", "--html", "FOLDER"], 6, r"E501 Output\] .*: cannot write: Is a directory"),
    ],
)
def test_errors_are_one_line_with_their_exit_code(
    args: list[str], code: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "t.jsonl").write_text("\n".join(json.dumps(record(line)) for line in (4, 5)))
    places = {"TRACE": "t.jsonl", "EMPTY": "empty", "FOLDER": ""}
    assert main([str(tmp_path / places[arg]) if arg in places else arg for arg in args]) == code
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert re.search(message, line), line


def test_help_shows_examples_and_needs_no_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "nartk-trace trace.jsonl -o trace.html" in capsys.readouterr().out


def test_pictures_without_matplotlib_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([str(tmp_path / "t.jsonl"), "--png", "x.png"]) == 2
    assert capsys.readouterr().err == (
        "nartk: error[E104 MissingDependency] drawing a picture needs matplotlib, which is not installed. "
        "Fix: pip install 'nartk[plot]'.\n"
    )
