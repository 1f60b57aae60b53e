"""What must never happen to a whole installation and between its people: each check finds it, and nothing else."""

from datetime import timedelta

import msgspec
import pytest

from harness import given
from lcm.control.objects.records import CODEC, key_of
from lcm.control.upkeep.store_health import NOT_WRITABLE
from lcm.model.access.identity import Role
from lcm.model.kinds.session import LabletSession, Rejection, SchedulingDecision, SessionPhase
from lcm.model.kinds.worker import WorkerPhase
from lcm.model.telemetry.alert import Alert, Severity
from lcm.sim.cloud.effects import Effect
from lcm.sim.world.environment import FULL_PERCENT
from lcm.sim.world.newer_version import write_as_newer
from lcm.store.base import Put
from world.checks.hosting import IN_THE_WAY
from world.checks.quotas import GREEDY
from world.checks.restores import RESTORED
from world.checks.store import UNTOLD, full_store_is_told
from world.checks.versions import UPGRADE
from world.scenarios import UNHOSTABLE_PREFIX
from world.witnessed import LEADER, Watched, judged

P = SessionPhase
WORKER = given.worker(phase=WorkerPhase.READY, ec2={"instance_id": "i-1"})
WAITS = given.session(
    phase=P.PENDING,
    timeslot_start=None,
    timeslot_end=None,
    duration_minutes=30,
    owner="gus",
    created_at=given.moment("07:00"),
)
LOST_UID = "0f8fad5b-d9cb-469f-a165-70867728950e"


def another(number: int, **fields: object) -> LabletSession:
    return given.with_fields(WAITS, {"name": f"g{number}", "uid": f"uid-g{number}"} | fields)


@pytest.mark.parametrize(("definition", "wrong"), [("ccna-basics:1.0.0", True), (f"{UNHOSTABLE_PREFIX}nodes:1", False)])
def test_the_reason_of_one_that_nobody_can_host_is_told_to_nobody_else(definition: str, *, wrong: bool) -> None:
    waits = given.with_fields(WAITS, {"definition": definition})
    decision = SchedulingDecision(action="wait", rejections=(Rejection(filter="node_definitions", count=1),))

    def story(watched: Watched) -> None:
        watched.known(waits)
        watched.commit(given.with_fields(waits, {"last_decision": decision}))

    assert judged(story) == ([IN_THE_WAY] if wrong else [])


def test_one_that_nobody_can_host_is_put_on_no_worker() -> None:
    waits = given.with_fields(WAITS, {"definition": f"{UNHOSTABLE_PREFIX}nodes:1"})

    def story(watched: Watched) -> None:
        watched.known(WORKER, waits)
        watched.commit(given.with_fields(waits, {"worker_id": WORKER.metadata.uid}))

    assert IN_THE_WAY in judged(story)


@pytest.mark.parametrize(
    ("role", "count", "wrong"), [(Role.USER, 10, False), (Role.USER, 11, True), (Role.ADMIN, 11, False)]
)
def test_nobody_but_staff_books_more_than_the_limits_allow(role: Role, count: int, *, wrong: bool) -> None:
    def story(watched: Watched) -> None:
        watched.known(*map(another, range(count - 1)))
        watched.commit(another(count), also=[watched.audit("gus", role)], host=None)

    assert (GREEDY in judged(story)) is wrong


def test_who_changes_what_a_newer_version_wrote_keeps_its_fields() -> None:
    def write(watched: Watched, session: LabletSession, *, newer: bool) -> None:
        put = Put(key_of(session), CODEC.encode(session))
        written = write_as_newer(put) if newer else put
        assert isinstance(written, Put)
        change = watched.entry(put.key, written.value)
        assert change.entry is not None
        same = msgspec.structs.replace(change, entry=msgspec.structs.replace(change.entry, created=1))
        watched.on(LEADER, lambda: watched.witness.record_commit(watched._next(), [same]))

    def story(watched: Watched, *, newer: bool) -> None:
        write(watched, WAITS, newer=True)
        write(watched, given.with_fields(WAITS, {"observation_count": 1}), newer=newer)

    assert UPGRADE in judged(lambda watched: story(watched, newer=False))
    assert UPGRADE not in judged(lambda watched: story(watched, newer=True))


@pytest.mark.parametrize("told", [False, True])
def test_a_full_store_is_told_of_by_each_process(*, told: bool) -> None:
    def story(watched: Watched) -> None:
        watched.stage.store.used_percent = FULL_PERCENT
        alert = Alert(
            kind="Store",
            name="store",
            namespace="default",
            uid="store",
            alert=NOT_WRITABLE,
            severity=Severity.CRITICAL,
            reason="StoreFull",
            message="",
            since=watched.now,
        )
        for minute in range(6):
            now, alerts = watched.now + timedelta(minutes=minute), [alert] if told else []
            watched.witness.add_violations(
                full_store_is_told(watched.witness.seen, watched.stage, now, "process-1", alerts)
            )

    assert judged(story) == ([] if told else [UNTOLD])


@pytest.mark.parametrize(("restored", "wrong"), [(True, True), (False, False)])
def test_a_lab_whose_session_a_restore_has_lost_is_not_removed(*, restored: bool, wrong: bool) -> None:
    lost = given.with_fields(WAITS, {"uid": LOST_UID, "phase": P.RUNNING, "worker_id": WORKER.metadata.uid})

    def story(watched: Watched) -> None:
        watched.known(WORKER, lost)
        if restored:
            kept = [watched.change(WORKER).entry]
            watched.witness.record_restore([one for one in kept if one], 1, watched.now)
        effect = Effect("remove", "i-1", lab=f"default/lost [{LOST_UID}]")
        watched.on(LEADER, lambda: watched.witness.record_effect(effect))

    assert (RESTORED in judged(story)) is wrong
