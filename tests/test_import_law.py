"""The law of imports: which room may import which, read from the source with `ast`.

`RANKS` has the rooms from the lowest up: a room imports lower ones, and within a room no modules import each
other in a circle. Imports in functions and for annotations count too. A module that a declaration names as a
string, such as an architecture's network, is no import.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.rooms import RANKS

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "nartk"
LINKED = ("models", "decoders", "data")  # linked into the package: they import as nartk.models and so on
RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}
# Of some rooms, all that they import of the package: less than their rank allows.
KNOWN = {
    "data": {"base", "protocols"},
    "models": {"base", "protocols", "architectures"},
    "decoders": {"base", "protocols", "registry", "architectures"},
    "engine": {"base", "protocols", "architectures", "checkpoints"},
    "metrics": {"base", "registry", "data"},
}
# The rooms that import nothing heavier than numpy when they are loaded.
CORE = {"base", "protocols", "registry", "architectures", "processors", "checkpoints", "serving", "nartk"}
LIGHT = {"numpy"}  # what the core imports when it is loaded
FAIRSEQ = {"fairseq", "fairseq_cli", "hydra", "omegaconf"}
FOREIGN_MODELS = {"transformers", "ctranslate2"}

UNPACKERS = ("compression", "zstandard")  # which load no torch: modules of Python 3.14, or in their place

DYNAMIC = ("importlib.import_module", "import_module", "__import__")  # calls that import
# The commands that start fairseq's own, with the cure that makes it run, and the one that measures it.
FAIRSEQ_DOORS = {
    "nartk/_fairseq_hook.py",
    "nartk/_fairseq_compat.py",
    "nartk/cli/_fairseq.py",
    "nartk/cli/train.py",
    "nartk/cli/preprocess.py",
    "nartk/cli/generate.py",
    "nartk/bench/peers.py",
}

WITH_TORCH = {"nartk/checkpoints/pickles.py"}  # files of the core that are imported where torch is needed
# Files of the core that load no torch: of what is installed, numpy alone; of the core, one another.
WITHOUT_TORCH = {
    *(f"nartk/{name}.py" for name in ("errors", "files", "journal", "unpacking", "vocab")),
    *(
        f"nartk/protocols/{name}.py"
        for name in ("hypothesis", "outputs", "passes", "parallel", "contexts", "kept")
    ),
    "nartk/protocols/reading.py",
}
REFERENCES = ("models/parallel_reference.py",)  # these give arrays
# What of the decoders loads no torch: these folders, and these files with all that they import of the rest.
HOST_DECODERS = (
    "decoders/loop/",
    "decoders/drafters/",
    "decoders/search/",
    "decoders/windowing/",
    "decoders/graphs/",
    "decoders/ctc_",
    "decoders/dag_",
    *(f"decoders/{name}.py" for name in ("strategy", "greedy", "iad", "verify", "ngram", "sample", "beam")),
    *(f"decoders/{name}.py" for name in ("native", "canvas", "rerank", "glat", "mask_predict", "gad")),
    *(
        f"decoders/{name}.py"
        for name in ("recycling", "union", "speculative", "bild", "paraformer", "joint_ctc")
    ),
)


@dataclass(frozen=True)
class Import:
    """One imported module: its dotted name, its line, whether with the file, and whether it is for types."""

    name: str
    line: int
    at_load: bool
    typing: bool = False


def imports(source: str, package: str) -> Iterator[Import]:
    """All imports of a source text, relative ones resolved in `package`."""

    def visit(node: ast.AST, at_load: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.body:
                yield from (replace(each, at_load=False, typing=True) for each in visit(child, at_load))
            for child in node.orelse:
                yield from visit(child, at_load)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_load)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                parents = parents[: len(parents) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                # `from nartk import models` imports nartk.models; `from nartk.models import x` may name x.
                yield Import(f"{base}.{alias.name}", node.lineno, at_load)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in DYNAMIC:
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant):
                    yield Import(str(argument.value), node.lineno, at_load)
        inside = at_load and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(source), True)


def room_of(name: str) -> str:
    """The room of nartk that a dotted name lies in; nothing if it is no name of nartk's."""
    names = name.split(".")
    if names[0] in LINKED:
        return "bare " + names[0]
    if names[0] != "nartk":
        return ""
    if names[1:2] == ["__main__"]:
        return "cli"
    if len(names) == 1 or not ((PACKAGE / names[1]).is_dir() or (PACKAGE / f"{names[1]}.py").is_file()):
        return "nartk"
    return names[1] if names[1] in RANK else "base"


