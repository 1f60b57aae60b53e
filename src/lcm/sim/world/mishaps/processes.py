"""What happens to our own processes and their store: they die, pause, are cut off, lose leases; the store fills up."""

from typing import Final

from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER, WORKER_CONTROLLER
from lcm.sim.time.faults import ActiveFaults, FaultKind, FaultPeriod
from lcm.sim.world.environment import FULL_PERCENT, HALF_FULL_PERCENT
from lcm.sim.world.mishaps.trouble import Trouble
from lcm.sim.world.process import Process

LEASES: Final = (SCHEDULER, WORKER_CONTROLLER, LABLET_CONTROLLER, POOL_CONTROLLER)
_AWAITS: Final = 400
"""How many awaits ahead the one may be at which a process dies: a busy process gets there within a second."""
_TO_CLOUD: Final = ("ensure", "start", "stop", "remove", "reboot")
_TO_LICENCES: Final = ("register", "deregister")
_TO_LABS: Final = ("ensure", "start", "remove", "topology", "find")
_AT_ONCE: Final = 2
"""How many verbs are waited for: some may not be called for hours."""
_WAIT_SECONDS: Final = 1_800
_NEARLY_FULL_PERCENT: Final = 92


async def process_is_killed(trouble: Trouble) -> None:
    """Kill a process at some await, and start another a while later."""
    await _kill_process(trouble)
    await trouble.stay(1, 120)
    trouble.restart()


async def process_is_killed_twice(trouble: Trouble) -> None:
    """Kill a process, and the one that takes its place while it comes up."""
    await _kill_process(trouble)
    await trouble.stay(1, 5)
    trouble.restart()
    newest = trouble.world.alive[-1]
    newest.host.kill_at(newest.host.awaits + trouble.dice.randrange(1, _AWAITS))
    await trouble.wait_for(newest.host.until_dead(), 30)
    newest.host.kill()
    trouble.tell(f"{newest.name} is killed as soon as it is there")
    await trouble.stay(1, 60)
    trouble.restart()


async def all_are_killed(trouble: Trouble) -> None:
    """Kill all processes, and start them again a while later."""
    for process in trouble.world.alive:
        process.host.kill()
    trouble.tell("all processes are killed")
    await trouble.stay(1, 300)
    trouble.restart()


async def process_dies_over_an_effect(trouble: Trouble) -> None:
    """Kill a leader right before or right after it has done something to the world outside."""
    found = _choose_leader_and_effect(trouble)
    if found is None:
        return
    process, spells, verbs = found
    kind = trouble.dice.choice((FaultKind.DEADLY_BEFORE, FaultKind.DEADLY_AFTER))
    with spells.inject(FaultPeriod(kind, host=process.name, verbs=verbs)):
        died = await trouble.wait_for(process.host.until_dead(), _WAIT_SECONDS)
    if died:
        when = "before" if kind is FaultKind.DEADLY_BEFORE else "after"
        trouble.tell(f"{process.name} died {when} {' or '.join(sorted(verbs))}")
        await trouble.stay(1, 60)
        trouble.restart()


async def process_stands_still_over_an_effect(trouble: Trouble) -> None:
    """Pause a leader right before or right after an effect on the outside, and then let it go on.

    Most pauses last until another process leads. With our CML client, the request is sent before the pause begins.
    """
    found = _choose_leader_and_effect(trouble)
    if found is None or not found[0].host.running:
        return
    process, spells, verbs = found
    sent = trouble.world.scenario.face == "client" and spells is trouble.stage.hosts.spells
    kind = FaultKind.STILL_AFTER if sent else trouble.dice.choice((FaultKind.STILL, FaultKind.STILL_AFTER))
    with spells.inject(FaultPeriod(kind, host=process.name, verbs=verbs)):
        stood = await trouble.wait_for(process.host.until_stopped(), _WAIT_SECONDS)
    if stood and process.host.alive and process.host.place in verbs:
        when = "before" if kind is FaultKind.STILL else "after"
        trouble.tell(f"{process.name} stands still {when} {process.host.place}")
        await trouble.stay(5, 300)
        _resume(trouble, process)


async def process_stands_still(trouble: Trouble) -> None:
    """Pause a process at some await, often for longer than its leases last."""
    process = trouble.choose_process()
    if process is None:
        return
    host = process.host
    host.call_at_await(host.awaits + trouble.dice.randrange(1, _AWAITS), host.pause)
    trouble.tell(f"{process.name} stands still")
    await trouble.stay(2, 300)
    host.stop_at = 0
    _resume(trouble, process)


async def process_is_cut_off_from_the_store(trouble: Trouble) -> None:
    """Cut a process off from the store for a while."""
    process = trouble.choose_process()
    if process is None:
        return
    process.link.cut()
    trouble.tell(f"{process.name} cannot reach the store")
    await trouble.stay(2, 300)
    process.link.mend()
    trouble.tell(f"{process.name} reaches the store")


