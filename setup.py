"""Packaging of nartk: the packages, the engine as an extension module, and the cure for fairseq."""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

HOOK = {"_nartk_fairseq": "_fairseq_hook", "_nartk_fairseq_cure": "_fairseq_compat"}
LINKED = ("models", "decoders", "data")
CSRC = Path("nartk/engine/csrc")
# Neither fast-math nor contraction: two instantiations of one kernel would round differently. No -march: the
# engine chooses the instruction set when it runs.
COMPILE = ["-O3", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden", "-pthread"]
COMPILE_MSVC = ["/O2", "/fp:precise"]


class BuildWithHook(build_py):
    """Puts the fairseq cure, its hook and the `.pth` file that starts it at the top level of site-packages.

    Works for wheels and for editable installs, whose build folder is not what gets installed.
    """

    def run(self) -> None:
        super().run()
        install = self.get_finalized_command("install")
        top = Path(install.install_lib if self.editable_mode else self.build_lib)
        top.mkdir(parents=True, exist_ok=True)
        for name, source in HOOK.items():
            shutil.copyfile(f"nartk/{source}.py", top / f"{name}.py")
        start = next(iter(HOOK))
        (top / f"{start}.pth").write_text(f"import {start}; {start}.install()\n", encoding="utf-8")


class BuildEngine(build_ext):
    """Builds the engine; where it is optional and does not compile, the wheel is for any platform."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception:
            if ext.optional:
                self._leave_out(ext)
            raise  # build_ext warns if the extension is optional

    def _leave_out(self, ext: Extension) -> None:
        self.distribution.ext_modules = None
        wheel = self.distribution.get_command_obj("bdist_wheel", create=False)
        if wheel is not None:
            wheel.root_is_pure = True  # decided before anything was compiled
        # What an earlier build left here is not the engine of these sources.
        for folder in [self.build_lib, *(["."] if self.editable_mode else [])]:
            (Path(folder) / self.get_ext_filename(ext.name)).unlink(missing_ok=True)


def engine() -> list[Extension]:
    """The engine's extension module; none if NARTK_NO_ENGINE=1 leaves it out, or without its sources."""
    required = os.environ.get("NARTK_REQUIRE_ENGINE") == "1"
    left_out = os.environ.get("NARTK_NO_ENGINE") == "1"
    sources = sorted(path.as_posix() for path in CSRC.glob("*.cpp"))
    if required and left_out:
        raise SystemExit("nartk: NARTK_REQUIRE_ENGINE=1 contradicts NARTK_NO_ENGINE=1. Fix: unset one.")
    if required and not sources:
        raise SystemExit(
            f"nartk: NARTK_REQUIRE_ENGINE=1, but there are no sources in {CSRC}. Fix: a complete checkout."
        )
    if left_out or not sources:
        return []
    from pybind11.setup_helpers import Pybind11Extension  # a build without the engine does without it

    extra = shlex.split(os.environ.get("NARTK_ENGINE_FLAGS", ""))
    msvc = sys.platform == "win32"
    stamp = runpy.run_path("nartk/engine/stamp.py")["stamp"]
    native = Pybind11Extension(
        "nartk.engine._native",
        sources,
        depends=sorted(path.as_posix() for pattern in ("*.h", "*.inc") for path in CSRC.glob(pattern)),
        cxx_std=17,
        define_macros=[("NARTK_SOURCES", stamp(CSRC))],
        extra_compile_args=[*(COMPILE_MSVC if msvc else COMPILE), *extra],
        extra_link_args=[*([] if msvc else ["-pthread"]), *extra],
        optional=not required,
    )
    return [native]


for name in LINKED:
    if not Path("nartk", name).is_dir():
        raise SystemExit(
            f"nartk: nartk/{name} is not a folder: git made no symbolic link to ../{name}. Fix: `git config "
            f"core.symlinks true` (on Windows in Developer Mode), then `git checkout -- nartk/{name}`."
        )

setup(
    packages=find_packages(include=["nartk", "nartk.*"]),
    ext_modules=engine(),
    cmdclass={"build_py": BuildWithHook, "build_ext": BuildEngine},
)
