"""OWSM-CTC: words in front of frames, prompts and intermediate CTC, against NumPy and enumeration."""

from __future__ import annotations

import inspect
import itertools
import json
import math
import random
from argparse import Namespace
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import fairseq_host
from support.labellings import all_outputs
from support.losses import losses_of
from support.random_transformers import vocabulary
from support.scorers import OwsmCtcReference
from support.scripted import decode
from support.speech_models import EncoderTwin, random_settings, random_speech, random_speeches
from support.transformers_small import padded

import nartk
from nartk.architectures.owsm_ctc import OwsmCtcConfig
from nartk.checkpoints.saving import save_checkpoint
from nartk.decoders.ctc_greedy import CtcGreedy
from nartk.engine import available
from nartk.errors import CheckpointError, InputFormatError, PassError, UsageError, VocabMismatchError
from nartk.models.losses import Training
from nartk.processors import load_processor
from nartk.processors.audio import AudioInput
from nartk.protocols.hypothesis import Request
from nartk.protocols.parallel import FrameScorer
from nartk.protocols.passes import FeatureSource, PassScorer, Want
from nartk.serving.long_form import BufferedFrames, Buffers
from nartk.vocab import FAIRSEQ
from nartk.vocab import MASK as BLANK

PAD, EOS = 1, 2
FULL: dict[str, Any] = {
    "encoder_layers": 3,
    "intermediate_ctc": "1,2",
    "self_conditioning": True,
    "words_in_front": True,
    "prompt_layers": 2,
    "prompt_every": 2,
    "transcript_ctc": 1,
}
BESIDE: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((4, 5), (6, 7, 8)),
    ((), ()),
    ((7,), (5,)),
    ((8, 4, 4), ()),
]
LENGTHS = (50, 7, 31, 18)


class Twin(EncoderTwin):
    """With words in front of the frames, and a prompt that a Transformer encodes (Vaswani et al. 2017)."""

    def speech(self, source: FeatureSource) -> tuple[np.ndarray, list[np.ndarray]]:
        config, scale = self.config, math.sqrt(self.config.d_model)
        words = self.w["encoder_prompt.embedding.words.weight"]
        x = words[[BLANK, *source.prompt]] * scale
        half = config.d_model // 2
        rate = np.exp(np.arange(half) * -(math.log(10000) / (half - 1)))
        angle = np.arange(2, len(x) + 2)[:, None] * rate
        x = x + np.concatenate([np.sin(angle), np.cos(angle)], 1)
        for i in range(config.prompt_layers):
            at = f"encoder_prompt.layers.{i}"
            y = self.norm(x, f"{at}.self_norm")
            q, k, v = np.split(self.linear(y, f"{at}.self_attention.qkv"), 3, 1)
            size, out = q.shape[1] // config.encoder_heads, np.zeros_like(q)
            for head in range(config.encoder_heads):
                part = slice(head * size, (head + 1) * size)
                scores = np.exp(q[:, part] @ k[:, part].T / math.sqrt(size))
                out[:, part] = scores / scores.sum(1, keepdims=True) @ v[:, part]
            x = x + self.linear(out, f"{at}.self_attention.out")
            inner = self.linear(self.norm(x, f"{at}.ffn_norm"), f"{at}.ffn.up").clip(min=0)
            x = x + self.linear(inner, f"{at}.ffn.down")
        prompt = self.norm(x, "encoder_prompt.norm")
        return self.encode(source.frames, words[[*source.words]] * scale, prompt)


def sources_of(seed: int) -> list[FeatureSource]:
    rows = zip(random_speeches(seed, LENGTHS), BESIDE, strict=True)
    return [replace(source, words=words, prompt=prompt) for source, (words, prompt) in rows]


