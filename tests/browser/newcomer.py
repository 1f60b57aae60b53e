"""The newcomer's minute: from `make up` in a fresh clone to the answer of a command in a running lab's console.

Run by hand, with `src` and `tests` in PYTHONPATH: `.venv/bin/python -m browser.newcomer [--cold]`. It clones what
is committed here, runs `make up` in the clone on a free port, signs in by the link that it prints, books a lab in
Chromium, and types into its console. It prints the seconds of each step and fails above a minute; with `--cold`, on
empty package caches, above two and a half.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

from playwright.sync_api import Page, expect, sync_playwright

from browser.browser import launch
from harness.servers import free_port

ROOT = Path(__file__).resolve().parents[2]
WARM_SECONDS, COLD_SECONDS = 60, 150
PATIENCE_MS = 120_000
LINK = re.compile(r"http://\S+/sign-in\S*")


class Stopwatch:
    """Prints what each step took."""

    def __init__(self) -> None:
        self.began = self._last = time.monotonic()

    def lap(self, what: str) -> None:
        now = time.monotonic()
        print(f"{now - self._last:6.1f} s  {what}", flush=True)
        self._last = now

    @property
    def seconds(self) -> float:
        return self._last - self.began


def start(clone: Path, home: Path, *, cold: bool) -> "subprocess.Popen[str]":
    """Run `make up` in a session of its own, with nothing of this one's environment."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LCM_", "VIRTUAL_ENV"))}
    own |= {"XDG_CONFIG_HOME": str(home / "config"), "LCM_DATA_DIR": str(home / "data")}
    if cold:
        own |= {"UV_CACHE_DIR": str(home / "uv"), "npm_config_cache": str(home / "npm"), "PIP_NO_CACHE_DIR": "1"}
    command = ["make", "up", f"ARGS=--port {free_port()}"]
    return subprocess.Popen(
        command,
        cwd=clone,
        env=own,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def read_link(lines: "Queue[str]") -> str:
    """Return the sign-in link that is printed."""
    seen: list[str] = []
    until = time.monotonic() + COLD_SECONDS
    while time.monotonic() < until:
        try:
            seen.append(lines.get(timeout=1))
        except Empty:
            continue
        if found := LINK.search(seen[-1]):
            return found[0]
    raise AssertionError("no sign-in link was printed:\n" + "".join(seen[-30:]))


def sign_in(page: Page, link: str) -> None:
    """Open the link, wait until the pages are built, and confirm."""
    page.goto(link)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", level=1).first).to_be_visible()
    expect(page.get_by_role("navigation", name="Pages")).to_be_visible()


def book(page: Page) -> None:
    """Book the example lab, as soon as possible."""
    page.goto(f"{page.url.rstrip('/')}/book?lab=ccna-basics:1.0.0")
    page.get_by_label("As soon as possible").check()
    page.get_by_role("complementary", name="Your booking").get_by_role("button", name="Book").click()
    page.wait_for_url(re.compile("/sessions/ccna-basics-"))


def use(page: Page) -> None:
    """Open a console of the lab and read the answer to a command."""
    page.get_by_role("link", name="Open consoles").click()
    expect(page.get_by_role("tab", name="R1 serial")).to_contain_text("connected")
    expect(page.locator(".xterm-rows")).to_contain_text("R1>")
    page.keyboard.type("show version\n")
    expect(page.locator(".xterm-rows")).to_contain_text("simulated by the Lablet Cloud Manager")


def main(arguments: list[str]) -> int:
    """Run it; return the exit code."""
    cold = "--cold" in arguments
    home = Path(tempfile.mkdtemp(prefix="newcomer-"))
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(home / "clone")], check=True)
    watch = Stopwatch()
    running = start(home / "clone", home, cold=cold)
    lines: Queue[str] = Queue()
    assert running.stdout is not None
    Thread(target=lambda out: deque(map(lines.put, out), maxlen=0), args=(running.stdout,), daemon=True).start()
    try:
        link = read_link(lines)
        watch.lap("installed, and started")
        with sync_playwright() as playwright:
            browser = launch(playwright)
            expect.set_options(timeout=PATIENCE_MS)
            page = browser.new_page()
            page.set_default_timeout(PATIENCE_MS)
            sign_in(page, link)
            watch.lap("pages built, and signed in")
            book(page)
            watch.lap("booked a lab")
            use(page)
            watch.lap("it runs, and a command was answered")
            browser.close()
    finally:
        os.killpg(running.pid, signal.SIGINT)
        running.wait(30)
        shutil.rmtree(home, ignore_errors=True)
    most = COLD_SECONDS if cold else WARM_SECONDS
    print(f"{watch.seconds:6.1f} s  in all; at most {most}")
    return 0 if watch.seconds <= most else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
