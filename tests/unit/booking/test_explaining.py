"""Every decision explains itself: what is in the way, whose fault it is, and what helps."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from harness import given
from harness.booking_world import HOUR, Counter, attended, counter_lab, pool, running, wanted, warm
from harness.plane_world import ADA, BOB, NOW, OTTO
from lcm.control.plane.protocol import Ref
from lcm.model.base.capacity import Amount
from lcm.model.base.errors import Gone, Invalid
from lcm.model.base.resource import Condition, PhaseChange, Truth
from lcm.model.kinds.definition import AmiRequirements, PortUse, ResourceRequirements
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.placement import Explanation, PreviewRequest, Slot
from lcm.model.kinds.pool import Budget, ScalingPolicy
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import (
    LabletSession,
    SchedulingDecision,
    Seat,
    SessionCondition,
    SessionPhase,
    Waiting,
)
from lcm.model.kinds.worker import LabWorker, WorkerPhase

P = WorkerPhase
WANTED = Ref(LabletSession, "wanted")
TEMPLATE = given.template(price_per_hour_usd=Decimal(5))
MINUTE = timedelta(minutes=1)
UNHOSTABLE = {"too_large", "node_definitions"}


@dataclass(frozen=True)
class Situation:
    """What stands there, and what Ada is told about her session."""

    name: str
    there: tuple[Resource, ...]
    why: str
    culprit: str
    remedy: str
    outcome: str = "wait"
    needs: Mapping[str, Any] = field(default_factory=dict)


def booting(name: str = "w1") -> LabWorker:
    """Return a machine that was launched ten minutes ago."""
    line = PhaseChange(phase=P.STARTING, at=NOW - 10 * MINUTE, by="worker-controller")
    return warm(name, P.STARTING, history=(line,), capacity=None, cml={"licensed": False, "version": ""})


BARE = warm(phase=P.READY_UNLICENSED, token=None, cml={"licensed": False})
UNSEATED = warm(phase=P.READY_UNLICENSED, failure="NoLicenceSeat", cml={"licensed": False})
FULL = warm("w1"), warm("w2")
OLD = warm(cml={"version": "2.7.1"})
FEW = warm(capacity=given.machine(ports=10))
SHARED = warm(foreign=Amount(cpu_millis=46_000, labs=3))
STARTING = booting()
PORTS = {f"PC{number}_serial": PortUse(kind="serial", node=f"PC{number}") for number in range(4)}
NEWER = {"ami_requirements": AmiRequirements(cml_version_min="2.10")}
PLAIN = warm(cml={"node_definitions": ("alpine", "iosv")})

SITUATIONS = [
    Situation("no licence", (BARE,), "licensed", "w1: it has no licence", "register a licence"),
    Situation("no licence seat", (UNSEATED,), "licensed", "w1: it has no licence", "register a licence"),
    Situation(
        "too big for any template",
        (TEMPLATE, pool()),
        "too_large",
        "ccna/1: 96 cores needed, 48 cores free",
        "make the lab smaller, or add larger workers",
        needs={"resource_requirements": ResourceRequirements(cpu_cores=96, memory_gb=8)},
    ),
    Situation(
        "all seats taken",
        (
            TEMPLATE,
            *FULL,
            pool(*FULL),
            running("s1", FULL[0], 1, cpu_millis=46_000),
            running("s2", FULL[1], 2, cpu_millis=48_000),
        ),
        "cpu",
        "w1 will fit it at 2026-11-02 11:00Z; w1: 4 cores needed, 2 cores free now (1 more for the same reason)",
        "add a worker",
    ),
    Situation("draining", (warm(phase=P.DRAINING),), "draining", "w1: it is being drained", "cancel its drain"),
    Situation(
        "ports exhausted",
        (FEW, running("s1", FEW, ports=8)),
        "ports",
        "w1: 4 ports needed, 2 ports free",
        "end labs that hold ports",
        needs={"port_template": PORTS},
    ),
    Situation(
        "wrong CML version",
        (OLD,),
        "cml_version",
        "w1: its CML is 2.7.1, the lab asks for at least 2.10",
        "add a worker whose AMI has such a CML",
        needs=NEWER,
    ),
    Situation(
        "a node definition that CML lacks",
        (TEMPLATE, PLAIN, pool(PLAIN)),
        "node_definitions",
        "ccna/2: it lacks the node definitions gitlab (1 more for the same reason)",
        "install them on the worker or in its AMI",
        needs={"ami_requirements": AmiRequirements(node_definitions=("gitlab", "iosv"))},
    ),
    Situation(
        "budget",
        (TEMPLATE, pool(budget=Budget(hourly_usd=Decimal(4)))),
        "hourly_budget",
        "ccna/1: it would take 1 workers at 5 USD an hour",
        "raise the pool's hourly budget",
    ),
    Situation(
        "hours",
        (TEMPLATE, pool(allowed_hours=AllowedHours(start_hour=10, end_hour=18))),
        "hours",
        "ccna/1: its machine would have to run at 2026-11-02 08:20Z, and the pool's hours are 10:00 to 18:00 UTC",
        "within the pool's allowed_hours",
    ),
    Situation(
        "hours of a worker that is up",
        (TEMPLATE, warm(), pool(warm(), max_workers=1, allowed_hours=AllowedHours(start_hour=8, end_hour=9))),
        "hours",
        "w1: its machine would have to run at 2026-11-02 09:00Z, and the pool's hours are 8:00 to 9:00 UTC",
        "within the pool's allowed_hours",
    ),
    Situation(
        "waiting for boot",
        (TEMPLATE, STARTING, pool(STARTING, max_workers=1)),
        "booting",
        "w1 will fit it at 2026-11-02 08:10Z; w1: it can be used from 2026-11-02 08:10Z",
        "wait until it has booted",
    ),
    Situation(
        "foreign labs in the way",
        (SHARED,),
        "foreign_labs",
        "w1: labs that no session made are in the way: 4 cores needed, 2 cores free",
        "end the labs on it that no session made",
    ),
    Situation(
        "nobody opens a seat",
        (TEMPLATE, pool(policy=ScalingPolicy.NONE)),
        "no_worker",
        "ccna/1: it is not running, and with the policy NONE",
        "SCHEDULED or HYBRID",
    ),
    Situation(
        "a machine that nobody knows",
        (given.changed(TEMPLATE, {"spec": {"worker": {"aws": {"instance_type": "x1.odd"}}}}), pool()),
        "unknown_size",
        "the size of the workers of pool default/ccna is not known",
        "a known instance type",
    ),
    Situation("nothing is there", (), "no_pool", "neither a pool nor a worker", "make a LabWorkerPool"),
]


def told(*there: Resource, **needs: Any) -> Explanation:
    """Ask, as Ada, about her session among these objects."""
    found = list[Explanation]()

    async def ask(counter: Counter) -> None:
        await counter.put(counter_lab(**needs), *there)
        if not any(one.metadata.name == "wanted" for one in there):
            await counter.put(wanted())
        found.append(await counter[ADA].explain(WANTED))

    attended(ask)
    return found[0]


def thought(*there: Resource, wish: PreviewRequest, **needs: Any) -> Explanation:
    """Ask, as Ada, what would become of a booking."""
    found = list[Explanation]()

    async def ask(counter: Counter) -> None:
        await counter.put(counter_lab(**needs), *there)
        found.append(await counter[ADA].preview(wish))

    attended(ask)
    return found[0]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_a_session_that_waits_is_told_the_true_reason_and_what_helps(situation: Situation) -> None:
    found = told(*situation.there, **situation.needs)
    assert (found.outcome, found.why) == (situation.outcome, situation.why)
    assert situation.culprit in found.reason
    assert situation.remedy in found.remedy
    assert found.decision is not None
    assert found.decision.action == found.outcome
    assert "bob" not in msgspec.json.encode(found).decode()
    assert all(one.filter and one.reason and one.remedy for one in found.places if not one.fits)
    assert sum(one.count for one in found.decision.rejections) == len(found.places)


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda one: one.name)
def test_who_only_thinks_about_it_is_told_the_same(situation: Situation) -> None:
    found = told(*situation.there, **situation.needs)
    wish = PreviewRequest(definition="basics", duration_minutes=120)
    # What nobody could ever host is not even taken; who waits already is told what it waits for.
    expected = msgspec.structs.replace(found, outcome="refuse") if situation.why in UNHOSTABLE else found
    assert thought(*situation.there, wish=wish, **situation.needs) == expected


def test_one_in_a_queue_is_told_one_time_and_its_reason() -> None:
    busy, basis = warm(), "a session on w1 ends before"
    queue = Waiting(queue_position=40, estimated_start=NOW + 50 * HOUR, basis=basis)
    decided = SchedulingDecision(action="wait", reason="decided for the whole queue")
    found = told(busy, running("s1", busy, cpu_millis=46_000), wanted(waiting=queue, last_decision=decided))
    assert found.reason == f"{basis}; w1: 4 cores needed, 2 cores free now"
    assert found.slot == Slot(start=NOW + 50 * HOUR, end=NOW + 52 * HOUR)
    assert (found.waiting, found.decision) == (queue, decided)


@pytest.mark.parametrize(("least", "fits"), [("2.10", False), ("2.7", True), ("2.7.1", True), ("2.7.10", False)])
def test_lesson_17_cml_versions_are_compared_as_versions(least: str, *, fits: bool) -> None:
    found = told(OLD, ami_requirements=AmiRequirements(cml_version_min=least))
    assert found.outcome == ("assign" if fits else "wait")
    assert [one.fits for one in found.places] == [fits]
    newer = told(warm(cml={"version": "2.10.0"}), ami_requirements=AmiRequirements(cml_version_min="2.7"))
    assert newer.outcome == "assign"


def test_a_warm_worker_takes_it_and_its_score_is_told() -> None:
    found = told(warm("w1"), warm("w2", phase=P.DRAINING))
    assert (found.outcome, found.why, found.worker, found.seat) == ("assign", "", "w1", None)
    assert found.slot == Slot(start=NOW + 15 * MINUTE, end=NOW + 135 * MINUTE)
    first, second = found.places
    assert (first.place, first.fits, first.earliest, second.filter) == ("w1", True, NOW, "draining")
    assert first.score is not None


def test_a_seat_may_be_opened_for_it() -> None:
    found = told(TEMPLATE, pool(max_workers=10))
    assert (found.outcome, found.seat, found.worker) == ("scale_up", Seat(pool="ccna", number=1), "")
    assert (found.why, found.places_left_off) == ("booting", 9)
    assert found.decision is not None
    assert found.decision.worker_template == "metal"


def test_its_own_claim_on_a_seat_is_not_in_its_way() -> None:
    claim = given.claim("08:20", "11:00", cpu_millis=48_000)
    seated = wanted(claim=claim, seat=Seat(pool="ccna", number=1), waiting=QUEUED)
    found = told(TEMPLATE, pool(max_workers=1), seated, resource_requirements=WHOLE)
    assert (found.outcome, found.seat, found.waiting) == ("scale_up", Seat(pool="ccna", number=1), QUEUED)


QUEUED = Waiting(queue_position=2, estimated_start=NOW + HOUR, basis="the usual boot of its pool")
WHOLE = ResourceRequirements(cpu_cores=48, memory_gb=8)


def test_who_waits_for_a_worker_learns_why_no_seat_is_opened_meanwhile() -> None:
    full = warm()
    there = (TEMPLATE, full, pool(full, budget=Budget(hourly_usd=Decimal(6))))
    found = told(*there, running("s1", full, 1, cpu_millis=48_000))
    assert (found.outcome, found.why) == ("wait", "cpu")
    assert "; no planned worker is started for it: ccna/2: it would take 2 workers at 5 USD an hour" in found.reason


def test_a_worker_of_another_track_does_not_hide_the_true_reason() -> None:
    other = warm("w0", phase=P.DRAINING, lab_track="ccnp")
    found = told(other, warm("w1", phase=P.STOPPED), TEMPLATE, pool(budget=Budget(hourly_usd=Decimal(1))))
    assert (found.why, found.outcome) == ("hourly_budget", "wait")


def test_a_lab_that_does_not_say_what_it_needs_is_told_of() -> None:
    found = told(warm(), resource_requirements=None)
    assert (found.outcome, found.why) == ("wait", "unknown_need")
    assert "basics:1.0.0" in found.reason


@pytest.mark.parametrize(
    ("phase", "reason"),
    [(SessionPhase.COMPLETED, "it is COMPLETED: all done"), (SessionPhase.EXPIRED, "it is EXPIRED: all done")],
)
def test_what_has_ended_is_over(phase: SessionPhase, reason: str) -> None:
    found = told(wanted(phase=phase, outcome_reason="all done"))
    assert (found.outcome, found.why, found.reason) == ("over", "", reason)


def test_what_has_a_worker_is_placed() -> None:
    worker = warm()
    found = told(worker, given.changed(running("wanted", worker), {"spec": {"owner": "ada"}}))
    assert (found.outcome, found.worker, found.reason) == ("placed", "w1", "it is RUNNING on w1")


AT_RISK = Condition(type=SessionCondition.AT_RISK, status=Truth.TRUE, last_transition_at=NOW, message="w1 is too small")
PROMISES = [
    ("09:00", None, "", "its worker is started at 2026-11-02 08:20Z", ""),
    ("08:20", None, "no_worker", "should have been started at 2026-11-02 07:40Z", "lcm describe pool"),
    ("09:00", warm(), "", "its worker w1 is up, and it goes there at 2026-11-02 08:45Z", ""),
    ("09:00", booting(), "", "waiting for boot: its worker w1 can be used from 2026-11-02 08:10Z", ""),
    ("08:20", booting(), "booting", "waiting for boot: its worker w1 can be used from", "until it has booted"),
    ("09:00", warm(phase=P.DRAINING), "draining", "its worker w1 is being drained", "cancel its drain"),
    ("09:00", warm(phase=P.STOPPED), "", "its worker w1 is started at 2026-11-02 08:20Z", ""),
    ("08:20", warm(phase=P.STOPPED), "phase", "its worker w1 takes no sessions: STOPPED", "lcm describe worker"),
]


@pytest.mark.parametrize(("start", "worker", "why", "reason", "remedy"), PROMISES)
def test_a_promise_tells_its_seat_and_what_it_still_waits_for(
    start: str, worker: LabWorker | None, why: str, reason: str, remedy: str
) -> None:
    begin, filled = given.moment(start), [worker] if worker else []
    when = {"timeslot_start": begin, "timeslot_end": begin + HOUR, "duration_minutes": None}
    claim = given.changed(given.claim(), {"start": begin - 15 * MINUTE, "end": begin + 70 * MINUTE})
    seated = wanted(**when, claim=claim, seat=Seat(pool="ccna", number=1), phase=SessionPhase.SCHEDULED)
    found = told(TEMPLATE, pool(*filled), *filled, seated)
    assert (found.outcome, found.why, found.seat) == ("promise", why, Seat(pool="ccna", number=1))
    assert found.reason.startswith("planned worker ccna/1 is held for it from ")
    assert reason in found.reason
    assert remedy in found.remedy
    assert found.slot == Slot(start=begin, end=begin + HOUR)
    risky = told(TEMPLATE, pool(*filled), *filled, given.with_fields(seated, {"conditions": (AT_RISK,)}))
    assert (risky.why, risky.outcome) == ("at_risk", "promise")
    assert risky.reason == f"w1 is too small; {found.reason}"


def test_anothers_session_is_not_explained() -> None:
    async def ask(counter: Counter) -> None:
        await counter.put(counter_lab(), wanted(), warm())
        for name in ("wanted", "uid-wanted"):
            with pytest.raises(Gone):
                await counter[BOB].explain(Ref(LabletSession, name))
            assert (await counter[ADA].explain(Ref(LabletSession, name))).outcome == "assign"
            assert (await counter[OTTO].explain(Ref(LabletSession, name))).worker == "w1"

    attended(ask)


def slot(start: str = "09:00", end: str = "11:00", **more: Any) -> PreviewRequest:
    return PreviewRequest(
        definition="basics:1.0.0", timeslot_start=given.moment(start), timeslot_end=given.moment(end), **more
    )


def test_a_slot_that_would_be_promised_is_shown_with_its_seat() -> None:
    found = thought(TEMPLATE, pool(), wish=slot())
    assert (found.outcome, found.why, found.seat) == ("promise", "", Seat(pool="ccna", number=1))
    held = "pool default/ccna would hold planned worker 1"
    assert found.reason == f"{held} from 2026-11-02 08:45Z to 2026-11-02 11:10Z"
    assert [(one.place, one.fits) for one in found.places] == [("ccna/1", True)]
    several = thought(TEMPLATE, pool(), wish=slot(count=3))
    assert (several.outcome, several.seat, several.places) == ("promise", Seat(pool="ccna", number=1), ())


REFUSALS = [
    (
        slot("08:30", "09:00"),
        {},
        "too_soon",
        "planned worker 1 has a machine from 2026-11-02 08:25Z on",
        "a later slot",
    ),
    (slot(), {"cores": 96}, "too_large", "it needs more cpu than a worker of the pool has", "make the lab smaller"),
    (
        slot(lab_track="ccnp"),
        {"other_tracks": ("ccnp",)},
        "no_pool",
        "no pool in namespace default serves the track 'ccnp'",
        "LabWorkerPool",
    ),
    (slot("06:00", "08:30"), {}, "too_soon", "it would have to be instantiated from", "a later slot"),
    (slot(count=60), {"cores": 24}, "full", "4 of 60 fit then; this pool holds 4 at once", "book 4 then"),
    (slot(region_required="eu-west-1"), {}, "region", "it is in us-east-1", "drop the required region"),
    (slot(), {"resource_requirements": None}, "unknown_need", "does not say what it needs", "resource_requirements"),
]


@pytest.mark.parametrize(("wish", "needs", "why", "reason", "remedy"), REFUSALS, ids=[one[2] for one in REFUSALS])
def test_a_slot_that_would_be_refused_says_why(
    wish: PreviewRequest, needs: Mapping[str, Any], why: str, reason: str, remedy: str
) -> None:
    found = thought(TEMPLATE, pool(), wish=wish, **needs)
    assert (found.outcome, found.why) == ("refuse", why)
    assert reason in found.reason
    assert remedy in found.remedy
    assert found.remedy not in found.reason
    assert found.seat is None


def test_all_seats_taken_names_the_nearest_slots_and_what_every_seat_says() -> None:
    async def ask(counter: Counter) -> None:
        await counter.put(counter_lab(cores=48), TEMPLATE, pool())
        booked = {"timeslot_start": given.moment("10:00"), "timeslot_end": given.moment("12:00")}
        for name in ("s1", "s2"):
            await counter.otto.create(given.session(name=name, owner="bob", **booked))
        found = await counter[ADA].preview(slot("10:00", "12:00"))
        assert (found.outcome, found.why) == ("refuse", "full")
        assert "all 2 planned workers are taken" in found.reason
        assert found.remedy == "choose one of the nearest free slots, or raise the pool's max_workers"
        assert [(one.place, one.filter) for one in found.places] == [("ccna/1", "full"), ("ccna/2", "full")]
        assert "bob" not in msgspec.json.encode(found).decode()
        for near in found.nearest:
            again = await counter[ADA].preview(
                PreviewRequest(definition="basics", timeslot_start=near.start, timeslot_end=near.end)
            )
            assert again.outcome == "promise"
        assert found.nearest

    attended(ask)


BAD = [
    (PreviewRequest(definition="basics"), "duration_minutes"),
    (PreviewRequest(definition="basics", timeslot_start=given.moment("09:00")), "timeslot_end"),
    (slot("11:00", "09:00"), "timeslot_end"),
    (slot("05:00", "07:00"), "timeslot_end"),
    (slot(duration_minutes=30), "duration_minutes"),
    (PreviewRequest(definition="basics", duration_minutes=481), "duration_minutes"),
    (PreviewRequest(definition="nothing", duration_minutes=30), "definition"),
    (PreviewRequest(definition="basics:2", duration_minutes=30), "definition"),
    (PreviewRequest(definition="basics", duration_minutes=30, namespace="elsewhere"), "definition"),
    (PreviewRequest(definition="basics", duration_minutes=30, count=2), "count"),
]


@pytest.mark.parametrize(("wish", "path"), BAD)
def test_what_could_never_be_booked_is_invalid_by_its_field(wish: PreviewRequest, path: str) -> None:
    with pytest.raises(Invalid) as caught:
        thought(warm(), wish=wish)
    assert [fault.path for fault in caught.value.faults] == [path]


def test_no_seat_is_said_to_fit_a_slot_that_begins_too_soon() -> None:
    warm_pool = (TEMPLATE, warm(), pool(warm()))
    found = thought(
        *warm_pool, wish=PreviewRequest(definition="basics:1.0.0", timeslot_start=NOW, timeslot_end=NOW + HOUR)
    )
    assert (found.outcome, found.why) == ("refuse", "too_soon")
    assert {one.filter for one in found.places} == {"too_soon"}
