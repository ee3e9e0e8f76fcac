"""Opens folders of Marian's own models, as its trainer, Bergamot and Firefox have them.

A folder holds one model (``.npz``, or ``.bin``), and a sentencepiece model of both sides or one of each
(``vocab.spm``, or ``srcvocab.spm`` and ``trgvocab.spm``); where a ``.yml`` says which files belong together,
as Bergamot's ``config.yml`` does, it counts. The settings of the network are in the model's file.

What differs from Marian's program (browsermt/marian-dev, ``src/models/transformer.h``):
- The start of an output is a word of its own, whose vector is 0, as Marian's start is.
- int8 weights stay the whole numbers that they are, with their scale; activations are quantised token by
  token, where Marian has one factor a layer, which its files give and nartk does not read.
- A unit's new state is sigma(f) c + sigma(-f) x, where Marian has 1 - sigma(f).
- A lexical shortlist is used only where an option names it (`nartk.decoders.loop.shortlist`).
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.foreign import marian_models
from nartk.checkpoints.generation import KEY
from nartk.checkpoints.hugging_face.text import as_checkpoint
from nartk.checkpoints.marian.options import Options, read_options
from nartk.checkpoints.marian.tensors import OPTIONS, MarianTensors
from nartk.checkpoints.marian.weights import MarianWeights, positions, shared_words, word_names
from nartk.errors import CheckpointError, UnsupportedCheckpointError, UsageError, named
from nartk.files import Folder, JsonObject
from nartk.processors.marian import NAME, read_pieces

_MOST_YAML = 1_000_000  # bytes
_POSITIONS = 2048  # tokens of the longest line and output; Marian's positions have no end
_ORIGIN = "name the folder for transformers that it was turned into, if there is one"
# Settings of the network that are read below,
_READ = """type dim-emb enc-depth dec-depth transformer-heads transformer-ffn-activation
    transformer-decoder-autoreg dec-cell tied-embeddings tied-embeddings-all tied-embeddings-src
    output-omit-bias transformer-preprocess
    transformer-postprocess transformer-postprocess-emb transformer-postprocess-top"""
# those that change nothing of a Transformer, or are seen in the tensors;
_LEFT = """bert-train-type-embeddings bert-type-vocab-size dec-cell-base-depth dec-cell-high-depth dim-rnn
    dim-vocabs enc-cell enc-cell-depth enc-type transformer-aan-activation transformer-aan-depth
    transformer-aan-nogate transformer-dim-aan transformer-dim-ffn transformer-decoder-dim-ffn
    transformer-guided-alignment-layer ulr-dim-emb version char-conv-filters-num char-conv-filters-widths
    char-highway char-stride char-kernel dec-high-context"""
# and the only values that others may have, besides nothing, false and 0.
_NEUTRAL = {
    "transformer-ffn-depth": ("2",),
    "transformer-decoder-ffn-depth": ("2",),
    "lemma-dependency": ("none",),
    "lemma-re-embedding": ("none",),
    "factors-combine": ("sum",),
    "factors-dim-emb": ("0",),
}
_OFF: tuple[object, ...] = ("", "0", "0.0", "false", "none", [])
_KNOWN = frozenset((*_READ.split(), *_LEFT.split()))


def read_marian(
    folder: Folder,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_prefix: str | None = None,
) -> Checkpoint:
    """Reads a folder as `nartk.checkpoints.loading.load_checkpoint` does one of nartk's.

    Raises:
        UnsupportedCheckpointError: The network has a setting that nartk's has not.
        CheckpointError: A file is missing, corrupt or another model's.
        UsageError: A language or a prefix is given: such models are of one pair of languages.
    """
    for name, value in (
        ("source_lang", source_lang), ("target_lang", target_lang), ("source_prefix", source_prefix)
    ):  # fmt: skip
        if value is not None:
            raise UsageError(
                f"{named(name, value)} for {str(folder)!r}, a model of Marian, which has its own",
                fix="leave it out",
            )
    path, vocabularies = _files(folder)
    file = MarianTensors(path)
    options = read_options(file.options)
    if not options:
        raise CheckpointError(f"has no settings ({OPTIONS})", where=str(path))
    pieces = [read_pieces(each) for each in vocabularies]
    eos, unk = pieces[0][1:]
    if pieces[0][1:] != pieces[-1][1:]:
        raise UnsupportedCheckpointError(
            "the two vocabularies have other ids for the end of a sentence, or for unknown words",
            fix=_ORIGIN,
            where=str(folder),
        )
    words = word_names(file, options)
    rows = max(file.shapes.get(name, (0,))[-1 if name.endswith("_W") else 0] for name in words.values())
    count = max([rows, *(len(each) for each, *_ in pieces)]) + 1  # the last is the start token
    config = _config(file, options, count, str(path))
    table = positions(_POSITIONS, config.d_model)
    tables = {f"{side}_embedding.positions.weight": table for side in ("encoder", "decoder")}
    weights = MarianWeights(file, config, words, tables, str(path))
    text = [{"name": NAME, "sentencepiece": each.name, "words": count} for each in vocabularies]
    return as_checkpoint(
        folder,
        {
            "architecture": "transformer",
            "model": asdict(config),
            "special_ids": {"bos": count - 1, "pad": count - 1, "eos": eos, "unk": unk},
            "start_token": count - 1,
            "input": text[0],
            "output": text[-1],
            KEY: _generation(unk),
        },
        weights,
        {each.name: each for each in vocabularies},
        also=[],
        notices=[],
    )


def generation(folder: Folder) -> JsonObject:
    """Options of strategies with which a folder's model decodes as Marian does: no output is unknown."""
    _, vocabularies = _files(folder)
    return _generation(read_pieces(vocabularies[-1])[2])


