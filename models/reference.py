"""The reference scorers: a network's protocols in eager torch, on any device, in plain code.

The engine is tested against them, and they serve a GPU. A model's scorer is `OnTorch` with a mixin for each
protocol that its architecture speaks. A token of a pass is a row of its own: what it sees, of the target and
of the source, is gathered from cells, padded and masked.

Symbols: B sources, S positions of the encoder, N tokens of a pass, n of them scored, T cells that a token
sees at most, H heads, D features a head, K candidates, V words.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from nartk.errors import PassError
from nartk.models.layers import Attention
from nartk.models.recurrent import Step, order_of, recur
from nartk.models.transformer import Encoded
from nartk.protocols.attending import Heads
from nartk.protocols.contexts import CellLists, Cells, Contexts, Handles, Marks, PendingPass, runs
from nartk.protocols.passes import (
    Draw,
    FloatArray,
    IntArray,
    Limits,
    Pass,
    PassCosts,
    Ragged,
    Scores,
    Source,
    Want,
    costs_of,
)
from nartk.protocols.reading import PassScores, Reading, check_want
from nartk.protocols.views import computed_of, narrowed
from nartk.vocab import Vocab

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_NO_KEY = torch.iinfo(torch.int64).min  # below all of `_keys`
_LEAST_CELLS = 256  # of a store, once it has any


@dataclass(eq=False)
class Held:
    """An encoded source.

    Attributes:
        memory: [S,D].
        tokens: [S], its words; None: it has none.
        front: Number of words in front of its frames.
        beside: State that mixins keep of it.
    """

    memory: Tensor
    tokens: Tensor | None
    front: int
    beside: dict[str, Any] = field(default_factory=dict)


class OnTorch:
    """Base of the scorers: a network on a device, and its encoded sources.

    Args:
        model: Left as it is; a copy is served.
        vocab: Dictionary of the target.
        source_vocab: Dictionary of the source, if it differs from the target's.
        start_token: Start token of an autoregressive model; None: eos, as in fairseq's.
        dtype: Type of weights and activations: float32, bfloat16 or float16.
    """

    def __init__(
        self,
        model: nn.Module,
        vocab: Vocab,
        *,
        source_vocab: Vocab | None = None,
        start_token: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        config: Any = model.config
        self.vocab, self.source_vocab = vocab, source_vocab
        self.start_token = vocab.eos if start_token is None else start_token
        self.device, self.dtype = torch.device(device), dtype
        self.limits = Limits(config.max_source_len, config.target_positions, len(vocab))
        self.model: Any = copy.deepcopy(model).eval().requires_grad_(False).to(self.device, dtype)
        self.numerics = f"reference|torch:{torch.__version__}"  # what a signature says of how it computes
        self._memories: Handles[Held] = Handles("memory")

    @torch.inference_mode()
    def encode(self, sources: Sequence[Source]) -> IntArray:
        if len(sources) == 0:
            return self._memories.add([])
        encoded = self.model.encoder.read(sources)
        held = []
        for i, (source, size) in enumerate(zip(sources, encoded.lengths.tolist(), strict=True)):
            tokens = None if encoded.tokens is None else encoded.tokens[i, :size]
            held.append(Held(encoded.memory[i, :size], tokens, len(getattr(source, "words", ()))))
        self._remember(encoded, held)
        return self._memories.add(held)

    def _remember(self, encoded: Encoded, held: Sequence[Held]) -> None:
        """Keeps beside each source what a protocol needs of it."""

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self._memories.remove(memory)

    @torch.inference_mode()
    def words(self, features: FloatArray, want: Want) -> Scores:
        """Reads what is wanted of the words that the output layer predicts of features [N,D]."""
        return read_head(
            self.model.output, torch.tensor(features, device=self.device, dtype=self.dtype), want
        )

    def encodings(self, memory: Sequence[int] | IntArray) -> list[FloatArray]:
        """Implements `nartk.protocols.encoded.GivesEncoded`."""
        return [_floats(each.memory) for each in self._rows(memory)]

    def _rows(self, memory: Sequence[int] | IntArray) -> list[Held]:
        return [self._memories[int(handle)] for handle in memory]

    def _counts(self, memory: Sequence[int] | IntArray) -> IntArray:
        """Positions [R] of sources."""
        return torch.tensor([len(each.memory) for each in self._rows(memory)], dtype=torch.int32).numpy()

    def _sources(self, memory: Sequence[int] | IntArray) -> Encoded:
        """Encoded sources as one batch, padded on the right."""
        rows = self._rows(memory)
        held, kept = padded([each.memory for each in rows])
        tokens = [each.tokens for each in rows if each.tokens is not None]
        words = pad_sequence(tokens, batch_first=True, padding_value=self.vocab.pad) if tokens else None
        return Encoded(held, kept, words)

    def _tensor(self, values: Sequence[int] | IntArray) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)


class PassesOnTorch(OnTorch, Contexts):
    """Implements `nartk.protocols.passes.PassScorer` for a decoder over any encoder."""

    costs: PassCosts  # of a view, or of one that was measured

    def __init__(self, model: nn.Module, vocab: Vocab, **settings: Any) -> None:
        super().__init__(model, vocab, **settings)
        Contexts.__init__(self, self.limits)
        self._source_cells = CellLists()
        self._watched: dict[Attention, Tensor] | None = None
        config = self.model.config
        self._computed = computed_of(len(self.model.decoder.layers))
        self._recurs = self.model.decoder.recurs
        pair = 2 * config.decoder_heads * config.attention_features("decoder")
        self._source_stores = self._stores(pair)
        self._target_stores = self._stores(config.side_features("decoder") if self._recurs else pair)

    def _stores(self, features: int) -> list[CellStore]:
        """An empty store for each layer that it computes."""
        empty = torch.zeros(0, features, dtype=self.dtype, device=self.device)
        return [CellStore(empty) for _ in self._computed]

    def view(self, layers: int | None = None, skip: Sequence[str] = ()) -> PassesOnTorch:
        """Implements `nartk.protocols.views.GivesViews`."""
        other = copy.copy(self)
        other._computed = narrowed(self._computed, layers, skip)
        Contexts.__init__(other, self.limits)
        other._target_stores = other._stores(self._target_stores[0].kv.shape[1])
        count, all_of_them = (sum(map(len, each)) for each in (other._computed, self._computed))
        costs = costs_of(self)
        other.costs = replace(costs, times=tuple(x * count / all_of_them for x in costs.times), encoding=0.0)
        return other

    def _remember(self, encoded: Encoded, held: Sequence[Held]) -> None:
        """Computes the decoder's keys and values of sources, each position in a cell of its own."""
        super()._remember(encoded, held)
        rows, cells = self._source_cells.fill([len(each.memory) for each in held])
        for each, row in zip(held, rows, strict=True):
            each.beside["row"] = row
        flat = torch.from_numpy(cells).to(self.device)
        memory = encoded.memory[encoded.kept]  # [B,S,d_model] -> [N,d_model]
        for layer, store in zip(self.model.decoder.layers, self._source_stores, strict=True):
            store.grow(self._source_cells.pool.size)
            store.kv[flat] = layer.cross_attention.kv(memory)

    def free(self, memory: Sequence[int] | IntArray) -> None:
        self._source_cells.remove([held.beside["row"] for held in self._memories.remove(memory)])

    @torch.inference_mode()
    def run(self, work: Pass, want: Want) -> Scores:
        waiting = self.begin(work, self._memories)
        try:
            check_want(want, len(work.tokens), self.limits.words)
            features = self._features(work, waiting)
            if want.only is not None:
                features = features[self._tensor(want.only)]
            logits = self.model.output(features).float()  # [n,V]
            reading = read_tensors(logits, want, features)
        except BaseException:
            self.commit(waiting, ())
            raise

        def fetch(index: Sequence[int] | IntArray) -> FloatArray:
            rows: FloatArray = logits[self._tensor(index)].cpu().numpy()
            return rows

        return PassScores(reading, self, waiting, fetch, want.words)

    def _features(self, work: Pass, waiting: PendingPass) -> Tensor:
        """Inputs [N,d_model] of the output layer after each token of a pass."""
        cells, seen, counted, source, kept = self._listed(work, waiting)
        tokens, positions = self._tensor(work.tokens), self._tensor(work.positions)
        for store in self._target_stores:
            store.grow(self.size)
        depths = counted.sum(1) - 1  # a token's own cell is the last that it sees
        attended = self._gathered(seen, counted, depths, source, kept)
        order = order_of(seen, depths) if self._recurs else []
        return self._decoded(tokens, positions, cells, attended, order)

    def _gathered(
        self, seen: Tensor, counted: Tensor, depths: Tensor, source: Tensor, kept: Tensor
    ) -> GatheredCells:
        """Attention of tokens to the cells that each sees.

        Args:
            seen, counted: [N,T] cells that each sees, and which of these count.
            depths: [N], place of its own cell among them.
            source, kept: [N,S] cells of the sources, and which of these count.
        """
        relative, mask = self.model.decoder.relative, counted[:, None, None]
        if relative is not None:
            mask = relative.mask(depths[:, None], counted[:, None])
        return GatheredCells(seen, mask, source, kept[:, None, None], self._watched)

    def _decoded(
        self,
        tokens: Tensor,
        positions: Tensor,
        cells: Tensor,
        attended: AttendedCells,
        order: Sequence[Step] = (),
    ) -> Tensor:
        """Inputs [N,d_model] of the output layer, of tokens [N] that are written to their cells [N].

        Args:
            order: Tokens behind those that they follow, where layers are recurrent.
        """
        decoder = self.model.decoder
        x = decoder.embedding(tokens, positions)[:, None]
        # A view computes the first layers alone.
        stores = zip(self._target_stores, self._source_stores, strict=False)
        layers = zip(self._computed, stores, decoder.layers, strict=False)
        for computed, (target, memory), layer in layers:
            over_source = partial(_attend_source, layer.cross_attention, memory, attended)
            if layer.recurrence is None:
                over_target = partial(_attend, layer.self_attention, target, cells, attended)
            else:
                over_target = partial(recur, layer.recurrence, target.kv, cells, order)
            x = layer.around(
                x,
                over_target if "self" in computed else None,
                over_source if "cross" in computed else None,
                has_ffn="ffn" in computed,
            )
        features: Tensor = decoder.finish(x)
        return features[:, 0]

    def _listed(self, work: Pass, waiting: PendingPass) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Cells [N] of a pass, those that they see [N,T] and of their sources [N,S], and which count."""
        starts, which = runs(work.memory)
        rows = [each.beside["row"] for each in self._rows(work.memory[starts])]
        source, held = self._source_cells.padded(rows)
        lists: tuple[Cells | Marks, ...] = waiting.seen, waiting.counted, source[which], held[which]
        cells, seen, counted, sources, kept = (
            torch.from_numpy(each).to(self.device) for each in (waiting.cells, *lists)
        )
        return cells, seen, counted, sources, kept

    @torch.inference_mode()
    def run_attending(self, work: Pass, want: Want, heads: Heads) -> tuple[Scores, FloatArray]:
        """Implements `nartk.protocols.attending.AttendingScorer`, without the steps of a device."""
        layers = [layer.cross_attention for layer in self.model.decoder.layers]
        own = [(i, layers[i]) for i, computed in enumerate(self._computed) if "cross" in computed]
        known = {(i, head) for i, each in own for head in range(each.heads)}
        if len(known.intersection(heads)) < len(heads) or len({*work.memory.tolist()}) != 1:
            raise PassError(f"{heads} are not different heads, or attend to several sources")
        watched: dict[Attention, Tensor] = {}
        self._watched = watched
        try:
            scores = PassesOnTorch.run(self, work, want)
        finally:
            self._watched = None
        return scores, _floats(torch.stack([watched[layers[layer]][:, head] for layer, head in heads]))


class CopiesOnTorch(OnTorch):
    """Implements `nartk.protocols.passes.CopiesSource`."""

    @cached_property
    def source_to_target(self) -> IntArray:
        source = self.source_vocab
        mapped = range(len(self.vocab)) if source in (None, self.vocab) else source.map_to(self.vocab)
        return torch.tensor(mapped, dtype=torch.int32).numpy()


def padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows [n,D] as one tensor [R,T,D], padded on the right, and which of it counts, [R,T]."""
    lengths = torch.tensor([len(row) for row in rows], device=rows[0].device)
    joined = pad_sequence(list(rows), batch_first=True)
    return joined, torch.arange(joined.shape[1], device=joined.device) < lengths[:, None]


