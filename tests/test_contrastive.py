"""Contrastive search against brute force in NumPy, greedy search, and `generate` of transformers 4.46.3.

tests/oracles/contrastive.npz holds a small BART and what that `generate` outputs.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.engine_models import TYPES, alone, bits_of, on_engine
from support.realtable import EOS, random_transformer
from support.scorers import TransformerReference
from support.scripted_passes import decode, outputs_of

from nartk.checkpoints.hugging_face.text import read_network
from nartk.checkpoints.tensors import pack_tensors
from nartk.decoders.loop.constraints import Constraints, RowConstraints
from nartk.decoders.search import contrastive_search
from nartk.decoders.search.contrastive_search import ContrastiveSearch
from nartk.errors import UsageError
from nartk.files import Folder
from nartk.models.transformer import Transformer
from nartk.protocols.hypothesis import Request
from nartk.protocols.runs import Batching, run_through
from nartk.registry import implied, make_strategy
from nartk.vocab import Vocab

WORDS = 30
VOCAB = Vocab.from_words([f"w{i}" for i in range(WORDS - 4)])


def brute_force(
    model: Transformer, request: Request, alpha: float, k: int, penalty: float = 1.0
) -> list[int]:
    """The output of a sentence: every candidate is read anew, with all before it."""
    source = torch.tensor([[*request.source]])

    def read(tokens: list[int]) -> tuple[Any, Any]:
        with torch.inference_mode():
            features = model.features(model.encode(source), torch.tensor([[EOS, *tokens]]))
            return features[0].double().numpy(), model.output(features)[0, -1].double().numpy()

    output = [*request.prefix]
    while len(output) < request.max_len and output[-1:] != [EOS]:
        logits = read(output)[1]
        for word in {EOS, *output}:
            logits[word] = logits[word] / penalty if logits[word] > 0 else logits[word] * penalty
        probs = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        found = []
        for word in np.argsort(-probs, kind="stable")[:k].tolist():
            *before, new = read([*output, word])[0]
            likeness = max(new @ each / np.linalg.norm(new) / np.linalg.norm(each) for each in before)
            found.append(((1 - alpha) * probs[word] - alpha * likeness, word))
        output.append(max(found, key=lambda each: each[0])[1])
    return output


def requests_of(seed: int, longest: int = 12) -> list[Request]:
    rng = random.Random(seed)
    sources = [(*rng.choices(range(4, WORDS), k=rng.randint(1, 8)), EOS) for _ in range(6)]
    prefixes = [tuple(rng.choices(range(4, WORDS), k=rng.choice([0, 0, 2]))) for _ in sources]
    return [
        Request(i, source, longest, prefix=prefix)
        for i, (source, prefix) in enumerate(zip(sources, prefixes, strict=True))
    ]


def mismatches(side: str, settings: list[tuple[float, int]], **changed: Any) -> tuple[int, int]:
    """Outputs that are not brute force's, and those that are not greedy search's."""
    wrong = moved = 0
    for seed, (alpha, k) in enumerate(settings):
        model, requests = random_transformer(seed, WORDS), requests_of(seed)
        scorer = on_engine(model) if side == "engine" else TransformerReference(model, VOCAB)
        options = {"penalty_alpha": alpha, "top_k": k, **changed}
        penalty = changed.get("repetition_penalty", 1.0)
        found = outputs_of(decode(make_strategy("contrastive", options), scorer, requests, batch_size=4))
        greedy = outputs_of(decode(make_strategy("greedy", {}), scorer, requests, batch_size=4))
        wanted = [brute_force(model, request, alpha, k, penalty) for request in requests]
        wrong += sum(a != b for a, b in zip(found, wanted, strict=True))
        moved += sum(a != b for a, b in zip(found, greedy, strict=True))
    return wrong, moved


SETTINGS = [(0.6, 4), (0.3, 5), (0.9, 2), (1.0, 3), (0.5, WORDS)]


@pytest.mark.parametrize("side", ["engine", "reference"])
def test_outputs_are_those_of_brute_force(side: str) -> None:
    wrong, moved = mismatches(side, SETTINGS)
    assert wrong == 0
    assert moved > 10


def test_outputs_are_those_of_transformers(tmp_path: Path) -> None:
    """Of its version 4.46.3, on the weights of a BART."""
    oracle = np.load(Path(__file__).parent / "oracles" / "contrastive.npz")
    (tmp_path / "config.json").write_text(str(oracle["config"]), encoding="utf-8")
    weights = {name[8:]: oracle[name] for name in oracle if name.startswith("weights/")}
    (tmp_path / "model.safetensors").write_bytes(b"".join(pack_tensors(weights)))
    config, tensors = read_network(Folder(tmp_path))
    model = Transformer(config).eval()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
    vocab = Vocab(tuple(map(str, range(config.tgt_vocab))), pad=config.pad, eos=EOS, unk=-1, bos=-1)
    scorer = TransformerReference(model, vocab, start_token=EOS)
    sources = [tuple(row[row >= 0].tolist()) for row in oracle["sources"]]
    requests = [Request(i, source, oracle["outputs"].shape[2]) for i, source in enumerate(sources)]
    greedy, moved = outputs_of(decode(make_strategy("greedy", {}), scorer, requests)), 0
    for (alpha, k), rows in zip(oracle["settings"].tolist(), oracle["outputs"], strict=True):
        strategy = make_strategy("contrastive", {"penalty_alpha": alpha, "top_k": int(k)})
        found = outputs_of(decode(strategy, scorer, requests, batch_size=5))
        assert found == [row[row >= 0].tolist() for row in rows]
        moved += found != greedy
    assert moved == 3


def test_a_repetition_penalty_changes_probabilities() -> None:
    assert mismatches("engine", [(0.4, 4), (0.6, 3)], repetition_penalty=1.5)[0] == 0


@pytest.mark.parametrize("wrong", ["without the start token", "features that are not normed"])
def test_a_wrong_likeness_is_noticed(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if wrong == "features that are not normed":
        monkeypatch.setattr(contrastive_search, "_of_length_1", lambda features: features.astype(np.float64))
    else:
        begun = ContrastiveSearch._begun

        def forgetful(self: Any, row: Any, scores: Any) -> Any:
            scores.hidden[row.candidates[0].node - row.candidates[0].pending] = 0
            return begun(self, row, scores)

        monkeypatch.setattr(ContrastiveSearch, "_begun", forgetful)
    assert mismatches("reference", SETTINGS)[0] > 0


@pytest.mark.parametrize("type", TYPES)
@pytest.mark.parametrize("options", [{"penalty_alpha": 0.0}, {"top_k": 1}], ids=str)
def test_without_a_weight_or_a_choice_it_is_greedy_search(options: dict[str, Any], type: str) -> None:
    """To the bit, and in as many passes; under constraints too."""
    for seed in range(2):
        scorer, requests = on_engine(random_transformer(seed, WORDS), type=type), requests_of(seed)
        for rules in (
            {},
            {"repetition_penalty": 1.4, "no_repeat_ngram": 2},
            {"min_len": 7, "forced_eos": True},
        ):
            found = decode(make_strategy("contrastive", options | rules), scorer, requests, batch_size=3)
            wanted = decode(make_strategy("greedy", rules), scorer, requests, batch_size=1)
            assert bits_of(found) == bits_of(wanted)
            assert [each.passes for each in found] == [each.passes for each in wanted]


@pytest.mark.parametrize("type", TYPES)
def test_batches_change_no_bit(type: str) -> None:
    strategy = make_strategy("contrastive", {})
    for seed in range(2):
        scorer, requests = on_engine(random_transformer(seed, WORDS), type=type), requests_of(seed, 20)
        wanted = bits_of(decode(strategy, scorer, requests, batch_size=1))
        assert wanted != alone(scorer, requests)
        for size in (2, 3, 6):
            found = strategy.run(scorer, requests[::-1], batch_size=size)
            assert bits_of(sorted(found, key=lambda each: each.index)) == wanted


def test_log_probabilities_are_the_models_own() -> None:
    model, (request, *_) = random_transformer(2, WORDS), requests_of(2)
    scorer = TransformerReference(model, VOCAB)
    (result,) = decode(make_strategy("contrastive", {}), scorer, [request], batch_size=1)
    (found,) = result.hypotheses
    with torch.inference_mode():
        log_probs = model(torch.tensor([request.source]), torch.tensor([[EOS, *found.tokens[:-1]]]))
    wanted = [
        float(each[word]) for each, word in zip(log_probs[0].log_softmax(-1), found.tokens, strict=True)
    ]
    assert found.positional_scores == pytest.approx(wanted, abs=1e-5)
    assert found.score == pytest.approx(math.fsum(wanted), abs=1e-5)


def test_forced_words_and_traces() -> None:
    scorer = TransformerReference(random_transformer(1, WORDS), VOCAB)
    whole = Request(0, (5, 6, EOS), 3, prefix=(7, 8, 9), trace=True)
    part = Request(1, (5, 6, EOS), 4, prefix=(7,), trace=True)
    results = decode(make_strategy("contrastive", {"forced_eos": True}), scorer, [whole, part], batch_size=2)
    outputs = outputs_of(results)
    assert outputs[0] == [7, 8, EOS]
    assert (outputs[1][0], outputs[1][-1]) == (7, EOS)
    traces = [result.hypotheses[0].trace for result in results]
    assert [[each.origin for each in trace or ()] for trace in traces] == [
        ["prefix"] * 3,
        ["prefix", *["verifier"] * (len(outputs[1]) - 1)],
    ]


def test_the_last_word_needs_no_position() -> None:
    model = random_transformer(0, WORDS)
    scorer = on_engine(model)
    request = Request(0, (4, EOS), scorer.limits.target)
    rules = RowConstraints(Constraints(min_len=scorer.limits.target), EOS).of_run(scorer)
    run = ContrastiveSearch(scorer, rules, Batching(1, None), top_k=4, penalty_alpha=0.6)
    ((_, result),) = run_through(run, [request])
    assert len(result.hypotheses[0].tokens) == scorer.limits.target
    assert scorer.cells_in_use == 0


def test_nothing_stays_open_after_any_end() -> None:
    scorer = TransformerReference(random_transformer(0, WORDS), VOCAB)
    running = iter(make_strategy("contrastive", {}).run(scorer, requests_of(0), batch_size=3))
    next(running)
    assert scorer.cells_in_use > 0
    running.close()
    assert scorer.cells_in_use == 0


def test_its_options_name_it() -> None:
    assert implied(["penalty_alpha", "top_k"], "iad") == "contrastive"
    assert implied(["top_k"], "iad") == "sample"
    with pytest.raises(
        UsageError, match=r"penalty_alpha of 'contrastive' is 1\.5\. Fix: give a value between 0"
    ):
        make_strategy("contrastive", {"penalty_alpha": 1.5})
    with pytest.raises(UsageError, match="has no option momentum"):
        make_strategy("contrastive", {"momentum": 0.2})
