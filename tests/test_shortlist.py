"""Lexical shortlists: lists as Marian's rule makes them, and outputs of the listed words alone.

The files are written here as Marian's source writes them (``src/data/shortlist.cpp``), from a table of
words, of which an oracle makes each list by sets.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.marian_models import EOS, UNK, model
from support.scripted_passes import EOS as TABLE_EOS
from support.scripted_passes import Table, TablePasses, decode, differing, outputs_of, random_request
from support.shortlists import Best, blob, hash_mem, random_best
from support.small_passes import Near, drafting
from support.tiny import SENTENCES

import nartk
from nartk.architectures import architecture
from nartk.checkpoints.checkpoint import read_config
from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.decode import main as decode_command
from nartk.cli.verify import main as verify_command
from nartk.decoders.loop.shortlist import ShortlistFile, open_shortlist
from nartk.engine import available
from nartk.errors import (
    InputFileError,
    InputFormatError,
    NartkError,
    PassError,
    UsageError,
    VocabMismatchError,
)
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import Pass, Ragged, Want
from nartk.protocols.reading import read
from nartk.registry import make_strategy
from nartk.serving.scorers import load_network, words_of
from nartk.vocab import Vocab

needs_engine = pytest.mark.skipif(not available(), reason="there is no engine here")


def listed(source: Sequence[int], best: Best, first: int, count: int, *, shared: bool) -> list[int]:
    """`generate` for a batch of one source, of `count` target words."""
    found = {*range(min(first, count))} | {word for each in source for word in best.get(each, ())}
    if shared:
        found |= {*source}
    for word in range(first, count):
        if len(found) % 8:
            found.add(word)
    return sorted(found)


def vocab(words: int, name: str = "w") -> Vocab:
    return Vocab(
        ("</s>", "<unk>", *(f"{name}{i}" for i in range(words - 3)), "<pad>"), words - 1, words - 1, 0, 1
    )


@pytest.mark.parametrize("shared", [True, False])
def test_lists_are_marians(shared: bool, tmp_path: Path) -> None:
    rng, path, sizes = random.Random(0), tmp_path / "lex.bin", set()
    for _ in range(60):
        count = rng.randint(20, 70)
        best, first = random_best(rng, count, count), rng.choice([0, 3, 8, 11, count, count + 9])
        path.write_bytes(blob(best, count, first))
        source, target = vocab(count + 1), vocab(count + 1, "w" if shared else "v")
        lists = open_shortlist(ShortlistFile(str(path)), source, target)
        for _ in range(5):
            words = [*rng.choices(range(2, count), k=rng.randint(0, 6)), 0]
            wanted = listed(words, best, first, count, shared=shared)
            assert lists.of(words).tolist() == wanted
            also = rng.sample(range(count), 2)
            assert lists.of(words, also).tolist() == sorted({*wanted, *also})
            sizes.add(len(wanted))
    assert len(sizes) > 3


def test_tables_are_pruned_as_marian_does(tmp_path: Path) -> None:
    """Words with the highest probabilities; of equal ones the highest id; of a pair the last line."""
    rng, path = random.Random(1), tmp_path / "lex.s2t"
    for _ in range(30):
        source, target = vocab(31), vocab(41, "v")
        lines, probs = [], dict[int, dict[int, float]]()
        for _ in range(300):
            of, to, prob = rng.randrange(30), rng.randrange(40), rng.choice([0.0, 0.1, 0.25, 0.5, 0.75])
            names = [target.words[to], source.words[of]]
            if rng.random() < 0.1:
                names[rng.randrange(2)] = "NULL"
            elif rng.random() < 0.1:
                names, to, of = ["nobody", names[1]], UNK, of
                probs.setdefault(of, {})[UNK] = prob
            else:
                probs.setdefault(of, {})[to] = prob
            lines.append(f"{names[0]} {names[1]} {prob}\n")
        path.write_text("".join(lines))
        most, first = rng.choice([1, 3, 9]), rng.choice([2, 8])
        best = {
            word: [id for p, id in sorted(((p, id) for id, p in of.items()), reverse=True)[:most] if p > 0]
            for word, of in probs.items()
        }
        lists = open_shortlist(ShortlistFile(str(path), first, most), source, target)
        for words in ([0], [5, 9, 0], [*range(2, 12), 0]):
            assert lists.of(words).tolist() == listed(words, best, first, 40, shared=False)


def table_greedy(table: Table, request: Any, words: Sequence[int]) -> list[int]:
    """Greedy search over listed words, in plain Python."""
    output: list[int] = []
    while len(output) < request.max_len and output[-1:] != [TABLE_EOS]:
        scores = table.scores_by_hand(request.source, [TABLE_EOS, *output])
        best = max(words, key=lambda word: (scores[word], -word))
        output.append(request.prefix[len(output)] if len(output) < len(request.prefix) else best)
    return output


def mismatches(name: str, path: Path, *, forget: bool = False) -> int:
    """How many outputs differ from greedy search's over the lists."""
    wrong = 0
    for seed in range(12):
        rng = random.Random(seed)
        scorer = TablePasses(Table(rng.randint(16, 40), seed=seed, spread=rng.choice([3, 8])))
        count = scorer.table.words
        best, first = random_best(rng, count, count), rng.choice([3, 8])
        path.write_bytes(blob(best, count, first))
        requests = [random_request(rng, i, count, 12) for i in range(8)]
        flags: dict[str, Any] = {} if forget else {"shortlist": str(path)}
        if name == "speculative":
            strategy = drafting(name, Near(scorer, seed=seed, noise=0.2), **flags)
        else:
            strategy = make_strategy(name, flags)
        if name == "verify":
            requests = [replace(each, drafts=(each.source[:-1],)) for each in requests]
        found = decode(strategy, scorer, requests, batch_size=rng.choice([1, 3, 8]))
        wanted = []
        for each in requests:
            words = {*listed(each.source, best, first, count, shared=True), TABLE_EOS, *each.prefix}
            wanted.append(table_greedy(scorer.table, each, sorted(words)))
        wrong += len(differing(outputs_of(found), wanted))
        path.unlink()
    return wrong


