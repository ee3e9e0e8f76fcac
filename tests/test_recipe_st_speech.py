"""The recipe of translation into speech: its data, its systems and its table."""

from __future__ import annotations

import json
import math
import shutil
import wave
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.recipe_scripts import imported, script

from nartk.architectures import architectures
from nartk.data.audio.sounds import write_wav
from nartk.data.audio.targets import SpeechCorpus, Utterance

prompts = imported("st", "prompts.py")
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
needs_espeak = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def seconds(path: Path) -> float:
    with wave.open(str(path)) as file:
        return file.getnframes() / file.getframerate()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    folder = tmp_path_factory.mktemp("speech")
    given = ["--output", str(folder), "--quick", "--copies", "2", "--new", "20"]
    script("st", "prepare_speech.py", "--target", "es", *given)
    return folder


@needs_espeak
def test_a_sound_has_the_phonemes_of_its_number(prepared: Path) -> None:
    data = prepared / "data"
    table = prompts.words("es")
    known = {line.split()[0] for line in lines(data / "dict.txt")}
    for split in ("train", "valid", "test"):
        root, *paths = lines(data / f"{split}.tsv")
        texts = lines(data / f"{split}.txt")
        assert len(paths) == len(texts)
        assert all((Path(root) / path).is_file() for path in paths)
        assert {phoneme for text in texts for phoneme in text.split()} <= known
    rows = imported("asr", "corpora.py").numbers("test")
    numbers = {each.id: int("".join(str(DIGITS.index(word)) for word in each.text.split())) for each in rows}
    paths, texts = lines(data / "test.tsv")[1:], lines(data / "test.txt")
    for path, text, said in zip(paths, texts, lines(data / "test.words.txt"), strict=True):
        names = prompts.names_of(numbers[Path(path).stem], "es")
        assert text.split() == [phoneme for name in names for phoneme in table[name].phonemes]
        assert said.split() == [word for name in names for word in table[name].words.split()]


@needs_espeak
def test_the_voice_says_numbers_that_train_once(prepared: Path) -> None:
    english = dict(
        zip(lines(prepared / "data/train.tsv")[1:], lines(prepared / "data/train.txt"), strict=True)
    )
    paths, texts = lines(prepared / "data.voice/train.tsv")[1:], lines(prepared / "data.voice/train.txt")
    assert len({*paths}) == len(paths) == 200
    assert {path: text for path, text in english.items() if path in paths} == dict(
        zip(paths, texts, strict=True)
    )
    assert not any("new" in path or path.count("-") > 1 for path in paths)
    for path, text in zip(paths, texts, strict=True):
        assert 0.04 < seconds(prepared / "data.voice" / path) / len(text.split()) < 0.3
    tested = [Path(path).name for path in lines(prepared / "data.voice/test.tsv")[1:]]
    assert tested == [Path(path).name for path in lines(prepared / "data/test.tsv")[1:]]
    assert lines(prepared / "data.voice/test.txt") == lines(prepared / "data/test.txt")


@needs_espeak
def test_the_aligner_knows_no_word_by_the_others(prepared: Path) -> None:
    """Most pairs of neighbours are in no number."""
    table = {each.phonemes: name for name, each in prompts.words("es").items()}
    follow = {
        pair
        for number in range(10_000)
        for names in [prompts.names_of(number, "es")]
        for pair in pairwise(names)
    }
    texts = [tuple(text.split()) for text in lines(prepared / "data.aligner/train.txt")]
    assert len(texts) == 200
    found = [words_in(text, table) for text in texts]
    assert all(2 <= len(names) <= 6 for names in found)
    pairs = [pair for names in found for pair in pairwise(names)]
    assert sum(pair in follow for pair in pairs) < len(pairs) / 2


def words_in(phonemes: tuple[str, ...], table: dict[tuple[str, ...], str]) -> list[str]:
    """The fewest words that have these phonemes."""
    best: dict[int, list[str]] = {0: []}
    for end in range(1, len(phonemes) + 1):
        ways = [
            [*best[begin], table[phonemes[begin:end]]]
            for begin in range(end)
            if begin in best and phonemes[begin:end] in table
        ]
        if ways:
            best[end] = min(ways, key=len)
    return best[len(phonemes)]


@needs_espeak
def test_the_recogniser_hears_other_voices(prepared: Path) -> None:
    folder = prepared / "data.recogniser"
    known = {line.split()[0] for line in lines(folder / "dict.txt")}
    texts = lines(folder / "train.txt")
    assert len(texts) == 200
    assert {word for text in texts for word in text.split()} <= known
    assert {word for line in lines(prepared / "data/test.words.txt") for word in line.split()} <= known
    sizes: dict[str, set[float]] = {}
    for path, text in zip(lines(folder / "train.tsv")[1:], texts, strict=True):
        sizes.setdefault(text, set()).add(seconds(folder / path))
    again = [sorted(each) for each in sizes.values() if len(each) > 1]
    assert again  # the same number, by voices of other speeds
    assert max(each[-1] / each[0] for each in again) > 1.2


