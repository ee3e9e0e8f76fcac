"""Models that are loaded, and what decodes text and sound with them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nartk.serving.session import Session, Ticket

__all__ = ["Session", "Ticket"]


def __getattr__(name: str) -> object:
    if name in __all__:  # on first use: what decodes files needs no threads
        return getattr(import_module("nartk.serving.session"), name)
    raise AttributeError(f"module 'nartk.serving' has no attribute {name!r}")
