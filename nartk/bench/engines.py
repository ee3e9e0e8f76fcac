"""The engines that a benchmark compares: nartk's strategies, and peers (`nartk.bench.peers`)."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import ClassVar

from nartk.bench.forced import ForcedPasses
from nartk.bench.peers import PEERS, Peer, Program
from nartk.bench.specs import Outcome, Setup, Spec, require_threads
from nartk.bench.verification import Divergences, first_difference
from nartk.bench.work import Workload
from nartk.decoders.drafters.own_layers import OwnLayers
from nartk.errors import NartkError, UsageError, named
from nartk.protocols.hypothesis import Request, Result
from nartk.protocols.passes import PassScorer
from nartk.registry import options_of, protocols, read_options, reads_drafts
from nartk.serving.loading import load
from nartk.serving.outcomes import in_order, summarize

_load = functools.cache(load)  # engines that share a process have the same weights at the same place


class NartkEngine:
    """A strategy of nartk. It learns within a job, as in a run of nartk-decode."""

    by_sentence: ClassVar[bool] = False
    in_process: ClassVar[bool] = True

    def __init__(self, spec: Spec, setup: Setup) -> None:
        require_threads(spec.replicas, setup.threads)
        model = _load(
            spec.model or setup.model,
            device=setup.device,
            dtype=spec.dtype,
            threads=setup.threads if spec.replicas == 1 else None,
            replicas=spec.replicas,
            **({} if spec.model else setup.languages),
        )
        # A job's lines are sentences as the model reads them, its outputs the model's own, as its peers' are.
        self.model = self._free = dataclasses.replace(model, pretokenized=True, guard=False)
        self.strategy = self.model.strategy(spec.name, spec.options)
        self.signature = self.model.signature(self.strategy)
        self._forced: tuple[str, ...] | None = None

    def decode(self, job: Workload, batch_size: int) -> Outcome:
        """Decodes from text to text."""
        self._force(job)
        results = self._results(job, batch_size)
        stats = summarize(results, 0.0)
        return Outcome(
            tokens=[list(result.hypotheses[0].tokens) for result in results],
            texts=[result.hypotheses[0].text for result in results],
            latencies=list(stats.latencies),
            passes=stats.passes,
            drafted=stats.drafted,
            accepted=stats.accepted,
        )

    def costs(self, job: Workload, batch_size: int) -> dict[str, float] | None:
        """The seconds that each of `report.PARTS` takes of a decoding from ids to ids.

        None where the strategy does not tell.
        """
        self._force(job)
        scorer, requests = self.model.scorer_for(self.strategy), self.requests(job)
        start = time.perf_counter()
        stats = summarize([*self.strategy.run(scorer, requests, batch_size=batch_size)], 0.0)
        whole = time.perf_counter() - start
        if not stats.verify_seconds:
            return None
        spent = {"encode": stats.encode_seconds, "draft": stats.draft_seconds, "verify": stats.verify_seconds}
        return {**spent, "loop": whole - sum(spent.values())}

    def ties(
        self,
        job: Workload,
        batch_size: int,
        expected: Sequence[Sequence[int]],
        found: Sequence[tuple[int, Sequence[int]]],
    ) -> list[bool]:
        """For each output True if it leaves greedy search's at a tie, which torch is allowed.

        Args:
            expected: The tokens of greedy search, of each sentence.
            found: Pairs of a sentence's number and other tokens for it.
        """
        if self.model.is_exact:
            return [False] * len(found)
        requests = dict(enumerate(self.requests(job)))
        divergences = Divergences(self.model.passes, requests, dict(enumerate(expected)))
        ties = []
        for row, tokens in found:
            position = first_difference(expected[row], tokens)
            assert position is not None
            ties.append(divergences.explain(row, position, tokens, batch_size=batch_size).category == "tie")
        return ties

    def requests(self, job: Workload) -> list[Request]:
        prefixes, drafts = self._given(job)
        return [
            self.model.request(
                index,
                line,
                self.strategy,
                prefix="" if prefixes is None else prefixes[index],
                drafts=() if drafts is None else drafts[index],
                truncate=job.truncate,
            )
            for index, line in enumerate(job.lines)
        ]

    def _force(self, job: Workload) -> None:
        """Lets the model output what a job forces, or where it forces nothing what it finds itself.

        A non-autoregressive model's outputs are not forced: they cost the same whatever they are.
        """
        if job.forced == self._forced or PassScorer not in protocols(self.strategy):
            return
        self.model, self._forced = self._free, job.forced
        if job.forced is not None:
            write = self.model.checkpoint.output.encode
            outputs = {
                tuple(self.model.encode(line)): write(output)  # type: ignore[arg-type]
                for line, output in zip(job.lines, job.forced, strict=True)
            }
            self.model = dataclasses.replace(self._free, passes=ForcedPasses(self._free.passes, outputs))

    def _given(self, job: Workload) -> tuple[Sequence[str] | None, Sequence[Sequence[str]] | None]:
        """Forced prefixes, and drafts if the strategy takes them."""
        return job.prefixes, job.drafts if reads_drafts(self.strategy) else None

    def _results(self, job: Workload, batch_size: int) -> list[Result]:
        prefixes, drafts = self._given(job)
        outcomes = self.model.stream(
            job.lines,
            self.strategy,
            batch_size=batch_size,
            prefixes=prefixes,
            drafts=drafts,
            truncate=job.truncate,
        )
        results = []
        for outcome in in_order(outcomes):
            if isinstance(outcome, NartkError):
                raise outcome
            results.append(outcome)
        return results


def parse_spec(text: str, dtype: str) -> Spec:
    """Reads ``NAME`` or ``NAME:OPTION=VALUE:OPTION=VALUE``.

    The option ``model`` of a strategy names the model that decodes, where it is not the benchmark's;
    ``replicas`` says how many engines of one thread do.

    Raises:
        UnknownStrategyError: There is no such strategy.
        UsageError: It does not know an option, or a value is none of the option's type.
    """
    name, *given = OwnLayers.kept_whole(text.split(":"))
    types: dict[str, type]
    if name in PEERS:
        types = {item.name: type(item.default) for item in dataclasses.fields(PEERS[name])}
    else:
        own = {key: type(item.default) for key, item in options_of(name).items()}
        types = {"model": str, "replicas": int, **own}
    options = read_options(text, name, given, types)
    spec = Spec(text, name, options, dtype)
    if name not in PEERS:
        apart = {key: options.pop(key) for key in ("model", "replicas") if key in options}
        spec = dataclasses.replace(spec, **apart)  # type: ignore[arg-type]
    if spec.replicas < 1:
        raise UsageError(f"{text!r} has {spec.replicas} replicas", fix="give at least 1")
    return spec


def program(text: str, dtype: str) -> Spec:
    """Reads ``NAME=COMMAND``.

    Raises:
        UsageError: It is not of that form.
    """
    label, _, command = text.partition("=")
    if not label or not command.strip():
        raise UsageError(f"{named('peer')} is {text!r}", fix="write NAME=COMMAND")
    return Spec(label, label, {}, dtype, command=command)


def open_engine(spec: Spec, setup: Setup) -> NartkEngine | Peer | Program:
    """Loads an engine; raises what says why it cannot run."""
    if spec.command:
        return Program(spec, setup)
    if spec.name not in PEERS:
        return NartkEngine(spec, setup)
    peer = PEERS[spec.name](**spec.options)
    peer.start(spec, setup)
    return peer
