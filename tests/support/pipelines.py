"""A spaCy pipeline that needs no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

TAGGED = """This DT DET this, These DT DET this, a DT DET a, the DT DET the, another DT DET another,
no DT DET no, are VBP AUX be, is VBZ AUX be, was VBD AUX be, contain VBP VERB contain,
contains VBZ VERB contain, corrected VBN VERB correct, sentence NN NOUN sentence,
sentences NNS NOUN sentence, error NN NOUN error, errors NNS NOUN error, one NN NOUN one,
change NN NOUN change, gramamtical JJ ADJ gramamtical, grammatical JJ ADJ grammatical,
dummy JJ ADJ dummy, different JJ ADJ different, completely RB ADV completely, into IN ADP into,
. . PUNCT ."""


def tagged_by_hand(folder: Path) -> str:
    """Writes a pipeline that knows the tags of the words above, and takes others for nouns; its folder."""
    pytest.importorskip("errant", reason="errant is not installed")
    import spacy

    pipeline = spacy.blank("en")
    ruler: Any = pipeline.add_pipe("attribute_ruler")
    ruler.add([[{}]], {"TAG": "NN", "POS": "NOUN"})  # of other words
    for entry in TAGGED.split(","):
        word, tag, part, lemma = entry.split()
        ruler.add([[{"ORTH": word}]], {"TAG": tag, "POS": part, "LEMMA": lemma})
    pipeline.to_disk(folder)
    return str(folder)
