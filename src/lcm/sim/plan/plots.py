"""Plots as SVG, so that a page needs nothing from elsewhere: steps over time, bars by day, seats by time."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from html import escape
from typing import Final
from zoneinfo import ZoneInfo

from lcm.model.base.resource import shorten_text

WIDTH: Final = 960
_LEFT: Final = 84
_RIGHT: Final = 16
_TOP: Final = 12
_BOTTOM: Final = 34
_PLOT_WIDTH: Final = WIDTH - _LEFT - _RIGHT
COLOURS: Final = 8
_LABEL_LENGTH: Final = 7
_TICKS: Final = 9
_HOURS: Final = (1, 2, 3, 6, 12, 24, 48, 24 * 7, 24 * 14, 24 * 28, 24 * 56)
_DAY_HOURS: Final = 24
_WIDEST_BAR: Final = 80
_ROUND_NUMBERS: Final = (2, 4, 6, 8, 10, 12, 16)

LevelStep = tuple[datetime, float]
"""A moment, and the level from then on."""
LevelChange = tuple[datetime, int]


@dataclass(frozen=True, slots=True)
class Axis:
    """Time from left to right, in a zone."""

    since: datetime
    until: datetime
    zone: ZoneInfo

    def x(self, at: datetime) -> float:
        """Return the x coordinate of a moment."""
        share = (min(max(at, self.since), self.until) - self.since) / (self.until - self.since)
        return round(_LEFT + share * _PLOT_WIDTH, 1)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield x coordinates with their labels."""
        hours = (self.until - self.since) / timedelta(hours=1)
        step = next((one for one in _HOURS if hours / one <= _TICKS), _HOURS[-1])
        at = self.since.astimezone(self.zone).replace(hour=0, minute=0, second=0, microsecond=0)
        while at <= self.until:
            if at >= self.since:
                yield self.x(at), _tick_label(at, step)
            at += timedelta(hours=step)  # in local time, so that days begin at midnight also when clocks change


def steps_plot(lines: Mapping[str, Sequence[LevelStep]], axis: Axis, *, unit: str, most: float | None = None) -> str:
    """Draw step lines over time, one per track."""
    height = 200
    top = most or _ceiling(max((value for steps in lines.values() for _, value in steps), default=1))

    def y(value: float) -> float:
        return round(height - _BOTTOM - min(value, top) / top * (height - _TOP - _BOTTOM), 1)

    parts = [*_time_grid(axis, height), *_level_grid(top, y, unit)]
    for place, (name, steps) in enumerate(lines.items()):
        path = _step_path([(axis.x(at), y(value)) for at, value in steps], y(0))
        parts.append(f'<path class="area c{place % COLOURS}" d="{path}Z"/>')
        parts.append(f'<path class="line c{place % COLOURS}" d="{path}"><title>{escape(name)}</title></path>')
    return _svg(height, parts)


