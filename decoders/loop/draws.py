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
from nartk.protocols.passes import Draw, FloatArray, Ragged, Scores, Want
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
        temperature, top_k, top_p: Same as in `nartk.protocols.passes.Draw`.
        seed: Another one draws other words.
        samples: Samples of a sentence: the request of its sample s has index ``sentence * samples + s``.
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
        drawn, log_probs = scores.drawn.tolist(), scores.drawn_log_probs.tolist()
        found = [*self.penalized(scores, rows)]
        if found:
            index = [each[0] for each in found]
            logits = np.stack([each[1] for each in found])
            penalized = np.stack([rules.penalize(each, output) for _, each, output, _, rules in found])
            banned = Ragged.of([each[3] for each in found])
            draw = self._draw(rows)
            of_penalized = replace(draw, uniforms=draw.uniforms[index])
            words = read(penalized, Want(banned=banned, draw=of_penalized)).drawn
            given = read(logits, Want(given=words)).given_log_probs
            for i, word, log_prob in zip(index, words.tolist(), given.tolist(), strict=True):
                drawn[i], log_probs[i] = word, log_prob
        return drawn, log_probs

    def _draw(self, rows: Sequence[Known]) -> Draw:
        positions = [lengths(row) for row in rows]
        counts, requests = [len(each) for each in positions], [row.request for row in rows]
        seeds = [(self.seed if each.seed is None else each.seed) % 2**64 for each in requests]
        return self.draw(
            np.repeat([each.index for each in requests], counts),
            np.array([position for each in positions for position in each]),
            samples=np.repeat([each.nbest or self.samples for each in requests], counts),
            seeds=np.repeat(np.array(seeds, np.uint64), counts),
        )

    def draw(
        self, index: _Ints, positions: _Ints, *, samples: _Ints | None = None, seeds: _Words | None = None
    ) -> Draw:
        """A draw for each position [N] of the requests of these indices [N], with arguments of `uniforms`."""
        uniforms = self.uniforms(index, positions, samples=samples, seeds=seeds)
        return Draw(uniforms, self.temperature, self.top_k, self.top_p)

    @property
    def is_plain(self) -> bool:
        """Tells whether words are drawn from the model's own distribution, without temperature or filters."""
        return (self.temperature, self.top_k, self.top_p) == (1.0, 0, 1.0)

    def probs(self, logits: FloatArray) -> npt.NDArray[np.float64]:
        """The probabilities [N,V] with which words are drawn after logits [N,V]."""
        nothing = np.zeros(len(logits))
        weights = draw_weights(logits, Draw(nothing, self.temperature, self.top_k, self.top_p))
        probs: npt.NDArray[np.float64] = weights / weights.sum(1, keepdims=True)
        return probs

    def uniforms(
        self, index: _Ints, positions: _Ints, *, samples: _Ints | None = None, seeds: _Words | None = None
    ) -> npt.NDArray[np.float64]:
        """The number [N] in [0, 1) of each position [N] of the requests of these indices [N].

        Args:
            samples, seeds: Those of each request [N]; None: the run's.
        """
        sentence, sample = np.divmod(index, self.samples if samples is None else samples)
        stream = (np.full_like(positions, part) for part in self.stream)
        return uniform(self.seed if seeds is None else seeds, sentence, sample, positions, *stream)


def uniform(seed: int | _Words, *parts: _Ints) -> npt.NDArray[np.float64]:
    """Numbers [N] in [0, 1), independent for each combination of a seed and parts [N].

    A hash, not a generator with a state, so that a number does not depend on which were drawn before.
    """
    state = np.full(parts[0].shape, seed % 2**64 if isinstance(seed, int) else seed, np.uint64)
    for part in parts:
        state = _mixed(state + part.astype(np.uint64) * _GAMMA + _GAMMA)
    return (state & np.uint64(2**_BITS - 1)) / 2.0**_BITS


def _mixed(x: _Words) -> _Words:
    """The finaliser of splitmix64: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))
