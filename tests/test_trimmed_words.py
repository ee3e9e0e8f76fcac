"""Drafters that pick among some words: the others are forbidden, probabilities are over those that are left.

The oracles: the model's own scores with the other words forbidden; a model whose matrices have only the rows
of the listed words; the distribution of outputs by enumeration; words counted in the text that was written.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from support import tiny
from support.distributions import every_output, fit
from support.engine_models import TYPES, bits_of, decode, on_engine, random_network
from support.light_drafters import light_on_engine, random_light_config
from support.light_drafters import random_network as random_light_network
from support.random_transformers import random_config as random_verifier
from support.random_transformers import random_model as verifier_of
from support.real_passes import RealPasses
from support.scorers import TransformerReference
from support.scripted_passes import EOS
from support.small_drafters import shaken
from support.small_passes import drafting
from support.transformers_small import random_config, random_model, random_requests, vocabulary

import nartk
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.saving import save_checkpoint
from nartk.checkpoints.word_counts import most_frequent, read_counts, write_counts
from nartk.cli.convert import main as convert
from nartk.cli.distill import main as distill
from nartk.decoders.drafters.small_model import SmallModel
from nartk.engine import available
from nartk.errors import CheckpointError, InputFileError, UsageError
from nartk.models.transformer import Transformer
from nartk.protocols.chains import DraftsChains
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import ROOT, Draw, Pass, Ragged, Want
from nartk.protocols.trimmed import TrimmedWords
from nartk.vocab import Vocab

needs_engine = pytest.mark.skipif(not available(), reason="there is no engine here")
SPECIAL = 4


def some_of(rng: random.Random, words: int) -> Any:
    """A list of words, the special ones among them."""
    chosen = rng.sample(range(SPECIAL, words), rng.randint(2, words - SPECIAL - 1))
    return np.array([*range(SPECIAL), *sorted(chosen)], np.int32)


def read(scorer: Any, tokens: list[int], want: Want, run: Callable[..., Any] | None = None) -> Any:
    """Scores of a chain behind a source of two words; `rows` of all are `logits`."""
    memory, contexts = scorer.encode([(SPECIAL, EOS)]), scorer.open(1)
    count = len(tokens)
    columns = [
        tokens,
        [*range(count)],
        [int(memory[0])] * count,
        [int(contexts[0])] * count,
        [ROOT, *range(count - 1)],
    ]
    scores = (run or scorer.run)(Pass(*np.array(columns, np.int32)), want)
    logits = scores.rows(range(len(scores.best)))
    scorer.commit(scores, [])
    scorer.close(contexts)
    scorer.free(memory)
    return scores, logits


# On the engine: P over the listed words.


@needs_engine
@pytest.mark.parametrize("type", TYPES)
def test_it_is_the_model_with_all_other_words_forbidden(type: str) -> None:
    differs = 0
    for number in range(12):
        rng = random.Random(number)
        scorer = on_engine(random_network(rng), type=type)
        words = len(scorer.vocab)
        listed = some_of(rng, words)
        tokens = [EOS, *(rng.randrange(SPECIAL, words) for _ in range(5))]
        others = sorted({*range(words)} - {*listed.tolist()})
        whole, logits = read(scorer, tokens, Want())
        forbidden, _ = read(scorer, tokens, Want(banned=Ragged.of([others] * len(tokens))))
        found, some = read(TrimmedWords(scorer, listed), tokens, Want())
        assert found.best.tolist() == forbidden.best.tolist()
        assert some[:, listed].tobytes() == logits[:, listed].tobytes()
        assert np.isneginf(some[:, others]).all()
        wide = logits[:, listed].astype(np.float64)
        log_probs = wide.max(1) - np.logaddexp.reduce(wide, 1)
        assert np.abs(found.log_probs - log_probs).max() < 1e-5
        assert (found.log_probs > forbidden.log_probs).all()  # which are over all words
        differs += sum(found.best != whole.best)
    assert differs > 10


def cut(model: Transformer, listed: Any) -> Transformer:
    """The model without the rows of other words: its word i is word listed[i]."""
    small = Transformer(replace(model.config, tgt_vocab=len(listed))).eval()
    own = {
        name: weight[listed] if name.startswith(("decoder_embedding.words", "output.")) else weight
        for name, weight in model.state_dict().items()
    }
    small.load_state_dict(own)
    return small.requires_grad_(False)


@needs_engine
@pytest.mark.parametrize("type", TYPES)
def test_probabilities_and_draws_are_those_of_a_model_of_these_words(type: str) -> None:
    """To the last bit: words, log-probabilities, ranking, margins and draws."""
    drawn = 0
    for number in range(12):
        rng = random.Random(number)
        config = replace(random_config(rng), share_embeddings="none")
        model = random_model(config, number)
        listed = some_of(rng, config.tgt_vocab)
        tokens = [EOS, *rng.choices(listed[SPECIAL:].tolist(), k=5)]
        uniforms = np.array([rng.random() for _ in tokens])
        want = Want(top=3, margin=True, draw=Draw(uniforms, 0.8, top_p=0.9))
        found, _ = read(TrimmedWords(on_engine(model, type=type), listed), tokens, want)
        mapped = np.searchsorted(listed, tokens).tolist()
        wanted, _ = read(on_engine(cut(model, listed), type=type), mapped, want)
        assert found.best.tolist() == listed[wanted.best].tolist()
        assert found.top.tolist() == np.where(wanted.top < 0, -1, listed[wanted.top]).tolist()
        assert found.drawn.tolist() == listed[wanted.drawn].tolist()
        for name in ("log_probs", "top_log_probs", "margins", "drawn_log_probs"):
            assert getattr(found, name).tobytes() == getattr(wanted, name).tobytes(), name
        drawn += sum(found.drawn != found.best)
    assert drawn > 10


def test_the_reference_forbids_them_too() -> None:
    for number in range(6):
        rng = random.Random(number)
        config = random_config(rng)
        model = random_model(config, number)
        listed = some_of(rng, config.tgt_vocab)
        reference = TransformerReference(model, vocabulary(config.tgt_vocab))
        tokens = [EOS, *(rng.randrange(SPECIAL, config.tgt_vocab) for _ in range(5))]
        _, logits = read(reference, tokens, Want())
        trimmed = TrimmedWords(reference, listed)
        assert not isinstance(trimmed, DraftsChains)
        found, _ = read(trimmed, tokens, Want())
        wide = logits[:, listed].astype(np.float64)
        assert found.best.tolist() == listed[wide.argmax(1)].tolist()
        assert np.abs(found.log_probs - (wide.max(1) - np.logaddexp.reduce(wide, 1))).max() < 1e-5
        hidden, _ = read(reference, tokens, Want(hidden=True))
        again = trimmed.words(hidden.hidden, Want())
        assert again.best.tolist() == found.best.tolist()


@needs_engine
@pytest.mark.parametrize("type", TYPES)
def test_drafts_in_one_call_are_those_step_by_step(type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of drafters with an encoder and without; outputs stay greedy search's, bit for bit."""
    notes: list[Any] = []

    class Noting(SmallModel):
        def draft(self, rows: Any, budgets: Any) -> Any:
            found = super().draft(rows, budgets)
            notes.extend((row.request.index, each) for row, each in zip(rows, found, strict=True))
            return found

    class Stepwise(Noting):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            assert self._chains is not None
            self._chains = None

    outside = 0
    for number in range(6):
        rng = random.Random(number)
        if number % 2:
            model = random_network(rng)
            scorer, drafter = on_engine(model, type=type), on_engine(shaken(model, 1, 0.02), type=type)
            sources = None
        else:
            words = rng.randint(12, 40)
            config = random_verifier(
                rng, src_vocab=words, tgt_vocab=words, max_source_len=30, max_target_len=30
            )
            scorer = on_engine(verifier_of(config, number), type=type)
            network = random_light_network(random_light_config(rng, config), number)
            drafter = light_on_engine(network, type=type)
            sources = 9
        listed = some_of(rng, len(scorer.vocab))
        trimmed = TrimmedWords(drafter, listed)
        requests = random_requests(rng, 6, len(scorer.vocab), limits=[3, 9, 20])
        if sources is not None:
            requests = [replace(each, source=each.source[-sources:]) for each in requests]
        seen = []
        for kind, size in [(Stepwise, 1), (Noting, 1), (Noting, 4), (Stepwise, 4)]:
            monkeypatch.setattr("nartk.decoders.speculative.SmallModel", kind)
            notes.clear()
            made = drafting("speculative", trimmed, block_size=4, stop_below=0.1, adaptive=False)
            results = bits_of(decode(made, scorer, requests, batch_size=size))
            drafts = [(index, each.tokens, each.log_probs, each.passes) for index, each in notes]
            seen.append((sorted(drafts, key=lambda item: item[0]), results))
        assert all(each == seen[0] for each in seen[1:])
        assert trimmed.cells_in_use == 0
        drafted = {word for _, tokens, *_ in seen[0][0] for word in tokens}
        assert drafted <= {*listed.tolist()}
        outputs = {word for tokens, _ in seen[0][1] for word in tokens}
        outside += len(outputs - {*listed.tolist()})
    assert outside > 0  # the verifier writes other words


