"""Reads a Hugging Face model's generation_config.json as options of strategies.

The key ``generation`` of a model folder's config.json holds it: values of options by name, which take the
place of defaults, and ``strategy``, the name of the one that decodes where none is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from nartk.checkpoints.names import CONFIG, GENERATION_CONFIG
from nartk.errors import CheckpointError, UnknownStrategyError, UnsupportedCheckpointError
from nartk.files import JsonObject
from nartk.registry import DECODERS, options_of

KEY = "generation"

# What the key may hold, and those of it that outputs must keep to.
_TYPES = {
    "strategy": str,
    "max_len": int,
    "max_ratio": float,
    "beam_size": int,
    "nbest": int,
    "length_penalty": float,
    "early_stopping": str,
    "renormalize": bool,
    "timestamps": bool,
    "beam_groups": int,
    "diversity_penalty": float,
}
# Of the strategy that draws, where the model names it: others that can draw do so where they are told to.
_SAMPLING = {"temperature": float, "top_k": int, "top_p": float}
_CONSTRAINTS = {
    "min_len": int,
    "repetition_penalty": float,
    "no_repeat_ngram": int,
    "no_source_ngram": int,
    "suppress_ids": str,
    "suppress_first_ids": str,
    "forced_bos": int,
    "forced_eos": bool,
}
C = TypeVar("C")
_UNBOUND = 1e6  # a max_ratio at which max_len alone bounds an output

# Fields of transformers' GenerationConfig, 5.23 and older: those that are read below,
_READ = """max_length max_new_tokens min_length min_new_tokens early_stopping num_beams num_return_sequences
    length_penalty renormalize_logits repetition_penalty no_repeat_ngram_size bad_words_ids suppress_tokens
    begin_suppress_tokens forced_bos_token_id forced_eos_token_id eos_token_id decoder_start_token_id
    do_sample temperature top_k top_p encoder_no_repeat_ngram_size num_beam_groups diversity_penalty"""
# those that change no output: words that are read elsewhere, drafts, caches and what is returned,
_LEFT = """bos_token_id pad_token_id min_p top_h typical_p epsilon_cutoff eta_cutoff
    num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold
    prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit assistant_lookbehind
    target_lookbehind speculation_type use_cache cache_implementation cache_config max_cache_len
    prefill_chunk_size compile_config disable_compile continuous_batching_config remove_invalid_values
    output_attentions output_hidden_states output_scores output_logits return_dict_in_generate
    transformers_version _from_model_config _commit_hash _original_object_hash"""
HONOURED, IRRELEVANT = frozenset(_READ.split()), frozenset(_LEFT.split())
# and the others, with the values besides null at which they do nothing.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "max_time": (),
    "stop_strings": (),
    "use_mtp": (False,),
    "encoder_repetition_penalty": (1.0,),
    "exponential_decay_length_penalty": (),
    "sequence_bias": (),
    "token_healing": (False,),
    "guidance_scale": (1.0,),
    "watermarking_config": (),
    "is_assistant": (False,),
    "assistant_ensemble_weight": (),
    "low_memory": (False,),
    "penalty_alpha": (0.0,),
    "dola_layers": (),
    "constraints": (),
    "force_words_ids": (),
}
# Of those that change none, some do where words are drawn, but for these values.
_SAMPLERS = {"min_p": 0.0, "top_h": None, "typical_p": 1.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}


# By model_type the strategy that decodes sound of any length; the fields that such models have besides: those
# that `checkpoints.hugging_face.speech` reads, and those of times of single words, which are not decoded;
SPEECH = {"whisper": "windows"}
_PROMPTS = """forced_decoder_ids is_multilingual lang_to_id language max_initial_timestamp_index
    no_timestamps_token_id return_timestamps task task_to_id"""
_TIMES = "alignment_heads median_filter_width prev_sot_token_id prompt_condition_type return_segments"
OF_PROMPTS, OF_TIMES = frozenset(_PROMPTS.split()), frozenset(_TIMES.split())
# and those by which a window is decoded again or otherwise, with the values at which they do nothing.
SPEECH_NEUTRAL: dict[str, tuple[object, ...]] = {
    "min_length": (0,),  # which counts the prompt
    "do_sample": (False,),
    "encoder_no_repeat_ngram_size": (0,),
    "num_beam_groups": (1,),
    "compression_ratio_threshold": (),
    "condition_on_prev_tokens": (False,),
    "logprob_threshold": (),
    "no_speech_threshold": (),
    "prompt_ids": (),
    "return_token_timestamps": (False,),
    "_detect_timestamp_from_logprob": (True,),
    "force_unique_generate_call": (False,),
}


def ending_words(config: JsonObject, generation_config: JsonObject | None) -> tuple[int, ...]:
    """The words that end an output, as `generate` has them; first the one that is forced, if one is.

    Args:
        config, generation_config: Same as in `read_generation`.
    """
    fields = _Fields.of(config, generation_config)
    words = fields.words("eos_token_id")
    forced = fields.word("forced_eos_token_id")
    return tuple(dict.fromkeys([forced, *words] if forced in words else words))


def read_generation(
    config: JsonObject,
    generation_config: JsonObject | None,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> JsonObject:
    """The values of options with which strategies decode as `generate` does with a model's configuration.

    Where no longest output is given, nartk's own holds, not the 20 tokens of `generate`.

    Args:
        config: Contents of config.json.
        generation_config: Contents of generation_config.json; None: there is none, and config.json is read
            for it, as older models have it.
        tell: Receives a line on ignored fields.

    Raises:
        UnsupportedCheckpointError: It asks for what would change outputs and is not known here.
        CheckpointError: A value is none that its field may have.
    """
    fields = _Fields.of(config, generation_config)
    speech = SPEECH.get(config.get("model_type", ""))
    fields.check_names(tell, of_speech=speech is not None)
    found: JsonObject = {"max_ratio": _UNBOUND}
    # Theirs count the start token; of speech, prompts are not counted.
    less = int(speech is None)
    longest = fields.number("max_new_tokens", fields.number("max_length", None, low=1 + less, less=less))
    least = fields.number("min_new_tokens", fields.number("min_length", None, low=0, less=1), low=0)
    if longest is not None:
        found["max_len"] = longest
    if least is not None and least > 0:
        found["min_len"] = least if longest is None else min(least, longest)
    beams = fields.number("num_beams", 1)
    if beams > 1:
        found |= {"strategy": "beam", "beam_size": beams}
        found["nbest"] = fields.number("num_return_sequences", 1)
    if (groups := fields.number("num_beam_groups", 1)) > 1:
        found |= {"beam_groups": groups, "diversity_penalty": fields.real("diversity_penalty", 0.0)}
    if fields.choice("do_sample", {False: False, True: True}):
        found |= fields.sampling(beams, tell)
    if speech is not None:
        found |= {"strategy": speech, "beam_size": beams}
        found["timestamps"] = fields.choice("return_timestamps", {False: False, True: True})
    found["early_stopping"] = fields.choice(
        "early_stopping", {False: "false", True: "true", "never": "never"}
    )
    found["length_penalty"] = fields.real("length_penalty", 1.0)
    found["renormalize"] = fields.choice("renormalize_logits", {False: False, True: True})
    if found["renormalize"] and groups > 1:
        raise fields.unsupported("renormalize_logits", f"with `num_beam_groups` {groups}")
    if (penalty := fields.real("repetition_penalty", 1.0)) != 1:
        found["repetition_penalty"] = penalty
    if ngram := fields.number("no_repeat_ngram_size", 0, low=0):
        found["no_repeat_ngram"] = ngram
    if ngram := fields.number("encoder_no_repeat_ngram_size", 0, low=0):
        found["no_source_ngram"] = ngram
    if speech is not None:
        fields.word("eos_token_id")
    ends, bos = ending_words(config, generation_config), fields.word("forced_bos_token_id")
    fields.word("decoder_start_token_id")
    if bos is not None:
        found["forced_bos"] = bos
    ending = fields.word("forced_eos_token_id")
    if ending is not None:
        if ending not in ends:
            raise fields.unsupported("forced_eos_token_id", "which is not eos_token_id")
        found["forced_eos"] = True
    suppressed = fields.words("suppress_tokens")
    if {*ends, bos} & {*suppressed}:
        raise fields.unsupported("suppress_tokens", "eos or forced_bos_token_id among them")
    sequences = [[word] for word in suppressed]
    sequences += [
        each for each in fields.sequences("bad_words_ids") if not (len(each) == 1 and each[0] in ends)
    ]
    if sequences:
        found["suppress_ids"] = " / ".join(" ".join(map(str, each)) for each in sequences)
    if first := fields.words("begin_suppress_tokens"):
        found["suppress_first_ids"] = " ".join(map(str, first))
    return found


def write_generation(generation: JsonObject, eos: int, also_eos: Sequence[int] = ()) -> JsonObject:
    """The fields of a generation_config.json for which `read_generation` gives these values."""
    found: JsonObject = {"eos_token_id": [eos, *also_eos] if also_eos else eos}
    names = {
        "beam_size": "num_beams",
        "nbest": "num_return_sequences",
        "length_penalty": "length_penalty",
        "renormalize": "renormalize_logits",
        "repetition_penalty": "repetition_penalty",
        "no_repeat_ngram": "no_repeat_ngram_size",
        "no_source_ngram": "encoder_no_repeat_ngram_size",
        "beam_groups": "num_beam_groups",
        "diversity_penalty": "diversity_penalty",
        **{name: name for name in _SAMPLING},
        "forced_bos": "forced_bos_token_id",
    }
    found |= {theirs: generation[ours] for ours, theirs in names.items() if ours in generation}
    if _SAMPLING.keys() <= generation.keys():
        found["do_sample"] = True
    # Their lengths count the start token.
    for ours, theirs in (("max_len", "max_length"), ("min_len", "min_length")):
        if ours in generation:
            found[theirs] = generation[ours] + 1
    if "early_stopping" in generation:
        found["early_stopping"] = {"true": True, "false": False, "never": "never"}[
            generation["early_stopping"]
        ]
    if generation.get("forced_eos"):
        found["forced_eos_token_id"] = eos
    if "suppress_ids" in generation:
        sequences = generation["suppress_ids"].split(" / ")
        found["bad_words_ids"] = [[*map(int, words.split())] for words in sequences]
    if "suppress_first_ids" in generation:
        found["begin_suppress_tokens"] = [*map(int, generation["suppress_first_ids"].split())]
    return found


class _Fields:
    """The fields of a GenerationConfig that are given."""

    def __init__(self, values: JsonObject, file: str) -> None:
        self.values = {name: value for name, value in values.items() if value is not None}
        self.file = file

    @classmethod
    def of(cls, config: JsonObject, generation_config: JsonObject | None) -> _Fields:
        if generation_config is not None:
            eos = {"eos_token_id": config.get("eos_token_id")}
            return cls({**eos, **generation_config}, GENERATION_CONFIG)
        known = HONOURED | IRRELEVANT | NEUTRAL.keys()
        found = {name: value for name, value in config.items() if name in known}
        if config.get("force_bos_token_to_be_generated"):  # of the first BART models
            found["forced_bos_token_id"] = config.get("bos_token_id")
        return cls(found, CONFIG)

    def check_names(self, tell: Callable[[str], None], *, of_speech: bool) -> None:
        """Refuses what would change outputs and is not supported, and tells of what is not known."""
        neutral, others = NEUTRAL, HONOURED | IRRELEVANT
        if of_speech:
            neutral, others = {**NEUTRAL, **SPEECH_NEUTRAL}, others | OF_PROMPTS | OF_TIMES
        for name, value in self.values.items():
            if name in neutral and value not in neutral[name]:
                raise self.unsupported(name, "which is not supported")
            if name not in others | neutral.keys():  # somebody's own, which `generate` keeps to itself
                tell(f"{self.file}: {name} is {self.values[name]!r}, which is not known and is passed over")

    def unsupported(self, name: str, why: str) -> UnsupportedCheckpointError:
        return UnsupportedCheckpointError(
            f"{name} is {self.values[name]!r}, {why}",
            fix="decode without it: take it out of the file",
            where=self.file,
        )

    def sampling(self, beams: int, tell: Callable[[str], None]) -> JsonObject:
        """The options with which words are drawn where no strategy is named."""
        if beams > 1:
            tell(f"{self.file}: do_sample with num_beams of {beams}: beam search draws no words")
            return {}
        for name, neutral in _SAMPLERS.items():
            if self.values.get(name, neutral) != neutral:
                tell(f"{self.file}: {name} is {self.values[name]!r}; words are drawn without it")
        return {
            "strategy": "sample",
            "temperature": self.real("temperature", 1.0),
            "top_k": self.number("top_k", 50, low=0),  # `generate` has 50 where nothing is given
            "top_p": self.real("top_p", 1.0),
            "nbest": self.number("num_return_sequences", 1),
        }

    def number(self, name: str, default: int | C, *, low: int = 1, less: int = 0) -> int | C:
        """A whole number, less so many."""
        if name not in self.values:
            return default
        value = self.values[name]
        self._require(name, type(value) is int and value >= low, f"from {low} on")
        return int(value) - less

    def real(self, name: str, default: float) -> float:
        value = self.values.get(name, default)
        self._require(name, type(value) in (int, float), "")
        return float(value)

    def choice(self, name: str, choices: Mapping[bool | str, C]) -> C:
        value = self.values.get(name, False)
        self._require(name, type(value) in (bool, str) and value in choices, f"of {[*choices]}")
        return choices[value]

    def word(self, name: str) -> int | None:
        """The id of a word, which may be a list's only one."""
        value = self.values.get(name)
        if isinstance(value, list) and len(value) > 1:
            raise self.unsupported(name, "more than one word")
        if value is None or value == []:
            return None
        words: list[int] = value if isinstance(value, list) else [value]
        self._require(name, _are_ids(words), "an id")
        return words[0]

    def words(self, name: str) -> list[int]:
        """The ids of words; one may stand by itself."""
        found = self.values.get(name, [])
        words: list[int] = found if isinstance(found, list) else [found]
        self._require(name, _are_ids(words), "ids")
        return words

    def sequences(self, name: str) -> list[list[int]]:
        found: list[list[int]] = self.values.get(name, [])
        self._require(
            name, isinstance(found, list) and all(each and _are_ids(each) for each in found), "lists of ids"
        )
        return found

    def _require(self, name: str, is_one: bool, what: str) -> None:
        if not is_one:
            raise CheckpointError(
                f"{name} is {self.values[name]!r}, not a value {what}".rstrip(), where=self.file
            )


