"""Ordinary text: a line's sentences, their tokens, and the line again."""

from __future__ import annotations

import random
import re
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nartk.data.paragraphs import read_paragraph, sentence_spans
from nartk.protocols.paragraph import Paragraph, Tokenized
from nartk.vocab import UNKNOWN

# Where sentences end, by hand: "¦". At "‖" a person would see an end too, and `sentence_spans` does not.
MARKED = (Path(__file__).parent / "support" / "ordinary.txt").read_text(encoding="utf-8").split("\n")[:-1]
LINES = [re.sub("[¦‖]", "", line) for line in MARKED]


def spell(text: str) -> str:
    """Writes ASCII alone, as a small vocabulary does."""
    return re.sub(r"[^\x20-\x7e]+", UNKNOWN, text)


def corrected(line: str, outputs: dict[str, str]) -> str:
    paragraph = read_paragraph(line, spell)
    return paragraph.join([outputs.get(each.text, each.text) for each in paragraph.sentences])


def test_there_are_200_lines_with_ends_that_a_person_marked() -> None:
    assert len(LINES) >= 200
    assert sum(line.count("¦") for line in MARKED) >= 70
    assert sum(line.count("‖") for line in MARKED) <= 5


@pytest.mark.parametrize("marked", MARKED)
def test_sentences_end_where_a_person_says(marked: str) -> None:
    line = re.sub("[¦‖]", "", marked)
    found = [line[start:end] for start, end in sentence_spans(line)]
    assert found == [part.replace("‖", "").strip() for part in marked.split("¦")]


@pytest.mark.parametrize("line", LINES)
def test_what_is_left_alone_comes_back_to_the_letter(line: str) -> None:
    assert corrected(line, {}) == line
    for whole in (False, True):
        paragraph = read_paragraph(line, str, whole=whole)
        assert paragraph.join([each.text for each in paragraph.sentences]) == line


@given(st.text(st.characters(codec="utf-8"), max_size=80) | st.text("aA.!?'\"“”‘’ (1…\u200b", max_size=40))
def test_no_text_is_changed_or_lost(text: str) -> None:
    for whole in (False, True):
        paragraph = read_paragraph(text, spell, whole=whole)
        assert paragraph.join([spell(each.text) for each in paragraph.sentences]) == text
        assert all(each.text for each in paragraph.sentences)
    spans = sentence_spans(text)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


BOUND = ("can", "not", "gon", "wan")  # tokens of one typed word


def is_well_formed(text: str) -> bool:
    """Neither white space before what closes or behind what opens, nor a clitic apart."""
    return re.search(r"\s[,;!?)\]]|\s\.(?!\.)|[(\[]\s|\s(?:n't|'s|'ll|'ve|'re|'m)\b", text) is None


def test_edited_sentences_are_spaced_as_english_is() -> None:
    """Tokens dropped, replaced and inserted at random: what was well-formed stays so, quotes stay closed."""
    draw = random.Random(1)
    edits = 0
    for line in LINES:
        if not (line.isascii() and is_well_formed(line)) or "`" in line or "''" in line:
            continue
        for _ in range(20):
            paragraph = read_paragraph(line, str)
            outputs = []
            for sentence in paragraph.sentences:
                words = sentence.text.split()
                at = draw.randrange(len(words))
                if (
                    words[at].isalpha()
                    and words[at] in (words[at].lower(), words[at].capitalize())
                    and "'" not in "".join(words[at + 1 : at + 2])
                    and words[at] not in BOUND
                ):
                    how = draw.choice(["drop", "replace", "insert"] if at else ["replace"])
                    words[at : at + 1] = {"drop": [], "replace": ["word"], "insert": [words[at], "word"]}[how]
                    edits += 1
                outputs.append(" ".join(words))
            found = paragraph.join(outputs)
            assert is_well_formed(found), (line, outputs, found)
            assert found.count('"') == line.count('"')
            # No character of an output is changed or lost, nor of what lies between, but for sorts of quotes.
            pairs = zip(outputs, paragraph.between[1:], strict=True)
            wanted = paragraph.between[0] + "".join(output + rest for output, rest in pairs)
            assert "".join(found.split()).replace("'", '"') == "".join(wanted.split()).replace("'", '"')
    assert edits > 1000


