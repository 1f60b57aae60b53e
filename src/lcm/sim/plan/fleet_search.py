"""Plays variants in parallel, a process each, and finds the cheapest fleet that refuses nothing and is never late.

Called by `cli.booking.plan` and by `sim.plan.__main__`. Tracks share no machines, so the pools of each are searched
on their own, from what the lower bound needs up to what the fleet allows; several pools of one track one after
another, the dearest first, while the others stay as large as they are. A pool that keeps everything also does so with
more machines, so a binary search is sound; the answer is played once more as a whole. A trial that refuses a session
is not played any further.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Final, NamedTuple

import msgspec

from lcm.model.base.errors import Stuck
from lcm.model.kinds.pool import LabWorkerPool
from lcm.sim.plan.measure import lower_bound
from lcm.sim.plan.results import Comparison, Trial
from lcm.sim.plan.timetable import Timetable, pool_labels, price_of
from lcm.sim.plan.trial import play
from lcm.sim.plan.variant import Variant, VariantChoice, apply_variant, check_tracks
from lcm.sim.time.chance import collect_garbage_rarely, rare_garbage_collection
from lcm.system.clock import SystemStopwatch


class TrialJob(NamedTuple):
    """A timetable to play; with `brief`, only to learn whether it keeps everything."""

    timetable: Timetable
    variant: Variant
    brief: bool = False


PlayJobs = Callable[[Sequence[TrialJob]], Sequence[Trial]]
"""Plays several jobs at once."""


def most_rounds(timetable: Timetable, bases: Sequence[Variant]) -> int:
    """Return how many rounds are played at most: one for each halving, and one for the answer."""
    return max((_FleetSearch(timetable, base).halves for base in bases), default=0) + 1


def find_smallest(
    timetable: Timetable, bases: Sequence[Variant], played: PlayJobs
) -> tuple[Trial | None, Sequence[Trial]]:
    """Return the cheapest trial that keeps everything, or None, and the best trial of every base."""
    searches = [_FleetSearch(timetable, base) for base in bases]
    while asked := [(one, question) for one in searches for question in one.questions()]:
        trials = played([TrialJob(question.timetable, question.variant, brief=True) for _, question in asked])
        for (search, question), trial in zip(asked, trials, strict=True):
            search.narrow(question.pool, trial)
    best = played([TrialJob(timetable, one.answer()) for one in searches])
    kept = [one for one in best if one.keeps_everything]
    return min(kept, key=_cost_order, default=None), best


class _Question(msgspec.Struct, frozen=True):
    """Asks whether the track of a pool keeps everything under a variant."""

    pool: str
    timetable: Timetable
    variant: Variant


class _FleetSearch:
    """A binary search for the size of every pool of one variant; pools go by their labels."""

    def __init__(self, timetable: Timetable, base: Variant) -> None:
        self._base = base
        made = apply_variant(timetable, base)
        self._timetable = timetable
        peaks, labels = _peaks(made), pool_labels(made.pools)
        sizes = {one.metadata.name: one.spec.max_workers for one in made.pools}
        self._pools_of = {track: _dearest_first(made, track) for track in _tracks(made)}
        self._labels = labels
        self._high = {name: sizes[name] for several in self._pools_of.values() for name in several}
        self._low = dict.fromkeys(self._high, 1)
        for track, several in self._pools_of.items():
            if len(several) == 1:  # the bound says nothing about how several pools share the work
                self._low[several[0]] = min(max(1, peaks.get(track, 1)), self._high[several[0]])
        self._middle: dict[str, int] = {}

    @property
    def halves(self) -> int:
        """How often the longest of its searches is halved."""
        spans = {name: (high - self._low[name]).bit_length() for name, high in self._high.items()}
        return max((sum(spans[name] for name in several) for several in self._pools_of.values()), default=0)

    def questions(self) -> Iterator[_Question]:
        """Yield, for each track that is not settled yet, a question about the middle of a pool's range."""
        for track, several in self._pools_of.items():
            name = next((one for one in several if self._low[one] < self._high[one]), None)
            if name is not None:
                self._middle[name] = (self._low[name] + self._high[name]) // 2
                sizes = {one: self._high[one] for one in several} | {name: self._middle[name]}
                yield _Question(name, _only_track(self._timetable, track), self._with_sizes(sizes))

    def narrow(self, pool: str, trial: Trial) -> None:
        """Go on in the half that the answer leaves."""
        if trial.keeps_everything:
            self._high[pool] = self._middle[pool]
        else:
            self._low[pool] = self._middle[pool] + 1

    def answer(self) -> Variant:
        """Return the variant with the sizes that were found."""
        return self._with_sizes(self._high)

    def _with_sizes(self, sizes: Mapping[str, int]) -> Variant:
        kept = tuple(one for one in self._base.choices if one.key != "max")
        found = tuple(VariantChoice("max", str(size), self._labels[name]) for name, size in sizes.items())
        return msgspec.structs.replace(self._base, choices=(*kept, *found))


