"""Views of a verifier: scorers of some of its decoder's layers, and drafts of these.

The oracles: another model that has no other layers, and one whose sublayers' output weights are 0, both with
weights of their own; costs of that other model; drafts by passes one after the other. That drafts of a view
change no output is in test_promises_drafters.py.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engine_models import TYPES, bits_of, decode, on_engine
from support.own_layers import KeptLayers, random_layers
from support.random_transformers import arrays_of, random_config, random_model, random_source, vocabulary
from support.small_passes import drafting
from support.speech_models import random_speech, random_speeches
from support.tiny import random_model as model_folder

import nartk
from nartk.architectures import architecture
from nartk.bench.choose import Given
from nartk.bench.engines import parse_spec
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.names import WORD_COUNTS
from nartk.checkpoints.saving import save_checkpoint
from nartk.checkpoints.word_counts import write_counts
from nartk.decoders.drafters.own_layers import OwnLayers
from nartk.decoders.drafters.small_model import SmallModel
from nartk.engine import available
from nartk.errors import NartkError, StrategyMismatchError, UsageError
from nartk.models.reference import DTYPES
from nartk.models.transformer import Transformer
from nartk.protocols.chains import DraftsChains
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import Pass, PassScorer, Want
from nartk.protocols.views import GivesViews, view_of
from nartk.registry import make_strategy

needs_engine = pytest.mark.skipif(not available(), reason="there is no engine here")
WORDS = ["the", "a", "big", "small", "old", "house", "cat", "dog", "sees", "it", ".", "!", "?"]
LINES = ["the big cat sees it .", "a dog", "old house ! the small dog sees the cat ?", "it", ""]
BATCHES = (1, 3, 8)
# The tensors that make what a sublayer gives; those of a recurrence make its states.
LAST = {
    "self": ("self_attention.out", "recurrence.project"),
    "cross": ("cross_attention.out",),
    "ffn": ("ffn.down",),
}

Serve = Callable[..., Any]


def in_torch(model: Transformer, *, type: str = "fp32", name: str = "TransformerReference") -> Any:
    import support.scorers

    return getattr(support.scorers, name)(model, vocabulary(model.config.tgt_vocab), dtype=DTYPES[type])


def on_device(model: Transformer, *, type: str = "fp32") -> Any:
    return in_torch(model, type=type, name="TransformerDevice")


# One is recurrent with its norms behind sublayers, one attends with its norms before them; torch is slow.
SOME = (1, 6)
SERVED = [
    *(pytest.param(on_engine, type, range(8), marks=needs_engine, id=f"engine-{type}") for type in TYPES),
    *(pytest.param(in_torch, type, SOME, id=f"torch-{type}") for type in ("fp32", "bf16")),
    pytest.param(on_device, "fp32", SOME, id="device-fp32"),
]


def random_pair(number: int, **fixed: Any) -> tuple[Transformer, list[Request]]:
    """A random model of three layers, and sentences."""
    rng = random.Random(number)
    words = rng.randint(9, 60)
    config = random_config(
        rng,
        src_vocab=words,
        tgt_vocab=words,
        share_embeddings=rng.choice(["all", "decoder", "none"]),
        decoder_layers=3,
        max_source_len=30,
        max_target_len=30,
        **fixed,
    )
    requests = [Request(i, tuple(random_source(rng, config)), rng.choice([3, 9, 15])) for i in range(9)]
    return random_model(config, rng.getrandbits(30)), requests


def first_layers(model: Transformer, count: int) -> Transformer:
    """Another model, without the layers behind the first."""
    other = Transformer(replace(model.config, decoder_layers=count)).eval().requires_grad_(False)
    names = other.state_dict().keys()
    other.load_state_dict({name: x.clone() for name, x in model.state_dict().items() if name in names})
    return other


def with_zeros(model: Transformer, skip: Sequence[str]) -> Transformer:
    """Another model, of which what these sublayers give is 0."""
    weights = {name: x.clone() for name, x in model.state_dict().items()}
    for each in skip:
        _, layer, sublayer = each.split(".")
        names = [f"decoder_layers.{layer}.{part}.{x}" for part in LAST[sublayer] for x in ("weight", "bias")]
        assert weights.keys() & {*names}
        for name in weights.keys() & {*names}:
            weights[name].zero_()
    other = Transformer(model.config).eval().requires_grad_(False)
    other.load_state_dict(weights)
    return other


def greedy(scorer: Any, requests: Sequence[Request], batch_size: int) -> Any:
    return bits_of(decode(make_strategy("greedy", {}), scorer, requests, batch_size=batch_size))


def all_log_probs(scorer: Any, requests: Sequence[Request]) -> np.ndarray:
    """Logits [N,V] behind each token of rows that follow the sources."""
    memory, contexts = scorer.encode([each.source for each in requests]), scorer.open(len(requests))
    sizes = [min(len(each.source), 7) + 1 for each in requests]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    places = np.concatenate([np.arange(size) for size in sizes]).astype(np.int32)
    tokens = np.concatenate(
        [[2, *each.source[: size - 1]] for each, size in zip(requests, sizes, strict=True)]
    ) % len(scorer.vocab)
    parents = np.where(places > 0, np.arange(len(places)) - 1, -1).astype(np.int32)
    work = Pass(tokens.astype(np.int32), places, memory[owner], contexts[owner], parents)
    scores = scorer.run(work, Want())
    found: np.ndarray = scores.rows(range(len(tokens)))
    scorer.commit(scores, ())
    scorer.close(contexts)
    scorer.free(memory)
    return found


def assert_same(view: Any, other: Any, requests: Sequence[Request]) -> None:
    """The same logits, outputs and log-probabilities, to the last bit."""
    assert np.array_equal(all_log_probs(view, requests), all_log_probs(other, requests))
    for batch_size in BATCHES:
        assert greedy(view, requests, batch_size) == greedy(other, requests, batch_size)


@pytest.mark.parametrize(("serve", "type", "numbers"), SERVED)
def test_the_first_layers_are_a_model_of_no_others(serve: Serve, type: str, numbers: Sequence[int]) -> None:
    differ = 0
    for number in numbers:
        model, requests = random_pair(number)
        scorer = serve(model, type=type)
        assert isinstance(scorer, GivesViews)
        for count in (1, 2, 3):
            view = scorer.view(count)
            assert isinstance(view, PassScorer)
            assert_same(view, serve(first_layers(model, count), type=type), requests)
        differ += greedy(scorer.view(1), requests, 3) != greedy(scorer, requests, 3)
        assert_same(scorer.view(2).view(1), scorer.view(1), requests)
    assert differ > len(numbers) / 2


@pytest.mark.parametrize(("serve", "type", "numbers"), SERVED)
def test_a_sublayer_that_is_left_out_is_one_that_gives_zeros(
    serve: Serve, type: str, numbers: Sequence[int]
) -> None:
    differ = recurrent = 0
    for number in numbers:
        model, requests = random_pair(number)
        recurrent += model.config.decoder_recurrence != "none"
        scorer = serve(model, type=type)
        for skip in (
            ["decoder.0.self"],
            ["decoder.1.cross"],
            ["decoder.2.ffn"],
            ["decoder.2.self", "decoder.0.cross", "decoder.1.ffn", "decoder.1.self"],
            [f"decoder.{i}.self" for i in range(3)],
        ):
            view = scorer.view(skip=skip)
            assert_same(view, serve(with_zeros(model, skip), type=type), requests)
            differ += greedy(view, requests, 3) != greedy(scorer, requests, 3)
    assert differ > 2 * len(numbers)
    assert recurrent > 0


@needs_engine
@pytest.mark.parametrize("type", TYPES)
def test_layers_of_a_model_of_speech_and_its_drafts(type: str) -> None:
    """A Conformer with a CTC head."""
    found = architecture("conformer")
    model = random_speech("conformer", decoder_layers=2)
    other = found.network(replace(model.config, decoder_layers=1)).eval()
    names = other.state_dict().keys()
    other.load_state_dict({name: x for name, x in model.state_dict().items() if name in names})
    scorer, right = (
        found.engine(each.config, arrays_of(each), vocabulary(9), type=type) for each in (model, other)
    )
    requests = [Request(i, each, 9) for i, each in enumerate(random_speeches(3, [20, 33, 50, 27]))]
    for batch_size in BATCHES:
        assert greedy(scorer.view(1), requests, batch_size) == greedy(right, requests, batch_size)
    own = KeptLayers(1)
    results = decode(drafting("speculative", own, adaptive=False), scorer, requests, batch_size=3)
    assert bits_of(results) == greedy(scorer, requests, 3) != greedy(right, requests, 3)
    assert sum(each.drafted for each in results) > 10
    assert own.cells_in_use == own.memories_in_use == 0


def test_a_view_reads_what_the_model_has_encoded_and_the_reverse() -> None:
    model, requests = random_pair(1)
    for serve in (on_engine, in_torch, on_device) if available() else (in_torch, on_device):
        scorer = serve(model)
        view = scorer.view(2)
        first = scorer.encode([requests[0].source])
        second = view.encode([requests[1].source])
        assert first.tolist() != second.tolist()
        for each in (scorer, view):
            (context,) = each.open(1).tolist()
            for memory in (first, second):
                work = Pass(*(np.array([x], np.int32) for x in (2, 0, int(memory[0]), context, -1)))
                each.commit(each.run(work, Want()), [])
            assert each.cells_in_use == 0
            each.close([context])
        scorer.free(second)
        view.free(first)


@needs_engine
def test_weights_are_not_copied() -> None:
    """256 views of a model of 34 MB take less than it does."""

    def resident() -> int:
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]

    if not Path("/proc/self/status").exists():
        pytest.skip("this system does not tell")
    rng = random.Random(0)
    config = random_config(
        rng,
        src_vocab=20,
        tgt_vocab=20,
        share_embeddings="none",
        decoder_layers=3,
        d_model=512,
        decoder_ffn=2048,
    )
    scorer: Any = on_engine(random_model(replace(config, decoder_heads=8, encoder_heads=8), 1))
    before = resident()
    views = [scorer.view(1 + i % 3) for i in range(256)]
    assert resident() - before < 30e6
    assert len(views) == 256


@needs_engine
@pytest.mark.parametrize("type", TYPES)
def test_costs_are_those_of_a_model_of_no_other_layers(type: str) -> None:
    """But for the encoder, which does not run."""
    for number in range(4):
        model, _ = random_pair(number, d_model=240, decoder_ffn=800)
        scorer: Any = on_engine(model, type=type)
        for count in (1, 2):
            other: Any = on_engine(first_layers(model, count), type=type)
            assert scorer.view(count).costs.times == pytest.approx(other.costs.times)
            assert scorer.view(count).costs.encoding == 0.0
            assert scorer.view(count).costs.times < scorer.costs.times
        skip = ["decoder.0.self", "decoder.0.cross", "decoder.0.ffn"]
        assert scorer.view(skip=skip).costs.times == pytest.approx(scorer.view(2).costs.times)


# Drafts.


class Stepwise(SmallModel):
    """Drafts in a call a word, whatever the scorer can."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._chains = None