# A line, what the model writes of its sentences, and the line that comes of it: by hand.
CORRECTIONS = [
    ("She go home.", {"She go home .": "She goes home ."}, "She goes home."),
    (
        'She go home.  He said: "I am agree."',
        {"She go home .": "She goes home .", 'He said : " I am agree . "': 'He said : " I agree . "'},
        'She goes home.  He said: "I agree."',
    ),
    (
        "“I’m agree”,  he say…",
        {'" I \'m agree " , he say ...': '" I agree " , he says ...'},
        "“I agree”,  he says…",
    ),
    ("I dont know", {"I dont know": "I do n't know ."}, "I don't know."),
    ("He do n't know .", {"He do n't know .": "He does n't know ."}, "He doesn't know ."),
    ("Well (I think) so.", {"Well ( I think ) so .": "Well , ( I thought ) so ."}, "Well, (I thought) so."),
    ("‘She go’, he said.", {'" She go " , he said .': '" She goes " , he said .'}, "‘She goes’, he said."),
    (
        "He say 'hello' to me.",
        {'He say " hello " to me .': 'He says " hello " to me .'},
        "He says 'hello' to me.",
    ),
    (
        "'I am agree,' she say. 'I don't go.'",
        {
            '" I am agree , " she say .': '" I agree , " she says .',
            '" I do n\'t go . "': '" I wo n\'t go . "',
        },
        "'I agree,' she says. 'I won't go.'",
    ),
    (
        "'She go. He go,' I said.",
        {'" She go .': '" She goes .', 'He go , " I said .': 'He goes , " I said .'},
        "'She goes. He goes,' I said.",
    ),
    (
        "He say: \"She said 'go'.\"",
        {'He say : " She said " go " . "': 'He says : " She said " go " . "'},
        "He says: \"She said 'go'.\"",
    ),
    ("'Twas the nights.", {'" Twas the nights .': '" Twas the night .'}, "'Twas the night."),
    (
        "I like rock 'n' rolls.",
        {'I like rock " n " rolls .': 'I like rock " n " roll .'},
        "I like rock 'n' roll.",
    ),
    ("He 's here.", {"He 's here .": "He is here ."}, "He is here."),
    ("Its the dogs bowl.", {"Its the dogs bowl .": "It 's the dog 's bowl ."}, "It's the dog's bowl."),
    ("The boys' toy.", {"The boys ' toy .": "The boy 's toys ."}, "The boy's toys."),
    ("Two iPhone and CD.", {"Two iPhone and CD .": "Two iPhones and CDs ."}, "Two iPhones and CDs."),
    ("HE GO TO HTTP.", {"HE GO TO HTTP .": "HE GOES TO HTTP ."}, "HE GOES TO HTTP."),
    ("- Is you ok?", {"Is you ok ?": "Are you OK ?"}, "- Are you OK?"),
    ("Go 😀 to café.", {"Go 😀 to café .": f"Goes {UNKNOWN} to caf{UNKNOWN} ."}, "Goes 😀 to café."),
    ("(She go.)", {"( She go . )": "( She goes . ) ."}, "(She goes.)"),
]


@pytest.mark.parametrize(("line", "outputs", "wanted"), CORRECTIONS)
def test_corrections_by_hand(line: str, outputs: dict[str, str], wanted: str) -> None:
    assert [each.text for each in read_paragraph(line, spell).sentences] == [*outputs]
    assert corrected(line, outputs) == wanted


