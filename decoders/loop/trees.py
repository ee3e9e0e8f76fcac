"""Drafts that branch: many continuations verified in one pass (Miao et al. 2023, arXiv:2305.09781)."""

from __future__ import annotations

from collections.abc import Sequence

from nartk.decoders.loop.drafter import Draft
from nartk.errors import UsageError
from nartk.protocols.passes import ROOT


def merged(drafts: Sequence[Draft], *, most: int) -> Draft:
    """One tree of several drafts, chains or trees, the best first, in which each path occurs once.

    The first draft is a part of it: no fewer tokens are accepted than of it alone.

    Args:
        drafts: Drafts as `verifiable` leaves them.
        most: Tokens that are kept, the first draft's before the second's and so on.
    """
    passes = sum(draft.passes for draft in drafts)
    nodes: dict[tuple[int, int], int] = {}  # by parent and token
    tokens: list[int] = []
    parents: list[int] = []
    for draft in drafts:
        found: list[int] = []  # the node of each of its tokens
        before = range(-1, len(draft.tokens) - 1) if draft.parents is None else draft.parents
        for token, parent in zip(draft.tokens, before, strict=True):
            at = ROOT if parent == ROOT else found[parent]
            node = nodes.get((at, token))
            if node is None:
                if len(tokens) == most:
                    return Draft(tokens, parents, passes=passes)
                node = nodes[at, token] = len(tokens)
                tokens.append(token)
                parents.append(at)
            found.append(node)
    return Draft(tokens, parents, passes=passes)


def parse_shape(shape: str) -> tuple[int, ...]:
    """(4, 3, 2) of "4x3x2".

    Raises:
        UsageError: It is no shape.
    """
    sizes = shape.split("x")
    if not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise UsageError(f"tree {shape!r} is no shape", fix="write the branches of each level, such as 4x3x2")
    return tuple(int(size) for size in sizes)
