"""Light drafters: `--arch nartk_light_drafter --criterion nartk_drafter --verifier MODEL`.

The verifier encodes each batch and learns nothing; what is trained and saved is the drafter's decoder. Where
that is as wide as the verifier's, its words begin as the verifier's.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import Field
from typing import Any

import torch
from torch import Tensor

from nartk.architectures import architecture
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.names import model_folder
from nartk.errors import UsageError
from nartk.models.transformer import Transformer
from nartk.tasks.core_model import register_model_of
from nartk.tasks.drafter import load_verifier
from nartk.tasks.transformer import NextWords

# Known from the verifier, so they are no options.
FROM_VERIFIER = ("d_model", "drafts_for", "max_source_len", "max_target_len")


class FairseqLightDrafter(NextWords):
    """Holds a light drafter, and beside it the verifier, which is no part of it."""

    architecture = architecture("light_drafter")
    verifier: tuple[Transformer]  # in a tuple: torch would train and save it

    @classmethod
    def options(cls) -> tuple[Field[Any], ...]:
        return tuple(item for item in super().options() if item.name not in FROM_VERIFIER)

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> FairseqLightDrafter:
        """Builds the drafter of `--verifier`, whose features and lengths it has.

        Raises:
            UsageError: No verifier is named, it is no model folder, or an encoder is to begin with.
            NartkError: Same as in `nartk.tasks.drafter.load_verifier`.
        """
        name = getattr(args, "verifier", None)
        if name is None:
            raise UsageError(
                "--arch nartk_light_drafter without --verifier",
                fix="add --criterion nartk_drafter --verifier MODEL",
            )
        if getattr(args, "init_encoder", None) is not None:
            raise UsageError("--init-encoder of a light drafter, which has no encoder", fix="leave it out")
        if not model_folder(name).is_dir():
            raise UsageError(
                f"--verifier {name} is no model folder, which a light drafter names by its fingerprint",
                fix="nartk-convert it, and name the folder",
            )
        verifier = load_verifier(name, task)
        known: dict[str, Any] = {item: getattr(verifier.config, item, None) for item in FROM_VERIFIER}
        known["drafts_for"] = load_checkpoint(model_folder(name)).fingerprint
        vars(args).update(known)  # so that they are saved with the checkpoint
        target = task.target_dictionary
        config = cls.architecture.config(
            tgt_vocab=len(target),
            pad=target.pad(),
            **known,
            **{item.name: getattr(args, item.name) for item in cls.options()},
        )
        model = cls(config, None, target, getattr(args, "autocast", "none"))
        model.verifier = (verifier,)
        words, theirs = model.core.decoder.embedding.words.weight, verifier.decoder.embedding.words.weight
        if words.shape == theirs.shape and config.scale_embedding == verifier.config.scale_embedding:
            with torch.no_grad():
                words.copy_(theirs)
        return model

    def forward(
        self, src_tokens: Tensor, src_lengths: Tensor, prev_output_tokens: Tensor, **unused: Any
    ) -> tuple[Tensor, None]:
        """src_tokens [B,S] padded on either side, prev_output_tokens [B,T] on the right -> logits [B,T,V]."""
        verifier = self.verifier[0].to(src_tokens.device)
        with self.autocast(src_tokens.device):
            with torch.no_grad():
                source = verifier.encode(src_tokens)
            return self.core.output(self.core.features(source, prev_output_tokens)), None


register_model_of(FairseqLightDrafter, architecture("light_drafter"))
