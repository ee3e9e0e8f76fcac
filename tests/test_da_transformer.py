"""The DA-Transformer: its links, its loss against all paths, glancing, training and conversion."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from support.dag_networks import SMALL, network, sentences
from support.losses import losses_of
from support.scorers import DagReference
from support.tiny import WORDS
from support.transformers_small import padded
from torch import Tensor

from nartk.architectures.dag import DagConfig
from nartk.errors import CheckpointError, UsageError
from nartk.models.da_transformer import EOS, MASK, DaTransformer, Links, force
from nartk.models.dag import dag_log_likelihood, dag_posterior
from nartk.models.losses import Training
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy
from nartk.vocab import Vocab

PAD = 1
PLAIN = Training()


def blank(size: int) -> list[int]:
    """The decoder's input where nothing is known."""
    return [MASK] * (size - 1) + [EOS]


def graph_of(model: DaTransformer, source: list[int], canvas: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities of words [L,V] and links [L,L] of one source, by NumPy from the features on.

    The links are written out: head after head, a softmax over later vertices.
    """
    size, device = len(canvas), model.output.weight.device
    with torch.no_grad():
        tokens = torch.tensor([source], device=device)
        hidden = model.vertices(torch.tensor([canvas], device=device), model.encode(tokens))[0]
        logits = model.output(hidden).cpu().numpy()
    words = logits - np.log(np.exp(logits).sum(1, keepdims=True))

    config, layer = model.config, model.links
    features = [hidden.cpu().numpy()] if "feature" in config.link_features.split(":") else []
    if layer.positions is not None:
        features.append(layer.positions.weight.detach().cpu().numpy()[:size])
    x = np.concatenate(features, 1)

    def project(linear: torch.nn.Linear) -> np.ndarray:
        return x @ linear.weight.detach().cpu().numpy().T + linear.bias.detach().cpu().numpy()

    query, key, gate = project(layer.query), project(layer.key), np.exp(project(layer.gate))
    gate /= gate.sum(1, keepdims=True)
    each = config.d_model // config.link_heads
    chances = np.zeros((size, size))
    for i in range(size - 1):
        for head in range(config.link_heads):
            own = slice(head * each, (head + 1) * each)
            scores = np.exp([query[i, own] @ key[j, own] / math.sqrt(each) for j in range(i + 1, size)])
            chances[i, i + 1 :] += gate[i, head] * scores / scores.sum()
    with np.errstate(divide="ignore"):
        return words, np.log(chances)


def paths_through(
    words: np.ndarray, links: np.ndarray, target: list[int], told: Mapping[int, int] = MappingProxyType({})
) -> dict[tuple[int, ...], float]:
    """The log-probability of a target, with bos and eos, along each path.

    Args:
        told: Vertices that emit the token at one place of the target, with that place, for nothing.
    """
    last = len(links) - 1
    found = {}
    for inner in itertools.combinations(range(1, last), len(target) - 2):
        path = (0, *inner, last)
        if any(path[place] != v for v, place in told.items()):
            continue
        steps = sum(links[a, b] for a, b in itertools.pairwise(path))
        found[path] = steps + sum(
            words[v, word] for v, word in zip(path, target, strict=True) if v not in told
        )
    return found


def log_sum(values: Any) -> float:
    return float(np.logaddexp.reduce(list(values)))


# Links.


def links_of(config: DagConfig) -> Links:
    return Links(config.tree["links"], config)


@pytest.mark.parametrize("features", ["feature:position", "feature", "position"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_links_are_log_probabilities_of_later_vertices(
    features: str, dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(0)
    layer = links_of(DagConfig(**{**SMALL, "link_features": features})).to(device, dtype)
    lengths = torch.tensor([9, 2, 30, 31], device=device)
    links = layer(3 * torch.randn(4, 31, 16, device=device).to(dtype), lengths)
    assert links.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for length, found in zip(lengths.tolist(), links.double().exp().cpu(), strict=True):
        assert not found.isnan().any()
        edges = torch.zeros(31, 31, dtype=torch.bool)
        edges[:length, :length] = torch.ones(length, length, dtype=torch.bool).triu(1)
        assert bool((found[~edges] == 0).all())
        assert bool((found[edges] > 0).all())
        torch.testing.assert_close(
            found.sum(1)[: length - 1], torch.ones(length - 1).double(), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("features", ["feature:position", "feature", "position"])
def test_links_equal_a_loop_over_heads_and_vertices(features: str, device: torch.device) -> None:
    for seed in range(5):
        model = network(seed=seed, link_features=features, link_heads=4).to(device).double()
        source = sentences(random.Random(seed), 1, 6)[0]
        size = 2 * len(source) + seed
        tokens = torch.tensor([source], device=device)
        sizes = torch.tensor([size], device=device)
        hidden = model.vertices(model.canvas(sizes), model.encode(tokens))
        found = model.links(hidden, sizes)[0].detach().cpu().numpy()
        np.testing.assert_allclose(found, graph_of(model, source, blank(size))[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reach", [1, 3])
def test_links_lead_no_farther_than_allowed(reach: int, device: torch.device) -> None:
    """Those of a vertex are then in proportion as without a limit if one head computes them."""
    model = network(seed=2, link_heads=1).to(device).double()
    near = network(seed=2, link_heads=1, max_transition_length=reach).to(device).double()
    source, size = [7, 8, 9, EOS], torch.tensor([12], device=device)
    tokens = torch.tensor([source], device=device)
    hidden = model.vertices(model.canvas(size), model.encode(tokens))
    every, found = (each.links(hidden, size)[0].exp() for each in (model, near))
    positions = torch.arange(12, device=device)
    steps = positions - positions[:, None]
    every = every.masked_fill((steps < 1) | (steps > reach), 0.0)
    torch.testing.assert_close(found[:-1], (every / every.sum(1, keepdim=True))[:-1])
    assert bool((found[-1] == 0).all())


def test_targets_too_short_for_their_links_are_left_out(device: torch.device) -> None:
    model = network(upsampling="fixed", upsample_scale="9", max_transition_length=3).to(device)
    sources, targets = [[5, EOS]] * 3, [[6, EOS], [6, 7, EOS], [EOS]]  # 8 edges need 3 steps of at most 3
    losses, found = gradients(model, padded(sources), padded(targets))
    alone, _ = gradients(model, padded(sources[:1]), padded(targets[1:2]))
    assert (int(losses.parts["dropped"]), int(alone.parts["dropped"])) == (2, 0)
    torch.testing.assert_close(losses.total, alone.total)
    assert all(bool(gradient.isfinite().all()) for gradient in found.values())


def test_a_vertex_without_edges_spoils_no_gradient(device: torch.device) -> None:
    layer = links_of(DagConfig(**SMALL)).to(device).double()
    hidden = torch.randn(2, 7, 16, dtype=torch.float64, device=device, requires_grad=True)
    links = layer(hidden, torch.tensor([7, 3], device=device))
    links[links.isfinite()].sum().backward()
    assert hidden.grad is not None
    assert bool(hidden.grad.isfinite().all())
    assert bool((hidden.grad[1, 3:] == 0).all())


def test_an_edge_stays_one_however_unlikely(device: torch.device) -> None:
    """Else a target could become impossible, and its loss infinite."""
    rng = random.Random(5)
    model = network(upsample_scale="3").to(device)
    with torch.no_grad():
        model.links.query.weight.mul_(100.0)
    batch = [padded(sentences(rng, 4, 6)).to(device) for _ in range(2)]
    sizes = 3 * batch[0].ne(PAD).sum(1)
    hidden = model.vertices(model.canvas(sizes), model.encode(batch[0]))
    links = model.links(hidden, sizes)
    least = math.log(torch.finfo(torch.float32).tiny)
    assert links[links > -math.inf].min().item() == pytest.approx(least)
    assert (links > -math.inf).sum().item() == sum(n * (n - 1) // 2 for n in sizes.tolist())
    losses, found = gradients(model, *batch)
    assert bool(losses.total.isfinite())
    assert all(bool(gradient.isfinite().all()) for gradient in found.values())


def test_vertices_begin_with_the_source_word_at_the_same_share_of_the_graph(device: torch.device) -> None:
    model = network(decoder_input="uniform-copy", decoder_positions="none").to(device)
    sources = padded([[7, 8, EOS], [9, EOS]]).to(device)
    canvas = model.canvas(torch.tensor([7, 2], device=device))
    canvas[0, 3] = 11  # a word that was shown
    nearest = [7, 7, 8, 11, 8, EOS, EOS]  # of the first row; places 1.5 and 4.5 of 6 lie half-way: the later
    words = padded([nearest, [9, EOS]]).to(device)
    kept = canvas.ne(PAD)
    torch.testing.assert_close(
        model.inputs(canvas, model.encode(sources))[kept], model.embed_words(words)[kept]
    )


# The loss.


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 360), marks=pytest.mark.slow)])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("decoder_input", ["mask", "uniform-copy"])
@pytest.mark.parametrize("upsampling", ["source", "predict", "fixed"])
def test_the_loss_sums_over_all_paths(
    upsampling: str, decoder_input: str, left: bool, seeds: range, device: torch.device
) -> None:
    settings = {"upsampling": upsampling, "upsample_scale": {"fixed": "7"}.get(upsampling, "1.6")}
    settings["decoder_input"] = decoder_input
    checked = 0
    for seed in seeds:
        rng = random.Random(seed)
        model = network(seed=seed, link_heads=4, **settings).to(device).double()
        sources, targets = sentences(rng, 4, 5), sentences(rng, 4, 5)
        batch = padded(sources, left=left).to(device), padded(targets).to(device)
        found = losses_of(model, *batch, training=PLAIN, update=0)
        total, tokens, dropped, differences, means = 0.0, 0, 0, [], []
        for source, target in zip(sources, targets, strict=True):
            length = {"source": len(source), "predict": len(target), "fixed": 1}[upsampling]
            size = max(2, int(length * float(settings["upsample_scale"])))
            if len(target) + 1 > size:
                dropped += 1
                continue
            words, links = graph_of(model, source, blank(size))
            each = -log_sum(paths_through(words, links, [MASK, *target]).values())
            total, means = total + each, [*means, each / (1 + len(target))]
            tokens += len(target)
            if upsampling == "predict":
                memory = model.encode(torch.tensor([source], device=device)).memory
                logits = model.lengths(memory[0].mean(0)).log_softmax(0)
                differences.append(-logits[128 + len(target) - len(source)].item())
        if tokens == 0:
            continue
        assert found.parts["words"].item() == pytest.approx(total / tokens, rel=1e-10)
        assert (int(found.tokens), int(found.parts["dropped"])) == (tokens, dropped)
        total = sum(means) / len(means) * tokens  # the authors' program takes the mean of means
        if upsampling == "predict":
            length_loss = sum(differences) / len(differences)
            assert found.parts["length"].item() == pytest.approx(length_loss, rel=1e-10)
            total += PLAIN.length_factor * length_loss * tokens
        else:
            assert "length" not in found.parts
        assert found.total.item() == pytest.approx(total, rel=1e-10)
        assert float(found.parts["shown"]) == 0.0
        checked += 4 - dropped
    assert checked > len(seeds)


@pytest.mark.parametrize("upsampling", ["source", "predict"])
def test_gradients(upsampling: str, device: torch.device) -> None:
    model = network(upsampling=upsampling, upsample_scale="3", link_heads=2).to(device).double()
    rng = random.Random(1)
    source, target = (padded(sentences(rng, 3, 3)).to(device) for _ in range(2))
    chosen = ["links.gate.weight", "links.query.bias", "links.positions.weight", "decoder.norm.weight"]
    chosen += ["decoder.layers.0.ffn.down.bias", "encoder.norm.bias"]
    chosen += ["lengths.bias"] if upsampling == "predict" else []
    weights = dict(model.named_parameters())

    class Total(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self) -> Tensor:
            return losses_of(model, source, target, training=PLAIN, update=0).total

    def total(*values: Tensor) -> Tensor:
        given = {f"model.{name}": value for name, value in zip(chosen, values, strict=True)}
        return torch.func.functional_call(Total(), given, ())

    inputs = [weights[name].detach().clone().requires_grad_() for name in chosen]
    assert torch.autograd.gradcheck(total, inputs, fast_mode=True)


def gradients(model: DaTransformer, *batch: Tensor) -> tuple[Any, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    device = model.output.weight.device
    losses = losses_of(model, *(x.to(device) for x in batch), training=PLAIN, update=0)
    losses.total.backward()
    return losses, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("upsampling", ["source", "predict", "fixed"])
def test_targets_too_long_for_their_graph_are_left_out(upsampling: str, device: torch.device) -> None:
    rng = random.Random(0)
    model = network(upsampling=upsampling, upsample_scale="9" if upsampling == "fixed" else "2").to(device)
    sources, targets = sentences(rng, 4, 6), sentences(rng, 4, 3)
    sources = [[5, 6, *source] for source in sources]
    # With twice as many vertices as tokens, only the most positions leave a graph too small for its target.
    long = [[4] * 127 + [EOS], [4] * 140 + [EOS]]
    mixed = [*sources[:2], sources[0], sources[1], *sources[2:]]
    with_long = [*targets[:2], *long, *targets[2:]]
    some, wanted = gradients(model, padded(sources), padded(targets))
    found, given = gradients(model, padded(mixed), padded(with_long))
    assert (int(some.parts["dropped"]), int(found.parts["dropped"])) == (0, 2)
    assert int(found.tokens) == int(some.tokens)
    torch.testing.assert_close(found.total, some.total)
    assert given.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(given[name], gradient, msg=name)

    none, zeros = gradients(model, padded(sources[:2]), padded(long))
    assert (none.total.item(), int(none.tokens), int(none.parts["dropped"])) == (0.0, 0, 2)
    assert none.parts.keys() == found.parts.keys()
    assert zeros.keys() == dict(model.named_parameters()).keys()
    assert all(bool((gradient == 0).all()) for gradient in zeros.values())


def test_the_loss_is_fp32_under_autocast(device: torch.device) -> None:
    rng = random.Random(2)
    model = network().to(device)
    batch = [padded(sentences(rng, 6, 6)).to(device) for _ in range(2)]
    wanted, _ = gradients(model, *batch)
    with torch.autocast(device.type, torch.bfloat16):
        found = losses_of(model, *batch, training=Training(glancing="0.5"), update=0)
        plain = losses_of(model, *batch, training=PLAIN, update=0)
    assert found.total.dtype == plain.total.dtype == torch.float32
    found.total.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    torch.testing.assert_close(plain.total, wanted.total, rtol=0.02, atol=0.0)


# Glancing.


@pytest.mark.parametrize("no_force_emit", [False, True])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_glancing_shows_words_of_the_likeliest_path_and_pins_them_to_it(
    share: float, no_force_emit: bool, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    original, canvases = DaTransformer.vertices, []

    def vertices(self: DaTransformer, canvas: Tensor, *rest: Any) -> Tensor:
        canvases.append(canvas.tolist())
        return original(self, canvas, *rest)

    for seed in range(10):
        rng = random.Random(seed)
        model = network(seed=seed, upsample_scale="2").to(device).double()
        sources = [[7, 8, *source] for source in sentences(rng, 3, 2)]
        targets = [source[1:] for source in sources]
        canvases.clear()
        with monkeypatch.context() as patch:
            patch.setattr(DaTransformer, "vertices", vertices)
            training = Training(glancing=str(share), no_force_emit=no_force_emit)
            batch = padded(sources).to(device), padded(targets).to(device)
            losses = losses_of(model, *batch, training=training, update=0)
        means, count = [], 0
        for source, target, first, second in zip(sources, targets, *canvases, strict=True):
            size, said = 2 * len(source), [MASK, *target]
            assert first[:size] == blank(size)
            words, links = graph_of(model, source, blank(size))
            paths = paths_through(words, links, said)
            path = max(paths, key=paths.__getitem__)
            # Shown are so many words as are wrong on the likeliest path, times the share, in their places,
            # rounded as in the authors' program.
            told = {v: path.index(v) for v in range(size) if second[v] != first[v]}
            assert all(0 < place < len(path) - 1 and second[v] == said[place] for v, place in told.items())
            wrong = sum(words[v].argmax() != word for v, word in zip(path[1:-1], said[1:-1], strict=True))
            assert len(told) == int(wrong * share + 0.5)
            words, links = graph_of(model, source, second[:size])
            pinned = {} if no_force_emit else told
            means.append(-log_sum(paths_through(words, links, said, pinned).values()) / len(said))
            count += len(told)
        total = sum(means) / len(means) * sum(map(len, targets))
        assert losses.total.item() == pytest.approx(total, rel=1e-9)
        assert float(losses.parts["shown"]) == pytest.approx(count / sum(len(t) - 1 for t in targets))


def test_a_shown_token_is_emitted_at_its_vertex_alone(device: torch.device) -> None:
    torch.manual_seed(0)
    match = torch.randn(2, 4, 6, device=device, dtype=torch.float64, requires_grad=True)
    links = torch.randn(2, 6, 6, device=device, dtype=torch.float64)
    lengths = torch.tensor([4, 4], device=device), torch.tensor([6, 6], device=device)
    path = torch.tensor([[0, 2, 3, 5], [0, 1, 4, 5]], device=device)
    shown = torch.tensor([[False, True, False, False], [False, False, True, False]], device=device)
    forced = force(match, path, shown)
    posterior = dag_posterior(forced, links, *lengths)
    dag_log_likelihood(forced, links, *lengths).sum().backward()
    assert match.grad is not None
    for row, vertex, token in ((0, 2, 1), (1, 4, 2)):
        wanted = torch.zeros(6, device=device, dtype=torch.float64)
        wanted[vertex] = 1.0
        torch.testing.assert_close(posterior[row, token], wanted)
        assert bool((match.grad[row, token] == 0).all())
        assert bool((match.grad[row, :, vertex] < 1e-200).all())  # the sums add 1e-300
    assert torch.equal(forced[~shown], match[~shown])


def test_glancing_is_for_training_and_follows_its_schedule(device: torch.device) -> None:
    rng = random.Random(3)
    model = network().to(device)
    batch = [padded(sentences(rng, 8, 8)).to(device) for _ in range(2)]
    shares = []
    for update in (0, 50, 100):
        losses = losses_of(model, *batch, training=Training(glancing="1.0:0.0@100"), update=update)
        shares.append(float(losses.parts["shown"]))
    assert shares[0] > shares[1] > shares[2] == 0.0
    model.eval()
    losses = losses_of(model, *batch, training=Training(glancing="1.0"), update=0)
    assert float(losses.parts["shown"]) == 0.0
    assert torch.equal(losses.total, losses_of(model, *batch, training=PLAIN, update=0).total)


# Sizes.


def test_sizes_of_graphs() -> None:
    lengths = torch.tensor([1, 2, 9, 100])
    assert network(upsample_scale="8").sizes(lengths, 8.0).tolist() == [8, 16, 72, 128]
    assert network(upsample_scale="0.5").sizes(lengths, 0.5).tolist() == [2, 2, 4, 50]
    assert network(upsampling="fixed", upsample_scale="40").sizes(lengths, 40.0).tolist() == [40] * 4


def test_a_range_of_scales_is_drawn_from_in_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(upsample_scale="2~6")
    scales = []
    original = DaTransformer.sizes

    def sizes(self: DaTransformer, lengths: Tensor, scale: float) -> Tensor:
        scales.append(scale)
        return original(self, lengths, scale)

    monkeypatch.setattr(DaTransformer, "sizes", sizes)
    batch = [padded(sentences(random.Random(4), 2, 3)) for _ in range(2)]
    torch.manual_seed(0)
    for _ in range(30):
        losses_of(model, *batch, training=PLAIN, update=0)
    assert all(2 <= scale <= 6 for scale in scales)
    assert min(scales) < 3 < 5 < max(scales)
    scales.clear()
    losses_of(model.eval(), *batch, training=PLAIN, update=0)
    assert scales == [6.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"upsample_scale": "eight"}, "`upsample_scale` is 'eight'"),
        ({"upsample_scale": "8~4"}, "`upsample_scale` '8~4' is not between 0 and `max_target_len` 128"),
        ({"upsample_scale": "0"}, "`upsample_scale` '0' is not between 0 and `max_target_len` 128"),
        (
            {"upsampling": "fixed", "upsample_scale": "129"},
            "`upsample_scale` '129' is not between 0 and `max_target_len` 128",
        ),
        ({"upsampling": "target"}, "`upsampling` is 'target'"),
        ({"link_features": "positions"}, "`link_features` is 'positions'"),
        ({"link_heads": 3}, "`d_model` 16 is no multiple of `link_heads` 3"),
        ({"link_heads": 0}, "`d_model` 16 is no multiple of `link_heads` 0"),
        ({"length_difference": 0}, "`length_difference` is 0, below 1"),
        ({"max_transition_length": 0}, "`max_transition_length` is 0, below 1"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        DagConfig(**{**SMALL, **settings})
    assert caught.value.message.startswith(message)


def test_a_stored_setting_of_another_type_is_refused() -> None:
    with pytest.raises(CheckpointError, match="'upsample_scale' is 8, not a str"):
        DagConfig.from_dict({"upsample_scale": 8})


# Training.

TOY = Vocab.from_words(WORDS.split())


def toy_batch(rows: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sentences of up to 6 words; the target says `goes` for `go`, and leaves out `the`."""
    places = torch.arange(8)
    lengths = torch.randint(1, 7, (rows, 1), generator=draw)
    source = torch.randint(4, len(TOY), (rows, 8), generator=draw)
    source = source.masked_fill(places == lengths, TOY.eos).masked_fill(places > lengths, TOY.pad)
    go, goes, the = TOY.ids(["go", "goes", "the"])
    target = [[goes if i == go else i for i in row if i not in (the, TOY.pad)] for row in source.tolist()]
    return source, padded(target)


@lru_cache(maxsize=2)
def trained(upsampling: str, device: torch.device) -> DaTransformer:
    settings = {**SMALL, "d_model": 64, "encoder_ffn": 128, "decoder_ffn": 128, "upsampling": upsampling}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = DaTransformer(
            DagConfig(**{**settings, "src_vocab": len(TOY), "tgt_vocab": len(TOY), "upsample_scale": "3"})
        ).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
        draw, training, updates = torch.Generator().manual_seed(0), Training(glancing="0.5:0.1@250"), 250
        for update in range(updates):
            for group in optimizer.param_groups:
                group["lr"] = 4e-3 * min(1.0, (update + 1) / 50) * (1 - update / updates)
            batch = (x.to(device) for x in toy_batch(32, draw))
            losses = losses_of(model, *batch, training=training, update=update)
            optimizer.zero_grad()
            (losses.total / losses.tokens).backward()
            optimizer.step()
    return model


@pytest.mark.parametrize("upsampling", ["source", pytest.param("predict", marks=pytest.mark.slow)])
def test_it_learns_to_translate(upsampling: str, device: torch.device) -> None:
    scorer = DagReference(trained(upsampling, device), TOY, device=device)
    source, target = toy_batch(100, torch.Generator().manual_seed(9))
    requests = [Request(i, tuple(row[row != TOY.pad].tolist()), 40) for i, row in enumerate(source)]
    wanted = [tuple(row[row != TOY.pad].tolist()) for row in target]
    for name in ("dag-greedy", "dag-lookahead"):
        results = make_strategy(name, {}).run(scorer, requests, batch_size=32)
        found = {result.index: result.hypotheses[0].tokens for result in results}
        assert sum(found[i] == words for i, words in enumerate(wanted)) >= 90
