"""What the lablet controller decides, for every phase and all that may be seen in it."""

import dataclasses
from collections.abc import Iterator
from datetime import timedelta
from itertools import product
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from harness import given
from lcm.controllers.runtime.lifecycle import Do, Failure, Report, Unknown, Wait
from lcm.controllers.runtime.reconcile import DONE, requeue_at
from lcm.controllers.session.lifecycle import decide, react, rest_of
from lcm.controllers.session.progress import StepName, boot_progress, restart_count, title_of, usual_start
from lcm.controllers.session.view import (
    Collect,
    Decision,
    Discard,
    Import,
    Observe,
    Prepare,
    Remove,
    Restart,
    SessionView,
    Start,
)
from lcm.model.base.capacity import Amount
from lcm.model.base.machine import LABLET_CONTROLLER
from lcm.model.base.resource import Condition, Truth, find_condition
from lcm.model.kinds.definition import LabletDefinition, PortUse
from lcm.model.kinds.saved_lab import ObservationRequest
from lcm.model.kinds.session import (
    CLEAN_UP_TIME,
    SESSION_MACHINE,
    LabletSession,
    Progress,
    Seat,
    SessionCondition,
    SessionPhase,
)
from lcm.model.kinds.worker import LabWorker, WorkerCondition, WorkerPhase
from lcm.placement.claims import Terms, asap_claim
from lcm.providers.protocols.artifacts import StoredArtifact
from lcm.providers.protocols.labhost import LabState, LabSummary

_P = SessionPhase
NOW = given.moment("10:00")
NINE = given.moment("09:00")
MINUTE = timedelta(minutes=1)
RUNS = LabSummary(lab_id="lab-1", title="t", state=LabState.STARTED, node_count=2)
HALTED = replace(RUNS, state=LabState.STOPPED)
FRESH = replace(RUNS, state=LabState.DEFINED)
OTHER = replace(RUNS, lab_id="lab-2")
SAVED = StoredArtifact(uri="artifact://tmp/x", size_bytes=3, stored_at=NOW, digest="sha256:" + "0" * 64)
DEFINITION = given.definition()


def worker(phase: WorkerPhase = WorkerPhase.READY, **fields: object) -> LabWorker:
    accepts = Condition(type=WorkerCondition.ACCEPTING_LABS, status=Truth.TRUE, last_transition_at=NINE)
    ec2 = {"instance_id": "i-1", "public_ip": "192.0.2.7", "private_ip": "10.0.0.7"}
    return given.worker(**{"phase": phase, "conditions": (accepts,), "ec2": ec2} | fields)


def session(phase: SessionPhase, *, since: Any = NOW - MINUTE, **fields: Any) -> LabletSession:
    story = tuple(replace(line, at=since) for line in given.history("PENDING", phase))
    usual: dict[str, Any] = {
        "phase": phase,
        "history": story,
        "claim": given.claim("08:45", "11:10"),
        "worker_id": "uid-w1",
        "worker_name": "w1",
        "allocated_ports": {"PC_serial": 6001},
        "ends_at": given.moment("11:00"),
    }
    if phase in (_P.COLLECTING, _P.STOPPING):
        usual["outcome"] = _P.COMPLETED
    if phase in (_P.RUNNING, _P.COLLECTING, _P.STOPPING):
        usual["cml_lab_id"] = "lab-1"
    return given.session(**usual | fields)


def view(phase: SessionPhase, *, fields: dict[str, Any] | None = None, **seen: Any) -> SessionView:
    usual: dict[str, Any] = {"definition": DEFINITION, "worker": worker()}
    return SessionView(session(phase, **fields or {}), NOW, **usual | seen)


def moves_to(decision: Decision) -> SessionPhase:
    assert isinstance(decision, Report), decision
    return decision.status.phase


ANSWERS = (None, SAVED, RUNS, Failure("Refused", "no"), Failure("TopologyRefused", "no", hopeless=True))


