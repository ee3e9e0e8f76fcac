"""Training a drafter for its verifier: the divergences, accept_len, and `--criterion nartk_drafter`."""

from __future__ import annotations

import copy
import json
import math
import random
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support import fairseq_host
from support.commands import own
from support.tiny import SENTENCES
from support.transformers_small import padded, stir
from torch import Tensor

from nartk.adapters.fairseq.checkpoint import read_checkpoint
from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.saving import save_checkpoint
from nartk.cli.train import main as train
from nartk.errors import CheckpointError, StrategyMismatchError, UsageError, VocabMismatchError
from nartk.models.blockwise import MASK
from nartk.models.distil_losses import DIVERGENCES, kl, reverse_kl, tokens_a_pass, tvd, tvd_plus_plus
from nartk.models.transformer import Transformer
from nartk.vocab import Vocab

WORDS, EOS = 6, 2  # so few that two random models often say the same
SMALL = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn": 32, "decoder_ffn": 32}
HEADS = {"encoder_heads": 2, "decoder_heads": 2}
SMALL_FLAGS = [
    f"--{name.replace('_', '-')}={value}" for name, value in {**SMALL, **HEADS, "dropout": 0.0}.items()
]

Rows = list[list[float]]


def two_models(count: int = 5, words: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    ours, theirs = (2 * torch.randn(count, words, generator=draw, dtype=torch.float64) for _ in range(2))
    return ours, theirs


def probabilities(logits: Tensor, temperature: float) -> Rows:
    """Softmax in plain Python."""
    rows = []
    for row in logits.tolist():
        powers = [math.exp(value / temperature) for value in row]
        rows.append([power / sum(powers) for power in powers])
    return rows


def summed(f: Callable[[float, float], float]) -> Callable[[Rows, Rows], float]:
    """The sum of f(q, p) over all words, q the drafter's, p the verifier's."""
    return lambda ours, theirs: sum(
        f(q, p) for mine, other in zip(ours, theirs, strict=True) for q, p in zip(mine, other, strict=True)
    )


TWINS = {
    "kl": summed(lambda q, p: p * math.log(p / q)),
    "reverse-kl": summed(lambda q, p: q * math.log(q / p)),
    "tvd": summed(lambda q, p: max(0.0, p - q)),
    "tvd++": summed(lambda q, p: abs(p - q) / 2),
}


def check_twin(name: str, found: Callable[[Tensor, Tensor, float], Tensor]) -> None:
    ours, theirs = two_models()
    for temperature in (1.0, 2.5):
        wanted = TWINS[name](probabilities(ours, temperature), probabilities(theirs, temperature))
        assert float(found(ours, theirs, temperature)) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_divergence_is_its_definition(name: str) -> None:
    check_twin(name, DIVERGENCES[name])


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("kl", lambda ours, theirs, t: kl(theirs, ours, t)),
        ("reverse-kl", lambda ours, theirs, t: kl(ours, theirs, t)),
        ("kl", lambda ours, theirs, t: kl(ours / t, theirs, 1.0)),
        ("tvd", lambda ours, theirs, t: 2 * tvd(ours, theirs, t)),
    ],
)
def test_swapped_arguments_or_half_a_temperature_are_noticed(name: str, bad: Any) -> None:
    with pytest.raises(AssertionError):
        check_twin(name, bad)


@pytest.mark.parametrize("f", [kl, reverse_kl, tvd])
def test_gradients(f: Any) -> None:
    ours, theirs = two_models(3, 5)
    assert torch.autograd.gradcheck(lambda x: f(x, theirs, 1.7), [ours.requires_grad_()])


