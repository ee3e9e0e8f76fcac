"""The registry: one declaration gives options, checks, messages and the signature."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, ClassVar, Protocol, runtime_checkable

import pytest
from support.scripted_passes import Table, TablePasses

import nartk
from nartk import registry
from nartk.errors import StrategyMismatchError, UnknownStrategyError, UsageError
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.registry import (
    implied,
    make_strategy,
    option,
    options_of,
    register_decoder,
    require_protocol,
    signature,
    strategies,
    strategy_class,
)


@runtime_checkable
class Barks(Protocol):
    def bark(self) -> str: ...


@pytest.fixture
def dog(monkeypatch: pytest.MonkeyPatch) -> type:
    """A strategy of the test's own, gone afterwards."""
    strategies()
    monkeypatch.setattr(registry.DECODERS, "classes", dict(registry.DECODERS.classes))

    @register_decoder("dog")
    class Dog:
        """Barks."""

        needs: ClassVar[type] = Barks
        promise: ClassVar[Promise] = Promise(Guarantee.APPROXIMATE, "barks")

        loudness: int = option(3, "decibels", low=0, high=10)
        pitch: float = option(1.5, "kHz", low=0.5)
        tail: bool = option(True, "wags")
        breed: str = option("pug", "which", choices=("pug", "boxer"))

    return Dog


def test_all_strategies_have_a_promise() -> None:
    found = nartk.strategies()
    assert {"beam", "greedy", "iad", "sample"} <= found.keys()
    assert {found[name].guarantee for name in ("greedy", "iad", "gad", "speculative")} == {
        Guarantee.IDENTICAL
    }
    assert found["sample"].guarantee is Guarantee.SAME_DISTRIBUTION
    assert str(found["beam"]) == "approximate: the best of k hypotheses; the same in any batch"
    assert list(found) == sorted(found)
    assert all(promise.sentence for promise in found.values())


@pytest.mark.parametrize("name", strategies())
def test_every_option_has_help_and_a_default_that_it_allows(name: str) -> None:
    assert strategy_class(name).__doc__
    defaults = {key: item.default for key, item in options_of(name).items()}
    assert make_strategy(name, defaults) == make_strategy(name, {})
    for item in options_of(name).values():
        assert item.metadata["help"]
        assert type(item.default) in (int, float, bool, str)


def test_a_declaration_makes_a_frozen_dataclass(dog: type) -> None:
    made = make_strategy("dog", {"loudness": 10, "breed": "boxer"})
    assert (made.name, made.loudness, made.pitch, made.tail, made.breed) == ("dog", 10, 1.5, True, "boxer")
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.loudness = 4
    assert strategies()["dog"] == Promise(Guarantee.APPROXIMATE, "barks")
    assert list(options_of("dog")) == ["loudness", "pitch", "tail", "breed"]


def test_the_signature_names_every_option(dog: type) -> None:
    made = make_strategy("dog", {"tail": False, "pitch": 2})
    assert signature(made, exact=True, dtype="fp32", model="ab12cd", version="0.1.0") == (
        "strategy:dog|loudness:3|pitch:2|tail:0|breed:pug|exact:1|dtype:fp32|nartk:0.1.0|model:ab12cd"
    )


