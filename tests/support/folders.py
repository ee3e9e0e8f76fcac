"""Model folders whose files a test has changed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from nartk.checkpoints.names import CONFIG


def sign(folder: Path, **values: object) -> None:
    """Sets values in a folder's config.json, and the hashes of the files that are there, as they are now.

    A config.json that is damaged, or names no files, stays as it is.
    """
    try:
        config = json.loads((folder / CONFIG).read_bytes())
        files = dict(config["files"])
    except (ValueError, LookupError, TypeError, OSError, RecursionError):
        return
    for path in folder.iterdir():
        if path.is_file() and path.name != CONFIG:
            files[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    config = {**config, **values, "files": files}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
