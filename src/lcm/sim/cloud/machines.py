"""A simulated machine. What it is at a moment follows from the moments stored when something was done to it.

Nothing has to happen for a machine to boot: one that was to run from 10:02 runs for whoever looks after 10:02, in
virtual time, in real time and sped up. Kept by `compute_account`.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise, starmap, zip_longest
from typing import Final, Literal, NamedTuple

from lcm.providers.protocols.compute import Check, Checks, Instance, InstanceState, MachineMetrics
from lcm.sim.cloud.effects import Run

PENDING, RUNNING = InstanceState.PENDING, InstanceState.RUNNING
STOPPING, STOPPED = InstanceState.STOPPING, InstanceState.STOPPED
SHUTTING_DOWN, TERMINATED = InstanceState.SHUTTING_DOWN, InstanceState.TERMINATED

CheckName = Literal["system", "instance"]


class Pace(NamedTuple):
    """How long a kind of machine takes."""

    boot: timedelta
    checks: timedelta
    stop: timedelta
    terminate: timedelta


VIRTUAL: Final = Pace(timedelta(seconds=15), timedelta(minutes=3), timedelta(seconds=40), timedelta(seconds=40))
METAL: Final = Pace(timedelta(minutes=1), timedelta(minutes=9), timedelta(minutes=4), timedelta(minutes=6))


BY_HAND: Final = "Client.UserInitiatedShutdown: User initiated shutdown"
DIED: Final = "Server.InternalError: Internal error"
NEVER_RAN: Final = "Server.InternalError: Internal error on launch"
"""Why a machine is in its state, in EC2's words."""


class Change(NamedTuple):
    """A state, from when, and why."""

    at: datetime
    state: InstanceState
    reason: str = ""


class Span(NamedTuple):
    """How long it was in a state."""

    state: InstanceState
    since: datetime
    until: datetime


class Address(NamedTuple):
    """A public address, and from when."""

    at: datetime
    ip: str


@dataclass
class Machine:
    """One machine with all its moments, the planned ones included."""

    instance_id: str
    region: str
    zone: str
    instance_type: str
    image_id: str
    disk_gb: int
    private_ip: str
    visible_at: datetime
    pace: Pace
    shown_for: timedelta
    tags: dict[str, str]
    public: bool = True
    changes: list[Change] = field(default_factory=list)
    addresses: list[Address] = field(default_factory=list)
    dies_at: datetime | None = None
    reboots: list[datetime] = field(default_factory=list)
    comes_up: bool = True
    """Whether an operating system ever comes up on it; the cloud says that it runs either way."""
    share: float = 1.0
    """How much it has of the CPUs and memory that its type promises."""
    impaired: dict[CheckName, datetime] = field(default_factory=dict)
    load: MachineMetrics = field(default_factory=MachineMetrics)

    def __post_init__(self) -> None:
        # No fields: they are nothing to write down.
        self._runs_of: object = None
        self._runs: list[Run] = []

    def story(self) -> list[Change]:
        """Tell all changes, oldest first; a death comes before whatever was planned after it."""
        dies_at = self.dies_at
        if dies_at is None:
            return self.changes
        if self.changes[-1].state is TERMINATED and self.changes[-1].at <= dies_at:
            return self.changes
        lived = [change for change in self.changes if change.at < dies_at]
        reason = DIED if any(change.state is RUNNING for change in lived) else NEVER_RAN
        return [*lived, Change(dies_at, TERMINATED, reason)]

    def last(self, at: datetime) -> Change:
        """Tell the state at a moment, and since when it has been so."""
        story = self.story()
        for change in reversed(story):
            if change.at <= at:
                return change
        return story[0]

    def last_start(self, at: datetime) -> datetime:
        starts = [change.at for change in self.changes if change.state is PENDING]
        return max((start for start in starts if start <= at), default=starts[0])

    def state(self, at: datetime) -> InstanceState:
        return self.last(at).state

    def move(self, at: datetime, *changes: Change) -> None:
        """Do something to it: what was planned for later does not come about."""
        self.changes[:] = [*(change for change in self.changes if change.at <= at), *changes]

    def boot(self, at: datetime, address: str | None) -> None:
        self.move(at, Change(at, PENDING), Change(at + self.pace.boot, RUNNING))
        if address:
            self.addresses.append(Address(at, address))

    def move_to(self, address: str) -> None:
        """Be reached at another address, as if it had always been."""
        self.private_ip = address
        self.addresses[:] = [Address(one.at, address) for one in self.addresses]

    def stop(self, at: datetime) -> None:
        self.move(at, Change(at, STOPPING, BY_HAND), Change(at + self.pace.stop, STOPPED, BY_HAND))

    def terminate(self, at: datetime) -> None:
        ended_at = at + self.pace.terminate
        self.move(at, Change(at, SHUTTING_DOWN, BY_HAND), Change(ended_at, TERMINATED, BY_HAND))

    def shown(self, at: datetime) -> bool:
        """Tell whether the cloud lists it: not at once, and not for ever after its end."""
        change = self.last(at)
        forgotten = change.state is TERMINATED and at >= change.at + self.shown_for
        return at >= self.visible_at and not forgotten

    def instance(self, at: datetime) -> Instance:
        """Describe it as the cloud does; like EC2's, its launch is its last start."""
        _, state, reason = self.last(at)
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
        )

    def checks(self, at: datetime) -> Checks:
        """Tell the status checks. A reboot mends the instance's, a new start both."""
        change = self.last(at)
        if change.state is not RUNNING:
            return Checks(system=Check.UNKNOWN, instance=Check.UNKNOWN)
        rebooted = max([change.at, *self.reboots])
        return Checks(system=self._check("system", change.at, at), instance=self._check("instance", rebooted, at))

    def spans(self, until: datetime) -> list[Span]:
        """Tell how long it was in each state before a moment."""
        changes = [change for change in self.story() if change.at < until]
        ends = [change.at for change in changes[1:]] + [until][: len(changes)]
        return [Span(change.state, change.at, end) for change, end in zip(changes, ends, strict=True)]

    def runs(self) -> list[Run]:
        """Tell when it was and, as planned, will be on; a reboot ends one run and begins another.

        The list stays the same one until something changes: whoever talks to the machine asks for it each time.
        """
        # Whatever is done to it adds a change to its story, or a reboot.
        made_of = self.comes_up, self.dies_at, len(self.changes), self.changes[-1:], len(self.reboots)
        if made_of != self._runs_of:
            self._runs_of, self._runs = made_of, self._planned_runs()
        return self._runs

    def _planned_runs(self) -> list[Run]:
        story = self.story() if self.comes_up else []
        ends = [change.at for change in story[1:]]
        return [
            run
            for change, end in zip_longest(story, ends)
            if change.state is RUNNING
            for run in starmap(Run, pairwise([change.at, *self._reboots(change.at, end), end]))
        ]

    def _reboots(self, since: datetime, until: datetime | None) -> list[datetime]:
        return [at for at in self.reboots if since <= at and (until is None or at <= until)]

    def _check(self, name: CheckName, begun: datetime, at: datetime) -> Check:
        impaired_at = self.impaired.get(name)
        if impaired_at is not None and begun <= impaired_at <= at:
            return Check.IMPAIRED
        if at < begun + self.pace.checks:
            return Check.INITIALIZING
        return Check.OK if self.comes_up or name == "system" else Check.IMPAIRED

    def _public_ip(self, at: datetime) -> str | None:
        return next((address.ip for address in reversed(self.addresses) if address.at <= at), None)
