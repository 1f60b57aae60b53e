"""Plays variants side by side, a process each, on all cores. Called by the command line and by `__main__`."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Final, NamedTuple

import msgspec

from lcm.model.base.errors import Stuck
from lcm.sim.plan.measure import lower_bound
from lcm.sim.plan.results import Comparison, Trial
from lcm.sim.plan.timetable import Timetable
from lcm.sim.plan.trial import play
from lcm.sim.plan.variant import Choice, Variant, applied, check_tracks
from lcm.sim.time.chance import collect_seldom
from lcm.system.clock import SystemStopwatch


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
