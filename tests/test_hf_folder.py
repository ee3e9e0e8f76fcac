"""Folders of Hugging Face, read without transformers: log-probabilities and outputs are transformers'."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import hf_folders, hugging_face_text
from support.scorers import TransformerReference
from support.scripted_passes import decode, outputs_of

import nartk
from nartk import engine
from nartk.architectures.transformer import TransformerConfig
from nartk.checkpoints.generation import read_generation, with_generation
from nartk.checkpoints.hugging_face.families import FAMILIES
from nartk.checkpoints.hugging_face.reading import read_hugging_face
from nartk.checkpoints.hugging_face.text import read_network
from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.bench import main as bench
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as decode_command
from nartk.errors import NartkError, UnsupportedCheckpointError
from nartk.files import Folder
from nartk.models.transformer import Transformer
from nartk.protocols.hypothesis import Request
from nartk.protocols.passes import Pass, Want
from nartk.registry import make_strategy
from nartk.vocab import Vocab

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own
SCORERS = ("torch", "engine")


def scorer_of(name: str, folder: Path, model: Any, **options: Any) -> Any:
    """A folder, on the engine or in torch; words are named by their ids."""
    config, tensors = read_network(Folder(folder), **options)
    generation = model.generation_config
    vocab = Vocab(
        tuple(map(str, range(config.tgt_vocab))), pad=config.pad, eos=generation.eos_token_id, unk=-1, bos=-1
    )
    source = None if config.src_vocab == config.tgt_vocab else Vocab(tuple(map(str, range(config.src_vocab))))
    words = {"source_vocab": source, "start_token": generation.decoder_start_token_id}
    if name == "torch":
        return TransformerReference(network_of(config, tensors), vocab, **words)
    if not engine.available():
        pytest.skip("the engine is left out")
    from support.scorers import TransformerEngine

    return TransformerEngine(config, tensors, vocab, threads=1, **words)


def network_of(config: TransformerConfig, tensors: Any) -> Transformer:
    model = Transformer(config).eval()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in tensors.items()})
    return model


def our_log_probs(scorer: Any, source: Sequence[int], target: Sequence[int]) -> torch.Tensor:
    """[T,V] after each token of a target, of one pass."""
    count = len(target)
    memory, contexts = scorer.encode([tuple(source)]), scorer.open(1)
    numbers = [target, range(count), [memory[0]] * count, [contexts[0]] * count, range(-1, count - 1)]
    scores = scorer.run(Pass(*(np.array(each, np.int32) for each in numbers)), Want())
    found = torch.from_numpy(np.array(scores.rows(np.arange(count, dtype=np.int32)))).log_softmax(-1)
    scorer.commit(scores, np.zeros(0, np.int32))
    scorer.close(contexts)
    scorer.free(memory)
    return found


def test_parameters_are_counted_as_transformers_counts_them(tmp_path: Path) -> None:
    """Of a Marian, whose output's bias is a buffer there."""
    model = hf_folders.text_folder(tmp_path)
    wanted = model.final_logits_bias.numel() + sum(each.numel() for each in model.parameters())
    assert nartk.load(tmp_path).parameters == wanted


def our_greedy(scorer: Any, sources: Sequence[Sequence[int]]) -> list[list[int]]:
    requests = [Request(i, tuple(source), hf_folders.LONGEST) for i, source in enumerate(sources)]
    return outputs_of(decode(make_strategy("greedy", {}), scorer, requests))


