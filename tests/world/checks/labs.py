"""Checks that nothing of a session is left on any machine after its end, and that nothing comes there afterwards."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from lcm.controllers.session.progress import lab_uid
from lcm.model.kinds.session import LabletSession
from lcm.providers.protocols.compute import InstanceState
from lcm.sim.world.environment import Environment
from lcm.sim.world.world import Violation
from world.checks.violation import violation
from world.observed import ObservedChange, ObservedEffect, ObservedState, is_live

LEFT: Final = "lab left on a worker after its session ended"
LEFT_GRACE: Final = timedelta(hours=2)
"""A machine that was stopped with a lab on its disk comes back with it; the next sweep removes that lab."""
_UID: Final = re.compile(r" \[([^\]]+)\]$")


def ended_session_left_no_lab(
    seen: ObservedState, turn: ObservedChange[LabletSession], stage: Environment
) -> Sequence[Violation]:
    """Check, when a session ends or is removed, that no running machine has its lab.

    A machine that does not run is excused: its disk cannot be looked at until it is started. So is another machine
    than that of its worker if a restore put the session back: the next sweep finds what was there.
    """
    before, after = turn.before, turn.after
    if after is not None and is_live(after):
        return ()
    if before is not None and not is_live(before):
        return ()
    if lab_holder(seen, turn.latest.metadata.uid) not in (None, turn.latest):
        return ()  # another session has taken its lab over
    mine = [where for where, uid, _ in labs_on(stage, turn.at) if uid == lab_uid(turn.latest)]
    if seen.was_put_back(turn.latest):
        worker = seen.workers.get(turn.latest.status.worker_id or "")
        mine = [where for where in mine if worker is not None and where == worker.status.ec2.instance_id]
    return [violation(LEFT, f"it has ended, and its lab is on {where}", turn.latest) for where in mine]


def lab_is_made_for_a_live_session(
    seen: ObservedState, deed: ObservedEffect, _stage: Environment
) -> Sequence[Violation]:
    """Check that none of our processes imports or starts a lab of a session that has ended."""
    if deed.host is None or deed.effect.verb not in {"import", "start lab"}:
        return ()
    session = lab_holder(seen, uid_in(deed.effect.lab) or "")
    if session is None or not seen.is_over(session):
        return ()
    return [violation(LEFT, f"{deed.host} does {deed.effect.verb} after its end", session)]


def old_lab_is_removed(seen: ObservedState, stage: Environment, now: datetime) -> Sequence[Violation]:
    """Check that a lab that came back with its machine after its session had ended does not stay."""
    found = []
    for where, uid, running_since in labs_on(stage, now):
        session = lab_holder(seen, uid)
        if session is None or not seen.is_over(session):
            continue
        since = max(seen.removed.get(uid, session.status.history[-1].at), running_since, seen.restored_at)
        if now - since > LEFT_GRACE:
            found.append(violation(LEFT, f"its lab is on {where} since {since:%d %H:%M}", session))
    return found


def labs_on(stage: Environment, now: datetime) -> Iterator[tuple[str, str, datetime]]:
    """Yield the labs of sessions on running machines: the machine, the session's uid, and since when it runs."""
    for machine in stage.cloud.account.machines.values():
        cml = stage.fleet.find_cml(machine.instance_id)
        last = machine.change_at(now)
        if cml is None or last.state is not InstanceState.RUNNING:
            continue
        for lab in cml.labs:
            if uid := uid_in(lab.title):
                yield machine.instance_id, uid, last.at


def lab_holder(seen: ObservedState, uid: str) -> LabletSession | None:
    """Return whose a lab is, by the uid in its title: a session that lives and took it over, or else the first."""
    takers = (one for one in seen.live_sessions() if one.status.taken_from is not None and lab_uid(one) == uid)
    return next(takers, None) or seen.sessions.get(uid)


def uid_in(title: str) -> str | None:
    """Return the session's uid in a lab's title; None for a foreign lab."""
    found = _UID.search(title)
    return found[1] if found else None
