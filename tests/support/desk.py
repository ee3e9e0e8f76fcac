"""Files and folders that the documents' commands name, made small: texts, recordings, models."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nartk.checkpoints.loading import load_checkpoint
from nartk.data.audio.sounds import resample
from nartk.data.text import read_shipped
from nartk.vocab import Vocab
from support import (
    fairseq_host,
    hf_folders,
    marian_models,
    owsm_ctc_models,
    speaking,
    whisper_models,
)
from support.documents import ROOT
from support.light_drafters import write_drafter
from support.shortlists import blob, random_best
from support.sounds import wav
from support.speech_models import save_random_speech
from support.spoken_numbers import spoken_numbers

Array = npt.NDArray[np.float32]
Make = Callable[[Path], object]  # writes a file or a folder
RATE = 16000
LINES = ["She go home.", "He have many informations about the the city.", "This is fine."]
JFLEG = ["She go to school .", "He have many informations about the the city .", "This is fine ."]
SIZES = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
SIZES |= {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 512}
M2M = {**SIZES, "pad_token_id": 1, "eos_token_id": 2, "bos_token_id": 0, "decoder_start_token_id": 2}
T5 = {"d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "tie_word_embeddings": True, "d_model": 16}
T5 |= {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


def lines(*texts: str) -> Make:
    return lambda path: path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def shipped(name: str) -> Make:
    """The model that ships, under another name."""
    return lambda path: path.symlink_to(ROOT / "data" / "models" / name)


def clone(name: str) -> Make:
    """A folder of the clone that a command reads."""
    return lambda path: path.symlink_to(ROOT / name)


# Recordings ----------------------------------------------------------------------------------------------


@cache
def _spoken() -> list[tuple[Array, int, str]]:
    """The first numbers of the test set that ships: samples, their rate, and words."""
    import soundfile

    with tempfile.TemporaryDirectory() as folder:
        names, said = spoken_numbers(Path(folder), 3)
        return [
            (*soundfile.read(name, dtype="float32"), text) for name, text in zip(names, said, strict=True)
        ]


def number(path: Path) -> None:
    import soundfile

    soundfile.write(path, *_spoken()[0][:2])


def talk(path: Path) -> None:
    """Three numbers at 16 kHz, in the format of the path's suffix."""
    import soundfile

    samples, rates, _ = zip(*_spoken(), strict=True)
    soundfile.write(path, resample(np.concatenate(samples), rates[0], RATE), RATE)


def folder_of(names: Mapping[str, Make]) -> Make:
    def make(path: Path) -> None:
        for name, each in names.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            each(path / name)

    return make


def manifest(path: Path) -> None:
    """A list as fairseq's, with what is said beside it."""
    number(path.with_suffix(".wav"))
    lines(str(path.parent), path.with_suffix(".wav").name)(path)
    lines(_spoken()[0][2])(path.with_suffix(".txt"))


def prompts(path: Path) -> None:
    """Recordings with languages and tasks, as models with prompts read them."""
    sound = path.parent / "prompted.wav"
    sound.write_bytes(wav(owsm_ctc_models.sound_of(2.4), owsm_ctc_models.RATE, "FLOAT"))
    lines(f"{sound}\t<eng> <asr>", f"{sound}\t<eng> <st_deu>")(path)


# Models --------------------------------------------------------------------------------------------------


def marian(path: Path) -> None:
    model = hf_folders.text_folder(path, seed=2)
    start = model.config.decoder_start_token_id
    model.model.shared.weight.data[start] = 0  # as in Marian's own models, where it is no word
    model.final_logits_bias[0, start] = -1e4
    model.save_pretrained(path)


def transformers_of(family: str, tokenizer: Callable[[Path], None], settings: Mapping[str, Any]) -> Make:
    """A random model of a family behind the files of its tokenizer."""

    def make(path: Path) -> None:
        path.mkdir()
        tokenizer(path)
        words = json.loads((path / "config.json").read_text(encoding="utf-8"))["vocab_size"]
        hf_folders.random_model(family, {**settings, "vocab_size": words}, 4).save_pretrained(path)

    return make


def converted(make: Make, *files: str) -> Make:
    """What CTranslate2's converter makes of a folder of transformers, with these of its files."""

    def convert(path: Path) -> None:
        from ctranslate2.converters import TransformersConverter

        with tempfile.TemporaryDirectory() as folder:
            make(theirs := Path(folder, "theirs"))
            TransformersConverter(str(theirs), copy_files=[*files]).convert(str(path))

    return convert


def argos(path: Path) -> None:
    converted(marian, "source.spm")(path / "model")
    shutil.move(path / "model" / "source.spm", path / "sentencepiece.model")
    (path / "metadata.json").write_text('{"from_code": "en", "to_code": "es", "target_prefix": ""}')


