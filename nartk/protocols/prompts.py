"""Prompts and timestamps of Whisper: what outputs begin after, and which words may follow.

Words tell such a model what to write: behind its start token come a language, a task and, where no times are
wanted, a word for that (Radford et al. 2023, arXiv:2212.04356, section 2.3). Else an output holds words that
are times, from 0.00 s on in steps of 20 ms. `PromptedPasses` is such a model to strategies, which need not
know: it puts the prompt before each output, and forbids words as ``ApplyTimestampRules`` of OpenAI's program
does (whisper/decoding.py), and ``WhisperTimeStampLogitsProcessor`` of transformers.

Symbols: B sources, N tokens of a pass, n of them scored, V words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from nartk.errors import UsageError, named
from nartk.protocols.passes import (
    ROOT,
    FeatureSource,
    FloatArray,
    IntArray,
    Limits,
    Pass,
    Ragged,
    Scores,
    Source,
    Want,
    costs_of,
)
from nartk.protocols.reading import Reading, read

STEP = 0.02  # seconds between two timestamps
FRAMES = 2  # of 10 ms, between two timestamps
# Codes of languages and their names, as OpenAI's program has them.
_NAMES = """en english, zh chinese, de german, es spanish, ru russian, ko korean, fr french, ja japanese,
    pt portuguese, tr turkish, pl polish, ca catalan, nl dutch, ar arabic, sv swedish, it italian,
    id indonesian, hi hindi, fi finnish, vi vietnamese, he hebrew, uk ukrainian, el greek, ms malay, cs czech,
    ro romanian, da danish, hu hungarian, ta tamil, no norwegian, th thai, ur urdu, hr croatian, bg bulgarian,
    lt lithuanian, la latin, mi maori, ml malayalam, cy welsh, sk slovak, te telugu, fa persian, lv latvian,
    bn bengali, sr serbian, az azerbaijani, sl slovenian, kn kannada, et estonian, mk macedonian, br breton,
    eu basque, is icelandic, hy armenian, ne nepali, mn mongolian, bs bosnian, kk kazakh, sq albanian,
    sw swahili, gl galician, mr marathi, pa punjabi, si sinhala, km khmer, sn shona, yo yoruba, so somali,
    af afrikaans, oc occitan, ka georgian, be belarusian, tg tajik, sd sindhi, gu gujarati, am amharic,
    yi yiddish, lo lao, uz uzbek, fo faroese, ht haitian creole, ps pashto, tk turkmen, nn nynorsk,
    mt maltese, sa sanskrit, lb luxembourgish, my myanmar, bo tibetan, tl tagalog, mg malagasy, as assamese,
    tt tatar, haw hawaiian, ln lingala, ha hausa, ba bashkir, jw javanese, su sundanese, yue cantonese,
    my burmese, ca valencian, nl flemish, ht haitian, lb letzeburgesch, ps pushto, pa panjabi, ro moldavian,
    ro moldovan, si sinhalese, es castilian, zh mandarin"""
LANGUAGES = {name: code for code, _, name in (pair.strip().partition(" ") for pair in _NAMES.split(","))}


@dataclass(frozen=True)
class Prompts:
    """The words of a model's prompts, and those that it begins with where nothing else is asked for.

    Attributes:
        languages, tasks: Ids by code, such as ``en``, and by name; empty where the model has but one.
        no_timestamps: Id of the word before outputs without times, behind which the times begin.
        language: A code; empty: it is detected, if there are several.
        task: One of `tasks`; empty where there are none.
        latest_start: The last timestamp that an output may begin with, in steps of 20 ms; -1: any may.
        frames: Of sound that the model reads at once, 10 ms each.
    """

    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    no_timestamps: int
    language: str = ""
    task: str = ""
    latest_start: int = -1
    frames: int = 3000

    @classmethod
    def of(cls, values: Mapping[str, Any], words: int) -> Prompts:
        """Those of stored settings, of a model of so many words; raises UsageError if they are none."""
        for name in ("languages", "tasks"):
            if not isinstance(values[name], dict):
                raise UsageError(f"`{name}` is {values[name]!r}, not ids by name")
        numbers = ("no_timestamps", "latest_start", "frames")
        ids = [*values["languages"].values(), *values["tasks"].values(), values["no_timestamps"]]
        if not all(type(id) is int and 0 <= id < words for id in ids):
            raise UsageError(f"the words of prompts are {ids}, not ids between 0 and {words - 1}")
        for name in numbers:
            if type(values[name]) is not int or values[name] < (-1 if name == "latest_start" else 1):
                raise UsageError(f"`{name}` is {values[name]!r}, which no model has")
        for name, known in (("language", values["languages"]), ("task", values["tasks"])):
            if values[name] != "" and values[name] not in known:
                raise UsageError(
                    f"`{name}` is {values[name]!r}", fix=f"choose from {', '.join(sorted(known))}"
                )
        return cls(**values)

    @property
    def begin(self) -> int:
        """The id of the first timestamp, 0.00 s."""
        return self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """The id of the word for no speech, right before `no_timestamps` in Whisper's vocabularies."""
        return self.no_timestamps - 1

    def length(self, *, timestamps: bool) -> int:
        """Words of a prompt, the start token among them."""
        return 1 + bool(self.languages) + bool(self.task) + (not timestamps)

    def words(self, language: int | None, *, timestamps: bool) -> tuple[int, ...]:
        """The words of a prompt behind the start token, of the id of a language if there are several."""
        found = () if language is None else (language,)
        task = (self.tasks[self.task],) if self.task else ()
        return (*found, *task, *(() if timestamps else (self.no_timestamps,)))

    def asking(self, language: str = "", task: str = "") -> Prompts:
        """The same with a language, by its code or its name in English, and a task; empty: as it is.

        Raises:
            UsageError: The model does not know one of them.
        """
        found = self
        if language:
            code = language.lower().removeprefix("<|").removesuffix("|>")
            code = code if code in self.languages else LANGUAGES.get(code, code)
            self._require("language", language, code, self.languages)
            found = replace(found, language=code)
        if task:
            self._require("task", task, task, self.tasks)
            found = replace(found, task=task)
        return found

    @staticmethod
    def _require(option: str, given: str, value: str, known: Mapping[str, int]) -> None:
        if value not in known:
            raise UsageError(
                f"{named(option)} is {given!r}, which this model does not know",
                fix=f"choose from {', '.join(sorted(known))}" if known else "leave it out: it knows but one",
            )

    def window(self, tokens: Sequence[int], frames: int) -> tuple[list[int], int]:
        """What is kept of a window's output without its eos, and how many frames later the next one begins.

        Whisper's own windowing, as OpenAI's program and transformers have it: a pair of timestamps ends a
        segment and begins another, which is decoded again from there on if it is cut off. An output that ends
        with a single timestamp, or has no pair, is kept as a whole.

        Args:
            frames: Of sound in the window.
        """
        times = [token >= self.begin for token in tokens]
        pairs = [i + 1 for i in range(len(times) - 1) if times[i] and times[i + 1]]
        if not pairs or times[-2:] == [False, True]:
            return list(tokens), frames
        advance = FRAMES * (tokens[pairs[-1] - 1] - self.begin)
        return list(tokens[: pairs[-1] + 1]), advance if advance > 0 else frames

    def allowed(self, logits: FloatArray, output: Sequence[int], eos: int, banned: Sequence[int]) -> Any:
        """Whether each word [V] may follow an output with timestamps, by its logits [V].

        1. Timestamps come in pairs, but for the first of an output and one right before eos.
        2. None is earlier than the one before it, and none but the second of a pair equals it.
        3. An output begins with a timestamp, not later than `latest_start`.
        4. If all timestamps together are likelier than any other word, one of them follows.

        Args:
            banned: Words that are forbidden already, which do not count in 4.
        """
        begin = self.begin
        found = np.ones(len(logits), bool)
        found[list(banned)] = False
        found[self.no_timestamps] = False
        times = [token for token in output if token >= begin]
        if not output:
            found[:begin] = False
            if self.latest_start >= 0:
                found[begin + self.latest_start + 1 :] = False
        ends = bool(output) and output[-1] >= begin
        pairs = ends and (len(output) < 2 or output[-2] >= begin)
        if pairs:
            found[begin:] = False
        elif ends:
            found[:eos] = False
        if times:
            found[begin : times[-1] + (not ends or pairs)] = False
        times_left, others = (logits[part][found[part]] for part in (slice(begin, None), slice(begin)))
        if times_left.size and (not others.size or _log_sum_exp(times_left) > others.max()):
            found[:begin] = False
        return found


