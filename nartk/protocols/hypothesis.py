"""Inputs and outputs of decoders: requests, hypotheses, traces and statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from nartk.protocols.outputs import NO_TEXT, Output

if TYPE_CHECKING:
    from nartk.errors import NartkError
    from nartk.protocols.passes import FloatArray, Source

WINDOW = 4096  # sentences read ahead and sorted by length: memory does not grow with the input


@dataclass(frozen=True, eq=False)
class Request:
    """One sentence to decode. Two requests are never equal: a request names what became of it.

    Attributes:
        index: Its place in the input; results carry it back.
        source: Text with eos, or features.
        max_len: Longest output, tokens with eos.
        prefix: Target ids that the output must begin with.
        drafts: Target ids, without eos, of what the output may be, for strategies that read drafts.
        targets: Target ids, with eos, of outputs that are to be scored, for `nartk.decoders.scoring`.
        vad: True if the probability of no speech is computed, by models that predict it.
        after_prefix: Words that do not follow the prefix.
        trace: True if hypotheses carry a trace.
        rules: Rules for its output, of a run of which other requests have others (`Constraints` of
            `nartk.decoders.loop`); None: the run's own.
        seed, nbest: Seed of draws, and number of hypotheses returned; None: the run's own.
        prompt: Words between the start token and the output, of models that follow a prompt
            (`nartk.protocols.prompts`); None: the model's own.
        before: Words in front of the start token, of models that read what was said before.
    """

    index: int
    source: Source
    max_len: int
    prefix: tuple[int, ...] = ()
    drafts: tuple[tuple[int, ...], ...] = ()
    targets: tuple[tuple[int, ...], ...] = ()
    vad: bool = False
    after_prefix: tuple[int, ...] = ()
    trace: bool = False
    rules: Any = None
    seed: int | None = None
    nbest: int | None = None
    prompt: tuple[int, ...] | None = None
    before: tuple[int, ...] = ()


@dataclass(frozen=True)
class TokenTrace:
    """Origin of one output token.

    Attributes:
        origin: ``draft`` (proposed and accepted), ``rollback`` (the verifier's, in the place of a proposed
            one that it took back), ``verifier`` (its own, where nothing was proposed), ``prefix`` (forced),
            or ``model`` (a non-autoregressive model's).
        verifier_pass: The pass that settled it, from 1; of a forced token the one that reached it, or 0 where
            a strategy does not count it, as in beam search.
        margin: Best logit there less the second best, in nats.
    """

    origin: str
    verifier_pass: int
    margin: float | None

    def after(self, passes: int) -> TokenTrace:
        """The same in an output before which so many passes were taken."""
        return replace(self, verifier_pass=self.verifier_pass + passes) if self.verifier_pass else self


@dataclass(frozen=True)
class Guarded:
    """Something that a model's guard did (`nartk.processors.guard`).

    Attributes:
        done: ``split``: the text was decoded again in pieces; ``kept``: it stays as it is in the source;
            ``undone``: it stays, where a single edit would have changed it.
        text: Tokens of the source with spaces between; empty where an edit put something in.
        reasons: Reasons against the output, or the edit.
    """

    done: str
    text: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Word:
    """A word of a recording's output with its times.

    Attributes:
        text: The word, with the space that stands before it, if any.
        start, end: Seconds from the beginning of the recording.
        probability: Mean probability of its tokens; None: the strategy has none.
    """

    text: str
    start: float
    end: float
    probability: float | None = None


@dataclass(frozen=True)
class Segment:
    """A part of a recording's output with its times, as Whisper's timestamps divide it.

    Attributes:
        start, end: Seconds from the beginning of the recording.
        text: Its words.
        tokens: Ids of them, timestamps among them, without eos.
        seek: Frame of the recording that its window begins with, 10 ms each.
        temperature: That of the window's words; 0: none was drawn.
        avg_logprob: Mean log-probability of the window's tokens with eos, natural logarithm.
        compression_ratio: Bytes of the window's text by those of its zlib stream.
        no_speech_prob: Probability that nobody speaks in the window; None: it was not computed.
        words: Words with their times; empty where these were not asked for.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    seek: int = 0
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float | None = None
    words: tuple[Word, ...] = ()


@dataclass(frozen=True)
class Hypothesis:
    """One decoded output.

    Attributes:
        tokens: Target ids; the last is eos unless `max_len` cut it off.
        score: Value to rank by, natural logarithm: the sum of `positional_scores`, unless the strategy says
            otherwise (beam search divides by its length penalty, others take a mean); None where it has none.
        positional_scores: The model's log-probability of each token, natural logarithm; None where the
            strategy has none.
        trace: A TokenTrace for each token, where a trace was asked for.
        spans: Begin and end of each token but eos, positions of the encoder; None: they are not known.
        vertices: The vertex of a DA-Transformer's graph that each token is at; None: there is no one path.
        mel: Log-mel frames [T,F] of its speech, of models that speak; None: it has none.
        output: Form in which it is written, by the model's output processor, text by most; the pipeline fills
            it in, as what follows.
        pieces: The dictionary's word or piece of a word for each token.
        alternatives: The hypotheses ranked after it, best first, where `Model.decode` gives the best alone.
        times: Begin and end of each token but eos in the recording, seconds; None: they are not known.
        error: Reason why the line could not be decoded; then there are no tokens.
        guarded: Actions of the model's guard.
        segments: Parts of a recording's output with their times; empty where a model writes no timestamps.
        language: Code of the language that a recording is in; empty: it is not known.
        words: Words of a recording with their times; empty where these are not known.
        seconds: Length of the recording, s; None: the source is none.
    """

    tokens: tuple[int, ...]
    score: float | None = None
    positional_scores: tuple[float, ...] | None = None
    trace: tuple[TokenTrace, ...] | None = None
    spans: tuple[tuple[float, float], ...] | None = None
    vertices: tuple[int, ...] | None = None
    mel: FloatArray | None = field(default=None, repr=False, compare=False)
    output: Output = NO_TEXT
    pieces: tuple[str, ...] = ()
    alternatives: tuple[Hypothesis, ...] = ()
    times: tuple[tuple[float, float], ...] | None = None
    error: NartkError | None = None
    guarded: tuple[Guarded, ...] = ()
    segments: tuple[Segment, ...] = ()
    language: str = ""
    words: tuple[Word, ...] = ()
    seconds: float | None = None

    @property
    def text(self) -> str:
        """The output as text."""
        return str(self.output)


def without_words(hypothesis: Hypothesis, eos: int) -> Hypothesis:
    """The empty output where a hypothesis is left out, with a trace if that has one; it has no score."""
    return Hypothesis((eos,), trace=None if hypothesis.trace is None else (TokenTrace("model", 0, None),))


@dataclass(frozen=True)
class GraphTrace:
    """The likelier part of a DA-Transformer's graph, and the way that an output took through it.

    Attributes:
        size: Vertices of the whole graph.
        vertices: Those that are kept, ascending: the path's, and others that paths often come to.
        words: For each of them its likeliest words and their log-probabilities, best first.
        links: Edges between them: from, to, log-probability.
        path: Vertices of the best output's path, from 0 to the last; empty where all paths count together.
        emitted: The word at each vertex of the path after the first.
    """

    size: int
    vertices: tuple[int, ...]
    words: tuple[tuple[tuple[int, float], ...], ...]
    links: tuple[tuple[int, int, float], ...]
    path: tuple[int, ...] = ()
    emitted: tuple[int, ...] = ()


@dataclass(frozen=True)
class PhaseSeconds:
    """Wall time of a run by what it was spent on, seconds.

    Attributes:
        encode: Encoding sources, and taking rows into the batch.
        draft: Drafting, and showing drafters what was accepted.
        verify: The verifier's passes.
        accept: Everything on the host around them: acceptance, emission and commits.
    """

    encode: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    accept: float = 0.0


@dataclass(frozen=True)
class Result:
    """All hypotheses of one request, best first, and what they took.

    Attributes:
        passes: Verifier passes this sentence took part in.
        drafted, accepted: Tokens proposed, and those of them that were accepted.
        seconds: Wall time from the sentence's entry into the batch to its end.
        graph: Trace of the graph, of strategies that read one, where a trace was asked for.
        drafter_passes: Passes of a drafting model for this sentence.
        branches: Accepted tokens that were not the first of those drafted at their position.
        left_mid_batch: True if other rows of the batch went on after it.
        phases: Time of the run since the result before this one; over all results it adds up to the whole.
        sentences: Number of sentences decoded: of ordinary text a line's own.
        prompt: Tokens that the output follows, the start token first; empty where a strategy does not say.
        no_speech: Probability that nobody speaks in the source; None: it was not computed.
        sound_seconds: Length of the sound that was read for it, s.
    """

    index: int
    hypotheses: tuple[Hypothesis, ...]
    seconds: float = 0.0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    graph: GraphTrace | None = None
    drafter_passes: int = 0
    branches: int = 0
    left_mid_batch: bool = field(default=False, compare=False)
    phases: PhaseSeconds = field(default=PhaseSeconds(), compare=False)
    sentences: int = 1
    prompt: tuple[int, ...] = ()
    no_speech: float | None = None
    sound_seconds: float = field(default=0.0, compare=False)


GUARDED = ("split", "kept", "undone")  # what a guard may do
COUNTS = ("passes", "drafted", "accepted", "drafter_passes", "branches")  # of a Result, which add up


def added(results: Sequence[Result]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sums of results: of their `COUNTS`, and of their phases, seconds."""
    counts = {name: sum(getattr(result, name) for result in results) for name in COUNTS}
    names = [item.name for item in fields(PhaseSeconds)]
    return counts, {name: math.fsum(getattr(result.phases, name) for result in results) for name in names}


@dataclass(frozen=True)
class DecodeStats:
    """Statistics of a decoding run.

    Attributes:
        seconds: Wall time, model loading excluded.
        tokens: Output tokens with eos, of the best hypotheses.
        passes: Verifier passes, summed over sentences.
        latencies: Seconds of each line, from its first sentence's entry into the batch to its last one's end.
        drafter_passes: Passes of drafting models, summed over sentences.
        branches: Accepted tokens that were not the first of those drafted at their position.
        left_mid_batch: Sentences that ended while others of their batch went on.
        split, kept, undone: Counts of what the guard did (`Guarded`), for the best hypotheses.
        encode_seconds, draft_seconds, verify_seconds, accept_seconds: Wall times of `PhaseSeconds`; 0 where a
            strategy does not measure them.
        sound_seconds: Length of the sound that was read, s.
    """

    seconds: float = 0.0
    sentences: int = 0
    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    drafter_passes: int = 0
    branches: int = 0
    left_mid_batch: int = 0
    split: int = 0
    kept: int = 0
    undone: int = 0
    encode_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    accept_seconds: float = 0.0
    sound_seconds: float = 0.0
    latencies: Sequence[float] = field(default=(), repr=False)

    @classmethod
    def total(cls, parts: Sequence[DecodeStats]) -> DecodeStats:
        """The statistics of several runs, one after the other."""
        counts = [item.name for item in fields(cls) if item.name != "latencies"]
        sums = {name: sum(getattr(part, name) for part in parts) for name in counts}
        return cls(**sums, latencies=[seconds for part in parts for seconds in part.latencies])

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def latency_ms(self) -> dict[str, float]:
        """Percentiles p50, p90 and p99 in milliseconds, by the nearest rank."""
        ordered = sorted(self.latencies)
        if not ordered:
            return {"p50": 0.0, "p90": 0.0, "p99": 0.0}
        return {
            f"p{p}": 1000 * ordered[min(len(ordered) - 1, -(-len(ordered) * p // 100) - 1)]
            for p in (50, 90, 99)
        }
