"""`lcm wait`: until an object has come to something, or cannot any more, or time is up."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from lcm.cli.output import connection, render
from lcm.cli.output.columns import phase_of
from lcm.cli.output.follow import follow, named
from lcm.cli.output.nouns import Noun, one, title_of
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, Namespace, Target, Timeout
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Gone
from lcm.model.base.machine import Machine
from lcm.model.base.resource import Truth, condition
from lcm.model.kinds.registry import Resource

_SPAN: Final = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s?)?")
_FORMS: Final = "write phase=READY, condition=Licensed, condition=Licensed=False, delete or exists"


@dataclass(frozen=True, slots=True)
class Goal:
    """What is waited for. `hopeless` says why it cannot happen any more, or nothing."""

    text: str
    met: Callable[[Resource | None], bool]
    hopeless: Callable[[Resource], str] = lambda _: ""
    from_nothing: bool = False
    """Whether something that is not there may come to it."""


GONE: Final = Goal("gone", lambda found: found is None)


def wait(
    target: Target = None,
    *,
    wanted: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="WHAT",
            help="phase=PHASE, condition=TYPE[=False|Unknown], delete, or exists.",
            show_default=False,
        ),
    ],
    timeout: Timeout = "10m",
    namespace: Namespace = DEFAULT_NAMESPACE,
    context: ContextName = None,
) -> None:
    """Wait until an object has come to something.

    Ends with 7 when time is up, and with 8 as soon as it can no longer happen.
    """
    noun, name = one(target or [])
    goal = goal_of(noun, wanted)
    limit = span_of(timeout)
    ref: Ref[Any] = Ref(noun.struct, name, namespace)
    connection.with_plane(lambda plane: _reach(plane, ref, goal, limit), context)


def goal_of(noun: Noun, text: str) -> Goal:
    """Understand what is waited for."""
    what, _, value = text.partition("=")
    match what:
        case "delete" if not value:
            return GONE
        case "exists" if not value:
            return Goal("there", lambda found: found is not None, from_nothing=True)
        case "phase" if value:
            return _phase_goal(noun, value.upper())
        case "condition" if value:
            return _condition_goal(noun, value)
    raise typer.BadParameter(f"{text!r} is nothing to wait for; {_FORMS}", param_hint="--for")


def span_of(text: str, hint: str = "--timeout") -> timedelta:
    """Read a length of time such as 90s, 10m or 1h30m."""
    found = _SPAN.fullmatch(text.strip())
    if not found or not any(found.groups()):
        raise typer.BadParameter(f"{text!r} is no length of time; write 30s, 10m or 2h", param_hint=hint)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    try:
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError as error:
        raise typer.BadParameter(f"{text!r} is too long", param_hint=hint) from error


def reachable(machine: Machine[Any], phase: str) -> set[str]:
    """Name every phase that may come after this one."""
    found: set[str] = set()
    left = [phase]
    while left:
        source = left.pop()
        new = {str(step.target) for step in machine.steps if step.source == source} - found
        found |= new
        left += new
    return found


def _phase_goal(noun: Noun, phase: str) -> Goal:
    machine = noun.kind.machine
    if machine is None:
        raise typer.BadParameter(f"a {noun.singular} has no phases", param_hint="--for")
    if phase not in machine.phases:
        raise typer.BadParameter(f"{phase} is no phase; there are {', '.join(machine.phases)}", param_hint="--for")

    def hopeless(found: Resource) -> str:
        if phase in reachable(machine, phase_of(found)):
            return ""
        return f"it is {phase_of(found)}, from which it cannot become {phase}{_because(found)}"

    return Goal(phase, lambda found: found is not None and phase_of(found) == phase, hopeless)


def _condition_goal(noun: Noun, value: str) -> Goal:
    name, _, status = value.partition("=")
    truth = next((one for one in Truth if one.lower() == (status or "true").lower()), None)
    if truth is None:
        raise typer.BadParameter(f"{status!r} is no status; {', '.join(Truth)} are", param_hint="--for")
    machine = noun.kind.machine

    def met(found: Resource | None) -> bool:
        seen = condition(found.status.conditions, name) if found else None
        return seen is not None and seen.status is truth

    def hopeless(found: Resource) -> str:
        if machine is None or phase_of(found) not in machine.final:
            return ""
        return f"it has ended {phase_of(found)}{_because(found)}"

    return Goal(f"{name}={truth}", met, hopeless)


def _because(found: Resource) -> str:
    last = found.status.history[-1].reason if found.status.history else ""
    why = getattr(found.status, "last_error", "") or last
    return f": {render.clean(why)}" if why else ""


async def _reach(plane: Plane, ref: Ref[Any], goal: Goal, limit: timedelta) -> None:
    phases: list[str] = []

    def tell(now: Resource) -> None:
        if phase_of(now) not in {"", *phases[-1:]}:
            phases.append(phase_of(now))
            render.say(f"{phases[-1]}{_because(now)}")

    try:
        async with asyncio.timeout(limit.total_seconds() or None):
            await until(plane, ref, goal, tell, once=not limit)
    except TimeoutError as error:
        last = f"; it is {phases[-1]}" if phases else ""
        raise connection.TimeIsUp(f"{_title(ref)} is not {goal.text} after {render.span(limit)}{last}") from error
    render.out(f"{_title(ref)} is {goal.text}")


async def until(
    plane: Plane,
    ref: Ref[Any],
    goal: Goal,
    tell: Callable[[Resource], None] = lambda _: None,
    *,
    once: bool = False,
) -> None:
    """Wait for a goal, telling each state on the way; Gone or Impossible when it is not to be.

    With `once`, TimeoutError unless it is reached already.
    """
    found: Resource | None = await plane.get(ref)
    if found is None and not goal.met(None) and not goal.from_nothing:
        raise Gone(f"there is no {_title(ref)} in namespace {ref.namespace}")
    if found is not None and not goal.met(None):
        # What is in the archive can be read, not followed.
        tell(found)
        if goal.met(found):
            return
        _still_possible(ref, goal, found)
    name = found.metadata.name if found else ref.name
    async for changes in follow(plane, {ref.kind: named(name)}, namespace=ref.namespace):
        now = changes[-1].resource if changes else None
        if now:
            tell(now)
        if goal.met(now):
            return
        _still_possible(ref, goal, now)
        if once:
            raise TimeoutError


def _still_possible(ref: Ref[Any], goal: Goal, now: Resource | None) -> None:
    if now is None and not goal.from_nothing:
        raise connection.Impossible(f"{_title(ref)} is gone; it cannot become {goal.text}")
    why = goal.hopeless(now) if now else ""
    if why:
        raise connection.Impossible(f"{_title(ref)} will not be {goal.text}: {why}")


def _title(ref: Ref[Any]) -> str:
    return title_of(ref.kind, ref.name)
