"""Builds the text that ships in data/corpora from the public data sets it comes from.

A maintainer runs this once; users need only its result. Each set keeps its licence: see
data/corpora/LICENSES.md. The shipped files differ in 39 lines from what this gives: the tokeniser then
split a lone "...".

    python recipes/gec/build_corpora.py --data FOLDER --text FOLDER --output data/corpora

The second folder is one of gather.py. Of UD EWT only the training part ships, so that the others can measure.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from treebank import Sentence, sentences

from nartk.data.text import tokenize

# Corpora of gather.py that ship, and of how many of their sentences one.
GATHERED = {
    "common_voice": 1,
    "tatoeba": 1,
    "onestopenglish": 1,
    "storyweaver": 1,
    "18f": 1,
    "state_union": 1,
    "openstax": 4,
}
LONGEST = 60  # tokens; longer sentences are lists and headings more often than prose
# Names that the Tanaka sentences hold and the other corpora may lack.
NAMES = """
    january february april june july august september october november december monday tuesday wednesday
    thursday friday saturday sunday christmas easter tom mary john jane bob alice jack ken mike nancy
    jim susan helen lucy tony george peter betty emi kumi yumi keiko taro jiro hiroshi akira yoko naomi
    cathy linda paul fred ann anne kate judy tim dick ted meg nick ben carol jean jill lisa emily masao
    kazuo takeshi makoto shakespeare smith tanaka yamada suzuki ito sato tokyo osaka kyoto nagoya kobe
    sapporo nara hokkaido kyushu shikoku yokohama fuji shinjuku ginza narita hiroshima nagasaki hawaii
    boston paris london spain greece egypt switzerland austria mozart beethoven bach einstein shinkansen
    english japanese french german chinese spanish american british sasayama nikko sendai hyogo susie
    frenchman biwa hanako naoko sachiko hashimoto ueno mayuko yoshio shinano karuizawa okayama
"""
# Words that the other corpora hold mostly inside names.
COMMON = """
    cup miss white hill sad brown university bath kindly lent liberty deaf angel sucker march rush devil
    hall navy prince queen bell gulf swift sands pearl glory miracle grand minister valley heights
    commission berry saint bean ray comics snap rod axis id seller lisp nobody supper clever earnest
    idle barber dawn undone bloom frank sir sunset mortal charmed mailbox eater smiles ah lily bud moody
    goodbye marathon hut goin ballpark subtract loon lonesome lid champagne investing messiah tomatoes
    marvel savage jolly hardy remembrance fig pier maternity o hi dignity owl knitting vogue playmate
    shivering enchanted workday bleary contempt eternity invader octopus polish nightmares curl fathom
    bellman buyer sunburn outsider waltz yo yen crouch browns don
