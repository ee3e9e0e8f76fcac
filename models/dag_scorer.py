"""Serves a DA-Transformer: all vertices and links in one pass, words where they are asked for.

Symbols: B rows, S source positions, L graph vertices, D features, N vertices in all.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nartk.models.da_transformer import DaTransformer
from nartk.models.lengths import pool
from nartk.models.nar_scorer import NarScorer, NarState
from nartk.models.serving import LENGTHS
from nartk.scorer import Graph, Source


class DagScorer(NarScorer):
    """Implements `nartk.scorer.GraphScorer`.

    A graph has `upsample_scale` (of a range, the larger) times as many vertices as its source has tokens, or
    as its output is predicted to have; never more than the model has positions, `max_target_len`.
    """

    model: DaTransformer

    @torch.inference_mode()
    def emit(self, source: Source) -> Graph:
        """Reads the source and says all vertices and edges at once."""
        return self.graph(self.read(source))

    @torch.inference_mode()
    def graph(self, state: NarState) -> Graph:
        """All vertices and edges of encoded sources."""
        lengths = self.sizes(state)
        x = self.model.inputs(self.model.canvas(lengths), state.tokens)
        hidden = self.decode(x, lengths, state)
        return Graph(hidden, self._links(hidden, lengths), lengths)

    def words(self, hidden: Tensor) -> Tensor:
        """Logits [N,V] of the words at vertices [N,D]; a row's do not depend on the others."""
        return self.logits(hidden)

    def sizes(self, state: NarState) -> Tensor:
        """Vertices [B] of the graphs of encoded sources."""
        model, lengths = self.model, state.lengths
        if model.config.upsampling == "predict":
            kept = self.columns(state.memory.shape[1]) < lengths[:, None]
            lengths = model.length_of(self.linear(model.lengths, pool(state.memory, kept)), lengths)
        return model.sizes(lengths, model.config.scales[1])

    def _links(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Links [B,L,L] of features [B,L,D]; in exact mode each row's are computed alone."""
        batch, width = hidden.shape[:2]
        layout, _ = self.counted(lengths, -(-width // LENGTHS) * LENGTHS if self.exact else width)
        vertices = hidden[layout.rows, layout.columns]
        packed = self.model.links.project(layout.pad(vertices), layout.pad(layout.columns))
        query, key, gate = (layout.unpack(x) for x in packed)
        if not self.exact:
            return self.model.links.mix(query, key, gate, lengths)
        links = query.new_full((batch, width, width), -math.inf, dtype=torch.float32)
        for row, size in enumerate(lengths.tolist()):
            one, own = slice(row, row + 1), -(-size // LENGTHS) * LENGTHS
            found = self.model.links.mix(query[one, :own], key[one, :own], gate[one, :own], lengths[one])
            links[row, :size, :size] = found[0, :size, :size]
        return links