# Sampling: a draft is drawn from the listed words' distribution, by which it is accepted.


def misfit(drafter: Any, table: RealPasses, count: int = 10_000) -> float:
    """The chance of a right sampler's draws to be so far from the table's distribution."""
    request = Request(0, (4, 4, EOS), 3)
    made = drafting("speculative", drafter, temperature=1.0, block_size=2, nbest=count)
    wanted = every_output(table.log_probs, request, made)
    (result,) = made.run(table, [request], batch_size=2_000)
    assert result.drafted > 0
    return fit([each.tokens for each in result.hypotheses], wanted)


class OverAll(TrimmedWords):
    """Known to be wrong: draws of the listed words, whose probabilities are those among all words."""

    def run(self, work: Any, want: Any) -> Any:
        others = sorted({*range(len(self.vocab))} - {*self.listed.tolist()})
        count = len(work.tokens if want.only is None else want.only)
        return self.scorer.run(work, replace(want, banned=Ragged.of([others] * count)))


def test_draws_have_the_models_distribution() -> None:
    table, drafter = (RealPasses(6, seed=seed) for seed in (7, 9))
    listed = np.array([2, 4], np.int32)
    assert misfit(TrimmedWords(drafter, listed), table) > 1e-5


def test_probabilities_over_all_words_would_show() -> None:
    table, drafter = (RealPasses(6, seed=seed) for seed in (7, 9))
    assert misfit(OverAll(drafter, np.array([2, 4], np.int32)), table) < 1e-5