def bars_plot(days: Sequence[str], values: Mapping[str, Mapping[str, float]], *, unit: str) -> str:
    """Draw stacked bars of the tracks' shares, one per day."""
    height = 220
    totals = [sum(by.get(day, 0) for by in values.values()) for day in days]
    top = _ceiling(max(totals, default=1))
    wide = _PLOT_WIDTH / max(len(days), 1)

    def y(value: float) -> float:
        return round(height - _BOTTOM - value / top * (height - _TOP - _BOTTOM), 1)

    parts = [*_level_grid(top, y, unit)]
    every = -(-len(days) // 12)
    for place, day in enumerate(days):
        left, level = _LEFT + place * wide, 0.0
        for colour, (track, by) in enumerate(values.items()):
            if value := by.get(day, 0):
                bar = min(max(wide * 0.7, 1), _WIDEST_BAR)
                box = f'x="{left + (wide - bar) / 2:.1f}" y="{y(level + value)}" width="{bar:.1f}"'
                tall = max(y(level) - y(level + value), 0.5)
                told = f"<title>{day} {escape(track)}: {value:,.2f} {unit}</title>"
                parts.append(f'<rect class="bar c{colour % COLOURS}" {box} height="{tall:.1f}">{told}</rect>')
                level += value
        if place % every == 0:
            parts.append(f'<text class="tick mid" x="{left + wide / 2:.1f}" y="{height - 14}">{_day_label(day)}</text>')
    return _svg(height, parts)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A span of a seat's time: how full it is, and the tooltip for it."""

    since: datetime
    until: datetime
    share: float
    told: str


def seats_plot(rows: Mapping[tuple[str, int], Sequence[Stretch]], axis: Axis, colours: Mapping[str, int]) -> str:
    """Draw a row for each seat of each pool; the fuller a seat, the more opaque."""
    tall = 16
    height = _TOP + tall * len(rows) + _BOTTOM
    parts = [*_time_grid(axis, height)]
    alone = len({pool for pool, _ in rows}) == 1
    for place, ((pool, number), stretches) in enumerate(rows.items()):
        top = _TOP + place * tall
        label = (
            f"{'worker' if alone else escape(shorten_text(pool, _LABEL_LENGTH))} {number}<title>{escape(pool)}</title>"
        )
        parts.append(f'<text class="tick end" x="{_LEFT - 6}" y="{top + 12}">{label}</text>')
        for one in stretches:
            left, right = axis.x(one.since), axis.x(one.until)
            box = f'x="{left}" y="{top + 1}" width="{max(right - left, 0.8):.1f}" height="{tall - 2}"'
            shade = f'fill-opacity="{0.25 + 0.75 * min(one.share, 1):.2f}"'
            told = f"<title>{escape(one.told)}</title>"
            parts.append(f'<rect class="seat c{colours.get(pool, 0) % COLOURS}" {box} {shade}>{told}</rect>')
    return _svg(height, parts)


def _time_grid(axis: Axis, height: float) -> Iterator[str]:
    for x, label in axis.ticks():
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{_TOP}" y2="{height - _BOTTOM}"/>'
        anchor = "end" if x > WIDTH - 40 else "mid"
        yield f'<text class="tick {anchor}" x="{x}" y="{height - 14}">{label}</text>'


def _level_grid(top: float, y: Callable[[float], float], unit: str) -> Iterator[str]:
    for share in (0, 0.25, 0.5, 0.75, 1):
        value = top * share
        if share in {0, 0.5, 1} or value == round(value):
            text = f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
            yield f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(value)}" y2="{y(value)}"/>'
            sign = unit if unit == "%" else ""
            yield f'<text class="tick end" x="{_LEFT - 6}" y="{y(value) + 4}">{text}{sign}</text>'


def _step_path(points: Sequence[tuple[float, float]], floor: float) -> str:
    """Return the path of steps: a level holds until the next. Points closer than a tenth of a pixel are left out."""
    if not points:
        return f"M{_LEFT} {floor}"
    text = [f"M{points[0][0]} {floor}"]
    last = None
    for x, y in points:
        if (x, y) != last:
            text.append(f"H{x}V{y}")
        last = (x, y)
    return "".join(text) + f"V{floor}"


def sum_changes(steps: Sequence[LevelChange]) -> list[LevelStep]:
    """Add up changes into levels."""
    by: dict[datetime, int] = defaultdict(int)
    for at, change in steps:
        by[at] += change
    level, found = 0, list[LevelStep]()
    for at in sorted(by):
        level += by[at]
        found.append((at, level))
    return found


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _ceiling(value: float) -> float:
    """Return the next round number that is at least this and can be halved."""
    size = 1.0
    while size * 10 < value:
        size *= 10
    return next((nice * size for nice in _ROUND_NUMBERS if nice * size >= value), 10 * size)


def _tick_label(at: datetime, step: int) -> str:
    if step >= _DAY_HOURS or at.hour == 0:
        return f"{at.day} {at:%b}"
    return f"{at:%H:%M}"


def _day_label(day: str) -> str:
    moment = datetime.fromisoformat(day)
    return f"{moment.day} {moment:%b}"
