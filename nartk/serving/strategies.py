"""Makes strategies for a loaded model: its own options, other models that they name, stored thresholds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import Field, replace
from typing import TYPE_CHECKING, Any

from nartk.checkpoints.generation import unheeded, with_generation
from nartk.checkpoints.names import CONFIG
from nartk.checkpoints.word_counts import drafted_words
from nartk.decoders.drafters.own_layers import OwnLayers
from nartk.errors import NartkError, StrategyMismatchError, named
from nartk.protocols.aligned import AlignedWords
from nartk.protocols.encoded import ReadsEncoded
from nartk.protocols.passes import PassScorer
from nartk.protocols.trimmed import TrimmedWords
from nartk.registry import declared, implied, make_strategy, options_of, strategies

if TYPE_CHECKING:
    from nartk.decoders.strategy import Strategy
    from nartk.serving.model import Model


def fitting(model: Model) -> list[str]:
    """Names of the strategies that decode with a model where no option is given; no other model is loaded."""
    return [name for name in strategies() if fits(model, name)]


def fits(model: Model, name: str) -> bool:
    """Tells whether a strategy decodes with a model where no option is given; no other model is loaded."""
    try:
        made: Strategy = make_strategy(name, {})
        scorer = model.scorer_for(made)
        if made.needs_blank and scorer.blank is None:
            return False
        if not any(_named(model, "", item) for item in options_of(name).values()):
            made.check_auxiliary()
    except NartkError:
        return False
    return True


def _named(model: Model, given: str, item: Field[Any]) -> str:
    """Name of the other model of an option; "": there is none."""
    within = item.metadata["within"]
    if given or not within:
        return given
    folder = model.checkpoint.folder / within
    return str(folder) if (folder / CONFIG).is_file() else ""


def _require_verifier(drafter: Model, model: Model, name: str) -> None:
    """Raises StrategyMismatchError unless a drafter reads what this model encodes."""
    wanted = drafter.config.drafts_for  # type: ignore[attr-defined]  # of its encoder's place
    mine = model.checkpoint.fingerprints
    if wanted not in mine:
        raise StrategyMismatchError(
            f"{name} drafts for the model {wanted!r}, and this one is {mine[0]!r}",
            fix="name the drafter that was trained for this model, or train one",
        )
    if drafter.config.d_model != model.config.d_model:
        raise StrategyMismatchError(
            f"{name} reads encoded sources of {drafter.config.d_model} features, the model's have "
            f"{model.config.d_model}",
            fix="train it again for this model",
        )


def _other(model: Model, name: str, item: Field[Any], tell: Callable[[str], None]) -> Model:
    """The other model that an option names, which fits this one."""
    key, found = item.name, model.other(name)
    mine, theirs = model.checkpoint, found.checkpoint
    if isinstance(found.passes, ReadsEncoded):
        _require_verifier(found, model, f"{key} {name!r}")
    else:
        mine.input.require_equal(theirs.input, "the model", f"{key} {name!r}")
    is_pair = isinstance(found.passes, PassScorer) and isinstance(model.passes, PassScorer)
    mine.target_vocab.require_equal(theirs.target_vocab, "the model", f"{key} {name!r}", padded=is_pair)
    for side in ("max_source_len", "max_target_len"):
        capacity, wanted = (getattr(each.config, side) for each in (found, model))
        if capacity < wanted:
            raise StrategyMismatchError(
                f"{key} {name!r} has a `{side}` of {capacity} tokens, the model one of {wanted}",
                fix="train it with the model's lengths",
            )
    if item.metadata["smaller"] and found.parameters > model.parameters:
        tell(
            f"{key} {name!r} has {found.parameters:,} parameters, the model {model.parameters:,}; "
            "drafts pay where the smaller model makes them: are the two swapped?"
        )
    return found


def _own_layers(model: Model, given: str, strategy: str, item: Field[Any]) -> OwnLayers:
    """The layers of the model that an option names in another model's place.

    Raises:
        StrategyMismatchError: The strategy drafts with other models alone.
        UsageError: The model has no such layers.
    """
    if not item.metadata["itself"]:
        raise StrategyMismatchError(
            f"{named(item.name)} of {strategy!r} is {given!r}, but the model's own layers do not draft there",
            fix="name another model, or choose speculative or bild",
        )
    found = OwnLayers.read(given)
    found.of(model.passes)
    return found


def made_strategy(
    model: Model, name: str | None, options: Mapping[str, Any], *, tell: Callable[[str], None] = warnings.warn
) -> Strategy:
    """The strategy `name`, checked against a model, with the other models that it needs loaded.

    The `KEPT` other models used last stay loaded, and are not read again when another call names them.
    The model's own values of options (`checkpoints.generation`), and thresholds that
    `nartk-calibrate` has stored for these models, take the place of defaults.

    Args:
        name: None: the one that the model's configuration names, or greedy search; or the one that an
            option implies which that has not (`nartk.registry.implied`).
        tell: Receives a line where there are such thresholds, but not for these models or options, on
            each constraint of the model's that the strategy does not keep to, and where another model
            that should be smaller is larger than the model.

    Raises:
        CheckpointError: Another model, or what is stored, is corrupt.
        StrategyMismatchError: The model, or another one that an option names, is of the wrong
            architecture or has fewer positions than the model.
        UsageError: An option names layers of the model that it has not.
        VocabMismatchError: Another model reads or writes other words.
    """
    if isinstance(model.passes, ReadsEncoded):
        raise StrategyMismatchError(
            f"{str(model.checkpoint.folder)!r} drafts on what its verifier has encoded, and decodes nothing",
            fix=f"name its verifier, and this one with {named('drafter')}",
        )
    generation = model.checkpoint.generation
    if name is None:
        name = implied(options, generation.get("strategy", "greedy"))
    options = declared(options, options_of(name))
    made: Strategy = make_strategy(name, with_generation(generation, name, options))
    model.scorer_for(made)
    if ignored := unheeded(generation, name):
        tell(ignored)
    auxiliary: dict[str, Any] = {}
    mine = model.checkpoint
    for key, item in options_of(name).items():
        if not item.metadata["model"] or not (other := _named(model, getattr(made, key), item)):
            continue
        if OwnLayers.are_named(other):
            auxiliary[key] = _own_layers(model, other, name, item)
            checkpoint, fingerprint = mine, other
        else:
            found = _other(model, other, item, tell)
            auxiliary[key], checkpoint = found.passes, found.checkpoint
            fingerprint = checkpoint.fingerprint
            if len(checkpoint.target_vocab) != len(mine.target_vocab):
                auxiliary[key] = AlignedWords(found.passes, mine.target_vocab)
        made = replace(made, **{key: fingerprint})  # type: ignore[arg-type]
        from nartk.checkpoints import thresholds

        added, unfit = thresholds.apply(
            mine.folder, made, options, model=mine.fingerprint, drafter=fingerprint
        )
        if unfit:
            tell(unfit)
        made = replace(made, **added)
        if most := getattr(made, f"{key}_words", 0):
            drafter = auxiliary[key]
            is_own = isinstance(drafter, OwnLayers)
            named_as = "the model" if is_own else f"{key} {other!r}"
            words = drafted_words(checkpoint.files, most, checkpoint.target_vocab, drafter=named_as)
            auxiliary[key] = replace(drafter, words=words) if is_own else TrimmedWords(drafter, words)
    if auxiliary:
        made = replace(made, auxiliary=auxiliary)
    made = made.in_pieces(model.checkpoint.output)
    made.check_auxiliary()
    if model.replicas > 1:
        from nartk.serving.replicas import require_replicable

        require_replicable(made, model.scorer_for(made))
    return made
