"""Speaks the source: its text is the output's, beside its mel spectrogram (FastSpeech 2, Transformer TTS).

Symbols: B sentences, N phonemes of a sentence, with eos.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from time import perf_counter

from nartk.decoders.native import WholeOutputs
from nartk.protocols.guarantee import Guarantee, Promise
from nartk.protocols.hypothesis import Hypothesis, Request, Result, TokenTrace
from nartk.protocols.parallel import PhonemeScorer
from nartk.protocols.passes import texts_of
from nartk.registry import register_decoder


@register_decoder("speak")
class Speak(WholeOutputs):
    """Gives the source back as the output's text, with the mel spectrogram of all its phonemes.

    It has no scores: the text is given.
    """

    needs = PhonemeScorer
    promise = Promise(Guarantee.APPROXIMATE, "the source itself, and a spectrogram of it")

    # These are no options here: every phoneme is spoken.
    max_len: int = field(default=0, init=False, repr=False)
    max_ratio: float = field(default=0.0, init=False, repr=False)

    def limit(self, source_len: int) -> int:
        return source_len

    def decode(self, scorer: PhonemeScorer, requests: Sequence[Request]) -> Iterator[Result]:
        start = perf_counter()
        sources = [request.source for request in requests]
        memory = scorer.encode(sources)
        try:
            features = scorer.encoded(memory)
        finally:
            scorer.free(memory)
        mels = scorer.spectrograms(features)
        seconds = perf_counter() - start
        for request, text, mel in zip(requests, texts_of(sources), mels, strict=True):
            tokens = tuple(scorer.source_to_target[[*text]].tolist())
            trace = (TokenTrace("model", 1, None),) * len(tokens) if request.trace else None
            hypothesis = Hypothesis(tokens, trace=trace, mel=mel)
            yield Result(request.index, (hypothesis,), seconds, passes=1)
