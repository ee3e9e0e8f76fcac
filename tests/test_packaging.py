"""What is built from a checkout: its packages, with the linked folders in them, and the engine."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import nartk
from nartk.checkpoints import names
from nartk.engine import available
from nartk.engine.stamp import stamp

ROOT = Path(__file__).resolve().parents[1]
LINKED = ("models", "decoders", "data")
BUILD_FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
MODEL = "nartk/data/models/gec-en-medium/"
NOTICES = ("nartk/engine/LICENSE.pybind11", "nartk/data/corpora/LICENSES.md", f"{MODEL}card.md")
ENGINE_VARIABLES = ("NARTK_ENGINE_FLAGS", "NARTK_NO_ENGINE", "NARTK_REQUIRE_ENGINE")
TINY_ENGINE = """
#include <pybind11/pybind11.h>
#include "answer.h"
#define TEXT(name) TEXT_OF(name)
#define TEXT_OF(name) #name
PYBIND11_MODULE(_native, m) {
    m.def("answer", [] { return ANSWER; });
    m.attr("sources") = TEXT(NARTK_SOURCES);
}
"""


def python(code: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter that finds packages in `cwd` first."""
    kept = {name: value for name, value in os.environ.items() if name not in ENGINE_VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode != 0
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", LINKED)
def test_the_package_holds_a_link_to_each_folder(name: str) -> None:
    assert (ROOT / "nartk" / name).readlink() == Path("..", name)
    assert (ROOT / "nartk" / name / "__init__.py").samefile(ROOT / name / "__init__.py")


@pytest.mark.parametrize("name", LINKED)
def test_a_linked_package_has_one_name(name: str) -> None:
    wanted = f"ImportError: import this package as nartk.{name}, not as {name!r}"
    assert last_line(python(f"import {name}", ROOT)) == wanted
    found = python(f"import nartk.{name} as package; print(package.__file__)", ROOT).stdout
    assert Path(found.strip()) == ROOT / "nartk" / name / "__init__.py"


def test_every_folder_with_code_is_found_once() -> None:
    code = "from setuptools import find_packages; print(*find_packages(include=['nartk', 'nartk.*']))"
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "nartk").rglob("*.py")}
    for name in LINKED:
        folders |= {"nartk" / path.parent.relative_to(ROOT) for path in (ROOT / name).rglob("*.py")}
    found = python(code, ROOT).stdout.split()
    assert sorted(found) == sorted(".".join(folder.parts) for folder in folders)


