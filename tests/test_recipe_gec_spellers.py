"""The spell checkers of the correction recipe: what they change, and the speller that is made of text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.recipe_scripts import imported

from nartk.data.gec.lexicon import held_out_misspellings
from nartk.data.gec.speller import make_speller, read_speller
from nartk.data.gec.spelling import spelling_noise

spellers = imported("gec", "spellers.py")
fit = imported("gec", "fit_speller.py")

KNOWN = frozenset(["the", "old", "house", "is", "here"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("teh old hosue.", ["teh", "hosue"]),
        ("Teh (hosue) is here", ["Teh", "hosue"]),
        ("the old Zwiebel is here", []),  # a name
        ("is it http://teh.org/hosue or teh@hosue or teh_hosue(x) or hosue2", []),
        ("TEH HOSUE", []),
        ("the o1d hosue-here don't", []),
        ('"Hosue is here."', ["Hosue"]),
    ],
)
def test_misspellings_are_plain_words_that_are_in_no_list(line: str, words: list[str]) -> None:
    known = KNOWN | {"it", "or"}
    assert [line[begin:end] for begin, end in spellers.misspelt(line, known)] == words


def test_a_line_is_left_alone_but_for_its_misspellings() -> None:
    forms = {"teh": "the", "hosue": "house", "isnt": "is n't"}
    given = []

    def fix(word: str, before: str, after: str) -> str | None:
        given.append((word, before, after))
        return forms.get(word.lower())

    def checked(line: str, *, tokens: bool) -> str:
        return str(spellers.checked(line, KNOWN, fix, tokens=tokens))

    line = "Teh  old “hosue” isnt  heer!"
    assert checked(line, tokens=False) == "The  old “house” isn't  heer!"
    assert given[1] == ("hosue", "The  old “", "” isnt  heer!")
    assert checked("Teh hosue isnt heer !", tokens=True) == "The house is n't heer !"


def test_the_speller_by_itself_has_the_words_beside() -> None:
    counts = fit.Counts([["the", "old", "house"], ["a", "loose", "horse"]] * 50)
    words = ("the", "old", "house", "a", "loose", "horse")
    fix = spellers.own(
        make_speller(counts.singles, counts.pairs, dict.fromkeys(words, 0.1), spelling_noise().lines())
    )
    assert fix("hoxse", "The old ", " .") == "house"
    assert fix("hoxse", "a loose ", " .") == "horse"
    assert fix("qqqqq", "the ", "") is None


def test_words_are_those_of_text_and_list_without_misspellings() -> None:
    lines = [["That", "'s", "plonk"]] * 500 + [["its", "eggs"], ["egg", "'s"]] * 5 + [["rare", "thats"]] * 4
    counts = fit.Counts(lines)
    assert counts.pairs["", "that"] == 500
    assert fit.is_contraction("thats", counts)  # four times beside five hundred
    assert not fit.is_contraction("eggs", counts)
    words = fit.words_of(counts, {"thats": 9, "teh": 9, "tabled": 9})
    assert {"that", "plonk", "eggs", "tabled", "receive"} <= words  # codespell corrects to the last one
    assert not {"thats", "teh", "rare"} & words


def test_misspellings_that_are_no_words_are_listed() -> None:
    """By codespell's own list; one that is held out is not there."""
    words = ["recieve", "thx"]
    found = {wrong: right for wrong, *right in (line.split("\t") for line in fit.known(words))}
    assert found["definately"] == ["definitely"]
    assert found["palce"] == ["palace", "place"]
    assert found["alot"] == ["a lot", "allot"]
    assert found["tonite"] == ["tonight"]
    assert found["alrite"] == ["all right"]
    held_out = {wrong.lower() for each in held_out_misspellings().values() for wrong in each}
    assert not found.keys() & {*words, *held_out}
    assert len(found) > 55_000


def test_the_speller_goes_into_the_models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"guard": {"list": "words.txt"}, "files": {}}))
    (tmp_path / "list.txt").write_text("\ufeffhouse 90\nold 5\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text("the old wozzle is here\n" * 9)  # a line counts once
    monkeypatch.setattr(fit, "corpus_names", list)
    folder = str(tmp_path)
    monkeypatch.setattr(
        fit.sys, "argv", ["", folder, "--frequencies", f"{folder}/list.txt", "--text", f"{folder}/text.txt"]
    )
    fit.main()
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["guard"] == {"list": "words.txt", "speller": "speller.npz.xz"}
    assert list(config["files"]) == ["speller.npz.xz"]
    found = read_speller(tmp_path / "speller.npz.xz")
    assert "house" in found
    assert "wozzle" not in found
    assert found.spell(["The", "hosue", "is", "old"]) == ["The", "house", "is", "old"]
