"""`nartk-decode --output-format m2`: the edits are ERRANT's, and make each output of its line."""

from __future__ import annotations

import random
import sys
from argparse import Namespace
from pathlib import Path

import pytest
from support import tiny
from support.pipelines import tagged_by_hand
from support.speech_models import save_random_speech

import nartk
from nartk.cli._edits import UNTYPED, EditWriter
from nartk.cli.decode import main
from nartk.cli.score import main as score
from nartk.data.m2 import M2Sentence, apply_edits, read_m2
from nartk.data.readers import Record
from nartk.errors import InputFormatError
from nartk.metrics import errant as metric
from nartk.protocols.hypothesis import Hypothesis, Result
from nartk.protocols.outputs import Text

LINES = (
    "This are gramamtical sentence . She go to school yesterday .",
    "",
    "She goes to school .",
    "I likes it , and he have a cats .",
    "the sentence contain an error .",
)


@pytest.fixture
def pipeline(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    folder = tagged_by_hand(tmp_path_factory.mktemp("pipeline"))
    monkeypatch.setenv(metric.ENVIRONMENT, folder)
    return folder


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides ERRANT."""
    monkeypatch.delenv(metric.ENVIRONMENT, raising=False)
    monkeypatch.setitem(sys.modules, "errant", None)


def decoded(folder: Path, data: bytes, *args: str, code: int = 0) -> tuple[list[str], str]:
    """The outputs of lines as text and as M2."""
    (folder / "in.txt").write_bytes(data)
    for name in ("out", "out.m2"):
        assert main([*args, str(folder / "in.txt"), "--quiet", "--output", str(folder / name)]) == code
    return (folder / "out").read_text().splitlines(), (folder / "out.m2").read_text()


def spliced(sentence: M2Sentence) -> list[str]:
    """The source with the edits made from the last one on, by hand."""
    found = [*sentence.source]
    for edit in reversed(sentence.edits):
        if edit.type != "noop":
            found[edit.start : edit.end] = edit.correction.split(" ") if edit.correction else []
    return found


@pytest.mark.parametrize("pretokenized", [True, False])
def test_edits_make_the_outputs(pretokenized: bool, without: None, tmp_path: Path) -> None:
    lines = LINES if pretokenized else [line.replace(" .", ".").replace(" ,", ",") for line in LINES]
    flags = ["--pretokenized"] if pretokenized else []
    outputs, text = decoded(tmp_path, "".join(f"{line}\n" for line in lines).encode(), *flags)
    blocks = [*read_m2(text.splitlines())]
    assert [" ".join(block.source) for block in blocks] == [*LINES]
    wanted = [*map(nartk.load().tokenization.tokens, outputs)] if not pretokenized else outputs
    assert [" ".join(spliced(block)) for block in blocks] == wanted
    assert [apply_edits(block) for block in blocks] == [line.split() for line in wanted]
    assert sum(line != output for line, output in zip(LINES, wanted, strict=True)) >= 3
    assert {edit.type for block in blocks for edit in block.edits} == {UNTYPED, "noop"}
    for block, output in zip(blocks, wanted, strict=True):
        assert (block.source == output.split()) == all(edit.type == "noop" for edit in block.edits)
        assert block.edits


def test_a_line_that_fails_is_a_block_without_edits(without: None, tmp_path: Path) -> None:
    model = str(tiny.corrector(tmp_path / "model"))
    data = b"she go .\nshe \xff go\n" + b"she " * 300 + b"\nshe go .\n"
    _, text = decoded(tmp_path, data, model, code=3)
    blocks = [*read_m2(text.splitlines())]
    assert [len(block.source) for block in blocks] == [3, 0, 300, 3]
    assert [block.edits[0].type for block in blocks] == [UNTYPED, "noop", "noop", UNTYPED]
    assert text.count("\n\n") == 4


def parallel(folder: Path, pipeline: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What errant_parallel writes of in.txt and out."""
    import errant
    import spacy
    from errant.commands import parallel_to_m2

    load = errant.load
    with monkeypatch.context() as patch:
        patch.setattr(errant, "load", lambda lang: load(lang, nlp=spacy.load(pipeline)))
        files = ["-orig", "in.txt", "-cor", "out", "-out", "errant.m2"]
        files = [each if each.startswith("-") else str(folder / each) for each in files]
        patch.setattr(sys, "argv", ["errant_parallel", *files])
        parallel_to_m2.main()
    return (folder / "errant.m2").read_text()


def test_edits_are_those_of_errant_parallel(
    pipeline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in LINES if line]  # errant_parallel leaves blank lines out
    _, text = decoded(tmp_path, "".join(f"{line}\n" for line in lines).encode(), "--pretokenized")
    assert text == parallel(tmp_path, pipeline, monkeypatch)
    types = {edit.type for block in read_m2(text.splitlines()) for edit in block.edits}
    assert {"R:VERB:SVA", "noop"} <= types
    assert UNTYPED not in types
    capsys.readouterr()
    files = ["--hyp-m2", str(tmp_path / "out.m2"), "--gold", str(tmp_path / "errant.m2")]
    assert score(["errant", *files]) == 0
    assert "1.0000" in capsys.readouterr().out


def written(writer: EditWriter, source: str, output: str) -> tuple[str, Result | BaseException]:
    outcome = Result(0, (Hypothesis((), output=Text(output)),))
    return writer.block(Record(source, 1, "in:1"), outcome)


@pytest.mark.parametrize("typed", [True, False])
def test_random_pairs(
    typed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Of words, of what M2 gives a meaning, of white space that is none, and of nothing."""
    pipeline = request.getfixturevalue("pipeline" if typed else "without")
    model = nartk.load(str(tiny.corrector(tmp_path / "model")))
    writer = EditWriter(Namespace(quiet=True, form_flag="--output-format m2"), model, 1)
    draw, plain = random.Random(5), []
    words = [*["this", "these", "sentence", "sentences", "is", "are", "a", "error", "."], "x\u00a0y"]
    words += ["||", "|||", "-NONE-", "a||b", "S", "A"]
    refused = 0
    for _ in range(400):
        common = words[: draw.choice([9, 9, len(words)])]
        source = draw.choices(common, k=draw.randrange(7))
        output = [word for word in source if draw.random() < 0.8]
        for _ in range(draw.randrange(3)):
            output.insert(draw.randrange(len(output) + 1), draw.choice(common))
        block, outcome = written(writer, " ".join(source), " ".join(output))
        (found,) = read_m2(f"{block}\n".split("\n"))
        assert found.source == source
        assert block.count("\n") == len(found.edits) + 1
        if isinstance(outcome, InputFormatError):
            refused += 1
            assert any("||" in word or word == "-NONE-" for word in output)
            assert [edit.type for edit in found.edits] == ["noop"]
            continue
        assert spliced(found) == output
        assert " ".join(apply_edits(found)).split() == " ".join(output).split()
        if source and output and "\u00a0" not in "".join((*source, *output)):
            plain.append((" ".join(source), " ".join(output), block))
    assert 0 < refused < 200
    if typed:
        (tmp_path / "in.txt").write_text("".join(f"{source}\n" for source, _, _ in plain))
        (tmp_path / "out").write_text("".join(f"{output}\n" for _, output, _ in plain))
        assert "".join(f"{block}\n" for *_, block in plain) == parallel(tmp_path, pipeline, monkeypatch)


def test_a_pipeline_that_is_named_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("errant")
    (tmp_path / "in.txt").write_text("She go .\n")
    monkeypatch.setenv(metric.ENVIRONMENT, str(tmp_path / "none"))
    args = [str(tmp_path / "in.txt"), "--output-format", "m2"]
    assert main(args) == 2
    assert "spaCy cannot load the pipeline" in capsys.readouterr().err
    monkeypatch.delenv(metric.ENVIRONMENT)
    monkeypatch.setattr(metric, "OFFICIAL", "no_such_pipeline")
    monkeypatch.setattr(metric, "TRAINED", tmp_path / "none")
    assert main(args) == 0
    assert "nartk: edits have the type NA: ERRANT needs a spaCy pipeline; neither" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--score", "in.txt"], "--output-format m2 with --score: it holds the edits of lines"),
        (["--output-dir", "out"], "--output-format m2 with --output-dir"),
        (["--strategy", "beam", "--nbest", "2"], "--output-format m2 with 2 outputs a line: a block holds"),
    ],
)
def test_what_is_no_edit_is_refused(
    flags: list[str],
    message: str,
    without: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("She go .\n")
    assert main(["in.txt", "--output-format", "m2", *flags]) == 2
    assert message in capsys.readouterr().err


def test_recordings_have_no_edits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("kaldi_native_fbank")
    save_random_speech(
        tmp_path / "model", "conformer", 2, words=12, max_source_len=400, strategy="ctc-greedy"
    )
    (tmp_path / "list.txt").write_text("a.wav\n")
    assert main([str(tmp_path / "model"), str(tmp_path / "list.txt"), "--output-format", "m2"]) == 2
    assert (
        "--output-format m2, but the model reads sound. Fix: name a model of text" in capsys.readouterr().err
    )