def noted(
    kind: type[SmallModel],
    scorer: Any,
    own: Any,
    requests: Sequence[Request],
    size: int,
    name: str,
    options: Any,
) -> tuple[Any, Any]:
    """Drafts of each request with their log-probabilities and passes, and outputs."""
    notes: dict[int, list[Any]] = {}

    class Noting(kind):  # type: ignore[misc,valid-type]
        def draft(self, rows: Any, budgets: Any) -> Any:
            found = super().draft(rows, budgets)
            for row, each in zip(rows, found, strict=True):
                notes.setdefault(row.request.index, []).append((each.tokens, each.log_probs, each.passes))
            return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"nartk.decoders.{name}.SmallModel", Noting)
        results = decode(drafting(name, own, **options), scorer, requests, batch_size=size)
    assert own.cells_in_use == own.memories_in_use == 0
    return notes, bits_of(results)


@needs_engine
@pytest.mark.parametrize("type", TYPES)
def test_drafts_in_one_call_are_those_of_passes_one_after_the_other(type: str) -> None:
    words = 0
    for number in range(6):
        model, requests = random_pair(number)
        rng = random.Random(number)
        scorer, own = on_engine(model, type=type), random_layers(rng, 3)
        assert isinstance(own.of(scorer), DraftsChains)
        name, options = rng.choice(
            [
                ("speculative", {"block_size": 4, "stop_below": rng.choice([0.0, 0.1]), "adaptive": False}),
                ("bild", {"max_draft": 5, "fallback": rng.choice([0.0, 0.3])}),
            ]
        )
        wanted = noted(Stepwise, scorer, own, requests, 1, name, options)
        for size in (1, 2, 3, 8, 32):
            assert noted(SmallModel, scorer, own, requests, size, name, options) == wanted
        words += sum(len(tokens) for each in wanted[0].values() for tokens, _, _ in each)
    assert words > 50


