"""docs/api.md is what is served: made from it, complete, and every example in it works."""

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from harness import suite
from harness.api_world import Desk, opened
from lcm.api.openapi.description import document
from lcm.api.openapi.page import page
from lcm.api.routes.table import ROUTES

PAGE = suite.ROOT / "docs" / "api.md"
HEADING = re.compile(r"^### (\w+) (\S+)$", re.MULTILINE)


class Curl(NamedTuple):
    """One example, as a request."""

    method: str
    path: str
    headers: dict[str, str]
    body: str


def curls() -> Iterator[tuple[str, Curl]]:
    for match in re.finditer(r"^### (\w+ \S+)$.*?^(curl .*?)$", PAGE.read_text(), re.MULTILINE | re.DOTALL):
        words = shlex.split(match[2])[1:]
        method, headers, body = "GET", dict[str, str](), ""
        while words[0].startswith("-"):
            option = words.pop(0)
            if option == "-X":
                method = words.pop(0)
            elif option == "-H":
                name, _, value = words.pop(0).partition(": ")
                headers[name] = value
            elif option == "-d":
                body = words.pop(0)
        yield match[1], Curl(method, words[0].removeprefix("$LCM"), headers, body)


CURLS = dict(curls())


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == page(ROUTES), "run `make docs`"


def test_every_operation_has_one_example() -> None:
    described = {
        f"{method.upper()} {path}" for path, operations in document(ROUTES)["paths"].items() for method in operations
    }
    assert CURLS.keys() == described
    assert len(HEADING.findall(PAGE.read_text())) == len(described)


@pytest.mark.parametrize("name", CURLS)
async def test_the_example_is_understood(name: str) -> None:
    curl = CURLS[name]
    async with opened() as desk:
        for path, body in documents():
            await desk.done("service" if path == "/api/workers" else "root", "POST", path, content=body, headers=JSON)
        answer = await sent(desk, curl)
    assert answer in understood(name), (curl, answer)


JSON = {"Content-Type": "application/json"}


def documents() -> list[tuple[str, str]]:
    """What the examples speak of, in an order in which each finds what it refers to."""
    nouns = ("worker-templates", "worker-pools", "workers", "lablet-definitions", "lablet-sessions", "reservations")
    return [(f"/api/{noun}", CURLS[f"POST /api/{noun}"].body) for noun in (*nouns, "event-sinks", "sinks")]


async def sent(desk: Desk, curl: Curl) -> int:
    who = "service" if "/internal/" in curl.path else "root"
    if curl.headers.get("Authorization") is None:
        who = ""
    if curl.path.startswith(("/api/watch", "/api/events/stream")):
        curl = curl._replace(method="HEAD")
    headers = {name: value for name, value in curl.headers.items() if name != "Authorization"}
    answer = await desk.ask(who, curl.method, curl.path, content=curl.body or None, headers=headers)
    return answer.status_code


def understood(name: str) -> set[int]:
    """Return which answers show that a request was understood; its object may be elsewhere in its life."""
    success = {200, 201, 202, 204}
    exists = name.startswith("POST /api/") and name.count("/") == 2
    elsewhere = ("/observe-resources", "/save", "/undrain", "/drain", "/remove-lab", "/status", "/transition")
    stale = name.endswith((*elsewhere, "/console-output")) or "/leases/" in name or "/consoles/" in name
    used = name.startswith(("DELETE /api/lablet-definitions", "DELETE /api/worker-templates"))
    absent = any(
        part in name for part in ("/settings", "/telemetry", "/tokens/", "/licenses/", "/deleted-sessions/", "/feeds/")
    )
    # The desk of these tests promises nothing.
    promised = (
        "/preview",
        "/budgets",
        "/slots",
        "/explanation",
        "/headroom",
        "/quotas",
        "/worker-pools/{id}/pause",
        "/worker-pools/{id}/scale",
        "/calendar",
        "/prebuilt",
        "/schedule",
        "/allocate-ports",
        "/reseat",
        "/sessions",
        "/move",
        "/reservations/{id}/extend",
        "/skip",
        "/resize",
        "/learners",
        "/swap",
    )
    # Nor does it keep files.
    unpromised = name.endswith(promised) or "/artifacts/" in name or name.endswith(("/topologies", "/topology"))
    reported = ("/status", "/transition", "/resource-observations")
    nobody = "/internal/" in name and name.endswith(reported)  # which controller, it does not say
    if name == "POST /sign-in":
        return {403}  # only a page of ours may ask for it
    if "/sign-in/oidc" in name:
        return {303}  # to the provider, or back with a word of what is missing
    return (
        success
        | ({403} if nobody else set())
        | ({409} if exists or stale or used or unpromised else set())
        | ({404} if absent else set())
    )
