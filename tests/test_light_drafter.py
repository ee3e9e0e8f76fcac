"""Light drafters, which read what their verifier has encoded: their logits are those of torch's own modules
fed by its encoder; drafts are the same alone and in any batch; what does not fit is refused by name.

That drafts of theirs change no output is in test_promises_drafters.py, their training in
test_light_drafter_training.py.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engine_models import TYPES, bits_of, decode, on_engine
from support.light_drafters import (
    TorchTwin,
    light_in_torch,
    light_on_engine,
    random_light_config,
    random_network,
    write_drafter,
)
from support.random_transformers import random_config, random_model, random_source
from support.real_passes import RealPasses
from support.scorers import TransformerReference
from support.small_passes import Light, Near, drafting
from support.tiny import random_model as model_folder

import nartk
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.saving import save_checkpoint
from nartk.decoders.drafters.small_model import SmallModel
from nartk.engine import available
from nartk.errors import CheckpointError, NartkError, PassError, StrategyMismatchError
from nartk.models.transformer import Transformer
from nartk.protocols.encoded import GivesEncoded, ReadsEncoded, sources_of
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import Pass, Want
from nartk.registry import make_strategy

needs_engine = pytest.mark.skipif(not available(), reason="there is no engine here")

# Largest difference of log-probabilities in fp32, nats.
CLOSE = 1e-4
# Mean difference where weights, and what layers read, are rounded; a memory of another order differs by 0.7.
ROUNDED = {"bf16": 0.015, "int8": 0.05}
WORDS = ["the", "a", "big", "small", "old", "house", "cat", "dog", "sees", "it", ".", "!", "?"]
LINES = ["the big cat sees it .", "a dog", "old house ! the small dog sees the cat ?", "it", ""]


def pairs(count: int, seed: int = 1) -> list[tuple[Any, Any, random.Random]]:
    """Random verifiers, and random drafters of other widths for them."""
    found = []
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        words = rng.randint(9, 60)
        config = random_config(
            rng,
            src_vocab=words,
            tgt_vocab=words,
            share_embeddings="none",
            max_source_len=30,
            max_target_len=30,
        )
        verifier = random_model(config, rng.getrandbits(30))
        network = random_network(random_light_config(rng, config), rng.getrandbits(30))
        found.append((verifier, network, rng))
    return found


def log_probs(scorer: Any, vectors: list[Any], rows: list[list[int]]) -> list[np.ndarray]:
    """Of all words behind each token of rows, half of which are read in one pass and half in another."""
    memory, contexts = scorer.encode(sources_of(vectors)), scorer.open(len(rows))
    found: list[list[np.ndarray]] = [[] for _ in rows]
    for begin in (0, 1):  # the first token, then all others
        parts = [row[:1] if begin == 0 else row[1:] for row in rows]
        sizes = [len(part) for part in parts]
        owner = np.repeat(np.arange(len(rows)), sizes)
        places = np.concatenate([np.arange(size) for size in sizes]).astype(np.int32)
        parents = np.where(places > 0, np.arange(len(places)) - 1, -1).astype(np.int32)
        tokens = np.array([token for part in parts for token in part], np.int32)
        work = Pass(tokens, (places + begin).astype(np.int32), memory[owner], contexts[owner], parents)
        scores = scorer.run(work, Want())
        logits = scores.rows(range(len(tokens))).astype(np.float64)
        for i, row in zip(owner, logits, strict=True):
            found[i].append(row - np.logaddexp.reduce(row))
        scorer.commit(scores, range(len(tokens)))
    scorer.close(contexts)
    scorer.free(memory)
    return [np.array(each) for each in found]


def differences(serve: Callable[[Any], Any], count: int, twin: type[TorchTwin] = TorchTwin) -> np.ndarray:
    """All from torch's modules, which read what the verifier's encoder in torch gives in fp64."""
    each_one = []
    for verifier, network, rng in pairs(count):
        sources = [random_source(rng, verifier.config) for _ in range(4)]
        rows = [[2, *(rng.randrange(4, network.config.tgt_vocab) for _ in range(6))] for _ in sources]
        encoder = TransformerReference(
            verifier.double(),
            vocabulary_of(network),
            dtype=torch.float64,
            source_vocab=vocabulary_of(network),
        )
        handles = encoder.encode(sources)
        memories = [encoder._memories[int(handle)].memory for handle in handles]
        verifier.float()
        own = on_engine(verifier) if available() else TransformerReference(verifier, vocabulary_of(network))
        assert isinstance(own, GivesEncoded)
        held = own.encode(sources)
        scorer = serve(network)
        found = log_probs(scorer, own.encodings(held), rows)
        right = twin(network.config, network.state_dict())
        with torch.no_grad():
            for each, memory, row in zip(found, memories, rows, strict=True):
                wanted = right(memory, torch.tensor(row)).numpy()
                each_one.append(np.abs(each - wanted).ravel())
    return np.concatenate(each_one)


def vocabulary_of(network: Any) -> Any:
    from support.random_transformers import vocabulary

    return vocabulary(network.config.tgt_vocab)


@needs_engine
@pytest.mark.parametrize("type", TYPES)
def test_on_the_engine_it_is_a_decoder_of_torchs_over_the_verifiers_memory(type: str) -> None:
    found = differences(lambda network: light_on_engine(network, type=type), 12)
    assert 0 < (found.max() if type == "fp32" else found.mean()) < ROUNDED.get(type, CLOSE)


def test_in_torch_it_is_a_decoder_of_torchs_over_the_verifiers_memory() -> None:
    assert 0 <= differences(light_in_torch, 12).max() < CLOSE


@needs_engine
def test_another_oracle_is_told_apart() -> None:
    """A memory of another order is farther off than any type rounds."""

    class Swapped(TorchTwin):
        def forward(self, memory: Any, tokens: Any) -> Any:
            return super().forward(memory.flip(1), tokens)

    assert differences(light_on_engine, 12, Swapped).mean() > 10 * ROUNDED["int8"]


class Watched(SmallModel):
    """Notes what it drafts for each request."""

    drafts: dict[int, list[list[int]]]

    def draft(self, rows: Any, budgets: Any) -> Any:
        found = super().draft(rows, budgets)
        for row, each in zip(rows, found, strict=True):
            self.drafts.setdefault(row.request.index, []).append([*each.tokens])
        return found


@needs_engine
@pytest.mark.parametrize("type", TYPES)
def test_drafts_are_the_same_alone_and_in_any_batch(type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nartk.decoders.speculative.SmallModel", Watched)
    drafted = 0
    for verifier, network, rng in pairs(4, seed=2):
        sources = [tuple(random_source(rng, verifier.config)) for _ in range(9)]
        requests = [Request(i, source, 20) for i, source in enumerate(sources)]
        scorer, drafter = on_engine(verifier, type=type), light_on_engine(network, type=type)
        seen = []
        for batch_size in (1, 2, 3, 8, 32):
            monkeypatch.setattr(Watched, "drafts", {}, raising=False)
            strategy = replace(
                drafting("speculative", drafter, block_size=4), adaptive=False
            )  # one length for all
            results = decode(strategy, scorer, requests, batch_size=batch_size)
            seen.append((Watched.drafts, bits_of(results)))
            assert drafter.cells_in_use == drafter.memories_in_use == 0
        assert all(each == seen[0] for each in seen[1:])
        greedy = decode(make_strategy("greedy", {}), scorer, requests, batch_size=3)
        assert seen[0][1] == bits_of(greedy)
        drafted += sum(map(len, seen[0][0].values()))
    assert drafted > 50


def test_a_drafter_of_another_width_or_length_reads_nothing() -> None:
    for verifier, network, _ in pairs(1):
        serve = light_on_engine if available() else light_in_torch
        scorer = serve(network)
        assert isinstance(scorer, ReadsEncoded)
        assert scorer.encoded_features == verifier.config.d_model
        vectors = np.ones((3, verifier.config.d_model), np.float32)
        with pytest.raises(NartkError, match=r"the model reads float32"):
            scorer.encode(sources_of([np.ones((3, verifier.config.d_model + 1), np.float32)]))
        with pytest.raises(PassError, match="31 positions, not"):
            scorer.encode(sources_of([np.ones((31, verifier.config.d_model), np.float32)]))
        with pytest.raises(PassError, match="0 positions, not"):
            scorer.encode(sources_of([vectors[:0]]))
        with pytest.raises(PassError, match="NaN or infinity in source 1"):
            scorer.encode(sources_of([vectors, vectors * np.float32(np.nan)]))
        assert len(scorer.encode([])) == 0


# Folders.


@pytest.fixture
def verifier(tmp_path: Path) -> Path:
    return model_folder(tmp_path / "model", words=WORDS)


def speculative(model: Any, drafter: str = "") -> Any:
    options = {"drafter": drafter} if drafter else {}
    return model.decode(LINES, "speculative", adaptive=False, block_size=3, **options)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "int8"] if available() else ["fp32"])
def test_a_folder_drafts_for_its_verifier_wherever_it_lies(
    verifier: Path, tmp_path: Path, dtype: str
) -> None:
    drafter = write_drafter(tmp_path / "light", verifier)
    model = nartk.load(verifier, dtype=dtype)
    greedy = [each.tokens for each in model.decode(LINES, "greedy")]
    assert len(set(greedy)) > 2
    named = speculative(model, str(drafter))
    assert [each.tokens for each in named] == greedy
    with pytest.raises(NartkError, match="drafts with a second model, and drafter names none"):
        speculative(model)
    before = model.checkpoint.fingerprint
    shutil.copytree(drafter, verifier / "drafter")
    again = nartk.load(verifier, dtype=dtype, check=True)
    assert again.checkpoint.fingerprint == before
    assert [each.tokens for each in speculative(again)] == greedy
    made = again.strategy("speculative", {})
    assert made.drafter == load_checkpoint(drafter).fingerprint


@needs_engine
def test_an_int8_folder_of_the_verifier_is_drafted_for(verifier: Path, tmp_path: Path) -> None:
    from nartk.engine.quantize import quantize

    drafter = write_drafter(tmp_path / "light", verifier)
    quantize(load_checkpoint(verifier), tmp_path / "int8")
    quantize(load_checkpoint(drafter), tmp_path / "light8")
    model, full = nartk.load(tmp_path / "int8"), nartk.load(verifier, dtype="int8")
    greedy = [each.tokens for each in model.decode(LINES, "greedy")]
    drafts = []
    for each, name in ((model, drafter), (model, tmp_path / "light8"), (full, drafter)):
        found = speculative(each, str(name))
        assert [one.tokens for one in found] == greedy
        drafts.append([(one.tokens, one.positional_scores) for one in found])
    assert drafts[0] == drafts[1] == drafts[2]


def other_verifier(folder: Path, drafter: Path) -> Path:
    return model_folder(folder / "other", words=WORDS, seed=9)


def other_words(folder: Path, drafter: Path) -> Path:
    """Of as many words, in another order."""
    model = model_folder(folder / "words", words=[*WORDS[1:], WORDS[0]])
    settings(drafter, drafts_for=load_checkpoint(model).fingerprint)
    return model


def settings(folder: Path, **changes: Any) -> None:
    """Changes settings of the model in a folder's config.json."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["model"].update(changes)
    path.write_text(json.dumps(config))


