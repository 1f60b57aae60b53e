"""`lcm get calendar`: seats against time, in any terminal."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import typer
from hypothesis import strategies as st

from harness.api_world import ApiServer, Shell, served, shell
from harness.booking_world import TERMS, furnish
from harness.suite import for_all
from lcm.cli.booking.calendar import (
    ASCII,
    BLOCKS,
    CalendarGrid,
    CalendarOptions,
    DrawingContext,
    _only_pool,
    choose_grid,
    choose_signs,
    draw_calendar,
    draw_headings,
    draw_row,
)
from lcm.cli.output.zone import find_zone
from lcm.model.kinds.placement import Booked, CalendarRow, CalendarView, Slot
from lcm.model.kinds.pool import PoolPacking

BERLIN = find_zone("Europe/Berlin")
SINCE = datetime(2026, 11, 29, 23, tzinfo=UTC)
"""Midnight in Berlin, of a Monday."""
HOUR = timedelta(hours=1)


def booked(start: float, end: float, owner: str = "") -> Booked:
    a, b = SINCE + HOUR * start, SINCE + HOUR * end
    return Booked(start=a, end=b, slot=Slot(start=a, end=b), owner=owner, name=owner and "s1")


def row(*taken: Booked, seat: int = 1, worker: str = "", phase: str = "") -> CalendarRow:
    return CalendarRow(namespace="default", pool="ccna", seat=seat, worker=worker, phase=phase, booked=taken)


def view(*rows: CalendarRow, hours: int = 24, left_off: int = 0) -> CalendarView:
    return CalendarView(since=SINCE, until=SINCE + HOUR * hours, rows=rows, rows_left_off=left_off)


def test_a_day_is_drawn_in_eighty_columns() -> None:
    rows = (
        row(booked(9, 11, "ada"), booked(10, 14), worker="ccna-w1", phase="ACTIVE"),
        row(booked(0, 3), seat=2),
        CalendarRow(namespace="default", pool="", seat=0, worker="imported", phase="READY_UNLICENSED"),
    )
    sight = DrawingContext("ada", SINCE + HOUR * 8.75, BERLIN, 80, BLOCKS)
    assert list(draw_calendar(view(*rows), sight)) == [
        "                              Mon 30 Nov",
        "                              00  02  04  06  08  10  12  14  16  18  20  22",
        "                                               ▼",
        "ccna/1   ccna-w1   ACTIVE     ··················████▒▒▒▒▒▒····················",
        "ccna/2   -                    ▒▒▒▒▒▒··········································",
        "no pool  imported  READY_UN…  ················································",
        "",
        "█ yours  ▒ others'  · free  ▼ now",
        "one column is 30m; times are in Europe/Berlin",
    ]


def test_without_blocks_letters_do() -> None:
    lines = list(
        draw_calendar(
            view(row(booked(1, 2, "ada"), booked(3, 4)), hours=6), DrawingContext("ada", SINCE, BERLIN, 60, ASCII)
        )
    )
    assert all(line.isascii() for line in lines)
    assert lines[3] == "ccna/1  -  ......######......++++++............"


def test_the_encoding_of_the_output_decides() -> None:
    assert [choose_signs(name) for name in ("utf-8", "UTF8")] == [BLOCKS, BLOCKS]
    assert [choose_signs(name) for name in ("ascii", "latin-1", "nonsense", None)] == [ASCII] * 4


spans = st.lists(
    st.tuples(st.integers(-20, 200), st.integers(1, 60), st.booleans()).map(
        lambda one: booked(one[0] / 4, (one[0] + one[1]) / 4, "ada" if one[2] else "")
    ),
    max_size=6,
)


@for_all(spans, st.integers(1, 60), st.integers(8, 120))
def test_a_cell_is_free_if_all_of_its_time_is_and_ones_own_if_any_of_it_is(
    taken: list[Booked], hours: int, room: int
) -> None:
    span = choose_grid(SINCE, SINCE + HOUR * hours, room)
    line = draw_row(row(*taken), span, "ada", BLOCKS)
    assert len(line) == span.count <= room
    for number, sign in enumerate(line):
        here = [
            one for one in taken if one.start < span.start_of_cell(number + 1) and one.end > span.start_of_cell(number)
        ]
        want = BLOCKS.own if any(one.owner for one in here) else BLOCKS.other if here else BLOCKS.free
        assert sign == want


@for_all(st.integers(1, 1440), st.integers(1, 200), st.sampled_from(["Europe/Berlin", "Asia/Kolkata", "UTC"]))
def test_every_span_fits_every_terminal(hours: int, room: int, zone: str) -> None:
    sight = DrawingContext("ada", SINCE, find_zone(zone), room, BLOCKS)
    lines = list(draw_calendar(view(row(booked(1, 3)), hours=hours), sight))
    assert max(len(line) for line in lines[:-2]) <= max(room, len("ccna/1  -  ") + 8)


def test_staff_read_how_well_the_bookings_of_each_pool_are_packed() -> None:
    packing = PoolPacking(
        at=SINCE, until=SINCE + 168 * HOUR, claims=9, moved=2, machine_hours=21.4, least_machine_hours=19.7
    )
    packed = {"default/ccna": packing, "default/ccnp": msgspec.structs.replace(packing, machine_hours=0.0)}
    shown = msgspec.structs.replace(view(row(booked(1, 3))), packing=packed)
    lines = list(draw_calendar(shown, DrawingContext("ada", SINCE, BERLIN, 60, BLOCKS)))
    assert lines[-6:-3] == [
        "ccna: what is booked in the 7 days from 29 Nov 23:00 UTC",
        "takes 21.4 machine-hours, besides the workers that always",
        "run; no plan needs less than 19.7",
    ]
    assert _only_pool(shown, "ccnp").packing.keys() == {"default/ccnp"}


@for_all(st.integers(1, 1440), st.integers(8, 120))
def test_headings_stand_where_their_time_begins(hours: int, room: int) -> None:
    span = choose_grid(SINCE, SINCE + HOUR * hours, room)
    _, *more = draw_headings(span, BERLIN)
    for line in more:
        marks = [number for number, (a, b) in enumerate(pairwise(f" {line}")) if a == " " and b != " "]
        assert all(
            line[number : number + 2] in {f"{BERLIN.local(span.start_of_cell(number)):%H}", line[number]}
            for number in marks
        )


def test_a_day_on_which_clocks_change_has_as_many_cells_as_hours() -> None:
    since, until = CalendarOptions(begin="2026-10-25", days=1).span(SINCE, BERLIN)
    assert until - since == HOUR * 25
    assert choose_grid(since, until, 60) == CalendarGrid(since, timedelta(minutes=30), 50)
    _, hours = draw_headings(CalendarGrid(since, HOUR, 25), BERLIN)
    assert hours == "00  03 06 09 12 15 18 21"


def test_what_is_asked_for_begins_at_a_full_hour_or_at_midnight() -> None:
    now = datetime(2026, 11, 30, 9, 20, tzinfo=UTC)
    assert CalendarOptions().span(now, BERLIN) == (now.replace(minute=0), now.replace(minute=0) + HOUR * 24)
    kolkata = find_zone("Asia/Kolkata")
    assert CalendarOptions(hours=2).span(now, kolkata)[0] == now.replace(hour=8, minute=30)
    since, until = CalendarOptions(days=7).span(now, BERLIN)
    assert (since, until - since) == (SINCE, timedelta(days=7))
    assert CalendarOptions(begin="2026-12-01 08:00", hours=3).span(now, BERLIN)[0] == datetime(
        2026, 12, 1, 7, tzinfo=UTC
    )
    with pytest.raises(typer.BadParameter):
        CalendarOptions(days=1, hours=1).span(now, BERLIN)


@pytest.fixture(name="open_api", scope="module")
def api_that_promises() -> Iterator[ApiServer]:
    with served(terms=TERMS) as api:
        furnish(api)
        yield api


@pytest.fixture(name="desk")
def desk_of_ada(open_api: ApiServer, tmp_path: Path) -> Shell:
    return shell(open_api, tmp_path, "ada", columns=80, TZ="Europe/Berlin")


def test_ones_own_and_what_others_booked_look_different(open_api: ApiServer, desk: Shell, tmp_path: Path) -> None:
    shell(open_api, tmp_path).out("book", "basics", "--at", "+3h", "--for", "2h")
    desk.out("book", "basics", "--at", "+3h", "--for", "1h")
    text = desk.out("get", "calendar", "--hours", "8")
    assert {BLOCKS.own, BLOCKS.other, BLOCKS.free} <= set(text)
    assert max(map(len, text.splitlines())) <= 80
    seen = json.loads(desk.out("get", "calendar", "-o", "json"))
    owners = sorted(one["owner"] for each in seen["rows"] for one in each["booked"])
    assert owners == ["", "ada"]
    assert desk.out("get", "calendar", "-o", "yaml").startswith("since: ")


def test_only_one_pool_or_none_is_shown(desk: Shell) -> None:
    assert "ccna/2" in desk.out("get", "calendar", "--pool", "ccna")
    result = desk.lcm("get", "calendar", "--pool", "nope")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "pool nope has no planned workers in namespace default" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["workers", "--days", "7"],
        ["calendar", "-w"],
        ["calendar", "-o", "name"],
        ["calendar", "--days", "1", "--hours", "2"],
        ["calendar", "--from", "nonsense"],
        ["calendar", "--days", "99"],
    ],
)
def test_what_makes_no_sense_is_wrong_usage(desk: Shell, arguments: list[str]) -> None:
    assert desk.lcm("get", *arguments).exit_code == 2


def test_every_namespace_is_named_when_all_are_shown(desk: Shell) -> None:
    assert "default/ccna/1" in desk.out("get", "calendar", "-A")
