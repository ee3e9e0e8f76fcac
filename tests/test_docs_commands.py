"""Every command of every page runs, on small files of the names that it gives; what cannot run is checked.

A new command runs too, in a folder of its page, where `FILES` lists what it reads. One that cannot run here
needs an entry in `NOT_RUN`, with a reason; its script and its flags are compared with what `--help` says.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import desk, hugging_face_text, pipelines, speaking
from support.commands import SCRIPTS
from support.desk import Make, lines
from support.documents import FENCE, PAGES, ROOT, Command, blocks, commands, simple
from support.serving import serving_command

pytestmark = [
    pytest.mark.skipif(not PAGES[0].is_file(), reason="the documents are not beside the tests"),
    pytest.mark.filterwarnings("ignore"),  # other libraries', which write models
    pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="there is no /proc"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("bash", "xz", "curl"))), reason="bash, xz or curl is missing"
    ),
]

# Reasons not to run a command.
INSTALLS = "changes the environment, and needs a package index"
SUITE = "runs tests, which run it"
LONG = "takes minutes to hours; scripts/test --full runs its --quick"
SPEED = "measures on an idle machine; the slow tests run each figure, small"
TEACHER = "decodes what recipes/mt/run.sh trains in hours"
CORPUS = "reads corpora or models that do not ship"
WALK = "tests/test_readme_walk.py runs it with smaller sizes"
PUBLISHED = "reads weights that a package has; scripts/test --published runs it"
HUB = "downloads from the Hugging Face Hub"
SLOW = "takes most of a minute; the slow tests run it"
TRAINED = "continues two checkpoints of long trainings"
TORCHRUN = "needs data and two machines; tests/test_fairseq_train.py trains so in small"
CLUSTER = "needs Ray, or several machines; tests/test_cluster.py decodes with the workers of a cluster"

NOT_RUN: dict[tuple[str, str], str] = {
    ("docs/cluster.md", r"(ray|nartk-decode) .*"): CLUSTER,
    (".*", r"(python\S* -m venv .*)?pip (install|download) .*"): INSTALLS,
    (".*", r"scripts/(test|demo|check|docs|publish-check)"): SUITE,
    ("CONTRIBUTING.md", "git clone .*"): INSTALLS,
    ("docs/training.md", "torchrun .*"): TORCHRUN,
    ("docs/training.md", "mkdir walk .*"): WALK,
    ("docs/training.md", r"nartk-(train bin |convert light/|decode model ).*"): WALK,
    ("docs/training.md", "nartk-train DATA --task nartk_(tts|s2s) .*"): TRAINED,
    ("docs/training.md", r"recipes/\w+/(run|drafters).sh.*"): LONG,
    ("docs/models.md", "nartk-bench .*"): SLOW,
    ("docs/models.md", "nartk-decode Helsinki-NLP/.*"): HUB,
    ("docs/models.md", "nartk-convert (ruaccent|annalog)/.*"): PUBLISHED,
    ("docs/models.md", "echo .* nartk-decode (ruaccent|annalog)-model.*"): PUBLISHED,
    ("recipes/mt/README.md", r"recipes/mt/run.sh --only light\S+ .*recipes/speed.sh light .*"): SPEED,
    ("recipes/.*", r"recipes/\w+/(\w+/)?(run|drafters).sh.*"): LONG,
    ("recipes/.*", r"recipes/speed.sh .*"): SPEED,
    ("recipes/asr/README.md", "python recipes/asr/(prepare|whisper_.*).py .*"): CORPUS,
    ("recipes/asr/README.md", r"(FOLDER=.*|nartk-(decode|convert) \$FOLDER .*)"): PUBLISHED,
    ("recipes/(asr|st)/README.md", "nartk-(convert checkpoints|decode model).*"): CORPUS,
    (
        "recipes/gec/README.md",
        "python recipes/gec/((fit|measure)_guard|fit_speller|evaluate|spellers).py .*",
    ): CORPUS,
    ("recipes/gec/README.md", "python recipes/gec/(gather|real_pairs|fit_spelling|prepare).py .*"): CORPUS,
    ("recipes/(gec|summarization)/README.md", "python recipes/several.py .*"): CORPUS,
    ("recipes/mt/README.md", "python recipes/several.py .*"): TEACHER,
    ("recipes/mt/README.md", "nartk-(calibrate|decode) runs/mt-en-de/.*"): TEACHER,
    ("recipes/st/README.md", "python recipes/st/(mustc|spectrograms).py .*"): CORPUS,
}

# Files that pages name, by their names, and what makes them.
HUGGING_FACE: dict[str, Make] = {
    "opus-mt-en-de": desk.marian,
    "nllb": desk.transformers_of("m2m_100", hugging_face_text.nllb, desk.M2M),
    "flan-t5": desk.transformers_of("t5", hugging_face_text.flan_t5, desk.T5),
}
FILES: dict[str, Mapping[str, Make]] = {
    "README.md": {
        "in.txt": lines(*desk.LINES),
        "opus-mt-en-de": desk.marian,
        "enpt": desk.firefox,
        "whisper-small": desk.whisper,
        "talk.mp3": desk.talk,
        "number.wav": desk.number,
        "checkpoint_best.pt": desk.fairseq_checkpoint,
    },
    "docs/tutorial.md": {"data": desk.clone("data")},
    "docs/howto.md": {
        "in.txt": lines(*desk.LINES),
        "opus-mt-en-de": desk.marian,
        "checkpoint_best.pt": desk.fairseq_checkpoint,
        "whisper-small": desk.whisper,
        "talk.mp3": desk.talk,
        "talks": desk.folder_of({"a.wav": desk.number, "b.wav": desk.talk}),
        "drafter": desk.random_drafter,
    },
    "docs/models.md": {
        "in.txt": lines(*desk.LINES),
        **HUGGING_FACE,
        "opus-mt-en-de-ct2": desk.converted(desk.marian, "source.spm", "target.spm"),
        "nllb-ct2": desk.converted(HUGGING_FACE["nllb"], "sentencepiece.bpe.model", "tokenizer_config.json"),
        "translate-en_es-1_0": desk.argos,
        "enpt": desk.packed(desk.firefox),
        "checkpoint_best.pt": desk.fairseq_checkpoint,
        "wmt.pt": desk.fairseq_checkpoint,
        "codes": desk.codes,
    },
    "docs/scoring.md": {
        **{name: lines(*desk.LINES) for name in ("in.txt", "out.txt", "greedy.txt", "ref.txt")},
        **{f"ref{i}": desk.references for i in range(4)},
        **{name: lines("\u4f60\u597d", "\u4e16\u754c") for name in ("zh.txt", "zh.ref")},
        "exp/decode/text": lines("a one two", "b three"),
        "data/test/text": lines("b three", "a one too"),
        **{
            name: desk.folder_of({f"{i}.wav": desk.number for i in (1, 2, 3)}) for name in ("out", "ref_wavs")
        },
    },
    "docs/serve.md": {
        "enpt": desk.firefox,
        "whisper-small": desk.whisper,
        "talk.mp3": desk.talk,
        "keys.txt": lines("secret"),
    },
    "docs/speech.md": {
        "number.wav": desk.number,
        **dict.fromkeys(("talk.wav", "more.flac", "hour.wav", "hour.mp3"), desk.talk),
        "talks": desk.folder_of({"a.wav": desk.number, "b.wav": desk.talk}),
        "calls": desk.folder_of({"1/a.mp3": desk.talk}),
        "test.tsv": desk.manifest,
        **{name: desk.shipped("asr-digits") for name in ("MODEL", "CTC", "CTC_MODEL")},
        "CONFORMER": desk.speech("conformer"),
        "PARAFORMER": desk.speech("paraformer"),
        "whisper-small": desk.whisper,
        "out.txt": lines("one two"),
        "said.txt": lines("one too"),
        "OWSM": desk.owsm,
        "list.txt": desk.prompts,
        "AR": desk.speech("conformer"),
        "DAG": desk.speech("speech_dag", "dag-lookahead", link_heads=2),
        "dev.txt": lines("number.wav", "talk.wav"),
        "ref.txt": lines("w1 w2", "w3 w4"),
        "S2S_MODEL": desk.shipped("s2s-digits"),
        "VCTK_V1": desk.vocoder,
        "TTS_MODEL": desk.speaker,
        "phonemes.txt": lines("P0 P3 P1", "P2"),
        "ST_MODEL": desk.speech("conformer", "greedy", names=speaking.PHONEMES),
        "data/train.tsv": desk.manifest,
    },
    "docs/strategies.md": {
        "in.txt": lines(*desk.LINES),
        "MODEL": desk.shipped("gec-en"),
        "SMALL": desk.drafter,
    },
    "recipes/gec/README.md": {
        "dev.src": lines(*desk.JFLEG),
        **{f"dev.ref{i}": desk.references for i in range(4)},
        "data": desk.corpora,
        "recipes": desk.clone("recipes"),
    },
}
# Programs of a machine with a microphone and films, which give a recording of the desk's instead.
STAND_INS = {"arecord": "cat number.wav", "ffmpeg": "cat talk.wav"}
# What a page's Python is run after.
BEFORE = {"docs/speech.md": "import nartk\noutput = nartk.load('s2s-digits').decode('number.wav').output\n"}
# Examples of modules, which tests/test_contributing.py runs.
MODULES = "CONTRIBUTING.md"
LANGUAGES = {"console", "bash", "python", "{toctree}", "{eval-rst}", ""}
# Flags of sacrebleu, jiwer, fairseq and docker.
OF_OTHERS = {
    "--chrf-word-order",
    "--paired-ar",
    "--paired-ar-n",
    "--restore-file",
    "--sentence-level",
    "--volume",
}
OTHERS = {"cd", "echo", "git", "mkdir", "ray", "torchrun", "unzip"}

ALL = [each for page in PAGES if page.is_file() for block in blocks(page) for each in commands(block)]


def reason_of(command: Command) -> str | None:
    """The reason not to run a command; None: it runs."""
    reasons = [reason for key, reason in NOT_RUN.items() if fits(command, *key)]
    return reasons[0] if reasons else None


def fits(command: Command, page: str, text: str) -> bool:
    """True if the expressions match a command's page, and the command without its comment."""
    plain = re.sub(r"\s{2,}# .*$", "", command.text, flags=re.MULTILINE).strip()
    return bool(re.fullmatch(page, command.page) and re.fullmatch(text, plain, re.DOTALL))


