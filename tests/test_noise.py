"""Noise: reproducible, at the rates asked for, never empty; measuring rates; the command."""

from __future__ import annotations

import contextlib
import io
import json
import lzma
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nartk.cli.noise import main
from nartk.data.gec.lexicon import lexicon, misspellings, regular_form
from nartk.data.gec.noise import Noiser, annotate, misspell
from nartk.data.gec.rates import (
    ERROR_TYPES,
    REWRITE,
    NoiseRates,
    align,
    classify,
    fit_rates,
    load_rates,
    rates_names,
)
from nartk.data.m2 import M2Edit, M2Sentence, read_m2
from nartk.data.text import read_corpus
from nartk.errors import InputFileError, InputFormatError, UsageError

REPOSITORY = Path(__file__).resolve().parents[1]
NOISE_300 = """
import itertools
from nartk.data.gec.noise import Noiser
from nartk.data.text import read_corpus
for line, tokens in enumerate(itertools.islice(read_corpus("tanaka"), 300)):
    print(Noiser(seed=2).noise_line(tokens, line))
"""


@pytest.fixture(scope="module")
def sentences() -> list[list[str]]:
    """Every fiftieth shipped sentence of 12 tokens at least: room for errors of every kind."""
    return [tokens for tokens in read_corpus() if len(tokens) >= 12][::50]


def only(kind: str, rate: float = 0.1) -> NoiseRates:
    """Rates of one kind alone, in every sentence."""
    return NoiseRates(0.0, rate, 2.0, ((kind, 1.0),))


def test_same_seed_line_and_copy_give_the_same_noise_in_any_order(sentences: list[list[str]]) -> None:
    some = sentences[:200]
    forwards = [Noiser(seed=5).noise_line(tokens, line, 1) for line, tokens in enumerate(some)]
    noiser = Noiser(seed=5)
    backwards = [noiser.noise_line(annotate(some[line]), line, 1) for line in reversed(range(len(some)))][
        ::-1
    ]
    assert forwards == backwards
    other_copy = [noiser.noise_line(tokens, line, 2) for line, tokens in enumerate(some)]
    other_seed = [Noiser(seed=6).noise_line(tokens, line, 1) for line, tokens in enumerate(some)]
    for other in (other_copy, other_seed):
        assert sum(a == b for a, b in zip(forwards, other, strict=True)) < 0.2 * len(some)


def test_noise_does_not_depend_on_the_process() -> None:
    """String hashes differ from process to process; noise must not."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", NOISE_300],
            capture_output=True,
            check=True,
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY)},
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert runs[0].count(b"\n") == 300


@pytest.mark.parametrize("name", ["gec-en", "jfleg", "cweb"])
def test_rates_are_honoured(name: str, sentences: list[list[str]]) -> None:
    """Shares of sentences, edits and kinds over 1,300 sentences and a fixed seed, against the table.

    A count is Poisson with a mean m that is gamma distributed with shape k, and at least 1: its mean is then
    m + E[exp(-m)] = m + (1 + m / k) ** -k, by the gamma distribution's Laplace transform.
    """
    rates = load_rates(name)
    noiser = Noiser(rates)
    kinds: Counter[str] = Counter()
    unchanged = 0
    expected = 0.0
    for line, tokens in enumerate(sentences):
        _, made = noiser.noise_with_types(tokens, Random(line))
        kinds.update(made)
        unchanged += not made
        if made:
            mean = rates.edits_per_token * len(tokens)
            expected += mean + (1 + mean / rates.dispersion) ** -rates.dispersion
    assert unchanged / len(sentences) == pytest.approx(rates.unchanged, abs=0.05)
    # Up to a tenth of the edits find no place for their kind.
    assert 0.88 * expected < kinds.total() < 1.02 * expected
    total = sum(weight for _, weight in rates.weights)
    for kind, weight in rates.weights:
        assert kinds[kind] / kinds.total() == pytest.approx(weight / total, abs=0.035), kind


def test_higher_rates_give_more_edits(sentences: list[list[str]]) -> None:
    """The known-bad twin of the test above: a generator deaf to its table would give equal counts."""
    counts = [
        sum(
            len(Noiser(only("spelling", rate)).noise_with_types(s, Random(n))[1])
            for n, s in enumerate(sentences)
        )
        for rate in (0.02, 0.1, 0.2)
    ]
    assert counts[0] < 0.6 * counts[1] < 0.6 * counts[2]


@pytest.mark.parametrize("kind", [kind for kind in ERROR_TYPES if kind != "order"])
def test_each_kind_makes_errors_that_look_like_it(kind: str, sentences: list[list[str]]) -> None:
    """The classifier knows nothing of the generator's choices; it must name most of its edits rightly."""
    noiser = Noiser(only(kind, 0.05))
    found: Counter[str] = Counter()
    for line, tokens in enumerate(sentences[:400]):
        noised = noiser.noise_line(tokens, line)
        for edit in align(noised, tokens):
            if not edit.is_noop:
                found[classify(noised[edit.start : edit.end], edit.alternatives[0])] += 1
    assert found.total() > 50
    assert found.most_common(1)[0][0] == kind
    assert found[kind] > 0.5 * found.total()


