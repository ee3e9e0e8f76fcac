"""Puts a Transformer's weights into the Hugging Face model that computes the same function."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch

from nartk.adapters.names import position_table, renamed, require_attention
from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.generation import write_generation
from nartk.checkpoints.hugging_face.families import FAIRSEQ_NAMES, FAMILIES
from nartk.checkpoints.hugging_face.settings import SIZES
from nartk.checkpoints.loading import is_hugging_face
from nartk.errors import UnsupportedCheckpointError, requiring
from nartk.files import Folder, JsonObject, writing
from nartk.models.reference import DTYPES
from nartk.models.transformer import Transformer
from nartk.processors.hugging_face import HuggingFaceTokenizer
from nartk.processors.text import SentencePieceTokenizer, WhitespaceTokenizer
from nartk.serving.scorers import load_network
from nartk.vocab import Vocab

TYPES = ("fp32", "bf16", "fp16")  # of the weights that `write_folder` writes


# Their names of activations that are not ours.
ACTIVATIONS = {"gelu_tanh": "gelu_pytorch_tanh"}
# What T5 is, whatever its size, and what the others are. Where a model differs, it is refused by the name.
_T5 = {
    "norm": "rms",
    "bias": False,
    "encoder_norm_first": True,
    "encoder_final_norm": "pre-norm",
    "decoder_final_norm": "pre-norm",
    "decoder_norm_first": True,
    "scale_attention": False,
    "encoder_positions": "relative",
    "decoder_positions": "relative",
    "output_bias": False,
    "scale_embedding": False,
    "norm_embedding": False,
}
_OTHERS = {
    "norm": "layer",
    "norm_eps": 1e-5,
    "bias": True,
    "gated_ffn": False,
    "head_features": 0,
    "scale_attention": True,
    "scale_output": False,
    "encoder_final_norm": "pre-norm",
    "decoder_final_norm": "pre-norm",
}


class _Kin(NamedTuple):
    """A Hugging Face architecture: its classes begin with `name`, its position tables with `offset` rows."""

    name: str
    model: str
    offset: int


# By pre-norm and by norm after the embeddings. All four add a table of positions to the embeddings.
_KIN = {
    (True, False): _Kin("Pegasus", "PegasusForConditionalGeneration", 0),
    (True, True): _Kin("MBart", "MBartForConditionalGeneration", 2),
    (False, True): _Kin("Bart", "BartForConditionalGeneration", 2),
    (False, False): _Kin("Marian", "MarianMTModel", 0),
}


def import_transformers() -> ModuleType:
    """Imports `transformers`.

    Raises:
        MissingDependencyError: It is not installed.
    """
    # It imports torchaudio wherever that is installed, and a torchaudio built for CUDA fails to import on
    # a machine without it. No text model needs it.
    hidden = "transformers" not in sys.modules and "torchaudio" not in sys.modules
    if hidden:
        sys.modules["torchaudio"] = None  # type: ignore[assignment]
    try:
        with requiring("the module {name} is not installed", "peers"):
            import transformers
            import transformers.audio_utils
    finally:
        if hidden:
            del sys.modules["torchaudio"]
    return transformers


def to_hugging_face(model: Transformer, vocab: Vocab, *, start_token: int | None = None) -> Any:
    """A Hugging Face model, in evaluation mode, that gives `model`'s logits.

    Its `save_pretrained` writes all it needs.

    Args:
        vocab: Dictionary of the target.
        start_token: Start token of the decoder; None: eos.

    Raises:
        MissingDependencyError: transformers is not installed.
        UnsupportedCheckpointError: No architecture there expresses the model.
    """
    transformers = import_transformers()
    require_attention(model.config, "transformers")
    if start_token is None:
        start_token = vocab.eos
    to = _to_t5 if model.config.norm == "rms" else _to_bart
    theirs = to(
        transformers,
        model,
        {
            "dropout": 0.0,
            "pad_token_id": vocab.pad,
            "bos_token_id": vocab.bos,
            "eos_token_id": vocab.eos,
            "decoder_start_token_id": start_token,
            "forced_eos_token_id": None,
        },
    )
    theirs.generation_config = transformers.GenerationConfig(
        bos_token_id=vocab.bos,
        eos_token_id=vocab.eos,
        pad_token_id=vocab.pad,
        decoder_start_token_id=start_token,
    )
    return theirs


def own_or_converted(checkpoint: Checkpoint) -> Any:
    """A Hugging Face folder's own model, in fp32, or what is made of nartk's."""
    transformers = import_transformers()
    if is_hugging_face(Folder(checkpoint.folder)):
        load = transformers.AutoModelForSeq2SeqLM.from_pretrained
        return load(checkpoint.folder, dtype=torch.float32).eval()
    return to_hugging_face(
        load_network(checkpoint), checkpoint.target_vocab, start_token=checkpoint.start_token
    )


def set_generation(model: Any, checkpoint: Checkpoint) -> None:
    """Makes a model of `own_or_converted` begin outputs, and choose words, as the checkpoint does."""
    settings = model.generation_config
    settings.decoder_start_token_id = checkpoint.start_token
    for name, value in write_generation(
        checkpoint.generation, checkpoint.target_vocab.eos, checkpoint.target_vocab.also_eos
    ).items():
        setattr(settings, name, value)


def _require(config: TransformerConfig, wanted: JsonObject, name: str) -> None:
    """Refuses a model whose settings differ from those of an architecture."""
    for key, value in wanted.items():
        found = getattr(config, key)
        if found != value:
            raise UnsupportedCheckpointError(f"`{key}` {found!r}, where a {name} has {value!r}")


def _to_bart(transformers: ModuleType, model: Transformer, settings: JsonObject) -> Any:
    """A Pegasus, MBart, Bart or Marian model."""
    config = model.config
    _require(config, _OTHERS, "Bart")
    if config.encoder_norm_first != config.decoder_norm_first:
        raise UnsupportedCheckpointError("pre-norm on one side and post-norm on the other")
    kin = _KIN[config.encoder_norm_first, config.norm_embedding]
    if kin.name != "Marian" and config.src_vocab != config.tgt_vocab:
        raise UnsupportedCheckpointError(
            f"{config.src_vocab} source and {config.tgt_vocab} target words; a {kin.name} has as many of each"
        )
    for side in ("encoder", "decoder"):
        if getattr(config, f"{side}_positions") == "relative":
            _require(config, {f"{side}_positions": "learned"}, kin.name)
    settings |= {
        "vocab_size": config.src_vocab,
        "d_model": config.d_model,
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        "activation_function": ACTIVATIONS.get(config.activation, config.activation),
        "scale_embedding": config.scale_embedding,
        "max_position_embeddings": max(config.max_source_len, config.max_target_len),
        "tie_word_embeddings": config.share_embeddings == "all",
    }
    if kin.name == "Marian":
        settings |= {
            "decoder_vocab_size": config.tgt_vocab,
            "share_encoder_decoder_embeddings": config.share_embeddings == "all",
        }
    theirs = getattr(transformers, kin.model)(getattr(transformers, f"{kin.name}Config")(**settings)).eval()
    weights = {f"model.{name}": tensor for name, tensor in renamed(model, FAIRSEQ_NAMES).items()}
    weights["lm_head.weight"] = model.output.weight.detach()
    for side, embedding, longest in (
        ("encoder", model.encoder.embedding, config.max_source_len),
        ("decoder", model.decoder.embedding, config.max_target_len),
    ):
        name = f"model.{side}.embed_positions.weight"
        weights[name] = torch.zeros_like(theirs.get_parameter(name))
        weights[name][kin.offset : kin.offset + longest] = position_table(embedding, longest)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters(remove_duplicate=False):
            if name == "model.shared.weight":
                # Where it is not tied to the embeddings, nothing reads it.
                parameter.copy_(weights["model.encoder.embed_tokens.weight"])
            else:
                parameter.copy_(weights[name])
    if model.output.bias is not None:
        theirs.final_logits_bias.copy_(model.output.bias.detach())
    # Marian's own positions are computed, so it would not save these.
    theirs._keys_to_ignore_on_save = None
    return theirs


def _to_t5(transformers: ModuleType, model: Transformer, settings: JsonObject) -> Any:
    """A T5 model."""
    config = model.config
    _require(config, _T5, "T5")
    for name in ("ffn", "heads"):
        _require(config, {f"decoder_{name}": getattr(config, f"encoder_{name}")}, "T5")
    tied = config.share_embeddings == "all"
    _require(config, {"share_embeddings": "all" if tied else "inputs", "scale_output": tied}, "T5")
    activation = "gelu_new" if config.activation == "gelu_tanh" else config.activation
    theirs = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=config.src_vocab,
            d_model=config.d_model,
            d_kv=config.attention_features("encoder"),
            d_ff=config.encoder_ffn,
            num_layers=config.encoder_layers,
            num_decoder_layers=config.decoder_layers,
            num_heads=config.encoder_heads,
            relative_attention_num_buckets=config.relative_buckets,
            relative_attention_max_distance=config.relative_distance,
            layer_norm_epsilon=config.norm_eps,
            feed_forward_proj=f"gated-{activation}" if config.gated_ffn else activation,
            tie_word_embeddings=tied,
            dropout_rate=settings.pop("dropout"),
            **settings,
        )
    ).eval()
    if not tied:
        theirs.lm_head.weight = torch.nn.Parameter(torch.empty_like(theirs.lm_head.weight))
        theirs.config.tie_word_embeddings = False
    weights = renamed(model, FAMILIES["t5"].names) | {"lm_head.weight": model.output.weight}
    weights["shared.weight"] = model.encoder.embedding.words.weight
    with torch.no_grad():
        for name, parameter in theirs.named_parameters(remove_duplicate=False):
            parameter.copy_(weights[name])
    return theirs


def write_folder(checkpoint: Checkpoint, folder: Path, dtype: str) -> Iterator[str]:
    """Writes a folder that `AutoModelForSeq2SeqLM` and `AutoTokenizer` load; `generate` is greedy search.

    Yields, in lines, what a reader of the folder must know.

    Args:
        folder: Exists.
        dtype: One of `TYPES`.

    Raises:
        MissingDependencyError: transformers is not installed.
        UnsupportedCheckpointError: No architecture there expresses the model.
    """
    model = own_or_converted(checkpoint)
    set_generation(model, checkpoint)
    if model.generation_config.max_length is None:
        longest = checkpoint.settings["max_target_len"] + 1  # with the start token
        model.generation_config.max_length = longest
    import_transformers().utils.logging.disable_progress_bar()
    model.to(DTYPES[dtype]).save_pretrained(folder)
    missing = _write_tokenizer(checkpoint, folder)
    if missing:
        yield f"without a tokenizer, as transformers has none for {missing}; ids are the dictionaries'"
    elif checkpoint.tokenization.name:
        yield "its tokenizer reads and writes sentences as nartk-decode --pretokenized does"


def _write_tokenizer(checkpoint: Checkpoint, folder: Path) -> str:
    """Writes what `AutoTokenizer` loads, with the ids of the model's own processors; or says what has none.

    A word that the model cannot spell is left out of the text, where nartk writes a sign for it.
    """
    source, target = checkpoint.text.tokenizer, checkpoint.output
    if isinstance(target, HuggingFaceTokenizer):
        copy_tokenizer(checkpoint, folder)
        return ""
    vocab, joint = target.vocab, source.vocab == target.vocab
    if any(len(set(each.words)) < len(each) for each in (source.vocab, vocab)):
        return "a dictionary that lists a word twice"
    settings: JsonObject = {
        f"{name}_token": vocab.words[getattr(vocab, name)] for name in ("bos", "eos", "pad", "unk")
    }
    settings |= {
        "model_max_length": checkpoint.settings["max_source_len"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,
    }
    if isinstance(source, SentencePieceTokenizer) and isinstance(target, SentencePieceTokenizer):
        _write_marian(source, target, folder, settings | {"separate_vocabs": not joint})
    elif not (isinstance(source, WhitespaceTokenizer) and isinstance(target, WhitespaceTokenizer)):
        return "its processors"
    elif not joint:
        return "words between spaces with a dictionary on each side"
    else:
        _write_words(vocab, folder, settings)
    return ""


def copy_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    """Writes the files of a tokenizer of transformers', with the name of its class."""
    for name, path in checkpoint.files.items():
        shutil.copyfile(path, folder / name)
    own = folder / "tokenizer_config.json"
    found = json.loads(own.read_bytes()) if own.is_file() else {}
    with writing(own) as file:
        json.dump({"tokenizer_class": checkpoint.beside["output"]["class"], **found}, file, indent=2)


