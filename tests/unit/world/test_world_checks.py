"""What must never happen, in commits: each check finds it, and says nothing when all is right."""

import msgspec
import pytest

from harness import given
from lcm.model.access.identity import Caller, Role
from lcm.model.base.capacity import Amount
from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER, WORKER_CONTROLLER
from lcm.model.base.resource import Condition, Truth
from lcm.model.kinds.reservation import ReservationClaim
from lcm.model.kinds.session import LabletSession, Seat, SessionPhase
from lcm.model.kinds.worker import WorkerPhase
from lcm.sim.time.loop import run
from lcm.sim.world.scenario import SECRET
from world.checks.capacity import NO_CAPACITY, OVERCOMMIT
from world.checks.events import GAP, heard_each_once
from world.checks.leaders import DEPOSED
from world.checks.machines import DRAIN_WARNING, TAKEN
from world.checks.phases import ILLEGAL
from world.checks.ports import SHARED_PORT
from world.checks.privacy import ANOTHERS, LEAK
from world.checks.writes import LOST, MOST_CHANGES, RESTLESS
from world.witnessed import LEADER, OTHER, Watched, judged

P = SessionPhase
READY = given.worker(phase=WorkerPhase.READY, capacity=given.machine(labs=1), ec2={"instance_id": "i-1"})
WAITING = given.session(claim=given.claim(), seat=Seat(pool="ccna", number=1), history=given.history("PENDING")[:0])
PLACED = given.session(
    phase=P.SCHEDULED,
    claim=given.claim(),
    worker_id="uid-w1",
    seat=Seat(pool="ccna", number=1),
    allocated_ports={"a": 2000},
)
RUNNING = given.with_fields(
    PLACED, {"phase": P.RUNNING, "cml_lab_id": "l", "ends_at": given.moment("11:00"), "owner": "ada"}
)


def second(session: LabletSession, **overrides: object) -> LabletSession:
    """Return another session like it."""
    return given.with_fields(session, {"name": "s2", "uid": "uid-s2"} | overrides)


def test_a_claim_that_does_not_fit_over_commits_its_worker() -> None:
    def story(watched: Watched, other: LabletSession) -> None:
        watched.known(READY, RUNNING, given.pool(), given.template(), second(WAITING, seat=None))
        watched.commit(given.with_fields(other, {"seat": None, "allocated_ports": {"a": 2001}}))

    crowd, later = second(PLACED), second(PLACED, claim=given.claim("11:00", "12:00"))
    assert OVERCOMMIT in judged(lambda watched: story(watched, crowd))
    assert OVERCOMMIT not in judged(lambda watched: story(watched, later))


def test_labs_of_strangers_take_room() -> None:
    taken = given.with_fields(READY, {"foreign": Amount(labs=1)})

    def story(watched: Watched) -> None:
        watched.known(taken, given.pool(), given.template(), WAITING)
        watched.commit(watched.step(WAITING, "SCHEDULED", SCHEDULER, worker_id="uid-w1", seat=None))

    assert judged(story) == [OVERCOMMIT]


def test_a_worker_that_shrinks_under_its_sessions_is_nobodys_fault() -> None:
    def story(watched: Watched) -> None:
        watched.known(READY, RUNNING)
        watched.commit(given.with_fields(READY, {"capacity": given.machine(labs=0)}))
        watched.commit(given.with_fields(RUNNING, {"observation_count": 1}))

    assert judged(story) == []


@pytest.mark.parametrize(
    ("ports", "foreign", "wrong"),
    [({"a": 2000}, (), True), ({"a": 2001}, (), False), ({"a": 2001}, (2001,), True), ({"a": 80}, (), True)],
)
def test_no_port_is_given_twice(ports: dict[str, int], foreign: tuple[int, ...], wrong: bool) -> None:  # noqa: FBT001  a table
    def story(watched: Watched) -> None:
        wide = given.with_fields(READY, {"capacity": given.machine(), "foreign_ports": foreign})
        watched.known(wide, RUNNING, second(PLACED, allocated_ports=None))
        watched.commit(second(PLACED, allocated_ports=ports))

    assert judged(story) == ([SHARED_PORT] if wrong else [])


def test_a_port_that_was_seen_with_another_lab_is_not_given() -> None:
    def story(watched: Watched, drifted: int) -> None:
        edited = given.with_fields(RUNNING, {"observed_ports": {"a": drifted}})
        watched.known(given.with_fields(READY, {"capacity": given.machine()}), edited)
        watched.known(second(PLACED, allocated_ports=None))
        watched.commit(second(PLACED, allocated_ports={"a": 2001}))

    assert judged(lambda watched: story(watched, 2001)) == [SHARED_PORT]
    assert judged(lambda watched: story(watched, 2002)) == []


