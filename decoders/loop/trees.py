"""Drafts that branch: many continuations verified in one pass (Miao et al. 2023, arXiv:2305.09781)."""

from __future__ import annotations

from collections.abc import Sequence

from nartk.decoders.loop.drafter import Draft
from nartk.passes import ROOT


def merged(drafts: Sequence[Sequence[int]], *, most: int) -> Draft:
    """One tree of several drafts, the best first, in which beginnings that they share occur once.

    The first draft is a path of it: no fewer tokens are accepted than of it alone.

    Args:
        most: Tokens that are kept, the first draft's before the second's and so on.
    """
    nodes: dict[tuple[int, int], int] = {}  # by parent and token
    tokens: list[int] = []
    parents: list[int] = []
    for draft in drafts:
        at = ROOT
        for token in draft:
            node = nodes.get((at, token))
            if node is None:
                if len(tokens) == most:
                    return Draft(tokens, parents)
                node = nodes[at, token] = len(tokens)
                tokens.append(token)
                parents.append(at)
            at = node
    return Draft(tokens, parents)
