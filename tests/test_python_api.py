"""What Python users call: lines in, hypotheses out, bad lines beside the others, and the public names."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from support import tiny

import nartk
from nartk import errors
from nartk.errors import InputEncodingError, InputTooLongError, LengthMismatchError, NartkError, UsageError
from nartk.serving.model import Model
from nartk.serving.outcomes import in_order

WORDS = tiny.WORDS.split()
LINES = ["she go to school", "", "the big old cat sees it .", "he go home !", "it sees her"]
LONG = "she " * 64  # one token more than the model reads


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, device: torch.device) -> Model:
    folder = tiny.random_model(tmp_path_factory.mktemp("api"), words=WORDS, layers=2)
    return nartk.load(folder, device=str(device))


# What is no list of strings

NO_LINES: list[tuple[Any, str]] = [
    ("She go home .", "lines is 'She go home .', not a list of strings. Fix: pass a list."),
    (b"She go", "lines is b'She go', not a list of strings. Fix: pass a list."),
    (None, "lines is None, not a list of strings. Fix: pass a list."),
    (["she", 3], "lines[1] is 3, not a string. Fix: pass strings alone."),
    (["she", None], "lines[1] is None, not a string. Fix: pass strings alone."),
    ([b"she"], "lines[0] is b'she', not a string. Fix: pass strings alone."),
    ([["she"]], "lines[0] is ['she'], not a string. Fix: pass strings alone."),
]
CALLS: dict[str, Callable[[Model, Any], Any]] = {
    "decode": lambda model, lines: model.decode(lines),
    "run": lambda model, lines: model.run(lines),
    "stream": lambda model, lines: model.stream(lines, model.strategy("greedy", {})),
    "iterate": lambda model, lines: [*model.iterate(lines)],
}


@pytest.mark.parametrize(("lines", "message"), NO_LINES)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_list_of_lines_is_refused(call: str, lines: Any, message: str, model: Model) -> None:
    if call == "decode" and isinstance(lines, str | bytes):
        pytest.skip("one line")
    with pytest.raises(UsageError) as caught:
        CALLS[call](model, lines)
    assert str(caught.value) == f"error[E101 Usage] {message}"


def test_one_line_gives_one_hypothesis(model: Model) -> None:
    (wanted,) = model.decode(["she goes ."], "beam", nbest=2)
    found = model.decode("she goes .", "beam", nbest=2)
    assert found == wanted
    assert len(found.alternatives) == 1
    forced = model.decode("she goes .", prefixes=["cat"])
    assert forced.text.startswith("cat")


def test_nothing_of_a_model_is_set_after_it_is_made(model: Model) -> None:
    names = [item.name for item in dataclasses.fields(model)]
    before = {name: getattr(model, name) for name in names}
    for name in (*names, "other"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(model, name, None)
    changed = dataclasses.replace(model, pretokenized=True, vad=False)
    assert model.decode(LINES, "beam", nbest=2) == changed.decode(LINES, "beam", nbest=2)
    model.score(LINES, LINES)
    assert {name: getattr(model, name) for name in names} == before
    assert changed.passes is model.passes


def test_a_model_says_what_it_is(model: Model) -> None:
    folder = str(model.checkpoint.folder)
    arrays = [*model.checkpoint.tensors.values()]  # of which those that share memory are one
    distinct = {array.__array_interface__["data"][0]: array.size for array in arrays}
    device, parameters = model.device, sum(distinct.values())
    assert repr(model) == (
        f"Model({folder!r}, architecture='transformer', device={device!r}, dtype='fp32', "
        f"parameters={parameters:,})"
    )


def test_the_shipped_model_has_as_many_parameters_as_its_card_says() -> None:
    assert nartk.load("gec-en", threads=1).parameters / 1e6 == pytest.approx(7.9, abs=0.05)


def test_one_string_is_refused_before_anything_is_iterated_over(model: Model) -> None:
    with pytest.raises(UsageError, match="lines is 'she', not a list"):
        model.iterate("she")


@pytest.mark.parametrize("call", ["decode", "run", "stream"])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prefixes": "he"}, "prefixes is 'he', not a list of strings. Fix: pass a list."),
        ({"prefixes": ["he", 1]}, "prefixes[1] is 1, not a string. Fix: pass strings alone."),
        ({"drafts": "he"}, "drafts is 'he', not a list of strings. Fix: pass a list."),
        ({"drafts": ["he", 1]}, "drafts[1] is 1, not a list of strings. Fix: pass a list."),
        ({"drafts": ["he", ["a", None]]}, "drafts[1][1] is None, not a string. Fix: pass strings alone."),
    ],
)
def test_prefixes_and_drafts_are_lists_too(
    call: str, given: dict[str, Any], message: str, model: Model
) -> None:
    strategy = model.strategy("verify", {}) if call == "stream" else "verify"
    with pytest.raises(UsageError) as caught:
        getattr(model, call)(["she", "it"], strategy, **given)
    assert str(caught.value) == f"error[E101 Usage] {message}"


@pytest.mark.parametrize("value", [0, None, "2", 1.5, True])
def test_counts_are_whole_numbers(value: Any, model: Model) -> None:
    calls: dict[str, Callable[[], object]] = {
        "batch_size": lambda: model.decode(["she"], batch_size=value),
        "max_tokens": lambda: model.decode(["she"], max_tokens=value),
        "window": lambda: model.iterate(["she"], window=value),
        "threads": lambda: nartk.load("gec-en", threads=value),
        "replicas": lambda: nartk.load("gec-en", replicas=value),
    }
    for name, call in calls.items():
        if value is None and name in ("max_tokens", "threads"):
            continue  # which need none
        with pytest.raises(UsageError, match=f"{name} is {value!r}. Fix: give "):
            call()


@pytest.mark.parametrize("name", [None, 3, b"gec-en"])
def test_a_model_has_a_name_or_a_path(name: Any) -> None:
    with pytest.raises(UsageError, match=f"the model is {name!r}, not a name or a path"):
        nartk.load(name)


@pytest.mark.parametrize("name", ["prefixes", "drafts"])
@pytest.mark.parametrize("given", [["he"], ["he", "he", "he"]])
def test_as_many_prefixes_and_drafts_as_lines(name: str, given: list[str], model: Model) -> None:
    with pytest.raises(LengthMismatchError, match=rf"{name} for {len(given)} lines?, but there are 2"):
        model.decode(["she", "it"], "verify", **{name: given})  # type: ignore[arg-type]


def test_any_iterable_is_a_list_of_lines(model: Model) -> None:
    wanted = model.decode(LINES)
    assert model.decode(tuple(LINES)) == model.decode(line for line in LINES) == wanted


# Keywords of decode


def test_prefixes_begin_the_outputs(model: Model) -> None:
    prefixes = ["he sees", "", "the old", "", "cat"]
    found = model.decode(LINES, prefixes=prefixes)
    plain = model.decode(LINES)
    for prefix, forced, free in zip(prefixes, found, plain, strict=True):
        words = prefix.split()
        assert list(forced.pieces[: len(words)]) == words
        assert prefix != "" or forced.tokens == free.tokens


def test_truncated_lines_are_those_cut_by_hand(model: Model) -> None:
    words = [WORDS[i % len(WORDS)] for i in range(80)]
    cut = " ".join(words[: model.max_source_len])
    assert model.decode([" ".join(words)], truncate=True) == model.decode([cut])


def test_nbest_lists_are_alternatives_of_the_best(model: Model) -> None:
    options = {"beam_size": 4, "nbest": 3}
    found = model.decode(LINES, "beam", **options)
    for best, line in zip(found, model.run(LINES, "beam", options).hypotheses, strict=True):
        assert [best.tokens, *(each.tokens for each in best.alternatives)] == [each.tokens for each in line]
        assert [best.score, *(each.score for each in best.alternatives)] == [each.score for each in line]
        assert all(each.alternatives == () for each in best.alternatives)
    assert [len(each.alternatives) for each in found] == [2, 0, 2, 2, 2]
    assert all(each.alternatives == () for each in model.decode(LINES, "beam"))


def test_pieces_are_the_dictionarys_words(model: Model) -> None:
    """Ids from 4 on are the lines of fairseq's dict.txt; 0 to 3 are its special symbols."""
    dictionary = Path(model.checkpoint.folder, "dict.txt").read_text(encoding="utf-8").splitlines()
    words = ["<s>", "<pad>", "</s>", "<unk>", *(line.split(" ")[0] for line in dictionary)]
    for best in model.decode(LINES, "beam", nbest=2):
        for each in (best, *best.alternatives):
            assert list(each.pieces) == [words[i] for i in each.tokens]


