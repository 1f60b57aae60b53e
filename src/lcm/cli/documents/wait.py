"""`lcm wait`: wait until an object reaches a state, can no longer reach it, or the time is up."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from lcm.cli.output import connection, exit_codes, render
from lcm.cli.output.columns import phase_of
from lcm.cli.output.follow import filter_by_name, follow
from lcm.cli.output.nouns import Noun, missing, parse_one_target, title_of
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, Namespace, Target, Timeout
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.machine import StateMachine
from lcm.model.base.resource import Truth, find_condition
from lcm.model.kinds.registry import Resource

_SPAN: Final = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s?)?")
_FORMS: Final = "write phase=READY, condition=Licensed, condition=Licensed=False, delete or exists"


@dataclass(frozen=True, slots=True)
class Goal:
    """The state that is waited for. `hopeless` returns why it can no longer be reached, or an empty text."""

    text: str
    is_met: Callable[[Resource | None], bool]
    hopeless: Callable[[Resource], str] = lambda _: ""
    from_nothing: bool = False
    """Whether an object that does not exist yet may reach it."""


GONE: Final = Goal("gone", lambda found: found is None)


def wait(
    target: Target = None,
    *,
    wanted: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="WHAT",
            help="State to wait for: phase=PHASE, condition=TYPE[=False|Unknown], delete or exists.",
            show_default=False,
        ),
    ],
    timeout: Timeout = "10m",
    namespace: Namespace = DEFAULT_NAMESPACE,
    context: ContextName = None,
) -> None:
    """Wait until an object reaches a state.

    Exits with 7 when the time is up, and with 8 as soon as the state can no longer be reached.
    """
    noun, name = parse_one_target(target or [])
    goal = parse_goal(noun, wanted)
    limit = parse_duration(timeout)
    ref: Ref[Any] = Ref(noun.struct, name, namespace)
    connection.with_plane(lambda plane: _wait_and_report(plane, ref, goal, limit), context)


def parse_goal(noun: Noun, text: str) -> Goal:
    """Parse the value of `--for`."""
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
    raise typer.BadParameter(f"{text!r} is not a state to wait for; {_FORMS}", param_hint="--for")


def parse_duration(text: str, hint: str = "--timeout") -> timedelta:
    """Parse a duration such as 90s, 10m or 1h30m."""
    found = _SPAN.fullmatch(text.strip())
    if not found or not any(found.groups()):
        raise typer.BadParameter(f"{text!r} is not a duration; write 30s, 10m or 2h", param_hint=hint)
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    try:
        return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    except OverflowError as error:
        raise typer.BadParameter(f"{text!r} is too long", param_hint=hint) from error


def reachable_phases(machine: StateMachine[Any], phase: str) -> set[str]:
    """Return every phase that may come after this one."""
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
        raise typer.BadParameter(
            f"{phase} is not a phase; the phases are {', '.join(machine.phases)}", param_hint="--for"
        )

    def hopeless(found: Resource) -> str:
        if phase in reachable_phases(machine, phase_of(found)):
            return ""
        return f"it is {phase_of(found)}, from which it cannot become {phase}{_reason_suffix(found)}"

    return Goal(phase, lambda found: found is not None and phase_of(found) == phase, hopeless)


def _condition_goal(noun: Noun, value: str) -> Goal:
    name, _, status = value.partition("=")
    truth = next((one for one in Truth if one.lower() == (status or "true").lower()), None)
    if truth is None:
        raise typer.BadParameter(f"{status!r} is not a status; use {', '.join(Truth)}", param_hint="--for")
    machine = noun.kind.machine

    def is_met(found: Resource | None) -> bool:
        seen = find_condition(found.status.conditions, name) if found else None
        return seen is not None and seen.status is truth

    def hopeless(found: Resource) -> str:
        if machine is None or phase_of(found) not in machine.final:
            return ""
        return f"it has ended {phase_of(found)}{_reason_suffix(found)}"

    return Goal(f"{name}={truth}", is_met, hopeless)


def _reason_suffix(found: Resource) -> str:
    last = found.status.history[-1].reason if found.status.history else ""
    why = getattr(found.status, "last_error", "") or last
    return f": {render.sanitize(why)}" if why else ""


async def _wait_and_report(plane: Plane, ref: Ref[Any], goal: Goal, limit: timedelta) -> None:
    phases: list[str] = []

    def tell(now: Resource) -> None:
        if phase_of(now) not in {"", *phases[-1:]}:
            phases.append(phase_of(now))
            render.print_message(f"{phases[-1]}{_reason_suffix(now)}")

    try:
        async with asyncio.timeout(limit.total_seconds() or None):
            await wait_until(plane, ref, goal, tell, once=not limit)
    except TimeoutError as error:
        last = f"; it is {phases[-1]}" if phases else ""
        raise exit_codes.WaitTimedOut(
            f"{_title(ref)} is not {goal.text} after {render.format_span(limit)}{last}; "
            f"`lcm story {_title(ref)}` shows what happened so far"
        ) from error
    render.print_line(f"{_title(ref)} is {goal.text}")


async def wait_until(
    plane: Plane,
    ref: Ref[Any],
    goal: Goal,
    tell: Callable[[Resource], None] = lambda _: None,
    *,
    once: bool = False,
) -> None:
    """Wait for a goal and call `tell` with each state on the way; raise Gone or Impossible when it cannot be reached.

    With `once`, raise TimeoutError unless it is reached already.
    """
    found: Resource | None = await plane.get(ref)
    if found is None and not goal.is_met(None) and not goal.from_nothing:
        raise missing(ref)
    if found is not None and not goal.is_met(None):
        # An archived object can be read but not watched.
        tell(found)
        if goal.is_met(found):
            return
        _check_possible(ref, goal, found)
    name = found.metadata.name if found else ref.name
    async for changes in follow(plane, {ref.kind: filter_by_name(name)}, namespace=ref.namespace):
        now = changes[-1].resource if changes else None
        if now:
            tell(now)
        if goal.is_met(now):
            return
        _check_possible(ref, goal, now)
        if once:
            raise TimeoutError


def _check_possible(ref: Ref[Any], goal: Goal, now: Resource | None) -> None:
    if now is None and not goal.from_nothing:
        raise exit_codes.Impossible(f"{_title(ref)} is gone; it cannot become {goal.text}")
    why = goal.hopeless(now) if now else ""
    if why:
        raise exit_codes.Impossible(
            f"{_title(ref)} will not be {goal.text}: {why}; `lcm describe {_title(ref)}` shows more"
        )


def _title(ref: Ref[Any]) -> str:
    return title_of(ref.kind, ref.name)
