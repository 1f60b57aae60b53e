"""`make screenshots`: every page of a living installation as a picture: light, dark, and on a phone.

The pages are those of `web/src/routes.ts`; a variable part of an address becomes the name of something that is there.
Pictures named by KEEP are also written to docs/images, as WebP below 150 kB.
"""

import argparse
import base64
import itertools
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, Page, expect, sync_playwright

from browser.browser import launch
from browser.installation import Installation, run_installation
from harness import suite

ROUTES = suite.ROOT / "web" / "src" / "routes.ts"
TABS = suite.ROOT / "web" / "src" / "pages" / "session" / "tabs.ts"
FOLDER = suite.ROOT / ".cache" / "screenshots"
KEPT = suite.ROOT / "docs" / "images"
KEPT_BYTES = 150_000
TALLEST = 2_400
"""How much of a long page is shown."""
MOST_LOOKS = 20
"""How often a page is looked at until it does not change any more."""
PATIENCE_SECONDS = 180
LEARNER = "ada@example.org"
LEARNER_PAGES = ("/", "/book", "/costs", "/quotas", "/sessions", "/sessions/:name", "/sessions/:name/consoles")
INSTRUCTOR = "tess@example.org"
INSTRUCTOR_PAGES = ("/", "/calendar", "/reservations/:name", "/reservations/:name/hand-out")
CLASS = "routing-today"
"""The class of the instructor in the pictures."""
VIEWER_PAGES = ("/", "/calendar")
SHOWN = suite.ROOT / "tests" / "browser" / "shown"
FIRST = (suite.ROOT / "examples" / "first", suite.ROOT / "examples" / "timetable", SHOWN)
NAMES = {
    "definitions": "ccna-basics:1.0.0",
    "pools": "ccna",
    "reservations": "evening-school",
    "sessions": "ada-routing",
    "sinks": "ops-chat",
}
"""What the pages of one thing show, by the first part of their address."""
CHOSEN = {"/book": "?lab=vlan-trunks:1.3.0"}
"""What is chosen on a page, so that there is more to see."""
TYPED = ("enable", "show ip interface brief", "show running-config")
LAB = {"definition": "ccna-basics:1.0.0", "duration_minutes": 120}


class Look(NamedTuple):
    """A kind of picture."""

    name: str
    width: int
    height: int
    colours: Any


LOOKS = (
    Look("light", 1280, 800, "light"),
    Look("dark", 1280, 800, "dark"),
    Look("phone", 390, 844, "light"),
)


def list_paths() -> Sequence[str]:
    """Return the addresses of all pages, as the one list has them."""
    found = re.findall(r'path: "([^"]+)"', ROUTES.read_text())
    assert found, f"{ROUTES} lists no pages"
    return list(dict.fromkeys(found))


def list_tabs() -> Sequence[str]:
    """Return the tabs of a session's page."""
    return re.findall(r'key: "([a-z-]+)"', TABS.read_text())


