"""Workers that run whatever is booked: they have their licences and cost what they cost, and promises know it."""

from decimal import Decimal

import pytest

from harness import given
from harness.booking_world import HOUR, Counter, attended, counter_lab, pool, warm
from harness.plane_world import NOW
from lcm.control.booking.step_records import FleetSettings
from lcm.control.plane.protocol import Ref
from lcm.model.base.errors import NoRoom
from lcm.model.base.resource import Metadata, Owner
from lcm.model.kinds.pool import Budget, LabWorkerPool, ScalingPolicy, WorkerTemplate
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.model.money.licences import token_id

TOKEN = "env:CML_LICENSE_TOKEN"
KEEPING = (ScalingPolicy.NONE, ScalingPolicy.CAPACITY_BASED, ScalingPolicy.LAB_COUNT_BASED)


def three() -> FleetSettings:
    return FleetSettings(seats={token_id(TOKEN): 3})


def template(**fields: object) -> WorkerTemplate:
    return given.changed(given.template(**fields), {"spec": {"worker": {"cml": {"license_token": TOKEN}}}})


def licensed(number: int) -> LabWorker:
    return given.changed(warm(f"w{number}"), {"spec": {"cml": {"license_token": TOKEN}}})


def another(**fields: object) -> LabWorkerPool:
    own = {"name": "b", "uid": "uid-b", "lab_track": "b", "min_workers": 0, "max_workers": 1}
    return given.pool(**own | fields)


async def books(counter: Counter, name: str = "s1", track: str = "b") -> LabletSession:
    start = NOW + 5 * HOUR
    slot = {"timeslot_start": start, "timeslot_end": start + HOUR, "lab_track": track}
    return await counter.otto.create(given.session(name=name, uid="", **slot))


async def refusal(counter: Counter, name: str = "s1", track: str = "b") -> str:
    with pytest.raises(NoRoom) as raised:
        await books(counter, name, track)
    return raised.value.why


@pytest.mark.parametrize("policy", KEEPING)
def test_licences_of_workers_that_no_policy_releases_are_not_promised_to_another_pool(policy: ScalingPolicy) -> None:
    async def work(counter: Counter) -> None:
        workers = [licensed(number) for number in (1, 2, 3)]
        await counter.put(template(), *workers, pool(*workers, policy=policy, max_workers=3), another(), counter_lab())
        assert await refusal(counter) == "licences"
        await counter.otto.patch(Ref(LabWorker, "w3"), {"spec": {"wanted_state": "stopped"}})
        assert (await books(counter)).status.seat is not None

    attended(work, fleet=three())


@pytest.mark.parametrize("policy", ScalingPolicy)
def test_the_minimum_of_every_policy_takes_its_licences(policy: ScalingPolicy) -> None:
    async def work(counter: Counter) -> None:
        await counter.put(template(), pool(policy=policy, min_workers=3, max_workers=3), another(), counter_lab())
        assert await refusal(counter) == "licences"

    attended(work, fleet=three())


def test_what_load_keeps_open_takes_no_licence_from_a_booking() -> None:
    async def work(counter: Counter) -> None:
        owner = Owner(kind="LabWorkerPool", name="ccna", uid="uid-ccna")
        workers = [given.changed(licensed(number), {"metadata": {"owner": owner}}) for number in (1, 2, 3)]
        own = pool(*workers, policy=ScalingPolicy.CAPACITY_BASED, max_workers=3, open_seats=(1, 2, 3))
        await counter.put(template(), *workers, own, another(), counter_lab())
        assert (await books(counter)).status.seat is not None

    attended(work, fleet=three())


def test_what_takes_licences_beside_the_promises_counts_for_the_next_ones() -> None:
    async def work(counter: Counter) -> None:
        small = {"policy": ScalingPolicy.SCHEDULED, "max_workers": 3}
        await counter.put(template(), pool(**small), another(), counter_lab(cores=40))
        await books(counter, "s1")
        await counter.otto.create(LabWorker(metadata=Metadata(name="extra"), spec=template().spec.worker))
        await books(counter, "s2", "ccna")
        assert await refusal(counter, "s3", "ccna") == "licences"
        await counter.otto.patch(Ref(LabWorkerPool, "b"), {"spec": {"min_workers": 1}})
        await counter.otto.delete(Ref(LabletSession, "s1"))
        assert await refusal(counter, "s3", "ccna") == "licences"

    attended(work, fleet=three())


def test_an_adopted_worker_has_its_own_licence_and_not_its_pools() -> None:
    async def work(counter: Counter) -> None:
        workers = [licensed(number) for number in (1, 2, 3)]
        other = given.template(name="plain", uid="uid-plain")
        adopting = pool(*workers, policy=ScalingPolicy.NONE, max_workers=3, template="plain")
        await counter.put(template(), other, *workers, adopting, another(), counter_lab())
        assert await refusal(counter) == "licences"

    attended(work, fleet=three())


@pytest.mark.parametrize("policy", KEEPING)
def test_a_booking_costs_nothing_on_a_worker_that_runs_anyway(policy: ScalingPolicy) -> None:
    async def work(counter: Counter) -> None:
        workers = [warm(f"w{number}") for number in (1, 2, 3)]
        budget = Budget(hourly_usd=Decimal(8), monthly_usd=Decimal(3000))
        own = pool(*workers, policy=policy, max_workers=3, budget=budget)
        await counter.put(given.template(price_per_hour_usd=Decimal(4)), *workers, own, counter_lab(cores=40))
        for number in range(3):
            assert (await books(counter, f"s{number}", "ccna")).status.seat is not None
        assert await refusal(counter, "s3", "ccna") == "full"

    attended(work)
