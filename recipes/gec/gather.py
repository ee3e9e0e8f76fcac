"""Makes clean text of the repositories in gather.json, to train on beside the text that ships.

    python recipes/gec/gather.py --repositories FOLDER --output FOLDER [--names NAME...] [--exclude FILE...]

FOLDER holds a clone of each repository under its own name; `--clone` prints the commands that make them.
Files are read at the commit of the table, which need not be checked out. Each source gives NAME.txt: its
sentences of clean prose, tokenised, one a line, none twice, and none of an excluded file or of
build_corpora.py's other corpora.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from string import ascii_lowercase
from xml.etree import ElementTree

from build_corpora import clean, read

from nartk.data.gec.lexicon import VERBS, lexicon, wrong_words
from nartk.data.paragraphs import sentence_spans
from nartk.data.text import corpus_names, read_corpus

Sources = dict[str, list[dict[str, str]]]
COMMON = 100  # times that a word occurs at least of which another may be a misspelling
RARE = 3  # times that half of a word occurs at most
TABLE = Path(__file__).with_name("gather.json")
_BROKEN = re.compile(
    r'\( \)|, [,.;)]|\. \.|\( [,;]|[\[\]]|" "|\.\.|(^| )[a-zA-Z] [.?!]$|[^\x00-\x7f]\S* [?!.] \S'
)
_UNSAID = "\\"  # stands for what has no words, such as a formula: no sentence with it is prose
_BLOCKS = """
    figure table equation note exercise problem solution example list section media quote
"""
BLOCKS = frozenset(_BLOCKS.split())


def blobs(repository: Path, commit: str, pattern: str) -> Iterator[bytes]:
    """Contents of the files of a commit whose paths match, in the order of their paths."""
    git = ("git", "-C", str(repository))
    names = [*git, "ls-tree", "-r", "-z", "--name-only", commit]
    listed = subprocess.run(names, capture_output=True, check=True)
    for path in listed.stdout.decode().split("\0"):
        if path and re.fullmatch(pattern, path):
            yield subprocess.run([*git, "show", f"{commit}:{path}"], capture_output=True, check=True).stdout


def decoded(raw: bytes) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")


def split(paragraphs: Iterable[str]) -> Iterator[str]:
    for paragraph in paragraphs:
        line = " ".join(paragraph.split())
        for start, stop in sentence_spans(line):
            yield line[start:stop]


def lines(raw: bytes) -> Iterator[str]:
    """A sentence a line."""
    return iter(decoded(raw).splitlines())


def prose(raw: bytes) -> Iterator[str]:
    """A paragraph a line."""
    return split(decoded(raw).splitlines())


def archive(raw: bytes) -> Iterator[str]:
    """Texts in a zip file, a paragraph a line."""
    with zipfile.ZipFile(io.BytesIO(raw)) as files:
        for name in files.namelist():
            if name.endswith(".txt"):
                yield from prose(files.read(name))


def tatoeba(raw: bytes) -> Iterator[str]:
    """Pairs in a zip file, English first."""
    with zipfile.ZipFile(io.BytesIO(raw)) as files:
        for name in files.namelist():
            if re.fullmatch(r"(?:\w+/)*[a-z]{3}\.txt", name):
                yield from (line.split("\t")[0] for line in files.read(name).decode().splitlines())


def markdown(raw: bytes) -> Iterator[str]:
    """Paragraphs of Markdown without its marks; headings, lists of links, tables and code are left out."""
    text = re.sub(r"\A---\n.*?\n---\n", "", decoded(raw), flags=re.DOTALL)
    text = re.sub(r"```.*?```|<!--.*?-->|\{%.*?%\}|<[^>]+>", " ", text, flags=re.DOTALL)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|\[\^[^\]]*\]:?", " ", text)
    text = re.sub(r"\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", text)
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*+>]|\d+\.)\s)", text):
        body = re.sub(r"^\s*(?:[-*+>]|\d+\.)\s+", "", paragraph)
        if not re.match(r"\s*#|.*\n\s*[-=]{3,}\s*$", body) and "|" not in body:
            yield from split([re.sub(r"\*\*?|(?<!\w)_+|_+(?!\w)", "", body)])


def textbook(raw: bytes) -> Iterator[str]:
    """Paragraphs of CNXML, the form of OpenStax's books."""
    content = ElementTree.fromstring(raw).find("{http://cnx.rice.edu/cnxml}content")
    paragraphs: list[str] = []

    def walk(node: ElementTree.Element, own: list[str] | None) -> None:
        tag = node.tag.rpartition("}")[2]
        if tag in ("footnote", "title", "label"):
            pass
        elif tag in ("para", "item", "caption", "entry"):
            inner = [node.text or ""]
            for child in node:
                walk(child, inner)
            paragraphs.append("".join(inner))
        else:
            is_block = own is None or tag in BLOCKS
            has_words = bool("".join(node.itertext()).strip()) and "MathML" not in node.tag
            if own is not None and (tag in BLOCKS or not has_words):
                own.append(" " if tag in ("newline", "space") else _UNSAID)
            elif own is not None:
                own.append(node.text or "")
            if "MathML" not in node.tag:
                for child in node:
                    walk(child, None if is_block else own)
        if own is not None:
            own.append(node.tail or "")

    if content is not None:
        walk(content, None)
    return split(paragraphs)


