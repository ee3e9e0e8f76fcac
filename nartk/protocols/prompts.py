"""Prompts and timestamps of Whisper: words that tell a model what to write, and words that are times.

A prompt is the start token, a language, a task and, where outputs have no times, a word for that (Radford et
al. 2023, arXiv:2212.04356, section 2.3). Else outputs hold words that are times, from 0.00 s on in steps of
20 ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from nartk.errors import UsageError, named
from nartk.files import JsonObject

STEP = 0.02  # seconds between two timestamps
FRAMES = 2  # of 10 ms, between two timestamps
DETECTED = -1  # in a prompt: the language that the model finds likeliest
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
        frames: Frames of sound that the model reads at once, 10 ms each.
        heads: Heads of the decoder whose attention follows the sound, each behind its layer; empty: they are
            not known.
    """

    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    no_timestamps: int
    language: str = ""
    task: str = ""
    latest_start: int = -1
    frames: int = 3000
    heads: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, values: JsonObject, words: int) -> Prompts:
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
        return cls(**{**values, "heads": _pairs(values["heads"])})

    @property
    def begin(self) -> int:
        """The id of the first timestamp, 0.00 s."""
        return self.no_timestamps + 1

    @property
    def no_speech(self) -> int:
        """The id of the word for no speech, right before `no_timestamps` in Whisper's vocabularies."""
        return self.no_timestamps - 1

    @property
    def previous(self) -> int:
        """The id of the word in front of what was said before, right before `no_speech`."""
        return self.no_timestamps - 2

    @property
    def unspoken(self) -> tuple[int, ...]:
        """Ids of words that stand in prompts alone: tasks, and three right before `no_timestamps`."""
        return (*self.tasks.values(), self.previous - 1, self.previous, self.no_speech)

    @property
    def length(self) -> int:
        """Tokens of the longest prompt, the start token among them."""
        return 1 + len(self.words())

    def words(self, *, timestamps: bool = False) -> tuple[int, ...]:
        """The words of a prompt behind the start token; `DETECTED` is the language where none is chosen."""
        language = (self.languages.get(self.language, DETECTED),) if self.languages else ()
        task = (self.tasks[self.task],) if self.task else ()
        return (*language, *task, *(() if timestamps else (self.no_timestamps,)))

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
                fix=f"choose from {', '.join(sorted(known))}" if known else "leave it out: it has one",
            )

    def window(self, tokens: Sequence[int], frames: int) -> tuple[list[int], int]:
        """Tokens kept of a window's output without its eos, and frames from its start to the next window's.

        Whisper's own windowing, as OpenAI's program and transformers have it: a pair of timestamps ends a
        segment and begins another, which is decoded again from there on if it is cut off. An output that ends
        with a single timestamp, or has no pair, is kept as a whole.

        Args:
            frames: Frames of sound in the window.
        """
        times = [token >= self.begin for token in tokens]
        pairs = [i + 1 for i in range(len(times) - 1) if times[i] and times[i + 1]]
        if not pairs or times[-2:] == [False, True]:
            return list(tokens), frames
        advance = FRAMES * (tokens[pairs[-1] - 1] - self.begin)
        return list(tokens[: pairs[-1] + 1]), advance if advance > 0 else frames


def _pairs(values: object) -> tuple[tuple[int, int], ...]:
    """Pairs of a layer and a head, no two the same; raises UsageError if they are none."""
    try:
        found = [tuple(pair) for pair in values]  # type: ignore[attr-defined]
    except TypeError:
        found = [()]
    if not all(len(pair) == 2 and all(type(each) is int and each >= 0 for each in pair) for pair in found):
        raise UsageError(f"`heads` is {values!r}, not pairs of a layer and a head")
    if len(set(found)) < len(found):
        raise UsageError(f"`heads` is {values!r}, and names a head twice")
    return tuple(found)


@runtime_checkable
class Prompted(Protocol):
    """A model whose outputs follow a prompt, or the processor of its outputs, which spells them."""

    @property
    def prompts(self) -> Prompts:
        """The words of its prompts."""