def firefox(path: Path) -> None:
    """A folder of Firefox's, with its shortlist."""
    marian_models.model(path, 2, form="int8")
    (path / "model.xxyy.intgemm.alphas.bin").rename(path / "model.enpt.intgemm.alphas.bin")
    checkpoint = load_checkpoint(path)
    count = sum(not word.startswith("<unused_") for word in checkpoint.target_vocab.words) - 1
    lexicon = blob(random_best(random.Random(0), count, count), count, 5)
    (path / "lex.50.50.enpt.s2t.bin").write_bytes(lexicon)


def packed(make: Make) -> Make:
    """The same, its files compressed one by one."""

    def pack(path: Path) -> None:
        make(path)
        for each in [*path.iterdir()]:
            each.with_name(f"{each.name}.gz").write_bytes(gzip.compress(each.read_bytes()))
            each.unlink()

    return pack


def whisper(path: Path) -> None:
    settings = whisper_models.random_settings(random.Random(3), seconds=30.0)
    heads = [[layer, 0] for layer in range(settings["decoder_layers"])]
    model = whisper_models.random_model(settings, 3, ends=3.0, times=1.0, alignment_heads=heads)
    whisper_models.save(model, path)


def speech(architecture: str, strategy: str | None = None, **settings: Any) -> Make:
    return lambda path: save_random_speech(
        path, architecture, 2, words=12, max_source_len=2000, strategy=strategy, **settings
    )


def owsm(path: Path) -> None:
    from nartk.cli.convert import main

    with tempfile.TemporaryDirectory() as folder:
        theirs = owsm_ctc_models.write(Path(folder, "theirs"), "published")
        assert main([str(theirs), "--output", str(path), "--quiet"]) == 0


def fairseq_checkpoint(path: Path) -> None:
    """A checkpoint that names its folder of data, where its dictionaries are."""
    data = path.parent / f"{path.stem}.data"
    data.mkdir()
    words = Vocab.from_words([f"w{i}" for i in range(fairseq_host.WORDS - 4)])
    for language in ("src", "trg"):
        words.write(data / f"dict.{language}.txt")
    task = {"data": str(data), "source_lang": "src", "target_lang": "trg"}
    fairseq_host.native_checkpoint(path, cfg={"model": _model_of(path), "task": task})


def _model_of(path: Path) -> Namespace:
    import torch

    fairseq_host.native_checkpoint(path)
    found: Namespace = torch.load(path, weights_only=False)["cfg"]["model"]
    return found


def random_drafter(path: Path) -> None:
    """A model with the dictionaries of `fairseq_checkpoint`."""
    from nartk.cli.convert import main

    with tempfile.TemporaryDirectory() as folder:
        fairseq_checkpoint(checkpoint := Path(folder, "small.pt"))
        assert main([str(checkpoint), "--output", str(path), "--quiet"]) == 0


def codes(path: Path) -> None:
    lines("#version: 0.2", "t h", "th e</w>")(path)


def speaker(path: Path) -> None:
    from nartk.cli.convert import main

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = speaking.write_training(Path(folder)) / "checkpoint.pt"
        assert main([str(checkpoint), "--output", str(path), "--quiet"]) == 0


def vocoder(path: Path) -> None:
    """HiFi-GAN as fairseq stores it, of s2s-digits' spectrograms and small."""
    import torch
    from fairseq.models.text_to_speech.hifigan import Generator

    config = (ROOT / "data" / "models" / "s2s-digits" / "config.json").read_text(encoding="utf-8")
    mel = json.loads(config)["output"]["mel"]
    settings = {
        **{"num_mels": mel["bins"], "sampling_rate": mel["sample_rate"], "hop_size": mel["hop"]},
        **{"win_size": mel["window"], "fmin": mel["low"], "fmax": mel["high"]},
        **{"upsample_rates": [8, 8, 4], "upsample_kernel_sizes": [16, 16, 8]},
        **{"upsample_initial_channel": 32, "resblock": "1"},
        **{"resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3, 5]]},
    }
    path.mkdir()
    (path / "config.json").write_text(json.dumps(settings))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of what fairseq calls
        network = Generator({**settings, "model_in_dim": mel["bins"]})
    torch.save({"generator": network.state_dict()}, path / "generator")


# Corpora -------------------------------------------------------------------------------------------------


def corpora(path: Path) -> None:
    """The folder of data of a clone, with a hundred lines of each text."""
    import lzma

    (path / "corpora").mkdir(parents=True)
    (path / "models").symlink_to(ROOT / "data" / "models")
    for name in ("ud_ewt", "tanaka", "wikisplit"):
        text = "".join(f"{line}\n" for line in [*read_shipped(f"{name}.txt.xz")][:100])
        (path / "corpora" / f"{name}.txt.xz").write_bytes(lzma.compress(text.encode()))


def references(path: Path) -> None:
    lines(*(line.replace(" go ", " goes ") for line in JFLEG))(path)


def drafter(path: Path) -> None:
    write_drafter(path, ROOT / "data" / "models" / "gec-en")
