"""Hides packages that a machine with a GPU may lack: Python imports this file where it finds it."""

import sys


class Hidden:
    """Finds no module of the packages that are hidden."""

    PACKAGES = frozenset({"errant", "fairseq", "fairseq_cli", "spacy"})

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self.PACKAGES:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


sys.meta_path.insert(0, Hidden())