REFUSED = [
    (
        {"loudnes": 1},
        "error[E101 Usage] strategy 'dog' has no option loudnes. "
        "Fix: did you mean loudness? it knows loudness, pitch, tail, breed.",
    ),
    (
        {"wings": 1},
        "error[E101 Usage] strategy 'dog' has no option wings. Fix: it knows loudness, pitch, tail, breed.",
    ),
    (
        {"loudness": 11},
        "error[E101 Usage] loudness of 'dog' is 11. Fix: give a value between 0 and 10.",
    ),
    ({"pitch": 0.25}, "error[E101 Usage] pitch of 'dog' is 0.25. Fix: give a value at least 0.5."),
    ({"pitch": float("nan")}, "error[E101 Usage] pitch of 'dog' is nan. Fix: give a value at least 0.5."),
    ({"breed": "cat"}, "error[E101 Usage] breed of 'dog' is 'cat'. Fix: choose from pug, boxer."),
    ({"loudness": "3"}, "error[E101 Usage] loudness of 'dog' is '3', not of type int"),
    ({"loudness": True}, "error[E101 Usage] loudness of 'dog' is True, not of type int"),
    ({"tail": 1}, "error[E101 Usage] tail of 'dog' is 1, not of type bool"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_an_option_does_not_allow_is_refused(dog: type, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy("dog", options)
    assert str(caught.value) == message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("options", "default", "wanted"),
    [
        ("num_beams", "iad", "beam"),
        ("beam", "iad", "beam"),
        ("beam_size", "greedy", "beam"),
        ("nbest", "greedy", "beam"),
        ("max_len num_return_sequences", "iad", "beam"),
        ("temperature", "iad", "sample"),
        ("top_k", "greedy", "sample"),
        ("top_p seed", "beam", "sample"),
        ("nbest temperature", "iad", "sample"),  # which has both
        ("beam_size temperature", "iad", "beam"),  # none has both: the first
        ("beam_size nbest", "windows", "windows"),
        ("beam_size", "ctc-beam", "ctc-beam"),
        ("temperature", "dag-sample", "dag-sample"),
        ("temperature", "speculative", "speculative"),
        ("length_penalty", "iad", "iad"),  # of several strategies, and implies none
        ("nonsense", "iad", "iad"),
        ("", "iad", "iad"),
    ],
)
def test_options_imply_a_strategy(options: str, default: str, wanted: str) -> None:
    assert implied(options.split(), default) == wanted


def test_options_have_their_names_in_other_programs() -> None:
    made = make_strategy(
        "beam", {"num_beams": 3, "num_return_sequences": 2, "lenpen": 0.5, "max_new_tokens": 9}
    )
    assert made == make_strategy("beam", {"beam_size": 3, "nbest": 2, "length_penalty": 0.5, "max_len": 9})
    with pytest.raises(UsageError, match="beam_size is given under two names"):
        make_strategy("beam", {"num_beams": 3, "beam_size": 3})


@pytest.mark.parametrize(
    ("name", "option", "hint"),
    [
        (
            "greedy",
            "num_beams",
            "it is an option of beam, ctc-beam, dag-beam, diverse-beam, joint-ctc, windows; ",
        ),
        (
            "iad",
            "num_beam",
            "did you mean num_beams of beam, ctc-beam, dag-beam, diverse-beam, joint-ctc, windows? ",
        ),
        ("greedy", "max_lem", "did you mean max_len? "),
        ("greedy", "nonsense_of_mine", "it knows "),
    ],
)
def test_a_hint_looks_at_all_strategies(name: str, option: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_strategy(name, {option: 1})
    assert caught.value.fix.startswith(hint)


def test_an_unknown_strategy_names_the_nearest() -> None:
    with pytest.raises(UnknownStrategyError) as caught:
        make_strategy("gredy", {})
    assert str(caught.value).startswith(
        "error[E102 UnknownStrategy] no strategy 'gredy'. Fix: did you mean 'greedy'?"
    )


def test_a_name_is_given_once(dog: type) -> None:
    with pytest.raises(UsageError, match="strategy 'dog' is declared twice"):
        register_decoder("dog")(type("Other", (), {}))


def test_a_model_of_another_kind_is_refused_before_decoding(dog: type) -> None:
    scorer = TablePasses(Table(10))
    assert require_protocol(make_strategy("iad", {}), object(), scorer) is scorer
    with pytest.raises(StrategyMismatchError) as caught:
        require_protocol(make_strategy("dog", {}), scorer)
    text = str(caught.value)
    assert text.startswith("error[E103 StrategyMismatch] strategy 'dog' needs a Barks, this model is none.")
    assert "greedy" in text.split("Fix: choose from ")[1]
    assert "dog" not in text.split("Fix: choose from ")[1]
    with pytest.raises(StrategyMismatchError, match="needs a PassScorer, this model is none"):
        require_protocol(make_strategy("greedy", {}), object())
    with pytest.raises(
        StrategyMismatchError, match="needs a PassScorer and CopiesSource, this model is none"
    ):
        require_protocol(make_strategy("iad", {}), object())


def test_other_packages_register_through_their_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.DECODERS, "classes", dict(registry.DECODERS.classes))
    monkeypatch.setattr(registry.DECODERS, "is_loaded", False)

    class Point:
        @staticmethod
        def load() -> types.ModuleType:
            cat = type(
                "Cat",
                (),
                {"needs": Barks, "promise": Promise(Guarantee.APPROXIMATE, "barks"), "__annotations__": {}},
            )
            register_decoder("cat")(cat)
            return types.ModuleType("cats")

    asked = []

    def points(group: str) -> list[type]:
        asked.append(group)
        return [Point]

    monkeypatch.setattr("importlib.metadata.entry_points", points)
    assert "cat" in strategies()
    assert "greedy" in strategies()
    assert asked == ["nartk.decoders"]


@pytest.mark.parametrize("ratio", [0.0, 1e308, float("inf")])
@pytest.mark.parametrize("name", [name for name in strategies() if "max_ratio" in options_of(name)])
def test_no_ratio_breaks_the_limit(name: str, ratio: float) -> None:
    limit = make_strategy(name, {"max_ratio": ratio, "max_len": 50}).limit(40)
    assert limit == (10 if ratio == 0 else 50)