@pytest.mark.parametrize("name", ["greedy", "iad", "verify", "ngram", "recycling", "union", "speculative"])
def test_lossless_strategies_equal_greedy_over_the_lists(name: str, tmp_path: Path) -> None:
    assert mismatches(name, tmp_path / "lex.bin") == 0


def test_forced_words_and_ends_are_listed(tmp_path: Path) -> None:
    """Else a forced word had a probability of 0, and no output would end."""
    path, scorer = tmp_path / "lex.bin", TablePasses(Table(40, seed=1))
    path.write_bytes(blob({5: range(9, 17)}, 40, 0))
    strategy = make_strategy("greedy", {"shortlist": str(path), "forced_bos": 20})
    request = Request(0, (5,), 30)
    plain = decode(strategy, scorer, [request], batch_size=1)[0].hypotheses[0]
    strategy = replace(strategy, forced_bos=-1)
    forced = decode(strategy, scorer, [replace(request, prefix=(20, 33))], batch_size=1)[0].hypotheses[0]
    assert plain.tokens[0] == 20
    assert forced.tokens[:2] == (20, 33)
    assert np.isfinite(forced.positional_scores).all()
    for found, also in ((plain, {20}), (forced, {20, 33})):
        assert found.tokens[-1] == TABLE_EOS
        assert {*found.tokens} <= {*listed((5,), {5: range(9, 17)}, 0, 40, shared=True), TABLE_EOS, *also}


def test_a_forgotten_shortlist_is_noticed(tmp_path: Path) -> None:
    assert mismatches("greedy", tmp_path / "lex.bin", forget=True) > 0


# Models of Marian's --------------------------------------------------------------------------------------


class Lexicon:
    """A random model, its twin, and a shortlist beside it."""

    def __init__(self, folder: Path, *, two: bool = False) -> None:
        changed = {"two": True, "tied_embeddings_all": "false"} if two else {}
        self.folder, self.twin = model(folder, 2, form="int8", **changed)
        self.checkpoint = load_checkpoint(self.folder)
        self.sources = [self.checkpoint.text.read(line, longest=100).tokens for line in SENTENCES]
        self.counts = [
            sum(not word.startswith("<unused_") for word in each.words) - 1
            for each in (self.checkpoint.text.vocab, self.checkpoint.output.vocab)
        ]
        self.best = random_best(random.Random(0), *self.counts)
        self.path = folder / "lex.50.50.xxyy.s2t.bin"
        self.path.write_bytes(blob(self.best, self.counts[0], 5))
        self.lists = [listed(each, self.best, 5, self.counts[1], shared=not two) for each in self.sources]

    def greedy(
        self, source: Sequence[int], words: Sequence[int], longest: int
    ) -> tuple[list[int], list[float]]:
        """The twin's output of listed words, and their log-probabilities among these."""
        output, found, others = [], [], np.ones(self.counts[1], bool)
        others[[*words]] = False
        while len(output) < longest and output[-1:] != [EOS]:
            last = self.twin.log_probs(source, output)[-1][: self.counts[1]]
            last[others] = -np.inf
            last -= np.log(np.exp(last).sum())
            word = int(np.where(np.arange(len(last)) == UNK, -np.inf, last).argmax())
            output.append(word)
            found.append(float(last[word]))
        return output, found


