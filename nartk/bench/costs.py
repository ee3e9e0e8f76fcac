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


def watched(model: Any) -> tuple[Any, Stopwatch]:
    """A model that does the same over tensors, and what times its calls; the loop over passes times itself.

    Args:
        model: A nartk.pipeline.Model.
    """
    watch = Stopwatch(torch.device(model.device))
    model = copy.copy(model)
    model.scorer = view(model.scorer, watch.around(_SCORER))
    return model, watch
