"""FastSpeech 2 in use: lines of phonemes become sound, on the engine, in torch and from the command line."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny
from support.commands import main_of, run
from support.speaking import (
    EOS,
    FIRST_WORD,
    MEL,
    PHONEMES,
    SMALL,
    WORDS,
    random_network,
    speaker,
    theirs,
    write_training,
)

import nartk
from nartk.architectures import architecture
from nartk.data.audio.sounds import read_sound
from nartk.engine import TYPES
from nartk.errors import StrategyMismatchError
from nartk.models.fastspeech2 import FastSpeech2, durations_of
from nartk.protocols.hypothesis import Hypothesis, Request
from nartk.protocols.passes import FloatArray, TextSource
from nartk.protocols.spectrograms import MelSettings, Speech
from nartk.registry import make_strategy, options_of
from nartk.vocab import Vocab
from nartk.vocoders.vocoder import load_vocoder

SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"d_model": 12, "acoustic_heads": 3, "acoustic_second_kernel": 1, "predictor_kernel": 5},
    {"d_model": 10, "acoustic_features": 18, "acoustic_heads": 1, "acoustic_kernel": 1},
)
# Errors by the largest number: of fp32 sums in another order, and of what the types lose.
CLOSE = {"fp32": 2e-5, "bf16": 0.05, "int8": 0.1}
LINES = ["P0 P3 P1", "", "P2", "P1 Q7 P2", "P5 P4 P4 P0 P7"]


def served(network: FastSpeech2, kind: str, **settings: Any) -> Any:
    """The scorer of a network on the engine, in a type, or in torch."""
    found, vocab = architecture("fastspeech2"), Vocab.from_words(PHONEMES)
    if kind == "torch":
        return found.scorer(network, vocab, source_vocab=vocab)
    arrays = {name: each.numpy() for name, each in network.state_dict().items()}
    return found.engine(network.config, arrays, vocab, source_vocab=vocab, type=kind, **settings)


def texts(seed: int, count: int) -> list[tuple[int, ...]]:
    draw = random.Random(seed)
    return [
        (*draw.choices(range(FIRST_WORD, WORDS), k=draw.randint(0, SMALL["max_source_len"] - 1)), EOS)
        for _ in range(count)
    ]


def spoken(scorer: Any, sources: Sequence[tuple[int, ...]], batch_size: int = 32) -> list[Hypothesis]:
    requests = [Request(i, TextSource(source), len(source)) for i, source in enumerate(sources)]
    found = [*make_strategy("speak", {}).run(scorer, requests, batch_size=batch_size)]
    return [each.hypotheses[0] for each in sorted(found, key=lambda each: each.index)]


def mels(scorer: Any, sources: Sequence[tuple[int, ...]], batch_size: int = 32) -> list[FloatArray]:
    found = [each.mel for each in spoken(scorer, sources, batch_size)]
    assert all(mel is not None for mel in found)
    return found  # type: ignore[return-value]


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("kind", ["fp32", "torch"])
def test_spectrograms_are_fairseqs(kind: str) -> None:
    """Its own network's with copied weights and our durations, of each sentence alone."""
    network, sources = random_network(2).float().eval(), [text for text in texts(2, 9) if len(text) > 1]
    found = mels(served(network, kind), sources)
    oracle = theirs(network.double())
    mean, deviation = map(network.acoustic.statistics.get_buffer, ("mel_mean", "mel_deviation"))
    for source, mel in zip(sources, found, strict=True):
        tokens = torch.tensor([source])
        with torch.no_grad():
            made = network.encode(tokens)
            predicted = network.acoustic(made.memory, made.kept).log_durations
            durations = durations_of(predicted, made.kept, SMALL["max_mel_len"])
            wanted = oracle(tokens, durations=durations)[0][0] * deviation + mean
        assert mel.shape == tuple(wanted.shape)
        assert np.abs(mel - wanted.numpy()).max(initial=0) < 1e-4


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_engine_speaks_as_torch_does(shape: dict[str, Any], type: str) -> None:
    network, sources = speaker(3, **shape), texts(3, 10)
    if type != "fp32":  # a small error may choose another bin, and so a vector far away
        for name in ("pitch", "energy"):
            network.acoustic.statistics.get_buffer(f"{name}_bounds").add_(100)
    wanted, found = mels(served(network, "torch"), sources), mels(served(network, type), sources)
    for source, ours, other in zip(sources, found, wanted, strict=True):
        assert ours.shape == other.shape == (4 * (len(source) - 1), SMALL["mel_features"])
        largest = max(1.0, np.abs(other).max(initial=0))
        assert np.abs(ours - other).max(initial=0) < CLOSE[type] * largest