@needs_engine
def test_no_source_is_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, requests = random_pair(2)
    scorer: Any = on_engine(model)
    own = KeptLayers(1)
    view: Any = own.of(scorer)
    right, counts = scorer.encode, {"scorer": 0, "view": 0}

    def counting(name: str) -> Callable[[Any], Any]:
        def encode(sources: Any) -> Any:
            counts[name] += len(sources)
            return right(sources)

        return encode

    monkeypatch.setattr(scorer, "encode", counting("scorer"))
    monkeypatch.setattr(view, "encode", counting("view"))
    results = decode(drafting("speculative", own, adaptive=False), scorer, requests, batch_size=3)
    assert sum(each.drafted for each in results) > 20
    assert counts == {"scorer": len(requests), "view": 0}


# Folders.


def with_layers(folder: Path, model: Path, count: int) -> Path:
    """A folder of a model of the first layers of another one's decoder, and of counts of words."""
    checkpoint, counts = load_checkpoint(model), folder.with_suffix(".json")
    config = replace(nartk.load(model).config, decoder_layers=count)
    write_counts(counts, {word: i + 1 for i, word in enumerate(WORDS)})
    save_checkpoint(
        folder,
        architecture="transformer",
        settings=asdict(config),
        tensors={name: torch.from_numpy(checkpoint.tensors[name].copy()) for name in config.weight_shapes()},
        source_vocab=checkpoint.target_vocab,
        target_vocab=checkpoint.target_vocab,
        others={WORD_COUNTS: counts},
        card="# A model for tests\n",
    )
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return with_layers(tmp_path / "model", model_folder(tmp_path / "first", words=WORDS, layers=3), 3)


