"""Describes a run that went wrong: its seed, how to replay it, the rule, and the story of the objects involved.

`sim.world.witness` writes lines with it; `make sim` and tests print its description of an outcome.
"""

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from lcm.control.delivery.events import phase_of
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.sim.world.world import Violation
from world.observed import ObservedChange
from world.one_line import format_scenario

if TYPE_CHECKING:
    from world.checked import RunOutcome
    from world.witness import StoryLine


LONGEST_STORY: Final = 60
"""The most lines of a story that are printed: the last ones say most."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.:-]*[a-z0-9]")


def describe_outcome(outcome: "RunOutcome") -> str:
    """Describe the first violation of a run; empty for a run without one."""
    return "\n".join(line for found in outcome.violations[:1] for line in _outcome_lines(outcome, found))


def describe_change(turn: ObservedChange[Resource]) -> str:
    """Describe in a line what a commit did to an object; empty when nothing of interest changed."""
    before, after = turn.before, turn.after
    name = f"{turn.latest.kind}/{turn.latest.metadata.name}"
    if after is None:
        return f"{name} is removed"
    old, new = _facts(before) if before else {}, _facts(after)
    changed = [f"{key} {value}" for key, value in new.items() if old.get(key) != value]
    changed += [f"no {key}" for key in old if key not in new]
    if before is None or phase_of(before) != phase_of(after):
        line = after.status.history[-1] if after.status.history else None
        by = f" by {line.by}" + (f": {line.reason}" if line.reason else "") if line else ""
        step = f"{phase_of(before)} -> {phase_of(after)}" if before else f"made {phase_of(after) or ''}"
        return " ".join([name, step, f"({', '.join(changed)})" if changed else "", by]).replace("  ", " ").rstrip()
    return f"{name} {', '.join(changed)}" if changed else ""


def names_in(text: str) -> tuple[str, ...]:
    """Return what may be the names of objects in a text."""
    return tuple(_NAME.findall(text))


def lines_about(story: Sequence["StoryLine"], about: Sequence[str]) -> Sequence["StoryLine"]:
    """Return the lines that concern objects, by their names, without their kinds."""
    names = {one.rpartition("/")[2] for one in about}
    return [line for line in story if not names.isdisjoint(line.about)]


def _outcome_lines(outcome: "RunOutcome", found: Violation) -> Iterator[str]:
    scenario = outcome.scenario
    yield f"seed {scenario.seed}: {found.rule}"
    yield f"  {found.text}"
    yield f"  about {', '.join(found.about) or 'the whole world'}; trace {outcome.trace}"
    yield f"  replay: make sim ONE='{format_scenario(scenario)}'"
    lines = lines_about(outcome.story, found.about) if found.about else outcome.log
    if len(lines) > LONGEST_STORY:
        yield f"  ({len(lines) - LONGEST_STORY} earlier lines are left out)"
    yield from (f"  {line}" for line in lines[-LONGEST_STORY:])
    if len(outcome.violations) > 1:
        yield f"  and {len(outcome.violations) - 1} more"


def _facts(resource: Resource) -> dict[str, str]:
    match resource:
        case LabletSession():
            found = _session_facts(resource)
        case LabWorker():
            found = _worker_facts(resource)
        case Reservation(status=status):
            found = {"held": str(sum(one.session is None for one in status.held))}
        case _:
            found = {}
    if resource.metadata.deletion_timestamp is not None:
        found["deleted"] = f"{resource.metadata.deletion_timestamp:%H:%M:%S}"
    return {key: value for key, value in found.items() if value}


def _session_facts(session: LabletSession) -> dict[str, str]:
    status, spec = session.status, session.spec
    claim, seat = status.claim, status.seat
    return {
        "slot": f"{spec.timeslot_start:%d %H:%M}-{spec.timeslot_end:%H:%M}"
        if spec.timeslot_start and spec.timeslot_end
        else "as soon as possible",
        "claim": f"{claim.start:%d %H:%M:%S}-{claim.end:%H:%M:%S}" if claim else "",
        "seat": f"{seat.pool}/{seat.number}" if seat else "",
        "worker": status.worker_name or status.worker_id or "",
        "retries": str(status.retry_count or ""),
        "error": status.last_error,
        "conditions": " ".join(f"{one.type}={one.status}" for one in status.conditions),
    }


def _worker_facts(worker: LabWorker) -> dict[str, str]:
    status = worker.status
    return {
        "machine": status.ec2.instance_id,
        "wanted": worker.spec.wanted_state,
        "error": status.last_error,
        "deadline": f"{status.drain_deadline_at:%d %H:%M:%S}" if status.drain_deadline_at else "",
        "licensed": str(status.cml.licensed),
        "failure": status.failure,
    }
