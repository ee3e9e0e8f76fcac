"""Tokenizers as Hugging Face's families lay them out in a folder, trained here, and text for them."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import sentencepiece

from support.oracles import CORPORA, corrected

LINES = 1000
WORDS = 1200  # of each sentencepiece model and BPE, about
NLLB = ("ace_Arab", "deu_Latn", "eng_Latn", "fra_Latn", "zho_Hans")
M2M = ("af", "am", "ar", "ast", "az", "ba", "be", "bg", "bn", "br", "bs", "ca", "ceb", "cs", "cy", "da", "de")
M2M += ("el", "en", "es", "et", "fa", "ff", "fi", "fr", "fy", "ga", "gd", "gl", "gu", "ha", "he", "hi", "hr")
M2M += ("ht", "hu", "hy", "id", "ig", "ilo", "is", "it", "ja", "jv", "ka", "kk", "km", "kn", "ko", "lb", "lg")
M2M += ("ln", "lo", "lt", "lv", "mg", "mk", "ml", "mn", "mr", "ms", "my", "ne", "nl", "no", "ns", "oc", "or")
M2M += ("pa", "pl", "ps", "pt", "ro", "ru", "sd", "si", "sk", "sl", "so", "sq", "sr", "ss", "su", "sv", "sw")
M2M += ("ta", "th", "tl", "tn", "tr", "uk", "ur", "uz", "vi", "wo", "xh", "yi", "yo", "zh", "zu")
_FRAGMENTS = (
    "</s>", "<pad>", "<unk>", "<s>", "<mask>", " <mask> ", "<extra_id_0>", "<extra_id_13>",
    "<extra_id_100>", "<mask_1>", "<mask_2>", "<unk_7>", "__en__", "__de__", "eng_Latn", "en_XX", "fr_XX",
    ">>fra<<", ">>deu<< ", ">>", "<<", "\t", "  ", "   ", " ", "\x0b", "\x0c", "\x01", "\x7f", "\x85",
    "\xa0", "\u200b", "\u200d", "\u2028", "\u3000", "\ufeff", "\r", "e\u0301", "n\u0303", "क्षि", "ﬁ",
    "Ａ１", "①", "½", "Ⅳ", "™", "ß", "İ", "😀", "👩‍👩‍👧", "🇩🇪", "👍🏽",
    "https://example.org/a?b=c&d=%20#e", "a.b@c.org", "don 't", " n't", "it 's ,", " .", " ?", " ' ",
    "1,000.50", "ⵣ", "مرحبا", "שלום", "Привет", "你好，世界。", "안녕", "ภาษา", "▁", "▁▁a", "@@", "Ġ",
    "#",
)  # fmt: skip


def _read(name: str) -> Iterable[str]:
    with lzma.open(CORPORA / f"{name}.xz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield line.rstrip("\n")


def texts() -> list[str]:
    """Sentences in English, Japanese and Ukrainian."""
    pairs = [line.split("\t") for line in islice(_read("tanaka_enja.train.tsv"), 1500)]
    return [
        *islice(_read("tanaka.txt"), 1500),
        *(japanese.replace(" ", "") for _, japanese in pairs),
        *corrected()["source"],
    ]


def mixed_lines() -> list[str]:
    """Lines of several scripts, with what tokenizers disagree about, among them an empty one."""
    draw = random.Random(7)
    sentences = texts()
    lines = ["", " ", "a", *_FRAGMENTS]
    while len(lines) < LINES:
        line = draw.choice(sentences)
        for _ in range(draw.choice((0, 0, 1, 2, 5))):
            at = draw.randint(0, len(line))
            line = line[:at] + draw.choice(_FRAGMENTS) + line[at:]
        lines.append(draw.choice(("", "", "", " ", "  ", "\t")) + line + draw.choice(("", "", "", " ", "  ")))
    return lines


def train_pieces(path: Path, sentences: Iterable[str] | None = None, **settings: Any) -> list[str]:
    """Trains a sentencepiece model; its pieces."""
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts() if sentences is None else sentences),
            model_writer=file,
            vocab_size=WORDS,
            hard_vocab_limit=False,
            num_threads=1,
            minloglevel=2,
            **settings,
        )
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(id) for id in range(len(model))]


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def _config(folder: Path, model_type: str, words: int, **others: Any) -> None:
    write_json(folder / "config.json", {"model_type": model_type, "vocab_size": words, **others})


_T5_IDS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


def t5(folder: Path, model_type: str = "t5", **settings: Any) -> None:
    """As t5-small was: the sentencepiece model alone."""
    words = len(train_pieces(folder / "spiece.model", **_T5_IDS))
    _config(folder, model_type, words + 128, pad_token_id=0, eos_token_id=1)
    if settings:
        write_json(folder / "tokenizer_config.json", settings)


def flan_t5(folder: Path) -> None:
    """As Flan-T5: special_tokens_map.json lists the sentinels."""
    sentinels = [f"<extra_id_{i}>" for i in range(100)]
    t5(folder, additional_special_tokens=sentinels, extra_ids=100, tokenizer_class="T5Tokenizer")
    named = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    write_json(folder / "special_tokens_map.json", {**named, "additional_special_tokens": sentinels})


def mt5(folder: Path) -> None:
    """As mT5, which has no sentinels of its own."""
    t5(folder, "mt5", extra_ids=0, additional_special_tokens=None, tokenizer_class="T5Tokenizer")
    named = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    write_json(folder / "special_tokens_map.json", named)


def pegasus(folder: Path) -> None:
    words = len(train_pieces(folder / "spiece.model", user_defined_symbols=["<n>"], **_T5_IDS))
    _config(folder, "pegasus", words + 103, pad_token_id=0, eos_token_id=1, bos_token_id=0)


def mbart(folder: Path) -> None:
    words = len(train_pieces(folder / "sentencepiece.bpe.model"))
    _config(folder, "mbart", words + 1 + 25 + 1, pad_token_id=1, eos_token_id=2, bos_token_id=0)


def mbart50(folder: Path) -> None:
    words = len(train_pieces(folder / "sentencepiece.bpe.model"))
    _config(folder, "mbart", words + 1 + 52 + 1, pad_token_id=1, eos_token_id=2, bos_token_id=0)
    own = {"tokenizer_class": "MBart50Tokenizer", "src_lang": "de_DE", "tgt_lang": None}
    write_json(folder / "tokenizer_config.json", own)


def nllb(folder: Path, **settings: Any) -> None:
    pieces = train_pieces(folder / "sentencepiece.bpe.model", model_type="bpe")
    words = len(pieces) + 1 + len(NLLB) + 1
    _config(folder, "m2m_100", words, pad_token_id=1, eos_token_id=2, bos_token_id=0)
    own = {"tokenizer_class": "NllbTokenizer", "additional_special_tokens": [*NLLB], **settings}
    write_json(folder / "tokenizer_config.json", own)


def m2m_100(folder: Path) -> None:
    pieces = train_pieces(folder / "sentencepiece.bpe.model", model_type="bpe")
    words = ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:-5]]
    write_json(folder / "vocab.json", {word: id for id, word in enumerate(words)})
    size = len(words) + len(M2M) + 8
    _config(folder, "m2m_100", size, pad_token_id=1, eos_token_id=2, bos_token_id=0)
    tokens = [f"__{code}__" for code in M2M]
    named = {name: token for name, token in _named().items() if name not in ("cls_token", "mask_token")}
    write_json(folder / "special_tokens_map.json", {**named, "additional_special_tokens": tokens})
    own = {"tokenizer_class": "M2M100Tokenizer", "tgt_lang": "de", "additional_special_tokens": tokens}
    write_json(folder / "tokenizer_config.json", own)


def _named() -> dict[str, str]:
    return {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "cls_token": "<s>",
        "mask_token": "<mask>",
    }


def marian(folder: Path, *, separate: bool = False) -> None:
    sides = {}
    for side, first in (("source", 0), ("target", 1500)):
        settings = {"bos_id": -1, "unk_id": 1, "eos_id": 0}
        sides[side] = train_pieces(folder / f"{side}.spm", texts()[first : first + 1500], **settings)
    source = [*sides["source"][:-3], ">>fra<<", ">>deu<<"]
    if not separate:
        source += [piece for piece in sides["target"] if piece not in source]
    target = [*sides["target"], *sides["source"]][: len(source)]
    for name, words in (("vocab", source), ("target_vocab", target)):
        if separate or name == "vocab":
            write_json(folder / f"{name}.json", {word: id for id, word in enumerate([*words, "<pad>"])})
    others = {"decoder_vocab_size": len(target) + 1} if separate else {}
    _config(folder, "marian", len(source) + 1, eos_token_id=0, pad_token_id=len(target), **others)
    write_json(folder / "tokenizer_config.json", {"separate_vocabs": separate, "source_lang": "en"})


def marian_separate(folder: Path) -> None:
    marian(folder, separate=True)


def bart(folder: Path, **settings: Any) -> None:
    """As BART was: vocab.json and merges.txt."""
    from tokenizers import ByteLevelBPETokenizer

    made = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    made.train_from_iterator(texts(), vocab_size=WORDS, special_tokens=special, show_progress=False)
    words = json.loads(made.to_str())["model"]["vocab"]
    made.save_model(str(folder))
    write_json(folder / "vocab.json", words | {"<mask>": len(words)})
    _config(folder, "bart", len(words) + 1, pad_token_id=1, eos_token_id=2, bos_token_id=0)
    if settings:
        write_json(folder / "tokenizer_config.json", settings)


FAMILIES: dict[str, Callable[[Path], None]] = {
    function.__name__: function
    for function in (t5, flan_t5, mt5, pegasus, mbart, mbart50, nllb, m2m_100, marian, marian_separate, bart)
}
