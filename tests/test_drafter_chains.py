"""Drafts of several words in one call of the engine.

The oracles: greedy search over torch's own modules in fp64 (a light drafter), and passes one after the other,
whose numbers are compared with torch in test_engine_passes.py and test_light_drafter.py, to the last bit.
"""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support.engine_models import TYPES, bits_of, decode, on_engine, random_network
from support.light_drafters import (
    TorchTwin,
    light_in_torch,
    light_on_engine,
    random_light_config,
)
from support.light_drafters import random_network as random_light_network
from support.random_transformers import random_config, random_model, random_source
from support.small_drafters import shaken
from support.small_passes import drafting
from support.transformers_small import random_requests

from nartk.decoders.drafters.small_model import PickBest, SmallModel
from nartk.engine import available
from nartk.errors import PassError
from nartk.protocols.chains import Chain, ChainRule, Chains, DraftsChains
from nartk.protocols.encoded import sources_of
from nartk.protocols.passes import ROOT, Pass, Want
from nartk.registry import make_strategy

EOS = 2
BATCHES = (1, 2, 3, 8, 32)
CLOSE = 1e-4  # nats, of the engine's fp32 and torch's fp64
needs_engine = pytest.mark.skipif(not available(), reason="there is no engine here")


def greedy_chain(
    after: Callable[[Sequence[int]], Any], begun: Sequence[int], most: int, rule: ChainRule
) -> Any:
    """A draft behind tokens, word by word; the smallest distance of what was decided to the other decision.

    Args:
        after: Log-probabilities [V] of the words behind tokens.
    """
    tokens: list[int] = []
    log_probs: list[float] = []
    margin, passes = math.inf, 0
    while len(tokens) < most:
        scores = after([*begun, *tokens])
        passes += 1
        first, second = np.sort(scores)[::-1][:2]
        word = int(scores.argmax())
        margin = min(margin, first - second, abs(first - rule.least_likely))
        if first < rule.least_likely:
            break
        tokens.append(word)
        log_probs.append(float(first))
        margin = min(margin, abs(math.fsum(log_probs) - rule.least))
        if word in rule.ends or math.fsum(log_probs) < rule.least:
            break
    return Chain(tokens, log_probs, passes), margin


def random_rule(rng: random.Random, words: int) -> ChainRule:
    least, least_likely = rng.choice([-math.inf, -0.5, -2.0, -5.0]), rng.choice([-math.inf, -0.7, -2.5])
    listed = sorted(rng.sample(range(words), rng.randint(3, words))) if rng.random() < 0.4 else []
    return ChainRule([EOS], least, least_likely, listed)


@needs_engine
def test_drafts_are_those_of_torchs_own_modules() -> None:
    """Of torch's decoder layers in fp64, which know nothing of cells, positions or calls."""
    ends: Counter[str] = Counter()
    for number in range(40):
        rng = random.Random(number)
        words = rng.randint(9, 40)
        verifier = random_config(rng, src_vocab=words, tgt_vocab=words, max_source_len=30, max_target_len=30)
        network = random_light_network(random_light_config(rng, verifier), number)
        twin = TorchTwin(network.config, network.state_dict())
        scorer = light_on_engine(network)
        count = rng.choice([1, 2, 5])
        vectors = [
            np.random.default_rng((number, b)).standard_normal((rng.randint(1, 9), verifier.d_model))
            for b in range(count)
        ]
        begun = [[EOS, *(rng.randrange(4, words) for _ in range(rng.randint(0, 5)))] for _ in range(count)]
        most, rule = [rng.randint(1, 9) for _ in range(count)], random_rule(rng, words)
        memory = scorer.encode(sources_of([each.astype(np.float32) for each in vectors]))
        chains = Chains(memory.tolist(), scorer.open(count).tolist(), begun, most)
        for b, found in enumerate(scorer.draft_chains(chains, rule)):
            encoded = torch.tensor(vectors[b].astype(np.float32))

            def after(
                tokens: Sequence[int], encoded: Any = encoded, twin: Any = twin, rule: ChainRule = rule
            ) -> Any:
                scores = twin(encoded, torch.tensor(tokens))[-1].numpy()
                if not rule.words:
                    return scores
                some = np.full_like(scores, -np.inf)
                some[rule.words] = scores[rule.words]
                return some - np.logaddexp.reduce(some)

            wanted, margin = greedy_chain(after, begun[b], most[b], rule)
            if margin < 10 * CLOSE:
                ends["near a tie"] += 1
                continue
            assert (found.tokens, found.passes) == (wanted.tokens, wanted.passes)
            assert np.abs(np.subtract(found.log_probs, wanted.log_probs)).max(initial=0) < CLOSE
            ends["unlikely word"] += found.passes > len(found.tokens)
            ends["eos"] += found.tokens[-1:] == [EOS]
            ends["product"] += math.fsum(found.log_probs) < rule.least
            ends["length"] += len(found.tokens) == most[b] and most[b] > 2
            ends["listed words"] += bool(rule.words)
    assert ends["near a tie"] < 10
    assert min(ends[each] for each in ("unlikely word", "eos", "product", "length", "listed words")) > 1, ends


