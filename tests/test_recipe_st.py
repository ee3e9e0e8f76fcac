"""The scripts of the recipe of speech translation: its data, what its stages ask for, its table.

The stages themselves are real trainings: `recipes/st/run.sh --quick` runs them.
"""

from __future__ import annotations

import json
import lzma
import shlex
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from support.recipe_scripts import RECIPES, assert_refused, imported, script

from nartk.architectures import architecture
from nartk.data.text import CORPORA
from nartk.registry import make_strategy

pytestmark = pytest.mark.skipif(not RECIPES.is_dir(), reason="the recipes are not beside the tests")

ONES = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn"
)
ONES = [*ONES.split(), "siebzehn", "achtzehn", "neunzehn"]
TENS = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def german(number: int) -> str:
    """A number below 10,000 in words, as schools teach it."""
    words, before = [], {1: "ein"}
    for size, name in ((1000, "tausend"), (100, "hundert")):
        count, number = divmod(number, size)
        words += [before.get(count, ONES[count]), name] if count else []
    if number >= 20:
        tens, ones = divmod(number, 10)
        words += [before.get(ones, ONES[ones]), "und"] if ones else []
        words.append(TENS[tens - 2])
    elif number:
        words.append(ONES[number])
    return " ".join(words)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def numbers(split: str) -> dict[str, dict[str, str]]:
    """The rows of a shipped manifest by their names."""
    with lzma.open(CORPORA / f"fsdd_numbers.{split}.tsv.xz", "rt", encoding="utf-8") as file:
        header, *rows = (line.rstrip("\n").split("\t") for line in file)
    return {row[0]: dict(zip(header, row, strict=True)) for row in rows}


def prepared(folder: Path, *args: str) -> Path:
    script("st", "prepare.py", "--output", str(folder), "--quick", *args)
    return folder


def test_each_sound_has_its_number_in_german(tmp_path: Path) -> None:
    data = prepared(tmp_path, "--target", "de", "--copies", "2") / "data"
    for split, name in (("train", "train"), ("valid", "dev"), ("test", "test")):
        rows = numbers(name)
        root, *paths = lines(data / f"{split}.tsv")
        texts, said = lines(data / f"{split}.txt"), lines(data / f"{split}.transcript.txt")
        assert len(paths) == len(texts) == len(said) >= 30
        for path, text, transcript in zip(paths, texts, said, strict=True):
            assert (Path(root) / path).is_file()
            row = rows["-".join(Path(path).stem.split("-")[:2])]
            assert text == german(int(row["number"]))
            assert transcript == row["en_digits"]
            assert "".join(str(DIGITS.index(word)) for word in transcript.split()) == row["number"]
    trained = {word for line in lines(data / "train.txt") for word in line.split()}
    assert {line.split()[0] for line in lines(data / "dict.txt")} == trained
    assert len(lines(data / "train.tsv")) == 1 + 2 * len({*lines(data / "train.tsv")[1::2]})
    assert json.loads((data / "input.json").read_text())["padding"] == 8
    assert not (tmp_path / "data.owsm").exists()


def test_recognition_has_the_same_sounds(tmp_path: Path) -> None:
    english, french = (prepared(tmp_path / to, "--target", to) / "data" for to in ("en", "fr"))
    for split in ("train", "valid", "test"):
        assert lines(english / f"{split}.txt") == lines(english / f"{split}.transcript.txt")
        assert lines(english / f"{split}.txt") == lines(french / f"{split}.transcript.txt")
        for path in lines(english / f"{split}.tsv")[1:]:
            assert (english / path).read_bytes() == (french / path).read_bytes()
    assert {line.split()[0] for line in lines(english / "dict.txt")} == {*DIGITS}


