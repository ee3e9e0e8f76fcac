"""The flags of constraints: the textbook's loop, Hugging Face's generate, and what is refused."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
import sentencepiece
from support.constraints import constrained_greedy, random_rules
from support.scripted_passes import Table, TablePasses, decode, differing, outputs_of, random_request
from support.small_passes import Near, drafting

from nartk.decoders.loop.constrained import Constrained
from nartk.decoders.loop.constraints import Constraints
from nartk.errors import UsageError
from nartk.registry import make_strategy, options_of, signature, strategy_class
from nartk.serving.loading import load
from nartk.serving.model import Model
from nartk.vocab import Vocab

LOSSLESS = ("greedy", "iad", "verify", "ngram", "recycling", "union", "speculative")
FLAGS = (
    "min_len",
    "repetition_penalty",
    "no_repeat_ngram",
    "suppress",
    "suppress_ids",
    "suppress_first_ids",
    "forced_bos",
    "forced_eos",
)
FILES = ("shortlist", "shortlist_first", "shortlist_best")


def flags_of(rules: Constraints, vocab: Vocab) -> dict[str, Any]:
    """The flags that ask for rules."""
    strength = rules.momentum.strength
    return {
        "suppress_ids": " / ".join(" ".join(map(str, each)) for each in rules.forbidden),
        "suppress_first_ids": " ".join(map(str, rules.suppressed_first)),
        "forced_bos": rules.forced_bos,
        "forced_eos": rules.forced_eos,
        "min_len": rules.min_len,
        "repetition_penalty": rules.repetition_penalty,
        "no_repeat_ngram": rules.no_repeat_ngram,
        "no_source_ngram": rules.no_source_ngram,
        "suppress": " / ".join(vocab.to_words(rules.suppressed)),
        **({"momentum": strength, "momentum_top": rules.momentum.top} if strength else {}),
    }


def mismatches(name: str, cases: int, *, forget: str = "") -> int:
    """How many outputs differ from those of the textbook's greedy search under the same constraints."""
    wrong = 0
    for seed in range(cases // 8):
        rng = random.Random(seed)
        scorer = TablePasses(Table(rng.randint(12, 30), seed=seed, spread=rng.choice([3, 8])))
        rules = random_rules(rng, scorer.table.words)
        scorer.vocab = dataclasses.replace(scorer.vocab, also_eos=rules.also_eos)
        requests = [random_request(rng, i, scorer.table.words, 12) for i in range(8)]
        requests = [
            dataclasses.replace(each, max_len=1 + each.max_len % 20, prefix=each.prefix[:1])
            for each in requests
        ]
        flags = flags_of(rules, scorer.vocab)
        flags.pop(forget, None)
        if name == "speculative":
            strategy = drafting(name, Near(scorer, seed=seed, noise=0.2), **flags)
        else:
            strategy = make_strategy(name, flags)
        if name == "verify":
            requests = [dataclasses.replace(each, drafts=(each.source[:-1],)) for each in requests]
        found = decode(strategy, scorer, requests, batch_size=rng.choice([1, 3, 8]))
        wanted = [constrained_greedy(scorer.table, each, rules) for each in requests]
        wrong += len(differing(outputs_of(found), wanted))
    return wrong


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_strategies_equal_greedy_under_the_same_flags(name: str) -> None:
    assert mismatches(name, 160) == 0


@pytest.mark.parametrize("flag", FLAGS)
def test_a_forgotten_flag_is_noticed(flag: str) -> None:
    assert mismatches("iad", 80, forget=flag) > 0


@pytest.mark.parametrize("name", [*LOSSLESS, "gad", "beam", "sample"])
def test_the_flags_are_declared_once(name: str) -> None:
    assert issubclass(strategy_class(name), Constrained)
    declared = {item.name: item for item in dataclasses.fields(Constrained)}
    assert {key: options_of(name)[key].metadata for key in (*FLAGS, *FILES)} == {
        key: declared[key].metadata for key in (*FLAGS, *FILES)
    }


def test_signatures_hold_those_that_are_given() -> None:
    given: dict[str, Any] = {"exact": True, "dtype": "fp32", "model": "abc", "version": "1"}
    plain = "strategy:greedy|max_len:256|max_ratio:2.0|exact:1|dtype:fp32|nartk:1|model:abc"
    assert signature(make_strategy("greedy", {}), **given) == plain
    flags = {"min_len": 3, "suppress": "a b / c"}
    assert signature(make_strategy("greedy", flags), **given) == plain.replace(
        "exact:1", "min_len:3|suppress:a b / c|exact:1"
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            {"suppress": "w3 / w99"},
            "error[E101 Usage] suppress names 'w99', which is not in the model's dictionary. "
            "Fix: did you mean w9? a piece that begins a word is written with ▁ in a "
            "sentencepiece model",
        ),
        (
            {"suppress": "w3 /  / w4"},
            "error[E101 Usage] suppress has nothing between two /. "
            "Fix: give words with spaces between, as in 'a b / c'",
        ),
        (
            {"suppress": "</s>"},
            "error[E101 Usage] suppress names eos, without which no output ends. Fix: use min_len",
        ),
        (
            {"min_len": 9, "max_len": 8},
            "error[E101 Usage] min_len is 9, above max_len=8. Fix: raise max_len",
        ),
    ],
)
def test_what_no_output_can_keep_to_is_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        make_strategy("greedy", flags).constraints(Vocab.from_words([f"w{i}" for i in range(10)]))
    assert str(refused.value).rstrip(".") == message


