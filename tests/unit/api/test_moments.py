"""Moments at the ends of the calendar are refused where they come in, and shown where they are stored already."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness import given
from harness.api_world import document, opened, path, served, shell, stock
from lcm.cli.output.render import format_moment
from lcm.cli.output.times import format_local
from lcm.cli.output.zone import Zone

EXTREMES = ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59Z"]
LAST = datetime.fromisoformat(EXTREMES[0])


@pytest.mark.parametrize("moment", EXTREMES)
@pytest.mark.parametrize(
    "where",
    [
        "/api/audit?since={}",
        "/api/audit?until={}",
        "/api/costs?since={}",
        "/api/costs?since=2026-01-01T00:00:00Z&until={}",
        "/api/workers/ccna-worker-1/history?since={}",
        "/api/calendar?since={}",
    ],
)
async def test_a_query_about_the_end_of_time_is_refused(where: str, moment: str) -> None:
    async with opened() as desk:
        await stock(desk)
        answer = await desk.ask("root", "GET", where.format(moment.replace("+", "%2B")))
        assert (answer.status_code, answer.json()["reason"]) == (422, "Invalid"), answer.text
        assert "1970" in answer.json()["detail"]


@pytest.mark.parametrize("moment", EXTREMES)
@pytest.mark.parametrize(
    ("kind", "said"), [("LabletSession", {"give_up_at": ""}), ("Reservation", {"timeslot_end": ""})]
)
async def test_a_document_of_the_end_of_time_is_refused(kind: str, said: dict[str, Any], moment: str) -> None:
    wrong = document(kind, name="late", **dict.fromkeys(said, moment))
    async with opened() as desk:
        for where, body in ((path(kind), wrong), ("/api/apply", {"documents": [wrong]})):
            answer = await desk.ask("root", "POST", where, json=body)
            assert answer.status_code == 422, answer.text
            assert next(iter(said)) in answer.text


def test_a_stored_one_is_shown_as_it_is(tmp_path: Path) -> None:
    with served() as api:
        api.put(given.session(name="late", timeslot_end=LAST))
        told = shell(api, tmp_path).out("describe", "session", "late")
        assert "9999-12-31" in told
        assert "9999-12-31" in shell(api, tmp_path).out("get", "sessions", "-o", "wide") + told


def test_it_is_formatted_in_its_own_zone() -> None:
    assert format_moment(LAST) == "9999-12-31 23:59 UTC-23:59"
    assert format_local(LAST, Zone("UTC", UTC)).startswith("Fri 9999-12-31 23:59")