def test_order_moves_tokens_only(sentences: list[list[str]]) -> None:
    noiser = Noiser(only("order"))
    changed = 0
    for line, tokens in enumerate(sentences[:100]):
        noised = noiser.noise_line(tokens, line)
        assert sorted(noised) == sorted(tokens)
        changed += noised != tokens
    assert changed > 60


@given(st.lists(st.text(min_size=1, max_size=9).filter(lambda text: text.split() == [text]), max_size=12))
def test_noise_is_never_empty_and_never_fails(tokens: list[str]) -> None:
    noiser = Noiser(NoiseRates(0.0, 1.0, 0.5, tuple((kind, 1.0) for kind in ERROR_TYPES)))
    for line in range(4):
        noised = noiser.noise_line(tokens, line)
        assert bool(noised) == bool(tokens)
        assert all(token.split() == [token] for token in noised)


@given(st.text(alphabet="abcdefghiklmnopqrstuvwyz'éß", min_size=2, max_size=14), st.integers(0, 2**32))
def test_a_misspelling_differs_and_keeps_case(word: str, seed: int) -> None:
    word = "a" + word  # an apostrophe at the beginning has no capital
    assert misspell(word, Random(seed)) not in ("", word)
    assert misspell(word.capitalize(), Random(seed))[0] == misspell(word, Random(seed))[0].upper()[0]


def test_codespell_is_read_by_its_rules() -> None:
    """Facts of the list: remarks after the first answer, several answers, more than two answers left out."""
    table = misspellings()
    assert "recive" in table["receive"]
    assert {"becuase", "beacuse"} <= set(table["because"])
    assert "aache" in table["cache"]
    assert "aache" in table["ache"]


@pytest.mark.parametrize(
    ("lemma", "tag", "form"),
    [
        ("study", "VBZ", "studies"),
        ("play", "NNS", "plays"),
        ("watch", "VBZ", "watches"),
        ("stop", "VBG", "stopping"),
        ("make", "VBG", "making"),
        ("agree", "VBG", "agreeing"),
        ("fix", "VBG", "fixing"),
        ("try", "VBD", "tried"),
        ("plan", "VBN", "planned"),
        ("bake", "VBD", "baked"),
    ],
)
def test_regular_forms(lemma: str, tag: str, form: str) -> None:
    assert regular_form(lemma, tag) == form


def test_lexicon_knows_irregular_forms_and_tags_by_context() -> None:
    book = lexicon()
    assert book.inflect("go", "VBD") == "went"
    assert book.inflect("child", "NNS") == "children"
    assert book.reinflect("goes", "VBZ", "VBP") == "go"
    assert book.reinflect("go", "VB", "VBP") is None
    assert book.tag(["She", "can", "play", "the", "piano", "."]) == ["PRP", "MD", "VB", "DT", "NN", "."]
    assert book.tag(["The", "play", "was", "good"])[1] == "NN"


