"""What a pool needs next: which seats get a worker, which workers go, and what is left alone."""

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given as example
from hypothesis import strategies as st

from harness import given
from lcm.controllers.pool.demand import LINGER_TIME, PoolPlan, SeatTimelines, plan
from lcm.controllers.pool.effects import seat_worker
from lcm.controllers.pool.index import PoolClaims, SeatClaim
from lcm.controllers.pool.view import POOL_LABEL, SEAT_LABEL, SMALL_LABEL, PoolView
from lcm.model.base.capacity import Amount, Claim
from lcm.model.base.resource import Owner, PhaseChange
from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.pool import FilledSeat, LabWorkerPool, PoolPhase, ScalingPolicy, SmallRun
from lcm.model.kinds.worker import LabWorker, Remedy, WorkerPhase
from lcm.placement.claims import Terms
from lcm.placement.request import HeldClaim
from lcm.placement.small_runs import SmallerType

NOW = given.moment("08:00")
OWNER = Owner(kind="LabWorkerPool", name="ccna", uid="uid-ccna")
P = WorkerPhase


def worker(number: int, *, seat: int | None = None, name: str = "", **fields: Any) -> LabWorker:
    """Return a worker that the pool made for a seat."""
    fields = {"phase": P.READY, "owner": OWNER, "created_at": NOW} | fields
    labels = {SEAT_LABEL: str(seat or number), POOL_LABEL: "ccna"}
    return given.worker(name=name or f"w{number}", uid=f"uid-{number}", labels=labels, **fields)


def claim(number: int, start: str, end: str, *, day: int = 0, name: str = "", on: str | None = None) -> SeatClaim:
    span = Claim(start=given.moment(start, day=day), end=given.moment(end, day=day), need=given.amount())
    return SeatClaim(number, HeldClaim(f"default/{name or f's{number}'}", span), on)


def pool(*workers: LabWorker, **fields: Any) -> LabWorkerPool:
    """Return a pool whose seats these workers fill, the first the first."""
    seats = tuple(
        FilledSeat(number=number, worker_id=one.metadata.uid, worker_name=one.metadata.name)
        for number, one in enumerate(workers, start=1)
    )
    return given.pool(**{"min_workers": 0, "seats": seats, "phase": PoolPhase.READY} | fields)


def look(*claims: SeatClaim, seated: tuple[LabWorker, ...] = (), now: datetime = NOW, **fields: Any) -> PoolPlan:
    """Decide for a pool; workers beyond those that are seated fill no seat."""
    others: tuple[LabWorker, ...] = fields.pop("others", ())
    strangers = fields.pop("strangers", ())
    sessions = fields.pop("sessions", {})
    mixed = fields.pop("mixed", frozenset())
    return plan(
        PoolView(
            pool=pool(*seated, **fields),
            template=given.template(),
            now=now,
            terms=Terms(),
            claims=PoolClaims(claims),
            workers=[*seated, *others],
            strangers=strangers,
            sessions=sessions,
            mixed=mixed,
        )
    )


def said(made: PoolPlan) -> dict[str, object]:
    """Return what a plan does, without what it does not."""
    every = {
        "launch": made.launch,
        "resume": sorted(made.resume),
        "let go": sorted(made.let_go),
        "pause": sorted(made.pause),
        "retire": [one.metadata.name for one in made.retire],
        "remove": [one.metadata.name for one in made.remove],
    }
    return {name: value for name, value in every.items() if value}


def test_a_booked_seat_is_opened_one_lead_ahead_and_not_earlier() -> None:
    booked = claim(1, "09:00", "11:00")
    assert said(look(booked, now=given.moment("08:34:59"))) == {}
    assert said(look(booked, now=given.moment("08:35"))) == {"launch": [1]}


def test_the_next_look_comes_when_the_demand_changes() -> None:
    booked = claim(1, "09:00", "11:00")
    assert look(booked).changes_at == given.moment("08:35")
    assert look(booked, now=given.moment("08:35")).changes_at == given.moment("11:00")
    assert look().changes_at is None


def test_a_seat_that_has_a_worker_gets_no_other() -> None:
    for phase in (P.PENDING, P.PROVISIONING_EC2, P.STARTING, P.READY_UNLICENSED, P.LICENSING, P.READY, P.ACTIVE):
        assert said(look(claim(1, "08:10", "11:00"), seated=(worker(1, phase=phase),))) == {}


