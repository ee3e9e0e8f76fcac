"""Other libraries with the same weights, and programs, as a benchmark runs them."""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nartk.architectures import architecture
from nartk.bench.specs import Outcome, Setup, Spec, require_threads
from nartk.bench.work import Workload
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.loading import load_checkpoint, located
from nartk.checkpoints.names import model_folder
from nartk.errors import StrategyMismatchError, UsageError, requiring_fairseq
from nartk.protocols.passes import texts_of
from nartk.registry import option
from nartk.serving.scorers import load_network

if TYPE_CHECKING:
    import torch  # which peers alone need


@dataclass(frozen=True)
class _PeerBatch:
    """Sentences for a peer, and how long it may go on: exactly so long where outputs are forced.

    A peer's scores are not forced, only its number of steps: the cost is the same whatever it says.
    """

    sources: list[list[int]]
    limit: int
    forced: bool


@dataclass(kw_only=True)
class Peer:
    """Base of other libraries. Batches are sentences of like length; tokenization is ours, and counted."""

    package: ClassVar[str]
    by_sentence: ClassVar[bool] = True  # at batch 1 each sentence is a job of its own
    in_process: ClassVar[bool] = True  # its memory is the process's
    in_turn: ClassVar[bool] = True  # a batch begins when the one before it has ended

    beam: int = option(1, "hypotheses kept", low=1)

    def start(self, spec: Spec, setup: Setup) -> None:
        """Loads the model."""
        self.checkpoint = load_checkpoint(model_folder(setup.model), **setup.languages)
        self.ends = self.checkpoint.target_vocab.ends
        self.device, self.dtype, self.threads = setup.device, spec.dtype, setup.threads
        options = ":".join(f"{item.name}={getattr(self, item.name)}" for item in dataclasses.fields(self))
        self.signature = f"{self.package}:{version(self.package)}|{options}|dtype:{spec.dtype}"
        self.build()

    def build(self) -> None:
        """Builds the library's model from `checkpoint`."""
        raise NotImplementedError

    def generate(self, batches: Sequence[_PeerBatch]) -> Iterator[list[list[int]]]:
        """The outputs of each batch; what follows eos does not matter."""
        raise NotImplementedError

    def decode(self, job: Workload, batch_size: int) -> Outcome:
        """Decodes from text to text."""
        sources = [self._encode(line, truncate=job.truncate) for line in job.lines]
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        groups = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        batches = [
            _PeerBatch([sources[i] for i in group], max(job.limits[i] for i in group), job.forced is not None)
            for group in groups
        ]
        tokens: list[list[int]] = [[]] * len(sources)
        texts, latencies = [""] * len(sources), []
        start = time.perf_counter()
        for group, rows in zip(groups, self.generate(batches), strict=True):
            latencies += [time.perf_counter() - start] * len(group)
            for i, row in zip(group, rows, strict=True):
                tokens[i] = self._cut(row, job.limits[i])
                texts[i] = self.checkpoint.output.decode(tokens[i])
            start = time.perf_counter()
        return Outcome(tokens, texts, latencies if self.in_turn else [])

    def _encode(self, line: str, *, truncate: bool) -> list[int]:
        longest = self.checkpoint.settings["max_source_len"] if truncate else sys.maxsize
        return [*texts_of([self.checkpoint.input.read(line, longest=longest, truncate=truncate)])[0]]

    def _cut(self, row: list[int], limit: int) -> list[int]:
        end = next((at for at, word in enumerate(row, 1) if word in self.ends), limit)
        return row[: min(end, limit)]

    def pad(self, batch: _PeerBatch) -> torch.Tensor:
        """The sources [B,S] int64, padded on the right."""
        import torch

        pad = self.checkpoint.source_vocab.pad
        width = max(map(len, batch.sources))
        rows = [[*source, *[pad] * (width - len(source))] for source in batch.sources]
        return torch.tensor(rows, device=self.device)


@dataclass(kw_only=True)
class HuggingFacePeer(Peer):
    """transformers' `generate`, of its own folders with the model in them."""

    package: ClassVar[str] = "transformers"

    lookup: int = option(0, "tokens of a prompt-lookup draft, batch 1 alone; 0: none", low=0)
    assistant: str = option("", "a small autoregressive model that drafts, batch 1 alone")
    int8: bool = option(False, "torch's dynamic int8 linear layers")
    static: bool = option(
        False, "a static cache, for which it compiles its steps on a GPU; else a dynamic one"
    )

    def build(self) -> None:
        self.settings: dict[str, Any] = {"num_beams": self.beam}
        if self.static:
            self.settings["cache_implementation"] = "static"
        if self.lookup:
            self.settings["prompt_lookup_num_tokens"] = self.lookup
        if self.assistant:
            self.settings["assistant_model"] = self._convert(self._assistant())
        self.model = self._convert(self.checkpoint)

    def _assistant(self) -> Checkpoint:
        """The small model, which must be one and say the model's words."""
        small = load_checkpoint(located(self.assistant))
        if not architecture(small.architecture).autoregressive:
            raise StrategyMismatchError(
                f"assistant {self.assistant!r} is a {small.architecture!r}, which is not autoregressive",
                fix="name an autoregressive model",
            )
        for side in ("source_vocab", "target_vocab"):
            mine, theirs = getattr(self.checkpoint, side), getattr(small, side)
            mine.require_equal(theirs, "the model", f"assistant {self.assistant!r}")
        return small

    def _convert(self, checkpoint: Checkpoint) -> Any:
        import torch

        from nartk.adapters.hf import own_or_converted, set_generation
        from nartk.models.reference import DTYPES

        model = own_or_converted(checkpoint)
        set_generation(model, checkpoint)
        model = model.to(self.device, DTYPES.get(self.dtype, torch.float32))
        if self.int8 or self.dtype == "int8":
            model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, torch.qint8)
        return model

    def generate(self, batches: Sequence[_PeerBatch]) -> Iterator[list[list[int]]]:
        import torch

        for batch in batches:
            tokens = self.pad(batch)
            settings = self.settings | {"max_new_tokens": batch.limit}
            if batch.forced:
                settings["min_new_tokens"] = batch.limit
            mask = tokens.ne(self.checkpoint.source_vocab.pad).long()
            with torch.inference_mode():
                found = self.model.generate(tokens, attention_mask=mask, do_sample=False, **settings)
            yield found[:, 1:].tolist()