def require_equal(scorer: Any, model: Any, rng: random.Random, count: int = 4) -> None:
    """Compares a folder on a scorer with transformers' model, on random texts."""
    sources, targets = hf_folders.random_texts(model, rng, count)
    for source, target in zip(sources, targets, strict=True):
        wanted = hf_folders.their_log_probs(model, source, target)
        torch.testing.assert_close(our_log_probs(scorer, source, target), wanted, atol=1e-4, rtol=0)
    assert our_greedy(scorer, sources) == hf_folders.their_outputs(model, sources)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_and_greedy_outputs_are_transformers(
    family: str, seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    model = hf_folders.random_model(
        family, hf_folders.random_settings(family, rng), seed, biased=seed % 2 == 0
    )
    folder = hf_folders.save(model, tmp_path / "model")
    for name in SCORERS:
        require_equal(scorer_of(name, folder, model), model, rng)


@pytest.mark.parametrize("family", FAMILIES)
def test_beams_are_transformers(family: str, tmp_path: Path) -> None:
    rng = random.Random(family)
    model = hf_folders.random_model(family, hf_folders.random_settings(family, rng), 7)
    scorer = scorer_of(SCORERS[-1], hf_folders.save(model, tmp_path / "model"), model)
    sources, _ = hf_folders.random_texts(model, rng, 3)
    stopping: list[bool | str] = [True, False, "never"]
    for penalty, early, longest in itertools.product(
        (-1.0, 0.0, 1.0, 2.0), stopping, (3, hf_folders.LONGEST)
    ):
        fields = {"num_beams": 3, "length_penalty": penalty, "early_stopping": early}
        wanted = hf_folders.their_outputs(model, sources, longest=longest, **fields)
        generation = read_generation({}, {"eos_token_id": scorer.vocab.eos, **fields})
        strategy = make_strategy("beam", with_generation(generation, "beam", {"max_len": longest}))
        requests = [Request(i, tuple(source), longest) for i, source in enumerate(sources)]
        assert outputs_of(decode(strategy, scorer, requests)) == wanted, (penalty, early, longest)


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_change_nothing(family: str, tmp_path: Path) -> None:
    rng = random.Random(f"drafts {family}")
    settings = hf_folders.random_settings(family, rng)
    if family == "marian":  # `iad` copies words that both sides have
        settings["share_encoder_decoder_embeddings"] = True
    model = hf_folders.random_model(family, settings, 3)
    scorer = scorer_of(SCORERS[-1], hf_folders.save(model, tmp_path / "model"), model)
    sources, _ = hf_folders.random_texts(model, rng, 6)
    requests = [Request(i, tuple(source), hf_folders.LONGEST) for i, source in enumerate(sources)]

    def bits(strategy: Any) -> list[Any]:
        found = decode(strategy, scorer, requests)
        return [(each.hypotheses[0].tokens, each.hypotheses[0].positional_scores) for each in found]

    wanted = bits(make_strategy("greedy", {}))
    small = make_strategy("speculative", {"adaptive": False, "drafter": "itself"})
    drafting = [make_strategy(name, {"adaptive": False}) for name in ("iad", "ngram", "recycling")]
    for strategy in [*drafting, dataclasses.replace(small, auxiliary={"drafter": scorer})]:
        assert bits(strategy) == wanted, strategy.name


# Settings

# Of which the file's tensors tell, or others that are read with them.
_OF_WEIGHTS = {"tie_word_embeddings", "share_encoder_decoder_embeddings"}
OTHER_VALUES = {
    "activation_function": "silu",
    "dense_act_fn": "silu",
    "feed_forward_proj": "gated-silu",
    "layer_norm_epsilon": 0.01,
    "num_heads": 3,
    "encoder_attention_heads": 1,
    "decoder_attention_heads": 1,
}


def another(name: str, value: Any) -> Any:
    """A value that a setting may have in place of another."""
    if name in OTHER_VALUES:
        return OTHER_VALUES[name]
    if isinstance(value, float):
        return value / 2 + 0.01
    return not value if isinstance(value, bool) else 3 if value is None else value + 1


def default_of(field: Any) -> Any:
    return None if field.default is dataclasses.MISSING else field.default


@pytest.mark.parametrize("family", FAMILIES)
def test_defaults_are_transformers(family: str) -> None:
    theirs = hf_folders.config_class(family)()
    for name, value in FAMILIES[family].read.items():
        if not isinstance(value, type):
            assert (name, getattr(theirs, name)) == (name, value)
    assert FAMILIES[family].aliases == type(theirs).attribute_map


@pytest.mark.parametrize("family", FAMILIES)
def test_every_setting_of_the_class_is_read_irrelevant_or_refused(family: str, tmp_path: Path) -> None:
    """What is read changes the configuration, or no longer fits; what is not changes no logit of theirs."""
    rng = random.Random(1)
    settings = hf_folders.random_settings(family, rng)
    settings |= {"d_model": 24, "tie_word_embeddings": True}
    settings |= {"d_kv": 8, "num_heads": 2} if family in hf_folders.T5 else {}
    settings |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder") if "d_kv" not in settings}
    if family == "marian":
        settings |= {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 70}
    model = hf_folders.random_model(family, settings, 0)
    folder = hf_folders.save(model, tmp_path / "model")
    whole = json.loads((folder / "config.json").read_text())
    sources, targets = hf_folders.random_texts(model, rng, 1)
    wanted = hf_folders.their_log_probs(model, sources[0], targets[0])
    before, _ = read_network(Folder(folder))
    for field in dataclasses.fields(type(model.config)):
        value = whole.get(field.name, default_of(field))
        if field.name in (*_OF_WEIGHTS, "return_dict"):  # the other says in which form they return
            continue
        if field.name in FAMILIES[family].read:
            changed = {**whole, field.name: another(field.name, value)}
            changed = {
                key: each for key, each in changed.items() if key not in ("dense_act_fn", "is_gated_act")
            }
            (folder / "config.json").write_text(json.dumps(changed))
            try:
                after, _ = read_network(Folder(folder))
            except NartkError:
                continue
            assert after != before, field.name
        elif isinstance(value, bool) and field.name.startswith("is_"):
            (folder / "config.json").write_text(json.dumps({**whole, field.name: not value}))
            with pytest.raises(UnsupportedCheckpointError, match=f"the setting '{field.name}' is"):
                read_network(Folder(folder))
        elif isinstance(value, (int, float)) and not field.name.endswith("_token_id"):
            (folder / "config.json").write_text(json.dumps({**whole, field.name: value}))
            assert read_network(Folder(folder))[0] == before
            other = type(model)(
                type(model.config)(**{**settings, field.name: another(field.name, value)})
            ).eval()
            other.load_state_dict(model.state_dict())
            found = hf_folders.their_log_probs(other, sources[0], targets[0])
            torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0, msg=field.name)
    (folder / "config.json").write_text(json.dumps({**whole, "my_own": "x"}))
    told: list[str] = []
    assert read_network(Folder(folder), tell=told.append)[0] == before
    assert told == ["config.json: the setting 'my_own' is 'x', which is not known and is passed over"]
    for name in ("tie_encoder_decoder", "per_layer_config"):
        (folder / "config.json").write_text(json.dumps({**whole, name: {"0": {}}}))
        with pytest.raises(UnsupportedCheckpointError) as caught:
            read_network(Folder(folder))
        assert caught.value.message == (
            f"the setting {name!r} is {{'0': {{}}}}, which changes what the model outputs and is not "
            "supported"
        )
        assert caught.value.fix == "use a model without it"
        (folder / "config.json").write_text(json.dumps({**whole, name: None}))
        assert read_network(Folder(folder))[0] == before


