"""Models of speech are trained by fairseq, converted, and decode to what was said."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.commands import run
from support.fairseq_host import require_fairseq
from support.tones import AUDIO, PITCHES, RATE, sound_of, write_corpus

import nartk
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as decode
from nartk.cli.verify import main as verify
from nartk.data.audio.sounds import read_sound
from nartk.data.audio.stored import write_features
from nartk.errors import InputFileError, LengthMismatchError, UsageError
from nartk.models.losses import Training

SMALL = (
    "--d-model 32 --encoder-heads 2 --encoder-ffn 64 --input-features 20"
    " --subsampling-channels 8 --conv-kernel 7 --max-source-len 400 --max-target-len 20 --dropout 0"
    " --criterion nartk_speech --label-smoothing 0 --time-width 2 --bin-width 2 --optimizer nartk_adamw"
    " --lr-scheduler polynomial_decay --warmup-updates 20 --max-tokens 1500 --cpu --seed 7 --autocast bf16"
    " --no-epoch-checkpoints --validate-interval 1000 --save-interval 1000 --log-format simple --clip-norm 1"
    " --num-workers 0 --lr 0.005"
)
CONFORMER = (
    "--arch nartk_conformer_tiny --encoder-layers 1 --decoder-layers 1 --decoder-heads 2 --decoder-ffn 64"
    " --fix-batch-norm 150 --save-interval-updates 50"
)
OWSM = (
    "--arch nartk_owsm_ctc_tiny --encoder-layers 2 --intermediate-ctc 1 --transcript-ctc 1"
    " --words-in-front --hide-language 0.5 --encoder-block e-branchformer --merge-kernel 5"
    " --cgmlp-features 64"
)
UPDATES = 200


def flags(data: Path, saved: Path, model: str, updates: int = UPDATES) -> list[str]:
    steps = f"--max-update {updates} --total-num-update {updates}"
    return [
        str(data),
        "--task",
        "nartk_speech",
        "--save-dir",
        str(saved),
        *f"{model} {SMALL} {steps}".split(),
    ]


def write_translations(folder: Path, count: int) -> list[tuple[str, str]]:
    """Sounds of two languages, one higher than the other, to be written down or translated into numbers.

    Returns:
        Lines and outputs of valid; the output names the language, which every other line does not.
    """
    import soundfile

    (folder / "sounds").mkdir(parents=True)
    rng, found = random.Random(1), []
    for split, size in (("train", count), ("valid", 16)):
        lines, targets, transcripts = [], [], []
        for i in range(size):
            words = rng.sample([*PITCHES], k=rng.randint(1, 3))
            language = rng.choice(["<a>", "<b>"])
            samples = sound_of(words, rng, 1.25 if language == "<b>" else 1.0)
            path = folder / "sounds" / f"{split}{i}.wav"
            soundfile.write(path, samples, RATE)
            translates = rng.random() < 0.5
            hidden = split == "valid" and i % 2
            front = f"{'<nolang>' if hidden else language} {'<st>' if translates else '<asr>'}"
            numbers = [str(1 + [*PITCHES].index(word)) for word in words]
            lines.append(f"{path}\t{front}")
            targets.append(" ".join([language, *(numbers if translates else words)]))
            transcripts.append(" ".join([language, *words]) if rng.random() < 0.8 else "")
        for ending, rows in (("lst", lines), ("txt", targets), ("transcript.txt", transcripts)):
            (folder / f"{split}.{ending}").write_text("\n".join([*rows, ""]))
        found = [*zip(lines, targets, strict=True)]
    words = ["<a>", "<b>", "<asr>", "<st>", "<nolang>", *PITCHES, "1", "2", "3"]
    (folder / "dict.txt").write_text("".join(f"{word} 1\n" for word in words))
    audio = {name: value for name, value in AUDIO.items() if name != "statistics"}
    beside = {"front": "<nolang> <asr>", "dictionary": "dict.txt", "words": 4 + len(words)}
    settings = {**audio, **beside, "name": "prompted_audio", "cmvn": "utterance"}
    (folder / "input.json").write_text(json.dumps(settings))
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A Conformer and an OWSM-CTC, trained one after the other in one process, as model folders."""
    pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    pytest.importorskip("omegaconf", reason="fairseq is not installed: pip install 'nartk[train]'")
    folder = tmp_path_factory.mktemp("speech")
    (folder / "tones").mkdir()
    made = SimpleNamespace(folder=folder, said=write_corpus(folder / "tones", 160))
    made.translations = write_translations(folder / "languages", 200)
    commands = [
        flags(folder / "tones", folder / "conformer", CONFORMER),
        flags(folder / "languages", folder / "owsm", OWSM, 200),
    ]
    code = f"from nartk.cli.train import main\nfor each in {commands!r}: assert main(each) == 0"
    run([sys.executable, "-c", code])
    for name in ("conformer", "owsm"):
        checkpoint = folder / name / "checkpoint_last.pt"
        assert convert([str(checkpoint), "--output", str(folder / f"{name}-model"), "--quiet"]) == 0
    return made