@pytest.mark.parametrize("dtype", TYPES if available() else ("fp32",))
def test_outputs_are_those_with_a_drafter_of_these_layers(folder: Path, tmp_path: Path, dtype: str) -> None:
    """By strategies whose outputs depend on the drafts, too: the same drafts, bit for bit."""
    small = with_layers(tmp_path / "small", folder, 2)
    model = nartk.load(folder, dtype=dtype)
    plain = [each.tokens for each in model.decode(LINES, "greedy")]
    outputs = set()
    for name, options in (
        ("speculative", {"adaptive": False, "block_size": 3}),
        ("speculative", {"temperature": 1.0, "seed": 3}),
        ("bild", {"fallback": 0.1, "rollback": 4.0}),
        ("bild", {"fallback": 0.1, "rollback": 4.0, "drafter_words": 6}),
    ):
        for batch_size in (1, 8):
            found, wanted = (
                model.decode(LINES, name, batch_size=batch_size, drafter=drafter, **options)
                for drafter in ("self:layers=2", str(small))
            )
            each, other = ([(x.tokens, x.positional_scores) for x in y] for y in (found, wanted))
            assert each == other
            if options.get("adaptive") is False:
                assert [x[0] for x in each] == plain
        outputs.add(tuple(x.tokens for x in found))
    assert len(outputs) > 1


@needs_engine
def test_replicas_draft_with_layers_of_their_own(folder: Path) -> None:
    one, several = nartk.load(folder), nartk.load(folder, replicas=2)
    options = {"drafter": "self:skip=decoder.1.self,decoder.2.ffn", "adaptive": False}
    wanted, found = (
        [x.tokens for x in each.decode(LINES * 3, "speculative", **options)] for each in (one, several)
    )
    assert found == wanted == [x.tokens for x in one.decode(LINES * 3, "greedy")]


