"""What passes take: predicted from the engine's table, measured for a model, and kept beside it."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import tiny
from support.scripted_passes import Table, TablePasses

import nartk
from nartk.architectures.transformer import TransformerConfig
from nartk.bench import costs as measuring
from nartk.checkpoints import costs
from nartk.checkpoints.costs import Tuned
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.names import model_folder
from nartk.cli.bench import main
from nartk.engine import TYPES, available
from nartk.engine.costs import FILE, HALVES, predicted, weights_read
from nartk.errors import CheckpointError, StrategyMismatchError
from nartk.protocols.passes import PassCosts, TextSource, costs_of

needs_engine = pytest.mark.skipif(not available(), reason="needs the engine")
TABLE = json.loads(FILE.read_text())
CONFIG = TransformerConfig(
    src_vocab=4001,
    tgt_vocab=4001,
    d_model=256,
    encoder_layers=6,
    decoder_layers=2,
    encoder_ffn=1024,
    decoder_ffn=1024,
)
LINES = ["She go to school yesterday .", "He have a dog .", "I likes the apples very much ."]


def test_weights_that_are_read_by_hand() -> None:
    d, inner, words = 256, 1024, 4001
    layer = 3 * d * d + d * d + d * d + d * d + 2 * d * inner  # self-attention, the source's, and the network
    source = 6 * (4 * d * d + 2 * d * inner) + 2 * 2 * d * d  # and keys and values of the source, twice
    assert weights_read(CONFIG) == (2 * layer + words * d, source)


@pytest.mark.parametrize("measured", TABLE["measured"], ids=lambda each: f"{each['isa']} {each['type']}")
def test_the_table_is_whole(measured: dict[str, Any]) -> None:
    assert measured["weights"] == sorted(measured["weights"])
    for times in measured["times"]:
        assert len(times) == len(TABLE["tokens"])
        assert times == sorted(times)
        assert times[0] > 1
    # A larger model takes longer, and a token of many costs at least its share of a pass over one.
    assert np.all(np.diff(np.array(measured["times"]), axis=0) > 0)


def test_each_instruction_set_has_each_type() -> None:
    found = {(each["isa"], each["type"]) for each in TABLE["measured"]}
    for isa in ("avx512_amx", "avx512_bf16", "avx512", "avx2", "plain"):
        assert {(isa, type) for type in ("fp32", HALVES, "int8")} <= found
    assert {("avx512_amx", "bf16"), ("avx512_bf16", "bf16")} <= found


def at(isa: str, type: str, **changes: int) -> PassCosts:
    config = TransformerConfig(**{**CONFIG.__dict__, **changes})
    return predicted(config, isa=isa, type=type, threads=1)


def test_a_prediction_is_what_was_measured_or_between() -> None:
    (measured,) = [
        each
        for each in TABLE["measured"]
        if (each["isa"], each["type"], each["threads"]) == ("avx2", "int8", 1)
    ]
    weights, times = measured["weights"], measured["times"]

    def of_weights(count: float) -> PassCosts:
        """A model whose output layer has so many weights, and nothing else."""
        words = round(count / 256)
        return at("avx2", "int8", decoder_layers=0, src_vocab=words, tgt_vocab=words)

    assert of_weights(weights[1]).times == pytest.approx(times[1], rel=1e-3)
    expected = [math.sqrt(a * b) for a, b in zip(times[1], times[2], strict=True)]
    assert of_weights(math.sqrt(weights[1] * weights[2])).times == pytest.approx(expected, rel=1e-3)
    assert of_weights(weights[0] / 100).times == pytest.approx(times[0], rel=1e-3)
    assert of_weights(3 * weights[-1]).times == pytest.approx([3 * x for x in times[-1]], rel=1e-3)


def test_the_encoder_costs_as_much_a_weight() -> None:
    found = at("avx512", "fp32")
    decoder, encoder = weights_read(CONFIG)
    per_token = (found.times[-1] - found.times[-2]) / (found.tokens[-1] - found.tokens[-2])
    assert found.encoding == pytest.approx(per_token * encoder / decoder)


def test_an_encoder_alone_costs_what_a_decoder_of_its_size_does() -> None:
    weights = {name: shape for name, shape in CONFIG.weight_shapes().items() if name.startswith("encoder")}
    fake = SimpleNamespace(weight_shapes=lambda: weights)
    assert weights_read(fake)[0] == 0 < weights_read(fake)[1]
    found = predicted(fake, isa="avx512", type="fp32", threads=1)
    as_decoder = {name.replace("encoder", "decoder"): shape for name, shape in weights.items()}
    wanted = predicted(
        SimpleNamespace(weight_shapes=lambda: as_decoder), isa="avx512", type="fp32", threads=1
    )
    per_token = (wanted.times[-1] - wanted.times[-2]) / (wanted.tokens[-1] - wanted.tokens[-2])
    assert found.encoding == pytest.approx(per_token)


@pytest.mark.parametrize(
    ("asked", "taken"),
    [
        (("neon", "int8"), ("avx2", "int8")),
        (("avx2", "bf16"), ("avx2", "fp32")),
        (("neon", "bf16"), ("avx2", "fp32")),
    ],
)
def test_what_was_not_measured_is_taken_for_what_was(asked: tuple[str, str], taken: tuple[str, str]) -> None:
    assert at(*asked) == at(*taken)


def test_more_threads_than_were_measured_are_the_most_measured() -> None:
    most = max(each["threads"] for each in TABLE["measured"] if each["isa"] == "avx512")
    assert predicted(CONFIG, isa="avx512", type="int8", threads=500) == predicted(
        CONFIG, isa="avx512", type="int8", threads=most
    )


@needs_engine
@pytest.mark.parametrize("type", TYPES)
def test_the_engines_models_have_costs(type: str) -> None:
    """The shipped model's weights are fp16 numbers, which lie as such in fp32."""
    model = nartk.load("gec-en", dtype=type, threads=1)
    stored = HALVES if type == "fp32" else type
    assert costs_of(model.passes) == predicted(model.config, isa=model.passes.isa, type=stored, threads=1)


