"""A real Chromium for the browser tests: signed in or not, on any size of screen, with an eye on what must not happen.

Every page that a test opens is watched: an error in the browser's console, an exception, a request to any other place
than the server under test, or a broken content security policy fails the test at its end.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, Request, Route, expect

from harness import suite

PATIENCE_MS = 30_000
"""How long a test waits for something to appear in a page."""
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
AXE = suite.ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
SERIOUS = {"serious", "critical"}
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 320, "height": 640}


def find_chromium() -> str:
    """Return the program to start; `tools/chromium` installs one."""
    names = (os.environ.get("LCM_CHROMIUM", "chromium"), "chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    assert found, "there is no Chromium: run tools/chromium"
    return found


def launch(playwright: Playwright) -> Browser:
    """Start Chromium, with a new profile."""
    expect.set_options(timeout=PATIENCE_MS)
    return playwright.chromium.launch(executable_path=find_chromium(), args=list(ARGUMENTS))


@dataclass
class Watched:
    """A browser of one person: its pages share cookies and the stream, as tabs do."""

    context: BrowserContext
    url: str
    allowed: set[str] = field(default_factory=set)
    """Parts of console messages that the test causes on purpose."""
    places: set[str] = field(default_factory=set)
    """Where else than to the server the test sends the browser."""
    faults: list[str] = field(default_factory=list)

    def open(self, path: str = "/") -> Page:
        """Open a new tab and watch it."""
        page = self.context.new_page()
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        page.on("request", self._on_request)
        page.goto(self.url + path)
        return page

    def sign_in(self, link: str) -> Page:
        """Open a sign-in link, confirm it, and wait for the home page."""
        page = self.open(link.removeprefix(self.url))
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{self.url}/")
        return page

    def enter(self, link: str) -> None:
        """Take the cookie of a sign-in link, without a page: what most tests need is what comes after."""
        answer = self.context.request.post(link, headers={"Origin": self.url}, max_redirects=0)
        assert answer.status == HTTPStatus.SEE_OTHER, answer.text()

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and not any(part in message.text for part in self.allowed):
            self.faults.append(f"console: {message.text}")

    def _on_request(self, request: Request) -> None:
        place = urlsplit(request.url)
        if place.scheme not in {"data", "blob"} and f"{place.scheme}://{place.netloc}" not in {self.url, *self.places}:
            self.faults.append(f"request to {request.url}")


@contextmanager
def watch(browser: Browser, url: str, *, screen: dict[str, int] | None = None, **options: Any) -> Iterator[Watched]:
    """Open a browser of its own; at the end, fail if anything happened in it that must not.

    Nothing moves in it: what fades in has, for a moment, colours that nobody chose.
    """
    size = screen or DESKTOP
    context = browser.new_context(
        viewport={"width": size["width"], "height": size["height"]}, reduced_motion="reduce", **options
    )
    context.set_default_timeout(PATIENCE_MS)
    watched = Watched(context, url)
    try:
        yield watched
    finally:
        context.close()
    assert not watched.faults, watched.faults


@contextmanager
def hold_requests(page: Page, url: str) -> Iterator[list[Route]]:
    """Hold the requests of a page to an address; those that the block does not take from the list go on at its end."""
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(url, hold)
    yield held
    while held:  # others may come meanwhile
        held.pop(0).continue_()
    page.unroute(url)


def wait_for_content(page: Page) -> None:
    """Wait until a page that is loaded anew shows what it has."""
    expect(page.locator("main h1:not(.unseen)")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="Loading")).to_have_count(0)


def wait_until(page: Page, is_so: Callable[[], bool]) -> None:
    """Wait for something that the browser tells us, and no page shows."""
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while not is_so():
        assert time.monotonic() < deadline
        page.wait_for_timeout(20)


def find_axe_faults(page: Page, *, in_dark: bool = False) -> list[str]:
    """Return what axe finds serious in a page. The debugger evaluates it: the page's own policy stays as it is.

    In dark, only the colours are others.
    """
    page.evaluate(AXE.read_text())
    faults = _run_axe(page, "{resultTypes: ['violations']}")
    if in_dark:
        page.emulate_media(color_scheme="dark")
        faults += _run_axe(page, "{resultTypes: ['violations'], runOnly: ['color-contrast']}")
        page.emulate_media(color_scheme="light")
    return faults


def _run_axe(page: Page, options: str) -> list[str]:
    found: Any = page.evaluate(f"axe.run(document, {options})")
    return [
        f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]} ({len(one['nodes'])})"
        for one in found["violations"]
        if one["impact"] in SERIOUS
    ]


def is_wider_than_screen(page: Page) -> bool:
    """Return whether a page must be scrolled sideways."""
    wide: bool = page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
    return wide
