"""Faults to inject into a simulated CML's answers; tests and the admin face set them, the faces obey them."""

import fnmatch
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct


class HttpFault(Struct, forbid_unknown_fields=True):
    """What to do to the next answers to matching requests, such as `GET /api/v0/labs*`."""

    match: Annotated[str, Meta(min_length=3, max_length=300)] = "* *"
    times: Annotated[int, Meta(ge=1)] = 1
    status: Annotated[int, Meta(ge=400, le=599)] | None = None
    """Answer this status instead of carrying the request out."""
    delay_seconds: Annotated[float, Meta(ge=0)] = 0.0
    """Wait before carrying the request out."""
    hang: bool = False
    """Carry the request out and never answer."""
    cut: bool = False
    """Carry the request out and break the connection in the middle of the answer."""
    body: str | None = None
    """Carry the request out and answer this text instead, such as a JSON value of a wrong type."""


class Faults:
    """Faults that wait for their requests."""

    def __init__(self) -> None:
        self._waiting: list[HttpFault] = []

    def add(self, fault: HttpFault) -> None:
        """Inject a fault into the next matching answers."""
        self._waiting.append(fault)

    def clear(self) -> None:
        """Forget all faults."""
        self._waiting.clear()

    def waiting(self) -> Sequence[HttpFault]:
        """List the faults that have not happened as often as they should."""
        return list(self._waiting)

    def take(self, request: str) -> HttpFault | None:
        """Return the fault for a request, such as `GET /api/v0/labs`, and count it."""
        for fault in self._waiting:
            if fnmatch.fnmatchcase(request, fault.match):
                fault.times -= 1
                if not fault.times:
                    self._waiting.remove(fault)
                return fault
        return None


class Refusal(Exception):
    """A request that CML does not carry out: its HTTP status and its text."""

    def __init__(self, status: int, description: str) -> None:
        super().__init__(description)
        self.status = status
        self.description = description


class Full(Refusal):
    """Starting would exceed the licence's node limit or a resource pool."""

    def __init__(self, description: str) -> None:
        super().__init__(400, description)


class Down(Exception):
    """CML does not answer: its proxy answers 502 (`listening`), nothing listens, or its cloud runs no such machine."""

    def __init__(self, *, listening: bool, there: bool = True) -> None:
        nothing = "nothing listens" if there else "the machine does not run"
        super().__init__("CML is not ready yet" if listening else nothing)
        self.listening = listening
        self.there = there


def missing(what: str, ref: str) -> Refusal:
    """Say that an object is not there, in the words by which CML's own client recognises it."""
    return Refusal(404, f"{what} not found: {ref}")


def bad(description: str) -> Refusal:
    """Say that a request makes no sense as it is, or not in this state."""
    return Refusal(400, description)


def forbidden(description: str = "Access is denied.") -> Refusal:
    """Say that this user may not do this."""
    return Refusal(403, description)
