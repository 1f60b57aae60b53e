"""`lcm pause|resume|scale pool` and `lcm explain pool`: an operator's changes of pools, and why one scales or not.

`lcm pause` and `lcm resume` are in `cli.fleet.workers`, and come here when a pool is named.
"""

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final, Protocol

import typer

from lcm.cli.output import connection, render
from lcm.cli.output.nouns import naming_missing, noun_of, parse_one_target, title_of
from lcm.cli.output.options import DEFAULT_NAMESPACE, ContextName, DryRun, Namespace, Output
from lcm.cli.output.printer import print_value
from lcm.cli.output.times import format_slot, parse_moment
from lcm.cli.output.zone import Zone, choose_zone
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.errors import Refused
from lcm.model.kinds.placement import (
    AffectedPromise,
    PoolChange,
    PoolExplanation,
    PoolPauseRequest,
    PoolScaleRequest,
    PromiseChoice,
)
from lcm.model.kinds.pool import LabWorkerPool
from lcm.system.clock import SystemClock

PoolRef = Ref[LabWorkerPool]
_POOL_WORDS: Final = noun_of(LabWorkerPool).words
_SHOWN: Final = 10
_DECISIONS: Final = 10


class PoolChangeCall(Protocol):
    """Makes a change of a pool through a plane, or only rehearses it."""

    async def __call__(self, plane: Plane, *, rehearse: bool) -> PoolChange:
        """Make the change, and return what it concerns."""
        ...


class Promises(StrEnum):
    """What becomes of the promises that a change concerns."""

    KEEP = "keep"
    REFUSE = "refuse"


