"""The recipe that compares borders of phonemes with another aligner's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.recipe_scripts import imported

from nartk.data.audio.sounds import write_wav
from nartk.data.audio.targets import SpeechCorpus, Utterance

borders = imported("st", "borders.py")


@pytest.mark.parametrize(
    ("symbol", "phonemes"),
    [
        ("ˈɑːɹ", "AA R"),
        ("dʒ", "JH"),
        ("ˌaɪɚ", "AY ER"),
        ("əl", "AH L"),
        ("n\u0329", "AH N"),
        ("ɾ", "T"),
        ("iː", "IY"),
        ("ç", ""),
        ("aʁ", ""),
    ],
)
def test_symbols_of_espeak_have_names_in_the_cmu_dictionary(symbol: str, phonemes: str) -> None:
    assert borders.cmu(symbol) == phonemes


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_a_sentence_has_the_dictionarys_phonemes() -> None:
    """Copied from CMUdict 0.7b, but for stress: THIS, IS, A, VERY, SMALL, HOUSE, WITH, CHILDREN."""
    found = borders.phonemes_of("This is a very small house with children .")
    assert found == "DH IH S IH Z AH V EH R IY S M AO L HH AW S W IH DH CH IH L D R AH N"


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Two recordings, and what pocketsphinx prints of them: words of phonemes, some of silence."""
    (tmp_path / "samples/align").mkdir(parents=True)
    spoken = {
        "first": [[("SIL", 0.0)], [("DH", 0.1), ("AH", 0.2)], [("SIL", 0.3)], [("K", 0.4), ("AE", 0.5)]],
        "second": [[("N", 0.0), ("OW", 0.25)]],
    }
    for name, words in spoken.items():
        write_wav(tmp_path / f"samples/{name}.wav", np.zeros(16000, np.float32), 16000)
        said = [{"t": "w", "b": 0, "w": [{"t": t, "b": b, "d": 0.1} for t, b in each]} for each in words]
        (tmp_path / f"samples/align/{name}.phone.json").write_text(json.dumps({"b": 0, "w": said}))
    return tmp_path / "samples"


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
def test_recordings_have_the_other_aligners_phonemes(samples: Path, tmp_path: Path) -> None:
    borders.prepare(tmp_path, samples, {"train": 3, "valid": 1})
    assert (tmp_path / "data.read/test.txt").read_text() == "DH AH K AE\nN OW\n"
    known = {line.split()[0] for line in (tmp_path / "data.aligner/dict.txt").read_text().splitlines()}
    assert len(known) == 39
    for split, count in (("train", 3), ("valid", 1)):
        said = (tmp_path / f"data.aligner/{split}.txt").read_text().splitlines()
        assert (
            len(said) == len((tmp_path / f"data.aligner/{split}.tsv").read_text().splitlines()) - 1 == count
        )
        assert {phoneme for line in said for phoneme in line.split()} <= known


def test_distances_of_borders_by_hand(
    samples: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Borders at 0.2, 0.4, 0.5 and 0.25 s; ours at 0.21, 0.37, 0.6 and 0.25 s."""
    (tmp_path / "data.read").mkdir()
    known = [borders.borders_of(samples / f"align/{name}.phone.json") for name in ("first", "second")]
    (tmp_path / "data.read/borders.json").write_text(json.dumps(known))
    (tmp_path / "aligned").mkdir()
    (tmp_path / "aligned/mel.json").write_text(json.dumps({"hop": 160, "sample_rate": 16000}))
    found = []
    for durations in ([21, 16, 23, 40], [25, 75]):
        pitch = np.zeros(len(durations), np.float32)
        found.append(Utterance(np.zeros((100, 80), np.float32), np.array(durations), pitch, pitch))
    SpeechCorpus.of(found).write(tmp_path / "aligned/test.speech.npz")
    borders.score(tmp_path)
    assert capsys.readouterr().out == (
        "4 borders: median 0.020 s apart, 90th percentile 0.079; 75% within 0.04; ours 0.005 later (median)\n"
    )


def test_a_folder_without_alignments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no align/NAME\.phone\.json"):
        borders.prepare(tmp_path / "out", tmp_path, {"train": 1})