def test_the_signature_names_the_layers(folder: Path) -> None:
    model = nartk.load(folder)
    made = model.strategy("speculative", {"drafter": "self:layers=2"})
    assert "|drafter:self:layers=2|" in model.signature(made)


BAD = {
    "self": (UsageError, "all layers of the model", "write self:layers=1"),
    "self:layers=9": (UsageError, "9 layers, the model's decoder has 3", "give 1 to 3"),
    "self:layers=0": (UsageError, "0 layers, the model's decoder has 3", "give 1 to 3"),
    "self:layers=-1": (UsageError, "-1 layers", "give 1 to 3"),
    "self:layers=two": (UsageError, "has the value 'two'", "of type int"),
    "self:depth=2": (UsageError, "sets 'depth=2'", "self knows layers, skip"),
    "self:layers": (UsageError, "sets 'layers'", "as OPTION=VALUE"),
    "self:": (UsageError, "sets ''", "as OPTION=VALUE"),
    "self:skip=nonsense": (UsageError, "leaves out 'nonsense'", "decoder.N.ffn, N from 0 to 2"),
    "self:skip=": (UsageError, "leaves out ''", "N from 0 to 2"),
    "self:skip=decoder.3.ffn": (UsageError, "leaves out 'decoder.3.ffn'", "N from 0 to 2"),
    "self:skip=decoder.0.ffn,encoder.0.ffn": (UsageError, "leaves out 'encoder.0.ffn'", "decoder.N.self"),
    "self:layers=1:skip=decoder.1.self": (UsageError, "of its 1 decoder layers", "N from 0 to 0"),
    "selfish:layers=2": (NartkError, "selfish:layers=2", ""),
}


@pytest.mark.parametrize("name", ["speculative", "bild"])
@pytest.mark.parametrize("drafter", BAD)
def test_bad_layers_are_named_before_anything_is_decoded(folder: Path, name: str, drafter: str) -> None:
    error, says, fix = BAD[drafter]
    with pytest.raises(error, match=re.escape(says)) as raised:
        nartk.load(folder).strategy(name, {"drafter": drafter})
    assert fix in raised.value.fix
    assert raised.value.fix


def test_no_counts_of_words_are_an_error(tmp_path: Path) -> None:
    model = nartk.load(model_folder(tmp_path / "bare", words=WORDS))
    with pytest.raises(UsageError, match=r"the folder of the model has no word_counts.json"):
        model.strategy("speculative", {"drafter": "self:layers=1", "drafter_words": 5})


def test_a_benchmark_reads_layers_as_one_option() -> None:
    found = parse_spec("speculative:block_size=4:drafter=self:layers=2:skip=decoder.0.ffn:adaptive=0", "fp32")
    drafter = "self:layers=2:skip=decoder.0.ffn"
    assert found.options == {"block_size": 4, "drafter": drafter, "adaptive": False}
    given = Given("gec-en", ["self:layers=1"], drafts=False)
    assert [each.options for each in given.named(parse_spec("speculative", "fp32"))] == [
        {"drafter": "self:layers=1"}
    ]
    assert "speculative:drafter=self:layers=1" in [each.label for each in given.every("fp32")]
    given.require_used()


def test_a_strategy_of_other_drafters_takes_no_layers(folder: Path) -> None:
    with pytest.raises(StrategyMismatchError, match="own layers do not draft there"):
        nartk.load(folder).strategy("gad", {"drafter": "self:layers=1"})


def test_only_an_autoregressive_model_gives_views() -> None:
    from support.parallel_drafters import KINDS, small_drafter

    for kind in KINDS:
        scorer = small_drafter(kind, 20, 1)
        with pytest.raises(StrategyMismatchError, match="no decoder that predicts the next word") as raised:
            view_of(scorer, 1)
        assert raised.value.fix
        with pytest.raises(StrategyMismatchError, match="no decoder that predicts the next word"):
            OwnLayers.read("self:layers=1").of(scorer)
