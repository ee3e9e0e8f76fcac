"""State dicts of torch.nn.Transformer become folders that say the same; maps that do not fit are refused."""

from __future__ import annotations

import copy
import json
import math
import random
import string
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import nartk
from nartk.checkpoints.loading import load_checkpoint
from nartk.cli.convert import main as convert
from nartk.serving.scorers import load_network

pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")

WORDS = ["<pad>", "<s>", "</s>", "<unk>", " ", *string.ascii_lowercase, "Cl", "Br"]
PAD, BOS, EOS, UNK = range(4)
LONGEST = 40
FEATURES = 24


class Net(nn.Module):
    """A network as PyTorch's tutorial has it: embeddings, sinusoids, `nn.Transformer`, output words."""

    pe: Tensor

    def __init__(self, *, norm_first: bool, activation: str, final: bool, bias: bool, tied: bool) -> None:
        super().__init__()
        sizes: dict[str, Any] = {"d_model": FEATURES, "nhead": 3, "dim_feedforward": 50, "batch_first": True}
        self.transformer = nn.Transformer(
            num_encoder_layers=2,
            num_decoder_layers=2,
            norm_first=norm_first,
            activation=activation,
            bias=bias,
            **sizes,
        )
        if not final:
            self.transformer.encoder.norm = self.transformer.decoder.norm = None
        self.source = nn.Embedding(len(WORDS), FEATURES)
        self.target = self.source if tied else nn.Embedding(len(WORDS), FEATURES)
        self.generator = nn.Linear(FEATURES, len(WORDS))
        angles = torch.arange(100)[:, None] * torch.exp(
            torch.arange(0, FEATURES, 2) * (-math.log(1e4) / FEATURES)
        )
        self.register_buffer("pe", torch.stack([angles.sin(), angles.cos()], 2).reshape(100, 1, FEATURES))

    def embed(self, words: nn.Embedding, tokens: Tensor) -> Tensor:
        return words(tokens) * math.sqrt(FEATURES) + self.pe[: tokens.shape[1], 0]

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        encoded = self.embed(self.source, source), self.embed(self.target, target)
        return self.generator(self.transformer(*encoded, tgt_mask=mask))


def random_net(seed: int, **settings: Any) -> Net:
    """In evaluation, with weights that let outputs depend on all that was read."""
    torch.manual_seed(seed)
    chosen = {"norm_first": False, "activation": "relu", "final": True, "bias": True, "tied": False}
    net = Net(**chosen | settings).eval().requires_grad_(False)
    for name, weight in net.named_parameters():
        if weight.dim() == 1:
            weight.add_(torch.randn_like(weight) * 0.3)
        elif "layers" in name:
            weight.mul_(2.0)
        elif name in ("source.weight", "target.weight"):
            weight.mul_(0.2)  # so that places count
    return net


