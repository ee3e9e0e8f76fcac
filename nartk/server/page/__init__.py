"""The page at ``/``: a form over the server's own interface; it draws outputs as the page of a trace does."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import Response

from nartk.server.service import RefusedError

INDEX = "index.html"
# Of each file its package and type, in the order of the page; the page of a trace has those of its package.
FILES = {
    "draw.css": ("nartk.tracing", "text/css"),
    "page.css": (__name__, "text/css"),
    "draw.js": ("nartk.tracing", "text/javascript"),
    "page.js": (__name__, "text/javascript"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


def is_of_page(path: str) -> bool:
    """True for the paths of the page, which need no key."""
    return path == "/" or path.startswith("/page/")


@router.get("/")
def index() -> Response:
    """The page."""
    return _answer(__name__, INDEX, "text/html")


@router.get("/page/{name}")
def part(name: str) -> Response:
    """A file that the page loads."""
    if name not in FILES:
        raise RefusedError(404, f"the page has no file {name!r}")
    package, type_ = FILES[name]
    return _answer(package, name, type_)


def _answer(package: str, name: str, type_: str) -> Response:
    return Response((files(package) / name).read_bytes(), media_type=type_, headers=_HEADERS)
