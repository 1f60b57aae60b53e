"""Whether this process may still act on the outside world.

A leader's tasks inherit the permit of its term (`controllers.election` sets it). Every provider calls `check_permit`
at the last moment before a request that changes something leaves the process. So a leader that slept through the end
of its term is stopped there, whatever it checked before.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_PERMIT: Final[ContextVar[Callable[[], None] | None]] = ContextVar("PERMIT", default=None)


@contextmanager
def permit_scope(check: Callable[[], None]) -> Iterator[None]:
    """Allow everything that is begun inside to act only while `check` does not raise Deposed."""
    token = _PERMIT.set(check)
    try:
        yield
    finally:
        _PERMIT.reset(token)


def check_permit() -> None:
    """Raise Deposed if the leader that began this may no longer act. Without a term, as in tools, it may."""
    check = _PERMIT.get()
    if check is not None:
        check()
