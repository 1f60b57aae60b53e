"""Somebody who asks our APIs, and asks again when nobody answers."""

import asyncio
from typing import Final, TypeVar

from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Later, LcmError
from lcm.model.kinds.registry import Resource
from lcm.sim.world.world import Question, World

T = TypeVar("T")
_TRIES: Final = 40
_PAUSE_SECONDS: Final = 30.0
"""The longest that somebody waits before asking again."""


class Person:
    """One of those who ask; all chance is their own."""

    def __init__(self, world: World, name: str, role: Role = Role.USER) -> None:
        self.world = world
        self.witness = world.witness
        self.caller = Caller(name=name, role=role)
        self.dice = world.stage.chance.stream(name)

    @property
    def is_late(self) -> bool:
        """Whether people have stopped to come."""
        return self.world.clock.now() >= self.world.scenario.end

    async def ask(self, question: Question[T], caller: Caller | None = None) -> T:
        """Ask any API, again and again while no answer comes: the question must bear to be repeated."""
        for number in range(_TRIES):
            try:
                return await self.world.ask(caller or self.caller, question)
            except Later as error:
                if number == _TRIES - 1:
                    raise
                await asyncio.sleep(min(error.after.total_seconds() * (number + 1), _PAUSE_SECONDS))
        raise AssertionError("the last try answers or raises")

    async def want(
        self, what: str, question: Question[T], caller: Caller | None = None, *, removed: bool = False
    ) -> T | None:
        """Ask for something, and take a no for an answer; None is a no, or no answer at all.

        What is answered is an object as it was asked for, or with `removed` one that is to go.
        """
        who = (caller or self.caller).name
        try:
            answer = await self.ask(question, caller)
        except LcmError as error:
            self.witness.tell(f"{who} wants to {what}: {type(error).__name__} {error}")
            return None
        self.witness.tell(f"{who} wants to {what}: done")
        if isinstance(answer, Resource):
            self.witness.acknowledged(answer, f"{who} was told to {what}", removed=removed)
            self.witness.shown(caller or self.caller, [answer])
        return answer

    async def rest(self, mean_seconds: float) -> None:
        """Let time go by, by the dice."""
        await asyncio.sleep(self.dice.expovariate(1 / mean_seconds))
