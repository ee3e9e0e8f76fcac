"""`nartk-decode` reads sound whatever its name is, and from a pipe, with every model of speech."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from support import tiny
from support import whisper_models as whispers
from support.sounds import tones, wav
from support.speech_models import save_random_speech

from nartk.cli.decode import main
from nartk.data.audio import sounds

FORMS = {
    "wav": ("WAV", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
}
MODELS = ("owsm_ctc", "paraformer", "conformer", "whisper")
STRATEGY = {"owsm_ctc": "ctc-greedy", "paraformer": "paraformer", "conformer": "greedy"}
SECONDS = 3.5
M4A = b"\0\0\0\x1cftypM4A \0\0\2\0M4A isomiso2\0\0\0\x08" + bytes(range(256)) * 9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of each kind, and a recording in each format."""
    pytest.importorskip("kaldi_native_fbank")
    folder = tmp_path_factory.mktemp("models")
    for name, strategy in STRATEGY.items():
        save_random_speech(folder / name, name, 2, words=12, max_source_len=400, strategy=strategy)
    for name, (form, subtype) in FORMS.items():
        (folder / f"a.{name}").write_bytes(wav(100 * tones(SECONDS), form=form, subtype=subtype))
    return folder


def model_of(folder: Path, name: str) -> str:
    """The folder of a model; that of Whisper is made where transformers is there."""
    if name == "whisper" and not (folder / name).exists():
        import random

        settings = whispers.random_settings(random.Random(3), seconds=3.0)
        whispers.save(whispers.random_model(settings, 3, ends=3.0), folder / name)
    return str(folder / name)


@contextmanager
def stdin_of(monkeypatch: pytest.MonkeyPatch, data: bytes) -> Iterator[None]:
    """Gives the bytes by a pipe, a thousand at a time."""
    out, into = os.pipe()

    def write() -> None:
        with open(into, "wb", buffering=0) as file, suppress(BrokenPipeError):
            for begin in range(0, len(data), 1000):
                file.write(data[begin : begin + 1000])

    thread = threading.Thread(target=write)
    with open(out, encoding="utf-8") as stdin, monkeypatch.context() as changed:
        thread.start()
        changed.setattr(sys, "stdin", stdin)
        yield
        while stdin.buffer.read(1 << 16):  # what nobody wanted
            pass
    thread.join()


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, list[str]]:
    assert main([*arguments, "--threads", "1"]) == code
    out, err = capsys.readouterr()
    return out, err.splitlines()


