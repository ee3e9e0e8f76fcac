"""ASR-BLEU: the BLEU of a recogniser's transcripts of speech, against references of what was to be said.

Transcripts and references are compared in lower case, with sacrebleu's default tokeniser, as in the
evaluation of speech-to-speech translation since Jia et al. 2019 (https://arxiv.org/abs/1904.06037).
A recogniser's errors count as the system's, so that the score of the reference speech belongs beside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from nartk.data.readers import SOUND, format_of
from nartk.errors import InputFileError, UsageError, named
from nartk.files import read_lines, reading, shown
from nartk.metrics.metric import Comparison, Corpus, Metric, MetricFiles, Reads, Recogniser, Scorer
from nartk.metrics.result import MetricResult
from nartk.metrics.sacre import Bleu
from nartk.metrics.utterances import AUTO, YES, begin_with_ids
from nartk.registry import METRICS, option, register_metric


@dataclass(frozen=True, kw_only=True)
class SoundFiles(MetricFiles):
    """Files whose outputs are the transcripts of a folder, or a list, of sound files.

    Attributes:
        hearing: Recogniser of their words.
        heard: The transcript of each output by the name of folder or list; None: it cannot be heard.
    """

    hearing: Recogniser
    heard: dict[str, list[str | None]] = field(default_factory=dict)

    def outputs(self, name: str) -> list[Any]:
        """A line for each reference, and for each file beyond them."""
        files = self._files(name)
        references = read_lines(self.ref[0])
        has_ids = self.ids == YES or (self.ids == AUTO and begin_with_ids(references))
        if has_ids:
            keys = [line.split(maxsplit=1)[0] for line in references if line.strip()]
            keys += [key for key in files if key not in keys]
        else:
            keys = _numbered(files, len(references))
        there = [key for key in keys if key in files]
        texts = dict(
            zip(there, self.hearing.transcripts([files[key] for key in there], self.tell), strict=True)
        )
        for key in keys:
            if key not in texts:
                self.tell(f"{self.shown(name)}: there is no {key!r}, which counts as empty")
        self.heard[name] = [texts.get(key) for key in keys]
        lines = ["" if text is None else text for text in self.heard[name]]
        return [f"{key} {line}" for key, line in zip(keys, lines, strict=True)] if has_ids else lines

    def _files(self, name: str) -> Mapping[str, str]:
        """The sound files of a folder or a list, or the one that is named, by their names without suffix.

        Raises:
            InputFileError: There is none, or two have one name.
        """
        if os.path.isdir(name):
            paths = [str(each) for each in Path(name).iterdir() if format_of(each.name, "") == SOUND]
            paths.sort(key=_in_numbers)
        elif format_of(name, "") == SOUND:
            paths = [name]
        else:
            from nartk.data.audio.manifests import read_manifest

            with reading(name) as file:
                paths = [each.text for each in read_manifest(file, shown(name)) if each.text.strip()]
        found: dict[str, str] = {}
        for path in paths:
            if Path(path).stem in found:
                raise InputFileError(
                    f"{found[Path(path).stem]} and {path} have one name", fix="rename one", where=name
                )
            found[Path(path).stem] = path
        if not found:
            raise InputFileError("holds no sound files", fix="give a folder or a list of them", where=name)
        return found


def _in_numbers(path: str) -> list[tuple[int, str]]:
    """Key that sorts paths by name, where numbers are as large as they are: 2 before 10."""
    parts = re.split(r"(\d+)", Path(path).stem)
    return [(int(part) if part.isdecimal() else -1, part) for part in parts]


def _numbered(files: Mapping[str, str], lines: int) -> list[str]:
    """The names of files by line, of `lines` lines; those that are all numbers of lines may lack some."""
    numbers = [str(number) for number in range(1, lines + 1)]
    return numbers if len(files) < lines and {*files} <= {*numbers} else [*files]


@register_metric("asr-bleu")
class AsrBleu(Metric):
    """BLEU of a recogniser's transcripts, in lower case, 0 to 100.

    HYP is a folder or a list of sound files, or one of them. Where references begin with utterance ids, these
    are the names of the files; else files are lines in the order of the list, or of their names, whose
    numbers count as such, and files whose names are numbers of lines may be missing.
    """

    reads: ClassVar[Mapping[str, Reads]] = {"ref": Reads("texts of what was to be said", ids=True)}
    digits: ClassVar[int] = 2
    example: ClassVar[str] = "asr-bleu WAVS --recogniser asr-digits --ref REF --ref-speech REF_WAVS"
    reads_sound: ClassVar[bool] = True

    recogniser: str = option("", "model of speech that hears the files: a name or a folder")
    ref_speech: str = option("", "folder or list of the reference speech, whose score stands beside")

    def against(self, texts: Corpus) -> Comparison:
        bleu: Bleu = METRICS.make("bleu", {"lowercase": True})
        compare = bleu.against(texts)
        return lambda outputs: [replace(each, metric=self.name) for each in compare(outputs)]

    def scorer(self, files: MetricFiles) -> Scorer:
        if not self.recogniser:
            raise UsageError(f"{named('recogniser')} is missing", fix="name a model of speech")
        if files.recogniser is None:
            raise UsageError(f"{self.name} is without what opens models", fix="use nartk-score")
        recogniser = files.recogniser(self.recogniser)
        values = {key: getattr(files, key) for key in files.__dataclass_fields__}
        sounds = SoundFiles(**values, hearing=recogniser)
        base = super().scorer(sounds)

        def scored(name: str) -> MetricResult:
            (result,) = base(name)
            heard = sounds.heard[name]
            counts = {"unheard": heard.count(None), "empty": heard.count("")}
            signature = f"{result.signature}|recogniser:{recogniser.signature}"
            return replace(result, parts=counts | result.parts, signature=signature)

        beside = [replace(scored(self.ref_speech), metric="reference-speech")] if self.ref_speech else []
        return lambda name: [scored(name), *beside]
