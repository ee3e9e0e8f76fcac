"""fairseq as an oracle: the cure applied, its import warnings silenced, small random models of its own."""

from __future__ import annotations

import argparse
import os
import warnings
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nartk import _fairseq_hook
from nartk.architectures.transformer import TransformerConfig
from nartk.models.transformer import Transformer
from nartk.vocab import Vocab
from support.commands import own
from support.transformers_small import SMALL

PAD, EOS = 1, 2
WORDS = 24  # of `native_checkpoint`


def require_fairseq() -> None:
    """Imports fairseq and registers nartk with it, or skips the test."""
    _fairseq_hook.install()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("fairseq", reason="fairseq is not installed: pip install 'nartk[train]'")
        import nartk.tasks

        nartk.tasks.register()


def task(source_words: int, target_words: int | None = None) -> Any:
    """What fairseq's models ask of a task: two dictionaries, one object where only one size is given."""
    source = _dictionary(source_words)
    target = source if target_words is None else _dictionary(target_words)
    return Namespace(source_dictionary=source, target_dictionary=target)


def _dictionary(words: int) -> Any:
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for i in range(words - len(dictionary)):
        dictionary.add_symbol(f"w{i}")
    return dictionary


def settings(**changes: Any) -> Namespace:
    """Options of a small `transformer` of fairseq."""
    from fairseq.models.transformer import base_architecture

    args = Namespace(
        arch="transformer",
        encoder_embed_dim=32,
        encoder_ffn_embed_dim=48,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=2,
        max_source_positions=40,
        max_target_positions=50,
    )
    vars(args).update(changes)
    base_architecture(args)
    return args


