"""Drafts that the user gives: what of them is fed, how many passes they save, and that they change nothing.

The oracles are a plain Python twin, built on the twin of the aligned rule, and cases worked by hand.
"""

from __future__ import annotations

import dataclasses
import io
import json
import random
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support import tiny
from support.copies import aligned_rule, edited, ids, passes_by_hand, repetitive_pair, spelled, weighed_rule
from support.pass_strategies import given_drafts
from support.scorers import TransformerReference
from support.scripted_passes import (
    ScriptPasses,
    Table,
    TablePasses,
    decode,
    differing,
    outputs_of,
    plain_greedy,
)
from support.transformers_small import random_config, random_model, random_requests, vocabulary

import nartk.serving.loading
from nartk.cli.decode import main
from nartk.data.readers import Fields, Record, read_records
from nartk.decoders.loop.acceptance import ArgmaxAcceptance, Verdict, Verified
from nartk.decoders.loop.rows import Row
from nartk.errors import LengthMismatchError, UsageError
from nartk.protocols.hypothesis import Request, Result
from nartk.registry import make_strategy
from nartk.vocab import Vocab

EOS = 2
Drafts = Sequence[Sequence[int]]


def run(
    cases: Sequence[tuple[Drafts, Sequence[int]]],
    words: Sequence[str],
    *,
    max_len: int = 64,
    batch_size: int = 256,
    strategy: Any = None,
) -> list[Result]:
    """Decodes outputs without eos, each with its drafts, behind a source that says nothing of them."""
    sources = [(*(4 + int(digit) % 2 for digit in f"{i:b}"), EOS) for i in range(len(cases))]
    script = {source: [*output, EOS] for source, (_, output) in zip(sources, cases, strict=True)}
    scorer = ScriptPasses(len(words), script)
    scorer.vocab = Vocab(tuple(words))
    requests = [
        Request(i, source, max_len, drafts=tuple(map(tuple, drafts)))
        for i, (source, (drafts, _)) in enumerate(zip(sources, cases, strict=True))
    ]
    strategy = make_strategy("verify", {"adaptive": False}) if strategy is None else strategy
    results = decode(strategy, scorer, requests, batch_size=batch_size)
    assert outputs_of(results) == [script[request.source][:max_len] for request in requests]
    return results


def counts_by_hand(
    drafts: Drafts,
    words: Sequence[str],
    output: Sequence[int],
    *,
    max_draft: int = 0,
    nodes: int = 256,
    max_len: int = 64,
) -> tuple[int, int, int]:
    """Passes, drafted and accepted tokens: the twin."""
    rule = weighed_rule(words)
    output = [*output, EOS][:max_len]
    done, passes, drafted, accepted, grown = 0, 0, 0, 0, 0
    cursors = [0] * len(drafts)
    while done < len(output):
        worths = [0] * len(drafts)
        for i, draft in enumerate(drafts):
            if done:
                # Past a draft's end there is no word that the newest one stands for.
                memory = {"cursor": min(cursors[i] + grown - 1, len(draft)), "accepted": 0}
                if grown > 1:
                    memory = {"cursor": memory["cursor"] - 1, "accepted": 1}
                cursors[i], worths[i] = rule(list(draft), output[:done], memory)
        open_ones = [i for i, draft in enumerate(drafts) if cursors[i] < len(draft)]
        open_ones.sort(key=lambda i: (-worths[i], i))
        beginnings: dict[tuple[int, ...], None] = {}  # the tree's nodes, each as the way to it
        for i in open_ones[: None if nodes else 1]:
            proposal = tuple(drafts[i][cursors[i] :][: max_draft if max_draft else None])
            beginnings |= dict.fromkeys(proposal[: n + 1] for n in range(len(proposal)))
        ways = list(beginnings)[: nodes if nodes else None]
        ways = [way for way in ways if len(way) < max_len - done]
        stands = max((len(way) for way in ways if way == tuple(output[done : done + len(way)])), default=0)
        passes, drafted, accepted = passes + 1, drafted + len(ways), accepted + stands
        grown = stands + 1
        done += grown
    return passes, drafted, accepted


