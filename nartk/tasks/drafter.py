"""`--criterion nartk_drafter`: trains a drafter for the verifier that it is to draft for.

The drafter is a small autoregressive model (`--arch nartk_transformer`) or a blockwise one
(`--arch nartk_blockwise`). Its loss is (1 - W) times the label-smoothed cross-entropy of the target's words
plus W times a divergence from the verifier's distributions at the same words, under teacher forcing on the
target (W: `--distil-weight`; the divergences: `nartk.models.distil_losses`). A blockwise drafter, which has
not seen the words of its block, learns what the verifier says that has.

`accept_len`, logged when validating, is how many tokens a pass of the verifier gives with greedy acceptance.
It is measured against what the verifier says, never against the references; these are but the prefixes.
From a position of the target on these are the run of words where drafter and verifier say the same, at most
a block, and the verifier's own word behind it, unless the sentence ends before. It is the mean over all
positions of all targets, each with the target before it as prefix; of a blockwise drafter, over `STARTS` of
`nartk.models.blockwise` positions that split each target evenly. To keep the best drafter by it:
`--best-checkpoint-metric accept_len --maximize-best-checkpoint-metric`.

What `nartk-decode --stats` reports of real decoding is tokens / passes (accepted_per_pass and about one), in
which it differs thus. Its prefixes are the verifier's own output: those of validation data that the verifier
wrote (`nartk-distill`, then `--task nartk_translation --distilled DIR --distilled-valid`) are the same, raw
references are not. And its passes start where the last one ended, not anywhere. Starts near
the end of a sentence leave little to accept, which makes accept_len the smaller, most so if a block holds the
whole sentence: of ten words that are all right a pass accepts ten, and a start anywhere 5.5 on average.
Stretches of easy words hold many positions and few passes, which makes it the larger. So compare drafters of
one verifier on the same data and the same block.
"""

# No `from __future__ import annotations` here: fairseq reads the options' types from the class.
import logging
from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq import metrics
from fairseq.criterions import register_criterion
from torch import Tensor

from nartk.adapters.fairseq.converting import find_dictionary
from nartk.architectures import architecture, architectures
from nartk.architectures.settings import setting
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.errors import CheckpointError, StrategyMismatchError, UsageError, VocabMismatchError
from nartk.models.distil_losses import DIVERGENCES
from nartk.models.losses import Training, label_smoothed_cross_entropy
from nartk.models.transformer import Transformer
from nartk.tasks.core_model import read_model
from nartk.tasks.cross_entropy import CrossEntropy, WordLossConfig
from nartk.vocab import Vocab

CRITERION = "nartk_drafter"
NONE = "none"
_LOGGER = logging.getLogger(__name__)
_GLANCING = Training.__dataclass_fields__


@dataclass
class DrafterConfig(WordLossConfig):
    """Options of the criterion."""

    # fairseq knows no other way to write this type.
    verifier: Optional[str] = setting(  # noqa: UP045
        None,
        "model that the drafter is to draft for: a checkpoint (.pt) whose training data are "
        "where they were, or a folder as nartk-convert writes it; with the dictionaries of the data",
    )
    distil: str = setting(
        "kl",
        f"divergence from the verifier that is minimised: {', '.join(DIVERGENCES)} (Zhou et al. "
        f"2023; tvd++: Goel et al. 2024), or {NONE}: the target's words alone are learnt, and the "
        "verifier serves accept_len",
    )
    distil_weight: float = setting(
        0.5, "what the divergence weighs, in [0, 1]; the target's words weigh the rest"
    )
    distil_temperature: float = setting(
        1.0, "divides drafter's and verifier's logits in the divergence; above 0"
    )
    accept_block: int = setting(
        5,
        "longest draft of an autoregressive drafter (nartk-decode --block-size), for accept_len "
        "when validating: tokens that a pass of the verifier gives, against its own words behind "
        "the validation data's; a blockwise one fills its --block",
    )
    glancing: str = setting(
        str(_GLANCING["glancing"].default), "of blockwise drafters: " + _GLANCING["glancing"].metadata["help"]
    )
    glancing_strategy: str = setting(
        str(_GLANCING["glancing_strategy"].default),
        "of blockwise drafters: " + _GLANCING["glancing_strategy"].metadata["help"],
    )


