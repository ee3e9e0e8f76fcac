"""Encoder-decoder Transformers in folders of CTranslate2: of OpenNMT, fairseq, Marian, and of transformers.

Sizes and settings of the network come from the tensors, and how text is cut from the files beside model.bin
(`nartk.checkpoints.ctranslate2.words`).
"""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from nartk.architectures.settings import SOURCE_WORDS, TARGET_WORDS
from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.ctranslate2.binary import BinaryTensors
from nartk.checkpoints.ctranslate2.words import PACKAGE, SIDES, cut_of
from nartk.checkpoints.generation import KEY
from nartk.checkpoints.hugging_face.tensors import Files, MappedTensors, names_of
from nartk.checkpoints.hugging_face.text import as_checkpoint
from nartk.checkpoints.names import BINARY, CONFIG
from nartk.checkpoints.tensors import Array
from nartk.errors import CheckpointError, UnsupportedCheckpointError, UsageError, named
from nartk.files import Folder, JsonObject
from nartk.processors.ctranslate2 import NAME, read_vocabulary

NETWORK = "TransformerSpec"
_START = "<pad>"  # as in transformers' folders of Marian, which CTranslate2's lack
_NEGATIVE_LOGIT = -1e4  # of a word that no output holds: fp16 has it, too
# Words that name a language: NLLB's, M2M-100's, mBART's; a model that is told languages has many.
_LANGUAGE, _MANY = re.compile(r"[a-z]{3}_[A-Z][a-z]{3}|__([a-z]{2,3})__|[a-z]{2}_[A-Z]{2}"), 3
_ACTIVATIONS = ("relu", "gelu_tanh", "silu", "gelu")
_LONGEST, _COMPUTED = 100_000, 2048  # tokens, where positions have no table, and where it is computed
# CTranslate2's names of layers, by nartk's; and where the feed-forward network is gated.
NAMES = {
    "embedding.words": "embeddings",
    "embedding.norm": "layernorm_embedding",
    "embedding.positions": "position_encodings",
    "norm": "layer_norm",
    "relative": "layer_0.self_attention",
    "self_attention.qkv": "layer_{i}.self_attention.linear_0",
    "self_attention.out": "layer_{i}.self_attention.linear_1",
    "self_norm": "layer_{i}.self_attention.layer_norm",
    "cross_attention.q": "layer_{i}.attention.linear_0",
    "cross_attention.kv": "layer_{i}.attention.linear_1",
    "cross_attention.out": "layer_{i}.attention.linear_2",
    "cross_norm": "layer_{i}.attention.layer_norm",
    "ffn.up": "layer_{i}.ffn.linear_0",
    "ffn.down": "layer_{i}.ffn.linear_1",
    "ffn_norm": "layer_{i}.ffn.layer_norm",
}
GATED = {"ffn.gate": "layer_{i}.ffn.linear_0", "ffn.up": "layer_{i}.ffn.linear_0_noact"}
# Numbers of the network: those that are read, or that change no output; others must be 0.
_READ = """activation alignment_heads alignment_layer embeddings_merge num_heads num_heads_kv pre_norm
    queries_scale relative_attention_max_distance scale_embeddings scale_outputs start_from_zero_embedding"""