class _Read(Reading):
    """Implements `Scores`; logits [n,V] stay on the device until they are asked for."""

    def __init__(self, reading: Reading, logits: Tensor) -> None:
        super().__init__(**vars(reading))
        self._logits = logits

    def rows(self, index: Sequence[int] | IntArray) -> FloatArray:
        return self._logits[torch.tensor(index, dtype=torch.int64, device=self._logits.device)].cpu().numpy()


def read_head(head: nn.Linear, features: Tensor, want: Want) -> Scores:
    """Reads the requested scores of the words that a head predicts of features [N,D]."""
    check_want(want, len(features), head.out_features)
    if want.only is not None:
        features = features[torch.tensor(want.only, dtype=torch.int64, device=features.device)]
    logits = head(features).float()
    reading = read_tensors(logits, want, features)
    if want.words is not None:
        logits = logits.masked_fill(_unlisted(want.words, logits), float("-inf"))
    return _Read(reading, logits)


class CellStore:
    """Keys and values of one layer by cell: `kv` [cells,2*H*D], whose capacity grows.

    Of a recurrent layer the state behind the cell's token, [cells,D].
    """

    def __init__(self, kv: Tensor) -> None:
        self.kv = kv

    def grow(self, cells: int) -> None:
        """Raises the capacity to so many cells at least."""
        have = len(self.kv)
        if cells > have:
            self.kv = F.pad(self.kv, (0, 0, 0, max(cells, 2 * have, _LEAST_CELLS) - have))

    def gather(self, index: Tensor, heads: int) -> tuple[Tensor, Tensor]:
        """Keys and values of cells [N,T]: two of [N,H,T,D]."""
        k, v = self.kv[index].unflatten(2, (2, heads, -1)).permute(2, 0, 3, 1, 4)  # [N,T,2*H*D] -> 2 of them
        return k, v