def every_view() -> Iterator[SessionView]:
    steps = (None, Progress(step=StepName.IMPORT, percent=1, message="", at=NINE))
    labs = (Unknown("silent"), None, RUNS, HALTED, FRESH, OTHER)
    workers = (None, worker(), worker(WorkerPhase.FAILED), worker(WorkerPhase.TERMINATED), worker(conditions=()))
    since = (NOW, NOW - 6 * MINUTE, NOW - 16 * MINUTE)
    outcomes = (None, _P.COMPLETED, _P.FAILED, _P.TERMINATED, _P.EXPIRED)
    ends = (None, given.moment("09:59"), given.moment("10:05"), given.moment("11:00"))
    for phase in _P:
        if phase in SESSION_MACHINE.final:
            continue
        for lab, host, begun, outcome, end in product(labs, workers, since, outcomes, ends):
            if phase is _P.STOPPING and outcome is None:
                continue
            fields: dict[str, Any] = {"since": begun, "outcome": outcome, "ends_at": end}
            for converged, ahead in ((True, 0), (False, 4)):
                fields["progress"] = steps[converged and phase is _P.INSTANTIATING and lab is None]
                yield view(phase, fields=fields, lab=lab, worker=host, converged=converged, ahead=ahead)


def test_every_move_is_in_the_table_and_every_move_of_the_table_is_made() -> None:
    made = set()
    for seen in every_view():
        decision = decide(seen)
        several = [decision]
        if isinstance(decision, Do):
            several = [react(seen, decision.effect, answer) for answer in ANSWERS]
        for one in several:
            if isinstance(one, Do):
                assert type(decision) is Do
                assert (type(decision.effect), type(one.effect)) in {(Prepare, Import), (Import, Start)}
            if isinstance(one, Report) and one.status.phase is not seen.status.phase:
                SESSION_MACHINE.check_step(seen.status.phase, one.status.phase, by=LABLET_CONTROLLER, status=one.status)
                made.add((seen.status.phase, one.status.phase))
    table = {(step.source, step.target) for step in SESSION_MACHINE.steps if step.by == LABLET_CONTROLLER}
    assert made == table


def test_it_begins_at_its_time_on_a_worker_that_serves() -> None:
    assert moves_to(decide(view(_P.SCHEDULED))) is _P.INSTANTIATING
    early = view(_P.SCHEDULED, fields={"claim": given.claim("10:30", "12:00")})
    assert decide(early) == Wait(given.moment("10:30"))
    assert decide(view(_P.SCHEDULED, worker=worker(conditions=()))) == Wait()
    assert decide(view(_P.SCHEDULED, fields={"worker_id": None})) == Wait()
    assert isinstance(decide(view(_P.SCHEDULED, ahead=4)), Wait)


def test_nothing_is_decided_of_what_rests_until_it_wakes() -> None:
    resting = {_P.PENDING, _P.RUNNING, *SESSION_MACHINE.final}
    assert {phase for phase in _P if rest_of(session(phase), NOW)} == resting
    assert rest_of(session(_P.SCHEDULED, worker_id=None), NOW) == DONE
    early = {"claim": given.claim("10:30", "12:00")}
    assert rest_of(session(_P.SCHEDULED, **early), NOW) == requeue_at(given.moment("10:30"), NOW)
    assert decide(view(_P.SCHEDULED, worker=worker(conditions=()), fields=early)) == Wait(given.moment("10:30"))


