"""Tells sound by the first bytes of its file, and finds where the samples of a WAV file begin.

Signatures: RFC 9639 (FLAC), RFC 3533 (Ogg), ISO/IEC 11172-3 and 13818-7 (frames of MPEG audio and of AAC),
ISO/IEC 14496-12 (``ftyp``), RFC 8794 (EBML), EBU Tech 3306 (RF64), and the formats' own specifications.
"""

from __future__ import annotations

import re
import struct
from typing import IO

HEAD = 384  # bytes of a file by which its format is told: two packets of MPEG and the third one's first byte
CONVERT = (
    "convert it with ffmpeg -i FILE FILE.wav; samples without a header take their format in front of -i, as "
    "in -f s16le -ar 16000 -ac 1"
)
_MOST_HEADER = 1 << 22  # bytes in front of a WAV file's samples
_CONTROL = rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]"
_NO_TEXT = rb"(?=.*" + _CONTROL + rb")"  # in front of a signature that text may begin with
# Formats that libsndfile reads, by their first bytes.
_PLAIN = (
    ("wav", _NO_TEXT + rb"(?:RIFF|RIFX|RF64)....WAVE"),
    ("w64", rb"riff\x2e\x91\xcf\x11"),
    ("aiff", _NO_TEXT + rb"FORM....AIF[FC]"),
    ("flac", rb"fLaC[\x00-\x06\x80-\x86]"),
    ("ogg", rb"OggS\x00"),
    ("mp3", rb"ID3[\x02-\x04]|\xff[\xe2-\xe7\xf2-\xf7\xfa-\xfd][^\xf0-\xff]"),
    ("au", rb"\.snd\x00\x00"),
    ("caf", rb"caff\x00\x01"),
    ("sph", rb"NIST_1A\n"),
)
# Containers and codecs that take another decoder: FFmpeg's name of the format, and the one people know.
MEDIA = {
    "mov": "MP4, M4A or QuickTime",
    "matroska": "WebM or Matroska",
    "asf": "WMA or ASF",
    "aac": "AAC",
    "amr": "AMR",
    "avi": "AVI",
    "flv": "FLV",
    "mpegts": "an MPEG transport stream",
    "mpeg": "an MPEG program stream",
    "ape": "Monkey's Audio",
    "wv": "WavPack",
}
_CONTAINERS = (
    ("mov", rb"\x00...(?:ftyp|moov|mdat|wide|free|skip)"),
    ("matroska", rb"\x1a\x45\xdf\xa3"),
    ("asf", rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),
    ("aac", rb"\xff[\xf0\xf1\xf8\xf9]|" + _NO_TEXT + rb"ADIF"),
    ("amr", rb"#!AMR(?:-WB)?\n"),
    ("avi", _NO_TEXT + rb"RIFF....AVI "),
    ("flv", rb"FLV\x01"),
    ("mpegts", _NO_TEXT + rb"(?:\x47.{187}){2}\x47"),
    ("mpeg", rb"\x00\x00\x01\xba"),
    ("ape", rb"MAC [\x00-\xff]\x0f"),
    ("wv", rb"wvpk....[\x00-\xff]\x04"),
)
_SIGNATURES = [(form, re.compile(shape, re.DOTALL)) for form, shape in (*_PLAIN, *_CONTAINERS)]
_CHUNK = re.compile(rb"[A-Za-z0-9_][A-Za-z0-9_ -]{3}.{4}", re.DOTALL)  # the name and the size of one
UNKNOWN = 0x7FFF_0000  # of lengths, modulo 2**31, what programs write from there on that do not know them


def sound_format(head: bytes) -> str | None:
    """The format of the sound that a file holds, by its first `HEAD` bytes; None: it is no sound.

    Those of `MEDIA` take another decoder than libsndfile.
    """
    return next((form for form, shape in _SIGNATURES if shape.match(head)), None)


def is_binary(head: bytes) -> bool:
    """True if the first bytes of a file hold control characters, which no text in UTF-8 or Latin-1 has."""
    return re.search(_CONTROL, head) is not None


def wav_head(file: IO[bytes], size: int | None) -> tuple[bytes, bool]:
    """Reads a WAV file from its beginning up to its samples, and somewhat further.

    A program that writes to a pipe, or that was stopped, leaves a length of the samples behind that is 0 or
    as much as the field can hold. Such a file is open: its samples go on to its end.

    Args:
        size: Bytes of the file; None: of a pipe, which are not known.

    Returns:
        The bytes that have been read, those of an open file changed so that libsndfile reads all that
        follows: it does where RIFF is 8 bytes long and the samples are 0. And whether the file is open.
    """
    head = bytearray(file.read(12))
    order = ">" if head[:4] == b"RIFX" else "<"
    long: int | None = None  # of RF64, the bytes of its samples
    while True:
        begin = len(head)
        head += file.read(8)
        if len(head) < begin + 8:
            return bytes(head), False
        name, length = struct.unpack(f"{order}4sI", head[begin:])
        if name == b"data":
            break
        if length > _MOST_HEADER - begin:
            return bytes(head), False
        head += file.read(length + length % 2)
        if name == b"ds64" and length >= 24:
            long = struct.unpack("<Q", head[begin + 16 : begin + 24])[0]
    begin, length = len(head), length if long is None else long
    head += file.read(8)
    rest = head[begin:]  # 8 bytes behind the header, or all that there are
    if length == 0:
        most = _MOST_HEADER if size is None else size - begin - 8
        is_chunk = _CHUNK.match(rest) is not None and struct.unpack(f"{order}4xI", rest)[0] <= most
        is_open = bool(rest) and not is_chunk
    else:
        unknown = length % 2**31 >= UNKNOWN if long is None else length >= 2**63 - 1
        is_open = unknown and (size is None or begin + length > size)
    if is_open:
        head[:4] = b"RIFX" if order == ">" else b"RIFF"
        head[4:8] = struct.pack(f"{order}I", 8)
        head[12:16] = head[12:16].replace(b"ds64", b"JUNK")
        head[begin - 4 : begin] = bytes(4)
    return bytes(head), is_open
