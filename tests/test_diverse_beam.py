"""Diverse beam search is that of a twin in plain Python, written from the paper's algorithm 1.

It is also that of `generate` of transformers 4.46.3, which still has it itself: 72
searches of random T5s, with and without drafts, gave the same outputs and scores.
`diverse-beam` is fairseq's own on the same model.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from support import fairseq_host
from support.engine_models import TYPES, on_engine
from support.joint import LM
from support.realtable import EOS, PAD, random_transformer
from support.scorers import TransformerReference
from support.scripted_passes import decode

from nartk.checkpoints.generation import read_generation, with_generation
from nartk.decoders.graphs.ngram_lm import read_arpa
from nartk.decoders.search import interleaved
from nartk.errors import UnsupportedCheckpointError, UsageError
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy
from nartk.vocab import Vocab

WORDS = 30
LM_WEIGHT = 0.8
VOCAB = Vocab.from_words([f"w{i}" for i in range(WORDS - 4)])

Scored = list[tuple[float, list[int]]]


def twin(model: Any, request: Request, settings: dict[str, Any], lm: Any = None) -> Scored:
    """The outputs of a sentence with their scores, best first.

    Args:
        lm: A language model, whose log-probabilities are added with the weight `LM_WEIGHT`.
    """
    groups = settings["beam_groups"]
    k, power = settings["beam_size"] // groups, settings["length_penalty"]
    source = torch.tensor([[*request.source]])

    def log_probs(tokens: list[int]) -> list[float]:
        with torch.inference_mode():
            logits = model(source, torch.tensor([[EOS, *tokens]]))[0, -1]
        found: list[float] = logits.double().log_softmax(-1).tolist()
        return found

    live: list[Scored] = [[(0.0, [])] for _ in range(groups)]
    finished: list[Scored] = [[] for _ in range(groups)]
    over = [False] * groups
    for length in range(1, request.max_len + 1):
        taken: Counter[int] = Counter()
        for g in range(groups):
            if over[g]:
                taken.update([PAD] * k)
                continue
            found = [
                (
                    total
                    + score
                    - settings["diversity_penalty"] * taken[word]
                    + (LM_WEIGHT * lm.score([0, *tokens], word) if lm else 0.0),
                    [*tokens, word],
                )
                for total, tokens in live[g]
                for word, score in enumerate(log_probs(tokens))
            ]
            found.sort(key=lambda each: -each[0])
            for total, tokens in found[:k]:
                if tokens[-1] == EOS or length == request.max_len:
                    finished[g].append((total / length**power, tokens))
            finished[g] = sorted(finished[g], key=lambda each: -each[0])[:k]
            live[g] = [each for each in found[: 2 * k] if each[1][-1] != EOS][:k]
            taken.update(tokens[-1] for _, tokens in live[g])
            if len(finished[g]) == k:
                stop = settings["early_stopping"]
                longest = request.max_len if stop == "never" and power > 0 else length
                over[g] = stop == "true" or found[0][0] / longest**power <= finished[g][-1][0]
    everything = [each for group in finished for each in group]
    return sorted(everything, key=lambda each: -each[0])


def random_settings(rng: random.Random) -> dict[str, Any]:
    groups = rng.choice([2, 3])
    return {
        "beam_groups": groups,
        "beam_size": groups * rng.choice([1, 2, 3]),
        "diversity_penalty": rng.choice([0.3, 1.0, 4.0]),
        "length_penalty": rng.choice([0.0, 1.0, 2.0]),
        "early_stopping": rng.choice(["true", "false", "never"]),
    }


def mismatches(cases: int, lm: Path | None = None, **changed: Any) -> int:
    """Sentences whose outputs are not the twin's, of searches with other settings than it has, if any."""
    wrong = 0
    language = None if lm is None else read_arpa(lm, VOCAB)
    for seed in range(cases):
        rng = random.Random(seed)
        model, settings = random_transformer(seed % 5, WORDS), random_settings(rng)
        sources = [(*(rng.randrange(4, WORDS) for _ in range(rng.randint(1, 6))), EOS) for _ in range(3)]
        requests = [Request(i, source, rng.choice([3, 6, 9])) for i, source in enumerate(sources)]
        wanted = [twin(model, request, settings, language) for request in requests]
        options = {**settings, "nbest": settings["beam_size"], **changed}
        if lm is not None:
            options |= {"lm": str(lm), "lm_weight": LM_WEIGHT, "candidates": WORDS, **changed}
        draft = {"draft": rng.choice(["none", "both"])}
        results = decode(
            make_strategy("beam", options | draft), TransformerReference(model, VOCAB), requests, batch_size=2
        )
        for result, each in zip(results, wanted, strict=True):
            found = [(h.score, [*h.tokens]) for h in result.hypotheses]
            wrong += [tokens for _, tokens in found] != [tokens for _, tokens in each] or not all(
                math.isclose(a[0] or 0.0, b[0], abs_tol=1e-4) for a, b in zip(found, each, strict=True)
            )
    return wrong