# Measured


class Timed(TablePasses):
    """A scorer whose passes move a clock on: by 7 us, 3 us more a token, and now and then by a second."""

    def __init__(self) -> None:
        super().__init__(Table(20))
        self.now = 0.0

    def encode(self, sources: Any) -> Any:
        self.now += sum(4e-6 * len(source) for source in sources)
        return super().encode(sources)

    def run(self, work: Any, want: Any) -> Any:
        self.now += 7e-6 + 3e-6 * len(work.tokens) + (len(self.passes) % 7 == 0)
        return super().run(work, want)


def test_times_are_those_of_most_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = Timed()
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: scorer.now)
    found = measuring.measured(scorer, [TextSource((4, 5, 2)), TextSource((4, 2))], rounds=8)
    assert found.times == pytest.approx([7 + 3 * tokens for tokens in measuring.TOKENS], rel=1e-3)
    assert found.encoding == pytest.approx(4, rel=1e-3)
    assert scorer.in_use == (0, 0)


# Kept


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(model_folder("gec-en"), tmp_path / "model")
    (tmp_path / "in.txt").write_text("\n".join(LINES) + "\n")
    return tmp_path / "model"


WAY = {"numerics": "engine:avx2", "device": "cpu", "dtype": "int8", "threads": 1}


def entry(**changes: Any) -> Tuned:
    values = {"model": "ab", **WAY, "tokens": [1, 2], "times": [3.0, 4.0], "encoding": 1.0}
    return Tuned(**{**values, **changes})


def test_what_is_stored_is_read(tmp_path: Path) -> None:
    assert Tuned.read(tmp_path) == []
    entry().store(tmp_path)
    entry(threads=2, times=[2.0, 2.5]).store(tmp_path)
    entry(times=[5.0, 6.0]).store(tmp_path)  # in the first one's place
    assert Tuned.read(tmp_path) == [entry(threads=2, times=[2.0, 2.5]), entry(times=[5.0, 6.0])]
    assert costs.stored(tmp_path, model="ab", **WAY) == PassCosts((1, 2), (5.0, 6.0), 1.0)
    for key, other in (("model", "cd"), ("numerics", "engine:neon"), ("dtype", "fp32"), ("threads", 4)):
        assert costs.stored(tmp_path, **{"model": "ab", **WAY, key: other}) is None
    entry(model="cd").store(tmp_path)  # another model has come into the folder
    assert Tuned.read(tmp_path) == [entry(model="cd")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"format": 2, "costs": []}',
        '{"format": 1, "costs": [{}]}',
        *(
            json.dumps({"format": 1, "costs": [{**entry().__dict__, **changes}]})
            for changes in (
                {"more": 1},
                {"model": 3},
                {"threads": "1"},
                {"tokens": [1]},
                {"tokens": [2, 1]},
                {"tokens": [1, 1]},
                {"tokens": [1, 2.5]},
                {"times": [3.0]},
                {"times": [3.0, "4"]},
                {"times": [4.0, 3.0]},
                {"times": [0.0, 3.0]},
                {"times": [3.0, math.inf]},
                {"times": [3.0, math.nan]},
                {"encoding": -1.0},
            )
        ),
    ],
)
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "costs.json").write_text(text)
    with pytest.raises(CheckpointError) as caught:
        Tuned.read(tmp_path)
    assert caught.value.where == str(tmp_path / "costs.json")
    assert caught.value.exit_code == 5


