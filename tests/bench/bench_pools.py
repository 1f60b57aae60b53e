"""How many hours machines run under a pool's policy, and how long people wait: by the simulated cloud's bill.

Everything is played by the planner: the real pool controller, scheduler, worker and lablet controllers and packing, on
the simulated cloud, in virtual time. A worker-hour is an hour for which the cloud bills a machine, from its launch on:
boots, clean-ups, gaps through which a machine is kept and the time until it is released are in it.

**Booked weeks.** HYBRID books each session for its slot. CAPACITY_BASED starts no machine for a booking, so there are
two ways to have nobody start later. `standing`: a minimum that holds the week, as few machines as first fit needs, in
the hours and on the weekdays of the timetable only; each session is booked on it, and the maximum is the minimum, so
that no threshold adds a machine. `early`: everybody asks for a session as soon as possible, so long ahead of their slot
as a machine and a lab take here, and the pool follows the load. HYBRID is compared with the one that takes less of
those in which nobody starts late. The figure is invalid where somebody does in both or under HYBRID, and where the
other takes less than the slots alone do by any plan.

**Unbooked months.** Each session of a generated month is asked for when its slot would begin, and both policies react
to the same load. The figure is invalid where hardly anybody waits: then nothing is compared.

**Generated months.** The bound is that of the packing bench: what the month's claims take at least by any plan, with
the lab's 15 minutes of start before each slot and 10 minutes of clean-up after it, and a boot and its buffer of 25
minutes for each machine that is started. A clean-up that takes less time than is claimed for it counts in our favour.
Beside it stands the bound of the slots alone, without boots, starts and clean-ups. Sessions are booked up to a week
ahead, an hour at the least, and the pool knows of them from then on. A session that is refused or late makes the figure
invalid.

`LCM_POOL_SESSIONS` is a list of sizes of months, 1000 unless told; `LCM_POOL_SEEDS` sets how many of each are played.
One of 1,000 sessions takes about a CPU minute, of 5,000 four, and of 20,000 more than a quarter of an hour.
"""

import asyncio
import os
import statistics
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from bench.booked_months import Booking, month_of_bookings
from bench.figures import Figure
from bench.pool_timetables import PoolChoice, ask_without_slots, book_slots, booked_week, hours_of
from bench.timetables import LEAD
from harness import given
from lcm.model.kinds.pool import ScalingPolicy
from lcm.placement.pack_board import PackBoard, PackTerms
from lcm.placement.pack_bound import lower_bound
from lcm.placement.seats import span_of
from lcm.sim.plan.results import Trial
from lcm.sim.plan.timetable import Timetable
from lcm.sim.plan.trial import play
from lcm.sim.plan.variant import Variant
from lcm.sim.time.chance import rare_garbage_collection

SIZES = [int(one) for one in os.environ.get("LCM_POOL_SESSIONS", "1000").split(",")]
SEEDS = range(int(os.environ.get("LCM_POOL_SEEDS", "1")))
WEEKS = ("certification week", "course", "mixed")
AHEAD = timedelta(minutes=25)
"""Nobody waits longer for a machine and a lab, if there was none and the pool just changed."""
UNBOOKED = 400
"""Sessions of the month in which nobody books."""
LEAST_WAIT = 60.0
"""Seconds: if people wait less in the mean, machines run anyway, and policies cannot be told apart."""
MOST = {1_000: 24, 5_000: 80, 20_000: 250}
"""Workers that a month may have at most: well above its peak."""
SEATS = 400
HOUR = 3_600_000_000


class Played(NamedTuple):
    """The worker-hours of one trial, and whether everybody started in time."""

    hours: float
    kept: bool


async def bench_booked_weeks() -> list[Figure]:
    figures = []
    for kind in WEEKS:
        week = booked_week(kind, 0)
        trial = await _play(book_slots(week, PoolChoice(ScalingPolicy.HYBRID)))
        standing, early = await _play_standing(week), await _play_early(week)
        fair = min((one.hours for one in (standing, early) if one.kept), default=0.0)
        valid = trial.keeps_everything and fair >= trial.bound.hours
        told = f"{trial.hours:.0f} h; CAPACITY_BASED standing {_tell(standing)}, early {_tell(early)}"
        ratio = float(trial.hours) / fair if fair else 0.0
        name = f"pools_{kind.replace(' ', '_')}"
        figures.append(Figure(name, ratio, 0.85, at_least=False, floor_ok=valid, note=told))
    return figures


