"""A fleet that cannot be relied on, for tests of what must not happen then."""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ParamSpec

import structlog

from fleets import Fleet
from lcm.model.base.errors import Later, Unreachable
from lcm.providers.protocols.compute import Instance
from lcm.sim.cloud.effects import PowerHistory
from lcm.sim.cloud.machines import SimMachine
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.faults import CmlDown
from lcm.sim.time.loop import run
from outages import FallibleStore

A = ParamSpec("A")


def virtually(test: Callable[A, Coroutine[Any, Any, None]]) -> Callable[A, None]:
    """Run a test in virtual time, days of it if need be, without writing down what every minute brought."""

    @functools.wraps(test)
    def wrapped(*args: A.args, **kwargs: A.kwargs) -> None:
        with structlog.testing.capture_logs():
            run(lambda: test(*args, **kwargs), horizon=timedelta(days=3))

    return wrapped


class Unreliable(Fleet):
    """A fleet whose cloud and CMLs can be silent."""

    glance_seconds = 5.0
    cloud_error: Later | None = None
    cml_trouble: CmlDown | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._guard(self.cloud.faults, "raise_before_effect", lambda: self.cloud_error)

    def _install(self, instance: Instance, power: PowerHistory) -> Cml:
        cml = super()._install(instance, power)
        self._guard(cml, "check_up", lambda: self.cml_trouble)
        return cml

    def _guard(self, target: object, verb: str, trouble: Callable[[], Exception | None]) -> None:
        usual = getattr(target, verb)

        def guarded(*args: Any) -> Any:
            error = trouble()
            if error is not None:
                raise error
            return usual(*args)

        setattr(target, verb, guarded)

    @contextmanager
    def cloud_outage(self, error: Later) -> Iterator[None]:
        self.cloud_error = error
        yield
        self.cloud_error = None

    @contextmanager
    def cml_outage(self) -> Iterator[None]:
        self.cml_trouble = CmlDown(listening=False, there=False)
        yield
        self.cml_trouble = None

    @contextmanager
    def store_outage(self) -> Iterator[None]:
        assert isinstance(self.store, FallibleStore)
        self.store.down = Unreachable("the store is not there")
        yield
        self.store.down = None

    async def machine(self) -> SimMachine:
        """Wait for the next machine that somebody launches."""
        known = set(self.cloud.account.machines)
        while not (new := set(self.cloud.account.machines) - known):
            await asyncio.sleep(1)
        return self.cloud.account.machines[new.pop()]