READERS: dict[str, Callable[[bytes], Iterator[str]]] = {
    reader.__name__: reader for reader in (lines, prose, archive, tatoeba, markdown, textbook)
}


def key(sentence: str) -> str:
    """Letters and digits of a sentence: what two of them share that differ in spacing and case alone."""
    return re.sub(r"[\W_]", "", sentence.lower())


def is_sound(sentence: str) -> bool:
    """True unless it looks cut short, is a heading, has no verb or holds a known misspelling."""
    tokens = sentence.split(" ")
    words = [token for token in tokens if token.isalpha()]
    capitals = sum(word[0].isupper() for word in words)
    tags = lexicon().tags
    return (
        _BROKEN.search(sentence) is None
        and len(words) > 2
        and capitals <= max(2, 0.6 * len(words))
        and any(tag in VERBS or tag == "MD" for word in tokens for tag in tags.get(word.lower(), ()))
        and wrong_words().isdisjoint(words)
        and (tokens[-1] != '"' or tokens[-2] in (".", "?", "!", ","))
    )


def edited(word: str) -> Iterator[str]:
    """Every word that one letter left out, put in, replaced or swapped makes of a word, but for its end."""
    for at in range(len(word) - 1):
        left, right = word[:at], word[at:]
        yield left + right[1:]
        yield left + right[1] + right[0] + right[2:]
        for letter in ascii_lowercase:
            yield left + letter + right[1:]
            yield left + letter + right


def doubtful(counts: Counter[str]) -> frozenset[str]:
    """Words that occur once and that one slip would make of a word that is common: mostly misspellings."""
    common = {word for word, count in counts.items() if count >= COMMON}
    return frozenset(
        word
        for word, count in counts.items()
        if count == 1 and len(word) > 4 and word.islower() and word.isascii() and word.isalpha()
        if any(other in common and other + "s" != word and other != word + "s" for other in edited(word))
    )


def is_parted(tokens: list[str], counts: Counter[str]) -> bool:
    """True if two neighbours, one of them rare, are the halves of a common word."""
    return any(
        min(counts[left], counts[right]) <= RARE and counts[left + right] >= COMMON and left.isalpha()
        for left, right in itertools.pairwise(tokens)
    )


def drop_doubtful(texts: dict[str, list[str]]) -> None:
    """Leaves out the sentences with a word that looks misspelt beside the words of all texts."""
    counts = Counter(token for sentences in texts.values() for line in sentences for token in line.split(" "))
    wrong = doubtful(counts)
    for name, sentences in texts.items():
        split_up = ((line, line.split(" ")) for line in sentences)
        texts[name] = [
            line for line, tokens in split_up if wrong.isdisjoint(tokens) and not is_parted(tokens, counts)
        ]


def excluded(paths: Iterable[Path]) -> set[str]:
    """Keys of every line of text, every sentence of a treebank and both sides of the edits of M2 files."""
    return {key(line.removeprefix("S ").removeprefix("# text = ")) for path in paths for line in read(path)}


def gather(sources: Sources, folder: Path, seen: set[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each source's name and sentences; adds their keys to `seen`."""
    for name, parts in sources.items():
        kept = []
        for part in parts:
            reader = READERS[part["reader"]]
            clone = folder / part["repository"].partition("/")[2]
            for raw in blobs(clone, part["commit"], part["paths"]):
                for sentence in clean(reader(raw)):
                    mark = key(sentence)
                    if mark not in seen and is_sound(sentence):
                        seen.add(mark)
                        kept.append(sentence)
        yield name, kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repositories", type=Path, help="folder of the clones")
    parser.add_argument("--output", type=Path, help="folder to write")
    parser.add_argument("--names", nargs="+", help="sources of gather.json (default: all)")
    parser.add_argument("--exclude", type=Path, nargs="+", default=[], help="files of sentences to leave out")
    parser.add_argument("--clone", action="store_true", help="print the commands that make the clones")
    args = parser.parse_args()
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    sources = {name: table[name] for name in args.names or table}
    if args.clone:
        names = dict.fromkeys(part["repository"] for parts in sources.values() for part in parts)
        print("\n".join(f"git clone https://github.com/{name} {name.partition('/')[2]}" for name in names))
        return
    args.output.mkdir(parents=True, exist_ok=True)
    shipped = (tokens for name in corpus_names() if name not in table for tokens in read_corpus(name))
    seen = excluded(args.exclude) | {key("".join(tokens)) for tokens in shipped}
    texts = {}
    for name, sentences in gather(sources, args.repositories, seen):
        print(f"{name}: {len(sentences)} sentences", file=sys.stderr, flush=True)
        texts[name] = sentences
    drop_doubtful(texts)
    for name, sentences in texts.items():
        (args.output / f"{name}.txt").write_text("".join(f"{line}\n" for line in sentences), encoding="utf-8")
        size = sum(line.count(" ") + 1 for line in sentences)
        print(f"{name}.txt: {len(sentences)} sentences, {size} tokens", file=sys.stderr)


if __name__ == "__main__":
    main()