def policy_gradient(ours: Tensor, theirs: Tensor, temperature: float, *, normalised: bool) -> Rows:
    """Goel et al. 2024: the expectation of -r(X) grad log q(X), every word X of every position in turn."""
    q_rows, p_rows = probabilities(ours, temperature), probabilities(theirs, temperature)
    rewards = [
        [float(p > q) for q, p in zip(mine, other, strict=True)]
        for mine, other in zip(q_rows, p_rows, strict=True)
    ]
    if normalised:
        drawn = [
            (q / len(q_rows), r)
            for mine, reward in zip(q_rows, rewards, strict=True)
            for q, r in zip(mine, reward, strict=True)
        ]
        mean = sum(weight * r for weight, r in drawn)
        deviation = math.sqrt(sum(weight * (r - mean) ** 2 for weight, r in drawn))
        rewards = [[(r - mean) / deviation for r in reward] for reward in rewards]
    gradient = []
    for mine, reward in zip(q_rows, rewards, strict=True):
        row = [0.0] * len(mine)
        for x, (q, r) in enumerate(zip(mine, reward, strict=True)):
            for k in range(len(mine)):
                row[k] -= q * r * ((x == k) - mine[k]) / temperature
        gradient.append(row)
    return gradient


def gradient(f: Any, ours: Tensor, theirs: Tensor, temperature: float) -> Tensor:
    ours = ours.clone().requires_grad_()
    theirs = theirs.clone().requires_grad_()
    f(ours, theirs, temperature).backward()
    assert theirs.grad is None
    assert ours.grad is not None
    return ours.grad


def check_policy_gradient(f: Any, *, normalised: bool) -> None:
    for seed in range(4):
        ours, theirs = two_models(4, 5, seed)
        wanted = torch.tensor(policy_gradient(ours, theirs, 1.3, normalised=normalised), dtype=torch.float64)
        torch.testing.assert_close(gradient(f, ours, theirs, 1.3), wanted, rtol=1e-10, atol=1e-12)


def test_the_gradients_of_tvd_are_those_of_a_policy() -> None:
    check_policy_gradient(tvd, normalised=False)
    check_policy_gradient(tvd_plus_plus, normalised=True)


@pytest.mark.parametrize(
    ("bad", "normalised"),
    [
        (tvd, True),
        (tvd_plus_plus, False),
        (lambda ours, theirs, t: tvd_plus_plus(ours, theirs, 1.0), True),
        (
            lambda ours, theirs, t: sum(
                tvd_plus_plus(ours[i : i + 1], theirs[i : i + 1], t) for i in range(4)
            ),
            True,
        ),
    ],
)
def test_rewards_that_are_not_those_of_the_batch_are_noticed(bad: Any, normalised: bool) -> None:
    with pytest.raises(AssertionError):
        check_policy_gradient(bad, normalised=normalised)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_nothing_is_left_to_learn_where_both_are_the_same_or_there_are_no_words(name: str) -> None:
    ours, _ = two_models()
    assert float(DIVERGENCES[name](ours, ours.clone(), 1.0)) == pytest.approx(0.0, abs=1e-14)
    assert gradient(DIVERGENCES[name], ours, ours, 1.0).abs().max() < 1e-14
    assert float(DIVERGENCES[name](ours[:0], ours[:0], 1.0)) == 0.0
    assert gradient(DIVERGENCES[name], ours[:0], ours[:0], 1.0).shape == (0, 7)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_half_precision_is_widened(name: str, device: torch.device) -> None:
    ours, theirs = (logits.to(device, torch.bfloat16) for logits in two_models())
    found = DIVERGENCES[name](ours, theirs, 1.0)
    assert found.dtype == torch.float32
    assert torch.equal(found, DIVERGENCES[name](ours.float(), theirs.float(), 1.0))


