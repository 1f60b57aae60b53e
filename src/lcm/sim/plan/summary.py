"""A comparison as JSON, for programs and for what draws its plots: totals, what they are added up from, and levels.

Levels and seats are thinned out, so that a plan of thousands of sessions under many choices can still be sent.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import msgspec

from lcm.model.base.capacity import Amount, Claim, Profile, utilization
from lcm.sim.plan.report import heading, remarks, verdict
from lcm.sim.plan.results import Comparison, SessionSeatUse, Trial

_MOST_POINTS: Final = 20_000
"""How many points of a kind all variants together have."""
_LEAST_POINTS: Final = 50

_Level = tuple[datetime, int, float]
"""From a moment on: how many machines run, and how many percent of them are claimed."""


def summary(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison for programs: totals first, then what they are added up from."""
    return {
        "title": comparison.title,
        "heading": heading(comparison),
        "verdict": verdict(comparison) if comparison.searched else "",
        "smallest": comparison.smallest,
        "searched": comparison.searched,
        "variants": [_trial_summary(one, _MOST_POINTS // len(comparison.trials)) for one in comparison.trials],
    }


def _trial_summary(trial: Trial, points: int) -> dict[str, Any]:
    bound = trial.bound
    return {
        "name": trial.variant.name,
        "choices": {_choice_key(one.key, one.track): one.value for one in trial.variant.choices},
        "faults": trial.variant.faults,
        "seed": trial.variant.seed,
        "begins": trial.begins,
        "ends": trial.ends,
        "zone": trial.zone,
        "wanted": trial.wanted,
        "promised": trial.promised,
        "refused": trial.refusals,
        "late": len(trial.late),
        "interrupted": trial.interrupted,
        "unserved": trial.unserved,
        "unextended": trial.unextended,
        "waits_seconds": trial.waits_seconds,
        "session_hours": _round_number(trial.session_hours),
        "machine_hours": _round_number(trial.hours),
        "usd": _round_number(trial.usd),
        "peak": trial.peak,
        "bound": {"machine_hours": _round_number(bound.hours), "usd": _round_number(bound.usd), "peak": bound.peak},
        "spent": [
            {
                "day": one.day,
                "track": one.track,
                "machine_hours": _round_number(one.hours),
                "usd": _round_number(one.usd),
            }
            for one in trial.spent
        ],
        "refusals": msgspec.to_builtins(trial.refused),
        "late_starts": msgspec.to_builtins(trial.late),
        "machines": [
            {"track": one.track, "instance_type": one.instance_type, "since": one.since, "until": one.until}
            for one in trial.runs
        ],
        "levels": list(_levels(trial, points)),
        "seats": list(_seats(trial, points)),
        "remarks": [f"{one}." for one in remarks(trial)],
        "played_seconds": trial.played_seconds,
    }


def _choice_key(key: str, track: str) -> str:
    return f"{key}@{track}" if track else key


def _round_number(value: Decimal | None) -> float | None:
    return None if value is None else round(float(value), 4)


def _levels(trial: Trial, points: int) -> Iterator[dict[str, Any]]:
    """Yield each track over time."""
    tracks = list(dict.fromkeys(one.track for one in trial.runs))
    rooms = {one.track: trial.capacity[one.pool] for one in trial.uses if one.pool in trial.capacity}
    most = max(points // max(len(tracks), 1), _LEAST_POINTS)
    for track in tracks:
        found = _thin_out(list(_track_levels(trial, track, rooms.get(track))), most)
        yield {
            "track": track,
            "at": [at for at, _, _ in found],
            "machines": [machines for _, machines, _ in found],
            "claimed_percent": [percent for _, _, percent in found],
        }


def _track_levels(trial: Trial, track: str, room: Amount | None) -> Iterator[_Level]:
    """Yield how many machines of a track run and how full they are, at each moment at which that changes."""
    changes = defaultdict[datetime, int](int)
    for one in trial.runs:
        if one.track == track:
            changes[one.since] += 1
            changes[one.until] -= 1
    claimed = Profile.of(_claim_of(one) for one in trial.uses if one.track == track)
    running = 0
    for at in sorted({*claimed.moments, *changes}):
        running += changes.get(at, 0)
        share = _share(claimed.at(at), room) / running if running and room else 0.0
        yield at, running, round(100 * min(share, 1.0), 1)


def _thin_out(levels: Sequence[_Level], most: int) -> Sequence[_Level]:
    """Return at most so many levels: of several that follow one another, the highest."""
    several = -(-len(levels) // most)
    groups = (levels[place : place + several] for place in range(0, len(levels), several))
    return [(group[0][0], max(one[1] for one in group), max(one[2] for one in group)) for group in groups]


def _seats(trial: Trial, points: int) -> Iterator[dict[str, Any]]:
    """Yield each planned worker over time; when there are too many times, the last ones are left out."""
    uses = defaultdict[tuple[str, int], list[SessionSeatUse]](list)
    for one in trial.uses:
        uses[one.pool, one.seat].append(one)
    left = points
    for pool, number in sorted(uses):
        own = uses[pool, number]
        found = list(_stretches(own, trial.capacity.get(pool)))[:left]
        left -= len(found)
        yield {"pool": pool, "track": own[0].track, "number": number, "stretches": found}


def _stretches(uses: Sequence[SessionSeatUse], room: Amount | None) -> Iterator[dict[str, Any]]:
    profile = Profile.of(map(_claim_of, uses))
    for place, level in enumerate(profile.levels[:-1]):
        if level.labs and room is not None:
            yield {
                "since": profile.moments[place],
                "until": profile.moments[place + 1],
                "labs": level.labs,
                "percent": round(100 * _share(level, room), 1),
            }


def _claim_of(use: SessionSeatUse) -> Claim:
    return Claim(start=use.since, end=use.until, need=use.need)


def _share(level: Amount, room: Amount) -> float:
    return max(utilization(level, room).values())
