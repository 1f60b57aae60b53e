"""How far a session is on its way up or down, in percent and in a sentence. Pure."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median
from typing import Final

from lcm.control.objects.session_files import kept_name
from lcm.controllers.session.view import View, said
from lcm.controllers.worker.view import Unknown
from lcm.model.base.resource import Condition, Truth, condition, with_condition
from lcm.model.kinds.definition import PortEnd, PortTemplate
from lcm.model.kinds.session import INSTANTIATION_LIMIT, LabletSession, Progress, SessionPhase
from lcm.model.kinds.worker import LabWorker
from lcm.providers.protocols.artifacts import named

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


LAB_FILE: Final = "lab.yaml"
_LONGEST_TITLE: Final = 64
"""What CML allows."""
_OURS: Final = re.compile(r".* \[([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\]", re.DOTALL)


def title_of(session: LabletSession) -> str:
    """Name a session's lab on its host; what does not fit of the readable part is left out, never of the uid."""
    meta = session.metadata
    tail = f" [{meta.uid}]"
    return f"{meta.namespace}/{meta.name}"[: _LONGEST_TITLE - len(tail)] + tail


def owner_of(title: str) -> str | None:
    """Name the session, by its uid, that a lab of this title is of; None for a stranger's."""
    found = _OURS.fullmatch(title)
    return found[1] if found else None


def prepared_name(session: LabletSession) -> str:
    """Name the file that is imported: the topology with the session's own ports. It ends with the session."""
    return f"{session.metadata.uid}/{LAB_FILE}"


def prepared_uri(session: LabletSession) -> str:
    """Say where the file that is imported is kept."""
    return named(prepared_name(session)).uri


def collected_uri(session: LabletSession, file: str = LAB_FILE) -> str:
    """Say where a file that was collected from a session's lab is kept."""
    return named(kept_name(session, file)).uri


_SCHEMES: Final = {"serial": "telnet", "vnc": "vnc"}


def address_of(worker: LabWorker) -> str:
    """Say at which address a worker's ports are; "" while it has none."""
    machine = worker.status.ec2
    return (machine.public_ip if worker.spec.aws.public_ip else machine.private_ip) or ""


def access_urls(worker: LabWorker, ports: Mapping[str, int], template: PortTemplate) -> dict[str, str]:
    """Give the address of each port that leads somewhere, by its name; a number among words leads nowhere."""
    address = address_of(worker)
    ends = {name: template[name].ends for name in sorted(ports) if name in template}
    return {name: f"{_scheme(use[0])}://{address}:{ports[name]}" for name, use in ends.items() if use and address}


def _scheme(end: PortEnd) -> str:
    return _SCHEMES.get(end.kind) or end.protocol or "tcp"


LAB_RUNS: Final = "LabRuns"
"""False: its lab was found stopped while its time went on, and has not come up again yet."""
_TRIED: Final = "Restarted"
_LEFT: Final = "NotRestarted"
_FOUND: Final = "its lab was found stopped"


def restarts(view: View) -> int:
    """Say how often its lab was started again; what is long past does not count."""
    known = _known(view.session)
    if known is None or view.now >= known.last_transition_at + view.rules.forgiven:
        return 0
    return int(known.reason.removeprefix(_LEFT).removeprefix(_TRIED))


def coming_up(session: LabletSession, now: datetime) -> bool:
    """Tell whether its lab is being started again, and has not taken longer over it than any may."""
    known = _known(session)
    if known is None or known.status is not Truth.FALSE or left_stopped(session):
        return False
    return now < known.last_transition_at + INSTANTIATION_LIMIT


def left_stopped(session: LabletSession) -> bool:
    """Tell whether its lab is left as it is, because it was started again often enough."""
    known = _known(session)
    return known is not None and known.reason.startswith(_LEFT)


def tried(view: View) -> tuple[Condition, ...]:
    """Give its conditions when its lab is to be started once more: each attempt has a time of its own."""
    new = Condition(
        type=LAB_RUNS,
        status=Truth.FALSE,
        last_transition_at=view.now,
        reason=f"{_TRIED}{restarts(view) + 1}",
        message=_FOUND,
    )
    others = tuple(one for one in view.status.conditions if one.type != LAB_RUNS)
    return with_condition(others, new)


def left(view: View) -> tuple[Condition, ...]:
    """Give its conditions when its lab is not started again for a while."""
    return said(view, LAB_RUNS, Truth.FALSE, f"{_LEFT}{restarts(view)}", _FOUND)


def up_again(view: View) -> tuple[Condition, ...]:
    """Give its conditions when its lab has come up again."""
    return said(view, LAB_RUNS, Truth.TRUE, f"{_TRIED}{restarts(view)}", _FOUND)


def _known(session: LabletSession) -> Condition | None:
    return condition(session.status.conditions, LAB_RUNS)
