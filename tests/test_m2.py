"""M2 files: reading, applying, writing; what a malformed one says."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nartk.data.m2 import M2Edit, M2Sentence, apply_edits, read_m2, write_m2
from nartk.errors import InputFormatError, NartkError

# Two annotators: the first corrects three things, the second nothing.
EXAMPLE = """S She go to to school
A 1 2|||R:VERB:SVA|||goes|||REQUIRED|||-NONE-|||0
A 3 4|||U:PREP|||-NONE-|||REQUIRED|||-NONE-|||0
A 5 5|||M:PUNCT|||.||!|||REQUIRED|||-NONE-|||0
A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||1

S Fine .
"""


def test_example_read_and_applied() -> None:
    first, second = read_m2(EXAMPLE.splitlines())
    assert first.source == ["She", "go", "to", "to", "school"]
    assert first.edits[0] == M2Edit(1, 2, "R:VERB:SVA", "goes", "REQUIRED", 0)
    assert first.edits[1].alternatives == [[]]
    assert first.edits[2].alternatives == [["."], ["!"]]
    assert (first.annotators, second.annotators) == ([0, 1], [0])
    assert apply_edits(first, 0) == ["She", "goes", "to", "school", "."]
    assert apply_edits(first, 1) == first.source
    assert apply_edits(second, 0) == ["Fine", "."]


def test_insertions_at_one_place_keep_their_order() -> None:
    sentence = M2Sentence(
        ["a", "b"], [M2Edit(1, 1, "M", "x"), M2Edit(1, 1, "M", "y z"), M2Edit(1, 2, "R", "c")]
    )
    assert apply_edits(sentence) == ["a", "x", "y", "z", "c"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "A 0 1|||T|||x|||REQUIRED|||-NONE-",
            "an edit line has 6 columns separated by '|||', but this one has 5",
        ),
        (
            "A 0 x|||T|||x|||R|||-|||0",
            "the span must be two integers and the annotator one, but they are '0 x' and '0'",
        ),
        (
            "A 0|||T|||x|||R|||-|||0",
            "the span must be two integers and the annotator one, but they are '0' and '0'",
        ),
        ("A 0 3|||T|||x|||R|||-|||0", "the span 0 3 does not lie in the source of 2 tokens"),
        ("A 1 0|||T|||x|||R|||-|||0", "the span 1 0 does not lie in the source of 2 tokens"),
        ("B 0 1", "a line starts with 'S ' or 'A ' or is empty, but this one is 'B 0 1'"),
    ],
)
def test_malformed_line_is_named(line: str, message: str) -> None:
    with pytest.raises(InputFormatError) as caught:
        list(read_m2(["S a b", line], name="gold.m2"))
    assert (caught.value.message, caught.value.where) == (message, "gold.m2:2")


def test_edit_without_source_is_named() -> None:
    with pytest.raises(InputFormatError) as caught:
        list(read_m2(["S a", "", "A 0 1|||T|||x|||R|||-|||0"], name="gold.m2"))
    assert str(caught.value) == (
        "error[E204 InputFormat] gold.m2:3: an edit line comes before any source line. "
        "Fix: start each block with 'S'."
    )


def test_overlapping_edits_are_refused() -> None:
    sentence = M2Sentence(["a", "b", "c"], [M2Edit(0, 2, "R", "x"), M2Edit(1, 3, "R", "y")])
    with pytest.raises(InputFormatError, match="the edit 1 3 of annotator 0 overlaps the one before it"):
        apply_edits(sentence)


columns = st.one_of(
    st.text(max_size=8), st.sampled_from(["0", "1", "-1", "-NONE-", "noop", "x||y", "9" * 5000])
)
edit_lines = st.tuples(
    st.tuples(columns, columns).map(" ".join), *[columns] * 5
).map(lambda fields: "A " + "|||".join(fields))  # fmt: skip
lines = st.one_of(st.text(max_size=30), st.text(max_size=20).map("S ".__add__), edit_lines, st.just(""))


@given(st.lists(lines, max_size=8))
def test_any_lines_give_sentences_or_a_named_error(text: list[str]) -> None:
    try:
        sentences = list(read_m2(text))
    except NartkError:
        return
    for sentence in sentences:
        for annotator in sentence.annotators:
            try:
                apply_edits(sentence, annotator)
            except NartkError:
                continue
    assert list(read_m2(write_m2(sentences))) == sentences


@pytest.mark.shared
@pytest.mark.parametrize(
    ("m2", "annotator", "text"),
    [
        ("CWEB-G.dev", 0, "CWEB-G.dev.tok.ann1"),
        ("CWEB-G.dev", 1, "CWEB-G.dev.tok.ann2"),
        ("CWEB-S.dev", 0, "CWEB-S.dev.tok.ann1"),
        ("CWEB-S.dev", 1, "CWEB-S.dev.tok.ann2"),
        ("CWEB-G.test", 0, "CWEB-G.test.norm.tok.ann1"),
        ("CWEB-G.test", 1, "CWEB-G.test.tok.ann2"),
    ],
)
def test_cweb_edits_give_the_annotators_own_text(
    shared_data: Path, m2: str, annotator: int, text: str
) -> None:
    """The oracle: the corrected text that the CWEB project published beside its M2 files."""
    cweb = shared_data / "gec" / "cweb"
    with lzma.open(cweb / "tokenized" / f"{text}.xz", "rt", encoding="utf-8", newline="\n") as file:
        expected = file.read()
    with lzma.open(cweb / "m2" / f"{m2}.m2.xz", "rt", encoding="utf-8", newline="\n") as file:
        given_lines = file.readlines()
    sentences = list(read_m2(given_lines))
    assert [apply_edits(sentence, annotator) for sentence in sentences] == [
        [token for token in line.split(" ") if token] for line in expected.removesuffix("\n").split("\n")
    ]
    assert list(write_m2(sentences)) == given_lines


@pytest.mark.shared
def test_jflegs_spans_outside_its_sentences_are_named(shared_data: Path) -> None:
    """JFLEG's converter counted tokens of another tokenisation in places; the error names the line."""
    with (
        lzma.open(shared_data / "gec" / "jfleg" / "dev.ref.m2.xz", "rt", encoding="utf-8") as file,
        pytest.raises(InputFormatError) as caught,
    ):
        list(read_m2(file, name="dev.ref.m2"))
    assert caught.value.where == "dev.ref.m2:340"
    assert caught.value.message == "the span 13 13 does not lie in the source of 11 tokens"
