"""The README and docs/strategies.md say of a strategy what it declares; the pages' links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.documents import FENCE, PAGES

from nartk.protocols.guarantee import Guarantee
from nartk.registry import make_strategy, strategies

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "strategies.md"
README = ROOT / "README.md"
_, VERIFYING, PARALLEL = re.split(r"^\| `--strategy` \|", PAGE.read_text(encoding="utf-8"), flags=re.M)
PROMISE = VERIFYING.split("|").index(" promise ")  # its index among the other cells


def rows(table: str) -> dict[str, list[str]]:
    """The other cells of each row, by the names in its first one."""
    found = {}
    for line in table.split("\n\n")[0].splitlines()[2:]:
        first, *others = (cell.strip() for cell in line.strip("|").split(" | "))
        found |= dict.fromkeys(re.findall(r"`([^`]+)`", first), others)
    return found


def test_the_tables_hold_every_strategy() -> None:
    assert sorted([*rows(VERIFYING), *rows(PARALLEL)]) == list(strategies())


@pytest.mark.parametrize("name", rows(VERIFYING))
def test_each_row_begins_with_the_guarantee(name: str) -> None:
    assert rows(VERIFYING)[name][PROMISE].startswith(strategies()[name].guarantee.value)


@pytest.mark.parametrize("name", rows(PARALLEL))
def test_all_decoders_of_parallel_models_are_approximate(name: str) -> None:
    assert strategies()[name].guarantee is Guarantee.APPROXIMATE
    assert "Their decoders are approximate" in VERIFYING


@pytest.mark.parametrize(("name", "options"), [("gad", {"beta": 2}), ("speculative", {"temperature": 0.5})])
def test_a_row_says_what_else_options_give(name: str, options: dict[str, float]) -> None:
    other = make_strategy(name, options).promised.guarantee
    assert other is not strategies()[name].guarantee
    assert f"above {'1' if 'beta' in options else '0'} {other.value}" in rows(VERIFYING)[name][PROMISE]


def test_the_table_of_extras_has_each() -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = settings.split("[project.optional-dependencies]")[1].split("\n[")[0]
    table = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").split("| extra |")[1]
    assert {*rows(table)} == {*re.findall(r"^(\w+) = ", declared, re.M)} - {"test"}


def test_the_readme_is_a_page_with_every_strategy_its_guarantee_and_a_figure() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    header, table = re.split(r"^(\| `--strategy` \|.*)$", text, flags=re.M)[1:]
    found = rows(header + table)
    assert sorted(found) == list(strategies())
    for name, (_, promise, measured) in found.items():
        assert promise.startswith(strategies()[name].guarantee.value), name
        assert re.search(r"\d", measured) or measured == "not measured", name


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


LINKED = [
    *PAGES,
    ROOT / "CHANGELOG.md",
    ROOT / "data" / "corpora" / "LICENSES.md",
    *sorted((ROOT / "recipes").glob("*/results/*.md")),
]


def links(page: Path) -> list[str]:
    """Targets of a page's links, those of its pictures and its reference definitions too."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.findall(r"\]\(([^)\s]*)", text) + re.findall(r"^\[[^\]]+\]: *(\S+)", text, re.M)


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        if re.match(r"\w+:", target):
            assert re.fullmatch(r"https?://([\w-]+\.)+[a-z]+(:\d+)?(/[\w./~%+,?=&#:@-]*)?", target), target
            assert "arxiv.org" not in target or re.search(r"/abs/\d{4}\.\d{4,5}$", target), target
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_links_are_found() -> None:
    """The pages have links of each form, so that the test above has something to look at."""
    targets = [target for page in LINKED for target in links(page)]
    assert sum(target.startswith("https://") for target in targets) > 20
    assert sum("#" in target for target in targets) > 20
