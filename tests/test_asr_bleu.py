"""ASR-BLEU equals sacrebleu on the transcripts of what the recogniser hears, and says what it cannot hear."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import tiny
from support.commands import main_of
from support.recipe_scripts import RECIPES
from support.spoken_numbers import spoken_numbers

import nartk

pytest.importorskip("sacrebleu", reason="sacrebleu is not installed")
pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="the recordings are not beside the tests")
COUNT = 12
Report = dict[str, Any]


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder of 1.wav, 2.wav, ..., 12.wav, and what they say."""
    made, folder = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("spoken")
    files, said = spoken_numbers(made, COUNT)
    for number, file in enumerate(files, start=1):
        shutil.copy(file, folder / f"{number}.wav")
    return folder, said


@pytest.fixture
def score(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Report]:
    def run(sounds: Path, references: list[str], *flags: object) -> Report:
        (tmp_path / "ref.txt").write_text("".join(f"{line}\n" for line in references))
        command = f"score asr-bleu {sounds} --recogniser asr-digits --ref {tmp_path / 'ref.txt'} --json"
        code, out, err = main_of(" ".join([command, *map(str, flags)]), capfd)
        return (json.loads(out) if code == 0 else {}) | {"code": code, "stderr": err}

    return run


def sacrebleu_of(transcripts: list[str], references: list[str]) -> float:
    import sacrebleu

    lower = [[line.lower() for line in lines] for lines in (transcripts, references)]
    return float(sacrebleu.corpus_bleu(lower[0], [lower[1]]).score)


def test_it_is_sacrebleu_of_the_transcripts(
    spoken: tuple[Path, list[str]], score: Callable[..., Report]
) -> None:
    folder, said = spoken
    model = nartk.load("asr-digits")
    files = [str(folder / f"{number}.wav") for number in range(1, COUNT + 1)]
    heard = [each.text for each in model.decode(files)]
    # Another text than what is said, of which some is right, in capitals.
    wrong = [line.upper() if i % 3 else "one " + line for i, line in enumerate(said)]
    found = score(folder, wrong, "--ref-speech", folder)
    wanted = sacrebleu_of(heard, wrong)
    assert 20 < wanted < 99
    assert found["score"] == pytest.approx(wanted, abs=1e-9)
    assert (found["unheard"], found["empty"], found["sentences"]) == (0, 0, COUNT)
    (beside,) = found["others"]
    assert (beside["metric"], beside["score"]) == ("reference-speech", found["score"])
    for part in ("case:lc", "tok:13a", "recogniser:strategy:ctc-greedy", model.checkpoint.fingerprint):
        assert part in found["signature"]
    assert found["confidence"]["low"] < wanted < found["confidence"]["high"]
    assert score(folder / "3.wav", [heard[2]])["score"] == pytest.approx(100)
    assert score(folder / "3.wav", [heard[1]])["score"] < 50
    # Known bad: files in the order of their letters, 1, 10, 11, 12, 2.
    letters = [heard[i] for i in sorted(range(COUNT), key=lambda i: str(i + 1))]
    assert sacrebleu_of(letters, wrong) < wanted - 10


def test_what_cannot_be_heard_is_counted(
    spoken: tuple[Path, list[str]], score: Callable[..., Report], tmp_path: Path
) -> None:
    folder, said = spoken
    some = tmp_path / "some"
    shutil.copytree(folder, some)
    (some / "2.wav").unlink()
    (some / "3.wav").write_bytes(b"RIFF no sound")
    (some / "notes.txt").write_text("no sound by its name")
    heard = [each.text for each in nartk.load("asr-digits").decode([str(some / f"{i}.wav") for i in (1, 4)])]
    found = score(some, said)
    assert (found["code"], found["unheard"], found["empty"]) == (0, 2, 0)
    assert f"{some}: there is no '2', which counts as empty" in found["stderr"]
    assert f"{some / '3.wav'}: cannot be heard, and counts as empty: " in found["stderr"]
    assert found["score"] < score(folder, said)["score"] - 5
    # With ids the names of the files are those of the references, in any order.
    for name in ("1", "4"):
        shutil.copy(some / f"{name}.wav", tmp_path / f"utt_{name}.wav")
    pair = tmp_path / "pair.scp"
    pair.write_text("".join(f"{name} {tmp_path / f'utt_{name}.wav'}\n" for name in ("4", "1")))
    found = score(pair, [f"utt_1 {heard[0]}", f"utt_2 {said[1]}", f"utt_4 {heard[1]}"])
    assert (found["unheard"], found["sentences"]) == (1, 3)
    assert found["score"] == pytest.approx(
        sacrebleu_of([heard[0], "", heard[1]], [heard[0], said[1], heard[1]])
    )


def test_a_list_is_in_its_order(
    spoken: tuple[Path, list[str]], score: Callable[..., Report], tmp_path: Path
) -> None:
    folder, said = spoken
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"{folder / f'{number}.wav'}\n" for number in (10, 3)))
    assert score(listed, [said[9], said[2]])["score"] == pytest.approx(100)
    assert score(listed, [said[2], said[9]])["score"] < 90


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("WAVS --ref FEW", 4, "WAVS has 12 sentences, but FEW has 2|FEW has 2 sentences, but WAVS has 12"),
        ("EMPTY --ref FEW", 2, "EMPTY: holds no sound files"),
        ("WAVS --ref FEW --recogniser TEXT", 2, "TEXT' reads text"),
        ("nowhere.txt --ref FEW", 2, "nowhere.txt: cannot read"),
    ],
    ids=("few", "empty", "text", "missing"),
)
def test_bad_input_is_named(
    spoken: tuple[Path, list[str]],
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    flags: str,
    code: int,
    message: str,
) -> None:
    (tmp_path / "few").write_text("one\ntwo\n")
    (tmp_path / "empty").mkdir()
    tiny.random_model(tmp_path / "text", words=tiny.WORDS.split())
    names = {
        "WAVS": spoken[0],
        "FEW": tmp_path / "few",
        "EMPTY": tmp_path / "empty",
        "TEXT": tmp_path / "text",
    }

    def named(text: str) -> str:
        for name, path in names.items():
            text = text.replace(name, str(path))
        return text

    flags = flags if "--recogniser" in flags else f"{flags} --recogniser asr-digits"
    found, out, err = main_of(f"score asr-bleu {named(flags)}", capfd)
    assert (found, out) == (code, "")
    assert any(named(each) in err for each in message.split("|"))


def test_a_recogniser_is_needed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ref").write_text("one\n")
    code, _, err = main_of(f"score asr-bleu {tmp_path} --ref {tmp_path / 'ref'}", capfd)
    assert code == 2
    assert "--recogniser is missing. Fix: name a model of speech" in err


def test_outputs_of_text_are_not_scored() -> None:
    from nartk.cli.score import scorer_of
    from nartk.errors import UsageError

    with pytest.raises(UsageError, match="asr-bleu scores sound, and outputs are text"):
        scorer_of("asr-bleu", references=["ref"], source="in.txt")
