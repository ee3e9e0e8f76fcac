"""Text of fairseq's models on tokens of Moses and subwords, as fairseq's own encoders split and join it."""

from __future__ import annotations

import io
import json
import random
import re
import sys
import warnings
from argparse import Namespace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from support import fairseq_host
from support.commands import own
from support.hugging_face_text import mixed_lines, texts

import nartk
from nartk.cli.convert import main as convert
from nartk.errors import MissingDependencyError
from nartk.processors import load_processor
from nartk.processors.bpe import Gpt2, Moses, SubwordNmt
from nartk.vocab import FAIRSEQ, Vocab

LINES = [line for line in mixed_lines() if line.strip()]
RAW = (
    "She goes to school every day, doesn't she?",
    'He said: "It\'s a well-known song" & left.',
    "The cat (black) sat on the mat; the others looked.",
    "I have been living here since 1,999 years.",
    "They weren't happy about the U.S. news...",
    "My friend wants to buy a new car next week.",
    "What is the reason for this state-of-the-art problem?",
    "We should discuss it tomorrow morning!",
)


def learn(path: Path, lines: list[str], merges: int) -> Path:
    from subword_nmt.learn_bpe import learn_bpe

    with path.open("w", encoding="utf-8") as file, warnings.catch_warnings(action="ignore"):
        learn_bpe(io.StringIO("\n".join(lines)), file, merges)
    return path