def greedy(net: Net, source: list[int], limit: int) -> list[int]:
    """Greedy search without a cache."""
    tokens = [BOS]
    while len(tokens) <= limit and (len(tokens) == 1 or tokens[-1] != EOS):
        tokens.append(int(net(torch.tensor([source]), torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[1:]


def names() -> dict[str, Any]:
    """The map of a `Net`."""
    found: dict[str, Any] = {
        "source.weight": "encoder_embedding.words.weight",
        "target.weight": "decoder_embedding.words.weight",
        "generator.{w}": "output.{w}",
        "pe": ["encoder_embedding.positions.weight", "decoder_embedding.positions.weight"],
    }
    for side, norms in (("encoder", ("self", "ffn")), ("decoder", ("self", "cross", "ffn"))):
        theirs, ours = f"transformer.{side}.layers.{{i}}", f"{side}_layers.{{i}}"
        for attention, own in (("self_attn", "self_attention"), ("multihead_attn", "cross_attention")):
            if own == "self_attention" or side == "decoder":
                found[f"{theirs}.{attention}.in_proj_{{w}}"] = f"{ours}.{own}.q|k|v.{{w}}"
                found[f"{theirs}.{attention}.out_proj.{{w}}"] = f"{ours}.{own}.out.{{w}}"
        found |= {f"{theirs}.norm{i}.{{w}}": f"{ours}.{norm}_norm.{{w}}" for i, norm in enumerate(norms, 1)}
        found |= {
            f"{theirs}.linear1.{{w}}": f"{ours}.ffn.up.{{w}}",
            f"{theirs}.linear2.{{w}}": f"{ours}.ffn.down.{{w}}",
        }
        found[f"transformer.{side}.norm.{{w}}"] = f"{side}_norm.{{w}}"
    return found


def described(**settings: Any) -> dict[str, Any]:
    """The configuration of a `Net`."""
    model: dict[str, Any] = {"d_model": FEATURES, "activation": "relu", "output_bias": True}
    for side, length in (("encoder", "source"), ("decoder", "target")):
        model |= {f"{side}_layers": 2, f"{side}_heads": 3, f"{side}_ffn": 50, f"{side}_norm_first": False}
        model |= {
            f"{side}_final_norm": "always",
            f"{side}_positions": "learned",
            f"max_{length}_len": LONGEST,
        }
    return {
        "model": model | settings,
        "special_tokens": {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
        "words": WORDS,
        "split": ["Cl|Br"],
        "before": ["<s>"],
        "after": ["</s>"],
    }


Change = Callable[[dict[str, Any], dict[str, Any], dict[str, Tensor]], None]


def converted(
    folder: Path, net: Net, config: dict[str, Any], map: dict[str, Any], change: Change | None = None
) -> int:
    """Runs nartk-convert on a net's state dict; the exit code."""
    state = {name: weight.clone() for name, weight in net.state_dict().items()}
    if change is not None:
        change(config, map, state)
    folder.mkdir(exist_ok=True)
    torch.save(state, folder / "net.pt")
    (folder / "map.json").write_text(json.dumps(map))
    (folder / "config.json").write_text(json.dumps(config))
    files = ["--map", str(folder / "map.json"), "--config", str(folder / "config.json")]
    return convert([str(folder / "net.pt"), *files, "--output", str(folder / "model"), "--quiet"])


SEEDS = (7, 6, 32, 31, 23)  # of weights that give different sources different outputs
SETTINGS = [
    {"norm_first": False, "activation": "relu", "final": True, "bias": True, "tied": False},
    {"norm_first": False, "activation": "gelu", "final": False, "bias": True, "tied": True},
    {"norm_first": True, "activation": "gelu", "final": True, "bias": True, "tied": False},
    {"norm_first": True, "activation": "relu", "final": False, "bias": False, "tied": True},
    {"norm_first": False, "activation": "relu", "final": True, "bias": False, "tied": False},
]


def settings_of(case: dict[str, Any]) -> dict[str, Any]:
    sides = ("encoder", "decoder")
    return {
        "activation": case["activation"],
        "bias": case["bias"],
        **{f"{side}_norm_first": case["norm_first"] for side in sides},
        **{f"{side}_final_norm": "always" if case["final"] else "never" for side in sides},
        "output_bias": True,
    }


def sentences(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(WORDS[4:], k=rng.randint(1, 20))).strip() or "a" for _ in range(count)]


@pytest.mark.parametrize("case", range(len(SETTINGS)))
def test_logits_and_outputs_are_the_networks(case: int, tmp_path: Path) -> None:
    settings = SETTINGS[case]
    net = random_net(SEEDS[case], **settings)
    zeros = [] if settings["bias"] else ["encoder_*norm.bias", "decoder_*norm.bias"]
    assert (
        converted(tmp_path, net, described(**settings_of(settings)), {"names": names(), "zeros": zeros}) == 0
    )
    lines = sentences(case, 8)
    checkpoint = load_checkpoint(tmp_path / "model")
    network = load_network(checkpoint).eval()
    for line in lines:
        source = [*checkpoint.input.read(line, longest=LONGEST)]
        target = torch.tensor([[BOS, *random.Random(line).choices(range(3, len(WORDS)), k=12)]])
        with torch.no_grad():
            found = network(torch.tensor([source]), target)
        wanted = net(torch.tensor([source]), target)
        assert (found - wanted).abs().max() < 1e-5 * max(1.0, float(wanted.abs().max()))
    wanted_outputs = [greedy(net, [*checkpoint.input.read(line, longest=LONGEST)], 20) for line in lines]
    assert len({*map(tuple, wanted_outputs)}) > 3
    model = nartk.load(tmp_path / "model")
    for strategy in ("greedy", "iad"):
        outputs = [[*each.tokens] for each in model.decode(lines, strategy, max_len=20, max_ratio=20.0)]
        assert outputs == wanted_outputs


def test_a_final_norm_more_or_less_is_another_network(tmp_path: Path) -> None:
    """The bound of the test above tells them apart."""
    net = random_net(0)
    assert converted(tmp_path, net, described(), {"names": names()}) == 0
    network = load_network(load_checkpoint(tmp_path / "model")).eval()
    tokens = torch.tensor([[BOS, 5, 6, EOS]])
    wanted = net(tokens, tokens)
    for side in ("encoder", "decoder"):
        changed = copy.deepcopy(network)
        getattr(changed, side).norm = None
        with torch.no_grad():
            assert (changed(tokens, tokens) - wanted).abs().max() > 1e-3


def unfused(config: dict[str, Any], map: dict[str, Any], state: dict[str, Tensor]) -> None:
    """Projections of their own, of which matrices are [inputs, outputs]; positions are computed."""
    del state["pe"], map["names"]["pe"]
    config["model"] |= {"encoder_positions": "interleaved", "decoder_positions": "interleaved"}
    for name in [name for name in state if "in_proj_" in name]:
        for letter, rows in zip("qkv", state.pop(name).chunk(3), strict=True):
            state[name.replace("in_proj_", f"{letter}.")] = rows.T.contiguous() if rows.dim() == 2 else rows
    for pattern in [pattern for pattern in map["names"] if "in_proj_" in pattern]:
        ours = map["names"].pop(pattern)
        for letter in "qkv":
            map["names"][pattern.replace("in_proj_", f"{letter}.")] = ours.replace("q|k|v", letter)
    for name in [name for name in state if "linear" in name and name.endswith("weight")]:
        state[name] = state[name].T.contiguous()
    map["transposed"] = ["*.q.weight", "*.k.weight", "*.v.weight", "*.linear1.weight", "*.linear2.weight"]
    state["mask"] = torch.full((4, 4), -torch.inf)
    map["ignored"] = ["mask"]


def test_projections_may_be_apart_and_matrices_transposed(tmp_path: Path) -> None:
    net = random_net(1)
    assert converted(tmp_path / "a", net, described(), {"names": names()}) == 0
    assert converted(tmp_path / "b", net, described(), {"names": names()}, unfused) == 0
    one, other = (load_checkpoint(tmp_path / each / "model").tensors for each in "ab")
    assert [*one] == [*other]
    for name in one:
        assert abs(one[name] - other[name]).max() < 1e-6, name


def test_tied_matrices_are_one(tmp_path: Path) -> None:
    net = random_net(2, tied=True)
    net.generator.weight = net.source.weight
    assert converted(tmp_path, net, described(), {"names": names()}) == 0
    assert load_checkpoint(tmp_path / "model").settings["share_embeddings"] == "all"


@pytest.mark.parametrize("kind", ["nested", "safetensors"])
def test_state_dicts_come_in_other_files(kind: str, tmp_path: Path) -> None:
    net = random_net(3)
    assert converted(tmp_path, net, described(), {"names": names()}) == 0
    wanted = load_checkpoint(tmp_path / "model").tensors
    path = tmp_path / ("other.safetensors" if kind == "safetensors" else "other.pth")
    if kind == "safetensors":
        save_file(net.state_dict(), path)
    else:
        torch.save({"epoch": 3, "model_state_dict": net.state_dict(), "optimizer": {"lr": 0.1}}, path)
    files = ["--map", str(tmp_path / "map.json"), "--config", str(tmp_path / "config.json")]
    assert convert([str(path), *files, "--output", str(tmp_path / "again"), "--quiet"]) == 0
    found = load_checkpoint(tmp_path / "again").tensors
    assert all((found[name] == wanted[name]).all() for name in wanted)


def test_sources_are_filled_up(tmp_path: Path) -> None:
    """Padding that a network does not mask is read as it reads any word."""
    net = random_net(4)
    assert converted(tmp_path, net, {**described(), "fill": LONGEST}, {"names": names()}) == 0
    model = nartk.load(tmp_path / "model")
    lines = sentences(4, 6)
    for line, found in zip(lines, model.decode(lines, "iad", max_len=20, max_ratio=20.0), strict=True):
        source = [*load_checkpoint(tmp_path / "model").input.read(line, longest=LONGEST)]
        assert len(source) == LONGEST
        wanted = greedy(net, source, 20)
        assert [*found.tokens] == wanted


def without(*keys: str) -> Change:
    def change(config: dict[str, Any], map: dict[str, Any], state: dict[str, Tensor]) -> None:
        for key in keys:
            del state[key]

    return change


def setting(**values: Any) -> Change:
    return lambda config, map, state: config["model"].update(values)


def extra(config: dict[str, Any], map: dict[str, Any], state: dict[str, Tensor]) -> None:
    state |= {"head.weight": torch.zeros(3, 4), "steps": torch.zeros(1, dtype=torch.int64)}


def twice(config: dict[str, Any], map: dict[str, Any], state: dict[str, Tensor]) -> None:
    map["names"]["target.weight"] = "encoder_embedding.words.weight"


def misnamed(config: dict[str, Any], map: dict[str, Any], state: dict[str, Tensor]) -> None:
    map["names"]["generator.{w}"] = "generator.{w}"


def not_finite(config: dict[str, Any], map: dict[str, Any], state: dict[str, Tensor]) -> None:
    state["source.weight"][3, 3] = torch.nan


def keyed(key: str, value: Any) -> Change:
    return lambda config, map, state: config.update({key: value})


def mapped(key: str, value: Any) -> Change:
    return lambda config, map, state: map.update({key: value})


BAD: dict[str, tuple[Change, str]] = {
    "missing": (
        without("generator.bias", "transformer.encoder.layers.1.linear1.weight"),
        "weights that no tensor is: encoder_layers.1.ffn.up.weight [50, 24], output.bias [33]",
    ),
    "left over": (extra, "tensors that the map does not name: head.weight [3, 4], steps [1]"),
    "of another shape": (
        setting(encoder_ffn=51),
        "transformer.encoder.layers.0.linear1.weight is [50, 24], expected [51, 24] of "
        "encoder_layers.0.ffn.up.weight",
    ),
    "fewer layers": (setting(decoder_layers=1), "weights that the configuration has not: decoder_layers.1."),
    "longer than positions": (setting(max_source_len=200), "pe is [100, 1, 24], expected [200, 24]"),
    "twice": (twice, "weights that two tensors are: encoder_embedding.words.weight"),
    "misnamed": (misnamed, "weights that the configuration has not: generator.weight (of generator.weight)"),
    "not finite": (not_finite, "'source.weight' holds NaN or infinity"),
    "an unknown key": (keyed("wrods", []), "unknown key 'wrods'"),
    "a word that is none": (keyed("before", ["<sos>"]), "'before' is '<sos>', which is no word"),
    "no special tokens": (
        keyed("special_tokens", {"bos": 1}),
        "'special_tokens' is not of bos, pad, eos, unk",
    ),
    "a setting that follows": (setting(pad=0), "'model' has 'pad', which follows"),
    "an unknown setting": (setting(d_mode=24), "unknown model setting 'd_mode'"),
    "a slow pattern": (keyed("split", ["(a+)+$"]), "the pattern '(a+)+$' may take long to match"),
    "a slow pattern again": (keyed("split", ["a*a*a*b"]), "may take long to match"),
    "a reference": (keyed("split", [r"(a)\1"]), "may take long to match"),
    "no pattern": (keyed("split", ["["]), "is no regular expression"),
    "an empty pattern": (keyed("split", ["a*"]), "matches an empty text"),
    "a map's unknown key": (mapped("ignore", []), "unknown key 'ignore'"),
    "a placeholder twice": (mapped("ignored", ["{i}.{i}"]), "'{i}.{i}' has a placeholder twice"),
    "an architecture of sound": (keyed("architecture", "whisper"), "reads no text"),
    "no architecture": (keyed("architecture", "lstm"), "lstm"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, message = BAD[name]
    assert converted(tmp_path, random_net(0), described(), {"names": names()}, change) in (2, 5)
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "model").exists()


def test_pickles_that_run_code_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert converted(tmp_path, random_net(0), described(), {"names": names()}) == 0
    torch.save(random_net(0), tmp_path / "net.pt")  # the module itself
    files = ["--map", str(tmp_path / "map.json"), "--config", str(tmp_path / "config.json")]
    assert convert([str(tmp_path / "net.pt"), *files, "--output", str(tmp_path / "other")]) == 5
    assert "which a checkpoint has no need of" in capsys.readouterr().err


def test_one_file_is_not_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert convert([str(tmp_path / "net.pt"), "--map", "map.json", "--output", str(tmp_path / "other")]) == 2
    assert "--map and --config go together" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["net.pt", "map.json", "config.json"])
def test_truncated_files_are_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that ends too early, at 20 places, is an error within a second, and nothing is written."""
    assert converted(tmp_path, random_net(0), described(), {"names": names()}) == 0
    whole = (tmp_path / name).read_bytes()
    files = ["--map", str(tmp_path / "map.json"), "--config", str(tmp_path / "config.json")]
    for place in range(20):
        (tmp_path / name).write_bytes(whole[: place * len(whole) // 20])
        capsys.readouterr()
        begun = time.perf_counter()
        assert convert([str(tmp_path / "net.pt"), *files, "--output", str(tmp_path / "other")]) == 5
        assert time.perf_counter() - begun < 1
        error = capsys.readouterr().err
        assert "error[E402 Checkpoint]" in error
        assert name in error
        assert "Traceback" not in error
        assert not (tmp_path / "other").exists()


def test_ctranslate2_is_not_said_to_cut_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    net = random_net(1, final=False)
    norms = {"encoder_final_norm": "never", "decoder_final_norm": "never"}
    assert converted(tmp_path, net, described(**norms), {"names": names()}) == 0
    assert convert([str(tmp_path / "model"), "--to", "ctranslate2", "--output", str(tmp_path / "ct2")]) == 0
    assert "sources are words that nothing there cuts and </s>" in capsys.readouterr().err