@pytest.fixture(scope="module")
def shipped() -> Model:
    return load(pretokenized=True)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("went", "▁went"),
        ("went / to the / ▁go ing", "▁went / ▁to ▁the / ▁go ing"),
        ("yesterdays", "▁yesterday s"),
    ],
)
@pytest.mark.parametrize("name", ["iad", "beam"])
def test_text_is_suppressed_as_it_is_in_a_sentence(name: str, text: str, pieces: str, shipped: Model) -> None:
    """The pieces are those that sentencepiece itself makes, at the beginning of a sentence and inside."""
    strategy = shipped.strategy(name, {"suppress": text})
    assert strategy.suppress == pieces
    spm = sentencepiece.SentencePieceProcessor(model_file=str(shipped.checkpoint.folder / "spm.model"))
    for part, found in zip(text.split(" / "), pieces.split(" / "), strict=True):
        if "▁" not in part:
            assert spm.encode(part, out_type=str) == found.split()
            assert spm.encode(f"We {part} .", out_type=str)[1:-1] == found.split()
    assert shipped.strategy(name, {"suppress": pieces}).suppress == pieces


def test_suppressed_text_is_not_output(shipped: Model) -> None:
    lines = ["She go to school yesterday ."]
    (plain,) = shipped.decode(lines, "iad")
    assert plain.text == lines[0].replace("go", "went")
    assert shipped.decode(lines, "iad", suppress="goes")[0].text == plain.text
    for text in ("went", "to school", "school yesterday"):
        assert f" {text} " not in shipped.decode(lines, "iad", suppress=text)[0].text
    assert " to " in shipped.decode(lines, "iad", suppress="to school")[0].text
    with pytest.raises(UsageError) as refused:
        shipped.decode(lines, "iad", suppress="went / \u2603")
    assert str(refused.value) == (
        "error[E101 Usage] suppress names '\u2603', of which the model's dictionary has only '▁ <unk>'. "
        "Fix: leave out what the model cannot write."
    )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gad", {"beta": 2, "min_len": 4}, "min_len is 4, but with beta=2 other words than the best are"),
        (
            "speculative",
            {"temperature": 0.5, "suppress": "a"},
            "suppress is 'a', but at temperature=0.5 drafts are",
        ),
    ],
)
def test_acceptances_that_would_break_them_refuse_them(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        make_strategy(name, options)
