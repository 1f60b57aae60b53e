"""What a bench prints, and how two rates are compared fairly in one run."""

import statistics
from collections.abc import Awaitable, Callable
from typing import NamedTuple

Run = Callable[[], Awaitable[float]]
"""One measurement: a rate, more is better."""


class Figure(NamedTuple):
    """One line of a bench. `floor_ok` is False when the baseline was too slow for the figure to mean anything."""

    name: str
    value: float
    goal: float
    at_least: bool = True
    floor_ok: bool = True
    note: str = ""


class Measured(NamedTuple):
    """The median of ours divided by bare, and the median rate of bare; valid when that reached the floor."""

    ratio: float
    bare: float
    valid: bool


def line(figure: Figure) -> str:
    text = f"bench {figure.name} value={figure.value:.3g} goal={figure.goal:g} {verdict(figure)}"
    return f"{text} {figure.note}" if figure.note else text


def verdict(figure: Figure) -> str:
    if not figure.floor_ok:
        return "invalid"
    reached = figure.value >= figure.goal if figure.at_least else figure.value <= figure.goal
    return "ok" if reached else "short"


async def ratio(ours: Run, bare: Run, *, pairs: int = 7, floor: float) -> Measured:
    """Run both alternately, each first as often as second, so that a drift of the machine meets both."""
    ratios: list[float] = []
    bares: list[float] = []
    for pair in range(pairs):
        if pair % 2:
            below = await bare()
            above = await ours()
        else:
            above = await ours()
            below = await bare()
        ratios.append(above / below)
        bares.append(below)
    median = statistics.median(bares)
    return Measured(statistics.median(ratios), median, valid=median >= floor)