# Counts.


def test_the_most_frequent_words_by_hand(tmp_path: Path) -> None:
    vocab = replace(Vocab.from_words(["a", "b", "c", "d", "e"]), also_eos=(3,))
    write_counts(tmp_path / "counts.json", {"b": 2, "zebra": 50, "d": 9, "c": 2, "</s>": 1, "a": 1})
    assert [*json.loads((tmp_path / "counts.json").read_text())] == ["zebra", "d", "b", "c", "</s>", "a"]
    counts = read_counts(tmp_path / "counts.json", vocab)
    assert counts == {5: 2, 7: 9, 6: 2, 2: 1, 4: 1}
    found = {most: most_frequent(counts, most, vocab).tolist() for most in (1, 2, 3, 4, 5, 100)}
    # What ends an output is always there, and of b and c the lowest id comes first.
    assert found == {
        1: [2, 3], 2: [2, 3], 3: [2, 3, 7], 4: [2, 3, 5, 7], 5: [2, 3, 5, 6, 7], 100: [2, 3, 4, 5, 6, 7]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a JSON object"),
        ("{", "not JSON"),
        ('{"a": 0}', "the count of 'a' is 0"),
        ('{"a": 1.5}', "the count of 'a' is 1.5"),
        ('{"a": true}', "the count of 'a' is True"),
        ('{"a": "3"}', "the count of 'a' is '3'"),
        ('{"zebra": 3}', "none of the words is the model's"),
        ("{}", "none of the words is the model's"),
    ],
)
def test_files_that_are_none_of_counts_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "counts.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_counts(tmp_path / "counts.json", Vocab.from_words(["a", "b"]))


@needs_engine
def test_fewer_words_are_predicted_to_take_less() -> None:
    wide = {"d_model": 128, "encoder_heads": 2, "decoder_heads": 2, "decoder_layers": 2}
    config = replace(random_config(random.Random(1)), tgt_vocab=4000, src_vocab=4000, **wide)
    scorer: Any = on_engine(random_model(config, 1))
    assert scorer.costs_of_words(4000) == scorer.costs == scorer.costs_of_words(10**6)
    few = TrimmedWords(scorer, np.arange(100, dtype=np.int32)).costs
    assert few == scorer.costs_of_words(100)
    assert (few.tokens, few.encoding) == (scorer.costs.tokens, scorer.costs.encoding)
    assert all(a < b for a, b in zip(few.times, scorer.costs.times, strict=True))
    scorer.costs = replace(scorer.costs, times=tuple(2 * each for each in scorer.costs.times))  # measured
    assert scorer.costs_of_words(100).times == pytest.approx([2 * each for each in few.times])


# Folders and commands.

LINES = tiny.SENTENCES


@pytest.fixture
def verifier(tmp_path: Path) -> Path:
    return tiny.random_model(tmp_path / "model")


def counted(verifier: Path, tmp_path: Path) -> Path:
    source = tmp_path / "in.en"
    source.write_text("".join(f"{line}\n" for line in LINES))
    folder = tmp_path / "distilled"
    flags = ["--strategy", "greedy", "--target-lang", "de", "--output", str(folder), "--quiet"]
    assert distill([str(verifier), str(source), *flags]) == 0
    return folder


