"""Quota rules: which one wins, what each counts, and that every bound of a booking is guarded by its commit."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from harness import given
from harness.booking_world import NINE, Office, from_monday, slot
from harness.plane_world import ADA, ANNA, BOB
from lcm.control.booking.quota import OwnerLimits
from lcm.control.booking.usage import UseBook, UsedPiece, find_busiest, split_by_month
from lcm.control.objects.records import DELETED_SESSIONS, change_ops, find_record
from lcm.control.plane.local import LocalPlane
from lcm.control.plane.protocol import Extend, Ref, ref_of
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Invalid, NoRoom
from lcm.model.base.resource import Metadata, PhaseChange
from lcm.model.kinds.reservation import Recurrence, Reservation
from lcm.model.kinds.session import LabletSession, LabletSessionSpec, SessionPhase, use_of_ended
from lcm.model.kinds.settings import QuotaRule, QuotaSettings, SystemSettings, SystemSettingsSpec
from lcm.model.kinds.validate import check_rules
from lcm.model.money.quotas import RuleBook, find_rule
from lcm.placement.timeline import micros

HOUR, DAY, NOW = timedelta(hours=1), timedelta(days=1), given.MONDAY
MANY = OwnerLimits(
    pending=100, live=100, ahead=1000, nodes=1000, hours_ahead=9_000, hours_per_month=9_000, usd_per_month=10**6
)
CCNA = ("default", "ccna")


def asap(name: str, **fields: Any) -> LabletSession:
    spec = LabletSessionSpec(definition="basics:1.0.0", duration_minutes=60, **fields)
    return LabletSession(metadata=Metadata(name=name), spec=spec)


def settings(*rules: QuotaRule, **defaults: int) -> SystemSettings:
    quotas = QuotaSettings(rules=rules, **defaults)
    return SystemSettings(metadata=Metadata(name="system"), spec=SystemSettingsSpec(quotas=quotas))


def person(office: Office, caller: Caller = ADA, plane: int = 0) -> LocalPlane:
    return office.cores[plane].plane_for(caller)


async def rule(office: Office, *rules: QuotaRule, **defaults: int) -> None:
    """Set rules, and let every calendar learn of them."""
    wanted = settings(*rules, **defaults)
    known = await office.otto.get(ref_of(wanted))
    await (office.otto.create(wanted) if known is None else office.otto.replace(wanted))
    await asyncio.sleep(1)


async def refused(plane: LocalPlane, booking: LabletSession | Reservation) -> NoRoom:
    with pytest.raises(NoRoom) as raised:
        await plane.create(booking)
    return raised.value


RULES = (
    QuotaRule(owner="ada", track="ccna", sessions=1),
    QuotaRule(owner="ada", namespace="default", sessions=2),
    QuotaRule(owner="ada", sessions=3, pending=30),
    QuotaRule(role="user", track="ccna", sessions=4, ahead=40),
    QuotaRule(role="user", namespace="default", sessions=5),
    QuotaRule(role="user", sessions=6, nodes=60),
)


def test_owner_is_before_role_is_before_track_is_before_namespace() -> None:
    for rules in list(permutations(RULES))[::97]:
        own = RuleBook(rules).personal_rules("ada", "user")
        for number, wanted in enumerate(RULES):
            left = [one for one in own if one not in RULES[:number]]
            assert find_rule(left, "sessions", CCNA) == wanted
        assert find_rule(own, "nodes", CCNA) == RULES[5], "the most specific one that names the limit"
        assert find_rule(own, "ahead", CCNA) == RULES[3]
        assert find_rule(own, "sessions", ("other", "ccnp")) == RULES[2]
        assert find_rule(RuleBook(rules).personal_rules("bob", "user"), "pending", CCNA) is None


@pytest.mark.parametrize(
    ("rule_", "says"),
    [
        (QuotaRule(sessions=1), "selects nothing"),
        (QuotaRule(owner="ada"), "has no limit"),
        (QuotaRule(track="ccna", horizon_days=1), "bounds owners, not all together"),
        (RULES[0], "selects the same as another rule"),
    ],
)
def test_a_rule_that_could_not_be_meant_is_refused(rule_: QuotaRule, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        check_rules(settings(RULES[0], rule_))
    check_rules(settings(*RULES))


_PIECES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 20), st.integers(0, 5), st.integers(0, 99), st.booleans()), max_size=9
)


@examples(_PIECES, _PIECES, st.integers(0, 40))
def test_books_count_what_a_count_one_by_one_finds(kept: Any, gone: Any, now: int) -> None:
    book, pieces = UseBook(), [UsedPiece(0 if f else a, b if f else a + b, n, u, f, f) for a, b, n, u, f in kept]
    others = [UsedPiece(a, a + b, n, u) for a, b, n, u, _ in gone]
    for one in (*others, *pieces):
        book.add(one)
    book.count_ahead(now - 3)
    for one in others:
        book.remove(one)
    spans = [one.span(now) for one in pieces]
    for moment in range(now, 70):
        there = [one for one, (start, end) in zip(pieces, spans, strict=True) if start <= moment < end]
        assert book.level_at(moment, now) == (len(there), sum(one.nodes for one in there))
    later = [one for one in pieces if not one.floats and one.start > now]
    assert (book.count_ahead(now), book.ahead_time) == (len(later), sum(one.end - one.start for one in later))
    assert book.pending == sum(one.floats for one in pieces)
    assert book.month_sum(1970 * 12, now) == (sum(b - a for a, b in spans), sum(one.usd for one in pieces))
    most = max((book.level_at(at, now)[0] for at in range(now, 70)), default=0)
    assert find_busiest([book], [(now, 70)], 0, now)[0] == most


@examples(st.datetimes(datetime(2020, 1, 1), datetime(2029, 1, 1)), st.integers(1, 10**7), st.integers(0, 10**12))  # noqa: DTZ001
def test_months_add_up_to_the_whole(start: datetime, seconds: int, usd: int) -> None:
    first = micros(start.replace(tzinfo=UTC))
    parts = list(split_by_month(first, first + seconds * 10**6, usd))
    assert sum(time for _, time, _ in parts) == seconds * 10**6
    assert sum(cost for _, _, cost in parts) == usd
    assert [month for month, _, _ in parts] == list(range(parts[0][0], parts[0][0] + len(parts)))


@from_monday
async def test_a_grant_for_a_track_neither_takes_from_the_rest_nor_is_held_back_by_it() -> None:
    async with Office(limits=OwnerLimits(live=1)).open(max_workers=3) as office:
        await rule(office, QuotaRule(owner="ada", track="ccna", sessions=3))
        for number in range(3):
            await person(office).create(slot(f"s{number}"))
        found = await refused(person(office), slot("fourth"))
        assert "ada, track ccna, has 3 of at most 3 sessions at 2026-11-02 09:00Z: 0 left, 1 asked for" in str(found)
        await person(office, BOB).create(slot("bobs"))
        assert (await refused(person(office, BOB), slot("more"))).why == "live_limit"
        await rule(office, QuotaRule(owner="ada", track="other", sessions=3))
        assert "3 of at most 1" in str(await refused(person(office), slot("fifth")))


@from_monday
async def test_staff_are_bound_by_rules_that_name_them_and_by_shared_ones() -> None:
    async with Office(limits=OwnerLimits(live=1)).open(max_workers=3) as office:
        for number in range(3):
            await office.book(f"free{number}")
        await rule(office, QuotaRule(role="operator", sessions=4), QuotaRule(track="ccna", sessions=6))
        await office.book("fourth")
        assert "otto has 4 of at most 4" in str(await refused(office.otto, slot("fifth")))
        for number in range(2):
            await office.book(f"adas{number}", owner="ada")
        found = await refused(office.otto, slot("seventh", owner="ada"))
        assert "track ccna has 6 of at most 6 sessions at" in str(found)
        assert "lcm quota set --track ccna --sessions N" in str(found)
        assert (await refused(person(office, ANNA), slot("annas"))).why == "live_limit"


@from_monday
async def test_of_two_replicas_only_one_lets_the_last_of_a_track_in() -> None:
    async with Office(planes=3, limits=MANY).open(max_workers=10) as office:
        await rule(office, QuotaRule(namespace="default", track="ccna", pending=5, sessions=9))
        people = [Caller(name=f"user{number}", role=Role.USER) for number in range(9)]
        wishes = [person(office, one, n % 3).create(asap(f"s{n}")) for n, one in enumerate(people)]
        answers = await asyncio.gather(*wishes, return_exceptions=True)
        assert sum(isinstance(one, LabletSession) for one in answers) == 5
        assert {one.why for one in answers if isinstance(one, NoRoom)} == {"pending_limit"}
        slots = [person(office, one, n % 3).create(slot(f"t{n}", NINE)) for n, one in enumerate(people)]
        answers = await asyncio.gather(*slots, return_exceptions=True)
        assert sum(isinstance(one, LabletSession) for one in answers) == 9
        assert (await refused(office.otto, slot("last"))).why == "live_limit"
        assert office.store.conflicts, "they did race"


@from_monday
async def test_a_booking_that_was_decided_before_a_rule_came_is_decided_again() -> None:
    async with Office(planes=2, limits=MANY).open(max_workers=3) as office:
        await person(office, plane=1).create(slot("first"))

        async def rule_comes() -> None:
            office.store.before_next = None
            await office.otto.create(settings(QuotaRule(track="ccna", sessions=1)))

        office.store.before_next = rule_comes
        assert (await refused(person(office, plane=1), slot("second"))).why == "live_limit"


@from_monday
async def test_nodes_hours_and_dollars_are_bounded() -> None:
    async with Office(limits=MANY).open(max_workers=3) as office:
        ada = person(office)
        await rule(office, max_nodes=12)
        await ada.create(slot("one"))
        await ada.create(slot("two"))
        found = await refused(ada, slot("three"))
        assert "ada has 10 of at most 12 CML nodes at 2026-11-02 09:00Z: 2 left, 5 asked for" in str(found)
        await rule(office, max_hours_ahead=5)
        assert "4.0 of at most 5 hours booked ahead: 1.0 left, 2.0 asked for" in str(await refused(ada, slot("three")))
        await rule(office, max_hours_per_month=5)
        found = await refused(ada, slot("three", NINE + 5 * DAY))
        assert "in November 2026: 1.0 left, 2.0 asked for" in str(found)
        await ada.create(slot("december", NINE + 30 * DAY))
        with pytest.raises(NoRoom, match=r"1\.0 left, 1\.5 asked for"):
            await ada.act(Ref(LabletSession, "one"), Extend(minutes=90))
        await rule(office, max_usd_per_month=2)
        found = await refused(ada, slot("three", NINE + 5 * DAY))
        assert found.why == "usd_limit"
        # Twelve fit onto a machine of 3.9641 an hour and a disk, and a claim of two hours lasts for 145 minutes.
        promises = office.cores[0].promises
        assert promises is not None
        hourly = promises.calendar.hourly_cost(promises.calendar.pools("default", "ccna")[0])
        assert hourly is not None
        each = float(hourly) / 12 * 145 / 60
        assert f"ada has {2 * each:.2f} of at most 2 USD in November 2026" in str(found)
        assert f"{each:.2f} asked for" in str(found)
        assert "lcm quota set ada --usd N" in str(found)


@from_monday
async def test_each_month_of_a_series_is_checked() -> None:
    async with Office(limits=MANY).open(max_workers=3) as office:
        await rule(office, max_hours_per_month=57)
        daily = Recurrence(every="day", until=date(2026, 12, 28), time_zone="UTC")
        booking = msgspec.structs.replace(
            given.reservation(count=1, recurrence=daily), metadata=Metadata(name="series")
        )
        assert "in November 2026: 57.0 left, 58.0 asked for" in str(await refused(person(office), booking))
        await rule(office, max_hours_per_month=58)
        assert (await person(office).create(booking)).status.held


async def end_session(office: Office, name: str, since: datetime, until: datetime, usd: str) -> LabletSession:
    """Let a session have run and ended."""
    record = await find_record(office.store, Ref(LabletSession, name))
    assert record is not None
    history = (
        PhaseChange(phase="RUNNING", at=since, by="lablet-controller"),
        PhaseChange(phase="COLLECTING", at=until, by="lablet-controller"),
        PhaseChange(phase="COMPLETED", at=until, by="lablet-controller"),
    )
    status = msgspec.structs.replace(
        record.resource.status,
        phase=SessionPhase.COMPLETED,
        outcome=SessionPhase.COMPLETED,
        history=history,
        cost_usd=Decimal(usd),
    )
    metadata = msgspec.structs.replace(record.resource.metadata, finalizers=())
    after = msgspec.structs.replace(record.resource, metadata=metadata, status=status)
    await office.store.commit(*change_ops(record, after))
    return after


@from_monday
async def test_what_has_ended_counts_in_its_month_also_when_it_is_deleted_and_after_a_restart() -> None:
    async with Office(planes=2, limits=MANY).open(max_workers=3) as office:
        await rule(office, max_hours_per_month=3)
        ada = person(office)
        await ada.create(slot("first"))
        ended = await end_session(office, "first", NOW, NOW + HOUR, "2.5")
        await asyncio.sleep(1)
        assert "1.0 of at most 3 hours in November 2026" in str(await refused(ada, slot("long", minutes=150)))
        await ada.delete(ref_of(ended))
        await asyncio.sleep(1)
        assert (await office.store.get(DELETED_SESSIONS + ended.metadata.uid)) is not None
        assert use_of_ended(ended).cost_usd == Decimal("2.5")
        for plane in range(2):  # the second one's books are opened only now
            found = await refused(person(office, plane=plane), slot("long", minutes=150))
            assert "1.0 of at most 3 hours in November 2026: 2.0 left, 2.5 asked for" in str(found)


@from_monday
async def test_what_is_above_a_lowered_limit_stays_and_nothing_is_added() -> None:
    async with Office(limits=MANY).open(max_workers=3) as office:
        for number in range(3):
            await person(office).create(slot(f"s{number}"))
        await rule(office, QuotaRule(owner="ada", sessions=1))
        assert "3 of at most 1 sessions at 2026-11-02 09:00Z: 0 left" in str(
            await refused(person(office), slot("more"))
        )
        await person(office).create(slot("later", NINE + 3 * HOUR))
        assert len(await office.sessions()) == 4
