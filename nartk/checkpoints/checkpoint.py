"""A model that has been read: its weights, its configuration, and what reads and writes its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from nartk.architectures import architecture
from nartk.architectures.settings import Config
from nartk.checkpoints.generation import KEY as GENERATION
from nartk.checkpoints.generation import check_generation
from nartk.checkpoints.names import CONFIG
from nartk.checkpoints.quantized import stored_shapes, stored_types
from nartk.checkpoints.tensors import FLOATS, Tensors, are_sizes, require_shapes
from nartk.errors import CheckpointError, SourceMismatchError, UsageError
from nartk.files import Folder, JsonObject
from nartk.processors import SIDES, InputProcessor, OutputProcessor, load_processor
from nartk.processors.guard import KEY as GUARD
from nartk.processors.guard import Guard, read_guard
from nartk.processors.text import AsGiven, TextInput, Tokenizer, load_tokenization
from nartk.vocab import FAIRSEQ, SpecialIds, Vocab

MADE_OF = "made_of"  # of an int8 folder, the fingerprint of the model that it was made of
# What config.json says beside the weights.
_BESIDE = ("special_ids", "start_token", "input", "output", "tokenization", GENERATION, GUARD, MADE_OF)


@dataclass(frozen=True)
class Checkpoint:
    """A model folder that has been read and checked.

    Attributes:
        architecture: Its name, such as ``transformer``.
        settings: The architecture's configuration.
        tensors: Weights by name, fp32; of words only those that the dictionaries have.
        input, output: Processors that read sentences as sources, and write outputs as sentences.
        tokenization: Turns lines into sentences.
        beside: Entries of config.json besides those of the weights, such as `input` and `output`.
        files: Paths of the processors' files, by name.
        start_token: Start token of the decoder.
        fingerprint: 12 hexadecimal digits of all files, dictionaries and tokenizers included.
        quantized: The type of its matrices, ``int8``; None: all are stored as floating point.
        checked: True if every hash has been compared.
        generation: Values that take the place of defaults of strategies' options, by name.
        notices: Lines that a user of the folder must know.
        guard: Judges outputs, which should resemble their input; None: they need not.
    """

    folder: Path
    architecture: str
    settings: JsonObject
    tensors: Tensors
    input: InputProcessor
    output: OutputProcessor
    start_token: int
    fingerprint: str
    beside: JsonObject
    files: Mapping[str, Path]
    quantized: str | None = None
    checked: bool = False
    tokenization: AsGiven = field(default_factory=AsGiven)
    generation: JsonObject = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    guard: Guard | None = None

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Its own, and that of the model that its int8 weights were made of."""
        made_of = self.beside.get(MADE_OF)
        return (self.fingerprint, made_of) if isinstance(made_of, str) else (self.fingerprint,)

    @property
    def target_vocab(self) -> Vocab:
        return self.output.vocab

    @property
    def source_vocab(self) -> Vocab:
        """Equal to the target's where the model has one joint dictionary; raises as `text`."""
        return self.text.vocab

    @property
    def text(self) -> TextInput:
        """The processor of lines of text; raises SourceMismatchError if the model reads something else."""
        if not isinstance(self.input, TextInput):
            raise SourceMismatchError(
                f"the model {str(self.folder)!r} does not read text", fix="name a model that does"
            )
        return self.input