@pytest.fixture(scope="module", params=[False, True], ids=["one vocabulary", "two"])
def lexicon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lexicon:
    return Lexicon(tmp_path_factory.mktemp("lexicon") / "model", two=request.param)


def test_outputs_are_the_twins_over_the_lists(lexicon: Lexicon, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [lexicon.greedy(*each, 12) for each in zip(lexicon.sources, lexicon.lists, strict=True)]
    freely = [lexicon.greedy(each, range(lexicon.counts[1]), 12)[0] for each in lexicon.sources]
    assert sum(one != other for (one, _), other in zip(wanted, freely, strict=True)) > len(wanted) / 2
    for left_out in ("1", "0") if available() else ("1",):
        monkeypatch.setenv("NARTK_NO_ENGINE", left_out)
        served = nartk.load(lexicon.folder)
        found = served.decode([*SENTENCES], "greedy", max_len=12, batch_size=3, shortlist=str(lexicon.path))
        assert [[*each.tokens] for each in found] == [output for output, _ in wanted]
        for each, (_, log_probs) in zip(found, wanted, strict=True):
            np.testing.assert_allclose(each.positional_scores, log_probs, rtol=2e-3, atol=2e-3)


@needs_engine
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_every_strategy_is_exact_against_its_own_greedy_search(dtype: str, lexicon: Lexicon) -> None:
    served = nartk.load(lexicon.folder, dtype=dtype, threads=1)
    options: dict[str, Any] = {"max_len": 20, "shortlist": str(lexicon.path)}
    lines = [*SENTENCES, "goes home"]

    def outputs(strategy: str, size: int, **more: Any) -> list[tuple[Any, ...]]:
        found = served.decode(lines, strategy, batch_size=size, **options, **more)
        return [(each.tokens, each.positional_scores) for each in found]

    alone = outputs("greedy", 1)
    assert outputs("greedy", 5) == alone
    for strategy in ("iad", "ngram", "recycling", "union"):
        assert outputs(strategy, 4, adaptive=False) == alone, strategy
    assert nartk.load(lexicon.folder, dtype=dtype, threads=2).decode(lines, "greedy", batch_size=3, **options)
    for strategy, more in (
        ("beam", {"beam_size": 3}),
        ("beam", {"beam_size": 3, "draft": "source"}),
        ("sample", {"seed": 3, "temperature": 2.0}),
        ("greedy", {"repetition_penalty": 1.3, "no_repeat_ngram": 2, "min_len": 4}),
    ):
        one, other = (outputs(strategy, size, **more) for size in (1, 5))
        assert one == other, strategy
        for (tokens, _), words in zip(one, lexicon.lists, strict=False):
            assert {*tokens} <= {*words}, strategy
    assert outputs("beam", 3, beam_size=3) == outputs("beam", 2, beam_size=3, draft="source")


def pass_of(scorer: Any, source: Sequence[int], tokens: Sequence[int]) -> Callable[[Want], Any]:
    """Runs a pass over tokens; the context is anew each time."""
    (memory,) = scorer.encode([source])

    def run(want: Want) -> Any:
        (context,) = scorer.open(1)
        n = len(tokens)
        columns = (tokens, range(n), [memory] * n, [context] * n, range(-1, n - 1))
        return scorer.run(Pass(*(np.array([*each], np.int32) for each in columns)), want)

    return run


@needs_engine
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"])
def test_listed_layers_compute_the_same_logits_bit_for_bit(dtype: str, lexicon: Lexicon) -> None:
    """A list of all words gives what no list does; margins of two words are differences of their logits."""
    config, words = read_config(lexicon.checkpoint), words_of(lexicon.checkpoint)
    target, tensors = lexicon.checkpoint.target_vocab, lexicon.checkpoint.tensors
    scorer = architecture("transformer").engine(config, tensors, target, type=dtype, threads=1, **words)
    count, rng = len(scorer.vocab), np.random.default_rng(0)
    run = pass_of(scorer, lexicon.sources[0], [scorer.start_token, 5, 9, 7, 12])
    plain = run(Want(top=5, margin=True))
    logits = plain.rows(range(5))
    every = run(Want(top=5, margin=True, words=Ragged.of([[*range(count)]] * 5)))
    for name in ("best", "log_probs", "top", "top_log_probs", "margins"):
        np.testing.assert_array_equal(getattr(every, name), getattr(plain, name))
    for _ in range(40):
        lists = [sorted(rng.choice(count, rng.integers(1, 40), replace=False).tolist()) for _ in range(5)]
        lists[rng.integers(5)] = []
        lists[1] = lists[0]
        banned = [[each[rng.integers(len(each))]] if len(each) > 1 else [] for each in lists]
        want = Want(
            words=Ragged.of(lists),
            banned=Ragged.of(banned),
            top=7,
            margin=True,
            given=rng.integers(0, count, 5).astype(np.int32),
        )
        found, wanted = run(want), read(logits, want)
        for name in ("best", "top", "margins"):
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), name)
        for name in ("log_probs", "top_log_probs", "given_log_probs"):
            np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), rtol=1e-5, atol=1e-5)
        for row, each, logit in zip(found.rows(range(5)), lists, logits, strict=True):
            left = [*each] or [*range(count)]
            np.testing.assert_array_equal(row[left], logit[left])
            assert np.isneginf(np.delete(row, left)).all()


