"""The examples of CONTRIBUTING.md, executed as they stand there."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny
from support.scorers import TransformerReference

import nartk
from nartk import architectures
from nartk.checkpoints.saving import save_checkpoint
from nartk.cli import decode, score
from nartk.engine import available
from nartk.protocols.guarantee import Guarantee
from nartk.protocols.passes import ROOT, Pass, Want
from nartk.registry import DECODERS, DRAFTERS, METRICS, strategies
from nartk.vocab import Vocab

DOCUMENT = Path(__file__).parent.parent / "CONTRIBUTING.md"
TEXT = DOCUMENT.read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```$", TEXT, re.M | re.S)
SENTENCES = [
    "She go to school yesterday .",
    "I am agree with you becuase it is true .",
    "He have many informations about the the city .",
    "This is fine .",
]


@pytest.fixture(autouse=True)
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of the examples, to be imported; what they declare is gone afterwards."""
    for name, code in EXAMPLES:
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    for registry in (DECODERS, DRAFTERS, METRICS):
        registry.all()
        monkeypatch.setattr(registry, "classes", dict(registry.classes))
    monkeypatch.setattr(architectures, "_DECLARED", architectures.architectures())


def test_every_example_is_executed() -> None:
    names = ["same_position", "covering", "exact_match", "looped", "looped_network"]
    assert [name for name, _ in EXAMPLES] == names
    assert TEXT.count("```python\n") == len(EXAMPLES)


@pytest.mark.parametrize("batch_size", [1, 2, 32])
@pytest.mark.parametrize("options", [{}, {"adaptive": False}, {"adaptive": False, "max_draft": 2}])
def test_the_drafter_drafts_and_the_output_is_greedy_searchs(
    options: dict[str, int], batch_size: int
) -> None:
    import_module("same_position")
    model = nartk.load("gec-en", pretokenized=True)
    assert strategies()["same-position"].guarantee is Guarantee.IDENTICAL
    wanted = model.run(SENTENCES, "greedy", batch_size=batch_size)
    found = model.run(SENTENCES, "same-position", options, batch_size=batch_size)
    for ours, theirs in zip(found.hypotheses, wanted.hypotheses, strict=True):
        assert ours[0].tokens == theirs[0].tokens
        # Torch, in place of an engine that is not built, adds in another order in passes of another shape.
        rounding = 0 if available() else 1e-5
        assert ours[0].positional_scores == pytest.approx(theirs[0].positional_scores, rel=0, abs=rounding)
    if options:
        assert 0 < found.stats.accepted < found.stats.drafted
        assert found.stats.passes < wanted.stats.passes
    assert model.passes.cells_in_use == 0


def test_the_drafter_is_one_of_those_that_union_takes() -> None:
    import_module("same_position")
    model = nartk.load("gec-en", pretokenized=True)
    options = {"drafters": "same-position,ngram", "adaptive": False}
    union = model.run(SENTENCES, "union", options)
    assert [each[0].tokens for each in union.hypotheses] == [
        each.tokens for each in model.decode(SENTENCES, "greedy")
    ]
    assert union.stats.accepted > 0


def test_the_drafters_flags_and_bounds_are_its_declaration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import_module("same_position")
    assert decode.main(["--strategy", "same-position", "--help"]) == 0
    assert "longest draft, tokens (default: 5)" in capsys.readouterr().out
    assert decode.main(["gec-en", "--strategy", "same-position", "--max-draft", "0"]) == 2
    assert "--max-draft of 'same-position' is 0. Fix: give a value at least 1" in capsys.readouterr().err


def test_the_added_score_is_what_is_counted_by_hand() -> None:
    import_module("covering")
    model = nartk.load("gec-en", pretokenized=True, guard=False)  # which reads the lines as they are
    options = {"nbest": 5, "length_penalty": 0.0}
    sizes: dict[int, list[Any]] = {1: [], 32: []}
    for size, found in sizes.items():
        for coverage in (0.0, 3.0):
            run = model.run(SENTENCES, "covering", {**options, "coverage": coverage}, batch_size=size)
            found.append(run.hypotheses)
    assert sizes[1] == sizes[32]
    plain, covering = sizes[1]
    assert plain == model.run(SENTENCES, "beam", options).hypotheses
    assert [each[0].tokens for each in plain] != [each[0].tokens for each in covering]
    for line, outputs in zip(SENTENCES, covering, strict=True):
        source = {*model.passes.source_to_target[[*model.encode(line)]].tolist()} - {-1}
        for each in outputs:
            wanted = sum(each.positional_scores) + 3.0 * len(source & {*each.tokens})
            assert each.score == pytest.approx(wanted, abs=1e-4)


