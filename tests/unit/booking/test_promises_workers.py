"""What is promised on seats whose workers are not what the template says, or that others' labs run on."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from harness import given
from harness.booking_world import HOUR, Counter, attended, counter_lab, pool, warm
from harness.plane_world import NOW
from harness.scheduler_world import Room
from lcm.control.plane.protocol import Extend, Ref, ref_of
from lcm.model.base.capacity import Amount, Claim
from lcm.model.base.errors import NoRoom
from lcm.model.base.resource import find_condition
from lcm.model.kinds.definition import AmiRequirements
from lcm.model.kinds.placement import PreviewRequest
from lcm.model.kinds.pool import LabWorkerPool, ScalingPolicy, WorkerTemplate
from lcm.model.kinds.session import CLEAN_UP_TIME, LabletSession, Seat, SessionCondition, SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.placement.claims import Terms
from lcm.sim.time.loop import run

NONE = ScalingPolicy.NONE
TEN = NOW + 2 * HOUR
NEWER: dict[str, Any] = {"ami_requirements": AmiRequirements(cml_version_min="2.8.0")}
STRANGERS = Amount(cpu_millis=46_000, labs=1)
BARE: dict[str, Any] = {"token": None, "cml": {"licensed": False}}


def versions(*versions_: str) -> list[LabWorker]:
    return [warm(f"w{number}", cml={"version": one}) for number, one in enumerate(versions_, start=1)]


def abroad(name: str = "w1", **more: Any) -> LabWorker:
    return given.changed(warm(name, **more), {"spec": {"aws": {"region": "eu-west-1"}}})


async def book(counter: Counter, name: str, start: datetime = TEN, **more: object) -> Seat | NoRoom:
    when = {"timeslot_start": start, "timeslot_end": start + HOUR}
    wanted = given.session(**{"name": name, "uid": "", "lab_track": "ccna"} | when | more)
    try:
        return (await counter.otto.create(wanted)).status.seat or pytest.fail("it has no seat")
    except NoRoom as error:
        return error


def on(number: int, name: str = "ccna") -> Seat:
    return Seat(pool=name, number=number)


def refusal(answer: Seat | NoRoom) -> NoRoom:
    assert isinstance(answer, NoRoom), answer
    return answer


def test_only_seats_whose_worker_suits_a_lab_are_promised_and_so_are_its_nearest_slots() -> None:
    async def work(counter: Counter) -> None:
        workers = versions("2.6.0", "2.9.0")
        await counter.put(given.template(), *workers, pool(*workers, policy=NONE), counter_lab(cores=48, **NEWER))
        assert await book(counter, "a") == on(2)
        error = refusal(await book(counter, "b"))
        assert (error.why, len(error.nearest)) == ("full", 3)
        assert "all planned workers that suit it are taken" in str(error)
        for start, end in error.nearest:
            wish = PreviewRequest(definition="basics:1.0.0", timeslot_start=start, timeslot_end=end, lab_track="ccna")
            assert (await counter.otto.preview(wish)).seat == on(2)
        both = given.reservation(name="both", uid="", count=2, lab_track="ccna", timeslot_start=TEN + 5 * HOUR)
        both = given.changed(both, {"spec": {"timeslot_end": TEN + 6 * HOUR}})
        with pytest.raises(NoRoom):
            await counter.otto.create(both)

    attended(work)


@pytest.mark.parametrize(
    ("worker", "more", "why"),
    [
        (abroad(), {"region_required": "us-east-1"}, "region"),
        (warm(phase=WorkerPhase.READY_UNLICENSED, **BARE), {}, "licensed"),
        (warm(cml={"version": "2.6.0"}), {}, "cml_version"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_where_no_worker_suits_a_lab_its_slot_is_refused_by_that_name(
    worker: LabWorker, more: dict[str, Any], why: str
) -> None:
    async def work(counter: Counter) -> None:
        await counter.put(given.template(), worker, pool(worker, policy=NONE), counter_lab(**NEWER))
        assert refusal(await book(counter, "a", **more)).why == why

    attended(work)


def test_a_seat_that_gets_its_worker_later_is_what_the_template_says() -> None:
    async def work(counter: Counter) -> None:
        worker = abroad()
        await counter.put(given.template(), worker, pool(worker, policy=ScalingPolicy.SCHEDULED), counter_lab(cores=48))
        assert await book(counter, "here", region_required="us-east-1") == on(2)
        assert await book(counter, "there", region_required="eu-west-1") == on(1)

    attended(work)


@pytest.mark.parametrize("phase", [WorkerPhase.STOPPED, WorkerPhase.STARTING, WorkerPhase.DRAINING])
def test_a_licence_or_version_that_is_yet_to_come_is_not_missed(phase: WorkerPhase) -> None:
    async def work(counter: Counter) -> None:
        worker = warm(phase=phase, cml={"licensed": False, "version": ""})
        await counter.put(given.template(), worker, pool(worker, max_workers=1), counter_lab(**NEWER))
        assert await book(counter, "a") == on(1)

    attended(work)


def test_reservations_ask_for_a_licence_only_where_one_is_required() -> None:
    async def work(counter: Counter) -> None:
        worker = warm(phase=WorkerPhase.READY_UNLICENSED, **BARE)
        await counter.put(given.template(), worker, pool(worker, policy=NONE), counter_lab())
        held = given.reservation(name="r", uid="", lab_track="ccna", timeslot_start=TEN, timeslot_end=TEN + HOUR)
        assert (await counter.otto.create(held)).status.held

    attended(work, terms=Terms(require_licensed=False))


def test_each_seat_says_by_its_worker_whether_it_suits() -> None:
    async def work(counter: Counter) -> None:
        workers = versions("2.6.0", "2.9.0")
        await counter.put(given.template(), *workers, pool(*workers, policy=NONE), counter_lab(**NEWER))
        wish = PreviewRequest(definition="basics:1.0.0", timeslot_start=TEN, timeslot_end=TEN + HOUR, lab_track="ccna")
        places = (await counter.otto.preview(wish)).places
        assert [(one.place, one.filter) for one in places] == [("ccna/1", "cml_version"), ("ccna/2", "")]

    attended(work)


def test_a_promise_whose_template_was_changed_since_tells_that_it_does_not_suit() -> None:
    async def work(counter: Counter) -> None:
        await counter.put(given.template(), pool(max_workers=1), counter_lab())
        assert await book(counter, "a", region_required="us-east-1") == on(1)
        moved = {"spec": {"worker": {"aws": {"region": "eu-west-1"}}}}
        await counter.otto.patch(Ref(WorkerTemplate, "metal"), moved)
        found = await counter.otto.explain(Ref(LabletSession, "a"))
        assert (found.outcome, found.why) == ("promise", "region")
        assert "it is in eu-west-1, the session must be in us-east-1" in found.reason
        assert "drop the required region" in found.remedy

    attended(work)


def test_labs_that_no_session_made_are_in_the_way_of_what_is_near_and_not_for_ever() -> None:
    async def work(counter: Counter) -> None:
        worker = warm(foreign=STRANGERS)
        await counter.put(given.template(), worker, pool(worker, max_workers=1), counter_lab())
        error = refusal(await book(counter, "near"))
        assert (error.why, len(error.nearest)) == ("foreign_labs", 3)
        assert "labs that no session made are in the way: with them planned worker 1 is short of cpu at" in str(error)
        assert "end the labs on the worker" in str(error)
        assert min(start for start, _ in error.nearest) >= NOW + timedelta(hours=24)
        for number, (start, _) in enumerate(error.nearest):
            assert await book(counter, f"moved{number}", start) == on(1)
        assert await book(counter, "far", NOW + timedelta(days=30)) == on(1)

    attended(work)


def test_labs_on_a_worker_that_is_drained_are_not_in_the_way_of_the_one_after_it() -> None:
    async def work(counter: Counter) -> None:
        worker = warm(foreign=STRANGERS, phase=WorkerPhase.DRAINING)
        await counter.put(given.template(), worker, pool(worker, max_workers=1), counter_lab())
        assert await book(counter, "near") == on(1)

    attended(work)


def test_labs_that_no_session_made_endanger_promises_that_are_near_and_say_so() -> None:
    async def main() -> None:
        room = Room()
        async with room.open():
            worker = await room.worker()
            await room.pool(worker, max_workers=1)
            start = room.clock.now()
            near = [await room.books(f"near{number}", start + 3 * HOUR) for number in range(2)]
            await room.books("far", start + timedelta(days=21))
            await asyncio.sleep(5)
            await room.change(worker, foreign=STRANGERS)
            await asyncio.sleep(60)
            risks = [await at_risk(room, one.metadata.name) for one in near]
            assert ("ForeignLabs" in risks, await at_risk(room, "far")) == (True, "")

    run(main)


async def at_risk(room: Room, name: str) -> str:
    found = find_condition((await room.session(name)).status.conditions, SessionCondition.AT_RISK)
    return found.reason if found else ""


def test_of_several_pools_the_refusal_is_told_that_says_most() -> None:
    async def work(counter: Counter) -> None:
        small = given.changed(
            given.template(name="small", uid="uid-small"),
            {"spec": {"worker": {"aws": {"instance_type": "m8i.4xlarge"}}}},
        )
        pools = [
            pool(name=name, uid=f"uid-{name}", lab_track=name, template=template, max_workers=1)
            for name, template in (("a", "metal"), ("b", "small"))
        ]
        await counter.put(given.template(), small, *pools, counter_lab(cores=40, lab_track=""))
        assert await book(counter, "x", lab_track="") == on(1, "a")
        error = refusal(await book(counter, "y", lab_track=""))
        assert (error.why, len(error.nearest)) == ("full", 3)
        assert "pool default/a" in str(error)

    attended(work)


def test_seats_beyond_a_pools_size_are_not_counted_among_those_taken() -> None:
    async def work(counter: Counter) -> None:
        await counter.put(given.template(), pool(max_workers=3), counter_lab(cores=48))
        for name in ("a", "b", "c"):
            await book(counter, name)
        await counter.otto.patch(Ref(LabWorkerPool, "ccna"), {"spec": {"max_workers": 1}})
        assert "all 1 planned workers are taken" in str(refusal(await book(counter, "d")))

    attended(work)


def test_nothing_is_extended_beyond_the_drain_of_its_worker() -> None:
    async def work(counter: Counter) -> None:
        until = NOW + HOUR
        worker = given.changed(warm(phase=WorkerPhase.DRAINING), {"status": {"drain_deadline_at": until}})
        running = given.session(
            phase=SessionPhase.RUNNING,
            worker_id=worker.metadata.uid,
            ends_at=NOW + HOUR / 2,
            claim=Claim(start=NOW, end=NOW + HOUR / 2 + CLEAN_UP_TIME, need=Amount(labs=1)),
        )
        await counter.put(given.template(), counter_lab(), worker, running)
        with pytest.raises(NoRoom, match=r"w1 is being drained, which ends what is on it at .*; extend it") as no:
            await counter.otto.act(ref_of(running), Extend(minutes=31))
        assert no.value.why == "draining"
        assert (await counter.otto.act(ref_of(running), Extend(minutes=30))).status.ends_at == until

    attended(work)