async def bench_unbooked_month() -> list[Figure]:
    month = month_of_bookings(UNBOOKED, 0)
    choices = [PoolChoice(one) for one in (ScalingPolicy.HYBRID, ScalingPolicy.CAPACITY_BASED)]
    ours, theirs = [await _play(ask_without_slots(month, one, timedelta(0))) for one in choices]
    valid = not theirs.unserved and statistics.mean(theirs.waits_seconds) >= LEAST_WAIT
    figures = []
    for name, measure in (("mean", statistics.mean), ("slowest", max)):
        mine, other = measure(ours.waits_seconds), measure(theirs.waits_seconds)
        note = f"{mine / 60:.1f} minutes, CAPACITY_BASED {other / 60:.1f}; {_tell_hours(ours, theirs)}"
        valid = valid and not ours.unserved
        figures.append(Figure(f"pools_wait_{name}", mine / other, 1.0, at_least=False, floor_ok=valid, note=note))
    return figures


async def bench_booked_months() -> list[Figure]:
    figures = []
    for sessions in SIZES:
        played = [await _play_month(sessions, seed) for seed in SEEDS]
        kept = all(trial.keeps_everything for trial, _ in played)
        ratios = [float(trial.hours) / bound for trial, bound in played]
        slots = [float(trial.hours / trial.bound.hours) for trial, _ in played]
        note = f"of the bound of the claims; {max(slots):.3f} of that of the slots alone"
        figures.append(Figure(f"pools_{sessions}", max(ratios), 1.25, at_least=False, floor_ok=kept, note=note))
    return figures


async def _play_month(sessions: int, seed: int) -> tuple[Trial, float]:
    """Play a generated month; return what it took, and the bound of its claims in hours."""
    month = month_of_bookings(sessions, seed)
    trial = await _play(book_slots(month, PoolChoice(ScalingPolicy.HYBRID, most=MOST.get(sessions, SEATS))))
    bound = _bound_hours(month)
    told = f"{trial.refusals} refused, {len(trial.late)} late, {len(trial.runs)} starts, {trial.peak} machines at most"
    print(f"  {seed:2} {sessions} sessions: {trial.hours:.0f} h of {bound:.0f} h, {told}", flush=True)
    return trial, bound


async def _play_standing(week: Sequence[Booking]) -> Played:
    trial = await _play(book_slots(week, _standing_choice(week)))
    return Played(float(trial.hours), trial.keeps_everything)


async def _play_early(week: Sequence[Booking]) -> Played:
    trial = await _play(ask_without_slots(week, PoolChoice(ScalingPolicy.CAPACITY_BASED), AHEAD))
    in_time = max(trial.waits_seconds, default=0.0) <= AHEAD.total_seconds()
    return Played(float(trial.hours), in_time and not trial.unserved and not trial.refused)


def _standing_choice(week: Sequence[Booking]) -> PoolChoice:
    """Return the smallest minimum that takes a week in the order of its bookings, in its hours."""
    board = PackBoard(PackTerms(given.machine(), SEATS, LEAD))
    for one in week:
        number = board.add(*span_of(one.claim), one.claim.need)
        board.put(number, next(seat for seat in range(SEATS) if board.fits(number, seat)))
        board.begin()
    size = sum(map(bool, board.on_seat))
    return PoolChoice(ScalingPolicy.CAPACITY_BASED, least=size, most=size, hours=hours_of(week))


async def _play(timetable: Timetable) -> Trial:
    """Play a timetable in a thread, where virtual time has a loop of its own."""
    with rare_garbage_collection():
        return await asyncio.to_thread(play, timetable, Variant())


def _bound_hours(bookings: Sequence[Booking]) -> float:
    return lower_bound([one.claim for one in bookings], given.machine(), LEAD) / HOUR


def _tell(played: Played) -> str:
    return f"{played.hours:.0f} h{'' if played.kept else ' with late starts'}"


def _tell_hours(ours: Trial, theirs: Trial) -> str:
    return f"{ours.hours:.0f} worker-hours, CAPACITY_BASED {theirs.hours:.0f}"
