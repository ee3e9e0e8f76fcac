"""What an architecture declares without torch is what its network in torch is made of."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import fields
from typing import Any

import pytest
import torch

from nartk.architectures import architecture, architectures
from nartk.architectures.settings import JOINT
from nartk.engine import available
from nartk.errors import UsageError
from nartk.protocols.attending import AttendingScorer
from nartk.protocols.encoded import ReadsEncoded
from nartk.protocols.parallel import (
    BlockScorer,
    CanvasScorer,
    FireScorer,
    FrameScorer,
    GraphScorer,
    MelScorer,
    PhonemeScorer,
)
from nartk.protocols.passes import CopiesSource, PassScorer
from nartk.protocols.views import GivesViews
from nartk.vocab import Vocab

NAMES = sorted(architectures())
HEAVY = ("torch", "safetensors", "sentencepiece")


def random_settings(config: Any, rng: random.Random) -> dict[str, Any]:
    """Settings with odd sizes; each text and each truth is any of its choices."""
    values: dict[str, Any] = {}
    for item in fields(config):
        if item.metadata["choices"] is not None:
            values[item.name] = rng.choice(item.metadata["choices"])
        elif isinstance(item.default, bool):
            values[item.name] = rng.random() < 0.5
    words = rng.randint(5, 9)
    (head_features,) = [item.metadata["choices"] for item in fields(config) if item.name == "head_features"]
    values |= {
        "src_vocab": words,
        "tgt_vocab": words if values.get("share_embeddings") in JOINT else rng.randint(5, 9),
        "d_model": 2 * rng.choice((3, 5, 7)),
        "max_source_len": rng.randint(4, 12),
        "max_target_len": rng.randint(4, 12),
        "head_features": rng.choice(head_features or (0, 3, 4)),
        "relative_buckets": rng.randint(4, 9),
    }
    known = {item.name: item for item in fields(config)}
    for side in ("encoder", "decoder"):
        if f"{side}_layers" not in known:
            continue
        values[f"{side}_layers"] = rng.randint(0, 3)
        values[f"{side}_ffn"] = rng.randint(1, 20)
        values[f"{side}_heads"] = rng.choice((1, 2))
    sizes = {"upsample": rng.randint(1, 4), "length_difference": rng.randint(1, 6), "link_heads": 2}
    values |= {name: value for name, value in sizes.items() if name in known}
    if "upsample_scale" in known:
        values["upsample_scale"] = "2"
    if "intermediate_ctc" in known:
        last = values["encoder_layers"] - 1
        values["intermediate_ctc"] = str(last) if last > 0 and rng.random() < 0.7 else ""
        values["self_conditioning"] &= values["intermediate_ctc"] != ""
        speech = {"conv_kernel": 3, "merge_kernel": 5, "cgmlp_features": 2 * rng.randint(0, 5)}
        values |= {**speech, "subsampling_channels": rng.randint(0, 4), "input_features": rng.randint(15, 20)}
        values["max_source_len"] = rng.randint(15, 20)  # frames, of which subsampling leaves some
    if "acoustic_heads" in known:
        values |= {"acoustic_features": 2 * rng.choice((0, 3, 5)), "acoustic_heads": rng.choice((1, 2))}
        for name in ("acoustic_encoder_layers", "acoustic_decoder_layers"):
            values[name] = rng.randint(0, 2)
        values |= {name: rng.choice((1, 3, 5)) for name in known if name.endswith("_kernel")}
        values |= {name: rng.randint(2, 9) for name in ("acoustic_ffn", "mel_features", "variance_bins")}
        values |= {"predictor_features": rng.randint(1, 9), "max_mel_len": rng.randint(1, 9)}
    if "adaptor_features" in known:
        values["adaptor_features"] = rng.randint(1, 9)
    if "prenet_features" in known:
        values |= {name: rng.randint(1, 9) for name in ("prenet_features", "mel_features", "max_mel_len")}
        values["frames_per_step"] = rng.choice((1, 2, 4))
    if values.get("decoder_positions") == "relative":
        values["decoder_recurrence"] = "none"
    if "stacked_frames" in known:
        values |= {"encoder_layers": rng.randint(1, 3), "reading_layers": rng.randint(0, 3)}
        values |= {name: rng.randint(1, 7) for name in ("encoder_memory", "decoder_memory", "stacked_frames")}
        values |= {"subsampling": rng.randint(1, 7), "input_features": rng.choice((1, 2, values["d_model"]))}
    if "prompt_layers" in known:
        values |= {"prompt_layers": rng.randint(0, 2), "prompt_every": rng.randint(1, 2)}
    return values


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes_of_weights_are_the_networks(name: str) -> None:
    """Against torch's own list of what the network holds, in 60 random configurations."""
    rng = random.Random(name)
    found = architecture(name)
    for _ in range(60):
        config = found.config(**random_settings(found.config, rng))
        with torch.device("meta"):
            weights = found.network(config).state_dict(keep_vars=True)
        assert config.weight_shapes() == {key: tuple(weight.shape) for key, weight in weights.items()}, config
        first: dict[int, str] = {}
        shared = {key: first.setdefault(id(weights[key]), key) for key in config.weight_shapes()}
        assert config.shared_weights() == {key: other for key, other in shared.items() if key != other}


