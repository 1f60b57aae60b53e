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
