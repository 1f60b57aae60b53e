"""What a new folder begins with: `lcm up --first PATH` applies documents once, before anything acts. Called by `up`.

They go the way of `lcm apply`: lab files are uploaded, definitions completed, slots promised. A folder with something
in it already is left as it is, and so is one from which somebody has deleted them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import typer

from lcm.cli import lab_files
from lcm.cli.lab_files import attached
from lcm.cli.local_context import ADMIN
from lcm.cli.nouns import Noun, noun_of
from lcm.cli.sources import Gathered, Source, gather, placed, traced
from lcm.compose import Embedded
from lcm.control.applying import ORDER
from lcm.control.beginning import begin, beginning, finish, is_empty
from lcm.control.plane import Applied, Plane
from lcm.model.errors import Invalid, NoRoom
from lcm.model.identity import Caller, Role
from lcm.system import SystemClock

_BOOKINGS: Final = frozenset({"Reservation", "LabletSession"})


@dataclass(slots=True)
class First:
    """Documents for a new folder, read before it is touched, and in a few words what became of them."""

    paths: Sequence[str]
    found: Gathered
    outcome: str = ""

    async def __call__(self, it: Embedded) -> None:
        """Apply them if the store is new, or if a process that did so died over it; Invalid with every fault."""
        store, clock = it.running.store, SystemClock()
        begun = await beginning(store)
        if begun is not None and begun.done_at is not None:
            self.outcome = f"applied on {begun.done_at:%Y-%m-%d}, when this folder was new"
            return
        if begun is None and not await is_empty(store):
            self.outcome = f"not applied, for this folder is not new; `lcm apply -f {self.paths[0]}` does it"
            return
        # A start that died over it is gone on with: what is there already stays as it is.
        begun = begun or await begin(store, clock.now())
        self.outcome = await self._applied(it.running.control.acting(Caller(name=ADMIN, role=Role.ADMIN)))
        await finish(store, begun, clock.now())

    async def _applied(self, plane: Plane) -> str:
        sources = self.found.sources
        results = [*await _apply(plane, [one for one in sources if one.value.get("kind") not in _BOOKINGS])]
        refused = list[NoRoom]()
        # One by one, as people book: at another speed some slots are too soon, which is nothing to the others.
        for booking in (one for one in sources if one.value.get("kind") in _BOOKINGS):
            try:
                results += await _apply(plane, [booking])
            except NoRoom as error:
                refused.append(error)
        return counted(results) + (f"; {len(refused)} more bookings have no room: {refused[0]}" if refused else "")


async def _apply(plane: Plane, sources: Sequence[Source]) -> Sequence[Applied]:
    what = attached(sources, now=SystemClock().now())
    if what.faults:
        raise Invalid(*what.faults)
    try:
        return await lab_files.applied(plane, what, dry_run=False)
    except Invalid as error:
        raise Invalid(*traced(error.faults, what.sources)) from error
    except NoRoom as error:
        raise NoRoom(placed(str(error), what.sources), why=error.why) from error


def first(paths: Sequence[str]) -> First | None:
    """Read what a new folder begins with; None for nothing. Invalid when something cannot be read."""
    if not paths:
        return None
    try:
        found = gather(paths, recursive=False)
    except typer.BadParameter as error:
        raise typer.BadParameter(error.message, param_hint="--first") from error
    if faults := [*found.faults, *attached(found.sources).faults]:
        raise Invalid(*faults)
    return First(paths, found)


def counted(results: Iterable[Applied]) -> str:
    """Say how many there are of each kind: `2 pools, 1 definition`."""
    counts = Counter(one.kind for one in results)
    nouns = ((noun_of(kind), counts[kind]) for kind in ORDER if counts[kind])
    return ", ".join(_many(noun, count) for noun, count in nouns)


def _many(noun: Noun, count: int) -> str:
    if noun.singular == noun.plural:
        return noun.plural
    return f"{count} {noun.singular if count == 1 else noun.plural}"