def weights(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes tensors of a folder, and writes it anew."""
    checkpoint = load_checkpoint(folder)
    tensors = {name: torch.from_numpy(array.copy()) for name, array in checkpoint.tensors.items()}
    change(tensors)
    save_checkpoint(
        folder,
        architecture="light_drafter",
        settings=checkpoint.settings,
        tensors=tensors,
        source_vocab=None,
        target_vocab=checkpoint.target_vocab,
        input={"name": "encoded"},
        card="",
    )


def pickled(folder: Path) -> None:
    class Bad:
        def __reduce__(self) -> Any:
            return (Path(folder / "touched").touch, ())

    (folder / "model.safetensors").write_bytes(pickle.dumps(Bad()))


def widened(folder: Path) -> None:
    """All its weights over a memory twice as wide, and so no misfit of its own."""
    name = "decoder_layers.{}.cross_attention.kv.weight"
    config = load_checkpoint(folder).settings

    def change(tensors: dict[str, Any]) -> None:
        for i in range(config["decoder_layers"]):
            tensors[name.format(i)] = tensors[name.format(i)].repeat(1, 2)

    checkpoint_width = config["d_model"]
    config["d_model"] = 2 * checkpoint_width
    settings(folder, d_model=checkpoint_width)
    weights(folder, change)
    settings(folder, d_model=2 * checkpoint_width)


DAMAGES: dict[str, tuple[Callable[[Path], None], type[NartkError], str]] = {
    "of another model": (
        lambda folder: settings(folder, drafts_for="0123456789ab"),
        StrategyMismatchError,
        "drafts for the model '0123456789ab', and this one is",
    ),
    "of no model": (
        lambda folder: settings(folder, drafts_for=""),
        StrategyMismatchError,
        "drafts for the model '', and this one is",
    ),
    "of another width": (
        widened,
        StrategyMismatchError,
        "encoded sources of 64 features, the model's have 32",
    ),
    "with another width said": (
        lambda folder: settings(folder, d_model=40),
        CheckpointError,
        "cross_attention.kv.weight",
    ),
    "without a tensor": (
        lambda folder: weights(folder, lambda tensors: tensors.pop("decoder_norm.weight")),
        CheckpointError,
        "decoder_norm.weight",
    ),
    "a pickle": (pickled, CheckpointError, "model.safetensors: truncated, or not a safetensors file"),
    "cut off": (
        lambda folder: (folder / "model.safetensors").write_bytes(
            (folder / "model.safetensors").read_bytes()[:900]
        ),
        CheckpointError,
        "model.safetensors: truncated, or not a safetensors file",
    ),
    "shorter": (
        lambda folder: settings(folder, max_target_len=9),
        StrategyMismatchError,
        "has a `max_target_len` of 9 tokens, the model one of 64",
    ),
    "NaN": (
        lambda folder: weights(
            folder, lambda tensors: tensors["decoder_layers.0.ffn.up.weight"].fill_(float("nan"))
        ),
        NartkError,
        "NaN",
    ),
}


@pytest.mark.parametrize("place", ["named", "inside"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_refused(damage: str, place: str, verifier: Path, tmp_path: Path) -> None:
    change, kind, message = DAMAGES[damage]
    inside = place == "inside"
    drafter = write_drafter(verifier / "drafter" if inside else tmp_path / "light", verifier)
    change(drafter)
    model = nartk.load(verifier)
    with pytest.raises(kind, match=message):
        speculative(model, "" if inside else str(drafter))
    assert not (drafter / "touched").exists()
    assert [each.error for each in model.decode(LINES, "greedy")] == [None] * len(LINES)


def test_a_drafter_for_another_model_is_refused(verifier: Path, tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path / "light", verifier)
    other = nartk.load(model_folder(tmp_path / "other", words=WORDS, seed=9))
    mine, theirs = other.checkpoint.fingerprint, load_checkpoint(verifier).fingerprint
    with pytest.raises(StrategyMismatchError) as raised:
        speculative(other, str(drafter))
    assert str(raised.value) == (
        f"error[E103 StrategyMismatch] drafter {str(drafter)!r} drafts for the model {theirs!r}, and this "
        f"one is {mine!r}. Fix: name the drafter that was trained for this model, or train one."
    )


def test_words_in_another_order_are_refused(verifier: Path, tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path / "light", verifier)
    other = model_folder(tmp_path / "words", words=[*WORDS[1:], WORDS[0]])
    settings(drafter, drafts_for=load_checkpoint(other).fingerprint)
    with pytest.raises(NartkError, match="differ at id 4"):
        speculative(nartk.load(other), str(drafter))


def test_random_weights_change_nothing(verifier: Path, tmp_path: Path) -> None:
    model = nartk.load(verifier)
    greedy = [(each.tokens, each.positional_scores) for each in model.decode(LINES, "greedy")]
    for seed in range(5):
        drafter = write_drafter(tmp_path / f"light{seed}", verifier, seed=seed)
        found = speculative(model, str(drafter))
        tokens = [each.tokens for each in found]
        assert tokens == [each for each, _ in greedy]
        if model.is_exact:
            assert [(each.tokens, each.positional_scores) for each in found] == greedy


@pytest.mark.parametrize("name", ["greedy", "speculative", None])
def test_alone_it_decodes_nothing(name: str | None, verifier: Path, tmp_path: Path) -> None:
    model = nartk.load(write_drafter(tmp_path / "light", verifier))
    with pytest.raises(
        StrategyMismatchError, match="drafts on what its verifier has encoded, and decodes no"
    ):
        model.decode(LINES, name)


def test_bild_takes_it_too(verifier: Path, tmp_path: Path) -> None:
    drafter = write_drafter(tmp_path / "light", verifier)
    model = nartk.load(verifier)
    found = model.decode(LINES, "bild", drafter=str(drafter), rollback=0.0, fallback=0.0)
    assert [each.tokens for each in found] == [each.tokens for each in model.decode(LINES, "greedy")]


def test_a_verifier_that_shows_nothing_is_refused(verifier: Path) -> None:
    for _, network, _ in pairs(1):
        drafter = light_in_torch(network)
        strategy = drafting("speculative", drafter)

        class Blind:
            vocab = drafter.vocab

        with pytest.raises(StrategyMismatchError, match="this one shows nothing of it"):
            strategy.make_drafter(Blind())


def test_the_network_is_a_transformers_without_an_encoder() -> None:
    for _, network, _ in pairs(1):
        assert isinstance(network, Transformer)
        assert not [name for name in network.state_dict() if name.startswith("encoder")]


# Drafts that end where the drafter is no longer sure.


def drafted_by_hand(drafter: Any, source: Any, output: list[int], most: int, least: float) -> list[int]:
    """Best words of the drafter, until their probabilities' product is below the least, eos or the most."""
    words: list[int] = []
    product = 1.0
    while len(words) < most and product >= least and 2 not in words:
        logits = drafter.logits(source, [*output, *words])
        word = max(range(len(logits)), key=lambda each: (logits[each], -each))
        product *= math.exp(logits[word]) / sum(math.exp(each) for each in logits)
        words.append(word)
    return words


@pytest.mark.parametrize("kind", [Near, Light])
def test_drafts_end_where_the_product_of_probabilities_falls_below(
    kind: type[Near], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nartk.decoders.speculative.SmallModel", Watched)
    ended: Counter[int] = Counter()
    for least, batch_size in itertools.product((0.0, 0.02, 0.3, 1.0), (1, 8)):
        rng, scorer = random.Random(5), RealPasses(14, seed=5, copying=6)
        drafter = kind(scorer, seed=3, noise=0.4)
        sources = [(*(rng.randrange(4, 14) for _ in range(rng.randint(0, 9))), 2) for _ in range(30)]
        requests = [Request(i, source, rng.randint(1, 20)) for i, source in enumerate(sources)]
        monkeypatch.setattr(Watched, "drafts", {}, raising=False)
        strategy = drafting("speculative", drafter, block_size=4, stop_below=least, adaptive=False)
        results = sorted(strategy.run(scorer, requests, batch_size=batch_size), key=lambda each: each.index)
        for request, result in zip(requests, results, strict=True):
            output, done = list(result.hypotheses[0].tokens), 0
            for draft in Watched.drafts.get(request.index, []):
                room = request.max_len - done - 1
                wanted = drafted_by_hand(drafter, request.source, output[:done], min(4, room), least)
                assert draft == wanted
                ended[len(draft)] += least == 0.3
                same = itertools.takewhile(
                    lambda pair: pair[0] == pair[1], zip(draft, output[done:], strict=False)
                )
                done += sum(1 for _ in same) + 1
    assert {1, 2, 3, 4} <= ended.keys()
