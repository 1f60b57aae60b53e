"""A comparison as JSON: what the report says, as numbers, and what it is made of."""

from decimal import Decimal
from typing import Any

import msgspec

from lcm.sim.plan.measured import Comparison, Trial


def summary(comparison: Comparison) -> dict[str, Any]:
    """Give what somebody who reads it by program wants: totals first, then what they are added up from."""
    return {
        "title": comparison.title,
        "smallest": comparison.smallest,
        "searched": comparison.searched,
        "variants": [_trial(one) for one in comparison.trials],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    bound = trial.bound
    return {
        "name": trial.variant.name,
        "choices": {_key(one.key, one.track): one.value for one in trial.variant.choices},
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
        "session_hours": _number(trial.session_hours),
        "machine_hours": _number(trial.hours),
        "usd": _number(trial.usd),
        "peak": trial.peak,
        "bound": {"machine_hours": _number(bound.hours), "usd": _number(bound.usd), "peak": bound.peak},
        "spent": [
            {"day": one.day, "track": one.track, "machine_hours": _number(one.hours), "usd": _number(one.usd)}
            for one in trial.spent
        ],
        "refusals": msgspec.to_builtins(trial.refused),
        "late_starts": msgspec.to_builtins(trial.late),
        "machines": [
            {"track": one.track, "instance_type": one.instance_type, "since": one.since, "until": one.until}
            for one in trial.runs
        ],
        "played_seconds": trial.played_seconds,
    }


def _key(key: str, track: str) -> str:
    return f"{key}@{track}" if track else key


def _number(value: Decimal | None) -> float | None:
    return None if value is None else round(float(value), 4)