@pytest.mark.parametrize("type", TYPES)
def test_a_sentences_bits_are_its_own(type: str) -> None:
    """Alone, in any batch, and with two threads."""
    network, sources = random_network(4).float().eval(), texts(4, 12)
    alone = mels(served(network, type, threads=1), sources, batch_size=1)
    for threads, batch_size in ((1, 5), (1, 32), (2, 12)):
        together = mels(served(network, type, threads=threads), sources, batch_size)
        assert all(np.array_equal(one, each) for one, each in zip(alone, together, strict=True))


def test_torchs_spectrograms_do_not_depend_on_the_batch() -> None:
    network, sources = speaker(5), texts(5, 8)
    scorer = served(network, "torch")
    for one, each in zip(mels(scorer, sources, 1), mels(scorer, sources, 8), strict=True):
        np.testing.assert_allclose(one, each, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["fp32", "torch"])
def test_the_text_is_the_source_and_has_no_score(kind: str) -> None:
    scorer, sources = served(speaker(), kind), texts(6, 5)
    for source, hypothesis in zip(sources, spoken(scorer, sources), strict=True):
        assert hypothesis.tokens == source
        assert (hypothesis.score, hypothesis.positional_scores, hypothesis.vertices) == (None, None, None)
    if kind == "fp32":
        assert scorer.memories_in_use == 0


# From the command line


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training(tmp_path_factory.mktemp("speak"))


@pytest.fixture(scope="module")
def folder(data: Path) -> Path:
    from nartk.cli.convert import main

    assert main([str(data / "checkpoint.pt"), "--output", str(data / "model"), "--quiet"]) == 0
    return data / "model"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.txt"
    path.write_text("".join(f"{line}\n" for line in LINES))
    return path


