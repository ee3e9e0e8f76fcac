"""`nartk-bench --drafter-report`: accepted tokens, counted by hand; bounds against the best transport, in
exact fractions; the command with each family of drafters.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import defaultdict, deque
from collections.abc import Hashable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny
from support.light_drafters import write_drafter
from support.parallel_drafters import write_network
from support.real_passes import RealPasses
from support.scripted_passes import EOS, ScriptPasses
from support.small_passes import Near, drafting

import nartk
from nartk.bench import drafters
from nartk.bench.drafters import accepted_shares, accepted_tokens, memory_bound_speedup, optimal_acceptance
from nartk.cli.bench import main
from nartk.decoders.greedy import Greedy
from nartk.decoders.loop.drafter import Draft, PlainDrafter
from nartk.protocols.hypothesis import Request

WORDS = tiny.WORDS.split()
LINES = ["she go to school", "the big old house", "cat sees the house and it", "he goes home every day !"]


def largest_flow(
    edges: dict[tuple[Hashable, Hashable], Fraction], start: Hashable, end: Hashable
) -> Fraction:
    """By shortest augmenting paths (Edmonds and Karp 1972), in exact fractions."""
    room: dict[Hashable, dict[Hashable, Fraction]] = defaultdict(lambda: defaultdict(Fraction))
    for (tail, head), capacity in edges.items():
        room[tail][head] += capacity
    total = Fraction(0)
    while True:
        before: dict[Hashable, Hashable] = {start: start}
        queue = deque([start])
        while queue and end not in before:
            node = queue.popleft()
            for head, left in list(room[node].items()):
                if left > 0 and head not in before:
                    before[head] = node
                    queue.append(head)
        if end not in before:
            return total
        path, node = [], end
        while node != start:
            path.append((before[node], node))
            node = before[node]
        pushed = min(room[tail][head] for tail, head in path)
        for tail, head in path:
            room[tail][head] -= pushed
            room[head][tail] += pushed
        total += pushed


def by_transport(p: Sequence[Fraction], q: Sequence[Fraction], drafts: int) -> Fraction:
    """The largest share of outputs that are one of the drafts: all draws of drafts, moved to words."""
    sets: dict[frozenset[int], Fraction] = defaultdict(Fraction)
    for draws in itertools.product(range(len(q)), repeat=drafts):
        sets[frozenset(draws)] += math.prod((q[word] for word in draws), start=Fraction(1))
    edges: dict[tuple[Hashable, Hashable], Fraction] = {}
    for drawn, share in sets.items():
        edges["start", drawn] = share
        edges |= {(drawn, word): Fraction(1) for word in drawn}
    edges |= {(word, "end"): share for word, share in enumerate(p)}
    return largest_flow(edges, "start", "end")


def random_distribution(rng: random.Random, words: int) -> list[Fraction]:
    """Of one or several likely words; some are never drawn."""
    weights = [rng.choice([0, 1, 1, rng.randint(1, 9), rng.randint(50, 99)]) for _ in range(words)]
    weights[rng.randrange(words)] += 1
    return [Fraction(weight, sum(weights)) for weight in weights]


def random_cases(count: int) -> list[tuple[list[Fraction], list[Fraction], int]]:
    rng = random.Random(7)
    sizes = [(rng.randint(2, 6), rng.randint(1, 3)) for _ in range(count)]
    return [(random_distribution(rng, v), random_distribution(rng, v), k) for v, k in sizes]


def as_floats(distribution: Sequence[Fraction]) -> np.ndarray:
    return np.array([float(share) for share in distribution])


def test_the_bound_is_the_best_transport() -> None:
    for p, q, drafts in random_cases(150):
        found = optimal_acceptance(as_floats(p), as_floats(q), drafts)
        assert abs(found - float(by_transport(p, q, drafts))) < 1e-12


def test_words_up_to_another_ratio_bound_less_tightly() -> None:
    """The set of words below 0.7 of the ratio at which the best one ends gives a looser bound."""
    looser = 0
    for p, q, drafts in random_cases(150):
        ratios = [x / y if y else math.inf for x, y in zip(p, q, strict=True)]

        def bound(most: Any, p: Any = p, q: Any = q, drafts: int = drafts, ratios: Any = ratios) -> Fraction:
            chosen = [i for i, ratio in enumerate(ratios) if ratio <= most]
            return 1 + sum(p[i] for i in chosen) - sum(q[i] for i in chosen) ** drafts

        best = min(ratios, key=bound)
        exact = by_transport(p, q, drafts)
        assert min(bound(best), 1) == exact
        looser += bound(Fraction(7, 10) * best) > exact if best < math.inf else 0
    assert looser > 75


def test_of_one_draft_it_is_what_rejection_sampling_accepts() -> None:
    for p, q, _ in random_cases(150):
        wanted = sum(map(min, p, q))
        assert abs(optimal_acceptance(as_floats(p), as_floats(q), 1) - float(wanted)) < 1e-12


A, B, C, D, E = range(4, 9)


def test_accepted_tokens_counted_by_hand() -> None:
    """Drafts of 3 tokens.

    Of the first sentence A B are accepted and D is not; the drafter, off its script, is then wrong with each
    of three drafts. The second one's whole output is accepted, with eos. The third one's first draft is, and
    the word behind it is the model's own, then eos.
    """
    outputs = {(A,): [A, B, C, D, E, EOS], (B,): [A, B, EOS], (C,): [A, B, C, D, EOS]}
    verifier, drafter = ScriptPasses(9, outputs), ScriptPasses(9, outputs | {(A,): [A, B, D, E, EOS]})
    requests = [Request(i, source, 20) for i, source in enumerate(outputs)]
    strategy = drafting("speculative", drafter, block_size=3, adaptive=False)
    counts, stats = accepted_tokens(strategy, verifier, requests)
    assert counts.tried == {1: 4 + 1 + 2, 2: 1 + 1 + 1, 3: 1 + 1 + 1}
    assert counts.accepted == {1: 1 + 1 + 2, 2: 1 + 1 + 1, 3: 0 + 1 + 1}
    assert (stats.tokens, stats.passes) == (6 + 3 + 5, 4 + 1 + 2)
    assert verifier.in_use == drafter.in_use == (0, 0)


def test_behind_an_accepted_end_no_token_counts() -> None:
    class Beyond(PlainDrafter):
        def propose(self, row: Any, budget: int) -> Draft:
            return Draft([A, EOS, B, C])

    class Drafting(Greedy):
        def make_drafter(self, scorer: Any) -> Beyond:
            return Beyond()

    counts, stats = accepted_tokens(Drafting(), ScriptPasses(9, {(A,): [A, EOS]}), [Request(0, (A,), 20)])
    assert counts.tried == counts.accepted == {1: 1, 2: 1}
    assert (stats.tokens, stats.passes) == (2, 1)


def softmax(logits: Sequence[float]) -> np.ndarray:
    weights = np.exp(np.array(logits) - max(logits))
    return weights / weights.sum()


def test_shares_are_of_all_positions_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each position is scored again in plain Python, behind what was output so far."""
    verifier = RealPasses(9, seed=3)
    drafter = Near(verifier, seed=4, noise=0.3)
    requests = [Request(i, (4 + i % 5, 5), 6) for i in range(12)]
    ended: list[Any] = []
    summarize = drafters.summarize
    monkeypatch.setattr(drafters, "summarize", lambda *given: (ended.extend(given[0]), summarize(*given))[1])
    strategy = drafting("speculative", drafter, block_size=1, temperature=1.0)
    found = accepted_shares(strategy, verifier, requests)
    outputs = {result.index: result.hypotheses[0].tokens for result in ended}
    assert len({*outputs.values()}) > 6
    wanted = []
    for request in requests:
        for i in range(min(len(outputs[request.index]), request.max_len - 1)):
            before = outputs[request.index][:i]
            p, q = (softmax(each.logits(request.source, before)) for each in (verifier, drafter))
            exact = [[Fraction(float(x)) for x in each] for each in (p, q)]
            exact = [[x / sum(each) for x in each] for each in exact]
            every = [chosen for size in range(10) for chosen in itertools.combinations(range(9), size)]
            bounds = [
                min(
                    1 + sum(exact[0][i] for i in each) - sum(exact[1][i] for i in each) ** k for each in every
                )
                for k in (1, 2, 3)
            ]
            wanted.append([np.minimum(p, q).sum(), *map(float, bounds)])
    assert len(found) == len(wanted) > 20
    assert np.allclose(sorted(found), sorted(wanted), atol=1e-6)