def read_text(
    folder: Folder,
    file: BinaryTensors,
    *,
    source_lang: str | None = None,
    target_lang: str | None = None,
    source_prefix: str | None = None,
) -> Checkpoint:
    """Reads a folder as `nartk.checkpoints.ctranslate2.reading.read_ctranslate2` does.

    Raises:
        UnsupportedCheckpointError: The network has what nartk's has not.
        CheckpointError: A file is missing, corrupt or another model's.
        UsageError: A language or a prefix is given, of which the folder knows nothing.
    """
    if source_prefix is not None:
        raise UsageError(
            f"{named('source_prefix', source_prefix)} for a model of CTranslate2, whose folder knows none",
            fix="write it in front of the lines",
        )
    package = folder.optional_json(PACKAGE) or {}
    if prefix := package.get("target_prefix"):
        raise UnsupportedCheckpointError(
            f"'target_prefix' is {prefix!r}: outputs are told their language by their first word",
            fix="name the model that it was made of",
            where=str(folder / PACKAGE),
        )
    own, where = folder.optional_json(CONFIG) or {}, str(folder / BINARY)
    names = {side: _vocabulary(folder, side) for side in SIDES}
    words = {side: read_vocabulary(folder, name) for side, name in names.items()}
    from_zero = bool(file.attribute("decoder/start_from_zero_embedding", 0))
    if from_zero:  # the start token has an embedding of zeros, and no output holds it
        words = {side: [*each, _START] for side, each in words.items()}
        own = {**own, "decoder_start_token": _START}
    specials, start = _special_ids(own, words, str(folder / CONFIG))
    languages = _languages(words["target"])
    source, target = _chosen(languages, source_lang, target_lang)
    if start is None and target is None:
        raise UnsupportedCheckpointError(
            "the model has no start token, and no words that name languages for its outputs to begin with",
            fix="name the model that it was made of",
            where=str(folder / CONFIG),
        )
    sizes = {"pad": specials["pad"], "src_vocab": len(words["source"]), "tgt_vocab": len(words["target"])}
    network, tensors = _network(file, {**_values(file, own, where), **sizes}, where, from_zero=from_zero)
    cuts = {side: cut_of(folder, side, package) for side in SIDES}
    settings: dict[str, JsonObject] = {}
    files: dict[str, Path] = {}
    for side, name in names.items():
        settings[side] = {"name": NAME, "vocabulary": name, "added": [_START] * from_zero}
        settings[side] |= {"languages": sorted(languages.values()), **cuts[side].settings}
        listed = (f"{name}.json", f"{name}.txt", *cuts[side].files)
        files |= {each: folder / each for each in listed if folder.has(each)}
    around = _around(own, specials, words["source"], source, last=start is None)
    if not languages and cuts["source"].around is not None:
        around = _around_of_tokens(cuts["source"].around, words["source"], own, specials, str(folder))
    return as_checkpoint(
        folder,
        {
            "architecture": "transformer",
            "model": asdict(network),
            "special_ids": specials,
            "start_token": target if start is None else start,
            "input": {**settings["source"], **around},
            "output": settings["target"],
            KEY: {} if target is None or start is None else {"forced_bos": target},
        },
        tensors,
        files,
        also=[],
        notices=[each.notice for each in cuts.values() if each.notice],
    )


def _vocabulary(folder: Folder, side: str) -> str:
    """The name of a side's vocabulary, without its ending."""
    for name in (f"{side}_vocabulary", "shared_vocabulary"):
        if folder.has(f"{name}.json") or folder.has(f"{name}.txt"):
            return name
    raise CheckpointError(f"has neither {side}_vocabulary nor shared_vocabulary", where=str(folder))


def _special_ids(own: JsonObject, words: dict[str, list[str]], where: str) -> tuple[JsonObject, int | None]:
    """The special ids, which both vocabularies have, and the start token; None: a language's word is it.

    Where the vocabulary has no padding, bos takes its part: no output holds either.
    """
    tokens = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "decoder_start_token": "<s>"}
    for name in tokens:
        value = own.get(name, tokens[name])
        if value is None and name == "decoder_start_token":
            continue  # as in mBART-25
        if not isinstance(value, str):
            raise CheckpointError(f"{name!r} is {value!r}, no word", where=where)
        tokens[name] = value
    target = words["target"]
    pad = next((each for each in ("<pad>", "<blank>") if each in target), tokens["bos_token"])
    wanted = {
        "bos": tokens["bos_token"],
        "pad": pad,
        "eos": tokens["eos_token"],
        "unk": tokens["unk_token"],
    }
    found: JsonObject = {}
    for name, word in wanted.items():
        ids = {each.index(word) if word in each else -1 for each in words.values()}
        if name == "bos" and -1 in ids:
            ids = {target.index(pad) if pad in target else -1}
        if len(ids) > 1 or -1 in ids:
            raise UnsupportedCheckpointError(
                f"the word {word!r} has no id, or another one in each vocabulary",
                fix="name the model that it was made of",
                where=where,
            )
        (found[name],) = ids
    start = own.get("decoder_start_token", tokens["decoder_start_token"])
    if start is None:
        return found, None
    if start not in target:
        raise CheckpointError(f"the vocabulary lacks the start token {start!r}", where=where)
    return found, target.index(start)


