"""The web interface as it is served: the page, what it loads, how long that is kept, and while it is being built."""

import gzip
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from harness.api_world import Desk, opened
from lcm.api.http.pages import Pages

SCRIPT = b"export const answer = 42;\n" * 40
BROWSER = {"Accept": "text/html,application/xhtml+xml"}
SCRIPT_PATH = "/assets/main-3f2a9c1b.js"


@pytest.fixture(name="desk")
async def open_desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with opened(pages=Pages(tmp_path / "pages", look_seconds=0)) as desk:
        yield desk


def build(folder: Path, text: str = "first") -> None:
    """Lay the files down as a build does."""
    assets = folder / "pages" / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    (assets / "main-3f2a9c1b.js").write_bytes(SCRIPT)
    (assets / "main-3f2a9c1b.js.gz").write_bytes(gzip.compress(SCRIPT))
    (folder / "pages" / "index.html").unlink(missing_ok=True)
    (folder / "pages" / "index.html").write_text(f"<!doctype html><title>{text}</title>")


async def test_until_pages_are_built_browsers_get_one_that_asks_again_and_programs_a_problem(
    desk: Desk, tmp_path: Path
) -> None:
    waiting = await desk.ask("", "GET", "/", headers=BROWSER)
    assert (waiting.status_code, waiting.headers["retry-after"]) == (503, "2")
    assert 'http-equiv="refresh"' in waiting.text
    problem = await desk.ask("", "GET", "/")
    assert (problem.status_code, problem.json()["reason"]) == (503, "NotBuilt")
    build(tmp_path)
    assert (await desk.ask("", "GET", "/", headers=BROWSER)).text == "<!doctype html><title>first</title>"


async def test_the_page_is_asked_for_again_and_not_sent_again_while_it_is_the_same(desk: Desk, tmp_path: Path) -> None:
    build(tmp_path)
    page = await desk.ask("", "GET", "/", headers=BROWSER)
    assert page.headers["cache-control"] == "no-cache"
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    tagged = {**BROWSER, "If-None-Match": page.headers["etag"]}
    same = await desk.ask("", "GET", "/", headers=tagged)
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", page.headers["etag"])
    build(tmp_path, "second")
    other = await desk.ask("", "GET", "/", headers=tagged)
    assert (other.status_code, "second" in other.text) == (200, True)


async def test_what_a_page_loads_is_compressed_and_kept_for_good(desk: Desk, tmp_path: Path) -> None:
    build(tmp_path)
    packed = await desk.ask("", "GET", SCRIPT_PATH, headers={"Accept-Encoding": "gzip, br"})
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(SCRIPT)
    assert packed.content == SCRIPT
    assert packed.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert packed.headers["content-type"].startswith("text/javascript")
    plain = await desk.ask("", "GET", SCRIPT_PATH, headers={"Accept-Encoding": "identity"})
    assert ("content-encoding" in plain.headers, plain.content) == (False, SCRIPT)
    assert plain.headers["vary"] == "accept-encoding"
    head = await desk.ask("", "HEAD", SCRIPT_PATH)
    assert (head.status_code, head.content) == (200, b"")


async def test_addresses_of_the_web_interface_get_the_page_and_those_of_the_api_never(
    desk: Desk, tmp_path: Path
) -> None:
    build(tmp_path)
    for where in ("/workers", "/workers/ccna-worker-1", "/sessions/mine/consoles", "/definitions/basics:1.0.0"):
        assert (await desk.ask("", "GET", where, headers=BROWSER)).status_code == 200
        assert (await desk.ask("", "GET", where)).json()["reason"] == "NoRoute"
    for where in ("/api", "/api/nothing", "/assets/nothing.js", "/assets/../index.html", "/favicon.ico", "/robots.txt"):
        answer = await desk.ask("", "GET", where, headers=BROWSER)
        assert (answer.status_code, answer.json()["reason"]) == (404, "NoRoute"), where
    assert (await desk.ask("root", "POST", "/workers", headers=BROWSER)).status_code == 404


async def test_while_a_build_is_put_in_the_place_of_another_the_one_before_is_served(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path)
    assert (await desk.ask("", "GET", "/", headers=BROWSER)).status_code == 200
    (tmp_path / "pages").rename(tmp_path / "old")
    assert "first" in (await desk.ask("", "GET", "/", headers=BROWSER)).text
    build(tmp_path, "second")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", raise_gone)
        assert "first" in (await desk.ask("", "GET", "/", headers=BROWSER)).text
    assert "second" in (await desk.ask("", "GET", "/", headers=BROWSER)).text


def raise_gone(path: Path) -> bytes:
    raise FileNotFoundError(path)
