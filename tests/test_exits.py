"""Training of exits: their weights by hand, the loss and its gradients by models of the first layers alone,
and drafts of a first layer that was trained to be the last.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support import fairseq_host
from support.engine_models import on_engine
from support.small_passes import drafting
from torch import Tensor, nn

from nartk.decoders.drafters.own_layers import OwnLayers
from nartk.engine import available
from nartk.errors import UsageError
from nartk.models.exits import exit_weights, read_exits, watched
from nartk.models.losses import label_smoothed_cross_entropy
from nartk.models.transformer import Transformer
from nartk.protocols.hypothesis import Request

needs_engine = pytest.mark.skipif(not available(), reason="there is no engine here")
WORDS = 21


def test_weights_by_hand() -> None:
    """1, 1 + 2, 1 + 2 + 3: shares of 10; the exits a half of that: of 8."""
    assert exit_weights([1, 2], 3, 1.0) == pytest.approx([0.1, 0.3, 0.6])
    assert exit_weights([1, 2], 3, 0.5) == pytest.approx([0.5 / 8, 1.5 / 8, 6 / 8])
    assert exit_weights([2], 6, 1.0) == pytest.approx([3 / 24, 21 / 24])
    assert exit_weights([], 3, 1.0) == [1.0]


def test_exits_are_read() -> None:
    assert read_exits("") == ()
    assert read_exits("1,2") == (1, 2)
    assert read_exits("3") == (3,)
    for text in ("0", "2,1", "1,1", "1,,2", "one", "1.5", "-1", ","):
        with pytest.raises(UsageError, match="no ascending numbers of layers") as raised:
            read_exits(text)
        assert raised.value.fix
    for exits in ([3], [1, 4]):
        with pytest.raises(UsageError, match="the decoder has 3") as raised:
            exit_weights(exits, 3, 1.0)
        assert raised.value.fix == "name layers below 3, or leave the exits out"


def test_outputs_of_layers_are_watched_as_long_as_that() -> None:
    layers = [nn.Linear(2, 2) for _ in range(3)]
    network, x = nn.Sequential(*layers), torch.ones(1, 2)
    with watched(layers, [1, 2]) as found:
        network(x)
    network(x)
    first = layers[0](x)
    assert [each.tolist() for each in found] == [first.tolist(), layers[1](first).tolist()]


def criterion(**settings: Any) -> Any:
    from fairseq.criterions import CRITERION_REGISTRY

    return CRITERION_REGISTRY["nartk_cross_entropy"](fairseq_host.task(WORDS), False, 0.1, **settings)


def built(layers: int) -> Any:
    fairseq_host.require_fairseq()
    return fairseq_host.build("transformer", "--dropout", "0", "--decoder-layers", str(layers)).double()


def batch() -> tuple[dict[str, Any], Tensor, Tensor]:
    source, previous = fairseq_host.padded_batch(WORDS, left=False)
    return fairseq_host.sample(source, previous), source, previous


def test_the_loss_is_that_of_models_of_the_first_layers() -> None:
    model = built(3)
    each, source, previous = batch()
    found, size, log = criterion(exits="1,2", exit_scale=0.5)(model, each)
    found.backward()
    wanted = torch.zeros((), dtype=torch.float64)
    gradients: dict[str, Tensor] = {}
    for layers, share in ((1, 0.5 / 8), (2, 1.5 / 8), (3, 6 / 8)):
        other = Transformer(replace(model.core.config, decoder_layers=layers)).double()
        weights = model.core.state_dict()
        other.load_state_dict({name: weights[name].clone() for name in other.state_dict()})
        loss, nll, count = label_smoothed_cross_entropy(
            other(source, previous), each["target"], epsilon=0.1, pad=fairseq_host.PAD
        )
        (share * loss).backward()
        wanted += share * loss.detach()
        for name, x in other.named_parameters():
            gradients[name] = gradients.get(name, 0.0) + x.grad  # type: ignore[operator]
    assert abs(found - wanted) <= 1e-10 * wanted
    assert abs(log["loss"] - wanted) <= 1e-10 * wanted
    assert abs(log["nll_loss"] - nll) <= 1e-10 * nll  # of the last layer
    assert size == int(count)
    own = {name: x.grad for name, x in model.core.named_parameters()}
    assert own.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(own[name], gradient, rtol=1e-9, atol=1e-10)


def test_a_model_that_does_not_train_has_the_last_layers_loss() -> None:
    model = built(2).eval()
    each, _, _ = batch()
    assert criterion(exits="1")(model, each)[0] == criterion()(model, each)[0]


def test_what_has_no_such_exits_is_an_error() -> None:
    model = built(2)
    each, _, _ = batch()
    with pytest.raises(UsageError, match="an exit behind layer 2, the decoder has 2"):
        criterion(exits="1,2")(model, each)
    with pytest.raises(UsageError, match=r"`exit_scale` is 0\.0"):
        criterion(exits="1", exit_scale=0.0)
    with pytest.raises(UsageError, match="a Linear has none"):
        criterion(exits="1")(nn.Linear(1, 1), each)


@needs_engine
def test_trained_exits_draft() -> None:
    """A decoder of two layers that copies: drafts of the first one alone are accepted if it was an exit."""
    passes = {}
    for exits in ("", "1"):
        torch.manual_seed(0)
        model = built(2).float()
        loss_of = criterion(exits=exits)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for step in range(300):
            draw = torch.Generator().manual_seed(step)
            source = torch.randint(4, WORDS, (16, 8), generator=draw)
            source[:, -1] = fairseq_host.EOS
            previous = torch.cat([source[:, -1:], source[:, :-1]], 1)
            inputs = {
                "src_tokens": source,
                "src_lengths": torch.full((16,), 8),
                "prev_output_tokens": previous,
            }
            loss, _, _ = loss_of(model, {"net_input": inputs, "target": source, "ntokens": source.numel()})
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scorer = on_engine(model.core.eval())
        draw = torch.Generator().manual_seed(1000)
        lines = torch.randint(4, WORDS, (20, 7), generator=draw).tolist()
        requests = [Request(i, (*line, fairseq_host.EOS), 12) for i, line in enumerate(lines)]
        made = drafting("speculative", OwnLayers(1), block_size=4, adaptive=False)
        results = list(made.run(scorer, requests, batch_size=8))
        right = sum(each.hypotheses[0].tokens == requests[each.index].source for each in results)
        passes[exits] = sum(len(each.hypotheses[0].tokens) for each in results) / sum(
            each.passes for each in results
        )
        assert right > 10, (exits, right)
    assert passes["1"] > passes[""] + 0.5, passes
