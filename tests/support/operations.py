"""Random operations on scorers of passes, which must all give and refuse the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from nartk.architectures.transformer import TransformerConfig
from nartk.errors import PassError
from nartk.models.transformer import Transformer
from nartk.protocols.passes import ROOT, Draw, Pass, Ragged, Want

EOS, WORDS, LONGEST = 2, 23, 40
FIELDS = ("best", "log_probs", "top", "top_log_probs", "margins", "given_log_probs", "drawn", "hidden")


def small_model(seed: int, **changes: Any) -> Transformer:
    sizes = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "heads")}
    sizes |= {"src_vocab": WORDS, "tgt_vocab": WORDS, "d_model": 16, "encoder_ffn": 24, "decoder_ffn": 24}
    config = TransformerConfig(**sizes, max_source_len=LONGEST, max_target_len=LONGEST, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(1.3)
    return model


class Play:
    """Random operations, the same on each of some scorers: what they give and refuse must be the same.

    Args:
        bound: Greatest difference of logits and log-probabilities.
    """

    def __init__(self, scorers: Sequence[Any], seed: int, bound: float) -> None:
        self.scorers, self.rng, self.bound = scorers, random.Random(seed), bound
        rng = self.rng
        sources = [[*(rng.randrange(4, WORDS) for _ in range(rng.randint(0, 9))), EOS] for _ in range(3)]
        self.memory = self.same(lambda scorer: scorer.encode(sources))
        self.lengths: dict[int, int] = {}
        self.waiting: list[tuple[list[Any], Pass]] = []

    def same(self, act: Callable[[Any], Any]) -> Any:
        """What all scorers give, where they agree; the message of what all refuse is given as text."""
        found = []
        for scorer in self.scorers:
            try:
                found.append(act(scorer))
            except PassError as error:
                found.append(error.message)
        assert all(np.array_equal(each, found[0]) for each in found), found
        return found[0]

    def step(self) -> None:
        """One operation; a quarter of their arguments breaks rules."""
        rng = self.rng
        known = sorted(self.lengths)
        some = rng.sample(known, min(len(known), 2))
        if rng.random() < 0.25:
            some = [*some, rng.choice([*known, 999])]
        match rng.choice(["open", "fork", "run", "run", "run", "commit", "commit", "truncate", "close"]):
            case "open":
                count = rng.randint(0, 2)
                self.lengths |= dict.fromkeys(self.same(lambda scorer: scorer.open(count)).tolist(), 0)
            case "fork":
                made = self.same(lambda scorer: scorer.fork(some))
                if not isinstance(made, str):
                    self.lengths |= {int(a): self.lengths[b] for a, b in zip(made, some, strict=True)}
            case "truncate":
                kept = [rng.randint(0, self.lengths.get(each, 0) + (rng.random() < 0.1)) for each in some]
                if self.same(lambda scorer: scorer.truncate(some, kept)) is None:
                    self.lengths |= dict(zip(some, kept, strict=True))
            case "close":
                if self.same(lambda scorer: scorer.close(some)) is None:
                    for each in some:
                        del self.lengths[each]
            case "run":
                self.run()
            case "commit" if self.waiting:
                self.commit(*self.waiting.pop(rng.randrange(len(self.waiting))))
        self.same(lambda scorer: scorer.cells_in_use)

    def a_pass(self) -> Pass | None:
        rng, columns = self.rng, []
        busy = {int(each) for _, work in self.waiting for each in work.contexts}
        idle = [each for each in self.lengths if each not in busy or rng.random() < 0.05]
        for context in rng.sample(idle, min(len(idle), 3)):
            begin, memory = len(columns), int(rng.choice(self.memory))
            for i in range(begin, begin + rng.randint(1, 5)):
                parent = i - 1 if i > begin and rng.random() < 0.7 else rng.choice([ROOT, *range(begin, i)])
                parent = parent if rng.random() < 0.98 else i + 1
                position = min(self.lengths[context] + i - begin, LONGEST - 1)
                columns.append((rng.randrange(WORDS), position, memory, context, parent))
        return Pass(*np.array(columns, np.int32).T.copy()) if columns else None

    def want(self, tokens: int) -> Want:
        rng = self.rng
        only = sorted(rng.sample(range(tokens), rng.randint(0, tokens))) if rng.random() < 0.3 else None
        count = tokens if only is None else len(only)
        banned = [rng.sample(range(WORDS), rng.randint(0, 3)) for _ in range(count)]
        return Want(
            only=None if only is None else np.array(only, np.int32),
            banned=Ragged.of(banned) if rng.random() < 0.1 else None,
            top=rng.choice([0, 0, 1, 4, WORDS + 2]),
            margin=rng.random() < 0.5,
            hidden=rng.random() < 0.1,
            given=np.array([rng.randrange(-1, WORDS) for _ in range(count)], np.int32)
            if rng.random() < 0.5
            else None,
            draw=Draw(np.array([rng.random() for _ in range(count)])) if rng.random() < 0.1 else None,
        )

    def run(self) -> None:
        work = self.a_pass()
        if work is None:
            return
        want, found = self.want(len(work.tokens)), []

        def act(scorer: Any) -> None:
            found.append(scorer.run(work, want))

        if self.same(act) is None:
            self.compare(found)
            self.waiting.append((found, work))

    def compare(self, found: Sequence[Any]) -> None:
        """Compares scores; words are the same where their log-probabilities are."""
        first, *others = found
        index = range(len(first.best))
        for other in others:
            for name in FIELDS:
                one, two = getattr(first, name), getattr(other, name)
                assert (one is None) == (two is None), name
                if one is None:
                    continue
                assert (one.dtype, one.shape) == (two.dtype, two.shape), name
                if self.bound == 0:
                    assert one.tobytes() == two.tobytes(), name
                elif one.dtype == np.float32:
                    np.testing.assert_allclose(one, two, rtol=0, atol=self.bound)
                else:
                    assert np.sum(one != two) <= one.size / 2, name  # ties of rounding alone
            np.testing.assert_allclose(first.rows(index), other.rows(index), rtol=0, atol=self.bound)

    def commit(self, found: list[Any], work: Pass) -> None:
        rng = self.rng
        self.compare(found)  # rows can be read until now, whatever ran meanwhile
        kept, last = [], {}
        for i, (context, parent) in enumerate(
            zip(work.contexts.tolist(), work.parents.tolist(), strict=True)
        ):
            if context in self.lengths and last.get(context, ROOT) == parent and rng.random() < 0.8:
                last[context] = i
                kept.append(i)
        if rng.random() < 0.1:
            kept.append(rng.randrange(-1, len(work.tokens) + 1))
        scores = iter(found)
        if self.same(lambda scorer: scorer.commit(next(scores), kept)) is None:
            for i in kept:
                self.lengths[int(work.contexts[i])] += 1