@pytest.mark.parametrize(
    ("wrong", "right", "kind"),
    [
        ("recieve", "receive", "spelling"),
        ("the", "The", "casing"),
        ("dont", "do n't", "punctuation"),
        ("", ",", "punctuation"),
        ("", "the", "article"),
        ("a", "an", "article"),
        ("in", "on", "preposition"),
        ("to", "", "preposition"),
        ("book", "books", "noun_number"),
        ("go", "goes", "agreement"),
        ("are", "is", "agreement"),
        ("went", "gone", "verb_form"),
        ("is", "was", "verb_form"),
        ("to go", "going", "verb_form"),
        ("they", "them", "pronoun"),
        ("their", "there", "confusion"),
        ("quick", "quickly", "derivation"),
        ("alot", "a lot", "spacing"),
        ("may be", "maybe", "spacing"),
        ("is it", "it is", "order"),
        ("", "be", "missing"),
        ("very", "", "extra"),
        ("house", "castle", REWRITE),
        ("I think that", "In my opinion ,", REWRITE),
    ],
)
def test_kinds_by_hand(wrong: str, right: str, kind: str) -> None:
    assert classify(wrong.split(), right.split()) == kind


def test_rates_by_hand() -> None:
    """Ten tokens with one and three edits (one a rewrite), ten without: counted by hand."""
    corpus = [
        M2Sentence(["a"] * 10, [M2Edit(0, 0, "", "the"), M2Edit(-1, -1, "noop", "", annotator=1)]),
        M2Sentence(
            ["he", "go", "to", "school", "by", "feets", "every", "day", "long", "ago"],
            [M2Edit(1, 2, "", "goes"), M2Edit(5, 6, "", "bus"), M2Edit(10, 10, "", ".")],
        ),
    ]
    rates = fit_rates(corpus, origin="hand")
    assert (rates.unchanged, rates.edits_per_token, rates.rewrites) == (0.3333, 0.15, 0.25)
    shares = {kind: share for kind, share in rates.weights if share}
    assert shares == {"article": 0.3333, "agreement": 0.3333, "punctuation": 0.3333}
    assert NoiseRates.from_dict(json.loads(json.dumps(rates.to_dict()))) == rates


def test_a_corpus_without_edits_shows_no_rates() -> None:
    with pytest.raises(InputFormatError, match="the corpus has no edits to measure"):
        fit_rates([M2Sentence(["a", "b"])], origin="")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unchanged": 1.5}, "the rate 'unchanged' is 1.5, not from 0 to 1"),
        ({"dispersion": 0}, "the rate 'dispersion' is 0, not from 0.01 to 1000"),
        ({"edits_per_token": "x"}, "the rate 'edits_per_token' is 'x', not from 0 to 1"),
        ({"weights": (("style", 1.0),)}, "no kind of error is called 'style'"),
        ({"weights": (("casing", -1.0),)}, "the weight of 'casing' is -1.0"),
        ({"weights": ()}, "no kind of error has a weight above 0"),
    ],
)
def test_impossible_rates_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        NoiseRates(
            **{"unchanged": 0.1, "edits_per_token": 0.1, "dispersion": 1, "weights": (("order", 1),)} | change
        )
    assert caught.value.message == message


rate_names = st.sampled_from(["unchanged", "edits_per_token", "dispersion", "weights", "origin", "order"])
json_values = st.recursive(
    st.none() | st.floats() | st.text(max_size=9), lambda inner: st.dictionaries(rate_names, inner)
)


@given(json_values)
def test_any_json_is_rates_or_a_named_error(table: object) -> None:
    with contextlib.suppress(InputFormatError, UsageError):
        assert isinstance(NoiseRates.from_dict(table), NoiseRates)


def test_unknown_rates_are_named(tmp_path: Path) -> None:
    assert rates_names() == ["cweb", "eracond", "gec-en", "jfleg", "mlqe"]
    with pytest.raises(InputFileError, match="no table of rates at 'nope'"):
        load_rates("nope")
    (tmp_path / "bad.json").write_bytes(b"\xff{")
    with pytest.raises(InputFileError, match="or one of cweb, eracond, gec-en, jfleg, mlqe"):
        load_rates(str(tmp_path / "bad.json"))