@pytest.fixture(scope="module")
def libraries() -> None:
    for name in ("sacremoses", "subword_nmt", "tokenizers"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'nartk[bpe]'")


@pytest.fixture(scope="module")
def codes(libraries: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(tmp_path_factory.mktemp("codes") / "codes", texts()[:800], 300)


def theirs(module: str, name: str, **settings: Any) -> Any:
    fairseq_host.require_fairseq()
    found = __import__(f"fairseq.data.encoders.{module}", fromlist=[name])
    return getattr(found, name)(Namespace(**settings))


def require_equal(ours: Any, oracle: Any) -> None:
    for line in LINES:
        split = oracle.encode(line)
        assert ours.split(line) == split, line
        assert ours.join(split) == oracle.decode(split), line


@pytest.mark.parametrize(("lang", "dash_splits", "escape"), [("en", True, True), ("fr", False, False)])
@pytest.mark.usefixtures("libraries")
def test_moses(lang: str, dash_splits: bool, escape: bool) -> None:
    flags = {"moses_no_dash_splits": not dash_splits, "moses_no_escape": not escape}
    oracle = theirs("moses_tokenizer", "MosesTokenizer", source_lang=lang, target_lang=lang, **flags)
    require_equal(Moses(lang, dash_splits, escape), oracle)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # fairseq leaves it open
def test_subword_nmt(codes: Path) -> None:
    oracle = theirs("subword_nmt_bpe", "SubwordNMTBPE", bpe_codes=str(codes), bpe_separator="@@")
    require_equal(SubwordNmt(codes, counted=False), oracle)


def merged(word: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """A word's subwords (Sennrich et al. 2016, section 3.2): the best pair is merged until there is none."""
    parts = [*word[:-1], f"{word[-1]}</w>"]
    while True:
        best = min(pairwise(parts), key=lambda pair: ranks.get(pair, 10**9), default=None)
        if best is None or best not in ranks:
            return [*parts[:-1], parts[-1].removesuffix("</w>")]
        made: list[str] = []
        while parts:
            pair = tuple(parts[:2]) == best
            made.append("".join(parts[: 1 + pair]))
            parts = parts[1 + pair :]
        parts = made


@pytest.mark.parametrize("odd", ["", "\u2028", "\x85", "\x0c", "\x1c", "\u00a0"])
def test_fastbpe(codes: Path, odd: str, tmp_path: Path) -> None:
    """By the algorithm itself: fastBPE does not build everywhere. Separators of lines may be symbols."""
    pairs = [tuple(line.split(" ")) for line in codes.read_text().splitlines()[1:]]
    if odd:
        pairs[:0] = [(odd, "a"), ("b", f"{odd}</w>"), (f"{odd}a", f"b{odd}</w>")]
    counted = tmp_path / "codes"
    counted.write_text("".join(f"{a} {b} {1000 - i}\n" for i, (a, b) in enumerate(pairs)))
    ours = SubwordNmt(counted, counted=True)
    ranks = {(a, b): i for i, (a, b) in enumerate(pairs)}
    for line in texts()[::7]:
        split = " ".join("@@ ".join(merged(word, ranks)) for word in line.split())
        assert ours.split(line) == split
        assert ours.join(split) == " ".join(line.split())
    if odd:
        assert ours.split(f"{odd}ab{odd}") == f"{odd}ab{odd}"


@pytest.mark.usefixtures("libraries")
def test_gpt2(tmp_path: Path) -> None:
    from tokenizers import ByteLevelBPETokenizer

    made = ByteLevelBPETokenizer()
    made.train_from_iterator(texts()[:800], vocab_size=600, show_progress=False)
    made.save_model(str(tmp_path))
    paths = tmp_path / "merges.txt", tmp_path / "vocab.json"
    oracle = theirs("gpt2_bpe", "GPT2BPE", gpt2_encoder_json=str(paths[1]), gpt2_vocab_bpe=str(paths[0]))
    require_equal(Gpt2(*paths), oracle)


def test_unknown_words_are_written(codes: Path, tmp_path: Path) -> None:
    Vocab.from_words(["a@@", "b"]).write(tmp_path / "dict.txt")
    (tmp_path / "bpe.codes").write_bytes(codes.read_bytes())
    settings = {
        "name": "bpe",
        "dictionary": "dict.txt",
        "words": 6,
        "bpe": "subword-nmt",
        "codes": "bpe.codes",
    }
    output = load_processor("output", tmp_path, settings, FAIRSEQ)
    assert output.decode([0, 4, 5, 3, 4, 5, 2]) == "ab ⁇ ab"


@pytest.mark.usefixtures("libraries")
def test_trained_on_subwords_and_moses(tmp_path: Path) -> None:
    """fairseq's own model, trained here, converts and translates as ``fairseq-generate`` does."""
    fairseq_host.require_fairseq()
    draw = random.Random(0)
    targets = list(RAW)
    sources = []
    for line in targets:
        words = line.split()
        words.pop(draw.randrange(1, len(words)))
        sources.append(" ".join(words))
    sides = {"de": sources, "en": targets}
    tokens = [list(map(Moses(lang, True, True).split, lines)) for lang, lines in sides.items()]
    codes = learn(tmp_path / "codes", tokens[0] + tokens[1], 60)
    bpe = SubwordNmt(codes, counted=False)
    for name, copies in (("train", 8), ("valid", 1)):
        for side, lines in zip(sides, tokens, strict=True):
            (tmp_path / f"{name}.{side}").write_text(
                "".join(f"{bpe.split(line)}\n" for line in lines * copies)
            )
    flags = f"--source-lang de --target-lang en --trainpref {tmp_path}/train --validpref {tmp_path}/valid"
    own("preprocess", *flags.split(), "--joined-dictionary", "--destdir", f"{tmp_path}/data")
    flags = "--arch transformer_tiny --share-all-embeddings --optimizer adam --max-update 90 --lr 0.005 --cpu"
    flags += " --encoder-normalize-before --decoder-normalize-before --max-tokens 400 --seed 7"
    flags += " --no-epoch-checkpoints --disable-validation --eval-bleu-detok moses"
    own("train", f"{tmp_path}/data", *flags.split(), "--save-dir", f"{tmp_path}/saved")
    checkpoint = tmp_path / "saved" / "checkpoint_last.pt"
    flags = "--source-lang de --target-lang en --gen-subset valid --cpu --beam 1 --max-len-a 0 --max-len-b 40"
    flags += " --remove-bpe --tokenizer moses"
    printed = own("generate", f"{tmp_path}/data", "--path", str(checkpoint), *flags.split())
    found = re.findall(r"^D-(\d+)\t[^\t]*\t(.*)$", printed, re.MULTILINE)
    wanted = [text for _, text in sorted((int(i), text) for i, text in found)]

    given = ["--tokenizer", "moses", "--bpe", "subword-nmt", "--bpe-codes", str(codes)]
    assert convert([str(checkpoint), "--output", str(tmp_path / "model"), *given]) == 0
    decoded = nartk.load(tmp_path / "model").decode(sources, strategy="greedy", max_len=40)
    assert [hypothesis.text for hypothesis in decoded] == wanted
    assert len(set(wanted)) > 4
    assert any(char in text for text in wanted for char in "\"'&,.?")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert [config[side]["moses"]["lang"] for side in ("input", "output")] == ["de", "en"]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A model with the dictionary of subwords."""
    words = [f"w{i}@@" if i % 2 else f"w{i}" for i in range(fairseq_host.WORDS - 4)]
    Vocab.from_words(words).write(tmp_path / "dict.txt")
    return fairseq_host.native_checkpoint(tmp_path / "a.pt")


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert convert(arguments) in (2, 5)
    return capsys.readouterr().err


@pytest.mark.usefixtures("libraries")
def test_what_splits_is_asked_for(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [str(checkpoint), "--output", str(tmp_path / "model"), "--dict", str(tmp_path / "dict.txt")]
    assert (
        "the model was trained on BPE (subwords that end in @@), which is not given. "
        "Fix: give --bpe and --bpe-codes, or --bpe none." in refused(base, capsys)
    )
    assert convert([*base, "--bpe", "none"]) == 0
    state = torch.load(checkpoint, weights_only=False)
    state["cfg"] |= {"bpe": {"_name": "gpt2"}, "tokenizer": {"_name": "moses"}}
    torch.save(state, checkpoint)
    assert "the model was trained on BPE (gpt2)" in refused(base, capsys)
    assert (
        "the model was trained on tokens of Moses. Fix: give --tokenizer moses, or --tokenizer none"
        in refused([*base, "--bpe", "none"], capsys)
    )
    assert convert([*base, "--bpe", "none", "--tokenizer", "none"]) == 0
    base += ["--bpe", "none", "--tokenizer", "moses"]
    assert (
        "the source language of its training data is not known. Fix: give it with --moses-source-lang"
        in refused(base, capsys)
    )
    assert convert([*base, "--moses-source-lang", "de", "--moses-target-lang", "fr"]) == 0
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert [config[side]["moses"]["lang"] for side in ("input", "output")] == ["de", "fr"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--bpe fastbpe", "--bpe fastbpe goes with --bpe-codes"),
        ("--bpe gpt2 --bpe-codes CODES", "--bpe gpt2 goes with --bpe-codes and --encoder-json"),
        ("--bpe none --bpe-codes CODES", "--bpe none goes with no files"),
        ("--bpe-codes CODES", "--bpe none goes with no files"),
        ("--spm CODES --tokenizer moses", "--spm with --bpe or --tokenizer"),
        ("--bpe subword-nmt --bpe-codes CODES", "a line is not two symbols with a space between"),
        ("--bpe gpt2 --vocab-bpe CODES --encoder-json CODES", "damaged settings or files of text"),
        ("--bpe subword-nmt --bpe-codes missing", "missing: no such file"),
    ],
)
@pytest.mark.usefixtures("libraries")
def test_impossible_flags(
    flags: str, message: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = tmp_path / "codes"
    codes.write_text("#version: 0.2\na b c\n")
    base = [str(checkpoint), "--output", str(tmp_path / "model"), "--dict", str(tmp_path / "dict.txt")]
    assert message in refused([*base, *flags.replace("CODES", str(codes)).split()], capsys)
    assert not (tmp_path / "model").exists()


def test_without_the_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(MissingDependencyError, match="'sacremoses', which is not installed") as raised:
        Moses("en", True, True)
    assert raised.value.fix == "pip install 'nartk[bpe]'"
