"""Beam search over a DA-Transformer's graph, with a language model (Huang et al. 2022, arXiv:2205.07459).

Symbols: B rows, k prefixes of each, L graph vertices, C words of a vertex, U words of a graph, T tokens,
N outputs of a row. The paper's alpha and gamma keep their names.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nartk.decoders.dag_paths import powers, say_everywhere
from nartk.decoders.graph import FoundInGraph
from nartk.decoders.ngram_lm import NGram, load_ngram
from nartk.decoders.tensor_best import best_of, repeats
from nartk.decoders.tensor_native import Found, TensorNative
from nartk.guarantee import Guarantee, Promise
from nartk.registry import option, register_decoder
from nartk.scorer import Graph, GraphScorer, Source

_NONE = float("-inf")


@register_decoder("dag-beam")
class DagBeam(TensorNative):
    """Finds the outputs that are likeliest over all paths, weighed with an n-gram language model.

    An output Y of |Y| tokens, eos included, has the score

        (log P(Y|X) + gamma log P_LM(Y)) / |Y|^alpha,    P(Y|X) = the sum over all paths A of P(Y,A|X)

    with natural logarithms and without the second term where there is no `lm`. At each vertex only the
    `candidates` likeliest words count, and are not made likelier for it.

    Prefixes grow by a word a step. Each knows the probability of having been said on the way to each vertex,
    so that whatever reaches a vertex with the same words is one, its probabilities added. The `beam_size`
    prefixes with the largest log P + gamma log P_LM go on, and at each step they end where they can. A beam
    that holds all prefixes finds the outputs with the largest scores. The search stops where no longer
    output can have a larger score, which holds if the language model's probabilities are at most 1.

    The published search keeps 200 pairs of prefix and vertex, at most 10 of a length, and follows the 5
    likeliest pairs of edge and word from each; here a prefix is at all its vertices at once and follows all
    edges. Its alpha, gamma and number of words are the defaults here.

    In exact mode the sentences of a batch are searched one after the other, else together.

    A token's score is the log-probability of the word after those before it, without the language model.
    Where nothing ends within the limit, the best prefix stands as it is.
    """

    needs = GraphScorer
    promise = Promise(Guarantee.APPROXIMATE, "the likeliest output over all paths, as far as the beam sees")

    beam_size: int = option(20, "prefixes of each length that are kept", low=1)
    alpha: float = option(
        1.1, "scores are divided by length ** this; more favours long outputs", low=-10, high=10
    )
    gamma: float = option(0.1, "weight of the language model's log-probabilities", low=0)
    lm: str = option("", "n-gram language model of target tokens, a file in ARPA format")
    candidates: int = option(5, "likeliest words of a vertex that count", low=1)
    no_repeat_ngram: int = option(0, "no n tokens recur in an output; 0: they may", low=0)
    nbest: int = option(1, "outputs given back", low=1)

    def search(self, scorer: GraphScorer, source: Source, limits: Tensor) -> Found:
        lm = load_ngram(self.lm, scorer.vocab, limits.device) if self.lm else None
        if self.gamma == 0.0:
            lm = None  # 0 times the logarithm of an impossible word is no number
        graph = scorer.emit(source)
        words, lprobs = say_everywhere(scorer, graph, self.candidates)
        if not self.exact:
            found = _search(self, _lattice(graph, words, lprobs, scorer.vocab.eos), limits, lm)
            return FoundInGraph(**vars(found), graph=graph)
        # A matrix product adds in an order that depends on its shape, so each row is searched in its own.
        parts = []
        for row, size in enumerate(graph.lengths.tolist()):
            one = slice(row, row + 1)
            alone = Graph(graph.hidden[one], graph.links[one, :size, :size], graph.lengths[one])
            lattice = _lattice(alone, words[one, :size], lprobs[one, :size], scorer.vocab.eos)
            parts.append(_search(self, lattice, limits[one], lm))
        return FoundInGraph(**vars(_stack(parts)), graph=graph)


@dataclass(frozen=True)
class _Lattice:
    """Graphs as probabilities, their words numbered from 0 in the order of the vocabulary.

    Attributes:
        moves: [B,L,L] fp64, of each edge.
        says: [B,L,U] fp64, of each word at the vertices between the first and the last.
        names: [B,U] int64, the words; eos where a graph has fewer.
        last: [B] int64, the last vertex.
        ends: [B] fp64, of eos there.
        eos: Its id.
    """

    moves: Tensor
    says: Tensor
    names: Tensor
    last: Tensor
    ends: Tensor
    eos: int


@dataclass(frozen=True)
class _Beam:
    """k prefixes of t words of each row, best first.

    Attributes:
        mass: [B,k,L] fp64, the probability of being at each vertex after these words; nothing but zeros where
            there is no prefix.
        totals: [B,k] fp64, log P of the prefix.
        lm_totals: [B,k] fp64, gamma log P_LM of the prefix.
        states: [B,k] int64, of the language model.
        tokens: [B,k,T] int64, numbers of the words.
        scores: [B,k,T] fp64, log-probability of each.
    """

    mass: Tensor
    totals: Tensor
    lm_totals: Tensor
    states: Tensor
    tokens: Tensor
    scores: Tensor


@dataclass(frozen=True)
class _Ended:
    """The best outputs so far, best first.

    Attributes:
        ranks: [B,N] fp32, the scores; minus infinity where there is none.
        lengths: [B,N] int64, tokens with eos.
        tokens: [B,N,T] int64, numbers of the words; at the end anything.
        scores: [B,N,T] fp64, log-probability of each.
    """

    ranks: Tensor
    lengths: Tensor
    tokens: Tensor
    scores: Tensor


def _lattice(graph: Graph, words: Tensor, lprobs: Tensor, eos: int) -> _Lattice:
    """Graphs and, of each vertex, words and their log-probabilities [B,L,C]."""
    batch, size = words.shape[:2]
    last = graph.lengths - 1
    ends = lprobs[torch.arange(batch, device=last.device), last, 0].double().exp()
    place = torch.arange(size, device=last.device)
    speaks = ((place > 0) & (place < last[:, None]))[:, :, None] & (lprobs > _NONE)  # [B,L,C]

    # The words of a row, each once: they differ from the one before them in sorted order.
    beyond = int(words.max()) + 1
    ordered, order = words.masked_fill(~speaks, beyond).flatten(1).sort(1)  # [B,L*C]
    new = F.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0), value=True) & (ordered < beyond)
    number = new.cumsum(1) - 1
    count = max(1, int(new.sum(1).max()))
    names = words.new_full((batch, count + 1), eos)
    names = names.scatter(1, torch.where(new, number, count), ordered)[:, :count]
    numbers = torch.zeros_like(order).scatter(1, order, number).view_as(words)
    chances = torch.where(speaks, lprobs.double().exp(), 0.0)
    numbers = torch.where(speaks, numbers, count)
    says = chances.new_zeros(batch, size, count + 1).scatter(2, numbers, chances)[:, :, :count]
    return _Lattice(graph.links.double().exp(), says, names, last, ends, eos)


def _search(options: DagBeam, lattice: _Lattice, limits: Tensor, lm: NGram | None) -> Found:
    """The best outputs of at most limits [B] tokens."""
    most = int(torch.minimum(limits, lattice.last).max())  # a path has no more tokens than edges fit
    limits = limits.clamp(max=most)
    penalties = powers(most + 1, options.alpha, lattice.ends)
    beam = _start(lattice, options.beam_size, most, lm)
    ended, cut = _nothing(beam, options.nbest), _nothing(beam, 1)
    for t in range(1, most + 1):
        inside = t <= limits
        moved = beam.mass @ lattice.moves  # [B,k,L]
        ended = _end(options, lattice, beam, ended, moved, penalties[t], t, inside, lm)
        beam = _extend(options, lattice, beam, moved, t, lm)
        best = (beam.totals + beam.lm_totals).amax(1)  # [B]
        cut = _keep_first(cut, beam, best / penalties[t], t, inside & (best > _NONE))
        # Log-probabilities are at most 0, so what is divided by most loses least.
        bound = best / torch.maximum(penalties[t + 1], penalties[limits])
        if bool((~inside | (t == limits) | (bound.float() <= ended.ranks[:, -1])).all()):
            break
    return _found(lattice, ended, cut)


def _start(lattice: _Lattice, k: int, most: int, lm: NGram | None) -> _Beam:
    batch, width = lattice.moves.shape[:2]
    mass = lattice.moves.new_zeros(batch, k, width)
    mass[:, 0, 0] = 1.0
    totals = mass.new_full((batch, k), _NONE)
    totals[:, 0] = 0.0
    tokens = torch.zeros(batch, k, most, dtype=torch.int64, device=mass.device)
    states = tokens.new_full((batch, k), 0 if lm is None else lm.start)
    return _Beam(mass, totals, torch.zeros_like(totals), states, tokens, mass.new_zeros(tokens.shape))


def _nothing(beam: _Beam, count: int) -> _Ended:
    shape = (beam.tokens.shape[0], count, beam.tokens.shape[2])
    ranks = beam.totals.new_full(shape[:2], _NONE, dtype=torch.float32)
    return _Ended(
        ranks, beam.tokens.new_zeros(shape[:2]), beam.tokens.new_zeros(shape), beam.scores.new_zeros(shape)
    )


def _end(
    options: DagBeam,
    lattice: _Lattice,
    beam: _Beam,
    ended: _Ended,
    moved: Tensor,
    penalty: Tensor,
    t: int,
    inside: Tensor,
    lm: NGram | None,
) -> _Ended:
    """Ends each prefix with eos as token t, in the rows that are still inside their limit."""
    k, count = beam.mass.shape[1], ended.ranks.shape[1]
    at = lattice.last[:, None, None].expand(-1, k, 1)
    lprobs = (moved.gather(2, at).squeeze(2) * lattice.ends[:, None]).log()  # [B,k]
    totals = beam.totals + lprobs + beam.lm_totals
    if lm is not None:
        eos = torch.full_like(beam.states, lattice.eos)
        totals = totals + options.gamma * lm.advance(beam.states, eos)[0]
    ranks = (totals / penalty).masked_fill(~inside[:, None], _NONE).float()
    best = best_of(ranks, min(count, k))
    scores = _pick(beam.scores, best)
    scores[:, :, t - 1] = lprobs.gather(1, best)
    # Those that ended before come first: of equals the shorter stays.
    both = _Ended(
        torch.cat([ended.ranks, ranks.gather(1, best)], 1),
        F.pad(ended.lengths, (0, best.shape[1]), value=t),
        torch.cat([ended.tokens, _pick(beam.tokens, best)], 1),
        torch.cat([ended.scores, scores], 1),
    )
    kept = best_of(both.ranks, count)
    return _Ended(*(_pick(x, kept) for x in (both.ranks, both.lengths, both.tokens, both.scores)))


def _extend(
    options: DagBeam, lattice: _Lattice, beam: _Beam, moved: Tensor, t: int, lm: NGram | None
) -> _Beam:
    """The best prefixes of t words; `moved` [B,k,L] is where those of t - 1 words go next."""
    k, count = beam.mass.shape[1], lattice.names.shape[1]
    chances = moved @ lattice.says  # [B,k,U]
    ranks = (beam.totals + beam.lm_totals)[:, :, None] + chances.log()
    weighed = states = None
    if lm is not None:
        lprobs, states = lm.advance(beam.states[:, :, None], lattice.names[:, None])  # [B,k,U]
        weighed = options.gamma * lprobs
        ranks = ranks + weighed
    if options.no_repeat_ngram:
        lengths = torch.full_like(beam.states, t - 1).flatten()
        banned = repeats(beam.tokens.flatten(0, 1), lengths, options.no_repeat_ngram, count)
        ranks = ranks.masked_fill(banned.view_as(ranks), _NONE)
    ranks = ranks.flatten(1)  # [B,k*U]
    best = best_of(ranks.float(), k)
    alive = ranks.gather(1, best) > _NONE
    parents, numbers = best // count, best % count
    chance = torch.where(alive, chances.flatten(1).gather(1, best), 1.0)

    rows = torch.arange(len(best), device=best.device)[:, None]
    mass = _pick(moved, parents) * lattice.says.mT[rows, numbers] / chance[:, :, None]
    tokens, scores = _pick(beam.tokens, parents), _pick(beam.scores, parents)
    tokens[:, :, t - 1], scores[:, :, t - 1] = numbers, chance.log()
    lm_totals = _pick(beam.lm_totals, parents)
    if weighed is not None:
        lm_totals = lm_totals + weighed.flatten(1).gather(1, best)
    return _Beam(
        torch.where(alive[:, :, None], mass, 0.0),
        torch.where(alive, _pick(beam.totals, parents) + chance.log(), _NONE),
        lm_totals,
        beam.states if states is None else states.flatten(1).gather(1, best),
        tokens,
        scores,
    )


def _pick(x: Tensor, places: Tensor) -> Tensor:
    """x [B,K,...] at places [B,N] -> [B,N,...]."""
    index = places.view(*places.shape, *(1,) * (x.dim() - 2))
    return x.gather(1, index.expand(*places.shape, *x.shape[2:]))


def _keep_first(cut: _Ended, beam: _Beam, rank: Tensor, t: int, where: Tensor) -> _Ended:
    """The first prefix of t words in the rows of `where` [B], what there was in the others."""
    return _Ended(
        torch.where(where[:, None], rank.float()[:, None], cut.ranks),
        torch.where(where[:, None], t, cut.lengths),
        torch.where(where[:, None, None], beam.tokens[:, :1], cut.tokens),
        torch.where(where[:, None, None], beam.scores[:, :1], cut.scores),
    )


def _found(lattice: _Lattice, ended: _Ended, cut: _Ended) -> Found:
    """What has ended, or else what was cut, with the words' ids."""
    place = torch.arange(ended.tokens.shape[2], device=ended.tokens.device)
    missing = ended.ranks == _NONE  # [B,N]
    names = lattice.names[:, None].expand(-1, ended.tokens.shape[1], -1)
    tokens = names.gather(2, ended.tokens)
    tokens = torch.where(place == ended.lengths[:, :, None] - 1, lattice.eos, tokens)
    lengths = ended.lengths.masked_fill(missing, -1)
    none = missing[:, 0]
    tokens[:, 0] = torch.where(none[:, None], lattice.names.gather(1, cut.tokens[:, 0]), tokens[:, 0])
    lengths[:, 0] = torch.where(none, cut.lengths[:, 0], lengths[:, 0])
    ranks, scores = ended.ranks.clone(), ended.scores.clone()
    ranks[:, 0] = torch.where(none, cut.ranks[:, 0], ranks[:, 0])
    scores[:, 0] = torch.where(none[:, None], cut.scores[:, 0], scores[:, 0])
    return Found(tokens, lengths, ranks, scores.float())


def _stack(parts: list[Found]) -> Found:
    """The rows of several results as one."""
    width = max(part.tokens.shape[2] for part in parts)

    def joined(name: str) -> Tensor:
        rows = [getattr(part, name) for part in parts]
        return torch.cat([F.pad(x, (0, width - x.shape[2])) if x.dim() == 3 else x for x in rows])

    return Found(*(joined(name) for name in ("tokens", "lengths", "scores", "positional")))