@register_criterion(CRITERION, dataclass=DrafterConfig)
class Drafting(CrossEntropy):
    """The target's words and the verifier's distributions; sums over the words that the drafter says."""

    def __init__(self, task: Any, config: DrafterConfig) -> None:
        super().__init__(
            task, config.sentence_avg, config.label_smoothing, config.edit_weight, config.report_accuracy
        )
        if config.verifier is None:
            raise UsageError("--criterion nartk_drafter without --verifier", fix="give the verifier's model")
        if config.distil not in (*DIVERGENCES, NONE):
            raise UsageError(
                f"--distil is {config.distil!r}", fix=f"choose from {', '.join(DIVERGENCES)}, {NONE}"
            )
        if not 0.0 <= config.distil_weight <= 1.0:
            raise UsageError(f"--distil-weight is {config.distil_weight}, not in [0, 1]")
        if not 0.0 < config.distil_temperature < float("inf"):
            raise UsageError(f"--distil-temperature is {config.distil_temperature}, not above 0")
        if config.accept_block < 1:
            raise UsageError(f"--accept-block is {config.accept_block}", fix="give at least 1")
        self.divergence = DIVERGENCES.get(config.distil)
        self.weight = 0.0 if self.divergence is None else config.distil_weight
        self.temperature = config.distil_temperature
        self.block = config.accept_block
        self.nar = Training(
            label_smoothing=config.label_smoothing,
            glancing=config.glancing,
            glancing_strategy=config.glancing_strategy,
        )
        # In a tuple: it is no part of the criterion, whose weights fairseq trains and saves.
        self._verifier = (load_verifier(config.verifier, task),)
        distilled = getattr(getattr(task, "cfg", None), "distilled_valid", False)
        prefixes = "outputs of --distilled" if distilled else "references"
        _LOGGER.info(
            f"accept_len: tokens a pass of the verifier {config.verifier}, against its own words behind the "
            f"{prefixes} of the validation data"
        )

    @classmethod
    def build_criterion(cls, cfg: Any, task: Any) -> Any:
        return cls(task, cfg)

    def forward(
        self, model: Any, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Loss (nats, summed), how many words or sentences it is of, and what to log."""
        target, inputs = sample["target"], sample["net_input"]
        real = target.ne(self.padding_idx)
        require_trained(model)
        logits, counted, parts = model.draft_training(model, inputs, target, self.nar)
        weights = self.weights(inputs, target)
        loss, nll, _ = label_smoothed_cross_entropy(
            logits[None],
            target[counted][None],
            epsilon=self.eps,
            pad=self.padding_idx,
            weights=None if weights is None else weights[counted][None],
        )
        words, validating = logits.shape[0], not self.training
        if self.divergence is not None or validating:
            theirs = self._verify(model, inputs, real if validating else counted)
            if validating:
                best = torch.full_like(target, -1)
                best[real] = theirs.max(-1).indices
                passes, tokens = model.drafted_passes(inputs, target, logits, best, self.block)
                parts |= {"passes": passes, "pass_tokens": tokens}
                theirs = theirs[counted[real]]
            if self.divergence is not None:
                distance = self.divergence(logits, theirs, self.temperature)
                loss = (1.0 - self.weight) * loss + self.weight * distance
                parts["distil"] = distance
        size = target.shape[0] if self.sentence_avg else words
        logged = {
            "loss": loss.detach(),
            "nll_loss": nll.detach(),
            "ntokens": words,
            "nsentences": target.shape[0],
            "sample_size": size,
            **{name: value.detach() for name, value in parts.items()},
        }
        if "shown" in logged:
            logged["shown"] = logged["shown"] * words
        if self.report_accuracy:
            logged |= {"n_correct": (logits.max(-1).indices == target[counted]).sum(), "total": words}
        return loss, size, logged

    @torch.no_grad()
    def _verify(self, model: Any, inputs: dict[str, Tensor], positions: Tensor) -> Tensor:
        """The verifier's logits [N,V] at the N places [B,T] of the target, in the drafter's arithmetic."""
        source, previous = inputs["src_tokens"], inputs["prev_output_tokens"]
        verifier = self._verifier[0].to(source.device)
        for tokens, side in ((source, "source"), (previous, "target")):
            longest = getattr(verifier.config, f"max_{side}_len")
            if tokens.shape[1] > longest:
                raise StrategyMismatchError(
                    f"a {side} of {tokens.shape[1]} tokens, the verifier reads {longest}",
                    fix=f"--max-{side}-positions {longest} --skip-invalid-size-inputs-valid-test",
                )
        with model.autocast(source.device):
            logits: Tensor = verifier.output(verifier.features(verifier.encode(source), previous)[positions])
            return logits

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Logs fairseq's cross-entropy (in bits), the divergence a word (KL in nats) and accept_len."""

        def total(name: str) -> float:
            return float(sum(log.get(name, 0) for log in logging_outputs))

        words, passes = total("ntokens"), total("passes")
        if words == 0:  # glancing has shown everything
            return
        super().reduce_metrics(logging_outputs)
        for name in ("distil", "shown"):
            if any(name in log for log in logging_outputs):
                metrics.log_scalar(name, total(name) / words, words, round=4)
        if passes > 0:
            metrics.log_scalar("accept_len", total("pass_tokens") / passes, passes, round=3)


def require_trained(model: Any) -> None:
    """Refuses a model of an architecture that this criterion does not train."""
    own = getattr(model, "architecture", None)
    if own is None or CRITERION not in own.criterions:
        trained = [f"nartk_{name}" for name, each in architectures().items() if CRITERION in each.criterions]
        raise StrategyMismatchError(
            f"--criterion {CRITERION} trains no {type(model).__name__ if own is None else own.name} model",
            fix=f"--arch {' or '.join(trained)}",
        )


def load_verifier(name: str, task: Any) -> Transformer:
    """An autoregressive model, in evaluation mode and without gradients, for the dictionaries of a task.

    Args:
        name: A checkpoint, a model folder or a shipped model.

    Raises:
        StrategyMismatchError: It is not autoregressive.
        VocabMismatchError: It was trained with other dictionaries; the first differing id is named.
        CheckpointError: It is corrupt, or its dictionaries are not found.
    """
    network, stored = read_model(name)
    if isinstance(stored, Checkpoint):
        found, vocabs = stored.architecture, [stored.source_vocab, stored.target_vocab]
    else:
        found = stored.architecture
        try:
            vocabs = [Vocab.read(find_dictionary(stored, None, side)) for side in ("source", "target")]
        except CheckpointError as error:
            raise CheckpointError(
                error.message, fix="nartk-convert it with --dict, and name the folder", where=name
            ) from error
    if not architecture(found).autoregressive:
        raise StrategyMismatchError(
            f"--verifier {name} is a {found} model, which verifies nothing",
            fix="give the autoregressive model that it drafts for",
        )
    sizes = (network.config.src_vocab, network.config.tgt_vocab)
    dictionaries = (task.source_dictionary, task.target_dictionary)
    for side, vocab, size, dictionary in zip(("source", "target"), vocabs, sizes, dictionaries, strict=True):
        vocab.require_equal(
            Vocab(tuple(dictionary.symbols)), f"the verifier's {side} dictionary", "that of the data"
        )
        if size != len(vocab):
            raise VocabMismatchError(
                f"the verifier has {size} {side} words, its dictionary {len(vocab)}",
                fix="nartk-convert it with the --dict it was trained with, and name the folder",
            )
    return network.eval().requires_grad_(False)
