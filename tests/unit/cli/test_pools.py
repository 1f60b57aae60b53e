"""What operators do to pools from the command line: pause, resume, scale, and ask why."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import given
from harness.api_world import ApiServer, Shell, served, shell
from harness.booking_world import TERMS, furnish
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.kinds.pool import LabWorkerPool, ScalingDecision
from lcm.system.clock import SystemClock


@pytest.fixture(name="open_api", scope="module")
def promising_api() -> Iterator[ApiServer]:
    with served(terms=TERMS) as api:
        furnish(api)
        yield api


@pytest.fixture(name="desk")
def desk_of_otto(open_api: ApiServer, tmp_path: Path) -> Shell:
    return shell(open_api, tmp_path, columns=80)


def pool_of(api: ApiServer) -> LabWorkerPool:
    async def ask(plane: Plane) -> LabWorkerPool | None:
        return await plane.get(Ref(LabWorkerPool, "ccna"))

    found = api.do(ask)
    assert found is not None
    return found


def said(text: str) -> str:
    return " ".join(text.split())


def test_a_pause_lists_what_was_promised_refuses_new_bookings_and_is_ended(open_api: ApiServer, desk: Shell) -> None:
    desk.out("book", "basics", "--at", "+5h", "--for", "1h", "--name", "promised")
    rehearsed = desk.lcm("pause", "pool", "ccna", "--until", "+9h", "--dry-run")
    assert "1 promised booking is kept: its machine is started" in said(rehearsed.stderr)
    assert "session/promised of root" in said(rehearsed.stderr)
    assert pool_of(open_api).status.pause is None
    assert "pool/ccna is paused until" in said(desk.out("pause", "pool/ccna", "--until", "+9h"))
    assert "Paused:" in desk.out("describe", "pool", "ccna")
    refused = desk.lcm("book", "basics", "--at", "+6h", "--for", "1h")
    assert refused.exit_code != 0
    assert "is paused until" in said(refused.stderr)
    asked = desk.lcm("pause", "pool", "ccna", "--until", "+9h", "--promises", "refuse")
    assert "there is nobody to ask; add --yes" in said(asked.stderr)
    ended = desk.out("pause", "pool", "ccna", "--until", "+9h", "--promises", "refuse", "--yes")
    assert "1 promised booking was ended" in said(ended)
    assert "pool ccna is paused until" in desk.out("describe", "session", "promised").replace("\n", " ")
    desk.out("resume", "pool", "ccna")
    assert pool_of(open_api).status.pause is None


def test_the_size_of_a_pool_is_changed_and_a_bad_one_is_refused(open_api: ApiServer, desk: Shell) -> None:
    assert "has at least 1 and at most 4 workers" in said(desk.out("scale", "pool", "ccna", "--min", 1, "--max", 4))
    assert (pool_of(open_api).spec.min_workers, pool_of(open_api).spec.max_workers) == (1, 4)
    assert "greater than max_workers" in said(desk.lcm("scale", "pool", "ccna", "--min", 9).stderr)
    assert desk.lcm("scale", "pool", "ccna").exit_code != 0
    assert desk.lcm("pause", "w1", "--until", "+1h").exit_code != 0


def test_a_pool_says_why_it_did_or_did_not_scale(open_api: ApiServer, desk: Shell) -> None:
    assert "(no_controller): the pool controller has not looked" in said(desk.out("explain", "pool", "ccna"))
    told: dict[str, Any] = {"workers_before": 1, "workers_after": 1, "considered": ("CPU: 92% claimed",)}
    none = ScalingDecision(
        at=SystemClock().now(), action="none", why="maximum", reason="the pool has its max_workers", **told
    )
    open_api.put(given.pool(name="exam", uid="uid-exam", lab_track="exam", decisions=(none,)))
    text = said(desk.out("explain", "pool/exam"))
    assert "pool/exam stays as it is (maximum): the pool has its max_workers" in text
    assert "`lcm scale pool exam --max N`" in text
    assert "CPU: 92% claimed" in text
    assert json.loads(desk.out("explain", "pool", "exam", "-o", "json"))["why"] == "maximum"
