"""What is wrong with many documents, each fault with its document's place, and not without end. Used by `applying`."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from lcm.model.errors import Conflict, Fault, Forbidden, Invalid

MOST_FAULTS: Final = 500
"""So many faults are told of one request."""

_BREATH_SECONDS: Final = 0.01
_MORE: Final = Fault("documents", "and more faults", "correct those told first")


@dataclass(slots=True)
class Verdicts:
    """The faults of documents, by place."""

    late: bool = False
    """Others wrote in between: what only they can explain is raised as it is."""
    found: dict[int, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0

    @property
    def enough(self) -> bool:
        """Tell whether looking for more would tell nobody anything."""
        return self.count >= MOST_FAULTS

    def add(self, place: int, error: Invalid | Conflict | Forbidden, *, but: str | None = None) -> None:
        """Note what was said against a document; `but` is a path that something else is to blame for."""
        # What is being deleted may go or stay: no document is to blame for that.
        passing = isinstance(error, Conflict) and 0 < error.wanted == error.found
        if passing or (self.late and not isinstance(error, Invalid)):
            raise error
        faults = [_placed(place, fault) for fault in _faults(error) if fault.path != but]
        self.found[place] += faults
        self.count += len(faults)

    def settle(self) -> None:
        """Raise Invalid if anything was noted."""
        if not self.count:
            return
        every = [fault for place in sorted(self.found) for fault in self.found[place]]
        raise Invalid(*every[:MOST_FAULTS], *([_MORE] if self.enough else []))


@dataclass(slots=True)
class Breath:
    """Gives others their turn during long work."""

    since: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    async def take(self) -> None:
        """Let others run if they have waited for a while."""
        time = asyncio.get_running_loop().time
        if time() - self.since > _BREATH_SECONDS:
            await asyncio.sleep(0)
            self.since = time()


def _placed(place: int, fault: Fault) -> Fault:
    where = f"documents[{place}]"
    return Fault(where if fault.path == "document" else f"{where}.{fault.path}", fault.problem, fault.remedy)


def _faults(error: Invalid | Conflict | Forbidden) -> Sequence[Fault]:
    return error.faults if isinstance(error, Invalid) else tuple(_single(error))


def _single(error: Conflict | Forbidden) -> Iterator[Fault]:
    if isinstance(error, Forbidden):
        yield Fault("document", str(error), "leave that to somebody who may")
    elif error.wanted:
        problem = f"{error.wanted} was asked for, but the object is {_at(error.found)}"
        yield Fault("metadata.resource_version", problem, "read it again, or leave resource_version out")
    else:
        yield Fault("metadata.name", "the name is taken", "use another")


def _at(revision: int) -> str:
    return f"at {revision}" if revision else "not there"