def test_each_line_is_spoken(
    folder: Path, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the default strategy; an unknown phoneme is named, an empty line too, and the rest is spoken."""
    out, stats = tmp_path / "out", tmp_path / "stats.json"
    code, text, err = main_of(f"decode {folder} {source} --speech {out} --stats {stats}", capfd)
    assert code == 3
    assert text.splitlines() == [line.replace(LINES[3], "") for line in LINES]
    assert f"{source}:4: the model does not know 'Q7'. Fix: write words of its dictionary" in err
    assert f"{source}:2: the output has no sound, and no file" in err
    assert sorted(each.name for each in out.iterdir()) == ["1.wav", "3.wav", "5.wav"]
    vocoder, network = load_vocoder(settings=MEL), speaker(7)
    for number in (1, 3, 5):
        words = [FIRST_WORD + PHONEMES.index(word) for word in LINES[number - 1].split()]
        encoded = network.encode(torch.tensor([[*words, EOS]]))
        with torch.no_grad():
            (mel,) = network.acoustic.mel(encoded.memory, encoded.kept)
        wanted = vocoder.samples(mel.numpy())
        found = read_sound(out / f"{number}.wav", rate=16000)
        assert len(found) == len(wanted) == 4 * len(words) * 24
        assert np.abs(found - wanted).max() < 1e-3
    report = json.loads(stats.read_text())
    assert report["speech"]["files"] == 3
    assert "strategy:speak|" in report["signature"]


def test_a_line_that_is_too_long_is_named(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    long = " ".join(["P1"] * SMALL["max_source_len"])
    (tmp_path / "in.txt").write_text(f"{long}\nP2\n")
    command = f"decode {folder} {tmp_path / 'in.txt'} --speech {tmp_path / 'out'}"
    code, text, err = main_of(command, capfd)
    assert (code, text) == (3, "\nP2\n")
    assert f"in.txt:1: {SMALL['max_source_len']} tokens > {SMALL['max_source_len'] - 1}" in err
    code, text, _ = main_of(f"{command} --truncate", capfd)
    assert (code, text) == (0, f"{long[:-3]}\nP2\n")
    assert len(read_sound(tmp_path / "out" / "1.wav", rate=16000)) == 4 * (SMALL["max_source_len"] - 1) * 24


def test_two_commands_translate_into_speech(folder: Path, tmp_path: Path) -> None:
    """What one prints the other speaks, line by line."""
    text = tiny.random_model(tmp_path / "text", words=PHONEMES, seed=9)
    decode = [sys.executable, "-c", "import sys; from nartk.cli.decode import main; sys.exit(main())"]
    (tmp_path / "in.txt").write_text("P1 P2\nP3\n")
    one, other = " ".join([*map(repr, decode[:2]), f'"{decode[2]}"']), f"{folder} --speech {tmp_path / 'out'}"
    printed = run(["bash", "-c", f"{one} {text} {tmp_path / 'in.txt'} --strategy greedy | {one} {other}"])
    wanted = [each.text for each in nartk.load(text).decode(["P1 P2", "P3"], "greedy")]
    assert printed.splitlines() == wanted
    assert all(wanted)
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["1.wav", "2.wav"]


def test_an_int8_folder_speaks_as_int8_does(data: Path, folder: Path, tmp_path: Path) -> None:
    from nartk.cli.convert import main

    command = [str(folder), "--output", str(tmp_path / "int8"), "--quantize", "int8", "--quiet"]
    assert main(command) == 0
    command[0] = str(data / "checkpoint.pt")
    command[2] = str(tmp_path / "at once")
    assert main(command) == 0
    lines = [line for line in LINES if "Q" not in line]
    wanted = nartk.load(folder, dtype="int8").decode(lines)
    for name in ("int8", "at once"):
        for one, each in zip(nartk.load(tmp_path / name).decode(lines), wanted, strict=True):
            assert one.text == each.text
            assert (one.mel is None) == (each.mel is None) == (not each.text)
            if each.mel is not None:
                assert np.array_equal(one.mel, each.mel)


def test_settings_of_spectrograms_go_along(data: Path, folder: Path, tmp_path: Path) -> None:
    from nartk.cli.convert import main

    found = nartk.load(folder).decode("P1 P2").output
    assert isinstance(found, Speech)
    assert found.mel_settings == MEL
    other = tmp_path / "data"
    other.mkdir()
    (other / "dict.txt").write_bytes((data / "dict.txt").read_bytes())
    command = [str(data / "checkpoint.pt"), "--dict", str(other / "dict.txt"), "--quiet", "--output"]
    assert main([*command, str(tmp_path / "model")]) == 0
    assert nartk.load(tmp_path / "model").checkpoint.output.mel_settings == MelSettings(bins=MEL.bins)


def test_what_does_not_fit_is_refused(
    data: Path, folder: Path, source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert options_of("speak") == {}
    assert [make_strategy("speak", {}).limit(size) for size in (1, 1000)] == [1, 1000]
    for flags, message in (
        ("--beam-size 4", "strategy 'beam' needs a PassScorer"),
        ("--strategy speak --beam-size 4", "strategy 'speak' has no option --beam-size"),
        ("--max-len 4", "strategy 'speak' has no option --max-len"),
        ("--strategy greedy", "strategy 'greedy' needs a PassScorer"),
        ("--strategy dag-lookahead", "choose from speak"),
    ):
        code, text, err = main_of(f"decode {folder} {source} {flags}", capfd)
        assert (code, text) == (2, "")
        assert message in err
    (tmp_path / "in.tsv").write_text("P1\tP2\n")
    command = f"decode {folder} {tmp_path / 'in.tsv'} --column 1 --prefix-column 2"
    code, text, err = main_of(command, capfd)
    assert (code, text) == (2, "")
    assert "strategy 'speak' cannot be made to begin with given words" in err
    for flags, code, message in (
        ("--bpe gpt2 --bpe-codes FILE --encoder-json FILE", 2, "of a model that speaks phonemes"),
        (f"--dict {tiny.random_model(tmp_path / 'text', words=['a'])}/dict.txt", 4, "its dictionary 5"),
    ):
        flags = flags.replace("FILE", str(data / "mel.json"))
        found, _, err = main_of(f"convert {data / 'checkpoint.pt'} --output {tmp_path / 'm'} {flags}", capfd)
        assert found == code
        assert message in err
    model = tiny.random_model(tmp_path / "plain", words=["a"])
    with pytest.raises(StrategyMismatchError, match="'speak' needs a PhonemeScorer"):
        nartk.load(model).decode("a", "speak")
