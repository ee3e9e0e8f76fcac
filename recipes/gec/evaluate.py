"""Measures correction models on learners' text, misspellings and correct text, and writes a table.

    python recipes/gec/evaluate.py MODEL ... --jfleg DIR --cweb DIR --eracond DIR --ewt DIR [--output FOLDER]

GLEU on JFLEG and MaxMatch's F0.5 on CWEB-S and ErAConD, of dev or, with `--part test`, of the parts that are
kept for the end (`testsets.py`); 500 misspellings that learners and others made, and held-out ones of
codespell's list put into clean sentences (`spelling.py`); the share of correct sentences and paragraphs that
are changed, and of lines that are easily spoilt (`untouched.tsv`); F0.5 by ERRANT's types. A folder gets
quality.md, quality.json, the outputs, and all changes of correct text to judge them by eye.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from quality import (
    OTHER,
    PARAGRAPHS,
    PROSE,
    SOURCE,
    TYPOS,
    Row,
    Sets,
    System,
    by_type,
    changes,
    gleu,
    measure,
    of_model,
    read_sets,
    typed,
)
from testsets import DEV, PARTS

from nartk.bench.report import markdown
from nartk.errors import MissingDependencyError
from nartk.metrics.errant import ErrantAnnotator

TYPES = 16  # rows of the table by type
Outputs = dict[str, Sequence[str]]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [*markdown(header, rows), ""]


def around(found: Row) -> str:
    return f"{found['score']:.2f} ({found['low']:.1f} to {found['high']:.1f})"


def of_parts(found: Row) -> str:
    interval = f"{found['low']:.1f} to {found['high']:.1f}"
    return f"{found['score']:.1f} ({interval}); {found['precision']:.1f}, {found['recall']:.1f}"


def spelt(found: Row) -> str:
    recall = f"{found['recall']:.1f} ({found['recovered']} of {found['wrong']})"
    return f"{recall}, {found['precision']:.1f} ({found['right']} of {found['changes']})"


def share(found: Row) -> str:
    return f"{100 * found['changed'] / found['lines']:.1f} % ({found['changed']} of {found['lines']})"


def scores(rows: Sequence[Row], checked: Row, part: str) -> Iterator[str]:
    golds, spellings = [*rows[0]["m2"]], [*rows[0]["spelling"]]
    yield from (
        "## Learners' and web text",
        "GLEU and F0.5 with 95 % intervals by bootstrap; precision, recall.",
        "",
    )
    cells = [
        [row["system"], around(row["gleu"]), *(of_parts(row["m2"][name]) for name in golds)] for row in rows
    ]
    cells.insert(1, ["source, spell-checked by JFLEG", around(checked), *("-" for _ in golds)])
    yield from table(
        ["", f"JFLEG {part} GLEU", *(f"{name} {part} half, M2 F0.5; P, R" for name in golds)], cells
    )
    yield from ("## Spelling", "Recall and precision in %.", "")
    cells = [[row["system"], *(spelt(row["spelling"][name]) for name in spellings)] for row in rows]
    yield from table(["", *(f"{name} misspellings" for name in spellings)], cells)
    yield from ("## Harm", "Lines that were changed.", "")
    cells = [
        [row["system"], *(share(row["harm"][name]) for name in (PROSE, OTHER, TYPOS, PARAGRAPHS))]
        for row in rows
    ]
    yield from table(["", PROSE, OTHER, TYPOS, PARAGRAPHS], cells)
    classes = [*rows[0]["hard"]]
    cells = [
        [
            row["system"],
            *(f"{row['hard'][name]['changed']} of {row['hard'][name]['lines']}" for name in classes),
        ]
        for row in rows
    ]
    yield from table(["hard inputs changed", *classes], cells)


def errors(rows: Sequence[Row]) -> Iterator[str]:
    """Tables of the systems that were measured by type."""
    rows = [row for row in rows if "types" in row]
    if not rows:
        return
    yield from (
        "## By type",
        "ERRANT's F0.5 (precision, recall), and the number of gold edits that are missed.",
        "",
    )
    for name, found in rows[-1]["types"].items():
        most = sorted(found, key=lambda each: -found[each]["tp"] - found[each]["fn"])[:TYPES]
        cells = [["all", *(of_parts(row["errant"][name]) for row in rows)]]
        for each in most:
            cells.append([each, *(_by_type(row["types"][name].get(each)) for row in rows)])
        yield from table([name, *(row["system"] for row in rows)], cells)
    for row in rows:
        if "harmful" in row:
            counts = ", ".join(f"{name} {number}" for name, number in row["harmful"])
            yield from (f"Edits of correct sentences and paragraphs, {row['system']}: {counts}.", "")
    row = rows[-1]
    yield from (
        "## Still wrong",
        f"A missed edit of each type of which most are missed, drawn by a fixed seed; {row['system']}.",
        "",
    )
    cells = [[each["type"], each["source"], each["output"], each["wanted"]] for each in row["examples"]]
    yield from table(
        ["", "source", "output", "missed"],
        [[cell.replace("|", "\\|") for cell in cells_] for cells_ in cells],
    )


def _by_type(found: Row | None) -> str:
    if found is None:
        return "-"
    return (
        f"{100 * found['f']:.1f} ({100 * found['precision']:.0f}, {100 * found['recall']:.0f}); {found['fn']}"
    )


def changes_of(
    annotator: ErrantAnnotator, sets: Sets, outputs: Mapping[str, Sequence[str]], path: Path | None
) -> list[tuple[str, int]]:
    """Types of all edits of correct text by their number; writes each changed line to a file."""
    lines, counts = ["set\tsource\toutput\tedits\ttypes"], Counter[str]()
    hard = [text for _, text in sets.hard]
    for name, texts in {**sets.correct, "hard inputs": hard}.items():
        for each in changes(annotator, texts, outputs[name]):
            lines.append(
                "\t".join([name, each.source, each.output, "; ".join(each.edits), " ".join(each.types)])
            )
            counts.update(each.types if name != TYPOS else ())
    if path is not None:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return counts.most_common()


def add_sets(parser: argparse.ArgumentParser) -> None:
    """Adds the folders of the data sets, and which part of them is measured."""
    parser.add_argument("--jfleg", type=Path, required=True, metavar="DIR")
    parser.add_argument("--cweb", type=Path, required=True, metavar="DIR")
    parser.add_argument("--eracond", type=Path, required=True, metavar="DIR")
    parser.add_argument("--ewt", type=Path, required=True, metavar="DIR", help="UD English EWT")
    parser.add_argument("--part", choices=PARTS, default=DEV, help="test: once, at the end")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="name or folder")
    add_sets(parser)
    parser.add_argument("--dtype", default="fp32", metavar="TYPE,...", help="as nartk-decode has it")
    parser.add_argument(
        "--confidence",
        default="",
        metavar="P,...",
        help="--min-edit-confidence of the models, each in turn; no table by type then",
    )
    parser.add_argument("--spacy", metavar="NAME", help="spaCy pipeline for ERRANT, a name or a folder")
    parser.add_argument("--output", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    swept = [float(each) for each in args.confidence.split(",") if each]
    least: list[float | None] = [*swept] or [None]
    systems = [
        of_model(name, dtype, each)
        for name in args.models
        for dtype in args.dtype.split(",")
        for each in least
    ]
    try:
        annotator = None if swept else ErrantAnnotator(args.spacy)
    except MissingDependencyError as error:
        annotator = None
        print(f"evaluate.py: no table by type: {error}", file=sys.stderr)
    sets = read_sets(args.jfleg, args.cweb, args.eracond, args.ewt, args.part)
    rows = [*measured([SOURCE, *systems], sets, annotator, args.output)]
    checked = gleu(sets.learners, sets.learners.checked)
    text = "\n".join([*head(args.part, sets, rows), *scores(rows, checked, args.part), *errors(rows)])
    print(text)
    if args.output is not None:
        (args.output / "quality.md").write_text(text, encoding="utf-8")
        found = {"part": args.part, "spell-checked": checked, "systems": rows}
        (args.output / "quality.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def measured(
    systems: Sequence[System], sets: Sets, annotator: ErrantAnnotator | None, folder: Path | None
) -> Iterator[Row]:
    """Measures systems one after the other; a folder gets their outputs."""
    golds = {} if annotator is None else typed(annotator, sets)
    for system in systems:
        outputs: Outputs = {}
        row = measure(system, sets, outputs.__setitem__)
        own = (
            None if folder is None else folder / "outputs" / system.name.replace(", ", ".").replace(" ", "_")
        )
        if own is not None:
            own.mkdir(parents=True, exist_ok=True)
            for name, lines in outputs.items():
                (own / f"{name.replace(', ', '.').replace(' ', '_')}.txt").write_text(
                    "\n".join(lines) + "\n", encoding="utf-8"
                )
        if annotator is not None and system is not SOURCE:
            row |= by_type(annotator, golds, outputs)
            row["harmful"] = changes_of(
                annotator, sets, outputs, None if own is None else own / "changes.tsv"
            )
        yield row


def head(part: str, sets: Sets, rows: Sequence[Row]) -> Iterator[str]:
    flags = " ".join(Path(each).name for each in sys.argv)
    yield from ("# Quality of correction", f"- command: `{flags}`")
    gold = ", ".join(f"{name} {len(found)}" for name, found in sets.gold.items())
    yield f"- {part}: JFLEG {len(sets.learners.source)} sentences, {gold}"
    origins = Counter[str]()
    for each in sets.spelling["real"]:
        origins[each.text.name] += len(each.wrong)
    yield "- real misspellings: " + ", ".join(f"{name} {number}" for name, number in origins.items())
    yield from (f"- {row['system']}: `{row['signature']}`" for row in rows if row["signature"])
    yield ""


if __name__ == "__main__":
    main()