def test_numbers_are_said_anew_by_their_speakers(tmp_path: Path) -> None:
    data = prepared(tmp_path, "--target", "fr", "--anew", "2", "--without", "theo") / "data"
    rows = numbers("train")
    root, *paths = lines(data / "train.tsv")
    texts = lines(data / "train.txt")
    plain = [path for path in paths if "anew" not in path]
    assert len(paths) == 3 * len(plain)
    lengths: dict[str, set[int]] = {}
    for path, text in zip(paths, texts, strict=True):
        name = "-".join(Path(path).stem.split("-")[:2])
        assert rows[name]["speaker"] != "theo"
        assert text == rows[name]["fr"]
        with wave.open(str(Path(root) / path)) as sound:
            lengths.setdefault(name, set()).add(sound.getnframes())
    assert all(len(each) == 3 for each in lengths.values())
    assert {numbers("test").get(Path(p).stem, numbers("dev").get(Path(p).stem, {}))["speaker"]
            for p in lines(data / "test.tsv")[1:]} == {"theo"}  # fmt: skip


@pytest.mark.parametrize(("language", "column"), [("de", "de_tok"), ("fr", "fr")])
def test_words_of_numbers_are_the_corpuss(language: str, column: str) -> None:
    words = imported("st", "number_words.py").WORDS[language]
    rows = [row for split in ("train", "dev", "test") for row in numbers(split).values()]
    assert len(rows) == 7000
    assert [words(int(row["number"])) for row in rows] == [row[column] for row in rows]


def test_new_numbers_are_none_that_are_tested(tmp_path: Path) -> None:
    data = prepared(tmp_path, "--target", "de", "--new", "300", "--without", "theo") / "data"
    root, *paths = lines(data / "train.tsv")
    texts, said = lines(data / "train.txt"), lines(data / "train.transcript.txt")
    made = [i for i, path in enumerate(paths) if "new-" in path]
    assert len(made) == 300
    for i in made:
        digits = "".join(str(DIGITS.index(word)) for word in said[i].split())
        assert digits == str(int(digits))
        assert texts[i] == german(int(digits))
        with wave.open(str(Path(root) / paths[i])) as sound:
            assert sound.getnframes() > 800 * len(digits)
    assert {len(said[i].split()) for i in made} == {2, 3, 4}
    kept = {row["en_digits"] for split in ("dev", "test") for row in numbers(split).values()}
    assert not kept & {said[i] for i in made}


def test_one_model_is_asked_for_three_tasks(tmp_path: Path) -> None:
    folder = prepared(tmp_path, "--target", "fr", "--tasks")
    data, plain = folder / "data.owsm", folder / "data"
    paths = lines(plain / "test.tsv")[1:]
    said, french = lines(plain / "test.transcript.txt"), lines(plain / "test.txt")
    german_of = [german(int(row["number"])) for row in (numbers("test")[Path(path).stem] for path in paths)]
    for task, texts in (("asr", said), ("st_deu", german_of), ("st_fra", french), ("hidden", french)):
        word = "st_fra" if task == "hidden" else task
        language = "<nolang>" if task == "hidden" else "<eng>"
        wanted = [f"{plain.resolve()}/{path}\t{language} <{word}>" for path in paths]
        assert lines(data / f"test.{task}.lst") == wanted
        assert lines(data / f"test.{task}.txt") == [f"<eng> <{word}> {text}" for text in texts]
        assert lines(data / f"test.{task}.transcript.txt") == said
    trained = lines(data / "train.lst")
    assert len(trained) == 3 * (len(lines(plain / "train.tsv")) - 1)
    assert {line.split("\t")[1] for line in trained} == {"<eng> <asr>", "<eng> <st_deu>", "<eng> <st_fra>"}
    words = [line.split()[0] for line in lines(data / "dict.txt")]
    assert len({*words}) == len(words)
    assert {"<nolang>", "<eng>", "<asr>", "<st_deu>", "<st_fra>", "zero", "tausend", "mille"} <= {*words}
    settings = json.loads((data / "input.json").read_text())
    assert (settings["front"], settings["words"]) == ("<eng> <st_fra>", 4 + len(words))
    assert (data / "cmvn.json").read_bytes() == (plain / "cmvn.json").read_bytes()


