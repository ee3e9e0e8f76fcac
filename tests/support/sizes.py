"""How many cases the promises are tested with.

The suite runs quick sizes, `pytest -m slow` full ones. NARTK_CASES in the environment is a factor on both,
such as 0.1 for a tenth; below 1 a test does not ask that each of what it counts has happened.
"""

from __future__ import annotations

import os

FACTOR = float(os.environ.get("NARTK_CASES", "1"))


def cases(count: int) -> int:
    """So many times the factor, at least one."""
    return max(1, round(FACTOR * count))