@pytest.mark.parametrize(("number", "cpu_millis", "wrong"), [(1, 4_000, False), (1, 46_000, True), (11, 4_000, True)])
def test_a_seat_promises_what_its_template_holds(number: int, cpu_millis: int, wrong: bool) -> None:  # noqa: FBT001  a table
    def story(watched: Watched) -> None:
        watched.known(given.pool(), given.template(), PLACED)
        claim = given.claim(cpu_millis=cpu_millis)
        watched.commit(second(given.session(), claim=claim, seat=Seat(pool="ccna", number=number)), host=None)

    assert judged(story) == ([NO_CAPACITY] if wrong else [])


def test_what_a_reservation_holds_is_counted_on_its_seats() -> None:
    seat = Seat(pool="ccna", number=1)
    held = ReservationClaim(number=1, claim=given.claim(cpu_millis=46_000), seat=seat)

    def story(watched: Watched) -> None:
        watched.known(given.pool(), given.template(), given.reservation(phase="PROMISED", held=(held,)))
        watched.commit(given.session(claim=given.claim(), seat=seat), host=None)

    assert judged(story) == [NO_CAPACITY]


@pytest.mark.parametrize(("session", "wrong"), [(WAITING, False), (PLACED, True)])
def test_a_claim_changes_its_seat_only_before_it_has_a_worker(session: LabletSession, wrong: bool) -> None:  # noqa: FBT001  a table
    def story(watched: Watched) -> None:
        watched.known(given.pool(), given.template(), READY, session)
        watched.commit(given.with_fields(session, {"seat": Seat(pool="ccna", number=2)}))

    assert judged(story) == ([NO_CAPACITY] if wrong else [])


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"seat": Seat(pool="ccna", number=2)}, False),
        ({"seat": None}, True),
        ({"number": 2}, True),
        ({"claim": given.claim("09:30", "11:00")}, True),
        ({"claim": given.claim("09:30", "11:00"), "session": "r1-1"}, False),
    ],
)
def test_a_reservation_keeps_its_claims_until_sessions_take_them_over(fields: dict[str, object], wrong: bool) -> None:  # noqa: FBT001  a table
    held = ReservationClaim(number=1, claim=given.claim(), seat=Seat(pool="ccna", number=1))
    after = msgspec.structs.replace(held, **fields)

    def story(watched: Watched) -> None:
        watched.known(given.pool(), given.template(), given.reservation(phase="PROMISED", held=(held,)))
        watched.commit(given.reservation(phase="PROMISED", held=(after,)))

    assert judged(story) == ([NO_CAPACITY] if wrong else [])


def test_a_promise_is_taken_back_only_with_a_word() -> None:
    risk = Condition(type="AtRisk", status=Truth.TRUE, last_transition_at=given.moment("08:00"), message="lost")

    def story(watched: Watched, *conditions: Condition) -> None:
        watched.known(given.pool(), given.template(), WAITING)
        watched.commit(given.with_fields(WAITING, {"claim": None, "seat": None, "conditions": conditions}))

    assert judged(story) == [NO_CAPACITY]
    assert judged(lambda watched: story(watched, risk)) == []


@pytest.mark.parametrize(
    ("start", "error", "calm", "wrong"),
    [
        ("08:59", "", True, False),
        ("09:10", "", False, True),
        ("09:10", "slow", False, False),
        ("09:10", "slow", True, True),
    ],
)
def test_who_starts_late_tells_why(start: str, error: str, calm: bool, wrong: bool) -> None:  # noqa: FBT001  a table
    starting = given.with_fields(PLACED, {"phase": P.INSTANTIATING, "last_error": error})

    def story(watched: Watched) -> None:
        watched.known(READY, given.pool(), given.template(), starting)
        ends = {"cml_lab_id": "l", "ends_at": given.moment("11:00")}
        watched.commit(watched.step(starting, "RUNNING", LABLET_CONTROLLER, **ends))

    assert judged(story, calm=calm, start=start) == ([NO_CAPACITY] if wrong else [])


def test_a_booking_that_expires_unheard_is_a_broken_promise() -> None:
    def story(watched: Watched) -> None:
        watched.known(given.pool(), given.template(), WAITING)
        watched.commit(watched.step(WAITING, "EXPIRED", SCHEDULER))

    assert judged(story, start="11:01") == [NO_CAPACITY]


