"""What-if plans as the API knows them: the request, a job, its result, and who makes them.

`planning` serves them. Whoever makes plans is handed to `app`, for the API itself knows nothing of simulations.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lcm.control.plane.problems import Problem
from lcm.model.base.resource import Count, Fraction, Moment, Part, ShortText
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, WorkerTemplate
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession

_MOST_SESSIONS: Final = 20_000
_Size = Annotated[float, Meta(ge=0, le=1_000_000)]
_When = Annotated[str, Meta(max_length=40, description="a moment: of the timetable's zone, unless it says another")]
_Span = Annotated[str, Meta(max_length=20, description="how long, such as 90m, 2h or 1h30m")]
_Day = Annotated[str, Meta(max_length=10, description="a day, such as 2031-11-07")]
_Price = Annotated[str, Meta(max_length=20, description="USD an hour, such as 4.80")]
_Compared = Annotated[str, Meta(max_length=500, description="such as max=4,6,8 or instance@ccna=m5zn.metal,m6i.metal")]
_Hours = Annotated[float, Meta(ge=0)]
_Money = Annotated[float, Meta(ge=0, description="null where a price is not known")] | None


class PlannedLab(Part):
    """A lab of a timetable, and what one session of it needs; sizes in GB."""

    name: ShortText
    track: ShortText
    cpu: _Size
    memory: _Size
    storage: _Size | UnsetType = UNSET
    nodes: Count | UnsetType = UNSET
    ports: Count | UnsetType = UNSET


class PlannedPool(Part):
    """The machines of one track."""

    track: ShortText
    instance_type: ShortText
    max: Count
    min: Count | UnsetType = UNSET
    region: ShortText | UnsetType = UNSET
    price: _Price | UnsetType = UNSET


class PlannedExtension(Part):
    """Somebody asked for more time."""

    at: _When
    minutes: Count


class PlannedSessions(Part):
    """Sessions of one lab: when, for how long, how many, and how often again. Without `at`, as soon as possible."""

    definition: ShortText
    for_: _Span = msgspec.field(name="for")
    at: _When | UnsetType = UNSET
    count: Count | UnsetType = UNSET
    every: Annotated[str, Meta(max_length=16, description="day, weekday or week")] | UnsetType = UNSET
    until: _Day | UnsetType = UNSET
    track: ShortText | UnsetType = UNSET
    owner: ShortText | UnsetType = UNSET
    booked_at: _When | UnsetType = UNSET
    cancelled_at: _When | UnsetType = UNSET
    extended: Annotated[tuple[PlannedExtension, ...], Meta(max_length=100)] | UnsetType = UNSET


class PlannedTimetable(Part):
    """A timetable in the form of its YAML file. With `from_now` it may do without labs and pools of its own."""

    sessions: Annotated[tuple[PlannedSessions, ...], Meta(max_length=_MOST_SESSIONS)]
    definitions: Annotated[tuple[PlannedLab, ...], Meta(max_length=1000)] = ()
    fleet: Annotated[tuple[PlannedPool, ...], Meta(max_length=100)] = ()
    zone: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    title: ShortText | UnsetType = UNSET
    prices: Annotated[Mapping[ShortText, _Price], Meta(max_length=1000)] | UnsetType = UNSET


class PlanWish(Part):
    """A timetable to play, and what to find out by it: every combination of what is compared, or the smallest fleet."""

    timetable: PlannedTimetable
    title: ShortText = "plan"
    compare: Annotated[tuple[_Compared, ...], Meta(max_length=16)] = ()
    smallest: bool = False
    from_now: Annotated[bool, Meta(description="go on from this system's labs, pools and promised sessions")] = False
    faults: Annotated[float, Meta(ge=0, le=60, description="mishaps an hour")] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 1


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan goes on from: all that is there at a moment."""

    at: Moment
    definitions: tuple[LabletDefinition, ...]
    templates: tuple[WorkerTemplate, ...]
    pools: tuple[LabWorkerPool, ...]
    sessions: tuple[LabletSession, ...]
    reservations: tuple[Reservation, ...]


class PlanBound(msgspec.Struct, frozen=True, kw_only=True):
    """What no schedule can do with less of."""

    machine_hours: _Hours
    usd: _Money
    peak: Count


class PlanSpent(msgspec.Struct, frozen=True, kw_only=True):
    """What one track cost on one day."""

    day: str
    track: str
    machine_hours: _Hours
    usd: _Money


class PlanRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions of one slot that were not promised, for one reason."""

    definition: str
    track: str
    start: Moment | None
    count: Count
    why: str
    message: str


class PlanLateStart(msgspec.Struct, frozen=True, kw_only=True):
    """A promised session that did not run when its slot began; without seconds, it never did."""

    name: str
    definition: str
    track: str
    start: Moment
    late_seconds: float | None
    why: str


class PlanMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, from when to when it was paid for."""

    track: str
    instance_type: str
    since: Moment
    until: Moment


class PlanVariant(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the timetable under one set of choices; how much of it was wanted, promised, refused and late."""

    name: str
    choices: Mapping[str, str]
    faults: float
    seed: int
    begins: Moment
    ends: Moment
    zone: str
    wanted: Count
    promised: Count
    refused: Count
    late: Count
    interrupted: Count
    unserved: Count
    unextended: Count
    waits_seconds: tuple[float, ...]
    session_hours: _Hours
    machine_hours: _Hours
    usd: _Money
    peak: Count
    bound: PlanBound
    spent: tuple[PlanSpent, ...]
    refusals: tuple[PlanRefusal, ...]
    late_starts: tuple[PlanLateStart, ...]
    machines: tuple[PlanMachine, ...]
    played_seconds: float


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a plan. `smallest` names the cheapest variant that keeps everything, if that was searched."""

    title: str
    smallest: str | None
    searched: bool
    variants: tuple[PlanVariant, ...]


class PlanState(StrEnum):
    """How a plan is doing."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class PlanJob(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that is being made, or was: `result` once it is done, `problem` if it failed."""

    id: str
    state: PlanState
    by: str
    began_at: Moment
    progress: Fraction
    left_seconds: float | None
    kept_until: Moment | None
    result: PlanResult | None
    problem: Problem | None


class Plans(Protocol):
    """Makes plans, each in a process of its own. A plan is known to whoever began it, not to other processes."""

    async def begin(self, wish: PlanWish, by: str, standing: Standing | None = None) -> PlanJob:
        """Begin a plan, which goes on from what is standing, if that is given.

        Invalid for a timetable that cannot be read, Throttled while as many run as may.
        """
        ...

    def find(self, name: str) -> PlanJob:
        """Tell how far a plan is, or what came of it. Gone when it is not known (any more)."""
        ...

    def report(self, name: str) -> str:
        """Give the HTML page about a plan. Gone, as `find`; IllegalStep when it is not done."""
        ...

    async def cancel(self, name: str) -> None:
        """End a plan that runs, and forget it, or its result. Gone, as `find`."""
        ...
