"""One Chromium and one `lcm up` with examples for each file.

Playwright keeps an event loop in the thread until it is stopped: it ends with its file, as other tests start loops.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from browser.browser import Watched, launch, watch
from browser.installation import Installation, run_installation


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with run_installation(tmp_path_factory.mktemp("installation")) as it:
        yield it


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Installation]:
    """An installation without anything in it, for a test that stops it or needs it quiet."""
    with run_installation(tmp_path, examples=False) as it:
        yield it


@pytest.fixture
def staff(chromium: Browser, installation: Installation) -> Iterator[Watched]:
    """The administrator's browser, signed in."""
    with watch(chromium, installation.url) as watched:
        watched.enter(installation.link())
        yield watched


@pytest.fixture
def learner(chromium: Browser, installation: Installation) -> Iterator[Watched]:
    """A learner's browser, signed in as ada."""
    with watch(chromium, installation.url) as watched:
        watched.enter(installation.link("ada", "user"))
        yield watched