@pytest.mark.parametrize(
    ("phase", "by", "wrong"),
    [
        ("COLLECTING", LABLET_CONTROLLER, False),
        ("COLLECTING", "ada", False),
        ("COMPLETED", LABLET_CONTROLLER, True),
        ("STOPPING", "ada", True),
        ("COLLECTING", SCHEDULER, False),
    ],
)
def test_a_phase_changes_by_the_table(phase: str, by: str, wrong: bool) -> None:  # noqa: FBT001  a table
    def story(watched: Watched) -> None:
        watched.known(READY, RUNNING)
        watched.commit(watched.step(RUNNING, phase, by, outcome=P.COMPLETED))

    assert judged(story) == ([ILLEGAL] if wrong else [])


def test_what_a_step_needs_must_be_there() -> None:
    def story(watched: Watched) -> None:
        watched.known(READY, RUNNING)
        watched.commit(watched.step(RUNNING, "COLLECTING", LABLET_CONTROLLER))

    assert judged(story) == [ILLEGAL]


def test_a_final_phase_is_never_left_and_a_story_never_rewritten() -> None:
    over = given.with_fields(RUNNING, {"phase": P.COMPLETED, "history": given.history("RUNNING", "COMPLETED")})

    def back(watched: Watched) -> None:
        watched.known(given.pool(), given.template(), over)
        watched.commit(watched.step(over, "STOPPING", LABLET_CONTROLLER, outcome=P.FAILED))

    def rewritten(watched: Watched) -> None:
        watched.known(over)
        watched.commit(given.with_fields(over, {"history": given.history("PENDING", "COMPLETED")}))

    def silent(watched: Watched) -> None:
        watched.known(READY, RUNNING)
        watched.commit(given.with_fields(RUNNING, {"phase": P.STOPPING, "outcome": P.FAILED}))

    assert judged(back, start="10:00") == [ILLEGAL]
    assert judged(rewritten, start="10:00") == [ILLEGAL]
    assert judged(silent) == [ILLEGAL]


def test_whoever_does_not_lead_writes_nothing_as_a_controller() -> None:
    def step(watched: Watched, host: str) -> None:
        watched.known(READY, RUNNING)
        watched.commit(watched.step(RUNNING, "COLLECTING", LABLET_CONTROLLER, outcome=P.COMPLETED), host=host)

    def report(watched: Watched, host: str) -> None:
        watched.known(READY)
        watched.commit(given.with_fields(READY, {"last_error": "odd"}), host=host)

    def made(watched: Watched, host: str) -> None:
        watched.commit(given.worker(), also=[watched.audit(POOL_CONTROLLER, Role.SERVICE)], host=host)

    for story in (step, report, made):
        assert judged(lambda watched, story=story: story(watched, OTHER)) == [DEPOSED]  # type: ignore[misc]  # bound now
        assert judged(lambda watched, story=story: story(watched, LEADER)) == []  # type: ignore[misc]  # likewise


def test_a_worker_is_not_paused_under_a_running_session() -> None:
    def story(watched: Watched, *busy: LabletSession) -> None:
        watched.known(READY, *busy)
        watched.commit(watched.step(READY, "STOPPING", WORKER_CONTROLLER))

    assert judged(lambda watched: story(watched, RUNNING)) == [TAKEN]
    assert judged(story) == []


def test_a_drain_ends_sessions_after_its_deadline_and_its_warning() -> None:
    draining = given.with_fields(READY, {"phase": WorkerPhase.DRAINING, "drain_deadline_at": given.moment("10:00")})

    def story(watched: Watched, *, warned: bool) -> None:
        watched.known(draining, RUNNING)
        if warned:
            watched.witness.seen.warned["uid-w1", DRAIN_WARNING] = given.moment("09:45")
        watched.commit(watched.step(RUNNING, "COLLECTING", WORKER_CONTROLLER, outcome=P.TERMINATED))

    assert judged(lambda watched: story(watched, warned=True), start="10:01") == []
    assert judged(lambda watched: story(watched, warned=False), start="10:01") == [TAKEN]
    assert judged(lambda watched: story(watched, warned=True), start="09:59") == [TAKEN]


def test_a_wish_is_not_put_back() -> None:
    longer = given.with_fields(RUNNING, {"timeslot_end": given.moment("12:00"), "generation": 2})

    def story(watched: Watched) -> None:
        watched.known(READY, longer)
        watched.commit(given.with_fields(RUNNING, {"generation": 2, "observation_count": 1}))

    assert judged(story) == [LOST]


@pytest.mark.parametrize(("times", "wrong"), [(MOST_CHANGES - 2, False), (MOST_CHANGES, True)])
def test_nobody_changes_an_object_to_and_fro(times: int, wrong: bool) -> None:  # noqa: FBT001  a table
    def story(watched: Watched) -> None:
        watched.known(WAITING)
        for number in range(times):
            watched.commit(given.with_fields(WAITING, {"last_error": f"{number % 2}"}))

    assert (RESTLESS in judged(story)) is wrong


