"""Trains the small spaCy pipeline that ERRANT needs, from the UD English Web Treebank.

ERRANT reads four things of a token: the Penn tag, the universal part of speech, the lemma and the
dependency label. Its rules know the labels of spaCy's English models (ClearNLP style), so the UD trees
are relabelled first, and a copula becomes the head of its clause as it is there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import spacy
from build_corpora import read
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config
from spacy.vocab import Vocab
from treebank import sentences

CONFIG = Path(__file__).with_name("spacy.cfg")
DEFAULT_OUTPUT = Path("~/.cache/nartk/spacy-ewt")
HELD_OUT_EVERY = 12  # sentences: one in so many is held out where no development file is given
QUICK_SENTENCES = 1500
QUICK_STEPS = 200
META = {
    "version": "1.0.0",
    "description": "Small English tagger, lemmatiser and parser for ERRANT, trained on UD English EWT",
    "license": "CC BY-SA 4.0",
    "sources": [{"name": "UD English EWT", "url": "https://github.com/UniversalDependencies/UD_English-EWT"}],
}

# UD relation -> label of spaCy's English models. Relations that are not listed keep their name.
LABELS = {
    "root": "ROOT",
    "obj": "dobj",
    "iobj": "dative",
    "nsubj:pass": "nsubjpass",
    "nsubj:outer": "nsubj",
    "csubj:pass": "csubjpass",
    "csubj:outer": "csubj",
    "aux:pass": "auxpass",
    "cop": "aux",
    "compound:prt": "prt",
    "nmod:poss": "poss",
    "nmod:desc": "compound",
    "nmod:unmarked": "npadvmod",
    "obl:unmarked": "npadvmod",
    "obl:agent": "pobj",
    "obl": "pobj",
    "nmod": "pobj",
    "acl:relcl": "relcl",
    "advcl:relcl": "relcl",
    "det:predet": "predet",
    "cc:preconj": "preconj",
    "flat": "compound",
    "fixed": "prep",
    "discourse": "intj",
    "vocative": "npadvmod",
    "goeswith": "dep",
    "reparandum": "dep",
    "orphan": "dep",
    "list": "dep",
    "dislocated": "dep",
}
# What hangs on the predicate in UD and on the copula in spaCy's models.
CLAUSE_RELATIONS = ("nsubj", "csubj", "expl", "aux", "mark", "advcl", "parataxis", "discourse", "punct", "cc")


@dataclass
class Token:
    """One word of a treebank sentence; `head` counts from 0 and is its own index at the root."""

    form: str
    lemma: str
    pos: str
    tag: str
    head: int
    relation: str
    label: str = ""


def read_conllu(path: Path) -> Iterator[list[Token]]:
    """Yields the sentences of a CoNLL-U file, plain or `.xz`, without its ranges and empty nodes."""
    for each in sentences(read(path)):
        sentence: list[Token] = []
        for number, form, lemma, pos, tag, _, head, relation, *_ in each.rows:
            if number.isdigit():
                parent = int(head) - 1 if head != "0" else len(sentence)
                sentence.append(Token(form, lemma, pos, tag, parent, relation))
        yield sentence


def promote_copulas(sentence: list[Token]) -> None:
    """Makes each copula the head of its clause and its predicate an `acomp` or `attr` of it."""
    for index, copula in enumerate(sentence):
        if copula.relation != "cop":
            continue
        old = copula.head
        predicate = sentence[old]
        is_root = predicate.head == old
        copula.head, copula.relation = (index if is_root else predicate.head), predicate.relation
        predicate.head, predicate.relation = index, "cop-predicate"
        predicate.label = "acomp" if predicate.pos in ("ADJ", "VERB") else "attr"
        for other, token in enumerate(sentence):
            moves = token.relation.split(":")[0] in CLAUSE_RELATIONS or token.form.lower() in ("not", "n't")
            if token.head == old and other != old and moves:
                token.head = index


def label_of(token: Token) -> str:
    """The label that spaCy's English models would give to a token's relation."""
    if token.label:
        return token.label
    if token.relation == "mark" and token.tag == "TO":
        return "aux"
    if token.relation == "case" and token.tag != "POS":
        return "prep"
    if token.relation == "advmod" and token.form.lower() in ("not", "n't"):
        return "neg"
    if token.relation == "xcomp" and token.pos == "ADJ":
        return "acomp"
    return LABELS.get(token.relation, token.relation)


def to_doc(sentence: list[Token], vocab: Vocab) -> Doc:
    """A treebank sentence as a spaCy document, relabelled for ERRANT."""
    promote_copulas(sentence)
    return Doc(
        vocab,
        words=[token.form for token in sentence],
        tags=[token.tag for token in sentence],
        pos=[token.pos for token in sentence],
        lemmas=[token.form if token.lemma == "_" else token.lemma for token in sentence],
        heads=[token.head for token in sentence],
        deps=[label_of(token) for token in sentence],
    )


def find_treebank(source: Path, dev: Path | None) -> tuple[list[list[Token]], list[list[Token]]]:
    """The training and development sentences of a treebank folder, or of one or two files.

    Without a development file one sentence in `HELD_OUT_EVERY` is held out of the training file.
    """
    if source.is_dir():
        names = {part: sorted(source.glob(f"*-{part}.conllu*")) for part in ("train", "dev")}
        missing = [part for part, found in names.items() if not found]
        if missing:
            sys.exit(f"{source}: no *-{missing[0]}.conllu or *-{missing[0]}.conllu.xz there")
        return list(read_conllu(names["train"][0])), list(read_conllu(names["dev"][0]))
    if not source.is_file():
        sys.exit(f"{source}: no such file; give the folder of UD English EWT, or its train file")
    sentences = list(read_conllu(source))
    if dev is not None:
        return sentences, list(read_conllu(dev))
    held_out = sentences[::HELD_OUT_EVERY]
    return [s for index, s in enumerate(sentences) if index % HELD_OUT_EVERY != 0], held_out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = os.environ.get("NARTK_UD_EWT")
    parser.add_argument(
        "treebank",
        type=Path,
        nargs="?",
        default=Path(default) if default is not None else None,
        help="folder of UD English EWT, or its train file (.conllu or .conllu.xz); default: $NARTK_UD_EWT",
    )
    parser.add_argument("--dev", type=Path, help="development file, where TREEBANK is a train file")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="a minute's worth, to try the script only")
    args = parser.parse_args()
    if args.treebank is None:
        parser.error("name the treebank: its folder, its train file, or NARTK_UD_EWT")

    training, development = find_treebank(args.treebank, args.dev)
    settings: dict[str, object] = {}
    if args.quick:
        training, development = training[:QUICK_SENTENCES], development[: QUICK_SENTENCES // 10]
        settings = {"training.max_steps": QUICK_STEPS, "training.eval_frequency": QUICK_STEPS // 2}

    output = args.output.expanduser()
    output.parent.mkdir(parents=True, exist_ok=True)
    vocab = spacy.blank("en").vocab
    with tempfile.TemporaryDirectory(dir=output.parent) as work:
        for name, sentences in (("train", training), ("dev", development)):
            docs = [to_doc(sentence, vocab) for sentence in sentences]
            DocBin(docs=docs).to_disk(Path(work, f"{name}.spacy"))
            settings[f"paths.{name}"] = str(Path(work, f"{name}.spacy"))
        nlp = init_nlp(load_config(CONFIG, overrides=settings))
        # The signature of `nartk-score errant` carries name and version.
        nlp.meta.update(META, name="ewt_quick" if args.quick else "ewt")
        train(nlp, Path(work))
        best = spacy.load(Path(work, "model-best"))
        scores = best.evaluate(list(Corpus(Path(work, "dev.spacy"))(best)))
        for name in ("tag_acc", "pos_acc", "lemma_acc", "dep_uas", "dep_las"):
            print(f"{name}\t{100 * scores[name]:.2f}")
        if output.exists():
            shutil.rmtree(output)
        Path(work, "model-best").rename(output)
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
