"""How far a session is on its way up or down, in percent and in a sentence. Pure."""

from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from statistics import median
from typing import Final

from lcm.controllers.session.view import View
from lcm.controllers.worker.view import Unknown
from lcm.model.session import LabletSession, Progress, SessionPhase

LEAP: Final = 10
"""So many percent are told of at once."""
_KEPT: Final = 50
_ASKED: Final = 25
_BOOTED: Final = "BOOTED"


class StepName(StrEnum):
    """The steps of a session's way up and down."""

    FETCH = "fetch"
    IMPORT = "import"
    START = "start"
    CONVERGE = "converge"
    RUN = "run"
    COLLECT = "collect"
    REMOVE = "remove"


_SAID: Final = {
    StepName.FETCH: (5, "fetching the lab and giving it its ports"),
    StepName.IMPORT: (10, "importing the lab"),
    StepName.START: (20, "starting the lab"),
    StepName.CONVERGE: (_ASKED, "its nodes boot"),
    StepName.RUN: (100, "the lab is ready"),
    StepName.COLLECT: (10, "saving the lab as it is"),
    StepName.REMOVE: (50, "removing the lab"),
}


def at_step(view: View, step: StepName) -> Progress:
    """Say that a step begins."""
    percent, message = _SAID[step]
    return Progress(step=step, percent=percent, message=message, at=view.now)


def is_at(view: View, step: StepName) -> bool:
    """Tell whether a step is the one that was told of last."""
    return view.status.progress is not None and view.status.progress.step == step


def before_import(view: View) -> bool:
    """Tell whether the next step is one that needs no look at the lab: importing it finds one that is there."""
    return is_at(view, StepName.FETCH) or is_at(view, StepName.IMPORT)


def is_due(view: View) -> bool:
    """Tell whether enough time has passed since a lab's boot was last told of for a look at its nodes."""
    known = view.status.progress
    return known is None or known.step != StepName.CONVERGE or view.now >= known.at + view.rules.told_every / 2


def booting(view: View) -> Progress | None:
    """Say how many of a lab's nodes have booted; None if that is not known, not news, or was told just now."""
    if isinstance(view.nodes, Unknown) or not view.nodes:
        return None
    count, booted = len(view.nodes), sum(state == _BOOTED for state in view.nodes.values())
    percent = _ASKED + (99 - _ASKED) * booted // count
    known = view.status.progress
    if known is not None and known.step == StepName.CONVERGE:
        leaps = abs(percent - known.percent) >= LEAP
        if percent == known.percent or (not leaps and view.now < known.at + view.rules.told_every):
            return None
    message = f"{booted} of {count} nodes have booted{_expectation(view)}"
    return Progress(step=StepName.CONVERGE, percent=percent, message=message, at=view.now)


def usual_start(sessions: Iterable[LabletSession], namespace: str, definition: str) -> timedelta | None:
    """Say how long the latest labs of a definition took from their intent to RUNNING; None if none has yet."""
    alike = (one for one in sessions if (one.metadata.namespace, one.spec.definition) == (namespace, definition))
    spans = [span for one in alike if (span := _start_of(one)) is not None]
    latest = sorted(spans, key=lambda one: one[0])[-_KEPT:]
    return timedelta(seconds=median(seconds for _, seconds in latest)) if latest else None


def _start_of(session: LabletSession) -> tuple[float, float] | None:
    """Give when a session ran, and after how many seconds."""
    began = None
    for line in session.status.history:
        if line.phase == SessionPhase.INSTANTIATING:
            began = line.at
        elif line.phase == SessionPhase.RUNNING and began is not None:
            return line.at.timestamp(), (line.at - began).total_seconds()
    return None


def _expectation(view: View) -> str:
    if view.usual is None:
        return ""
    left = int((view.entered_at + view.usual - view.now).total_seconds())
    return f"; about {left} s more by what others took" if left > 0 else "; others took less than this"