# Edits that are undone: of numbers, addresses, names, quotes, and what the model cannot write.
UNDONE = [
    ("I have 50 dog.", "I has 5 dogs .", "I has 50 dogs."),
    ("It cost 5 5 5 euro.", "It costs 5 5 euro .", "It cost 5 5 5 euro."),
    ("See https://a.org/teh now.", "Look https://a.org/the now .", "Look https://a.org/teh now."),
    ("Mail teh@a.org now.", "Mail it now .", "Mail teh@a.org now."),
    ('He said "go".', "He said go .", 'He said "go".'),
    ("He said 'go' to me.", "He said 's go 's me .", "He said 'go' to me."),
    ("'Twas dark.", "I 's Twas dark .", "'Twas dark."),
    ("I said :'( again.", 'I said : the"( again .', "I said :'( again."),
    ("It is 6' tall.", "It is 6 's tall .", "It is 6' tall."),
    ("The boys' toy.", "The boy ' toys .", "The boys' toys."),
    ("See HTTP://A.ORG/Abc now.", "Look HTTP:/A.ORG/Abc now .", "Look HTTP://A.ORG/Abc now."),
    ("See file:///etc/passwd now.", "Look file://etc/passswed now .", "Look file:///etc/passwd now."),
    ("See s3://a/Key now.", "Look s3:/a/key now .", "Look s3://a/Key now."),
    ("See https://a.org/b?c= now.", "See https://a.org/b ? now .", "See https://a.org/b?c= now."),
    ("See https://a.org/b--c now.", "See https://a.org/b c now .", "See https://a.org/b--c now."),
    ("Go to WWW.X.ORG now.", "Go to WW.X.ORG now .", "Go to WWW.X.ORG now."),
    ("Ask me@host now.", "Ask me at host now .", "Ask me@host now."),
    ("eBay are good.", "Everythay is good .", "eBay is good."),
    ("The iPhone are good.", "The IPhone is good .", "The iPhone is good."),
    ("WWW are HTTPS.", "WW is HTPS .", "WWW is HTTPS."),
    (
        "The notes.txt in /etc/passwd are.",
        "The note.tx in /etc/passswd is .",
        "The notes.txt in /etc/passwd is.",
    ),
    ("I love #teh photos.", "I love the photo .", "I love #teh photo."),
    ("It were at 14:05:33 again.", "It was at 14:05 ,:33 again .", "It was at 14:05:33 again."),
    ("I love 日本 very.", "I love you very .", "I love 日本 very."),
    ("I love it.", f"I love {UNKNOWN} it .", "I love it."),
]


@pytest.mark.parametrize(("line", "output", "wanted"), UNDONE)
def test_what_a_model_cannot_know_is_kept(line: str, output: str, wanted: str) -> None:
    (sentence,) = read_paragraph(line, spell).sentences
    assert sentence.restore(output) == wanted


@pytest.mark.parametrize(
    "line",
    [
        *(
            "これは日本語の文です。",
            "Это предложение на русском языке.",
            "😀 😀",
            "12 + 3 = 15",
            ":)",
            "...",
            "\u200b",
        ),
        "Je ne sais pas où il est, mais je pense que oui.",
        "Hola, me llamo Juan y vivo en Madrid.",
        "Ich habe gestern einen Brief geschrieben.",
        "https://example.com/a/b",
    ],
)
def test_what_is_not_english_is_not_decoded(line: str) -> None:
    assert read_paragraph(line, spell) == Paragraph((), (line,))


def test_a_sentence_that_is_not_english_stands_between_those_that_are() -> None:
    found = read_paragraph("She go. Je ne sais pas. He go.", spell)
    assert [each.text for each in found.sentences] == ["She go .", "He go ."]
    assert found.between == ("", " Je ne sais pas. ", "")


def test_a_forced_prefix_is_not_undone() -> None:
    (sentence,) = read_paragraph("I have 50 dog.", spell, whole=True, prefix=3).sentences
    assert sentence.restore("I have 7 dogs .") == "I have 7 dogs."


def test_a_tokenised_line_stays_as_it_is() -> None:
    assert Paragraph((Tokenized("She go ."),), ("", "")).join(["She goes ."]) == "She goes ."


@pytest.mark.parametrize(
    "text",
    [
        "!" * 100_000,
        '." ' * 10_000,
        "a " * 20_000,
        "a.b" * 30_000,
        "‘a " * 10_000,
        "'a " * 10_000,
        "a' '" * 10_000,
        "'a" * 9_999,
    ],
)
def test_the_work_grows_with_the_text_alone(text: str) -> None:
    """Not with its square, which would take hours here."""
    assert read_paragraph(text, str).join([each.text for each in read_paragraph(text, str).sentences]) == text


def test_the_lines_are_of_many_sorts() -> None:
    text = "\n".join(LINES)
    scripts = {unicodedata.name(char, "").split()[0] for char in text if char.isalpha()}
    assert scripts >= {"LATIN", "CYRILLIC", "GREEK", "CJK", "HIRAGANA"}
    assert all(mark in text for mark in ("http", "@", "“", "‘", "'", '"', "\u200b", "\u00a0", "  ", "😀"))
