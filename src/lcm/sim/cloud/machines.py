"""A simulated machine. Its state at a moment follows from the state changes planned when something was done to it.

Nothing has to run for a machine to boot: one that is planned to run from 10:02 runs for whoever looks after 10:02, in
virtual time, in real time and sped up. Kept by `sim.cloud.account`.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise, starmap, zip_longest
from typing import Final, Literal, NamedTuple

from lcm.providers.protocols.compute import Instance, InstanceState, MachineMetrics, StatusCheckResult, StatusChecks
from lcm.sim.cloud.effects import PowerRun

PENDING, RUNNING = InstanceState.PENDING, InstanceState.RUNNING
STOPPING, STOPPED = InstanceState.STOPPING, InstanceState.STOPPED
SHUTTING_DOWN, TERMINATED = InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED

CheckName = Literal["system", "instance"]


class MachinePace(NamedTuple):
    """How long a kind of machine takes."""

    boot: timedelta
    checks: timedelta
    stop: timedelta
    terminate: timedelta


VIRTUAL: Final = MachinePace(timedelta(seconds=15), timedelta(minutes=3), timedelta(seconds=40), timedelta(seconds=40))
METAL: Final = MachinePace(timedelta(minutes=1), timedelta(minutes=9), timedelta(minutes=4), timedelta(minutes=6))


BY_HAND: Final = "Client.UserInitiatedShutdown: User initiated shutdown"
DIED: Final = "Server.InternalError: Internal error"
TAKEN_BACK: Final = "Server.SpotInstanceTermination: Spot instance termination"
NEVER_RAN: Final = "Server.InternalError: Internal error on launch"
"""Why a machine is in its state, in EC2's words."""


class StateChange(NamedTuple):
    """A state, since when, and why."""

    at: datetime
    state: InstanceState
    reason: str = ""


class StateSpan(NamedTuple):
    """How long a machine was in a state."""

    state: InstanceState
    since: datetime
    until: datetime


class PublicAddress(NamedTuple):
    """A public address, and since when."""

    at: datetime
    ip: str


