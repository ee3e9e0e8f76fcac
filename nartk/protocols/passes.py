"""Protocol of autoregressive models for the draft-and-verify loop: a pass over tokens of any rows, one call.

A hypothesis is a context: a list of cells, each of which holds the keys and values of one token. A pass
scores N tokens; each sees its context's cells, those of its parents in the pass, and itself. Afterwards
`commit` appends to each context the tokens that are kept, and gives the other cells back.

Symbols: B sources, N tokens of a pass, K candidates, V words, D features of the model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from nartk.errors import SourceMismatchError
from nartk.protocols.kept import Kept
from nartk.vocab import Vocab

IntArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]
SPOKEN = 5.0  # tokens of speech a second
ROOT = -1  # as a parent: the token follows the last cell of its context


@dataclass(frozen=True, slots=True)
class TextSource(Sequence[int]):
    """A source of words; it is itself the sequence of their ids.

    Attributes:
        tokens: Word ids.
        copied: Word ids of an output that copies its line; None: all but the last, which is eos. Empty: the
            line has no words.
    """

    tokens: tuple[int, ...]
    copied: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[int]:
        return iter(self.tokens)

    def __getitem__(self, index: Any) -> Any:
        return self.tokens[index]


@dataclass(frozen=True, eq=False, slots=True)
class FeatureSource:
    """A source of frames, such as those of speech.

    Attributes:
        frames: [T,F] fp32.
        shift: Time from one frame to the next, ms.
        words: Ids of words in front of the frames, such as a language and a task, of models that read them.
        prompt: Ids of words that were said or written before, of models that read them.
        sound: Frames of the recording, behind which those of silence follow; None: all are of it.
        kept: Pieces of the recording that the frames are of, where pauses are left out; None: it is whole.
    """

    frames: FloatArray
    shift: float
    words: tuple[int, ...] = ()
    prompt: tuple[int, ...] = ()
    sound: int | None = None
    kept: Kept | None = None

    def __len__(self) -> int:
        return len(self.frames)

    def window(self, begin: int, end: int, size: int) -> FeatureSource:
        """Frames from one to another, as far as there are any, with zeros behind them up to a size."""
        frames = np.asarray(self.frames[begin:end])
        return FeatureSource(np.pad(frames, ((0, size - len(frames)), (0, 0))), self.shift)


Source: TypeAlias = TextSource | FeatureSource


def texts_of(sources: Sequence[Source]) -> Sequence[Sequence[int]]:
    """The word ids of sources; raises SourceMismatchError if one holds features."""
    for i, source in enumerate(sources):
        if isinstance(source, FeatureSource):
            raise SourceMismatchError(
                f"source {i} is {len(source)} frames of features, the model reads text",
                fix="give it text, or name a model that reads features",
            )
    return sources  # type: ignore[return-value]


def copied_words(source: Source) -> Sequence[int]:
    """The source's words that an output is made of which copies it; raises as `texts_of`."""
    (words,) = texts_of([source])
    copied = getattr(source, "copied", None)
    return words[:-1] if copied is None else copied


def output_length(source: Source) -> float:
    """Tokens that an output is taken to have before it is known: as many as a text, of sound `SPOKEN`."""
    if isinstance(source, FeatureSource):
        return max(1.0, len(source) * source.shift / 1000 * SPOKEN)
    return max(1.0, float(len(source if getattr(source, "copied", None) is None else copied_words(source))))


def features_of(sources: Sequence[Source], width: int) -> list[FloatArray]:
    """The frames [T,F] of sources; raises SourceMismatchError unless all hold `width` features a frame."""
    found = []
    for i, source in enumerate(sources):
        if not isinstance(source, FeatureSource):
            raise SourceMismatchError(
                f"source {i} is text of {len(source)} tokens, the model reads features",
                fix="give it features, or name a model that reads text",
            )
        frames = source.frames
        if frames.dtype != np.float32 or frames.ndim != 2 or frames.shape[1] != width:
            raise SourceMismatchError(
                f"source {i} is {frames.dtype} {list(frames.shape)}, the model reads float32 [T, {width}]",
                fix="compute the features as the model's config.json says",
            )
        found.append(frames)
    return found


