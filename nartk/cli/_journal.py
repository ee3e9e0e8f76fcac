"""`nartk-decode --resume`: the outputs of lines are kept in a journal until all of them are decoded."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nartk.cli._files import form_of
from nartk.cli._output import line_writer, tell
from nartk.cli._resume import measure_file, require_same
from nartk.data.readers import SOUND
from nartk.errors import CheckpointError, ResumeMismatchError, UsageError, number_of
from nartk.files import STDIN, JsonObject, claimed, require_storable, sha256
from nartk.journal import Journal
from nartk.protocols.hypothesis import WINDOW, DecodeStats
from nartk.serving.transcripts import FORMATS, OF_SEVERAL

if TYPE_CHECKING:
    from nartk.cli._transcripts import Transcripts
    from nartk.data.readers import Record
    from nartk.decoders.strategy import Decoding
    from nartk.serving.model import Model

VERSION = 2  # of the records
SUFFIX = ".journal"
AHEAD = 256  # lines, or recordings, that are decoded again, at most, after a run was killed
# Flags that change no output, or whose values the header has in another form.
UNCOMPARED = frozenset(
    (
        *("inputs", "manifest", "output", "output_format", "form_flag", "trace", "stats", "strategy"),
        *("opened", "batch_size", "max_tokens", "threads", "replicas", "stream", "check", "no_cuda_graphs"),
        *("ray", "workers", "exact", "assert_lossless", "resume", "config", "quiet", "verbose", "debug"),
    )
)
_SYNC = 1.0  # seconds between two times that records are brought to the disk, at least


class LineJournal:
    """Keeps what is written of each line, in their order; the last step writes the files.

    Args:
        args: Flags of `nartk-decode`.
        files: Names of the input files.
        options: Options of the strategy; the contents of the files that they name are compared too.

    Attributes:
        path: File of the journal.
        count: Number of lines that it held when it was opened.

    Raises:
        UsageError: The inputs cannot be read a second time, or the outputs are not one file.
        OutputError: The output cannot be written to its folder.
        InputFileError: A file cannot be read.
    """

    def __init__(self, args: argparse.Namespace, files: Sequence[str], options: Mapping[str, Any]) -> None:
        _require_resumable(args, files)
        self.args, self.count = args, 0
        self._in_folder = args.output_dir is not None
        self.path = Path(os.path.realpath(args.output_dir if self._in_folder else args.output) + SUFFIX)
        self._traced = args.trace is not None
        require_storable(self.path, fix="choose a writable place with space")
        with ExitStack() as outputs:  # two that are one are refused now, not when all is decoded
            for name in (str(self.path), args.output, args.trace, args.stats):
                if name not in (None, STDIN):
                    outputs.enter_context(claimed(Path(os.path.realpath(name)), name))
        beside = [name for name in (args.drafts, args.score) if name is not None]
        named = [value for value in options.values() if isinstance(value, str) and os.path.isfile(value)]
        measured = [name for name in files if form_of(name, args.format) != SOUND]  # else with its record
        self._inputs: JsonObject = {"files": [*files, *beside]}
        self._inputs |= {name: measure_file(name, least=0) for name in (*measured, *beside, *named)}
        self._lines: list[str] = []
        self._traces: list[str] = []
        self._journal: Journal
        self._synced = time.monotonic()

    def open(self, stack: ExitStack, model: Model, strategy: Decoding, edits: str | None = None) -> None:
        """Opens the journal, which stays open until the stack ends, or begins one.

        Args:
            edits: Signature of what finds the edits that are written; None: none are.

        Raises:
            ResumeMismatchError: It was begun with other settings, inputs or records.
            OutputError: Another run writes to it, or it cannot be written.
        """
        away = f"or remove {self.path}, and all lines are decoded anew"
        flags = {name: value for name, value in vars(self.args).items() if name not in UNCOMPARED}
        decoding = {
            "signature": model.signature(strategy),
            "output_format": self.args.output_format,
            "trace": self._traced,
            "edits": edits,
            **json.loads(json.dumps(flags, default=str)),
        }
        parts = {"journal": {"version": VERSION}, "decoding": decoding, "inputs": self._inputs}
        fixes = {
            "journal": f"finish with the version of nartk that began it, {away}",
            "decoding": f"give the settings of that run, {away}",
            "inputs": f"give the inputs of that run, {away}",
        }
        header = require_same(self.path, "nartk-decode", parts, fixes)
        self._reads_text = model.reads_text
        header = json.dumps(parts).encode() if header is None else header
        self._journal = stack.enter_context(Journal.open(self.path, header))
        self.count = self._journal.count
        if self.count:
            tell(self.args, f"goes on after {number_of(self.count, 'line')}, read from {self.path}")

    def skip(self, records: Iterator[Record], transcripts: Transcripts | None) -> tuple[int, DecodeStats]:
        """Skips the records that the journal holds, and prints their errors again.

        Args:
            transcripts: Writer of a file of each recording, if there is one; a file that is gone is written.

        Returns:
            Number of lines that failed, and the statistics of the others.

        Raises:
            ResumeMismatchError: A recording is not the one that was decoded.
        """
        failed, stats = 0, [DecodeStats()]
        for index, kept in enumerate(self._kept()):
            record = next(records, None)
            if record is None or kept["line"] != index or kept["sound"] != self._sound_of(record):
                where = "" if record is None else record.where
                raise ResumeMismatchError(
                    f"line {index + 1} was decoded from another input",
                    fix=f"give the inputs of that run, or remove {self.path}, and all lines are decoded anew",
                    where=where,
                )
            if kept["error"] is not None:
                failed += 1
                print(f"nartk: {kept['error']}", file=sys.stderr)
            elif transcripts is not None and self._in_folder:
                transcripts.restore(record, kept["lines"][0])
            stats.append(DecodeStats(**kept["stats"]))
            if len(stats) == WINDOW:
                stats = [DecodeStats.total(stats)]
        return failed, DecodeStats.total(stats)

    def write(self, line: str) -> None:
        """Takes a line of the output, part of what is written of an input line."""
        self._lines.append(line)

    def write_trace(self, line: str) -> None:
        """Takes a line of the trace, as `write`."""
        self._traces.append(line)

    def add(self, record: Record, error: str | None, stats: DecodeStats) -> None:
        """Ends an input line: all that was written of it becomes a record; raises OutputError.

        Args:
            error: Error of the line, as it is printed; None: there is none.
            stats: Statistics of the line, with the seconds since the one before it.
        """
        kept = {
            "line": self._journal.count,
            "lines": self._lines,
            "trace": self._traces,
            "error": error,
            "sound": self._sound_of(record),
            "stats": {name: value for name, value in asdict(stats).items() if value},
        }
        now = time.monotonic()
        is_due = now - self._synced >= _SYNC
        self._journal.append(json.dumps(kept).encode(), sync=is_due)
        if is_due:
            self._synced = now
        self._lines, self._traces = [], []

    def finish(self) -> None:
        """Writes the output and the trace, each whole or not at all, and removes the journal.

        A folder of outputs has its files already.

        Raises:
            OutputError: One of them cannot be written; the journal stays.
        """
        with ExitStack() as files:
            writers = {} if self._in_folder else {"lines": files.enter_context(line_writer(self.args.output))}
            if self._traced:
                writers["trace"] = files.enter_context(line_writer(self.args.trace))
            for kept in self._kept():
                for name, write in writers.items():
                    for line in kept[name]:
                        write(line)
        self._journal.remove()

    def _kept(self) -> Iterator[JsonObject]:
        yield from map(json.loads, self._journal.records())

    def _sound_of(self, record: Record) -> str | None:
        """SHA-256 of the recording that a record names; None of text, and of what cannot be read."""
        if self._reads_text or record.error is not None or not os.path.isfile(record.text):
            return None
        try:
            return sha256(Path(record.text))
        except CheckpointError:
            return None


def _require_resumable(args: argparse.Namespace, files: Sequence[str]) -> None:
    """Refuses what a second run cannot go on with; raises UsageError."""
    for name in files or [STDIN]:
        if name == STDIN or (os.path.exists(name) and not os.path.isfile(name)):
            what = "stdin" if name == STDIN else f"{name!r}, which is no regular file"
            raise UsageError(f"--resume of {what}: it is read only once", fix="store it as a file first")
    if args.output_dir is not None:
        return
    if args.output in (None, STDIN) or (os.path.exists(args.output) and not os.path.isfile(args.output)):
        raise UsageError("--resume without a file as --output", fix="give --output FILE, or --output-dir DIR")
    if args.output_format in FORMATS and args.output_format not in OF_SEVERAL:
        raise UsageError(
            f"--resume with {args.form_flag}: it holds one recording, which is decoded whole",
            fix="leave --resume out, or give --output-dir DIR for several recordings",
        )
