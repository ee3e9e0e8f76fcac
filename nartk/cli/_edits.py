"""`nartk-decode --output-format m2`: each line as a block of M2, with the edits that make its output."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nartk.cli._output import tell
from nartk.data.m2 import M2Edit, M2Sentence, apply_edits, noop, read_m2, write_m2
from nartk.errors import InputFormatError, InputTooLongError, MissingDependencyError, NartkError, UsageError
from nartk.metrics.errant import ENVIRONMENT, ErrantAnnotator
from nartk.protocols.hypothesis import Result
from nartk.protocols.paragraph import edits

if TYPE_CHECKING:
    from nartk.data.readers import Record
    from nartk.serving.model import Model

UNTYPED = "NA"  # ERRANT's name of the type of an edit that has none


class EditWriter:
    """Finds the edits between lines and outputs: ERRANT's where it is installed, else those of an alignment.

    Args:
        args: Flags of `nartk-decode`.
        nbest: Number of outputs a line.

    Attributes:
        annotation: Signature of ERRANT, or `UNTYPED`.

    Raises:
        UsageError: The model reads sound, or there are several outputs a line.
        MissingDependencyError: ERRANT has not the pipeline that the environment names.
    """

    def __init__(self, args: argparse.Namespace, model: Model, nbest: int) -> None:
        if not model.reads_text:
            raise UsageError(f"{args.form_flag}, but the model reads sound", fix="name a model of text")
        if nbest > 1:
            raise UsageError(
                f"{args.form_flag} with {nbest} outputs a line: a block holds the edits of one",
                fix="leave --nbest out, or use --output-format jsonl",
            )
        self._tokens = model.tokenization.tokens
        self._errant: ErrantAnnotator | None = None
        self.annotation = UNTYPED
        try:
            self._errant = ErrantAnnotator()
            self.annotation = self._errant.signature
        except MissingDependencyError as error:
            if ENVIRONMENT in os.environ:
                raise
            tell(args, f"edits have the type {UNTYPED}: {error.message}")

    def block(self, record: Record, outcome: Result | NartkError) -> tuple[str, Result | NartkError]:
        """The block of a line, without the line break at its end, and what became of the line.

        A line that failed has no edit, and neither has one whose edits M2 cannot hold, which is its error.
        """
        source = self._split(record.text)
        found = [noop()]
        if isinstance(outcome, Result):
            output = self._split(outcome.hypotheses[0].text)
            try:
                found = self._between(source, output)
                _require_whole(M2Sentence(source, found), output)
            except InputFormatError as error:
                found, outcome = [noop()], error
        return "".join(write_m2([M2Sentence(source, found)])).removesuffix("\n"), outcome

    def _split(self, text: str) -> list[str]:
        """Tokens of a line as the model reads it; only spaces, and what ends a line, are between them."""
        line = self._tokens(text).replace("\n", " ").replace("\r", " ")
        return [token for token in line.split(" ") if token]

    def _between(self, source: Sequence[str], output: Sequence[str]) -> list[M2Edit]:
        """The edits that make the output of the source; a ``noop`` where the two are the same."""
        if self._errant is not None and source and output:
            try:
                return self._errant.annotate([source], [output])[0].edits
            except InputTooLongError:  # for ERRANT's alignment, which takes memory by the product
                pass
        found = [
            M2Edit(i, stop, UNTYPED, " ".join(output[j:last]))
            for i, stop, j, last in edits(source, output)
            if source[i:stop] != output[j:last]
        ]
        return found or [noop()]


def _require_whole(sentence: M2Sentence, output: Sequence[str]) -> None:
    """Refuses edits that are read back as others, as where a token holds M2's separator.

    Raises:
        InputFormatError: They are.
    """
    try:
        (found,) = read_m2("".join(write_m2([sentence])).split("\n"))
        if " ".join(apply_edits(found)).split() == " ".join(output).split():  # white space aside
            return
    except NartkError:
        pass
    raise InputFormatError(
        "M2 cannot hold its edits: a token of the output holds '||' or is '-NONE-'",
        fix="decode it with --output-format jsonl",
    )