def test_what_overrides_a_setting_does_so_here(tmp_path: Path) -> None:
    """num_hidden_layers is another name of encoder_layers, and T5's derived settings may be in the file."""
    library = hf_folders.transformers()
    rng = random.Random(2)
    for family, extra in (
        ("bart", {"num_hidden_layers": 1, "encoder_layers": 3}),
        ("t5", {"feed_forward_proj": "relu", "dense_act_fn": "silu", "is_gated_act": True}),
        ("t5", {"tie_word_embeddings": True, "scale_decoder_outputs": False}),
        ("mt5", {"tie_word_embeddings": True}),
    ):
        settings = hf_folders.random_settings(family, rng) | extra
        if family in hf_folders.T5:
            settings |= {"num_decoder_layers": None}  # with more of them than of the encoder's, theirs fails
        model = hf_folders.random_model(family, settings, 0)
        folder = hf_folders.save(model, tmp_path / f"{family}{len(extra)}")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | extra))
        theirs = library.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
        require_equal(scorer_of("torch", folder, model), theirs, rng, 1)


# Files


def rewrite(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes the tensors of model.safetensors."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def small(family: str, seed: int = 3, **settings: Any) -> Any:
    drawn = hf_folders.random_settings(family, random.Random(seed)) | {"tie_word_embeddings": True}
    if family == "marian":
        drawn |= {"share_encoder_decoder_embeddings": True, "decoder_vocab_size": drawn["vocab_size"]}
    return hf_folders.random_model(family, drawn | settings, seed)


@pytest.mark.parametrize("family", ["bart", "t5"])
@pytest.mark.parametrize("form", ["float16", "bfloat16", "shards", "pickle", "pickled shards"])
def test_all_forms_of_files_are_read(form: str, family: str, tmp_path: Path) -> None:
    model, folder = small(family), tmp_path / "model"
    if form == "shards":
        hf_folders.save(model, folder, max_shard_size="6KB")
        assert len(list(folder.glob("*.safetensors"))) > 1
    elif form.startswith("pickle"):
        hf_folders.save(model, folder)
        (folder / "model.safetensors").unlink()
        state = model.state_dict()
        parts = [state] if form == "pickle" else [dict(list(state.items())[i::2]) for i in (0, 1)]
        names = ["pytorch_model.bin"] if form == "pickle" else ["pytorch_model-1.bin", "pytorch_model-2.bin"]
        for name, part in zip(names, parts, strict=True):
            torch.save(part, folder / name)
        if len(parts) > 1:
            listed = {key: name for name, part in zip(names, parts, strict=True) for key in part}
            (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": listed}))
    else:
        model = model.to(getattr(torch, form))
        hf_folders.save(model, folder)
        model = model.float()
    scorer = scorer_of("torch", folder, model, allow_pickle=form.startswith("pickle"))
    require_equal(scorer, model, random.Random(0), 2)


def test_weights_under_the_names_of_other_versions_are_read(tmp_path: Path) -> None:
    """Without the prefix, tied words under any name, with tables and marks that older versions wrote."""
    renamed = {
        "bart": lambda name: name.removeprefix("model."),
        "marian": lambda name: name.replace("model.shared", "model.decoder.embed_tokens"),
        "t5": lambda name: name.replace("shared", "encoder.embed_tokens"),
    }
    extra = {
        "bart": {"encoder.version": torch.ones(1), "decoder.version": torch.ones(1)},
        "marian": {},
        "t5": {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(32, 2)},
    }
    for family, rename in renamed.items():
        model, folder = small(family), tmp_path / family
        hf_folders.save(model, folder)

        def change(tensors: dict[str, Any], family: str = family, rename: Any = rename) -> None:
            old = dict(tensors)
            tensors.clear()
            tensors.update({rename(name): tensor for name, tensor in old.items()} | extra[family])

        rewrite(folder, change)
        require_equal(scorer_of("torch", folder, model), model, random.Random(0), 2)


@pytest.mark.parametrize("family", ["marian", "pegasus"])
def test_position_tables_of_the_file_are_used(family: str, tmp_path: Path) -> None:
    model = small(family)
    with torch.no_grad():
        for side in (model.model.encoder, model.model.decoder):
            side.embed_positions.weight.normal_()
    model._keys_to_ignore_on_save = None
    folder = hf_folders.save(model, tmp_path / "model")
    assert "model.encoder.embed_positions.weight" in read_names(folder)
    require_equal(scorer_of("torch", folder, model), model, random.Random(0), 2)


def read_names(folder: Path) -> set[str]:
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as file:
        return set(file.keys())


def test_a_matrix_that_is_said_to_be_tied_but_is_not_is_used(tmp_path: Path) -> None:
    library = hf_folders.transformers()
    model = small("t5")
    folder = hf_folders.save(model, tmp_path / "model")
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["shared.weight"] * 0.7 + 0.1}))
    theirs = library.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    assert read_network(Folder(folder))[0].share_embeddings == "inputs"
    require_equal(scorer_of("torch", folder, model), theirs, random.Random(0), 2)