def _write_marian(
    source: SentencePieceTokenizer, target: SentencePieceTokenizer, folder: Path, settings: JsonObject
) -> None:
    """Writes a `MarianTokenizer`: it asks sentencepiece for pieces and a dictionary for ids, as ours do."""
    files = {"tokenizer_config.json": settings | {"tokenizer_class": "MarianTokenizer"}}
    for side, name, each in (("source", "vocab.json", source), ("target", "target_vocab.json", target)):
        shutil.copyfile(each.model, folder / f"{side}.spm")
        if side == "source" or settings["separate_vocabs"]:
            files[name] = _ids(each.vocab)
    for name, values in files.items():
        with writing(folder / name) as file:
            json.dump(values, file, ensure_ascii=False, indent=2)


def _write_words(vocab: Vocab, folder: Path, settings: JsonObject) -> None:
    """Writes a tokenizer of words between white space."""
    import tokenizers

    eos = settings["eos_token"]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(_ids(vocab), settings["unk_token"]))
    # Python's white space, of which theirs lacks four characters.
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\x1c-\x1f]+"), "removed")
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"$A {eos}", special_tokens=[(eos, vocab.eos)]
    )
    import_transformers().PreTrainedTokenizerFast(tokenizer_object=made, **settings).save_pretrained(folder)


def _ids(vocab: Vocab) -> dict[str, int]:
    return {word: i for i, word in enumerate(vocab.words)}
