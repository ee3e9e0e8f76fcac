"""Outputs of another kind than text: an output processor from outside makes them, all else carries them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from support import tiny
from support.commands import main_of

import nartk
from nartk import processors
from nartk.files import Folder, JsonObject
from nartk.processors import register_processor
from nartk.processors.text import WhitespaceTokenizer, load_output
from nartk.protocols.hypothesis import Hypothesis
from nartk.protocols.outputs import Output
from nartk.protocols.paragraph import Paragraph
from nartk.serving import Session
from nartk.vocab import SpecialIds, Vocab

WORDS = tiny.WORDS.split()
LINES = ["she go to school", "", "the big old cat sees it ."]
NAME = "samples-of-a-test"


@dataclass(frozen=True, eq=False)
class Samples:
    """Implements `Output`: as text base64 of its bytes, in JSON its samples [N] i16."""

    samples: npt.NDArray[np.int16]

    def __str__(self) -> str:
        return base64.b64encode(self.samples.tobytes()).decode()

    def fields(self) -> JsonObject:
        return {"samples": self.samples.tolist()}


class Voice:
    """Implements `OutputProcessor`: each word is four samples, its id times 1, 2, 3 and 4."""

    def __init__(self, text: WhitespaceTokenizer) -> None:
        self._text = text

    @property
    def vocab(self) -> Vocab:
        return self._text.vocab

    def encode(self, text: str) -> list[int]:
        return self._text.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._text.decode(ids)

    def write(self, hypothesis: Hypothesis) -> Samples:
        return Samples(spoken(hypothesis.tokens, self.vocab.eos))

    def join(self, outputs: Sequence[Output], paragraph: Paragraph) -> Output:
        (output,) = outputs
        return output


def spoken(tokens: Sequence[int], eos: int) -> npt.NDArray[np.int16]:
    return np.array([id * time for id in tokens if id != eos for time in (1, 2, 3, 4)], np.int16)


def samples_of(hypothesis: Hypothesis) -> list[int]:
    assert isinstance(hypothesis.output, Samples)
    return hypothesis.output.samples.tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model whose config.json names the processor above."""
    made = tiny.random_model(tmp_path_factory.mktemp("voice"), words=WORDS)
    config = json.loads((made / "config.json").read_text())
    config["output"]["name"] = NAME
    (made / "config.json").write_text(json.dumps(config))

    @register_processor("output", NAME)
    def load(folder: Folder, settings: JsonObject, specials: SpecialIds) -> Voice:
        found = load_output(folder, settings, specials)
        assert isinstance(found, WhitespaceTokenizer)
        return Voice(found)

    yield made
    del processors._LOADERS["output", NAME]


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[list[int]]:
    """The samples of each line, of the tokens that the model outputs."""
    model = nartk.load(folder)
    return [spoken(each.tokens, model.checkpoint.target_vocab.eos).tolist() for each in model.decode(LINES)]


def test_text_as_an_output(folder: Path) -> None:
    text = WhitespaceTokenizer(nartk.load(folder).checkpoint.target_vocab)
    found = text.write(Hypothesis(tuple(text.encode("she go"))))
    assert (found, found.fields()) == ("she go", {"text": "she go"})


def test_hypotheses_have_them(folder: Path, wanted: list[list[int]]) -> None:
    model = nartk.load(folder)
    for found in (model.decode(LINES), [*model.iterate(LINES, window=1)]):
        assert [samples_of(found[i]) for i in (0, 2)] == [wanted[0], wanted[2]]
        assert found[1].tokens == ()
        assert found[1].text == ""
    best = model.decode(LINES[0], "beam", nbest=2)
    eos = model.checkpoint.target_vocab.eos
    for each in (best, *best.alternatives):
        assert samples_of(each) == spoken(each.tokens, eos).tolist()
        assert np.frombuffer(base64.b64decode(each.text), np.int16).tolist() == samples_of(each)


def test_a_session_has_them(folder: Path, wanted: list[list[int]]) -> None:
    with Session(nartk.load(folder)) as session:
        tickets = [session.submit(line) for line in LINES]
        assert [samples_of(tickets[i].result()) for i in (0, 2)] == [wanted[0], wanted[2]]
        assert samples_of(tickets[0].partial()) == wanted[0]


def test_the_command_writes_them(
    folder: Path, wanted: list[list[int]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("".join(f"{line}\n" for line in LINES))
    command = f"decode {folder} {source} --strategy greedy --quiet"

    code, out, _ = main_of(command, capfd)
    assert code == 0
    lines = [np.frombuffer(base64.b64decode(line), np.int16).tolist() for line in out.splitlines()]
    assert lines == [wanted[0], [], wanted[2]]

    code, out, _ = main_of(f"{command} --output-format jsonl", capfd)
    found = [json.loads(line)["hypotheses"][0] for line in out.splitlines()]
    assert [each.get("samples") for each in found] == [wanted[0], None, wanted[2]]
    assert "text" not in found[0]

    code, out, _ = main_of(f"decode {folder} {source} --strategy beam --nbest 2 --quiet", capfd)
    rows = [line.split("\t") for line in out.splitlines()]
    assert [number for number, _, _ in rows] == ["1", "1", "2", "3", "3"]
    assert all(len(base64.b64decode(output)) % 8 == 0 for _, _, output in rows)