def loads_no_torch(name: str) -> bool:
    """Whether a module of the core, or the one that holds this name, is among those that load none."""
    path = name.replace(".", "/")
    return not {f"{path}.py", f"{path.rpartition('/')[0]}.py"}.isdisjoint(WITHOUT_TORCH)


def complaint(path: str, found: Import) -> str | None:
    """What the law says against an import of the file at `path`, relative to the repository; or None."""
    top = found.name.split(".")[0]
    target = room_of(found.name)
    room, *rest = path.split("/")
    if room == "nartk":
        room = "nartk" if rest == ["__init__.py"] else room_of(f"nartk.{rest[0].removesuffix('.py')}")
    if target.startswith("bare "):
        return f"rooms import as nartk.{top}"
    if top == "recipes":
        return "recipes are never imported"
    if top.startswith("test_") and room == "tests":
        return "what tests share lies in tests/support"
    if target and room in RANK and target != room and RANK[target] >= RANK[room]:
        return f"{target} is no lower room than {room}"
    if found.typing:
        return None
    if top in FAIRSEQ and room not in ("tasks", "tests") and path not in FAIRSEQ_DOORS:
        return "nartk/tasks is the only doorway to fairseq"
    if top in FOREIGN_MODELS and room not in ("adapters", "bench", "tests"):
        return "nartk/adapters is the only doorway to other people's models"
    if target and target not in (room, *KNOWN.get(room, RANK)):
        return f"{room} knows only {', '.join(sorted(KNOWN[room]))}"
    external = top not in sys.stdlib_module_names and not target and top != "__future__"
    if room in CORE:
        if external and found.at_load and top not in LIGHT and path not in WITH_TORCH:
            return "the core imports nothing heavier than numpy"
        if path in WITHOUT_TORCH and external and top not in ("numpy", *UNPACKERS):
            return "this file imports numpy alone"
        if path in WITHOUT_TORCH and target and not loads_no_torch(found.name):
            return "this file imports only what loads no torch"
    elif room == "engine" and external and top != "numpy":
        return "the engine imports numpy alone"
    elif room == "models" and external and top not in ("torch", *(("numpy",) if path in REFERENCES else ())):
        return "models import torch alone"
    elif room == "decoders":
        if external and top not in ("torch", "numpy"):
            return "decoders import numpy and torch alone"
        if path.startswith(HOST_DECODERS) and top == "torch":
            return "the loop over passes and what drafts for it import no torch"
    return None


def sources() -> list[Path]:
    folders = ("nartk", *LINKED, "recipes", "tests", "scripts")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def package_of(place: Path) -> str:
    package = ".".join(place.parts[:-1])
    return f"nartk.{package}" if place.parts[0] in LINKED else package


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_import_keeps_the_law(path: Path) -> None:
    place = path.relative_to(ROOT)
    found = imports(path.read_text(encoding="utf-8"), package_of(place))
    broken = [(each.line, each.name, complaint(place.as_posix(), each)) for each in found]
    assert [each for each in broken if each[2] is not None] == []