PromisesOption = Annotated[
    Promises,
    typer.Option("--promises", help="What becomes of the bookings that this concerns: kept, or ended with the reason."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before bookings are ended.")]
Until = Annotated[
    str | None,
    typer.Option("--until", metavar="TIME", help="End of a pool's pause: 'monday 7:00', +2h; default: `lcm resume`."),
]


def parse_pool(words: Sequence[str], namespace: str) -> PoolRef | None:
    """Return the pool that words name, as `pool NAME` or `pool/NAME`; None if they name workers."""
    kind, _, name = words[0].partition("/")
    if (len(words) == 1 and not name) or kind not in _POOL_WORDS:
        return None
    return Ref(LabWorkerPool, parse_one_target(words)[1], namespace)


def pause_pool(
    ref: PoolRef, until: str | None, promises: Promises, context: str | None, *, dry_run: bool, yes: bool
) -> None:
    """Pause a pool, and print the promises that this concerns before it is done."""
    zone, now = choose_zone(""), SystemClock().now()
    end = parse_moment(until, now, zone, "--until") if until else None
    wish = PoolPauseRequest(until=end, promises=promises.value)

    async def change(plane: Plane, *, rehearse: bool) -> PoolChange:
        return await plane.pause_pool(ref, wish, dry_run=rehearse)

    lasts = f"until {render.format_relative(end, now)}" if end else "until it is resumed"
    done = f"{_title(ref)} is paused {lasts}: nothing is started but what was promised\n  {_resume_advice(ref)}"
    _change(ref, change, done, wish.promises, context, dry_run=dry_run, yes=yes)


def resume_pool(ref: PoolRef, context: str | None, *, dry_run: bool) -> None:
    """End a pool's pause."""

    async def work(plane: Plane, _: str) -> str:
        with naming_missing(ref):
            await plane.resume_pool(ref, dry_run=dry_run)
        return f"{_title(ref)} is not paused: it follows its policy and its hours"

    connection.act_on_each([ref.name], work, context, dry_run=dry_run)


def scale(
    words: Annotated[list[str], typer.Argument(metavar="pool NAME", help="The pool.")],
    *,
    least: Annotated[int | None, typer.Option("--min", metavar="N", help="Fewest workers.", min=0)] = None,
    most: Annotated[int | None, typer.Option("--max", metavar="N", help="Most workers.", min=1, max=1000)] = None,
    promises: PromisesOption = Promises.KEEP,
    yes: Yes = False,
    namespace: Namespace = DEFAULT_NAMESPACE,
    dry_run: DryRun = False,
    context: ContextName = None,
) -> None:
    """Change how many workers a pool has at least and at most."""
    ref = parse_pool(words, namespace)
    if ref is None:
        raise typer.BadParameter("write `lcm scale pool NAME --min N --max N`", param_hint="pool NAME")
    if least is None and most is None:
        raise typer.BadParameter("give --min, --max or both", param_hint="--min")
    wish = PoolScaleRequest(min_workers=least, max_workers=most, promises=promises.value)

    async def change(plane: Plane, *, rehearse: bool) -> PoolChange:
        return await plane.scale_pool(ref, wish, dry_run=rehearse)

    parts = [f"at least {least}" if least is not None else "", f"at most {most}" if most is not None else ""]
    done = f"{_title(ref)} has {' and '.join(filter(None, parts))} workers from now on"
    _change(ref, change, done, wish.promises, context, dry_run=dry_run, yes=yes)


def _change(
    ref: PoolRef,
    change: PoolChangeCall,
    done: str,
    choice: PromiseChoice,
    context: str | None,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Print the promises that a change concerns, ask if they are to be refused, and make the change."""

    async def act(plane: Plane, _: str) -> str:
        with naming_missing(ref):
            found = await change(plane, rehearse=True)
        for line in affected_lines(found, choice, choose_zone("")):
            render.print_message(line)
        if dry_run:
            return done
        if found.affected and choice == "refuse":
            _confirm(f"End {_count(found)} with this reason?", yes=yes)
        made = await change(plane, rehearse=False)
        if not made.refused:
            return done
        ended = "1 promised booking was" if made.refused == 1 else f"{made.refused} promised bookings were"
        return f"{done}\n  {ended} ended"

    connection.act_on_each([ref.name], act, context, dry_run=dry_run)


def affected_lines(found: PoolChange, choice: PromiseChoice, zone: Zone) -> Iterator[str]:
    """Yield which promises a change concerns, and what becomes of them."""
    if not found.affected:
        return
    one = len(found.affected) + found.affected_left_off == 1
    kept = "is kept: its machine is started" if one else "are kept: their machines are started"
    ended = "is ended, and its owner sees why" if one else "are ended, and their owners see why"
    yield f"{_count(found)} {kept if choice == 'keep' else ended} (--promises keep|refuse):"
    for promise in found.affected[:_SHOWN]:
        yield f"  {_describe_promise(promise)}, {format_slot(promise.start, promise.end, zone)}"
    if (more := len(found.affected) + found.affected_left_off - _SHOWN) > 0:
        yield f"  and {more} more"


def _describe_promise(one: AffectedPromise) -> str:
    part = f" (number {one.number})" if one.number is not None else ""
    kind = "session" if one.kind == "LabletSession" else "reservation"
    return f"{kind}/{one.name}{part} of {one.owner}"


def _count(found: PoolChange) -> str:
    count = len(found.affected) + found.affected_left_off
    return f"{count} promised booking{'' if count == 1 else 's'}"


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused("there is nobody to ask; add --yes to end these bookings")
    typer.confirm(question, abort=True)


def _title(ref: PoolRef) -> str:
    return title_of(LabWorkerPool, ref.name)


def _resume_advice(ref: PoolRef) -> str:
    return f"`lcm resume pool {ref.name}` ends that"


async def explain_pool(plane: Plane, ref: PoolRef, output: Output) -> None:
    """Print why a pool did or did not scale."""
    with naming_missing(ref):
        found = await plane.explain_pool(ref)
    if output in {Output.JSON, Output.YAML}:
        print_value(found, output)
        return
    shown = len(found.decisions) if output is Output.WIDE else _DECISIONS
    for text in pool_texts(found, SystemClock().now(), shown):
        render.print_text(text)


def pool_texts(found: PoolExplanation, now: datetime, shown: int) -> Iterator[str]:
    """Yield a pool's explanation in sentences: the present answer, what helps, what was considered, what was before."""
    verb = {"scale_up": "grows", "scale_down": "shrinks", "none": "stays as it is"}[found.action]
    size = f"{found.workers} workers, {found.min_workers} to {found.max_workers} allowed, policy {found.policy}"
    yield f"{title_of(LabWorkerPool, found.pool)} {verb} ({found.why}): {found.reason}"
    if found.remedy:
        yield f"  {found.remedy}"
    yield f"  {found.phase}, {size}"
    yield from (f"  {one}" for one in found.considered)
    if found.decisions:
        yield "Before, newest first:"
    for one in found.decisions[:shown]:
        yield f"  {render.format_age(one.at, now)} ago {one.action} ({one.why or 'booked'}): {one.reason}"
