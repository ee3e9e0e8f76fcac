"""What stands at the end of a prefix, and lines without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from support import tiny

import nartk
from nartk.engine import available
from nartk.errors import InputFormatError

needs_engine = pytest.mark.skipif(not available(), reason="there is no engine here")

INVISIBLE = ["\u200b", "\u200b\u200e \ufeff", "\u00ad"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> nartk.Model:
    return nartk.load(tiny.random_model(tmp_path_factory.mktemp("model"), seed=3))


@pytest.mark.parametrize("strategy", ["greedy", "iad", "ngram", "beam", "sample", "union"])
def test_a_prefix_keeps_its_space(strategy: str, model: nartk.Model) -> None:
    """The word behind it begins with a space, as a brute-force look at the next pieces has it."""
    lines = [*tiny.SENTENCES] * 3
    prefixes = [f"{line.split()[0]}{' ' * (n % 2)}" for n, line in enumerate(lines)]
    options: dict[str, Any] = {"max_len": 12, "repetition_penalty": 1.3 if strategy == "beam" else 1.0}
    found = model.decode(lines, strategy, prefixes=prefixes, **options)
    free = 0
    for prefix, each in zip(prefixes, found, strict=True):
        assert each.text.startswith(prefix) or each.text == prefix.strip()
        free += not each.text.startswith(prefix.strip() + " ")
    assert free  # without the space, some go on with the word
    spaced = [(n, each) for n, each in enumerate(found) if prefixes[n].endswith(" ")]
    assert any(len(each.text) > len(prefixes[n]) for n, each in spaced)


@needs_engine
@pytest.mark.parametrize("pretokenized", [False, True])
def test_ordinary_text_keeps_the_space_too(pretokenized: bool) -> None:
    shipped = nartk.load("gec-en", threads=1, pretokenized=pretokenized)
    found = shipped.decode(["She goes home ."] * 2, prefixes=["S", "S "])
    assert found[1].text.startswith("S ")
    assert not found[0].text.startswith("S ")  # without it, the word goes on
    tokenization = shipped.checkpoint.tokenization
    given = ["Is it? ", "Is it?", " ", ""]
    assert [*map(tokenization.beginning, given)] == ["Is it ? ", "Is it ?", "", ""]


@needs_engine
@pytest.mark.parametrize(
    ("strategy", "options"),
    [("bild", {"fallback": 0.0, "rollback": float("inf")}), ("speculative", {"temperature": 0.5})],
)
@pytest.mark.parametrize("begin", ["I am very hap ", "They have been stud "])
def test_drafts_do_not_go_on_with_its_word(strategy: str, options: dict[str, Any], begin: str) -> None:
    """What accepts by comparing two models does not see which words are forbidden."""
    shipped = nartk.load("gec-en", threads=1)
    line = "I am very happy today ." if begin.startswith("I") else "They have been studying hard ."
    (best,) = shipped.decode([line], strategy, prefixes=[begin], drafter="gec-en", **options)
    assert best.text.startswith(begin)


@needs_engine
@pytest.mark.parametrize("strategy", ["iad", "beam", "sample"])
def test_a_prefix_that_cannot_be_written_is_its_lines_error(strategy: str) -> None:
    shipped = nartk.load("gec-en", threads=1)
    prefixes = ["She 🙂 ", "My ", "Łódź is", ""]
    run = shipped.run(["She go home."] * 4, strategy, prefixes=prefixes)
    assert {at: (type(error), error.message) for at, error in run.errors.items()} == {
        0: (InputFormatError, "the prefix holds '🙂', which the model cannot write"),
        2: (InputFormatError, "the prefix holds 'Łódź', which the model cannot write"),
    }
    assert run.best[1].text.startswith("My ")
    assert run.best[3].error is None


def test_words_that_a_dictionary_lacks_are_none_of_a_prefix(tmp_path: Path) -> None:
    model = nartk.load(tiny.corrector(tmp_path))
    run = model.run(["he go home"], prefixes=["he xyzzy goes plugh"])
    assert str(run.errors[0]).startswith(
        "error[E204 InputFormat] line 1: the prefix holds 'xyzzy', 'plugh', which the model cannot write. "
    )


def test_greedy_search_takes_the_best_word_that_begins(model: nartk.Model) -> None:
    """Against a table of all words that may follow, scored one by one."""
    line, prefix = "She goes to school .", "She "
    (found,) = model.decode([line], "greedy", prefixes=[prefix], max_len=8)
    vocab = model.checkpoint.target_vocab
    start = model.checkpoint.output.encode(prefix)
    assert [*found.tokens[: len(start)]] == start
    words = [id for id, word in enumerate(vocab.words) if word.startswith("▁") or id == vocab.eos]
    scored = model.run(
        [line],
        "greedy",
        options={
            "max_len": len(start) + 1,
            "suppress_ids": " / ".join(
                str(id) for id in range(len(vocab)) if id not in words and id not in start
            ),
        },
        prefixes=[prefix.strip()],
    ).best[0]
    assert scored.tokens[len(start)] == found.tokens[len(start)]


@pytest.mark.parametrize("line", INVISIBLE)
def test_lines_of_invisible_characters_come_out_as_they_went_in(line: str, model: nartk.Model) -> None:
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model.checkpoint.folder / "spm.model"))
    unknown = pieces.encode(line)
    found = model.decode([line, "She goes .", line], "greedy", max_len=6)
    if not unknown:  # no token is left
        assert [found[0].text, found[2].text] == [line, line]
        assert found[0].tokens == ()
    assert not any(each.error for each in found)
    assert found[1].text == model.decode(["She goes ."], "greedy", max_len=6)[0].text


def test_some_of_them_leave_no_token(model: nartk.Model) -> None:
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model.checkpoint.folder / "spm.model"))
    assert any(not pieces.encode(line) for line in INVISIBLE)


def test_a_folder_of_hugging_face_does_so_too(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from support import hf_folders

    hf_folders.text_folder(tmp_path / "model")
    model = nartk.load(tmp_path / "model")
    found = model.decode(["\u200b", "She goes", "\u200b"], "greedy", max_len=6)
    assert [found[0].text, found[2].text] == ["\u200b", "\u200b"]
    (spaced,) = model.decode(["She goes"], "greedy", prefixes=["She "], max_len=9)
    assert spaced.text.startswith("She ") or spaced.text == "She"
