"""The n-gram language model: scores by hand and by dictionaries, and an error for every broken line."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nartk.cli import decode as decode_command
from nartk.decoders.graphs.ngram_lm import load_ngram, read_arpa
from nartk.errors import InputFileError, InputFormatError, VocabMismatchError
from nartk.vocab import Vocab

VOCAB = Vocab.from_words(["the", "cat", "sat", "dog"])
BOS, EOS, UNK, THE, CAT, SAT, DOG = VOCAB.ids(["<s>", "</s>", "<unk>", "the", "cat", "sat", "dog"])
# `dog` is a word of the vocabulary that the file does not list, `mat` one that the vocabulary does not have.
ARPA = """\
Written by hand.

\\data\\
ngram 1=7
ngram 2=5
ngram 3=2

\\1-grams:
-2.5\t<unk>
-99\t<s>\t-0.5
-1.25\t</s>
-0.75\tthe\t-0.25
-1\tcat\t-0.125
-1.5\tsat\t-0.375
-1.75\tmat\t-0.5

\\2-grams:
-0.25\t<s> the\t-0.0625
-0.5\tthe cat\t-0.1875
-0.375\tcat sat\t-0.3125
-0.875\tthe mat
-0.625 sat </s>

\\3-grams:
-0.15625\t<s> the cat
-0.4375\tthe cat sat

\\end\\
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "lm.arpa"
    path.write_text(ARPA)
    return path


BY_HAND = [  # context, word, base-10 logarithm
    ((), THE, -0.75),
    ((BOS,), THE, -0.25),
    ((BOS, THE), CAT, -0.15625),
    ((THE,), CAT, -0.5),
    ((BOS, THE, CAT), SAT, -0.4375),  # the longest context counts
    ((CAT, THE, CAT), SAT, -0.4375),
    ((SAT, CAT), SAT, -0.375),  # "sat cat" is not listed: its back-off weight is none
    ((BOS, CAT), SAT, -0.375),
    ((BOS,), CAT, -0.5 + -1.0),
    ((BOS, THE), THE, -0.0625 + -0.25 + -0.75),  # past two contexts
    ((THE, CAT), THE, -0.1875 + -0.125 + -0.75),
    ((CAT, SAT), EOS, -0.3125 + -0.625),
    ((THE,), EOS, -0.25 + -1.25),
    ((), DOG, -2.5),  # no word of the model: <unk>
    ((THE, CAT), DOG, -0.1875 + -0.125 + -2.5),
    ((THE, DOG), CAT, -1.0),  # <unk> has no back-off weight
    ((), UNK, -2.5),
    ((EOS,), THE, -0.75),
]


def test_scores_by_hand(path: Path) -> None:
    model = read_arpa(path, VOCAB)
    assert (model.order, model.size) == (3, 6)
    for context, word, wanted in BY_HAND:
        assert model.score(context, word) == pytest.approx(wanted * math.log(10.0), rel=1e-12), context


def test_a_sentence_from_the_start_state(path: Path) -> None:
    model = read_arpa(path, VOCAB)
    state, total = np.full(2, model.start), np.zeros(2)
    for words in ([THE, SAT], [CAT, SAT], [SAT, THE], [EOS, EOS]):
        scores, state = model.advance(state, np.array(words))
        total = total + scores
    first = -0.25 - 0.15625 - 0.4375 + (-0.3125 - 0.625)
    second = (-0.5 - 1.5) + (-0.375 - 1.5) + (-0.375 - 0.75) + (-0.25 - 1.25)
    assert (total / math.log(10.0)).tolist() == pytest.approx([first, second], rel=1e-12)


def test_states_and_words_broadcast(path: Path) -> None:
    model = read_arpa(path, VOCAB)
    states, words = np.arange(len(model.back_off)), np.arange(len(VOCAB))
    scores, after = model.advance(states[:, None], words)
    assert scores.shape == after.shape == (len(states), len(VOCAB))
    for i, j in itertools.product(range(len(states)), range(len(VOCAB))):
        score, state = model.advance(states[i : i + 1], words[j : j + 1])
        assert (score.item(), state.item()) == (scores[i, j].item(), after[i, j].item())


