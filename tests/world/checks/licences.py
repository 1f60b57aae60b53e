"""Checks that no licence stays registered on a machine that is gone, unless somebody was told."""

from collections.abc import Sequence
from typing import Final

from lcm.model.kinds.worker_machine import WORKER_MACHINE
from lcm.model.money.licences import SeatState
from lcm.providers.protocols.compute import ENDING, InstanceState
from lcm.sim.cloud.machines import SimMachine
from lcm.sim.world.environment import Environment
from lcm.sim.world.world import Violation
from world.checks.violation import violation
from world.observed import ObservedEffect, ObservedState

UNRETURNED: Final = "licence left registered on a terminated worker"


def licence_is_given_back_first(seen: ObservedState, deed: ObservedEffect, stage: Environment) -> Sequence[Violation]:
    """Check that none of our processes terminates a machine whose licence the server still counts.

    A seat that the ledger calls orphaned is excused: CML could not be reached any more, and a person was told. So is
    that of a machine from before a restore whose CML cannot be asked: its record may not know of it.
    """
    if deed.host is None or deed.effect.verb != "terminate":
        return ()
    instance_id = deed.effect.instance_id
    if not _has_licence(stage, instance_id) or _is_orphaned(seen, instance_id):
        return ()
    machine = stage.cloud.account.machines[instance_id]
    cml = stage.fleet.find_cml(instance_id)
    answers = machine.state(deed.at) is InstanceState.RUNNING and cml is not None and cml.is_up
    if _is_older_than_a_restore(seen, machine) and not answers:
        return ()
    workers = [seen.workers[uid] for uid in seen.had_machine.get(instance_id, ()) if uid in seen.workers]
    return [violation(UNRETURNED, f"{deed.host} terminates {instance_id}, which holds a licence", *workers)]


def taken_seats_are_known(seen: ObservedState, stage: Environment) -> Sequence[Violation]:
    """Check that each seat that the licence server counts is a living machine's, or orphaned in the ledger.

    The seats of machines from before a restore are excused: the ledger that came back may never have known them.
    """
    now, machines = stage.clock.now(), stage.cloud.account.machines.values()
    ended = [one for one in machines if one.state(now) in ENDING and not _is_older_than_a_restore(seen, one)]
    gone = [one.instance_id for one in ended]
    return [
        Violation(UNRETURNED, f"{one} is gone and its licence is not known to be taken", _worker_names(seen, one))
        for one in gone
        if _has_licence(stage, one) and not _is_orphaned(seen, one)
    ]


def ledger_is_right(seen: ObservedState, _stage: Environment) -> Sequence[Violation]:
    """Check that the ledger keeps no seat for a worker that is over, unless it calls the seat orphaned."""
    living = {uid for uid, one in seen.workers.items() if one.status.phase not in WORKER_MACHINE.final}
    return [
        Violation(
            UNRETURNED, f"{seat.worker_name} is over, and its seat is {seat.state}", (f"LabWorker/{seat.worker_name}",)
        )
        for uid, seat in seen.seats.items()
        if uid not in living and seat.state is not SeatState.ORPHANED
    ]


def _has_licence(stage: Environment, instance_id: str) -> bool:
    cml = stage.fleet.find_cml(instance_id)
    return cml is not None and cml.licence.udi in stage.licences.taken


def _is_older_than_a_restore(seen: ObservedState, machine: SimMachine) -> bool:
    return machine.changes[0].at <= seen.restored_at


def _is_orphaned(seen: ObservedState, instance_id: str) -> bool:
    seats = (seen.seats.get(uid) for uid in seen.had_machine.get(instance_id, ()))
    return any(seat is not None and seat.state is SeatState.ORPHANED for seat in seats)


def _worker_names(seen: ObservedState, instance_id: str) -> tuple[str, ...]:
    known = (seen.workers.get(uid) for uid in seen.had_machine.get(instance_id, ()))
    return tuple(f"LabWorker/{one.metadata.name}" for one in known if one)
