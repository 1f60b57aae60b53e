"""The web interface: built pages, answered from memory.

`tools/pages.py` builds them into the folder `pages` of `lcm.api`, each file also compressed; a wheel carries it. Names
in `assets` hold a digest of their content, so that browsers keep them for good; the page itself is asked for again
each time, and answered 304 while it is the same. Every address that is not one of the API's is answered with the page,
which shows what it names. Used by `api.http.app`.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

from lcm.api.http.answers import HTML, Answer, Header
from lcm.api.http.problems import NOT_BUILT, Declined
from lcm.api.http.request import Request
from lcm.api.http.routing import GET, HEALTH, Route, no_route

BUILT_PAGES: Final = Path(__file__).parent.parent / "pages"
PAGE_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
    b" connect-src 'self'; worker-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none';"
    b" frame-ancestors 'none'"
)
_PAGE: Final = "index.html"
_ASSETS: Final = "assets"
_RETRY_SECONDS: Final = 2
_KEPT: Final = b"public, max-age=31536000, immutable"
_ASKED_AGAIN: Final = b"no-cache"
_VARY: Final[Header] = (b"vary", b"accept-encoding")
_ENCODINGS: Final = ((b"br", ".br"), (b"gzip", ".gz"))
"""The forms of a file besides the plain one, the smallest first."""
_MEDIA: Final[Mapping[str, bytes]] = {
    ".html": HTML,
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
    ".png": b"image/png",
    ".woff2": b"font/woff2",
    ".wasm": b"application/wasm",
    ".json": b"application/json",
    ".txt": b"text/plain; charset=utf-8",
}
_BEING_BUILT: Final = b"""\
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Lablet Cloud Manager</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="2"></head>
<body><h1>Lablet Cloud Manager</h1><p>The pages are being built. This one shows them as soon as they are there.</p>
<p>The API and the command line work already. If this lasts for minutes, run <code>make pages</code>.</p></body></html>
"""


@dataclass(frozen=True, slots=True)
class BuiltFile:
    """A file in its forms, by content encoding; the plain form has an empty one."""

    forms: Mapping[bytes, bytes]
    media: bytes
    tag: bytes

    def answer(self, request: Request, kept: bytes) -> Answer:
        """Answer with the smallest form that the client accepts, or 304 if it has the file."""
        tag: Header = (b"etag", self.tag)
        fixed = (tag, _VARY)
        if request.headers.get(b"if-none-match") == self.tag:
            return Answer(304, headers=fixed, page_policy=PAGE_POLICY, kept=kept)
        accepted = request.headers.get(b"accept-encoding", b"")
        encoding = next((name for name, _ in _ENCODINGS if name in accepted and name in self.forms), b"")
        headers = (*fixed, (b"content-encoding", encoding)) if encoding else fixed
        return Answer(200, self.forms[encoding], headers, self.media, page_policy=PAGE_POLICY, kept=kept)


@dataclass(slots=True)
class Pages:
    """The pages of one folder. They may be built, or built anew, while they are served."""

    folder: Path = BUILT_PAGES
    look_seconds: float = 1.0
    """How often at most the folder is looked at for another build."""
    _files: Mapping[str, BuiltFile] = field(default_factory=dict)
    _build: object = None
    _looked_at: float = float("-inf")

    def find_route(self, request: Request) -> Route:
        """Return the route of a request that the API does not serve. Raises Declined if it is not for a page."""
        path: str = request.scope["path"]
        if path.startswith(f"/{_ASSETS}/"):
            return _ASSET_ROUTE
        if path == "/" or (b"text/html" in request.headers.get(b"accept", b"") and _names_page(path)):
            return _PAGE_ROUTE
        raise no_route()

    async def answer_asset(self, request: Request) -> Answer:
        """Answer with a file that a page loads."""
        name = request.scope["path"].removeprefix("/")
        found = self._files.get(name) or self._look().get(name)
        if found is None:
            raise no_route()
        return found.answer(request, _KEPT)

    async def answer_page(self, request: Request) -> Answer:
        """Answer with the page; while it is not built, with one that asks again, or a problem for programs."""
        page = self._look().get(_PAGE)
        if page is not None:
            return page.answer(request, _ASKED_AGAIN)
        if b"text/html" not in request.headers.get(b"accept", b""):
            raise Declined(NOT_BUILT, "the pages are being built; the API is below /api", wait=_RETRY_SECONDS)
        again: Header = (b"retry-after", b"%d" % _RETRY_SECONDS)
        return Answer(503, _BEING_BUILT, (again,), HTML, page_policy=b"default-src 'none'; frame-ancestors 'none'")

    def _look(self) -> Mapping[str, BuiltFile]:
        """Return the files as they are built now, read anew if there is another build than before.

        While one is put in the place of another, those known before are returned.
        """
        now = asyncio.get_running_loop().time()
        if now - self._looked_at >= self.look_seconds:
            self._looked_at = now
            build = _identify_build(self.folder)
            if build not in {None, self._build}:
                with suppress(OSError):
                    self._files, self._build = read_files(self.folder), build
        return self._files


def read_files(folder: Path) -> Mapping[str, BuiltFile]:
    """Read every file below a folder, with its compressed forms. Raises OSError if one is taken away meanwhile."""
    compressed = {suffix for _, suffix in _ENCODINGS}
    plain = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in compressed)
    return {path.relative_to(folder).as_posix(): _read_file(path) for path in plain}


def _read_file(path: Path) -> BuiltFile:
    forms = {b"": path.read_bytes()}
    for encoding, suffix in _ENCODINGS:
        other = path.with_name(path.name + suffix)
        if other.is_file():
            forms[encoding] = other.read_bytes()
    digest = sha256(forms[b""]).hexdigest()[:32]
    return BuiltFile(forms, _MEDIA.get(path.suffix, b"application/octet-stream"), b'"%s"' % digest.encode())


def _identify_build(folder: Path) -> object:
    try:
        found = (folder / _PAGE).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _names_page(path: str) -> bool:
    """Return whether an address may be one of the web interface: nothing of the API, and no file.

    Files are asked for at the top; below it, a point may be part of an object's name.
    """
    at_top = path.count("/") == 1
    return not path.startswith("/api/") and path != "/api" and not (at_top and "." in path)


async def _answer_page(request: Request) -> Answer:
    return await request.shared.pages.answer_page(request)


async def _answer_asset(request: Request) -> Answer:
    return await request.shared.pages.answer_asset(request)


_PAGE_ROUTE: Final = Route(GET, "/", _answer_page, "showPage", "Show the web interface", policy=HEALTH)
_ASSET_ROUTE: Final = Route(
    GET, "/assets/{file}", _answer_asset, "readAsset", "Read a file of the web interface", policy=HEALTH
)
