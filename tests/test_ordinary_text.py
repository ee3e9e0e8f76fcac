"""Ordinary text through models and commands: what a line of several sentences is, option by option."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import tiny

import nartk
from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.bench import main as bench
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as decode
from nartk.cli.distill import main as distill
from nartk.cli.verify import main as verify
from nartk.engine import available
from nartk.errors import InputTooLongError, UnsupportedCheckpointError
from nartk.vocab import UNKNOWN

LINES = [
    line.replace("¦", "").replace("‖", "")
    for line in (Path(__file__).parent / "support" / "ordinary.txt")
    .read_text(encoding="utf-8")
    .split("\n")[:-1]
]
TWO = "she go to school.  he go home!"
SENTENCES = ["she go to school .", "he go home !"]
needs_engine = pytest.mark.skipif(not available(), reason="there is no engine here")


def penn(folder: Path, **changes: Any) -> str:
    """Lets a model know how its text was tokenised."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tokenization": "penn", **changes}))
    return str(folder)


@pytest.fixture(scope="module")
def corrector(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Copies its source, with `goes` for `go`."""
    return penn(tiny.corrector(tmp_path_factory.mktemp("corrector")))


@pytest.fixture(scope="module")
def rambler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model, whose outputs vary with the input."""
    return penn(tiny.random_model(tmp_path_factory.mktemp("random")))


@pytest.fixture
def source(tmp_path: Path) -> str:
    path = tmp_path / "in.txt"
    path.write_text(f"{TWO}\n\nhe go home.\n:)\n")
    return str(path)


def shipped(**options: Any) -> nartk.Model:
    return nartk.load("gec-en", threads=1, **options)


# The shipped model

# What no correction may touch, each in the order of the line.
KEPT = {
    "digits": re.compile(r"\d"),
    "URLs": re.compile(r"(?i:[a-z][a-z\d+.-]*://|www\.)\S+|\S+@\S+\w"),
    "words like iPhone": re.compile(r"\b\w*[a-z][A-Z]\w*"),
    "opening single quotation marks": re.compile(r"(?<![\w'’])['‘’](?![\s'])"),
    "closing single quotation marks": re.compile(r"(?<=[.,!?\d])['’](?!\w)"),
    "quoted": re.compile(r"(?<![\w'])'\w+'(?!\w)"),
    "elisions": re.compile(r"(?i:['’](?:twas|em|n['’]|\d\ds)(?!\w))"),
}
# Lines and what comes of them, by hand: good English stays as it is, errors in it go.
BY_HAND = [
    ("He said 'hello' to me.", "He said 'hello' to me."),
    ("She read 'War and Peace' yesterday.", "She read 'War and Peace' yesterday."),
    ("'Twas the night before Christmas.", "'Twas the night before Christmas."),
    ("Visit HTTP://EXAMPLE.COM/Abc now.", "Visit HTTP://EXAMPLE.COM/Abc now."),
    ("See file:///etc/passwd for more.", "See file:///etc/passwd for more."),
    ("Go to s3://bucket/key now.", "Go to s3://bucket/key now."),
    ("Go to www.x.org or WWW.X.ORG today.", "Go to www.x.org or WWW.X.ORG today."),
    ("iPhone and eBay is brand.", "iPhone and eBay is brand."),
    ("eBay are good.", "eBay is good."),
    ("He said \"she told me 'go home' yesterday\".", "He said \"she told me 'go home' yesterday\"."),
    ("'I am tired,' she said. 'I want to go home.'", "'I am tired,' she said. 'I want to go home.'"),
    ("'Why?' he asked.", "'Why?' he asked."),
    ("The boys' toys are in the teachers' room.", "The boys' toys are in the teachers' room."),
    ("The letter 'a' is a vowel.", "The letter 'a' is a vowel."),
    ("Mr. O'Brien lives in 'The Old House'.", "Mr. O'Brien lives in 'The Old House'."),
    ("They love rock 'n' roll.", "They love rock 'n' roll."),
    ("He is 5'10\" tall and she is 6'.", "He is 5'10\" tall and she is 6'."),
    ("I dont know.", "I don't know."),
    ("He have 'two' dogs.", "He has 'two' dogs."),
    ("He don't likes it.", "He doesn't like it."),
    ("The file notes.txt is in /etc/passwd.", "The file notes.txt is in /etc/passwd."),
    ("He left at 14:05:33 UTC.", "He left at 14:05:33 UTC."),
    ("An old soldiers' home is near HTTPS.", "An old soldiers' home is near HTTPS."),
    ("Use `x = foo(a, b)` in your code.", "Use `x = foo(a, b)` in your code."),
    ("Run `she go home`, it are good.", "Run `she go home`, it is good."),
    ("I don`t like it, it are good.", "I don't like it, it is good."),
]


@needs_engine
def test_200_lines_give_ordinary_english() -> None:
    """What is well-formed stays so, and numbers, addresses, emoji and other languages come through."""
    model = shipped()
    run = model.run(LINES, "iad", batch_size=16)
    assert run.errors == {}
    outputs = [hypotheses[0].text for hypotheses in run.hypotheses]
    apart = re.compile(r"\s[,;!?)\]]|\s\.(?!\.)|[(\[]\s|\s(?:n't|'s|'ll|'ve|'re|'m)\b")
    for line, output in zip(LINES, outputs, strict=True):
        assert UNKNOWN not in output
        for what, pattern in KEPT.items():
            assert pattern.findall(output) == pattern.findall(line), (what, line, output)
        for char in '"“”«»„()[]':
            assert output.count(char) == line.count(char), (line, output)
        beyond = [char for char in line if ord(char) > 0x24F and not 0x2000 <= ord(char) < 0x2070]
        assert [char for char in output if char in beyond] == beyond
        if not apart.search(line):
            assert not apart.search(output), (line, output)
    assert sum(output != line for line, output in zip(LINES, outputs, strict=True)) > 60


@needs_engine
def test_quotes_addresses_and_names_come_through() -> None:
    found = shipped(min_edit_confidence=0).decode([line for line, _ in BY_HAND], batch_size=8)
    assert [each.text for each in found] == [wanted for _, wanted in BY_HAND]


@needs_engine
def test_no_word_of_the_models_is_changed() -> None:
    """All characters of an output are in the line, but for edits that the documentation says are undone."""
    model, plain = shipped(), shipped(pretokenized=True)
    same = 0
    for line in filter(str.isascii, LINES):
        sentences = model.tokenization.paragraph(line).sentences
        outputs = [each.text for each in plain.decode([each.text for each in sentences])]
        for sentence, output in zip(sentences, outputs, strict=True):
            counted = [re.findall(r'\d(?:\S*\d)?|["()\[\]{}]', text) for text in (sentence.text, output)]
            undone = counted[0] != counted[1] or UNKNOWN in output or output.endswith((") .", '" .'))
            if not undone and not re.search(r"//|www\.|@|/\w|[a-z][A-Z]|[A-Z]{2}| '(?!\w)", sentence.text):
                restored = re.sub("''|``|'", '"', sentence.restore(output))
                assert "".join(restored.split()) == "".join(output.split()).replace("'", '"')
                same += 1
    assert same > 150


@needs_engine
def test_a_line_of_two_sentences_and_a_quotation() -> None:
    (best,) = shipped().decode(['She go home. He said: "I am agree."'])
    assert re.fullmatch(r'She \w+ home\. He said: "I [\w ]+\."', best.text)
    assert best.text != 'She go home. He said: "I am agree."'


@needs_engine
def test_pretokenized_is_the_model_without_the_setting(tmp_path: Path) -> None:
    """Bit for bit, tokens and log-probabilities."""
    folder = tmp_path / "older"
    shutil.copytree(shipped().checkpoint.folder, folder)
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("tokenization") == "penn"
    (folder / "config.json").write_text(json.dumps(config))
    lines = [
        "She go home .",
        'He said : " I am agree . " She left .',
        "  Spaces   stay  out ",
        "I do n't know 日本 .",
    ]
    older = nartk.load(folder, threads=1).decode(lines, "iad")
    assert shipped(pretokenized=True).decode(lines, "iad") == older
    assert nartk.load(folder).signature(nartk.load(folder).strategy("greedy", {})).count("text:") == 0
    model = shipped()
    assert model.signature(model.strategy("greedy", {})).endswith("|text:penn")
    model = replace(model, pretokenized=True)
    assert model.decode(lines, "iad") == older
    assert "text:" not in model.signature(model.strategy("greedy", {}))


# Lines of several sentences


def test_sentences_are_decoded_on_their_own_and_joined(corrector: str) -> None:
    model = nartk.load(corrector)
    run = model.run([TWO, "", "  ", ":)", "he go home."], trace=True)
    texts = [hypotheses[0].text for hypotheses in run.hypotheses]
    assert texts == ["she goes to school.  he goes home!", "", "", ":)", "he goes home."]
    model = replace(model, pretokenized=True)
    parts = model.run(SENTENCES, trace=True)
    (joined,), apart = run.hypotheses[0], [each[0] for each in parts.hypotheses]
    assert joined.tokens == apart[0].tokens + apart[1].tokens
    assert joined.positional_scores == apart[0].positional_scores + apart[1].positional_scores
    assert joined.score == apart[0].score + apart[1].score
    passes = [token.verifier_pass for token in joined.trace]
    first = [token.verifier_pass for token in apart[0].trace]
    assert passes == first + [len(first) + token.verifier_pass for token in apart[1].trace]
    assert run.stats.sentences == 3
    assert len(run.stats.latencies) == 2
    assert run.stats.tokens == run.stats.passes == 16
    assert max(run.stats.latencies) <= run.stats.seconds


def test_the_ith_output_is_of_each_sentences_ith(rambler: str) -> None:
    model = nartk.load(rambler)
    options = {"beam_size": 3, "nbest": 3, "max_len": 6}
    run = model.run([TWO], "beam", options)
    model = replace(model, pretokenized=True)
    apart = model.run(SENTENCES, "beam", options)
    for rank, found in enumerate(run.hypotheses[0]):
        parts = [each[rank] for each in apart.hypotheses]
        assert found.tokens == parts[0].tokens + parts[1].tokens
        assert found.score == parts[0].score + parts[1].score
    scores = [found.score for found in run.hypotheses[0]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("options", [{}, {"nbest": 2}])
def test_draws_depend_on_the_line_alone(rambler: str, options: dict[str, int]) -> None:
    """Neither on how many sentences other lines have, nor on the batch, nor on how lines are read ahead."""
    model = nartk.load(rambler)
    settings = {"temperature": 3.0, "max_len": 8, **options}
    one = model.run([SENTENCES[0], TWO, TWO], "sample", settings).hypotheses
    other = model.run([TWO * 3, TWO, SENTENCES[1]], "sample", settings, batch_size=1).hypotheses
    assert one[1] == other[1]
    assert one[1] != one[2]
    strategy = model.strategy("sample", settings)
    ((_, later),) = model.stream([TWO], strategy, first=1)
    assert later.hypotheses == one[1]
    # The first sentence's draw is that of a line of one sentence.
    model = replace(model, pretokenized=True)
    (first,) = model.run(["", SENTENCES[0]], "sample", settings).hypotheses[1][:1]
    assert options or one[1][0].tokens[: len(first.tokens)] == first.tokens


def test_a_line_with_a_prefix_or_drafts_is_one_sentence(corrector: str) -> None:
    model = nartk.load(corrector)
    (forced,) = model.run([TWO], prefixes=["he goes"]).hypotheses[0]
    assert forced.text.startswith("he goes")
    assert forced.tokens.count(2) == 1
    (drafted,) = model.decode([TWO], "verify", drafts=["she goes to school. he goes home!"])
    assert drafted.tokens.count(2) == 1
    assert model.decode([TWO], "verify", drafts=[""])[0].tokens.count(2) == 2


@needs_engine
def test_drafts_do_not_have_a_line_decoded_that_is_left_alone() -> None:
    lines = ["Ich bin ein Student und ich gehe nach Hause.", "北京 :)", "123 - 456", "She go home."]
    drafts = ["Ich been a student.", "Beijing.", "123-456.", "She goes home."]
    found = shipped().decode(lines, "verify", drafts=drafts)
    assert [each.text for each in found[:3]] == lines[:3]
    assert [each.tokens for each in found[:3]] == [()] * 3
    assert found[3].text != lines[3]
    (forced,) = shipped().decode([lines[0]], "verify", drafts=drafts[:1], prefixes=["Ich "])
    assert forced.tokens != ()


def test_a_line_with_a_sentence_too_long_fails_or_is_cut(corrector: str) -> None:
    model = nartk.load(corrector)
    long = "the " * 500 + "cat."
    run = model.run([f"he go home. {long} he go home.", TWO])
    assert isinstance(run.errors[0], InputTooLongError)
    assert run.errors[0].message.startswith("sentence 2 of the line: 502 tokens > ")
    assert run.hypotheses[0] == ()
    assert run.hypotheses[1][0].text == "she goes to school.  he goes home!"
    (cut,) = model.run([f"he go home. {long} he go home."], truncate=True).hypotheses[0]
    assert cut.text.startswith("he goes home. the the")
    assert cut.text.endswith(" he goes home.")


@needs_engine
def test_replicas_give_the_same(corrector: str) -> None:
    lines = [TWO, "he go home.", TWO * 2, ":)"]
    assert nartk.load(corrector, replicas=2).decode(lines) == nartk.load(corrector).decode(lines)


# Model folders


def test_a_tokenization_that_this_version_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = tiny.random_model(tmp_path)
    for bad in ("klingon", 3, {}):
        penn(folder, tokenization=bad)
        with pytest.raises(UnsupportedCheckpointError, match=r"a tokenization") as caught:
            load_checkpoint(folder)
        assert caught.value.fix == "this version knows penn"


@needs_engine
def test_an_int8_folder_keeps_the_setting(corrector: str, tmp_path: Path) -> None:
    assert convert([corrector, "--quantize", "int8", "--output", str(tmp_path / "int8")]) == 0
    model = nartk.load(tmp_path / "int8")
    assert model.decode([TWO])[0].text.count(".  ") == 1
    assert (
        convert([corrector, "--quantize", "int8", "--tokenization", "penn", "--output", str(tmp_path)]) == 2
    )


# Commands


def out(capture: pytest.CaptureFixture[str]) -> list[str]:
    return capture.readouterr().out.split("\n")[:-1]


def test_lines_in_are_lines_out(corrector: str, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert decode([corrector, source, "--quiet"]) == 0
    assert out(capsys) == ["she goes to school.  he goes home!", "", "he goes home.", ":)"]
    assert decode([corrector, source, "--quiet", "--pretokenized"]) == 0
    assert len(out(capsys)) == 4


@pytest.mark.parametrize("flags", [[], ["--pretokenized"]])
def test_a_line_of_white_space_comes_out_empty_as_help_says(
    corrector: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    (tmp_path / "in.txt").write_text("he go .\n  \n\t\nhe go .\n")
    assert decode([corrector, str(tmp_path / "in.txt"), "--quiet", *flags]) == 0
    assert out(capsys) == ["he goes .", "", "", "he goes ."]
    assert decode(["--help"]) == 0
    assert "A line of white space alone comes out empty." in " ".join(capsys.readouterr().out.split())


def test_statistics_and_traces_count_lines_and_sentences(
    corrector: str, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--stats", str(tmp_path / "stats.json"), "--trace", str(tmp_path / "trace.jsonl")]
    assert (
        decode([corrector, source, "--quiet", "--strategy", "greedy", "--output-format", "jsonl", *flags])
        == 0
    )
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert (stats["lines"], stats["sentences"], stats["tokens"]) == (4, 3, 16)
    traced = json.loads((tmp_path / "trace.jsonl").read_text().split("\n")[0])
    assert traced["source"] == ["she", "go", "to", "school", ".", "</s>", "he", "go", "home", "!", "</s>"]
    assert len(traced["output"]) == len(traced["origin"]) == len(traced["pass"]) == 11
    assert traced["pass"] == [*range(1, 12)]
    found = json.loads(out(capsys)[0])["hypotheses"][0]
    assert found["text"] == "she goes to school.  he goes home!"
    assert found["tokens"] == traced["output"]
    assert len(found["positional_scores"]) == 11


def test_a_text_of_several_lines_stays_one_line(
    corrector: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "she go.\n\the go."}) + "\n")
    argv = [corrector, str(tmp_path / "in.jsonl"), "--quiet"]
    assert decode(argv) == 0
    assert out(capsys) == ["she goes. \the goes."]
    assert decode([*argv, "--output-format", "jsonl"]) == 0
    assert json.loads(out(capsys)[0])["hypotheses"][0]["text"] == "she goes.\n\the goes."
    assert decode([*argv, "--strategy", "beam", "--nbest", "2"]) == 0
    assert [line.count("\t") for line in out(capsys)] == [2, 2]


def test_m2_is_tokenised(
    corrector: str,
    source: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gold = tmp_path / "gold.m2"
    gold.write_text("S she go to school . he go home .\n\n")
    assert decode([corrector, str(gold), "--quiet"]) == 0
    wanted = ["she goes to school . he goes home ."]
    assert out(capsys) == wanted
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(gold.read_bytes())))
    assert decode([corrector, "-", "--format", "m2", "--quiet"]) == 0
    assert out(capsys) == wanted
    assert decode([corrector, str(gold), source, "--quiet"]) == 2
    assert "files in M2, which are tokenised, beside others" in capsys.readouterr().err
    assert decode([corrector, str(gold), source, "--quiet", "--pretokenized"]) == 0
    assert len(out(capsys)) == 5


def test_verify_compares_sentences(corrector: str, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify([corrector, source, "--strategy", "iad", "--quiet"]) == 0
    assert ": 3 sentences, 16 tokens" in out(capsys)[0]
    assert verify([corrector, source, "--strategy", "iad", "--quiet", "--pretokenized"]) == 0
    assert ": 3 sentences, 16 tokens" not in out(capsys)[0]


def test_bench_measures_sentences_and_scores_lines(
    corrector: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, reference = tmp_path / "in.txt", tmp_path / "ref.txt"
    text.write_text(f"{TWO}\n:)\nhe go home.\n")
    reference.write_text("she goes to school.  he goes home!\nno\nhe goes home.\n")
    script = tmp_path / "peer.py"
    script.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    lines = json.loads(line)['lines']\n"
        "    print(json.dumps({'seconds': 1.0, 'tokens': [[2]] * len(lines), 'texts': lines}), flush=True)\n"
    )
    argv = [corrector, str(text), "--ref", str(reference), "--rounds", "1", "--batch-size", "2", "--quiet"]
    found = tmp_path / "out.json"
    peer = ["--peer", f"copy={sys.executable} {script}", "--json", str(found)]
    assert bench([*argv, "--strategies", "iad", *peer, "--metric", "bleu --tokenize none"]) in (0, 1)
    capsys.readouterr()
    series = {each["engine"]: each for each in json.loads(found.read_text())["cells"][0]["engines"]}
    scores = {name: next(iter(each["quality"].values()))["score"] for name, each in series.items()}
    assert scores["greedy"] == scores["iad"] == pytest.approx(100)
    assert scores["copy"] < 100


def test_a_distillation_does_not_go_on_with_other_text(
    corrector: str, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = [
        corrector,
        source,
        "--source-lang",
        "src",
        "--target-lang",
        "trg",
        "--output",
        str(tmp_path / "out"),
    ]
    argv += ["--strategy", "greedy", "--drop-longer", "20", "--quiet"]
    assert distill(argv) == 0
    assert (
        tmp_path / "out" / "train.trg"
    ).read_text() == "she goes to school.  he goes home!\nhe goes home.\n:)\n"
    assert distill(argv) == 0
    assert distill([*argv, "--pretokenized"]) == 4
    assert "text:penn" in capsys.readouterr().err
