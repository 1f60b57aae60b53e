"""Plays variants side by side, a process each, on all cores. Called by the command line and by `__main__`."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Final

import msgspec

from lcm.model.errors import Stuck
from lcm.sim.plan.measured import Comparison, Trial
from lcm.sim.plan.smallest import smallest
from lcm.sim.plan.timetable import Timetable
from lcm.sim.plan.trial import play
from lcm.sim.plan.variant import Variant
from lcm.system import SystemStopwatch

_END_SECONDS: Final = 10.0
Job = tuple[Timetable, Variant]
Key = tuple[tuple[str, ...], Variant]


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a plan is."""

    share: float
    done: int
    asked: int
    doing: str
    seconds_left: float | None = None


Heard = Callable[[Progress], None]


def plan(
    title: str,
    timetable: Timetable,
    variants: Sequence[Variant],
    *,
    search: bool = False,
    cores: int | None = None,
    heard: Heard = lambda _: None,
) -> Comparison:
    """Play a timetable under every variant; with `search`, look for the cheapest fleet that keeps everything."""
    crew = _Crew(cores or os.cpu_count() or 1, heard)
    if not search:
        trials = crew.play([(timetable, variant) for variant in variants])
        return Comparison(title=title, trials=tuple(trials))
    best, trials = smallest(timetable, variants, crew.play)
    return Comparison(title=title, trials=tuple(trials), smallest=best.variant.name if best else None, searched=True)


class _Crew:
    """So many processes as there are cores; one variant alone is played right here."""

    def __init__(self, cores: int, heard: Heard) -> None:
        self._cores = cores
        self._heard = heard
        self._known: dict[Key, Trial] = {}

    def play(self, jobs: Sequence[Job]) -> Sequence[Trial]:
        """Play several; what was played before is known."""
        fresh = [job for key, job in {_key(job): job for job in jobs}.items() if key not in self._known]
        telling = _Telling(len(fresh), self._heard)
        if len(fresh) == 1 or self._cores == 1:
            for place, job in enumerate(fresh):
                self._known[_key(job)] = play(*job, partial(telling.tell, place))
        else:
            self._side_by_side(fresh, telling)
        return [self._known[_key(job)] for job in jobs]

    def _side_by_side(self, jobs: Sequence[Job], telling: "_Telling") -> None:
        waiting, playing = list(enumerate(jobs)), dict[Connection, _Player]()
        try:
            while waiting or playing:
                while waiting and len(playing) < self._cores:
                    player = _Player(*waiting.pop(0))
                    playing[player.line] = player
                for line in wait(list(playing)):
                    assert isinstance(line, Connection), "nothing else is waited for"
                    self._hear(playing, line, jobs, telling)
        finally:
            for player in playing.values():
                player.end()

    def _hear(
        self, playing: dict[Connection, "_Player"], line: Connection, jobs: Sequence[Job], telling: "_Telling"
    ) -> None:
        player = playing[line]
        try:
            said = line.recv()
        except EOFError as error:
            raise Stuck("PlanDied", f"the process that played {jobs[player.place][1].name} has died") from error
        if isinstance(said, Trial):
            self._known[_key(jobs[player.place])] = said
            playing.pop(line).end()
            said = 1.0
        telling.tell(player.place, said)


class _Player:
    """A process that plays one variant."""

    def __init__(self, place: int, job: Job) -> None:
        self.place = place
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_played, args=(theirs, job), daemon=True)
        self._process.start()
        theirs.close()

    def end(self) -> None:
        """Have it gone."""
        self.line.close()
        self._process.terminate()
        self._process.join(_END_SECONDS)


class _Telling:
    """What share of several is done, and how long the rest will take at that pace."""

    def __init__(self, asked: int, heard: Heard) -> None:
        self._shares = [0.0] * asked
        self._heard = heard
        self._stopwatch = SystemStopwatch()
        self._began = self._stopwatch.seconds()

    def tell(self, place: int, share: float) -> None:
        self._shares[place] = share
        done, whole = sum(one >= 1 for one in self._shares), sum(self._shares) / len(self._shares)
        left = (self._stopwatch.seconds() - self._began) * (1 - whole) / whole if whole > 0 else None
        doing = f"{done} of {len(self._shares)} played"
        self._heard(Progress(share=whole, done=done, asked=len(self._shares), doing=doing, seconds_left=left))


def _played(line: Connection, job: Job) -> None:
    """Play in a process of its own; it ends when nobody listens any more."""
    try:
        line.send(play(*job, line.send))
    except BrokenPipeError:
        return


def _key(job: Job) -> Key:
    """Tell jobs of one plan apart: a part of its timetable has other pools than the whole."""
    timetable, variant = job
    return tuple(pool.metadata.name for pool in timetable.pools), variant
