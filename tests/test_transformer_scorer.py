"""The Transformer's scorer: its cache, its rows, and exact mode.

The oracle is the whole model at once, teacher-forced, without a cache: `Transformer.forward`.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import torch
from support.scripted import decode, outputs_of, over_tensors
from support.transformers_small import EOS, random_config, random_model, random_requests, vocabulary
from torch import Tensor

from nartk.models.transformer import Transformer, TransformerConfig
from nartk.models.transformer_scorer import TransformerScorer, TransformerState
from nartk.scorer import Seq2SeqScorer, Source
from nartk.vocab import Vocab

PAD = 1


def batch_of(rng: random.Random, words: int, sizes: list[int]) -> Source:
    rows = [[*(rng.randrange(4, words) for _ in range(size)), EOS] for size in sizes]
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])
    return Source(tokens, torch.tensor([len(row) for row in rows]))


def on(device: torch.device, source: Source) -> Source:
    return Source(source.tokens.to(device), source.lengths.to(device))


def taught(model: Transformer, source: Source, row: int, tokens: Tensor) -> Tensor:
    """The whole model's logits [T,V] for one row, fed all tokens [T] at once, without padding."""
    own = source.tokens[row : row + 1, : source.lengths[row]]
    with torch.inference_mode():
        return model(own, tokens[None])[0]


@pytest.fixture(params=range(6))
def case(request: pytest.FixtureRequest) -> tuple[random.Random, Transformer, Vocab]:
    """Six models of random shapes."""
    rng = random.Random(request.param)
    config = random_config(rng)
    return rng, random_model(config, request.param), vocabulary(config.tgt_vocab)


def test_it_is_a_scorer(case: Any, device: torch.device) -> None:
    _, model, vocab = case
    scorer = TransformerScorer(model, vocab, device=device)
    assert isinstance(scorer, Seq2SeqScorer)
    assert scorer.source_to_target.tolist() == list(range(len(vocab)))


@pytest.mark.parametrize("exact", [True, False])
def test_any_way_of_feeding_equals_the_whole_model(case: Any, exact: bool, device: torch.device) -> None:
    """Rows of different lengths are fed in pieces, pieces are taken back, and rows move."""
    rng, model, vocab = case
    words = len(vocab)
    scorer = TransformerScorer(model, vocab, device=device).mode(exact=exact)
    source = batch_of(rng, words, [0, 1, 7, 31, 40])
    state = scorer.encode(on(device, source), 64)
    owners = [0, 1, 2, 3, 4]  # the source of each row
    fed: list[list[int]] = [[] for _ in owners]
    for _ in range(12):
        width = rng.randint(1, 9)
        counts = [rng.randint(0, width) for _ in owners]
        counts[rng.randrange(len(owners))] = width
        tokens = torch.randint(4, words, (len(owners), width))
        logits, state = scorer.verify(tokens.to(device), state, counts)
        assert logits.shape == (sum(counts), words)
        at = 0
        for row, count in enumerate(counts):
            fed[row] += tokens[row, :count].tolist()
            if count:
                wanted = taught(model, source, owners[row], torch.tensor(fed[row]))[-count:]
                torch.testing.assert_close(logits[at : at + count].cpu(), wanted, rtol=1e-4, atol=2e-4)
            at += count
        assert state.lengths.tolist() == [len(row) for row in fed]
        kept = [rng.randint(max(0, len(row) - 4), len(row)) if len(row) < 45 else 3 for row in fed]
        fed = [row[:size] for row, size in zip(fed, kept, strict=True)]
        state = scorer.truncate(state, torch.tensor(kept, device=device))
        if rng.random() < 0.4:
            moved = [rng.randrange(len(owners)) for _ in range(rng.randint(1, 5))]
            state = scorer.select(state, torch.tensor(moved, device=device))
            owners, fed = [owners[i] for i in moved], [list(fed[i]) for i in moved]
        if len(owners) < 5:
            state = scorer.join(state, scorer.encode(on(device, source), 64))
            owners, fed = [*owners, 0, 1, 2, 3, 4], [*fed, [], [], [], [], []]


def test_a_step_is_a_verification_of_one(case: Any, device: torch.device) -> None:
    rng, model, vocab = case
    scorer = TransformerScorer(model, vocab, device=device)
    source = on(device, batch_of(rng, len(vocab), [3, 5]))
    tokens = torch.tensor([EOS, 6], device=device)
    one, after = scorer.step(tokens, scorer.encode(source, 10))
    many, _ = scorer.verify(tokens[:, None], scorer.encode(source, 10))
    assert one.shape == (2, len(vocab))
    assert torch.equal(one, many[:, 0])
    assert after.lengths.tolist() == [1, 1]


