"""Why a request goes where it goes: every place's answer to it. The preview and `lcm explain` ask for this."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from lcm.placement.ask import Ask
from lcm.placement.fleet import Fleet
from lcm.placement.line import Line
from lcm.placement.request import Place, Request
from lcm.placement.rules import LARGER, REMEDIES, ROOM
from lcm.placement.scores import BIN_PACK, SCORES


class Answer(NamedTuple):
    """What one place says to a request.

    `filter`, `reason` and `remedy` are empty where it fits, `score` is None where it does not or where the strategy
    scores nothing; `earliest` is from when on it would fit there, None for never.
    """

    place: Place
    filter: str = ""
    reason: str = ""
    remedy: str = ""
    score: float | None = None
    earliest: datetime | None = None


def explain(fleet: Fleet, request: Request, strategy: str = BIN_PACK) -> Sequence[Answer]:
    """Ask every place: first those that fit, the best first, then the others by when they would."""
    ask = Ask(request)
    return sorted((_answer(line, ask, strategy) for line in fleet.lines()), key=_order)


def _answer(line: Line, ask: Ask, strategy: str) -> Answer:
    rejected = ask.rejection(line)
    earliest = ask.earliest(line)
    if rejected is None:
        score = SCORES.get(strategy)
        return Answer(line.place, score=score(line, ask) if score else None, earliest=earliest)
    name, reason = rejected
    hopeless = name in ROOM.values() and ask.too_large_for(line)
    return Answer(line.place, name, reason, LARGER if hopeless else REMEDIES[name], earliest=earliest)


def _order(answer: Answer) -> tuple[bool, float, bool, float, str]:
    when = answer.earliest.timestamp() if answer.earliest else 0.0
    return bool(answer.filter), -(answer.score or 0.0), answer.earliest is None, when, answer.place.id
