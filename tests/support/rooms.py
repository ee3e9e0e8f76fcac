"""The order of the rooms, as docs/design.md has it."""

from __future__ import annotations

# The rooms from the lowest up; those of one rank do not know each other. A file of nartk/ itself that has no
# rank is of the room `base`, and `nartk` is the package as users import it.
RANKS: tuple[tuple[str, ...], ...] = (
    ("base",),
    ("protocols",),
    ("registry",),
    ("architectures",),
    ("data",),
    ("processors",),
    ("models", "decoders", "checkpoints"),
    ("engine",),
    ("vocoders",),
    ("serving",),
    ("nartk",),
    ("metrics", "adapters", "tracing"),
    ("tasks",),
    ("bench", "server"),
    ("cli",),
)
