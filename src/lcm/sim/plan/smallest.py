"""The cheapest fleet that refuses nothing and is never late: looked for track by track, and proved by playing it.

Tracks share no machines, so that the size of each pool is searched on its own: from what the lower bound needs at once
up to what the fleet allows. A pool that keeps everything keeps it with more machines as well, which is what makes the
search by halves sound; the answer is played once more as a whole. What refuses somebody is not played any further.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from lcm.sim.plan.measured import Trial
from lcm.sim.plan.measuring import lower_bound
from lcm.sim.plan.timetable import Timetable
from lcm.sim.plan.variant import Choice, Variant, applied


class Job(NamedTuple):
    """A timetable that is to be played; a `brief` one only for whether it keeps everything."""

    timetable: Timetable
    variant: Variant
    brief: bool = False


Played = Callable[[Sequence[Job]], Sequence[Trial]]
"""Plays several at once."""


def most_rounds(timetable: Timetable, bases: Sequence[Variant]) -> int:
    """Say how often at most something is played: for the halves, and for the answer."""
    return max((_Search(timetable, base).halves for base in bases), default=0) + 1


def smallest(timetable: Timetable, bases: Sequence[Variant], played: Played) -> tuple[Trial | None, Sequence[Trial]]:
    """Give the cheapest trial that keeps everything, None if there is none, and what every base came to at its best."""
    searches = [_Search(timetable, base) for base in bases]
    while asked := [(one, question) for one in searches for question in one.questions()]:
        trials = played([Job(question.timetable, question.variant, brief=True) for _, question in asked])
        for (search, question), trial in zip(asked, trials, strict=True):
            search.hear(question.track, trial)
    best = played([Job(timetable, one.answer()) for one in searches])
    kept = [one for one in best if one.kept]
    return min(kept, key=_price, default=None), best


class _Question(msgspec.Struct, frozen=True):
    """Whether a track keeps everything under a variant."""

    track: str
    timetable: Timetable
    variant: Variant


class _Search:
    """By halves, for every track of one variant."""

    def __init__(self, timetable: Timetable, base: Variant) -> None:
        self._base = base
        made = applied(timetable, base)
        self._timetable = timetable
        peaks = _peaks(made)
        most = {pool.spec.lab_track: pool.spec.max_workers for pool in made.pools}
        self._high = {track: most[track] for track in _tracks(made)}
        self._low = {track: min(max(1, peaks.get(track, 1)), high) for track, high in self._high.items()}
        self._middle: dict[str, int] = {}

    @property
    def halves(self) -> int:
        """How often the longest of its searches is halved."""
        return max(((self._high[track] - low).bit_length() for track, low in self._low.items()), default=0)

    def questions(self) -> Iterator[_Question]:
        """Ask of each track that is not settled yet about the middle of what it may be."""
        for track, low in self._low.items():
            if low < self._high[track]:
                self._middle[track] = (low + self._high[track]) // 2
                yield _Question(track, _only(self._timetable, track), self._with({track: self._middle[track]}))

    def hear(self, track: str, trial: Trial) -> None:
        """Go on in the half that the answer leaves."""
        if trial.kept:
            self._high[track] = self._middle[track]
        else:
            self._low[track] = self._middle[track] + 1

    def answer(self) -> Variant:
        """Give the variant with the sizes that were found."""
        return self._with(self._high)

    def _with(self, sizes: Mapping[str, int]) -> Variant:
        kept = tuple(one for one in self._base.choices if one.key != "max")
        found = tuple(Choice("max", str(size), track) for track, size in sizes.items())
        return msgspec.structs.replace(self._base, choices=(*kept, *found))


def _only(timetable: Timetable, track: str) -> Timetable:
    """Give the part of a timetable that one track is concerned with."""
    return msgspec.structs.replace(
        timetable,
        sessions=tuple(one for one in timetable.sessions if one.track == track),
        pools=tuple(one for one in timetable.pools if one.spec.lab_track == track),
    )


def _tracks(timetable: Timetable) -> Sequence[str]:
    return list(dict.fromkeys(one.track for one in timetable.sessions))


def _peaks(timetable: Timetable) -> Mapping[str, int]:
    # What is cancelled leaves its room to others.
    tracks = lower_bound(timetable, [one for one in timetable.sessions if one.cancelled_at is None]).tracks
    return {track: one.peak for track, one in tracks.items()}


def _price(trial: Trial) -> tuple[bool, float, float]:
    """Order by what it costs; where that is not known, by hours."""
    usd = trial.usd
    return usd is None, float(usd or 0), float(trial.hours)