@pytest.fixture(autouse=True)
def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARTK_NO_ENGINE", "1")


def test_a_conformer_learns_what_is_said(trained: SimpleNamespace) -> None:
    model = nartk.load(trained.folder / "conformer-model")
    sounds = [str(trained.folder / "tones" / "sounds" / f"valid{i}.wav") for i in range(len(trained.said))]
    for strategy in ("greedy", "beam", "ctc-greedy", "ctc-beam"):
        assert [found.text for found in model.decode(sounds, strategy=strategy)] == trained.said, strategy
    settings = json.loads((trained.folder / "conformer-model" / "config.json").read_text())
    assert settings["input"] == {**AUDIO, "shortest": 7}
    assert (trained.folder / "conformer-model" / "cmvn.json").is_file()


def test_the_architecture_says_what_decodes(
    trained: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    sound, said = str(trained.folder / "tones" / "sounds" / "valid0.wav"), trained.said[0]
    assert decode([str(trained.folder / "conformer-model"), sound, "--verbose"]) == 0
    out, err = capsys.readouterr()
    assert (out, "strategy:greedy|" in err) == (f"{said}\n", True)
    line, wanted = trained.translations[0]
    (trained.folder / "line.txt").write_text(f"{line}\n")
    assert decode([str(trained.folder / "owsm-model"), str(trained.folder / "line.txt"), "--verbose"]) == 0
    out, err = capsys.readouterr()
    assert (out, "strategy:ctc-greedy|" in err) == (f"{wanted}\n", True)


def test_drafts_of_its_own_head_are_verified(
    trained: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        str(trained.folder / "conformer-model"),
        *(str(trained.folder / "tones" / "sounds" / f"valid{i}.wav") for i in range(3)),
        *("--strategy", "ctc-draft", "--batch-size", "1,2"),
    ]
    assert verify(command) == 0
    said = capsys.readouterr().out
    assert "3 sentences, " in said
    passes, drafting = (int(each) for each in re.findall(r"(\d+) (?:passes of greedy|of ctc-draft)", said))
    assert drafting < passes
    assert verify([*command, "--fuzz", "2"]) == 4  # sound is not made up
    assert "does not read text" in capsys.readouterr().err


def test_batch_norm_stays_from_the_update_on_that_is_named(trained: SimpleNamespace) -> None:
    stored = {}
    for updates, name in ((100, "*_100"), (150, "*_150"), (200, "last")):
        (path,) = (trained.folder / "conformer").glob(f"checkpoint_{name}.pt")
        weights = torch.load(path, weights_only=False)["model"]
        stored[updates] = {name: each for name, each in weights.items() if ".conv.norm." in name}
    assert len(stored[200]) == 4
    for name, last in stored[200].items():
        assert torch.equal(last, stored[150][name]) == ("running" in name), name
        assert not torch.equal(last, stored[100][name]), name


@pytest.mark.parametrize("to", ["hf", "ctranslate2"])
def test_no_library_of_text_takes_it(
    to: str, trained: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(trained.folder / "conformer-model")
    assert convert([model, "--to", to, "--output", str(tmp_path / "made")]) == 5
    wanted = f"a 'conformer' model, which reads sound; --to {to} writes models of text"
    assert wanted in capsys.readouterr().err


def test_one_model_recognises_translates_and_identifies(trained: SimpleNamespace) -> None:
    model = nartk.load(trained.folder / "owsm-model")
    lines, targets = zip(*trained.translations, strict=True)
    found = [hypothesis.text for hypothesis in model.decode(lines, strategy="ctc-greedy")]
    wrong = [pair for pair in zip(found, targets, strict=True) if pair[0] != pair[1]]
    assert not wrong
    (plain,) = model.decode([lines[0].split("\t")[0]], strategy="ctc-greedy")
    assert plain.text.split()[0] == targets[0].split()[0]


def test_a_folder_is_complete_wherever_its_data_are(
    trained: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, moved = str(trained.folder / "conformer" / "checkpoint_last.pt"), tmp_path / "data"
    moved.mkdir()
    for name in ("dict.txt", "input.json", "cmvn.json"):
        shutil.copy(trained.folder / "tones" / name, moved)
    command = [checkpoint, "--dict", str(moved / "dict.txt"), "--output", str(tmp_path / "model")]
    assert convert(command) == 0
    assert "1+1 layers, 7 words, fp32" in capsys.readouterr().err
    wanted, found = (
        json.loads((folder / "config.json").read_text())["files"]
        for folder in (trained.folder / "conformer-model", tmp_path / "model")
    )
    assert found == wanted
    (moved / "input.json").unlink()
    assert convert(command) == 5
    assert "the folder of its training data, with input.json, is not found" in capsys.readouterr().err
    (moved / "input.json").write_text(json.dumps({**AUDIO, "statistics": "none.json"}))
    assert convert(command) == 5
    assert "the file 'none.json' is missing" in capsys.readouterr().err


# The task


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Any:
    require_fairseq()
    from nartk.tasks.speech import SpeechTask, SpeechTaskConfig

    folder = tmp_path_factory.mktemp("task")
    write_corpus(folder, 40)
    made = SpeechTask(SpeechTaskConfig(data=str(folder), speeds="0.9,1.1", seed=3))
    for split in ("train", "valid"):
        made.load_dataset(split)
    return made


def test_lengths_are_known_from_headers(task: Any) -> None:
    for item in task.datasets["valid"].items:
        assert item.frames == len(task.processor.read(item.line, longest=9999).frames)
        seconds = len(read_sound(item.line, rate=RATE)) / RATE
        assert item.frames == 1 + int((seconds - 0.025) / 0.01 + 1e-6)


def test_batches_pad_what_is_behind(task: Any) -> None:
    data = task.datasets["valid"]
    batches = data.batch_by_size(np.arange(len(data)), max_tokens=200)
    assert sorted(index for batch in batches for index in batch) == list(range(len(data)))
    batch = max(batches, key=len)
    made = data.collater([data[index] for index in batch])
    frames, lengths = made["net_input"]["frames"], made["net_input"]["lengths"]
    assert frames.shape[0] * frames.shape[1] <= 200
    assert made["net_input"].keys() == {"frames", "lengths"}
    for row, index in enumerate(batch):
        source = task.processor.read(data.items[index].line, longest=9999).frames
        assert int(lengths[row]) == len(source)
        assert torch.equal(frames[row, : len(source)], torch.from_numpy(source))
        assert not frames[row, len(source) :].any()
    words = [line.split() for line in Path(task.folder, "valid.txt").read_text().splitlines()]
    assert made["ntokens"] == sum(len(words[index]) + 1 for index in batch)
    assert [task.dictionary.string(row) for row in made["target"]] == [" ".join(words[i]) for i in batch]


def test_what_is_changed_is_drawn_for_each_epoch(task: Any) -> None:
    data = task.datasets["train"]
    plain = task.processor.read(data.items[0].line, longest=9999).frames
    seen = []
    for epoch in (1, 2, 1):
        data.set_epoch(epoch)
        seen.append([data[index]["source"].frames for index in range(8)])
    for first, second, again in zip(*seen, strict=True):
        assert np.array_equal(first, again)
        assert first.shape != second.shape or not np.array_equal(first, second)
    # Sound of 0.9 or 1.1 times the speed has 1 / 0.9 or 1 / 1.1 times the frames.
    assert {round(len(seen[e][0]) / len(plain), 1) for e in (0, 1)} <= {0.9, 1.1}


def test_stored_features_change_their_speed_too(task: Any, tmp_path: Path) -> None:
    from nartk.tasks.speech import SpeechTask, SpeechTaskConfig

    frames = np.random.default_rng(1).standard_normal((90, 13)).astype(np.float32)
    write_features(tmp_path / "f.npz", {"a": frames})
    (tmp_path / "train.tsv").write_text(f"{tmp_path}\nf.npz#a\n")
    (tmp_path / "input.json").write_text(json.dumps({"name": "audio", "features": "stored", "bins": 13}))
    for name in ("dict.txt", "spm.model"):
        if (found := Path(task.folder, name)).exists():
            shutil.copy(found, tmp_path)
    first = Path(task.folder, "train.txt").read_text().splitlines()[0]
    (tmp_path / "train.txt").write_text(f"{first}\n")
    for speeds, counts in (("1", {90}), ("0.9,1.0", {90, 100})):
        made = SpeechTask(
            SpeechTaskConfig(data=str(tmp_path), speeds=speeds, time_masks=0, bin_masks=0, seed=1)
        )
        made.load_dataset("train")
        data, seen = made.datasets["train"], set()
        for epoch in range(20):
            data.set_epoch(epoch)
            found = data[0]["source"].frames
            seen.add(len(found))
            assert len(found) != 90 or np.array_equal(found, frames)
        assert seen == counts


def test_an_empty_line_is_sound_in_which_nobody_speaks(task: Any, tmp_path: Path) -> None:
    """Of a target eos is learnt, of a transcript nothing is known."""
    from nartk.tasks.speech import SpeechTask, SpeechTaskConfig

    folder = tmp_path / "data"
    shutil.copytree(task.folder, folder)
    words = (folder / "valid.txt").read_text().splitlines()
    (folder / "valid.txt").write_text("\n".join(["", *words[1:]]) + "\n")
    (folder / "valid.transcript.txt").write_text("\n".join(["", *words[1:]]) + "\n")
    made = SpeechTask(SpeechTaskConfig(data=str(folder), speeds="1"))
    made.load_dataset("valid")
    first, second = made.datasets["valid"].items[:2]
    assert first.target.tolist() == [made.dictionary.eos()]
    assert first.transcript.tolist() == []
    assert second.target.tolist() == second.transcript.tolist()
    assert len(second.target) > 1


def test_a_sound_is_read_once_whatever_is_asked_of_it(tmp_path: Path) -> None:
    """Of two lines with other words in front the frames are one reading's, and the words each line's own."""
    require_fairseq()
    pytest.importorskip("soundfile", reason="reading sound needs nartk[audio]")
    from nartk.tasks.speech import SpeechTask, SpeechTaskConfig

    write_translations(tmp_path, 2)
    sound = (tmp_path / "train.lst").read_text().split("\t")[0]
    (tmp_path / "train.lst").write_text(f"{sound}\t<a> <asr>\n{sound}\t<b> <st>\n")
    made = SpeechTask(SpeechTaskConfig(data=str(tmp_path), time_masks=0, bin_masks=0, seed=1))
    made.load_dataset("train")
    read, count = made.processor.read, []
    made.processor.read = lambda *args, **options: (count.append(args), read(*args, **options))[1]
    first, second, again = (made.dataset("train")[i]["source"] for i in (0, 1, 0))
    assert len(count) == 1
    words = made.output.vocab.ids
    assert (first.words, second.words) == (tuple(words(["<a>", "<asr>"])), tuple(words(["<b>", "<st>"])))
    assert again.words == first.words
    assert (first.frames == second.frames).all()


def test_what_is_missing_is_named(task: Any, tmp_path: Path) -> None:
    from nartk.tasks.speech import SpeechTask, SpeechTaskConfig

    folder = tmp_path / "data"
    shutil.copytree(task.folder, folder)

    def load(**options: Any) -> None:
        SpeechTask(SpeechTaskConfig(data=str(folder), **{"speeds": "1", **options})).load_dataset("train")

    load()
    with pytest.raises(UsageError, match="--speeds is 'fast'"):
        load(speeds="fast")
    (folder / "train.txt").write_bytes(b"low\nna\xefve\n")
    with pytest.raises(InputFileError, match=r"train\.txt:2: byte 0xef is not UTF-8"):
        load()
    (folder / "train.txt").write_text("low\n")
    with pytest.raises(LengthMismatchError, match=r"train\.txt has 1 line, the list of sources 40"):
        load()
    (folder / "train.tsv").unlink()
    with pytest.raises(InputFileError, match=r"none of train\.tsv, train\.scp, train\.lst"):
        load()
    (folder / "input.json").unlink()
    with pytest.raises(InputFileError, match=r"no input\.json"):
        load()


@pytest.mark.parametrize(
    "changes", [{"label_smoothing": 1.0}, {"ctc_weight": 1.1}, {"intermediate_weight": -0.1}]
)
def test_options_have_bounds(changes: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=f"`{next(iter(changes))}`"):
        Training(**changes)