def test_nothing_goes_without_a_reason() -> None:
    stopping = given.with_fields(RUNNING, {"phase": P.STOPPING})

    def story(watched: Watched, session: LabletSession) -> None:
        watched.known(session)
        watched.commit(gone=[session])

    unwanted = given.with_fields(RUNNING, {"deletion_timestamp": given.moment("07:00")})
    wanted = given.with_fields(stopping, {"deletion_timestamp": given.moment("07:00")})
    assert judged(lambda watched: story(watched, stopping)) == [LOST]
    assert judged(lambda watched: story(watched, unwanted)) == [LOST]
    assert judged(lambda watched: story(watched, wanted)) == []


def test_what_somebody_was_told_is_so() -> None:
    told = given.session(generation=2, resource_version=2)

    def story(watched: Watched, *known: LabletSession) -> None:
        watched.known(*known)
        watched.witness.record_acknowledged(told, "ada booked it")

    def removed(watched: Watched) -> None:
        watched.known(told)
        watched.witness.record_acknowledged(told, "ada cancelled it", removed=True)

    assert judged(story) == [LOST]
    assert judged(lambda watched: story(watched, given.with_fields(told, {"generation": 1}))) == [LOST]
    assert judged(lambda watched: story(watched, told)) == []
    assert judged(removed) == [LOST]


def test_a_change_of_phase_is_told_with_it() -> None:
    def story(watched: Watched, *, untold: bool) -> None:
        watched.known(READY, RUNNING)
        after = watched.step(RUNNING, "COLLECTING", LABLET_CONTROLLER, outcome=P.COMPLETED)
        watched.commit(after, untold=untold)

    assert judged(lambda watched: story(watched, untold=True)) == [GAP]
    assert judged(lambda watched: story(watched, untold=False)) == []


def test_a_listener_hears_each_event_of_its_own_once() -> None:
    ada, staff = Caller(name="ada", role=Role.USER), Caller(name="otto", role=Role.ADMIN)

    def story(watched: Watched) -> None:
        soon = given.session(timeslot_start=None, timeslot_end=None, duration_minutes=60)
        watched.commit(given.with_fields(soon, {"owner": "ada"}), host=None)
        watched.commit(second(soon, owner="bob"), host=None)
        events = watched.witness.events
        mine, everything = [(3, 0)], [(3, 0), (4, 0)]

        def wrong(caller: Caller, heard: list[tuple[int, int]]) -> bool:
            return bool(heard_each_once(caller, heard, events, after=(0, 0), until=(9, 0)))

        assert not wrong(ada, mine)
        assert not wrong(staff, everything)
        assert wrong(ada, [])
        assert wrong(ada, everything)
        assert wrong(staff, [(3, 0), (3, 0), (4, 0)])
        assert wrong(staff, [(4, 0), (3, 0)])

    assert judged(story) == []


def test_a_person_sees_and_touches_their_own_only() -> None:
    def touched(watched: Watched, who: str, role: Role) -> None:
        watched.known(READY, RUNNING)
        changed = given.with_fields(RUNNING, {"timeslot_end": given.moment("10:00"), "generation": 1})
        watched.commit(changed, also=[watched.audit(who, role)])

    def shown(watched: Watched, who: str) -> None:
        watched.witness.check_shown(Caller(name=who, role=Role.USER), [RUNNING])

    assert judged(lambda watched: touched(watched, "bob", Role.USER)) == [ANOTHERS]
    assert judged(lambda watched: touched(watched, "ada", Role.USER)) == []
    assert judged(lambda watched: touched(watched, "otto", Role.OPERATOR)) == []
    assert judged(lambda watched: shown(watched, "bob")) == [ANOTHERS]
    assert judged(lambda watched: shown(watched, "ada")) == []


def test_a_secret_is_found_wherever_it_comes_out() -> None:
    def stored(watched: Watched) -> None:
        watched.commit(given.worker(annotations={"note": f"it is {SECRET}"}), host=None)

    assert judged(stored) == [LEAK]
    assert judged(lambda watched: watched.witness.tell(f"refused: {SECRET}")) == [LEAK]
    assert judged(lambda watched: watched.witness.check_log_line(f"signed in with {SECRET}")) == [LEAK]
    assert judged(lambda watched: watched.witness.check_log_line("signed in with ***")) == []


def test_no_finding_repeats_the_secret() -> None:
    async def life() -> str:
        watched = Watched()
        watched.witness.check_log_line(f"signed in with {SECRET}")
        return msgspec.json.encode([one.text for one in watched.witness.violations]).decode()

    assert SECRET not in run(life)