def test_the_minimum_always_has_workers() -> None:
    assert said(look(min_workers=2)) == {"launch": [1, 2]}
    assert said(look(seated=(worker(1), worker(2)), min_workers=2)) == {}


def test_a_worker_that_was_made_and_not_written_down_is_found() -> None:
    made = look(claim(1, "08:10", "11:00"), others=(worker(7, seat=1),))
    assert said(made) == {}
    assert made.seats[1].metadata.name == "w7"


def test_somebody_elses_worker_with_the_label_is_not() -> None:
    stranger = worker(7, seat=1, owner=None)
    assert said(look(claim(1, "08:10", "11:00"), others=(stranger,))) == {"launch": [1]}


@pytest.mark.parametrize("phase", [P.STOPPED, P.STOPPING, P.READY])
def test_a_paused_worker_is_resumed_when_its_seat_is_needed(phase: WorkerPhase) -> None:
    paused = worker(1, phase=phase, wanted_state="stopped")
    assert said(look(claim(1, "08:10", "11:00"), seated=(paused,))) == {"resume": [1]}
    assert said(look(claim(1, "09:10", "11:00"), seated=(paused,))) == {}


LEAVING = {
    "drained": {"phase": P.DRAINING, "wanted_state": "stopped"},
    "deleted": {"phase": P.UNLICENSING, "deletion_timestamp": NOW},
    "failed for good": {"phase": P.FAILED, "failure": "LaunchTimeout", "last_error": "no"},
    "given up": {"phase": P.STOPPED, "failure": "CmlNotUp", "wanted_state": "stopped"},
    "terminated by somebody": {"phase": P.TERMINATED},
    "stopped by hand after it failed": {
        "phase": P.FAILED,
        "failure": "CmlNotUp",
        "retry_at": NOW - timedelta(hours=1),
    },
}


@pytest.mark.parametrize("fields", LEAVING.values(), ids=LEAVING.keys())
def test_a_worker_that_leaves_is_replaced_at_once_if_its_seat_is_needed(fields: dict[str, Any]) -> None:
    made = look(claim(1, "08:10", "11:00"), seated=(worker(1, **fields),))
    assert made.launch == [1]
    assert 1 not in made.seats


def test_a_worker_that_is_tried_again_is_waited_for() -> None:
    again = worker(1, phase=P.FAILED, failure="CmlNotUp", retry_at=NOW + timedelta(minutes=4))
    replaced = worker(1, phase=P.TERMINATING_EC2, failure="Unhealthy", remedy=Remedy.REPLACE)
    changed = worker(1, phase=P.FAILED, failure="CmlNotUp", generation=2, observed_generation=1)
    for one in (again, replaced, changed):
        assert said(look(claim(1, "08:10", "11:00"), seated=(one,))) == {}


def test_what_failed_for_good_goes_when_it_is_replaced() -> None:
    lost = worker(1, phase=P.FAILED, failure="LaunchTimeout")
    assert said(look(claim(1, "08:10", "11:00"), seated=(lost,))) == {"launch": [1], "remove": ["w1"]}
    assert said(look(claim(1, "08:10", "11:00"), others=(lost,))) == {"launch": [1], "remove": ["w1"]}


def test_a_drained_worker_is_not_replaced_for_the_sessions_that_are_on_it() -> None:
    drained = worker(1, phase=P.DRAINING, wanted_state="stopped")
    running = claim(1, "07:00", "10:00", on="uid-1")
    assert said(look(running, seated=(drained,), sessions={"uid-1": 1})) == {}
    other = claim(1, "08:20", "10:00", name="s2")
    assert said(look(running, other, seated=(drained,), sessions={"uid-1": 1})) == {"launch": [1]}


def test_the_session_of_a_worker_that_is_gone_needs_its_seat_again() -> None:
    assert said(look(claim(1, "07:00", "10:00", on="uid-gone"))) == {"launch": [1]}


def test_a_worker_is_let_go_in_two_looks() -> None:
    made = look(seated=(worker(1),))
    assert said(made) == {"let go": [1]}
    assert made.seats == {}
    assert said(look(others=(worker(1),))) == {"remove": ["w1"]}
    assert said(look(claim(1, "08:10", "11:00"), others=(worker(1),))) == {}