def random_case(rng: random.Random, words: int) -> tuple[list[list[int]], list[int]]:
    """An output and 0 to 5 drafts: editions of it and of each other, and noise."""
    first, output = repetitive_pair(rng, words)
    drafts = [first, *(edited(rng, rng.choice([first, output])) for _ in range(4))]
    drafts = [draft if rng.random() < 0.9 else rng.choices(range(4, words), k=9) for draft in drafts]
    return [draft for draft in drafts if draft][: rng.randint(0, 5)], output


def test_passes_and_drafts_equal_the_twin() -> None:
    chosen = set()
    for seed in range(12):
        rng = random.Random(seed)
        words = spelled(rng, rng.randint(6, 40))
        cases = [random_case(rng, len(words)) for _ in range(60)]
        options = {"max_draft": rng.choice([0, 0, 1, 3, 10]), "nodes": rng.choice([256, 256, 0, 1, 20])}
        max_len = rng.choice([64, 64, 12])
        results = run(
            cases, words, max_len=max_len, strategy=make_strategy("verify", {"adaptive": False, **options})
        )
        for (drafts, output), result in zip(cases, results, strict=True):
            wanted = counts_by_hand(drafts, words, output, max_len=max_len, **options)
            assert (result.passes, result.drafted, result.accepted) == wanted, (words, drafts, output)
            chosen.add(len(drafts))
    assert chosen == set(range(6))


def test_a_single_draft_is_read_as_iad_reads_a_source() -> None:
    rng = random.Random(3)
    words = spelled(rng, 30)
    pairs = [repetitive_pair(rng, len(words)) for _ in range(100)]
    results = run([([draft] if draft else [], output) for draft, output in pairs], words)
    for pair, result in zip(pairs, results, strict=True):
        assert result.passes == passes_by_hand(pair, aligned_rule(words))[0]


# By hand: each pass copies up to the next difference and adds the verifier's own token there; eos is its own.
BY_HAND = [
    ("she goes home now .", "she goes home now .", 1),
    ("she go home now .", "she goes home now .", 2),  # goes replaces go
    ("he went school .", "he went to school .", 2),  # to, shorter than school, is put in
    ("she goes home .", "she goes home now .", 3),  # now is not shorter: the draft is at its end
    ("she goes to home now .", "she goes home now .", 2),  # to is left out: home occurs once
    ("she goes home", "she goes home now .", 3),  # ends too early: now, . and eos, each by the verifier
    ("she goes home now . oh no", "she goes home now .", 1),  # eos instead of oh
    ("", "she goes", 3),
    ("he he he he", "she goes", 3),
]


@pytest.mark.parametrize(("draft", "output", "passes"), BY_HAND)
def test_passes_by_hand(draft: str, output: str, passes: int) -> None:
    words: dict[str, int] = {}
    case = [ids(words, draft)], ids(words, output)
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *words]
    (result,) = run([case], vocabulary)
    assert result.passes == passes
    assert result.accepted == len(case[1]) + 1 - passes


# By hand: the drafts, the output, passes with each alone, with all, and with the best one at a time.
NBEST_BY_HAND = [
    (("a b c d", "a b c d"), "a b c d", (1, 1), 1, 1),
    # Up to x the first, from the verifier's c on the second, which alone is wrong at its beginning.
    (("a b x y", "q b c d e f"), "a b c d e f", (5, 2), 2, 2),
    # The second is right where the first is not; alone the best draft is left only when it falls.
    (("a X c d e Y g h", "a b c d e f g h"), "a b c d e f g h", (3, 1), 1, 2),
    # Neither knows c; the first goes on as after a substitution.
    (("a b x d e", "r s t"), "a b c d e", (2, 6), 2, 2),
    # Each is wrong once, and elsewhere: the second helps the first over its error, and the other way round.
    (("a b X d e f g h", "a b c d e f Y h"), "a b c d e f g h", (2, 2), 2, 3),
]


@pytest.mark.parametrize(("drafts", "output", "alone", "together", "best"), NBEST_BY_HAND)
def test_nbest_passes_by_hand(
    drafts: tuple[str, ...],
    output: str,
    alone: tuple[int, ...],
    together: int,
    best: int,
) -> None:
    words: dict[str, int] = {}
    given, said = [ids(words, draft) for draft in drafts], ids(words, output)
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *words]
    cases = [*(([draft], said) for draft in given), (given, said)]
    results = run(cases, vocabulary)
    assert tuple(result.passes for result in results[:-1]) == alone
    assert results[-1].passes == together <= min(alone)
    (result,) = run(
        [(given, said)], vocabulary, strategy=make_strategy("verify", {"adaptive": False, "nodes": 0})
    )
    assert result.passes == best


