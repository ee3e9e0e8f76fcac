"""Messages name options as keywords in Python and as flags on the command line, by one function."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from support import tiny

import nartk
from nartk import engine
from nartk.adapters.fairseq.checkpoint import FairseqCheckpoint
from nartk.adapters.fairseq.converting import find_dictionary
from nartk.bench import engines, report, specs
from nartk.cli.decode import main as decode
from nartk.data.readers import Fields, read_records
from nartk.decoders.drafters.parallel import declared_for
from nartk.decoders.drafters.small_model import small_model
from nartk.decoders.rerank import require_reranker
from nartk.decoders.search.beam_drafts import make_beam_drafter
from nartk.errors import NartkError, named, naming_flags
from nartk.metrics.errant import Errant
from nartk.metrics.metric import MetricFiles
from nartk.metrics.result import check_corpora
from nartk.registry import METRICS, make_strategy
from nartk.serving.distillation import Filters
from nartk.serving.replicas import require_replicable
from nartk.vocab import Vocab

ROOT = Path(__file__).resolve().parents[1]
WORDS = tiny.WORDS.split()
NOTHING: Any = object()  # a model that speaks no protocol


def test_names_and_values() -> None:
    def written() -> list[str]:
        return [
            named("batch_size"),
            named("dtype", "int8"),
            named("beta", 2),
            named("truncate", True),
        ]

    assert written() == ["batch_size", "dtype='int8'", "beta=2", "truncate=True"]
    with naming_flags():
        assert written() == ["--batch-size", "--dtype int8", "--beta 2", "--truncate"]
    assert written()[0] == "batch_size"


def make(name: str, **options: Any) -> Callable[..., Any]:
    return lambda folder: make_strategy(name, options)


def constrained(**options: Any) -> Callable[..., Any]:
    return lambda folder: make_strategy("greedy", options).constraints(Vocab.from_words(WORDS))


def load(model: str = "model", **options: Any) -> Callable[..., Any]:
    return lambda folder: nartk.load(folder / model, **options)


def read(line: bytes, form: str) -> Callable[..., Any]:
    def raises(folder: Path) -> None:
        for record in read_records(BytesIO(line), "in", form, Fields()):
            if record.error is not None:
                raise record.error

    return raises


# What is wrong, and the message with "[keyword|flag]" where the two differ.
CASES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "batch size": (
        lambda folder: nartk.load(folder / "model").decode(["she"], batch_size=0),
        "[batch_size|--batch-size] is 0. Fix: give at least 1.",
    ),
    "most tokens": (
        lambda folder: nartk.load(folder / "model").decode(["she"], max_tokens=0),
        "[max_tokens|--max-tokens] is 0. Fix: give at least 1.",
    ),
    "window": (
        lambda folder: nartk.load(folder / "model").iterate(["she"], window=0),
        "[window|--window] is 0. Fix: give at least 1.",
    ),
    "too long": (
        lambda folder: nartk.load(folder / "model").encode("she " * 99),
        "99 tokens > 63. Fix: split the line, or use [truncate=True|--truncate].",
    ),
    "type": (load(dtype="fp64"), "[dtype|--dtype] is 'fp64'. Fix: choose from fp32, bf16, fp16, int8."),
    "type of a GPU": (load(dtype="fp16"), "[dtype='fp16'|--dtype fp16] needs a GPU. Fix: "),
    "threads": (load(threads=0), "[threads|--threads] is 0. Fix: give 1 to 1024."),
    "replicas": (load(replicas=0), "[replicas|--replicas] is 0. Fix: give 1 to 1024."),
    "threads of replicas": (
        load(replicas=2, threads=3),
        "[threads=3|--threads 3] with [replicas=2|--replicas 2], each of which has one thread.",
    ),
    "replicas in torch": (
        lambda folder: require_replicable(make_strategy("greedy", {}), NOTHING),
        "[replicas|--replicas] with strategy 'greedy', of which torch serves a model here. Fix: leave "
        "[replicas|--replicas] out, or choose greedy or iad.",
    ),
    "device": (load(device="gpu"), "[device|--device] is 'gpu'. Fix: choose cpu, cuda or cuda:N."),
    "no GPU": (
        load(device="cuda"),
        "[device|--device] is 'cuda', but torch sees no GPU here. Fix: use [device='cpu'|--device cpu].",
    ),
    "no such option": (
        make("verify", max_drafts=3),
        "strategy 'verify' has no option [max_drafts|--max-drafts]. Fix: did you mean "
        "[max_draft|--max-draft]? it knows [max_len|--max-len], ",
    ),
    "type of an option": (
        make("beam", beam_size="5"),
        "[beam_size|--beam-size] of 'beam' is '5', not of type int",
    ),
    "choices": (make("iad", anchor="x"), "[anchor|--anchor] of 'iad' is 'x'. Fix: choose from "),
    "above a bound": (
        lambda folder: METRICS.make("errant", {"beta": 0.0}),
        "[beta|--beta] of 'errant' is 0.0. Fix: give a value above 0.0.",
    ),
    "below a bound": (
        make("greedy", max_len=0),
        "[max_len|--max-len] of 'greedy' is 0. Fix: give a value at least 1.",
    ),
    "n-best of beam search": (
        make("beam", nbest=6),
        "[nbest|--nbest] is 6, above [beam_size=5|--beam-size 5]. Fix: raise [beam_size|--beam-size].",
    ),
    "n-best of CTC": (
        make("ctc-beam", nbest=9, beam_size=4),
        "[nbest|--nbest] is 9, above [beam_size=4|--beam-size 4]. Fix: raise [beam_size|--beam-size].",
    ),
    "n-best of lengths": (
        make("glat", nbest=3, length_beam=2),
        "[nbest|--nbest] is 3, above [length_beam=2|--length-beam 2]. Fix: raise "
        "[length_beam|--length-beam].",
    ),
    "drafts of beam search": (
        make("beam", max_draft=7),
        "[max_draft|--max-draft] is 7, but nothing is drafted. Fix: choose what with [draft|--draft]: ",
    ),
    "drafts of samples": (
        make("sample", max_draft=3),
        "[max_draft|--max-draft] is 3, but nothing is drafted. Fix: choose what with [draft|--draft]: ",
    ),
    "no such draft": (make("sample", draft="x"), "[draft|--draft] is 'x'. Fix: choose from none, "),
    "sources that cannot be copied": (
        lambda folder: make_beam_drafter(NOTHING, "source", 3),
        "[draft='source'|--draft source] needs a CopiesSource, this model is none. Fix: leave it out.",
    ),
    "drafts of samples that cannot be copied": (
        lambda folder: make_strategy("sample", {"draft": "ngram"}).make_drafter(NOTHING),
        "[draft='ngram'|--draft ngram] needs a ",
    ),
    "filters of pairs": (
        make("dag-sample", top_k=2),
        "[temperature|--temperature], [top_k|--top-k] and [top_p|--top-p] are of words, and "
        "[decode_top_cand_n=5|--decode-top-cand-n 5] draws pairs of edge and word. Fix: use "
        "[decode_top_cand_n=0|--decode-top-cand-n 0], or [link_temperature|--link-temperature] and "
        "[decode_top_p|--decode-top-p].",
    ),
    "filters of words": (
        make("dag-sample", decode_top_cand_n=0, decode_beta=2.0),
        "[decode_beta|--decode-beta] and n-grams that may not be repeated need pairs, "
        "[decode_top_cand_n|--decode-top-cand-n] is 0. Fix: use "
        "[decode_top_cand_n=5|--decode-top-cand-n 5].",
    ),
    "tau": (
        make("gad", tau=2.0),
        "[tau|--tau] is 2.0, but with [beta=1|--beta 1] only the best word is accepted. Fix: raise "
        "[beta|--beta].",
    ),
    "a tree of the nearly best": (
        make("gad", beta=2, tree=4),
        "[tree|--tree] is 4, but with [beta=2|--beta 2] only the best draft may be accepted.",
    ),
    "constraints of the nearly best": (
        make("gad", beta=2, min_len=4),
        "[min_len|--min-len] is 4, but with [beta=2|--beta 2] other words than the best are accepted.",
    ),
    "no drafter": (
        lambda folder: make_strategy("gad", {}).check_auxiliary(),
        "has no model to draft with. Fix: name one with [drafter|--drafter], of one of these",
    ),
    "an autoregressive drafter": (
        lambda folder: nartk.load(folder / "model").strategy("gad", {"drafter": str(folder / "model")}),
        "[drafter|--drafter] names an autoregressive model, which drafts one token at a time. Fix: use "
        "[strategy='speculative'|--strategy speculative], or name a non-autoregressive model.",
    ),
    "no small model": (
        lambda folder: small_model({}, "bild"),
        "and [drafter|--drafter] names none. Fix: name a small autoregressive model with "
        "[drafter|--drafter].",
    ),
    "another small model": (
        lambda folder: small_model({"drafter": NOTHING}, "bild"),
        "[drafter|--drafter] needs a PassScorer, the model it names is none. Fix: name an autoregressive "
        "model, or draft with this one by [strategy='gad'|--strategy gad].",
    ),
    "a model that cannot draft": (
        lambda folder: declared_for(NOTHING),
        "[drafter|--drafter] names a model that cannot draft.",
    ),
    "a model that cannot rank": (
        lambda folder: require_reranker(NOTHING, "rerank"),
        "[rerank|--rerank] needs a PassScorer, the model it names is none.",
    ),
    "too cold": (
        make("speculative", temperature=1e-5),
        "[temperature|--temperature] of 'speculative' is 1e-05. Fix: give 0 for greedy search, or ",
    ),
    "filters of nothing": (
        make("speculative", top_k=3),
        "[top_k|--top-k] is 3, but at [temperature=0|--temperature 0] nothing is drawn. Fix: give a "
        "[temperature|--temperature] above 0, or leave it out.",
    ),
    "constraints of draws": (
        make("speculative", temperature=0.5, min_len=4),
        "[min_len|--min-len] is 4, but at [temperature=0.5|--temperature 0.5] drafts are accepted by",
    ),
    "drafters": (make("union", drafters="x"), "[drafters|--drafters] is 'x'. Fix: name some of "),
    "shortest": (
        constrained(min_len=9, max_len=8),
        "[min_len|--min-len] is 9, above [max_len=8|--max-len 8]. Fix: raise [max_len|--max-len].",
    ),
    "an unknown word": (
        constrained(suppress="w99"),
        "[suppress|--suppress] names 'w99', which is not in the model's dictionary. Fix: ",
    ),
    "no word": (
        constrained(suppress="she /  / he"),
        "[suppress|--suppress] has nothing between two /. Fix: ",
    ),
    "eos": (
        constrained(suppress="</s>"),
        "[suppress|--suppress] names eos, without which no output ends. Fix: use [min_len|--min-len].",
    ),
    "what the pieces cannot spell": (
        lambda folder: nartk.load(folder / "pieces").strategy("greedy", {"suppress": "\u2603"}),
        "[suppress|--suppress] names '\u2603', of which the model's dictionary has only ",
    ),
    "limits of distillation": (
        lambda folder: Filters(drop_longer=-1),
        "[drop_longer|--drop-longer] is -1. Fix: give 0 or more.",
    ),
    "files of errant": (
        lambda folder: Errant().scorer(MetricFiles()),
        "errant takes [gold|--gold], or [source|--source] and [ref|--ref]. Fix: give one of the two.",
    ),
    "half the files of errant": (
        lambda folder: Errant().scorer(MetricFiles(source="a")),
        "[source|--source] and [ref|--ref] belong together. Fix: give both, or [gold|--gold].",
    ),
    "no reference": (
        lambda folder: check_corpora("bleu", [], hypothesis=[]),
        "bleu needs a reference. Fix: give one or more files with [ref|--ref].",
    ),
    "no dictionary": (
        lambda folder: find_dictionary(FairseqCheckpoint(Path("a.pt"), {}, {}, {}), None, "source"),
        "is not found. Fix: give it with [source_dict|--source-dict].",
    ),
    "format": (
        read(b"X a\n", "m2"),
        "Fix: give a file in M2 format, or name another [format|--format].",
    ),
    "key": (
        read(b'{"a": "b"}\n', "jsonl"),
        "no key 'source' or 'text'. Fix: add it, or name the key that holds it with [key|--key].",
    ),
    "suffix of a picture": (
        lambda folder: report.require_plot(Path("a.jpg")),
        "[plot|--plot] is 'a.jpg'. Fix: end it with .png, .svg or .pdf.",
    ),
    "threads of a benchmark": (
        lambda folder: specs.require_threads(3, 2),
        "3 replicas have 3 threads, more than [threads=2|--threads 2]",
    ),
    "program": (lambda folder: engines.program("x", "fp32"), "[peer|--peer] is 'x'. Fix: "),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    tiny.random_model(folder / "model", words=WORDS)
    tiny.random_model(folder / "pieces")
    return folder


@pytest.mark.parametrize("case", CASES)
def test_an_error_names_keywords_in_python_and_flags_in_commands(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    wrong, message = CASES[case]
    with pytest.raises(NartkError) as in_python:
        wrong(folder)
    with naming_flags(), pytest.raises(NartkError) as in_a_command:
        wrong(folder)
    assert re.sub(r"\[([^|\]]*)\|[^]]*\]", r"\1", message) in str(in_python.value)
    assert re.sub(r"\[[^|\]]*\|([^]]*)\]", r"\1", message) in str(in_a_command.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"replicas": 2},
            "[replicas=2|--replicas 2] needs the engine, which does not serve fp32 on cpu here.",
        ),
        (
            {"dtype": "int8"},
            "[dtype='int8'|--dtype int8] needs the engine, which does not serve a transformer on cpu",
        ),
    ],
)
def test_without_the_engine(
    options: dict[str, Any], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASES, "one", (load(**options), message))
    monkeypatch.setenv(engine.LEFT_OUT, "1")
    test_an_error_names_keywords_in_python_and_flags_in_commands("one", folder, monkeypatch)


def test_what_threads_of_replicas_raise_names_flags_too(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.txt").write_text("she\nhe\n")
    args = [str(folder / "model"), str(folder / "in.txt"), "--replicas", "2", "--strategy", "greedy"]
    assert decode([*args, "--min-len", "9", "--max-len", "8"]) == 2
    assert "--min-len is 9, above --max-len 8. Fix: raise --max-len." in capsys.readouterr().err


def sources() -> Iterator[Path]:
    """All code but the commands and what fairseq's command line alone calls; links are not followed."""
    for top in ("nartk", "decoders", "models", "data"):
        for folder, _, names in os.walk(ROOT / top):
            if Path(folder).name not in ("cli", "tasks"):
                yield from (Path(folder, name) for name in names if name.endswith(".py"))


def flags_in_errors(code: str) -> list[str]:
    """The strings with a flag among the arguments of errors, but for those of whole commands."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and re.search(r"(Error|^requiring\w*)$", ast.unparse(node.func)):
            for part in ast.walk(node):
                text = str(part.value) if isinstance(part, ast.Constant) else ""
                if re.search(r"(?<![\w-])--[a-z]", text) and not re.search(r"nartk-\w+ |pip install", text):
                    found.append(text)
    return found


@pytest.mark.parametrize("path", [*sources()], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_error_of_the_library_writes_a_flag_itself(path: Path) -> None:
    assert flags_in_errors(path.read_text(encoding="utf-8")) == []


def test_a_flag_in_an_error_is_found() -> None:
    assert flags_in_errors("raise UsageError(f'--{x}', fix='use --dtype')") == ["use --dtype"]