def test_what_is_there_says_which_step_is_next() -> None:
    def at(step: StepName) -> Progress:
        return Progress(step=step, percent=1, message="", at=NINE)

    assert decide(view(_P.INSTANTIATING, lab=None, fields={"progress": at(StepName.FETCH)})) == Do(Prepare())
    assert decide(view(_P.INSTANTIATING, lab=None, fields={"progress": at(StepName.IMPORT)})) == Do(Import())
    assert decide(view(_P.INSTANTIATING, lab=None, fields={"progress": at(StepName.CONVERGE)})) == Do(Prepare())
    assert decide(view(_P.INSTANTIATING, lab=FRESH)) == Do(Start("lab-1"))
    assert isinstance(decide(view(_P.INSTANTIATING, lab=RUNS, converged=False)), Wait)
    assert isinstance(decide(view(_P.INSTANTIATING, lab=Unknown("silent"))), Wait)


def test_silence_is_never_taken_for_a_lab_that_is_gone() -> None:
    silent = Unknown("silent")
    for phase in (_P.INSTANTIATING, _P.RUNNING, _P.COLLECTING, _P.STOPPING):
        assert isinstance(decide(view(phase, lab=silent)), Wait)


def test_a_running_session_has_addresses_and_an_end() -> None:
    ports = {"PC_serial": 6001, "PC_vnc": 6002, "R1_pat_udp_161": 6003, "WORD": 6004}
    template = {
        "PC_serial": {"kind": "serial", "node": "PC"},
        "PC_vnc": {"kind": "vnc", "node": "PC"},
        "R1_pat_udp_161": {"kind": "pat", "node": "R1", "protocol": "udp", "inside": 161},
        "WORD": {"kind": "placeholder"},
    }
    lab = msgspec.convert(
        msgspec.to_builtins(DEFINITION) | {"spec": msgspec.to_builtins(DEFINITION.spec) | {"port_template": template}},
        LabletDefinition,
    )
    fields = {"allocated_ports": ports}
    decision = decide(view(_P.INSTANTIATING, lab=RUNS, converged=True, definition=lab, fields=fields))
    assert isinstance(decision, Report)
    assert decision.status.access_urls == {
        "PC_serial": "telnet://192.0.2.7:6001",
        "PC_vnc": "vnc://192.0.2.7:6002",
        "R1_pat_udp_161": "udp://192.0.2.7:6003",
    }
    assert decision.status.access_url == "telnet://192.0.2.7:6001"
    assert decision.status.ends_at == given.moment("11:00")


def test_as_soon_as_possible_lasts_as_long_as_asked_for_and_as_is_claimed() -> None:
    def end(minutes: int) -> Any:
        fields = {"timeslot_start": None, "timeslot_end": None, "duration_minutes": minutes, "ends_at": None}
        decision = decide(view(_P.INSTANTIATING, lab=RUNS, converged=True, fields=fields))
        assert isinstance(decision, Report)
        return decision.status.ends_at

    assert end(30) == given.moment("10:30")
    assert end(300) == given.moment("11:00"), "ten minutes before the claim's end it is cleaned up"


def test_a_quick_step_is_followed_by_the_next_and_a_slow_one_is_told_first() -> None:
    quick, slow = ({"progress": at_fetch(seconds)} for seconds in (1, 2))
    first, other = (view(_P.INSTANTIATING, lab=None, fields=fields) for fields in (quick, slow))
    assert [_follows(react(one, Prepare(), SAVED)) for one in (first, other)] == [Do(Import()), StepName.IMPORT]
    assert [_follows(react(one, Import(), FRESH)) for one in (first, other)] == [Do(Start("lab-1")), StepName.START]
    runs = react(view(_P.INSTANTIATING, lab=None, fields=quick), Import(), RUNS)
    assert _follows(runs) == StepName.START, "what runs is not started again"


def test_what_is_refused_after_a_quick_step_is_told_with_how_far_it_came() -> None:
    seen = view(_P.INSTANTIATING, lab=None, fields={"progress": at_fetch(1), "cml_lab_id": None})
    for effect, step, lab in ((Import(), StepName.IMPORT, None), (Start("lab-1"), StepName.START, "lab-1")):
        noted = react(seen, effect, Failure("NoRoom", "no licence left"))
        assert _follows(noted) == step
        assert isinstance(noted, Report)
        assert (noted.status.last_error, noted.status.cml_lab_id) == ("no licence left", lab)