class AttendedCells(Protocol):
    """The cells that the tokens of a pass attend to, and how: queries [N,1,H*D] -> [N,1,d_model]."""

    def target(self, attention: Attention, queries: Tensor, store: CellStore) -> Tensor:
        """Attends to what each token sees of the target."""

    def source(self, attention: Attention, queries: Tensor, store: CellStore) -> Tensor:
        """Attends to each token's source."""


@dataclass(frozen=True)
class GatheredCells:
    """Implements `AttendedCells`: keys and values are gathered, padded and masked."""

    seen: Tensor  # [N,T]
    mask: Tensor  # [N,1,1,T] bool, or of biases [N,H,1,T]
    sources: Tensor  # [N,S]
    kept: Tensor  # [N,1,1,S]
    # Takes the weights [N,H,S] of attention to sources by the layer's attention; None: nothing does.
    watched: dict[Attention, Tensor] | None = None

    def target(self, attention: Attention, queries: Tensor, store: CellStore) -> Tensor:
        (q,) = attention.split(queries, 1)
        return attention.attend(q, *store.gather(self.seen, attention.heads), self.mask)

    def source(self, attention: Attention, queries: Tensor, store: CellStore) -> Tensor:
        (q,) = attention.split(queries, 1)
        keys, values = store.gather(self.sources, attention.heads)
        if self.watched is not None:
            scores = (q.float() @ keys.float().mT * attention.scale).masked_fill(~self.kept, float("-inf"))
            self.watched[attention] = scores.softmax(-1)[:, :, 0]  # [N,H,1,S] -> [N,H,S]
        return attention.attend(q, keys, values, self.kept)


