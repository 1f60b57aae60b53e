"""Types of what-if plans: the request, the job, its result, and the Planner protocol.

Served by `api.routes.plans`. The implementation of Planner is passed to `api.http.app`, for the API itself knows
nothing about simulations.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lcm.control.plane.problems import Problem
from lcm.model.base.resource import Count, Fraction, Moment, Part, ShortText
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.pool import LabWorkerPool, ScalingPolicy, WorkerTemplate
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
    """A lab of a timetable, and what one session of it needs; sizes are in GB."""

    name: ShortText
    track: ShortText
    cpu: _Size
    memory: _Size
    storage: _Size | UnsetType = UNSET
    nodes: Count | UnsetType = UNSET
    ports: Count | UnsetType = UNSET


class PlannedPool(Part):
    """Machines of one track. Of several pools of a track each has a name, or a region, of its own."""

    track: ShortText
    instance_type: ShortText
    max: Count
    name: ShortText | UnsetType = UNSET
    min: Count | UnsetType = UNSET
    region: ShortText | UnsetType = UNSET
    price: _Price | UnsetType = UNSET
    spot: bool | UnsetType = UNSET
    policy: ScalingPolicy | UnsetType = UNSET
    warm: Count | UnsetType = UNSET


class PlannedExtension(Part):
    """A request for more time."""

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
    region: ShortText | UnsetType = UNSET
    prefer_region: ShortText | UnsetType = UNSET
    spot: bool | UnsetType = UNSET


class PlannedTimetable(Part):
    """A timetable in the form of its YAML file. With `from_now` it may do without labs and pools of its own."""

    sessions: Annotated[tuple[PlannedSessions, ...], Meta(max_length=_MOST_SESSIONS)]
    definitions: Annotated[tuple[PlannedLab, ...], Meta(max_length=1000)] = ()
    fleet: Annotated[tuple[PlannedPool, ...], Meta(max_length=100)] = ()
    zone: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    title: ShortText | UnsetType = UNSET
    prices: Annotated[Mapping[ShortText, _Price], Meta(max_length=1000)] | UnsetType = UNSET


class TimetableFile(Part):
    """A timetable as a file: YAML, CSV or ICS, by the ending of its name."""

    name: ShortText
    text: Annotated[str, Meta(max_length=8_000_000)]


class PlanWish(Part):
    """A timetable to play, and what to find out: every combination of what is compared, or the smallest fleet.

    The timetable is either in the form of its YAML, or a file.
    """

    timetable: PlannedTimetable | None = None
    file: TimetableFile | None = None
    title: ShortText = "plan"
    compare: Annotated[tuple[_Compared, ...], Meta(max_length=16)] = ()
    smallest: bool = False
    from_now: Annotated[bool, Meta(description="go on from this system's labs, pools and promised sessions")] = False
    faults: Annotated[float, Meta(ge=0, le=60, description="mishaps an hour")] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 1


class PlanBaseline(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan continues from: all objects of the system at one moment."""

    at: Moment
    definitions: tuple[LabletDefinition, ...]
    templates: tuple[WorkerTemplate, ...]
    pools: tuple[LabWorkerPool, ...]
    sessions: tuple[LabletSession, ...]
    reservations: tuple[Reservation, ...]


class PlanBound(msgspec.Struct, frozen=True, kw_only=True):
    """A lower bound: no schedule can do with less."""

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
    """A promised session that was not running when its slot began; without seconds, it never ran."""

    name: str
    definition: str
    track: str
    start: Moment
    late_seconds: float | None
    why: str


class PlanMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, and the time for which it was paid."""

    track: str
    instance_type: str
    since: Moment
    until: Moment


class PlanLevels(msgspec.Struct, frozen=True, kw_only=True):
    """A track over time: from each moment on, how many machines ran, and how much of them was claimed."""

    track: str
    at: tuple[Moment, ...]
    machines: tuple[Count, ...]
    claimed_percent: tuple[float, ...]


class PlanStretch(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which the same labs were on a planned worker, and how full it was of them."""

    since: Moment
    until: Moment
    labs: Count
    percent: float


class PlanSeat(msgspec.Struct, frozen=True, kw_only=True):
    """A planned worker over time."""

    pool: str
    track: str
    number: Count
    stretches: tuple[PlanStretch, ...]


class PlanVariant(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the timetable under one set of choices: how much was wanted, promised, refused and late.

    `levels` and `seats` are for plots: the longer the plan, the coarser. `remarks` are sentences about the rest.
    """

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
    levels: tuple[PlanLevels, ...]
    seats: tuple[PlanSeat, ...]
    remarks: tuple[str, ...]
    played_seconds: float


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a plan. `smallest` names the cheapest variant that keeps everything, if that was searched."""

    title: str
    heading: str
    verdict: str
    smallest: str | None
    searched: bool
    variants: tuple[PlanVariant, ...]


class PlanState(StrEnum):
    """The state of a plan."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class PlanJob(msgspec.Struct, frozen=True, kw_only=True):
    """A plan that is running, or has ended: `result` once it is done, `problem` if it failed."""

    id: str
    state: PlanState
    by: str
    began_at: Moment
    progress: Fraction
    left_seconds: float | None
    kept_until: Moment | None
    result: PlanResult | None
    problem: Problem | None


class Planner(Protocol):
    """Makes plans, each in a process of its own. A plan is known only to the process in which it was begun."""

    async def begin(self, wish: PlanWish, by: str, standing: PlanBaseline | None = None) -> PlanJob:
        """Begin a plan. With `standing`, it continues from that state of the system.

        Raises Invalid for a timetable that cannot be read, Throttled while as many plans run as may.
        """
        ...

    def find(self, name: str) -> PlanJob:
        """Return how far a plan is, or its result. Raises Gone when it is not known (any more)."""
        ...

    def report(self, name: str) -> str:
        """Return the HTML page about a plan. Raises Gone like `find`, and IllegalStep when the plan is not done."""
        ...

    async def cancel(self, name: str) -> None:
        """End a running plan and forget it, or forget its result. Raises Gone like `find`."""
        ...
