"""Times of words by cross-attention: against OpenAI's program and transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import whisper_models as models
from support.whisper_models import EOS, NO_TIMESTAMPS, START
from support.whisper_scorers import SCORERS, frames_at_once, read_random, scorer_for

import nartk
from nartk.checkpoints.checkpoint import read_config
from nartk.checkpoints.loading import load_checkpoint
from nartk.engine import TYPES, available
from nartk.errors import CheckpointError, PassError
from nartk.protocols.attending import AttendingScorer
from nartk.protocols.hypothesis import Hypothesis, Segment, Word
from nartk.protocols.outputs import Text
from nartk.protocols.passes import FeatureSource, Pass, Want
from nartk.protocols.prompts import Prompts
from nartk.serving.alignment import default_heads, jumps, normalized, split_words, warp
from nartk.serving.transcripts import within
from nartk.serving.word_times import Timing, WordAligner, add_words, merge_punctuation

ORACLE = json.loads((Path(__file__).parent / "oracles" / "word_times.json").read_text(encoding="utf-8"))


# OpenAI's program


def test_paths_are_openais() -> None:
    """Costs of few numbers have many ties."""
    for each in ORACLE["ties"]:
        assert [part.tolist() for part in warp(np.array(each["costs"]))] == each["path"]


def test_tokens_begin_where_openais_do() -> None:
    """Heads that are the same for all tokens have no deviation there, of which OpenAI's program makes NaN."""
    for each in ORACLE["paths"]:
        weights = np.array(each["weights"], np.float32)
        assert jumps(normalized(weights)).tolist() == each["jumps"]
    flat = np.full((1, 3, 20), 0.05, np.float32)
    assert jumps(normalized(flat)).tolist() == sorted(jumps(normalized(flat)).tolist())


def test_words_are_split_as_openais() -> None:
    for each in ORACLE["splits"]:

        def spell(ids: Sequence[int], pieces: Any = each["pieces"]) -> str:
            return b"".join(bytes(pieces[id]) for id in ids).decode("utf-8", "replace")

        found = split_words(range(len(each["pieces"])), spell, each["language"])
        assert [text for text, _ in found] == each["words"]
        assert [len(ids) for _, ids in found] == each["sizes"]
        assert [id for _, ids in found for id in ids] == [*range(len(each["pieces"]))]
    parts = [b"a", b"\xef", b"\xbc"]  # the character behind ends in the next window
    found = split_words(
        range(3), lambda ids: b"".join(parts[i] for i in ids).decode("utf-8", "replace"), "ja"
    )
    assert [id for _, ids in found for id in ids] == [0, 1, 2]


def test_punctuation_joins_words_as_openais() -> None:
    for each in ORACLE["joined"]:
        timings = [Timing(word, [i], i, i + 1, 0.5) for i, word in enumerate(each["words"])]
        merge_punctuation(timings)
        assert [[timing.text, timing.tokens] for timing in timings] == each["merged"]


def test_long_words_are_cut_as_openais() -> None:
    changed = 0
    for each in ORACLE["cut"]:
        segments = [
            Segment(part["start"], part["end"], "", tuple(part["tokens"]), part["seek"])
            for part in each["segments"]
        ]
        timings = [Timing(text, [1] * n, start, end, prob) for text, start, end, prob, n in each["words"]]
        found = add_words(
            segments,
            [part.tokens for part in segments],
            timings,
            offset=segments[0].seek / 100,
            spoken=each["last"],
        )
        for ours, theirs, before in zip(found, each["found"], segments, strict=True):
            words = [
                [word[name] for name in ("word", "start", "end", "probability")] for word in theirs["words"]
            ]
            assert [[each.text, each.start, each.end, each.probability] for each in ours.words] == words
            assert (ours.start, ours.end) == (theirs["start"], theirs["end"])
            changed += (ours.start, ours.end) != (before.start, before.end)
    assert changed > 50


# Attention


def pass_of(scorer: Any, tokens: Sequence[int], memory: int) -> Pass:
    count, context = len(tokens), int(scorer.open(1)[0])
    numbers = [tokens, range(count), [memory] * count, [context] * count, range(-1, count - 1)]
    return Pass(*(np.array(each, np.int32) for each in numbers))


