"""Sound is told by its first bytes, and a WAV file whose length was not known is read to its end."""

from __future__ import annotations

import io
import os
import re
import shlex
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from support.fairseq_host import require_fairseq
from support.sounds import RATE, noise, sine, wav

from nartk.data.audio import sounds
from nartk.data.audio.features import FeatureSettings
from nartk.data.audio.media import STREAMED
from nartk.data.audio.signatures import HEAD, MEDIA, is_binary, sound_format
from nartk.data.audio.sounds import Piped, read_sound, sound_blocks
from nartk.errors import InputFileError
from nartk.processors.audio import AudioInput

PLAIN = noise(RATE // 2)
GOOD = wav(PLAIN)
WRITTEN = {  # by libsndfile
    "wav": ("WAV", "PCM_16"),
    "rifx": ("WAV", "PCM_16"),
    "rf64": ("RF64", "PCM_16"),
    "w64": ("W64", "PCM_16"),
    "aiff": ("AIFF", "PCM_16"),
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
    "au": ("AU", "PCM_16"),
    "caf": ("CAF", "PCM_16"),
    "sph": ("NIST", "PCM_16"),
}
# The first bytes of files that FFmpeg 5.1 wrote.
FOREIGN = {
    "mov": [b"\0\0\0\x1cftypM4A \0\0\2\0M4A isomiso2", b"\0\0\0\x14ftypqt  \0\0\2\0qt  \0\0\0\x08wide"],
    "matroska": [b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\x01\x42\xf7\x81\x01\x42\xf2\x81\x04"],
    "asf": [b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9\x00\xaa\x00\x62\xce\x6c"],
    "aac": [b"\xff\xf1\x6c\x40\x4a\xff\xfc\xde\x02\x00Lavc59.37"],
    "amr": [b"#!AMR\n\x3c\x54"],
    "avi": [b"RIFF\x84\x1f\0\0AVI LIST\xe2\x11\0\0hdrlavih"],
    "flv": [b"FLV\x01\x04\0\0\0\x09"],
    "mpegts": [(b"\x47\x40\x11\x10" + bytes(184)) * 2 + b"\x47\x40\0\x10"],
}


def foreign(kind: str) -> bytes:
    """What is no file of that kind but by its first bytes."""
    return FOREIGN[kind][0] + bytes(range(256)) * 8


def bare(*chunks: tuple[bytes, bytes], mark: bytes = b"RIFF", size: int = 0, order: str = "<") -> bytes:
    """The head of a WAV file, with these chunks between its format and its samples, of 0 bytes."""
    form = struct.pack(f"{order}HHIIHH", 1, 1, RATE, 2 * RATE, 2, 16)
    parts = [*(chunks if mark == b"RF64" else ()), (b"fmt ", form), *(() if mark == b"RF64" else chunks)]
    body = b"".join(name + struct.pack(f"{order}I", len(data)) + data for name, data in parts)
    return mark + struct.pack(f"{order}I", size) + b"WAVE" + body + b"data"


@contextmanager
def pipe_of(data: bytes) -> Iterator[IO[bytes]]:
    """A pipe that brings bytes, two thousand at a time."""
    out, into = os.pipe()

    def write() -> None:
        with open(into, "wb", buffering=0) as file:
            for begin in range(0, len(data), 2000):
                file.write(data[begin : begin + 2000])

    thread = threading.Thread(target=write)
    thread.start()
    with open(out, "rb") as file:
        yield file
        while file.read(1 << 16):  # what nobody wanted
            pass
    thread.join()


@pytest.mark.parametrize("name", WRITTEN)
def test_sound_that_libsndfile_writes_is_told(name: str) -> None:
    form, subtype = WRITTEN[name]
    data = wav(PLAIN, subtype=subtype, form=form)
    if name == "rifx":
        data = b"RIFX" + data[4:]
    assert sound_format(data[:HEAD]) == ("wav" if name in ("rifx", "rf64") else name)
    assert name == "mp3" or is_binary(data[:HEAD]) or name == "sph"


@pytest.mark.parametrize("kind", FOREIGN)
def test_containers_are_told(kind: str) -> None:
    assert [sound_format(head) for head in FOREIGN[kind]] == [kind] * len(FOREIGN[kind])
    assert kind in MEDIA


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"RIFF is four letters, and so is WAVE .\n",
        b"OggS of all sorts\n",
        b"fLaC is no word\n",
        b"ID3 tags\n",
        b"FORM 12b, AIFF\n",
        b"caffeine\n",
        b".snd files\n",
        b"/data/a.wav\n/data/b.wav\n",
        b"#!AMR is a comment\n",
        b"GAGA " * 40,
        (b"G" + b"a" * 187) * 3,
        b"G" + bytes(187) + b"G" + bytes(200),
        b"ADIF is a header\n",
        b"RIFF or WAVE\n",
        b"RIFF or AVI \n",
        b"FORM or AIFF\n",
        "Größe\n".encode("latin-1"),
        "ÿ is a letter\n".encode("latin-1"),
        "ÿñ too\n".encode(),
        b"\xff\xfea\0 \0b\0",  # UTF-16
        b"\x1f\x8b\x08\0\0\0",  # gzip
        b"PK\x03\x04",
        np.linspace(-9, 9, 300).astype("<i2").tobytes(),
    ],
    ids=lambda head: repr(head[:12]),
)
def test_what_is_no_sound_is_told_as_none(head: bytes) -> None:
    assert sound_format(head) is None


def test_what_is_streamed_is_told_by_the_bytes_that_are_waited_for() -> None:
    for form in STREAMED:
        data = FOREIGN[form][0] if form in FOREIGN else wav(PLAIN, RATE, *reversed(WRITTEN[form]))
        assert sound_format(data[: sounds._TELLING]) == form


def test_text_holds_no_control_characters() -> None:
    for text in ("/a/b.wav\r\n\tc.wav\n", "Größe", "日本語", "\x1b[1mbold\f"):
        assert not is_binary(text.encode())
    assert not is_binary("Größe".encode("latin-1"))
    assert is_binary(PLAIN.astype("<i2").tobytes()[:HEAD])
    assert is_binary("a b".encode("utf-16"))


UNKNOWN = struct.pack("<I", 0xFFFFFFFF)
OPEN = {  # of files whose program could not go back to the head, or was stopped; each head, with its length
    "zero": (bare(size=36), bytes(4)),
    "both zero": (bare(size=0), bytes(4)),
    "eight": (bare(size=8), bytes(4)),
    "whole size": (bare(size=36 + 2 * len(PLAIN)), bytes(4)),
    "ffmpeg": (bare((b"LIST", b"INFOISFT\x0e\0\0\0Lavf59.27.100\0"), size=0xFFFFFFFF), UNKNOWN),
    "arecord": (bare(size=0x7FFFFFFF), struct.pack("<I", 0x7FFFFFFF - 36)),
    "ffmpeg -rf64": (bare((b"ds64", bytes(28)), mark=b"RF64", size=0xFFFFFFFF), UNKNOWN),
    "long head": (bare((b"JUNK", bytes(9001) + b"\0"), size=0), bytes(4)),
    "rifx": (bare(mark=b"RIFX", order=">"), bytes(4)),
}


@pytest.mark.parametrize("how", ["bytes", "file", "pipe", "piped"])
@pytest.mark.parametrize("name", OPEN)
def test_samples_of_an_unknown_number_are_read_to_the_end(tmp_path: Path, name: str, how: str) -> None:
    head, length = OPEN[name]
    samples = np.round(PLAIN * 32767).astype("<i2")
    wanted = samples.astype(np.float32) / 32768
    data = head + length + samples.astype(">i2" if name == "rifx" else "<i2").tobytes()
    told: list[tuple[str, str]] = []
    options: dict[str, Any] = {"strict": True, "tell": lambda *notice: told.append(notice)}
    if how == "bytes":
        found = read_sound(data, **options)
    elif how == "file":
        (tmp_path / "a.wav").write_bytes(data)
        found = read_sound(tmp_path / "a.wav", **options)
    else:
        with pipe_of(data) as pipe:
            source = Piped(pipe, "stdin") if how == "piped" else pipe
            found = read_sound(source, **options)
            if how == "piped":
                assert (read_sound(source) == found).all()
    assert found.tolist() == wanted.tolist()
    assert told == []


@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.parametrize(
    "rest", [b"", b"LIST\x0c\0\0\0INFOISFT\0\0\0\0", b"id3 \x04\0\0\0ID3\3"], ids=["none", "list", "id3"]
)
def test_a_file_without_samples_has_none(rest: bytes, piped: bool) -> None:
    data = bare(size=36 + len(rest)) + bytes(4) + rest
    if not piped:
        assert len(read_sound(data)) == 0
        return
    with pipe_of(data) as pipe:
        assert len(read_sound(pipe)) == 0


def test_of_a_pipe_what_follows_the_samples_is_no_sound() -> None:
    rest = b"LIST" + struct.pack("<I", 4000) + b"INFO" + bytes(3996)
    data = GOOD[:4] + struct.pack("<I", len(GOOD) - 8 + len(rest)) + GOOD[8:] + rest
    with pipe_of(data) as pipe:
        assert read_sound(pipe).tolist() == read_sound(GOOD).tolist() == read_sound(data).tolist()


def test_a_pipe_that_ends_early_is_told() -> None:
    told: list[str] = []
    with pipe_of(GOOD[:8044]) as pipe:
        assert len(read_sound(pipe, tell=lambda _, what: told.append(what))) == 4000
    assert told == ["4000 samples, its header says 8000"]


def test_rf64_of_a_known_length_is_read() -> None:
    data = wav(PLAIN, form="RF64")
    assert data[:4] == b"RF64"
    assert read_sound(data).tolist() == read_sound(GOOD).tolist()
    with pipe_of(data) as pipe:
        assert read_sound(pipe).tolist() == read_sound(GOOD).tolist()


@pytest.mark.parametrize("av", [True, False])
@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "rifx"])
def test_a_pipe_brings_what_a_file_holds(name: str, av: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once and in blocks, with PyAV and without."""
    if av:
        pytest.importorskip("av")
    else:
        monkeypatch.setattr(sounds, "_has_av", lambda: False)
    form, subtype = WRITTEN[name]
    data = wav(0.5 * sine(RATE, 440), subtype=subtype, form=form)
    wanted = read_sound(data)
    with pipe_of(data) as pipe:
        found = np.concatenate([*sound_blocks(pipe, seconds=0.05)])
    # FFmpeg keeps what fills up the last frame of a codec where no seeking tells it.
    assert 0 <= len(found) - len(wanted) <= 1152 * (av and name in ("mp3", "ogg"))
    assert np.abs(found[: len(wanted) - 600] - wanted[:-600]).max() < 1e-4
    with pipe_of(data) as pipe:
        kept = Piped(pipe, "stdin")
        for _ in range(2):
            assert read_sound(kept).tolist() == wanted.tolist()


class Trickle(io.RawIOBase):
    """An unbuffered pipe, which gives a few bytes at a time."""

    def __init__(self, data: bytes, most: int) -> None:
        self.data, self.most = io.BytesIO(data), most

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        found = self.data.read(min(len(into), self.most))
        into[: len(found)] = found
        return len(found)


@pytest.mark.parametrize("most", [3, 1001])
@pytest.mark.parametrize("name", ["wav", "rf64", "au", "flac"])
def test_no_sample_of_an_unbuffered_pipe_is_lost(name: str, most: int) -> None:
    """What has come may end within the head, or within a sample."""
    form, subtype = WRITTEN[name]
    data = wav(PLAIN, subtype=subtype, form=form)
    for source in (Trickle(data, most), Piped(Trickle(data, most), "stdin")):  # type: ignore[arg-type]
        assert read_sound(source).tolist() == read_sound(data).tolist()  # type: ignore[arg-type]


def test_what_a_container_takes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    for kind in FOREIGN:
        path = tmp_path / "my talk.bin"
        path.write_bytes(foreign(kind))
        with pytest.raises(InputFileError) as caught:
            read_sound(path)
        assert (
            caught.value.message == f"{str(path)!r} is {MEDIA[kind]}, which takes the package 'av' to be read"
        )
        assert caught.value.fix.startswith("pip install 'nartk[media]', or convert it: ffmpeg -i ")
        assert shlex.split(caught.value.fix)[-3:] == ["-i", str(path), "my talk.wav"]


def encoded(samples: Any, container: str, name: str, rate: int, *, video: int = 0) -> bytes:
    """The bytes of a file that FFmpeg writes of samples [N], and of so many seconds of video."""
    av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'nartk[media]'")
    data = io.BytesIO()
    with av.open(data, "w", format=container) as file:
        if video:
            pictures = file.add_stream("mpeg4", rate=5)
            pictures.width, pictures.height, pictures.pix_fmt = 32, 32, "yuv420p"
        stream = file.add_stream(name, rate=rate, layout="mono")
        codec = stream.codec_context
        codec.bit_rate = 64000
        codec.open()
        frame = av.AudioFrame.from_ndarray(samples[None].astype(np.float32), format="flt", layout="mono")
        frame.sample_rate = rate
        convert = av.AudioResampler(codec.format, "mono", rate, codec.frame_size)
        for part in (*convert.resample(frame), *convert.resample(None)):
            file.mux(stream.encode(part))
        file.mux(stream.encode(None))
        for _ in range(5 * video):
            file.mux(pictures.encode(av.VideoFrame(32, 32, "yuv420p")))
        if video:
            file.mux(pictures.encode(None))
    return data.getvalue()


@pytest.mark.parametrize("piped", [False, True])
@pytest.mark.parametrize(
    ("container", "codec", "kind"),
    [
        ("ipod", "aac", "mov"),
        ("mp4", "aac", "mov"),
        ("adts", "aac", "aac"),
        ("asf", "wmav2", "asf"),
        ("webm", "opus", "matroska"),
        ("matroska", "pcm_s16le", "matroska"),
        ("avi", "pcm_s16le", "avi"),
        ("mpegts", "aac", "mpegts"),
    ],
)
def test_containers_are_read(container: str, codec: str, kind: str, piped: bool, tmp_path: Path) -> None:
    """A tone survives; its begin and end are the codec's affair."""
    rate = 48000 if codec == "opus" else RATE
    data = encoded(0.5 * sine(2 * rate, 440, rate), container, "libopus" if codec == "opus" else codec, rate)
    assert sound_format(data[:HEAD]) == kind
    if piped:
        with pipe_of(data) as pipe:
            found = read_sound(pipe)
    else:
        (tmp_path / "a.bin").write_bytes(data)
        found = read_sound(tmp_path / "a.bin")
    middle = found[RATE // 2 : RATE // 2 + 3200]  # 88 periods
    assert abs(len(found) - 2 * RATE) < 0.3 * RATE
    power = np.abs(np.fft.rfft(middle))
    assert power.argmax() == 440 * 3200 // RATE
    assert np.sqrt(np.mean(np.square(middle))) == pytest.approx(0.5 / np.sqrt(2), rel=0.03)


def test_frames_are_counted_where_no_header_tells_them(tmp_path: Path) -> None:
    """As training needs them, to make batches."""
    require_fairseq()
    from nartk.tasks.speech import frames_of

    path = tmp_path / "a.m4a"
    path.write_bytes(encoded(0.5 * sine(2 * RATE, 440), "ipod", "aac", RATE))
    audio = AudioInput(FeatureSettings())
    assert frames_of(str(path), audio.settings) == len(audio.read(str(path), longest=999).frames) > 190


def test_a_container_without_its_end_is_told() -> None:
    data = encoded(0.5 * sine(4 * RATE, 440), "matroska", "aac", RATE)
    told: list[str] = []
    assert abs(len(read_sound(data, tell=lambda _, what: told.append(what))) - 4 * RATE) < 2048
    assert told == []
    found = read_sound(data[: len(data) // 2], tell=lambda _, what: told.append(what))
    assert 1.7 * RATE < len(found) < 2.3 * RATE
    assert len(told) == 1
    assert re.fullmatch(rf"{len(found) / RATE:.1f} s of sound, its header says 4\.[01]", told[0])
    with pytest.raises(InputFileError, match="or leave strict_audio=True out"):
        read_sound(data[: len(data) // 2], strict=True)


@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_sound_may_end_before_its_video(container: str) -> None:
    """A container is as long as the longest that it holds."""
    told: list[str] = []
    data = encoded(0.5 * sine(RATE, 440), container, "aac", RATE, video=4)
    found = read_sound(data, strict=True, tell=lambda _, what: told.append(what))
    assert abs(len(found) - RATE) < 3000
    assert told == []


@pytest.mark.parametrize("kind", FOREIGN)
def test_damaged_containers_are_named(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("av", reason="PyAV is not installed: pip install 'nartk[media]'")
    (tmp_path / "a.bin").write_bytes(foreign(kind))
    with pytest.raises(
        InputFileError, match=r"a\.bin' (cannot be read as audio|is damaged|has 0 samples a second)"
    ):
        read_sound(tmp_path / "a.bin")


def test_a_container_names_no_other_file(tmp_path: Path) -> None:
    """A playlist would have FFmpeg open what it lists; its format is never guessed."""
    (tmp_path / "a.wav").write_bytes(GOOD)
    (tmp_path / "a.m4a").write_text(f"#EXTM3U\n#EXTINF:1,\n{tmp_path / 'a.wav'}\n#EXT-X-ENDLIST\n")
    with pytest.raises(InputFileError, match="cannot be read as audio: Format not recognised"):
        read_sound(tmp_path / "a.m4a")
