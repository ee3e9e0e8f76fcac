"""`nartk-decode --partials`: the last text is that of the same chunks at once; texts come with the sound."""

from __future__ import annotations

import inspect
import json
import re
import struct
import subprocess
import sys
import threading
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from support.local_frames import SHIFT, LocalFrames, recording
from support.sounds import RATE, tones, wav
from support.speech_models import save_random_speech

import nartk
from nartk.cli.decode import CUT, main
from nartk.protocols.parallel import always_banned
from nartk.protocols.passes import FeatureSource, Want
from nartk.serving.long_form import BufferedFrames, Buffers
from nartk.serving.streaming import FrameStream, StreamStats, stream

STRATEGY = {"owsm_ctc": "ctc-greedy", "paraformer": "paraformer"}
SECONDS = {"long": 9.4, "short": 1.0}
TIMES = ("--chunk-ms", "320", "--left-ms", "640", "--look-ahead-ms", "160")


@pytest.fixture(scope="module", params=[*STRATEGY])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that names its strategy, and recordings beside it."""
    pytest.importorskip("kaldi_native_fbank")
    folder = tmp_path_factory.mktemp(request.param)
    settings = {"strategy": STRATEGY[request.param], "words": 12, "max_source_len": 400}
    save_random_speech(folder / "model", request.param, 3, **settings)
    for name, seconds in SECONDS.items():
        (folder / f"{name}.wav").write_bytes(wav(tones(seconds)))
    return folder


def at_once(folder: Path, *lines: str) -> list[str]:
    """Texts of the same chunks, by long-form decoding."""
    model = nartk.load(folder / "model")
    model = replace(model, buffers=Buffers(8, 16, 4, 4))
    return [each.text for each in model.decode(lines, STRATEGY[model.checkpoint.architecture])]


def test_there_is_a_line_for_each_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [str(folder / f"{name}.wav") for name in ("long", "gone", "short")]
    wanted = at_once(folder, lines[0], lines[2])
    assert len(wanted[0].split()) > 3
    arguments = [str(folder / "model"), *lines, "--partials", *TIMES]
    assert main(arguments) == 3
    out, err = capsys.readouterr()
    assert out.splitlines() == [wanted[0], "", wanted[1]]
    assert "gone.wav' cannot be read" in err
    told = re.findall(r"^nartk: ([\d.]+) s: (.*)$", err, re.M)
    seconds = [float(each) for each, _ in told]
    assert len(told) > 5
    # A chunk, what it waits for, and the frames that the last position ends with.
    assert seconds[0] == pytest.approx(0.04 * (8 + 4) + 0.04, abs=0.03)
    assert [each for each in seconds if each > 1] == sorted(each for each in seconds if each > 1)
    assert main([*arguments, "--quiet"]) == 3
    assert "s: " not in capsys.readouterr().err.replace("error", "")


def test_a_stream_is_of_a_path_or_of_any_open_file(folder: Path) -> None:
    model, path = nartk.load(folder / "model"), folder / "short.wav"
    cut: dict[str, Any] = {"chunk_ms": 320, "left_ms": 640, "look_ahead_ms": 160}
    (wanted, *others) = (
        [each.text for each in stream(model, sound, **cut)][-1]
        for sound in (str(path), path, BytesIO(path.read_bytes()))
    )
    assert others == [wanted] * 2


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_times_that_are_no_numbers_are_refused(
    value: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = [str(folder / "model"), str(folder / "short.wav")]
    assert main([*line, "--partials", "--chunk-ms", value]) == 2
    assert f"--chunk-ms is {value}. Fix: give a number, such as 40." in capsys.readouterr().err
    assert main([*line, "--long-form", value]) == 2
    assert f"--long-form is {value}. Fix: give seconds, such as 30." in capsys.readouterr().err


def test_hotwords_are_favoured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one chunk they are the strategy's; in several the text changes too."""
    line = str(folder / "short.wav")
    model = nartk.load(folder / "model")
    model = replace(model, vad=False)  # the random model is sure of nothing
    words = model.decode([line])[0].text.split()
    others = sorted({*model.checkpoint.target_vocab.words[4:]} - {*words})
    hotwords = f"{others[0]}:12 / {others[1]} {others[0]}:9"
    (whole,) = model.decode([line], hotwords=hotwords)
    assert whole.text.split() != words
    arguments = [str(folder / "model"), line, "--partials", "--hotwords", hotwords, "--no-vad", "--quiet"]
    for cut, is_whole in (
        (("--chunk-ms", "1200", "--left-ms", "0", "--look-ahead-ms", "0"), True),
        (TIMES, False),
    ):
        assert main([*arguments, *cut]) == 0
        (found,) = capsys.readouterr().out.splitlines()
        assert (found == whole.text) or not is_whole
        assert others[0] in found.split()