@needs_engine
@pytest.mark.adaptive
def test_the_command_measures_and_drafts_follow(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = load_checkpoint(folder).fingerprint
    source = str(folder.parent / "in.txt")
    assert main([str(folder), source, "--tune", "--dtype", "fp32,int8", "--threads", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[-1] == f"nartk: stored in {folder / 'costs.json'}"
    found = Tuned.read(folder)
    assert [each.dtype for each in found] == ["fp32", "int8"]
    assert load_checkpoint(folder).fingerprint == before == found[0].model
    model = nartk.load(folder, dtype="int8", threads=1)
    assert model.passes.costs == found[1].costs
    assert model.run(LINES, "iad", {}).stats.drafted > 0
    # Where each token takes as long as the first one, no draft pays; and of two threads nothing is kept.
    dear = [1000.0 * tokens for tokens in found[1].tokens]
    Tuned(**{**found[1].__dict__, "times": dear}).store(folder)
    model = nartk.load(folder, dtype="int8", threads=1)
    assert model.run(LINES, "iad", {}).stats.drafted == 0
    assert nartk.load(folder, dtype="int8", threads=2).run(LINES, "iad", {}).stats.drafted > 0


@pytest.mark.parametrize(("positions", "sizes"), [(64, (1, 48)), (20, (1, 12)), (2, (1, 2))])
def test_a_model_of_few_positions_is_measured_within_them(
    positions: int, sizes: tuple[int, int], tmp_path: Path
) -> None:
    model = nartk.load(tiny.random_model(tmp_path / "model", words=tiny.WORDS.split(), max_len=positions))
    found = measuring.tuned(model, ["she"], rounds=2)
    assert (found.tokens[0], found.tokens[-1]) == sizes


def test_a_model_of_one_position_is_refused() -> None:
    scorer: Any = SimpleNamespace(limits=SimpleNamespace(target=1))
    with pytest.raises(StrategyMismatchError, match="the model has 1 positions, too few"):
        measuring.measured(scorer, [])


def test_a_model_without_passes_is_refused() -> None:
    model: Any = SimpleNamespace(passes=object(), checkpoint=SimpleNamespace(architecture="ctc"))
    with pytest.raises(StrategyMismatchError, match="a ctc is not autoregressive"):
        measuring.tuned(model, LINES)


@needs_engine
@pytest.mark.parametrize(
    ("flags", "wanted"),
    [
        ([], ["She go .", "He has a dog .", "I likes it .", "They is here ."]),
        (["--limit", "1"], ["She go .", "He has a dog ."]),
        (["--pretokenized"], ["She go. He has a dog.", "I likes it.", "They is here."]),
        (["--format", "m2"], ["She go .", "I likes it ."]),
    ],
)
def test_what_is_measured_is_what_decoding_reads(
    flags: list[str], wanted: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (
        "S She go .\n\nS I likes it .\n"
        if "m2" in flags
        else ("She go. He has a dog.\n\nI likes it.\nThey is here.\n")
    )
    (folder.parent / "in.txt").write_text(lines)
    found: list[str] = []

    def tuned(model: nartk.Model, lines: list[str]) -> Tuned:
        found.extend(lines)
        return entry()

    monkeypatch.setattr(measuring, "tuned", tuned)
    assert main([str(folder), str(folder.parent / "in.txt"), "--tune", *flags]) == 0
    assert found == wanted


@pytest.mark.parametrize(
    "flags",
    [
        *("--strategies iad", "--drafter X", "--drafts X", "--draft-columns 2", "--prefix-column 2"),
        *("--peers hf", "--peer a=b", "--batch-size 1", "--rounds 9", "--max-len 9", "--costs", "--together"),
        *("--ref X", "--metric bleu", "--json", "--json X", "--markdown X", "--plot X.png"),
        *("--source-len 9", "--seed 2", "--random tiny"),
    ],
)
def test_what_changes_nothing_of_a_measurement_is_refused(
    flags: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(folder), str(folder.parent / "in.txt"), "--tune", *flags.split()]) == 2
    error = capsys.readouterr().err
    assert f"--tune with {flags.split()[0]}: " in error
    assert not (folder / "costs.json").exists()


def test_nothing_is_kept_in_a_model_of_the_package(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "tuned", lambda model, lines: pytest.fail("measured"))
    for name in ("gec-en", str(model_folder("gec-en"))):
        assert main([name, str(folder.parent / "in.txt"), "--tune"]) == 6
        assert capsys.readouterr().err == (
            f"nartk: error[E501 Output] {name!r} is shipped inside the package, where nothing is stored. "
            "Fix: copy it to a folder of your own, and name that.\n"
        )
    assert not (model_folder("gec-en") / "costs.json").exists()


def test_nothing_to_measure_with_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.parent / "in.txt").write_text("\n")
    assert main([str(folder), str(folder.parent / "in.txt"), "--tune"]) == 2
    assert "no sentence to measure with" in capsys.readouterr().err
    assert not (folder / "costs.json").exists()