def module_of(place: Path) -> str:
    name = ".".join(place.with_suffix("").parts).removesuffix(".__init__")
    return f"nartk.{name}" if place.parts[0] in LINKED else name


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules that import each other in a circle; none if there are none."""
    left = dict(graph)
    while free := [name for name, found in left.items() if not found & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


def test_no_modules_import_each_other_in_a_circle() -> None:
    places = [
        path.relative_to(ROOT) for path in sources() if path.parts[len(ROOT.parts)] in ("nartk", *LINKED)
    ]
    modules = {module_of(place): place for place in places}
    graph: dict[str, set[str]] = {}
    for name, place in modules.items():
        names = [each.name for each in imports((ROOT / place).read_text("utf-8"), package_of(place))
                 if not each.typing]  # fmt: skip
        found = {
            next((each for each in (one, one.rpartition(".")[0]) if each in modules), "") for one in names
        }
        graph[name] = found - {name, ""}
    assert len(graph) > 250
    assert circle(graph) == []


def test_a_circle_is_noticed() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["a", "b", "c", "d"]
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_each_folder_of_the_package_has_a_rank() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert rooms <= RANK.keys()
    assert RANK.keys() - rooms == {"base", "registry", "nartk"}
    assert {room for known in KNOWN.values() for room in known} <= RANK.keys()


BROKEN = [
    ("nartk/protocols/parallel.py", "from nartk.models import transformer"),
    ("nartk/protocols/parallel.py", "def f():\n    import nartk.decoders.greedy"),
    ("nartk/serving/model.py", "import models"),
    ("nartk/checkpoints/loading.py", "from ..models import transformer"),
    ("nartk/checkpoints/loading.py", "def f():\n    from nartk.adapters.hf import to_hugging_face"),
    ("nartk/checkpoints/loading.py", "from nartk.serving.loading import load"),
    (
        "nartk/checkpoints/loading.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nartk.serving.lines",
    ),
    ("nartk/serving/model.py", "def f():\n    from nartk.bench import calibration"),
    ("nartk/adapters/hf.py", "from nartk.tasks.peer import Peer"),
    ("nartk/engine/weights.py", "from nartk import load"),
    ("nartk/protocols/passes.py", "from nartk.registry import option"),
    ("nartk/errors.py", "from nartk.protocols.passes import Pass"),
    ("nartk/checkpoints/loading.py", "import fairseq"),
    ("nartk/checkpoints/loading.py", "def f():\n    from fairseq import tasks"),
    ("nartk/checkpoints/loading.py", "import sacrebleu"),
    ("nartk/checkpoints/loading.py", "import torch"),
    ("nartk/architectures/nat.py", "from nartk.models.nat import Nat"),
    ("nartk/vocab.py", "from nartk.cli import decode"),
    ("nartk/protocols/contexts.py", "def f():\n    import torch"),
    ("nartk/protocols/reading.py", "from nartk.models.transformer import Transformer"),
    ("nartk/cli/decode.py", "from fairseq import options"),
    ("nartk/cli/decode.py", "import models.transformer"),
    ("nartk/cli/bench.py", "import transformers"),
    ("nartk/tasks/transformer.py", "from nartk.cli.train import main"),
    ("models/transformer.py", "from nartk.decoders import loop"),
    ("models/transformer.py", "def f():\n    import nartk.decoders.greedy"),
    ("models/transformer.py", "from nartk.data.text import tokenize"),
    ("models/transformer.py", "import fairseq.models"),
    ("models/transformer.py", "import numpy"),
    ("decoders/iad.py", "from nartk.models.transformer import Transformer"),
    ("decoders/iad.py", "from nartk.serving.loading import load"),
    ("decoders/iad.py", "from nartk import pipeline"),
    ("decoders/iad.py", "from ..models import transformer"),
    ("decoders/iad.py", "import importlib\nimportlib.import_module('nartk.models.transformer')"),
    ("decoders/iad.py", "from nartk.cli._common import run"),
    ("decoders/loop/loop.py", "def f():\n    import torch"),
    ("decoders/drafters/source_copy.py", "from torch import Tensor"),
    ("data/gec/noise.py", "import nartk.models.transformer as t"),
    ("data/gec/noise.py", "from nartk import decoders"),
    ("nartk/cli/noise.py", "from recipes.gec import prepare"),
    ("tests/test_x.py", "from models.transformer import Transformer"),
    ("tests/test_x.py", "from test_y import helper"),
    ("tests/support/x.py", "def f():\n    import test_y"),
    ("nartk/engine/scorer.py", "import torch"),
    ("nartk/engine/scorer.py", "from nartk.decoders import greedy"),
    ("nartk/vocab.py", "from nartk.engine import scorer"),
]


@pytest.mark.parametrize(("path", "source"), BROKEN)
def test_a_broken_law_is_noticed(path: str, source: str) -> None:
    package = {"n": "nartk", "t": "tests"}.get(path[0], "nartk." + path.split("/")[0])
    assert any(complaint(path, each) is not None for each in imports(source, package))


KEPT = [
    ("nartk/serving/model.py", "def f():\n    from nartk.models.transformer import Transformer"),
    ("nartk/serving/model.py", "if TYPE_CHECKING:\n    from nartk.models.transformer import Transformer"),
    ("nartk/bench/runner.py", "import nartk\nfrom nartk import load"),
    ("nartk/processors/guard.py", "def f():\n    from nartk.data.clauses import clauses"),
    ("decoders/strategy.py", "if TYPE_CHECKING:\n    from nartk.processors import OutputProcessor"),
    ("nartk/checkpoints/loading.py", "def f():\n    import torch"),
    ("nartk/protocols/reading.py", "import numpy as np\nfrom nartk.protocols.passes import Want"),
    ("nartk/tasks/transformer.py", "from fairseq.models import register_model"),
    ("nartk/adapters/huggingface.py", "import transformers"),
    ("decoders/iad.py", "from nartk.decoders.loop.drafter import Draft\nfrom nartk.errors import UsageError"),
    ("models/transformer.py", "import torch.nn.functional as F\nfrom nartk.errors import CheckpointError"),
    ("tests/test_x.py", "from nartk.models.transformer import Transformer\nimport fairseq"),
    ("tests/test_x.py", "from support.tiny import random_model\nfrom support import engine"),
]


@pytest.mark.parametrize(("path", "source"), KEPT)
def test_what_the_law_allows_is_allowed(path: str, source: str) -> None:
    package = {"n": "nartk", "t": "tests"}.get(path[0], "nartk." + path.split("/")[0])
    assert [each for each in imports(source, package) if complaint(path, each) is not None] == []


def in_a_fresh_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


HEAVY = ("fairseq", "transformers", "sacrebleu", "errant", "spacy", "sentencepiece")


def test_import_nartk_loads_no_torch_nor_anything_heavy() -> None:
    names = (*HEAVY, "torch", "numpy")
    assert in_a_fresh_python(f"import sys, nartk; print([m for m in {names} if m in sys.modules])") == "[]"


def test_files_are_read_without_what_writes_them() -> None:
    """tempfile takes 10 ms, and few commands write a file."""
    code = "import sys, nartk.files, nartk.cli.decode; print('tempfile' in sys.modules)"
    assert in_a_fresh_python(code) == "False"


def test_passes_are_specified_without_torch() -> None:
    code = "import sys, nartk.protocols.contexts, nartk.protocols.reading; print('torch' in sys.modules)"
    assert in_a_fresh_python(code) == "False"


def test_strategies_over_passes_load_no_torch() -> None:
    modules = ", ".join(
        f"nartk.decoders.{name}" for name in ("greedy", "iad", "verify", "ngram", "sample", "beam")
    )
    assert in_a_fresh_python(f"import sys, {modules}; print('torch' in sys.modules)") == "False"


def test_listing_the_strategies_needs_torch_alone() -> None:
    code = f"import sys, nartk; nartk.strategies(); print([m for m in {HEAVY} if m in sys.modules])"
    assert in_a_fresh_python(code) == "[]"


def test_programs_in_shell_scripts_import_what_there_is() -> None:
    """Those that run as they stand in recipes and scripts, which no other check reads."""
    programs = [*(ROOT / "recipes").rglob("*.sh"), *filter(Path.is_file, (ROOT / "scripts").iterdir())]
    line = re.compile(r"^from nartk[\w.]* import [\w, ]+", re.MULTILINE)
    found = [each for path in programs for each in line.findall(path.read_text(encoding="utf-8"))]
    assert found
    for each in found:
        exec(each, {})
