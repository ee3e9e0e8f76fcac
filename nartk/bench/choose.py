"""Engines that the given models allow: every strategy whose needs are met, and peers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from nartk.architectures import architecture
from nartk.bench.specs import Spec
from nartk.decoders.drafters.own_layers import OwnLayers
from nartk.errors import NartkError, StrategyMismatchError, UsageError, named
from nartk.registry import named_protocols, options_of, reads_drafts, strategies, strategy_class
from nartk.serving.loading import load

ALL = "all"
DRAFTER = "drafter"  # the option of the strategies that draft with another model
_PEERS = ("hf", "hf:beam=5", "hf:lookup=10", "ctranslate2", "ctranslate2:beam=5", "fairseq", "fairseq:beam=5")


class Given:
    """The models of a benchmark, and the engines that they allow.

    Args:
        model: Its name or folder.
        drafters: Those of other models, or layers of the model itself. A strategy that drafts with one is
            paired with each that it takes.
        drafts: True if the sentences come with drafts.

    Attributes:
        left_out: Reason why a strategy, or a strategy with a drafter, was left out, by its label.
    """

    def __init__(self, model: str, drafters: Sequence[str], *, drafts: bool) -> None:
        self.model, self.drafters, self.drafts = model, drafters, drafts
        self._others = [each for each in drafters if not OwnLayers.are_named(each)]
        self.left_out: dict[str, str] = {}
        self._load = cache(load)  # models for what they are: nothing is decoded with them
        self._used: set[str] = set()

    def every(self, dtype: str) -> Iterator[Spec]:
        """Every strategy whose needs are met. What the model itself cannot serve, a drafter may."""
        for name in strategies():
            cls = strategy_class(name)
            if reads_drafts(cls) and not self.drafts:
                self.left_out[name] = "reads drafts, and none are given"
                continue
            hosts = [each for each in (self.model, *self._others) if self._speaks(each, cls)]
            if not hosts:
                self.left_out[name] = f"needs a {named_protocols(cls)}, and no model is one"
            for host in hosts[:1] if self.model in hosts else hosts:
                spec = Spec(name, name, {}, dtype)
                if host != self.model:
                    self._used.add(host)
                    spec = replace(spec, label=f"{name}:model={host}", model=host)
                error = self._refusal(spec)
                if error is None:
                    yield spec
                elif self.drafters and DRAFTER in options_of(name):
                    yield from self._paired(spec)
                else:
                    self.left_out[spec.label] = error.message

    def named(self, spec: Spec) -> list[Spec]:
        """A strategy with each drafter that it takes; itself where it names one, or takes none ever.

        Raises:
            UsageError: It takes none of these, or reads drafts and none are given.
        """
        if reads_drafts(strategy_class(spec.name)) and not self.drafts:
            raise UsageError(
                f"strategy {spec.name!r} reads drafts, and none are given",
                fix=f"give them with {named('drafts')}",
            )
        if not self.drafters or DRAFTER in spec.options or DRAFTER not in options_of(spec.name):
            return [spec]
        found = [*self._paired(spec)]
        if not found:
            why = self.left_out[f"{spec.label}:{DRAFTER}={self.drafters[-1]}"]
            raise UsageError(
                f"{spec.label!r} takes no {named('drafter')} that is given: {why}",
                fix="give one that it takes, or leave the strategy out",
            )
        return found

    def peers(self) -> list[str]:
        """Other libraries with the model's weights, by greedy and beam search and with their own drafts."""
        small = [
            each
            for each in self._others
            if architecture(self._load(each).checkpoint.architecture).autoregressive
        ]
        self._used.update(small)
        return [*_PEERS, *(f"hf:assistant={each}" for each in small)]

    def reasons(self) -> list[str]:
        """A line for each reason why engines were left out."""
        found: dict[str, list[str]] = {}
        for label, reason in self.left_out.items():
            found.setdefault(reason, []).append(label)
        return [f"left out: {', '.join(labels)}: {reason}" for reason, labels in found.items()]

    def require_used(self) -> None:
        """Refuses a drafter that no engine takes."""
        for drafter in self.drafters:
            if drafter not in self._used:
                reasons = [text for label, text in self.left_out.items() if label.endswith(f"={drafter}")]
                raise UsageError(
                    f"{named('drafter')} {drafter!r} is taken by no engine"
                    f"{''.join(f': {x}' for x in reasons[-1:])}",
                    fix="add a strategy that drafts with it, or leave it out",
                )

    def _paired(self, spec: Spec) -> Iterator[Spec]:
        for drafter in self.drafters:
            label, options = f"{spec.label}:{DRAFTER}={drafter}", spec.options | {DRAFTER: drafter}
            pair = replace(spec, label=label, options=options)
            error = self._refusal(pair)
            if error is None:
                self._used.add(drafter)
                yield pair
            else:
                self.left_out[label] = error.message

    def _refusal(self, spec: Spec) -> NartkError | None:
        """The error where the models do not serve a strategy; None: they do."""
        try:
            self._load(spec.model or self.model).strategy(spec.name, spec.options)
        except NartkError as error:
            return error
        return None

    def _speaks(self, name: str, strategy: type) -> bool:
        try:
            self._load(name).scorer_for(strategy)
        except StrategyMismatchError:
            return False
        return True
