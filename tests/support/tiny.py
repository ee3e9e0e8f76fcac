"""Small models in the native format, for tests that need a model folder and not its quality."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

import sentencepiece
import torch
import torch.nn.functional as F

from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.saving import save_checkpoint
from nartk.models.transformer import Transformer
from nartk.vocab import Vocab

SENTENCES = (
    "She goes to school every day .",
    "He go to school yesterday .",
    "The cat sat on the mat and looked at the other cats .",
    "I have been living here since two years .",
    "They was very happy about the news , but nobody told us .",
    "My friend want to buy a new car next week .",
    "What is the reason of this problem ?",
    "We should to discuss about it tomorrow morning .",
)
WORDS = "she he they go goes went to school home every day yesterday the a big old house cat and sees it ! ."
_PIECES = 120  # words of the sentencepiece model, at most


def random_model(
    folder: Path,
    *,
    words: Sequence[str] | None = None,
    seed: int = 1,
    spread: float = 3.0,
    twins: tuple[str, str] | None = None,
    max_len: int = 64,
    layers: int = 1,
) -> Path:
    """Writes a random Transformer of so many layers a side to `folder` and returns it.

    Args:
        words: The vocabulary, words between spaces; None: sentencepiece pieces of `SENTENCES`.
        spread: Factor on the usual random weights; from about 3 on, outputs vary with the input.
        twins: Two words that get one embedding, so that their logits are always equal.
        max_len: Longest source and target, tokens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = None
    if words is None:
        tokenizer = folder / "spm.model"
        vocab = train_pieces(tokenizer)
    else:
        vocab = Vocab.from_words(words)
    model = _transformer(len(vocab), seed=seed, max_len=max_len, layers=layers)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.mul_(spread)
            if twins is not None and weights.shape[0] == len(vocab):
                first, second = vocab.ids(twins)
                weights[second] = weights[first]
    return _save(folder, model, vocab, tokenizer)


def corrector(folder: Path) -> Path:
    """Writes a model that copies sentences of up to 12 `WORDS`, with ``goes`` for ``go``, to `folder`."""
    return _save(folder, trained_corrector(), Vocab.from_words(WORDS.split()), None)


@lru_cache(maxsize=1)
def trained_corrector() -> Transformer:
    vocab = Vocab.from_words(WORDS.split())
    go, goes = vocab.ids(["go", "goes"])
    model = _transformer(len(vocab), seed=0, max_len=64)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(0)
    places = torch.arange(14)
    for _ in range(500):
        lengths = torch.randint(1, 13, (32, 1), generator=draw)
        source = torch.randint(4, len(vocab), (32, len(places)), generator=draw)
        source = source.masked_fill(places == lengths, vocab.eos).masked_fill(places > lengths, vocab.pad)
        target = source.masked_fill(source == go, goes)
        before = F.pad(target, (1, -1), value=vocab.eos)
        logits = model(source, before)
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=vocab.pad)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def _transformer(words: int, *, seed: int, max_len: int, layers: int = 1) -> Transformer:
    config = TransformerConfig(
        src_vocab=words,
        tgt_vocab=words,
        d_model=32,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_ffn=32,
        decoder_ffn=32,
        encoder_heads=2,
        decoder_heads=2,
        max_source_len=max_len,
        max_target_len=max_len,
        dropout=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Transformer(config)


def train_pieces(path: Path) -> Vocab:
    """Writes a sentencepiece model of `SENTENCES` to `path` and returns its words."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 4),
        model_writer=model,
        vocab_size=_PIECES,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    path.write_bytes(model.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return Vocab.from_words([pieces.id_to_piece(i) for i in range(3, len(pieces))])


def _save(folder: Path, model: Transformer, vocab: Vocab, tokenizer: Path | None) -> Path:
    save_checkpoint(
        folder,
        architecture="transformer",
        settings=asdict(model.config),
        tensors=model.state_dict(),
        source_vocab=vocab,
        target_vocab=vocab,
        tokenizer=tokenizer,
        card="# A small model for tests\n",
    )
    return folder
