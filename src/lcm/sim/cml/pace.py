"""How fast a simulated machine's time runs. Every part of the CML simulator reads its time here.

An *age* counts simulated seconds. It runs `speed` times as fast as the clock and never backwards, whatever is done to
the speed or to the clock, so that a node that has booted stays booted.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from lcm.model.base.clock import Clock

FASTEST: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """From this moment on, at which the machine had this age, its time runs at this speed."""

    moment: datetime
    age: float
    speed: float


class CmlPace:
    """Converts the clock into a machine's age, and ages back into moments."""

    def __init__(self, clock: Clock, speed: float = 1.0) -> None:
        self._clock = clock
        self._latest = 0.0
        self._asked_at: datetime | None = None
        self._turns = [SpeedChange(clock.now(), 0.0, _check_speed(speed))]

    @property
    def speed(self) -> float:
        return self._turns[-1].speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._turns.append(SpeedChange(self._clock.now(), self.age(), _check_speed(speed)))

    @property
    def turns(self) -> Sequence[SpeedChange]:
        """All changes of its speed; another pace can be restored from them."""
        return tuple(self._turns)

    def restore_turns(self, turns: Sequence[SpeedChange]) -> None:
        """Take over another pace's past: it went on at its last speed until now, and has ours from now on."""
        speed, self._turns, self._asked_at = self.speed, list(turns), None
        if speed != self.speed:
            self.speed = speed

    def now(self) -> datetime:
        """Return the clock's moment."""
        return self._clock.now()

    def age(self) -> float:
        """Return the machine's age now."""
        now = self._clock.now()
        if now is not self._asked_at:  # virtual time stands still between many calls, so the age is cached
            turn = self._turns[-1]
            age = turn.age + (now - turn.moment).total_seconds() * turn.speed
            self._latest, self._asked_at = max(self._latest, age), now
        return self._latest

    def age_at(self, moment: datetime) -> float:
        """Return the machine's age at a past moment; before its first moment the age is negative."""
        at = bisect_right(self._turns, moment, key=lambda turn: turn.moment) - 1
        turn = self._turns[max(at, 0)]
        return turn.age + (moment - turn.moment).total_seconds() * turn.speed

    def moment(self, age: float) -> datetime:
        """Return when the machine had, or at the present speed will have, this age."""
        at = bisect_right(self._turns, age, key=lambda turn: turn.age) - 1 if len(self._turns) > 1 else 0
        turn = self._turns[max(at, 0)]
        return turn.moment + timedelta(seconds=(age - turn.age) / turn.speed)

    def seconds_since(self, age: float) -> float:
        """Return how many seconds of the clock have passed since an age."""
        return max(0.0, (self._clock.now() - self.moment(age)).total_seconds())


def _check_speed(speed: float) -> float:
    if not 0 < speed <= FASTEST:
        raise ValueError(f"a speed is above 0 and at most {FASTEST}")
    return speed