def random_model(args: Namespace, task: Any, seed: int = 0) -> Any:
    """A fairseq Transformer in which no two weights are alike, norms and biases included.

    It has been loaded, as for inference: only then does its encoder take torch's fast path where it can.
    """
    from fairseq.models.transformer import TransformerModel

    torch.manual_seed(seed)
    model, loaded = (TransformerModel.build_model(args, task) for _ in range(2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    loaded.load_state_dict(model.state_dict())
    return loaded.eval()


def logits(model: Any, source: Tensor, target: Tensor) -> Tensor:
    """fairseq's logits [B,T,V], without what torch thinks of its age."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        return model(source, source.ne(PAD).sum(1), target)[0]


def sequence_generator(core: Transformer, *, diverse: tuple[int, float] | None = None, **options: Any) -> Any:
    """fairseq's SequenceGenerator of a nartk Transformer.

    Args:
        diverse: Number of groups and strength of diverse beam search; None: beam search.
        options: Those of the generator.
    """
    from fairseq.search import DiverseBeamSearch
    from fairseq.sequence_generator import SequenceGenerator

    from nartk.tasks.transformer import FairseqTransformer

    dictionary = _dictionary(core.config.tgt_vocab)
    theirs = FairseqTransformer(core.config, dictionary, dictionary).eval()
    theirs.core.load_state_dict(core.state_dict())
    if diverse is not None:
        options["search_strategy"] = DiverseBeamSearch(dictionary, *diverse)
    return SequenceGenerator([theirs], dictionary, max_len_a=0, min_len=0, **options)


def generated(generator: Any, sources: Sequence[Sequence[int]]) -> list[list[dict[str, Tensor]]]:
    """Hypotheses of each source, best first."""
    width = max(map(len, sources))
    tokens = torch.tensor([[PAD] * (width - len(source)) + list(source) for source in sources])
    net_input = {"src_tokens": tokens, "src_lengths": torch.tensor([len(source) for source in sources])}
    found: list[list[dict[str, Tensor]]] = generator.generate([], {"net_input": net_input})
    return found


def save(path: Path, options: Namespace, tensors: dict[str, Tensor], **extra: Any) -> Path:
    """Writes a checkpoint laid out as fairseq 0.12.2 does."""
    state = {
        "args": None,
        "cfg": {"model": options, "task": {"_name": "translation"}, "checkpoint": {}},
        "model": tensors,
        "optimizer_history": [{"num_updates": 7}],
        "extra_state": {"val_loss": 1.5},
    }
    torch.save({**state, **extra}, path)
    return path


def padded_batch(words: int, *, left: bool) -> tuple[Tensor, Tensor]:
    """Source rows of 9, 4 and 1 tokens and targets of 6, 7 and 2, as fairseq pads them: [3,S], [3,T]."""
    generator = torch.Generator().manual_seed(3)

    def rows(lengths: tuple[int, ...], left: bool) -> Tensor:
        batch = torch.full((len(lengths), max(lengths)), PAD)
        for row, length in zip(batch, lengths, strict=True):
            place = row[len(row) - length :] if left else row[:length]
            place.copy_(torch.randint(4, words, (length,), generator=generator))
        return batch

    source, target = rows((9, 4, 1), left), rows((6, 7, 2), False)
    target[:, 0] = EOS  # fairseq starts a target with the end of the sentence before
    return source, target


def sample(source: Tensor, prev_output: Tensor) -> dict[str, Any]:
    """A batch as fairseq's translation task gives it to a criterion."""
    target = torch.full_like(prev_output, PAD)
    target[:, :-1] = prev_output[:, 1:]
    lengths = prev_output.ne(PAD).sum(1)
    target[torch.arange(len(target)), lengths - 1] = EOS
    net_input = {
        "src_tokens": source,
        "src_lengths": source.ne(PAD).sum(1),
        "prev_output_tokens": prev_output,
    }
    return {"net_input": net_input, "target": target, "ntokens": int(lengths.sum())}


def build(architecture: str, *flags: str, words: int = 21, trained: Any = None) -> Any:
    """A model built as `fairseq-train` does it: the command line, then the architecture.

    Args:
        trained: Task that it trains on; None: one of so many words.
    """
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    arch = f"nartk_{architecture}_tiny"
    args = parsed(arch, flags)
    ARCH_CONFIG_REGISTRY[arch](args)
    return ARCH_MODEL_REGISTRY[arch].build_model(args, task(words) if trained is None else trained)


def parsed(arch: str, flags: Sequence[str]) -> Namespace:
    """The options of `--arch` on a command line, without their defaults."""
    from fairseq.models import ARCH_MODEL_REGISTRY

    parser = argparse.ArgumentParser()
    ARCH_MODEL_REGISTRY[arch].add_args(parser.add_argument_group(argument_default=argparse.SUPPRESS))
    return parser.parse_args(flags)


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch '{self.canary}'",)


def small_config(**changes: Any) -> TransformerConfig:
    lengths = {"max_source_len": 32, "max_target_len": 32}
    return TransformerConfig(**{"src_vocab": WORDS, "tgt_vocab": WORDS, **SMALL, **lengths, **changes})


def binarised(folder: Path, sentences: Sequence[str]) -> Vocab:
    """Preprocesses sentences that are their own targets into a folder's `bin`; gives the dictionary."""
    for name, copies in (("train", 4), ("dev", 1)):
        for side in ("src", "tgt"):
            (folder / f"{name}.{side}").write_text("\n".join([*sentences] * copies) + "\n")
    own(
        "preprocess",
        *f"--source-lang src --target-lang tgt --trainpref {folder}/train --validpref {folder}/dev "
        f"--destdir {folder}/bin --joined-dictionary --workers 1".split(),
    )
    return Vocab.read(folder / "bin" / "dict.src.txt")


def native_checkpoint(path: Path, seed: int = 0, **extra: Any) -> Path:
    """A checkpoint as fairseq saves a nartk_transformer, written without fairseq."""
    torch.manual_seed(seed)
    config = small_config()
    tensors = {f"core.{name}": tensor for name, tensor in Transformer(config).state_dict().items()}
    args = Namespace(**asdict(config), arch="nartk_transformer_tiny", lr=[0.1], autocast="none")
    return save(path, args, tensors, **extra)