@dataclass(kw_only=True)
class CTranslate2Peer(Peer):
    """CTranslate2's `Translator`."""

    package: ClassVar[str] = "ctranslate2"
    in_turn: ClassVar[bool] = False

    int8: bool = option(False, "int8 weights")
    replicas: int = option(1, "batches at a time, which share the threads", low=1)

    def build(self) -> None:
        from nartk.adapters.ctranslate2 import TYPES, checkpoint_to_ctranslate2, import_ctranslate2

        require_threads(self.replicas, self.threads)
        ctranslate2 = import_ctranslate2()
        compute = TYPES["int8" if self.int8 else self.dtype]
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            checkpoint_to_ctranslate2(self.checkpoint, folder, "int8" if compute == "int8" else None)
            self.translator = ctranslate2.Translator(
                str(folder),
                device=self.device.partition(":")[0],
                compute_type=compute,
                inter_threads=self.replicas,
                intra_threads=self.threads // self.replicas,
            )

    def generate(self, batches: Sequence[_PeerBatch]) -> Iterator[list[list[int]]]:
        source, target = self.checkpoint.source_vocab, self.checkpoint.target_vocab
        first = self.checkpoint.generation.get("forced_bos")
        prefixes = None if first is None else [target.to_words([first])]
        started = [
            self.translator.translate_batch(
                [source.to_words(ids) for ids in batch.sources],
                target_prefix=None if prefixes is None else prefixes * len(batch.sources),
                beam_size=self.beam,
                max_decoding_length=batch.limit,
                min_decoding_length=batch.limit if batch.forced else 0,
                return_end_token=True,
                asynchronous=True,
            )
            for batch in batches
        ]
        for results in started:
            yield [target.ids(each.result().hypotheses[0]) for each in results]


@dataclass(kw_only=True)
class FairseqPeer(Peer):
    """fairseq's own Transformer and SequenceGenerator, which fairseq-generate runs."""

    package: ClassVar[str] = "fairseq"

    def build(self) -> None:
        from nartk import _fairseq_hook

        _fairseq_hook.install()
        with requiring_fairseq("the module {name} is not installed"):
            from nartk.tasks.peer import to_generator
        if self.dtype != "fp32":
            raise UsageError(f"fairseq runs in fp32 here, not in {self.dtype}")
        checkpoint = self.checkpoint
        self.generator = to_generator(
            load_network(checkpoint), checkpoint.source_vocab, checkpoint.target_vocab, beam_size=self.beam
        ).to(self.device)

    def generate(self, batches: Sequence[_PeerBatch]) -> Iterator[list[list[int]]]:
        import torch

        for batch in batches:
            # It puts eos after the last token that the length allows: one more, where outputs are free.
            self.generator.max_len_a = 0
            self.generator.max_len_b = batch.limit - 1 if batch.forced else batch.limit
            self.generator.min_len = batch.limit - 1 if batch.forced else 0
            tokens = self.pad(batch)
            lengths = torch.tensor([len(source) for source in batch.sources], device=self.device)
            sample = {"net_input": {"src_tokens": tokens, "src_lengths": lengths}}
            with torch.inference_mode():
                found = self.generator.generate([], sample)
            yield [each[0]["tokens"].tolist() for each in found]


class Program:
    """A program of the user's, which decodes what it reads on stdin; `cli.bench` documents how.

    Raises:
        UsageError: The command is empty, or not one by the rules of a shell.
        OSError: There is no such program.
    """

    by_sentence: ClassVar[bool] = False
    in_process: ClassVar[bool] = False

    def __init__(self, spec: Spec, setup: Setup) -> None:
        values = {"model": str(model_folder(setup.model)), "dtype": spec.dtype, "threads": setup.threads}
        try:
            words = [word.format(**values) for word in shlex.split(spec.command)]
        except (ValueError, KeyError, IndexError) as error:
            raise UsageError(f"the command {spec.command!r} is malformed: {error}") from error
        self.command = words
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.signature = f"{spec.label}|dtype:{spec.dtype}"

    def decode(self, job: Workload, batch_size: int) -> Outcome:
        """Sends the sentences of a job; the program tells what it decoded, and how long that took."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {"lines": job.lines, "limits": job.limits, "batch_size": batch_size}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise UsageError(f"{self.command[0]} ended with status {self.process.wait()}")
        found = json.loads(answer)
        if "error" in found:
            raise UsageError(f"{self.command[0]}: {found['error']}")
        for name in ("tokens", "texts"):
            if len(found[name]) != len(job.lines):
                raise UsageError(
                    f"{self.command[0]} gave {len(found[name])} {name} for {len(job.lines)} lines"
                )
        return Outcome(found["tokens"], found["texts"], seconds=found["seconds"])

    def close(self) -> None:
        """Lets the program end."""
        self.process.communicate()


PEERS: dict[str, type[Peer]] = {"hf": HuggingFacePeer, "ctranslate2": CTranslate2Peer, "fairseq": FairseqPeer}