def test_more_drafts_save_passes() -> None:
    """Of each draft, and of all."""
    rng = random.Random(5)
    words = spelled(rng, 40)
    outputs = [repetitive_pair(rng, len(words))[1] for _ in range(150)]
    drafts = [[edited(rng, output) or [4] for _ in range(4)] for output in outputs]

    def passes(first: int, last: int) -> list[int]:
        cases = [(d[first:last], o) for d, o in zip(drafts, outputs, strict=True)]
        return [result.passes for result in run(cases, words)]

    sums = [sum(passes(0, n)) for n in (0, 1, 2, 4)]
    assert sorted(sums, reverse=True) == sums
    assert sums[3] < 0.6 * sums[1]
    best = map(min, zip(*(passes(i, i + 1) for i in range(4)), strict=True))
    assert all(a <= b for a, b in zip(passes(0, 4), best, strict=True))


def test_company_changes_no_draft() -> None:
    """Rows with other numbers of drafts and other lengths come and go: passes stay those of a row alone."""
    rng = random.Random(4)
    words = spelled(rng, 30)
    cases = [random_case(rng, len(words)) for _ in range(60)]

    def counts(batch_size: int) -> list[tuple[int, int, int]]:
        results = run(cases, words, batch_size=batch_size)
        return [(r.passes, r.drafted, r.accepted) for r in results]

    assert counts(1) == counts(2) == counts(8) == counts(60)


# The output is greedy search's


