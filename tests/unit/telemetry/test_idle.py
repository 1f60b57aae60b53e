"""Whether a worker is idle, by every signal; and the countdown, minute by minute."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from harness import given
from lcm.model.base.resource import Truth
from lcm.model.kinds.session import ON_WORKER_PHASES, LabletSession, SessionPhase
from lcm.model.kinds.worker import HOSTING_PHASES, IdleVerdict, LabWorker, WorkerPhase, WorkerTelemetry
from lcm.model.telemetry.idle import is_first_warning, is_significant, judge_worker

NOW = given.moment("10:00")
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def worker(**fields: Any) -> LabWorker:
    """Return a worker that has been ready for long."""
    return given.worker(**{"phase": WorkerPhase.READY, "ready_at": given.moment("06:00")} | fields)


def seen(at: datetime = NOW, **fields: Any) -> WorkerTelemetry:
    """Return fresh measurements of a worker on which nothing has happened for two hours."""
    quiet = {"cml_at": at, "activity_at": at, "active_labs_count": 0, "last_activity_at": given.moment("08:00")}
    return given.telemetry(**{"collected_at": at} | quiet | fields)


def session(phase: SessionPhase, **fields: Any) -> LabletSession:
    return given.session(phase=phase, worker_id="uid-w1", **fields)


def verdict(
    one: LabWorker | None = None,
    telemetry: WorkerTelemetry | None = None,
    *sessions: LabletSession,
    now: datetime = NOW,
    threshold: timedelta = 30 * MINUTE,
) -> IdleVerdict:
    return judge_worker(
        one or worker(),
        telemetry,
        sessions,
        now,
        horizon=40 * MINUTE,
        stale_after=3 * MINUTE,
        threshold=threshold,
    )


def active(found: IdleVerdict) -> dict[str, Truth]:
    return {one.name: one.active for one in found.signals if one.active is not Truth.FALSE}


def test_a_worker_on_which_nothing_happens_is_idle_and_says_so() -> None:
    found = verdict(None, seen())
    assert found.idle
    assert found.reason == "nothing happened since 2026-11-02 08:00 UTC"
    assert [one.name for one in found.signals] == [
        "switched_off",
        "sessions",
        "booked_soon",
        "cml_activity",
        "foreign_labs",
        "snoozed",
    ]
    assert found.idle_since == given.moment("08:00")


@pytest.mark.parametrize("phase", sorted(ON_WORKER_PHASES))
def test_lesson_2_a_quiet_learner_keeps_the_machine(phase: SessionPhase) -> None:
    found = verdict(None, seen(), session(phase, cml_lab_id="lab-1"))
    assert not found.idle
    assert found.pause_at is None
    assert active(found) == {"sessions": Truth.TRUE}
    assert found.reason == "sessions are on it"


@pytest.mark.parametrize("start", ["10:00", "10:39", "10:40", "09:30"])
def test_a_session_that_begins_sooner_than_a_machine_boots_keeps_it(start: str) -> None:
    booked = session(SessionPhase.SCHEDULED, timeslot_start=given.moment(start), timeslot_end=given.moment("12:00"))
    assert active(verdict(None, seen(), booked)) == {"booked_soon": Truth.TRUE}


def test_a_session_that_begins_later_does_not() -> None:
    later = session(SessionPhase.SCHEDULED, timeslot_start=given.moment("10:41"), timeslot_end=given.moment("12:00"))
    assert verdict(None, seen(), later).idle
    claimed = given.asap(phase=SessionPhase.SCHEDULED, worker_id="uid-w1", claim=given.claim("10:20", "12:00"))
    assert active(verdict(None, seen(), claimed)) == {"booked_soon": Truth.TRUE}
    assert active(verdict(None, seen(), given.changed(claimed, {"status": {"claim": None}}))) == {
        "sessions": Truth.TRUE
    }


def test_a_session_that_has_ended_is_nobodys() -> None:
    ended = [session(phase) for phase in SessionPhase if phase not in ON_WORKER_PHASES | {SessionPhase.SCHEDULED}]
    assert verdict(None, seen(), *ended).idle


def test_what_somebody_does_in_cml_keeps_it() -> None:
    found = verdict(None, seen(last_activity_at=given.moment("09:31")))
    assert (found.idle, active(found)) == (False, {"cml_activity": Truth.TRUE})
    assert verdict(None, seen(last_activity_at=given.moment("09:30"))).idle


@pytest.mark.parametrize(
    "fields",
    [
        {"ready_at": given.moment("09:45")},
        {"history": given.history("STOPPED", "STARTING", "READY_UNLICENSED", *40 * ("READY",))},
    ],
)
def test_a_worker_that_has_just_come_or_come_back_is_not_idle(fields: dict[str, Any]) -> None:
    assert active(verdict(worker(**fields), seen())) == {"cml_activity": Truth.TRUE}


def test_labs_that_no_session_made_keep_it() -> None:
    found = verdict(None, seen(active_labs_count=3))
    assert active(found) == {"foreign_labs": Truth.TRUE}
    assert found.reason == "labs run on it that no session made"
    ours = session(SessionPhase.RUNNING, cml_lab_id="lab-1")
    assert active(verdict(None, seen(active_labs_count=1), ours)) == {"sessions": Truth.TRUE}
    both = verdict(None, seen(active_labs_count=2), ours)
    assert active(both) == {"sessions": Truth.TRUE, "foreign_labs": Truth.TRUE}


@pytest.mark.parametrize(
    ("telemetry", "unknown"),
    [
        (None, {"cml_activity", "foreign_labs"}),
        (seen(activity_at=None), {"cml_activity"}),
        (seen(activity_at=NOW - 4 * MINUTE), {"cml_activity"}),
        (seen(cml_at=None), {"foreign_labs"}),
        (seen(cml_at=NOW - 4 * MINUTE), {"foreign_labs"}),
        (seen(active_labs_count=None), {"foreign_labs"}),
        (seen(activity_at=NOW + 3 * MINUTE), {"cml_activity"}),
        (seen(cml_at=NOW + 3 * MINUTE), {"foreign_labs"}),
        (seen(at=NOW - HOUR), {"cml_activity", "foreign_labs"}),
    ],
)
def test_what_is_not_known_counts_as_activity(telemetry: WorkerTelemetry | None, unknown: set[str]) -> None:
    found = verdict(None, telemetry)
    assert not found.idle
    assert found.pause_at is None
    assert active(found) == dict.fromkeys(unknown, Truth.UNKNOWN)
    assert "not known" in found.reason


def test_a_worker_that_is_not_to_be_paused_is_not_idle() -> None:
    assert active(verdict(worker(idle=given.worker().spec.idle), seen())) == {}
    off = given.changed(worker(), {"spec": {"idle": {"enabled": False}}})
    assert active(verdict(off, seen())) == {"switched_off": Truth.TRUE}


@pytest.mark.parametrize("phase", [one for one in WorkerPhase if one not in HOSTING_PHASES])
def test_a_worker_that_does_not_serve_is_not_judged(phase: WorkerPhase) -> None:
    found = verdict(worker(phase=phase), seen())
    assert (found.idle, found.signals, found.pause_at) == (False, (), None)
    assert phase in found.reason
    assert not is_significant(found, None)


class Watchman:
    """Judges one worker again and again, and remembers what a store would."""

    def __init__(self) -> None:
        self.worker = worker()
        self.telemetry = seen()
        self.warned: list[str] = []
        self.writes = 0
        self.verdict = IdleVerdict(idle=False, reason="", judged_at=NOW)

    def look(self, clock: str, **fields: Any) -> IdleVerdict:
        at = given.moment(clock)
        self.telemetry = msgspec.structs.replace(self.telemetry, **{"cml_at": at, "activity_at": at} | fields)
        kept = self.worker.status.idle
        self.verdict = verdict(self.worker, self.telemetry, now=at)
        if is_significant(self.verdict, kept):
            self.warned += [clock] if is_first_warning(self.verdict, kept) else []
            self.writes += 1
            self.keep(self.verdict)
        return self.verdict

    def keep(self, found: IdleVerdict) -> None:
        status = msgspec.structs.replace(self.worker.status, idle=found)
        self.worker = msgspec.structs.replace(self.worker, status=status)

    def snooze(self, until: str) -> None:
        assert self.worker.status.idle is not None
        self.keep(msgspec.structs.replace(self.worker.status.idle, snoozed_until=given.moment(until)))


def test_it_is_warned_once_five_minutes_before_it_is_paused() -> None:
    one = Watchman()
    for minute in range(30):
        found = one.look(f"10:{minute:02}", last_activity_at=NOW)
        assert (found.idle, found.pause_at) == (False, None if minute < 25 else given.moment("10:30"))
    assert one.warned == ["10:25"]
    assert one.writes == 2
    found = one.look("10:30")
    assert (found.idle, found.pause_at, found.idle_since) == (True, given.moment("10:30"), NOW)
    assert one.warned == ["10:25"]


def test_a_warning_that_comes_late_gives_its_whole_time_all_the_same() -> None:
    one = Watchman()
    found = one.look("11:00")
    assert (found.idle, found.pause_at, one.warned) == (True, given.moment("11:05"), ["11:00"])
    assert one.look("11:04").pause_at == given.moment("11:05")
    assert one.look("11:05").pause_at == given.moment("11:05")
    assert one.warned == ["11:00"]


def test_activity_ends_the_countdown_and_another_begins_later() -> None:
    one = Watchman()
    one.look("10:25", last_activity_at=NOW)
    found = one.look("10:27", last_activity_at=given.moment("10:26"))
    assert (found.idle, found.pause_at, found.warned_at) == (False, None, None)
    assert one.look("10:50").pause_at is None
    assert one.look("10:51").pause_at == given.moment("10:56")
    assert one.warned == ["10:25", "10:51"]


def test_what_becomes_unknown_ends_the_countdown() -> None:
    one = Watchman()
    one.look("10:25", last_activity_at=NOW)
    assert one.look("10:28", active_labs_count=None).pause_at is None
    assert one.look("10:31", active_labs_count=0).pause_at == given.moment("10:36")
    assert one.warned == ["10:25", "10:31"]


def test_a_snooze_puts_it_off_and_is_followed_by_another_warning() -> None:
    one = Watchman()
    one.look("10:25", last_activity_at=NOW)
    one.snooze("11:27")
    found = one.look("10:28")
    assert (found.idle, found.pause_at, active(found)["snoozed"]) == (False, None, Truth.TRUE)
    assert one.look("11:00").idle is False
    assert one.look("11:22").pause_at == given.moment("11:27")
    assert one.warned == ["10:25", "11:22"]
    found = one.look("11:27")
    assert (found.idle, found.snoozed_until, found.pause_at) == (True, None, given.moment("11:27"))


def test_a_snooze_that_passed_unseen_is_followed_by_a_warning_too() -> None:
    one = Watchman()
    one.look("10:25", last_activity_at=NOW)
    one.snooze("11:27")
    found = one.look("12:00")
    assert (found.idle, found.pause_at, one.warned) == (True, given.moment("12:05"), ["10:25", "12:00"])


def test_a_verdict_that_says_nothing_new_is_not_written() -> None:
    one = Watchman()
    for minute in range(20):
        one.look(f"10:{minute:02}", last_activity_at=given.moment(f"10:{minute:02}"))
    assert one.writes == 1


def test_a_verdict_on_which_it_is_paused_is_always_fresh() -> None:
    one = Watchman()
    one.look("10:25", last_activity_at=NOW)
    for clock in ("10:30", "10:31", "10:32"):
        one.look(clock)
        assert one.worker.status.idle is not None
        assert one.worker.status.idle.judged_at == given.moment(clock)


@pytest.mark.parametrize("source", ["cml_at", "activity_at"])
def test_a_countdown_that_is_over_waits_for_a_measurement(source: str) -> None:
    one = Watchman()
    one.look("10:25", last_activity_at=NOW)
    found = one.look("10:31", **{source: given.moment("10:29")})
    assert (found.idle, found.pause_at, found.warned_at) == (False, given.moment("10:30"), given.moment("10:25"))
    assert "not known yet" in found.reason
    assert one.look("10:32").idle
    assert one.warned == ["10:25"]


def test_a_threshold_as_short_as_its_warning_still_warns() -> None:
    found = verdict(None, seen(last_activity_at=given.moment("09:59")), threshold=3 * MINUTE)
    assert (found.pause_at, found.warned_at) == (given.moment("10:03"), NOW)
