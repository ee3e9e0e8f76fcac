"""Damaged, foreign and hostile folders of ESPnet and FunASR: a named error, at once, and nothing is written.

Tables of changes, each made to a folder of ESPnet's Conformer, of OWSM-CTC or of a Paraformer that is read
without it.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import espnet_models, funasr_models, owsm_ctc_models
from support.hostile import DEEP, Change, elsewhere, pickled, require_refused, written, zipped

from nartk.checkpoints.espnet.reading import reading_espnet
from nartk.checkpoints.funasr.reading import reading_funasr
from nartk.cli.convert import main as convert

yaml = pytest.importorskip("yaml")

HUGE = 2**40
PARTS = "exp/s2t_train/"
# Files of each kind of folder, by what they hold.
WEIGHTS = {
    "espnet": "valid.acc.ave_10best.pth",
    "owsm": f"{PARTS}valid.total_count.ave_5best.till45epoch.pth",
    "funasr": "model.pt",
}
CONFIGS = {"espnet": "config.yaml", "owsm": f"{PARTS}config.yaml", "funasr": "config.yaml"}
PIECES = "data/token_list/bpe_unigram10/bpe.model"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("speech")
    return {
        "espnet": espnet_models.write(folder / "espnet", "conformer"),
        "owsm": owsm_ctc_models.write(folder / "owsm", "published"),
        "funasr": funasr_models.write(folder / "funasr", "large"),
    }


def read(kind: str, folder: Path) -> None:
    with (reading_funasr if kind == "funasr" else reading_espnet)(folder):
        pass


def settings(section: str, **values: Any) -> Callable[[bytes], bytes]:
    """A part of the YAML has those values; with an empty name its top has."""

    def made(raw: bytes) -> bytes:
        found = yaml.safe_load(raw)
        (found[section] if section else found).update(values)
        return bytes(yaml.safe_dump(found, allow_unicode=True), "utf-8")

    return made


def added(text: str) -> Callable[[bytes], bytes]:
    """The YAML has one more line."""
    return lambda raw: raw + b"\nmore: " + text.encode() + b"\n"


def tensors(change: Callable[[dict[str, Any]], object], **how: Any) -> Callable[[bytes], bytes]:
    """What torch.save writes of a changed state dict."""

    def made(raw: bytes) -> bytes:
        state = torch.load(io.BytesIO(raw), weights_only=True)
        change(state)
        out = io.BytesIO()
        torch.save(state, out, **how)
        return out.getvalue()

    return made


def one(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Any]], None]:
    """The first weight of the encoder is changed."""

    def made(state: dict[str, Any]) -> None:
        name = next(each for each in state if each.startswith("encoder.") and state[each].ndim > 1)
        state[name] = change(state[name])

    return made


def rezipped(change: Callable[[zipfile.ZipFile, str, bytes], None]) -> Callable[[bytes], bytes]:
    """The file's parts are written again, one after the other."""

    def made(raw: bytes) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(out, "w") as new:
            for name in old.namelist():
                change(new, name, old.read(name))
        return out.getvalue()

    return made


