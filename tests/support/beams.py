"""The oracle of beam search: the textbook's, without cells, drafts or batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from nartk.protocols.hypothesis import Request, Result
from support.scripted_passes import EOS

LogProbs = Callable[[Sequence[int], Sequence[int]], Sequence[float]]  # of each word, by source and output


def textbook(
    log_probs: LogProbs, request: Request, k: int, penalty: float, n: int, stopping: str = "false"
) -> list[tuple[float, tuple[int, ...]]]:
    """Beam search in plain Python, in double precision, a sentence at a time.

    Args:
        stopping: ``first``, or ``false``, which of one hypothesis is the same.
    """
    stopping = "first" if k == 1 else stopping
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[float, tuple[int, ...]]] = []
    for step in range(1, request.max_len + 1):
        candidates = []
        for total, prefix in live:
            since = (EOS, *prefix)  # the start token
            grams = [since[i : i + n] for i in range(len(since) - n + 1)] if n else []
            for word, lprob in enumerate(log_probs(request.source, prefix)):
                if step <= len(request.prefix):
                    if word != request.prefix[step - 1]:
                        continue
                elif n and (*since, word)[-n:] in grams:
                    continue
                if lprob > -math.inf:
                    candidates.append((total + lprob, (*prefix, word)))
        candidates.sort(key=lambda each: -each[0])
        for total, output in candidates[:k]:
            if output[-1] == EOS or step == request.max_len:
                ended.append((total / step**penalty, output))
        ended = ended[:k] if stopping == "first" else sorted(ended, reverse=True)[:k]
        live = [each for each in candidates if each[1][-1] != EOS][:k]
        if not live:
            break
        if len(ended) == k and (stopping == "first" or live[0][0] / step**penalty <= ended[-1][0]):
            break
    return sorted(ended, reverse=True)


def outputs(result: Result) -> list[tuple[int, ...]]:
    """The tokens of all hypotheses, in their order."""
    return [hypothesis.tokens for hypothesis in result.hypotheses]