SERVED = [each for each in ALL if re.match("nartk-serve|curl", each.text)]
STARTED = {str(simple(each.text)): each for each in SERVED if each.text.startswith("nartk-serve")}
RUN = [each for each in ALL if reason_of(each) is None and each not in SERVED]
CHECKED = [each for each in ALL if reason_of(each) is not None]


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def python_of(page: Path) -> str:
    return "\n".join(each.text for each in blocks(page) if each.language == "python")


@pytest.fixture(scope="module")
def desks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each page, with the files that its commands name."""
    for name in ("ctranslate2", "fairseq", "soundfile", "transformers"):
        pytest.importorskip(name)
    folder = tmp_path_factory.mktemp("desks")
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        for file, make in FILES.get(name, {}).items():
            path = folder / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            make(path)
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, text in STAND_INS.items():
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


def run(given: Sequence[tuple[str, Path, str]], folder: Path, desks: Path) -> dict[str, Ended]:
    """How commands end that run one after another, by their names; each has a folder and a text."""
    script = []
    for i, (_, where, text) in enumerate(given):
        (folder / f"{i}.sh").write_text(f"set -euo pipefail\n{text}\n", encoding="utf-8")
        streams = f"<{os.devnull} >{folder}/{i}.out 2>{folder}/{i}.err"
        script.append(f"cd {where}; bash {folder}/{i}.sh {streams}; echo $? >{folder}/{i}.code")
    (folder / "all.sh").write_text("\n".join(script), encoding="utf-8")
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(desks / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "NARTK_SPACY": pipelines.tagged_by_hand(folder / "spacy"),
        "HF_HUB_OFFLINE": "1",
    }
    warm = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "support" / "warm_commands.py")]
    subprocess.run([*warm, str(folder / "all.sh")], env=environment, check=True, timeout=1200)

    def read(i: int, part: str) -> str:
        return (folder / f"{i}.{part}").read_text(encoding="utf-8", errors="replace")

    return {
        name: Ended(int(read(i, "code")), read(i, "out"), read(i, "err"))
        for i, (name, _, _) in enumerate(given)
    }


@pytest.fixture(scope="module")
def ended(desks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """How the commands and the Python of the pages end, and the help of what is checked, by their names."""
    given = [(each.name, desks / each.page, each.text) for each in RUN]
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        if (text := python_of(page)) and page.name != MODULES:
            (desks / name / "page.py").write_text(BEFORE.get(name, "") + text, encoding="utf-8")
            given.append((name, desks / name, f"{sys.executable} -W error page.py"))
    asked = {line for each in CHECKED for line, _ in helps(each)}
    given += [(line, ROOT, line) for line in sorted(asked)]
    return run(given, tmp_path_factory.mktemp("ended"), desks)


def test_blocks_have_languages_that_are_known() -> None:
    programs = "|".join(name for name, _ in SCRIPTS)
    for page in PAGES:
        for block in blocks(page):
            assert block.language in LANGUAGES, f"{block.page}:{block.line}"
            if block.language == "":  # shows no command, which would not run
                assert not re.search(rf"^(\$|{programs}|python|pip) ", block.text, re.MULTILINE), block


def test_no_entry_is_left_over() -> None:
    for key in NOT_RUN:
        assert any(fits(each, *key) for each in ALL), key
    for page, files in FILES.items():
        whole = (ROOT / page).read_text(encoding="utf-8")
        unnamed = [name for name in files if name not in whole and not name.startswith(("ref", "dev.ref"))]
        assert unnamed in ([], ["data", "recipes"]), page


@pytest.fixture(scope="module")
def words_of_code() -> set[str]:
    """Flags and identifiers of what a page may describe."""
    tops = ("nartk", "models", "decoders", "data", "recipes", "scripts")
    files = [path for top in tops for path in (ROOT / top).rglob("*") if path.suffix in (".py", ".sh", "")]
    texts = [path.read_text(encoding="utf-8", errors="ignore") for path in files if path.is_file()]
    return {word for text in texts for word in re.findall(r"--[a-z][\w-]*|\w+", text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_flags_in_sentences_exist(page: Path, words_of_code: set[str]) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for span in re.findall(r"`([^`\n]+)`", text):
        for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", span):
            option = flag[2:].replace("-", "_")
            assert {flag, option, option.removeprefix("no_")} & words_of_code or flag in OF_OTHERS, (
                f"{page.name}: {flag} in {span}"
            )


@pytest.mark.parametrize("command", RUN, ids=lambda each: each.name)
def test_it_runs(command: Command, ended: Mapping[str, Ended]) -> None:
    assert_done(command, ended[command.name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [each for each in CHECKED if reason_of(each) == SLOW], ids=lambda each: each.name
)
def test_it_runs_for_long(command: Command, desks: Path, tmp_path: Path) -> None:
    found = run([(command.name, desks / command.page, command.text)], tmp_path, desks)
    assert_done(command, found[command.name])


def assert_done(command: Command, found: Ended) -> None:
    """Asserts that a command ended well, with the output that its page shows."""
    assert found.code == 0, f"{command.text}{found.err[-2000:]}"
    assert "Traceback" not in found.err
    assert "error[" not in found.err
    if command.shown:
        assert found.out == command.shown


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != MODULES and python_of(page)], ids=lambda page: page.name
)
def test_the_python_of_a_page_runs(page: Path, ended: Mapping[str, Ended]) -> None:
    found = ended[str(page.relative_to(ROOT))]
    assert found.code == 0, found.err[-3000:]
    if page.name in ("README.md", "python.md"):
        assert found.out.startswith("She went home.")
        assert "\nI have a dog.\nThey are here.\n" in found.out


def helps(command: Command) -> Iterator[tuple[str, list[str]]]:
    """Command lines that print help, each with the flags that it must list, for what is not run."""
    for words in simple(command.text) if reason_of(command) != WALK else ():
        flags = [word.partition("=")[0] for word in words if re.match("--?[a-z]", word)]
        if reason_of(command) == HUB:
            yield shlex.join([words[0], *flags, "--help"]), flags
        elif words[0].startswith("nartk"):
            yield shlex.join([*(word for word in words if word != "-"), "--help"]), flags
        elif words[0].endswith(".sh"):
            yield f"{words[0]} --help", [flag for flag in flags if flag != "--help"]


def flags_of(script: Path) -> set[str]:
    """The flags that a script of Python declares, itself or by a function `add_...` of a script beside it."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    parts: list[ast.AST] = [tree]
    for each in ast.walk(tree):
        beside = script.with_name(f"{each.module}.py") if isinstance(each, ast.ImportFrom) else script
        if beside != script and beside.exists():
            taken = {name.name for name in each.names if name.name.startswith("add_")}  # type: ignore[attr-defined]
            body = ast.parse(beside.read_text(encoding="utf-8")).body
            parts += [each for each in body if isinstance(each, ast.FunctionDef) and each.name in taken]
    calls = [each for part in parts for each in ast.walk(part) if isinstance(each, ast.Call)]
    arguments = [each.args for each in calls if getattr(each.func, "attr", "") == "add_argument"]
    return {str(value.value) for values in arguments for value in values if isinstance(value, ast.Constant)}


