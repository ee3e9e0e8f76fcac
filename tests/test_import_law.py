"""The law of imports: which room may import which, read from the source with `ast`.

Imports point one way: recipes -> cli -> tasks, adapters -> models, decoders, data -> the core -> torch.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("models", "decoders", "data")  # linked into the package: they import as nartk.models and so on
PARTS = (
    "cli",
    "tasks",
    "adapters",
    "metrics",
    "bench",
    "engine",
)  # inside the package, each with its law
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
    "nartk/bench/engines.py",
}

# Files of the core that may import a room inside a function, where it is needed.
LAZY = {
    "nartk/serving/model.py",
    "nartk/serving/loading.py",
    "nartk/serving/scorers.py",
    "nartk/serving/recordings.py",
    "nartk/serving/requests.py",
    "nartk/serving/strategies.py",
    "nartk/checkpoints/checkpoint.py",
    "nartk/__init__.py",
    "nartk/registry.py",
    "nartk/serving/guard.py",
    "nartk/processors/text.py",
    "nartk/processors/audio.py",
    "nartk/processors/whisper.py",
}
# Files of the core that load no torch: of what is installed, numpy alone; of the core, one another.
WITHOUT_TORCH = {
    *(f"nartk/{name}.py" for name in ("errors", "files", "unpacking", "vocab")),
    *(f"nartk/protocols/{name}.py" for name in ("hypothesis", "passes", "parallel", "contexts", "reading")),
}
REFERENCES = ("models/parallel_reference.py",)  # these give arrays
# What decoders see of the core.
OF_DECODERS = {
    *("protocols", "registry", "errors", "files", "vocab", "architectures", "decoders"),
}
# What of the decoders loads no torch: these folders, and these files with all that they import of the rest.
HOST_DECODERS = (
    "decoders/loop/",
    "decoders/drafters/",
    "decoders/search/",
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
    """One imported module: its dotted name, its line, and whether it is imported with the file."""

    name: str
    line: int
    at_load: bool


def imports(source: str, package: str) -> Iterator[Import]:
    """All imports of a source text, relative ones resolved in `package`, typing-only ones left out."""

    def visit(node: ast.AST, at_load: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
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


def part_of(name: str) -> str:
    """The part of nartk that a dotted name lies in: a room, a part, `core`, or nothing."""
    names = name.split(".")
    if names[0] in ROOMS:
        return "bare " + names[0]
    if names[0] != "nartk":
        return ""
    return names[1] if len(names) > 1 and names[1] in (*ROOMS, *PARTS) else "core"


def loads_no_torch(name: str) -> bool:
    """Whether a module of the core, or the one that holds this name, is among those that load none."""
    path = name.replace(".", "/")
    return not {f"{path}.py", f"{path.rpartition('/')[0]}.py"}.isdisjoint(WITHOUT_TORCH)


def complaint(path: str, found: Import) -> str | None:
    """What the law says against an import of the file at `path`, relative to the repository; or None."""
    top = found.name.split(".")[0]
    target = part_of(found.name)
    room, *rest = path.split("/")
    if room == "nartk":
        room = rest[0] if rest[0] in PARTS else "cli" if rest == ["__main__.py"] else "core"
    if target.startswith("bare "):
        return f"rooms import as nartk.{top}"
    if top == "recipes":
        return "recipes are never imported"
    if top.startswith("test_") and room == "tests":
        return "what tests share lies in tests/support"
    if top in FAIRSEQ and room not in ("tasks", "tests") and path not in FAIRSEQ_DOORS:
        return "nartk/tasks is the only doorway to fairseq"
    if top in FOREIGN_MODELS and room not in ("adapters", "bench", "tests"):
        return "nartk/adapters is the only doorway to other people's models"
    external = top not in sys.stdlib_module_names and not target and top != "__future__"
    if room == "core":
        if target in (*ROOMS, *PARTS) and (found.at_load or path not in LAZY):
            return f"the core imports no room: {target}"
        if external and found.at_load and top not in LIGHT:
            return "the core imports nothing heavier than numpy"
        if path in WITHOUT_TORCH and external and top not in ("numpy", *UNPACKERS):
            return "this file imports numpy alone"
        if path in WITHOUT_TORCH and target and not loads_no_torch(found.name):
            return "this file imports only what loads no torch"
    elif room == "engine":
        if target not in ("", "core", "engine") or (external and top != "numpy"):
            return "the engine imports numpy and the core only"
    elif room == "models":
        allowed = ("torch", "numpy") if path in REFERENCES else ("torch",)
        if target not in ("", "core", "models") or (external and top not in allowed):
            return "models import torch and the core only"
    elif room == "decoders":
        if target not in ("", "core", "decoders") or (external and top not in ("torch", "numpy")):
            return "decoders import numpy, torch and the core only"
        if path.startswith(HOST_DECODERS) and top == "torch":
            return "the loop over passes and what drafts for it import no torch"
        if target and found.name.split(".")[1] not in OF_DECODERS:
            return f"of the core, decoders import only {', '.join(sorted(OF_DECODERS))}"
    elif room == "data":
        if target not in ("", "core", "data"):
            return "data knows neither models nor decoders"
    elif room == "metrics" and target not in ("", "core", "data", "metrics"):
        return "metrics know text alone"
    elif room in ("tasks", "adapters") and target == "cli":
        return "imports point from the commands inwards"
    return None


def sources() -> list[Path]:
    folders = ("nartk", *ROOMS, "recipes", "tests", "scripts")
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_import_keeps_the_law(path: Path) -> None:
    place = path.relative_to(ROOT)
    package = ".".join(place.parts[:-1])
    if place.parts[0] in ROOMS:
        package = f"nartk.{package}"
    found = imports(path.read_text(encoding="utf-8"), package)
    broken = [(each.line, each.name, complaint(place.as_posix(), each)) for each in found]
    assert [each for each in broken if each[2] is not None] == []


BROKEN = [
    ("nartk/protocols/parallel.py", "from nartk.models import transformer"),
    ("nartk/protocols/parallel.py", "def f():\n    import nartk.decoders.greedy"),
    ("nartk/serving/model.py", "from nartk import models"),
    ("nartk/serving/model.py", "from .models import transformer"),
    ("nartk/checkpoints/checkpoint.py", "import fairseq"),
    ("nartk/checkpoints/checkpoint.py", "def f():\n    from fairseq import tasks"),
    ("nartk/checkpoints/checkpoint.py", "import sacrebleu"),
    ("nartk/checkpoints/checkpoint.py", "import torch"),
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
    ("nartk/checkpoints/checkpoint.py", "def f():\n    import torch"),
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