class PromptedPasses:
    """A model whose outputs follow a prompt. Implements nartk.protocols.passes.PassScorer and Prompted.

    What it is asked of an output's start token is computed of the whole prompt, whose words are no tokens of
    the output. With timestamps, words that `Prompts.allowed` forbids are those of `Want.banned` too, and have
    logits of minus infinity in `Scores.rows`.

    Args:
        scorer: Of the model.
        timestamps: Whether outputs have them.
    """

    def __init__(self, scorer: Any, prompts: Prompts, *, timestamps: bool = False) -> None:
        self.scorer, self.prompts, self.timestamps = scorer, prompts, timestamps
        self.vocab, self.start_token = scorer.vocab, scorer.start_token
        self.numerics: str = scorer.numerics
        self.costs = costs_of(scorer)
        limits: Limits = scorer.limits
        taken = prompts.length(timestamps=timestamps)
        self.limits = replace(limits, target=max(1, limits.target - taken))
        self._prompts: dict[int, tuple[int, ...]] = {}  # of each encoded source, with the start token
        self._contexts: dict[int, _Context] = {}
        self.no_speech: dict[int, float] | None = None

    @property
    def first_timestamp(self) -> int:
        return self.prompts.begin

    def prompted(self, *, language: str = "", task: str = "", timestamps: bool = False) -> PromptedPasses:
        """The same model with another prompt; empty: its own."""
        return PromptedPasses(self.scorer, self.prompts.asking(language, task), timestamps=timestamps)

    def window(self, tokens: Sequence[int], frames: int) -> tuple[list[int], int]:
        return self.prompts.window(tokens, frames)

    def detect(self, sources: Sequence[Source]) -> list[tuple[int, ...]]:
        """The words of each source's prompt behind the start token. Its language is detected if need be."""
        if not self._is_detecting:
            return [self._words(None)] * len(sources)
        memory = self.scorer.encode(sources)
        try:
            return self._detected(memory)
        finally:
            self.scorer.free(memory)

    def encode(self, sources: Sequence[Source]) -> IntArray:
        given = [source.words if isinstance(source, FeatureSource) else () for source in sources]
        # The words are not the encoder's.
        frames = [
            replace(source, words=()) if isinstance(source, FeatureSource) else source for source in sources
        ]
        memory: IntArray = self.scorer.encode(frames)
        words = given
        if not all(given):
            found = self._detected(memory) if self._is_detecting else [self._words(None)] * len(sources)
            words = [own if own else each for own, each in zip(given, found, strict=True)]
        for handle, each in zip(memory.tolist(), words, strict=True):
            self._prompts[handle] = (self.start_token, *each)
        if self.no_speech is not None:
            logits = self._behind_start(memory).astype(np.float64)
            probs = np.exp(logits[:, self.prompts.no_speech] - np.logaddexp.reduce(logits, 1))
            self.no_speech |= {
                id(source.frames): prob
                for source, prob in zip(sources, probs.tolist(), strict=True)
                if isinstance(source, FeatureSource)
            }
        return memory

    @property
    def _is_detecting(self) -> bool:
        return bool(self.prompts.languages) and not self.prompts.language

    def _words(self, language: int | None) -> tuple[int, ...]:
        if language is None and self.prompts.languages:
            language = self.prompts.languages[self.prompts.language]
        return self.prompts.words(language, timestamps=self.timestamps)

    def _detected(self, memory: IntArray) -> list[tuple[int, ...]]:
        """The words of prompts in the likeliest language after the start token."""
        if len(memory) == 0:
            return []
        ids = np.array(sorted(self.prompts.languages.values()))
        best = ids[self._behind_start(memory)[:, ids].argmax(1)]
        return [self._words(language) for language in best.tolist()]

    def _behind_start(self, memory: IntArray) -> FloatArray:
        """The logits [B,V] of the word after the start token."""
        count = len(memory)
        contexts = self.scorer.open(count)
        try:
            work = Pass(
                np.full(count, self.start_token, np.int32),
                np.zeros(count, np.int32),
                memory,
                contexts,
                np.full(count, ROOT, np.int32),
            )
            scores = self.scorer.run(work, Want())
            logits: FloatArray = scores.rows(range(count)).copy()
            self.scorer.commit(scores, ())
            return logits
        finally:
            self.scorer.close(contexts)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self.scorer.free(memory)
        for handle in _ints(memory):
            del self._prompts[handle]

    def open(self, count: int) -> IntArray:
        contexts: IntArray = self.scorer.open(count)
        self._contexts |= {context: _Context([]) for context in contexts.tolist()}
        return contexts

    def fork(self, contexts: Sequence[int] | IntArray) -> IntArray:
        new: IntArray = self.scorer.fork(contexts)
        for old, context in zip(_ints(contexts), new.tolist(), strict=True):
            found = self._contexts[old]
            self._contexts[context] = _Context([*found.tokens], found.added)
        return new

    def truncate(self, contexts: Sequence[int] | IntArray, lengths: Sequence[int] | IntArray) -> None:
        handles, kept = _ints(contexts), _ints(lengths)
        added = [self._contexts[each].added if each in self._contexts else 0 for each in handles]
        cells = [length + more if length > 0 else length for length, more in zip(kept, added, strict=False)]
        self.scorer.truncate(contexts, [*cells, *kept[len(cells) :]])
        for context, length in zip(handles, kept, strict=True):
            del self._contexts[context].tokens[length:]

    def close(self, contexts: Sequence[int] | IntArray) -> None:
        self.scorer.close(contexts)
        for context in _ints(contexts):
            del self._contexts[context]

    @property
    def cells_in_use(self) -> int:
        found: int = self.scorer.cells_in_use
        return found

    def replica(self, stopped: Callable[[], bool]) -> PromptedPasses:
        """As `nartk.protocols.passes.Replicable` of the scorer has it."""
        return PromptedPasses(self.scorer.replica(stopped), self.prompts, timestamps=self.timestamps)

    def run(self, work: Pass, want: Want) -> Scores:
        columns = _Expanded(work, self._prompts)
        only = want.only
        if columns.is_longer:
            only = columns.last if only is None else columns.last[only]
        scores = self.scorer.run(columns.work, replace(want, only=only))
        found = PromptedScores(scores, work, columns)
        if self.timestamps:
            self._keep_to_rules(found, work, want)
        return found

    def commit(self, scores: Any, kept: Sequence[int] | IntArray) -> None:
        if not isinstance(scores, PromptedScores):
            self.scorer.commit(scores, kept)  # which refuses it
            return
        work, columns, indices = scores.work, scores.columns, _ints(kept)
        self.scorer.commit(scores.inner, columns.kept(indices))
        for i in indices:
            context = self._contexts[int(work.contexts[i])]
            context.tokens.append(int(work.tokens[i]))
            if work.positions[i] == 0:
                context.added = columns.added[i]

    def _keep_to_rules(self, scores: PromptedScores, work: Pass, want: Want) -> None:
        """Reads again what the rules of timestamps change of scored tokens."""
        outputs = self._outputs(work)
        index = range(len(outputs)) if want.only is None else want.only.tolist()
        logits = np.array(scores.inner.rows(range(len(index))))
        eos = self.vocab.eos
        changed: list[int] = []
        banned: list[npt.NDArray[np.int64]] = []
        for row, at in enumerate(index):
            output = outputs[at]
            if eos in output:  # where only drafts go on
                continue
            own = _banned(want, row)
            allowed = self.prompts.allowed(logits[row], output, eos, own)
            logits[row][~allowed] = -np.inf
            best = scores.best[row : row + 1] if scores.top is None else scores.top[row]
            if want.margin or want.draw is not None or not allowed[best[best >= 0]].all():
                changed.append(row)
                banned.append(np.flatnonzero(~allowed))
        scores.logits = logits
        if changed:
            scores.read_again(changed, banned, want)

    def _outputs(self, work: Pass) -> list[list[int]]:
        """The output that each token of a pass ends, without the start token."""
        found: list[list[int]] = []
        for token, context, parent in zip(
            work.tokens.tolist(), work.contexts.tolist(), work.parents.tolist(), strict=True
        ):
            before = self._contexts[context].tokens if parent == ROOT else found[parent]
            found.append([*before, token])
        return [tokens[1:] for tokens in found]