@pytest.mark.shared
def test_shipped_rates_are_those_of_cweb_and_jfleg(shared_data: Path) -> None:
    gec = shared_data / "gec"
    cweb: list[M2Sentence] = []
    for part in ("G", "S"):
        with lzma.open(
            gec / "cweb" / "m2" / f"CWEB-{part}.dev.m2.xz", "rt", encoding="utf-8", newline="\n"
        ) as file:
            cweb += read_m2(file)
    expected = load_rates("cweb")
    assert fit_rates(cweb, origin=expected.origin) == expected
    texts = [
        [line.split() for line in (gec / "jfleg" / f"dev.{part}").read_text(encoding="utf-8").splitlines()]
        for part in ("src", "ref0", "ref1", "ref2", "ref3")
    ]
    jfleg = [
        M2Sentence(wrong, [edit for who, right in enumerate(rights) for edit in align(wrong, right, who)])
        for wrong, *rights in zip(*texts, strict=True)
    ]
    expected = load_rates("jfleg")
    assert fit_rates(jfleg, origin=expected.origin) == expected


def run(argv: Sequence[str], stdin: bytes, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    return main(argv)


def test_command_noises_each_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = b"She goes to school every day .\n\nIt is late , is n't it ?\n"
    assert run(["--seed", "3"], clean, monkeypatch) == 0
    first = capsys.readouterr()
    assert run(["--seed", "3"], clean, monkeypatch) == 0
    assert capsys.readouterr().out == first.out
    assert first.err == ""
    lines = first.out.split("\n")
    assert (len(lines), lines[1]) == (4, "")
    assert run(["--copies", "4", "--pairs", "--tokenize"], b"She doesn't know.\n", monkeypatch) == 0
    pairs = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [clean for _, clean in pairs] == ["She does n't know ."] * 4


def test_command_names_bad_lines_and_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["--seed", "3"], b"a\xff\nb\0\nFine then .\n", monkeypatch) == 3
    out, err = capsys.readouterr()
    assert out.startswith("\n\n")
    assert out.count("\n") == 3
    assert err == (
        "nartk: error[E202 InputEncoding] stdin:1: byte 2 of the line, 0xff, is not UTF-8. "
        "Fix: convert the input to UTF-8.\n"
        "nartk: error[E202 InputEncoding] stdin:2: the line holds a NUL character. Fix: take it out.\n"
    )


def test_command_fits_and_uses_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    m2 = "S He go home\nA 1 2|||R:VERB:SVA|||goes|||REQUIRED|||-NONE-|||0\n\n"
    (tmp_path / "gold.m2").write_text(m2)
    assert main(["--fit", str(tmp_path / "gold.m2")]) == 0
    from_m2 = capsys.readouterr().out
    (tmp_path / "wrong.txt").write_text("He go home\n")
    (tmp_path / "right.txt").write_text("He goes home\n")
    assert main(["--fit-parallel", str(tmp_path / "wrong.txt"), str(tmp_path / "right.txt")]) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == json.loads(from_m2)["weights"]
    (tmp_path / "rates.json").write_text(from_m2)
    assert run(["--rates", str(tmp_path / "rates.json")], b"She goes to school .\n", monkeypatch) == 0
    assert capsys.readouterr().out in ("She go to school .\n", "She are to school .\n")


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["--copies", "0"], 2, "--copies is 0, below 1"),
        (["--fit", "x.m2", "--pairs"], 2, "--fit and --fit-parallel take no text and no options for noise"),
        (["--fit-parallel", "x"], 2, "--fit-parallel has one file"),
        (["/no/such/file"], 2, "/no/such/file: cannot read: No such file"),
        (["--rates", "nope"], 2, "no table of rates at 'nope'"),
        (["--noise"], 2, "unrecognized arguments: --noise"),
    ],
)
def test_command_refuses_in_one_line(
    argv: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == code
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
