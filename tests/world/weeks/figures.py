"""Plays a week and measures it: machines, sessions, late starts, waits, decisions, dollars, and what went wrong."""

import os
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final

import msgspec

from lcm.control.objects.records import ref_of_key
from lcm.model.kinds.pool import LabWorkerPool, ScalingPolicy
from lcm.model.kinds.session import LabletSession, SessionPhase, is_asap
from lcm.sim.plan.world import PlanProcess
from lcm.sim.world.scenario import Scenario
from lcm.store.base import Change
from world.checked import CheckedWorld
from world.checks.bills import CENT, cloud_bill, running_hours
from world.playing import play
from world.story import describe_outcome
from world.weeks.people import Deed

PhaseStep = tuple[str, str]
_RUNS: Final = str(SessionPhase.RUNNING)
_COLUMNS: Final = "{:<28} {:>8} {:>8} {:>8} {:>5} {:>6} {:>6} {:>7} {:>8} {:>9} {:>9} {:>6} {:>6}"


class WeekReport(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a week under a policy. Waits are those of sessions without a slot, in minutes."""

    name: str
    policy: str
    worker_hours: float
    sessions: int
    promised: int
    late: int
    wait_p50: float
    wait_p99: float
    unserved: int
    reclaimed: int
    decisions: int
    usd: Decimal
    violations: int
    cpu_seconds: float
    steps: frozenset[PhaseStep]
    told: str = ""

    @property
    def is_right(self) -> bool:
        """Whether no check has found anything, and every promise was kept."""
        return not self.violations and not self.late

    @staticmethod
    def heading() -> str:
        """Return the names of the columns."""
        return _COLUMNS.format(
            *("week and policy", "worker-h", "sessions", "promised", "late", "wait50", "wait99", "gave up"),
            *("reclaims", "decisions", "USD", "wrong", "CPU s"),
        )

    def __str__(self) -> str:
        figures = (f"{self.worker_hours:.1f}", self.sessions, self.promised, self.late)
        waits = (f"{self.wait_p50:.1f}", f"{self.wait_p99:.1f}", self.unserved, self.reclaimed, self.decisions)
        costs = (f"{self.usd:.2f}", self.violations, f"{self.cpu_seconds:.0f}")
        return _COLUMNS.format(f"{self.name} {self.policy}", *figures, *waits, *costs)


class WeekWorld(CheckedWorld):
    """A checked world that counts what its pools decide, and in which starting labs are polled less often."""

    process_type = PlanProcess

    def __init__(self, scenario: Scenario) -> None:
        self.decisions = 0
        self.steps: set[PhaseStep] = set()
        super().__init__(scenario)

    def _on_commit(self, revision: int, changes: Sequence[Change]) -> None:
        pools = [one.key for one in changes if (ref := ref_of_key(one.key)) is not None and ref.kind is LabWorkerPool]
        objects = self.witness.seen.objects
        before = {key: objects.get(key) for key in pools}
        super()._on_commit(revision, changes)
        for key, old in before.items():
            self._count(old, objects.get(key))

    def _count(self, old: object, new: object) -> None:
        if not isinstance(old, LabWorkerPool):
            return
        if not isinstance(new, LabWorkerPool):  # its last step removes it
            self.steps.add((str(old.status.phase), "TERMINATED"))
            return
        known = {one.at for one in old.status.decisions}
        self.decisions += sum(one.at not in known and one.action != "none" for one in new.status.decisions)
        if old.status.phase is not new.status.phase:
            self.steps.add((str(old.status.phase), str(new.status.phase)))


def play_week(name: str, policy: ScalingPolicy, scenario: Scenario, people: Sequence[Deed]) -> WeekReport:
    """Play a scenario with those who come, and measure it."""
    worlds: list[WeekWorld] = []

    def make(wanted: Scenario) -> WeekWorld:
        world = WeekWorld(wanted)
        worlds.append(world)
        for deed in people:
            world.begin(deed(world))
        return world

    began = os.times()
    outcome = play(scenario, make)
    spent = os.times()
    world, end = worlds[0], scenario.end + timedelta(hours=scenario.quiet_hours)
    sessions = [one for one in world.witness.seen.sessions.values() if one.spec.lab_track == "ccna"]
    sessions = [one for one in sessions if not one.spec.prebuilt]
    timed = [one for one in sessions if one.spec.timeslot_start is not None and one.spec.timeslot_start < end]
    waits = sorted(_waits(one for one in sessions if is_asap(one)))
    machines = world.stage.cloud.account.machines.values()
    return WeekReport(
        name=name,
        policy=policy,
        worker_hours=float(sum(running_hours(one, scenario.start, end) for one in machines)),
        sessions=len(sessions),
        promised=len(timed),
        late=sum(_is_late(one) for one in timed),
        wait_p50=_quantile(waits, 0.5),
        wait_p99=_quantile(waits, 0.99),
        unserved=sum(_first_run(one) is None for one in sessions if is_asap(one)),
        reclaimed=sum(one.reclaim_at is not None for one in machines),
        decisions=world.decisions,
        usd=cloud_bill(world.stage, scenario.pools, end).quantize(CENT),
        violations=len(outcome.violations),
        cpu_seconds=spent.user + spent.system - began.user - began.system,
        steps=frozenset(world.steps),
        told=describe_outcome(outcome),
    )


def _waits(sessions: Iterator[LabletSession]) -> Iterator[float]:
    """Yield for how many minutes each session that ran has waited."""
    for one in sessions:
        ran, created = _first_run(one), one.metadata.created_at
        if ran is not None and created is not None:
            yield (ran - created) / timedelta(minutes=1)


def _is_late(session: LabletSession) -> bool:
    ran, start = _first_run(session), session.spec.timeslot_start
    return ran is None or start is None or ran > start


def _first_run(session: LabletSession) -> datetime | None:
    return next((line.at for line in session.status.history if line.phase == _RUNS), None)


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