"""


def read(path: Path) -> Iterator[str]:
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "rt", encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield line.rstrip("\r\n")


def plain(text: str) -> str:
    """Straight quotation marks and ASCII dashes, as the shipped model reads them."""
    for odd, typical in (
        ("“", '"'),
        ("”", '"'),
        ("‘", "'"),
        ("’", "'"),
        ("``", '"'),
        ("''", '"'),
        ("\u00a0", " "),
    ):
        text = text.replace(odd, typical)
    return text


def is_prose(tokens: list[str]) -> bool:
    """True if the tokens look like one clean English sentence."""
    text = " ".join(tokens)
    letters = sum(char.isalpha() for char in text)
    return (
        4 <= len(tokens) <= LONGEST
        and (text[0].isupper() or (text[0] in "\"'(" and text[2:3].isupper()))
        and tokens[-1][-1] in '.?!"'
        and letters > 0.65 * len(text)
        and sum(char.isascii() for char in text) > 0.97 * len(text)
        and text.count('"') % 2 == 0
        and text.count("(") == text.count(")")
        and re.search(r"[\\{}<>$|*_=~^]|https?:|www\.|@", text) is None
        and not (text.isupper())
    )


def wikisplit(data: Path) -> Iterator[str]:
    for part in ("tune", "validation", "test_first2500"):
        for line in read(data / f"summ/wikisplit/{part}.tsv.xz"):
            whole, parts = line.split("\t")
            yield whole
            yield from parts.split("<::::>")


def scitldr(data: Path) -> Iterator[str]:
    for part in ("train", "dev"):
        for line in read(data / f"summ/scitldr_a/{part}.jsonl.xz"):
            yield from json.loads(line)["source"]


def treebank(data: Path, part: str = "train") -> Iterator[Sentence]:
    """The sentences of a part of UD English EWT."""
    return sentences(read(data / f"ud_ewt/en_ewt-ud-{part}.conllu.xz"))


def ud_ewt(data: Path) -> Iterator[str]:
    """Sentences without marked typos, and none that dev and test have too."""
    others = {plain(each.text) for part in ("dev", "test") for each in treebank(data, part)}
    for each in treebank(data):
        if plain(each.text) not in others and not each.has_typo:
            yield each.text


def clean(lines: Iterable[str]) -> list[str]:
    """Tokenised lines of clean prose, each once, in their order."""
    kept: dict[str, None] = {}
    for line in lines:
        tokens = tokenize(plain(line))
        if tokens and is_prose(tokens):
            kept[" ".join(tokens)] = None
    return list(kept)


def casing_table(sentences: Iterable[str]) -> dict[str, str]:
    """Maps a lower-cased word to the form it mostly has inside a sentence, where that form has a capital."""
    forms: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence in sentences:
        for word in sentence.split(" ")[1:]:
            forms[word.lower()][word] += 1
    table = {}
    common = frozenset(COMMON.split())
    for lower, counts in forms.items():
        form, count = counts.most_common(1)[0]
        if (
            lower not in common
            and form != lower
            and form[0].isupper()
            and count >= 2
            and count >= 0.75 * counts.total()
        ):
            table[lower] = form
    for name in NAMES.split():
        table[name] = name.capitalize()
    table["i"] = "I"
    return table


def tanaka(data: Path, casing: dict[str, str]) -> Iterator[str]:
    """The Tanaka sentences with their lost capitals restored and `don 't` split as `do n't`."""
    for line in read(data / "mt/tanaka_enja/train.en.gz"):
        line = re.sub(r"(\w)n 't\b", r"\1 n't", plain(line))
        line = re.sub(r"\bo 'clock", "o'clock", line)
        words = [casing.get(word, word) for word in line.split()]
        starts = True
        for column, word in enumerate(words):
            if starts and word[0].isalpha():
                words[column] = word[0].upper() + word[1:]
                starts = False
            elif word in (".", "?", "!"):
                starts = True
        yield " ".join(words)


def lexicon(data: Path) -> Iterator[str]:
    """Lines `form lemma tag count` of the treebank's words, then `# tag tag count` of its tag pairs."""
    words: Counter[tuple[str, str, str]] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for each in treebank(data):
        last = "^"
        for row in each.rows:
            if not row[0].isdigit():
                continue
            tag = row[4]
            pairs[last, tag] += 1
            last = tag
            form = row[1] if tag.startswith("NNP") else row[1].lower()
            if "Typo=Yes" not in row[5] and re.fullmatch(r"[A-Za-z'-]+|[^\w\s]+", form):
                words[form, row[2] if tag.startswith("NNP") else row[2].lower(), tag] += 1
    for (form, lemma, tag), count in sorted(words.items()):
        yield f"{form} {lemma} {tag} {count}"
    for (left, right), count in sorted(pairs.items()):
        yield f"# {left} {right} {count}"


def write(path: Path, lines: Iterable[str]) -> int:
    text = "".join(f"{line}\n" for line in lines)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{path.name}: {text.count(chr(10))} lines, {path.stat().st_size} bytes", file=sys.stderr)
    return path.stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the unpacked public data sets")
    parser.add_argument("--text", type=Path, required=True, help="folder that gather.py wrote")
    parser.add_argument("--output", type=Path, required=True, help="folder to write")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    made = {
        "wikisplit": clean(wikisplit(args.data)),
        "scitldr": clean(scitldr(args.data)),
        "ud_ewt": clean(ud_ewt(args.data)),
    }
    casing = casing_table(sentence for sentences in made.values() for sentence in sentences)
    made["tanaka"] = clean(tanaka(args.data, casing))
    for name, step in GATHERED.items():
        made[name] = [*read(args.text / f"{name}.txt")][::step]
    total = sum(write(args.output / f"{name}.txt.xz", lines) for name, lines in made.items())
    codespell = read(args.data / "gec/misspellings_codespell/dictionary.txt.xz")
    total += write(args.output / "misspellings.tsv.xz", codespell)
    total += write(args.output / "lexicon.tsv.xz", lexicon(args.data))
    print(f"total: {total} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