def at_fetch(seconds: int) -> Progress:
    """Return the progress of a session that began so many seconds ago."""
    return Progress(step=StepName.FETCH, percent=5, message="", at=NOW - timedelta(seconds=seconds))


def _follows(decision: Decision) -> object:
    """Return what follows: an effect, or the step that is reported."""
    assert not isinstance(decision, Wait)
    return decision if isinstance(decision, Do) else decision.status.progress and decision.status.progress.step


def test_what_no_worker_could_run_is_not_tried_again() -> None:
    seen = view(_P.INSTANTIATING, lab=None)
    failed = react(seen, Prepare(), Failure("TopologyRefused", "line 3: bad", hopeless=True))
    assert isinstance(failed, Report)
    assert (failed.status.phase, failed.status.outcome) == (_P.STOPPING, _P.FAILED)
    assert "line 3" in failed.status.last_error
    after = SessionView(replace(seen.session, status=failed.status), NOW, worker=worker(), lab=None)
    assert moves_to(react(after, Discard(), None)) is _P.FAILED


def test_what_is_refused_is_attempted_for_a_while_then_elsewhere() -> None:
    no = Failure("NoRoom", "no licence left")
    noted = react(view(_P.INSTANTIATING, lab=FRESH), Start("lab-1"), no)
    assert isinstance(noted, Report)
    assert noted.status.last_error == "no licence left"
    known = view(_P.INSTANTIATING, lab=FRESH, fields={"last_error": "no licence left"})
    assert isinstance(react(known, Start("lab-1"), no), Wait)
    late = view(_P.INSTANTIATING, lab=FRESH, fields={"since": NOW - 3 * MINUTE})
    assert moves_to(react(late, Start("lab-1"), no)) is _P.STOPPING


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({}, _P.PENDING),
        ({"retry_count": 3}, _P.PENDING),
        ({"retry_count": 4}, _P.FAILED),
        ({"ends_at": given.moment("10:09")}, _P.FAILED),
        ({"ends_at": given.moment("10:10")}, _P.PENDING),
        ({"expires_at": NOW}, _P.FAILED),
        ({"outcome": _P.TERMINATED}, _P.TERMINATED),
        ({"deletion_timestamp": NOW}, _P.FAILED),
    ],
)
def test_a_failed_session_is_tried_again_while_that_is_worth_it(fields: dict[str, Any], end: SessionPhase) -> None:
    seen = view(_P.STOPPING, lab=None, fields={"outcome": _P.FAILED, "outcome_reason": "lost"} | fields)
    assert moves_to(react(seen, Discard(), None)) is end


def test_a_slot_keeps_what_it_was_promised_and_others_do_not() -> None:
    timed = react(view(_P.STOPPING, lab=None, fields={"outcome": _P.FAILED}), Discard(), None)
    assert isinstance(timed, Report)
    assert timed.status.claim is not None
    assert timed.status.retry_count == 1
    asap = {"timeslot_start": None, "timeslot_end": None, "duration_minutes": 60, "outcome": _P.FAILED}
    free = react(view(_P.STOPPING, lab=None, fields=asap | {"ends_at": None}), Discard(), None)
    assert isinstance(free, Report)
    assert (free.status.claim, free.status.seat, free.status.ends_at) == (None, None, None)


@pytest.mark.parametrize("seat", [None, Seat(pool="ccna", number=1)])
def test_a_promise_that_only_a_worker_kept_is_in_danger_when_it_is_lost(seat: Seat | None) -> None:
    lost = {"outcome": _P.FAILED, "outcome_reason": "its worker w1 is lost", "seat": seat}
    again = react(view(_P.STOPPING, lab=None, fields=lost), Discard(), None)
    assert isinstance(again, Report)
    risk = find_condition(again.status.conditions, SessionCondition.AT_RISK)
    assert (risk.message if risk else None) == (None if seat else "its worker w1 is lost")