WRONG: dict[str, Ragged] = {
    "too few lists": Ragged.of([[3]]),
    "no word": Ragged.of([[3], [4, 1000], [5]]),
    "below 0": Ragged.of([[3], [-1, 4], [5]]),
    "falling": Ragged.of([[3], [9, 4], [5]]),
    "twice": Ragged.of([[3, 3], [4], [5]]),
    "offsets that fall": Ragged(np.array([0, 2, 1, 3], np.int32), np.array([3, 4, 5], np.int32)),
    "offsets too short": Ragged(np.array([0, 1, 2, 2], np.int32), np.array([3, 4, 5], np.int32)),
}


@pytest.mark.parametrize("kind", WRONG)
def test_lists_that_are_none_are_refused(kind: str, lexicon: Lexicon) -> None:
    found, checkpoint = architecture("transformer"), lexicon.checkpoint
    words, target = words_of(checkpoint), checkpoint.target_vocab
    scorers = [found.scorer(model=load_network(checkpoint), vocab=target, **words)]
    if available():
        scorers.append(found.engine(read_config(checkpoint), checkpoint.tensors, target, threads=1, **words))
    for scorer in scorers:
        run = pass_of(scorer, lexicon.sources[0], [scorer.start_token, 5, 9])
        with pytest.raises(PassError):
            run(Want(words=WRONG[kind]))
        with pytest.raises(PassError, match="all words are forbidden"):
            run(Want(words=Ragged.of([[3], [4, 5], []]), banned=Ragged.of([[], [4, 5], []])))
        scores = run(Want(words=Ragged.of([[3], [], [7]])))
        assert scores.best[[0, 2]].tolist() == [3, 7]
        left = [np.flatnonzero(np.isfinite(row)).tolist() for row in scores.rows([2, 0])]
        assert left == [[7], [3]]
        assert np.isfinite(scores.rows([1])).all()


# Files that are wrong, and commands --------------------------------------------------------------------


def good() -> bytes:
    return blob(random_best(random.Random(3), 30, 30), 30, 5)


def header(at: int, value: int) -> bytes:
    """A good file one number of whose header lies, with the checksum of what it holds."""
    raw = bytearray(good())
    raw[8 * at : 8 * at + 8] = struct.pack("<Q", value)
    if at > 1:
        raw[8:16] = struct.pack("<Q", hash_mem(bytes(raw[16:])))
    return bytes(raw)


def changed(offset: int, value: bytes) -> bytes:
    """A good file with other numbers behind its header, and their checksum."""
    raw = bytearray(good())
    raw[offset : offset + len(value)] = value
    raw[8:16] = struct.pack("<Q", hash_mem(bytes(raw[16:])))
    return bytes(raw)


