"""Packaging of nartk: the rooms beside this file install inside the package `nartk`."""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOMS = ("models", "decoders", "data")
HOOK = "_nartk_fairseq"


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


packages = find_packages(include=["nartk", "nartk.*"])
for room in ROOMS:
    packages += [f"nartk.{room}", *(f"nartk.{room}.{sub}" for sub in find_packages(room))]

setup(
    packages=packages,
    package_dir={f"nartk.{room}": room for room in ROOMS},
    cmdclass={"build_py": BuildWithHook},
)