def test_one_without_a_slot_that_ran_is_tried_again_until_the_end_that_it_was_told() -> None:
    eleven, patience = given.moment("11:00"), given.moment("09:30")
    asap = {"timeslot_start": None, "timeslot_end": None, "duration_minutes": 60, "expires_at": patience}
    seen = view(_P.STOPPING, lab=None, fields=asap | {"outcome": _P.FAILED})
    again = react(seen, Discard(), None)
    assert isinstance(again, Report)
    assert (again.status.phase, again.status.ends_at, again.status.expires_at) == (_P.PENDING, eleven, eleven)
    runs = decide(view(_P.INSTANTIATING, lab=RUNS, converged=True, fields=asap | {"duration_minutes": 30}))
    assert isinstance(runs, Report)
    assert runs.status.ends_at == eleven, "its extension stays, and its time does not begin anew"
    placed = asap_claim(replace(seen.session, status=again.status), NOW, Amount(labs=1), Terms())
    assert placed.end == eleven + Terms().instantiation + CLEAN_UP_TIME
    never = react(view(_P.STOPPING, lab=None, fields=asap | {"outcome": _P.FAILED, "ends_at": None}), Discard(), None)
    assert moves_to(never) is _P.FAILED


def test_another_lab_is_not_judged_by_what_was_seen_of_the_lost_one() -> None:
    seen = {"observed_ports": {"PC_serial": 7777}, "port_drift_detected": True, "observed_last": True}
    again = react(view(_P.STOPPING, lab=None, fields=seen | {"outcome": _P.FAILED}), Discard(), None)
    assert isinstance(again, Report)
    status = again.status
    assert (status.observed_ports, status.port_drift_detected, status.observed_last) == (None, False, False)


def test_a_lab_that_somebody_stopped_is_started_again_but_not_for_ever() -> None:
    seen = view(_P.RUNNING, lab=HALTED)
    for count in range(1, 4):
        flagged = decide(seen)
        assert isinstance(flagged, Report)
        seen = SessionView(replace(seen.session, status=flagged.status), NOW, worker=worker(), lab=HALTED)
        assert restart_count(seen) == count
        assert decide(seen) == Do(Restart("lab-1"))
        up = SessionView(seen.session, NOW, worker=worker(), lab=RUNS, converged=True)
        mended = decide(up)
        assert isinstance(mended, Report)
        seen = SessionView(replace(seen.session, status=mended.status), NOW, worker=worker(), lab=HALTED)
    given_up = decide(seen)
    assert isinstance(given_up, Report)
    (last,) = given_up.status.conditions
    assert (last.status, last.reason) == (Truth.FALSE, "NotRestarted3")
    left = SessionView(replace(seen.session, status=given_up.status), NOW, worker=worker(), lab=HALTED)
    assert isinstance(decide(left), Wait)
    assert isinstance(decide(replace(left, now=NOW + 30 * MINUTE)), Report), "what is long past is forgiven"


def test_a_lab_that_does_not_start_again_gets_time_and_then_another_attempt() -> None:
    flagged = decide(view(_P.RUNNING, lab=HALTED))
    assert isinstance(flagged, Report)
    seen = view(_P.RUNNING, lab=HALTED, fields={"conditions": flagged.status.conditions})
    assert react(seen, Restart("lab-1"), None) == Wait(NOW + timedelta(seconds=15))
    late = replace(seen, now=NOW + 15 * MINUTE)
    again = decide(late)
    assert isinstance(again, Report)
    assert restart_count(replace(late, resource=replace(late.session, status=again.status))) == 2


