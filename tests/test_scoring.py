"""Log-probabilities of given outputs, against torch's log_softmax and against greedy search."""

from __future__ import annotations

import dataclasses
import io
import json
import random
import shutil
import sys
from pathlib import Path

import pytest
import torch
from support import tiny
from support.parallel_drafters import small_network
from support.transformers_small import vocabulary

from nartk import engine
from nartk.checkpoints.saving import save_checkpoint
from nartk.cli.decode import main
from nartk.errors import LengthMismatchError, StrategyMismatchError
from nartk.serving.loading import load
from nartk.serving.model import Model
from nartk.serving.scorers import load_network

GENERATION = {"forced_bos": 7, "strategy": "beam", "beam_size": 3}
needs_engine = pytest.mark.skipif(not engine.available(), reason="the engine is left out")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model whose words stand between spaces, so that its outputs are read as it wrote them."""
    return str(tiny.random_model(tmp_path_factory.mktemp("scored"), words=tiny.WORDS.split()))


@pytest.fixture(scope="module")
def model(folder: str) -> Model:
    return load(folder)


def random_lines(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(tiny.WORDS.split(), k=rng.randint(0, 12))) for _ in range(count)]


def by_torch(model: Model, line: str, target: str) -> list[float]:
    """The log-probability of each token of an output and eos: the reference network under teacher forcing."""
    vocab = model.checkpoint.target_vocab
    network = load_network(model.checkpoint).eval()
    source, output = ([*vocab.ids(text.split()), vocab.eos] for text in (line, target))
    with torch.inference_mode():
        logits = network(torch.tensor([source]), torch.tensor([[vocab.eos, *output[:-1]]]))
    scores: list[float] = logits[0].log_softmax(-1)[range(len(output)), output].tolist()
    return scores


def test_scores_are_those_of_teacher_forcing_in_torch(model: Model) -> None:
    lines, targets = random_lines(40, seed=1), random_lines(40, seed=2)
    assert "" in lines
    assert "" in targets
    for line, target, found in zip(lines, targets, model.score(lines, targets), strict=True):
        wanted = by_torch(model, line, target)
        assert found.positional_scores == pytest.approx(wanted, abs=1e-4)
        assert found.score == pytest.approx(sum(wanted), abs=1e-4)
        assert (found.text, found.pieces) == (target, (*target.split(), "</s>"))


@needs_engine
@pytest.mark.parametrize("dtype", engine.TYPES)
def test_greedys_outputs_have_greedys_scores_in_any_batch(folder: str, dtype: str) -> None:
    model = load(folder, dtype=dtype)
    lines = [*filter(None, random_lines(60, seed=3))]
    decoded = zip(lines, model.decode(lines, "greedy"), strict=True)
    # Those that come to an end, and whose text does not hide a special symbol.
    pairs = [(line, each) for line, each in decoded if (*each.text.split(), "</s>") == each.pieces]
    assert len(pairs) > 20
    lines, texts = [line for line, _ in pairs], [each.text for _, each in pairs]
    for size, most in ((1, None), (3, None), (32, None), (32, 20)):
        found = model.score(lines, texts, batch_size=size, max_tokens=most)
        for (_, wanted), each in zip(pairs, found, strict=True):
            assert each.tokens == wanted.tokens
            assert each.positional_scores == wanted.positional_scores
            assert each.score == wanted.score
    replicas = load(folder, dtype=dtype, replicas=2).score(lines, texts)
    assert [each.score for each in replicas] == [each.score for _, each in pairs]


@needs_engine
def test_what_outputs_are_forced_to_begin_with_counts_nothing(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = shutil.copytree(folder, tmp_path / "model")
    config = json.loads((made / "config.json").read_bytes())
    (made / "config.json").write_text(json.dumps({**config, "generation": GENERATION}))
    model = load(made)
    lines = [*filter(None, random_lines(20, seed=5))]
    decoded = model.decode(lines, "greedy", max_len=200)
    assert {each.tokens[0] for each in decoded} == {7}
    ended = zip(lines, decoded, strict=True)
    pairs = [(line, each) for line, each in ended if (*each.text.split(), "</s>") == each.pieces]
    texts = [each.text.partition(" ")[2] for _, each in pairs]  # a language is not written
    assert len(pairs) > 5
    for (_, wanted), found in zip(pairs, model.score([line for line, _ in pairs], texts), strict=True):
        assert (found.tokens, found.positional_scores) == (wanted.tokens, wanted.positional_scores)
        assert found.positional_scores[0] == 0.0
    for name, written in (("lines", [line for line, _ in pairs]), ("outputs", texts)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in written))
    code, printed, _ = command(
        capsys, str(made), str(tmp_path / "lines"), "--score", str(tmp_path / "outputs"), "--quiet"
    )
    assert (code, printed) == (0, [f"{each.score:.6f}" for _, each in pairs])


def test_a_batch_is_one_pass(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = model.passes
    passes: list[int] = []
    run = scorer.run
    monkeypatch.setattr(scorer, "run", lambda work, want: passes.append(len(work.tokens)) or run(work, want))
    targets = random_lines(32, seed=4)
    model.score(random_lines(32, seed=5), targets)
    assert passes == [sum(len(target.split()) + 1 for target in targets)]
    assert scorer.cells_in_use == 0


def test_several_outputs_of_a_line_keep_their_order(model: Model) -> None:
    several = ["she goes", "", "she goes", "he"]
    (found,) = model.score(["she go"], [several])
    scored = [found, *found.alternatives]
    assert [each.text for each in scored] == several
    assert [each.score for each in scored] == [model.score(["she go"], [each])[0].score for each in several]


def test_every_line_has_an_output(model: Model) -> None:
    with pytest.raises(LengthMismatchError) as caught:
        model.score(["she go", "he"], ["she goes"])
    assert caught.value.message == "targets for 1 line, but there are 2"
    with pytest.raises(LengthMismatchError) as caught:
        model.score(["she go", "he"], ["she goes", []])
    assert caught.value.message == "targets[1] holds no output"


def test_a_line_that_fails_costs_itself_alone(model: Model) -> None:
    with pytest.warns(UserWarning, match="InputTooLong"):
        found = model.score(["she", "he", "she"], ["he", "she " * 64, ["she", "go " * 64]])
    assert found[0].score is not None
    messages = [None if each.error is None else each.error.message for each in found]
    assert messages == [None, "the output has 64 tokens > 63", "output 2 has 64 tokens > 63"]
    assert found[1].error is not None
    assert found[1].error.where == "line 2"
    assert model.score(["she"], ["she " * 63])[0].score is not None  # eos takes the last position


@pytest.mark.parametrize("kind", ["ctc", "nat", "dag", "blockwise"])
def test_a_model_that_is_not_autoregressive_is_refused(kind: str, tmp_path: Path) -> None:
    network = small_network(kind, 12, 1)
    save_checkpoint(
        tmp_path,
        architecture=kind,
        settings=dataclasses.asdict(network.config),
        tensors=network.state_dict(),
        source_vocab=vocabulary(12),
        target_vocab=vocabulary(12),
        card="# A small model for tests\n",
    )
    with pytest.raises(StrategyMismatchError) as caught:
        load(tmp_path).score(["w1"], ["w2"])
    assert caught.value.message == f"score with a {kind!r}, which is not autoregressive"


def command(capture: pytest.CaptureFixture[str], *args: str) -> tuple[int, list[str], str]:
    """A command's exit code, the lines that it prints, and what it says on stderr."""
    code = main([*args, "--quiet"])
    out, err = capture.readouterr()
    return code, out.split("\n")[:-1], err


