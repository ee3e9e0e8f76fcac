"""Models of one tokenizer whose matrices are filled up to different sizes draft for each other."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import hf_folders, hugging_face_text
from support.scripted_passes import Table, TablePasses

import nartk
from nartk.errors import VocabMismatchError
from nartk.protocols.aligned import AlignedWords
from nartk.protocols.passes import ROOT, Draw, Pass, PassCosts, Ragged, Replicable, Want, costs_of
from nartk.vocab import Vocab, padding_word

LINES = ["She goes to school .", "The cat sat on the mat", "news about Zürich !"]
ROWS = (100, 128)  # of padding


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """T5 with fewer and with more rows of padding, and the same weights otherwise."""
    pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")
    found = []
    weights: dict[str, Any] = {}
    for rows in reversed(ROWS):
        folder = tmp_path_factory.mktemp("t5") / "model"
        folder.mkdir()
        hugging_face_text.t5(folder)
        words = json.loads((folder / "config.json").read_text())["vocab_size"] - 128 + 100 + rows
        sizes = {"d_model": 24, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "vocab_size": words}
        ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
        model = hf_folders.random_model("t5", sizes | ids, 0)
        if weights:
            cut = {
                name: tensor[:words] if len(tensor) > words else tensor for name, tensor in weights.items()
            }
            own = model.state_dict()
            model.load_state_dict({name: cut[name][: len(own[name])] for name in own})
        else:
            weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.save_pretrained(folder)
        found.append(folder)
    return found[::-1]


@pytest.mark.parametrize("swapped", [False, True], ids=["more", "fewer"])
def test_padding_rows_do_not_part_two_models(folders: list[Path], swapped: bool) -> None:
    mine, other = folders[::-1] if swapped else folders
    model = nartk.load(mine)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run = model.run(LINES, "speculative", options={"drafter": str(other), "max_len": 24})
    assert ["are the two swapped?" in str(each.message) for each in told] == ([] if swapped else [True])
    greedy = model.decode(LINES, "greedy", max_len=24)
    assert [each.tokens for each in run.best] == [each.tokens for each in greedy]
    assert run.stats.accepted > 10


def test_words_that_differ_part_them() -> None:
    short = Vocab.from_words(["a", "b"])
    padded = Vocab((*short.words, padding_word(6), padding_word(7)))
    for one, other in ((short, padded), (padded, short)):
        one.require_equal(other, "one", "other", padded=True)
        with pytest.raises(VocabMismatchError, match="has 6 words and"):
            Vocab.require_equal(short, padded, "one", "other")
        with pytest.raises(VocabMismatchError):
            one.require_equal(Vocab((*short.words, "word")), "one", "other", padded=True)


@pytest.mark.parametrize("words", [9, 12, 15])
def test_a_distribution_over_other_words(words: int) -> None:
    """Against the softmax of the logits that are left, by torch."""
    inner = TablePasses(Table(12, seed=3, spread=6))
    vocab = Vocab((*inner.vocab.words, *map(padding_word, range(12, 15)))[:words])
    scorer = AlignedWords(inner, vocab)
    sources = [(4, 5, 2)]
    memory, contexts = scorer.encode(sources), scorer.open(1)
    tokens = np.array([2, 5, words - 1], np.int32)
    known = [2, 5, words - 1 if words <= 12 else vocab.unk]
    zeros = np.zeros(3, np.int32)
    work = Pass(
        tokens, np.arange(3, dtype=np.int32), memory[zeros], contexts[zeros], np.array([ROOT, 0, 1], np.int32)
    )
    uniforms = np.array([0.1, 0.5, 0.99])
    want = Want(
        top=3,
        margin=True,
        banned=Ragged.of([[4], [], [5]]),
        given=np.array([5, 6, -1], np.int32),
        draw=Draw(uniforms, 1.0, 0, 1.0),
    )
    scores = scorer.run(work, want)
    logits = torch.full((3, words), -torch.inf, dtype=torch.float64)
    for i in range(3):
        by_hand = inner.table.scores_by_hand(sources[0], known[: i + 1])[:words]
        logits[i, : len(by_hand)] = torch.tensor(by_hand, dtype=torch.float64)
    logits = logits * _scale(scores.rows([0])[0], logits[0].numpy())
    wanted = logits.log_softmax(-1)
    allowed = wanted.clone()
    allowed[0, 4] = allowed[2, 5] = -torch.inf
    assert scores.best.tolist() == allowed.argmax(-1).tolist()
    assert scores.log_probs == pytest.approx(
        [float(wanted[i, word]) for i, word in enumerate(scores.best)],
        abs=1e-5,
    )
    assert scores.given_log_probs[:2] == pytest.approx([float(wanted[0, 5]), float(wanted[1, 6])], abs=1e-5)
    mass = allowed.exp().cumsum(-1)
    drawn = [int((mass[i] > uniforms[i] * mass[i, -1]).nonzero()[0]) for i in range(3)]
    assert scores.drawn.tolist() == drawn
    scorer.commit(scores, [0, 1])
    assert scorer.cells_in_use == 2
    scorer.close(contexts)
    scorer.free(memory)
    assert inner.in_use == (0, 0)


def test_it_costs_and_is_shared_as_the_model_itself() -> None:
    inner: Any = TablePasses(Table(12, seed=3, spread=6))
    inner.costs = PassCosts((1, 2), (3.0, 4.0))
    inner.replica = lambda stopped: TablePasses(Table(12, seed=3, spread=6))
    scorer = AlignedWords(inner, inner.vocab)
    assert costs_of(scorer) == inner.costs
    assert isinstance(scorer, Replicable)
    assert isinstance(scorer.replica(lambda: False), AlignedWords)


def _scale(logits: Any, scores: Any) -> float:
    """What a table's whole scores are multiplied with to be logits."""
    known = np.isfinite(scores) & (scores != 0)
    return float((logits[known] / scores[known]).mean()) if known.any() else 1.0
