"""What-if plans as the API knows them: the request, a job, its result, and who makes them.

`planning` serves them. Whoever makes plans is handed to `app`, for the API itself knows nothing of simulations.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from lcm.control.problems import Problem
from lcm.model.resource import Count, Fraction, Moment, Part, ShortText

MOST_SESSIONS = 20_000
_Size = Annotated[float, Meta(ge=0, le=1_000_000)]
_When = Annotated[str, Meta(max_length=40, description="a moment, of the timetable's zone unless it says another")]
_Span = Annotated[str, Meta(max_length=20, description="how long: 90m, 2h, 1h30m")]
_Day = Annotated[str, Meta(max_length=10, description="a day, such as 2031-11-07")]


class PlannedLab(Part):
    """A lab of a timetable, and what one session of it needs; sizes in GB."""

    name: ShortText
    track: ShortText = ""
    cpu: _Size = 4
    memory: _Size = 8
    storage: _Size = 10
    nodes: Count = 4
    ports: Count = 4


class PlannedPool(Part):
    """The machines of one track; the price is in USD an hour."""

    track: ShortText
    instance_type: ShortText = "m5zn.metal"
    region: ShortText = "us-east-1"
    min: Count = 0
    max: Count = 10
    price: ShortText = "4.0"


class PlannedSessions(Part):
    """Sessions of one lab: when, for how long, how many, and how often again."""

    definition: ShortText
    for_: _Span = msgspec.field(name="for")
    at: _When | None = None
    count: Annotated[int, Meta(ge=1, le=MOST_SESSIONS)] = 1
    every: Annotated[str, Meta(max_length=64, description="day, weekday, week or names of days")] | None = None
    until: _Day | None = None
    track: ShortText = ""
    owner: ShortText = ""


class PlannedTimetable(Part):
    """A timetable in the form of its YAML file."""

    definitions: Annotated[tuple[PlannedLab, ...], Meta(max_length=1000)]
    fleet: Annotated[tuple[PlannedPool, ...], Meta(max_length=100)]
    sessions: Annotated[tuple[PlannedSessions, ...], Meta(max_length=MOST_SESSIONS)]
    zone: Annotated[str, Meta(max_length=64)] = "UTC"


class PlanOptions(Part):
    """What to compare, and how."""

    compare: Annotated[Mapping[ShortText, tuple[ShortText, ...]], Meta(max_length=8)] = {}
    smallest: bool = False
    faults: Annotated[float, Meta(ge=0, le=100)] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**31)] = 1


class PlanWish(Part):
    """A timetable to play, and what to find out by it."""

    timetable: PlannedTimetable
    options: PlanOptions = PlanOptions()


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a plan."""

    variants: tuple[str, ...] = ()


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

    async def begin(self, wish: PlanWish, by: str) -> PlanJob:
        """Begin a plan. Invalid for a timetable that cannot be read, Throttled while as many run as may."""
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