def test_a_worker_that_became_free_just_now_waits_a_minute_for_who_waits_for_it() -> None:
    left = PhaseChange(phase=P.READY, at=NOW, by="worker-controller", reason="no session is on it")
    free = worker(1, history=(left,))
    made = look(seated=(free,))
    assert (said(made), made.changes_at) == ({}, NOW + LINGER_TIME)
    assert sorted(look(seated=(free,), now=NOW + LINGER_TIME).let_go) == [1]


def test_a_worker_is_paused_if_its_next_claim_begins_soon_and_deleted_if_not() -> None:
    assert said(look(claim(1, "20:00", "21:00"), others=(worker(1),))) == {"pause": [1]}
    assert said(look(claim(1, "20:00:01", "21:00"), others=(worker(1),))) == {"remove": ["w1"]}


def test_a_paused_worker_whose_bookings_were_cancelled_is_deleted() -> None:
    paused = worker(1, phase=P.STOPPED, wanted_state="stopped")
    assert said(look(seated=(paused,))) == {"remove": ["w1"]}
    assert said(look(seated=(paused,), sessions={"uid-1": 1})) == {}
    assert said(look(claim(1, "19:00", "21:00"), seated=(paused,))) == {}
    assert look(claim(1, "19:00", "21:00"), others=(paused,)).seats[1] is paused


def test_a_worker_is_kept_through_a_gap_that_is_not_worth_a_stop() -> None:
    assert said(look(claim(1, "08:40", "11:00"), seated=(worker(1),))) == {}
    assert said(look(claim(1, "08:40:01", "11:00"), seated=(worker(1),))) == {"let go": [1]}


def test_a_session_that_overruns_its_claim_keeps_its_worker() -> None:
    late = claim(1, "06:00", "07:50", on="uid-1")
    made = look(late, seated=(worker(1),), sessions={"uid-1": 1})
    assert said(made) == {}
    assert made.notes == ["w1 is not released: sessions are still on it"]


def test_a_worker_that_a_session_came_onto_while_it_was_let_go_is_left_to_it_and_takes_no_more() -> None:
    on_it: dict[str, Any] = {"sessions": {"uid-1": 1}, "mixed": frozenset({"uid-1"})}
    assert said(look(others=(worker(1),), **on_it)) == {"retire": ["w1"]}
    booked = claim(1, "08:10", "11:00")
    assert said(look(booked, others=(worker(1),), **on_it)) == {"launch": [1], "retire": ["w1"]}
    retired = worker(1, phase=P.ACTIVE, wanted_state="stopped")
    assert said(look(booked, others=(retired,), **on_it)) == {"launch": [1]}
    assert said(look(booked, others=(retired,))) == {"resume": [1]}


def test_a_machine_with_foreign_labs_is_left_alone() -> None:
    used = worker(1, foreign=Amount(labs=2))
    for made in (look(seated=(used,)), look(others=(used,))):
        assert said(made) == {}
        assert made.notes == ["w1 is not released: 2 labs run on it that no session made"]


def test_a_second_worker_of_a_filled_seat_goes_unless_an_operator_stopped_it() -> None:
    booked = claim(1, "08:10", "11:00")
    undrained, drained = worker(2, seat=1), worker(2, seat=1, phase=P.STOPPED, wanted_state="stopped")
    assert said(look(booked, seated=(worker(1),), others=(undrained,))) == {"remove": ["w2"]}
    assert said(look(booked, seated=(worker(1),), others=(drained,))) == {}


def test_a_seat_beyond_the_pools_size_keeps_its_promise() -> None:
    assert said(look(claim(5, "08:10", "11:00"), max_workers=3)) == {"launch": [5]}


@pytest.mark.parametrize("policy", [ScalingPolicy.NONE, ScalingPolicy.CAPACITY_BASED, ScalingPolicy.LAB_COUNT_BASED])
def test_the_other_policies_take_existing_workers_into_their_seats(policy: ScalingPolicy) -> None:
    early, late = (given.worker(name=name, created_at=NOW + span) for name, span in _ages())
    made = look(strangers=(late, early), policy=policy)
    assert [(number, one.metadata.name) for number, one in made.seats.items()] == [(1, "early"), (2, "late")]
    assert said(made) == {}


def _ages() -> list[tuple[str, timedelta]]:
    return [("early", -timedelta(hours=1)), ("late", timedelta(0))]