def _languages(words: list[str]) -> dict[str, int]:
    """The ids of words that name languages, as NLLB, M2M-100 and mBART have them; none of other models."""
    matches = ((_LANGUAGE.fullmatch(word), id) for id, word in enumerate(words))
    found = {match[1] or match[0]: id for match, id in matches if match}
    return found if len(found) >= _MANY else {}


def _chosen(
    languages: dict[str, int], source: str | None, target: str | None
) -> tuple[int | None, int | None]:
    """The ids of the words that name the languages of lines and outputs."""
    chosen = []
    for name, value in (("source_lang", source), ("target_lang", target)):
        known = ", ".join(sorted(languages)[:8]) + ", ..."
        if value is None and languages:
            raise UsageError(
                f"{named(name)} is missing, of a model of {len(languages)} languages",
                fix=f"give one of {known}",
            )
        if value is not None and value not in languages:
            raise UsageError(
                f"{named(name)} is {value!r}, which this model does not know",
                fix=f"choose from {known}" if languages else "leave it out",
            )
        chosen.append(None if value is None else languages[value])
    return chosen[0], chosen[1]


def _around(
    own: JsonObject, specials: JsonObject, words: list[str], language: int | None, *, last: bool
) -> JsonObject:
    """The ids around a source, of which a language's comes first, or last (mBART-25).

    Sources end with eos, as CTranslate2's callers write it where the model does not add it, except
    OpenNMT's, whose padding is ``<blank>``.
    """
    ends = own.get("add_source_eos") is True or "<blank>" not in words
    named = [] if language is None else [language]
    return {
        "before": [specials["bos"]] * (own.get("add_source_bos") is True) + named * (not last),
        "after": [specials["eos"]] * ends + named * last,
    }


def _around_of_tokens(
    around: tuple[list[str], list[str]], words: list[str], own: JsonObject, specials: JsonObject, where: str
) -> JsonObject:
    """The ids around a source that its tokenizer puts there, and those that CTranslate2 adds if they lack."""
    for word in (*around[0], *around[1]):
        if word not in words:
            raise CheckpointError(
                f"the vocabulary lacks {word!r}, which the tokenizer puts around a source",
                fix="take the tokenizer of this model",
                where=where,
            )
    before, after = ([words.index(word) for word in each] for each in around)
    if own.get("add_source_bos") is True and before[:1] != [specials["bos"]]:
        before = [specials["bos"], *before]
    if own.get("add_source_eos") is True and after[-1:] != [specials["eos"]]:
        after = [*after, specials["eos"]]
    return {"before": before, "after": after}