# Passes one after the other.


class Stepwise(SmallModel):
    """Drafts in a call a word, whatever the scorer can."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._chains = None


class State(NamedTuple):
    """What a drafter proposed for a row, and what it has read then."""

    tokens: list[int]
    log_probs: list[float] | None
    passes: int
    cells: int
    drafted: list[int]


def noting(kind: type[SmallModel], notes: dict[int, list[State]]) -> Any:
    """A kind of drafter that notes what it does for each request."""

    class Noting(kind):  # type: ignore[misc,valid-type]
        def draft(self, rows: Any, budgets: Any) -> Any:
            found = super().draft(rows, budgets)
            for row, each in zip(rows, found, strict=True):
                reader = row.state
                assert reader.unread == [] or not each.tokens
                notes.setdefault(row.request.index, []).append(
                    State([*each.tokens], each.log_probs, each.passes, reader.cells, [*reader.drafted])
                )
            return found

    return Noting


def small_pair(rng: random.Random, type: str, threads: int) -> tuple[Any, Any, list[Any]]:
    """A random model, a drafter with an encoder of its own or without, and sentences."""
    if rng.random() < 0.5:
        model = random_network(rng)
        small = shaken(model, rng.getrandbits(30), rng.choice([0.0, 0.02, 0.1]))
        scorer, drafter = (on_engine(each, type=type, threads=threads) for each in (model, small))
        return scorer, drafter, random_requests(rng, 9, len(scorer.vocab), limits=[1, 3, 9, 20])
    words = rng.randint(9, 40)
    config = random_config(rng, src_vocab=words, tgt_vocab=words, max_source_len=30, max_target_len=30)
    verifier = random_model(config, rng.getrandbits(30))
    network = random_light_network(random_light_config(rng, config), rng.getrandbits(30))
    drafter = light_on_engine(network, type=type, threads=threads)
    requests = random_requests(rng, 9, words, limits=[1, 3, 9, 20])
    sources = [tuple(random_source(rng, config)) for _ in requests]
    return (
        on_engine(verifier, type=type, threads=threads),
        drafter,
        [replace(each, source=source) for each, source in zip(requests, sources, strict=True)],
    )


def drafts_of(
    kind: type[SmallModel], strategy: str, scorer: Any, drafter: Any, requests: Any, size: int, **options: Any
) -> tuple[dict[int, list[State]], Any]:
    notes: dict[int, list[State]] = {}
    made = drafting(strategy, drafter, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"nartk.decoders.{strategy}.SmallModel", noting(kind, notes))
        found = decode(made, scorer, requests, batch_size=size)
    assert drafter.cells_in_use == drafter.memories_in_use == 0
    return notes, bits_of(found)


@needs_engine
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("type", TYPES)
def test_drafts_are_those_of_passes_one_after_the_other(type: str, threads: int) -> None:
    """Tokens, log-probabilities, passes and what was read: equal to the last bit, in any batch."""
    counts: Counter[str] = Counter()
    for number in range(8):
        rng = random.Random(f"{type} {number}")
        scorer, drafter, requests = small_pair(rng, type, threads)
        assert isinstance(drafter, DraftsChains)
        name, options = rng.choice(
            [
                ("speculative", {"block_size": 4, "stop_below": rng.choice([0.0, 0.05, 0.3, 0.9])}),
                ("bild", {"max_draft": 5, "fallback": rng.choice([0.0, 0.3, 0.8])}),
            ]
        )
        if name == "speculative":
            options["adaptive"] = False
        wanted = drafts_of(Stepwise, name, scorer, drafter, requests, 1, **options)
        for size in BATCHES:
            assert drafts_of(SmallModel, name, scorer, drafter, requests, size, **options) == wanted
        for states in wanted[0].values():
            counts["drafts"] += len(states)
            counts["words"] += sum(len(each.tokens) for each in states)
            counts["unread"] += sum(each.passes > len(each.tokens) for each in states)
    assert min(counts["words"], counts["drafts"]) > 50, counts


class NoSum(SmallModel):
    """Known to be wrong: a draft never ends for its probability."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._rule = replace(self._rule, least=-math.inf)


