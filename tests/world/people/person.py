"""Somebody who calls our APIs, and calls again when nobody answers."""

import asyncio
from typing import Final, TypeVar

from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Later, LcmError
from lcm.model.kinds.registry import Resource
from lcm.sim.world.world import PlaneCall
from world.checked import CheckedWorld

T = TypeVar("T")
_TRIES: Final = 40
_PAUSE_SECONDS: Final = 30.0
"""The longest pause before somebody asks again."""


class Person:
    """Somebody who calls our APIs, with a random stream of their own."""

    def __init__(self, world: CheckedWorld, name: str, role: Role = Role.USER) -> None:
        self.world = world
        self.witness = world.witness
        self.caller = Caller(name=name, role=role)
        self.dice = world.stage.chance.stream(name)

    @property
    def is_late(self) -> bool:
        """Whether people have stopped coming."""
        return self.world.clock.now() >= self.world.scenario.end

    async def ask(self, question: PlaneCall[T], caller: Caller | None = None) -> T:
        """Call any API, again and again while no answer comes; the call must be safe to repeat."""
        for number in range(_TRIES):
            try:
                return await self.world.ask(caller or self.caller, question)
            except Later as error:
                if number == _TRIES - 1:
                    raise
                await asyncio.sleep(min(error.after.total_seconds() * (number + 1), _PAUSE_SECONDS))
        raise AssertionError("the last try answers or raises")

    async def want(
        self, what: str, question: PlaneCall[T], caller: Caller | None = None, *, removed: bool = False
    ) -> T | None:
        """Ask for something, and accept a refusal; None means refused, or no answer at all.

        The answer is an object as it was asked for, or with `removed` one that will be removed.
        """
        who = (caller or self.caller).name
        try:
            answer = await self.ask(question, caller)
        except LcmError as error:
            self.witness.tell(f"{who} wants to {what}: {type(error).__name__} {error}")
            return None
        self.witness.tell(f"{who} wants to {what}: done")
        if isinstance(answer, Resource):
            self.witness.record_acknowledged(answer, f"{who} was told to {what}", removed=removed)
            self.witness.check_shown(caller or self.caller, [answer])
        return answer

    async def wait_about(self, mean_seconds: float) -> None:
        """Wait for a random time with this mean."""
        await asyncio.sleep(self.dice.expovariate(1 / mean_seconds))
