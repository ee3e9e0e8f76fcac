"""DASpeech: speech is translated into a graph of phonemes, and its vertices are spoken (Fang et al. 2023).

"DASpeech: Directed Acyclic Transformer for Fast and High-quality Speech-to-Speech Translation",
https://arxiv.org/abs/2310.07403. Symbols: B rows, T target tokens with bos and eos, L vertices, D features of
a vertex.

The network differs from the authors' program in its encoder, which subsamples by convolutions of kernel 3
over time and frequency. What is trained is the same: their program, too, lets no gradient through the
weights of the expected features.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures.daspeech import DaSpeechConfig
from nartk.architectures.parts import Group
from nartk.architectures.settings import Config
from nartk.models.da_transformer import DaTransformer, TrainedGraphs
from nartk.models.dag import dag_best_path, dag_posterior
from nartk.models.fastspeech2 import LOSSES, Acoustic, SpeechTargets
from nartk.models.losses import Losses, S2sTraining, with_encoder_ctc
from nartk.models.parts import PartModule
from nartk.models.training import Dropout
from nartk.models.transformer import Encoded


class Adaptor(PartModule):
    """Maps features of vertices to vectors of phonemes: two layers, with ReLU and dropout between."""

    up: nn.Linear
    down: nn.Linear

    def __init__(self, part: Group, config: Config) -> None:
        super().__init__(part, config)
        self.dropout = Dropout(config.dropout)

    def forward(self, features: Tensor) -> Tensor:
        found: Tensor = self.down(self.dropout(F.relu(self.up(features))))
        return found


class DaSpeech(DaTransformer):
    """A DA-Transformer over speech, an adaptor, and the acoustic part of FastSpeech 2."""

    config: DaSpeechConfig  # type: ignore[assignment]  # its graph is that of speech

    def __init__(self, config: DaSpeechConfig) -> None:
        super().__init__(config)  # type: ignore[arg-type]
        self.adaptor = Adaptor(config.tree["adaptor"], config)
        self.acoustic = Acoustic(config.tree["acoustic"], config)

    def losses(  # type: ignore[override]  # its batches have speech
        self,
        source: Encoded,
        target: Tensor,
        *,
        training: S2sTraining,
        update: int,
        speech: SpeechTargets,
    ) -> Losses:
        """The graph's loss plus `tts_factor` times the acoustic part's, of targets [B,N] and their speech.

        Targets that no path of their graph emits count in neither; ``dropped`` is how many. The acoustic
        part's gradient reaches the features of the vertices, and never links or words through the weights
        of the vertices.
        """
        losses, graphs = self.graph_losses(source, target, training=training, update=update)
        losses = with_encoder_ctc(
            losses, self.encoder, source, target, training=training, pad=self.config.pad
        )
        nothing = torch.stack([weights.sum() for weights in self.acoustic.parameters()]).sum() * 0.0
        parts, dropped = dict.fromkeys(LOSSES, nothing), losses.parts["dropped"]
        if graphs is not None:
            gather = {"expected": expected_states, "path": path_states}[training.acoustic_input]
            states, possible = gather(graphs)
            dropped = dropped + (~possible).sum()
            if bool(possible.any()):
                width = states.shape[1]
                kept = torch.arange(width, device=states.device) < graphs.counts[:, None] - 1
                targets = speech.rows(graphs.fits).rows(possible).trimmed(width)
                parts = self.acoustic.losses(self.adaptor(states[possible]), kept[possible], targets)
        tts = torch.stack([*parts.values()]).sum()
        return replace(
            losses,
            total=losses.total + training.tts_factor * tts * losses.tokens,
            parts={
                **losses.parts,
                "dropped": dropped,
                **{name: value.detach() for name, value in parts.items()},
            },
        )


def expected_states(graphs: TrainedGraphs) -> tuple[Tensor, Tensor]:
    """The expected features of each target token's vertex, over all paths: z_i = sum_j p_ij v_j.

    p is `dag_posterior` of the scores as they are, pinned where they are; no gradient goes through it.
    Fang et al. 2023, section 3.2.

    Returns:
        [B,T-1,D], without bos, with eos; zeros behind the end and of impossible targets. And which targets
        are possible, [B] bool.
    """
    posterior = dag_posterior(graphs.match, graphs.links, graphs.counts, graphs.sizes)
    # Bos is emitted by vertex 0, if there is a path.
    return posterior[:, 1:].to(graphs.features.dtype) @ graphs.features, posterior[:, 0, 0] > 0.5


def path_states(graphs: TrainedGraphs) -> tuple[Tensor, Tensor]:
    """The features of the vertices on each target's best path; shapes as of `expected_states`."""
    path = dag_best_path(graphs.match, graphs.links, graphs.counts, graphs.sizes)
    at = path[:, 1:, None]
    states = graphs.features.gather(1, at.clamp(min=0).expand(-1, -1, graphs.features.shape[2]))
    return states.masked_fill(at < 0, 0.0), path[:, 0] >= 0