def _values(file: BinaryTensors, own: JsonObject, where: str) -> JsonObject:
    """The values of `TransformerConfig` that the tensors tell."""
    shapes = file.shapes

    def refuse(name: str, value: object) -> UnsupportedCheckpointError:
        return UnsupportedCheckpointError(
            f"{name!r} is {value}, which nartk's networks have not",
            fix="name the model that it was made of",
            where=where,
        )

    names = {*file.names}
    for name in sorted(names):
        is_number = shapes[file.original(name)] == ()
        if is_number and name.rpartition("/")[2] not in _READ.split() and file.attribute(name):
            raise refuse(name, file.attribute(name))

    def rows(name: str) -> tuple[int, ...]:
        found = shapes.get(file.original(name), ())
        if len(found) != 2:
            raise CheckpointError(f"tensor {name!r} has shape {[*found]}, no matrix", where=where)
        return found

    def same(name: str) -> Any:
        """A number of both sides, which must be the same."""
        found = {file.attribute(f"{side}/{name}") for side in ("encoder", "decoder")}
        if len(found) > 1:
            raise refuse(name, " and ".join(map(str, sorted(found, key=str))))
        return found.pop()

    width = rows("decoder/embeddings/weight")[1]
    scale, activation = same("scale_embeddings"), int(same("activation") or 0)
    if not 0 <= activation < len(_ACTIVATIONS):
        raise refuse("activation", activation)
    scaling = "decoder/scale_embeddings"
    # 1 is a flag where its type is int8, and else the factor itself.
    flag = scale is None or (file.types[file.original(scaling)] == "I8" and scale == 1)
    scaled = flag or bool(np.isclose(scale, width**0.5, rtol=1e-3))
    if not scaled and scale not in (0, 1):
        raise refuse("scale_embeddings", scale)
    outputs = file.attribute("decoder/scale_outputs")
    if outputs is not None and outputs != 1 and not np.isclose(outputs, width**-0.5, rtol=1e-3):
        raise refuse("scale_outputs", outputs)
    first = "encoder/layer_0/self_attention"
    heads = {side: int(file.attribute(f"{side}/num_heads", 8) or 8) for side in ("encoder", "decoder")}
    own_features = rows(f"{first}/linear_0/weight")[0] // 3 // max(heads["encoder"], 1)
    queries = file.attribute(f"{first}/queries_scale")
    if queries is not None and queries != 1 and not np.isclose(queries, own_features**-0.5, rtol=1e-3):
        raise refuse("queries_scale", queries)
    relative = f"{first}/relative_attention_bias"
    values: JsonObject = {
        "d_model": width,
        "head_features": 0 if own_features * heads["encoder"] == width else own_features,
        "activation": _ACTIVATIONS[activation],
        "gated_ffn": "encoder/layer_0/ffn/linear_0_noact/weight" in names,
        "norm": "layer" if "encoder/layer_0/ffn/layer_norm/beta" in names else "rms",
        "norm_eps": float(own.get("layer_norm_epsilon") or 1e-5),
        "bias": f"{first}/linear_0/bias" in names,
        "norm_embedding": "decoder/layernorm_embedding/gamma" in names,
        "scale_embedding": scaled,
        "scale_attention": queries is None or queries != 1,
        "scale_output": outputs is not None and outputs != 1,
        "output_bias": "decoder/projection/bias" in names,
    }
    if relative in names:
        distance = file.attribute(f"{first}/relative_attention_max_distance", 128)
        values |= {"relative_buckets": rows(relative)[0], "relative_distance": int(distance or 128)}
    for side in ("encoder", "decoder"):
        table = f"{side}/position_encodings/encodings"
        learned = table in names
        layers = {name.split("/")[1] for name in names if name.startswith(f"{side}/layer_")} - {"layer_norm"}
        longest = rows(table)[0] if learned else _LONGEST if "relative_buckets" in values else _COMPUTED
        pre_norm = file.attribute(f"{side}/pre_norm", 1) != 0
        final = f"{side}/layer_norm/gamma" in names
        values |= {
            f"{side}_layers": len(layers),
            f"{side}_heads": heads[side],
            f"{side}_ffn": rows(f"{side}/layer_0/ffn/linear_0/weight")[0],
            f"{side}_norm_first": pre_norm,
            f"{side}_final_norm": "pre-norm" if final == pre_norm else "always" if final else "never",
            f"{side}_positions": "learned" if learned or "relative_buckets" not in values else "relative",
            f"max_{'source' if side == 'encoder' else 'target'}_len": longest,
        }
    return values