def _dearest_first(timetable: Timetable, track: str) -> Sequence[str]:
    """Return the names of a track's pools; those that cost most are made smaller first."""

    def price(pool: LabWorkerPool) -> Decimal:
        template = timetable.template_of(pool)
        return (price_of(timetable, template) if template else None) or Decimal(0)

    pools = (one for one in timetable.pools if one.spec.lab_track == track)
    return [one.metadata.name for one in sorted(pools, key=price, reverse=True)]


def _only_track(timetable: Timetable, track: str) -> Timetable:
    """Return the part of a timetable that concerns one track."""
    return msgspec.structs.replace(
        timetable,
        sessions=tuple(one for one in timetable.sessions if one.track == track),
        pools=tuple(one for one in timetable.pools if one.spec.lab_track == track),
    )


def _tracks(timetable: Timetable) -> Sequence[str]:
    return list(dict.fromkeys(one.track for one in timetable.sessions))


def _peaks(timetable: Timetable) -> Mapping[str, int]:
    # A cancelled session leaves its room to others.
    tracks = lower_bound(timetable, [one for one in timetable.sessions if one.cancelled_at is None]).tracks
    return {track: one.peak for track, one in tracks.items()}


def _cost_order(trial: Trial) -> tuple[bool, float, float]:
    """Return a sort key: the cost; where that is not known, the hours."""
    usd = trial.usd
    return usd is None, float(usd or 0), float(trial.hours)


_JOIN_SECONDS: Final = 10.0
JobKey = tuple[tuple[str, ...], Variant]


class PlanProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a plan is."""

    share: float
    done: int
    asked: int
    doing: str
    seconds_left: float | None = None


OnProgress = Callable[[PlanProgress], None]


def plan(
    title: str,
    timetable: Timetable,
    variants: Sequence[Variant],
    *,
    search: bool = False,
    cores: int | None = None,
    heard: OnProgress = lambda _: None,
) -> Comparison:
    """Play a timetable under every variant; with `search`, find the cheapest fleet that keeps everything."""
    check_tracks(timetable, variants)
    rounds = most_rounds(timetable, variants) if search else 1
    crew = _TrialPool(cores or os.cpu_count() or 1, _ProgressTracker(rounds, heard))
    if not search:
        trials = crew.play([TrialJob(timetable, variant) for variant in variants])
        return Comparison(title=title, trials=tuple(trials))
    best, trials = find_smallest(timetable, variants, crew.play)
    return Comparison(title=title, trials=tuple(trials), smallest=best.variant.name if best else None, searched=True)


class _TrialPool:
    """As many processes as there are cores; a single variant is played in this process."""

    def __init__(self, cores: int, telling: "_ProgressTracker") -> None:
        self._cores = cores
        self._progress = telling
        self._finished: dict[JobKey, Trial] = {}

    def play(self, jobs: Sequence[TrialJob]) -> Sequence[Trial]:
        """Play several jobs; one that was played to its end before is not played again."""
        fresh = [job for key, job in {_job_key(job): job for job in jobs}.items() if key not in self._finished]
        self._progress.begin(len(fresh))
        played: dict[JobKey, Trial] = {}
        if len(fresh) == 1 or self._cores == 1:
            for place, job in enumerate(fresh):
                with rare_garbage_collection():
                    trial = play(job.timetable, job.variant, partial(self._progress.report, place), brief=job.brief)
                played[_job_key(job)] = trial
                self._progress.report(place, 1.0)
        elif fresh:
            played = self._play_in_parallel(fresh)
        known = self._finished | played
        self._finished |= {
            _job_key(job): trial for job in fresh if (trial := played[_job_key(job)]).keeps_everything or not job.brief
        }
        return [known[_job_key(job)] for job in jobs]

    def _play_in_parallel(self, jobs: Sequence[TrialJob]) -> dict[JobKey, Trial]:
        waiting, playing, played = list(enumerate(jobs)), dict[Connection, _TrialProcess](), dict[JobKey, Trial]()
        try:
            while waiting or playing:
                while waiting and len(playing) < self._cores:
                    player = _TrialProcess(*waiting.pop(0))
                    playing[player.line] = player
                for line in wait(list(playing)):
                    assert isinstance(line, Connection), "nothing else is waited for"
                    if (trial := self._receive(playing[line])) is not None:
                        player = playing.pop(line)
                        played[_job_key(jobs[player.place])] = trial
                        player.end()
            return played
        finally:
            for player in playing.values():
                player.end()

    def _receive(self, player: "_TrialProcess") -> Trial | None:
        """Receive a message of one player; return its trial when it has ended, else None."""
        try:
            said = player.line.recv()
        except EOFError as error:
            raise Stuck("PlanDied", f"the process that played {player.name} has died") from error
        trial = said if isinstance(said, Trial) else None
        self._progress.report(player.place, 1.0 if trial else said)
        return trial


class _TrialProcess:
    """A process that plays one variant."""

    def __init__(self, place: int, job: TrialJob) -> None:
        self.place = place
        self.name = job.variant.name
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_play_in_process, args=(theirs, job), daemon=True)
        with _block_interrupts():
            self._process.start()
        theirs.close()

    def end(self) -> None:
        """Terminate the process."""
        self.line.close()
        self._process.terminate()
        self._process.join(_JOIN_SECONDS)


@contextmanager
def _block_interrupts() -> Iterator[None]:
    """Block Ctrl-C in processes that are started here: it is meant for the parent, which ends them quietly."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _ProgressTracker:
    """Tracks the share that is done over several rounds, and estimates the time left at that pace."""

    def __init__(self, rounds: int, heard: OnProgress) -> None:
        self._rounds = rounds
        self._round = 0
        self._shares = [0.0]
        self._on_progress = heard
        self._stopwatch = SystemStopwatch()
        self._began: float | None = None
        """When progress was first reported: the time in which processes start says nothing about the rest."""

    def begin(self, asked: int) -> None:
        """Begin the next round with so many jobs."""
        self._round += 1
        self._shares = [0.0] * asked

    def report(self, place: int, share: float) -> None:
        """Report how far one job is."""
        self._shares[place] = share
        now = self._stopwatch.seconds()
        began = self._began = now if self._began is None else self._began
        asked, done = len(self._shares), sum(one >= 1 for one in self._shares)
        whole = (self._round - 1 + sum(self._shares) / asked) / self._rounds
        left = (now - began) * (1 - whole) / whole if whole > 0 else None
        doing = f"{done} of {asked} played" + (f", round {self._round} of {self._rounds}" if self._rounds > 1 else "")
        self._on_progress(PlanProgress(share=whole, done=done, asked=asked, doing=doing, seconds_left=left))


def _play_in_process(line: Connection, job: TrialJob) -> None:
    """Play in a separate process; it ends when nobody listens any more."""
    collect_garbage_rarely()
    try:
        line.send(play(job.timetable, job.variant, line.send, brief=job.brief))
    except BrokenPipeError:
        return


def _job_key(job: TrialJob) -> JobKey:
    """Return what tells jobs of one plan apart: a part of its timetable has other pools than the whole."""
    return tuple(pool.metadata.name for pool in job.timetable.pools), job.variant