def test_behind_the_gateway_a_session_shows_paths_of_the_api() -> None:
    uses = {
        "PC_serial": PortUse(kind="serial", node="PC"),
        "PC_pat_udp_53": PortUse(kind="pat", node="PC", protocol="udp", inside=53),
    }
    fields = {"allocated_ports": {"PC_serial": 6001, "PC_pat_udp_53": 6002}}
    seen = view(_P.RUNNING, lab=RUNS, definition=given.definition(port_template=uses), fields=fields)
    decision = decide(replace(seen, rules=dataclasses.replace(seen.rules, behind_gateway=True)))
    assert isinstance(decision, Report)
    name = seen.session.metadata.name
    assert decision.status.access_urls == {"PC_serial": f"/api/lablet-sessions/{name}/consoles/PC_serial"}


def test_whose_machine_has_another_address_is_told_the_new_one() -> None:
    lab = given.definition(port_template={"PC_serial": PortUse(kind="serial", node="PC")})
    old = {"access_urls": {"PC_serial": "telnet://192.0.2.6:6001"}, "access_url": "telnet://192.0.2.6:6001"}
    decision = decide(view(_P.RUNNING, lab=RUNS, definition=lab, fields=old))
    assert isinstance(decision, Report)
    assert decision.status.access_urls == {"PC_serial": "telnet://192.0.2.7:6001"}
    assert decision.status.access_url == "telnet://192.0.2.7:6001"
    nowhere = worker(ec2={"instance_id": "i-1"})
    assert isinstance(decide(view(_P.RUNNING, lab=RUNS, definition=lab, worker=nowhere, fields=old)), Wait)


def test_what_is_wanted_soon_neither_begins_nor_starts_on_when_its_claim_is_over() -> None:
    asap = {"timeslot_start": None, "timeslot_end": None, "duration_minutes": 60, "ends_at": None}
    late = asap | {"claim": given.claim("09:30", "11:09")}
    assert decide(view(_P.SCHEDULED, fields=late)) == Wait(), "it would not get its hour"
    assert (
        moves_to(decide(view(_P.SCHEDULED, fields=asap | {"claim": given.claim("09:30", "11:11")}))) is _P.INSTANTIATING
    )
    ran_before = asap | {"ends_at": NOW}
    assert moves_to(decide(view(_P.INSTANTIATING, lab=RUNS, converged=True, fields=ran_before))) is _P.STOPPING
    over = asap | {"claim": given.claim("09:30", "10:10")}
    assert moves_to(decide(view(_P.INSTANTIATING, lab=RUNS, converged=True, fields=over))) is _P.STOPPING


def test_labs_that_a_reboot_stopped_are_started_a_few_at_a_time() -> None:
    assert isinstance(decide(view(_P.RUNNING, lab=HALTED, ahead=4)), Wait)


def test_a_lab_that_somebody_edits_is_observed_but_not_at_each_stroke() -> None:
    def seen(changed: str, observed: str | None = None) -> Any:
        fields = {"since": given.moment("09:30"), "observed_at": observed and given.moment(observed)}
        lab = replace(RUNS, modified_at=given.moment(changed))
        return decide(view(_P.RUNNING, lab=lab, fields=fields))

    assert seen("09:45") == Do(Observe("lab-1"))
    assert seen("09:45", "09:40") == seen("09:45", "09:45") == Do(Observe("lab-1"))
    assert isinstance(seen("09:30"), Wait), "it was imported then"
    assert isinstance(seen("09:45", "09:46"), Wait)
    assert isinstance(seen("09:59", "09:56"), Wait), "somebody is at it"


def test_a_request_to_observe_is_answered_in_time_or_given_up() -> None:
    def asked(ago: int) -> dict[str, Any]:
        at = NOW - timedelta(seconds=ago)
        return {"observation_request": ObservationRequest(id="r1", requested_at=at, requested_by="otto")}

    assert decide(view(_P.RUNNING, lab=RUNS, fields=asked(1))) == Do(Observe("lab-1", "r1"))
    late = decide(view(_P.RUNNING, lab=RUNS, fields=asked(31)))
    assert isinstance(late, Report)
    assert late.status.observation_request is None
    assert "ask again" in late.status.observation_error


