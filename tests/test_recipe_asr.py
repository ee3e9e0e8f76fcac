"""The speech recipe's own scripts: what ships and how it is put together, what its stages ask for, its table.

The stages themselves are real trainings: `recipes/asr/run.sh --quick` runs them.
"""

from __future__ import annotations

import io
import json
import lzma
import math
import shlex
import subprocess
import sys
import tarfile
import wave
from pathlib import Path

import numpy as np
import pytest
from support.recipe_scripts import RECIPES, assert_refused, script

from nartk.architectures import architecture
from nartk.data.text import CORPORA
from nartk.registry import make_strategy

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="the recipes are not beside the tests")

RATE = 8000  # Hz
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def samples(file: io.BufferedIOBase) -> np.ndarray:
    """The numbers of a sound file, by the standard library."""
    with wave.open(file) as sound:
        assert (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) == (RATE, 1, 2)
        return np.frombuffer(sound.readframes(sound.getnframes()), "<i2")


def numbers(split: str) -> list[dict[str, str]]:
    """The rows of a shipped manifest."""
    with lzma.open(CORPORA / f"fsdd_numbers.{split}.tsv.xz", "rt", encoding="utf-8") as file:
        header, *rows = (line.rstrip("\n").split("\t") for line in file)
    return [dict(zip(header, row, strict=True)) for row in rows]


def prepared(corpus: str, folder: Path, *args: str) -> Path:
    script("asr", "prepare.py", "--corpus", corpus, "--output", str(folder), *args)
    return folder


def test_no_number_and_no_recording_that_is_tested_is_trained_on() -> None:
    found = {split: numbers(split) for split in ("train", "dev", "test")}
    assert {split: len(rows) for split, rows in found.items()} == {"train": 6000, "dev": 500, "test": 500}
    spoken = {split: {row["number"] for row in rows} for split, rows in found.items()}
    assert not spoken["test"] & spoken["train"]
    # fsdd itself holds its first recordings out: 0 to 4 of each digit and speaker.
    indices = {"train": range(10, 50), "dev": range(5, 10), "test": range(5)}
    for split, rows in found.items():
        for row in rows:
            parts = [name.split("_") for name in row["recordings"].split(",")]
            assert {speaker for _, speaker, _ in parts} == {row["speaker"]}
            assert all(int(index) in indices[split] for _, _, index in parts)
            assert [WORDS[int(digit)] for digit, _, _ in parts] == row["en_digits"].split()
    assert {row["speaker"] for row in found["test"]} == {row["speaker"] for row in found["train"]}


