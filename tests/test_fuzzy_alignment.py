"""Fuzzy alignment of graphs with targets, against all outputs of small graphs and the authors' program."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from support.dag_networks import network, sentences
from support.losses import losses_of
from support.oracles import ORACLES
from support.transformers_small import padded
from torch import Tensor

from nartk.errors import UsageError
from nartk.models.da_transformer import EOS, MASK
from nartk.models.fuzzy_alignment import fuzzy_alignment, passing_probability
from nartk.models.losses import Training
from nartk.models.match_scores import match_scores


def random_graph(rng: np.random.Generator, size: int, words: int) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of words [L,V] and links [L,L]."""
    emitted = rng.normal(size=(size, words)) * 2
    links = np.full((size, size), -np.inf)
    for i in range(size - 1):
        scores = rng.normal(size=size - 1 - i) * 2
        links[i, i + 1 :] = scores - np.logaddexp.reduce(scores)
    return emitted - np.logaddexp.reduce(emitted, 1, keepdims=True), links


def by_all_outputs(
    words: np.ndarray, links: np.ndarray, target: list[int], order: int
) -> tuple[float, float]:
    """Precision and expected length of the outputs of a graph: each path with each word at its vertices."""
    last, found, length = len(links) - 1, Counter[tuple[int, ...]](), 0.0
    for inner in itertools.chain.from_iterable(
        itertools.combinations(range(1, last), count) for count in range(last)
    ):
        path = (0, *inner, last)
        chance = math.exp(sum(links[a, b] for a, b in itertools.pairwise(path)))
        length += chance * len(path)
        for output in itertools.product(range(words.shape[1]), repeat=len(path)):
            own = chance * math.exp(sum(words[v, word] for v, word in zip(path, output, strict=True)))
            for start in range(len(path) - order + 1):
                found[output[start : start + order]] += own
    wanted = Counter(tuple(target[i : i + order]) for i in range(len(target) - order + 1))
    return sum(min(found[gram], times) for gram, times in wanted.items()) / found.total(), length


