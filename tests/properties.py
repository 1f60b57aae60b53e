"""Properties that hold for all values: hypothesis, as this suite uses it."""

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

import chaos

_patient = settings(max_examples=25 * chaos.TIMES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Whether the machine is busy with something else says nothing about the code. `LCM_CHAOS` multiplies the examples."""


def for_all(*values: SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for many values of each strategy."""

    def bound(test: Callable[..., None]) -> Callable[..., None]:
        return _patient(given(*values)(test))

    return bound
