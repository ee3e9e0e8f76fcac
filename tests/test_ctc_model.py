"""The CTC Transformer: its loss against all labellings, its scores against NumPy, serving and commands."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.labellings import all_outputs
from support.losses import losses_of
from support.parallel_models import engine_of
from support.random_transformers import shape_of
from support.scorers import CtcReference
from support.scripted import decode
from support.tiny import WORDS
from support.transformers_small import check_slope, padded, random_config, random_requests, stir, vocabulary
from torch import Tensor

from nartk import engine
from nartk.architectures.ctc import CtcConfig
from nartk.checkpoints.saving import save_checkpoint
from nartk.cli.decode import main
from nartk.decoders.ctc_beam import CtcBeam
from nartk.decoders.ctc_greedy import CtcGreedy
from nartk.errors import StrategyMismatchError, UsageError
from nartk.models.ctc import BLANK, CtcNat
from nartk.models.ctc_alignment import ctc_best_states, labels_of
from nartk.models.losses import Training
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import FrameScorer
from nartk.protocols.passes import Want
from nartk.vocab import Vocab

PAD, EOS = 1, 2
INPUTS = ("source", "memory")


def random_ctc(seed: int, **changes: Any) -> CtcNat:
    """A small random model of any shape, odd sizes among them, whose words depend on all frames."""
    rng = random.Random(seed)
    settings = {**shape_of(random_config(rng)), "decoder_input": INPUTS[seed % 2], "dropout": 0.0}
    settings["upsample"] = 1 + seed % 3
    torch.manual_seed(seed)
    return stir(CtcNat(CtcConfig(**{**settings, **changes})).eval())


def small(words: int = 7, **changes: Any) -> CtcConfig:
    settings: dict[str, Any] = {
        "src_vocab": words,
        "tgt_vocab": words,
        "d_model": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_ffn": 12,
        "decoder_ffn": 12,
        "encoder_heads": 2,
        "decoder_heads": 2,
        "max_source_len": 32,
        "max_target_len": 32,
        "dropout": 0.0,
    }
    return CtcConfig(**{**settings, **changes})


# Training


ROWS = [[4, 5, EOS], [6, EOS], [5, 5, EOS]]
TARGETS = [[4, 5, 5, EOS], [EOS], [5, EOS]]


@pytest.mark.parametrize("decoder_input", INPUTS)
def test_the_loss_sums_over_all_labellings(decoder_input: str, device: torch.device) -> None:
    torch.manual_seed(1)
    model = CtcNat(small(decoder_input=decoder_input)).double().eval().to(device)
    losses = losses_of(
        model, padded(ROWS).to(device), padded(TARGETS).to(device), training=Training(), update=0
    )
    total = 0.0
    for row, target in zip(ROWS, TARGETS, strict=True):
        log_probs = twin(model, row)
        total -= all_outputs(log_probs, BLANK, [1, 2, 3])[tuple(target[:-1])]
    assert losses.total.item() == pytest.approx(total, rel=1e-6)  # positions are fp32
    assert int(losses.tokens) == sum(map(len, TARGETS))
    assert losses.parts["words"].item() == pytest.approx(total / 7, rel=1e-6)
    assert int(losses.parts["dropped"]) == 0


def test_padding_on_either_side_is_nothing() -> None:
    torch.manual_seed(1)
    model = CtcNat(small()).double().eval()
    both = [
        losses_of(model, padded(ROWS, left=left), padded(TARGETS), training=Training(), update=0).total.item()
        for left in (False, True)
    ]
    alone = sum(
        losses_of(model, padded([row]), padded([target]), training=Training(), update=0).total.item()
        for row, target in zip(ROWS, TARGETS, strict=True)
    )
    assert both == pytest.approx([alone, alone], rel=1e-12)


def test_what_does_not_fit_counts_for_nothing(device: torch.device) -> None:
    torch.manual_seed(1)
    model = CtcNat(small()).double().to(device)
    found = []
    for rows, targets in (
        # Four frames say neither five words nor three equal ones, which need two blanks.
        ([[4, EOS], [4, EOS], [4, EOS]], [[4, 5, EOS], [4, 5, 6, 4, 5, EOS], [4, 4, 4, EOS]]),
        ([[4, EOS]], [[4, 5, EOS]]),
    ):
        model.zero_grad()
        losses = losses_of(
            model,
            padded(rows).to(device),
            padded(targets).to(device),
            training=Training(glancing="0.5"),
            update=0,
        )
        losses.total.backward()
        found.append((losses, [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    (many, by_many), (one, by_one) = found
    assert (int(many.parts["dropped"]), int(one.parts["dropped"])) == (2, 0)
    assert int(many.tokens) == int(one.tokens) == 3
    assert math.isfinite(many.total.item())
    assert all(torch.isfinite(gradient).all() for gradient in (*by_many, *by_one))


def test_nothing_that_fits_is_no_error() -> None:
    losses = losses_of(
        CtcNat(small(upsample=1)), padded([[EOS]]), padded([[4, 5, EOS]]), training=Training(), update=0
    )
    losses.total.backward()
    assert (losses.total.item(), int(losses.tokens)) == (0.0, 0)


def aligned_words(labels: Sequence[int], words: Sequence[int]) -> list[int]:
    """The word of each frame of a labelling, at a blank the one that comes next, else the last."""
    found, before, begun = [], BLANK, 0
    for label in labels:
        begun += label not in (BLANK, before)
        found.append(words[min(begun, len(words) - 1)] if label == BLANK else label)
        before = label
    return found


def test_glancing_shows_the_words_of_the_best_labelling(device: torch.device) -> None:
    assert aligned_words([0, 4, 4, 0, 5, 0, 5, 0], [4, 5, 5]) == [4, 4, 4, 5, 5, 5, 5, 5]
    torch.manual_seed(1)
    model = CtcNat(small()).double().to(device)
    fed: list[Tensor] = []
    place = model.embed_vectors

    def spy(x: Tensor) -> Tensor:
        fed.append(x)
        return place(x)

    model.embed_vectors = spy  # type: ignore[method-assign]
    src, target = padded(ROWS).to(device), padded(TARGETS).to(device)
    every = Training(glancing="1.0", glancing_strategy="fixed")
    losses = losses_of(model, src, target, training=every, update=0)
    losses.total.backward()
    lengths, counts = src.ne(PAD).sum(1) * 2, target.ne(PAD).sum(1) - 1
    first = torch.stack([F.pad(torch.tensor(twin(model, row)), (0, 0, 0, 6 - 2 * len(row))) for row in ROWS])
    states = ctc_best_states(first, target.cpu(), lengths.cpu(), counts.cpu(), blank=BLANK)
    labels = labels_of(states, target.cpu(), blank=BLANK)
    assert len(fed) == 2
    total = 0.0
    for row, (count, wanted) in enumerate(zip(lengths.tolist(), TARGETS, strict=True)):
        words = aligned_words(labels[row, :count].tolist(), wanted[:-1]) if len(wanted) > 1 else []
        given = model.decoder.embedding.words.weight[words] * 8**0.5
        torch.testing.assert_close(fed[1][row, : len(words)], given)
        assert torch.equal(fed[1][row, len(words) :], fed[0][row, len(words) :])
        # The loss is that of all frames.
        total -= all_outputs(twin(model, ROWS[row], words), BLANK, [1, 2, 3])[tuple(wanted[:-1])]
    assert losses.parts["shown"].item() == pytest.approx(12 / 16)  # all but those of a target without words
    assert losses.total.item() == pytest.approx(total, rel=1e-6)
    check_slope(model, lambda: losses_of(model, src, target, training=every, update=0).total)

    # As many as were wrong, anywhere; the others are fed as before.
    fed.clear()
    losses = losses_of(model, src, target, training=Training(glancing="1.0"), update=0)
    wrong = ((first.argmax(2) != labels) & (labels != -1)).sum(1) * (counts > 0).cpu()
    assert 0 < wrong.sum() < lengths.sum()
    assert losses.parts["shown"].item() == pytest.approx(wrong.sum().item() / lengths.sum().item())
    changed = (fed[0] != fed[1]).any(2).sum(1).cpu()
    assert (changed <= wrong).all()
    # None of it while validating.
    fed.clear()
    assert losses_of(model.eval(), src, target, training=every, update=0).parts["shown"].item() == 0.0
    assert len(fed) == 1


def test_gradients_are_difference_quotients() -> None:
    names = ("decoder.norm.bias", "decoder.layers.0.ffn.down.bias", "encoder.norm.bias")
    for seed in range(4):
        torch.manual_seed(seed)
        model = CtcNat(small(decoder_input=INPUTS[seed % 2])).double().eval()
        weights = dict(model.named_parameters())

        def loss(*values: Tensor, model: CtcNat = model, weights: Any = weights) -> Tensor:
            changed = {**weights, **dict(zip(names, values, strict=True))}
            return torch.func.functional_call(
                _Loss(model), {f"model.{name}": value for name, value in changed.items()}, ()
            )

        assert torch.autograd.gradcheck(loss, [weights[name] for name in names])


class _Loss(torch.nn.Module):
    def __init__(self, model: CtcNat) -> None:
        super().__init__()
        self.model = model

    def forward(self) -> Tensor:
        return losses_of(self.model, padded(ROWS), padded(TARGETS), training=Training(), update=0).total


@lru_cache(maxsize=2)
def copier(glancing: str) -> tuple[CtcNat, tuple[float, ...]]:
    """A model that copies up to 8 words, and its losses, nats a token, while it was trained."""
    size = len(Vocab.from_words(WORDS.split()))
    torch.manual_seed(0)
    model = CtcNat(small(size, d_model=32, encoder_ffn=32, decoder_ffn=32, max_source_len=64)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(0)
    place, losses = torch.arange(10), []
    for update in range(160):
        lengths = torch.randint(1, 9, (32, 1), generator=draw)
        rows = torch.randint(4, size, (32, 10), generator=draw)
        rows = rows.masked_fill(place == lengths, EOS).masked_fill(place > lengths, PAD)
        found = losses_of(model, rows, rows, training=Training(glancing=glancing), update=update)
        losses.append(found.parts["words"].item())
        optimizer.zero_grad()
        (found.total / found.tokens).backward()
        optimizer.step()
    return model.eval(), tuple(losses)


@pytest.mark.parametrize("glancing", ["0", "0.5:0.3@100"])
def test_a_copier_learns_to_copy(glancing: str) -> None:
    model, losses = copier(glancing)
    assert losses[0] > 1.5
    assert max(losses[-10:]) < 0.4
    scorer = CtcReference(model, Vocab.from_words(WORDS.split()))
    rng = random.Random(1)
    # No word twice in a row: a blank between needs more training.
    rows = [[*rng.sample(range(4, model.config.src_vocab), rng.randint(1, 8)), EOS] for _ in range(60)]
    requests = [Request(i, tuple(row), 40) for i, row in enumerate(rows)]
    for strategy in (CtcGreedy(), CtcBeam(beam_size=4, candidates=4)):
        found = decode(strategy, scorer, requests)
        right = sum(list(result.hypotheses[0].tokens) == row for result, row in zip(found, rows, strict=True))
        assert right >= 55, strategy


def test_configurations_that_cannot_be() -> None:
    for upsample in (0, 17):
        with pytest.raises(UsageError, match=f"`upsample` is {upsample}, not between 1 and 16"):
            small(upsample=upsample)
    with pytest.raises(UsageError, match=r"`decoder_input` is 'mask'\. Fix: choose from source, memory"):
        small(decoder_input="mask")


# Serving


def twin(model: CtcNat, row: Sequence[int], shown: Sequence[int] = ()) -> np.ndarray:
    """Log-probabilities [T,V] of a small pre-norm model for one sentence, in NumPy, from its weights.

    Args:
        shown: Words that the first frames are shown.
    """
    w = {name: value.detach().double().cpu().numpy() for name, value in model.state_dict().items()}
    config = model.config
    width, heads = config.d_model, config.decoder_heads

    def positions(count: int) -> np.ndarray:
        half = width // 2
        rate = np.exp(np.arange(half) * -(math.log(10000) / (half - 1)))
        angle = np.arange(2, count + 2)[:, None] * rate
        return np.concatenate([np.sin(angle), np.cos(angle)], 1)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, name: str) -> np.ndarray:
        out = []
        for head in range(heads):
            part = slice(head * width // heads, (head + 1) * width // heads)
            scores = q[:, part] @ k[:, part].T / math.sqrt(width // heads)
            share = np.exp(scores - scores.max(1, keepdims=True))
            out.append(share / share.sum(1, keepdims=True) @ v[:, part])
        return linear(np.concatenate(out, 1), f"{name}.out")

    def layer(x: np.ndarray, name: str, memory: np.ndarray | None) -> np.ndarray:
        y = norm(x, f"{name}.self_norm")
        q, k, v = np.split(linear(y, f"{name}.self_attention.qkv"), 3, 1)
        x = x + attend(q, k, v, f"{name}.self_attention")
        if memory is not None:
            q = linear(norm(x, f"{name}.cross_norm"), f"{name}.cross_attention.q")
            k, v = np.split(linear(memory, f"{name}.cross_attention.kv"), 2, 1)
            x = x + attend(q, k, v, f"{name}.cross_attention")
        y = linear(norm(x, f"{name}.ffn_norm"), f"{name}.ffn.up").clip(min=0)
        return x + linear(y, f"{name}.ffn.down")

    words = w["encoder_embedding.words.weight"][list(row)] * math.sqrt(width)
    x = words + positions(len(row))
    for i in range(config.encoder_layers):
        x = layer(x, f"encoder_layers.{i}", None)
    memory = norm(x, "encoder_norm")
    x = np.repeat(words if config.decoder_input == "source" else memory, config.upsample, 0)
    x[: len(shown)] = w["decoder_embedding.words.weight"][list(shown)] * math.sqrt(width)
    x = x + positions(len(x))
    for i in range(config.decoder_layers):
        x = layer(x, f"decoder_layers.{i}", memory)
    logits = norm(x, "decoder_norm") @ w["output.weight"].T
    return logits - np.logaddexp.reduce(logits, 1)[:, None]


@pytest.mark.parametrize("decoder_input", INPUTS)
def test_scores_equal_a_numpy_twin(decoder_input: str, device: torch.device) -> None:
    torch.manual_seed(2)
    model = CtcNat(small(11, decoder_input=decoder_input, upsample=3, decoder_layers=2))
    rng = random.Random(0)
    rows = [[*(rng.randrange(4, 11) for _ in range(size)), EOS] for size in (0, 5, 1, 17, 31)]
    check_frames(CtcReference(model, vocabulary(11), device=device), model, rows)


def check_frames(scorer: CtcReference, model: CtcNat, rows: Sequence[Sequence[int]]) -> None:
    memory = scorer.encode(rows)
    counts = scorer.frames(memory)
    assert counts.tolist() == [3 * len(row) for row in rows]
    logits = scorer.read_frames(memory, Want()).rows(range(counts.sum()))
    found = logits - np.logaddexp.reduce(logits, 1)[:, None]
    np.testing.assert_allclose(found, np.concatenate([twin(model, row) for row in rows]), atol=2e-5)


STRATEGIES = {
    "greedy": CtcGreedy(),
    "beam": CtcBeam(beam_size=5, candidates=4, nbest=5, word_bonus=0.5),
}


@pytest.mark.skipif(not engine.available(), reason="there is no engine here")
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())
@pytest.mark.parametrize("type", ["fp32", "bf16", "int8"])
def test_a_batch_equals_batches_of_one(type: str, strategy: Any) -> None:
    """Bit for bit: tokens, scores and those of each token."""
    outputs = set()
    for seed in range(6):
        model = random_ctc(seed)
        scorer = engine_of(model, type=type)
        requests = random_requests(random.Random(seed), 12, model.config.src_vocab, limits=(4, 60))
        many = decode(strategy, scorer, requests, batch_size=12)
        for result, request in zip(many, requests, strict=True):
            (alone,) = strategy.run(scorer, [request], batch_size=1)
            assert alone.hypotheses == result.hypotheses
            outputs |= {hypothesis.tokens for hypothesis in result.hypotheses}
            assert all(len(h.tokens) <= request.max_len for h in result.hypotheses)
    assert len(outputs) > 40


def test_scores_are_sums_and_outputs_end(device: torch.device) -> None:
    model = random_ctc(2)
    scorer = CtcReference(model, vocabulary(model.config.tgt_vocab), device=device)
    found = 0
    for result in decode(CtcGreedy(), scorer, [Request(i, (4, 5, *[6] * i, EOS), 99) for i in range(6)]):
        (best,) = result.hypotheses
        assert best.tokens[-1] == EOS
        assert BLANK not in best.tokens
        assert best.positional_scores is not None
        assert len(best.positional_scores) == len(best.tokens)
        assert best.score == pytest.approx(sum(best.positional_scores), rel=1e-4)
        found += len(best.tokens)
    assert found > 6


def test_the_longest_source_has_all_its_frames(device: torch.device) -> None:
    model = CtcNat(small(11, upsample=3, max_source_len=40, max_target_len=9)).eval()
    row = [4, 5, 6, 7] * 9 + [8, 9, 10, EOS]
    check_frames(CtcReference(model, vocabulary(11), device=device), model, [row])


def test_a_model_without_blanks_is_refused() -> None:
    scorer = CtcReference(CtcNat(small(11)), vocabulary(11))
    scorer.blank = None
    for strategy in (CtcGreedy(), CtcBeam()):
        with pytest.raises(StrategyMismatchError, match="frames may be blank, this model has no blank"):
            decode(strategy, scorer, [Request(0, (4, EOS), 9)])
    assert isinstance(scorer, FrameScorer)


# Commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ctc")
    model, _ = copier("0.5:0.3@100")
    vocab = Vocab.from_words(WORDS.split())
    save_checkpoint(
        folder,
        architecture="ctc",
        settings=asdict(model.config),
        tensors=model.state_dict(),
        source_vocab=vocab,
        target_vocab=vocab,
        tokenizer=None,
        card="# Copies\n",
    )
    return folder


def test_it_decodes_without_torch(folder: Path) -> None:
    if not engine.available():
        pytest.skip("there is no engine here")
    code = f"""