# Bad lines

BAD = {
    LONG: (
        InputTooLongError,
        "error[E203 InputTooLong] line {}: 64 tokens > 63. Fix: split the line, or use ",
    ),
    "she \ud800 go": (
        InputEncodingError,
        "error[E202 InputEncoding] line {}: the line holds half of a surro",
    ),
    "she \0 go": (InputEncodingError, "error[E202 InputEncoding] line {}: the line holds a NUL character. "),
}


@pytest.mark.parametrize("call", ["decode", "iterate"])
@pytest.mark.parametrize("bad", BAD, ids=["long", "surrogate", "nul"])
def test_a_bad_line_is_reported_beside_the_others(call: str, bad: str, model: Model) -> None:
    lines = [*LINES[:2], bad, *LINES[2:], bad]
    with pytest.warns(UserWarning, match=r"error\[E20") as warned:
        found = [*getattr(model, call)(lines)]
    assert [found[i] for i in (0, 1, 3, 4, 5)] == model.decode(LINES)
    kind, message = BAD[bad]
    for at in (2, 6):
        assert type(found[at].error) is kind
        assert str(found[at].error).startswith(message.format(at + 1))
        assert (found[at].text, found[at].tokens, found[at].pieces) == ("", (), ())
    assert [str(each.message) for each in warned] == [str(found[2].error), str(found[6].error)]
    assert {each.filename for each in warned} == {__file__}