def compressed(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    archive.writestr(name, data + bytes(50_000_000 * name.endswith("/data/0")), zipfile.ZIP_DEFLATED)


def shortened(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    """What each tensor stores is a byte."""
    archive.writestr(name, data[:1] if "/data/" in name else data)


def lying(raw: bytes) -> bytes:
    """The directory says of each part that it has 2 GB."""
    found = bytearray(raw)
    at = found.find(b"PK\x01\x02")
    while at >= 0:
        found[at + 20 : at + 28] = (2**31 - 1).to_bytes(4, "little") * 2
        at = found.find(b"PK\x01\x02", at + 4)
    return bytes(found)


def cut_at(place: int) -> Callable[[bytes], bytes]:
    """The first twentieths of a file."""
    return lambda raw: raw[: len(raw) * place // 20]


FILES: dict[str, Callable[[str], Change]] = {
    "an empty file": lambda name: written(name, b""),
    "text": lambda name: written(name, b"not a model\n" * 1000),
    "zeros": lambda name: written(name, bytes(4096)),
    "a pickle": lambda name: elsewhere(name, pickled),
    "what torch.save writes": lambda name: elsewhere(name, zipped),
    "a folder": lambda name: elsewhere(name, lambda path, _: path.mkdir()),
    "a pipe": lambda name: elsewhere(name, lambda path, _: os.mkfifo(path)),
    "a device": lambda name: elsewhere(name, lambda path, _: path.symlink_to("/dev/zero")),
    "a link to nowhere": lambda name: elsewhere(name, lambda path, _: path.symlink_to("nowhere")),
    "a link to itself": lambda name: elsewhere(name, lambda path, _: path.symlink_to(path.name)),
    "a twentieth of it": lambda name: written(name, cut_at(1)),
    "half of it": lambda name: written(name, cut_at(10)),
}
STATES: dict[str, Callable[[bytes], bytes]] = {
    "one number of any size": tensors(one(lambda _: torch.zeros(1).expand(HUGE))),
    "a tensor without numbers": tensors(one(lambda _: torch.zeros(1)[:0])),
    "a sparse tensor": tensors(one(lambda _: torch.zeros(HUGE, 8, layout=torch.sparse_coo))),
    "a tensor of nothing": tensors(one(lambda _: torch.empty(HUGE, device="meta"))),
    "a size too many": tensors(one(lambda found: found[None])),
    "complex numbers": tensors(one(lambda found: found.to(torch.complex64))),
    "NaN, legacy": tensors(one(lambda found: found * torch.nan), _use_new_zipfile_serialization=False),
    "a long name": tensors(lambda state: state.update({"x" * 10_000_000: torch.zeros(1)})),
    "a name that is a number": tensors(lambda state: state.update([(3, torch.zeros(1))])),
    "a state in itself": tensors(lambda state: state.update(more=state)),
    "parts that are compressed": rezipped(compressed),
    "parts of a byte": rezipped(shortened),
    "parts of 2 GB": lying,
    "no parts": lambda raw: raw[:4] + raw[raw.rindex(b"PK\x05\x06") :],
}
YAML: dict[str, Callable[[bytes], bytes]] = {
    "aliases that grow": lambda raw: (
        raw
        + b"\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (i, i, b",".join([b"*a%d" % (i - 1)] * 10)) for i in range(1, 12))
    ),
    "an alias of itself": added("&a [*a]"),
    "lists too deep": lambda raw: raw + b"\nmore: " + DEEP,
    "lines too deep": lambda raw: raw + b"\n" + b"".join(b" " * i + b"a:\n" for i in range(2000)),
    "keys too deep": lambda raw: raw + b"\n" + b"? " * 100_000,
    "code": added("!!python/object/apply:os.mkdir [canary]"),
    "a list for settings": lambda _: b"- a\n- b\n",
    "two documents": lambda raw: raw + b"\n---\n" + raw,
    "a key that is a list": added("{[a, b]: c}"),
    "bytes that are no text": lambda raw: raw + b"\nmore: \xff\xfe\n",
    "more values than any model": added("[" + "0," * 1_000_000 + "0]"),
    "more than any file": lambda raw: raw + b"# " + b"x" * 6_000_000,
    "a name without end": added('"' + "x" * 4_000_000),
    "a number in base 60": added("1" + ":1" * 2_000_000),
    "a number in base 16": lambda raw: raw.replace(b"num_blocks: ", b"num_blocks: 0x" + b"f" * 100_000, 1),
    "a number of 5000 digits": lambda raw: raw.replace(b"num_blocks: ", b"num_blocks: " + b"9" * 5000, 1),
    **{
        f"{key} {value}": settings("encoder_conf", **{key: value})
        for key in ("num_blocks", "output_size")
        for value in (10**8, 10**400, -1, float("inf"), True, None, [3])
    },
    **{f"a frontend of {value}": settings("", frontend_conf=value) for value in (3, [], "x")},
    **{f"n_mels {value}": settings("frontend_conf", n_mels=value) for value in (10**8, 10**400)},
    **{
        f"fs {value}"[-20:]: settings("frontend_conf", fs=value)
        for value in (0, 10**400, "9" * 400 + "k", "9" * 900, float("nan"))
    },
}
CASES: dict[str, Change] = {
    **{f"{kind}, weights: {name}": of(WEIGHTS[kind]) for kind in WEIGHTS for name, of in FILES.items()},
    **{f"{kind}, config: {name}": of(CONFIGS[kind]) for kind in WEIGHTS for name, of in FILES.items()},
    **{f"{kind}, {name}": written(WEIGHTS[kind], made) for kind in WEIGHTS for name, made in STATES.items()},
    **{f"{kind}, {name}": written(CONFIGS[kind], made) for kind in WEIGHTS for name, made in YAML.items()},
    **{
        f"{kind}, {section}.{key} {value}"[:50]: written(CONFIGS[kind], settings(section, **{key: value}))
        for kind, section, key, values in (
            ("espnet", "frontend_conf", "n_fft", (10**8, 10**400)),
            ("espnet", "frontend_conf", "hop_length", (10**8, 10**400)),
            ("espnet", "frontend_conf", "win_length", (10**400,)),
            ("espnet", "encoder_conf", "cnn_module_kernel", (10**8, 10**400)),
            ("espnet", "encoder_conf", "interctc_layer_idx", ([HUGE], [1] * 50_000)),
            ("espnet", "decoder_conf", "num_blocks", (10**8, 10**400)),
            ("espnet", "decoder_conf", "linear_units", (10**8, 10**400)),
            ("espnet", "", "token_list", ([], ["a"] * 50_000, "a", {"a": 1}, [["a"]])),
            ("espnet", "", "input_size", (10**8, 10**400)),
            ("owsm", "promptencoder_conf", "num_blocks", (10**8, 10**400)),
            ("owsm", "promptencoder_conf", "output_size", (10**8, 10**400)),
            ("owsm", "encoder_conf", "use_cross_attention", ([True] * 50_000, "x")),
            ("owsm", "preprocessor_conf", "speech_length", (10**8, 10**400, float("nan"))),
            ("owsm", "", "bpemodel", ("/dev/zero", "../../../x.model", 3, "x" * 900 + ".model")),
            ("funasr", "frontend_conf", "lfr_m", (10**8, 10**400)),
            ("funasr", "frontend_conf", "lfr_n", (10**400,)),
            ("funasr", "frontend_conf", "frame_length", (10**8, 10**400)),
            ("funasr", "frontend_conf", "frame_shift", (10**400,)),
            ("funasr", "encoder_conf", "kernel_size", (10**8, 10**400)),
            ("funasr", "encoder_conf", "sanm_shfit", (10**400,)),
            ("funasr", "decoder_conf", "num_blocks", (10**8, 10**400)),
            ("funasr", "decoder_conf", "att_layer_num", (10**8, 10**400)),
            ("funasr", "predictor_conf", "tail_threshold", (10**400, float("nan"))),
            ("funasr", "predictor_conf", "threshold", (10**400, float("nan"))),
        )
        for value in values
    },
    "owsm, layers without number that read prompts": written(
        CONFIGS["owsm"], settings("encoder_conf", num_blocks=10**8, use_cross_attention=True)
    ),
    "owsm, the file's names: a folder above": written(
        "meta.yaml", settings("files", s2t_model_file="../espnet/valid.acc.ave_10best.pth")
    ),
    "owsm, the file's names: a device": written("meta.yaml", settings("files", s2t_model_file="/dev/zero")),
    "owsm, the file's names: a list": written("meta.yaml", settings("files", s2t_model_file=["x"])),
    "owsm, pieces that are none": written(PIECES, b"\x0a\xff\xff\xff\xff\x0f" * 10),
    "owsm, pieces cut off": written(PIECES, lambda raw: raw[: len(raw) // 2]),
    "funasr, statistics of spaces": written("am.mvn", b"<AddShift>" + b" " * 1_000_000),
    "funasr, statistics of lines": written("am.mvn", b"<AddShift>" + b"\n" * 4_000_000),
    "funasr, statistics of brackets": written(
        "am.mvn", b"<AddShift>\n<LearnRateCoef> 0 [" + b"[" * 4_000_000
    ),
    "funasr, more numbers than features": written(
        "am.mvn", b"<AddShift> 1 1\n<LearnRateCoef> 0 [" + b" 0" * 2_000_000 + b" ]\n"
    ),
    "funasr, a number of many digits": written(
        "am.mvn", b"<AddShift> 1 1\n<LearnRateCoef> 0 [ " + b"1" * 4_000_000 + b" ]\n"
    ),
    "funasr, statistics larger than any": written("am.mvn", b" " * 6_000_000),
    "funasr, a name that is too long": lambda folder: (folder / "configuration.json").write_text(
        json.dumps({"file_path_metas": {"init_param": "x" * 5000}})
    ),
    "funasr, words too deep": written("tokens.json", DEEP),
    "funasr, words that are objects": written("tokens.json", b"[" + b"{}," * 3_000_000 + b"{}]"),
    "funasr, words that are lists": written("tokens.json", b"[" + b"[0]," * 3_000_000 + b"[0]]"),
    "funasr, a word without end": written("tokens.json", b'["' + b"x" * 40_000_000),
    "funasr, a number for words": written("tokens.json", b"9" * 1_000_000),
    "funasr, words of a pipe": elsewhere("tokens.json", lambda path, _: os.mkfifo(path)),
    "funasr, words of a device": elsewhere("tokens.json", lambda path, _: path.symlink_to("/dev/zero")),
    "funasr, lines without end": lambda folder: (
        (folder / "tokens.json").rename(folder / "tokens.txt").write_bytes(b"\n" * 40_000_000)
    ),
    "funasr, names too deep": lambda folder: (folder / "configuration.json").write_bytes(b'{"a":' * 100_000),
    "funasr, names of a device": lambda folder: (folder / "configuration.json").write_text(
        '{"file_path_metas": {"init_param": "/dev/zero"}}'
    ),
}


def test_there_are_as_many_cases_as_are_promised() -> None:
    assert len(CASES) >= 150


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_folder_is_refused_at_once(case: str, folders: dict[str, Path], tmp_path: Path) -> None:
    kind, new = case.partition(",")[0], str(tmp_path / "new")
    require_refused(
        folders[kind],
        tmp_path / "model",
        CASES[case],
        lambda folder: read(kind, folder),
        lambda folder: convert([str(folder), "--output", new, "--quiet"]),
    )