def test_each_declares_itself_under_the_name_of_its_file() -> None:
    for name, found in architectures().items():
        assert found.name == name
        assert found.config.__module__ == f"nartk.architectures.{name}"
        assert found.network.__module__.startswith("nartk.models.")
        assert isinstance(found.config(), found.config)


def test_configurations_load_nothing_heavy() -> None:
    code = f"""
import sys
from nartk.architectures import architectures
assert all(each.config().weight_shapes() for each in architectures().values())
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_bounds_of_each_configuration_are_kept() -> None:
    for name, settings in (
        ("nat", {"copy_temperature": 0.0}),
        ("ctc", {"upsample": 17}),
        ("dag", {"upsample_scale": "9~8"}),
    ):
        with pytest.raises(UsageError, match=f"`{next(iter(settings))}`"):
            architecture(name).config(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_declared_to_be_spoken_is_spoken(name: str) -> None:
    """Of the protocols of models, its scorer on the engine speaks those that are declared, and no others."""
    found = architecture(name)
    if found.engine is None or not available():
        pytest.skip("the engine does not serve it here")
    words = [f"w{i}" for i in range(5)]
    sizes = {"d_model": 8, "encoder_heads": 2, "decoder_heads": 2, "encoder_ffn": 8, "decoder_ffn": 8}
    vocab = Vocab.from_words(words)
    known = {item.name for item in fields(found.config)}
    own = {key: size for key, size in sizes.items() if key in known}
    config = found.config(
        src_vocab=len(vocab), tgt_vocab=len(vocab), max_source_len=9, max_target_len=9, **own
    )
    arrays = {key: weight.numpy() for key, weight in found.network(config).state_dict().items()}
    scorer = found.engine(config, arrays, vocab, source_vocab=vocab)
    protocols = (
        PassScorer,
        AttendingScorer,
        CopiesSource,
        BlockScorer,
        CanvasScorer,
        FireScorer,
        FrameScorer,
        GraphScorer,
        MelScorer,
        PhonemeScorer,
        ReadsEncoded,
        GivesViews,
    )
    assert {each for each in protocols if isinstance(scorer, each)} == {*found.protocols}


def test_what_trains_an_architecture_is_declared() -> None:
    declared = {name: found.criterions for name, found in architectures().items()}
    assert declared == {
        "transformer": ("nartk_cross_entropy", "nartk_drafter"),
        "blockwise": ("nartk_nar", "nartk_drafter"),
        "light_drafter": ("nartk_drafter",),
        **dict.fromkeys(("nat", "ctc", "dag", "cif"), ("nartk_nar",)),
        **dict.fromkeys(
            ("conformer", "owsm_ctc", "paraformer", "speech_dag", "speech_ctc"), ("nartk_speech",)
        ),
        **dict.fromkeys(("fastspeech2", "transformer_tts"), ("nartk_tts",)),
        "daspeech": ("nartk_s2s",),
        "whisper": (),
        "sanm_paraformer": (),
    }