@pytest.mark.parametrize(
    "command", [each for each in CHECKED if reason_of(each) != WALK], ids=lambda each: each.name
)
def test_it_is_known(command: Command, ended: Mapping[str, Ended]) -> None:
    """Scripts, extras and flags of what is not run exist."""
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    setup = (ROOT / "scripts" / "environment").read_text(encoding="utf-8")
    for words in simple(command.text):
        program = words[0]
        if program.endswith("pip"):
            for extra in re.findall(r"\[([\w,]+)\]", " ".join(words)):
                assert all(f"\n{name} = [" in declared for name in extra.split(","))
            for pin in re.findall(r"\w+==[\d.]+", " ".join(words)):
                assert pin in setup
        elif program.startswith("scripts/"):
            assert os.access(ROOT / program, os.X_OK)
        elif program == "python" and words[1].endswith(".py"):
            declared_flags = flags_of(ROOT / words[1])
            assert {word for word in words if word.startswith("--")} <= declared_flags
        elif not (program.startswith(("nartk", "python", "recipes/")) or program in OTHERS):
            pytest.fail(f"{command.name}: {program} is no program that is known")
    for line, flags in helps(command):
        help = ended[line]
        assert help.code == 0, help.err[-2000:]
        for flag in flags:
            assert re.search(rf"(?<![\w-]){flag}(?![\w-])", help.out), f"{line} does not list {flag}"


@pytest.mark.parametrize("command", STARTED.values(), ids=lambda each: each.name)
def test_it_serves(command: Command, desks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server starts; the one with all models has an answer for each request of the pages."""
    monkeypatch.chdir(desks / command.page)
    (words,) = simple(command.text)
    with serving_command(*words[1:]) as (client, _):
        if not any(word.startswith("whisper=") for word in words):
            return
        for each in SERVED:
            if each.text.startswith("curl"):
                text = each.text.replace("localhost:8000", client.base_url.netloc.decode())
                text = text.replace("curl", "curl --silent --show-error --fail-with-body", 1)
                done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, timeout=120)
                assert done.returncode == 0, f"{each.text}{done.stdout}{done.stderr}"
                assert done.stdout
