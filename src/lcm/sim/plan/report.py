"""A comparison as text for a terminal of 80 columns. Pure."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from textwrap import wrap
from typing import Final
from zoneinfo import ZoneInfo

from lcm.sim.plan.results import Comparison, Late, Refusal, Trial

WIDTH: Final = 80
_SHOWN: Final = 10
_NAME: Final = 27
_COUNTED: Final = (
    "Machine-hours are what the cloud bills, from running to shutting down: boots ahead of slots and clean-ups after "
    "them are in it. The lower bound counts slots alone, packed as if labs could be cut: no schedule needs less."
)


def text_of(comparison: Comparison) -> str:
    """Write a comparison."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    trials = comparison.trials
    yield from wrap(f"{comparison.title}: {heading(comparison)}", WIDTH)
    yield ""
    yield from _overview(trials)
    yield ""
    yield from wrap(_COUNTED, WIDTH)
    if comparison.searched:
        yield ""
        yield from wrap(verdict(comparison), WIDTH)
    for trial in trials if len(trials) == 1 else [one for one in trials if one.variant.name == comparison.smallest]:
        yield from _days(trial)
    for trial in trials:
        yield from _trouble(trial, named=len(trials) > 1)


def heading(comparison: Comparison) -> str:
    """Say in a line what was planned."""
    trial, *others = comparison.trials
    zone = ZoneInfo(trial.zone)
    since, until = trial.begins.astimezone(zone), trial.ends.astimezone(zone)
    promised = "" if others else f", {number(trial.session_hours)} session-hours promised"
    wanted = "1 session" if trial.wanted == 1 else f"{trial.wanted} sessions"
    return f"{wanted}, played from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} {trial.zone}{promised}"


def verdict(comparison: Comparison) -> str:
    """Say what the search for the smallest fleet has found."""
    if comparison.smallest is None:
        return "Smallest fleet: none within the bounds keeps everything; allow more machines, or wish for less at once."
    return f"Smallest fleet that refuses nothing and is never late: {comparison.smallest}."


def number(value: Decimal | None) -> str:
    """Write hours or dollars; what is not known is a dash."""
    return "-" if value is None else f"{value:,.2f}"


def _overview(trials: Sequence[Trial]) -> Iterator[str]:
    yield _row("", "promised", "refused", "late", "machine-h", "USD", "peak")
    for trial in trials:
        name = trial.variant.name
        *before, last = wrap(name, _NAME)
        yield from before
        cells = (str(trial.promised), str(trial.refusals), str(len(trial.late)), number(trial.hours))
        yield _row(last, *cells, number(trial.usd), str(trial.peak))
        bound = trial.bound
        yield _row("  lower bound", "", "", "", number(bound.hours), number(bound.usd), str(bound.peak))


def _row(name: str, *cells: str) -> str:
    widths = (9, 9, 6, 12, 12, 5)
    return (
        name[:_NAME].ljust(_NAME) + "".join(cell.rjust(wide) for cell, wide in zip(cells, widths, strict=True))
    ).rstrip()


def _days(trial: Trial) -> Iterator[str]:
    yield ""
    yield f"{'Day':<12}{'Track':<22}{'machine-h':>12}{'USD':>14}"
    for one in trial.spent:
        yield f"{one.day:<12}{one.track[:20]:<22}{number(one.hours):>12}{number(one.usd):>14}"
    for track, hours, usd in totals(trial):
        yield f"{'all days':<12}{track[:20]:<22}{number(hours):>12}{number(usd):>14}"


def totals(trial: Trial) -> Iterator[tuple[str, Decimal, Decimal | None]]:
    """Add up each track's days: machine-hours, and what they cost, if that is known."""
    for track in dict.fromkeys(one.track for one in trial.spent):
        own = [one for one in trial.spent if one.track == track]
        costs = [one.usd for one in own if one.usd is not None]
        usd = sum(costs, Decimal(0)) if len(costs) == len(own) else None
        yield track, sum((one.hours for one in own), Decimal(0)), usd


def _trouble(trial: Trial, *, named: bool) -> Iterator[str]:
    of = f" under {trial.variant.name}" if named else ""
    if trial.refused:
        yield ""
        yield from wrap(f"{trial.refusals} refused{of}:", WIDTH)
        for refusal in trial.refused[:_SHOWN]:
            yield from _refusal(refusal, trial.zone)
        yield from _more(len(trial.refused) - _SHOWN)
    if trial.late:
        yield ""
        yield from wrap(f"{len(trial.late)} started late{of}:", WIDTH)
        for late in trial.late[:_SHOWN]:
            yield from _late(late, trial.zone)
        yield from _more(len(trial.late) - _SHOWN)
    for aside in asides(trial):
        yield ""
        yield from wrap(f"{aside}{of}.", WIDTH)


def asides(trial: Trial) -> Iterator[str]:
    """Say what the numbers do not: each a sentence without its full stop."""
    if trial.interrupted:
        yield f"{trial.interrupted} were interrupted and started anew"
    if trial.unextended:
        yield f"Extensions that found no room: {trial.unextended}"
    if trial.waits_seconds or trial.unserved:
        yield _waits(trial)
    if kinds := sorted({one.instance_type for one in trial.runs if one.hourly_usd is None}):
        yield f"Neither `price` nor `prices` tells what {' and '.join(kinds)} costs"


def _waits(trial: Trial) -> str:
    waits = sorted(trial.waits_seconds)
    told = (
        f"{len(waits)} without a slot waited {minutes(waits[len(waits) // 2])} mostly, {minutes(waits[-1])} at most"
        if waits
        else ""
    )
    lost = f"{trial.unserved} without a slot never ran" if trial.unserved else ""
    return "; ".join(one for one in (told, lost) if one)


def minutes(seconds: float) -> str:
    """Write a short span."""
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min"  # noqa: PLR2004  two minutes


def why_late(late: Late) -> str:
    """Say how late a session was, and why."""
    by = "never ran" if late.late_seconds is None else f"{minutes(late.late_seconds)} late"
    return f"{by}: {late.why}"


def _refusal(refusal: Refusal, zone: str) -> Iterator[str]:
    at = f"{refusal.start.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M}" if refusal.start else "as soon as possible"
    text = f"{refusal.count} x {refusal.definition}, {at}, {refusal.why}: {refusal.message}"
    yield from wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _late(late: Late, zone: str) -> Iterator[str]:
    at = f"{late.start.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M}"
    yield from wrap(f"{late.name}, {at}, {why_late(late)}", WIDTH, initial_indent="  ", subsequent_indent="    ")


def _more(count: int) -> Iterator[str]:
    if count > 0:
        yield f"  and {count} more"
