"""Checks that changes are published, once and in order, also to a client that was away for a while."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import msgspec

from lcm.control.delivery.events import phase_of
from lcm.model.access.identity import SEES_ALL, Caller
from lcm.model.base.event import Event
from lcm.model.kinds.registry import Resource
from lcm.sim.world.world import Violation
from world.checks.violation import violation
from world.observed import Commit, ObservedChange, ObservedState, PublishedEvent

GAP: Final = "event gap or duplicate for a resuming client"
EventPosition = tuple[int, int]
"""Where an event is: its commit's revision, and its number there."""


def change_is_told(_seen: ObservedState, commit: Commit) -> Sequence[Violation]:
    """Check that a commit which creates or removes an object, or changes its phase, publishes an event for it.

    A move into the archive is excused: whoever looks for the object finds it as before.
    """
    told = {(one.event.kind, one.event.namespace, one.event.name) for one in commit.told}
    news = [turn.latest for turn in commit.turns if _is_news(turn) and not (commit.archived and turn.after is None)]
    untold = [one for one in news if (one.kind, one.metadata.namespace, one.metadata.name) not in told]
    return [violation(GAP, f"{phase_of(one) or 'its change'} was not told", one) for one in untold]


def alerts_are_told(seen: ObservedState) -> Sequence[Violation]:
    """Check that every alert that is raised was published, and that no later event says it was cleared."""
    raised = dict(seen.restored_alerts)
    for one in seen.events:
        if one.event.type in {"alert.raised", "alert.cleared"}:
            name = _alert_name(one.event)
            raised[one.event.kind, one.event.name, name] = one.event.type == "alert.raised"
    standing = [alert for board in seen.alerts.values() for alert in board]
    return [
        Violation(GAP, f"{one.alert} about {one.name} stands and is not told", (f"{one.kind}/{one.name}",))
        for one in standing
        if not raised.get((one.kind, one.name, one.alert), False)
    ]


def heard_each_once(
    caller: Caller,
    heard: Sequence[EventPosition],
    committed: Sequence[PublishedEvent],
    *,
    after: EventPosition,
    until: EventPosition,
) -> Sequence[Violation]:
    """Check that a listener received every event that it may see between two places, once and in order."""
    wanted = [(one.revision, one.number) for one in committed if _may_receive(caller, one.event)]
    wanted = [place for place in wanted if after < place <= until]
    if list(heard) == wanted:
        return ()
    missing, more = sorted(set(wanted) - set(heard)), sorted(set(heard) - set(wanted))
    twice = [old for old, new in pairwise(sorted(heard)) if old == new]
    found = [("missed", missing), ("heard what is not its own", more), ("heard twice", twice)]
    told = "; ".join(f"{what} {places[:5]}" for what, places in found if places) or "heard in another order"
    return [Violation(GAP, f"{caller.name} {told}", ())]


def _is_news(turn: ObservedChange[Resource]) -> bool:
    return turn.before is None or turn.after is None or phase_of(turn.before) != phase_of(turn.after)


def _may_receive(caller: Caller, event: Event) -> bool:
    return caller.role in SEES_ALL or event.public or (event.owner is not None and event.owner == caller.name)


def _alert_name(event: Event) -> str:
    return msgspec.json.decode(event.data, type=_AlertName).alert


class _AlertName(msgspec.Struct):
    alert: str