class NoEnd(SmallModel):
    """Known to be wrong: it drafts behind eos."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._rule = replace(self._rule, ends=[])


class Unread(SmallModel):
    """Known to be wrong: it believes that the last word was read."""

    def _draft_at_once(self, scorer: Any, turns: Any) -> None:
        super()._draft_at_once(scorer, turns)
        for turn in turns:
            turn.reader.drafted = [*turn.tokens]


@needs_engine
@pytest.mark.parametrize("kind", [NoSum, NoEnd, Unread])
def test_another_rule_shows(kind: type[SmallModel]) -> None:
    differ = 0
    for number in range(6):
        rng = random.Random(number)
        scorer, drafter, requests = small_pair(rng, "fp32", 1)
        options = {"block_size": 4, "stop_below": 0.3, "adaptive": False}
        wanted = drafts_of(Stepwise, "speculative", scorer, drafter, requests, 3, **options)[0]
        try:
            differ += drafts_of(kind, "speculative", scorer, drafter, requests, 3, **options)[0] != wanted
        except (AssertionError, PassError, ValueError):
            differ += 1
    assert differ > 0


# Contexts.


def one(scorer: Any, memory: int, context: int, unread: Sequence[int], most: int = 4) -> Chain:
    (found,) = scorer.draft_chains(Chains([memory], [context], [unread], [most]), ChainRule([]))
    return found


def stepwise(
    scorer: Any, memory: int, context: int, unread: Sequence[int], cells: int, most: int = 4
) -> Chain:
    """The same by passes, from a context of so many cells."""
    tokens: list[int] = []
    log_probs: list[float] = []
    for _ in range(most):
        count = len(unread)
        columns = [
            [*unread],
            [*range(cells, cells + count)],
            [memory] * count,
            [context] * count,
            [ROOT, *range(count - 1)],
        ]
        work = Pass(*np.array(columns, np.int32))
        scores = scorer.run(work, Want(only=np.array([count - 1], np.int32)))
        scorer.commit(scores, range(count))
        tokens.append(int(scores.best[0]))
        log_probs.append(float(scores.log_probs[0]))
        cells, unread = cells + count, tokens[-1:]
    return Chain(tokens, log_probs, most)


@needs_engine
@pytest.mark.parametrize("type", TYPES)
def test_forks_and_truncated_contexts_draft_as_new_ones_do(type: str) -> None:
    for number in range(6):
        rng = random.Random(number)
        scorer: Any = on_engine(random_network(rng), type=type)
        words = len(scorer.vocab)
        (memory,) = scorer.encode([(4, 5, EOS)]).tolist()
        first, other = ([EOS, *(rng.randrange(4, words) for _ in range(size))] for size in (3, 2))

        def fresh(tokens: Sequence[int], scorer: Any = scorer, memory: int = memory) -> Chain:
            (context,) = scorer.open(1).tolist()
            found = stepwise(scorer, memory, context, tokens, 0)
            scorer.close([context])
            return found

        (context,) = scorer.open(1).tolist()
        found = one(scorer, memory, context, first)
        assert found == fresh(first)
        assert scorer.cells_in_use == len(first) + 3  # the last word of the draft is not read
        (fork,) = scorer.fork([context]).tolist()
        again = one(scorer, memory, fork, [found.tokens[-1], 5])
        assert again == fresh([*first, *found.tokens, 5])
        scorer.truncate([context], [2])
        assert one(scorer, memory, context, other) == fresh([*first[:2], *other])
        assert one(scorer, memory, fork, [again.tokens[-1]]) == fresh(
            [*first, *found.tokens, 5, *again.tokens]
        )
        scorer.close([context])
        assert scorer.cells_in_use > 0
        scorer.close([fork])
        assert scorer.cells_in_use == 0


@needs_engine
def test_a_row_whose_draft_has_ended_takes_no_further_pass() -> None:
    scorer: Any = on_engine(random_network(random.Random(1)))
    memory, contexts = scorer.encode([(4, EOS), (5, 6, EOS)]).tolist(), scorer.open(2).tolist()
    chains = Chains(memory, contexts, [[EOS], [EOS, 5, 6]], [6, 1])
    longer, shorter = scorer.draft_chains(chains, ChainRule([]))
    assert (longer.passes, shorter.passes) == (6, 1)
    assert scorer.cells_in_use == 6 + 3


BAD = [
    (Chains([0], [0], [[]], [3]), "row 0 reads no token"),
    (Chains([0], [0], [[EOS]], [0]), "row 0 drafts 0 tokens"),
    (Chains([0, 0], [0, 0], [[EOS]] * 2, [3, 3]), "context 0 is named twice"),
    (Chains([0], [9], [[EOS]], [3]), "context 9 is not open"),
    (Chains([7], [0], [[EOS]], [3]), "source 7|memory 7|7 is not"),
    (Chains([0], [0], [[999]], [3]), "word 999 of token 0 is none of"),
    (Chains([0], [0], [[EOS]], [1000]), "position 128 of token 0 is none of 128"),
    (Chains([0, 0], [0, 1], [[EOS], [EOS, 999]], [3, 3]), "word 999"),
]


@needs_engine
@pytest.mark.parametrize(("chains", "message"), BAD)
def test_what_breaks_a_rule_is_refused_and_changes_nothing(chains: Chains, message: str) -> None:
    """A position that there is not is met after 128 passes: what they have read is taken back."""
    scorer: Any = on_engine(random_network(random.Random(3)))
    scorer.encode([(4, EOS)]), scorer.open(2)
    begun = [one(scorer, 0, context, [EOS, 5]) for context in (0, 1)]
    before = scorer.cells_in_use
    with pytest.raises(PassError, match=message):
        scorer.draft_chains(chains, ChainRule([]))
    assert scorer.cells_in_use == before
    goes_on = [
        one(scorer, 0, context, [found.tokens[-1]]) for context, found in zip((0, 1), begun, strict=True)
    ]
    (fresh,) = scorer.open(1).tolist()
    wanted = stepwise(scorer, 0, fresh, [EOS, 5, *begun[0].tokens], 0)
    assert goes_on == [wanted, wanted]


@needs_engine
def test_a_context_that_waits_for_its_pass_drafts_nothing() -> None:
    scorer: Any = on_engine(random_network(random.Random(3)))
    scorer.encode([(4, EOS)]), scorer.open(1)
    scores = scorer.run(Pass(*np.array([[EOS], [0], [0], [0], [ROOT]], np.int32)), Want())
    with pytest.raises(PassError, match="context 0 waits for the end of a pass"):
        one(scorer, 0, 0, [EOS])
    scorer.commit(scores, [])
    assert one(scorer, 0, 0, [EOS]).passes == 4


@needs_engine
@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_an_interrupt_takes_back_what_was_read() -> None:
    config = replace(random_network(random.Random(3)).config, max_target_len=60_000, decoder_ffn=3000)
    from support.transformers_small import random_model as model_of

    scorer: Any = on_engine(model_of(config, 1))
    scorer.encode([(4, EOS)]), scorer.open(1)
    wanted = one(scorer, 0, 0, [EOS])
    scorer.truncate([0], [1])
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    began = time.monotonic()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            one(scorer, 0, 0, [5], most=50_000)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, old)
    assert time.monotonic() - began < 3  # the whole takes far longer
    assert scorer.cells_in_use == 1
    scorer.truncate([0], [0])
    assert one(scorer, 0, 0, [EOS]) == wanted


@needs_engine
def test_other_threads_go_on_while_it_drafts() -> None:
    """Two drafts at the same time on one engine, each as alone."""
    scorer: Any = on_engine(random_network(random.Random(5)))
    scorer.encode([(4, EOS)])
    contexts = scorer.open(3).tolist()
    wanted = one(scorer, 0, contexts[2], [EOS], most=100)
    found: dict[int, Chain] = {}
    workers = [
        threading.Thread(target=lambda c=context: found.update({c: one(scorer, 0, c, [EOS], most=100)}))
        for context in contexts[:2]
    ]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert [found[context] for context in contexts[:2]] == [wanted, wanted]


# Who drafts so.


def test_the_reference_drafts_step_by_step() -> None:
    rng = random.Random(2)
    config = random_config(rng, src_vocab=20, tgt_vocab=20)
    network = random_light_network(random_light_config(rng, config), 1)
    assert not isinstance(light_in_torch(network), DraftsChains)


@needs_engine
def test_drawn_drafts_are_drawn_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their acceptance compares logits of each step."""
    rng = random.Random(4)
    scorer, drafter, requests = small_pair(rng, "fp32", 1)
    calls: list[int] = []
    monkeypatch.setattr(type(drafter), "draft_chains", lambda *_: calls.append(1))
    strategy = drafting("speculative", drafter, temperature=0.8, adaptive=False)
    assert sum(each.drafted for each in strategy.run(scorer, requests, batch_size=3)) > 0
    assert not calls


@needs_engine
def test_a_replica_that_is_told_to_stop_drafts_nothing() -> None:
    scorer: Any = on_engine(random_network(random.Random(5)))
    other = scorer.replica(lambda: True)
    other.encode([(4, EOS)]), other.open(1)
    with pytest.raises(PassError, match="told to stop"):
        one(other, 0, 0, [EOS])


def test_only_the_likeliest_words_have_a_least_probability() -> None:
    """1/2 is as likely as 1/2, whatever its logarithm rounds to."""
    assert np.float32(math.log(0.5)) >= PickBest(0.5).least > np.float32(math.log(0.4999999))
    assert PickBest().least == -math.inf
    assert PickBest(1.0).least == 0.0
    assert PickBest(1e-300).least == pytest.approx(-690.78, abs=0.01)


@needs_engine
def test_outputs_stay_greedy_searchs() -> None:
    for number in range(4):
        scorer, drafter, requests = small_pair(random.Random(number), "int8", 1)
        greedy = bits_of(decode(make_strategy("greedy", {}), scorer, requests, batch_size=1))
        for size in (1, 8):
            made = drafting("speculative", drafter, block_size=3)
            assert bits_of(decode(made, scorer, requests, batch_size=size)) == greedy
