"""`make soak ONLY=web`: two tabs of the web interface on a fleet that never rests; fails if they stutter or grow.

`soak.web_server` holds 1,000 workers and 10,000 sessions and makes 200 changes a second. Chromium shows the heavy pages
in turn, round after round; each is loaded, scrolled, sorted and filtered, while a second tab shows another. Every task
of the pages' main threads is taken from a trace. Memory is taken after a forced collection, and judged for
LCM_SOAK_MINUTES (10) after the first six, when all tables have their size.
LCM_SOAK_NICE=-10 lets all of it run before others, on a machine that is not free for it.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import httpx
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from browser.browser import launch
from soak.readings import raise_priority, read_processes
from soak.tasks import Task, TaskFigures, Trace, judge_memory, judge_tasks, summarize

CHANGES_PER_SECOND: Final = 200
LEAST_SHARE: Final = 0.9
"""Of the changes that must have been made, or the machine was too slow for the soak to mean anything."""
WARM_UP_SECONDS: Final = 360
"""Before memory is judged. A map of 10,000 sessions doubles its table once, after 6,384 were removed and made anew."""
PAGE_SECONDS: Final = 10.0
STEP_SECONDS: Final = 1.2
TABLES: Final = {"/workers": "Workers", "/sessions": "Sessions", "/events": "Events"}
PAGES: Final = ("/", *TABLES, "/calendar")
PATIENCE_MS: Final = 60_000


class Server:
    """The process that serves the fleet and changes it."""

    def __init__(self, folder: str) -> None:
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "soak.web_server", folder, str(CHANGES_PER_SECOND)]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        port, token = self._read().split()
        self.url = f"http://127.0.0.1:{port}"
        self._headers = {"authorization": f"Bearer {token}"}

    def ask(self) -> tuple[int, float]:
        """Return how many changes were made, and the seconds of a core that were used."""
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        made, seconds = self._read().split()
        return int(made), float(seconds)

    def link(self) -> str:
        """Make a sign-in link."""
        answer = httpx.post(f"{self.url}/api/sign-in", headers=self._headers, trust_env=False, timeout=60)
        return self.url + str(answer.raise_for_status().json()["path"])

    def _read(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline()


@contextmanager
def serve() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="lcm-soak-") as folder:
        server = Server(folder)
        try:
            yield server
        finally:
            server.process.kill()
            server.process.wait()


class WebSoak:
    """The two tabs, and what was seen of them."""

    def __init__(self, browser: Browser, context: BrowserContext, url: str) -> None:
        self.tasks: dict[str, list[Task]] = defaultdict(list)
        self.seconds: dict[str, float] = defaultdict(float)
        self.memory: dict[str, list[float]] = defaultdict(list)
        self._browser = browser
        self._url = url
        self.first, self.second = context.new_page(), context.new_page()
        self._shared = SharedWorkerHeap(browser)
        self._paths: Sequence[str] = ()

    def begin(self) -> None:
        """Load both tabs; what that takes counts for the home page."""
        with self._traced("/"):
            for page, path in ((self.first, "/"), (self.second, "/sessions")):
                page.goto(self._url + path)
                expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=PATIENCE_MS)
                expect(page.get_by_role("status").filter(has_text="Loading")).to_have_count(0, timeout=PATIENCE_MS)
        self._paths = [path for path in PAGES if self.first.locator(f"nav a[href='{path}']").count()]

    def play(self, number: int) -> None:
        """Show each page for a while in the first tab, another one in the second; then weigh the memory."""
        for place, path in enumerate(self._paths):
            other = self._paths[(place + number) % len(self._paths)]
            with self._traced(path):
                show(self.second, other)
                show(self.first, path)
                began = time.monotonic()
                if path in TABLES:
                    use_table(self.first, TABLES[path])
                self.first.wait_for_timeout(max(0.0, PAGE_SECONDS - (time.monotonic() - began)) * 1000)
        for name, page in (("first tab", self.first), ("second tab", self.second)):
            show(page, "/workers")
            self.memory[name].append(heap_megabytes(page))
        self.memory["shared worker"].append(self._shared.megabytes())

    @contextmanager
    def _traced(self, path: str) -> Iterator[None]:
        began = time.monotonic()
        with Trace(self._browser) as trace:
            yield
            took = time.monotonic() - began
        self.tasks[path].extend(trace.tasks)
        self.seconds[path] += took


def show(page: Page, path: str) -> None:
    """Go to a page as a person does, by the menu."""
    page.locator(f"nav a[href='{path}']").click(timeout=PATIENCE_MS)
    expect(page.get_by_role("heading", level=1)).to_be_visible(timeout=PATIENCE_MS)


def use_table(page: Page, name: str) -> None:
    """Scroll, order and filter a table."""
    table = page.get_by_role("table", name=name)
    for distance in (2_000, 20_000, -21_000):
        table.evaluate("(it, distance) => it.scrollBy(0, distance)", distance)
        page.wait_for_timeout(STEP_SECONDS * 500)
    for heading in table.get_by_role("columnheader").get_by_role("button").all()[:2]:
        heading.click(timeout=PATIENCE_MS)
        page.wait_for_timeout(STEP_SECONDS * 1000)
    box = page.get_by_role("searchbox", name=f"Filter {name.lower()}")
    for text in ("0", "04", ""):
        box.fill(text, timeout=PATIENCE_MS)
        page.wait_for_timeout(STEP_SECONDS * 1000)


def heap_megabytes(page: Page) -> float:
    """Return what is alive in a page's heap."""
    session = page.context.new_cdp_session(page)
    for _ in range(2):
        session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    return float(used) / 1e6


