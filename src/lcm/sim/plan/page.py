"""A comparison as one self-contained HTML file: tables and plots, in light and dark, without scripts. Pure.

The colours of tracks can be told apart by the colour-blind as well.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from html import escape
from typing import Final
from zoneinfo import ZoneInfo

from lcm.model.base.capacity import Amount, Claim, Profile, utilization
from lcm.sim.plan.plots import (
    COLOURS,
    Axis,
    LevelChange,
    LevelStep,
    Stretch,
    bars_plot,
    seats_plot,
    steps_plot,
    sum_changes,
)
from lcm.sim.plan.report import format_number, heading, remarks, totals, verdict, why_late
from lcm.sim.plan.results import Comparison, SessionSeatUse, Trial

_LIGHT: Final = ("#0b6fb8", "#c65102", "#1a8a5a", "#a0479b", "#8a6d00", "#3b4cc0", "#b2182b", "#5a5a5a")
_DARK: Final = ("#5db2f2", "#ff9a57", "#56d39b", "#e394dd", "#e3c64a", "#99a5ff", "#ff7d85", "#b5b5b5")


def _colour_rules(values: tuple[str, ...]) -> str:
    return "".join(f".c{place}{{--c:{value}}}" for place, value in enumerate(values))


STYLE: Final = (
    ":root{--ink:#1c2024;--soft:#5b6570;--paper:#fff;--rule:#d9dee3;--mark:#eef5fb;--alarm:#b3261e}"
    + _colour_rules(_LIGHT)
    + "@media (prefers-color-scheme:dark){"
    ":root{--ink:#e6e9ec;--soft:#a3adb8;--paper:#14171a;--rule:#343b42;--mark:#1b2a38;--alarm:#ff8a80}"
    + _colour_rules(_DARK)
    + "}"
    "body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,'Segoe UI',Roboto,sans-serif}"
    "main{max-width:1000px;margin:0 auto;padding:24px 20px 60px}"
    "h1{font-size:1.6rem;margin:0 0 4px}h3{font-size:1rem;margin:28px 0 8px}"
    "p{margin:8px 0}.note{color:var(--soft);font-size:.87rem}"
    ".verdict{font-weight:600;background:var(--mark);padding:8px 12px;border-radius:6px}"
    ".scroll,.plot{overflow-x:auto}"
    "table{border-collapse:collapse;font-size:.9rem;min-width:60%}"
    "th,td{padding:4px 12px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--rule)}"
    "tr:first-child th{color:var(--soft);font-weight:600;white-space:nowrap}"
    "tr:first-child th.number{text-align:right}"
    "th{font-weight:500}.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    ".bound th,.bound td{color:var(--soft);font-size:.85rem}.bound th{padding-left:14px}"
    ".total th,.total td{font-weight:600}"
    ".best th,.best td{background:var(--mark)}.alarm{color:var(--alarm)}"
    "figure{margin:24px 0}figcaption{font-weight:600;margin-bottom:6px}"
    "svg{display:block;width:100%;min-width:640px;height:auto}"
    ".legend{margin-top:24px}.legend span{margin-right:18px;white-space:nowrap}"
    ".key{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:6px;background:var(--c)}"
    ".grid{stroke:var(--rule);stroke-width:1}"
    ".tick{fill:var(--soft);font:11px system-ui,'Segoe UI',Roboto,sans-serif}"
    ".mid{text-anchor:middle}.end{text-anchor:end}"
    ".line{fill:none;stroke:var(--c);stroke-width:1.6}.area{fill:var(--c);fill-opacity:.14}"
    ".bar,.seat{fill:var(--c)}"
    "summary{cursor:pointer;font-weight:600;padding:8px 0;border-bottom:1px solid var(--rule);margin-top:16px}"
    "@media (max-width:560px){main{padding:16px 12px 40px}table{font-size:.74rem}th,td{padding:4px 5px 4px 0}"
    "tr:first-child th{white-space:normal;vertical-align:bottom}.bound th,.bound td{font-size:inherit}"
    ".bound th{padding-left:6px}}"
    "@media (max-width:800px){.tick{font-size:14px}}"
    "@media print{details{display:block}.plot{overflow:visible}}"
)


_MOST_ROWS: Final = 200
_MOST_STRETCHES: Final = 20_000
_NUMBER_CLASS: Final = " class=number"
_NUMBER_COLUMNS: Final = frozenset({"promised", "refused", "late", "machine-hours", "USD", "most at once", "count"})
_NOTE: Final = (
    "Machine-hours are what the cloud bills, from running to shutting down; boots ahead of slots and clean-ups after "
    "them are in it. The lower bound counts slots alone, packed as if labs could be cut: no schedule needs less. "
    "Cost is machine-hours times the price of the fleet."
)


def page_of(comparison: Comparison) -> str:
    """Return a comparison as an HTML page."""
    title = escape(comparison.title)
    body = "".join(_body(comparison))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Plan: {title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><style>{STYLE}</style></head>'
        f"<body><main><h1>{title}</h1>{body}</main></body></html>\n"
    )


def _body(comparison: Comparison) -> Iterator[str]:
    trials = comparison.trials
    yield f"<p>{escape(heading(comparison))}.</p>"
    if comparison.searched:
        yield f'<p class="verdict">{escape(verdict(comparison))}</p>'
    yield _overview(comparison)
    yield f"<p class=note>{_NOTE}</p>"
    shown = comparison.smallest or trials[0].variant.name
    for trial in trials:
        if len(trials) == 1:
            yield from _details(trial)
        else:
            mark = " open" if trial.variant.name == shown else ""
            inner = "".join(_details(trial))
            yield f"<details{mark}><summary>{escape(trial.variant.name)}</summary>{inner}</details>"


def _overview(comparison: Comparison) -> str:
    rows = [_header_row("", "promised", "refused", "late", "machine-hours", "USD", "most at once")]
    for trial in comparison.trials:
        mark = ' class="best"' if trial.variant.name == comparison.smallest else ""
        counts = (str(trial.promised), _highlight_count(trial.refusals), _highlight_count(len(trial.late)))
        cells = _number_cells(*counts, format_number(trial.hours), format_number(trial.usd), str(trial.peak))
        rows.append(f"<tr{mark}><th>{escape(trial.variant.name)}</th>{cells}</tr>")
        low = trial.bound
        cells = _number_cells("", "", "", format_number(low.hours), format_number(low.usd), str(low.peak))
        rows.append(f'<tr class="bound"><th>lower bound</th>{cells}</tr>')
    return _table(rows)


def _details(trial: Trial) -> Iterator[str]:
    tracks = list(dict.fromkeys(one.track for one in trial.runs))
    axis = Axis(trial.begins, trial.ends, ZoneInfo(trial.zone))
    pools = {one.pool: tracks.index(one.track) for one in trial.uses if one.track in tracks}
    yield "".join(f"<p>{escape(aside)}.</p>" for aside in remarks(trial))
    yield _legend(tracks)
    yield _figure("Workers over time", steps_plot(_worker_steps(trial, tracks), axis, unit=""))
    yield _figure(
        "Utilisation: what is claimed of the fullest dimension",
        steps_plot(_utilization_steps(trial, tracks), axis, unit="%", most=100),
    )
    yield _figure("Cost by day and track, USD", _cost_plot(trial, tracks))
    yield _figure("Calendar of planned workers: the fuller, the darker", seats_plot(_seat_rows(trial), axis, pools))
    yield _cost_table(trial)
    yield _refusal_table(trial)
    yield _late_table(trial)


def _worker_steps(trial: Trial, tracks: Sequence[str]) -> Mapping[str, Sequence[LevelStep]]:
    steps: dict[str, list[LevelChange]] = {track: [] for track in tracks}
    for one in trial.runs:
        steps[one.track] += [(one.since, 1), (one.until, -1)]
    return {track: sum_changes(found) for track, found in steps.items()}


def _utilization_steps(trial: Trial, tracks: Sequence[str]) -> Mapping[str, Sequence[LevelStep]]:
    """Return the claimed percentage of the running machines, at each moment at which it changes."""
    rooms = {one.track: trial.capacity[one.pool] for one in trial.uses if one.pool in trial.capacity}
    workers = _worker_steps(trial, tracks)
    return {track: _track_utilization(trial, track, workers[track], rooms[track]) for track in tracks if track in rooms}


def _track_utilization(trial: Trial, track: str, workers: Sequence[LevelStep], room: Amount) -> Sequence[LevelStep]:
    claimed = Profile.of(_claim_of(one) for one in trial.uses if one.track == track)
    moments = sorted({*claimed.moments, *(at for at, _ in workers)})
    found, place, running = list[LevelStep](), 0, 0.0
    for at in moments:
        while place < len(workers) and workers[place][0] <= at:
            running = workers[place][1]
            place += 1
        share = _share(claimed.at(at), room) / running if running else 0.0
        found.append((at, round(100 * min(share, 1.0), 1)))
    return found


def _cost_plot(trial: Trial, tracks: Sequence[str]) -> str:
    days = _all_days(sorted({one.day for one in trial.spent}))
    by = {track: {one.day: float(one.usd or 0) for one in trial.spent if one.track == track} for track in tracks}
    return bars_plot(days, by, unit="USD")


def _all_days(days: Sequence[str]) -> Sequence[str]:
    """Return every day from the first to the last, so that days without cost are visible."""
    if not days:
        return ()
    first, last = date.fromisoformat(days[0]), date.fromisoformat(days[-1])
    return [str(first + timedelta(days=number)) for number in range((last - first).days + 1)]


def _seat_rows(trial: Trial) -> Mapping[tuple[str, int], Sequence[Stretch]]:
    uses: dict[tuple[str, int], list[SessionSeatUse]] = defaultdict(list)
    for one in trial.uses:
        uses[one.pool, one.seat].append(one)
    rows, left = dict[tuple[str, int], Sequence[Stretch]](), _MOST_STRETCHES
    for key in sorted(uses):
        found = list(_stretches(uses[key], trial.capacity.get(key[0]), ZoneInfo(trial.zone)))[:left]
        left -= len(found)
        rows[key] = found
    return rows


def _stretches(uses: Sequence[SessionSeatUse], room: Amount | None, zone: ZoneInfo) -> Iterator[Stretch]:
    profile = Profile.of(map(_claim_of, uses))
    for place, level in enumerate(profile.levels[:-1]):
        since, until = profile.moments[place], profile.moments[place + 1]
        if level.labs and room is not None:
            share = _share(level, room)
            span = f"{since.astimezone(zone):%a %d %b %H:%M} to {until.astimezone(zone):%H:%M}"
            yield Stretch(since, until, share, f"{span}: {level.labs} labs, {share:.0%} full")


def _claim_of(use: SessionSeatUse) -> Claim:
    return Claim(start=use.since, end=use.until, need=use.need)


def _share(level: Amount, room: Amount) -> float:
    return max(utilization(level, room).values())


def _cost_table(trial: Trial) -> str:
    rows = [_header_row("day", "track", "machine-hours", "USD")]
    rows += [
        f"<tr><th>{one.day}</th><td>{escape(one.track)}</td>"
        f"{_number_cells(format_number(one.hours), format_number(one.usd))}</tr>"
        for one in trial.spent
    ]
    rows += [
        f'<tr class="total"><th>all days</th><td>{escape(track)}</td>'
        f"{_number_cells(format_number(hours), format_number(usd))}</tr>"
        for track, hours, usd in totals(trial)
    ]
    return f"<h3>Cost by day and track</h3>{_table(rows)}"


def _refusal_table(trial: Trial) -> str:
    if not trial.refused:
        return ""
    rows = [_header_row("count", "lab", "slot", "why")]
    zone = ZoneInfo(trial.zone)
    for one in trial.refused[:_MOST_ROWS]:
        slot = f"{one.start.astimezone(zone):%Y-%m-%d %H:%M}" if one.start else "as soon as possible"
        rows.append(
            f"<tr>{_number_cells(str(one.count))}{_text_cells(one.definition, slot, f'{one.why}: {one.message}')}</tr>"
        )
    return f"<h3>{trial.refusals} refused</h3>{_table(rows)}"


def _late_table(trial: Trial) -> str:
    if not trial.late:
        return ""
    rows = [_header_row("session", "lab", "slot", "")]
    zone = ZoneInfo(trial.zone)
    for one in trial.late[:_MOST_ROWS]:
        slot = f"{one.start.astimezone(zone):%Y-%m-%d %H:%M}"
        rows.append(f"<tr>{_text_cells(one.name, one.definition, slot, why_late(one))}</tr>")
    return f"<h3>{len(trial.late)} started late</h3>{_table(rows)}"


def _figure(title: str, svg: str) -> str:
    named = svg.replace("<svg ", f'<svg aria-label="{title}" ', 1)
    return f"<figure><figcaption>{title}</figcaption><div class=plot>{named}</div></figure>"


def _legend(tracks: Sequence[str]) -> str:
    keys = (f'<span><i class="key c{n % COLOURS}"></i>{escape(track)}</span>' for n, track in enumerate(tracks))
    return f"<p class=legend>{''.join(keys)}</p>"


def _table(rows: Sequence[str]) -> str:
    return f"<div class=scroll><table>{''.join(rows)}</table></div>"


def _header_row(*names: str) -> str:
    return (
        "<tr>"
        + "".join(f"<th{_NUMBER_CLASS if name in _NUMBER_COLUMNS else ''}>{name}</th>" for name in names)
        + "</tr>"
    )


def _number_cells(*values: str) -> str:
    return "".join(f"<td class=number>{value}</td>" for value in values)


def _text_cells(*values: str) -> str:
    return "".join(f"<td>{escape(value)}</td>" for value in values)


def _highlight_count(count: int) -> str:
    return f"<b class=alarm>{count}</b>" if count else "0"
