"""Bookings in an apply: promised together before anything is written, exactly as creates would be."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import pytest

from harness import given
from harness.booking_world import DOZEN, NINE, Office, a_pool, from_monday, lab, metal, slot
from harness.plane_world import OTTO
from lcm.control.booking.step_records import FleetSettings
from lcm.control.plane.protocol import Applied, Ref
from lcm.model.base.errors import Invalid, NoRoom, Refused
from lcm.model.base.resource import Metadata
from lcm.model.kinds.definition import ResourceRequirements
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import OCCURRENCES_LIMIT, Reservation, ReservationPhase
from lcm.model.kinds.session import Seat
from lcm.model.money.licences import token_id

SMALL = lab(resource_requirements=ResourceRequirements(cpu_cores=1, memory_gb=2))
"""Of which twenty run on one machine, as many as on any."""


def written(resource: Resource) -> dict[str, Any]:
    """Return a document as a person would write it."""
    said = msgspec.to_builtins(resource)
    return {name: said[name] for name in ("api_version", "kind", "spec")} | {
        "metadata": {"name": resource.metadata.name}
    }


def slots(count: int, start: datetime = NINE, prefix: str = "s") -> list[dict[str, Any]]:
    return [written(slot(f"{prefix}{number:03}", start)) for number in range(count)]


def group(name: str, count: int) -> dict[str, Any]:
    return written(msgspec.structs.replace(given.reservation(count=count), metadata=Metadata(name=name)))


async def applied(office: Office, documents: Sequence[dict[str, Any]], **more: Any) -> Sequence[Applied]:
    return await office.otto.apply(documents, **more)


async def refused(office: Office, documents: Sequence[dict[str, Any]], **more: Any) -> NoRoom:
    revision = await office.revision()
    with pytest.raises(NoRoom) as raised:
        await applied(office, documents, **more)
    assert await office.revision() == revision, "nothing was written"
    return raised.value


@pytest.mark.parametrize("dry_run", [False, True])
@from_monday
async def test_five_hundred_sessions_for_nine_in_one_apply_are_refused_as_a_whole(*, dry_run: bool) -> None:
    async with Office().open(max_workers=2) as office:
        await applied(office, [written(SMALL)])
        error = await refused(office, slots(500), dry_run=dry_run)
        assert str(error).startswith(
            "documents[40]: pool default/ccna: all 2 planned workers are taken: planned worker 1 is short of labs"
        )
        assert (error.why, len(error.nearest)) == ("full", 3)
        assert await office.sessions() == []
        await applied(office, slots(40), dry_run=dry_run)
        assert len(await office.sessions()) == (0 if dry_run else 40)


@from_monday
async def test_what_is_applied_is_promised_as_what_is_created() -> None:
    async with Office().open(max_workers=20) as office:
        before = office.store.tried
        made = await applied(office, [*slots(18 * DOZEN), group("class", DOZEN)])
        assert {one.outcome for one in made} == {"created"}
        assert office.store.tried - before < 8, "few commits"
        assert office.store.conflicts == 0
        assert all(one.status.claim and one.status.seat for one in await office.sessions())
        assert await office.overcommitted() == []
        reservation = await office.otto.get(Ref(Reservation, "class"))
        assert reservation is not None
        assert reservation.status.phase is ReservationPhase.PROMISED
        assert sum(map(len, (await office.claims()).values())) == 19 * DOZEN
        again = await applied(office, [*slots(18 * DOZEN), group("class", DOZEN)])
        assert {one.outcome for one in again} == {"unchanged"}


@from_monday
async def test_more_sessions_than_a_reservation_may_hold_are_refused_before_anything_else() -> None:
    async with Office().open(max_workers=1) as office:
        with pytest.raises(Invalid, match=r"documents\[0\].spec.count"):
            await applied(office, [group("class", OCCURRENCES_LIMIT + 1)])


@from_monday
async def test_four_hundred_claims_of_one_reservation_find_room_in_a_commit_beside_others() -> None:
    async with Office().open(max_workers=80) as office:
        await applied(office, [group("one", 400), group("two", 400), *slots(100)])
        assert sum(map(len, (await office.claims()).values())) == 900
        assert await office.overcommitted() == []


@from_monday
async def test_a_pool_may_come_with_its_bookings() -> None:
    async with Office().open() as office:
        folder = [*slots(DOZEN), written(metal()), group("class", DOZEN), written(a_pool(max_workers=2))]
        error = await refused(office, [*folder, *slots(1, prefix="more")])
        assert str(error).startswith(f"documents[{len(folder)}]: ")
        await applied(office, folder, dry_run=True)
        await applied(office, folder)
        assert {seat: len(claims) for seat, claims in (await office.claims()).items()} == {1: DOZEN, 2: DOZEN}
        with pytest.raises(NoRoom):
            await office.book("late")


@from_monday
async def test_a_pool_that_grows_in_an_apply_counts_as_it_will_be() -> None:
    async with Office().open(max_workers=1) as office:
        await applied(office, slots(DOZEN))
        await refused(office, slots(1, prefix="more"))
        await applied(office, [*slots(DOZEN, prefix="more"), written(a_pool(max_workers=2))])
        error = await refused(office, [*slots(1, prefix="late"), written(a_pool(max_workers=1))])
        assert error.why == "full"
        assert await office.overcommitted() == []


@from_monday
async def test_a_pool_and_more_bookings_than_one_commit_holds_go_together() -> None:
    async with Office().open() as office:
        await applied(office, [*slots(200), written(a_pool(max_workers=30)), written(metal())])
        assert len(await office.sessions()) == 200
        assert await office.overcommitted() == []


@from_monday
async def test_what_has_no_slot_or_needs_nothing_known_is_told_apart() -> None:
    async with Office().open(max_workers=1) as office:
        unknown = lab(name="vague:1.0.0", node_count=None)
        vague = written(slot("vague"))
        vague["spec"]["definition"] = "vague:1.0.0"
        asap = written(msgspec.structs.replace(given.asap(), metadata=Metadata(name="now")))
        with pytest.raises(Refused, match=r"documents\[2\]: vague:1.0.0 does not say what it needs"):
            await applied(office, [asap, written(unknown), vague])
        assert await office.sessions() == []
        await applied(office, [asap, *slots(1)])
        found = {one.metadata.name: one.status.seat for one in await office.sessions()}
        assert found == {"now": None, "s000": Seat(pool="ccna", number=1)}


@from_monday
async def test_two_planes_that_apply_and_book_at_once_never_over_commit() -> None:
    async with Office(planes=2).open(max_workers=30) as office:
        one, other = (core.plane_for(OTTO) for core in office.cores)
        books = (other.create(slot(f"b{number}")) for number in range(30))
        await asyncio.gather(one.apply(slots(150)), other.apply(slots(100, prefix="t")), *books)
        assert office.store.conflicts, "they did disturb each other"
        assert len(await office.sessions()) == 280
        assert await office.overcommitted() == []


@from_monday
async def test_who_finds_the_room_taken_in_the_midst_of_it_is_told_which_was_the_first() -> None:
    async with Office(planes=2).open(max_workers=10) as office:
        thief = office.cores[1].plane_for(OTTO)
        office.store.after_next = lambda: thief.apply(slots(2 * DOZEN, prefix="theirs"))
        with pytest.raises(NoRoom) as raised:
            await applied(office, slots(10 * DOZEN))
        assert str(raised.value).startswith("documents[96]: pool default/ccna: all 10 planned workers are taken")
        assert await office.overcommitted() == []
        assert len(await office.sessions()) < 8 * DOZEN, "none of the rest was written"


@from_monday
async def test_counted_licences_are_guarded_in_an_apply_too() -> None:
    fleet = FleetSettings(seats={token_id("env:CML_LICENSE_TOKEN"): 2})
    async with Office(fleet=fleet).open(max_workers=10) as office:
        assert (await refused(office, slots(2 * DOZEN + 1))).why == "licences"
        await applied(office, slots(2 * DOZEN))
        assert sorted(await office.claims()) == [1, 2]


@from_monday
async def test_a_session_that_was_promised_may_be_applied_again_with_another_label() -> None:
    async with Office().open(max_workers=1) as office:
        await applied(office, slots(DOZEN))
        labelled = [one | {"metadata": one["metadata"] | {"labels": {"room": "b"}}} for one in slots(DOZEN)]
        assert {one.outcome for one in await applied(office, labelled)} == {"configured"}
        assert sum(map(len, (await office.claims()).values())) == DOZEN