def test_no_more_are_taken_than_the_pool_may_have_and_none_that_leaves() -> None:
    some = [given.worker(name=f"x{number}", uid=f"x{number}") for number in range(3)]
    drained = given.worker(name="a", phase=P.DRAINING)
    made = look(strangers=(drained, *some), policy=ScalingPolicy.NONE, max_workers=2)
    assert [one.metadata.name for one in made.seats.values()] == ["x0", "x1"]


def test_only_scheduled_and_hybrid_pools_leave_existing_workers_alone() -> None:
    for policy in (ScalingPolicy.SCHEDULED, ScalingPolicy.HYBRID):
        assert look(strangers=(given.worker(),), policy=policy).seats == {}


@pytest.mark.parametrize("policy", ScalingPolicy)
def test_what_is_promised_gets_its_worker_whatever_the_policy_became(policy: ScalingPolicy) -> None:
    booked = claim(2, "08:10", "11:00")
    assert said(look(booked, policy=policy)) == {"launch": [2]}
    lost = worker(1, seat=2, phase=P.FAILED, failure="LaunchFailed")
    again = look(claim(1, "08:10", "11:00"), seated=(lost,), policy=policy)
    assert (again.launch, [one.metadata.name for one in again.remove]) == ([1], ["w1"])


def test_a_worker_of_others_goes_first_to_a_seat_that_needs_one() -> None:
    theirs = given.worker(name="theirs", uid="uid-theirs")
    made = look(claim(2, "08:10", "11:00"), strangers=(theirs,), policy=ScalingPolicy.NONE)
    assert (said(made), list(made.seats)) == ({}, [2])


def test_a_pool_without_a_policy_gives_up_what_nobody_needs_and_resumes_for_a_promise() -> None:
    assert said(look(seated=(worker(1),), policy=ScalingPolicy.NONE, open_seats=())) == {"let go": [1]}
    paused = worker(1, phase=P.STOPPED, wanted_state="stopped")
    assert said(look(claim(1, "08:10", "11:00"), seated=(paused,), policy=ScalingPolicy.NONE)) == {"resume": [1]}


def test_every_policy_keeps_the_minimum() -> None:
    for policy in ScalingPolicy:
        assert said(look(policy=policy, min_workers=1)) == {"launch": [1]}


CLOSED = AllowedHours(start_hour=9, end_hour=18)


def test_outside_of_its_hours_the_minimum_is_stopped_and_what_was_promised_is_started() -> None:
    made = look(seated=(worker(1), worker(2)), min_workers=2, allowed_hours=CLOSED)
    assert (said(made), made.changes_at) == ({"let go": [1, 2]}, given.moment("09:00"))
    assert said(look(others=(worker(1),), min_workers=1, allowed_hours=CLOSED)) == {"pause": [1]}
    stopped = worker(1, phase=P.STOPPED, wanted_state="stopped")
    assert said(look(seated=(stopped,), min_workers=1, allowed_hours=CLOSED)) == {}
    assert said(look(seated=(stopped,), min_workers=1, allowed_hours=CLOSED, now=given.moment("09:00"))) == {
        "resume": [1]
    }
    assert said(look(claim(2, "08:10", "08:50"), min_workers=1, allowed_hours=CLOSED)) == {"launch": [2]}


def test_a_session_that_runs_past_the_hours_keeps_its_machine_until_it_ends() -> None:
    late = given.moment("19:00")
    on = claim(1, "17:00", "19:30", on="uid-1")
    for policy in ScalingPolicy:
        for sessions in ({"uid-1": 1}, {}):  # its claim keeps it as well as its presence
            made = look(
                on, seated=(worker(1),), policy=policy, min_workers=1, allowed_hours=CLOSED, now=late, sessions=sessions
            )
            assert {*said(made)} <= {"retire"}
            assert 1 in made.seats


