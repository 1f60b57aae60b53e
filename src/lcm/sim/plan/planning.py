"""Plays variants side by side, a process each, on all cores. Called by the command line and by `__main__`."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Final

import msgspec

from lcm.model.errors import Stuck
from lcm.sim.garbage import collect_seldom
from lcm.sim.plan.measured import Comparison, Trial
from lcm.sim.plan.smallest import Job, most_rounds, smallest
from lcm.sim.plan.timetable import Timetable
from lcm.sim.plan.trial import play
from lcm.sim.plan.variant import Variant, check_tracks
from lcm.system import SystemStopwatch

_END_SECONDS: Final = 10.0
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
    check_tracks(timetable, variants)
    rounds = most_rounds(timetable, variants) if search else 1
    crew = _Crew(cores or os.cpu_count() or 1, _Telling(rounds, heard))
    if not search:
        trials = crew.play([Job(timetable, variant) for variant in variants])
        return Comparison(title=title, trials=tuple(trials))
    best, trials = smallest(timetable, variants, crew.play)
    return Comparison(title=title, trials=tuple(trials), smallest=best.variant.name if best else None, searched=True)


class _Crew:
    """So many processes as there are cores; one variant alone is played right here."""

    def __init__(self, cores: int, telling: "_Telling") -> None:
        self._cores = cores
        self._telling = telling
        self._known: dict[Key, Trial] = {}

    def play(self, jobs: Sequence[Job]) -> Sequence[Trial]:
        """Play several; what was played to its end before is known."""
        fresh = [job for key, job in {_key(job): job for job in jobs}.items() if key not in self._known]
        self._telling.begin(len(fresh))
        played: dict[Key, Trial] = {}
        if len(fresh) == 1 or self._cores == 1:
            for place, job in enumerate(fresh):
                played[_key(job)] = play(
                    job.timetable, job.variant, partial(self._telling.tell, place), brief=job.brief
                )
                self._telling.tell(place, 1.0)
        elif fresh:
            played = self._side_by_side(fresh)
        known = self._known | played
        self._known |= {_key(job): trial for job in fresh if (trial := played[_key(job)]).kept or not job.brief}
        return [known[_key(job)] for job in jobs]

    def _side_by_side(self, jobs: Sequence[Job]) -> dict[Key, Trial]:
        waiting, playing, played = list(enumerate(jobs)), dict[Connection, _Player](), dict[Key, Trial]()
        try:
            while waiting or playing:
                while waiting and len(playing) < self._cores:
                    player = _Player(*waiting.pop(0))
                    playing[player.line] = player
                for line in wait(list(playing)):
                    assert isinstance(line, Connection), "nothing else is waited for"
                    if (trial := self._heard(playing[line])) is not None:
                        player = playing.pop(line)
                        played[_key(jobs[player.place])] = trial
                        player.end()
            return played
        finally:
            for player in playing.values():
                player.end()

    def _heard(self, player: "_Player") -> Trial | None:
        """Listen to one that plays; gives the trial that it ends with."""
        try:
            said = player.line.recv()
        except EOFError as error:
            raise Stuck("PlanDied", f"the process that played {player.name} has died") from error
        trial = said if isinstance(said, Trial) else None
        self._telling.tell(player.place, 1.0 if trial else said)
        return trial


class _Player:
    """A process that plays one variant."""

    def __init__(self, place: int, job: Job) -> None:
        self.place = place
        self.name = job.variant.name
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_played, args=(theirs, job), daemon=True)
        with _undisturbed():
            self._process.start()
        theirs.close()

    def end(self) -> None:
        """Have it gone."""
        self.line.close()
        self._process.terminate()
        self._process.join(_END_SECONDS)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let what is started here not hear Ctrl-C, which is meant for whoever ends it, and does so in silence."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Telling:
    """What share is done of several in each of some rounds, and how long the rest will take at that pace."""

    def __init__(self, rounds: int, heard: Heard) -> None:
        self._rounds = rounds
        self._round = 0
        self._shares = [0.0]
        self._heard = heard
        self._stopwatch = SystemStopwatch()
        self._began: float | None = None
        """When somebody was first heard of: that processes have to come up first says nothing about the rest."""

    def begin(self, asked: int) -> None:
        """Begin the next round with so many."""
        self._round += 1
        self._shares = [0.0] * asked

    def tell(self, place: int, share: float) -> None:
        """Say how far one of them is."""
        self._shares[place] = share
        now = self._stopwatch.seconds()
        began = self._began = now if self._began is None else self._began
        asked, done = len(self._shares), sum(one >= 1 for one in self._shares)
        whole = (self._round - 1 + sum(self._shares) / asked) / self._rounds
        left = (now - began) * (1 - whole) / whole if whole > 0 else None
        doing = f"{done} of {asked} played" + (f", round {self._round} of {self._rounds}" if self._rounds > 1 else "")
        self._heard(Progress(share=whole, done=done, asked=asked, doing=doing, seconds_left=left))


def _played(line: Connection, job: Job) -> None:
    """Play in a process of its own; it ends when nobody listens any more."""
    collect_seldom()
    try:
        line.send(play(job.timetable, job.variant, line.send, brief=job.brief))
    except BrokenPipeError:
        return


def _key(job: Job) -> Key:
    """Tell jobs of one plan apart: a part of its timetable has other pools than the whole."""
    return tuple(pool.metadata.name for pool in job.timetable.pools), job.variant
