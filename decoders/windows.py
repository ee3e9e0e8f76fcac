"""Decodes sound of any length in windows that follow the timestamps of the model (Radford et al. 2023)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import field, fields, replace
from functools import partial
from typing import TYPE_CHECKING

from nartk.decoders.beam import BeamStrategy
from nartk.decoders.loop.acceptance import ArgmaxAcceptance
from nartk.decoders.loop.constraints import Constraints
from nartk.decoders.loop.draws import RowDraws
from nartk.decoders.loop.loop import Loop
from nartk.decoders.sample import SampleRun
from nartk.decoders.strategy import Strategy
from nartk.decoders.windowing.generate import WindowRun
from nartk.decoders.windowing.parts import PartRun
from nartk.decoders.windowing.segments import HERTZ, Spell
from nartk.decoders.windowing.sharing import SharedSources
from nartk.decoders.windowing.transcribe import Rules, TranscribeRun
from nartk.errors import UsageError, named
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.passes import PassScorer
from nartk.protocols.prompts import DETECTED, STEP, Prompted
from nartk.protocols.runs import Batching, Run
from nartk.registry import WIDEST, option, register_decoder
from nartk.vocab import Vocab

if TYPE_CHECKING:
    from nartk.processors import OutputProcessor

OPENAI, TRANSFORMERS = RULES = ("openai", "transformers")
LATEST_START = 1.0  # seconds: the last timestamp that an output may begin with, as OpenAI's program has it
# Options that `TRANSFORMERS` knows nothing of.
_OPENAI_OPTIONS = """temperatures best_of seed compression_ratio min_log_prob no_speech condition
    initial_prompt carry_prompt hotwords clips vad"""
# What is written and not spoken: no output of OpenAI's program has it (`non_speech_tokens` of its tokenizer).
_MARKS = "<< >> <<< >>> -- --- -( -[ (' (\" (( )) ((( ))) [[ ]] {{ }} ♪♪ ♪♪♪"
_SYMBOLS = (*'"#()*+/:;<=>@[\\]^_`{|}~「」『』', *_MARKS.split(" "))
_NOTES = "♩♪♫♬♭♮♯"  # of which the first piece is left out, too


@register_decoder("windows")
class Windows(BeamStrategy):
    """Decodes sound of any length window by window, each as greedy or beam search does.

    By the rules of OpenAI's program (`nartk.decoders.windowing.transcribe`), or as transformers' `generate`
    (`nartk.decoders.windowing.generate`). The output of a file has an eos behind each window, and as its
    score the sum of its log-probabilities; of further hypotheses than the best it has none. By OpenAI's rules
    these are of the words that suppression and timestamps leave.
    """

    needs = (PassScorer, Prompted)  # type: ignore[assignment]
    promise = Promise(Guarantee.APPROXIMATE, "each window as greedy or beam search decodes it")
    reads_any_length = True

    own = BeamStrategy.own - {"max_len", "max_ratio"}  # which bound windows, not files

    beam_size: int = option(1, "hypotheses that are kept; 1: greedy search", low=1, high=WIDEST)
    language: str = option(
        "",
        "of the sound, such as en or german; empty: the model's own choice, which may be to detect it",
        does_nothing=True,
    )
    task: str = option(
        "",
        "empty: the model's own, as a rule to transcribe",
        choices=("", "transcribe", "translate"),
        does_nothing=True,
    )
    timestamps: bool = option(
        False, "outputs have times, in seconds from the beginning of the sound", does_nothing=True
    )
    word_timestamps: bool = option(
        False, "words have times, by attention to the sound: one more pass a window", does_nothing=True
    )
    rules: str = option(
        OPENAI, "whose rules windows keep to: OpenAI's program's, or those of transformers", choices=RULES
    )
    temperatures: str = option(
        "0 0.2 0.4 0.6 0.8 1",
        "at which a window is decoded, one after the other, until its output is good; 0 draws nothing",
    )
    best_of: int = option(5, "outputs drawn of a window at a temperature above 0", low=1, high=WIDEST)
    seed: int = option(1, "another seed draws other words", low=0)
    compression_ratio: float = option(
        2.4, "a text whose bytes are so many times those of its zlib stream repeats itself: no good", above=0
    )
    min_log_prob: float = option(
        -1.0, "a mean log-probability of a window's tokens below this is no good either, nats"
    )
    no_speech: float = option(
        0.6,
        "a window whose probability of no speech is above this has no words, if their mean log-probability "
        "is low",
        low=0,
        high=1,
    )
    condition: bool = option(True, "what was said before is a prompt of the next window")
    initial_prompt: str = option("", "text that a recording's first window follows", does_nothing=True)
    carry_prompt: bool = option(False, "the initial prompt is that of all windows", does_nothing=True)
    hotwords: str = option("", "words in front of the prompt of each window", does_nothing=True)
    clips: str = option(
        "", "what is decoded, seconds: begin, end, begin, end; the last end may be missing", does_nothing=True
    )
    vad: str = option(
        "",
        "what finds speech in a recording, of which pauses are left out and parts decoded together: silero "
        "(the extra vad) or energy; empty: window by window",
        choices=("", "silero", "energy"),
    )

    # What `in_pieces` makes: text of words; ids of prompts; words that are not spoken, and at no beginning.
    spell: Spell | None = field(default=None, repr=False, compare=False)
    pieces: tuple[tuple[int, ...], ...] = field(default=((), ()), repr=False, compare=False)
    unspoken: tuple[tuple[int, ...], ...] = field(default=((), ()), repr=False, compare=False)

    @property
    def reads_sound_alone(self) -> bool:
        """True if silence behind a recording is no frame of its source, as by OpenAI's rules."""
        return self.rules == OPENAI

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rules == TRANSFORMERS:
            for item in fields(self):
                if item.name in _OPENAI_OPTIONS.split() and getattr(self, item.name) != item.default:
                    raise UsageError(
                        f"{named(item.name)} with {named('rules', TRANSFORMERS)}, which has no such rule",
                        fix="leave one of them out",
                    )
        if self.vad and self.clips:
            raise UsageError(f"{named('vad', self.vad)} with {named('clips')}", fix="leave one of them out")
        self.window_rules()

    def in_pieces(self, output: OutputProcessor) -> Strategy:
        found = super().in_pieces(output)
        texts = (self.initial_prompt, self.hotwords)
        pieces = tuple(tuple(output.encode(f" {text.strip()}")) if text.strip() else () for text in texts)
        blank = (*output.encode(" "), output.vocab.eos)
        unspoken = (tuple(sorted({*_unspoken(output)})), blank)
        spell = getattr(output, "spelled", output.decode)
        return replace(found, spell=spell, pieces=pieces, unspoken=unspoken)  # type: ignore[call-arg]

    def constraints(self, vocab: Vocab) -> Constraints:
        found = super().constraints(vocab)
        if self.rules == TRANSFORMERS:
            return found
        silent, first = self.unspoken
        return replace(
            found,
            suppressed=tuple(dict.fromkeys([*found.suppressed, *silent])),
            suppressed_first=tuple(dict.fromkeys([*found.suppressed_first, *first])),
        )

    def begin(self, scorer: PassScorer, batching: Batching) -> Run:
        assert isinstance(scorer, Prompted)  # as `needs` says
        prompts = scorer.prompts.asking(self.language, self.task)
        spell = self.spell or partial(_joined, scorer.vocab)
        if self.rules == TRANSFORMERS:
            inner = super().begin(scorer, batching)
            is_timed = self.timestamps or self.word_timestamps
            return WindowRun(
                scorer,
                prompts,
                inner,
                self.limit,
                spell,
                batching.size,
                timestamps=self.timestamps,
                is_timed=is_timed,
            )
        shared = SharedSources(scorer, replace(prompts, latest_start=round(LATEST_START / STEP)))
        unspoken = (*self.unspoken[0], *_of_prompts(shared)), self.unspoken[1]
        words = replace(self, unspoken=unspoken)  # type: ignore[call-arg]
        begin = partial(words.run_at, shared, batching)
        run = TranscribeRun(self.window_rules(), shared, begin, self.limit, spell, batching.size)
        if not self.vad:
            return run
        is_known = DETECTED not in prompts.words()
        prompt_in = None if is_known else lambda code: prompts.asking(code).words(timestamps=True)
        return PartRun(run, scorer.vocab.eos, 2 * batching.size, prompt_in)

    def run_at(self, scorer: PassScorer, batching: Batching, temperature: float) -> Run:
        """Begins a run that decodes windows at a temperature."""
        if temperature == 0:
            greedy = replace(self, renormalize=self.beam_groups == 1)  # type: ignore[call-arg]
            return super(Windows, greedy).begin(scorer, batching)
        rules, eos = self.constraints(scorer.vocab), scorer.vocab.eos
        choice = RowDraws(rules, eos, temperature, 0, 1.0, self.seed, self.best_of, renormalize=True)
        loop = Loop(scorer, None, ArgmaxAcceptance(), choice.of_run(scorer), batching, length=None)
        return SampleRun(loop, self.best_of)

    def window_rules(self) -> Rules:
        """The values of its options by which windows follow each other."""
        clips = [*_numbers("clips", self.clips, "'0 30 60 90'")]
        if sorted(clips) != clips:
            raise UsageError(f"{named('clips')} is {self.clips!r}, not in order", fix="sort them")
        temperatures = [*_numbers("temperatures", self.temperatures, "'0 0.2 0.4'")]
        if not temperatures:
            raise UsageError(f"{named('temperatures')} is empty", fix="give '0' to draw nothing")
        initial, hotwords = self.pieces
        return Rules(
            tuple(temperatures),
            self.compression_ratio,
            self.min_log_prob,
            self.no_speech,
            self.condition,
            initial,
            hotwords,
            self.carry_prompt,
            tuple(round(each * HERTZ) for each in clips),
            self.timestamps,
            self.seed,
        )


def _numbers(name: str, text: str, example: str) -> Iterator[float]:
    """The numbers of an option, none below 0, with spaces or commas between."""
    for part in text.replace(",", " ").split():
        try:
            found = float(part)
        except ValueError:
            found = -1.0
        if not 0 <= found < math.inf:
            raise UsageError(f"{named(name)} has {part!r}", fix=f"give numbers from 0 on, as in {example}")
        yield found


def _unspoken(output: OutputProcessor) -> Iterator[int]:
    """The words for what is written and not spoken; marks that occur in words only where these begin."""
    for mark in " -", " '":
        yield from output.encode(mark)[:1]
    for symbol in [*_SYMBOLS, *_NOTES]:
        for text in symbol, f" {symbol}":
            found = output.encode(text)
            if len(found) == 1 or symbol in _NOTES:
                yield from found[:1]


def _of_prompts(scorer: SharedSources) -> tuple[int, ...]:
    """The words that stand in prompts alone."""
    return (scorer.start_token, *scorer.prompts.unspoken)


def _joined(vocab: Vocab, tokens: Sequence[int]) -> str:
    """The text of words of a model whose processor of outputs is not at hand."""
    return " ".join(vocab.to_words(tokens))