def batch_of(
    graphs: list[tuple[np.ndarray, np.ndarray]], targets: list[list[int]], device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`match`, `links`, `target` and `counts` of graphs of several sizes, as the network makes them."""
    width = max(len(links) for _, links in graphs)
    target = padded(targets)
    match = torch.full((len(graphs), target.shape[1], width), -math.inf, dtype=torch.float64)
    links = torch.full((len(graphs), width, width), -math.inf, dtype=torch.float64)
    for row, (words, own) in enumerate(graphs):
        size = len(own)
        match[row, :, :size] = torch.tensor(words)[:, target[row]].T
        links[row, :size, :size] = torch.tensor(own)
    counts = torch.tensor([len(each) for each in targets])
    return match.to(device), links.to(device), target.to(device), counts.to(device)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_it_is_the_expectation_over_all_outputs(order: int, device: torch.device) -> None:
    rng = np.random.default_rng(order)
    clipped = shorter = longer = 0
    for _ in range(10):
        graphs = [random_graph(rng, int(rng.integers(3, 7)), 3) for _ in range(3)]
        # Three words, one of which is the padding's number: n-grams recur, and padding must not be one.
        targets = [rng.integers(0, 3, int(rng.integers(order, 7))).tolist() for _ in graphs]
        found = fuzzy_alignment(*batch_of(graphs, targets, device), order)
        for row, (graph, target) in enumerate(zip(graphs, targets, strict=True)):
            precision, length = by_all_outputs(*graph, target, order)
            penalty = min(1.0, math.exp(1.0 - len(target) / length))
            assert found.precision[row].item() == pytest.approx(precision, rel=1e-9)
            assert found.length_ratio[row].item() == pytest.approx(length / len(target), rel=1e-9)
            assert found.score[row].item() == pytest.approx(precision * penalty, rel=1e-9)
            clipped += len({tuple(target[i : i + order]) for i in range(len(target) - order + 1)}) == 1
            shorter += penalty < 1.0
            longer += penalty == 1.0
    assert min(clipped, shorter, longer) > 0


@pytest.mark.parametrize("case", range(4))
def test_value_and_gradient_are_those_of_the_authors_program(case: int, device: torch.device) -> None:
    with np.load(ORACLES / "fuzzy_alignment.npz") as stored:
        given = {
            name.partition(".")[2]: torch.tensor(stored[name], device=device)
            for name in stored
            if name.startswith(f"{case}.")
        }
    words, links = (given[name].requires_grad_() for name in ("words", "links"))
    target, counts, sizes = given["target"], given["counts"], given["sizes"]
    match = words.gather(2, target[:, None].expand(-1, words.shape[1], -1)).mT  # [B,L,V] -> [B,T,L]
    ended = torch.arange(words.shape[1], device=device) >= sizes[:, None]
    match = match.masked_fill(ended[:, None], -math.inf)
    found = fuzzy_alignment(match, links, target, counts, int(given["order"]))
    (-found.score.mean()).backward()
    tolerance = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(-found.score.mean(), given["loss"], **tolerance)
    torch.testing.assert_close(found.precision.mean(), given["precision"], **tolerance)
    torch.testing.assert_close(found.length_ratio.mean(), given["length_ratio"], **tolerance)
    torch.testing.assert_close(words.grad, given["by_words"], **tolerance)
    torch.testing.assert_close(links.grad, given["by_links"], **tolerance)


def test_a_long_graph_keeps_fp32(device: torch.device) -> None:
    """Against the recursion over vertices in fp64."""
    size = 400
    _, links = random_graph(np.random.default_rng(0), size, 2)
    steps, passed = np.exp(links), np.zeros(size)
    passed[0] = 1.0
    for j in range(1, size):
        passed[j] = passed[:j] @ steps[:j, j]
    found = passing_probability(torch.tensor(links, dtype=torch.float32, device=device)[None].exp())
    np.testing.assert_allclose(found[0].cpu().numpy(), passed, rtol=1e-4)


def test_training_goes_by_it_and_pins_nothing(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(ngram_order=2)
    model = network(upsample_scale="2").to(device).double().eval()
    sources = sentences(random.Random(1), 4, 6)
    targets = [source[1:] for source in sources if len(source) > 2]
    sources = [source for source in sources if len(source) > 2]
    src, tgt = padded(sources).to(device), padded(targets).to(device)
    found = losses_of(model, src, tgt, training=training, update=0)
    sizes = torch.tensor([2 * len(source) for source in sources], device=device)
    hidden = model.vertices(model.canvas(sizes), model.encode(src))
    whole = padded([[MASK, *target] for target in targets]).to(device)
    match = match_scores(model.output, hidden, whole, graph_lengths=sizes)
    counts = torch.tensor([len(target) + 1 for target in targets], device=device)
    wanted = fuzzy_alignment(match, model.links(hidden, sizes), whole, counts, 2)
    tokens = sum(map(len, targets))
    torch.testing.assert_close(found.total, -wanted.score.mean() * tokens)
    torch.testing.assert_close(found.parts["ngrams"], wanted.score.mean())
    assert "words" not in found.parts

    model.train()
    monkeypatch.delattr("nartk.models.da_transformer.force")  # what would pin
    shown = losses_of(model, src, tgt, training=Training(ngram_order=2, glancing="1.0"), update=0)
    assert float(shown.parts["shown"]) > 0.0
    shown.total.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_it_rises_where_the_likelihood_has_begun(device: torch.device) -> None:
    """As in the paper, training goes on with a model of the likelihood."""
    torch.manual_seed(0)
    model = network(words=12, upsample_scale="2").to(device)
    sources = sentences(random.Random(2), 16, 5, words=12)
    batch = padded(sources).to(device), padded([[*source[-2::-1], EOS] for source in sources]).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scores = []
    for step in range(80):
        training = Training(ngram_order=0 if step < 40 else 2)
        found = losses_of(model, *batch, training=training, update=step)
        if step >= 40:
            scores.append(float(found.parts["ngrams"]))
        optimizer.zero_grad()
        found.total.backward()
        optimizer.step()
    assert scores[-1] > scores[0] + 0.1


def test_a_target_without_an_n_gram_counts_for_nothing(device: torch.device) -> None:
    model, training = network(upsample_scale="4").to(device).eval(), Training(ngram_order=3)
    src, tgt = padded([[7, 8, EOS], [9, EOS]]).to(device), padded([[5, 6, 7, EOS], [EOS]]).to(device)
    both = losses_of(model, src, tgt, training=training, update=0)
    assert int(both.parts["dropped"]) == 1
    torch.testing.assert_close(
        both.total, losses_of(model, src[:1], tgt[:1], training=training, update=0).total
    )
    none = losses_of(model, src[1:], tgt[1:, :1], training=training, update=0)
    assert none.total.item() == 0.0
    assert none.parts.keys() == both.parts.keys()


def test_a_length_below_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="`ngram_order` is -1, below 0"):
        Training(ngram_order=-1)
