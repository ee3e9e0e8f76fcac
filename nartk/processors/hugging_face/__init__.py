"""Text as the tokenizers of Hugging Face's sequence-to-sequence models have it, read from their own files.

What a tokenizer class of transformers 5 makes of a folder is made with `tokenizers`, or for Marian and
M2M-100 with sentencepiece. Settings in ``config.json``: ``class`` is the tokenizer's, ``words`` how many rows
the model has, of which the last may be no word of the tokenizer's, and files are named by what they hold. The
input has ``prefix``, a text before each line, and ``before`` and ``after``, ids around it. ``first_word`` is
what outputs begin with, and the output's ``start_word`` takes the place of the model's start token; they are
null where the model has none.
"""

from nartk.processors.hugging_face.loading import (
    HuggingFaceInput,
    HuggingFaceText,
    HuggingFaceTokenizer,
    hugging_face_processors,
    load_input,
    load_output,
)

__all__ = [
    "HuggingFaceInput",
    "HuggingFaceText",
    "HuggingFaceTokenizer",
    "hugging_face_processors",
    "load_input",
    "load_output",
]