def _attend(
    attention: Attention, store: CellStore, cells: Tensor, attended: AttendedCells, x: Tensor
) -> Tensor:
    """Writes tokens x [N,1,d_model] to their cells [N], and has them attend to what they see."""
    qkv = attention.qkv(x)
    features = qkv.shape[2] // 3
    store.kv[cells] = qkv[:, 0, features:]
    return attended.target(attention, qkv[:, :, :features], store)


def _attend_source(attention: Attention, store: CellStore, attended: AttendedCells, x: Tensor) -> Tensor:
    return attended.source(attention, attention.q(x), store)


def read_tensors(logits: Tensor, want: Want, hidden: Tensor) -> Reading:
    """Does `nartk.protocols.reading.read` on the tensors' device: only requested results come to the host.

    Args:
        logits: [n,V] fp32.
        hidden: [n,d_model], any float type.

    Raises:
        PassError: Same as in `nartk.protocols.reading.read`.
    """
    check_logits(logits)
    banned, given = _banned(want.banned, logits), None
    if want.words is not None:
        unlisted = _unlisted(want.words, logits)
        logits, banned = logits.masked_fill(unlisted, float("-inf")), banned | unlisted
        if (none := banned.all(1)).any():
            raise PassError(f"all words are forbidden after scored token {_first(none)}", fix="leave one")
    if want.given is not None:
        given = torch.tensor(want.given, dtype=torch.int64, device=logits.device)
    drawn = None if want.draw is None else draw_tensors(logits, banned, want.draw)
    found = results_of(logits, banned, top=want.top, margin=want.margin, given=given, drawn=drawn)
    arrays: dict[str, Any] = {
        name: _floats(x) if x.is_floating_point() else _ints(x) for name, x in found.items()
    }
    reading = Reading(**arrays)
    if want.hidden:
        reading.hidden = _floats(hidden)
    return reading