@dataclass(frozen=True, slots=True)
class Pass:
    """N tokens of any rows, which a model scores in one call. All arrays are [N] int32.

    Attributes:
        tokens: Word ids.
        positions: Position of each token in its output, from 0.
        memory: Handle of the encoded source that each attends to.
        contexts: Handle of the context that each follows.
        parents: Index of the token of this pass that each follows directly, always a smaller one of the same
            context; `ROOT`: the last cell of its context.
    """

    tokens: IntArray
    positions: IntArray
    memory: IntArray
    contexts: IntArray
    parents: IntArray


@dataclass(frozen=True, slots=True)
class Ragged:
    """Lists of words: those of item i are ``values[offsets[i]:offsets[i + 1]]``.

    Attributes:
        offsets: [n+1] int32, ascending from 0.
        values: [offsets[-1]] int32.
    """

    offsets: IntArray
    values: IntArray

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Ragged:
        """The lists as one."""
        offsets = np.zeros(len(lists) + 1, np.int32)
        np.cumsum([len(each) for each in lists], out=offsets[1:])
        return cls(offsets, np.array([word for each in lists for word in each], np.int32))


@dataclass(frozen=True, slots=True)
class Draw:
    """Draws a word after each token: by inversion of the cumulative distribution, in the order of ids, fp64.

    Attributes:
        uniforms: [n] fp64 in [0, 1), one for each scored token.
        temperature: The logits are divided by it, above 0.
        top_k: Only so many likeliest words, of equal ones the lowest ids; 0: all.
        top_p: Only the likeliest words whose probabilities reach this sum, in (0, 1].
    """

    uniforms: npt.NDArray[np.float64]
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class Want:
    """Results requested of a pass, known before it. "Scored" tokens are those of `only`, n of them.

    Attributes:
        only: [n] int32 ascending indices of the pass's tokens whose scores are read at all; None: all N.
            The vocabulary is not computed for the others.
        banned: Words forbidden after each scored token, n lists: best, top-k, margin and draws are of the
            words that are left; log-probabilities remain the model's own, over all words.
        words: Words that the output layer has after each scored token, n ascending lists; an empty one: all.
            The others are forbidden, and have logits of minus infinity, so that log-probabilities are of the
            words in the list.
        top: Number of likeliest words read of each scored token; 0: none.
        margin: Best logit less the second best.
        hidden: The features that the output layer reads.
        given: [n] int32, a word after each scored token whose log-probability is read; -1: none there.
        draw: A word drawn after each scored token.
    """

    only: IntArray | None = None
    banned: Ragged | None = None
    words: Ragged | None = None
    top: int = 0
    margin: bool = False
    hidden: bool = False
    given: IntArray | None = None
    draw: Draw | None = None


class Scores(Protocol):
    """Results of a pass for its n scored tokens. Log-probabilities are natural, fp32, the model's own.

    Attributes:
        best: [n] int32, the likeliest word; of equal ones the lowest id.
        log_probs: [n] fp32 of `best`.
        top: [n,K] int32, the likeliest words in order, of equal ones the lowest ids first; -1 behind the
            last that is not forbidden.
        top_log_probs: [n,K] fp32; minus infinity where `top` is -1.
        margins: [n] fp32, best logit less second best; infinity where there is no second.
        given_log_probs: [n] fp32; 0 where nothing was given.
        drawn: [n] int32.
        drawn_log_probs: [n] fp32, of the model itself, without temperature and cuts.
        hidden: [n,D] fp32.

    What was not wanted is None, which the types leave out: nobody reads it.
    """

    best: IntArray
    log_probs: FloatArray
    top: IntArray
    top_log_probs: FloatArray
    margins: FloatArray
    given_log_probs: FloatArray
    drawn: IntArray
    drawn_log_probs: FloatArray
    hidden: FloatArray

    def rows(self, index: Sequence[int] | IntArray) -> FloatArray:
        """Logits [m,V] fp32 of m scored tokens, until the pass is committed."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Capacity of a model, known before anything is decoded.

    Attributes:
        source: Longest source, tokens with eos, or frames.
        target: Positions of the output: `Pass.positions` lie below.
        words: V.
    """

    source: int
    target: int
    words: int


@dataclass(frozen=True)
class PassCosts:
    """Predicted times of a model's passes, microseconds; draft lengths follow from their ratios.

    Attributes:
        tokens: Sizes of passes, at least two, ascending.
        times: [tokens], of a pass over so many tokens.
        encoding: Time of a source's token in the encoder.
    """

    tokens: tuple[int, ...]
    times: tuple[float, ...]
    encoding: float = 0.0

    def run(self, tokens: float) -> float:
        """The time of a pass over so many tokens: on the line through the sizes on either side of it."""
        at = min(max(bisect_left(self.tokens, tokens), 1), len(self.tokens) - 1)
        low, high = self.tokens[at - 1 : at + 1]
        begin, end = self.times[at - 1 : at + 1]
        return begin + (end - begin) * (tokens - low) / (high - low)


