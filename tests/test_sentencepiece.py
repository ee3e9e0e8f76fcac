"""Outputs of models outside Hugging Face's folders, which sentencepiece itself joins from their pieces."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from support import tiny
from support.commands import main_of

import nartk
from nartk.processors.text import SentencePieceTokenizer
from nartk.vocab import UNKNOWN, Vocab

TEXTS = [
    "She goes to school every day .",
    "naïve 😀 café — 学校",
    " two  spaces at   both ends  ",
    "tab\tand ﬁ and Ⅳ",
    "▁ is a space",
    "",
    "   ",
]
# Settings of trainers, and the rules of a normalisation and of a denormalisation where they have any.
MODELS: dict[str, dict[str, Any]] = {
    "bytes": {"byte_fallback": True},
    "no spaces added or removed": {
        **{"byte_fallback": True, "add_dummy_prefix": False, "remove_extra_whitespaces": False},
        "normalization_rule_name": "identity",
    },
    "spaces kept": {"remove_extra_whitespaces": False, "model_type": "bpe"},
    "spaces at the end of words": {"treat_whitespace_as_suffix": True, "byte_fallback": True},
    "denormalised": {"rules": ("64\t63 6B\n", "63 6B\t64\n"), "byte_fallback": True},  # d is written as ck
    "characters": {"model_type": "char"},
}


def train(folder: Path, *, rules: tuple[str, str] | None = None, **settings: Any) -> Path:
    made = io.BytesIO()
    if rules is not None:
        for name, text in zip(("normalization_rule_tsv", "denormalization_rule_tsv"), rules, strict=True):
            (folder / f"{name}").write_text(text)
            settings[name] = str(folder / name)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(tiny.SENTENCES * 4),
        model_writer=made,
        vocab_size=400,
        hard_vocab_limit=False,
        minloglevel=2,
        **settings,
    )
    (folder / "spm.model").write_bytes(made.getvalue())
    return folder / "spm.model"


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return train(tmp_path, **MODELS[request.param])


def test_pieces_are_joined_as_sentencepiece_joins_them(model: Path) -> None:
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    vocab = Vocab.from_words([pieces.id_to_piece(i) for i in range(3, len(pieces))])
    ours = SentencePieceTokenizer(model, vocab)
    for text in TEXTS:
        found = ours.decode(ours.encode(text))
        assert found.replace(UNKNOWN, " ⁇ ") == pieces.decode(pieces.encode(text)), text


def test_words_that_are_no_pieces_are_written_as_they_are(tmp_path: Path) -> None:
    path = train(tmp_path, byte_fallback=True)
    vocab = Vocab.from_words(["▁", "s", "▁nosuchpiece", "madeupword0001", "<0xF0>", "<0x9F>"])
    ours = SentencePieceTokenizer(path, vocab)
    ids = vocab.ids(["▁nosuchpiece", "▁", "s", "▁nosuchpiece", "madeupword0001", "</s>"])
    assert ours.decode([*ids, vocab.unk]) == f"nosuchpiece s nosuchpiecemadeupword0001{UNKNOWN}"
    # A character that is not whole is one sign for each byte, as sentencepiece has it.
    assert ours.decode(vocab.ids(["<0xF0>", "<0x9F>"])) == "\ufffd\ufffd"


@pytest.fixture
def speaker_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Any]:
    """A random model whose pieces are some bytes, and its sentencepiece model."""
    path = train(tmp_path, byte_fallback=True)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    words = [*(f"<0x{byte:02X}>" for byte in "é😀\n\r".encode()), *map(pieces.id_to_piece, range(259, 264))]
    monkeypatch.setattr(tiny, "train_pieces", writes(path, words))
    return tiny.random_model(tmp_path / "model", spread=3.0, seed=3), pieces


def writes(pieces: Path, words: list[str]) -> Callable[[Path], Vocab]:
    def train_pieces(path: Path) -> Vocab:
        path.write_bytes(pieces.read_bytes())
        return Vocab.from_words(words)

    return train_pieces


def test_distilled_corpora_hold_characters_and_a_line_each(
    speaker_of_bytes: tuple[Path, Any], tmp_path: Path, capfd: Any
) -> None:
    folder, pieces = speaker_of_bytes
    lines = [" ".join(["She goes to school"] * n) for n in range(1, 6)]
    (tmp_path / "in.en").write_text("".join(f"{line}\n" for line in lines))
    command = f"distill {folder} {tmp_path}/in.en --target-lang de --output {tmp_path}/out --max-len 60 "
    command += "--min-len 40 --max-ratio 99 --no-repeat-ngram 2"
    code, _, errors = main_of(command + " --strategy greedy", capfd)
    assert code == 0, errors
    outputs = nartk.load(folder).decode(
        lines, "greedy", max_len=60, min_len=40, max_ratio=99.0, no_repeat_ngram=2
    )
    spoken = [[piece for piece in each.pieces if piece not in ("<s>", "<pad>", "</s>")] for each in outputs]
    made = [pieces.decode(each).replace(" ⁇ ", UNKNOWN) for each in spoken]
    assert any("<0x" in piece for each in outputs for piece in each.pieces)
    assert any("\n" in text for text in made)
    assert [each.text for each in outputs] == made
    wanted = [text.replace("\r", " ").replace("\n", " ") for text in made]
    report = json.loads((tmp_path / "out/report.json").read_text())
    assert report["kept"] == len([text for text in wanted if text.strip()])
    assert (tmp_path / "out/train.de").read_bytes().decode().split("\n") == [
        *(text for text in wanted if text.strip()),
        "",
    ]