def check_logits(logits: Tensor) -> None:
    """Refuses logits [n,V] that hold NaN or infinity.

    Raises:
        PassError: They do.
    """
    wrong = wrong_rows(logits)
    if wrong.any():
        raise wrong_logits(_first(wrong))


def wrong_rows(logits: Tensor) -> Tensor:
    """Marks the rows [n] of logits [n,V] that hold NaN or infinity, without which no word is likeliest."""
    return (logits.isnan() | logits.isposinf()).any(1)


def wrong_logits(token: int) -> PassError:
    """The error of a scored token whose logits are wrong."""
    return PassError(f"the logits of scored token {token} hold NaN or infinity")


def results_of(
    logits: Tensor,
    banned: Tensor | None,
    *,
    top: int = 0,
    margin: bool = False,
    given: Tensor | None = None,
    drawn: Tensor | None = None,
) -> dict[str, Tensor]:
    """Arrays of `Scores` that are wanted, but for features, by their names. No number goes to the host.

    Args:
        logits: [n,V] fp32, without NaN and infinity.
        banned: [n,V] bool, words that are forbidden; None: none are.
        top: K.
        given: [n] int64, words whose log-probabilities are wanted; -1: none of this row.
        drawn: [n] int64, words that were drawn.
    """
    keys = _keys(logits)
    if banned is not None:
        keys = keys.masked_fill(banned, _NO_KEY)
    lprobs = logits.log_softmax(1)
    lprobs = lprobs.masked_fill(lprobs.isnan(), float("-inf"))  # of a row of minus infinity alone
    best = keys.argmax(1)
    found = {"best": best, "log_probs": _pick(lprobs, best)}
    if top:
        largest, order = keys.topk(min(top, keys.shape[1]))
        none, missing = largest == _NO_KEY, (0, top - order.shape[1])
        found["top"] = F.pad(order.masked_fill(none, -1), missing, value=-1)
        likely = lprobs.gather(1, order).masked_fill(none, float("-inf"))
        found["top_log_probs"] = F.pad(likely, missing, value=float("-inf"))
    if margin:
        highest, second = keys.scatter(1, best[:, None], _NO_KEY).max(1)
        first, next_best = _pick(logits, best), _pick(logits, second)
        margins = (first - next_best).masked_fill(first == next_best, 0.0)
        found["margins"] = margins.masked_fill(highest == _NO_KEY, float("inf"))
    if given is not None:
        found["given_log_probs"] = _pick(lprobs, given.clamp(min=0)).masked_fill(given < 0, 0.0)
    if drawn is not None:
        found["drawn"], found["drawn_log_probs"] = drawn, _pick(lprobs, drawn)
    return found