def test_a_bad_prefix_or_draft_is_its_lines_error(model: Model) -> None:
    run = model.run(LINES, "verify", drafts=["he", "he", "\ud800", "he", "he"])
    assert {index: type(error) for index, error in run.errors.items()} == {2: InputEncodingError}
    assert run.hypotheses[2] == ()
    assert [each.error for each in run.best] == [None, None, run.errors[2], None, None]
    assert [each.tokens for each in run.best if each.error is None] == [
        each.tokens for i, each in enumerate(model.decode(LINES)) if i != 2
    ]


def test_good_lines_warn_of_nothing(model: Model) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(each.error is None for each in model.decode(LINES))


# Iterating


@pytest.mark.parametrize("window", [1, 2, 3, 4096])
@pytest.mark.parametrize(
    ("strategy", "options"), [("iad", {}), ("sample", {"seed": 3}), ("beam", {"nbest": 2})]
)
def test_what_is_iterated_over_is_what_decode_gives(
    window: int, strategy: str, options: dict[str, Any], model: Model
) -> None:
    found = model.iterate(iter(LINES), strategy, window=window, batch_size=2, max_len=9, **options)
    assert [each.tokens for each in found] == [
        each.tokens for each in model.decode(LINES, strategy, max_len=9, **options)
    ]


@pytest.mark.parametrize("window", [1, 3])
def test_lines_are_read_as_they_are_asked_for(window: int, model: Model) -> None:
    """Of endless lines, no more than a window lies between what is read and what is given."""
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for read in count(1):
            yield WORDS[read % len(WORDS)]

    found = model.iterate(endless(), window=window, max_len=4)
    assert read == 0
    for given, _ in enumerate(islice(found, 10), start=1):
        assert given <= read <= given + window - 1


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_lines_of_a_file(end: str, model: Model, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes("".join(f"{line}{end}" for line in LINES).encode())
    with open(tmp_path / "in.txt", encoding="utf-8", newline="") as file:
        assert [*model.iterate(file, "iad")] == model.decode(LINES, "iad")


def test_a_line_end_is_no_part_of_a_line() -> None:
    """The shipped model's pieces know no line feed: one would be an unknown word."""
    model = nartk.load("gec-en")
    assert model.decode(["She go home .\n"]) == model.decode(["She go home ."])


def test_an_index_counts_all_lines(model: Model) -> None:
    found = model.iterate(["she", "it", 3], window=2)  # type: ignore[list-item]
    with pytest.raises(UsageError, match=r"lines\[2\] is 3, not a string"):
        list(found)


def test_in_order_yields_each_as_soon_as_it_can() -> None:
    taken: list[int] = []

    def outcomes() -> Iterator[tuple[int, str]]:
        for index in (2, 0, 1, 4, 3):
            taken.append(index)
            yield index, "abcde"[index]

    assert [(each, len(taken)) for each in in_order(outcomes())] == [
        ("a", 2),
        ("b", 3),
        ("c", 3),
        ("d", 5),
        ("e", 5),
    ]


# Public names


def test_every_error_is_public() -> None:
    named = {
        name for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, NartkError)
    }
    assert named == {name for name in nartk.__all__ if name.endswith("Error")}
    assert all(getattr(nartk, name) is getattr(errors, name) for name in named)


def test_public_names_are_there_and_typed() -> None:
    """Type checkers see what is imported for them; at run time names are found on first use."""
    source = Path(nartk.__file__).read_text(encoding="utf-8")
    typed = {
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    } - {"annotations", "import_module", "Path", "TYPE_CHECKING"}
    assert typed | {"__version__"} == {*nartk.__all__}
    assert sorted(nartk.__all__) == nartk.__all__
    assert all(getattr(nartk, name) is not None for name in nartk.__all__)
    assert {*nartk.__all__} <= {*dir(nartk)}
    assert {"Hypothesis", "Decoded", "DecodeStats", "Result", "TokenTrace", "Model", "load"} <= typed
    with pytest.raises(AttributeError, match="module 'nartk' has no attribute 'nothing'"):
        _ = nartk.nothing  # type: ignore[attr-defined]


def test_options_have_a_type() -> None:
    beam = nartk.strategy_class("beam")
    assert "beam_size: 'int' = 5" in str(inspect.signature(beam))


def test_a_name_loads_no_more_than_it_must() -> None:
    code = """
import sys, nartk
assert [name for name in sys.modules if name.startswith("nartk.")] == ["nartk.version"]
assert "load" in dir(nartk)
nartk.UsageError, nartk.Hypothesis
assert {name for name in sys.modules if name.startswith("nartk.")} == {
    "nartk.version", "nartk.errors", "nartk.protocols", "nartk.protocols.guarantee",
    "nartk.protocols.hypothesis", "nartk.protocols.outputs"}
assert "numpy" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
