"""Writes momentum.json: lengths of repeated n-grams, and outputs of scripted models by momentum decoding.

    git -C MomentumDecoding checkout 2b58b6f
    PYTHONPATH=MomentumDecoding/models:tests python tests/oracles/momentum.py tests/oracles/momentum.json

The program imports ipdb and calls it nowhere; an empty module stands in for it. A prompt, which the program
needs, is the prefix of a request. `lengths` has, for each prefix of three words in the order of
`itertools.product`, shortest first, a digit for each word that may follow.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

sys.modules["ipdb"] = ModuleType("ipdb")

from support.real_passes import RealPasses  # noqa: E402
from support.scripted_passes import EOS  # noqa: E402
from utlis_ngram import ResistanceDecodingNGram, find_max_repetition_length  # noqa: E402

WORDS, LONGEST, ALPHABET = 12, 24, 3


def graph_of(tokens: tuple[int, ...]) -> dict[int, Any]:
    """The program's graph of a prefix, as its first step makes it."""
    graph: dict[int, Any] = {}
    uniform = SimpleNamespace(
        past_key_values=None, hidden_states=[torch.zeros(1, 1, 1)], logits=torch.zeros(1, 1, ALPHABET)
    )
    ids = torch.tensor([tokens])
    ResistanceDecodingNGram(lambda **_: uniform, 0.0, ids, 1, None, None, first_step=True, graph=graph)
    # The step also adds the word that it chooses, whose place is behind the prefix.
    return {
        word: {"indexes": [i for i in node["indexes"] if i < len(tokens)]}
        for word, node in graph.items()
        if word in tokens
    }


def lengths() -> str:
    found = ""
    for size in range(1, 8):
        for prefix in itertools.product(range(ALPHABET), repeat=size):
            graph = graph_of(prefix)
            for word in range(ALPHABET):
                found += str(find_max_repetition_length(graph, [*prefix], word))
    return found


def outputs() -> list[dict[str, Any]]:
    found = []
    for seed in range(60):
        rng = random.Random(seed)
        passes = RealPasses(WORDS, seed=seed, copying=rng.choice([2, 4, 8]))
        source = [*rng.choices(range(4, 7), k=rng.randint(3, 10)), EOS]
        prefix = rng.choices(range(4, WORDS), k=rng.randint(1, 3))
        alpha, top = rng.choice([0.02, 0.05, 0.1, 0.2, 0.6]), rng.choice([2, 3, 5, 8])
        tokens = [*prefix]

        def model(passes: Any = passes, source: Any = source, tokens: Any = tokens, **_: Any) -> Any:
            logits = torch.tensor([[passes.logits(source, tokens)]])
            return SimpleNamespace(past_key_values=None, hidden_states=[torch.zeros(1, 1, 1)], logits=logits)

        graph: dict[int, Any] = {}
        ids = torch.tensor([prefix])
        while len(tokens) < LONGEST and tokens[-1] != EOS:
            first = len(tokens) == len(prefix)
            ids, _, _, graph, _ = ResistanceDecodingNGram(
                model, alpha, ids, top, None, None, first_step=first, graph=graph, token_list=tokens
            )
            tokens.append(int(ids))
        options = {"momentum": alpha, "momentum_top": top}
        found.append(
            {
                "seed": seed,
                "copying": passes.table.bonus // 2**13,
                "source": source,
                "prefix": prefix,
                "options": options,
                "tokens": tokens,
            }
        )
    return found


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump({"lengths": lengths(), "outputs": outputs()}, file)
        file.write("\n")
