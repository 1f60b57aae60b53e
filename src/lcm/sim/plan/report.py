"""A comparison as text for a terminal of 80 columns. Pure."""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from textwrap import wrap
from typing import Final
from zoneinfo import ZoneInfo

from lcm.model.base.resource import shorten_text
from lcm.sim.plan.results import Comparison, LateStart, RefusedSessions, Trial

WIDTH: Final = 80
_MOST_SHOWN: Final = 10
_NAME_WIDTH: Final = 27
_NOTE: Final = (
    "Machine-hours are what the cloud bills, from running to shutting down: boots ahead of slots and clean-ups after "
    "them are in it. The lower bound counts slots alone, packed as if labs could be cut except where a machine holds "
    "only a few of them: no schedule needs less."
)


def text_of(comparison: Comparison) -> str:
    """Return a comparison as text."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    trials = comparison.trials
    yield from wrap(f"{comparison.title}: {heading(comparison)}", WIDTH)
    yield ""
    yield from _overview(trials)
    yield ""
    yield from wrap(_NOTE, WIDTH)
    if comparison.searched:
        yield ""
        yield from wrap(verdict(comparison), WIDTH)
    for trial in trials if len(trials) == 1 else [one for one in trials if one.variant.name == comparison.smallest]:
        yield from _day_lines(trial)
    for trial in trials:
        yield from _problem_lines(trial, named=len(trials) > 1)


def heading(comparison: Comparison) -> str:
    """Return a line about what was planned."""
    trial, *others = comparison.trials
    zone = ZoneInfo(trial.zone)
    since, until = trial.begins.astimezone(zone), trial.ends.astimezone(zone)
    promised = "" if others else f", {format_number(trial.session_hours)} session-hours promised"
    wanted = "1 session" if trial.wanted == 1 else f"{trial.wanted} sessions"
    return f"{wanted}, played from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} {trial.zone}{promised}"


def verdict(comparison: Comparison) -> str:
    """Return what the search for the smallest fleet has found."""
    if comparison.smallest is None:
        return "Smallest fleet: none within the bounds keeps everything; allow more machines, or plan less at once."
    return f"Smallest fleet that refuses nothing and is never late: {comparison.smallest}."


def format_number(value: Decimal | None) -> str:
    """Format hours or dollars; what is not known is a dash."""
    return "-" if value is None else f"{value:,.2f}"


def _overview(trials: Sequence[Trial]) -> Iterator[str]:
    yield _table_row("", "promised", "refused", "late", "machine-h", "USD", "peak")
    for trial in trials:
        name = trial.variant.name
        *before, last = wrap(name, _NAME_WIDTH)
        yield from before
        cells = (str(trial.promised), str(trial.refusals), str(len(trial.late)), format_number(trial.hours))
        yield _table_row(last, *cells, format_number(trial.usd), str(trial.peak))
        bound = trial.bound
        times = f" (x {trial.hours / bound.hours:.2f})" if bound.hours else ""
        yield _table_row(
            f"  lower bound{times}", "", "", "", format_number(bound.hours), format_number(bound.usd), str(bound.peak)
        )


def _table_row(name: str, *cells: str) -> str:
    widths = (9, 9, 6, 12, 12, 5)
    return (
        shorten_text(name, _NAME_WIDTH).ljust(_NAME_WIDTH)
        + "".join(cell.rjust(wide) for cell, wide in zip(cells, widths, strict=True))
    ).rstrip()


def _day_lines(trial: Trial) -> Iterator[str]:
    yield ""
    yield f"{'Day':<12}{'Track':<22}{'machine-h':>12}{'USD':>14}"
    for one in trial.spent:
        yield _day_row(one.day, one.track, one.hours, one.usd)
    for track, hours, usd in totals(trial):
        yield _day_row("all days", track, hours, usd)


def _day_row(day: str, track: str, hours: Decimal, usd: Decimal | None) -> str:
    return f"{day:<12}{shorten_text(track, 20):<22}{format_number(hours):>12}{format_number(usd):>14}"


def totals(trial: Trial) -> Iterator[tuple[str, Decimal, Decimal | None]]:
    """Yield each track's totals: machine-hours, and what they cost, if that is known."""
    for track in dict.fromkeys(one.track for one in trial.spent):
        own = [one for one in trial.spent if one.track == track]
        costs = [one.usd for one in own if one.usd is not None]
        usd = sum(costs, Decimal(0)) if len(costs) == len(own) else None
        yield track, sum((one.hours for one in own), Decimal(0)), usd


def _problem_lines(trial: Trial, *, named: bool) -> Iterator[str]:
    of = f" under {trial.variant.name}" if named else ""
    if trial.refused:
        yield ""
        yield from wrap(f"{trial.refusals} refused{of}:", WIDTH)
        for refusal in trial.refused[:_MOST_SHOWN]:
            yield from _refusal_lines(refusal, trial.zone)
        yield from _more_line(len(trial.refused) - _MOST_SHOWN)
    if trial.late:
        yield ""
        yield from wrap(f"{len(trial.late)} started late{of}:", WIDTH)
        for late in trial.late[:_MOST_SHOWN]:
            yield from _late_lines(late, trial.zone)
        yield from _more_line(len(trial.late) - _MOST_SHOWN)
    for aside in remarks(trial):
        yield ""
        yield from wrap(f"{aside}{of}.", WIDTH)


def remarks(trial: Trial) -> Iterator[str]:
    """Yield what the numbers do not say: each a sentence without its full stop."""
    if trial.interrupted:
        yield f"{trial.interrupted} were interrupted and started again"
    if trial.unextended:
        yield f"Extensions that found no room: {trial.unextended}"
    if trial.waits_seconds or trial.unserved:
        yield _waits_sentence(trial)
    if kinds := sorted({one.instance_type for one in trial.runs if one.hourly_usd is None}):
        yield f"The price of {' and '.join(kinds)} is not known: add `price` or `prices`"


def _waits_sentence(trial: Trial) -> str:
    waits = sorted(trial.waits_seconds)
    told = (
        f"{len(waits)} without a slot waited {format_span(waits[len(waits) // 2])} (median), "
        f"{format_span(waits[-1])} at most"
        if waits
        else ""
    )
    lost = f"{trial.unserved} without a slot never ran" if trial.unserved else ""
    return "; ".join(one for one in (told, lost) if one)


def format_span(seconds: float) -> str:
    """Format a short span."""
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min"  # noqa: PLR2004  two minutes


def why_late(late: LateStart) -> str:
    """Return how late a session was, and why."""
    by = "never ran" if late.late_seconds is None else f"{format_span(late.late_seconds)} late"
    return f"{by}: {late.why}"


def _refusal_lines(refusal: RefusedSessions, zone: str) -> Iterator[str]:
    at = f"{refusal.start.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M}" if refusal.start else "as soon as possible"
    text = f"{refusal.count} x {refusal.definition}, {at}, {refusal.why}: {refusal.message}"
    yield from wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")


def _late_lines(late: LateStart, zone: str) -> Iterator[str]:
    at = f"{late.start.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M}"
    yield from wrap(f"{late.name}, {at}, {why_late(late)}", WIDTH, initial_indent="  ", subsequent_indent="    ")


def _more_line(count: int) -> Iterator[str]:
    if count > 0:
        yield f"  and {count} more"