@pytest.mark.parametrize("told", [("--format", "sound"), ()], ids=["named", "by its bytes"])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_reads_sound_of_a_pipe(
    name: str,
    told: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, heard = model_of(folder, name), ("--no-vad",) if name in ("owsm_ctc", "paraformer") else ()
    for form in FORMS:
        path = folder / f"a.{form}"
        wanted, _ = run(capsys, model, str(path), *heard, "--quiet")
        assert wanted.strip()
        with stdin_of(monkeypatch, path.read_bytes()):
            assert run(capsys, model, "-", *told, *heard, "--quiet") == (wanted, [])


def test_a_pipe_is_read_once_however_often_it_is_decoded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Statistics take a warm-up of the first recording."""
    model, stats = model_of(folder, "paraformer"), tmp_path / "stats.json"
    wanted, _ = run(capsys, model, str(folder / "a.wav"), "--quiet")
    with stdin_of(monkeypatch, (folder / "a.wav").read_bytes()):
        arguments = [model, "--format", "sound", "--stats", str(stats), "--output-format", "jsonl"]
        out, _ = run(capsys, *arguments)
    found = json.loads(out)
    assert (found["id"], found["source"], found["hypotheses"][0]["text"]) == (1, "-", wanted.strip())
    assert json.loads(stats.read_text())["sound_seconds"] == SECONDS


@pytest.mark.parametrize("av", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_partial_texts_are_of_any_format(
    form: str, av: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if av:
        pytest.importorskip("av")
    else:
        monkeypatch.setattr(sounds, "_has_av", lambda: False)
    path, model = folder / f"a.{form}", model_of(folder, "owsm_ctc")
    arguments = ["--partials", "--chunk-ms", "320", "--left-ms", "640", "--quiet"]
    wanted, _ = run(capsys, model, str(path), *arguments)
    assert wanted.strip()
    with stdin_of(monkeypatch, path.read_bytes()):
        out, err = run(capsys, model, "-", *arguments)
    # FFmpeg cannot tell what fills up the last frame of an mp3 that comes by a pipe.
    assert out == wanted or (av and form == "mp3" and out.startswith(wanted.strip()))
    assert err == []


def test_a_file_is_sound_by_its_first_bytes(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of(folder, "paraformer")
    for form in FORMS:
        (tmp_path / f"recording-{form}").write_bytes((folder / f"a.{form}").read_bytes())
        wanted, _ = run(capsys, model, str(folder / f"a.{form}"), "--quiet")
        assert run(capsys, model, str(tmp_path / f"recording-{form}"), "--quiet") == (wanted, [])
    text = f"{folder / 'a.wav'}\n{folder / 'a.flac'}\n"
    (tmp_path / "list").write_text(text)
    (tmp_path / "list.gz").write_bytes(gzip.compress(text.encode()))
    for name in ("list", "list.gz"):
        assert len(run(capsys, model, str(tmp_path / name), "--quiet")[0].splitlines()) == 2


@pytest.mark.parametrize("name", ["talk.m4a", "talk", "talk.wav"])
def test_a_container_is_a_line_with_an_error(
    name: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    (tmp_path / name).write_bytes(M4A)
    model, path = model_of(folder, "paraformer"), str(tmp_path / name)
    out, err = run(capsys, model, path, str(folder / "a.wav"), "--quiet", code=3)
    assert out.splitlines()[0] == ""
    assert out.splitlines()[1]
    assert err == [
        f"nartk: error[E201 InputFile] {path}: {path!r} is MP4, M4A or QuickTime, which takes the package "
        f"'av' to be read. Fix: pip install 'nartk[media]', or convert it: ffmpeg -i {path} talk.wav."
    ]


@pytest.mark.parametrize("by", ["file", "stdin", "manifest"])
def test_samples_without_a_header_are_refused_in_a_line(
    by: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (np.clip(tones(1.0), -1, 1) * 32767).astype("<i2").tobytes()
    (tmp_path / "a.raw").write_bytes(data)
    path = "-" if by == "stdin" else str(tmp_path / "a.raw")
    with stdin_of(monkeypatch, data):
        arguments = ["--manifest", path] if by == "manifest" else [path]
        out, err = run(capsys, model_of(folder, "paraformer"), *arguments, code=2)
    assert out == ""
    assert err == [
        f"nartk: error[E201 InputFile] {'stdin' if by == 'stdin' else path}: neither sound of a format that "
        "is known nor a list of such files. Fix: convert it with ffmpeg -i FILE FILE.wav; samples without a "
        "header take their format in front of -i, as in -f s16le -ar 16000 -ac 1."
    ]


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="a shell's <(...) has no name here")
def test_sound_of_a_pipe_with_a_name_is_refused_in_a_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of(folder, "paraformer")
    for arguments, code in (((), 2), (("--format", "sound"), 3)):
        with stdin_of(monkeypatch, (folder / "a.wav").read_bytes()):
            path = f"/dev/fd/{sys.stdin.fileno()}"
            _, err = run(capsys, model, path, *arguments, "--quiet", code=code)
        assert len(err) == 1
        assert "by stdin, -" in err[0] or "from stdin, -" in err[0]


def test_a_model_of_text_refuses_sound_whatever_its_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = str(tiny.random_model(tmp_path / "text", words=["a", "b"]))
    (tmp_path / "talk").write_bytes(M4A)
    _, err = run(capsys, text, str(tmp_path / "talk"), code=4)
    assert "E305 SourceMismatch" in err[0]
    with stdin_of(monkeypatch, (folder / "a.wav").read_bytes()):
        _, err = run(capsys, text, code=4)
    assert "E305 SourceMismatch] 'stdin' holds sound" in err[0]
    with stdin_of(monkeypatch, b"a b\nb\n"):
        assert len(run(capsys, text, "--quiet")[0].splitlines()) == 2


def test_stdin_may_be_no_file_of_the_system(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of(folder, "paraformer")
    wanted, _ = run(capsys, model, str(folder / "a.wav"), "--quiet")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((folder / "a.wav").read_bytes())))
    assert run(capsys, model, "-", "--format", "sound", "--quiet") == (wanted, [])


def test_channels_that_cancel_are_told_in_a_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path = model_of(folder, "paraformer"), str(tmp_path / "a.wav")
    plain = 100 * tones(SECONDS)
    (tmp_path / "a.wav").write_bytes(wav(np.stack([plain, -plain], axis=1)))
    wanted, _ = run(capsys, model, str(folder / "a.wav"), "--quiet")
    assert wanted.strip()
    out, err = run(capsys, model, path)
    assert out == wanted
    assert err[0] == (
        f"nartk: {path!r} has 2 channels that cancel each other, of which the loudest, number 1, is taken"
    )


def test_sound_that_is_too_long_is_told_of_long_form(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path = model_of(folder, "owsm_ctc"), tmp_path / "a.wav"
    path.write_bytes(wav(100 * tones(9.0)))
    out, err = run(capsys, model, str(path), "--quiet", code=3)
    assert out == "\n"
    assert err == [
        f"nartk: error[E203 InputTooLong] {path}: more than 4.0 s of sound, 400 frames. Fix: use --long-form "
        "30 with a strategy that reads frames, split the recording, or use --truncate."
    ]
    wanted, _ = run(capsys, model, str(path), "--long-form", "30", "--quiet")
    assert wanted.strip()
    with stdin_of(monkeypatch, path.read_bytes()):
        assert run(capsys, model, "-", "--long-form", "30", "--quiet") == (wanted, [])
