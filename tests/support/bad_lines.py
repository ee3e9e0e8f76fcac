"""Lines that nobody should feed to a decoder, and how each format holds them."""

from __future__ import annotations

BAD = {  # kind -> the line, and the error it has in txt
    "empty": (b"", ""),
    "blank": (b"   ", ""),
    "nul": (b"she go\0home", "E202"),
    "invalid utf-8": (b"caf\xe9 home .", "E202"),
    "surrogate": (b"she \xed\xa0\x80 go", "E202"),
    "bom": (b"\xef\xbb\xbfshe go", ""),
    "carriage return": (b"she\rgo", ""),
    "line separator": ("she\u2028go".encode(), ""),
    "paragraph separator": ("she\u2029go".encode(), ""),
    "next line": ("she\x85go".encode(), ""),
    "100k tokens": (b"she " * 100_000, "E203"),
    "rtl": ("שלום עולם".encode(), ""),
    "emoji": ("she 👩‍👩‍👧 go 🇪🇺".encode(), ""),
    "unknown words": (b"qwx zxq vvv", ""),
    "last": (b"she go", ""),
}
WRAP = {"txt": b"%b", "tsv": b"%b\tother", "jsonl": b'{"source": "%b"}', "m2": b"S %b"}
