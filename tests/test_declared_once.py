"""No code asks what a strategy or an architecture is called, or of which class a model is."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nartk.architectures import architectures
from nartk.registry import DECODERS

ROOT = Path(__file__).resolve().parents[1]
NAMES = {*DECODERS.all(), *architectures()}


def sources() -> list[Path]:
    """All code that is packaged; what is linked into the package is read where it is."""
    return [
        Path(folder, name).relative_to(ROOT)
        for room in ("nartk", "decoders", "models", "data")
        for folder, _, names in os.walk(ROOT / room)  # which follows no links
        for name in names
        if name.endswith(".py")
    ]


def model_classes() -> set[str]:
    """Every class that a file of models/ defines or an architecture is made of, but for protocols."""
    found = set()
    for path in (ROOT / "models").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and "Protocol" not in map(ast.unparse, node.bases):
                found.add(node.name)
    return found | {each.config.__name__ for each in architectures().values()}


MODELS = model_classes()


def names_of(node: ast.expr) -> Iterator[str]:
    """The last part of each class that the second argument of isinstance or issubclass names."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.Attribute):
            yield part.attr


def texts_of(node: ast.expr) -> set[object]:
    return {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}


def complaints(path: Path, code: str) -> list[str]:
    """What a file asks that it should not, with the lines."""
    found = []
    own = path.stem.replace("_", "-")
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Call(ast.Name("isinstance" | "issubclass"), [_, classes]) if path.parts[0] != "models":
                asked = sorted({*names_of(classes)} & MODELS)
            case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.In() | ast.NotIn(), *_]):
                sides = [node.left, *node.comparators]
                asked = sorted(map(str, set().union(*map(texts_of, sides)) & (NAMES - {own})))
            case ast.match_case():
                texts = {
                    part.value.value
                    for part in ast.walk(node.pattern)
                    if isinstance(part, ast.MatchValue) and isinstance(part.value, ast.Constant)
                }
                asked = sorted(map(str, texts & (NAMES - {own})))
            case _:
                continue
        found += [f"{path}:{getattr(node, 'lineno', 0)}: {name}" for name in asked]
    return found


@pytest.mark.parametrize("path", sources(), ids=str)
def test_nothing_is_asked_for_its_name_or_class(path: Path) -> None:
    assert complaints(path, (ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "code", "asked"),
    [
        ("nartk/tasks/drafter.py", "if isinstance(model.core, Blockwise): pass", "Blockwise"),
        ("nartk/serving/model.py", "x = isinstance(a, (str, transformer.Transformer))", "Transformer"),
        ("decoders/gad.py", "while issubclass(type(m), OnTorch): pass", "OnTorch"),
        ("nartk/cli/decode.py", "if args.strategy == 'beam': pass", "beam"),
        ("nartk/bench/choose.py", "x = 1 if kind not in ('transformer', 'other') else 2", "transformer"),
        ("nartk/bench/choose.py", "match kind:\n case 'ctc': pass", "ctc"),
        ("decoders/beam.py", "if self.other == 'sample': pass", "sample"),
    ],
)
def test_a_file_that_asks_is_found(path: str, code: str, asked: str) -> None:
    assert [each.rpartition(" ")[2] for each in complaints(Path(path), code)] == [asked]


def test_protocols_and_own_names_may_be_asked() -> None:
    code = "isinstance(scorer, PassScorer)\nif name == 'beam': pass\nif x == 'nothing': pass"
    assert complaints(Path("decoders/beam.py"), code) == []
    assert complaints(Path("models/nat.py"), "isinstance(model, Nat)") == []