def test_ruff_checks_no_file_twice() -> None:
    ruff = shutil.which("ruff", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    if ruff is None:
        pytest.skip("ruff is not installed")
    done = subprocess.run(
        [ruff, "check", "--show-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = done.stdout.splitlines()
    assert str(ROOT / "models" / "__init__.py") in paths
    assert len({Path(path).resolve() for path in paths}) == len(paths)


def project(folder: Path) -> Path:
    """A checkout in small: the real build files, empty packages, and an engine that knows one number."""
    (folder / "nartk" / "engine" / "csrc").mkdir(parents=True)
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, folder)
    for name in ("__init__.py", "version.py", "_fairseq_hook.py", "_fairseq_compat.py", "py.typed"):
        shutil.copy(ROOT / "nartk" / name, folder / "nartk")
    for name in LINKED:
        (folder / name).mkdir()
        shutil.copy(ROOT / name / "__init__.py", folder / name)
        (folder / "nartk" / name).symlink_to(Path("..", name))
    shutil.copy(ROOT / "nartk" / "engine" / "stamp.py", folder / "nartk" / "engine")
    for name in NOTICES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "nartk" / "engine" / "__init__.py").touch()
    (folder / "nartk" / "engine" / "csrc" / "native.cpp").write_text(TINY_ENGINE, encoding="utf-8")
    (folder / "nartk" / "engine" / "csrc" / "answer.h").write_text("#define ANSWER 42\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", LINKED)
def test_a_link_that_git_wrote_as_text_is_one_error(name: str, tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "nartk" / name).unlink()
    (folder / "nartk" / name).write_text(f"../{name}", encoding="utf-8")
    wanted = (
        f"nartk/{name} is not a folder: git made no symbolic link to ../{name}. Fix: `git config "
        f"core.symlinks true` (on Windows in Developer Mode), then `git checkout -- nartk/{name}`."
    )
    assert last_line(python("import nartk", folder)) == f"ImportError: {wanted}"
    building = python("import runpy; runpy.run_path('setup.py', run_name='__main__')", folder)
    assert last_line(building) == f"nartk: {wanted}"


def test_the_citation_is_of_this_version_and_of_the_papers_in_the_pages() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {nartk.__version__}\n" in citation
    links = re.compile(r"https://arxiv\.org/abs/[\d.]+")
    pages = [ROOT / "README.md", ROOT / "docs" / "strategies.md"]
    cited = {link for page in pages for link in links.findall(page.read_text(encoding="utf-8"))}
    assert cited - set(links.findall(citation)) == set()


def test_the_image_is_built_of_what_the_wheel_is_and_asks_what_the_server_has() -> None:
    pytest.importorskip("fastapi", reason="a server needs nartk[serve]")
    from nartk.cli import serve
    from nartk.server.app import make_app
    from nartk.server.service import Limits, Service

    lines = (ROOT / "scripts" / "serve.Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert sorted(copied) == sorted([*BUILD_FILES, *LINKED, "nartk"])
    (asked,) = re.findall(r"http://127\.0\.0\.1:(\d+)(/[a-z/]+)", "\n".join(lines))
    assert asked[0] == str(serve._parser().get_default("port"))
    assert asked[1] in make_app(Service({}, Limits())).openapi()["paths"]
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001"]


def require_builders() -> None:
    version = importlib.metadata.version("setuptools")
    if int(version.split(".")[0]) < 77:
        pytest.skip(f"setuptools {version} < 77")
    pytest.importorskip("pybind11")


def build(what: str, folder: Path, **environment: str) -> Path:
    """Builds a wheel or an sdist of the checkout in `folder`, without isolation and so without a network."""
    (folder / "dist").mkdir(exist_ok=True)
    code = f"from setuptools import build_meta; print('built', build_meta.build_{what}('dist'))"
    done = python(code, folder, **environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "dist" / done.stdout.split()[-1]


def modules(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if ".dist-info/" not in name)


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder / sdist.name.removesuffix(".tar.gz")


def environment_with(folder: Path, *install: str) -> Path:
    """The interpreter of a fresh environment with nartk; everything else is the running interpreter's."""
    venv.create(folder)
    inside = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run([inside, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    others = [path for path in sys.path if path.endswith("site-packages")]
    (Path(packages) / "others.pth").write_text("\n".join(others) + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(inside)]
    options = ["install", "--quiet", "--no-index", "--no-deps", "--ignore-installed"]
    done = subprocess.run([*pip, *options, *install], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return inside


def test_the_wheel_holds_the_model_all_licences_and_the_hook_but_no_corpora(tmp_path: Path) -> None:
    require_builders()
    folder = project(tmp_path / "checkout")
    models = [f"models/{name}/model.safetensors" for name in names.SHIPPED]
    for name in ("corpora/text.txt.xz", "corpora/rates.json", *models):
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "data" / name).touch()
    sdist = unpacked(build("sdist", folder), tmp_path / "sdist")
    assert sorted(path.name for path in (sdist / "nartk/data/corpora").iterdir()) == [
        "LICENSES.md", "rates.json", "text.txt.xz"
    ]  # fmt: skip
    assert all((sdist / "nartk/data" / name).is_file() for name in models)
    wheel = build("wheel", sdist, NARTK_NO_ENGINE="1")
    weights = {f"nartk/data/models/{name}/model.safetensors" for name in names.SHIPPED}
    left_out = {f"nartk/data/models/{name}/model.safetensors" for name in names.IN_CLONES}
    assert {name for name in modules(wheel) if "/data/" in name} == {
        "nartk/data/__init__.py", f"{MODEL}card.md", *weights - left_out
    }  # fmt: skip
    assert [name for name in modules(wheel) if "/" not in name] == [
        "_nartk_fairseq.pth", "_nartk_fairseq.py", "_nartk_fairseq_cure.py"
    ]  # fmt: skip
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read("_nartk_fairseq.pth") == b"import _nartk_fairseq; _nartk_fairseq.install()\n"
        (information,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        metadata = archive.read(f"{information}/METADATA").decode().splitlines()
        for name in ("LICENSE", *NOTICES):
            assert archive.read(f"{information}/licenses/{name}") == (ROOT / name).read_bytes()
            assert f"License-File: {name}" in metadata
    assert "License-Expression: Apache-2.0 AND BSD-3-Clause AND CC-BY-SA-4.0" in metadata


@pytest.mark.slow
def test_wheel_and_sdist_hold_the_engine(tmp_path: Path) -> None:
    require_builders()
    folder = project(tmp_path / "checkout")
    sdist = build("sdist", folder)
    wheel = build("wheel", folder, NARTK_REQUIRE_ENGINE="1")
    again = build("wheel", unpacked(sdist, tmp_path / "sdist"), NARTK_REQUIRE_ENGINE="1")
    assert modules(again) == modules(wheel)
    names = [Path(name).name.split(".")[0] for name in modules(wheel) if "/engine/" in name]
    assert sorted(names) == ["__init__", "_native", "stamp"]  # no sources
    with zipfile.ZipFile(again) as archive:
        (native,) = (name for name in archive.namelist() if "/_native." in name)
        assert stamp(folder / "nartk" / "engine" / "csrc").encode() in archive.read(native)
    inside = environment_with(tmp_path / "venv", str(again))
    code = (
        "import nartk.models, nartk.engine._native as native; print(native.answer(), nartk.models.__file__)"
    )
    run = subprocess.run([inside, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    answer, path = run.stdout.split(maxsplit=1)
    assert answer == "42"
    assert Path(path.strip()).is_relative_to(tmp_path / "venv")


@pytest.mark.slow
def test_without_the_engine_the_wheel_is_for_any_platform(tmp_path: Path) -> None:
    require_builders()
    folder = project(tmp_path)
    source = folder / "nartk" / "engine" / "csrc" / "native.cpp"
    pure = "nartk-" + importlib.metadata.version("nartk") + "-py3-none-any.whl"
    full = build("wheel", folder)
    assert full.name != pure
    without = build("wheel", folder, NARTK_NO_ENGINE="1")
    assert without.name == pure
    source.write_text("#error broken\n", encoding="utf-8")
    failed = build("wheel", folder)  # beside what the first build left
    assert failed.name == pure
    assert modules(failed) == modules(without)
    building = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    assert python(building, folder, NARTK_REQUIRE_ENGINE="1").returncode != 0
    assert last_line(python(building, folder, NARTK_REQUIRE_ENGINE="1", NARTK_NO_ENGINE="1")) == (
        "nartk: NARTK_REQUIRE_ENGINE=1 contradicts NARTK_NO_ENGINE=1. Fix: unset one."
    )
    source.unlink()
    assert build("wheel", folder).name == pure
    assert last_line(python(building, folder, NARTK_REQUIRE_ENGINE="1")).startswith(
        "nartk: NARTK_REQUIRE_ENGINE=1, but there are no sources in "
    )


@pytest.mark.slow
def test_an_editable_install_answers_for_its_own_checkout(tmp_path: Path) -> None:
    require_builders()
    installed, other = project(tmp_path / "installed"), project(tmp_path / "other")
    inside = environment_with(tmp_path / "venv", "--no-build-isolation", "--editable", str(installed))

    def run(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([inside, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)

    packages = "nartk, nartk.models, nartk.decoders, nartk.data, nartk.engine"
    code = f"import {packages}; print(*[each.__file__ for each in ({packages})], sep='\\n')"
    for cwd, answers in ((tmp_path, installed), (installed, installed), (other, other)):
        paths = run(code, cwd).stdout.splitlines()
        assert len(paths) == 5
        assert all(Path(path).is_relative_to(answers) for path in paths), (cwd, paths)
    native = "import nartk.engine._native as native; print(native.answer())"
    assert run(native, tmp_path).stdout == "42\n"
    assert last_line(run(native, other)) == "ModuleNotFoundError: No module named 'nartk.engine._native'"
    hook = run("import _nartk_fairseq, sys; print(type(sys.meta_path[0]).__name__)", other)
    assert hook.stdout == "_Hook\n"


def checkout(folder: Path) -> Path:
    """A copy of this checkout, without what is built in it."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
    for name in ("nartk", *LINKED):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=unwanted)
    for name in BUILD_FILES:
        shutil.copy(ROOT / name, folder)
    return folder


def clone_beside_an_engine(folder: Path, *, sources: str | None) -> subprocess.CompletedProcess[str]:
    """Decodes in a clone without an engine; site-packages has one that was compiled from some sources."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
    shutil.copytree(ROOT / "nartk", folder / "clone" / "nartk", symlinks=True, ignore=unwanted)
    for name in LINKED:
        (folder / "clone" / name).symlink_to(ROOT / name)
    installed = folder / "site-packages" / "nartk" / "engine"
    installed.mkdir(parents=True)
    if sources is not None:
        native = Path(importlib.util.find_spec("nartk.engine._native").origin)
        own = stamp(ROOT / "nartk" / "engine" / "csrc").encode()
        compiled = native.read_bytes().replace(own, b"?" * len(own))
        # What stands behind the end of a library is not loaded.
        (installed / native.name).write_bytes(compiled + sources.encode())
    code = (
        "import nartk; run = nartk.load().run(['She go to school yesterday.']); "
        "print(run.best[0].text); print(run.signature)"
    )
    return python(code, folder / "clone", PYTHONPATH=str(folder / "site-packages"))


@pytest.mark.skipif(not available(), reason="there is no engine here")
def test_the_engine_has_what_its_stub_declares_and_nothing_for_tests() -> None:
    from nartk.engine import _native

    stub = ast.parse((ROOT / "nartk" / "engine" / "_native.pyi").read_text(encoding="utf-8"))

    def declared(body: list[ast.stmt]) -> set[str]:
        named = [each.target for each in body if isinstance(each, ast.AnnAssign)]
        kinds = (ast.FunctionDef, ast.ClassDef)
        return {ast.unparse(each) for each in named} | {
            each.name for each in body if isinstance(each, kinds) and not each.name.startswith("_")
        }

    def found(owner: object) -> set[str]:
        return {name for name in dir(owner) if not name.startswith("_")}

    assert found(_native) == declared(stub.body)
    for each in stub.body:
        if isinstance(each, ast.ClassDef):
            assert found(getattr(_native, each.name)) == declared(each.body), each.name


@pytest.mark.skipif(not available(), reason="there is no engine here")
def test_a_clone_takes_the_installed_engine_of_its_sources(tmp_path: Path) -> None:
    done = clone_beside_an_engine(tmp_path, sources=stamp(ROOT / "nartk" / "engine" / "csrc"))
    assert done.stdout.startswith("She went to school yesterday.\nstrategy:greedy|")
    assert "|engine:" in done.stdout
    assert done.stderr == ""


@pytest.mark.skipif(not available(), reason="there is no engine here")
@pytest.mark.parametrize(
    ("sources", "why"),
    [
        ("nartk_sources_of_yesterday", "was compiled from other sources than those in "),
        (None, "none was compiled in "),
    ],
)
def test_a_clone_says_why_it_has_no_engine(sources: str | None, why: str, tmp_path: Path) -> None:
    done = clone_beside_an_engine(tmp_path, sources=sources)
    assert done.stdout.startswith("She went to school yesterday.\n")  # torch is installed for tests
    assert "|engine:" not in done.stdout
    (notice,) = [line for line in done.stderr.splitlines() if "Warning: " in line]
    assert why in notice
    assert str(tmp_path / "clone" / "nartk" / "engine") in notice
    assert notice.endswith("; torch computes, slower, and outputs are identical up to ties")


@pytest.mark.slow
def test_an_installed_wheel_decodes(tmp_path: Path) -> None:
    require_builders()
    folder = checkout(tmp_path / "checkout")
    wheel = build("wheel", unpacked(build("sdist", folder), tmp_path / "sdist"), NARTK_NO_ENGINE="1")
    inside = environment_with(tmp_path / "venv", str(wheel))
    done = subprocess.run(
        [inside.with_name("nartk-decode"), "gec-en-medium"],
        cwd=tmp_path,
        env={**os.environ, "NARTK_NO_ENGINE": "1"},
        input="She go to school yesterday .\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "She went to school yesterday .\n", done.stderr
    noise = subprocess.run(
        [inside.with_name("nartk-noise")], input="She goes .\n", capture_output=True, text=True, check=False
    )
    assert (noise.returncode, noise.stdout) == (2, "")
    assert noise.stderr.startswith("nartk: error[E104 MissingDependency] the corpora of nartk's repository ")


@pytest.mark.slow
def test_a_wheel_decodes_without_torch_and_compiler(tmp_path: Path) -> None:
    """In an environment that holds numpy, sentencepiece and the wheel, with nothing on its path."""
    require_builders()
    folder = checkout(tmp_path / "checkout")
    wheel = build("wheel", unpacked(build("sdist", folder), tmp_path / "sdist"), NARTK_REQUIRE_ENGINE="1")
    inside = environment_with(tmp_path / "venv", str(wheel))
    (others,) = (tmp_path / "venv").rglob("others.pth")
    for name in ("numpy", "sentencepiece"):
        package = Path(importlib.util.find_spec(name).submodule_search_locations[0])
        for found in package.parent.glob(f"{name}*"):
            (others.parent / found.name).symlink_to(found)
    others.unlink()
    done = subprocess.run(
        [inside.with_name("nartk-decode"), "--strategy", "iad", "--dtype", "int8"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path)},
        input="She go to school yesterday .\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "She went to school yesterday .\n", done.stderr
    missing = subprocess.run([inside, "-c", "import torch"], capture_output=True, text=True, check=False)
    assert last_line(missing) == "ModuleNotFoundError: No module named 'torch'"


def test_pytest_without_an_engine_says_what_to_do_in_a_line() -> None:
    code = "import sys, pytest, nartk.engine as e; e.LACK = 'none was built'; sys.exit(pytest.main(['--co']))"
    environment = {name: value for name, value in os.environ.items() if name not in ENGINE_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    (line,) = filter(None, (done.stdout + done.stderr).splitlines())
    assert line.startswith("ERROR: no engine to test: none was built. Fix: `scripts/test` builds it")