@dataclass
class _Context:
    """What a context holds: the start token and an output, and how many words of a prompt between."""

    tokens: list[int]
    added: int = 0


class _Expanded:
    """A pass whose start tokens are followed by the rest of their prompts.

    Attributes:
        work: The pass.
        added: Of each token of the pass before, how many words came in with it.
        last: [N] where each token's own, or its prompt's last word, is in the new pass.
        is_longer: Whether there are any.
    """

    def __init__(self, work: Pass, prompts: Mapping[int, tuple[int, ...]]) -> None:
        positions, memory = work.positions.tolist(), work.memory.tolist()
        # What the scorer does not know it refuses.
        rest = [prompts[each][1:] if each in prompts else () for each in memory]
        self.added = [len(words) if at == 0 else 0 for words, at in zip(rest, positions, strict=True)]
        counts = np.array(self.added, np.int64) + 1
        self.last = (np.cumsum(counts) - 1).astype(np.int32)
        self.is_longer = any(self.added)
        shifted = work.positions + np.array([len(words) for words in rest], np.int32)
        shifted = np.where(work.positions < 0, work.positions, shifted)
        if not self.is_longer:
            self.work = replace(work, positions=shifted.astype(np.int32))
            return
        tokens: list[int] = []
        positions_at: list[int] = []
        parents: list[int] = []
        for i, (token, parent) in enumerate(zip(work.tokens.tolist(), work.parents.tolist(), strict=True)):
            tokens.append(token)
            parents.append(int(self.last[parent]) if parent >= 0 else parent)
            if not self.added[i]:
                positions_at.append(int(shifted[i]))
                continue
            begin = len(tokens) - 1
            tokens += rest[i]
            positions_at += range(len(rest[i]) + 1)
            parents += range(begin, begin + len(rest[i]))
        own = (np.repeat(each, counts) for each in (work.memory, work.contexts))
        columns = (np.array(each, np.int32) for each in (tokens, positions_at, *own, parents))
        self.work = Pass(*columns)

    def kept(self, indices: Sequence[int]) -> list[int]:
        """The tokens of the new pass that stand for those of the one before."""
        if not self.is_longer:
            return list(indices)
        count, found = len(self.last), []
        for i in indices:
            if not 0 <= i < count:  # which the scorer refuses
                found.append(-1)
                continue
            last = int(self.last[i])
            found += range(last - self.added[i], last + 1)
        return found


