"""Times as people write them at a terminal: what is understood, what is refused, and daylight saving."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
import typer
from hypothesis import strategies as st

from harness.suite import for_all
from lcm.cli.booking.book import BookingRequest, make_up_name, parse_recurrence
from lcm.cli.output.times import (
    format_distance,
    format_for_paste,
    format_local,
    format_minutes,
    format_slot,
    parse_day,
    parse_minutes,
    parse_moment,
)
from lcm.cli.output.zone import Zone, current_zone, find_zone, localize, terminal_zone
from lcm.model.kinds.hours import Weekday

BERLIN = find_zone("Europe/Berlin")
KOLKATA = find_zone("Asia/Kolkata")
NOW = datetime(2026, 11, 30, 9, 20, 30, tzinfo=UTC)
"""10:20 in Berlin."""
ZONES = [BERLIN, KOLKATA, *map(find_zone, ("UTC", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo"))]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}+00:00")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("2026-12-01 09:00", "2026-12-01T08:00"),
        ("2026-12-01T09:00", "2026-12-01T08:00"),
        ("2026-12-01 9:00", "2026-12-01T08:00"),
        ("  2026-07-01   09:00 ", "2026-07-01T07:00"),
        ("2026-12-01T09:00Z", "2026-12-01T09:00"),
        ("2026-12-01t09:00:30z", "2026-12-01T09:00:30"),
        ("2026-12-01T09:00-05:00", "2026-12-01T14:00"),
        ("2026-12-01 09:00 +0530", "2026-12-01T03:30"),
        ("10:21", "2026-11-30T09:21"),
        ("10:20", "2026-12-01T09:20"),
        ("9:00", "2026-12-01T08:00"),
        ("today 9:00", "2026-11-30T08:00"),
        ("Tomorrow 9:00", "2026-12-01T08:00"),
        ("9am", "2026-12-01T08:00"),
        ("10:30 AM", "2026-11-30T09:30"),
        ("12pm", "2026-11-30T11:00"),
        ("12am", "2026-11-30T23:00"),
        ("tomorrow 14:30", "2026-12-01T13:30"),
        ("tomorrow at 2pm", "2026-12-01T13:00"),
        ("tue 9:00", "2026-12-01T08:00"),
        ("Mon 11:00", "2026-11-30T10:00"),
        ("mon 9:00", "2026-12-07T08:00"),
        ("next mon 11:00", "2026-12-07T10:00"),
        ("next tuesday 9am", "2026-12-01T08:00"),
        ("on sunday at 9:00", "2026-12-06T08:00"),
        ("in 2h", "2026-11-30T11:21"),
        ("in 30 minutes", "2026-11-30T09:51"),
        ("in 1 day", "2026-12-01T09:21"),
        ("+2h", "2026-11-30T11:21"),
        ("+1h30m", "2026-11-30T10:51"),
        ("+1d", "2026-12-01T09:21"),
        ("now", "2026-11-30T09:20:30"),
    ],
)
def test_a_moment_is_understood_by_the_terminals_clock(text: str, want: str) -> None:
    assert parse_moment(text, NOW, BERLIN) == utc(want)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9",
        "13pm",
        "0am",
        "25:00",
        "tues 9:00",
        "next tomorrow 9:00",
        "tue",
        "in 2",
        "in 0 hours",
        "09:60",
        "tomorrow",
        "yesterday 9:00",
        "2026-13-01 09:00",
        "2026-12-01",
        "+",
        "+2",
        "-2h",
    ],
)
def test_what_is_no_moment_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_moment(text, NOW, BERLIN)


@pytest.mark.parametrize("text", ["0001-01-01 00:00", "9999-12-31 23:59", "2026-12-01T09:00+99:00"])
def test_what_no_clock_has_shown_is_no_crash(text: str) -> None:
    for zone in ZONES:
        try:
            parse_moment(text, NOW, zone)
        except typer.BadParameter:
            continue


def test_a_date_alone_is_its_beginning_where_that_is_meant() -> None:
    assert parse_moment("2026-12-01", NOW, BERLIN, whole_days=True) == utc("2026-11-30T23:00")


def test_a_time_that_clocks_skip_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match=r"no 2027-03-28 02:30 in Europe/Berlin: the clocks skip it"):
        parse_moment("2027-03-28 02:30", NOW, BERLIN)


def test_a_time_that_comes_twice_is_refused_with_both_to_choose_from() -> None:
    want = r"twice in Europe/Berlin; write 2027-10-31T02:30\+02:00 or 2027-10-31T02:30\+01:00"
    with pytest.raises(typer.BadParameter, match=want):
        parse_moment("2027-10-31 02:30", NOW, BERLIN)
    assert parse_moment("2027-10-31T02:30+01:00", NOW, BERLIN) == utc("2027-10-31T01:30")


def test_tomorrow_is_a_day_of_the_clock_also_when_that_is_put_back() -> None:
    evening = utc("2026-10-24T20:00")
    assert parse_moment("tomorrow 9:00", evening, BERLIN) == utc("2026-10-25T08:00")
    assert parse_moment("9:00", evening, BERLIN) == utc("2026-10-25T08:00")


moments = st.datetimes(datetime(2024, 1, 1), datetime(2029, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - hypothesis adds the zone


@for_all(moments, st.sampled_from(ZONES))
def test_what_is_offered_for_pasting_means_that_very_moment(moment: datetime, zone: Zone) -> None:
    moment = moment.replace(microsecond=0)
    assert parse_moment(format_for_paste(moment, zone).strip("'"), NOW, zone) == moment


@for_all(moments, st.sampled_from(ZONES))
def test_a_wall_clock_time_is_that_of_its_moment_or_refused(wall: datetime, zone: Zone) -> None:
    text = f"{wall:%Y-%m-%d %H:%M}"
    try:
        found = parse_moment(text, NOW, zone)
    except typer.BadParameter:
        assert len(zone.moments(wall.replace(tzinfo=None, second=0, microsecond=0))) != 1
    else:
        assert f"{zone.local(found):%Y-%m-%d %H:%M}" == text


@for_all(moments, st.integers(0, 23), st.integers(0, 59), st.sampled_from(ZONES))
def test_a_time_of_day_is_the_next_one(now: datetime, hour: int, minute: int, zone: Zone) -> None:
    try:
        found = parse_moment(f"{hour}:{minute:02}", now, zone)
    except typer.BadParameter:
        return  # skipped or repeated on that very day
    assert timedelta(hours=-1) < found - now <= timedelta(hours=25)
    assert (zone.local(found).hour, zone.local(found).minute) == (hour, minute)


@pytest.mark.parametrize(
    ("text", "want"), [("90m", 90), ("2h", 120), ("1h30m", 90), ("1d", 1440), ("1d2h3m", 1563), ("2H", 120)]
)
def test_a_length_is_read_in_minutes(text: str, want: int) -> None:
    assert parse_minutes(text, "--for") == want


@pytest.mark.parametrize("text", ["90", "", "h", "1.5h", "-2h", "0m", "2h 30m x", "30s"])
def test_a_length_without_a_unit_or_with_another_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_minutes(text, "--for")


@for_all(st.integers(1, 600_000))
def test_a_length_is_written_as_it_is_read(minutes: int) -> None:
    assert parse_minutes(format_minutes(minutes), "--for") == minutes


def test_moments_are_shown_with_their_zone() -> None:
    start = utc("2026-12-01T08:00")
    assert format_local(start, BERLIN) == "Tue 2026-12-01 09:00 CET"
    assert format_slot(start, start + timedelta(hours=2), BERLIN) == "Tue 2026-12-01 09:00-11:00 CET"
    over = format_slot(start, start + timedelta(hours=20), BERLIN)
    assert over == "Tue 2026-12-01 09:00 CET to Wed 2026-12-02 05:00 CET"
    change = format_slot(utc("2026-10-25T00:00"), utc("2026-10-25T02:00"), BERLIN)
    assert change == "Sun 2026-10-25 02:00 CEST to Sun 2026-10-25 03:00 CET"
    assert [format_distance(NOW + timedelta(minutes=m), NOW) for m in (-5, 0, 180)] == ["5m ago", "now", "in 3h"]


def test_the_terminals_zone_is_that_of_tz_or_of_the_system(tmp_path: Path) -> None:
    assert terminal_zone({"TZ": "Europe/Berlin"}).name == "Europe/Berlin"
    assert terminal_zone({"TZ": ":Asia/Kolkata"}).name == "Asia/Kolkata"
    assert terminal_zone({"TZ": ""}).name == "UTC"
    assert terminal_zone({}, tmp_path / "none").name == "UTC"
    (tmp_path / "localtime").symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    assert terminal_zone({}, tmp_path / "localtime").name in {"Europe/Berlin", "UTC"}


def test_one_zone_is_chosen_for_every_output() -> None:
    assert terminal_zone({"TZ": "Europe/Berlin", "LCM_TZ": "Asia/Kolkata"}).name == "Asia/Kolkata"
    with pytest.raises(typer.BadParameter, match="not a time zone") as refused:
        terminal_zone({"LCM_TZ": "Mars/Olympus"})
    assert refused.value.param_hint == "LCM_TZ"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("held from 2026-11-17 01:14Z to 2026-11-17 01:26Z", "held from 2026-11-17 02:14 CET to 2026-11-17 02:26 CET"),
        ("2026-07-17T01:14:05.123456Z x", "2026-07-17 03:14:05 CEST x"),
        ("taken 2026-11-17 01:14:05 UTC", "taken 2026-11-17 02:14:05 CET"),
        ("2026-99-99 01:14Z, 9999-12-31 23:59Z", "2026-99-99 01:14Z, 9999-12-31 23:59Z"),
        ("2026-11-17 01:14 CET, 2026-11-17T01:14:05+01:00", "2026-11-17 01:14 CET, 2026-11-17T01:14:05+01:00"),
    ],
)
def test_moments_in_words_of_the_api_are_shown_in_the_zone_in_use(
    text: str, want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LCM_TZ", "Europe/Berlin")
    assert current_zone().name == "Europe/Berlin"
    assert localize(text) == want
    monkeypatch.setenv("LCM_TZ", "UTC")
    assert localize("at 2026-11-17 01:14Z") == "at 2026-11-17 01:14Z"


def test_a_zone_that_only_the_system_understands_is_used_without_a_name() -> None:
    zone = terminal_zone({"TZ": "CET-1CEST,M3.5.0,M10.5.0/3"})
    assert zone == Zone("", None)
    assert parse_moment("2026-12-01T09:00Z", NOW, zone) == utc("2026-12-01T09:00")
    assert zone.local(parse_moment("2026-12-01 09:00", NOW, zone)).hour == 9
    with pytest.raises(typer.BadParameter, match="name the time zone"):
        parse_recurrence("day", "", date(2026, 12, 31), zone)


def test_a_zone_that_is_none_is_wrong_usage() -> None:
    for name in ("Mars/Olympus", "../etc/passwd", "Europe"):
        with pytest.raises(typer.BadParameter, match="not a time zone"):
            find_zone(name)
    with pytest.raises(typer.BadParameter):
        parse_day("1 December", "--until")


@pytest.mark.parametrize(
    ("every", "on", "want"),
    [
        ("day", "", ("day", ())),
        ("week", "", ("week", ())),
        ("week", "mon,Wed", ("week", (Weekday.MON, Weekday.WED))),
        ("weekday", "", ("week", tuple(Weekday)[:5])),
        ("tuesday, fri", "", ("week", (Weekday.TUE, Weekday.FRI))),
    ],
)
def test_how_often_is_understood(every: str, on: str, want: tuple[str, tuple[Weekday, ...]]) -> None:
    found = parse_recurrence(every, on, date(2026, 12, 31), BERLIN)
    assert (found.every, found.weekdays, found.time_zone) == (*want, "Europe/Berlin")


@pytest.mark.parametrize(("every", "on"), [("month", ""), ("day", "mon"), ("weekday", "mon"), ("week", "someday")])
def test_how_often_is_wrong_usage_otherwise(every: str, on: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_recurrence(every, on, date(2026, 12, 31), BERLIN)


def test_a_made_up_name_is_readable_and_short_enough_for_what_is_named_after_it() -> None:
    assert make_up_name("basics:1.0.0", lambda: 0.0) == "basics-bbbbb"
    assert make_up_name("basics", lambda: 0.999) == "basics-99999"
    assert len(make_up_name("x" * 63, lambda: 0.5)) <= 59


def test_a_lone_session_without_a_time_asks_for_a_length_only() -> None:
    made = BookingRequest(definition="basics").to_resource(90, "s1")
    assert made.kind == "LabletSession"
    assert (made.spec.timeslot_start, made.spec.timeslot_end) == (None, None)
