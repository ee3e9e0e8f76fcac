"""The DA-Transformer: a graph of vertices with a word each, whose paths are the outputs (Huang et al. 2022).

"Directed Acyclic Transformer for Non-Autoregressive Machine Translation", https://arxiv.org/abs/2205.07459.
A target is bos, words and eos; vertex 0 says bos, which is the mask too, and the last vertex eos.
Symbols: B rows, S source positions, T target tokens with bos and eos, L vertices, H heads of the links,
D features, V words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nartk.architectures.dag import DagConfig
from nartk.architectures.parts import Group
from nartk.architectures.settings import Config
from nartk.models.dag import dag_best_path, dag_log_likelihood
from nartk.models.fuzzy_alignment import fuzzy_alignment
from nartk.models.glancing import is_best, reveal, same_dropout
from nartk.models.layers import init_linears
from nartk.models.lengths import length_loss, pool, predictor
from nartk.models.losses import Losses, Training
from nartk.models.match_scores import match_scores
from nartk.models.nar import ParallelDecoding, uniform_copy
from nartk.models.parts import PartModule
from nartk.models.transformer import Encoded
from nartk.vocab import MASK, SPECIALS

EOS = SPECIALS.index("</s>")

_NO_EDGE = -1e9  # score of an edge that is none: softmax gives it exactly 0, and no NaN where all are none


class Links(PartModule):
    """Transitions from each vertex: attention over later vertices, its heads mixed by gates."""

    positions: nn.Embedding | None
    query: nn.Linear
    key: nn.Linear
    gate: nn.Linear

    def __init__(self, part: Group, config: Config) -> None:
        super().__init__(part, config)
        self.heads = part["gate"].outputs
        self.longest_link: int = part.settings["longest_link"]
        self.by_feature: bool = part.settings["by_features"]
        init_linears(self)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Log-probabilities of the next vertex: hidden [B,L,D], lengths [B] -> [B,L,L]; see `mix`."""
        positions = torch.arange(hidden.shape[1], device=hidden.device).expand(hidden.shape[:2])
        return self.mix(*self.project(hidden, positions), lengths)

    def project(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [...,D] and gates [...,H] of vertices [...,D] at their positions [...]."""
        parts = [hidden] if self.by_feature else []
        if self.positions is not None:
            parts.append(self.positions(positions).to(hidden.dtype))
        x = torch.cat(parts, -1)
        return self.query(x), self.key(x), self.gate(x)

    def mix(self, query: Tensor, key: Tensor, gate: Tensor, lengths: Tensor) -> Tensor:
        """Links of queries and keys [B,L,D] and gates [B,L,H] -> [B,L,L] in fp32, or fp64 if these are.

        Of each vertex but the last of lengths [B] the probabilities of all later ones, as far as
        `max_transition_length` goes, sum to 1; everywhere else is minus infinity. None is below the type's
        smallest normal number, 1e-38 in fp32, so that an edge stays one. Huang et al. 2022, equation 4 and
        appendix A.
        """
        wide = query.dtype if query.dtype == torch.float64 else torch.float32
        with torch.autocast(query.device.type, enabled=False):
            q, k = (x.to(wide).unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (query, key))
            positions = torch.arange(query.shape[1], device=query.device)
            ahead = positions - positions[:, None]
            # [L,L] & [B,1,L] -> [B,L,L]
            edge = (ahead > 0) & (ahead <= self.longest_link) & (positions < lengths[:, None, None])
            mixed: Tensor = _MixHeads.apply(  # type: ignore[no-untyped-call]
                q * q.shape[-1] ** -0.5, k, gate.to(wide).softmax(-1), edge
            )
            return mixed.clamp(min=torch.finfo(wide).tiny).log().masked_fill(~edge, -math.inf)


class _MixHeads(torch.autograd.Function):
    """Attention of all heads, mixed by their gates: q and k [B,H,L,D], gates [B,L,H] -> [B,L,L].

    One head exists at a time, in the backward pass too, which computes it again: the probabilities of all
    heads would be the largest tensors of a training step, and reading them costs more than computing them.
    Where `edge` [B,L,L] is false they are 0, in a row without any edge the same everywhere.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, gates: Tensor, edge: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, gates, edge)
        mixed = q.new_zeros(edge.shape)
        for head in range(q.shape[1]):
            mixed.addcmul_(_head(q, k, edge, head), gates[:, :, head, None])
        return mixed

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, gates, edge = ctx.saved_tensors
        by_q, by_k, by_gates = (torch.empty_like(x) for x in (q, k, gates))
        for head in range(q.shape[1]):
            probs = _head(q, k, edge, head)
            by_gate = torch.einsum("bij,bij->bi", probs, gradient)
            by_scores = probs.mul_(gradient - by_gate[..., None]).mul_(gates[:, :, head, None])
            by_gates[:, :, head] = by_gate
            by_q[:, head] = by_scores @ k[:, head]
            by_k[:, head] = by_scores.mT @ q[:, head]
        return by_q, by_k, by_gates, None