def write_random(path: Path, seed: int) -> tuple[dict[tuple[str, ...], tuple[float, float]], int]:
    """An ARPA file of random n-grams whose contexts are listed but whose ends may not be, and its tables."""
    draw = random.Random(seed)
    order = draw.randint(1, 4)
    words = ["<s>", "</s>", "<unk>", "the", "cat", "sat"]
    table: dict[tuple[str, ...], tuple[float, float]] = {}
    for n in range(1, order + 1):
        for gram in itertools.product(words, repeat=n):
            if n == 1 or (gram[:-1] in table and draw.random() < 0.4):
                table[gram] = (-draw.random() * 3, draw.random() - 0.7 if n < order else 0.0)
    lines = ["\\data\\"]
    lines += [f"ngram {n}={sum(len(gram) == n for gram in table)}" for n in range(1, order + 1)]
    for n in range(1, order + 1):
        lines.append(f"\n\\{n}-grams:")
        listed = [gram for gram in table if len(gram) == n]
        draw.shuffle(listed)
        for gram in listed:
            weight = f"\t{table[gram][1]!r}" if n < order else ""
            lines.append(f"{table[gram][0]!r}\t{' '.join(gram)}{weight}")
    path.write_text("\n".join([*lines, "\n\\end\\\n"]))
    return table, order


def test_scores_equal_dictionaries(tmp_path: Path) -> None:
    for seed in range(12):
        table, order = write_random(tmp_path / "lm.arpa", seed)
        model = read_arpa(tmp_path / "lm.arpa", VOCAB)

        def score(context: tuple[str, ...], word: str, table=table) -> float:
            """The definition: the n-gram if it is listed, else the back-off weight and a shorter context."""
            if (*context, word) in table:
                return table[(*context, word)][0]
            return table.get(context, (0.0, 0.0))[1] + score(context[1:], word)

        draw = random.Random(seed)
        for _ in range(60):
            ids = draw.choices([BOS, EOS, THE, CAT, SAT, DOG], k=draw.randint(1, 7))
            words = ["<unk>" if i == DOG else VOCAB.words[i] for i in ids]
            wanted = score(tuple(words[:-1])[-(order - 1) :] if order > 1 else (), words[-1])
            assert model.score(ids[:-1], ids[-1]) == pytest.approx(wanted * math.log(10.0), abs=1e-9)


def test_a_model_without_unk_gives_unknown_words_next_to_nothing(path: Path) -> None:
    path.write_text(ARPA.replace("-2.5\t<unk>\n", "").replace("ngram 1=7", "ngram 1=6"))
    model = read_arpa(path, VOCAB)
    assert model.score((), DOG) == pytest.approx(-100 * math.log(10.0))
    assert model.score((THE,), CAT) == pytest.approx(-0.5 * math.log(10.0))


def test_variants_of_the_format(path: Path) -> None:
    text = ARPA.replace("<unk>", "<UNK>").replace("-99\t<s>", "-inf\t<s>").replace("\n", "\r\n")
    path.write_bytes(text.replace("\t", "  ").encode())
    model = read_arpa(path, VOCAB)
    for context, word, wanted in BY_HAND:
        assert model.score(context, word) == pytest.approx(wanted * math.log(10.0)), context
    assert model.score((), BOS) == pytest.approx(-99 * math.log(10.0))