# Of scorers that have none of their own: a pass over 65 tokens takes twice what one over one takes, as where
# most of the time goes to starting kernels. A GPU's are like that; this was not measured on one.
UNMEASURED = PassCosts((1, 65), (2000.0, 4000.0), encoding=30.0)


def costs_of(scorer: object) -> PassCosts:
    """Costs of a scorer's passes: its `costs`, an attribute of no protocol, or else `UNMEASURED`."""
    return getattr(scorer, "costs", UNMEASURED)


@runtime_checkable
class PassScorer(Protocol):
    """Any autoregressive encoder-decoder that scores passes.

    Attributes:
        vocab: Vocabulary of the target.
        start_token: Word id that the first pass of an output holds, which is no token of the output.
    """

    vocab: Vocab
    limits: Limits
    start_token: int

    def encode(self, sources: Sequence[Source]) -> IntArray:
        """Encodes sources: a handle for each, [B] int32.

        Raises:
            PassError: A source is empty, too long, or holds a word that the model has not.
            SourceMismatchError: The model reads text and a source holds features, or the reverse.
        """

    def free(self, memory: Sequence[int] | IntArray) -> None:
        """Frees encoded sources; their handles are not to be used again."""

    def open(self, count: int) -> IntArray:
        """New empty contexts: handles [count] int32."""

    def fork(self, contexts: Sequence[int] | IntArray) -> IntArray:
        """New contexts with the same cells as these, which may repeat: handles [n] int32.

        Raises:
            PassError: A context is not open, or waits for `commit`.
        """

    def truncate(self, contexts: Sequence[int] | IntArray, lengths: Sequence[int] | IntArray) -> None:
        """Keeps the first lengths [n] cells of each context.

        Raises:
            PassError: A context is not open, named twice, waits for `commit`, or has fewer cells.
        """

    def close(self, contexts: Sequence[int] | IntArray) -> None:
        """Gives contexts back, with the cells that no other context holds.

        A context that waits for `commit` may be closed; of its pass nothing can then be kept for it.

        Raises:
            PassError: A context is not open or named twice.
        """

    def run(self, work: Pass, want: Want) -> Scores:
        """Scores the tokens of a pass in one call. Its contexts wait for `commit`.

        Raises:
            PassError: The pass breaks a rule: a handle that is not open, a context that waits for `commit`,
                a parent that is not an earlier token of the same context, or a word or position out of
                bounds. Nothing has then changed.
        """

    def words(self, features: FloatArray, want: Want) -> Scores:
        """Reads what is wanted of the words that the output layer predicts of features [N,D].

        Such features are `Scores.hidden` of a pass, or what a draft head makes of them. No context is read.
        """

    def commit(self, scores: Scores, kept: Sequence[int] | IntArray) -> None:
        """Ends a pass: appends its kept tokens to their contexts, and gives the other cells back.

        A pass that is dropped without it ends as if nothing were kept.

        Args:
            scores: Scores that `run` gave.
            kept: Indices of the pass's N tokens. Those of a context form a path: each follows the one
                before, the first follows the context's last cell.

        Raises:
            PassError: The pass has ended, a context of a kept token is closed, or the indices form no path.
                Nothing has then changed.
        """

    @property
    def cells_in_use(self) -> int:
        """Cells that a context holds or a pass waits with."""


@runtime_checkable
class CopiesSource(Protocol):
    """A model whose source words can be words of its output: what `iad` and `ngram` need.

    Attributes:
        source_to_target: [source words] int32, the target id of each source word, or -1.
    """

    source_to_target: IntArray


@runtime_checkable
class ReadsWords(Protocol):
    """A scorer that knows which words its sources may have.

    Attributes:
        source_vocab: Vocabulary of sources; None: that of outputs.
    """

    source_vocab: Vocab | None


@runtime_checkable
class Replicable(Protocol):
    """A scorer of whose weights several can make use at a time, each in a thread of its own."""

    def replica(self, stopped: Callable[[], bool]) -> Any:
        """Another scorer of the same weights, on one thread, with memories and contexts of its own.

        Args:
            stopped: Tells whether passes are to be refused, so that what decodes with it ends.
        """
