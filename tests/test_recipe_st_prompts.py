"""Spoken numbers of a professional voice: words and recordings, and an alignment to their known borders."""

from __future__ import annotations

import json
import lzma
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import fairseq_host
from support.commands import main_of, run
from support.recipe_scripts import imported

from nartk.data.audio.features import FeatureSettings, compute
from nartk.data.audio.normalization import Statistics
from nartk.data.audio.sounds import write_wav
from nartk.data.audio.targets import SpeechCorpus
from nartk.data.text import CORPORA

prompts = imported("st", "prompts.py")
TRAINING = """
--task nartk_speech --arch nartk_owsm_ctc --criterion nartk_speech --cpu --no-self-conditioning
--intermediate-ctc= --input-features 80 --d-model 96 --encoder-layers 3 --subsampling-channels 16
--encoder-ffn 256 --encoder-heads 4 --conv-kernel 15 --max-source-len 2000 --max-target-len 128
--time-width 10 --bin-width 8 --max-tokens 4000 --optimizer nartk_adamw --weight-decay 0.01 --clip-norm 1.0
--lr-scheduler polynomial_decay --lr 0.002 --warmup-updates 80 --total-num-update 700 --max-update 200
--seed 1 --num-workers 0 --no-epoch-checkpoints --disable-validation
"""


def said(number: int, language: str) -> str:
    return " ".join(prompts.words(language)[name].words for name in prompts.names_of(number, language))


def test_french_words_are_those_of_the_corpus_of_numbers() -> None:
    """Of all 7,000 numbers, but for hyphens and the s that quatre-vingts and cents end in alone."""
    count = 0
    for split in ("train", "dev", "test"):
        with lzma.open(CORPORA / f"fsdd_numbers.{split}.tsv.xz", "rt", encoding="utf-8") as file:
            header, *rows = (line.rstrip("\n").split("\t") for line in file)
        for row in rows:
            known = dict(zip(header, row, strict=True))
            wanted = re.sub(r"(cent|vingt)s\b", r"\1", known["fr"]).replace("-", " ")
            assert said(int(known["number"]), "fr").replace("-", " ") == wanted
            count += 1
    assert count == 7000


@pytest.mark.parametrize(
    ("number", "spanish", "italian"),
    [
        (0, "cero", "zero"),
        (16, "dieciséis", "sedici"),
        (23, "veintitrés", "venti tre"),
        (28, "veintiocho", "ventotto"),
        (41, "cuarenta y uno", "quarantuno"),
        (100, "cien", "cento"),
        (101, "ciento uno", "cento uno"),
        (555, "quinientos cincuenta y cinco", "cinque cento cinquanta cinque"),
        (1000, "mil", "mille"),
        (1900, "mil novecientos", "mille nove cento"),
        (2181, "dos mil ciento ochenta y uno", "due mila cento ottantuno"),
        (9999, "nueve mil novecientos noventa y nueve", "nove mila nove cento novanta nove"),
    ],
)
def test_spanish_and_italian_by_hand(number: int, spanish: str, italian: str) -> None:
    assert (said(number, "es"), said(number, "it")) == (spanish, italian)


@pytest.mark.parametrize("language", ["fr", "es", "it"])
def test_each_recording_is_used_and_heard(language: str) -> None:
    used = {name for number in range(10_000) for name in prompts.names_of(number, language)}
    sounds = prompts.recordings(language)
    assert used == {*sounds} == {*prompts.words(language)}
    for samples in sounds.values():
        assert 0.1 < len(samples) / prompts.RATE < 2
        assert 0.1 < np.abs(samples).max() <= 1
    found = prompts.spoken(4229, language, np.random.default_rng(1))
    again, other = (prompts.spoken(4229, language, np.random.default_rng(seed)) for seed in (1, 2))
    assert found.samples.tobytes() == again.samples.tobytes() != other.samples.tobytes()
    names = prompts.names_of(4229, language)
    assert len(found.begins) == len(names)
    for name, begin in zip(names, found.begins, strict=True):
        at = round(begin * prompts.RATE)
        assert (found.samples[at : at + len(sounds[name])] == sounds[name]).all()
    for number in (-1, 10_000):
        with pytest.raises(ValueError, match="0 to 9999 in fr, es, it"):
            prompts.names_of(number, language)


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
@pytest.mark.parametrize(("language", "voice"), [("fr", "fr"), ("es", "es-419"), ("it", "it")])
def test_phonemes_are_espeaks(language: str, voice: str) -> None:
    for word in prompts.words(language).values():
        command = ["espeak-ng", "-v", voice, "--ipa", "-q", word.words]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert re.sub(r"[\sˈˌʲ\u0361]", "", found) == "".join(word.phonemes)


@pytest.mark.slow
def test_borders_of_an_alignment_are_near_the_known_ones(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A CTC model that three minutes of a core have trained; the median is to be within 40 ms."""
    fairseq_host.require_fairseq()
    rng, known, lines = np.random.default_rng(1), [], {}
    for split, count in (("train", 1200), ("valid", 4), ("test", 60)):
        (tmp_path / split).mkdir()
        lines[split] = []
        for i in range(count):
            said_in_it = rng.choice(sorted(prompts.words("fr")), rng.integers(2, 7)).tolist()
            spoken = prompts.joined(said_in_it, "fr", rng)
            write_wav(tmp_path / split / f"{i}.wav", spoken.samples, prompts.RATE)
            lines[split].append(" ".join(spoken.phonemes))
            if split == "test":
                known.append(spoken)
        names = [f"{split}/{i}.wav" for i in range(count)]
        (tmp_path / f"{split}.tsv").write_text("\n".join([str(tmp_path), *names]) + "\n")
        (tmp_path / f"{split}.txt").write_text("\n".join(lines[split]) + "\n")
    phonemes = sorted({each for line in lines["train"] for each in line.split()})
    (tmp_path / "dict.txt").write_text("".join(f"{each} 1\n" for each in phonemes))
    settings = {"name": "audio", "bins": 80, "cmvn": "global", "statistics": "cmvn.json", "padding": 8}
    (tmp_path / "input.json").write_text(json.dumps(settings))
    sounds = [prompts.recordings("fr")[name] for name in sorted(prompts.recordings("fr"))]
    Statistics.of(compute(each, FeatureSettings()) for each in sounds).write(tmp_path / "cmvn.json")
    python = [sys.executable, "-m", "nartk"]
    run([*python, "train", str(tmp_path), *TRAINING.split(), "--save-dir", str(tmp_path / "checkpoints")])
    last = str(tmp_path / "checkpoints" / "checkpoint_last.pt")
    run([*python, "convert", last, "--output", str(tmp_path / "model"), "--dict", str(tmp_path / "dict.txt")])

    command = f"align {tmp_path}/model {tmp_path}/test.tsv -o {tmp_path}/out"
    code, _, err = main_of(command, capfd)
    assert (code, "60 recordings" in err) == (0, True)
    errors = []
    for spoken, found in zip(known, SpeechCorpus.read(tmp_path / "out" / "test.speech.npz"), strict=True):
        borders = np.cumsum([0, *found.durations]) * 256 / 22050
        at = 0
        for text, begin in zip(spoken.words.split(), spoken.begins, strict=True):
            if at:
                errors.append(borders[at] - begin)
            at += next(len(each.phonemes) for each in prompts.words("fr").values() if each.words == text)
        assert at == len(found.durations)
    assert len(errors) > 100
    assert np.median(np.abs(errors)) < 0.04
