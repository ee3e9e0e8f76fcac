"""recipes/asr/whisper_peers.py: which calls of the libraries count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from support.recipe_scripts import imported

peers = imported("asr", "whisper_peers.py")


class Library:
    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def texts(self, paths: Sequence[Path]) -> list[str]:
        self.calls.append([path.name for path in paths])
        return [f"{path.name} {len(paths)}" for path in paths]


def test_each_round_decodes_all_clips_after_a_batch_to_warm_up() -> None:
    one, other = Library(), Library()
    names = [peers.Contender("nartk", "fp32", size) for size in (1, 2)]
    paths = [Path(name) for name in "abc"]
    texts, seconds = peers.measure(dict(zip(names, (one, other), strict=True)), paths, 2)
    assert one.calls == [["a"], *[[name] for name in "abcabc"]]
    assert other.calls == [["a", "b"], *[["a", "b"], ["c"]] * 2]
    assert texts == {names[0]: ["a 1", "b 1", "c 1"], names[1]: ["a 2", "b 2", "c 1"]}
    assert [len(seconds[name]) for name in names] == [2, 2]
