"""Looking on while a scorer or a drafter works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class _View:
    """Has the attributes of something else."""


def view(thing: Any, around: Callable[[str, Callable[..., Any]], Callable[..., Any]]) -> Any:
    """What has all that a scorer or a drafter has, each method in the form that `around` gives it.

    A protocol is told by what an instance has: the view speaks all that the thing speaks.

    Args:
        around: Is given each method's name and the method; gives what takes its place.
    """
    made: Any = _View()
    for name in dir(thing):
        if not name.startswith("__"):
            value = getattr(thing, name)
            vars(made)[name] = around(name, value) if callable(value) else value
    if hasattr(thing, "mode"):
        made.mode = lambda *, exact: view(thing.mode(exact=exact), around)
    return made