def test_pairs_are_those_that_were_aligned(tmp_path: Path) -> None:
    """Of three recordings the second could not be aligned."""
    pieces = tmp_path / "data", tmp_path / "data.fastspeech2"
    for folder in pieces:
        folder.mkdir()
    for name in ("dict.txt", "input.json", "cmvn.json"):
        (pieces[0] / name).write_text(name)
    (pieces[1] / "mel.json").write_text("{}")
    spoken = [
        Utterance(
            np.full((n, 4), n, np.float32),
            np.array([1, n - 1], np.int32),
            np.ones(2, np.float32),
            np.ones(2, np.float32),
        )
        for n in (3, 5)
    ]
    for split in ("train", "valid"):
        (pieces[1] / f"{split}.lst").write_text(f"/far/{split}/x-00000.wav\n/far/{split}/x-00002.wav\n")
        (pieces[1] / f"{split}.txt").write_text("d o\nu n\n")
        SpeechCorpus.of(spoken).write(pieces[1] / f"{split}.speech.npz")
    script("st", "prepare_speech.py", "--pair", "--output", str(tmp_path))
    paired = tmp_path / "data.daspeech"
    data = (tmp_path / "data").resolve()
    assert lines(paired / "train.lst") == [f"{data}/train/x-00000.wav", f"{data}/train/x-00002.wav"]
    assert lines(paired / "valid.txt") == ["d o", "u n"]
    assert SpeechCorpus.read(paired / "train.speech.npz").frames.tolist() == [3, 5]
    assert {path.name for path in paired.iterdir()} >= {"dict.txt", "input.json", "cmvn.json", "mel.json"}


def test_every_system_has_its_architecture_and_strategies() -> None:
    rows = [line.split("\t") for line in script("st", "speakers.py").splitlines()]
    assert [row for row in rows if row[0] == "missing"] == []
    models = {row[1]: row[2] for row in rows if row[0] == "model"}
    assert {*models.values()} == {"owsm_ctc", "fastspeech2", "transformer_tts", "speech_dag", "daspeech"}
    assert {*models.values()} <= {*architectures()}
    assert {row[1] for row in rows if row[0] == "decode"} == {
        "fastspeech2",
        *(f"tts-{n}" for n in (1, 2, 4)),
        "dag",
        "daspeech",
        "daspeech-path",
    }


def write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def test_the_table_by_hand(tmp_path: Path) -> None:
    (tmp_path / "systems.tsv").write_text(
        "model\tdag\tspeech_dag\t-\ndecode\tdag\tdag-greedy\t-\ndecode\tdaspeech\tdag-beam\t-\n"
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "data/test.tsv").write_text(f"{tmp_path}\na.wav\nb.wav\n")
    for name, size in (("a", 2.0), ("b", 3.0), ("ours", 1.0), ("theirs", 2.0), ("gone", 1.0)):
        if name != "gone":
            write_wav(tmp_path / f"{name}.wav", np.zeros(int(size * 8000), np.float32), 8000)
    (tmp_path / "out/reference.lst").write_text(f"{tmp_path}/theirs.wav\n{tmp_path}/theirs.wav\n")
    (tmp_path / "out/dag.dag-greedy.lst").write_text(f"{tmp_path}/ours.wav\n{tmp_path}/gone.wav\n")
    write(tmp_path / "out/dag.dag-greedy.json", {"seconds": 0.5, "speech": {"seconds": 1.0}})
    write(tmp_path / "out/dag.dag-greedy.graph.json", {"seconds": 0.25})
    for key, bleu in (("reference", 80.0), ("dag.dag-greedy", 60.0)):
        found = {"score": bleu, "signature": "asr", "others": [{"score": 80.0}]}
        write(tmp_path / f"scores/{key}.asr-bleu.json", found)
        for metric, score in (("wer", 12.5), ("ser", 25.0), ("per", 6.25)):
            write(tmp_path / f"scores/{key}.{metric}.json", {"score": score, "signature": metric})
    script("st", "spoken_table.py", "--work", str(tmp_path))
    table = lines(tmp_path / "table.md")
    assert table[2].startswith("| reference speech | - | 80.00 | 1.000 | 12.50 | 75.00 |")
    figures = f"60.00 | 0.750 | 12.50 | 75.00 | 6.25 | {math.log(2):.3f} | {1.75 / 5:.4f} | {1 / 5:.4f}"
    assert table[3] == f"| cascade | `dag-greedy` | {figures} |"
    assert table[4].startswith("| DASpeech | `dag-beam` | not run |")
