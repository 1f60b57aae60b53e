"""SchedulingDecision: where a session goes, or why it waits."""

from typing import Literal

import msgspec

from lcm.model.resource import Part


class Rejection(Part):
    """How many workers one filter turned away, with a few of them and the reason each got."""

    filter: str
    count: int
    examples: tuple[str, ...] = ()


class SchedulingDecision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do with a session: assign it, open a seat for it, or let it wait."""

    action: Literal["assign", "scale_up", "wait"]
    worker_id: str | None = None
    worker_template: str | None = None
    reason: str = ""
    score: float | None = None
    candidates_evaluated: int = 0
    latency_ms: float = 0.0
    rejections: tuple[Rejection, ...] = ()