def test_it_is_the_twins() -> None:
    assert mismatches(16) == 0


def test_with_a_language_model_it_is_the_twins(tmp_path: Path) -> None:
    path = tmp_path / "lm.arpa"
    path.write_text(LM, encoding="utf-8")
    assert mismatches(8, path) == 0
    assert mismatches(8, path, lm_weight=0.1) > 0


def test_log_probabilities_are_the_models_own() -> None:
    """What words pay lowers scores alone: each output's log-probabilities add up to what the model says."""
    paid = 0
    for seed in range(4):
        model, scorer = (
            random_transformer(seed, WORDS),
            TransformerReference(random_transformer(seed, WORDS), VOCAB),
        )
        request = Request(0, (*range(4, 9), EOS), 8)
        options = {"beam_size": 4, "beam_groups": 4, "diversity_penalty": 2.0, "nbest": 4}
        (result,) = decode(make_strategy("beam", options), scorer, [request], batch_size=1)
        source = torch.tensor([[*request.source]])
        for each in result.hypotheses:
            target = torch.tensor([[EOS, *each.tokens[:-1]]])
            with torch.inference_mode():
                log_probs = model(source, target)[0].log_softmax(-1)
            wanted = [float(log_probs[i, word]) for i, word in enumerate(each.tokens)]
            assert each.positional_scores == pytest.approx(wanted, abs=1e-4)
            assert each.score is not None
            paid += each.score < sum(wanted) / len(wanted) - 0.1
    assert paid > 0


@pytest.mark.parametrize("changed", [{"diversity_penalty": 0.0}, {"beam_groups": 1}], ids=str)
def test_groups_or_a_penalty_that_are_forgotten_are_noticed(changed: dict[str, Any]) -> None:
    assert mismatches(6, **changed) > 0


def test_settings_that_do_not_go_together() -> None:
    for options, message in (
        ({"beam_size": 5, "beam_groups": 2}, "beam_groups=2 of 5 hypotheses, which is no multiple"),
        ({"beam_size": 4, "beam_groups": 2, "renormalize": True}, "beam_groups=2 with renormalize=True"),
    ):
        with pytest.raises(UsageError, match=message):
            make_strategy("beam", options)


def test_a_models_files_ask_for_it() -> None:
    fields = {"num_beams": 6, "num_beam_groups": 3, "diversity_penalty": 0.7, "eos_token_id": 2}
    generation = read_generation({}, fields)
    strategy = make_strategy(generation["strategy"], with_generation(generation, "beam", {}))
    assert (strategy.beam_size, strategy.beam_groups, strategy.diversity_penalty) == (6, 3, 0.7)


def test_a_models_groups_give_way_to_a_users_beam() -> None:
    generation = read_generation({}, {"num_beams": 6, "num_beam_groups": 3, "eos_token_id": 2})
    for size, groups in ((4, 1), (9, 3)):
        strategy = make_strategy("beam", with_generation(generation, "beam", {"beam_size": size}))
        assert (strategy.beam_size, strategy.beam_groups) == (size, groups)
    fields = {"num_beams": 6, "num_beam_groups": 3, "renormalize_logits": True, "eos_token_id": 2}
    with pytest.raises(UnsupportedCheckpointError, match="renormalize_logits"):
        read_generation({}, fields)


# `diverse-beam`: fairseq's rules.


def requests_of(seed: int, longest: int) -> list[Request]:
    rng = random.Random(seed)
    sources = [(*(rng.randrange(4, WORDS) for _ in range(rng.randint(1, 9))), EOS) for _ in range(12)]
    return [Request(i, source, longest) for i, source in enumerate(sources)]