@pytest.mark.parametrize("block", ["conformer", "e-branchformer"])
def test_scores_equal_a_numpy_twin(block: str, device: torch.device) -> None:
    """Of rows with other words and prompts, or none, in one batch; a row by itself has the same."""
    model = random_speech("owsm_ctc", 3, encoder_block=block, **FULL)
    scorer = OwsmCtcReference(model, vocabulary(9), device=device)
    sources, twin = sources_of(3), Twin(model)
    memory = scorer.encode(sources)
    counts = scorer.frames(memory)
    wanted = [twin.speech(source)[1][-1] for source in sources]
    assert counts.tolist() == [len(each) for each in wanted]
    logits = torch.from_numpy(scorer.read_frames(memory, Want()).rows(range(counts.sum())))
    np.testing.assert_allclose(logits.log_softmax(1), np.concatenate(wanted), atol=2e-4)
    # Each of them matters: without its words, or its prompt, a row is another.
    plain = [replace(sources[0], words=()), replace(sources[0], prompt=())]
    for source in plain:
        other = twin.speech(source)[1][-1]
        assert np.abs(other[-3:] - wanted[0][-3:]).max() > 0.05
    for source, own in zip(sources, wanted, strict=True):
        alone = scorer.encode([source])
        logits = torch.from_numpy(scorer.read_frames(alone, Want()).rows(range(len(own))))
        np.testing.assert_allclose(logits.log_softmax(1), own, atol=2e-4)


@pytest.mark.parametrize("seed", range(3))
def test_without_words_it_is_self_conditioned_ctc(seed: int) -> None:
    settings = random_settings(random.Random(seed)) | {"intermediate_ctc": "1", "self_conditioning": True}
    model = random_speech("owsm_ctc", seed, **settings)
    scorer = OwsmCtcReference(model, vocabulary(9))
    assert isinstance(scorer, FrameScorer)
    assert not isinstance(scorer, PassScorer)
    sources = random_speeches(seed, (40, 61, 15))
    requests = [Request(i, source, 99) for i, source in enumerate(sources)]
    found = set()
    for result, source in zip(decode(CtcGreedy(), scorer, requests), sources, strict=True):
        heads = EncoderTwin(model).encode(source.frames)[1][-1]
        heads[:, [PAD, EOS]] = -math.inf
        labels = [label for label, _ in itertools.groupby(heads.argmax(1).tolist()) if label != BLANK]
        assert list(result.hypotheses[0].tokens) == [*labels, EOS]
        found.add(tuple(labels))
    assert len(found) > 1


