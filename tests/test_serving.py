"""How the tokens of rows of different lengths lie behind each other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nartk.models.serving import Packed

HEADS, FEATURES = 2, 3


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("counts", [[3], [4, 4], [1, 4, 2], [0, 2]])
def test_rows_are_laid_out_and_packed_as_one_by_one(
    counts: list[int], padding: int, parts: int, device: torch.device
) -> None:
    width = max(counts)
    at = [(row, column) for row, count in enumerate(counts) for column in range(count)]
    rows, columns = torch.tensor(at, device=device).unbind(1)
    layout = Packed(rows, columns, len(counts), width, len(at) == len(counts) * width, padding)
    x = torch.randn(len(at) + padding, parts * HEADS * FEATURES, device=device)

    unpacked, found = layout.unpack(x), layout.split(x, parts, HEADS)

    assert len(found) == parts
    for row, count in enumerate(counts):
        for column in range(width):
            mine: Tensor = x[at.index((row, column))] if column < count else torch.zeros_like(x[0])
            assert torch.equal(unpacked[row, column], mine)
            for part, said in enumerate(found):
                for head in range(HEADS):
                    start = (part * HEADS + head) * FEATURES
                    assert torch.equal(said[row, head, column], mine[start : start + FEATURES])
    packed = layout.pack(found[0])
    assert packed.shape == (len(at) + padding, HEADS * FEATURES)
    assert torch.equal(packed[: len(at)], x[: len(at), : HEADS * FEATURES])
    assert bool(packed.isfinite().all())
