"""Times of words against their known places: spoken numbers that are recordings of fsdd in a row.

A Paraformer is trained here, in seconds: its encoder is that of the shipped CTC model and stays as it is, so
that predictor and decoder alone learn, from memories that are computed once.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.recipe_scripts import imported
from support.spoken_numbers import misplaced, spoken_numbers, spoken_places

import nartk
from nartk.architectures import architecture
from nartk.checkpoints.checkpoint import Checkpoint
from nartk.checkpoints.loading import load_checkpoint
from nartk.checkpoints.names import model_folder
from nartk.checkpoints.saving import save_checkpoint
from nartk.models.losses import Training
from nartk.models.transformer import Encoded
from nartk.processors.audio import AudioInput

COUNT = 60
TRAINED, UPDATES, ROWS = 200, 180, 24


@pytest.fixture(scope="module")
def paraformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Paraformer of a decoder of one layer."""
    shipped = load_checkpoint(model_folder("asr-digits"))
    kind = architecture("paraformer")
    known = kind.config.__dataclass_fields__  # type: ignore[attr-defined]
    settings = {name: value for name, value in shipped.settings.items() if name in known}
    settings |= {"decoder_layers": 1, "tail_threshold": 0.6}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = kind.network(kind.config.from_dict(settings))
        own = network.state_dict()
        encoder = {
            name: torch.from_numpy(np.array(shipped.tensors[name]))
            for name in shipped.tensors
            if name in own and name.startswith("encoder")
        }
        assert {name for name in own if name.startswith("encoder")} == encoder.keys()
        network.load_state_dict(encoder, strict=False)
        train(network, shipped)
    folder = tmp_path_factory.mktemp("trained") / "paraformer"
    described = json.loads((model_folder("asr-digits") / "config.json").read_text("utf-8"))
    save_checkpoint(
        folder,
        architecture="paraformer",
        settings=asdict(network.config),
        tensors=network.state_dict(),
        source_vocab=None,
        target_vocab=shipped.target_vocab,
        tokenizer=model_folder("asr-digits") / "spm.model",
        card="# Digits\n",
        input=described["input"],
        others={"cmvn.json": model_folder("asr-digits") / "cmvn.json"},
    )
    return folder


def train(network: Any, shipped: Checkpoint) -> None:
    """Trains all but the encoder on numbers whose memories are computed once."""
    numbers = [*islice(imported("asr", "corpora.py").numbers("train"), TRAINED)]
    vocab, reader = shipped.target_vocab, cast(AudioInput, shipped.input)
    targets = [torch.tensor([*shipped.output.encode(each.text), vocab.eos]) for each in numbers]
    memories = []
    network.eval()
    with torch.no_grad():
        for each in numbers:
            frames = reader.of_samples(np.asarray(each.signal, np.float32), name=each.id).frames
            found = network.encode(torch.from_numpy(np.array(frames))[None], torch.tensor([len(frames)]))
            memories.append(found.memory[0])
    network.train()
    rng, pad = random.Random(1), torch.nn.utils.rnn.pad_sequence
    weights = [each for name, each in network.named_parameters() if not name.startswith("encoder")]
    optimizer = torch.optim.Adam(weights)
    training = Training(sampling_ratio=0.75, ctc_weight=0.0)
    for update in range(UPDATES):
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1.0, (update + 1) / 30) * (1 - update / UPDATES)
        chosen = rng.sample(range(TRAINED), ROWS)
        memory = pad([memories[i] for i in chosen], batch_first=True)
        lengths = torch.tensor([len(memories[i]) for i in chosen])
        source = Encoded(memory, torch.arange(memory.shape[1]) < lengths[:, None])
        target = pad([targets[i] for i in chosen], batch_first=True, padding_value=float(vocab.pad))
        losses = network.losses(source, target, training=training, update=update)
        optimizer.zero_grad()
        (losses.total / ROWS).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
    network.eval()


@pytest.mark.parametrize(("name", "most"), [("asr-digits", 0.04), ("paraformer", 0.04)])
def test_words_are_where_their_recordings_are(
    name: str,
    most: float,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    tell: Callable[[str], None],
) -> None:
    """Medians and means of what starts and ends are away from their places, of numbers without an error.

    Fires of this Paraformer are early: the weight of the end lies among the words, more with each of them.
    """
    folder = name if name == "asr-digits" else request.getfixturevalue(name)
    sounds, said = spoken_numbers(tmp_path, COUNT)
    places = spoken_places(COUNT)
    model = nartk.load(folder, threads=1)
    strategy = "ctc-greedy" if name == "asr-digits" else "paraformer"
    found = model.decode(sounds, strategy)
    right = [i for i, each in enumerate(found) if each.text == said[i]]
    assert len(right) >= COUNT // 2  # a model of seconds
    away = misplaced([found[i].words for i in right], [places[i] for i in right])
    tell(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in away.items()))
    assert max(away["start"], away["end"]) < most
    assert max(abs(away["mean start"]), abs(away["mean end"])) < 0.1
    # Words of other numbers of as many words are elsewhere.
    other = {len(places[i]): i for i in right}
    apart = misplaced([found[i].words for i in right], [places[other[len(places[i])]] for i in right])
    assert max(apart["start"], apart["end"]) > 2 * most