import sys
sys.modules["torch"] = None  # every import of it fails
import nartk
print(nartk.load({str(folder)!r}).decode(["she sees the big cat ."], strategy="ctc-greedy")[0].text)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "she sees the big cat .\n"


LINES = (b"she sees the big cat .", b"", b"he \xff goes", b"a b\x00c", b"the " * 70, b"he goes home !")


@pytest.mark.parametrize("strategy", ["ctc-greedy", "ctc-beam"])
def test_bad_lines_cost_themselves_alone(
    strategy: str, folder: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"\n".join(LINES))
    assert main([str(folder), str(path), "--strategy", strategy, "--quiet"]) == 3
    out, err = capsysbinary.readouterr()
    assert out.split(b"\n") == [LINES[0], b"", b"", b"", b"", LINES[5], b""]
    codes = [line.split(b"[")[1][:4] for line in err.splitlines() if b"error[" in line]
    assert codes == [b"E202", b"E202", b"E203"]


def test_a_language_model_and_n_best(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, lm = tmp_path / "in.txt", tmp_path / "lm.arpa"
    path.write_text("he goes home !\n")
    lm.write_text(
        "\\data\\\nngram 1=5\n\n\\1-grams:\n-1\t<unk>\n-1\t</s>\n-0.5\the\n-0.01\tgoes\n-9\thome\n\\end\\\n"
    )
    base = [str(folder), str(path), "--strategy", "ctc-beam", "--quiet"]
    assert main(base) == 0
    assert capsys.readouterr().out == "he goes home !\n"
    # A word that the language model will not have is left out.
    assert main([*base, "--lm", str(lm), "--lm-weight", "3"]) == 0
    assert "home" not in capsys.readouterr().out
    assert main([*base, "--nbest", "3"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert lines[0][2] == "he goes home !"
    scores = [float(line[1]) for line in lines]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 3

    for text, message in (
        (None, "error[E201 InputFile]"),
        ("\\data\\\nngram 1=x\n", f"error[E204 InputFormat] {lm}:2: expected 'ngram 1=COUNT'"),
    ):
        lm.unlink() if text is None else lm.write_text(text)
        assert main([*base, "--lm", str(lm)]) != 0
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"nartk: {message}")
        assert err.count("\n") == 1


def test_what_does_not_fit_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder), "/dev/null", "--strategy", "iad", "--quiet"]) == 2
    assert "choose from ctc-beam, ctc-greedy" in capsys.readouterr().err
    flags = ["--strategy", "ctc-beam", "--nbest", "9", "--beam-size", "4", "--quiet"]
    assert main([str(folder), "/dev/null", *flags]) == 2
    assert "--nbest is 9, above --beam-size 4. Fix: raise --beam-size" in capsys.readouterr().err