# Damaged and foreign folders


def config(**values: Any) -> Callable[[Path], object]:
    """Writes values into config.json; None takes a key out."""

    def change(folder: Path) -> None:
        found = json.loads((folder / "config.json").read_text()) | values
        kept = {key: value for key, value in found.items() if value is not None}
        (folder / "config.json").write_text(json.dumps(kept))

    return change


def tensors(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda folder: rewrite(folder, change)


def cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-7])


def written(name: str, text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_text(text)


def without(*names: str) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def sharded(folder: Path) -> None:
    """Two shards, of which the second is missing."""
    listed = {"model.shared.weight": "model-1.safetensors", "final_logits_bias": "model-2.safetensors"}
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))


def pickled(folder: Path) -> None:
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def only_an_adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


def spoil(tensors: dict[str, Any]) -> None:
    tensors["model.encoder.layers.0.fc1.bias"][0] = float("nan")


def widen(tensors: dict[str, Any]) -> None:
    tensors["model.encoder.layers.1.fc2.bias"] = torch.zeros(5)


FC1 = "encoder.layers.0.fc1.weight"
BROKEN: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "no config.json": (without("config.json"), "E401", "no model at 'FOLDER'"),
    "config.json is not JSON": (written("config.json", "{"), "E402", "not JSON: Expecting"),
    "config.json is a list": (written("config.json", "[]"), "E402", "not a JSON object"),
    "no model_type": (config(model_type=None), "E402", "format None, this version reads 3"),
    "unknown model_type": (config(model_type="led"), "E403", "the model_type 'led'. Fix: known are bart, "),
    "a decoder alone": (config(model_type="gpt2"), "E403", "the model_type 'gpt2'. Fix: known are bart, "),
    "a mixture of experts": (config(model_type="nllb-moe"), "E403", "the model_type 'nllb-moe'"),
    "another head": (
        config(architectures=["MarianForCausalLM"]),
        "E403",
        "the setting 'architectures' is ['MarianForCausalLM']. Fix: known are MarianMTModel, MarianModel",
    ),
    "remote code": (
        config(auto_map={"AutoModel": "x.Y"}),
        "E403",
        "code of its own ('auto_map'). Fix: use a model without it",
    ),
    "a decoder beside": (config(is_decoder=True), "E403", "'is_decoder' is True. Fix: name a model with an "),
    "quantised": (
        config(quantization_config={"bits": 4}),
        "E403",
        "quantised weights ('quantization_config')",
    ),
    "an adapter": (only_an_adapter, "E403", "an adapter (adapter_config.json). Fix: merge it"),
    "an adapter beside": (written("adapter_config.json", "{}"), "E403", "an adapter (adapter_config.json)"),
    "a wrong type": (config(d_model="16"), "E402", "the setting 'd_model' is '16', not of type int"),
    "a size of nonsense": (
        config(encoder_layers=10**6),
        "E402",
        "`encoder_layers` is 1000000, more than 1000",
    ),
    "an unknown activation": (
        config(activation_function="mish"),
        "E403",
        "the setting 'activation_function' is 'mish'. Fix: known are gelu, ",
    ),
    "no weights": (
        without("model.safetensors"),
        "E402",
        "holds neither model.safetensors nor pytorch_model.bin",
    ),
    "weights cut off": (cut("model.safetensors"), "E402", "bytes of weights, its header says"),
    "a pointer to weights": (
        written("model.safetensors", "version https://git-lfs.github.com/spec/v1\n"),
        "E402",
        "truncated, or not a safetensors file",
    ),
    "a missing shard": (sharded, "E402", "the file 'model-2.safetensors' is missing"),
    "an index without names": (
        lambda folder: (
            without("model.safetensors")(folder),
            written("model.safetensors.index.json", "{}")(folder),
        ),
        "E402",
        "'weight_map' does not name the files of tensors",
    ),
    "a missing tensor": (
        tensors(lambda held: held.pop(f"model.{FC1}")),
        "E402",
        f"tensor '{FC1}' is missing",
    ),
    "a wrong shape": (tensors(widen), "E402", "tensor 'model.encoder.layers.1.fc2.bias' has shape [5], the"),
    "a tensor too many": (
        tensors(lambda held: held.update({"model.encoder.layers.7.fc1.bias": torch.ones(1)})),
        "E402",
        "tensor 'model.encoder.layers.7.fc1.bias' is not in the configuration",
    ),
    "whole numbers": (
        tensors(lambda held: held.update({f"model.{FC1}": held[f"model.{FC1}"].to(torch.int8)})),
        "E402",
        f"tensor 'model.{FC1}' has type I8, which is no floating point",
    ),
    "not a number": (
        tensors(spoil),
        "E402",
        "tensor 'model.encoder.layers.0.fc1.bias' holds NaN or infinity",
    ),
    "a pickle": (
        pickled,
        "E402",
        "its weights are pickled (pytorch_model.bin). Fix: nartk-convert --allow-pickle",
    ),
    "no tokenizer": (
        without("source.spm", "target.spm", "vocab.json", "tokenizer_config.json"),
        "E402",
        "the files of a MarianTokenizer are missing",
    ),
    "fewer rows than vocab_size": (config(vocab_size=900), "E402", "has shape ["),
    "a start that is no word": (
        written("generation_config.json", '{"decoder_start_token_id": 5000}'),
        "E402",
        "'start_token' is 5000, not between 0 and ",
    ),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with its tokenizer, and the model in it."""
    folder = tmp_path_factory.mktemp("hf") / "model"
    return folder, hf_folders.text_folder(folder, seed=1)


@pytest.mark.parametrize("name", BROKEN)
def test_damaged_and_foreign_folders_are_refused_by_name(
    name: str, sound: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(sound[0], tmp_path / "model")
    change, code, message = BROKEN[name]
    change(folder)
    message = message.replace("FOLDER", str(folder))
    exit_code = {"E401": 2}.get(code, 5)
    assert convert([str(folder), "--output", str(tmp_path / "native")]) == exit_code
    printed = capsys.readouterr().err
    assert printed.startswith(f"nartk: error[{code} ")
    assert message in printed
    assert not (tmp_path / "native").exists()
    with pytest.raises(NartkError) as caught:
        nartk.load(folder)
    assert caught.value.code == code


def test_a_malicious_pickle_runs_nothing(sound: tuple[Path, Any], tmp_path: Path) -> None:
    from support import malicious

    for name, content in malicious.files(tmp_path / "canary").items():
        folder = shutil.copytree(sound[0], tmp_path / "model", dirs_exist_ok=True)
        (folder / "model.safetensors").unlink()
        (folder / "pytorch_model.bin").write_bytes(content)
        with pytest.raises(NartkError) as caught:
            read_hugging_face(Folder(folder), allow_pickle=True)
        assert caught.value.code == "E402", name
        assert not (tmp_path / "canary").exists(), name


# Text


def their_lines(folder: Path, model: Any, lines: Sequence[str]) -> list[str]:
    tokenizer = hf_folders.transformers().AutoTokenizer.from_pretrained(folder)
    sources = [tokenizer(line).input_ids for line in lines]
    return [
        tokenizer.decode(row, skip_special_tokens=True) for row in hf_folders.their_outputs(model, sources)
    ]


LINES = ["She goes to school .", "The cat sat on the mat", "news about Zürich !"]


def our_lines(*argv: str, capsys: pytest.CaptureFixture[str], folder: Path) -> list[str]:
    (folder / "lines.txt").write_text("".join(f"{line}\n" for line in LINES))
    flags = ["--max-len", str(hf_folders.LONGEST), "--max-ratio", "100", "--quiet"]
    assert decode_command([*argv, str(folder / "lines.txt"), *flags]) == 0
    return capsys.readouterr().out.splitlines()


def test_text_to_text_as_transformers(
    sound: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder as it is, converted, in fp16, and from a pickle."""
    folder, model = sound
    wanted = their_lines(folder, model, LINES)
    assert len(set(wanted)) == len(LINES)
    assert our_lines(str(folder), capsys=capsys, folder=tmp_path) == wanted
    assert convert([str(folder), "--output", str(tmp_path / "native"), "--quiet"]) == 0
    assert our_lines(str(tmp_path / "native"), capsys=capsys, folder=tmp_path) == wanted
    native, read = load_checkpoint(tmp_path / "native"), load_checkpoint(folder)
    assert native.beside == read.beside
    for name in read.tensors:
        assert np.array_equal(native.tensors[name], read.tensors[name]), name
    unpickled = shutil.copytree(folder, tmp_path / "pickled")
    pickled(unpickled)
    argv = [str(unpickled), "--output", str(tmp_path / "again"), "--quiet"]
    assert convert([*argv, "--allow-pickle"]) == 0
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "native" / "model.safetensors"
    ).read_bytes()


