"""`nartk-serve`: serves models over HTTP, to clients of LanguageTool, LibreTranslate and OpenAI, too."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from nartk.checkpoints.hub import hub_folder, is_hub_name
from nartk.checkpoints.names import SHIPPED
from nartk.cli._common import Parser, command, require_least
from nartk.cli._output import tell
from nartk.errors import EXIT_OK, InputFileError, UsageError, requiring

if TYPE_CHECKING:
    from nartk.serving.model import Model

DESCRIPTION = """Serves models over HTTP. Requests of all clients share batches, whatever their options are;
on the engine each output is what it is alone.

  GET  /                          a page: drafts as they are accepted, edits, passes beside greedy search
  POST /v1/decode                 lines or sounds, with any strategy; "stream": outputs as they grow
  POST /v2/check                  LanguageTool's: corrections by a model with a guard, such as gec-en-medium
  POST /translate                 LibreTranslate's: by models that are served as en-pt=FOLDER
  POST /v1/audio/transcriptions   OpenAI's, and /v1/audio/translations: by models of speech
  GET  /v1/models, /languages, /health/ready, /metrics, /docs

Requests name models as they are named here, never folders. The server listens to this machine alone unless
--host says otherwise; then give it keys. On SIGTERM it takes no more, and ends what it has within --drain."""
EXAMPLES = """  nartk-serve                                             the shipped model corrects English;
                                                          the page is at http://127.0.0.1:8000/
  curl localhost:8000/v2/check -d language=en-US --data-urlencode 'text=She go home.'
  nartk-serve gec-en-medium en-pt=enpt whisper=whisper-small --port 8100
  nartk-serve --host 0.0.0.0 --api-key-file keys.txt      a key a line"""
_IDLE = 75  # s until an idle connection is closed: later than clients do, so that none is as they write
_SWITCH = 0.0005  # s that a model waits for the interpreter while requests are read; by default 0.005


def _parser() -> Parser:
    parser = Parser(prog="nartk-serve", description=DESCRIPTION, examples=EXAMPLES)
    parser.add_argument(
        "models", nargs="*", metavar="[NAME=]MODEL", help=f"what is served (default: {SHIPPED[0]})"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen to (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0: any free one (default: %(default)s)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--dtype", help="fp32, bf16, int8, or fp16 on a GPU (default: fp32, or as stored)")
    parser.add_argument(
        "--threads", type=int, metavar="N", help="CPU threads of a model (default: all cores)"
    )
    parser.add_argument("--batch-size", type=int, default=8, help="most sentences at a time (default: 8)")
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="keys, a line each, of which requests have one"
    )
    parser.add_argument(
        "--cors", action="append", default=[], metavar="ORIGIN", help="origin of pages that may send requests"
    )
    parser.add_argument("--drain", type=int, default=10, metavar="S", help="seconds to end in (default: 10)")
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-body", type=int, metavar="BYTES", help="of a request's body (default: 26214400)"
    )
    limits.add_argument("--max-lines", type=int, metavar="N", help="of a request (default: 256)")
    limits.add_argument(
        "--max-queue", type=int, metavar="N", help="lines that wait for a model (default: 1024)"
    )
    limits.add_argument("--deadline", type=float, metavar="S", help="longest time of a request (default: 60)")
    limits.add_argument("--max-audio", type=float, metavar="S", help="longest recording (default: 1800)")
    return parser


_LIMITS = {
    "body": "max_body",
    "lines": "max_lines",
    "queue": "max_queue",
    "seconds": "deadline",
    "audio_seconds": "max_audio",
}


@command
def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    args = _parser().parse_args(argv)
    require_least(args, 0, "port", "drain")
    require_least(args, 1, "batch_size", *_LIMITS.values())
    with requiring("nartk-serve needs {name}, which is not installed", "serve"):
        import uvicorn

        from nartk.server.app import make_app
        from nartk.server.running import Server
    from nartk.server.service import Limits, Service

    keys = _keys(args.api_key_file)
    models = {name: _load(path, args) for name, path in _named(args.models or [SHIPPED[0]]).items()}
    given = {name: getattr(args, flag) for name, flag in _LIMITS.items() if getattr(args, flag) is not None}
    assert given.keys() <= {each.name for each in fields(Limits)}
    service = Service(models, Limits(**given), batch_size=args.batch_size, keys=keys)
    for name, served in service.models.items():
        tell(args, f"{name}: to {served.does}, {served.model.dtype}")
    if not keys and args.host not in ("127.0.0.1", "localhost", "::1"):
        tell(args, f"anybody who reaches {args.host} can send requests: give --api-key-file")
    config = uvicorn.Config(
        make_app(service, origins=args.cors),
        host=args.host,
        port=args.port,
        log_level=logging.ERROR if args.quiet else logging.INFO,
        access_log=False,
        timeout_keep_alive=_IDLE,
        server_header=False,
    )
    sys.setswitchinterval(_SWITCH)
    Server(config, service, args.drain).run()
    return EXIT_OK


def _named(given: Sequence[str]) -> dict[str, str]:
    """Folders by the names that requests give."""
    found: dict[str, str] = {}
    for each in given:
        name, is_named, path = each.partition("=")
        if not is_named:
            path, name = each, Path(each).name
        if not name or not path or name in found:
            raise UsageError(f"{each!r} gives no name of its own", fix="give NAME=MODEL")
        found[name] = path
    return found


def _load(name: str, args: argparse.Namespace) -> Model:
    from nartk.serving.loading import load

    folder = str(hub_folder(name)) if is_hub_name(name) else name
    return load(folder, device=args.device, dtype=args.dtype, threads=args.threads)


def _keys(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        keys = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(
            "cannot be read", fix="give a text with a key a line", where=str(path)
        ) from error
    if not keys:
        raise UsageError(f"{path} has no key", fix="write one a line, or leave out --api-key-file")
    return keys