def _generation(unk: int) -> JsonObject:
    return {"suppress_ids": str(unk)}


def _files(folder: Folder) -> tuple[Path, list[Path]]:
    """The model, and the sentencepiece models of source and target, of which there may be one."""
    models = marian_models(folder.path)
    names = sorted(path.name for path in folder.path.iterdir() if path.suffix in (".spm", ".yml", ".yaml"))
    pieces = [name for name in names if name.endswith(".spm")]
    for name in names:
        if name.endswith(".spm"):
            continue
        raw = folder.read(name, most=_MOST_YAML).decode("utf-8", "replace")
        options = read_options(raw)
        listed, vocabularies = options.get("models"), options.get("vocabs")
        if isinstance(listed, list) and isinstance(vocabularies, list):
            chosen, pieces = _listed(folder, listed, name), _listed(folder, vocabularies, name)
            models = [each for each in models if each in chosen] or models
            break
    if len(models) > 1:
        raise UnsupportedCheckpointError(
            f"is a folder of several models: {', '.join(models[:5])}",
            fix="name a folder that holds one of them",
            where=str(folder),
        )
    pieces = [*dict.fromkeys(pieces)]
    others = [f"whose vocabulary is {name}" for name in pieces if not name.endswith(".spm")]
    if others or not 1 <= len(pieces) <= 2:
        others += [f"with {len(pieces)} vocabularies of sentencepiece (.spm), not one or two"]
        raise UnsupportedCheckpointError(
            f"is a model of Marian {others[0]}",
            fix="name a folder with vocab.spm, or srcvocab.spm and trgvocab.spm; Marian's other vocabularies "
            "are read from the folder for transformers alone, as those of opus-mt are",
            where=str(folder),
        )
    if len(pieces) == 2 and pieces[0].startswith(("trg", "target")):
        pieces.reverse()
    return folder / models[0], [folder / name for name in pieces]


def _listed(folder: Folder, paths: list[str], where: str) -> list[str]:
    """The names of files that a .yml lists, which are in the folder."""
    names = [path.replace("\\", "/").rpartition("/")[2] for path in paths]
    for name in names:
        if not folder.has(name):
            raise CheckpointError(f"the file {name!r}, which it lists, is missing", where=str(folder / where))
    return names


def _config(file: MarianTensors, options: Options, words: int, where: str) -> TransformerConfig:
    """The configuration that settings and tensors say.

    Raises:
        UnsupportedCheckpointError: A setting is not known.
        CheckpointError: A number in them is none.
    """

    def refuse(name: str) -> UnsupportedCheckpointError:
        return UnsupportedCheckpointError(
            f"{name!r} is {options.get(name)!r}, which nartk's networks have not", fix=_ORIGIN, where=where
        )

    def one_of(name: str, known: dict[str, str], default: str = "") -> str:
        value = options.get(name, default)
        if not isinstance(value, str) or value not in known:
            raise refuse(name)
        return known[value]

    def number(name: str) -> int:
        value = options.get(name)
        if not isinstance(value, str) or not (value.isascii() and value.isdigit() and len(value) < 9):
            raise CheckpointError(f"{name!r} is {value!r}, no number", where=where)
        return int(value)

    for name, value in options.items():
        if name not in _KNOWN and value not in _OFF and value not in _NEUTRAL.get(name, ()):
            raise refuse(name)
    one_of("type", {"transformer": ""})
    autoregressive = one_of(
        "transformer-decoder-autoreg", {"self-attention": "none", "rnn": "ssru"}, "self-attention"
    )
    if autoregressive == "ssru":
        one_of("dec-cell", {"ssru": ""})
    activation = one_of("transformer-ffn-activation", {"relu": "relu", "swish": "silu"})
    # Dropout, which a `d` stands for, is of training.
    orders = {}
    for name in ("preprocess", "postprocess", "postprocess-emb", "postprocess-top"):
        value = options.get(f"transformer-{name}", "")
        orders[name] = value.replace("d", "") if isinstance(value, str) else "?"
    if orders["postprocess-emb"]:
        raise refuse("transformer-postprocess-emb")
    if (orders["preprocess"], orders["postprocess"]) not in (("", "an"), ("n", "a")):
        raise refuse("transformer-postprocess")
    if orders["postprocess-top"] not in ("", "n"):
        raise refuse("transformer-postprocess-top")
    values: JsonObject = {
        "src_vocab": words,
        "tgt_vocab": words,
        "pad": words - 1,
        "d_model": number("dim-emb"),
        "activation": activation,
        "norm_eps": 1e-6,
        "share_embeddings": shared_words(options),
        "output_bias": True,
        "decoder_recurrence": autoregressive,
        "max_source_len": _POSITIONS,
        "max_target_len": _POSITIONS,
    }
    for side in ("encoder", "decoder"):
        up = file.shapes.get(f"{side}_l1_ffn_W1", (0, 0))
        values |= {
            f"{side}_layers": number(f"{side[:3]}-depth"),
            f"{side}_heads": number("transformer-heads"),
            f"{side}_ffn": up[-1],
            f"{side}_norm_first": orders["preprocess"] == "n",
            f"{side}_final_norm": "always" if orders["postprocess-top"] else "never",
            f"{side}_positions": "learned",
        }
    if options.get("output-omit-bias") == "true":
        raise refuse("output-omit-bias")
    try:
        return TransformerConfig.from_dict(values)
    except UsageError as error:
        raise CheckpointError(error.message, where=where) from error