def test_languages_are_as_generate_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NLLB: the source's language in the line, the target's forced, of a folder and of what it becomes."""
    pytest.importorskip("tokenizers")
    folder = tmp_path / "nllb"
    folder.mkdir()
    hugging_face_text.nllb(folder)
    words = json.loads((folder / "config.json").read_text())["vocab_size"]
    ids = {"vocab_size": words, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    sizes |= {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 64}
    model = hf_folders.random_model("m2m_100", ids | sizes, 0)
    model.save_pretrained(folder)
    tokenizer = hf_folders.transformers().AutoTokenizer.from_pretrained(folder, src_lang="deu_Latn")
    model.generation_config.forced_bos_token_id = tokenizer.convert_tokens_to_ids("fra_Latn")
    sources = [tokenizer(line).input_ids for line in LINES]
    greedy = hf_folders.their_outputs(model, sources)
    wanted = [tokenizer.decode(row, skip_special_tokens=True) for row in greedy]
    flags = ["--source-lang", "deu_Latn", "--target-lang", "fra_Latn"]
    assert our_lines(str(folder), *flags, capsys=capsys, folder=tmp_path) == wanted
    assert convert([str(folder), "--output", str(tmp_path / "native"), "--quiet", *flags]) == 0
    assert our_lines(str(tmp_path / "native"), capsys=capsys, folder=tmp_path) == wanted
    other = our_lines(str(folder), "--target-lang", "zho_Hans", capsys=capsys, folder=tmp_path)
    assert other != wanted

    measured = tmp_path / "bench.json"
    argv = ["--peers", "hf,ctranslate2", "--rounds", "1", "--batch-size", "3", "--threads", "1", "--quiet"]
    most = ["--max-len", str(hf_folders.LONGEST), "--json", str(measured)]
    for model_of, languages in ((folder, flags), (tmp_path / "native", [])):
        assert bench([str(model_of), str(tmp_path / "lines.txt"), *argv, *languages, *most]) == 0
        (cell,) = json.loads(measured.read_text())["cells"]
        found = {entry["engine"]: (entry["not_run"], entry.get("differ")) for entry in cell["engines"]}
        assert found == dict.fromkeys(["greedy", "iad", "hf", "ctranslate2"], (None, 0))


@pytest.mark.parametrize(("dtype", "type"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_stored_types_are_rounded_as_torch_rounds(
    dtype: str, type: torch.dtype, sound: tuple[Path, Any], tmp_path: Path
) -> None:
    argv = [str(sound[0]), "--output", str(tmp_path / "native"), "--dtype", dtype, "--quiet"]
    assert convert(argv) == 0
    before, after = (load_checkpoint(each).tensors for each in (sound[0], tmp_path / "native"))
    for name in before:
        wanted = torch.from_numpy(before[name]).to(type).float().numpy()
        assert np.array_equal(after[name], wanted), name


def test_int8_decodes_as_the_folder_does_in_int8(
    sound: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not engine.available():
        pytest.skip("the engine is left out")
    argv = [str(sound[0]), "--quantize", "int8", "--output", str(tmp_path / "int8"), "--quiet"]
    assert convert(argv) == 0
    direct = our_lines(str(sound[0]), "--dtype", "int8", capsys=capsys, folder=tmp_path)
    assert our_lines(str(tmp_path / "int8"), capsys=capsys, folder=tmp_path) == direct


def test_a_folder_decodes_without_torch(sound: tuple[Path, Any], tmp_path: Path) -> None:
    if not engine.available():
        pytest.skip("the engine is left out")
    code = """
