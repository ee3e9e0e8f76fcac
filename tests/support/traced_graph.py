"""A graph as a trace holds it."""

from __future__ import annotations

GRAPH = {
    "size": 9,
    "vertices": [0, 3, 5, 8],
    "words": [[], [["she", -0.5], ["he", -1.5]], [["goes", None]], [["</s>", 0.0]]],
    "links": [[0, 3, -0.25], [3, 8, -0.125], [0, 5, -2.0]],
    "path": [0, 3, 8],
    "emitted": ["she", "</s>"],
}