def test_without_truncation_the_result_is_another(case: Any, device: torch.device) -> None:
    """What was rejected must not be seen: known to be wrong, and noticed."""
    rng, model, vocab = case
    scorer = TransformerScorer(model, vocab, device=device)
    source = on(device, batch_of(rng, len(vocab), [4]))

    def after(tokens: list[list[int]], keep: int | None) -> Tensor:
        _, state = scorer.verify(torch.tensor([tokens[0]], device=device), scorer.encode(source, 32))
        if keep is not None:
            state = scorer.truncate(state, torch.tensor([keep], device=device))
        return scorer.verify(torch.tensor([tokens[1]], device=device), state)[0]

    clean = after([[EOS, 5], [6, 7]], None)
    assert torch.equal(after([[EOS, 5, 8, 9, 4], [6, 7]], 2), clean)
    assert not torch.equal(after([[EOS, 5, 8, 9, 4], [6, 7]], None), clean)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_in_exact_mode_feeding_and_company_change_no_bit(
    case: Any, dtype: torch.dtype, device: torch.device
) -> None:
    rng, model, vocab = case
    words = len(vocab)
    scorer = TransformerScorer(model, vocab, dtype=dtype, device=device)
    source = on(device, batch_of(rng, words, [5, 20, 0, 31, 12, 9, 27, 3]))
    tokens = torch.randint(4, words, (8, 24)).to(device)
    state = scorer.encode(source, 30)
    whole, _ = scorer.verify(tokens, state)
    for row in range(8):
        alone = Source(source.tokens[row : row + 1, : source.lengths[row]], source.lengths[row : row + 1])
        state, at = scorer.encode(alone, 30), 0
        while at < 24:
            count = rng.randint(1, min(7, 24 - at))
            logits, state = scorer.verify(tokens[row : row + 1, at : at + count], state)
            assert torch.equal(logits[0], whole[row, at : at + count])
            at += count


def test_the_bucket_depends_on_the_request_alone(case: Any, device: torch.device) -> None:
    _, model, vocab = case
    scorer = TransformerScorer(model, vocab, device=device)
    assert scorer.bucket(1, 1) == scorer.bucket(32, 32)
    assert scorer.bucket(32, 32) != scorer.bucket(33, 32)
    assert scorer.bucket(32, 32) != scorer.bucket(32, 33)
    fast = scorer.mode(exact=False)
    assert fast.bucket(1, 1) == fast.bucket(100, 100)
    assert scorer.exact, "mode leaves the scorer as it is"


def test_the_model_is_left_as_it_is(case: Any, device: torch.device) -> None:
    rng, model, vocab = case
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    scorer = TransformerScorer(model, vocab, dtype=torch.bfloat16, device=device)
    source = on(device, batch_of(rng, len(vocab), [3]))
    tokens = source.tokens.clone()
    scorer.verify(torch.tensor([[EOS, 5]], device=device), scorer.encode(source, 8))
    assert torch.equal(source.tokens, tokens)
    assert model.state_dict().keys() == before.keys()
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("exact", [True, False])
def test_source_and_output_may_be_as_long_as_the_model_knows(exact: bool, device: torch.device) -> None:
    """50 positions each, which is no multiple of anything."""
    rng = random.Random(1)
    config = dataclasses.replace(
        random_config(rng),
        max_source_len=50,
        max_target_len=50,
        decoder_positions="learned",
        encoder_positions="learned",
    )
    model = random_model(config, 1)
    with torch.no_grad():
        model.output.weight[EOS] = 0  # so that outputs are long
    scorer = TransformerScorer(model, vocabulary(config.tgt_vocab), device=device)
    requests = [
        dataclasses.replace(request, source=(*rng.choices(range(4, config.src_vocab), k=49), EOS))
        for request in random_requests(rng, 5, config.src_vocab, limits=[50])
    ]
    greedy = outputs_of(decode(over_tensors("greedy", {"exact": exact}), scorer, requests, batch_size=1))
    assert max(map(len, greedy)) == 50
    for size in (1, 5):
        found = decode(over_tensors("iad", {"exact": exact}), scorer, requests, batch_size=size)
        assert outputs_of(found) == greedy


def test_two_vocabularies_are_mapped_by_word(device: torch.device) -> None:
    """Source c a <unk> d b, target a b c: what both know keeps its word, the rest is not drafted."""
    source = Vocab.from_words(["c", "a", "x", "b"])
    target = Vocab.from_words(["a", "b", "c"])
    config = TransformerConfig(
        src_vocab=len(source),
        tgt_vocab=len(target),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_ffn=16,
        decoder_ffn=16,
        encoder_heads=2,
        decoder_heads=2,
        share_embeddings="decoder",
    )
    scorer = TransformerScorer(random_model(config, 0), target, source_vocab=source, device=device)
    assert scorer.source_to_target.tolist() == [0, 1, 2, -1, 6, 4, -1, 5]
    requests = random_requests(random.Random(0), 30, len(source), limits=[10])
    greedy = outputs_of(decode(over_tensors("greedy", {}), scorer, requests, batch_size=1))
    found = decode(over_tensors("iad", {}), scorer, requests)
    assert outputs_of(found) == greedy
    assert sum(result.drafted for result in found) > 0


def test_states_do_not_share_storage_after_select(case: Any, device: torch.device) -> None:
    rng, model, vocab = case
    scorer = TransformerScorer(model, vocab, device=device)
    state = scorer.encode(on(device, batch_of(rng, len(vocab), [4])), 16)
    _, state = scorer.verify(torch.tensor([[EOS, 5]], device=device), state)
    twins: TransformerState = scorer.select(state, torch.tensor([0, 0], device=device))
    both, _ = scorer.verify(torch.tensor([[6, 7], [8, 9]], device=device), twins)
    first, _ = scorer.verify(torch.tensor([[6, 7]], device=device), state)
    assert torch.equal(both[0], first[0])