def assemble(
    folder: Folder,
    config: JsonObject,
    tensors: Tensors,
    *,
    fingerprint: str,
    files: Mapping[str, Path],
    notices: Sequence[str] = (),
) -> Checkpoint:
    """The checkpoint of a configuration and of weights, with its processors.

    Args:
        config: Contents of a config.json of the native format.

    Raises:
        CheckpointError: Something is missing or inconsistent.
    """
    where = str(folder / CONFIG)
    specials = _special_ids(config.get("special_ids"), where)
    for side in SIDES:
        if not isinstance(config.get(side), dict):
            raise CheckpointError(f"{side!r} is missing", where=where)
    output: OutputProcessor = load_processor("output", folder, config["output"], specials)
    input: InputProcessor
    if config["input"] == config["output"] and isinstance(output, Tokenizer):  # read once
        input = TextInput(output)
    else:
        input = load_processor("input", folder, config["input"], specials)
    tokenization = load_tokenization(config.get("tokenization"), output, where)
    if tokenization.name and input.vocab is None:
        raise CheckpointError("a 'tokenization' of what is no text", where=where)
    guard = read_guard(config.get(GUARD), folder, where)
    if guard is not None and input.vocab is None:
        raise CheckpointError(f"a {GUARD!r} of what is no text", where=where)
    start_token, words = config.get("start_token"), len(output.vocab)
    if type(start_token) is not int or not 0 <= start_token < words:
        raise CheckpointError(f"'start_token' is {start_token!r}, not between 0 and {words - 1}", where=where)
    return Checkpoint(
        folder=folder.path,
        architecture=config["architecture"],
        settings=config["model"],
        tensors=tensors,
        input=input,
        output=output,
        start_token=start_token,
        tokenization=tokenization,
        generation=check_generation(config.get(GENERATION, {}), where),
        guard=guard,
        beside={key: config[key] for key in _BESIDE if config.get(key) is not None},
        files=files,
        fingerprint=fingerprint,
        notices=(*notices,),
    )


def _special_ids(values: object, where: str) -> SpecialIds:
    names = [item.name for item in fields(SpecialIds)]
    if not isinstance(values, dict) or sorted(values) != sorted(names) or not are_sizes([*values.values()]):
        raise CheckpointError(f"'special_ids' is {values!r}, not ids of {', '.join(names)}", where=where)
    return SpecialIds(**values)


def read_config(checkpoint: Checkpoint) -> Config:
    """The configuration of a checkpoint, which its weights and dictionaries fit, with the words of these.

    Raises:
        UnsupportedCheckpointError: This version has no such architecture.
        CheckpointError: The weights do not fit the configuration, or it the dictionaries.
    """
    where, stored = str(checkpoint.folder), checkpoint.tensors
    try:
        declared = architecture(checkpoint.architecture)
        config = declared.config.from_dict(checkpoint.settings)
    except UsageError as error:
        raise CheckpointError(error.message, where=where) from error
    sizes = {"tgt_vocab": checkpoint.output.vocab}
    if checkpoint.input.vocab is not None:
        sizes["src_vocab"] = checkpoint.input.vocab
    for name, vocab in sizes.items():
        rows = getattr(config, name)
        if rows < len(vocab) or (checkpoint.quantized is not None and rows > len(vocab)):
            raise CheckpointError(f"the model has {rows} words, its dictionary {len(vocab)}", where=where)
        if config.pad != vocab.pad:
            raise CheckpointError(
                f"the model pads with {config.pad}, its dictionary with {vocab.pad}", where=where
            )
        if not declared.autoregressive and vocab.specials != FAIRSEQ:
            raise CheckpointError(
                f"the special ids are {vocab.specials}, those of a {declared.name} model {FAIRSEQ}",
                where=where,
            )
    for side in ("encoder", "decoder"):
        layers = config.layers(side)
        found = {name.split(".")[1] for name in stored if name.startswith(f"{side}_layers.")}
        if len(found) != layers:
            raise CheckpointError(
                f"the {side} has {len(found)} layers, the configuration says {layers}", where=where
            )
    if checkpoint.quantized is not None:
        require_shapes(stored_shapes(config), stored.shapes, where)
        for name, wanted in stored_types(config).items():
            if stored.types[name] != wanted:
                raise CheckpointError(
                    f"tensor {name!r} has type {stored.types[name]}, not {wanted}", where=where
                )
        return config
    require_shapes(config.weight_shapes(), stored.shapes, where)
    for name, type in stored.types.items():
        if type not in FLOATS:
            raise CheckpointError(f"tensor {name!r} has type {type}, which is no floating point", where=where)
    words: JsonObject = {name: len(vocab) for name, vocab in sizes.items()}
    try:
        return replace(config, **words)
    except UsageError as error:  # source and target words are one matrix, but not as many
        raise CheckpointError(error.message, where=where) from error