def fairseq_mismatches(k: int, groups: int, strength: float, power: float, **changed: Any) -> tuple[int, int]:
    """Sentences whose outputs and scores are not fairseq's, and sentences that were compared."""
    wrong = compared = 0
    for seed in range(2):
        core, requests = random_transformer(seed, WORDS), requests_of(seed, 20)
        generator = fairseq_host.sequence_generator(
            core, diverse=(groups, strength), beam_size=k, max_len_b=19, len_penalty=power
        )
        options = {"beam_size": k, "beam_groups": groups, "diversity_penalty": strength, "nbest": k}
        strategy = make_strategy("diverse-beam", {**options, "length_penalty": power, **changed})
        found = decode(strategy, TransformerReference(core, VOCAB), requests, batch_size=5)
        theirs = fairseq_host.generated(generator, [request.source for request in requests])
        for result, wanted in zip(found, theirs, strict=True):
            if max(len(each.tokens) for each in result.hypotheses) == 20:
                continue  # cut off: fairseq puts eos there
            compared += 1
            same = [each.tokens for each in result.hypotheses] == [
                tuple(each["tokens"].tolist()) for each in wanted
            ]
            wrong += not same or any(
                not math.isclose(mine.score or 0.0, float(his["score"]), abs_tol=1e-4)
                for mine, his in zip(result.hypotheses, wanted, strict=True)
            )
    return wrong, compared


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("strength", [0.0, 0.2, 0.5, 1.0])
@pytest.mark.parametrize(("k", "groups"), [(4, 2), (6, 2), (6, 3), (4, 4), (6, 6)])
def test_diverse_beam_outputs_what_fairseq_does(k: int, groups: int, strength: float) -> None:
    fairseq_host.require_fairseq()
    draft = {"draft": "both"} if k == 6 else {}
    wrong, compared = fairseq_mismatches(k, groups, strength, 1.0 if groups == 2 else 0.0, **draft)
    assert wrong == 0
    assert compared > 10


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize(
    "changed",
    [{"diversity_penalty": 0.4}, {"beam_groups": 2}, {"early_stopping": "false"}, {"length_penalty": 0.2}],
    ids=str,
)
def test_another_setting_than_fairseqs_is_noticed(changed: dict[str, Any]) -> None:
    fairseq_host.require_fairseq()
    assert fairseq_mismatches(6, 3, 0.5, 1.0, **changed)[0] > 0


@pytest.mark.filterwarnings("ignore")  # fairseq's own
def test_counting_only_what_goes_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hugging Face's rule, by which a word pays for the hypotheses that go on."""
    fairseq_host.require_fairseq()

    class Survivors(Counter[int]):
        def update(self, words: Any = (), /, **_: Any) -> None:
            super().update([word for word in words or () if word != EOS][:2])

    monkeypatch.setattr(interleaved, "Counter", Survivors)
    assert fairseq_mismatches(6, 3, 0.5, 1.0)[0] > 0


def bits(results: Any) -> Any:
    return [[(each.tokens, each.score, each.positional_scores) for each in r.hypotheses] for r in results]


@pytest.mark.parametrize("type", TYPES)
def test_one_group_is_beam_search_and_batches_change_no_bit(type: str) -> None:
    different = 0
    for seed in range(2):
        scorer, requests = on_engine(random_transformer(seed, WORDS), type=type), requests_of(seed, 12)
        first = {"beam_size": 4, "nbest": 4, "early_stopping": "first"}
        one = decode(
            make_strategy("diverse-beam", first | {"beam_groups": 1}), scorer, requests, batch_size=3
        )
        beam = bits(decode(make_strategy("beam", first), scorer, requests, batch_size=12))
        assert bits(one) == beam
        four = make_strategy("diverse-beam", {"beam_size": 4, "nbest": 4})
        alone = bits(decode(four, scorer, requests, batch_size=1))
        assert bits(decode(four, scorer, requests, batch_size=5)) == alone
        different += alone != beam
    assert different == 2


def test_a_forced_output_comes_once() -> None:
    request = Request(0, (5, 6, EOS), 3, prefix=(7, 8, 9))
    scorer = TransformerReference(random_transformer(1, WORDS), VOCAB)
    (result,) = decode(make_strategy("diverse-beam", {"nbest": 5}), scorer, [request], batch_size=1)
    assert [each.tokens for each in result.hypotheses] == [(7, 8, 9)]


def test_fairseqs_names_of_its_options_are_accepted() -> None:
    strategy = make_strategy(
        "diverse-beam", {"beam": 6, "diverse_beam_groups": 3, "diverse_beam_strength": 0.2}
    )
    assert (strategy.beam_size, strategy.beam_groups, strategy.diversity_penalty) == (6, 3, 0.2)
    with pytest.raises(UsageError, match="beam_groups=2 of 5 hypotheses, which is no multiple"):
        make_strategy("diverse-beam", {"beam_groups": 2})