@pytest.mark.parametrize("name", ["reference", *(["engine"] if available() else [])])
def test_frames_lie_where_their_sound_does(name: str) -> None:
    """Words in front of the sound lie where it begins, alone and in buffers."""
    model = random_speech("owsm_ctc", 3, **FULL)
    scorer: Any = OwsmCtcReference(model, vocabulary(9))
    if name == "engine":
        arrays = {key: value.numpy() for key, value in model.state_dict().items()}
        from support.scorers import OwsmCtcEngine

        scorer = OwsmCtcEngine(model.config, arrays, vocabulary(9))
        scorer = scorer.replica(lambda: False)
    sources = sources_of(3)
    memory = scorer.encode(sources)
    for source, spans in zip(sources, scorer.spans(memory), strict=True):
        sound = np.arange((len(source) - 3) // 4)
        begins = [*[0] * len(source.words), *sound]
        assert spans.tolist() == [[begin, begin + 1] for begin in begins]
    buffered = BufferedFrames(scorer, Buffers(4, 2, 2, 4))
    for one, other in zip(scorer.spans(memory), buffered.spans(buffered.encode(sources)), strict=True):
        assert one.tolist() == other.tolist()
    scorer.free(memory[:1])
    assert scorer.spans(memory[1:])[0].tolist() == scorer.spans(memory[1:2])[0].tolist()
    (again,) = scorer.spans(scorer.encode([replace(sources[0], words=())]))  # in the place of the first
    assert again[:, 0].tolist() == [*range(len(again))]


TARGETS = [[4, 5, EOS], [6, EOS], [7, 7, 4, EOS]]
TRANSCRIPTS = [[6, EOS], [PAD], [5, 4, EOS]]


def test_each_layer_learns_its_own_target() -> None:
    """The first intermediate layer the transcript, where it is known, the others the target."""
    model = random_speech("owsm_ctc", 5, words=8, **FULL).double()
    sources = [replace(s, words=(4, 5), prompt=(6,)) for s in random_speeches(5, (11, 7, 26))]
    frames, lengths = model.encoder.frames_of(sources)
    beside = {"words": torch.tensor([[4, 5]] * 3), "prompt": torch.tensor([[6]] * 3)}
    losses = losses_of(
        model,
        frames,
        lengths,
        padded(TARGETS),
        training=Training(intermediate_weight=2 / 3),
        update=0,
        transcript=padded(TRANSCRIPTS),
        **beside,
    )
    total = 0.0
    for source, target, transcript in zip(sources, TARGETS, TRANSCRIPTS, strict=True):
        first, *others = Twin(model).speech(source)[1]
        if transcript != [PAD]:
            total -= all_outputs(first, BLANK, [1, 2, 3])[tuple(transcript[:-1])]
        for head in others:
            total -= all_outputs(head, BLANK, [1, 2, 3])[tuple(target[:-1])]
    assert losses.total.item() == pytest.approx(total / 3, rel=1e-6)
    assert (int(losses.tokens), int(losses.parts["dropped"])) == (9, 0)


def test_words_that_are_not_read_are_refused() -> None:
    (source,) = random_speeches(0, [20])
    encoder = random_speech("owsm_ctc", **FULL).encoder
    for changes, message in (
        ({"words": (9,)}, "source 0 holds word 9, not between 0 and 8"),
        ({"words": (4,) * 25}, "source 0 has words of 25 tokens, more than 24"),
        ({"prompt": (4,) * 24}, "source 0 has prompt of 24 tokens, more than 23"),
    ):
        with pytest.raises(PassError, match=message):
            encoder.read([replace(source, **changes)])
    plain = random_speech("owsm_ctc", words_in_front=True).encoder
    with pytest.raises(PassError, match="source 0 has prompt of 1 tokens, more than 0"):
        plain.read([replace(source, prompt=(4,))])


def test_settings_have_bounds() -> None:
    changes: dict[str, Any]
    for changes in ({"transcript_ctc": 1}, {"prompt_every": 0}):
        with pytest.raises(UsageError, match=f"`{next(iter(changes))}`"):
            OwsmCtcConfig(**changes)


# Lines


def save(model: Any, folder: Path) -> Path:
    vocab = vocabulary(9)
    audio = {"name": "prompted_audio", "features": "stored", "bins": 16, "front": "w0 w1"}
    save_checkpoint(
        folder,
        architecture="owsm_ctc",
        settings=asdict(model.config),
        tensors=model.state_dict(),
        source_vocab=None,
        target_vocab=vocab,
        card="# Random\n",
        input={**audio, "dictionary": "dict.txt", "words": len(vocab)},
    )
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A random model, and features of which lines name some with words beside them."""
    save(random_speech("owsm_ctc", 4, **FULL), tmp_path / "model")
    np.savez(tmp_path / "all.npz", **{f"u{i}": s.frames for i, s in enumerate(random_speeches(3, LENGTHS))})
    return tmp_path


def test_a_line_says_what_is_wanted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NARTK_NO_ENGINE", "1")
    path = f"{folder}/all.npz#u0"
    loaded = nartk.load(folder / "model")
    frames = random_speeches(3, LENGTHS)[0].frames
    twin = Twin(random_speech("owsm_ctc", 4, **FULL))
    found = set()
    for line, words, prompt in (
        (path, (4, 5), ()),
        (f"{path}\tw4", (8,), ()),
        (f"{path}\tw3 w2\tw2 w4 w1", (7, 6), (6, 8, 5)),
        (f"{path}\t\tw2", (4, 5), (6,)),
    ):
        source = loaded.encode(line)
        assert (source.words, source.prompt) == (words, prompt)
        heads = twin.speech(FeatureSource(frames, 10.0, words, prompt))[1][-1]
        heads[:, [PAD, EOS]] = -math.inf
        labels = [label for label, _ in itertools.groupby(heads.argmax(1).tolist()) if label != BLANK]
        (hypothesis,) = loaded.decode([line], strategy="ctc-greedy")
        assert list(hypothesis.tokens) == [*labels, EOS]
        found.add(hypothesis.tokens)
    assert len(found) > 1


def test_all_settings_of_sound_are_read(folder: Path) -> None:
    config = json.loads((folder / "model" / "config.json").read_text())["input"]
    given = {"cmvn": "utterance", "strict": True, "shortest": 9, "padding": 3}
    assert {*given, "settings", "statistics", "fill"} == {*inspect.signature(AudioInput).parameters}
    made = load_processor("input", folder / "model", {**config, **given}, FAIRSEQ)
    assert {name: getattr(made, name) for name in given} == given
    assert (made.fill, made.filled) == (0.0, 0)  # stored features are not filled up, nor padded ones
    source = made.read(f"{folder}/all.npz#u0", longest=99)
    assert len(source) == LENGTHS[0] + 2 * 3


def test_lines_and_settings_that_name_no_words(folder: Path) -> None:
    settings = json.loads((folder / "model" / "config.json").read_text())["input"]
    made = load_processor("input", folder / "model", settings, FAIRSEQ)
    with pytest.raises(InputFormatError, match="'<de>' is no word of the model"):
        made.read(f"{folder}/all.npz#u0\t<de>", longest=99)
    with pytest.raises(CheckpointError, match="'front': '<de>' is no word"):
        load_processor("input", folder / "model", {**settings, "front": "<de>"}, FAIRSEQ)
    own = {name: settings[name] for name in ("features", "bins")}
    plain = load_processor("input", folder / "model", {**own, "name": "audio"}, FAIRSEQ)
    made.require_equal(made, "one", "the other")
    with pytest.raises(VocabMismatchError, match="one reads words beside sound, the other does not"):
        made.require_equal(plain, "one", "the other")


@pytest.mark.parametrize("kind", ["folder", "checkpoint", "other words", "data are gone"])
def test_its_encoder_begins_as_one_that_reads_no_words(kind: str, tmp_path: Path) -> None:
    """All layers are the other's, and over one dictionary the CTC head; what embeds words is as it was."""
    fairseq_host.require_fairseq()
    from nartk.tasks.core_model import _copy_encoder

    sizes = {name: FULL[name] for name in ("encoder_layers", "intermediate_ctc", "self_conditioning")}
    begun = random_speech("owsm_ctc", 3, **FULL | {"prompt_layers": 0})
    other = random_speech("owsm_ctc", 4, **sizes)
    theirs, drawn = (
        {name: weight.clone() for name, weight in model.state_dict().items()} for model in (other, begun)
    )
    path = save(other, tmp_path / "other")
    if kind in ("checkpoint", "data are gone"):
        data = path if kind == "checkpoint" else tmp_path / "nowhere"
        args = Namespace(**asdict(other.config), arch="nartk_owsm_ctc")
        cfg = {"model": args, "task": {"_name": "nartk_speech", "data": str(data)}, "checkpoint": {}}
        path = fairseq_host.save(
            tmp_path / "a.pt", args, {f"core.{name}": each for name, each in theirs.items()}, cfg=cfg
        )
    target = fairseq_host.task(9).target_dictionary
    if kind == "other words":
        target.symbols = [f"{word}x" for word in target.symbols]
    _copy_encoder(str(path), begun, None, target)
    copied = ("encoder_", "ctc.", "condition.") if kind in ("folder", "checkpoint") else ("encoder_",)
    assert {"ctc.weight", "condition.bias"} <= theirs.keys()
    for name, weight in begun.state_dict().items():
        own = name == "encoder_prompt.embedding.words.weight" or not name.startswith(copied)
        assert torch.equal(weight, drawn[name] if own else theirs[name]), name
    # Layers that read a prompt are none of the other's.
    with pytest.raises(CheckpointError, match=r"'encoder_layers\.1\.cross_norm\.weight' is missing"):
        _copy_encoder(str(path), random_speech("owsm_ctc", 3, **FULL), None, target)


def test_a_head_that_the_other_has_not_is_as_it_was_drawn(tmp_path: Path) -> None:
    """The CTC head alone is the other's where its layers read nothing of it."""
    fairseq_host.require_fairseq()
    from nartk.tasks.core_model import _copy_encoder

    plain = {"encoder_layers": 3, "prompt_layers": 0, "words_in_front": False}
    begun = random_speech("owsm_ctc", 3, **plain, intermediate_ctc="1", self_conditioning=True)
    other = random_speech("owsm_ctc", 4, **plain)
    drawn = {name: weight.clone() for name, weight in begun.state_dict().items()}
    _copy_encoder(str(save(other, tmp_path / "a")), begun, None, fairseq_host.task(9).target_dictionary)
    for name, weight in begun.state_dict().items():
        wanted = drawn if name.startswith("condition.") else other.state_dict()
        assert torch.equal(weight, wanted[name]), name