def _head(q: Tensor, k: Tensor, edge: Tensor, head: int) -> Tensor:
    """Probabilities [B,L,L] of one head of q and k [B,H,L,D]."""
    # Softmax of a large number: `logsumexp` takes many times as long where there is no edge.
    return (q[:, head] @ k[:, head].mT).masked_fill_(~edge, _NO_EDGE).softmax(-1)


class DaTransformer(ParallelDecoding):
    """Reads a source and says a graph: features of its vertices, which words come from, and links."""

    config: DagConfig

    def __init__(self, config: DagConfig) -> None:
        super().__init__(config)
        tree = config.tree
        self.links = Links(tree["links"], config)
        if "lengths" in tree.parts:
            self.lengths = predictor(tree["lengths"])

    def sizes(self, lengths: Tensor, scale: float) -> Tensor:
        """Vertices [B] of graphs for lengths [B] of what their size goes by; 2 to `max_target_len`."""
        if self.config.upsampling == "fixed":
            lengths = torch.ones_like(lengths)
        return (lengths * scale).long().clamp(2, self.config.max_target_len)

    def length_of(self, logits: Tensor, source_lengths: Tensor) -> Tensor:
        """The likeliest length [B], tokens with eos, by logits [B,C] of its difference from the source's."""
        return (source_lengths + logits.max(-1).indices - self.config.length_difference).clamp(min=1)

    def canvas(self, sizes: Tensor) -> Tensor:
        """The decoder's input for graphs of sizes [B] -> [B,L]: masks, then eos, then padding."""
        last = sizes[:, None] - 1
        positions = torch.arange(int(sizes.max()), device=sizes.device).expand(sizes.shape[0], -1)
        masks = torch.full_like(positions, MASK)
        return masks.masked_fill(positions == last, EOS).masked_fill(positions > last, self.config.pad)

    def inputs(self, canvas: Tensor, source: Encoded) -> Tensor:
        """Decoder inputs of a canvas [B,L] over encoded sources -> [B,L,D].

        A word stands for itself, `MASK` for what the configuration's `decoder_input` says.
        """
        words = self.embed_words(canvas)
        if self.config.decoder_input == "mask":
            return words
        sizes = canvas.ne(self.config.pad).sum(1)
        copied = uniform_copy(self.source_vectors(source), source.lengths, sizes, canvas.shape[1])
        return torch.where((canvas == MASK)[:, :, None], self.embed_vectors(copied), words)

    def vertices(self, canvas: Tensor, source: Encoded) -> Tensor:
        """Features [B,L,D] of a canvas [B,L] over encoded sources."""
        kept = canvas.ne(self.config.pad)
        return self.fill(self.inputs(canvas, source), kept, source.memory, source.mask)

    def decoder_losses(self, source: Encoded, target: Tensor, *, training: Training, update: int) -> Losses:
        """The loss of `graph_losses`."""
        return self.graph_losses(source, target, training=training, update=update)[0]

    def graph_losses(
        self, source: Encoded, target: Tensor, *, training: Training, update: int
    ) -> tuple[Losses, TrainedGraphs | None]:
        """The negative log-likelihood of the targets, summed over all paths that say them (equation 5).

        Each target's is divided by its length with bos and eos, as in the authors' program; the total is
        their mean times the tokens. ``words`` is a token's. Targets that no path of their graph emits, of
        more tokens than vertices or too few for `max_transition_length`, count for nothing; ``dropped`` is
        how many. Label smoothing has no part in it. Glancing (section 3.4) is for training mode alone.

        The program (https://github.com/thu-coai/DA-Transformer) differs in this: bos and eos count among
        what is glanced at; a dropped target counts as one of loss 0 in the mean; and version 2 does not read
        `--no-force-emit`, which all its scripts but that of pre-training give: it always pins what it shows,
        as is the default here. Version 1 restricted the shown vertex to its token, not the token to its
        vertex.

        With `ngram_order` the loss is minus the targets' `fuzzy_alignment` (Ma et al. 2023), and nothing is
        pinned. Its parts are ``ngrams``, the score, and ``length_ratio``. Targets of fewer tokens count for
        nothing.

        Returns:
            The loss, and the graphs that it is of; None: no target fits its graph.
        """
        config, by_source = self.config, self.config.upsampling == "source"
        target = F.pad(target, (1, 0), value=MASK)
        source_lengths, counts = source.lengths, target.ne(config.pad).sum(1)
        low, high = config.scales
        scale = low + (high - low) * float(torch.rand(())) if self.training else high
        sizes = self.sizes(source_lengths if by_source else counts - 1, scale)
        fits = (counts <= sizes) & ((counts - 1) * config.max_transition_length >= sizes - 1)
        fits &= counts >= training.ngram_order
        parts = {"dropped": (~fits).sum()}
        if not bool(fits.all()):
            source, source_lengths = source.rows(fits), source_lengths[fits]
            target, counts, sizes = target[fits], counts[fits], sizes[fits]
        if not len(counts):
            nothing = torch.stack([weights.sum() for weights in self.parameters()]).sum() * 0.0
            names = ["shown", *(("ngrams", "length_ratio") if training.ngram_order else ("words",))]
            names += ["length"] if config.upsampling == "predict" else []
            return Losses(nothing, counts.sum(), {**dict.fromkeys(names, nothing.detach()), **parts}), None

        batch = _Batch(source, target[:, : int(counts.max())], counts, sizes)
        canvas = self.canvas(sizes)
        share, strategy = training.schedule.at(update), training.glancing_strategy
        glancing = self.training and (share > 0.0 or strategy == "cmlm")
        shown = torch.zeros_like(batch.target, dtype=torch.bool)
        second = same_dropout(canvas.device, when=glancing)
        if glancing:
            path, shown = self._glance(canvas, batch, share, strategy)
            rows, positions = shown.nonzero().unbind(1)
            canvas = canvas.index_put((rows, path[rows, positions]), batch.target[rows, positions])
        with second:
            hidden, match, links = self._graph(canvas, batch)
        tokens = (counts - 1).sum()
        if training.ngram_order:
            aligned = fuzzy_alignment(match, links, batch.target, counts, training.ngram_order)
            loss = -aligned.score.mean() * tokens
            parts["ngrams"] = aligned.score.detach().mean()
            parts["length_ratio"] = aligned.length_ratio.detach().mean()
        else:
            if glancing and not training.no_force_emit:
                match = force(match, path, shown)
            each = -dag_log_likelihood(match, links, counts, sizes)
            loss = (each / counts).mean() * tokens
            parts["words"] = each.detach().sum() / tokens
        parts["shown"] = shown.sum() / (counts - 2).sum().clamp(min=1)
        if config.upsampling == "predict":
            logits = self.lengths(pool(source.memory, source.kept))
            length = length_loss(logits, counts - 1 - source_lengths)
            loss = loss + training.length_factor * length * tokens
            parts["length"] = length.detach()
        return Losses(loss, tokens, parts), TrainedGraphs(fits, hidden, match, links, counts, sizes)

    def _graph(self, canvas: Tensor, batch: _Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The graph of a canvas [B,L] and what it says of the target.

        Returns:
            Features [B,L,D], log-probability of each target token at each vertex [B,T,L], links [B,L,L].
        """
        hidden = self.vertices(canvas, batch.source)
        match = match_scores(self.output, hidden, batch.target, graph_lengths=batch.sizes)
        return hidden, match, self.links(hidden, batch.sizes)

    @torch.no_grad()
    def _glance(self, canvas: Tensor, batch: _Batch, share: float, strategy: str) -> tuple[Tensor, Tensor]:
        """Glances: finds the vertex of each target token on the likeliest path, and draws those to show.

        Returns:
            Vertices [B,T] int64 and, of words alone, whether they are shown [B,T].
        """
        target, counts = batch.target, batch.counts
        hidden, match, links = self._graph(canvas, batch)
        path = dag_best_path(match, links, counts, batch.sizes).clamp(min=0)
        positions = torch.arange(target.shape[1], device=target.device)
        words = (positions > 0) & (positions < counts[:, None] - 1)  # bos and eos are no secret
        rows, tokens = words.nonzero().unbind(1)
        logits = self.output(hidden[rows, path[rows, tokens]])  # [N,V]
        wrong = torch.zeros_like(words).index_put((rows, tokens), ~is_best(logits, target[rows, tokens]))
        return path, reveal(wrong, words, share, strategy, nearest=True)


@dataclass(frozen=True)
class _Batch:
    """Targets that fit their graphs, and their encoded sources.

    Attributes:
        target: [B,T] with bos and eos.
        counts: [B] tokens of it.
        sizes: [B] vertices of the graphs.
    """

    source: Encoded
    target: Tensor
    counts: Tensor
    sizes: Tensor


@dataclass(frozen=True)
class TrainedGraphs:
    """The graphs that a training step's loss is of, those of its second pass where it glances.

    Attributes:
        fits: [B'] bool, which of the batch's targets fit their graphs; the others have none here.
        features: [B,L,D] of the vertices.
        match: [B,T,L] log-probability of each token of the target, bos the first, at each vertex; pinned
            where tokens were shown.
        links: [B,L,L].
        counts: [B] tokens of the targets, with bos and eos.
        sizes: [B] vertices.
    """

    fits: Tensor
    features: Tensor
    match: Tensor
    links: Tensor
    counts: Tensor
    sizes: Tensor


def force(match: Tensor, path: Tensor, shown: Tensor) -> Tensor:
    """Has each shown token emitted at its vertex alone, on every path, for nothing.

    Its scores become 0 at its vertex and minus infinity at all others, so that the loss is the sum of the
    losses of the parts between shown tokens, and a vertex learns nothing of its input.

    Args:
        match: [B,T,L] log-probability of each token at each vertex.
        path: [B,T] vertex of each token, of which `shown` [B,T] counts.
    """
    own = path[:, :, None] == torch.arange(match.shape[2], device=match.device)  # [B,T,L]
    return torch.where(shown[:, :, None], torch.zeros_like(match).masked_fill(~own, -math.inf), match)