def _are_ids(words: object) -> bool:
    return isinstance(words, list) and all(type(word) is int and word >= 0 for word in words)


def check_generation(values: object, where: str) -> JsonObject:
    """The values of a config.json, if they are what `read_generation` gives.

    Raises:
        CheckpointError: They are not.
    """
    if not isinstance(values, dict):
        raise CheckpointError(f"{KEY!r} is {values!r}, not options by name", where=where)
    for name, value in values.items():
        if type(value) is not (_TYPES | _CONSTRAINTS | _SAMPLING).get(name):
            raise CheckpointError(f"{KEY!r} has {name!r} {value!r}, which is no such option", where=where)
    try:
        if "strategy" in values:
            DECODERS.find(values["strategy"])
    except UnknownStrategyError as error:
        raise CheckpointError(f"{KEY!r}: {error.message}", where=where) from error
    return values


def with_generation(generation: JsonObject, strategy: str, given: JsonObject) -> JsonObject:
    """The options given for a strategy, with a model's own values of those that are not given."""
    known = options_of(strategy)
    found = {name: value for name, value in generation.items() if name in known}
    if strategy != generation.get("strategy"):
        found = {name: value for name, value in found.items() if name not in _SAMPLING}
    for name, value in found.items():
        most = known[name].metadata["most"]
        if type(given.get(most)) is int:
            found[name] = min(value, given[most])
    both = {**found, **given}
    groups, size = found.get("beam_groups", 1), both.get("beam_size")
    if "beam_groups" not in given and type(size) is int and size % groups:
        del both["beam_groups"]  # the user's beam has no such groups
    return both


def unheeded(generation: JsonObject, strategy: str) -> str:
    """In a line, what of a model's constraints a strategy does not keep to; empty: it keeps to all."""
    names = [name for name in generation if name in _CONSTRAINTS and name not in options_of(strategy)]
    return f"strategy {strategy!r} does not keep to the model's {', '.join(names)}" if names else ""