def test_saving_comes_after_observing_and_never_keeps_anybody_from_removing() -> None:
    assert decide(view(_P.COLLECTING, lab=RUNS, fields={"since": NOW})) == Do(Observe("lab-1"))
    late = {"since": NOW - MINUTE}
    assert decide(view(_P.COLLECTING, lab=RUNS, fields=late)) == Do(Collect("lab-1"))
    seen = {"since": NOW + timedelta(seconds=5), "observed_at": NOW, "observed_last": True}
    assert decide(view(_P.COLLECTING, lab=RUNS, fields=seen)) == Do(Collect("lab-1")), "whatever clocks say"
    large = react(view(_P.COLLECTING, lab=RUNS), Collect("lab-1"), Failure("TooLarge", "9 MB", hopeless=True))
    assert isinstance(large, Report)
    assert (large.status.phase, large.reason) == (_P.STOPPING, "it could not be saved: 9 MB")
    over = {"since": NOW - 5 * MINUTE}
    assert moves_to(decide(view(_P.COLLECTING, lab=RUNS, fields=over))) is _P.STOPPING
    assert moves_to(decide(view(_P.COLLECTING, lab=Unknown("silent"), fields=over))) is _P.STOPPING


def test_a_lab_is_removed_until_its_host_says_that_there_is_none() -> None:
    assert decide(view(_P.STOPPING, lab=RUNS)) == Do(Remove("lab-1"))
    assert decide(view(_P.STOPPING, lab=None)) == Do(Discard())
    maybe = {"cml_lab_id": None, "since": NOW}
    assert isinstance(decide(view(_P.STOPPING, lab=None, fields=maybe)), Wait), "a lost answer may still make a lab"
    assert decide(view(_P.STOPPING, lab=None, worker=None, fields=maybe)) == Do(Discard())


def test_a_boot_is_told_of_in_leaps_or_after_a_while() -> None:
    def told(booted: int, *, percent: int, ago: int) -> Progress | None:
        nodes = {f"n{n}": "BOOTED" if n < booted else "STARTED" for n in range(30)}
        known = Progress(step="converge", percent=percent, message="", at=NOW - timedelta(seconds=ago))
        return boot_progress(view(_P.INSTANTIATING, lab=RUNS, nodes=nodes, fields={"progress": known}))

    assert told(0, percent=25, ago=60) is None
    assert told(1, percent=25, ago=1) is None
    first = told(1, percent=25, ago=5)
    assert first is not None
    assert (first.percent, first.message) == (27, "1 of 30 nodes have booted")
    assert told(5, percent=25, ago=1) is not None


def test_those_before_say_how_long_it_takes() -> None:
    story = tuple(
        replace(line, at=NINE + timedelta(seconds=place * 100))
        for place, line in enumerate(given.history("PENDING", "INSTANTIATING", "RUNNING"))
    )
    known = [given.session(history=story), given.session(definition="other:1.0.0")]
    assert usual_start(known, "default", "basics:1.0.0") == timedelta(seconds=100)
    assert usual_start(known, "default", "other:1.0.0") is None
    assert usual_start(known, "others", "basics:1.0.0") is None
    seen = view(_P.INSTANTIATING, lab=RUNS, nodes={"n0": "STARTED"}, usual=timedelta(seconds=100))
    progress = boot_progress(seen)
    assert progress is not None
    assert progress.message == "0 of 1 nodes have booted; about 40 s more, judging by other sessions"


def test_a_title_has_the_whole_uid_however_long_the_name_is() -> None:
    long = given.session(name="n" * 63, uid="12345678-1234-4123-8123-123456789012")
    title = title_of(long)
    assert len(title) == 64
    assert title.endswith("[12345678-1234-4123-8123-123456789012]")
    assert title.startswith("default/nnn")
