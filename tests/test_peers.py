"""The same weights in other libraries: they must say what ours say."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from support.realtable import EOS, PAD, random_transformer
from support.scorers import TransformerReference
from support.scripted_passes import decode, outputs_of
from torch import Tensor

from nartk import _fairseq_hook
from nartk.adapters.ctranslate2 import to_ctranslate2
from nartk.adapters.hf import import_transformers, to_hugging_face
from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.loading import load_checkpoint
from nartk.errors import MissingDependencyError, UnsupportedCheckpointError
from nartk.models.transformer import Transformer
from nartk.protocols.hypothesis import Request
from nartk.registry import make_strategy
from nartk.serving.scorers import load_network
from nartk.vocab import Vocab

WORDS = 44
VOCAB = Vocab.from_words([f"w{i}" for i in range(WORDS - 4)])
SHAPES = [
    {
        "encoder_norm_first": first,
        "decoder_norm_first": first,
        "norm_embedding": norm,
        "encoder_positions": positions,
        "decoder_positions": positions,
        "share_embeddings": share,
        "activation": "gelu" if norm else "relu",
        "scale_embedding": not norm,
    }
    for first, norm, positions, share in itertools.product(
        (True, False), (True, False), ("sinusoidal", "learned", "none"), ("all", "decoder", "none")
    )
]


def shape_name(shape: dict[str, Any]) -> str:
    norm = "pre-norm" if shape["encoder_norm_first"] else "post-norm"
    embedding = "-normed" if shape["norm_embedding"] else ""
    return f"{norm}{embedding}-{shape['encoder_positions']}-{shape['share_embeddings']}"


def small(shape: dict[str, Any], **settings: Any) -> Transformer:
    """A random model in which every weight and bias counts."""
    sizes: dict[str, Any] = {
        "src_vocab": WORDS,
        "tgt_vocab": WORDS,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "encoder_ffn": 48,
        "decoder_ffn": 64,
        "encoder_heads": 4,
        "decoder_heads": 2,
        "max_source_len": 60,
        "max_target_len": 50,
        "dropout": 0.0,
    }
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = Transformer(TransformerConfig(**(sizes | shape | settings))).eval()
        for weights in model.parameters():
            weights += 0.1 * torch.randn_like(weights)
        for words in (model.encoder.embedding.words, model.decoder.embedding.words):
            words.weight[PAD] = 0.0
    return model


SOURCES = torch.tensor([[5, 6, 7, 8, 9, EOS], [10, 11, EOS, PAD, PAD, PAD]])
TARGETS = torch.tensor([[EOS, 9, 8, 7], [EOS, 20, 22, 5]])


def hugging_face() -> Any:
    try:
        return import_transformers()
    except MissingDependencyError:
        pytest.skip("transformers is not installed")


def logits_of(theirs: Any) -> Tensor:
    with torch.inference_mode():
        return theirs(
            input_ids=SOURCES, attention_mask=SOURCES.ne(PAD).long(), decoder_input_ids=TARGETS
        ).logits


@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
def test_hugging_face_gives_the_same_logits(shape: dict[str, Any]) -> None:
    hugging_face()
    model = small(shape)
    with torch.inference_mode():
        wanted = model(SOURCES, TARGETS)
    torch.testing.assert_close(logits_of(to_hugging_face(model, VOCAB)), wanted, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore")  # their own
@pytest.mark.parametrize("shape", [SHAPES[i] for i in (0, 9, 18, 27, 31)], ids=shape_name)
def test_a_saved_model_loads_with_their_own_means(shape: dict[str, Any], tmp_path: Path) -> None:
    transformers = hugging_face()
    model = small(shape)
    theirs = to_hugging_face(model, VOCAB)
    theirs.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is type(theirs)
    with torch.inference_mode():
        torch.testing.assert_close(logits_of(loaded), model(SOURCES, TARGETS), atol=1e-5, rtol=0)


T5 = {
    "norm": "rms",
    "norm_eps": 1e-6,
    "bias": False,
    "scale_attention": False,
    "scale_embedding": False,
    "encoder_positions": "relative",
    "decoder_positions": "relative",
    "relative_buckets": 8,
    "relative_distance": 10,
    "head_features": 6,
    "decoder_ffn": 48,
    "decoder_heads": 4,
    "scale_output": True,
}
T5_SHAPES = [
    T5,
    T5 | {"activation": "gelu_tanh", "gated_ffn": True, "share_embeddings": "inputs", "scale_output": False},
    T5 | {"activation": "silu", "gated_ffn": True, "encoder_layers": 1, "decoder_layers": 3},
    T5 | {"activation": "gelu", "share_embeddings": "inputs", "scale_output": False},
]


@pytest.mark.filterwarnings("ignore")  # their own
@pytest.mark.parametrize("shape", T5_SHAPES, ids=lambda shape: shape["activation"] if shape != T5 else "t5")
def test_t5s_shapes_become_t5(shape: dict[str, Any], tmp_path: Path) -> None:
    transformers = hugging_face()
    model = small(shape)
    with torch.inference_mode():
        wanted = model(SOURCES, TARGETS)
    theirs = to_hugging_face(model, VOCAB)
    torch.testing.assert_close(logits_of(theirs), wanted, atol=1e-5, rtol=1e-5)
    theirs.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is transformers.T5ForConditionalGeneration
    torch.testing.assert_close(logits_of(loaded), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.filterwarnings("ignore")  # their own
@pytest.mark.parametrize("shape", [SHAPES[i] for i in (1, 9, 18, 27)], ids=shape_name)
def test_a_bias_of_the_words_goes_with_them(shape: dict[str, Any], tmp_path: Path) -> None:
    transformers = hugging_face()
    model = small(shape, output_bias=True, activation="gelu_tanh")
    with torch.inference_mode():
        wanted = model(SOURCES, TARGETS)
    to_hugging_face(model, VOCAB).save_pretrained(tmp_path)
    loaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    torch.testing.assert_close(logits_of(loaded), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"norm_eps": 1e-6}, "`norm_eps` 1e-06, where a Bart has 1e-05"),
        ({"gated_ffn": True}, "`gated_ffn` True, where a Bart has False"),
        ({"bias": False}, "`bias` False, where a Bart has True"),
        ({"head_features": 4}, "`head_features` 4, where a Bart has 0"),
        ({"scale_attention": False}, "`scale_attention` False, where a Bart has True"),
        ({"scale_output": True}, "`scale_output` True, where a Bart has False"),
        ({"encoder_positions": "relative"}, "`encoder_positions` 'relative', where a Pegasus has 'learned'"),
        (T5 | {"bias": True}, "`bias` True, where a T5 has False"),
        (T5 | {"decoder_final_norm": "never"}, "`decoder_final_norm` 'never', where a T5 has 'pre-norm'"),
        (T5 | {"encoder_norm_first": False}, "`encoder_norm_first` False, where a T5 has True"),
        (T5 | {"scale_attention": True}, "`scale_attention` True, where a T5 has False"),
        (T5 | {"decoder_positions": "none"}, "`decoder_positions` 'none', where a T5 has 'relative'"),
        (T5 | {"output_bias": True}, "`output_bias` True, where a T5 has False"),
        (T5 | {"scale_embedding": True}, "`scale_embedding` True, where a T5 has False"),
        (T5 | {"norm_embedding": True}, "`norm_embedding` True, where a T5 has False"),
        (T5 | {"decoder_ffn": 64}, "`decoder_ffn` 64, where a T5 has 48"),
        (T5 | {"decoder_heads": 2}, "`decoder_heads` 2, where a T5 has 4"),
        (T5 | {"scale_output": False}, "`scale_output` False, where a T5 has True"),
        (T5 | {"share_embeddings": "none"}, "`share_embeddings` 'none', where a T5 has 'inputs'"),
    ],
)
def test_what_no_architecture_there_has_is_named(shape: dict[str, Any], message: str) -> None:
    hugging_face()
    with pytest.raises(UnsupportedCheckpointError) as caught:
        to_hugging_face(small(shape), VOCAB)
    assert caught.value.message == message


def test_words_of_their_own_on_each_side() -> None:
    hugging_face()
    shape = SHAPES[-1] | {"src_vocab": WORDS + 3}
    model = small(shape)
    with torch.inference_mode():
        wanted = model(SOURCES, TARGETS)
    torch.testing.assert_close(logits_of(to_hugging_face(model, VOCAB)), wanted, atol=1e-5, rtol=0)
    with pytest.raises(UnsupportedCheckpointError) as caught:
        to_hugging_face(small(SHAPES[2] | {"src_vocab": WORDS + 3}), VOCAB)
    assert caught.value.message == "47 source and 44 target words; a MBart has as many of each"


def test_two_places_of_the_norm_are_refused() -> None:
    hugging_face()
    with pytest.raises(UnsupportedCheckpointError) as caught:
        to_hugging_face(small({"encoder_norm_first": False}), VOCAB)
    assert caught.value.message == "pre-norm on one side and post-norm on the other"


# What they say.


def random_sources(count: int) -> list[tuple[int, ...]]:
    rng = random.Random(0)
    return [(*(rng.randrange(4, WORDS) for _ in range(rng.randint(1, 12))), EOS) for _ in range(count)]


def ours(
    model: Transformer,
    strategy: Any,
    sources: Sequence[tuple[int, ...]],
    longest: int,
    device: torch.device | str = "cpu",
) -> list[Any]:
    requests = [Request(i, source, longest) for i, source in enumerate(sources)]
    return decode(strategy, TransformerReference(model, VOCAB, device=device), requests)


def cut(tokens: Sequence[int]) -> list[int]:
    """Up to the first eos, with it."""
    tokens = list(tokens)
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def test_hugging_face_says_the_same(device: torch.device) -> None:
    hugging_face()
    model, sources, longest = random_transformer(3, WORDS), random_sources(20), 30
    theirs = to_hugging_face(model, VOCAB).to(device)
    width = max(map(len, sources))
    tokens = torch.tensor([[*source, *[PAD] * (width - len(source))] for source in sources], device=device)
    mask = tokens.ne(PAD).long()
    with torch.inference_mode():
        greedy = theirs.generate(tokens, attention_mask=mask, max_new_tokens=longest)
        found = ours(model, make_strategy("greedy", {}), sources, longest, device)
        assert [cut(row[1:]) for row in greedy.tolist()] == outputs_of(found)
        for penalty in (0.0, 1.0, 2.0):
            best = theirs.generate(
                tokens,
                attention_mask=mask,
                max_new_tokens=longest,
                num_beams=4,
                early_stopping=True,
                length_penalty=penalty,
                no_repeat_ngram_size=3,
            )
            options = {"beam_size": 4, "length_penalty": penalty, "no_repeat_ngram": 3}
            strategy = make_strategy("beam", options | {"early_stopping": "true"})
            assert [cut(row[1:]) for row in best.tolist()] == outputs_of(
                ours(model, strategy, sources, longest, device)
            )


CTRANSLATE2 = [
    *(SHAPES[i] for i in (0, 8, 9, 13, 18, 27, 31, 35)),
    *T5_SHAPES,
    SHAPES[0] | {"gated_ffn": True, "activation": "silu", "bias": False, "output_bias": True},
    SHAPES[5] | {"head_features": 6, "scale_attention": False, "norm_eps": 0.1, "activation": "gelu_tanh"},
    SHAPES[0] | {"encoder_final_norm": "never"},
    SHAPES[0] | {"decoder_final_norm": "never"},
    SHAPES[27] | {"encoder_positions": "relative", "scale_output": True, "output_bias": True},
]


@pytest.mark.parametrize("shape", CTRANSLATE2)
def test_ctranslate2_gives_the_same_scores(shape: dict[str, Any], tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    model = small(shape)
    to_ctranslate2(model, VOCAB, tmp_path / "model")
    translator = ctranslate2.Translator(str(tmp_path / "model"), inter_threads=1, intra_threads=1)
    sources = [VOCAB.to_words([token for token in row if token != PAD]) for row in SOURCES.tolist()]
    targets = [VOCAB.to_words(row[1:]) for row in TARGETS.tolist()]
    with torch.inference_mode():
        lprobs = model(SOURCES, TARGETS).log_softmax(-1)
    for i, scored in enumerate(translator.score_batch(sources, targets)):
        told = [*TARGETS[i, 1:].tolist(), EOS]
        wanted = [float(lprobs[i, j, word]) for j, word in enumerate(told)]
        assert scored.log_probs == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("shape", CTRANSLATE2)
def test_what_ctranslate2_has_is_read_back(shape: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    model = small(shape)
    to_ctranslate2(model, VOCAB, tmp_path / "model")
    found: Any = load_network(load_checkpoint(tmp_path / "model")).eval()
    with torch.inference_mode():
        torch.testing.assert_close(found(SOURCES, TARGETS), model(SOURCES, TARGETS), atol=1e-6, rtol=0)
    for side in ("encoder_final_norm", "decoder_final_norm"):  # as to_hugging_face takes it
        assert getattr(found.config, side) == getattr(model.config, side)


def test_a_norm_that_ctranslate2_has_not_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    model = small(SHAPES[27] | {"decoder_final_norm": "always"})
    with pytest.raises(UnsupportedCheckpointError, match="a norm behind a post-norm decoder"):
        to_ctranslate2(model, VOCAB, tmp_path / "model")


def test_ctranslate2_says_the_same(tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    model, sources, longest = random_transformer(3, WORDS), random_sources(20), 30
    to_ctranslate2(model, VOCAB, tmp_path / "model")
    translator = ctranslate2.Translator(str(tmp_path / "model"), inter_threads=1, intra_threads=1)
    found = translator.translate_batch(
        [VOCAB.to_words(source) for source in sources],
        beam_size=1,
        max_decoding_length=longest,
        min_decoding_length=0,
        return_end_token=True,
    )
    told = [VOCAB.ids(each.hypotheses[0]) for each in found]
    assert told == outputs_of(ours(model, make_strategy("greedy", {}), sources, longest))


@pytest.mark.filterwarnings("ignore")  # fairseq's own
@pytest.mark.parametrize("shape", [SHAPES[i] for i in (0, 9, 13, 17, 26, 27, 31, 35)], ids=shape_name)
def test_fairseqs_own_transformer_gives_the_same_logits(shape: dict[str, Any]) -> None:
    _fairseq_hook.install()
    pytest.importorskip("fairseq", reason="fairseq is not installed")
    from nartk.tasks.peer import to_fairseq

    model = small(shape)
    theirs = to_fairseq(model, VOCAB, VOCAB)
    with torch.inference_mode():
        found, _ = theirs(SOURCES, SOURCES.ne(PAD).sum(1), TARGETS)
        torch.testing.assert_close(found, model(SOURCES, TARGETS), atol=1e-5, rtol=0)
