"""How far a session is on its way up or down, what its lab and files are called outside, and where it is reached. Pure.

Every outside name carries the session's uid, because session names are used again, in other namespaces and at other
times.
"""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from statistics import median
from typing import Final

from lcm.control.objects.records import NAME
from lcm.control.objects.session_files import COLLECTED_PREFIX, stored_name
from lcm.controllers.runtime.lifecycle import Unknown
from lcm.controllers.session.view import SessionView, set_condition
from lcm.model.base.resource import Condition, Truth, find_condition, with_condition
from lcm.model.kinds.console import consoles_of
from lcm.model.kinds.definition import PortTemplate
from lcm.model.kinds.saved_lab import LAB_FILE
from lcm.model.kinds.session import INSTANTIATION_LIMIT, LabletSession, Progress, SessionCondition, SessionPhase
from lcm.model.kinds.worker import LabWorker, address_of
from lcm.model.telemetry.observation import LabUse
from lcm.providers.protocols.artifacts import temporary_address
from lcm.providers.protocols.labhost import LabSummary

LEAP_PERCENT: Final = 10
"""A change of this many percent is written at once."""
_SAMPLES_KEPT: Final = 50
_START_PERCENT: Final = 25
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


_STEP_TEXTS: Final = {
    StepName.FETCH: (5, "fetching the lab and importing it with its ports"),
    StepName.IMPORT: (10, "importing the lab"),
    StepName.START: (20, "starting the lab"),
    StepName.CONVERGE: (_START_PERCENT, "its nodes boot"),
    StepName.RUN: (100, "the lab is ready"),
    StepName.COLLECT: (10, "saving the lab as it is"),
    StepName.REMOVE: (50, "removing the lab"),
}


def at_step(view: SessionView, step: StepName) -> Progress:
    """Return the progress of a step that begins."""
    percent, message = _STEP_TEXTS[step]
    return Progress(step=step, percent=percent, message=message, at=view.now)


def is_at(view: SessionView, step: StepName) -> bool:
    """Return whether a step is the one that was reported last."""
    return view.status.progress is not None and view.status.progress.step == step


def is_before_import(view: SessionView) -> bool:
    """Return whether the next step needs no look at the lab: the import finds a lab that exists."""
    return is_at(view, StepName.FETCH) or is_at(view, StepName.IMPORT)


def is_node_look_due(view: SessionView) -> bool:
    """Return whether enough time has passed since boot progress was written for another look at the nodes."""
    known = view.status.progress
    return known is None or known.step != StepName.CONVERGE or view.now >= known.at + view.rules.told_every / 2


def boot_progress(view: SessionView) -> Progress | None:
    """Return how many of a lab's nodes have booted; None if that is not known, not new, or was written just now."""
    if isinstance(view.nodes, Unknown) or not view.nodes:
        return None
    count, booted = len(view.nodes), sum(state == _BOOTED for state in view.nodes.values())
    percent = _START_PERCENT + (99 - _START_PERCENT) * booted // count
    known = view.status.progress
    if known is not None and known.step == StepName.CONVERGE:
        leaps = abs(percent - known.percent) >= LEAP_PERCENT
        if percent == known.percent or (not leaps and view.now < known.at + view.rules.told_every):
            return None
    message = f"{booted} of {count} nodes have booted{_remaining_text(view)}"
    return Progress(step=StepName.CONVERGE, percent=percent, message=message, at=view.now)


def is_leap_in_use(known: LabUse | None, now: LabUse | None) -> bool:
    """Return whether a lab that boots uses so much more than is recorded that it is written at once."""
    if known is None or now is None:
        return now is not None
    factor = 1 + LEAP_PERCENT / 100
    return now.cpu_cores > known.cpu_cores * factor or now.memory_mb > known.memory_mb * factor


def usual_start(sessions: Iterable[LabletSession], namespace: str, definition: str) -> timedelta | None:
    """Return how long the latest labs of a definition took from INSTANTIATING to RUNNING; None if none has yet."""
    alike = (one for one in sessions if (one.metadata.namespace, one.spec.definition) == (namespace, definition))
    spans = [span for one in alike if (span := _measured_start(one)) is not None]
    latest = sorted(spans, key=lambda one: one[0])[-_SAMPLES_KEPT:]
    return timedelta(seconds=median(seconds for _, seconds in latest)) if latest else None


def _measured_start(session: LabletSession) -> tuple[float, float] | None:
    """Return when a session ran, and after how many seconds."""
    began = None
    for line in session.status.history:
        if line.phase == SessionPhase.INSTANTIATING:
            began = line.at
        elif line.phase == SessionPhase.RUNNING and began is not None:
            return line.at.timestamp(), (line.at - began).total_seconds()
    return None


def _remaining_text(view: SessionView) -> str:
    if view.usual is None:
        return ""
    left = int((view.entered_at + view.usual - view.now).total_seconds())
    return f"; about {left} s more, judging by other sessions" if left > 0 else "; other sessions took less time"


