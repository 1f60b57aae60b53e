"""Timetables as people write them: what they mean, and what is said of those that mean nothing."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from harness import suite
from lcm.model.base.errors import Invalid
from lcm.sim.plan.documents import LabOutline, definition_of, lab_file
from lcm.sim.plan.reading import read_inventory, read_timetable
from lcm.sim.plan.reading_ics import read_ics
from lcm.sim.plan.timetable import Timetable

EXAMPLES = suite.ROOT / "examples" / "plan"
LAB = "{name: ccna, track: ccna, cpu: 4, memory: 6, storage: 16, nodes: 6, ports: 4}"
FLEET = "{track: ccna, instance_type: m5zn.metal, region: eu-central-1, max: 6, price: '4.80'}"
STOCK = f"definitions:\n  - {LAB}\nfleet:\n  - {FLEET}\n"


def timetable(sessions: str, top: str = "") -> Timetable:
    return read_timetable("week.yaml", f"{top}{STOCK}sessions:\n{sessions}".encode())


def from_table(text: str) -> Timetable:
    return read_timetable("week.csv", text.encode(), [read_inventory("stock.yaml", STOCK.encode())])


def from_calendar(*lines: str) -> Timetable:
    text = "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", "BEGIN:VEVENT", *lines, "END:VEVENT", "END:VCALENDAR", ""])
    return read_timetable("week.ics", text.encode(), [read_inventory("stock.yaml", STOCK.encode())])


EVENT = ("SUMMARY:ccna", "DTSTART;TZID=Europe/Berlin:20270301T090000", "DURATION:PT1H")


def starts(found: Timetable) -> list[str]:
    return [f"{one.start:%m-%d %H:%M}" for one in found.sessions if one.start]


def faults(read_it: Callable[[], object]) -> str:
    with pytest.raises(Invalid) as caught:
        read_it()
    assert all(one.remedy for one in caught.value.faults), "each says what to do"
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "count"),
    # 20 + 10; 5 days of 40 + 40 + 16, and 25; 14 weeks of 60 + 25 + 25, 12 projects and 60 at the exam
    [("hackathon", 20 + 10), ("certification-week", 5 * 96 + 25), ("university-course", 14 * 110 + 12 + 60)],
)
def test_the_examples_hold_as_many_sessions_as_they_say(name: str, count: int) -> None:
    found = read_timetable(f"{name}.yaml", (EXAMPLES / f"{name}.yaml").read_bytes())
    assert len(found.sessions) == len({one.name for one in found.sessions}) == count


def test_a_series_keeps_its_time_of_day_when_clocks_change() -> None:
    row = "  - {definition: ccna, at: 2027-03-22T09:00, for: 90m, every: week, until: 2027-04-05}\n"
    found = timetable(row, "zone: Europe/Berlin\n")
    assert starts(found) == ["03-22 08:00", "03-29 07:00", "04-05 07:00"]
    assert {one.minutes for one in found.sessions} == {90}


def test_weekdays_leave_weekends_out() -> None:
    found = timetable("  - {definition: ccna, at: 2027-03-05T09:00, for: 2h, every: weekday, until: 2027-03-08}\n")
    assert starts(found) == ["03-05 09:00", "03-08 09:00"]


def test_what_was_recorded_says_when_it_was_booked_and_what_became_of_it() -> None:
    row = (
        "  - {definition: ccna, for: 1h, booked_at: 2027-03-05T09:00Z, cancelled_at: 2027-03-05T09:40Z,\n"
        "     extended: [{at: 2027-03-05T09:30Z, minutes: 15}]}\n"
    )
    (one,) = timetable(row).sessions
    assert one.start is None
    assert one.booked_at == datetime(2027, 3, 5, 9, tzinfo=UTC)
    assert (one.cancelled_at, one.extended[0].minutes) == (datetime(2027, 3, 5, 9, 40, tzinfo=UTC), 15)


def test_a_table_says_how_long_by_an_end_or_by_minutes() -> None:
    rows = "ccna,2027-03-01 09:00,2027-03-01 11:00,,2,\n\nccna,2027-03-02T09:00Z,,45,,ccna\n"
    text = f"definition,start,end,minutes,count,track\n{rows}"
    assert [(one.minutes, one.track) for one in from_table(text).sessions] == [(120, "ccna")] * 2 + [(45, "ccna")]


def test_an_event_of_a_calendar_is_a_session_of_the_lab_it_names() -> None:
    found = from_calendar(
        "SUMMARY:cc",
        " na",  # a long line goes on behind a space
        "X-LCM-COUNT:2",
        "DTSTART;TZID=Europe/Berlin:20270322T090000",
        "DURATION:PT1H30M",
        "RRULE:FREQ=WEEKLY;BYDAY=MO,WE;COUNT=4",
        "EXDATE;TZID=Europe/Berlin:20270324T090000",
        "BEGIN:VALARM",
        "TRIGGER:-PT15M",
        "END:VALARM",
    )
    assert starts(found)[::2] == ["03-22 08:00", "03-29 07:00", "03-31 07:00"]
    assert {one.minutes for one in found.sessions} == {90}


def test_an_event_whose_beginning_has_a_blank_is_not_lost() -> None:
    text = "\r\n".join(["BEGIN: VCALENDAR", "BEGIN: VEVENT", *EVENT, "END: VEVENT", "END:VCALENDAR"])
    assert len(read_ics(text)) == 1


DAY = "20270301T090000Z"


@pytest.mark.parametrize(
    "exceptions",
    [
        ["EXDATE:" + ",".join([DAY] * 300_000)],
        ["EXDATE:" + ",\r\n ".join([DAY] * 300_000)],
        [f"EXDATE:{DAY}"] * 300_000,
        [f"RECURRENCE-ID:{DAY}"] * 220_000,
    ],
    ids=["in one line", "folded", "in lines", "moved"],
)
def test_an_event_with_a_flood_of_exceptions_is_refused_at_once(exceptions: list[str]) -> None:
    began = time.process_time()
    told = faults(lambda: from_calendar(*EVENT, "RRULE:FREQ=DAILY;COUNT=5", *exceptions))
    assert time.process_time() - began < suite.here(2)
    assert told.startswith("line 3: an event with ")
    assert "00 exceptions (EXDATE, RECURRENCE-ID)" in told


def test_many_events_with_many_exceptions_are_refused_together() -> None:
    some = ("EXDATE:" + ",".join([DAY] * 2_000), "END:VEVENT", "BEGIN:VEVENT", *EVENT)
    told = faults(lambda: from_calendar(*EVENT, *some * 11))
    assert "more than 20000 exceptions (EXDATE, RECURRENCE-ID) up to here" in told


def test_exceptions_up_to_the_limit_are_read() -> None:
    found = from_calendar(*EVENT, "RRULE:FREQ=DAILY;COUNT=3", "EXDATE:" + ",".join(["20270302T080000Z"] * 2_000))
    assert starts(found) == ["03-01 08:00", "03-03 08:00"]


def test_a_calendar_that_is_too_long_is_refused() -> None:
    with pytest.raises(Invalid, match="more than 8000000 characters"):
        read_ics("BEGIN:VCALENDAR\n" + " " * 8_000_000)


@pytest.mark.parametrize(
    ("rule", "want"),
    [
        ("FREQ=DAILY;UNTIL=20270303T075959Z", ["03-01 08:00", "03-02 08:00"]),
        ("FREQ=DAILY;UNTIL=20270303T080000Z", ["03-01 08:00", "03-02 08:00", "03-03 08:00"]),
        ("FREQ=DAILY;UNTIL=20270302", ["03-01 08:00", "03-02 08:00"]),
        ("FREQ=DAILY;INTERVAL=2;BYDAY=MO,TU;COUNT=3", ["03-01 08:00", "03-09 08:00", "03-15 08:00"]),
    ],
)
def test_a_rule_of_a_calendar_means_what_calendars_mean_by_it(rule: str, want: list[str]) -> None:
    assert starts(from_calendar(*EVENT, f"RRULE:{rule}")) == want


def test_one_of_a_series_that_was_moved_takes_place_once_and_one_that_was_cancelled_does_not() -> None:
    found = from_calendar(
        *("UID:1", *EVENT, "RRULE:FREQ=DAILY;COUNT=3", "DESCRIPTION:a\u2028b", "END:VEVENT", "BEGIN:VEVENT"),
        *("UID:1", "SUMMARY:ccna", "RECURRENCE-ID:20270302T080000Z", "DTSTART:20270302T110000Z", "DURATION:PT1H"),
        *("END:VEVENT", "BEGIN:VEVENT", "UID:1", "STATUS:CANCELLED", "RECURRENCE-ID:20270303T080000Z"),
    )
    assert starts(found) == ["03-01 08:00", "03-02 11:00"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{definition: ccnp, at: 2027-03-01T09:00, for: 2h}", "line 6: sessions[0]: there is no lab 'ccnp'"),
        ("{definition: ccna, at: 2027-03-01, for: 2h}", "line 6: sessions[0].at: '2027-03-01' is no moment"),
        ("{definition: ccna, at: 2027-13-01T09:00, for: 2h}", "is no moment"),
        ("{definition: ccna, at: 2027-03-01T09:00, for: 2}", "sessions[0].for: '2' is no length of time"),
        ("{definition: ccna, at: 2027-03-01T09:00, for: 400d}", "576000 minutes"),
        ("{definition: ccna, at: 2027-03-01T09:00}", "for is missing; add for: 2h"),
        ("{definition: ccna, for: 2h}", "no start is given"),
        (
            "{definition: ccna, at: 2027-03-01T09:00, for: 2h, cuont: 3}",
            "unknown key 'cuont'; did you mean count?",
        ),
        ("{definition: ccna, at: 2027-03-01T09:00, for: 2h, count: 0}", "'0' is no count"),
        (f"{{definition: ccna, at: 2027-03-01T09:00, for: 2h, count: {'9' * 5000}}}", "is no count"),
        ("{definition: ccna, at: 9999-12-31T23:59, for: 2h}", "at: 9999-12-31 is too far away"),
        ("{definition: ccna, booked_at: 2027-03-01T09:00, for: 2h, every: day}", "no start is given"),
        (
            "{definition: ccna, at: 2027-03-01T09:00, for: 2h, every: month, until: 2027-09-01}",
            "'month'; use one of day",
        ),
        ("{definition: ccna, at: 2027-03-01T09:00, for: 2h, until: 2027-09-01}", "until without every"),
        ("{definition: ccna, at: 2027-03-01T09:00, for: 2h, every: day, until: 2027-02-01}", "the series has no slot"),
        ("{definition: ccna, at: 2027-03-01T09:00, for: 2h, track: ccnp}", "no pool serves the track 'ccnp'"),
        (
            "{definition: ccna, at: 2027-03-01T09:00, for: 2h, count: 5000, every: day, until: 2027-03-09}",
            "more than 20000",
        ),
        ("{definition: ccna, at: 2027-03-01T09:00, for: 2h, for: 3h}", "for appears twice"),
        ("[a, b]", "a session is a list of keys and values"),
        ("{definition: ccna", "no YAML"),
        ("&a {definition: ccna, at: *a, for: 2h}", "an alias"),
        ("[" * 50_000 + "]" * 50_000, "line 6: nested too deep"),
    ],
)
def test_a_wrong_line_is_told_with_its_place_and_a_remedy(row: str, said: str) -> None:
    assert said in faults(lambda: timetable(f"  - {row}\n"))


def test_every_wrong_line_is_told_at_once() -> None:
    told = faults(lambda: timetable("  - {definition: ccna}\n  - {definition: ccna, at: soon, for: 2h}\n"))
    assert "line 6" in told
    assert "line 7" in told


@pytest.mark.parametrize(
    ("top", "said"),
    [
        ("zone: Mars/North\n", "'Mars/North' is no time zone"),
        ("prices: {m6i.metal: much}\n", "'much' is no price"),
        ("wishes: []\n", "unknown key 'wishes'"),
    ],
)
def test_a_wrong_word_at_the_top_is_told(top: str, said: str) -> None:
    assert said in faults(lambda: timetable("  - {definition: ccna, at: 2027-03-01T09:00, for: 2h}\n", top))


@pytest.mark.parametrize(
    ("labs", "fleet", "said"),
    [
        (f"[{LAB}, {LAB}]", f"[{FLEET}]", "line 1: definitions[1].name: 'ccna' appears twice"),
        (f"[{LAB}]", f"[{FLEET}, {FLEET}]", "line 2: fleet[1]: two pools are called 'ccna-eu-central-1'; give one"),
        (f"[{LAB.replace('ccna', 'CCNA lab', 1)}]", f"[{FLEET}]", "definitions[0].name: not of the expected form"),
        (f"[{LAB}]", f"[{FLEET.replace('eu-central-1', 'moon')}]", "line 2: fleet[0].region: not of the expected form"),
    ],
)
def test_labs_and_pools_that_could_not_be_made_are_told_at_their_lines(labs: str, fleet: str, said: str) -> None:
    assert said in faults(lambda: read_inventory("stock.yaml", f"definitions: {labs}\nfleet: {fleet}\n".encode()))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lab,start,end\n", "line 1: no such column: lab"),
        ("definition,start\n", "line 1: no column end or minutes"),
        ("definition,start,minutes\nccna,2027-03-01T09:00\n", "line 2: 2 cells below 3 headings"),
        (
            "definition,start,minutes\nccna,2027-03-01T09:00,60\nccna,tomorrow,60\n",
            "line 3: start: 'tomorrow' is no moment",
        ),
        ("definition,start,end\nccna,2027-03-01T09:00,2027-03-01T08:00\n", "line 2: end: -60 minutes"),
        (f"definition,start,minutes\nccna,2027-03-01T09:00,{'9' * 5000}\n", "line 2: minutes: '999"),
        ("definition,start,end,\n", "line 1: no such column: one without a name"),
        ('definition,start,end\n"ccna,2027-03-01T09:00\n', "no CSV"),
    ],
)
def test_a_wrong_table_is_told_with_its_line(text: str, said: str) -> None:
    assert said in faults(lambda: from_table(text))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["SUMMARY:ccna", "DURATION:PT1H"], "line 3: an event without DTSTART"),
        (["SUMMARY:ccna", "DTSTART:20270301T090000Z"], "an event without an end; add DTEND or DURATION"),
        (["DTSTART:20270301T090000Z", "DURATION:PT1H"], "an event without a summary"),
        (["SUMMARY:ccna", "DTSTART;VALUE=DATE:20270301", "DURATION:PT1H"], "line 5: DTSTART: a whole day"),
        (["SUMMARY:ccna", "DTSTART;TZID=Moon:20270301T090000", "DURATION:PT1H"], "'Moon' is no time zone"),
        (
            ["SUMMARY:ccna", "DTSTART;TZID=Europe/Berlin:20270328T023000", "DURATION:PT1H"],
            "there is no 2027-03-28 02:30",
        ),
        (["SUMMARY:ccna", "DTSTART:20270301T090000Z", "DURATION:PT1H", "RRULE:FREQ=MONTHLY"], "line 7: RRULE"),
        (["SUMMARY:ccna", "DTSTART:20270301T090000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY"], "it never ends"),
        ([*EVENT, "RRULE:FREQ=WEEKLY;UNTIL=99991231T235959Z"], "line 7: RRULE: 9999-12-31 is too far away"),
        ([*EVENT, "RRULE:FREQ=WEEKLY;COUNT=100"], "they last for 693 days"),
        (
            [*EVENT, "RRULE:FREQ=WEEKLY;INTERVAL=2;WKST=SU;BYDAY=SU,MO;COUNT=4"],
            "a rule that the planner does not support",
        ),
        ([*EVENT, "RDATE:20270303T090000Z"], "line 7: RDATE: RDATE and EXRULE are not supported"),
        (
            ["SUMMARY:ccna", "DTSTART;TZID=Europe:20270301T090000Z", "DURATION:PT1H", "RRULE:FREQ=DAILY;COUNT=2"],
            "'Europe' is no time zone",
        ),
        ([*EVENT, "RRULE:FREQ=DAILY;COUNT=2;COUNT=3"], "a rule that the planner does not support"),
        ([*EVENT, f"RRULE:FREQ=DAILY;COUNT={'9' * 5000}"], "a rule that the planner does not support"),
        ([*EVENT, f"RRULE:FREQ=DAILY;COUNT=2;BYDAY={'MO,' * 1_000_000}MO"], "a rule that the planner does not support"),
        ([*EVENT, "RRULE:FREQ=DAILY;COUNT=10000"], "use whole numbers from 1 to 9999"),
        (["SUMMARY:ccna", "DTSTART:20270301T090000Z", f"DURATION:P{'9' * 4000}W"], "is no length of time"),
        (["SUMMARY ccna"], "line 4: 'SUMMARY ccna' has no colon"),
        (['DTSTART;TZID="(UTC+01:00) Berlin":20270301T090000'], "'(UTC+01:00) Berlin' is no time zone"),
        (
            ["SUMMARY:nobody", "DTSTART:20270301T090000Z", "DURATION:PT1H"],
            "there is no lab 'nobody'; use one of ccna",
        ),
    ],
)
def test_a_wrong_calendar_is_told_with_its_line(lines: list[str], said: str) -> None:
    assert said in faults(lambda: from_calendar(*lines))


@pytest.mark.parametrize("sign", [",", ";", "\t"])
def test_a_table_is_read_as_spreadsheets_write_it(sign: str) -> None:
    text = "\ufeffDefinition,Start,Minutes,Count\r\nccna,2027-03-01T09:00,60,2\r\n".replace(",", sign)
    found = read_timetable(
        "week.csv", text.encode(), [read_inventory("stock.yaml", f"zone: Europe/Berlin\n{STOCK}".encode())]
    )
    assert starts(found) == ["03-01 08:00"] * 2, "clocks are those of the file with the labs"


def test_the_file_of_a_large_lab_is_small_enough_to_be_looked_through_at_once() -> None:
    large = LabOutline(name="large", track="x", cpu=1, memory=1, nodes=10_000, ports=2_000)
    assert len(lab_file(definition_of(large))) < 100_000


def test_a_spreadsheet_itself_is_not_read() -> None:
    assert "save it as CSV" in faults(lambda: read_timetable("week.xlsx", b"PK\x03\x04\xff"))


def test_labs_that_no_file_names_are_asked_for() -> None:
    text = b"definition,start,minutes\nccna,2027-03-01T09:00,60\n"
    assert "--definitions" in faults(lambda: read_timetable("week.csv", text))
