"""Packaging of nartk: the packages and the cure for fairseq."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

HOOK = "_nartk_fairseq"
LINKED = ("models", "decoders", "data")


class BuildWithHook(build_py):
    """Puts the fairseq cure, and the `.pth` file that starts it, at the top level of site-packages.

    Works for wheels and for editable installs, whose build folder is not what gets installed.
    """

    def run(self) -> None:
        super().run()
        install = self.get_finalized_command("install")
        top = Path(install.install_lib if self.editable_mode else self.build_lib)
        top.mkdir(parents=True, exist_ok=True)
        shutil.copyfile("nartk/_fairseq_compat.py", top / f"{HOOK}.py")
        (top / f"{HOOK}.pth").write_text(f"import {HOOK}; {HOOK}.install()\n", encoding="utf-8")


for name in LINKED:
    if not Path("nartk", name).is_dir():
        raise SystemExit(
            f"nartk: nartk/{name} is not a folder: git made no symbolic link to ../{name}. Fix: `git config "
            f"core.symlinks true` (on Windows in Developer Mode), then `git checkout -- nartk/{name}`."
        )

setup(
    packages=find_packages(include=["nartk", "nartk.*"]),
    cmdclass={"build_py": BuildWithHook},
)
