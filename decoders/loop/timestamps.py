"""Whisper's rules for timestamps, as ``ApplyTimestampRules`` of OpenAI's program has them.

It is in whisper/decoding.py; transformers has them in ``WhisperTimeStampLogitsProcessor``. The last rule
reads logits, so that words are forbidden behind the pass. Symbols: n scored tokens, V words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from nartk.protocols.passes import FloatArray, Ragged, Scores, Want
from nartk.protocols.prompts import Prompts
from nartk.protocols.reading import read
from nartk.protocols.wrapped import WrappedScores

_BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TimestampRules:
    """Rules for outputs with timestamps.

    1. Timestamps come in pairs, but for the first of an output and one right before eos.
    2. None is earlier than the one before it, and none but the second of a pair equals it.
    3. An output begins with a timestamp, not later than `Prompts.latest_start`.
    4. If all timestamps together are likelier than any other word, one of them follows.
    """

    prompts: Prompts
    eos: int

    def bind(self, prompt: Sequence[int] | None) -> bool:
        """Tells whether they hold behind a prompt; None: the model's own, which asks for no timestamps."""
        return prompt is not None and self.prompts.no_timestamps not in prompt

    def allowed(self, logits: FloatArray, output: Sequence[int], banned: Sequence[int]) -> _BoolArray:
        """Tells of each word [V] by its logit whether it may follow an output.

        Args:
            banned: Words that are forbidden already, which do not count in rule 4.
        """
        begin = self.prompts.begin
        found = np.ones(len(logits), bool)
        found[[*banned]] = False
        found[self.prompts.no_timestamps] = False
        times = [token for token in output if token >= begin]
        if not output:
            found[:begin] = False
            if self.prompts.latest_start >= 0:
                found[begin + self.prompts.latest_start + 1 :] = False
        ends = bool(output) and output[-1] >= begin
        pairs = ends and (len(output) < 2 or output[-2] >= begin)
        if pairs:
            found[begin:] = False
        elif ends:
            found[: self.eos] = False
        if times:
            found[begin : times[-1] + (not ends or pairs)] = False
        times_left, others = (logits[part][found[part]] for part in (slice(begin, None), slice(begin)))
        if times_left.size and (not others.size or _log_sum_exp(times_left) > others.max()):
            found[:begin] = False
        return found

    def left(
        self,
        scores: Scores,
        want: Want,
        outputs: Sequence[Sequence[int] | None],
        *,
        renormalize: bool = False,
    ) -> Scores:
        """Reads again, without what the rules forbid, those scored tokens for which it changes something.

        Log-probabilities stay the model's own; `Scores.rows` gives minus infinity for forbidden words.

        Args:
            outputs: n, before each scored token; None: the rules do not hold there.
            renormalize: True if log-probabilities are of the words that are left alone.
        """
        logits = scores.rows(range(len(outputs)))
        allowed = np.ones(logits.shape, bool)
        best = scores.best[:, None] if scores.top is None else scores.top
        changed: list[int] = []
        for i, output in enumerate(outputs):
            if output is None or self.eos in output:  # behind eos only drafts go on
                continue
            allowed[i] = self.allowed(logits[i], output, _banned(want, i))
            is_read = want.margin or want.draw is not None
            if is_read or not allowed[i, best[i][best[i] >= 0]].all():
                changed.append(i)
        found = WrappedScores(scores, logits=np.where(allowed, logits, np.float32(-np.inf)))
        if changed:
            self._read_again(found, logits, allowed, want, changed)
        if renormalize:
            raised = np.zeros(len(outputs), np.float32)
            for i, output in enumerate(outputs):
                if output is not None and self.eos not in output:
                    whole = float(logits[i, found.best[i]]) - float(found.log_probs[i])
                    raised[i] = -_log_mass(logits[i] - np.float32(whole), allowed[i])
            found.raise_log_probs(raised)
        return found

    @staticmethod
    def _read_again(
        found: WrappedScores, logits: FloatArray, allowed: _BoolArray, want: Want, changed: list[int]
    ) -> None:
        """Puts what is read of logits [n,V] without forbidden words in the place of what was read."""
        forbidden, draw = ~allowed[changed], want.draw
        offsets = np.concatenate([[0], forbidden.sum(1).cumsum()])
        reading = read(
            logits[changed],
            replace(
                want,
                only=None,
                hidden=False,
                banned=Ragged(offsets.astype(np.int32), np.nonzero(forbidden)[1].astype(np.int32)),
                given=None if want.given is None else want.given[changed],
                draw=None if draw is None else replace(draw, uniforms=draw.uniforms[changed]),
            ),
        )
        found.put(changed, reading)


def _log_mass(log_probs: FloatArray, allowed: _BoolArray) -> float:
    """The logarithm of the probability of allowed words, of log-probabilities [V]: by what is smaller."""
    few = ~allowed if 2 * int(allowed.sum()) > len(allowed) else allowed
    mass = float(np.exp(log_probs[few].astype(np.float64)).sum())
    if few is allowed:
        return math.log(mass)
    return math.log1p(-mass) if mass < 0.5 else _log_sum_exp(log_probs[allowed])


def _banned(want: Want, index: int) -> Sequence[int]:
    """The words that a pass leaves out after a scored token."""
    if want.banned is None:
        return ()
    begin, end = want.banned.offsets[index : index + 2]
    words: list[int] = want.banned.values[begin:end].tolist()
    return words


def _log_sum_exp(values: FloatArray) -> float:
    """The logarithm of the sum of exp of values [k], summed in fp64."""
    most = float(values.max())
    if most == -np.inf:
        return most
    return most + float(np.log(np.exp(values.astype(np.float64) - most).sum()))