BROKEN = [
    (("\\data\\", "data"), "29: no \\data\\"),
    (("\\end\\\n", ""), "28: the file ends without \\end\\"),
    (("ngram 2=5", "ngram 3=5"), "5: expected 'ngram 2=COUNT', found 'ngram 3=5'"),
    (("ngram 2=5", "ngram 2=five"), "5: expected 'ngram 2=COUNT', found 'ngram 2=five'"),
    (("ngram 2=5", "ngram 2=6"), "24: 5 2-grams, but the header says 6"),
    (("\\2-grams:", "\\3-grams:"), "17: expected \\2-grams: of 3 orders, found '\\\\3-grams:'"),
    (("-1\tcat\t-0.125", "-1\tcat\tlow"), "13: 'low' is no number"),
    (("-1\tcat\t-0.125", "nan\tcat"), "13: 'nan' is no number"),
    (("-1\tcat\t-0.125", "0.5\tcat"), "13: the probability of '0.5\\tcat' is above 1"),
    (("-1\tcat\t-0.125", "-1"), "13: expected a score and 1 words, found '-1'"),
    (("-1\tcat\t-0.125", "-1 cat sat -1 -1"), "13: expected a score and 1 words, found '-1 cat sat -1 -1'"),
    (("-1\tcat\t-0.125", "-1\tthe"), "13: 'the' is listed twice"),
    (("the cat sat", "sat cat sat"), "26: 'sat cat' is not among the 2-grams"),
    (("the cat sat", "the cat sat -0.5"), "26: expected a score and 3 words, found "),
    (("<s> the\t", "<s> dog\t"), "18: 'dog' is not among the 1-grams"),
    (("-0.4375", "\\data\\\n-0.4375"), "26: a second \\data\\"),
    (("\\3-grams:", "\\end\\"), "24: the file ends after 2 of 3 orders"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_a_broken_line_is_named(change: tuple[str, str], message: str, path: Path) -> None:
    assert change[0] in ARPA
    path.write_text(ARPA.replace(*change))
    with pytest.raises(InputFormatError) as caught:
        read_arpa(path, VOCAB)
    assert str(caught.value).startswith(f"error[E204 InputFormat] {path}:{message}")
    assert str(caught.value).endswith(". Fix: give a model in ARPA format.")


def write_words(path: Path, words: Iterable[str]) -> None:
    """Writes a model of single words."""
    lines = [f"-1 {word}\n" for word in words]
    text = f"\\data\\\nngram 1={len(lines)}\n\\1-grams:\n{''.join(lines)}\\end\\\n"
    path.write_text(text, encoding="utf-8")


OTHER_UNITS = ". Fix: train it on text in the model's own words or pieces, such as spm_encode writes."


@pytest.mark.parametrize(("known", "others"), [(0, 40), (1, 40), (9, 40), (0, 0), (2, 7)])
def test_a_model_of_other_units_is_refused(known: int, others: int, tmp_path: Path) -> None:
    """A model of words for a vocabulary of 40 pieces, some of which happen to be words."""
    pieces = [f"a{i}" for i in range(20)] + [f"\u2581b{i}" for i in range(20)]
    words = ["<s>", "</s>", *pieces[:known], *(f"b{i}" for i in range(others))]
    path, vocab = tmp_path / "words.arpa", Vocab.from_words(pieces)
    write_words(path, words)
    with pytest.raises(VocabMismatchError) as caught:
        load_ngram(str(path), vocab)
    counts = f"{known} of the model's 44 words or pieces are among its {len(words)} words"
    assert str(caught.value) == f"error[E302 VocabMismatch] {path}: {counts}{OTHER_UNITS}"
    write_words(path, [*words, *pieces[known : 10 if others == 40 else 3]])
    assert load_ngram(str(path), vocab).score((), 4) == pytest.approx(-math.log(10.0))


def test_a_model_of_words_is_refused_for_the_shipped_pieces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, lm = Path(__file__).parents[1] / "README.md", tmp_path / "lm.arpa"
    write_words(lm, sorted({"<s>", "</s>", "<unk>", *text.read_text(encoding="utf-8").split()}))
    assert decode_command.main(["gec-en", str(text), "--strategy", "beam", "--lm", str(lm), "--quiet"]) == 4
    error = capsys.readouterr().err
    assert f"error[E302 VocabMismatch] {lm}: " in error
    assert error.endswith(f"{OTHER_UNITS}\n")


def test_other_files_are_named(path: Path, tmp_path: Path) -> None:
    path.write_bytes(ARPA.encode().replace(b"mat", b"m\xff", 1))
    with pytest.raises(InputFormatError, match=r"lm.arpa:15: not UTF-8"):
        read_arpa(path, VOCAB)
    for name in (tmp_path / "missing", tmp_path, "a\0b"):
        with pytest.raises(InputFileError, match=r"E201 InputFile\] .*: cannot read the language model"):
            load_ngram(str(name), VOCAB)


@given(st.lists(st.tuples(st.integers(0, 26), st.text(max_size=12)), max_size=3))
@settings(max_examples=60)
def test_any_text_is_read_or_named(tmp_path_factory: pytest.TempPathFactory, edits: list) -> None:
    lines = ARPA.split("\n")
    for at, text in edits:
        lines[at] = text
    path = tmp_path_factory.getbasetemp() / "any.arpa"
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogatepass")
    try:
        model = read_arpa(path, VOCAB)
    except InputFormatError:
        return
    assert math.isfinite(model.score((BOS, THE), CAT))


def test_a_changed_file_is_read_again(path: Path) -> None:
    first = load_ngram(str(path), VOCAB)
    assert load_ngram(str(path), VOCAB) is first
    path.write_text(ARPA.replace("-0.75\tthe", "-0.5000\tthe"))
    assert load_ngram(str(path), VOCAB).score((), THE) == pytest.approx(-0.5 * math.log(10.0))