_TITLE_LIMIT: Final = 64
"""The longest title that CML allows."""
_TITLE_PATTERN: Final = re.compile(r".* \[([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\]", re.DOTALL)


def title_of(session: LabletSession) -> str:
    """Return the title of a session's lab on its host. The readable part is cut to fit, never the uid.

    A lab that was taken over keeps the title with which it was imported.
    """
    known = session.status.taken_from or session.metadata
    tail = f" [{known.uid}]"
    return f"{session.metadata.namespace}/{known.name}"[: _TITLE_LIMIT - len(tail)] + tail


def lab_uid(session: LabletSession) -> str:
    """Return the uid that the title of a session's lab has."""
    return (session.status.taken_from or session.metadata).uid


def owner_of(title: str) -> str | None:
    """Return the uid of the session that a lab with this title belongs to; None if it is not one of ours."""
    found = _TITLE_PATTERN.fullmatch(title)
    return found[1] if found else None


def prepared_name(session: LabletSession) -> str:
    """Return the name of the file to import: the topology with the session's ports. It ends with the session."""
    return f"{lab_uid(session)}/{LAB_FILE}"


def prepared_uri(session: LabletSession) -> str:
    """Return where the file to import is kept."""
    return temporary_address(prepared_name(session)).uri


def collected_uri(session: LabletSession, file: str = LAB_FILE) -> str:
    """Return where a file that was collected from a session's lab is kept."""
    return temporary_address(stored_name(session, file)).uri


def namespace_in(title: str) -> str:
    """Return the namespace of the session that a lab's title names; "unknown" if it names none."""
    found = title.partition("/")[0]
    return found if NAME.fullmatch(found) else "unknown"


def held_name(lab: LabSummary) -> str:
    """Return the name under which a lab without its session is saved: never in place of what a session collected."""
    return f"{COLLECTED_PREFIX}{namespace_in(lab.title)}/{owner_of(lab.title)}/held-{lab.lab_id}.yaml"


_SCHEMES: Final = {"serial": "telnet", "vnc": "vnc"}


def access_urls(view: SessionView, worker: LabWorker, template: PortTemplate) -> dict[str, str]:
    """Return the URL of each port that is connected to something, by name; unused port numbers are left out.

    Behind the gateway these are paths of the API, whichever address it has for whom.
    """
    ports = view.status.allocated_ports or {}
    if view.rules.behind_gateway:
        return {one.name: one.path for one in consoles_of(view.session, template)}
    address = address_of(worker)
    urls: dict[str, str] = {}
    for name in sorted(ports):
        if address and name in template and (ends := template[name].ends):
            scheme = _SCHEMES.get(ends[0].kind) or ends[0].protocol or "tcp"
            urls[name] = f"{scheme}://{address}:{ports[name]}"
    return urls


LAB_RUNS: Final = SessionCondition.LAB_RUNS.value
"""False: the lab was found stopped before its time was over, and has not come up again yet."""
_RESTARTED: Final = "Restarted"
_NOT_RESTARTED: Final = "NotRestarted"
_FOUND_STOPPED: Final = "its lab was found stopped"


def restart_count(view: SessionView) -> int:
    """Return how often its lab was started again recently."""
    known = find_condition(view.status.conditions, LAB_RUNS)
    if known is None or view.now >= known.last_transition_at + view.rules.forgiven:
        return 0
    return int(known.reason.removeprefix(_NOT_RESTARTED).removeprefix(_RESTARTED))


def is_restarting(session: LabletSession, now: datetime) -> bool:
    """Return whether its lab is being started again, and is still within the time limit for a start."""
    known = find_condition(session.status.conditions, LAB_RUNS)
    if known is None or known.status is not Truth.FALSE or is_left_stopped(session):
        return False
    return now < known.last_transition_at + INSTANTIATION_LIMIT


def is_left_stopped(session: LabletSession) -> bool:
    """Return whether its lab is left stopped, because it was started again often enough."""
    known = find_condition(session.status.conditions, LAB_RUNS)
    return known is not None and known.reason.startswith(_NOT_RESTARTED)


def with_restart(view: SessionView) -> tuple[Condition, ...]:
    """Return the conditions after one more restart: each attempt has its own time."""
    new = Condition(
        type=LAB_RUNS,
        status=Truth.FALSE,
        last_transition_at=view.now,
        reason=f"{_RESTARTED}{restart_count(view) + 1}",
        message=_FOUND_STOPPED,
    )
    others = tuple(one for one in view.status.conditions if one.type != LAB_RUNS)
    return with_condition(others, new)


def with_left_stopped(view: SessionView) -> tuple[Condition, ...]:
    """Return the conditions when its lab is not started again for a while."""
    return set_condition(view, LAB_RUNS, Truth.FALSE, f"{_NOT_RESTARTED}{restart_count(view)}", _FOUND_STOPPED)


def with_lab_up(view: SessionView) -> tuple[Condition, ...]:
    """Return the conditions when its lab has come up again."""
    return set_condition(view, LAB_RUNS, Truth.TRUE, f"{_RESTARTED}{restart_count(view)}", _FOUND_STOPPED)