@dataclass
class SimMachine:
    """One machine with all its state changes, planned ones included."""

    instance_id: str
    region: str
    zone: str
    instance_type: str
    image_id: str
    disk_gb: int
    private_ip: str
    visible_at: datetime
    pace: MachinePace
    shown_for: timedelta
    tags: dict[str, str]
    public: bool = True
    changes: list[StateChange] = field(default_factory=list)
    addresses: list[PublicAddress] = field(default_factory=list)
    dies_at: datetime | None = None
    reboots: list[datetime] = field(default_factory=list)
    comes_up: bool = True
    """Whether its operating system ever comes up; the cloud says that it runs either way."""
    share: float = 1.0
    """The fraction of its type's CPUs and memory that it has."""
    impaired: dict[CheckName, datetime] = field(default_factory=dict)
    load: MachineMetrics = field(default_factory=MachineMetrics)
    spot: bool = False
    reclaim_at: datetime | None = None
    """When the cloud takes a spot machine away, once it has given notice."""

    def __post_init__(self) -> None:
        # Not fields, so that they are not serialized.
        self._runs_of: object = None
        self._runs: list[PowerRun] = []

    def all_changes(self) -> list[StateChange]:
        """Return all state changes, oldest first; a failure replaces whatever was planned after it."""
        dies_at = self.dies_at
        if dies_at is None:
            return self.changes
        if self.changes[-1].state is TERMINATED and self.changes[-1].at <= dies_at:
            return self.changes
        lived = [change for change in self.changes if change.at < dies_at]
        ran = any(change.state is RUNNING for change in lived)
        reason = TAKEN_BACK if dies_at == self.reclaim_at else DIED if ran else NEVER_RAN
        return [*lived, StateChange(dies_at, TERMINATED, reason)]

    def change_at(self, at: datetime) -> StateChange:
        """Return the state at a moment, and since when."""
        story = self.all_changes()
        for change in reversed(story):
            if change.at <= at:
                return change
        return story[0]

    def last_start(self, at: datetime) -> datetime:
        starts = [change.at for change in self.changes if change.state is PENDING]
        return max((start for start in starts if start <= at), default=starts[0])

    def state(self, at: datetime) -> InstanceState:
        return self.change_at(at).state

    def replan(self, at: datetime, *changes: StateChange) -> None:
        """Add changes and drop those that were planned for later than `at`."""
        self.changes[:] = [*(change for change in self.changes if change.at <= at), *changes]

    def boot(self, at: datetime, address: str | None) -> None:
        self.replan(at, StateChange(at, PENDING), StateChange(at + self.pace.boot, RUNNING))
        if address:
            self.addresses.append(PublicAddress(at, address))

    def set_address(self, address: str) -> None:
        """Change its address, as if it had always had it."""
        self.private_ip = address
        self.addresses[:] = [PublicAddress(one.at, address) for one in self.addresses]

    def stop(self, at: datetime) -> None:
        self.replan(at, StateChange(at, STOPPING, BY_HAND), StateChange(at + self.pace.stop, STOPPED, BY_HAND))

    def terminate(self, at: datetime) -> None:
        ended_at = at + self.pace.terminate
        self.replan(at, StateChange(at, SHUTTING_DOWN, BY_HAND), StateChange(ended_at, TERMINATED, BY_HAND))

    def is_listed(self, at: datetime) -> bool:
        """Return whether the cloud lists it: not at once, and no longer some time after its end."""
        change = self.change_at(at)
        forgotten = change.state is TERMINATED and at >= change.at + self.shown_for
        return at >= self.visible_at and not forgotten

    def instance(self, at: datetime) -> Instance:
        """Describe it as the cloud does; like EC2's, its launch time is its last start."""
        _, state, reason = self.change_at(at)
        return Instance(
            instance_id=self.instance_id,
            region=self.region,
            state=state,
            instance_type=self.instance_type,
            image_id=self.image_id,
            launched_at=self.last_start(at),
            zone=self.zone,
            private_ip=None if state is TERMINATED else self.private_ip,
            public_ip=self._public_ip(at) if state in {PENDING, RUNNING} else None,
            tags=dict(self.tags),
            reason=reason,
            spot=self.spot,
            state_since=self._state_since(at),
        )

    def _state_since(self, at: datetime) -> datetime:
        """Return when it came into its state; like EC2's, a stop or end counts from when it was asked for."""
        *before, last = [change for change in self.all_changes() if change.at <= at] or self.all_changes()[:1]
        asked = {STOPPED: STOPPING, TERMINATED: SHUTTING_DOWN}.get(last.state)
        return before[-1].at if before and before[-1].state is asked else last.at

    def checks(self, at: datetime) -> StatusChecks:
        """Return the status checks. A reboot repairs the instance's, a new start both."""
        change = self.change_at(at)
        if change.state is not RUNNING:
            return StatusChecks(system=StatusCheckResult.UNKNOWN, instance=StatusCheckResult.UNKNOWN)
        rebooted = max([change.at, *self.reboots])
        return StatusChecks(system=self._check("system", change.at, at), instance=self._check("instance", rebooted, at))

    def spans(self, until: datetime) -> list[StateSpan]:
        """Return how long it was in each state before a moment."""
        changes = [change for change in self.all_changes() if change.at < until]
        ends = [change.at for change in changes[1:]] + [until][: len(changes)]
        return [StateSpan(change.state, change.at, end) for change, end in zip(changes, ends, strict=True)]

    def runs(self) -> list[PowerRun]:
        """Return when it was on and, as planned, will be; a reboot ends one run and begins another.

        The same list is returned until something changes: whoever talks to the machine asks for it each time.
        """
        # Every action adds a state change or a reboot.
        made_of = self.comes_up, self.dies_at, len(self.changes), self.changes[-1:], len(self.reboots)
        if made_of != self._runs_of:
            self._runs_of, self._runs = made_of, self._planned_runs()
        return self._runs

    def _planned_runs(self) -> list[PowerRun]:
        story = self.all_changes() if self.comes_up else []
        ends = [change.at for change in story[1:]]
        return [
            run
            for change, end in zip_longest(story, ends)
            if change.state is RUNNING
            for run in starmap(PowerRun, pairwise([change.at, *self._reboots(change.at, end), end]))
        ]

    def _reboots(self, since: datetime, until: datetime | None) -> list[datetime]:
        return [at for at in self.reboots if since <= at and (until is None or at <= until)]

    def _check(self, name: CheckName, begun: datetime, at: datetime) -> StatusCheckResult:
        impaired_at = self.impaired.get(name)
        if impaired_at is not None and begun <= impaired_at <= at:
            return StatusCheckResult.IMPAIRED
        if at < begun + self.pace.checks:
            return StatusCheckResult.INITIALIZING
        return StatusCheckResult.OK if self.comes_up or name == "system" else StatusCheckResult.IMPAIRED

    def _public_ip(self, at: datetime) -> str | None:
        return next((address.ip for address in reversed(self.addresses) if address.at <= at), None)