def test_every_system_has_its_architecture_and_strategies() -> None:
    rows = [line.split("\t") for line in script("st", "translators.py").splitlines()]
    assert [row for row in rows if row[0] == "missing"] == []
    models = {row[1]: row[2] for row in rows if row[0] == "model"}
    assert models == {
        "ctc": "owsm_ctc",
        "ctc-sc": "owsm_ctc",
        "owsm": "owsm_ctc",
        "ctc-decoder": "speech_ctc",
        "ctc-glat": "speech_ctc",
        "dag": "speech_dag",
        "ar": "conformer",
    }
    for _, name, spec, _ in (row for row in rows if row[0] == "decode"):
        strategy, *options = spec.split(":")
        given = dict(option.split("=") for option in options)
        wanted = {key: int(value) if value.isdigit() else value for key, value in given.items()}
        assert make_strategy(strategy, wanted).name == strategy, name
        assert given.get("drafter", "CTC").lower() in models
    decoded = {row[1] for row in rows if row[0] == "decode"}
    assert decoded == {*models, "owsm.asr", "owsm.st_deu", "owsm.st_fra", "owsm.hidden"}


def write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def test_the_table_by_hand(tmp_path: Path) -> None:
    rows = [
        "decode\tdag\tdag-lookahead\t-",
        "decode\towsm.asr\tctc-greedy\t-",
        "decode\tar\tgad:drafter=CTC\t-",
    ]
    (tmp_path / "systems.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    for metric, score in (("bleu", 97.5), ("wer", 1.25), ("ser", 4.0)):
        found = {"score": score, "signature": metric, "confidence": {"low": score - 1, "high": score + 2}}
        write(tmp_path / "scores" / f"dag.dag-lookahead.{metric}.json", found)
    (tmp_path / "failed").mkdir()
    (tmp_path / "failed/owsm.asr.ctc-greedy").touch()
    (tmp_path / "failed/ar.gad_drafter-CTC.verified").touch()
    (tmp_path / "verified").mkdir()
    (tmp_path / "verified/dag.dag-lookahead").write_text("identical\n")
    script("st", "table.py", "--work", str(tmp_path))
    table = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    scores = "97.50 (96.5 to 99.5) | 1.25 (0.25 to 3.25) | 96.00 (94.0 to 97.0)"
    assert table[2] == f"| DA-Transformer | `dag-lookahead` | {scores} | {' | '.join(['-'] * 6)} |"
    assert table[3].startswith("| OWSM-CTC, recognition | `ctc-greedy` | failed |")
    at = table.index("DA-Transformer, dag-lookahead, against greedy search:")
    assert table[at + 1] == "identical"
    at = table.index("attention and CTC, gad:drafter=CTC, against greedy search:")
    assert table[at + 1] == "failed"


def test_must_c_is_cut_as_it_is_segmented(tmp_path: Path) -> None:
    """Sample by sample; a list that lacks a line is refused."""
    rate, rng, data = 16000, np.random.default_rng(1), tmp_path / "en-de"
    talk = rng.integers(-3000, 3000, 3 * rate).astype("<i2")
    for split in ("train", "dev", "tst-COMMON"):
        folder = data / "data" / split
        (folder / "wav").mkdir(parents=True)
        (folder / "txt").mkdir()
        with wave.open(str(folder / "wav/ted_1.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(rate)
            file.writeframes(talk.tobytes())
        spans = [(0.5, 0.25), (1.0, 1.5)]
        segments = [
            f"- {{duration: {size:.6f}, offset: {begin:.6f}, rW: 3, speaker_id: spk.1, wav: ted_1.wav}}"
            for begin, size in spans
        ]
        for ending, rows in (
            ("yaml", segments),
            ("en", ["One two.", "And so on."]),
            ("de", ["Eins zwei.", "Und so weiter."]),
        ):
            (folder / "txt" / f"{split}.{ending}").write_text("\n".join([*rows, ""]))
    output = tmp_path / "out"
    script("st", "mustc.py", "--data", str(data), "--output", str(output), "--pieces", "24")
    assert lines(output / "test.txt") == ["Eins zwei.", "Und so weiter."]
    assert lines(output / "train.transcript.txt") == ["One two.", "And so on."]
    root, *paths = lines(output / "valid.tsv")
    for path, (begin, size) in zip(paths, spans, strict=True):
        with wave.open(str(Path(root) / path)) as file:
            assert file.getframerate() == rate
            found = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        assert found.tolist() == talk[round(begin * rate) : round((begin + size) * rate)].tolist()
    assert (output / "spm.model").is_file()
    (data / "data/dev/txt/dev.de").write_text("Eins zwei.\n")
    command = [sys.executable, str(RECIPES / "st/mustc.py"), "--data", str(data), "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "lists of 2, 2 and 1 segments" in done.stderr


def flags_of(config: str) -> tuple[str, dict[str, str]]:
    """The architecture and the flags of a full-size configuration, as bash reads them."""
    folder = RECIPES / "st/full"
    command = f'source {shlex.quote(str(folder))}/{config}.sh; echo $architecture "${{flags[@]}}"'
    done = subprocess.run(["bash", "-euc", command], capture_output=True, text=True, check=True, timeout=60)
    name, *flags = done.stdout.split()
    return name, dict(zip(flags[::2], flags[1::2], strict=True))


def test_the_graph_of_must_c_is_daspeechs() -> None:
    """Transcribed from the README of github.com/ictnlp/DASpeech, "S2TT DA-Tranformer Pretraining"."""
    name, flags = flags_of("mustc-dag")
    assert name == "speech_dag"
    published = {
        "--encoder-layers": "12",
        "--encoder-ffn": "2048",
        "--encoder-heads": "4",
        "--decoder-layers": "4",
        "--decoder-features": "512",
        "--decoder-ffn": "2048",
        "--decoder-heads": "8",
        "--link-features": "feature:position",
        "--max-target-len": "1024",
        "--glancing": "0.5:0.1@100k",
        "--weight-decay": "0.01",
        "--warmup-updates": "10000",
        "--clip-norm": "1.0",
        "--lr": "0.0005",
    }
    assert published.items() <= flags.items()
    # Half a vertex a frame, by positions of the encoder.
    assert float(flags["--upsample-scale"]) / int(flags["--subsampling"]) == 0.5
    known = {item.removeprefix("--").replace("-", "_"): value for item, value in flags.items()}
    config = architecture(name).config
    types = {field: type(value) for field, value in vars(config(tgt_vocab=8000)).items()}
    shape = config(tgt_vocab=8000, **{key: types[key](value) for key, value in known.items() if key in types})
    assert (shape.d_model, shape.side_features("decoder")) == (256, 512)


@pytest.mark.slow
def test_full_size_configurations_take_a_step() -> None:
    run = RECIPES / "st/full/run.sh"
    done = subprocess.run(["bash", str(run), "--dry-run"], capture_output=True, text=True, check=True)
    names = sorted(path.stem for path in run.parent.glob("*.sh") if path != run)
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == names
    assert all(", one step, loss" in line for line in done.stdout.splitlines())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--stage", "fly"], "no stage 'fly'"),
        (["--task", "song"], "no task 'song': choose from text, speech, borders"),
        (["--target", "nl"], "no target 'nl' of text: choose from de fr en"),
        (["--task", "speech", "--target", "de"], "no target 'de' of speech: choose from fr es it"),
        (["--task", "speech", "--voice", "mine"], "no voice 'mine': choose from prompts, espeak"),
        (["--updates"], "--updates needs a value"),
        (["--turbo"], "unknown option --turbo"),
    ],
)
def test_wrong_options_are_refused_before_any_work(args: list[str], said: str, tmp_path: Path) -> None:
    assert_refused("st", args, said, tmp_path)