def test_the_metric_gives_what_is_counted_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of four outputs the first and the third are a reference; without case the second is, too."""
    import_module("exact_match")
    (tmp_path / "out").write_text("a b\nC d\ne\nf\n")
    (tmp_path / "ref0").write_text("a b\nc d\nx\ny\n")
    (tmp_path / "ref1").write_text("z\nc\ne\ng\n")
    command = ["exact-match", str(tmp_path / "out"), "--json", "--ref"]
    command += [str(tmp_path / "ref0"), str(tmp_path / "ref1")]
    found = {}
    for flags in ((), ("--lowercase",)):
        assert score.main([*command, *flags]) == 0
        found[flags] = json.loads(capsys.readouterr().out)
    assert (found[()]["score"], found[()]["right"], found[()]["sentences"]) == (2 / 4, 2, 4)
    assert found["--lowercase",]["score"] == 3 / 4
    bounds = found[()]["confidence"]
    assert 0 <= bounds["low"] < 0.5 < bounds["high"] <= 1


def test_the_metric_scores_resamples_as_they_are_weighted(tmp_path: Path) -> None:
    import_module("exact_match")
    (tmp_path / "out").write_text("a\nb\nc\n")
    (tmp_path / "ref").write_text("a\nx\nc\n")
    (result,) = score.scorer_of("exact-match", references=[str(tmp_path / "ref")], source="")(
        str(tmp_path / "out")
    )
    weights = np.array([[3, 0, 0], [0, 3, 0], [1, 1, 1], [1, 2, 0]], float)
    assert result.resample(weights).tolist() == pytest.approx([1, 0, 2 / 3, 1 / 3])


def chain(tokens: list[int], memory: int, context: int) -> Pass:
    """A pass of tokens that follow one another from the beginning."""
    places = np.arange(len(tokens), dtype=np.int32)
    return Pass(
        np.array(tokens, np.int32),
        places,
        np.full_like(places, memory),
        np.full_like(places, context),
        np.where(places > 0, places - 1, ROOT).astype(np.int32),
    )


def looped_model(folder: Path) -> tuple[Any, Vocab]:
    """A random one of odd sizes, written to a folder."""
    import_module("looped")
    torch.manual_seed(3)
    words = tiny.WORDS.split()
    vocab = Vocab.from_words(words)
    found = architectures.architecture("looped")
    config = found.config(
        src_vocab=len(vocab), tgt_vocab=len(vocab), pad=vocab.pad, d_model=14, encoder_layers=1,
        decoder_layers=3, encoder_ffn=9, decoder_ffn=11, encoder_heads=2, decoder_heads=1,
        max_source_len=30, max_target_len=30,
    )  # fmt: skip
    network = found.network(config).eval()
    settings = {"architecture": "looped", "settings": asdict(config), "card": "# Random\n"}
    save_checkpoint(folder, tensors=network.state_dict(), source_vocab=vocab, target_vocab=vocab, **settings)
    return network, vocab


def test_the_architectures_weights_are_its_networks(tmp_path: Path) -> None:
    network, _ = looped_model(tmp_path / "model")
    weights = network.state_dict(keep_vars=True)
    config = network.config
    assert config.weight_shapes() == {name: tuple(weight.shape) for name, weight in weights.items()}
    first: dict[int, str] = {}
    shared = {name: first.setdefault(id(weights[name]), name) for name in config.weight_shapes()}
    assert config.shared_weights() == {name: other for name, other in shared.items() if name != other}


@pytest.mark.skipif(not available(), reason="there is no engine here")
def test_the_architecture_decodes_as_its_reference_does(tmp_path: Path) -> None:
    """The engine's passes against the network's, in eager torch; and greedy search by all strategies."""
    network, vocab = looped_model(tmp_path / "model")
    model = nartk.load(str(tmp_path / "model"))
    assert model.checkpoint.architecture == "looped"
    lines = ["she goes to the cat", "he sees me today"]
    greedy = model.decode(lines, "greedy")
    assert [each.tokens for each in model.decode(lines, "iad", adaptive=False)] == [
        each.tokens for each in greedy
    ]
    reference = TransformerReference(network, vocab)
    for line, hypothesis in zip(lines, greedy, strict=True):
        scores = []
        for scorer in (reference, model.passes):
            memory, context = scorer.encode([model.encode(line)]), scorer.open(1)
            tokens = [scorer.start_token, *hypothesis.tokens[:-1]]
            found = scorer.run(chain(tokens, int(memory[0]), int(context[0])), Want())
            scores.append((found.best.tolist(), found.log_probs.copy()))
            scorer.close(context)
            scorer.free(memory)
        (best, log_probs), (own_best, own_log_probs) = scores
        assert own_best == best == list(hypothesis.tokens)
        assert np.abs(own_log_probs - log_probs).max() < 1e-4
        assert np.abs(log_probs).max() > 0.1


def test_the_architecture_is_trained_under_its_names() -> None:
    import_module("looped")
    found = architectures.architectures()["looped"]
    assert found.autoregressive
    assert found.presets.keys() == {"nartk_looped", "nartk_looped_tiny"}