def weights_of(scorer: Any, source: FeatureSource, tokens: Sequence[int], heads: Any) -> Any:
    """Weights [H,N,S] and log-probabilities, of one pass that is not kept."""
    (memory,) = scorer.encode([source])
    work = pass_of(scorer, tokens, memory)
    scores, weights = scorer.run_attending(work, Want(), heads)
    rows = np.array(scores.rows(range(len(tokens))))
    scorer.close(work.contexts[:1])
    scorer.free([memory])
    assert scorer.cells_in_use == 0
    return weights, rows


class Generated(dict[str, Any]):
    """An output of `generate`, as transformers reads it."""

    __getattr__ = dict.__getitem__


def their_attention(model: Any, source: FeatureSource, tokens: Sequence[int]) -> Any:
    """Attention of transformers' eager computation: of each layer [1,H,N,S]."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        found = model(
            input_features=models.features_of([source])["input_features"],
            decoder_input_ids=torch.tensor([tokens]),
            output_attentions=True,
        )
    return found.cross_attentions


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("seed", range(3))
def test_attention_and_token_times_are_transformers(seed: int, name: str, tmp_path: Path) -> None:
    model, checkpoint, rng = read_random(seed, tmp_path)
    scorer = scorer_for(name, checkpoint)
    assert isinstance(scorer, AttendingScorer)
    config = model.config
    heads = default_heads(config.decoder_layers, config.decoder_attention_heads)
    every = [(i, j) for i in range(config.decoder_layers) for j in range(config.decoder_attention_heads)]
    rng.shuffle(every)
    for source in models.random_frames(model, rng, [frames_at_once(model)] * 2):
        tokens = [START, NO_TIMESTAMPS, *rng.choices(range(EOS), k=12)]
        attention = their_attention(model, source, tokens)
        wanted = np.stack([attention[layer][0, head].numpy() for layer, head in every])
        found, _ = weights_of(scorer, source, tokens, every)
        np.testing.assert_allclose(found, wanted, atol=2e-5)
        np.testing.assert_allclose(found.sum(-1), 1.0, atol=1e-5)
        theirs = model._extract_token_timestamps(
            Generated(cross_attentions=[attention], sequences=torch.tensor([tokens])),
            heads,
            num_frames=70,
            num_input_ids=2,
        )
        found, _ = weights_of(scorer, source, tokens, heads)
        ours = 0.02 * jumps(normalized(found[:, 2:, :35]))
        np.testing.assert_allclose(ours, theirs[0, 2:-1].numpy(), atol=1e-6)


@pytest.mark.skipif(not available(), reason="the engine is not built")
@pytest.mark.parametrize("type", TYPES)
def test_attention_is_that_of_the_pass_in_any_batch(type: str, tmp_path: Path) -> None:
    """Scores are `run`'s, bit for bit, and so is all beside other sources, in pieces, and on more threads."""
    model, checkpoint, rng = read_random(1, tmp_path)
    scorer = scorer_for("engine", checkpoint, type=type, threads=1)
    sources = models.random_frames(model, rng, [frames_at_once(model)] * 3)
    tokens = [START, *rng.choices(range(EOS), k=15)]
    heads = [(0, 0)]
    wanted, logits = weights_of(scorer, sources[1], tokens, heads)
    assert np.ptp(wanted) > 1e-3
    memory = scorer.encode(sources)
    other = pass_of(scorer, tokens, int(memory[0]))
    held = scorer.run(other, Want())
    work = pass_of(scorer, tokens, int(memory[1]))
    scores = scorer.run(work, Want())
    np.testing.assert_array_equal(scores.rows(range(len(tokens))), logits)
    scorer.commit(scores, ())
    first = Pass(*(getattr(work, each)[:6] for each in Pass.__slots__))
    scores, before = scorer.run_attending(first, Want(), heads)
    scorer.commit(scores, range(6))
    behind = Pass(*(getattr(work, each)[6:] for each in Pass.__slots__[:4]), work.parents[6:] - 6)
    scores, after = scorer.run_attending(behind, Want(), heads)
    np.testing.assert_array_equal(np.concatenate([before, after], 1), wanted)
    scorer.commit(held, ())
    two = scorer_for("engine", checkpoint, type=type, threads=2)
    np.testing.assert_array_equal(weights_of(two, sources[1], tokens, heads)[0], wanted)