async def commits_are_not_answered(trouble: Trouble) -> None:
    """Lose the answers to the next commits of a process."""
    process = trouble.choose_process()
    if process is None:
        return
    process.link.lost_answers = trouble.dice.randrange(1, 5)
    trouble.tell(f"{process.name} hears nothing of its next {process.link.lost_answers} commits")
    await trouble.stay(60, 600)
    process.link.lost_answers = 0


async def watches_are_cut(trouble: Trouble) -> None:
    """Break the connections on which processes wait for changes."""
    for process in trouble.world.alive:
        if trouble.dice.random() < 0.6:  # noqa: PLR2004  most of them
            process.link.cut_watches()
            trouble.tell(f"{process.name} loses its watches")


async def lease_is_lost(trouble: Trouble) -> None:
    """End a lease at the store while its holder still believes in it."""
    name = trouble.dice.choice(LEASES)
    lease = await trouble.stage.store.lease(name)
    if lease is not None:
        trouble.tell(f"the lease {name} of {lease.holder} ends")
        trouble.world.witness.record_robbed_lease(name, lease.holder)
        await trouble.stage.store.release(lease)


async def processes_are_upgraded(trouble: Trouble) -> None:
    """Replace all processes, one after the other, by a newer version; perhaps go back to the older one later."""
    await _replace_processes(trouble, newer=True)
    if trouble.dice.random() < 0.5:  # noqa: PLR2004 - half of the upgrades are taken back
        await trouble.stay(300, 3_600)
        await _replace_processes(trouble, newer=False)


async def store_fills_up(trouble: Trouble) -> None:
    """Fill the store nearly, then wholly, until somebody makes room."""
    store = trouble.stage.store
    store.used_percent = _NEARLY_FULL_PERCENT
    trouble.tell("the store is nearly full")
    await trouble.stay(60, 600)
    store.used_percent = FULL_PERCENT
    trouble.tell("the store is full")
    await trouble.stay(60, 900)
    store.used_percent = HALF_FULL_PERCENT
    trouble.tell("the store has room")


async def process_is_cut_off_from_the_cloud(trouble: Trouble) -> None:
    """Cut one process off from the cloud, which others still reach."""
    process = trouble.find_leader(WORKER_CONTROLLER) or trouble.choose_process()
    if process is None:
        return
    trouble.tell(f"{process.name} cannot reach the cloud")
    with trouble.stage.cloud.faults.spells.inject(FaultPeriod(FaultKind.SILENT, host=process.name)):
        await trouble.stay(30, 900)
    trouble.tell(f"{process.name} reaches the cloud")


async def process_is_cut_off_from_cmls(trouble: Trouble) -> None:
    """Cut one process off from all CMLs, which others still reach."""
    process = (
        trouble.find_leader(trouble.dice.choice((WORKER_CONTROLLER, LABLET_CONTROLLER))) or trouble.choose_process()
    )
    if process is None:
        return
    trouble.tell(f"{process.name} cannot reach any CML")
    with trouble.stage.hosts.spells.inject(FaultPeriod(FaultKind.SILENT, host=process.name)):
        await trouble.stay(30, 900)
    trouble.tell(f"{process.name} reaches the CMLs")


def _choose_leader_and_effect(trouble: Trouble) -> tuple[Process, ActiveFaults, frozenset[str]] | None:
    """Choose a leader, and what it may do next to the outside: to machines, licences or labs."""
    lease = trouble.dice.choice((WORKER_CONTROLLER, LABLET_CONTROLLER))
    process = trouble.find_leader(lease)
    if process is None:
        return None
    to_cloud = lease == WORKER_CONTROLLER and trouble.dice.random() < 0.7  # noqa: PLR2004  the rest are licences
    spells = trouble.stage.cloud.faults.spells if to_cloud else trouble.stage.hosts.spells
    verbs = _TO_CLOUD if to_cloud else _TO_LICENCES if lease == WORKER_CONTROLLER else _TO_LABS
    return process, spells, frozenset(trouble.dice.sample(verbs, _AT_ONCE))


async def _replace_processes(trouble: Trouble, *, newer: bool) -> None:
    trouble.world.is_upgraded = newer
    for process in trouble.world.alive:
        if not process.host.alive:
            continue  # it has died meanwhile
        await process.stop()
        trouble.tell(f"{process.name} stops, to be {'upgraded' if newer else 'rolled back'}")
        trouble.restart()
        await trouble.stay(30, 900)


def _resume(trouble: Trouble, process: Process) -> None:
    process.host.resume()
    if process.host.alive:
        trouble.tell(f"{process.name} goes on")


async def _kill_process(trouble: Trouble) -> None:
    process = trouble.choose_process()
    if process is None:
        return
    host = process.host
    host.kill_at(host.awaits + trouble.dice.randrange(1, _AWAITS))
    await trouble.wait_for(host.until_dead(), 30)
    host.kill()
    trouble.tell(f"{process.name} is killed")