def write(path: Path, *lines: bytes) -> str:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return str(path)


LINES = (b"she go home", b"", b"he goes", b"bad \xff", b"he", b"she " * 70, b"they go")
OUTPUTS = (b"she goes home\tshe go", b"", b"he go " * 32, b"he", b"\xff", b"she", b"they go\t")


@pytest.mark.parametrize("flags", [[], ["--batch-size", "1"], ["--stream"], ["--max-tokens", "5"]])
def test_the_command_loses_no_line(
    flags: list[str], folder: str, model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, outputs = write(tmp_path / "in.txt", *LINES), write(tmp_path / "out.txt", *OUTPUTS)
    code, found, err = command(capsys, folder, source, "--score", outputs, *flags)
    wanted = {0: ["she goes home", "she go"], 1: [""], 6: ["they go", ""]}
    scores = {i: model.score([LINES[i].decode()], [each]) for i, each in wanted.items()}
    assert (code, len(found)) == (3, len(LINES))
    for i, line in enumerate(found):
        expected = [each for best in scores.get(i, ()) for each in (best, *best.alternatives)]
        assert line == "\t".join(f"{each.score:.6f}" for each in expected)
    places = [line.partition("] ")[2].partition(": ")[0] for line in err.splitlines()]
    assert places == [f"{source}:3", f"{source}:4", f"{outputs}:5", f"{source}:6"]
    code, found, err = command(capsys, folder, source, "--score", outputs, "--output-format", "jsonl", *flags)
    assert code == 3
    described = [json.loads(line) for line in found]
    assert [sorted(each) for each in described if each["id"] in (3, 4, 5, 6)] == [["error", "id"]] * 4
    for i, (best,) in scores.items():
        for each, hypothesis in zip(described[i]["hypotheses"], (best, *best.alternatives), strict=True):
            assert each == {
                "text": hypothesis.text,
                "tokens": [*hypothesis.pieces],
                "score": hypothesis.score,
                "positional_scores": [*(hypothesis.positional_scores or ())],
            }


def test_truncation_is_of_sources_alone(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, outputs = write(tmp_path / "in.txt", *LINES), write(tmp_path / "out.txt", *OUTPUTS)
    code, found, err = command(capsys, folder, source, "--score", outputs, "--truncate")
    assert (code, [bool(line) for line in found]) == (3, [True, True, False, False, False, True, True])
    assert "the output has 64 tokens > 63. Fix: split the line and its output, or leave both out." in err


def test_files_that_are_not_parallel_are_refused(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, outputs = write(tmp_path / "in.txt", *LINES), write(tmp_path / "out.txt", *OUTPUTS[:-1])
    code, found, err = command(capsys, folder, source, "--score", outputs)
    assert (code, found) == (4, [])
    assert err == (
        f"nartk: error[E301 LengthMismatch] {outputs} has 6 lines, but there are 7 sentences. "
        "Fix: give a line for each sentence, an empty one where it has none.\n"
    )


@pytest.mark.parametrize(
    ("sentences", "outputs", "message"),
    [
        (1, 2, "has 2 lines, but there is 1 sentence."),
        (2, 1, "has 1 line, but there are 2 sentences."),
        (-1, 2, "has more than 1 line, but there is 1 sentence."),
        (-2, 1, "has 1 line, but there is more than 1 sentence."),
        (-3, 2, "has 2 lines, but there are more than 2 sentences."),
    ],
)
def test_one_is_singular(
    sentences: int,
    outputs: int,
    message: str,
    folder: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of stdin, below 0 here, it shows only by reading how many sentences there are."""
    lines = b"he goes\n" * abs(sentences)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    source = "-" if sentences < 0 else write(tmp_path / "in.txt", *lines.splitlines())
    given = write(tmp_path / "out.txt", *[b"he goes"] * outputs)
    code, _, err = command(capsys, folder, source, "--score", given)
    assert code == 4
    assert message in err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--strategy", "greedy"], "--score with --strategy greedy: nothing is decoded"),
        (["--max-len", "9"], "--score with --max-len: nothing is decoded"),
        (["--prefix-column", "2"], "--score with --prefix-column: nothing is decoded"),
        (["--drafts", "x"], "--score with --drafts: nothing is decoded"),
        (["--trace", "x"], "--score with --trace: nothing is decoded"),
        (["--no-guard"], "--score with --no-guard: nothing is decoded"),
        (["--min-edit-confidence", "0.5"], "--score with --min-edit-confidence: nothing is decoded"),
    ],
)
def test_options_of_decoding_are_refused(
    flags: list[str], message: str, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "in.txt", *LINES)
    code, found, err = command(capsys, folder, source, "--score", source, *flags)
    assert (code, found) == (2, [])
    assert err == f"nartk: error[E101 Usage] {message}. Fix: leave one of them out.\n"


def test_stdin_is_one_of_the_two(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = command(capsys, folder, "--score", "-")
    assert code == 2
    assert "--score and the sentences are both stdin" in err


def test_statistics_say_what_was_done(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, stats = write(tmp_path / "in.txt", b"she go", b"he"), tmp_path / "stats.json"
    assert command(capsys, folder, source, "--score", source, "--stats", str(stats))[0] == 0
    found = json.loads(stats.read_text())
    assert (found["strategy"], found["sentences"], found["tokens"], found["passes"]) == ("score", 2, 5, 2)
    assert found["signature"].startswith("strategy:score|exact:")


def test_ordinary_text_is_scored_as_one_sentence() -> None:
    """Tokens are those that the model reads and writes, whatever the text's spaces are."""
    line, target = 'She go home. He said: "I am agree."', 'She went home. He said: "I agree."'
    ordinary, tokenized = load(), load(pretokenized=True)
    text = ordinary.tokenization
    (found,) = ordinary.score([line], [target])
    (wanted,) = tokenized.score([text.tokens(line)], [text.tokens(target)])
    assert (found.tokens, found.score) == (wanted.tokens, wanted.score)
