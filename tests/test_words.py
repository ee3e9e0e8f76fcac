"""The code uses the field's words: those of docs/style.md, "Words", that it must not use do not occur."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = [
    path
    for top in ("nartk", "models", "decoders", "data", "recipes")
    for path in sorted((ROOT / top).rglob("*.py"))
    if not any(parent.is_symlink() for parent in path.parents)
]

# Parts of identifiers, each with what the field says instead.
PARTS = {
    **dict.fromkeys(("judged", "judgement", "judgements"), "verdict, draft outcome"),
    **dict.fromkeys(("stands", "stood", "falls"), "accepted, rejected"),
    "fed": "verified tokens, inputs",
    **dict.fromkeys(("place", "places"), "position, index, cell"),
    **dict.fromkeys(("say", "said", "says"), "predict, output, emitted, tokens"),
    **dict.fromkeys(("told", "these", "usual"), "to_device, token_ids, lower_quartile"),
    **dict.fromkeys(("chances", "odds"), "probs, odds ratio"),
    **dict.fromkeys(("never", "unseen"), "NEG_INF, mask"),
    **dict.fromkeys(("fan", "dear"), "branching factor, expensive"),
    **dict.fromkeys(("practise", "helper", "helpers"), "training_forward, auxiliary models"),
    **dict.fromkeys(("kind", "kinds"), "architecture, type"),
    **dict.fromkeys(("floor", "floors"), "batch-invariant"),
    **dict.fromkeys(("room", "rooms"), "capacity"),
    **dict.fromkeys(("successors", "recycler"), "adjacency matrix"),
    **dict.fromkeys(("ask", "answers"), "query, scores"),
}
# Whole identifiers, whose words have an ordinary sense beside others.
WHOLE = {
    **dict.fromkeys(("way", "ways", "Fork"), "path, packed tree"),
    **dict.fromkeys(("reach", "steps"), "query position, arange"),
    "account": "regret budget",
}
# In docstrings, where words without an ordinary sense in this field are no better.
PHRASES = {
    r"judged|judgements?": "verdict, draft outcome",
    r"is fed|tokens fed|fed tokens": "verified tokens, inputs",
    r"puts? out|hears|takes in": "emits, observes, records",
    r"exact mode": "batch-invariant engine",
    r"helpers?": "auxiliary models",
}

# First words of docstrings, and of their entries, that make a clause of the subject; and rooms without them.
CLAUSES = {"What", "Whether", "How", "Which", "Where", "Why", "When", "Of", "As", "By", "Is", "So"}
SWEPT = ("data/", "decoders/", "models/", "nartk/", "recipes/")


def named(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the name of what a file names: functions, classes, arguments, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def parts_of(name: str) -> list[str]:
    """``_NeverSaid`` -> ``never``, ``said``."""
    return [each.lower() for each in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def found_in(source: str) -> set[str]:
    """What a file's words break the table with."""
    tree, found = ast.parse(source), set()
    for line, name in named(tree):
        better = [PARTS[part] for part in parts_of(name) if part in PARTS] + [WHOLE.get(name, "")]
        found |= {f"line {line}: {name}: {each}" for each in better if each}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node) or ""
            for phrase, instead in PHRASES.items():
                match = re.search(rf"\b(?:{phrase})\b", text, re.IGNORECASE)
                if match is not None:
                    found.add(f"docstring: {match[0]}: {instead}")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_words_are_the_fields(path: Path) -> None:
    assert found_in(path.read_text(encoding="utf-8")) == set()


def clauses_in(source: str) -> set[str]:
    """First lines of docstrings, and of their entries, whose subject is a clause."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node) or ""
            entries = re.findall(r"^    [`*\w, ]+: (.*)$", text, re.MULTILINE)
            found |= {line for line in (text.split("\n")[0], *entries) if line.split(" ")[0] in CLAUSES}
    return found


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if str(path.relative_to(ROOT)).startswith(SWEPT)],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_docstrings_begin_with_a_verb_or_a_noun(path: Path) -> None:
    assert clauses_in(path.read_text(encoding="utf-8")) == set()


def test_clauses_are_found() -> None:
    entry = 'def f(x):\n    """Returns x.\n\n    Args:\n        x: Whether it is.\n    """'
    assert clauses_in(entry) == {"Whether it is."}
    assert clauses_in('"""What it is."""\n') == {"What it is."}
    assert clauses_in('"""Whatever it is."""\n') == set()


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("def judged(): pass", "judged"),
        ("class SaidWords: pass", "SaidWords"),
        ("def f(kind): pass", "kind"),
        ("_NEVER = 1", "_NEVER"),
        ("self.helpers = {}", "helpers"),
        ("steps = range(3)", "steps"),
        ('def f():\n    """The tokens fed to it."""', "tokens fed"),
    ],
)
def test_what_breaks_the_table_is_found(source: str, word: str) -> None:
    assert any(word in each for each in found_in(source))


@pytest.mark.parametrize("source", ["MAX_STEPS = 3", "stable = sort(kind='stable')", "def always(): pass"])
def test_other_words_are_free(source: str) -> None:
    assert found_in(source) == set()
