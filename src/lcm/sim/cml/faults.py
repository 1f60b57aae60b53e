"""Faults to inject into a simulated CML's HTTP answers, and the refusals of its engine.

Tests and the simulator's own REST calls set faults. Each interface puts refusals into its own form.
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Annotated, TypeVar

from msgspec import Meta, Struct

T = TypeVar("T")


class HttpFault(Struct, forbid_unknown_fields=True):
    """What to do to the next answers to matching requests, such as `GET /api/v0/labs*`."""

    match: Annotated[str, Meta(min_length=3, max_length=300)] = "* *"
    times: Annotated[int, Meta(ge=1)] = 1
    status: Annotated[int, Meta(ge=400, le=599)] | None = None
    """Answer with this status instead of performing the request."""
    delay_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Wait before performing the request."""
    hang: bool = False
    """Perform the request and never answer."""
    cut: bool = False
    """Perform the request and break the connection in the middle of the answer."""
    body: str | None = None
    """Perform the request and answer this text instead, such as a JSON value of a wrong type."""


class HttpFaults:
    """Faults that wait for matching requests."""

    def __init__(self) -> None:
        self._waiting: list[HttpFault] = []

    def add(self, fault: HttpFault) -> None:
        """Inject a fault into the next matching answers."""
        self._waiting.append(fault)

    def clear(self) -> None:
        """Remove all faults."""
        self._waiting.clear()

    def pending(self) -> Sequence[HttpFault]:
        """Return the faults that have not happened as often as they should."""
        return list(self._waiting)

    def take(self, request: str) -> HttpFault | None:
        """Return the fault for a request, such as `GET /api/v0/labs`, and count it; None when there is none."""
        for fault in self._waiting:
            if fnmatch.fnmatchcase(request, fault.match):
                fault.times -= 1
                if not fault.times:
                    self._waiting.remove(fault)
                return fault
        return None


class CmlRefusal(Exception):
    """A request that CML refuses: its HTTP status and its text."""

    def __init__(self, status: int, description: str) -> None:
        super().__init__(description)
        self.status = status
        self.description = description


class CmlFull(CmlRefusal):
    """Starting would exceed the licence's node limit or a resource pool."""

    def __init__(self, description: str) -> None:
        super().__init__(400, description)


class CmlDown(Exception):
    """CML does not answer: its proxy answers 502 (`listening`), nothing listens, or its machine does not run."""

    def __init__(self, *, listening: bool, there: bool = True) -> None:
        nothing = "nothing listens" if there else "the machine does not run"
        super().__init__("CML is not ready yet" if listening else nothing)
        self.listening = listening
        self.there = there


def not_found(what: str, ref: str) -> CmlRefusal:
    """Return the refusal for an unknown object, in the words by which CML's own client recognises it."""
    return CmlRefusal(404, f"{what} not found: {ref}")


def find_known(what: str, known: Mapping[str, T], ref: str) -> T:
    """Return an object by its id; refuse an unknown one."""
    if ref not in known:
        raise not_found(what, ref)
    return known[ref]


def bad_request(description: str) -> CmlRefusal:
    """Return the refusal for a request that is invalid, or not possible in this state."""
    return CmlRefusal(400, description)


def forbidden(description: str = "Access is denied.") -> CmlRefusal:
    """Return the refusal for a user who may not do this."""
    return CmlRefusal(403, description)