def test_what_load_keeps_open_has_a_worker_and_what_it_no_longer_does_is_drained() -> None:
    two, busy = (worker(1), worker(2)), claim(2, "07:00", "11:00", on="uid-2")
    load: dict[str, Any] = {"policy": ScalingPolicy.CAPACITY_BASED, "min_workers": 1, "sessions": {"uid-2": 1}}
    assert said(look(open_seats=(2,), **load)) == {"launch": [1, 2]}
    assert said(look(busy, seated=two, open_seats=(2,), **load)) == {}
    assert said(look(busy, seated=two, open_seats=(), **load)) == {"retire": ["w2"]}
    drained = (worker(1), worker(2, wanted_state="stopped", phase=P.ACTIVE))
    assert said(look(busy, seated=drained, open_seats=(), **load)) == {}
    assert said(look(busy, seated=drained, open_seats=(2,), **load)) == {"resume": [2]}
    # A promise that is due on the same planned worker cancels the drain.
    due = claim(2, "08:20", "10:00", name="booked")
    assert said(look(busy, due, seated=drained, open_seats=(), **load)) == {"resume": [2]}


def test_under_a_policy_that_follows_bookings_a_busy_worker_is_not_drained() -> None:
    busy = claim(1, "07:00", "11:00", on="uid-1")
    assert (
        said(look(busy, seated=(worker(1),), policy=ScalingPolicy.HYBRID, open_seats=(), sessions={"uid-1": 1})) == {}
    )


def test_before_the_first_decision_what_is_there_stays() -> None:
    made = look(seated=(worker(1), worker(2)), policy=ScalingPolicy.CAPACITY_BASED, min_workers=1)
    assert said(made) == {}
    assert made.open == frozenset({1, 2})


def test_a_worker_nobody_needs_is_kept_stopped_up_to_the_warm_tier_and_resumed_before_one_is_launched() -> None:
    warm: dict[str, Any] = {"warm_workers": 1}
    free = (worker(1, lab_track="ccna"), worker(2, lab_track="ccna"))
    assert said(look(others=free, **warm)) == {"pause": [1], "remove": ["w2"]}
    stopped = [worker(number, phase=P.STOPPED, wanted_state="stopped", lab_track="ccna") for number in (1, 2)]
    assert said(look(seated=tuple(stopped), **warm)) == {"remove": ["w1"]}
    made = look(claim(4, "08:10", "11:00"), seated=tuple(stopped), **warm)
    assert (said(made), made.seats[4].metadata.name) == ({"resume": [4]}, "w1")
    both = look(claim(3, "08:10", "11:00"), claim(4, "08:10", "11:00"), seated=(stopped[0],), **warm)
    assert said(both) == {"launch": [4], "resume": [3]}
    other = worker(1, phase=P.STOPPED, wanted_state="stopped", lab_track="ccna", aws={"instance_type": "m5.large"})
    assert said(look(claim(4, "08:10", "11:00"), seated=(other,), **warm)) == {"launch": [4], "remove": ["w1"]}


def test_a_pool_that_is_to_go_serves_what_is_booked_and_nothing_else() -> None:
    booked = claim(1, "08:10", "11:00")
    made = look(booked, seated=(worker(1), worker(2)), phase=PoolPhase.DRAINING, min_workers=2)
    assert said(made) == {"let go": [2]}
    assert said(look(booked, phase=PoolPhase.DRAINING)) == {"launch": [1]}


def test_a_pool_that_ends_ends_its_own_workers_and_leaves_the_others() -> None:
    adopted = given.worker(name="theirs", uid="uid-theirs")
    gone = worker(3, deletion_timestamp=NOW)
    made = look(seated=(worker(1), adopted), others=(worker(2), gone), phase=PoolPhase.TERMINATING)
    assert said(made) == {"remove": ["w1", "w2"]}
    assert made.seats == {}


def test_a_new_worker_is_made_as_the_template_says() -> None:
    template = given.template(name_prefix="exam", labels={"team": "exams"}, annotations={"note": "metal"})
    view = PoolView(pool(), template, NOW, Terms())
    made = seat_worker(view, 3, {"exam-3", "exam-3-2"}.__contains__)
    assert made.metadata.name == "exam-3-3"
    assert made.metadata.labels == {"team": "exams", "lcm/pool": "ccna", "lcm/seat": "3"}
    assert made.metadata.annotations == {"note": "metal"}
    assert made.metadata.owner == OWNER
    assert (made.spec.lab_track, made.spec.wanted_state) == ("ccna", "running")
    template = given.template(name_prefix="x" * 47 + "-" + "y" * 15)
    long = seat_worker(PoolView(pool(), template, NOW, Terms()), 1000, lambda _: False)
    assert long.metadata.name == "x" * 47 + "-1000"


_claims = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 46), st.integers(1, 10), st.integers(0, 7)), max_size=12)


