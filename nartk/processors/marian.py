"""Text of Marian's own models: pieces of a sentencepiece model, whose ids are the words' ids.

Settings in ``config.json``: ``sentencepiece`` names the file; ``words`` is the number of words of the model,
the last of which is the start token that Marian has no word for; rows between are none's.
"""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path

from nartk.errors import CheckpointError
from nartk.files import Folder, JsonObject
from nartk.processors import named_file, register_processor
from nartk.processors.text import SentencePieceTokenizer, TextInput
from nartk.vocab import MOST_WORDS, SpecialIds, Vocab, padding_word

NAME = "marian"
START = "<pad>"  # the last word


def read_pieces(path: Path) -> tuple[list[str], int, int]:
    """The pieces of a sentencepiece model, and the ids of its end of sentence and of unknown pieces.

    Raises:
        CheckpointError: It is no such model, or its sentences have no end.
    """
    import sentencepiece

    try:
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except (RuntimeError, OSError) as error:
        raise CheckpointError("not a sentencepiece model", where=str(path)) from error
    if pieces.eos_id() < 0:
        raise CheckpointError("a sentencepiece model without an end of sentence", where=str(path))
    return pieces.id_to_piece([*range(len(pieces))]), pieces.eos_id(), pieces.unk_id()


@register_processor("output", NAME)
def load_output(folder: Folder, settings: JsonObject, specials: SpecialIds) -> SentencePieceTokenizer:
    path, count = named_file(folder, settings, "sentencepiece"), settings.get("words")
    words, *_ = read_pieces(path)
    if type(count) is not int or not len(words) < count <= MOST_WORDS:
        raise CheckpointError(
            f"'words' is {count!r}, of {len(words)} pieces and a start token", where=str(folder)
        )
    words += [padding_word(id) for id in range(len(words), count - 1)]
    if max(astuple(specials)) >= count:
        raise CheckpointError(f"{count} words, with special ids {specials}", where=str(folder))
    return SentencePieceTokenizer(path, Vocab((*words, START), *astuple(specials)))


@register_processor("input", NAME)
def load_input(folder: Folder, settings: JsonObject, specials: SpecialIds) -> TextInput:
    return TextInput(load_output(folder, settings, specials))