def test_connected_numbers_are_the_recordings_with_their_silences(tmp_path: Path) -> None:
    """Sample by sample what the standard library reads of the archive, zeros between."""
    folder = prepared("numbers", tmp_path, "--quick", "--copies", "2")
    with lzma.open(CORPORA / "fsdd.tar.xz") as packed, tarfile.open(fileobj=packed) as archive:
        recordings = {Path(each.name).stem: archive.extractfile(each) for each in archive if each.isfile()}
        recordings = {name: samples(file) for name, file in recordings.items() if file is not None}
    rows = {row["utt_id"]: row for row in numbers("test")}
    root, *paths = lines(folder / "test.tsv")
    texts = lines(folder / "test.txt")
    assert len(paths) == len(texts) >= 30
    for path, text in zip(paths, texts, strict=True):
        row = rows[Path(path).stem]
        before, *gaps = (int(gap) * RATE // 1000 for gap in row["gaps_ms"].split(","))
        wanted = [0] * before
        for name, gap in zip(row["recordings"].split(","), gaps, strict=True):
            wanted += [*recordings[name].tolist(), *[0] * gap]
        with (Path(root) / path).open("rb") as file:
            assert samples(file).tolist() == wanted
        assert text == row["en_digits"]
    # Of what trains, every other sound is a changed copy of the one before, of another length or loudness.
    root, *paths = lines(folder / "train.tsv")
    texts = lines(folder / "train.txt")
    assert texts[::2] == texts[1::2]
    assert [f"{Path(path).stem}-1" for path in paths[::2]] == [Path(path).stem for path in paths[1::2]]
    shares = []
    for path, other in zip(paths[::2], paths[1::2], strict=True):
        with (Path(root) / path).open("rb") as first, (Path(root) / other).open("rb") as second:
            sound, changed = samples(first), samples(second)
        assert 0.9 < len(changed) / len(sound) < 1.12
        shares.append(((sound == 0).mean(), (changed == 0).mean()))
    exact, noisy = np.mean(shares, 0)
    assert exact > 3 * noisy  # noise where there was silence
    pieces = {line.split()[0] for line in lines(folder / "dict.txt")}
    assert pieces == {f"▁{word}" for word in WORDS}
    assert json.loads((folder / "input.json").read_text())["statistics"] == "cmvn.json"
    statistics = json.loads((folder / "cmvn.json").read_text())
    assert len(statistics["mean"]) == len(statistics["variance"]) == 40


def test_numbers_made_anew_are_of_the_recordings_that_train(tmp_path: Path) -> None:
    """A third of the digits alone would do for these bounds; no number of another part is said."""
    folder = prepared("numbers", tmp_path, "--quick", "--varied", "200", "--without", "theo")
    root, *paths = lines(folder / "train.tsv")
    texts = lines(folder / "train.txt")
    made = [(path, text) for path, text in zip(paths, texts, strict=True) if "varied" in path]
    assert len(made) == 200
    held_out = {row["en_digits"] for split in ("dev", "test") for row in numbers(split)}
    assert not {text for _, text in made} & held_out
    counts = [len(text.split()) for _, text in made]
    assert 3 < counts.count(0) < 40  # nobody speaks
    assert counts.count(1) > 15
    assert max(counts) > 9
    peaks = []
    for path, text in made:
        with (Path(root) / path).open("rb") as file:
            sound = samples(file)
        peaks.append(np.abs(sound).max())
        assert len(sound) > 600 * len(text.split())  # of the shortest digit at the highest speed
    assert min(peaks) < 60
    assert max(peaks) > 10000
    speaker_of = {
        row["utt_id"]: row["speaker"] for split in ("train", "dev", "test") for row in numbers(split)
    }
    for split in ("train", "valid", "test"):
        _, *paths = lines(folder / f"{split}.tsv")
        speakers = {speaker_of[Path(path).stem] for path in paths if "varied" not in path}
        assert ("theo" in speakers) == (split == "test")
        assert len(speakers) == (1 if split == "test" else 3)


def test_an4_is_tested_on_the_speakers_that_sort_last(tmp_path: Path) -> None:
    folder = prepared("an4", tmp_path)
    with lzma.open(CORPORA / "an4.npz.xz") as packed, np.load(io.BytesIO(packed.read())) as file:
        ids, speakers, offsets, mfcc = (file[name] for name in ("ids", "speakers", "offsets", "mfcc"))
    speaker_of = dict(zip(ids.tolist(), speakers.tolist(), strict=True))
    last = sorted(set(speaker_of.values()))[-10:]
    split_of = {}
    for split in ("train", "valid", "test"):
        _, *paths = lines(folder / f"{split}.tsv")
        split_of |= {path.split("#")[1]: split for path in paths}
    assert set(split_of) == set(speaker_of)
    assert {id for id, split in split_of.items() if split == "test"} == {
        id for id, speaker in speaker_of.items() if speaker in last
    }
    by_speaker = {(speaker_of[id], split) for id, split in split_of.items()}
    assert len(by_speaker) == len(set(speaker_of.values())) == 74
    first = next(id for id, split in split_of.items() if split == "test")
    with np.load(folder / "test/features.npz") as file:
        assert file["ids"][0] == first
        index = ids.tolist().index(first)
        np.testing.assert_array_equal(
            file["frames"][: file["offsets"][1]], mfcc[offsets[index] : offsets[index + 1]]
        )
    words = {word for line in lines(folder / "train.txt") for word in line.split()}
    assert {line.split()[0] for line in lines(folder / "dict.txt")} == {f"▁{word}" for word in words}
    assert {word for line in lines(folder / "test.txt") for word in line.split()} <= words


def test_yesno_is_parted_as_in_kaldi(tmp_path: Path) -> None:
    """31 sounds train, of which 3 validate, and 29 test; a file's name is what is said in it."""
    folder = prepared("yesno", tmp_path)
    assert [len(lines(folder / f"{split}.txt")) for split in ("train", "valid", "test")] == [28, 3, 29]
    _, first, *_ = lines(folder / "test.tsv")
    assert first == "test/1_0_0_0_0_0_0_0.wav"
    assert lines(folder / "test.txt")[0] == "yes no no no no no no no"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--corpus", "aishell"], "--data goes with aishell, librispeech, and these need it"),
        (["--corpus", "an4", "--data", "."], "--data goes with aishell, librispeech, and these need it"),
        (["--corpus", "an4", "--copies", "2"], "an4 has features, and no sound to change"),
        (["--corpus", "an4", "--varied", "2"], "--varied is of the corpus numbers, not of an4"),
        (["--corpus", "numbers", "--without", "bob"], "--without 'bob': numbers has no such speaker"),
    ],
)
def test_prepare_refuses_what_it_cannot_do(args: list[str], said: str, tmp_path: Path) -> None:
    command = [sys.executable, str(RECIPES / "asr/prepare.py"), *args, "--output", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert said in done.stderr.splitlines()[-1]


def sound_of(path: Path, seconds: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        noise = np.random.default_rng(1).integers(-3000, 3000, int(16000 * seconds))
        file.writeframes(noise.astype("<i2").tobytes())


def test_aishell_is_read_as_it_is_unpacked(tmp_path: Path) -> None:
    data, texts = tmp_path / "data_aishell", {}
    for number, split in enumerate(("train", "dev", "test")):
        name = f"BAC009S000{number}W0121"
        sound_of(data / f"wav/{split}/S000{number}/{name}.wav", 0.5)
        texts[name] = "甚至 出现 交易"
    sound_of(data / "wav/train/S0000/BAC009S0000W0999.wav", 0.5)  # without a transcript
    (data / "transcript").mkdir()
    transcript = "".join(f"{name} {text}\n" for name, text in texts.items())
    (data / "transcript/aishell_transcript_v0.8.txt").write_text(transcript, encoding="utf-8")
    folder = prepared("aishell", tmp_path / "out", "--data", str(data))
    assert lines(folder / "train.tsv") == [str(data), "wav/train/S0000/BAC009S0000W0121.wav"]
    assert lines(folder / "valid.tsv")[1:] == ["wav/dev/S0001/BAC009S0001W0121.wav"]
    assert lines(folder / "test.txt") == ["甚至出现交易"]
    assert {line.split()[0] for line in lines(folder / "dict.txt")} == {"▁", *"甚至出现交易"}


def test_librispeech_is_read_as_it_is_unpacked(tmp_path: Path) -> None:
    data = tmp_path / "LibriSpeech"
    for part in ("train-clean-100", "dev-other", "test-clean", "test-other"):
        (data / part / "61/70968").mkdir(parents=True)
        (data / part / "61/70968/61-70968.trans.txt").write_text(
            "61-70968-0000 HE BEGAN A CONFUSED COMPLAINT\n"
        )
    command = (
        "import corpora, pathlib, sys; print([(str(p), t) for s in ('train', 'valid', 'test') for p, t in "
    )
    command += "corpora.librispeech(pathlib.Path(sys.argv[1]), s)])"
    done = subprocess.run(
        [sys.executable, "-c", command, str(data)],
        capture_output=True,
        text=True,
        check=True,
        cwd=RECIPES / "asr",
        timeout=60,
    )
    assert done.stdout.strip() == str(
        [
            (str(data / part / "61/70968/61-70968-0000.flac"), "he began a confused complaint")
            for part in ("train-clean-100", "dev-other", "test-clean")
        ]
    )


def test_every_system_has_its_architecture_and_strategies() -> None:
    rows = [line.split("\t") for line in script("asr", "recognizers.py").splitlines()]
    assert [row for row in rows if row[0] == "missing"] == []
    assert {row[1]: row[2] for row in rows if row[0] == "model"} == {
        "paraformer": "paraformer",
        "ar": "conformer",
        "ctc": "owsm_ctc",
        "ctc-sc": "owsm_ctc",
        "paraformer-ce": "paraformer",
        "paraformer-mwer": "paraformer",
    }
    for _, name, spec, _ in (row for row in rows if row[0] == "decode"):
        strategy, *options = spec.split(":")
        given = dict(option.split("=") for option in options)
        wanted = {key: int(value) if value.isdigit() else value for key, value in given.items()}
        assert make_strategy(strategy, wanted).name == strategy, name
    assert {row[1] for row in rows if row[0] == "model"} >= {
        option.split("=")[1].lower() for row in rows if "drafter=" in (option := row[2])
    }


def flags_of(config: str) -> tuple[str, dict[str, str]]:
    """The architecture and the flags of a full-size configuration, as bash reads them."""
    folder = RECIPES / "asr/full"
    command = (
        f'here={shlex.quote(str(folder))}; source "$here/{config}.sh"; echo $architecture "${{flags[@]}}"'
    )
    done = subprocess.run(["bash", "-euc", command], capture_output=True, text=True, check=True, timeout=60)
    name, *flags = done.stdout.split()
    return name, dict(zip(flags[::2], flags[1::2], strict=True))


@pytest.mark.parametrize(
    ("config", "words", "published"),
    [
        # egs2/librispeech/asr1/README.md of github.com/espnet/espnet, "Params", millions.
        ("librispeech-conformer", 5000, 116.15),
        ("librispeech-e-branchformer", 5000, 148.92),
    ],
)
def test_full_size_models_have_the_published_number_of_parameters(
    config: str, words: int, published: float
) -> None:
    name, flags = flags_of(config)
    settings_of = architecture(name).config
    known = {item.removeprefix("--").replace("-", "_"): value for item, value in flags.items()}
    types = {field: type(value) for field, value in vars(settings_of(tgt_vocab=words)).items()}
    shape = settings_of(
        tgt_vocab=words, **{field: types[field](value) for field, value in known.items() if field in types}
    )
    numbers = sum(
        math.prod(size) for weight, size in shape.weight_shapes().items() if "running_" not in weight
    )
    assert numbers / 1e6 == pytest.approx(published, abs=0.01)


def test_the_paraformer_of_aishell_is_that_of_funasrs_recipe() -> None:
    """Transcribed from examples/aishell/paraformer/conf and, of the norms, the modules that it names."""
    name, flags = flags_of("aishell-paraformer")
    assert name == "paraformer"
    assert {
        "--predictor": "depthwise",  # CifPredictor
        "--tail-threshold": "0.45",
        "--norm-eps": "1e-12",
        "--batch-norm-eps": "1e-5",
        "--conv-kernel": "15",
        "--sampling-ratio": "0.4",
        "--warmup-updates": "30000",
    }.items() <= flags.items()


@pytest.mark.slow
def test_full_size_configurations_take_a_step(tmp_path: Path) -> None:
    run = RECIPES / "asr/full/run.sh"
    done = subprocess.run(["bash", str(run), "--dry-run"], capture_output=True, text=True, check=True)
    names = sorted(path.stem for path in run.parent.glob("*.sh") if path != run)
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == names
    assert all(", one step, loss" in line for line in done.stdout.splitlines())


def write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def test_the_table_by_hand(tmp_path: Path) -> None:
    rows = [
        "model\tar\tconformer\t-",
        "decode\tar\tbeam:beam_size=5\t-",
        "decode\tparaformer\tparaformer\t-",
        "decode\tctc\tctc-greedy\t-",
        "missing\tctc\tctc-new\tno strategy ctc-new",
    ]
    (tmp_path / "systems.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    # Rounds of the whole time and of the decoder's, seconds: 10 sounds one by one, 100 in batches, 2 s each.
    seconds = {
        "ar.beam_beam_size-5": {
            "whole": {"1": [4.0, 5.0, 6.0], "32": [20.0, 20.0, 20.0]},
            "decoder": {"1": [2.0, 3.0, 4.0], "32": [8.0, 8.0, 8.0]},
        },
        "paraformer.paraformer": {
            "whole": {"1": [3.0, 1.0, 2.0], "32": [10.0, 12.0, 11.0]},
            "decoder": {"1": [1.0, 1.0, 0.5], "32": [1.0, 2.0, 4.0]},
        },
    }
    for number, key in enumerate(seconds):
        for metric in ("wer", "cer"):
            score = {"score": 3.0 - number, "signature": metric, "confidence": {"low": 1.0, "high": 4.0}}
            write(tmp_path / "scores" / f"{key}.{metric}.json", score)
    write(
        tmp_path / "speed.json",
        {
            "seconds": seconds,
            "sounds": {"1": 10, "32": 100},
            "sound_seconds": {"1": 20.0, "32": 200.0},
            **{"machine": "a machine", "device": "cpu", "dtype": "fp32", "threads": 1},
        },
    )
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed" / "ctc").touch()
    script("asr", "table.py", "--work", str(tmp_path))
    assert (tmp_path / "plot.png").stat().st_size > 1000
    found = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    mine = next(row for row in found if row["name"] == "paraformer")
    # Medians of the rounds' ratios, not ratios of medians: 2/1, 3/1, 4/0.5 and 8/1, 8/2, 8/4.
    assert (mine["over_beam_1"], mine["over_beam_32"]) == (3.0, 4.0)
    assert (mine["rtf_1"], mine["rtf_32"]) == (0.1, 0.055)
    assert (mine["decoder_ms_1"], mine["decoder_ms_32"]) == (100.0, 20.0)
    table = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    score = "2.00 (1.00 to 4.00)"
    speed = "0.1000 | 100.00 | 3.00x | 0.0550 | 20.00 | 4.00x"
    assert table[3] == f"| Paraformer | `paraformer` | {score} | {score} | {speed} |"
    assert table[4].startswith("| CTC | `ctc-greedy` | failed |")
    assert table[5].startswith("| CTC | `ctc-new` | not available: no strategy ctc-new |")
    code = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import table
table.plot = lambda path, dots, x, y: print(json.dumps([*dots]))
table.draw(table.collect(Path(sys.argv[2]), table.METRICS), Path("plot.png"))
"""
    drawn = subprocess.run(
        [sys.executable, "-c", code, str(RECIPES / "asr"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    # Word errors over the medians of 4, 5, 6 and of 3, 1, 2 seconds for 20 s of sound.
    points = {label: points for label, _, _, points in json.loads(drawn.stdout)}
    assert [*points.values()] == [[[0.25, 3.0]], [[0.1, 2.0]]]
    assert [*points][1] == "Paraformer"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--stage", "fly"], "no stage 'fly'"),
        (["--corpus", "swbd"], "no corpus 'swbd': choose from numbers, an4, yesno"),
        (["--updates"], "--updates needs a value"),
        (["--turbo"], "unknown option --turbo"),
    ],
)
def test_wrong_options_are_refused_before_any_work(args: list[str], said: str, tmp_path: Path) -> None:
    assert_refused("asr", args, said, tmp_path)