def fill_path(path: str, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the addresses that an address with variable parts stands for; none if there is nothing of that kind."""
    kind = path.split("/")[1]
    if "/:tab?" in path:
        for tab in ("", *list_tabs()):
            yield from fill_path(path.replace("/:tab?", f"/{tab}" if tab else ""), names)
    elif ":" not in path:
        yield path
    elif kind in names:
        yield re.sub(r":\w+", names[kind], path, count=1)


def wait_for_life(it: Installation) -> Mapping[str, str]:
    """Wait until sessions run and something was measured; return a name for the first part of each address."""
    token = it.token(LEARNER, "user")
    for name in ("ada-routing", "ada-switching"):
        body = {"metadata": {"name": name}, "spec": LAB}
        it.ask("POST", "/api/lablet-sessions", token=token, json=body)
    reserve_class(it)
    sink = {"name": "ops-chat", "url": "https://hooks.example.org/lcm", "format": "slack", "event_types": ["alert.*"]}
    it.ask("POST", "/api/sinks", json=sink)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        mine = it.ask("GET", "/api/lablet-sessions/ada-routing")
        running = it.ask("GET", "/api/lablet-sessions?field_selector=status.phase=RUNNING&limit=50")["items"]
        if mine["status"]["phase"] == "RUNNING" and len(running) > 1:
            worker = mine["status"]["worker_name"]
            if len(it.ask("GET", f"/api/workers/{worker}/history")["items"]) > 1:
                return {**NAMES, "workers": worker}
        time.sleep(1)
    raise AssertionError("there was nothing to see in time")


def reserve_class(it: Installation) -> None:
    """Reserve for an instructor's class, which begins as soon as that is accepted."""
    token = it.token(INSTRUCTOR, "instructor")
    people = [f"{name}@example.org" for name in ("ada", "bob", "cleo", "dan", "eve", "finn")]
    until = f"{datetime.now(UTC) + timedelta(days=15):%Y-%m-%d}"
    series = {"every": "week", "until": until, "time_zone": "UTC"}
    spec = {"definition": LAB["definition"], "count": len(people), "student_emails": people, "recurrence": series}
    it.reserve_soon(token, CLASS, spec, hours=2)


def name_of(path: str, names: Mapping[str, str]) -> str:
    """Return the file name of a page's picture, which stays the same whatever its object is called."""
    kinds = dict(zip(names.values(), names, strict=False))
    words = ["one" if part in kinds else part for part in path.strip("/").split("/") if part]
    return "-".join(words) or "home"


def settle(page: Page) -> bytes:
    """Return a picture that is the same twice in a row: plots and terminals draw after their data came."""
    before, now = b"", page.screenshot()
    for _ in range(MOST_LOOKS):
        if now == before:
            break
        before, now = now, page.screenshot()
    return now


def show_whole(page: Page, look: Look) -> None:
    """Make the window as high as the page. What takes a share of the window grows with it, so look again."""
    height = 0
    while height < (whole := int(page.evaluate("document.documentElement.scrollHeight"))) and height < TALLEST:
        height = max(look.height, min(whole, TALLEST))
        page.set_viewport_size({"width": look.width, "height": height})
        settle(page)


def take(page: Page, url: str, file: Path, look: Look) -> None:
    """Take a picture of a page once it shows what it has."""
    page.goto(url)
    page.locator("main h1:not(.unseen), main h1").first.wait_for()
    expect(page.locator("main .loading")).to_have_count(0)
    settle(page)
    if page.locator(".xterm").is_visible():
        expect(page.locator(".xterm-rows")).to_contain_text(re.compile("[>#]"))
        for line in TYPED:
            page.keyboard.type(f"{line}\n")
            settle(page)
    show_whole(page, look)
    file.write_bytes(settle(page))
    page.set_viewport_size({"width": look.width, "height": look.height})


def take_all(browser: Browser, it: Installation, names: Mapping[str, str], only: str) -> Iterator[Path]:
    """Take every picture, of staff and of a learner; yield each file."""
    visits = [
        ("", it.link, list_paths()),
        ("learner-", lambda: it.link(LEARNER, "user"), LEARNER_PAGES),
        ("instructor-", lambda: it.link(INSTRUCTOR, "instructor"), INSTRUCTOR_PAGES),
        ("viewer-", lambda: it.link("vera@example.org", "viewer"), VIEWER_PAGES),
    ]
    for look, (prefix, link, paths) in itertools.product(LOOKS, visits):
        seen = {**names, "reservations": CLASS} if prefix == "instructor-" else names
        context = browser.new_context(
            viewport={"width": look.width, "height": look.height},
            color_scheme=look.colours,
            reduced_motion="reduce",
            locale="en-GB",
            timezone_id="UTC",
        )
        page = context.new_page()
        page.goto(link())
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"{it.url}/")
        known = [path for path in paths if path.split("/:")[0] in {one.split("/:")[0] for one in list_paths()}]
        for path in (filled for one in known for filled in fill_path(one, seen)):
            file = FOLDER / f"{prefix}{name_of(path, seen)}-{look.name}.png"
            if only in file.stem:
                take(page, it.url + path + CHOSEN.get(path, ""), file, look)
                yield file
        context.close()
    yield from take_sign_in(browser, it, only)


def take_sign_in(browser: Browser, it: Installation, only: str) -> Iterator[Path]:
    """Take a picture of the page for who is not signed in."""
    for look in LOOKS:
        file = FOLDER / f"sign-in-{look.name}.png"
        if only in file.stem:
            page = browser.new_page(viewport={"width": look.width, "height": look.height}, color_scheme=look.colours)
            take(page, it.url, file, look)
            page.close()
            yield file


def keep(browser: Browser, name: str) -> Path:
    """Write one of the pictures to docs/images, as WebP and small."""
    source = base64.b64encode((FOLDER / f"{name}.png").read_bytes()).decode()
    page, data = browser.new_page(), b""
    for quality in (0.9, 0.8, 0.7, 0.55, 0.4):
        text = page.evaluate(
            """async ([source, quality]) => {
              const image = new Image();
              image.src = `data:image/png;base64,${source}`;
              await image.decode();
              const canvas = document.createElement("canvas");
              [canvas.width, canvas.height] = [image.width, Math.min(image.height, 900)];
              canvas.getContext("2d").drawImage(image, 0, 0);
              return canvas.toDataURL("image/webp", quality).split(",")[1];
            }""",
            [source, quality],
        )
        data = base64.b64decode(text)
        if len(data) < KEPT_BYTES:
            break
    page.close()
    assert len(data) < KEPT_BYTES, f"{name} does not become smaller than {KEPT_BYTES} bytes"
    KEPT.mkdir(exist_ok=True)
    file = KEPT / f"{name}.webp"
    file.write_bytes(data)
    return file


def main() -> int:
    """Take the pictures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only pictures with this in their name")
    parser.add_argument("--keep", default="", help="names of pictures for docs/images, with commas between")
    parser.add_argument("--speed", type=int, default=60, help="how fast the simulated cloud is")
    wish = parser.parse_args()
    kept = [name for name in wish.keep.split(",") if name]
    FOLDER.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as home:
        browser = launch(playwright)
        if not kept or not all((FOLDER / f"{name}.png").exists() for name in kept):
            with run_installation(Path(home), first=FIRST, speed=wish.speed) as it:
                taken = list(take_all(browser, it, wait_for_life(it), wish.only))
            sys.stdout.write(f"{len(taken)} pictures in {FOLDER.relative_to(suite.ROOT)}\n")
        for name in kept:
            sys.stdout.write(f"{keep(browser, name).relative_to(suite.ROOT)}\n")
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
