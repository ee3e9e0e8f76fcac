"""Arranges for fairseq to be cured when it is first imported.

An installed nartk carries copies of this file and of `_fairseq_compat.py` at the top level of site-packages,
as `_nartk_fairseq` and `_nartk_fairseq_cure`, and a `.pth` file that calls :func:`install` as Python starts:
`fairseq-train`, `torchrun` and spawned workers run unchanged. Every start of Python pays for this file, so it
imports nothing, not even `__future__`. The copies must not import the package `nartk`: fairseq's
`--user-dir nartk` registers nothing once `nartk` is in `sys.modules`.
"""

import sys


class _Hook:
    cured = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in ("fairseq", "fairseq_cli") and not self.cured:
            self.cured = True
            if __name__ == "nartk._fairseq_hook":
                from nartk._fairseq_compat import cure
            else:
                from _nartk_fairseq_cure import cure  # type: ignore[no-redef]
            cure()


def install() -> None:
    """Puts the hook before all other finders. Calling it twice does no harm."""
    # Compared by name: the copy in site-packages and the module of the package are different classes.
    if not any(type(finder).__qualname__ == _Hook.__qualname__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _Hook())