def draw_tensors(logits: Tensor, banned: Tensor, draw: Draw) -> Tensor:
    """Does `nartk.protocols.reading.draw_words` on the tensors' device: [n] int64 of logits and banned [n,V].

    Raises:
        PassError: All words of a row that are not banned have logits of minus infinity.
    """
    wide = logits.double().masked_fill(banned, float("-inf"))
    highest = wide.amax(1, keepdim=True)
    empty = highest[:, 0].isneginf()
    if empty.any():
        raise PassError(f"no word can be drawn after scored token {_first(empty)}: all have probability 0")
    weights = ((wide - highest) / draw.temperature).exp()
    if draw.top_k or draw.top_p < 1:
        order = (wide + 0.0).sort(stable=True, dim=1, descending=True).indices
        ranked = weights.gather(1, order)
        if draw.top_k:
            ranked[:, draw.top_k :] = 0
        if draw.top_p < 1:
            sums = ranked.cumsum(1)
            before = F.pad(sums, (1, -1))
            ranked = ranked.masked_fill(before >= draw.top_p * sums[:, -1:], 0)
        weights = weights.scatter(1, order, ranked)
    # On a GPU a cumulative sum is not one chain of additions: it may change a little at a word of weight 0.
    mass = weights.cumsum(1).masked_fill(weights == 0, -1.0)
    uniforms = torch.tensor(draw.uniforms, device=logits.device)[:, None]
    return (mass > uniforms * mass.amax(1, keepdim=True)).int().argmax(1)


def _banned(banned: Ragged | None, logits: Tensor) -> Tensor:
    """Marks the forbidden words [n,V]."""
    found = torch.zeros(logits.shape, dtype=torch.bool, device=logits.device)
    if banned is not None:
        counts = torch.tensor(banned.offsets).diff()
        rows = torch.arange(len(counts)).repeat_interleave(counts).to(logits.device)
        found[rows, torch.tensor(banned.values, dtype=torch.int64, device=logits.device)] = True
    return found


def _unlisted(words: Ragged, logits: Tensor) -> Tensor:
    """Marks the words [n,V] that are not listed; an empty list has all."""
    found = _banned(words, logits)
    return ~found & found.any(1, keepdim=True)


def _keys(logits: Tensor) -> Tensor:
    """Numbers [n,V] int64 in the order of logits, all different: of equal ones the lowest word's is higher.

    The bits of a float above 0 are in its order; below 0 all but the sign are turned. 0 is added to -0.
    """
    bits = (logits + 0.0).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    return (ordered << 32) - torch.arange(logits.shape[1], device=logits.device)


def _pick(x: Tensor, words: Tensor) -> Tensor:
    """Gathers x [n,V] at words [n]."""
    return x.gather(1, words[:, None])[:, 0]


def _first(found: Tensor) -> int:
    """The index of the first true one of [n]."""
    return int(found.int().argmax())


def _ints(x: Tensor) -> IntArray:
    return x.int().cpu().numpy()


def _floats(x: Tensor) -> FloatArray:
    return x.float().cpu().numpy()