class PromptedScores(Reading):
    """Implements `nartk.protocols.passes.Scores` for `PromptedPasses`.

    Attributes:
        inner: What the model's scorer gave.
        logits: [n,V], where rules have changed them.
    """

    def __init__(self, inner: Any, work: Pass, columns: _Expanded) -> None:
        super().__init__(**{item.name: getattr(inner, item.name) for item in fields(Reading)})
        self.inner, self.work, self.columns = inner, work, columns
        self.logits: FloatArray | None = None

    def rows(self, index: Sequence[int] | IntArray) -> FloatArray:
        found: FloatArray = self.inner.rows(index)
        return found if self.logits is None else self.logits[np.array(index, np.int64)]

    def read_again(self, rows: Sequence[int], banned: Sequence[npt.NDArray[np.int64]], want: Want) -> None:
        """Reads what is wanted of some scored tokens, each without its banned words."""
        logits = np.array(self.inner.rows(rows))
        draw = want.draw
        found = read(
            logits,
            Want(
                banned=Ragged.of([each.tolist() for each in banned]),
                top=want.top,
                margin=want.margin,
                given=None if want.given is None else want.given[rows],
                draw=None if draw is None else replace(draw, uniforms=draw.uniforms[rows]),
            ),
        )
        for item in fields(Reading):
            new = getattr(found, item.name)
            if new is not None:
                changed = np.array(getattr(self, item.name))
                changed[rows] = new
                setattr(self, item.name, changed)


def _log_sum_exp(values: FloatArray) -> float:
    """The logarithm of the sum of exp of values [k], summed in fp64."""
    most = float(values.max())
    if most == -np.inf:
        return most
    return most + float(np.log(np.exp(values.astype(np.float64) - most).sum()))


def _banned(want: Want, row: int) -> list[int]:
    """The words that are forbidden after a scored token."""
    if want.banned is None:
        return []
    begin, end = want.banned.offsets[row : row + 2]
    found: list[int] = want.banned.values[begin:end].tolist()
    return found


def _ints(values: Sequence[int] | IntArray) -> list[int]:
    return values.tolist() if isinstance(values, np.ndarray) else [int(value) for value in values]
