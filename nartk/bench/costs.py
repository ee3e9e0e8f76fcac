"""Where the time of a decoding goes: reading sources, drafting, verifying, and what is left."""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from nartk.views import view

PARTS = ("encode", "start", "draft", "verify")  # what is left of the whole is "rest"
_SCORER = {
    "encode": "encode",
    "read": "encode",
    **dict.fromkeys(("verify", "verify_tree", "step", "keep", "truncate", "select", "join"), "verify"),
    **dict.fromkeys(("emit", "fill", "words"), "verify"),
}
_DRAFTER = {"start": "start", **dict.fromkeys(("draft", "observe", "pause", "select", "join"), "draft")}


class Stopwatch:
    """Sums the seconds of calls, by the part that they are counted for; a GPU's work is waited for.

    A call within another one counts for the outer one.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._running = False

    def around(self, parts: dict[str, str]) -> Callable[[str, Callable[..., Any]], Callable[..., Any]]:
        """For `view`: times the methods that have a part."""

        def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **named: Any) -> Any:
                if self._running:
                    return method(*args, **named)
                self._running, first = True, self._now()
                try:
                    return method(*args, **named)
                finally:
                    self.seconds[parts[name]] += self._now() - first
                    self._running = False

            return call if name in parts else method

        return timed

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def watched(model: Any, strategy: Any) -> tuple[Any, Any, Stopwatch]:
    """A model and its strategy that do the same, and what times them: the verifier's calls, the drafter's.

    Without a drafter the model's own passes alone are told apart from the rest.

    Args:
        model: A nartk.pipeline.Model.
    """
    watch = Stopwatch(torch.device(model.device))
    model = copy.copy(model)
    model.scorer = view(model.scorer, watch.around(_SCORER))
    return model, _watched(strategy, watch), watch


def _watched(strategy: Any, watch: Stopwatch) -> Any:
    if not hasattr(strategy, "served_drafter"):
        return strategy
    strategy = copy.copy(strategy)
    serve, begin = strategy.served_drafter, strategy.for_run

    def served_drafter(scorer: Any) -> Any:
        drafter = serve(scorer)
        return None if drafter is None else view(drafter, watch.around(_DRAFTER))

    def for_run(scorer: Any) -> Any:
        own = begin(scorer)  # another strategy where the drafter learns
        return own if own is strategy else _watched(own, watch)

    for method in (served_drafter, for_run):
        object.__setattr__(strategy, method.__name__, method)  # strategies are frozen
    return strategy
