"""The tokeniser, its inverse, and the text that ships."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nartk.data import text
from nartk.data.gec import rates
from nartk.data.text import CORPORA, corpus_names, detokenize, read_corpus, read_shipped, tokenize
from nartk.errors import InputFileError, MissingDependencyError

# Plain text and its tokens, by hand after the rules of the Penn Treebank.
CASES = [
    ("I don't know.", "I do n't know ."),
    ("We can't, won't and shouldn't've.", "We ca n't , wo n't and should n't 've ."),
    ("She cannot go; it's late!", "She can not go ; it 's late !"),
    ("They're here, aren't they?", "They 're here , are n't they ?"),
    ('He said, "I\'m tired."', 'He said , " I \'m tired . "'),
    ("Mr. Smith lives in the U.S. now.", "Mr. Smith lives in the U.S. now ."),
    ("It costs $3,000.50 (or 5%).", "It costs $ 3,000.50 ( or 5 % ) ."),
    ("The students' books, the 1990s...", "The students ' books , the 1990s ..."),
    ("See https://a.org/x?y=1, or mail a.b@c.org.", "See https://a.org/x?y=1 , or mail a.b@c.org ."),
    ("A well-known and/or non-stop one.", "A well-known and/or non-stop one ."),
    ("Wait -- what?", "Wait -- what ?"),
    ("", ""),
]


@pytest.mark.parametrize(("plain", "tokens"), CASES)
def test_tokens_by_hand_both_ways(plain: str, tokens: str) -> None:
    assert tokenize(plain) == tokens.split()
    assert detokenize(tokens.split()) == plain


@pytest.mark.parametrize("tokens", [tokens for _, tokens in CASES])
def test_tokenised_text_stays(tokens: str) -> None:
    assert tokenize(tokens) == tokens.split()


@given(st.text(max_size=60))
def test_no_character_is_lost_or_made(text: str) -> None:
    tokens = tokenize(text)
    assert "".join(tokens) == "".join(text.split())
    assert all(tokens)
    assert "".join(detokenize(tokens).split()) == "".join(text.split())


@pytest.mark.shared
def test_plain_web_text_comes_back(shared_data: Path) -> None:
    """At least 93 of 100 sentences of raw web text survive the round trip to the letter.

    The others hold spaces before punctuation, missing spaces, smileys and the like.
    """
    with lzma.open(shared_data / "ud_ewt" / "en_ewt-ud-dev.conllu.xz", "rt", encoding="utf-8") as file:
        texts = [" ".join(line[9:].split()) for line in file if line.startswith("# text = ")]
    kept = sum(detokenize(tokenize(text)) == text for text in texts)
    assert kept >= 0.93 * len(texts)


@pytest.mark.shared
def test_jflegs_tokens_stay(shared_data: Path) -> None:
    """The data sets' own tokens are this tokeniser's tokens, given or made anew from plain text."""
    lines = (shared_data / "gec" / "jfleg" / "dev.src").read_text(encoding="utf-8").splitlines()
    assert sum(tokenize(line) == line.split() for line in lines) >= 0.97 * len(lines)
    assert sum(tokenize(detokenize(line.split())) == line.split() for line in lines) >= 0.97 * len(lines)


def test_shipped_corpora_are_clean_and_small() -> None:
    assert corpus_names() == [
        *("18f", "common_voice", "onestopenglish", "openstax", "scitldr", "state_union"),
        *("storyweaver", "tanaka", "tatoeba", "ud_ewt", "wikisplit"),
    ]
    assert sum(path.stat().st_size for path in CORPORA.iterdir()) < 31_000_000
    sentences = list(read_corpus())
    assert len(sentences) > 450_000
    assert all(len(tokens) >= 4 and all(tokens) for tokens in sentences)
    licences = (CORPORA / "LICENSES.md").read_text(encoding="utf-8")
    assert [
        path.name for path in CORPORA.iterdir() if path.suffix == ".xz" and f"| {path.name} |" not in licences
    ] == []


@pytest.mark.shared
def test_evaluation_text_does_not_ship(shared_data: Path) -> None:
    """JFLEG and CWEB measure the model and are not free to ship, so the corpora hold none of their sentences.

    Two examples of the Tanaka corpus stand on the web pages that CWEB collected.
    """
    shipped = {" ".join(tokens) for tokens in read_corpus()}
    jfleg: set[str] = set()
    for path in (shared_data / "gec" / "jfleg").glob("dev.*"):
        if path.suffix != ".xz":
            jfleg.update(line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    cweb: set[str] = set()
    for path in (shared_data / "gec" / "cweb" / "tokenized").iterdir():
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            cweb.update(line.strip() for line in lines)
    assert {line for line in jfleg & shipped if line.count(" ") > 6} == set()
    assert {line for line in cweb & shipped if line.count(" ") > 6} <= {
        "I am willing to help you with your work .",
        "I visited him once in a while .",
    }


def test_unknown_corpus_is_named() -> None:
    with pytest.raises(InputFileError) as caught:
        list(read_shipped("nope.txt.xz"))
    assert str(caught.value) == (
        "error[E201 InputFile] no shipped text is called 'nope.txt.xz'. "
        f"Fix: take one of {', '.join(corpus_names())}."
    )


@pytest.mark.parametrize("read", [corpus_names, read_corpus, rates._shipped.__wrapped__])
def test_without_the_corpora_the_remedy_is_named(
    read: Callable[[], Iterable[object]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(text, "CORPORA", tmp_path / "corpora")
    with pytest.raises(MissingDependencyError) as caught:
        list(read())
    assert str(caught.value) == (
        "error[E104 MissingDependency] the corpora of nartk's repository are needed, and no wheel holds them"
        ". Fix: pip install -e FOLDER, with FOLDER a clone of the repository."
    )