def drafter_of(verifier: Path, folder: Path, counts: Path | None) -> Path:
    checkpoint = load_checkpoint(verifier)
    config = random_light_config(
        random.Random(3),
        nartk.load(verifier).config,
        drafts_for=checkpoint.fingerprint,
        share_embeddings="decoder",
    )
    save_checkpoint(
        folder,
        architecture="light_drafter",
        settings=asdict(config),
        tensors=random_light_network(config, 3).state_dict(),
        source_vocab=None,
        target_vocab=checkpoint.target_vocab,
        input={"name": "encoded"},
        others=None if counts is None else {"word_counts.json": counts},
        card="# A drafter for tests\n",
    )
    return folder


def test_distilled_words_are_counted(verifier: Path, tmp_path: Path) -> None:
    folder = counted(verifier, tmp_path)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(verifier / "spm.model"))
    lines = (folder / "train.de").read_text().splitlines()
    words = Counter(piece for line in lines for piece in pieces.encode(line, out_type=str))
    assert len(words) > 3
    found = json.loads((folder / "word_counts.json").read_text())
    assert found == words
    assert [*found.values()] == sorted(words.values(), reverse=True)


@pytest.mark.parametrize("strategy", ["speculative", "bild"])
def test_a_folder_with_counts_drafts_its_most_frequent_words(
    verifier: Path, tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted: set[int] = set()

    class Noting(SmallModel):
        def draft(self, rows: Any, budgets: Any) -> Any:
            found = super().draft(rows, budgets)
            drafted.update(token for each in found for token in each.tokens)
            return found

    monkeypatch.setattr(f"nartk.decoders.{strategy}.SmallModel", Noting)
    counts = counted(verifier, tmp_path) / "word_counts.json"
    drafter_of(verifier, verifier / "drafter", counts)
    model = nartk.load(verifier)
    options = {"adaptive": False} if strategy == "speculative" else {"fallback": 0.0, "rollback": 0.0}
    greedy = [each.tokens for each in model.decode(LINES, "greedy")]
    vocab, seen = load_checkpoint(verifier).target_vocab, {}
    for most in (0, 3):
        drafted.clear()
        found = model.decode(LINES, strategy, drafter_words=most, **options)
        assert [each.tokens for each in found] == greedy
        seen[most] = {*drafted}
    frequent = [*json.loads(counts.read_text())][:2]
    assert seen[3] <= {*vocab.ids(frequent), vocab.eos}
    assert len(seen[0]) > 3


def test_without_counts_it_is_refused_by_name(verifier: Path, tmp_path: Path) -> None:
    drafter = drafter_of(verifier, tmp_path / "light", None)
    model = nartk.load(verifier)
    message = r"drafter_words=5, but the folder of drafter '.*' has no word_counts\.json"
    with pytest.raises(UsageError, match=message):
        model.decode(LINES, "speculative", drafter=str(drafter), drafter_words=5)
    with pytest.raises(UsageError, match="drafter_words of 'speculative' is -1"):
        model.decode(LINES, "speculative", drafter=str(drafter), drafter_words=-1)


@needs_engine
def test_converted_folders_carry_counts(
    verifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = counted(verifier, tmp_path) / "word_counts.json"
    drafter = drafter_of(verifier, tmp_path / "light", counts)
    folder = tmp_path / "int8"
    assert convert([str(drafter), "--quantize", "int8", "--output", str(folder)]) == 0
    assert (folder / "word_counts.json").read_bytes() == counts.read_bytes()
    bare = drafter_of(verifier, tmp_path / "bare", None)
    flags = [str(bare), "--quantize", "int8", "--word-counts", str(counts)]
    assert convert([*flags, "--output", str(tmp_path / "added")]) == 0
    assert (tmp_path / "added" / "word_counts.json").read_bytes() == counts.read_bytes()
    (found,) = nartk.load(verifier).decode(["a dog"], "speculative", drafter=str(folder), drafter_words=4)
    assert found.tokens == nartk.load(verifier).decode(["a dog"], "greedy")[0].tokens
    # Changed behind it, it is refused.
    (folder / "word_counts.json").write_text('{"a": 1}')
    with pytest.raises(CheckpointError, match="has been changed"):
        nartk.load(folder)


def test_conversions_that_cannot_carry_counts_are_refused(
    verifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = [str(verifier), "--output", str(tmp_path / "out"), "--word-counts"]
    assert (
        convert([*flags, str(tmp_path / "none.json"), "--quantize", "int8"]) == InputFileError("").exit_code
    )
    assert "no such file" in capsys.readouterr().err
    (tmp_path / "counts.json").write_text('{"zebra": 1}')
    assert convert([*flags, str(tmp_path / "counts.json"), "--to", "hf"]) == UsageError("").exit_code
    assert "--word-counts with --to" in capsys.readouterr().err
    assert (
        convert([*flags, str(tmp_path / "counts.json"), "--quantize", "int8"])
        == CheckpointError("").exit_code
    )
    assert "none of the words is the model's" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
