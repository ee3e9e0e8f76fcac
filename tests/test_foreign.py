"""Folders of other libraries, and names on a hub, are told by name with the way in; exports are read back."""

from __future__ import annotations

import json
import re
import struct
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest
from support import tiny
from support.commands import main_of

import nartk
from nartk.cli.convert import main as convert

HUB = "Helsinki-NLP/opus-mt-en-de"
FOREIGN = {
    "argos": (("metadata.json", "model/model.bin", "model/config.json"), "a model of CTranslate2 with"),
    "ctranslate2": (("model.bin", "config.json", "shared_vocabulary.json"), "a model of CTranslate2"),
    "older ctranslate2": (("model.bin", "source_vocabulary.txt", "target_vocabulary.txt"), "CTranslate2"),
    "ctranslate2 in parts": (
        ("model.bin.part1", "config.json", "vocabulary.txt"),
        "in parts. Fix: join them",
    ),
    "marian": (("opus.bpe32k-bpe32k.transformer.model1.npz.best-perplexity.npz", "decoder.yml"), "of Marian"),
    "onnx": (("encoder_model.onnx", "decoder_model.onnx"), "a model in ONNX"),
    "gguf": (("model.gguf",), "a model in GGUF"),
    "funasr": (("am.mvn", "model.pt", "config.yaml"), "a model of FunASR"),
    "espnet": (("valid.acc.ave.pth", "config.yaml"), "a model of ESPnet"),
    "fairseq": (
        ("wmt.pt", "dict.en.txt", "dict.de.txt"),
        "a folder of fairseq's checkpoints. Fix: nartk-conv",
    ),
}


# A model.bin of version 6: a network's name and revision, no tensors and no other names of them.
EMPTY = struct.pack("<IH23sIII", 6, 23, b"TransformerDecoderSpec\0", 7, 0, 0)


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("she goes to school .\nshe sees nothing\n\n</s> she\n")
    return tmp_path / "in.txt"


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("command", ["decode model in.txt", "convert model --output made --to hf"])
def test_another_librarys_folder_is_named(command: str, name: str, lines: Path, capfd: Any) -> None:
    files, what = FOREIGN[name]
    for each in files:
        path = Path("model", each)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"bos_token": "<s>"}) if each.endswith(".json") else "")
        if path.name == "model.bin":
            path.write_bytes(EMPTY)
    code, output, errors = main_of(command, capfd)
    assert (code, output) == (5, "")
    if name in ("espnet", "funasr") and command.startswith("convert"):  # which reads such a folder
        assert errors.startswith("nartk: error[E402 Checkpoint] model/config.yaml: holds no settings by name")
        return
    assert errors.startswith("nartk: error[E403 UnsupportedCheckpoint] model: is ")
    assert what in errors
    assert re.search(r"\. Fix: (name |nartk-convert |join them: cat )", errors)
    assert errors.count("\n") == 1


@pytest.mark.parametrize("name", [HUB, f"{HUB}@v1", "checkpoints/last"])
@pytest.mark.parametrize(
    "command", ["decode {} in.txt", "convert {} --output made", "verify {} in.txt", "decode {}"]
)
def test_a_name_on_a_hub_that_cannot_be_reached(
    command: str, name: str, lines: Path, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "cache")
    code, output, errors = main_of(command.format(name), capfd)
    assert (code, output) == (2, "")
    assert errors.startswith(
        f"nartk: error[E401 ModelNotFound] {name!r} is no file and no folder, and did not"
    )
    assert errors.endswith(
        f"). Fix: check the name, or name the folder that `hf download {name.partition('@')[0]}` prints.\n"
    )
    assert errors.count("\n") == 1
    with pytest.raises(nartk.ModelNotFoundError, match="hf download"):
        nartk.load(HUB)


@pytest.mark.parametrize("command", ["decode texts/in.txt", "verify texts/in.txt in.txt"])
def test_a_missing_file_is_no_name_of_the_hub(command: str, lines: Path, capfd: Any) -> None:
    code, _, errors = main_of(command, capfd)
    assert code == 2
    assert "Hub" not in errors


def test_exports_are_read_back(lines: Path, capfd: Any) -> None:
    """Models of words between spaces and of pieces, special tokens in the text included."""
    pytest.importorskip("transformers")
    for name, words in (("words", tiny.WORDS.split()), ("pieces", None)):
        tiny.random_model(Path(name), words=words, seed=4)
        assert convert([name, "--to", "hf", "--output", f"{name}-hf", "--quiet"]) == 0
        found = []
        for folder in (name, f"{name}-hf"):
            code, output, errors = main_of(
                f"decode {folder} in.txt --strategy greedy --quiet --min-len 5 --max-len 20 --max-ratio 9 "
                "--no-repeat-ngram 2",
                capfd,
            )
            assert code == 0, errors
            found.append(output)
        assert found[0].strip()
        # Their tokenizer leaves an unknown word out, where ours writes a sign.
        ours, theirs = ([line.replace("⁇", "").split() for line in each.split("\n")] for each in found)
        assert ours == theirs
        assert found[0].count("\n") == found[1].count("\n") == 4


def test_an_export_for_ctranslate2_is_read_back(lines: Path, capfd: Any) -> None:
    pytest.importorskip("ctranslate2")
    for name, words in (("words", tiny.WORDS.split()), ("pieces", None)):
        tiny.random_model(Path(name), words=words, seed=4)
        assert convert([name, "--to", "ctranslate2", "--output", f"{name}-ct", "--quiet"]) == 0
        found = []
        for folder in (name, f"{name}-ct"):
            options = "--strategy greedy --quiet --min-len 5 --max-len 20 --max-ratio 9 --no-repeat-ngram 2"
            code, output, errors = main_of(f"decode {folder} in.txt {options}", capfd)
            assert code == 0, errors
            found.append(output)
        assert found[0].strip()
        assert found[0] == found[1]


def test_what_cannot_be_fetched_says_why(lines: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    """sacrebleu downloads the tokenizer flores200 where it is first used."""
    pytest.importorskip("sacrebleu")

    def fails(*_: Any, **__: Any) -> None:
        raise urllib.error.URLError(OSError(-2, "Name or service not known"))

    monkeypatch.setattr("urllib.request.urlopen", fails)
    monkeypatch.setenv("SACREBLEU", str(lines.parent / "cache"))
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(lines.parent / "cache"))
    for module in [each for each in sys.modules if each.startswith("sacrebleu.tokenizers.tokenizer_spm")]:
        monkeypatch.delitem(sys.modules, module)
    code, _, errors = main_of("score bleu in.txt --ref in.txt --tokenize flores200", capfd)
    assert code == 2
    assert errors.splitlines()[-1] == (
        "nartk: error[E104 MissingDependency] something that is needed cannot be fetched: [Errno -2] Name or "
        "service not known. Fix: see that the network is there, or do without; --debug shows what is fetched."
    )