def table_mismatches(cases: int, **changes: Any) -> int:
    """How many sentences the strategy decodes otherwise than greedy search, with drafts of all kinds."""
    wrong = 0
    for seed in range(cases // 40):
        rng = random.Random(seed)
        size = 4 + rng.randint(2, 40)
        scorer = TablePasses(
            Table(
                size,
                seed=rng.getrandbits(60),
                spread=rng.choice([2, 8, 50]),
                bonus=rng.choice([0, 6, 40]),
            )
        )
        bare = []
        for i in range(40):
            source = (*rng.choices(range(size), k=rng.randint(0, 40)), EOS)
            prefix = tuple(rng.choices(range(3, size), k=rng.choice([0, 0, 3])))
            limit = rng.choice([1, 2, 3, 8, 40])
            bare.append(Request(i, source, limit, prefix[:limit]))
        wanted = plain_greedy(scorer.table, bare)
        requests = []
        for request, output in zip(bare, wanted, strict=True):
            kinds = [
                tuple(output),  # with eos
                tuple(output[:-1]),
                tuple(edited(rng, output[:-1] or [4])),
                tuple(rng.choices(range(size), k=rng.randint(1, 60))),
                (EOS,) * 3,
                (1,) * 50,
                tuple(rng.choices(range(-5, size + 5), k=9)),  # no words among them
                (2**40, -(2**40)),
                (),
            ]
            drafts = tuple(rng.sample(kinds, rng.randint(0, len(kinds))))
            requests.append(dataclasses.replace(request, drafts=drafts))
        strategy = make_strategy(
            "verify", {"max_draft": rng.choice([0, 0, 2]), "nodes": rng.choice([256, 9, 0])}
        )
        if changes:
            strategy = type("Wrong", (type(strategy),), changes)()
        found = decode(strategy, scorer, requests, batch_size=rng.choice([1, 2, 8]))
        wrong += len(differing(outputs_of(found), wanted))
    return wrong


def test_any_draft_leaves_greedys_output() -> None:
    assert table_mismatches(800) == 0


class Believes(ArgmaxAcceptance):
    """Known to be wrong: whatever is drafted first is accepted."""

    def verdict(self, row: Row, verified: Verified) -> Verdict:
        if not row.draft.tokens:
            return super().verdict(row, verified)
        return Verdict((0,), [row.draft.tokens[0], verified.words[row.begin + 1]], [0.0, 0.0])


def test_it_fails_where_drafts_are_believed() -> None:
    assert table_mismatches(80, acceptance=lambda _: Believes()) > 0


def test_drafts_change_no_word_of_a_network(device: torch.device) -> None:
    """Nor a log-probability by more than rounding."""
    for seed in range(3):
        rng = random.Random(seed)
        config = random_config(rng)
        scorer = TransformerReference(random_model(config, seed), vocabulary(config.tgt_vocab), device=device)
        requests = random_requests(rng, 16, len(scorer.vocab), limits=[1, 4, 12, 30])
        greedy = make_strategy("greedy", {})
        wanted = {r.index: r.hypotheses[0] for r in greedy.run(scorer, requests, batch_size=1)}
        given = []
        for request in requests:
            tokens = wanted[request.index].tokens
            near, noise = edited(rng, tokens), rng.choices(range(len(scorer.vocab)), k=20)
            drafts = rng.sample([tokens, tuple(near), tuple(noise)], rng.randint(1, 3))
            given.append(dataclasses.replace(request, drafts=tuple(drafts)))
        for batch_size in (1, 2, 8):
            results = list(
                make_strategy("verify", {"adaptive": False}).run(scorer, given, batch_size=batch_size)
            )
            assert sum(r.accepted for r in results) > 0
            for result in results:
                found, other = result.hypotheses[0], wanted[result.index]
                assert found.tokens == other.tokens
                assert found.positional_scores == pytest.approx(other.positional_scores, abs=1e-4)
        assert scorer.cells_in_use == 0


def test_without_drafts_it_is_greedy() -> None:
    rng = random.Random(0)
    scorer = TablePasses(Table(20, seed=1))
    requests = random_requests(rng, 20, 20, limits=[1, 9])
    greedy, found = (decode(make_strategy(name, {}), scorer, requests) for name in ("greedy", "verify"))
    assert [dataclasses.replace(r, seconds=0.0) for r in found] == [
        dataclasses.replace(r, seconds=0.0) for r in greedy
    ]


# Drafts as text


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Copies its source, with `goes` for `go`."""
    return str(tiny.corrector(tmp_path_factory.mktemp("corrector")))


LINES = ("she go to school yesterday .", "", "the big cat sees it .", "he go home !")
OUTPUTS = ("she goes to school yesterday .", "", "the big cat sees it .", "he goes home !")


def test_drafts_in_python(model: str) -> None:
    loaded = nartk.serving.loading.load(model)
    exact = loaded.run(LINES, "verify", {"adaptive": False}, drafts=OUTPUTS)
    assert [h[0].text for h in exact.hypotheses] == [*OUTPUTS]
    assert exact.stats.passes == 3  # one a sentence; the blank line takes none
    several = loaded.run(
        LINES, "verify", {"adaptive": False}, drafts=[["he he", output, "", output] for output in OUTPUTS]
    )
    assert [h[0].text for h in several.hypotheses] == [*OUTPUTS]
    assert several.stats.passes == 3  # as many
    assert [h.text for h in loaded.decode(LINES, "verify", drafts=[()] * 4)] == [*OUTPUTS]
    request = loaded.request(
        0,
        LINES[0],
        make_strategy("verify", {"adaptive": False, "max_len": 1}),
        drafts=["he " * 50, "she", "she", " ", "he " * 11],
    )
    he, she = loaded.checkpoint.target_vocab.ids(["he", "she"])
    assert request.drafts == ((he,), (she,))  # cut, and each once


def test_drafts_for_other_lines_are_refused(model: str) -> None:
    loaded = nartk.serving.loading.load(model)
    with pytest.raises(LengthMismatchError, match=r"E301 .* drafts for 3 lines, but there are 4\."):
        loaded.run(LINES, "verify", drafts=OUTPUTS[:3])
    with pytest.raises(UsageError, match=r"strategy 'iad' reads none\. Fix: choose from verify\."):
        loaded.run(LINES, "iad", drafts=OUTPUTS)


def read(data: bytes, form: str, fields: Fields) -> list[Record]:
    return list(read_records(io.BytesIO(data), "in", form, fields))


def test_readers_find_drafts() -> None:
    fields = Fields(column=2, draft_columns=(1, 3))
    (record,) = read(b"d one\tsource\td two\n", "tsv", fields)
    assert (record.text, record.drafts) == ("source", ("d one", "d two"))
    (short,) = read(b"d one\tsource\n", "tsv", fields)
    assert "2 columns, but column 3" in str(short.error)
    fields = Fields(draft_key="drafts")
    data = [{"text": "s", "drafts": ["a", ""]}, {"text": "s", "drafts": "a b"}, {"text": "s"}]
    found = read("\n".join(map(json.dumps, data)).encode(), "jsonl", fields)
    assert [record.drafts for record in found] == [("a", ""), ("a b",), ()]
    for drafts, message in (
        ("3", "'drafts' is '3', not a string"),
        ("[null]", "'drafts' is 'None', not a string"),
        (r'["a\u0000"]', "NUL"),
        (r'["\ud800"]', "half of a surrogate pair"),
    ):
        line = f'{{"text": "s", "drafts": {drafts}}}'.encode()
        (bad,) = read(line, "jsonl", fields)
        assert message in str(bad.error)
        (unread,) = read(line, "jsonl", Fields())  # a key like any other where drafts are not asked for
        assert (unread.error, unread.drafts) == (None, ())


# The command


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return str(path)


def written(folder: Path, data: bytes) -> str:
    path = folder / "drafts.txt"
    path.write_bytes(data)
    return str(path)


GOOD = "".join(f"{line}\n" for line in OUTPUTS).encode()


def give_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.mark.parametrize("extra", [[], ["--stream"], ["--batch-size", "1"], ["--max-tokens", "9"]])
def test_a_file_of_drafts(
    model: str, source: str, tmp_path: Path, extra: list[str], capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    drafts, stats = written(tmp_path, GOOD), tmp_path / "stats.json"
    args = [model, source, "--strategy", "verify", "--no-adaptive", "--drafts", drafts, "--stats", str(stats)]
    assert main([*args, "--assert-lossless", *extra]) == 0
    assert capsysbinary.readouterr().out == GOOD
    report = json.loads(stats.read_text())
    assert (report["passes"], report["sentences"], report["drafts"]) == (3, 3, drafts)
    assert report["accepted"] == report["drafted"] == sum(len(line.split()) for line in OUTPUTS)


@pytest.mark.parametrize(
    ("drafts", "passes"),
    [
        (b"\n\n\n\n", None),
        (b"she\tshe goes to school\n\n\t\the big\nhe goes home !\the goes home !\n", None),
        (b"qwx zxq\n \nshe she she she\n" + b"he " * 9_000 + b"\n", None),
        (b"she goes to school yesterday .\nx\nthe big cat sees it .\nhe goes home !", 3),  # no last line feed
        (GOOD.replace(b"\n", b"\r\n"), 3),
    ],
    ids=["empty", "several", "nonsense", "no line feed at the end", "carriage returns"],
)
def test_no_draft_changes_the_output(
    model: str,
    source: str,
    tmp_path: Path,
    drafts: bytes,
    passes: int | None,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    args = [model, source, "--strategy", "verify", "--no-adaptive", "--drafts", written(tmp_path, drafts)]
    assert main(args) == 0
    captured = capsysbinary.readouterr()
    assert captured.out == GOOD
    if passes is not None:
        assert f", {passes} passes, " in captured.err.decode()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"she goes\0to", "the line holds a NUL character"),
        (b"caf\xe9 goes", "byte 4 of the line, 0xe9, is not UTF-8"),
    ],
)
def test_an_unreadable_draft_is_told_of_and_left_out(
    model: str,
    source: str,
    tmp_path: Path,
    bad: bytes,
    message: str,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    path = written(tmp_path, GOOD.replace(OUTPUTS[2].encode(), bad))
    args = [model, source, "--strategy", "verify", "--no-adaptive", "--drafts", path]
    assert main(args) == 0
    captured = capsysbinary.readouterr()
    assert captured.out == GOOD
    assert (
        captured.err.decode().splitlines()[0]
        == f"nartk: {path}:3: {message}; its sentence is decoded without"
    )
    assert main([*args, "--quiet"]) == 0
    assert capsysbinary.readouterr() == (GOOD, b"")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["SOURCE", "--drafts", "nowhere.txt"], 2, r"E201 InputFile\] nowhere.txt: no such file"),
        (["SOURCE", "--drafts", "MODEL"], 2, r"E201 InputFile\] .*: a folder, not a file"),
        (
            ["SOURCE", "--drafts", "SHORT"],
            4,
            r"E301 LengthMismatch\] .* has 3 lines, but there are 4 sentences",
        ),
        (["SOURCE", "SOURCE", "--drafts", "GOOD"], 4, r"has 4 lines, but there are 8 sentences"),
        (["-", "--drafts", "GOOD"], 4, r"has 4 lines, but there are more than 4 sentences"),
        (["--drafts", "LONG"], 4, r"has more than 5 lines, but there are 5 sentences"),
        (["--drafts", "-"], 2, r"E101 Usage\] --drafts and the sentences are both stdin"),
        (
            ["SOURCE", "--drafts", "GOOD", "--strategy", "iad"],
            2,
            r"'iad' reads none\. Fix: choose from verify\.",
        ),
        (["SOURCE", "--draft-columns", "2", "--strategy", "greedy"], 2, r"'greedy' reads none"),
        (["SOURCE", "--draft-columns", "2,0"], 2, r"numbers from 1 on with commas between, but is '2,0'"),
    ],
)
def test_drafts_that_do_not_fit_are_refused_before_decoding(
    model: str,
    source: str,
    tmp_path: Path,
    args: list[str],
    code: int,
    message: str,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = {"MODEL": model, "SOURCE": source}
    for name, data in (("GOOD", GOOD), ("SHORT", b"\n" * 3), ("LONG", b"\n" * 6)):
        names[name] = str(tmp_path / f"{name}.txt")
        Path(names[name]).write_bytes(data)
    give_stdin(monkeypatch, b"he go\n" * 5)
    assert main([model, "--strategy", "verify", *(names.get(arg, arg) for arg in args)]) == code
    captured = capsysbinary.readouterr()
    assert captured.out == b""
    (line,) = captured.err.decode().splitlines()
    assert re.search(message, line), line


def test_drafts_come_from_stdin_columns_and_keys(
    model: str,
    source: str,
    tmp_path: Path,
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def passes(*args: str) -> int:
        assert main([model, *args, "--strategy", "verify", "--no-adaptive"]) == 0
        captured = capsysbinary.readouterr()
        assert captured.out == GOOD
        found = re.search(r", (\d+) passes", captured.err.decode())
        assert found is not None
        return int(found[1])

    give_stdin(monkeypatch, GOOD)
    assert passes(source, "--drafts", "-") == 3
    tsv, jsonl = tmp_path / "in.tsv", tmp_path / "in.jsonl"
    pairs = list(zip(LINES, OUTPUTS, strict=True))
    tsv.write_text("".join(f"{line}\t!\t{output}\n" for line, output in pairs))
    assert passes(str(tsv), "--draft-columns", "3") == 3
    assert passes(str(tsv), "--draft-columns", "3,2") == 3
    assert passes(str(tsv)) > 3
    jsonl.write_text("".join(json.dumps({"text": a, "drafts": ["!", a]}) + "\n" for a, _ in pairs))
    alone = passes(str(jsonl))
    assert alone > 3
    assert passes(str(jsonl), "--drafts", written(tmp_path, GOOD)) == 3  # both are read
    # Other strategies take no notice of a key.
    assert main([model, str(jsonl), "--quiet"]) == 0
    assert capsysbinary.readouterr().out == GOOD


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "nartk-decode MODEL in.txt --strategy verify --drafts drafts.txt" in out
    assert re.search(r"^  verify +Verifies drafts that are given with the sentences", out, re.MULTILINE)


def test_each_row_has_its_own_drafts() -> None:
    """A row of 1 draft beside one of 3: 9 comes for the first's 4, after which nothing is left; 8 is the
    second row's second draft's."""
    scorer = TablePasses(Table(11))
    drafter: Any = given_drafts(nodes=0)(scorer)
    drafts = [((4,),), ((5, 6, 7), (8, 9), (4, 4))]
    requests = [Request(i, (EOS,), 9, drafts=each) for i, each in enumerate(drafts)]
    states = drafter.start(requests, [0, 0])
    rows = [
        Row(request, (EOS,), memory=0, context=0, started=0.0, state=state)
        for request, state in zip(requests, states, strict=True)
    ]
    assert [draft.tokens for draft in drafter.draft(rows, [8, 8])] == [[4], [5, 6, 7]]
    for row, word in zip(rows, (9, 8), strict=True):
        row.tokens.append(word)
    assert [draft.tokens for draft in drafter.draft(rows, [7, 7])] == [[], [9]]