DAMAGED: dict[str, tuple[bytes, type[NartkError], str]] = {
    "nothing": (b"", InputFileError, "no pair of words"),
    "zeros": (b"\0" * 4096, InputFileError, "is no shortlist"),
    "checksum": (header(1, 5), InputFileError, "checksum"),
    "a list changed": (good()[:300] + b"\3" + good()[301:], InputFileError, "checksum"),
    "more offsets": (header(4, 1 << 20), InputFileError, "header tells of"),
    "huge offsets": (header(4, (1 << 64) - 1), InputFileError, "header tells of"),
    "huge lists": (header(5, 1 << 62), InputFileError, "header tells of"),
    "offsets that fall": (
        changed(48 + 8 * 3, struct.pack("<Q", 1 << 40)),
        InputFileError,
        "one after the other",
    ),
    "first offset": (changed(48, struct.pack("<Q", 1)), InputFileError, "one after the other"),
    "longer": (good() + b"\0", InputFileError, "header tells of"),
    "another model's sources": (blob({}, 32, 5), VocabMismatchError, "has 32 source words, the model 30"),
    "fewer sources": (blob({}, 29, 5), VocabMismatchError, "has 29 source words, the model 30"),
    "another model's targets": (blob({3: [30]}, 30, 5), VocabMismatchError, "names target word 30"),
    "a huge word": (blob({3: [(1 << 32) - 1]}, 30, 5), VocabMismatchError, "names target word 4294967295"),
    "two fields": (b"w1 w2 0.5\nw1 w2\n", InputFormatError, "TARGET SOURCE PROBABILITY"),
    "no number": (b"w1 w2 many\n", InputFormatError, "found 'w1 w2 many'"),
    "NaN": (b"w1 w2 nan\n", InputFormatError, "TARGET SOURCE PROBABILITY"),
    "no text": (b"w1 w2 0.5\n\xff\xfe w1 0.5\n", InputFormatError, "TARGET SOURCE PROBABILITY"),
    "other words": (b"huis house 0.9\nboom tree 0.8\n", VocabMismatchError, "none of the model's words"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_files_are_named(kind: str, tmp_path: Path) -> None:
    raw, error, message = DAMAGED[kind]
    path, words = tmp_path / "lex", vocab(31)
    path.write_bytes(raw)
    began = time.perf_counter()
    with pytest.raises(error, match=message) as refused:
        open_shortlist(ShortlistFile(str(path)), words, words)
    assert time.perf_counter() - began < 1
    assert str(path) in str(refused.value)


def test_what_is_cut_off_anywhere_is_named(tmp_path: Path) -> None:
    raw, path, words = good(), tmp_path / "lex", vocab(31)
    path.write_bytes(raw)
    assert open_shortlist(ShortlistFile(str(path)), words, words).first == 5
    for size in {*np.linspace(0, len(raw) - 1, 40).astype(int).tolist(), 7, 8, 9, 47, 48}:
        path.write_bytes(raw[:size])
        with pytest.raises(NartkError):
            open_shortlist(ShortlistFile(str(path)), words, words)


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path, words = tmp_path / "lex.bin", vocab(31)
    path.write_bytes(good())
    with pytest.raises(UsageError, match="shortlist_first is given, but"):
        open_shortlist(ShortlistFile(str(path), first=50), words, words)
    with pytest.raises(UsageError, match="shortlist_best is 5, but there is no shortlist"):
        make_strategy("greedy", {"shortlist_best": 5}).constraints(words)
    with pytest.raises(InputFileError, match="cannot read the shortlist: No such file"):
        open_shortlist(ShortlistFile(str(tmp_path / "none")), words, words)


def test_commands_take_a_shortlist(
    lexicon: Lexicon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "in.txt"
    text.write_text("".join(f"{line}\n" for line in SENTENCES))
    flags = [str(lexicon.folder), str(text), "--shortlist", str(lexicon.path), "--max-len", "12"]
    assert decode_command([*flags, "--strategy", "greedy"]) == 0
    wanted = [
        lexicon.checkpoint.output.decode([word for word in lexicon.greedy(*each, 12)[0] if word != EOS])
        for each in zip(lexicon.sources, lexicon.lists, strict=True)
    ]
    assert capsys.readouterr().out.splitlines() == wanted
    assert verify_command([*flags, "--strategy", "iad"]) == 0
    assert f"shortlist:{lexicon.path}" in capsys.readouterr().out
    path = tmp_path / "other.bin"
    path.write_bytes(good())
    assert decode_command([*flags[:3], str(path)]) != 0
    assert "source words, the model" in capsys.readouterr().err