def test_tokens_a_pass_worked_by_hand(device: torch.device) -> None:
    # + agrees, - does not. Block of 2: two drafted tokens at most, and the verifier's, within the sentence.
    agree = torch.tensor([[c == "+" for c in row] for row in ("+++-++", "-+-+..", "......")], device=device)
    lengths = torch.tensor([6, 4, 0], device=device)
    assert tokens_a_pass(agree, lengths, 2).tolist() == [
        [3, 3, 2, 1, 2, 1],
        [1, 2, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]


def walked(agree: Sequence[bool], start: int, block: int) -> int:
    """Tokens of a pass from `start` on, one by one."""
    given = 0
    for right in agree[start:]:
        given += 1
        if not right or given > block:
            break
    return given


def check_walk(f: Any) -> None:
    rng = random.Random(0)
    rows = [[rng.random() < 0.7 for _ in range(rng.randint(1, 12))] for _ in range(30)]
    agree = torch.zeros(30, 13, dtype=torch.bool)
    for i, row in enumerate(rows):
        agree[i, : len(row)] = torch.tensor(row)
        agree[i, len(row) :] = torch.rand(13 - len(row)) < 0.5  # what stands behind the end is nothing
    for block in (1, 3, 20):
        found = f(agree, torch.tensor([len(row) for row in rows]), block)
        for i, row in enumerate(rows):
            assert found[i, : len(row)].tolist() == [walked(row, t, block) for t in range(len(row))]
            assert not found[i, len(row) :].any()


def test_tokens_a_pass_are_those_of_a_walk() -> None:
    check_walk(tokens_a_pass)
    for bad in (
        lambda agree, lengths, block: tokens_a_pass(agree, lengths, 99),
        lambda agree, lengths, block: tokens_a_pass(agree, lengths, block) - 1,
        lambda agree, lengths, block: tokens_a_pass(agree, lengths + 1, block),
    ):
        with pytest.raises(AssertionError):
            check_walk(bad)


# The criterion under fairseq.


@pytest.fixture
def task() -> Any:
    fairseq_host.require_fairseq()
    return fairseq_host.task(WORDS)


def verifier_of(words: int, *, seed: int = 0, longest: int = 40) -> Transformer:
    config = TransformerConfig(
        src_vocab=words, tgt_vocab=words, max_source_len=longest, max_target_len=longest, **SMALL, **HEADS
    )
    torch.manual_seed(seed)
    return stir(Transformer(config)).eval()


def save(folder: Path, model: Any, vocab: Vocab, kind: str = "transformer") -> str:
    save_checkpoint(
        folder,
        architecture=kind,
        settings=asdict(model.config),
        tensors=model.state_dict(),
        source_vocab=vocab,
        target_vocab=vocab,
        card="# A verifier for tests\n",
    )
    return str(folder)


def criterion(task: Any, verifier: str | None, **options: Any) -> Any:
    """The criterion as fairseq builds it, with its options' defaults but for those given."""
    from fairseq.criterions import CRITERION_REGISTRY

    from nartk.tasks.drafter import DrafterConfig

    settings = {"sentence_avg": False, **options}
    return CRITERION_REGISTRY["nartk_drafter"].build_criterion(
        DrafterConfig(verifier=verifier, **settings), task
    )


def vocab_of(task: Any) -> Vocab:
    return Vocab(tuple(task.target_dictionary.symbols))


def batch(sources: list[list[int]], targets: list[list[int]]) -> dict[str, Any]:
    """A sample as fairseq's translation task makes it."""
    fed = {"src_tokens": padded(sources, left=True), "src_lengths": torch.tensor([*map(len, sources)])}
    fed["prev_output_tokens"] = padded([[EOS, *target[:-1]] for target in targets])
    return {"net_input": fed, "target": padded(targets), "ntokens": sum(map(len, targets))}


def sentences(seed: int, count: int = 8, longest: int = 12) -> list[list[int]]:
    rng = random.Random(seed)
    return [[*(rng.randrange(4, WORDS) for _ in range(rng.randint(0, longest))), EOS] for _ in range(count)]


def alone(model: Any, source: list[int], target: list[int]) -> Tensor:
    """An autoregressive model's logits [T,V] of one sentence."""
    with torch.no_grad():
        return model(torch.tensor([source]), torch.tensor([[EOS, *target[:-1]]]))[0]


def filled(core: Any, source: list[int], target: list[int], start: int) -> Tensor:
    """A blockwise drafter's logits [block,V] behind a prefix of one sentence."""
    canvas = torch.tensor([[*target[:start], *[MASK] * core.config.block]])
    with torch.no_grad():
        encoded, kept = core.encode(torch.tensor([source])), torch.ones_like(canvas, dtype=torch.bool)
        return core.logits(canvas, kept, encoded.memory, encoded.mask)[0, start:]


def expected_loss(logits: Tensor, theirs: Tensor, words: list[int], weight: float) -> float:
    words_lost = F.cross_entropy(logits, torch.tensor(words), reduction="sum").item()
    distance = TWINS["kl"](probabilities(logits, 2.0), probabilities(theirs, 2.0))
    return (1 - weight) * words_lost + weight * distance


@pytest.mark.parametrize("kind", ["transformer", "blockwise"])
def test_the_loss_is_that_of_each_sentence_alone(
    kind: str, task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifier = verifier_of(WORDS)
    made = criterion(
        task,
        save(tmp_path / "verifier", verifier, vocab_of(task)),
        label_smoothing=0.0,
        distil="kl",
        distil_weight=0.3,
        distil_temperature=2.0,
    )
    flags = ["--block=4"] if kind == "blockwise" else []
    plugin = fairseq_host.build(kind, *SMALL_FLAGS, *flags, words=WORDS)
    stir(plugin.core)
    sources, targets = sentences(1), sentences(2)
    drawn = torch.rand(len(targets), generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: drawn)
    loss, size, logged = made(plugin, batch(sources, targets))
    total, count = 0.0, 0
    for source, target, share in zip(sources, targets, drawn.tolist(), strict=True):
        theirs = alone(verifier, source, target)
        if kind == "transformer":
            ours, start = alone(plugin.core, source, target), 0
        else:
            start = int(share * len(target))
            ours = filled(plugin.core, source, target, start)[: len(target) - start]
        words = target[start : start + len(ours)]
        total += expected_loss(ours, theirs[start : start + len(ours)], words, 0.3)
        count += len(words)
    assert loss.item() == pytest.approx(total, rel=1e-5)
    assert size == logged["ntokens"] == count
    assert "passes" not in logged


@pytest.mark.parametrize("kind", ["transformer", "blockwise"])
def test_the_verifier_is_neither_trained_nor_saved(kind: str, task: Any, tmp_path: Path) -> None:
    made = criterion(task, save(tmp_path / "verifier", verifier_of(WORDS), vocab_of(task)))
    plugin = fairseq_host.build(kind, *SMALL_FLAGS, words=WORDS)

    def check() -> None:
        made.train()
        loss, _, _ = made(plugin, batch(sentences(1), sentences(2)))
        loss.backward()
        assert sum(p.grad is not None for p in plugin.parameters()) > 10
        (verifier,) = made._verifier
        assert not verifier.training
        assert not any(p.requires_grad or p.grad is not None for p in verifier.parameters())
        assert list(made.parameters()) == []
        assert made.state_dict() == {}

    check()
    made.registered = made._verifier[0]
    with pytest.raises(AssertionError):
        check()


def reduced(made: Any, *logs: dict[str, Any]) -> dict[str, float]:
    from fairseq import metrics

    with metrics.aggregate() as found:
        type(made).reduce_metrics(list(logs))
    return found.get_smoothed_values()


def lean(model: Any, freedom: float) -> Any:
    """Makes models prefer the same word everywhere; with no freedom they say nothing else."""
    with torch.no_grad():
        model.decoder.norm.weight.fill_(freedom)
        model.decoder.norm.bias.copy_(torch.linspace(-1, 1, model.config.d_model))
        draw = torch.Generator().manual_seed(5)
        model.output.weight.copy_(torch.randn(model.output.weight.shape, generator=draw))
    return model


def test_of_the_verifier_itself_every_word_stands(task: Any, tmp_path: Path) -> None:
    verifier = verifier_of(WORDS)
    made = criterion(
        task, save(tmp_path / "verifier", verifier, vocab_of(task)), distil_weight=1.0, accept_block=5
    ).eval()
    plugin = fairseq_host.build(
        "transformer", *SMALL_FLAGS, "--max-source-len=40", "--max-target-len=40", words=WORDS
    )
    plugin.core.load_state_dict(verifier.state_dict())
    plugin.eval()
    with torch.no_grad():
        loss, _, logged = made(plugin, batch([[4, EOS], [5, 4, EOS]], [[4, 5, EOS], [5, 4, 4, 5, 5, 4, EOS]]))
    assert abs(loss.item()) < 1e-4
    # Of 3 words 3, 2, 1; of 7 words 6, 6, 5, 4, 3, 2, 1: a block of 5 and one, or what is left.
    assert (int(logged["passes"]), int(logged["pass_tokens"])) == (10, 6 + 27)
    found = reduced(made, logged, logged)
    assert found["accept_len"] == 3.3
    assert abs(found["distil"]) < 1e-4


def test_of_a_blockwise_drafter_that_says_what_the_verifier_says_every_word_stands(
    task: Any, tmp_path: Path
) -> None:
    verifier = lean(verifier_of(WORDS), 0.0)
    made = criterion(task, save(tmp_path / "verifier", verifier, vocab_of(task)), distil_weight=1.0).eval()
    plugin = fairseq_host.build("blockwise", *SMALL_FLAGS, "--block=3", words=WORDS).eval()
    lean(plugin.core, 0.0)
    with torch.no_grad():
        loss, _, logged = made(plugin, batch([[4, EOS], [5, 4, EOS]], [[4, 5, EOS], [5, 4, 4, 5, 5, 4, EOS]]))
    assert abs(loss.item()) < 1e-4
    # Of 3 words from 0, 1, 2: 3, 2, 1. Of 7 words from 0, 1, 3, 5: a block of 3 and one thrice, then 2.
    assert (int(logged["passes"]), int(logged["pass_tokens"])) == (7, 6 + 14)
    assert reduced(made, logged)["accept_len"] == 2.857


@pytest.mark.parametrize("kind", ["transformer", "blockwise"])
def test_accept_len_is_that_of_each_sentence_alone(kind: str, task: Any, tmp_path: Path) -> None:
    verifier = lean(verifier_of(WORDS), 0.3)
    made = criterion(
        task, save(tmp_path / "verifier", verifier, vocab_of(task)), distil="none", accept_block=3
    ).eval()
    flags = ["--block=4"] if kind == "blockwise" else []
    plugin = fairseq_host.build(kind, *SMALL_FLAGS, *flags, words=WORDS).eval()
    lean(stir(plugin.core), 0.3)
    sources, targets = sentences(3, count=20), sentences(4, count=20)
    with torch.no_grad():
        _, _, logged = made(plugin, batch(sources, targets))
    passes = tokens = wrong = 0
    lengths: Counter[int] = Counter()
    for source, target in zip(sources, targets, strict=True):
        best = alone(verifier, source, target).argmax(-1).tolist()
        if kind == "transformer":
            said = alone(plugin.core, source, target).argmax(-1).tolist()
            agree = [a == b for a, b in zip(said, best, strict=True)]
            given = [walked(agree, start, 3) for start in range(len(target))]
            right = [a == b for a, b in zip(said, target, strict=True)]
            wrong += sum(walked(right, start, 3) for start in range(len(target)))
        else:
            given = []
            for start in sorted({len(target) * part // 4 for part in range(4)}):
                said = filled(plugin.core, source, target, start).argmax(-1).tolist()
                agree = [a == b for a, b in zip(said, best[start:], strict=False)]
                given.append(walked([*agree, False][: len(target) - start], 0, 4))
        passes, tokens = passes + len(given), tokens + sum(given)
        lengths.update(given)
    assert lengths.keys() >= {1, 2, 3, 4}
    assert (int(logged["passes"]), int(logged["pass_tokens"])) == (passes, tokens)
    assert wrong != tokens  # against the references
    assert reduced(made, logged)["accept_len"] == round(tokens / passes, 3)
    assert "distil" not in logged


def test_the_loss_of_edits_and_the_accuracy_are_those_of_the_cross_entropy(task: Any, tmp_path: Path) -> None:
    from fairseq.criterions import CRITERION_REGISTRY

    folder = save(tmp_path / "verifier", verifier_of(WORDS), vocab_of(task))
    made = criterion(task, folder, distil="none", edit_weight=3.0, report_accuracy=True, sentence_avg=True)
    plain = CRITERION_REGISTRY["nartk_cross_entropy"](task, True, 0.1, 3.0, False)
    plugin = fairseq_host.build("transformer", *SMALL_FLAGS, words=WORDS)
    sample = batch(sentences(1), sentences(2))
    loss, size, logged = made(plugin, sample)
    wanted, wanted_size, wanted_log = plain(plugin, sample)
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    assert logged["nll_loss"].item() == pytest.approx(wanted_log["nll_loss"].item(), rel=1e-6)
    assert size == wanted_size == 8
    said = plugin(**sample["net_input"])[0].argmax(-1)
    assert int(logged["n_correct"]) == int(((said == sample["target"]) & (sample["target"] != 1)).sum())


def test_another_dictionary_is_refused(task: Any, tmp_path: Path) -> None:
    words = list(vocab_of(task).words)
    swapped = Vocab((*words[:4], words[5], words[4]))
    folder = save(tmp_path / "swapped", verifier_of(WORDS), swapped)
    with pytest.raises(
        VocabMismatchError, match=r"source dictionary and that of the data differ at id 4: 'w1'"
    ):
        criterion(task, folder)
    longer = save(tmp_path / "longer", verifier_of(WORDS + 1), Vocab((*words, "more")))
    with pytest.raises(VocabMismatchError, match="has 7 words and that of the data has 6"):
        criterion(task, longer)


def fairseq_checkpoint(path: Path, data: Path, words: int, **settings: Any) -> str:
    """A verifier as fairseq saves it, whose training data were in `data`."""
    model = verifier_of(words)
    options = Namespace(arch="nartk_transformer_tiny", **{**asdict(model.config), **settings})
    tensors = {f"core.{name}": weight for name, weight in model.state_dict().items()}
    cfg = {"model": options, "task": {"data": str(data), "source_lang": "a", "target_lang": "b"}}
    fairseq_host.save(path, options, tensors, cfg=cfg)
    return str(path)


def test_a_checkpoint_of_fairseq_brings_the_dictionaries_of_its_data(task: Any, tmp_path: Path) -> None:
    for side in "ab":
        vocab_of(task).write(tmp_path / f"dict.{side}.txt")
    path = fairseq_checkpoint(tmp_path / "verifier.pt", tmp_path, WORDS)
    made = criterion(task, path)
    wanted, found = verifier_of(WORDS).state_dict(), made._verifier[0].state_dict()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    (tmp_path / "dict.b.txt").write_text("w1 1\nw0 1\n")
    with pytest.raises(VocabMismatchError, match=r"target dictionary and that of the data differ at id 4"):
        criterion(task, path)
    (tmp_path / "dict.b.txt").unlink()
    with pytest.raises(CheckpointError, match="nartk-convert it with --dict"):
        criterion(task, path)


def test_what_cannot_verify_or_draft_is_refused(task: Any, tmp_path: Path) -> None:
    drafter = fairseq_host.build("blockwise", *SMALL_FLAGS, words=WORDS)
    folder = save(tmp_path / "drafter", drafter.core, vocab_of(task), "blockwise")
    with pytest.raises(StrategyMismatchError, match="is a blockwise model, which verifies nothing"):
        criterion(task, folder)
    made = criterion(task, save(tmp_path / "verifier", verifier_of(WORDS, longest=8), vocab_of(task)))
    with pytest.raises(StrategyMismatchError, match="trains no ctc model"):
        made(fairseq_host.build("ctc", *SMALL_FLAGS, words=WORDS), batch([[4, EOS]], [[4, EOS]]))
    with pytest.raises(StrategyMismatchError, match="a target of 9 tokens, the verifier reads 8"):
        made(drafter, batch([[4, EOS]], [[4] * 8 + [EOS]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verifier": None}, "without --verifier"),
        ({"distil": "jsd"}, "--distil is 'jsd'. Fix: choose from kl, reverse-kl, tvd, tvd\\+\\+, none"),
        ({"distil_weight": 1.5}, r"--distil-weight is 1.5, not in \[0, 1\]"),
        ({"distil_weight": math.nan}, "--distil-weight is nan"),
        ({"distil_temperature": 0.0}, "--distil-temperature is 0.0, not above 0"),
        ({"accept_block": 0}, "--accept-block is 0"),
        ({"glancing": "half"}, "START:END@UPDATES"),
    ],
)
def test_options_out_of_their_bounds_are_refused(
    options: dict[str, Any], message: str, task: Any, tmp_path: Path
) -> None:
    folder = save(tmp_path / "verifier", verifier_of(WORDS), vocab_of(task))
    with pytest.raises(UsageError, match=message):
        criterion(task, **{"verifier": folder, **options})


@pytest.mark.parametrize(("distilled", "prefixes"), [(False, "references"), (True, "outputs of --distilled")])
def test_the_log_says_what_accept_len_is_measured_against(
    distilled: bool, prefixes: str, task: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save(tmp_path / "verifier", verifier_of(WORDS), vocab_of(task))
    given = copy.copy(task)
    given.cfg = Namespace(distilled_valid=distilled)
    with caplog.at_level("INFO", logger="nartk.tasks.drafter"):
        criterion(given, folder)
    assert caplog.messages == [
        f"accept_len: tokens a pass of the verifier {folder}, against its own words behind the {prefixes} of "
        "the validation data"
    ]


def test_help_tells_the_options_of_the_criterion_and_the_architecture(
    task: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(["data", "--arch", "nartk_blockwise", "--criterion", "nartk_drafter", "--help"]) == 0
    told = capsys.readouterr().out
    for option in ("--verifier", "--distil-temperature", "--accept-block", "--glancing-strategy", "--block"):
        assert f"\n  {option} " in told


@pytest.fixture(scope="module")
def binarised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fairseq_host.require_fairseq()
    folder = tmp_path_factory.mktemp("drafter")
    vocab = fairseq_host.binarised(folder, SENTENCES)
    save(folder / "verifier", verifier_of(len(vocab)), vocab)
    return folder


def trained(binarised: Path, folder: Path, kind: str, updates: int, *flags: str) -> list[dict[str, str]]:
    """Trains a drafter by nartk-train and returns what it logged so far."""
    base = (
        f"{binarised}/bin --user-dir nartk --task translation --arch nartk_{kind}_tiny "
        f"--criterion nartk_drafter --verifier {binarised}/verifier --distil-weight 1 "
        "--best-checkpoint-metric accept_len --maximize-best-checkpoint-metric "
        "--optimizer nartk_adamw --lr 0.01 --max-tokens 200 --cpu --seed 7 --no-epoch-checkpoints "
        f"--max-update {updates} --log-format json --save-dir {folder} --log-file {folder}/log"
    )
    folder.mkdir(exist_ok=True)
    own("train", *base.split(), *SMALL_FLAGS, *flags)
    return [json.loads(line) for line in (folder / "log").read_text().splitlines() if line[:2] == '{"']


def logged_by(name: str, logs: list[dict[str, str]]) -> list[float]:
    return [float(log[name]) for log in logs if name in log]


def test_a_drafter_is_trained_resumed_and_kept_by_accept_len(binarised: Path, tmp_path: Path) -> None:
    trained(binarised, tmp_path, "transformer", 8, "--distil", "kl")
    logs = trained(binarised, tmp_path, "transformer", 24, "--distil", "kl")
    distances = logged_by("train_distil", logs)
    assert distances[-1] < 0.8 * distances[0]
    lengths = logged_by("valid_accept_len", logs)
    assert all(1.0 <= length <= 6.0 for length in lengths)
    last, best = (read_checkpoint(tmp_path / f"checkpoint_{name}.pt") for name in ("last", "best"))
    assert last.updates == 24
    assert best.higher_is_better
    assert best.validation == max(lengths)
    plain = fairseq_host.build("transformer", *SMALL_FLAGS)
    assert last.tensors.keys() == plain.state_dict().keys()
    assert last.state["criterion"] is None


def test_a_blockwise_drafter_is_trained(binarised: Path, tmp_path: Path) -> None:
    flags = ["--distil", "tvd++", "--glancing", "0.5", "--block", "5", "--autocast", "bf16"]
    logs = trained(binarised, tmp_path, "blockwise", 24, *flags)
    distances = logged_by("train_distil", logs)
    assert distances[-1] < distances[0]
    assert all(0.0 < share < 1.0 for share in logged_by("train_shown", logs))
    assert len(logged_by("valid_accept_len", logs)) == len(distances)
    assert read_checkpoint(tmp_path / "checkpoint_last.pt").updates == 24
