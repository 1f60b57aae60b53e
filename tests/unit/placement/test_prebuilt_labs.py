"""How many prebuilt labs are wanted, which give way, and where one may go."""

from datetime import timedelta

import msgspec
import pytest

from harness import given
from harness.booking_world import lab
from lcm.model.base.capacity import Amount, Claim
from lcm.model.kinds.definition import DefinitionState
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.prebuilt import LEARNED_DAYS, AskedHour, PrebuiltPolicy, count_asked, hour_of
from lcm.placement.prebuilt import PrebuiltHost, choose_host, choose_leaving, decide_prebuilt, hosts_of_waiting

NOW = given.MONDAY + timedelta(hours=9, minutes=30)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
ROOM, FOUR = Amount(cpu_millis=16_000, labs=20), Amount(cpu_millis=4_000, labs=1)


def wanted(asked: tuple[AskedHour, ...] = (), **fields: object) -> int:
    spec = msgspec.structs.replace(lab().spec, prebuilt=PrebuiltPolicy(**fields))  # type: ignore[arg-type]
    return decide_prebuilt(spec, asked, NOW).number


def days_with(counts: list[int], after: timedelta = timedelta(0)) -> tuple[AskedHour, ...]:
    """Return what was asked in this hour of the days before, yesterday first."""
    return tuple(
        AskedHour(hour=hour_of(NOW + after - number * DAY), count=count) for number, count in enumerate(counts, start=1)
    )


def test_as_many_as_the_definition_says_within_its_hours_and_while_it_is_active() -> None:
    assert wanted(count=3) == 3
    assert wanted(count=3, hours=AllowedHours(start_hour=10, end_hour=18)) == 0
    assert wanted(count=3, hours=AllowedHours(start_hour=9, end_hour=10)) == 3
    draft = msgspec.structs.replace(lab().spec, state=DefinitionState.DEPRECATED, prebuilt=PrebuiltPolicy(count=3))
    assert decide_prebuilt(draft, (), NOW).number == 0
    assert decide_prebuilt(lab().spec, (), NOW).number == 0


@pytest.mark.parametrize(
    ("counts", "number"),
    [([], 0), ([5] * 14, 5), ([9] * 2, 0), ([2] * 3, 2), ([1, 1, 1, 4, 4, 4], 4), ([40] * 14, 10)],
)
def test_what_is_learned_was_enough_on_four_of_five_days_and_has_a_most(counts: list[int], number: int) -> None:
    assert wanted(days_with(counts), count=10, learned=True) == number


def test_the_next_hour_counts_too_so_that_they_are_ready_when_it_comes() -> None:
    assert wanted(days_with([6] * 14, HOUR), count=10, learned=True) == 6
    assert wanted(days_with([6] * 14, 2 * HOUR), count=10, learned=True) == 0


def test_two_weeks_of_hours_are_remembered_and_no_more() -> None:
    asked: tuple[AskedHour, ...] = ()
    for hour in range(24 * LEARNED_DAYS * 2):
        asked = count_asked(asked, NOW + hour * HOUR)
    assert len(asked) == 24 * LEARNED_DAYS
    assert count_asked(asked, NOW + (24 * LEARNED_DAYS * 2 - 1) * HOUR)[-1].count == 2


def claims(*spans: tuple[timedelta, timedelta]) -> list[Claim]:
    return [Claim(start=NOW + start, end=NOW + end, need=FOUR) for start, end in spans]


def test_one_goes_where_most_others_are_and_nobody_needs_the_room_for_an_hour() -> None:
    busy = PrebuiltHost(ROOM, claims((-HOUR, HOUR), (-HOUR, 2 * HOUR)))
    empty, booked = PrebuiltHost(ROOM, []), PrebuiltHost(ROOM, claims(*[(HOUR / 2, HOUR)] * 4))
    hosts = {"busy": busy, "empty": empty, "booked": booked}
    assert choose_host(hosts, {}, FOUR, NOW) == "busy"
    full = {"busy": Amount(cpu_millis=8_000, labs=2)}
    assert choose_host(hosts, full, FOUR, NOW) == "empty"
    assert choose_host({"booked": booked}, {}, FOUR, NOW) is None


def test_no_more_end_than_are_in_the_way_and_the_first_go_first() -> None:
    labs = [(name, FOUR) for name in "abc"]
    assert choose_leaving(labs, Amount(cpu_millis=12_000, labs=9)) == []
    assert choose_leaving(labs, Amount(cpu_millis=9_000, labs=9)) == ["a"]
    assert choose_leaving(labs, Amount(cpu_millis=0, labs=9) - FOUR) == ["a", "b", "c"]


def test_whoever_waits_goes_where_nothing_has_to_give_way() -> None:
    hosts = {"a": PrebuiltHost(ROOM, []), "b": PrebuiltHost(ROOM, claims((-HOUR, HOUR)))}
    taken = {"a": ROOM, "b": FOUR}
    waiting = [(FOUR, lambda _uid: True)] * 2
    assert hosts_of_waiting(hosts, taken, waiting, NOW) == {"b": FOUR + FOUR}
    assert hosts_of_waiting(hosts, taken, [(FOUR, lambda uid: uid == "a")], NOW) == {"a": FOUR}
    assert hosts_of_waiting(hosts, taken, [(ROOM + FOUR, lambda _uid: True)], NOW) == {}
