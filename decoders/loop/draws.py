"""Words that are drawn at random instead of the best ones.

Each draw has a number of its own, which depends on the seed, the sentence, the sample and the position of
the token alone: drafts and other rows change nothing. Symbols: N verified tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from nartk.decoders.loop.constraints import RowConstraints, lengths
from nartk.decoders.loop.rows import Known
from nartk.protocols.passes import Draw, FloatArray, Scores, Want
from nartk.protocols.reading import draw_weights, read

# splitmix64's increment and multipliers (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number
# generators", section 7 and its reference implementation).
_GAMMA, _FIRST, _SECOND = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_BITS = 48  # of a uniform number: so much below 1 that no rounding takes it there

_Words = npt.NDArray[np.uint64]
_Ints = npt.NDArray[np.integer]


@dataclass(frozen=True)
class RowDraws(RowConstraints):
    """The rules and prefixes of rows whose words are drawn. A row is one sample of a sentence.

    Attributes:
        temperature, top_k, top_p: As `nartk.protocols.passes.Draw` has them.
        seed: Another one draws other words.
        samples: Of a sentence: the request of its sample s has index ``sentence * samples + s``.
        stream: Tells its numbers from those of other decisions at the same positions.
    """

    temperature: float
    top_k: int
    top_p: float
    seed: int
    samples: int
    stream: tuple[int, ...] = field(default=(), kw_only=True)

    @property
    def are_none(self) -> bool:
        return False

    def want(self, want: Want, rows: Sequence[Known]) -> Want:
        return replace(super().want(want, rows), draw=self._draw(rows))

    def chosen(self, scores: Scores, rows: Sequence[Known]) -> tuple[list[int], list[float]]:
        """The drawn words, and their log-probabilities under the model itself."""
        if not self.rules.are_penalizing:
            return scores.drawn.tolist(), scores.drawn_log_probs.tolist()
        logits, penalized = self.penalized(scores, rows)
        drawn = read(penalized, self.want(Want(), rows)).drawn
        given = read(logits, Want(given=drawn)).given_log_probs
        return drawn.tolist(), given.tolist()

    def _draw(self, rows: Sequence[Known]) -> Draw:
        positions = [lengths(row) for row in rows]
        index = np.repeat([row.request.index for row in rows], [len(each) for each in positions])
        return self.draw(index, np.array([position for each in positions for position in each]))

    def draw(self, index: _Ints, positions: _Ints) -> Draw:
        """A draw for each position [N] of the requests of these indices [N]."""
        return Draw(self.uniforms(index, positions), self.temperature, self.top_k, self.top_p)

    @property
    def is_plain(self) -> bool:
        """Whether words are drawn from the model's own distribution, without temperature and filters."""
        return (self.temperature, self.top_k, self.top_p) == (1.0, 0, 1.0)

    def probs(self, logits: FloatArray) -> npt.NDArray[np.float64]:
        """The probabilities [N,V] with which words are drawn after logits [N,V]."""
        nothing = np.zeros(len(logits))
        weights = draw_weights(logits, Draw(nothing, self.temperature, self.top_k, self.top_p))
        return weights / weights.sum(1, keepdims=True)

    def uniforms(self, index: _Ints, positions: _Ints) -> npt.NDArray[np.float64]:
        """The number [N] in [0, 1) of each position [N] of the requests of these indices [N]."""
        sentence, sample = np.divmod(index, self.samples)
        stream = (np.full_like(positions, part) for part in self.stream)
        return uniform(self.seed, sentence, sample, positions, *stream)


def uniform(seed: int, *parts: _Ints) -> npt.NDArray[np.float64]:
    """Numbers [N] in [0, 1), independent for each combination of a seed and parts [N].

    A hash, not a generator with a state, so that a number does not depend on which were drawn before.
    """
    state = np.full(parts[0].shape, seed % 2**64, np.uint64)
    for part in parts:
        state = _mixed(state + part.astype(np.uint64) * _GAMMA + _GAMMA)
    return (state & np.uint64(2**_BITS - 1)) / 2.0**_BITS


def _mixed(x: _Words) -> _Words:
    """The finaliser of splitmix64: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))