@example(st.lists(_claims, min_size=1, max_size=4), st.integers(0, 60))
def test_timelines_that_are_changed_say_the_same_as_new_ones(books: list[list[Any]], quarter: int) -> None:
    timelines, followed = SeatTimelines(), PoolClaims()
    for book in books:
        named = {name: (number, start, length) for number, start, length, name in book}
        claims = {
            f"default/s{name}": SeatClaim(number, HeldClaim(f"default/s{name}", _span(start, length)))
            for name, (number, start, length) in named.items()
        }
        for holder in [*followed.holders(), *claims]:
            followed.put(holder, claims.get(holder))
        now = NOW + quarter * timedelta(minutes=15)
        view = PoolView(pool(max_workers=4), given.template(), now, Terms(), followed)
        for _ in timelines.update(view):
            pass
        again, new = plan(view, timelines.seats), plan(replace(view, claims=PoolClaims(claims.values())))
        assert (again.next, again.launch, again.changes_at) == (new.next, new.launch, new.changes_at)


def _span(start: int, length: int) -> Claim:
    begin = NOW + start * timedelta(minutes=15)
    return Claim(start=begin, end=begin + length * timedelta(minutes=15), need=given.amount())


RUN = SmallRun(number=1, instance_type="half", until=given.moment("14:00"))
HALF = SmallerType("half", given.machine(cpu_millis=24_000), Decimal(1))


def look_small(*claims: SeatClaim, runs: tuple[SmallRun, ...] = (), workers: tuple[LabWorker, ...] = ()) -> PoolPlan:
    """Decide for a pool that may have smaller machines, and whose workers fill no seat."""
    found = pool(small_runs=runs, max_workers=3)
    terms = Terms()
    return plan(PoolView(found, given.template(), NOW, terms, PoolClaims(claims), workers, smaller=(HALF,)))


def test_a_smaller_machine_is_chosen_in_one_look_and_launched_in_the_next() -> None:
    first = look_small(claim(1, "08:20", "12:00"))
    assert (said(first), first.chosen, first.small) == ({}, {1}, {1: RUN})
    second = look_small(claim(1, "08:20", "12:00"), runs=(RUN,))
    assert (said(second), second.chosen, second.small) == ({"launch": [1]}, set(), {1: RUN})


def test_a_choice_is_made_again_if_something_came_meanwhile_that_does_not_fit() -> None:
    large = [claim(1, "08:30", "11:00", name=f"more{number}") for number in range(6)]
    made = look_small(claim(1, "08:20", "12:00"), *large, runs=(RUN,))
    assert (said(made), made.small) == ({"launch": [1]}, {})
    late = look_small(claim(1, "08:20", "12:00"), claim(1, "12:00", "15:00", name="late"), runs=(RUN,))
    assert (said(late), late.chosen) == ({}, {1})
    assert late.small[1].until == given.moment("17:00")


def test_a_smaller_machine_fills_only_the_seat_for_which_it_was_chosen() -> None:
    small = worker(1)
    small = msgspec.structs.replace(
        small, metadata=msgspec.structs.replace(small.metadata, labels={**small.metadata.labels, SMALL_LABEL: "half"})
    )
    there = look_small(claim(1, "08:20", "12:00"), runs=(RUN,), workers=(small,))
    assert (said(there), list(there.seats)) == ({}, [1])
    other = msgspec.structs.replace(RUN, instance_type="third")
    assert said(look_small(claim(1, "08:20", "12:00"), runs=(other,), workers=(small,)))["remove"] == ["w1"]
    assert said(look_small(claim(1, "08:20", "12:00"), workers=(small,)))["remove"] == ["w1"]


def test_after_its_run_a_smaller_machine_makes_way_even_if_its_seat_is_claimed_soon() -> None:
    small = worker(1)
    labels = {**small.metadata.labels, SMALL_LABEL: "half"}
    small = msgspec.structs.replace(small, metadata=msgspec.structs.replace(small.metadata, labels=labels))
    over = msgspec.structs.replace(RUN, until=given.moment("07:50"))
    soon = claim(1, "08:40", "10:00")
    made = plan(
        PoolView(
            pool(small, small_runs=(over,)),
            given.template(),
            NOW,
            Terms(),
            PoolClaims([soon]),
            [small],
            smaller=(HALF,),
        )
    )
    assert (sorted(made.let_go), made.small) == ([1], {})