class SharedWorkerHeap:
    """The heap of the worker that all tabs share, by the browser's debugger."""

    def __init__(self, browser: Browser) -> None:
        self._session = browser.new_browser_cdp_session()
        self._asked = 0
        self._answers: dict[int, Any] = {}
        self._session.on("Target.receivedMessageFromTarget", self._take)

    def megabytes(self) -> float:
        """Return what is alive in it."""
        [worker] = self._find()
        attached: Any = self._session.send("Target.attachToTarget", {"targetId": worker["targetId"], "flatten": False})
        identity = attached["sessionId"]
        self._ask(identity, "HeapProfiler.collectGarbage")
        used = self._ask(identity, "Runtime.getHeapUsage")["usedSize"]
        self._session.send("Target.detachFromTarget", {"sessionId": identity})
        return float(used) / 1e6

    def _find(self) -> Sequence[Any]:
        found: Any = self._session.send("Target.getTargets", {"filter": [{"type": "shared_worker"}]})
        targets: Sequence[Any] = found["targetInfos"]
        return targets

    def _ask(self, identity: str, method: str) -> Any:
        self._asked += 1
        message = json.dumps({"id": self._asked, "method": method})
        self._session.send("Target.sendMessageToTarget", {"sessionId": identity, "message": message})
        while self._asked not in self._answers:
            self._find()
        return self._answers.pop(self._asked)["result"]

    def _take(self, event: Any) -> None:
        message = json.loads(event["message"])
        if "id" in message:
            self._answers[message["id"]] = message


def print_tasks(figures: dict[str, TaskFigures]) -> None:
    print("\npage        tasks  of 1 ms  busy %  p50 ms  p99 ms  longest ms  run ms")
    for page, one in figures.items():
        print(
            f"{page:10}  {one.tasks:5}  {one.worked:7}  {one.busy_percent:6.1f}  {one.p50_ms:6.1f}  {one.p99_ms:6.1f}"
            f"  {one.longest_ms:10.1f}  {one.longest_run_ms:6.1f}"
        )


def soak(minutes: float) -> Sequence[str]:
    """Run the soak; return what is wrong."""
    with serve() as server, sync_playwright() as playwright:
        browser = launch(playwright)
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.goto(server.link())
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{server.url}/")
        page.close()
        nice = int(os.environ.get("LCM_SOAK_NICE", "0"))
        if nice and raise_priority(os.getpid(), nice):
            print(f"Browser and server run with priority {nice}.")
        it = WebSoak(browser, context, server.url)
        it.begin()
        began, (made, _), share = time.monotonic(), server.ask(), 0.0
        for number in range(1, 10_000):
            it.play(number)
            spent = time.monotonic() - began
            changes, _ = server.ask()
            share = (changes - made) / spent / CHANGES_PER_SECOND
            memory = "  ".join(f"{name} {each[-1]:.1f} MB" for name, each in it.memory.items())
            server_mb = read_processes(server.process.pid).memory_bytes / 1e6
            print(f"{spent:5.0f} s  {share:4.0%} of the changes  server {server_mb:.0f} MB  {memory}", flush=True)
            if spent < WARM_UP_SECONDS:
                it.memory.clear()
            if spent >= WARM_UP_SECONDS + minutes * 60:
                break
        browser.close()
    figures = {path: summarize(tasks, it.seconds[path]) for path, tasks in it.tasks.items()}
    print_tasks(figures)
    slow = [] if share >= LEAST_SHARE else [f"only {share:.0%} of the changes were made: the machine was too slow"]
    return [*slow, *judge_tasks(figures), *judge_memory(it.memory)]


def main() -> int:
    faults = soak(float(os.environ.get("LCM_SOAK_MINUTES", "10")))
    for fault in faults:
        print("FAULT:", fault)
    print("soak:", "failed" if faults else "ok")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
