"""Lexical shortlists as Marian writes them."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence

Best = Mapping[int, Sequence[int]]  # target words by source words
MAGIC = 0xF11A48D5013417F5
WORD = 1 << 64


def hash_mem(raw: bytes) -> int:
    """`util::hashMem` of 64-bit numbers, whose `std::hash` are the numbers."""
    seed = 0
    for (value,) in struct.iter_unpack("<Q", raw[: len(raw) // 8 * 8]):
        seed ^= (value + 0x9E3779B9 + (seed << 6) % WORD + (seed >> 2)) % WORD
    return seed


def blob(best: Best, sources: int, first: int, most: int = 50) -> bytes:
    """`generateBlob`: the header, where each source word's list begins, and the lists."""
    offsets, words = [0], []
    for word in range(sources):
        words += sorted(best.get(word, ()))
        offsets.append(len(words))
    body = struct.pack("<4Q", first, most, len(offsets), len(words))
    body += struct.pack(f"<{len(offsets)}Q", *offsets) + struct.pack(f"<{len(words)}I", *words)
    return struct.pack("<2Q", MAGIC, hash_mem(body)) + body


def random_best(rng: random.Random, sources: int, targets: int, most: int = 4) -> Best:
    return {
        word: rng.sample(range(targets), rng.randint(0, most))
        for word in range(sources)
        if rng.random() < 0.8
    }