@pytest.mark.parametrize("name", SCORERS)
@pytest.mark.parametrize("heads", [[(0, 99)], [(-1, 0)], [(9, 0)], [(0, 0), (0, 0)]])
def test_heads_that_are_none_are_refused(name: str, heads: Any, tmp_path: Path) -> None:
    model, checkpoint, rng = read_random(0, tmp_path)
    scorer = scorer_for(name, checkpoint)
    memory = scorer.encode(models.random_frames(model, rng, [frames_at_once(model)] * 2))
    work = pass_of(scorer, [START, 5], int(memory[0]))
    with pytest.raises(PassError):
        scorer.run_attending(work, Want(), heads)
    with pytest.raises(PassError, match=r"one source|several sources"):
        scorer.run_attending(replace(work, memory=memory), Want(), [(0, 0)])
    scores, _ = scorer.run_attending(work, Want(), [(0, 0)])  # nothing has changed
    scorer.commit(scores, ())


# Whole recordings


class Watching:
    """A scorer that keeps what each alignment reads."""

    def __init__(self, scorer: Any) -> None:
        self.scorer, self.passes = scorer, []  # type: ignore[var-annotated]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scorer, name)

    def run_attending(self, work: Pass, want: Want, heads: Any) -> Any:
        scores, weights = self.scorer.run_attending(work, want, heads)
        self.passes.append((work.tokens.tolist(), weights, np.array(scores.rows(range(len(want.only))))))  # type: ignore[arg-type]
        return scores, weights