def _network(
    file: BinaryTensors, values: JsonObject, where: str, *, from_zero: bool
) -> tuple[TransformerConfig, MappedTensors]:
    """The configuration of values, and the weights.

    Args:
        from_zero: True: there is a word more than the file has, whose embedding is 0.
    """
    source, target, output = (
        file.original(name)
        for name in ("encoder/embeddings_0/weight", "decoder/embeddings/weight", "decoder/projection/weight")
    )
    shares = {(True, True): "all", (True, False): "inputs", (False, True): "decoder", (False, False): "none"}
    values["share_embeddings"] = shares[source == target, target == output]
    values["output_bias"] |= from_zero
    try:
        config = TransformerConfig.from_dict(values)
    except UsageError as error:
        raise CheckpointError(error.message, where=where) from error
    files = Files(where, [file])
    shapes = config.weight_shapes()
    embeddings = dict(zip((SOURCE_WORDS, *TARGET_WORDS[:2]), (source, target, output), strict=True))
    parts: dict[str, list[str]] = {}
    tables: dict[str, Array] = {}
    longer: dict[str, Array] = {}  # by CTranslate2's names
    read: set[str] = {"encoder/embeddings_0/weight", "decoder/embeddings/weight", "decoder/projection/weight"}
    for name, shape in shapes.items():
        theirs = embeddings.get(name) or _name_of(name, gated=config.gated_ffn)
        read.add(theirs)
        theirs = file.original(theirs)
        if name.endswith("positions.weight") and theirs not in files.shapes:
            tables[name] = _sinusoids(*shape)
        elif from_zero and (name in embeddings or name == TARGET_WORDS[2]):
            own_shape = (shape[0] - 1, *shape[1:])
            if theirs not in longer:
                if theirs in files.shapes or name in embeddings:
                    files.require([theirs], own_shape)
                held = files[theirs] if theirs in files.shapes else np.zeros(own_shape, np.float32)
                last = 0.0 if name in embeddings else _NEGATIVE_LOGIT
                longer[theirs] = np.concatenate([held, np.full((1, *shape[1:]), last, np.float32)])
            tables[name] = longer[theirs]
        else:
            files.require([theirs], shape)
            parts[name] = [theirs]
    scalars = {name for name, shape in file.shapes.items() if shape == ()}
    files.refuse_others({*scalars, *longer, *(each for names in parts.values() for each in names)})
    for alias, name in file.aliases.items():
        # Each layer has the distances of the first, and a number may be another's, too.
        if alias not in read and not alias.endswith("/relative_attention_bias") and name not in scalars:
            raise CheckpointError(f"tensor {alias!r} is not in the configuration", where=where)
    return config, MappedTensors(files, shapes, parts, {}, tables)


def _name_of(name: str, *, gated: bool) -> str:
    """CTranslate2's name of a weight of ours."""
    if name == "output.bias":
        return "decoder/projection/bias"
    (found,) = names_of(name, {**NAMES, **GATED} if gated else NAMES, gated=False)
    path, _, suffix = found.rpartition(".")
    last = path.rpartition(".")[2]
    if last.endswith("norm") or last == "layernorm_embedding":
        suffix = {"weight": "gamma", "bias": "beta"}[suffix]
    elif last == "position_encodings":
        suffix = "encodings"
    elif name.endswith("relative.weight"):
        suffix = "relative_attention_bias"
    return f"{path}.{suffix}".replace(".", "/")


def _sinusoids(count: int, features: int) -> Array:
    """The positions that CTranslate2 computes where a model has none, from 1 on: sines, then cosines."""
    powers = np.arange(features // 2) / max(features // 2 - 1, 1)
    angles = np.arange(1, count + 1)[:, None] * 10000.0**-powers
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype(np.float32)
