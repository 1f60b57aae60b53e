"""Whether this process may still act on the outside world.

A leader's tasks inherit the permit of its term (`controllers.election` sets it). Every provider asks `permit` at the
last moment before a request that changes something leaves the process: whoever slept through the end of its term is
stopped there, and not by the memory of having asked before.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

_PERMIT: Final[ContextVar[Callable[[], None] | None]] = ContextVar("PERMIT", default=None)


@contextmanager
def under(check: Callable[[], None]) -> Iterator[None]:
    """Let everything that is begun inside act only while `check` does not raise Deposed."""
    token = _PERMIT.set(check)
    try:
        yield
    finally:
        _PERMIT.reset(token)


def permit() -> None:
    """Raise Deposed if whoever began this may not act any more; people and tools without a term may."""
    check = _PERMIT.get()
    if check is not None:
        check()
