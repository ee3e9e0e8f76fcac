"""Outputs are those of Hugging Face's `generate` under the same generation_config.json."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny
from support.realtable import BOS, EOS, PAD, random_transformer
from support.scorers import TransformerReference
from support.scripted_passes import decode

import nartk
from nartk.checkpoints.generation import (
    HONOURED,
    IRRELEVANT,
    NEUTRAL,
    ending_words,
    read_generation,
    with_generation,
    write_generation,
)
from nartk.checkpoints.loading import generation_of
from nartk.cli.decode import main
from nartk.errors import CheckpointError, UnsupportedCheckpointError, UsageError
from nartk.files import Folder
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy
from nartk.vocab import Vocab

WORDS = 44
VOCAB = Vocab.from_words([f"w{i}" for i in range(WORDS - 4)])
WIDEST, LONGEST = 5, 30


@pytest.fixture(autouse=True)
def transformers() -> Any:
    pytest.importorskip("transformers", reason="transformers is not installed")
    from nartk.adapters.hf import import_transformers

    return import_transformers()


def random_sources(rng: random.Random, count: int = 6) -> list[tuple[int, ...]]:
    return [(*(rng.randrange(4, WORDS) for _ in range(rng.randint(1, 12))), EOS) for _ in range(count)]


def random_fields(rng: random.Random, beams: int) -> dict[str, Any]:
    """Fields of a generation_config.json, half of them of no effect."""

    def words(most: int) -> list[int]:
        return rng.sample(range(4, WORDS), rng.randint(1, most))

    def sometimes(**given: Any) -> dict[str, Any]:
        return given if rng.random() < 0.3 else {}

    longest = rng.choice([4, 9, 14, LONGEST])
    found: dict[str, Any] = {"num_beams": beams, "eos_token_id": EOS, "pad_token_id": PAD}
    found |= rng.choice([{"max_new_tokens": longest}, {"max_length": longest + 1}])
    found |= sometimes(min_length=rng.randint(1, 12)) | sometimes(min_new_tokens=rng.randint(1, 12))
    found |= sometimes(repetition_penalty=rng.choice([0.7, 1.3, 2.0]))
    found |= sometimes(no_repeat_ngram_size=rng.randint(1, 3))
    found |= sometimes(encoder_no_repeat_ngram_size=rng.randint(1, 3))
    found |= sometimes(eos_token_id=[EOS, *rng.sample(range(4, WORDS), rng.randint(1, 3))])
    found |= sometimes(bad_words_ids=[words(1), words(3), [EOS], [rng.randrange(4, WORDS), EOS]])
    found |= sometimes(suppress_tokens=words(9)) | sometimes(begin_suppress_tokens=[*words(20), EOS])
    found |= sometimes(forced_bos_token_id=3) | sometimes(forced_eos_token_id=rng.choice([EOS, [EOS]]))
    ends = {found["eos_token_id"]} if found["eos_token_id"] == EOS else {*found["eos_token_id"]}
    for name in {"suppress_tokens", "begin_suppress_tokens"} & found.keys():
        found[name] = [word for word in found[name] if word == EOS or word not in ends]
    if beams > 1:
        found["early_stopping"] = rng.choice([True, False, "never"])
        found["length_penalty"] = rng.choice([-1.0, 0.0, 0.6, 1.0, 2.0])
        found["num_return_sequences"] = rng.randint(1, beams)
        found |= sometimes(renormalize_logits=True)
    return found


Found = list[list[tuple[float, list[int]]]]  # by source and rank the score and the tokens


def theirs(
    transformers: Any, model: Any, sources: Sequence[Sequence[int]], fields: dict[str, Any], start: int
) -> Found:
    from nartk.adapters.hf import to_hugging_face

    width = max(map(len, sources))
    tokens = torch.tensor([[*source, *[PAD] * (width - len(source))] for source in sources])
    config = transformers.GenerationConfig(
        decoder_start_token_id=start, return_dict_in_generate=True, output_scores=True, **fields
    )
    hugging_face = to_hugging_face(model, VOCAB, start_token=start)
    with torch.inference_mode():
        given = hugging_face.generate(tokens, attention_mask=tokens.ne(PAD).long(), generation_config=config)
    rows = [row[1:] for row in given.sequences.tolist()]
    given_ends = fields["eos_token_id"]
    ends = given_ends if isinstance(given_ends, list) else [given_ends]
    rows = [row[: next((i for i, word in enumerate(row, 1) if word in ends), len(row))] for row in rows]
    count = fields.get("num_return_sequences", 1)
    scores = [0.0] * len(rows) if fields["num_beams"] == 1 else given.sequences_scores.tolist()
    pairs = [*zip(scores, rows, strict=True)]
    # What there is less than asked for is filled up, with a score that says so.
    return [[each for each in pairs[i : i + count] if each[0] > -1e8] for i in range(0, len(pairs), count)]


@pytest.mark.parametrize("beams", [1, 4])
def test_what_is_written_is_read_again(beams: int) -> None:
    for seed in range(200):
        fields = random_fields(random.Random(seed), beams)
        found, (eos, *others) = read_generation({}, fields), ending_words({}, fields)
        written = write_generation(found, eos, others)
        assert read_generation({}, written) == found
        assert ending_words({}, written) == (eos, *others)


def ours(
    model: Any, sources: Sequence[Sequence[int]], fields: dict[str, Any], start: int, **options: Any
) -> Found:
    generation = read_generation({}, json.loads(json.dumps(fields)))
    name = options.pop("strategy", generation.get("strategy", "greedy"))
    strategy = make_strategy(name, with_generation(generation, name, options))
    requests = [Request(i, (*source,), strategy.limit(len(source))) for i, source in enumerate(sources)]
    eos, *others = ending_words({}, fields)
    assert eos == EOS
    scorer = TransformerReference(model, replace(VOCAB, also_eos=(*others,)), start_token=start)
    return [
        [(each.score, [*each.tokens]) for each in result.hypotheses]
        for result in decode(strategy, scorer, requests)
    ]


def same(found: Found, wanted: Found, *, scores: bool) -> bool:
    if [[tokens for _, tokens in each] for each in found] != [
        [tokens for _, tokens in each] for each in wanted
    ]:
        return False
    return not scores or all(
        [score for score, _ in mine] == pytest.approx([score for score, _ in his], abs=1e-4, rel=1e-5)
        for mine, his in zip(found, wanted, strict=True)
    )


@pytest.mark.filterwarnings("ignore")  # theirs, of lengths that cannot be kept to
@pytest.mark.parametrize("beams", range(1, WIDEST + 1))
def test_outputs_and_scores_are_those_of_generate(beams: int, transformers: Any) -> None:
    for seed in range(8):
        rng = random.Random(seed * 8 + beams)
        model, start = random_transformer(rng.randrange(9), WORDS), rng.choice([EOS, BOS, PAD])
        sources, fields = random_sources(rng), random_fields(rng, beams)
        wanted = theirs(transformers, model, sources, fields, start)
        assert same(ours(model, sources, fields, start), wanted, scores=beams > 1), fields
        if beams == 1:
            for name, options in (("beam", {"beam_size": 1}), ("iad", {}), ("ngram", {}), ("recycling", {})):
                found = ours(model, sources, fields, start, strategy=name, **options)
                assert same(found, wanted, scores=False), (name, fields)
        elif seed % 4 == 0:
            found = ours(model, sources, fields, start, draft="both")
            assert same(found, wanted, scores=True), fields


@pytest.mark.parametrize(
    ("field", "forgotten"),
    [
        ({"early_stopping": True}, {"early_stopping": False}),
        ({"early_stopping": False}, {"early_stopping": True}),
        ({"early_stopping": "never"}, {"early_stopping": False}),
        *(({"length_penalty": value}, {}) for value in (-1.0, 0.0, 2.0)),
        ({"renormalize_logits": True, "bad_words_ids": [[4], [9]]}, {"bad_words_ids": [[4], [9]]}),
        ({"forced_bos_token_id": 9}, {}),
        ({"forced_eos_token_id": EOS, "max_length": 5}, {"max_length": 5}),
        ({"begin_suppress_tokens": [*range(4, 30)]}, {}),
        ({"min_new_tokens": 25}, {}),
        ({"repetition_penalty": 1.5}, {}),
        ({"no_repeat_ngram_size": 2}, {}),
        ({"encoder_no_repeat_ngram_size": 1}, {}),
        ({"eos_token_id": [EOS, *range(4, 24)]}, {}),
    ],
    ids=str,
)
def test_a_field_that_is_forgotten_is_noticed(
    field: dict[str, Any], forgotten: dict[str, Any], transformers: Any
) -> None:
    model, sources = random_transformer(1, WORDS), random_sources(random.Random(0), 12)
    fields = {"num_beams": 4, "num_return_sequences": 4, "max_length": LONGEST, "eos_token_id": EOS}
    wanted = theirs(transformers, model, sources, fields | field, EOS)
    assert same(ours(model, sources, fields | field, EOS), wanted, scores=True)
    assert not same(ours(model, sources, fields | forgotten, EOS), wanted, scores=True)


def test_every_field_is_honoured_irrelevant_or_refused(transformers: Any) -> None:
    config = transformers.GenerationConfig()
    known = [*HONOURED, *IRRELEVANT, *NEUTRAL]
    assert len(known) == len({*known})
    assert {*vars(config)} <= {*known}
    assert {*config._get_default_generation_params()} <= {*known}
    plain = read_generation({}, {})
    assert read_generation({}, config.to_dict()) == plain
    assert read_generation({}, config._get_default_generation_params()) == plain | {"max_len": 19}
    for name in IRRELEVANT:
        assert read_generation({}, {name: 7}) == plain
    for name, values in NEUTRAL.items():
        for value in (None, *values):
            assert read_generation({}, {name: value}) == plain
        with pytest.raises(UnsupportedCheckpointError) as refused:
            read_generation({}, {name: 0.25})
        assert str(refused.value) == (
            f"error[E403 UnsupportedCheckpoint] generation_config.json: {name} is 0.25, which is not "
            "supported. Fix: decode without it: take it out of the file."
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"eos_token_id": [2, -5]}, "eos_token_id is [2, -5], not a value ids"),
        ({"encoder_no_repeat_ngram_size": -1}, "encoder_no_repeat_ngram_size is -1, not a value from 0 on"),
        ({"do_sample": 1}, "do_sample is 1, not a value of [False, True]"),
        (
            {"eos_token_id": 2, "forced_eos_token_id": 5},
            "forced_eos_token_id is 5, which is not eos",
        ),
        (
            {"eos_token_id": 2, "suppress_tokens": [2]},
            "suppress_tokens is [2], eos or forced_bos_token_id",
        ),
        ({"num_beams": "four"}, "num_beams is 'four', not a value from 1 on"),
        ({"num_beams": True}, "num_beams is True, not a value from 1 on"),
        ({"max_length": 1}, "max_length is 1, not a value from 2 on"),
        ({"early_stopping": "always"}, "early_stopping is 'always', not a value of [False, True, 'never']"),
        ({"early_stopping": []}, "early_stopping is [], not a value of [False, True, 'never']"),
        ({"bad_words_ids": [[]]}, "bad_words_ids is [[]], not a value lists of ids"),
        ({"suppress_tokens": "4"}, "suppress_tokens is '4', not a value ids"),
        ({"forced_bos_token_id": -3}, "forced_bos_token_id is -3, not a value an id"),
        ({"length_penalty": "1"}, "length_penalty is '1', not a value"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedCheckpointError)) as refused:
        read_generation({}, fields)
    assert message in str(refused.value)
    assert generation_of(Folder("nowhere")) == {}


def test_an_older_config_is_read_as_theirs_is(transformers: Any, tmp_path: Path) -> None:
    given = {"model_type": "bart", "num_beams": 4, "max_length": 142, "min_length": 56, "length_penalty": 2.0}
    given |= {"early_stopping": True, "no_repeat_ngram_size": 3, "eos_token_id": 2, "bos_token_id": 0}
    given |= {"forced_eos_token_id": 2, "force_bos_token_to_be_generated": True, "d_model": 32}
    (tmp_path / "config.json").write_text(json.dumps(given))
    config = transformers.GenerationConfig.from_pretrained(
        tmp_path, config_file_name="config.json", _from_model_config=True
    )
    assert generation_of(Folder(tmp_path)) == read_generation({}, config.to_dict())
    assert generation_of(Folder(tmp_path))["forced_bos"] == 0


def test_fields_of_somebodys_own_are_told_of() -> None:
    told: list[str] = []
    fields = {"_nonsense_of_mine": 1, "num_beams": 3, "bos_token_id": 7}
    assert read_generation({}, fields, tell=told.append) == read_generation({}, {"num_beams": 3})
    assert told == ["generation_config.json: _nonsense_of_mine is 1, which is not known and is passed over"]


def test_sampling_is_the_default_where_it_is_asked_for(transformers: Any) -> None:
    """Drawn with the probabilities with which `generate` draws; other strategies decode without."""
    model, start = random_transformer(3, WORDS), EOS
    sources = random_sources(random.Random(1), 3)
    fields = {"do_sample": True, "temperature": 1.7, "top_k": 12, "top_p": 0.85, "max_new_tokens": 1}
    fields |= {"eos_token_id": EOS, "num_beams": 1}
    generation = read_generation({}, fields)
    assert generation["strategy"] == "sample"
    assert with_generation(generation, "sample", {})["temperature"] == 1.7
    assert with_generation(generation, "sample", {"temperature": 0.5})["temperature"] == 0.5
    assert not {"temperature", "top_k", "top_p"} & with_generation(generation, "speculative", {}).keys()
    config = transformers.GenerationConfig(
        decoder_start_token_id=start, return_dict_in_generate=True, output_scores=True, **fields
    )
    from nartk.adapters.hf import to_hugging_face

    count = 4000
    for source in sources:
        given = to_hugging_face(model, VOCAB, start_token=start).generate(
            torch.tensor([source]), generation_config=config
        )
        wanted = given.scores[0].softmax(-1)[0].numpy()
        found = ours(model, [source], fields, start, nbest=count)[0]
        drawn = np.bincount([tokens[0] for _, tokens in found], minlength=WORDS) / count
        assert set(np.flatnonzero(drawn)) <= set(np.flatnonzero(wanted))
        assert np.abs(drawn - wanted).max() < 4 * np.sqrt(0.25 / count)  # four standard deviations
    # What draws otherwise, and beam search that draws, is told of.
    told: list[str] = []
    read_generation({}, fields | {"min_p": 0.1, "typical_p": 1.0}, tell=told.append)
    assert "strategy" in read_generation({}, fields | {"num_beams": 4}, tell=told.append)
    assert told == [
        "generation_config.json: min_p is 0.1; words are drawn without it",
        "generation_config.json: do_sample with num_beams of 4: beam search draws no words",
    ]


# In the pipeline.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tiny.random_model(tmp_path_factory.mktemp("models") / "model", words=tiny.WORDS.split())
    fields = {
        "num_beams": 3,
        "max_length": 13,
        "min_length": 6,
        "forced_bos_token_id": 7,
        "eos_token_id": EOS,
    }
    config = json.loads((made / "config.json").read_text())
    config["generation"] = read_generation({}, fields)
    (made / "config.json").write_text(json.dumps(config))
    return made


def test_a_models_values_are_defaults(folder: Path) -> None:
    model = nartk.load(folder)

    def signature(*strategy: str, **options: Any) -> str:
        return model.run(["she goes"], *strategy, options=options).signature

    assert signature().startswith(
        "strategy:beam|max_len:12|max_ratio:1000000.0|min_len:5|forced_bos:7|beam_size:3|length_penalty:1.0|"
        "nbest:1|early_stopping:false|draft:none"
    )
    assert signature("greedy").startswith(
        "strategy:greedy|max_len:12|max_ratio:1000000.0|min_len:5|forced_bos:7|exact"
    )
    given = signature("beam", max_len=4, beam_size=2, early_stopping="first", forced_bos=-1)
    assert given.startswith(
        "strategy:beam|max_len:4|max_ratio:1000000.0|min_len:4|beam_size:2|length_penalty:1.0|nbest"
    )
    drawn = signature(top_k=2, max_new_tokens=9)  # the model's own strategy, beam search, has no top_k
    assert drawn.startswith("strategy:sample|max_len:9|max_ratio:1000000.0|min_len:5|forced_bos:7|")
    told: list[str] = []
    model.strategy("bild", {"drafter": str(folder)}, tell=told.append)
    assert told == ["strategy 'bild' does not keep to the model's min_len, forced_bos"]
    with pytest.raises(UsageError, match="beam_size of 'beam' is '5', not of type int"):
        model.decode(["she goes"], "beam", beam_size="5")
    (found,) = model.decode(["she goes"], prefixes=["cat"])
    assert found.tokens[:2] == (7, model.checkpoint.target_vocab.ids(["cat"])[0])


def test_the_command_decodes_as_the_model_asks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.parent / "in.txt").write_text("she goes\n")

    def signature(*flags: str) -> str:
        assert main([str(folder), str(folder.parent / "in.txt"), *flags, "--verbose"]) == 0
        return capsys.readouterr().err.splitlines()[-1]

    assert "strategy:beam|max_len:12|" in signature()
    assert "strategy:beam|max_len:12|" in signature("--nbest", "3")
    flags = ["--max-new-tokens", "7", "--num-beams", "6", "--lenpen", "0.5", "--num-return-sequences", "6"]
    assert "|max_len:7|" in signature(*flags)
    assert "|beam_size:6|length_penalty:0.5|nbest:6|" in signature(*flags)
    assert "|beam_size:2|" in signature("--beam", "2")
    drawn = signature("--temperature", "0.5", "--num-return-sequences", "2")
    assert "strategy:sample|max_len:12|max_ratio:1000000.0|min_len:5|" in drawn
    assert "|temperature:0.5|" in drawn
    assert "strategy:iad|max_len:12|" in signature("--strategy", "iad")
    assert main(["--strategy", "beam", "--help"]) == 0
    help = capsys.readouterr().out.replace(" N,", ",")  # from Python 3.13 on argparse says N once
    assert "--beam-size, --beam, --num-beams N" in help
    assert "--max-len, --max-new-tokens N" in help


@pytest.mark.parametrize(
    "values", [["beam"], {"beam_size": "3"}, {"beam_size": True}, {"nonsense": 1}, {"max_ratio": 1}], ids=str
)
def test_a_damaged_key_is_refused(values: Any, folder: Path, tmp_path: Path) -> None:
    copy = tiny.random_model(tmp_path / "model", words=tiny.WORDS.split())
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"generation": values}))
    with pytest.raises(CheckpointError, match="'generation'"):
        nartk.load(copy)
    assert generation_of(Folder(copy)) == {}