def test_partial_texts_are_in_jsonl(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = str(folder / "long.wav")
    arguments = [str(folder / "model"), line, "--partials", *TIMES, "--output-format", "jsonl", "--quiet"]
    assert main(arguments) == 0
    (found,) = map(json.loads, capsys.readouterr().out.splitlines())
    (best,) = found["hypotheses"]
    partials = best["partials"]
    assert found["source"] == line
    assert [best["text"]] == at_once(folder, line)
    assert best["tokens"][-1] == "</s>"
    assert len(partials) == -(
        -((938 - 3) // 4) // 8
    )  # 938 frames by the window of 25 ms, chunks of 8 positions
    words: list[str] = []
    stable: list[str] = []
    for each in partials:
        words = words[: len(words) - each["revised"]] + each["added"]
        assert words[: len(stable)] == stable
        stable = words[: each["stable"]]
    assert stable == words == best["tokens"][:-1]


def test_latency_is_that_of_sound_that_comes_by_itself(folder: Path, tmp_path: Path) -> None:
    """A file is read ten seconds at a time, yet without look-ahead its words are a chunk late at most."""
    stats = tmp_path / "stats.json"
    lines = [str(folder / f"{name}.wav") for name in SECONDS]
    times = ("--chunk-ms", "320", "--left-ms", "640", "--look-ahead-ms", "0")
    arguments = [str(folder / "model"), *lines, "--partials", *times, "--stats", str(stats), "--quiet"]
    assert main([*arguments, "--output", str(tmp_path / "out.txt")]) == 0
    found = json.loads(stats.read_text(encoding="utf-8"))
    assert found["sound_seconds"] == pytest.approx(sum(SECONDS.values()), abs=0.06)
    assert (found["chunk_ms"], found["left_ms"], found["look_ahead_ms"]) == (320, 640, 0)
    assert found["partials"] == found["passes"] == 33
    latency = found["token_latency_ms"]
    assert found["revised"] == 0
    assert 0 < latency["p50"] <= latency["p90"] <= latency["p99"] <= 320 + 2 * 40
    assert 0 < found["model_real_time_factor"] < found["real_time_factor"]
    assert found["signature"].endswith("|buffers:16+8+0")
    assert found["lines"] == found["sentences"] == 2
    assert found["tokens"] == sum(
        len(line.split()) + 1 for line in (tmp_path / "out.txt").read_text().splitlines()
    )


@pytest.mark.parametrize("size", [0x7FFFFFFF - 36, 0xFFFFFFFF], ids=["arecord", "ffmpeg"])
def test_sound_of_a_pipe_is_heard_as_it_comes(folder: Path, size: int) -> None:
    """Half a recording is written, a text of it comes, and then the rest is written."""
    wanted = at_once(folder, str(folder / "long.wav"))
    samples = (folder / "long.wav").read_bytes()[44:]
    assert len(samples) == 2 * RATE * SECONDS["long"]
    header = b"RIFF" + struct.pack("<I", 0x7FFFFFFF) + b"WAVEfmt "
    header += struct.pack("<IHHIIHH", 16, 1, 1, RATE, 2 * RATE, 2, 16) + b"data" + struct.pack("<I", size)
    command = [sys.executable, "-m", "nartk", "decode", str(folder / "model"), "-"]
    with subprocess.Popen(
        [*command, "--format", "sound", "--partials", *TIMES, "--strict-audio"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        assert process.stdout is not None
        patience = threading.Timer(60, process.kill)  # of a command that waits for the end
        patience.start()
        process.stdin.write(header + samples[: len(samples) // 2])
        process.stdin.flush()
        first = process.stderr.readline().decode()
        process.stdin.write(samples[len(samples) // 2 :])
        process.stdin.close()
        assert [process.stdout.read().decode()] == [f"{text}\n" for text in wanted]
        rest = process.stderr.read().decode()
        patience.cancel()
    assert process.returncode == 0, rest
    assert re.match(r"nartk: 0\.\d+ s: ", first), first


def test_what_cannot_be_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, line = str(folder / "model"), str(folder / "short.wav")
    for given, message in {
        (
            "--strategy",
            "ctc-beam",
        ): "which reads a recording as a whole. Fix: choose from ctc-greedy, paraformer",
        ("--trace", "x"): "--partials with --trace: a text as it comes is",
        ("--long-form", "30"): "--partials with --long-form",
        ("--replicas", "2"): "--partials with --replicas 2",
        ("--max-len", "3"): "--partials with --max-len",
        ("--truncate",): "--partials with --truncate",
        ("--chunk-ms", "50"): "--chunk-ms is 50, but the model's positions are 40 ms. Fix: give 40",
        ("--look-ahead-ms", "50"): "--look-ahead-ms is 50, but the model's positions are 40 ms. Fix: give 40",
        (
            "--left-ms",
            "8000",
        ): "a buffer of 899 frames, the model reads 400 at once. Fix: give shorter chunks",
    }.items():
        assert main([model, line, "--partials", *given]) == 2
        out, err = capsys.readouterr()
        assert message in err
        assert out == ""
    for arguments, message in {
        (model, line, "--chunk-ms", "320"): "--chunk-ms without --partials. Fix: give both",
        ("gec-en", line, "--partials", "--strategy", "paraformer"): "the model reads text",
    }.items():
        assert main([*arguments]) == 2 + 2 * ("gec-en" in arguments)
        assert message in capsys.readouterr().err


def test_models_that_read_no_sound_are_refused() -> None:
    with pytest.raises(nartk.NartkError, match="streaming needs a FrameScorer of sound, this model is none"):
        next(stream(nartk.load(), "x.wav"))


def test_the_help_has_the_library_s_defaults() -> None:
    parameters = inspect.signature(stream).parameters
    assert {name: default for name, (_, default) in CUT.items()} == {
        name: parameters[name].default for name in CUT
    }


def test_words_in_front_of_the_frames_are_read_with_each_chunk() -> None:
    source, scorer = recording(1, 400), LocalFrames(sees=3)
    words = (7, 8)
    decoding = FrameStream(scorer, Buffers(20, 6, 3, 4), shift=SHIFT, words=words)
    partials = [*decoding.accept(source.frames), *decoding.finish()]
    buffered = BufferedFrames(scorer, Buffers(20, 6, 3, 4))
    memory = buffered.encode([FeatureSource(source.frames, SHIFT, words=words)])
    count = int(buffered.frames(memory)[0])
    labels = buffered.read_frames(memory, Want(banned=always_banned((1, 2), count))).best.tolist()
    assert labels[:2] == [7, 8]
    wanted = [b for a, b in zip([0, *labels], labels, strict=False) if b not in (0, a)]
    assert list(partials[-1].tokens) == wanted


def test_what_streams_take_adds_up() -> None:
    total = StreamStats()
    total.add(StreamStats(1000.0, 2, 1, [40.0, 80.0], [0.1, 0.2]))
    total.add(StreamStats(500.0, 1, 0, [120.0], [0.3]))
    assert total == StreamStats(1500.0, 3, 1, [40.0, 80.0, 120.0], [0.1, 0.2, 0.3])
    assert total.mean_latency_ms == 80.0
    assert total.real_time_factor == pytest.approx(0.4)


def test_short_sounds_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav(tones(0.06)))
    model: Any = nartk.load(folder / "model")
    with pytest.raises(nartk.NartkError, match="has 4 frames, the model reads 7 or more"):
        [*stream(model, str(tmp_path / "a.wav"))]
