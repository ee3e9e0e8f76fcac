"""Models of the Hugging Face Hub by their names, ORG/NAME or ORG/NAME@REVISION.

What a model needs comes into the hub's own cache, by its own library: safetensors or CTranslate2's model.bin,
settings, vocabularies and tokenizers. Pickles are not downloaded. The variables of that library hold:
HF_HOME, HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, which takes what the cache has, and HF_HUB_DOWNLOAD_TIMEOUT,
the seconds that a silent server is waited for (10), six times at most.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from nartk.checkpoints.hub_answers import Downloads, bounded_responses
from nartk.errors import ModelNotFoundError, NartkError, UnsupportedCheckpointError, requiring

_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@([\w./-]+))?")
_WEIGHTS = ("*.safetensors", "model.bin")
_BESIDE = ("*.json", "*.txt", "*.model", "*.spm", "*.bpe", "*.codes", "bpecodes", "codes", "README.md")
_OF_FILES = (".flac", ".gz", ".json", ".jsonl", ".m2", ".mp3", ".pt", ".tsv", ".txt", ".wav", ".xz")
# Files of other libraries, and copies of the weights in other types.
_LEFT = ("*/*", "flax_*", "tf_*", "*.fp16.*", "consolidated*", "training_args*")


def is_hub_name(name: str) -> bool:
    """Tells whether a name may be one of the hub: no file's, and no path here, nor behind a folder here."""
    found = _NAME.fullmatch(name)
    if found is None or name.endswith(_OF_FILES):
        return False
    return not os.path.exists(name) and not Path(name).parent.exists()


def hub_folder(name: str) -> Path:
    """The folder of a model of the hub, whose files are downloaded unless the cache has them.

    Raises:
        ModelNotFoundError: The hub has no such model, or cannot be reached, and the cache lacks it.
        UnsupportedCheckpointError: Its weights are pickled.
    """
    found = _NAME.fullmatch(name)
    assert found is not None
    model, revision = found.groups()
    try:
        with requiring("the module {name} is not installed", "hub"):
            from huggingface_hub import snapshot_download
        new = Downloads(model)
        needed = [*_WEIGHTS, *_BESIDE]
        try:
            with bounded_responses():
                folder = Path(
                    snapshot_download(
                        model, revision=revision, allow_patterns=needed, ignore_patterns=[*_LEFT]
                    )
                )
            new.check(folder)
            weighs = any(each for pattern in _WEIGHTS for each in folder.glob(pattern))
        except BaseException:
            new.forget_lists()
            raise
    except NartkError as error:
        raise _not_here(name, error.message) from error
    except Exception as error:  # of its own, of httpx, of requests, of what answers hold
        raise _not_here(name, f"{type(error).__name__}: {error}".split("\n")[0][:200]) from error
    if not weighs:
        new.forget_lists()
        raise UnsupportedCheckpointError(
            f"the hub's {name!r} has neither safetensors nor a model.bin of CTranslate2",
            fix=f"nartk-convert --allow-pickle the folder that `hf download {model}` prints",
        )
    return folder


def _not_here(name: str, reason: str) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"{name!r} is no file and no folder, and did not come from the Hugging Face Hub ({reason})",
        fix=f"check the name, or name the folder that `hf download {name.partition('@')[0]}` prints",
    )