@pytest.mark.parametrize("name", SCORERS)
def test_each_window_is_aligned_once_behind_its_prompt(name: str, tmp_path: Path) -> None:
    """Prompt, text without timestamps and eos; probabilities are those among words of text."""
    model, checkpoint, rng = read_random(3, tmp_path)
    scorer = Watching(scorer_for(name, checkpoint))
    output: Any = checkpoint.output
    prompts: Prompts = output.prompts.asking(language="de", task="transcribe")
    longest = frames_at_once(model)
    (source,) = models.random_frames(model, rng, [longest + 30])
    texts = [rng.choices(range(97, 122), k=n) for n in (4, 3, 5)]
    segments = [
        Segment(0.0, 0.4, "", (prompts.begin, *texts[0], prompts.begin + 20), 0),
        Segment(0.4, 0.9, "", (prompts.begin + 20, *texts[1], prompts.begin + 45), 0),
        Segment(longest / 100, longest / 100 + 0.3, "", (prompts.begin, *texts[2]), longest),
    ]
    config: Any = read_config(checkpoint)
    aligner = WordAligner(
        scorer,
        prompts,
        layers=config.decoder_layers,
        heads=config.decoder_heads,
        spell=output.spelled,
        language="de",
    )
    found = aligner.timed(source, segments)
    tokens, weights, rows = zip(*scorer.passes, strict=True)
    prompt = [START, *prompts.words()]
    assert [*tokens] == [[*prompt, *texts[0], *texts[1], EOS], [*prompt, *texts[2], EOS]]
    heads = default_heads(config.decoder_layers, config.decoder_heads)
    assert all(
        each.shape == (len(heads), len(row), longest // 2) for each, row in zip(weights, tokens, strict=True)
    )
    logits = torch.tensor(rows[1])[:, :EOS].double().softmax(-1)
    probs = [float(logits[i, token]) for i, token in enumerate(texts[2])]
    (word,) = found[2].words  # letters without a space
    assert word.text == output.spelled(texts[2])
    assert word.probability == pytest.approx(np.mean(probs))
    # A window of 30 frames of sound is read to its 15th position.
    cut = torch.from_numpy(weights[1]).log()[:, :, :15].softmax(2).numpy()
    begins = 0.02 * jumps(normalized(cut)[:, len(prompt) - 1 : -1])
    assert (word.start, word.end) == pytest.approx((longest / 100 + begins[0], longest / 100 + begins[-1]))


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_words_do_not_depend_on_what_is_decoded_beside(dtype: str, tmp_path: Path) -> None:
    """And tokens are those without; times are inside the sound and never go back."""
    if not available():
        pytest.skip("the engine is not built")
    made, _, rng = read_random(4, tmp_path)
    model = nartk.load(tmp_path, dtype=dtype, threads=1)
    lengths = [frames_at_once(made), 3 * frames_at_once(made), frames_at_once(made) // 2]
    sources = models.random_frames(made, rng, lengths)
    options: Any = {"language": "de", "timestamps": True}
    together = model.decode(sources, "windows", word_timestamps=True, **options)
    without = model.decode(sources, "windows", **options)
    assert [each.tokens for each in together] == [each.tokens for each in without]
    assert not any(each.words for each in without)
    assert any(each.words for each in together)
    for source, best, length in zip(sources, together, lengths, strict=True):
        assert model.decode([source], "windows", word_timestamps=True, **options)[0].words == best.words
        assert best.seconds == pytest.approx(length / 100)
        in_order(best)


def in_order(found: Hypothesis) -> None:
    assert found.seconds is not None
    for timed in (found.segments, found.words):
        starts, ends = [each.start for each in timed], [each.end for each in timed]
        assert [starts, ends] == [sorted(starts), sorted(ends)]
        assert all(0 <= a <= b <= found.seconds for a, b in zip(starts, ends, strict=True))


_TIMES = st.floats(-5, 70, allow_nan=False)


@given(
    st.lists(st.tuples(_TIMES, _TIMES, st.lists(st.tuples(_TIMES, _TIMES), max_size=4)), max_size=5),
    st.floats(0, 60),
)
def test_times_stay_inside_the_sound_and_in_order(
    parts: list[tuple[float, float, list[tuple[float, float]]]], seconds: float
) -> None:
    segments = tuple(
        Segment(start, end, "a", (1,), words=tuple(Word(" a", *pair) for pair in words))
        for start, end, words in parts
    )
    found = within(Hypothesis((1,), output=Text("a"), segments=segments), seconds)
    in_order(found)
    assert len(found.words) == sum(len(words) for _, _, words in parts)


def test_what_is_in_order_stays_as_it_is() -> None:
    words = (Word(" a", 0.1, 0.4), Word(" b", 0.4, 0.4), Word(" c", 1.0, 2.0))
    segments = (
        Segment(0.0, 0.5, " a b", (1,), words=words[:2]),
        Segment(1.0, 2.0, " c", (2,), words=words[2:]),
    )
    found = within(Hypothesis((1,), segments=segments), 2.0)
    assert (found.segments, found.words, found.seconds) == (segments, words, 2.0)


# Settings


def test_heads_of_a_folder_are_read_and_kept(tmp_path: Path) -> None:
    from nartk.cli.convert import main as convert

    read_random(5, tmp_path / "hf", alignment_heads=[[0, 0]])
    output: Any = load_checkpoint(tmp_path / "hf").output
    assert output.prompts.heads == ((0, 0),)
    assert convert([str(tmp_path / "hf"), "--output", str(tmp_path / "own"), "--quiet"]) == 0
    assert load_checkpoint(tmp_path / "own").output.prompts == output.prompts  # type: ignore[attr-defined]
    read_random(5, tmp_path / "none")
    assert load_checkpoint(tmp_path / "none").output.prompts.heads == ()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "heads", [[[0, 99]], [[7, 0]], [[0]], "all", [[0, 0], [0, 0]], [[0, -1]], [[0.5, 0]]]
)
def test_heads_that_no_model_has_are_a_corrupt_folder(heads: Any, tmp_path: Path) -> None:
    read_random(5, tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "alignment_heads": heads}))
    with pytest.raises((CheckpointError, nartk.errors.UnsupportedCheckpointError), match="heads"):
        load_checkpoint(tmp_path)


def test_openais_defaults_are_the_upper_half() -> None:
    assert default_heads(4, 2) == [(2, 0), (2, 1), (3, 0), (3, 1)]
    assert default_heads(3, 1) == [(1, 0), (2, 0)]