def test_memory_bound_speedups_by_hand() -> None:
    assert memory_bound_speedup(3.0, 0.25, 4) == 1.5
    assert memory_bound_speedup(2.5, 0.5, 1) == pytest.approx(5 / 3, abs=1e-15)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("drafters")
    tiny.random_model(root / "model", words=WORDS, layers=3, seed=7)
    tiny.random_model(root / "small", words=WORDS, seed=7)
    write_drafter(root / "light", root / "model")
    for kind in ("blockwise", "ctc"):
        write_network(root / kind, kind, WORDS, 5)
    (root / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    return root


def report(folders: Path, *flags: str) -> int:
    files = [str(folders / "model"), str(folders / "in.txt"), "--drafter-report", "--pretokenized"]
    return main([*files, "--threads", "1", "--max-len", "12", *flags])


@pytest.mark.parametrize("drafter", ["small", "light", "blockwise", "ctc", "model"])
def test_each_family_of_drafters(drafter: str, folders: Path, tmp_path: Path) -> None:
    """The model that drafts for itself is always right."""
    out, page = tmp_path / "out.json", tmp_path / "page.md"
    flags = [
        "--drafter",
        str(folders / drafter),
        "--max-draft",
        "3",
        "--json",
        str(out),
        "--markdown",
        str(page),
    ]
    assert report(folders, *flags) == 0
    (found,) = json.loads(out.read_text())["drafters"]
    gives_tokens = drafter in ("small", "light", "model")
    assert found["strategy"] == ("speculative" if gives_tokens else "gad")
    model = nartk.load(folders / "model", threads=1, pretokenized=True)
    for each in found["lengths"]:
        options = {"drafter": str(folders / drafter), "block_size": each["longest"], "max_len": 12}
        stats = model.run(LINES, found["strategy"], {**options, "adaptive": False}).stats
        tokens = stats.tokens / stats.passes
        assert each["tokens_per_pass"] == tokens
        steps = each["longest"] if gives_tokens else 1
        assert each["memory_bound_speedup"] == pytest.approx(tokens / (1 + found["cost"] * steps), abs=1e-12)
    assert sum(each["accepted"] for each in found["lengths"]) == stats.accepted
    assert (found["sampling"] is None) == (not gives_tokens)
    text = page.read_text()
    assert f"| {folders / drafter} | fp32 | 3 |" in text
    assert ("rejection sampling" in text) == gives_tokens
    signed = [found["signature"], *([found["sampling"]["signature"]] if gives_tokens else [])]
    assert text.split("Signatures:\n")[1] == "".join(f"- `{each}`\n" for each in signed)
    if gives_tokens:
        shares = [found["sampling"]["rejection_sampling"], *found["sampling"]["bounds"].values()]
        assert shares[0] == pytest.approx(shares[1], abs=1e-9)
        assert 0 < shares[1] <= shares[2] <= shares[3] <= 1 + 1e-9
    if drafter == "model":
        assert found["cost"] == 1
        assert all(each["accepted"] == each["tried"] for each in found["lengths"])
        assert shares == pytest.approx([1] * 4, abs=1e-9)


def test_the_drafter_of_the_models_own_folder(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny.random_model(tmp_path / "model", words=WORDS, layers=3, seed=7)
    command = [str(model), str(folders / "in.txt"), "--drafter-report", "--pretokenized", "--threads", "1"]
    assert main(command) == 2
    assert "has no drafter in its folder, and --drafter names none. Fix: name one" in capsys.readouterr().err
    write_drafter(model / "drafter", model)
    assert main([*command, "--dtype", "fp32,int8", "--max-draft", "1"]) == 0
    rows = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith(f"| {model / 'drafter'} ")
    ]
    assert [row.split(" | ")[1] for row in rows] == ["fp32", "int8"] * 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--strategies", "iad"], "--drafter-report with --strategies: it measures drafts alone"),
        (["--rounds", "3"], "--drafter-report with --rounds: it measures drafts alone"),
        (["--tune"], "--tune with --drafter: it measures passes of MODEL alone"),
        (["--max-draft", "0"], "--max-draft is 0"),
        (["--threads", "1,2"], "--threads 1,2: no figure depends on it"),
        (["--dtype", "fp32,fp7"], "--dtype is 'fp32,fp7'"),
    ],
)
def test_what_it_does_not_heed_is_refused(
    flags: list[str], message: str, folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(folders, "--drafter", str(folders / "small"), *flags) == 2
    assert message in capsys.readouterr().err


def test_forced_beginnings_are_refused(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = folders / "in.jsonl"
    lines.write_text('{"source": "she go", "prefix": "she"}\n')
    flags = ["--drafter-report", "--drafter", str(folders / "small"), "--pretokenized"]
    assert main([str(folders / "model"), str(lines), *flags]) == 2
    assert "the sentences have prefixes, which are no drafter's" in capsys.readouterr().err


def test_lengths_of_drafts_are_the_reports_alone(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folders / "model"), str(folders / "in.txt"), "--max-draft", "3"]) == 2
    assert "--max-draft without --drafter-report" in capsys.readouterr().err