import sys
for name in ("torch", "transformers", "tokenizers", "safetensors"):
    sys.modules[name] = None
from nartk.cli.convert import main as convert
from nartk.cli.decode import main as decode
assert convert([sys.argv[1], "--output", sys.argv[2], "--quiet"]) == 0
for folder in sys.argv[1:3]:
    assert decode([folder, sys.argv[3], "--quiet", "--max-len", "12", "--max-ratio", "100"]) == 0
"""
    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in LINES))
    argv = [sys.executable, "-c", code, str(sound[0]), str(tmp_path / "native"), str(tmp_path / "lines.txt")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == 2 * their_lines(*sound, LINES)


def test_flags_of_another_source_are_refused(
    sound: tuple[Path, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, native = str(sound[0]), str(tmp_path / "native")
    assert convert([folder, "--output", native, "--quiet"]) == 0
    for argv, message in (
        ([folder, "--output", native, "--spm", __file__], f"--spm for '{folder}', which is no checkpoint"),
        ([folder, "--output", folder], f"--output is '{folder}', the model itself"),
        ([native, "--output", native], f"'{native}' is a model of nartk already"),
        (
            ["x.pt", "--output", native, "--source-lang", "de"],
            "--source-lang for 'x.pt', which is no folder of Hugging Face",
        ),
    ):
        assert convert(argv) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(NartkError) as caught:
        nartk.load(native, target_lang="de")
    assert caught.value.message == f"target_lang='de' for '{native}', a model of nartk, which has its own"
