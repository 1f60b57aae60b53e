"""What happens to our own processes: they die, stand still, are cut off, and lose their leases."""

from typing import Final

from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER, WORKER_CONTROLLER
from lcm.sim.time.faults import Ill, Spell, Spells
from lcm.sim.world.mishaps.trouble import Trouble
from lcm.sim.world.process import Process

LEASES: Final = (SCHEDULER, WORKER_CONTROLLER, LABLET_CONTROLLER, POOL_CONTROLLER)
_AWAITS: Final = 400
"""How far ahead the await may be at which a process dies: a busy one comes to it within a second."""
_TO_CLOUD: Final = ("ensure", "start", "stop", "remove", "reboot")
_TO_LICENCES: Final = ("register", "deregister")
_TO_LABS: Final = ("ensure", "start", "remove", "topology", "find")
_AT_ONCE: Final = 2
"""How many verbs are waited for: of some nobody may hear for hours."""
_WAIT_SECONDS: Final = 1_800


async def process_is_killed(trouble: Trouble) -> None:
    """Kill a process at some await, and start another a while later."""
    await _kill(trouble)
    await trouble.lasts(1, 120)
    trouble.restart()


async def process_is_killed_twice(trouble: Trouble) -> None:
    """Kill a process, and the one that takes its place while it comes up."""
    await _kill(trouble)
    await trouble.lasts(1, 5)
    trouble.restart()
    newest = trouble.world.alive[-1]
    newest.host.kill_at(newest.host.awaits + trouble.dice.randrange(1, _AWAITS))
    await trouble.until(newest.host.until_dead(), 30)
    newest.host.kill()
    trouble.tell(f"{newest.name} is killed as soon as it is there")
    await trouble.lasts(1, 60)
    trouble.restart()


async def all_are_killed(trouble: Trouble) -> None:
    """Have nobody for a while."""
    for process in trouble.world.alive:
        process.host.kill()
    trouble.tell("all processes are killed")
    await trouble.lasts(1, 300)
    trouble.restart()


async def process_dies_over_an_effect(trouble: Trouble) -> None:
    """Kill a leader right before or right after it has done something to the world outside."""
    found = _about_to_act(trouble)
    if found is None:
        return
    process, spells, verbs = found
    ill = trouble.dice.choice((Ill.DEADLY_BEFORE, Ill.DEADLY_AFTER))
    with spells.under(Spell(ill, host=process.name, verbs=verbs)):
        died = await trouble.until(process.host.until_dead(), _WAIT_SECONDS)
    if died:
        when = "before" if ill is Ill.DEADLY_BEFORE else "after"
        trouble.tell(f"{process.name} died {when} {' or '.join(sorted(verbs))}")
        await trouble.lasts(1, 60)
        trouble.restart()


async def process_stands_still_over_an_effect(trouble: Trouble) -> None:
    """Let a leader sleep right before or right after it does something to the world outside, and then go on.

    Most sleep until somebody else leads. Who speaks to a CML by our client sleeps with its request already sent.
    """
    found = _about_to_act(trouble)
    if found is None or not found[0].host.running:
        return
    process, spells, verbs = found
    sent = trouble.world.scenario.face == "client" and spells is trouble.stage.hosts.spells
    ill = Ill.STILL_AFTER if sent else trouble.dice.choice((Ill.STILL, Ill.STILL_AFTER))
    with spells.under(Spell(ill, host=process.name, verbs=verbs)):
        stood = await trouble.until(process.host.until_stopped(), _WAIT_SECONDS)
    if stood and process.host.alive and process.host.place in verbs:
        when = "before" if ill is Ill.STILL else "after"
        trouble.tell(f"{process.name} stands still {when} {process.host.place}")
        await trouble.lasts(5, 300)
        _go_on(trouble, process)


async def process_stands_still(trouble: Trouble) -> None:
    """Let a process sleep at some await, often for longer than its leases last."""
    process = trouble.process()
    if process is None:
        return
    host = process.host
    host.at(host.awaits + trouble.dice.randrange(1, _AWAITS), host.pause)
    trouble.tell(f"{process.name} stands still")
    await trouble.lasts(2, 300)
    host.stop_at = 0
    _go_on(trouble, process)


async def process_is_cut_off_from_the_store(trouble: Trouble) -> None:
    """Let a process hear nothing from the store for a while."""
    process = trouble.process()
    if process is None:
        return
    process.link.cut()
    trouble.tell(f"{process.name} cannot reach the store")
    await trouble.lasts(2, 300)
    process.link.mend()
    trouble.tell(f"{process.name} reaches the store")


async def commits_are_not_answered(trouble: Trouble) -> None:
    """Let a process not hear what became of its next commits."""
    process = trouble.process()
    if process is None:
        return
    process.link.lost_answers = trouble.dice.randrange(1, 5)
    trouble.tell(f"{process.name} hears nothing of its next {process.link.lost_answers} commits")
    await trouble.lasts(60, 600)
    process.link.lost_answers = 0


async def watches_are_cut(trouble: Trouble) -> None:
    """Break the connections on which processes wait for changes."""
    for process in trouble.world.alive:
        if trouble.dice.random() < 0.6:  # noqa: PLR2004  most of them
            process.link.cut_watches()
            trouble.tell(f"{process.name} loses its watches")


async def lease_is_lost(trouble: Trouble) -> None:
    """Let a lease end at the store while its holder believes in it."""
    name = trouble.dice.choice(LEASES)
    lease = await trouble.stage.store.lease(name)
    if lease is not None:
        trouble.tell(f"the lease {name} of {lease.holder} ends")
        trouble.world.witness.seen.robbed[name, lease.holder] = trouble.world.clock.now()
        await trouble.stage.store.release(lease)


async def process_is_cut_off_from_the_cloud(trouble: Trouble) -> None:
    """Let one process not reach the cloud, which others do reach."""
    process = trouble.leader(WORKER_CONTROLLER) or trouble.process()
    if process is None:
        return
    trouble.tell(f"{process.name} cannot reach the cloud")
    with trouble.stage.cloud.faults.spells.under(Spell(Ill.SILENT, host=process.name)):
        await trouble.lasts(30, 900)
    trouble.tell(f"{process.name} reaches the cloud")


async def process_is_cut_off_from_cmls(trouble: Trouble) -> None:
    """Let one process not reach any CML, which others do reach."""
    process = trouble.leader(trouble.dice.choice((WORKER_CONTROLLER, LABLET_CONTROLLER))) or trouble.process()
    if process is None:
        return
    trouble.tell(f"{process.name} cannot reach any CML")
    with trouble.stage.hosts.spells.under(Spell(Ill.SILENT, host=process.name)):
        await trouble.lasts(30, 900)
    trouble.tell(f"{process.name} reaches the CMLs")


def _about_to_act(trouble: Trouble) -> tuple[Process, Spells, frozenset[str]] | None:
    """Choose a leader, and what it may do next to the outside: to machines, licences or labs."""
    lease = trouble.dice.choice((WORKER_CONTROLLER, LABLET_CONTROLLER))
    process = trouble.leader(lease)
    if process is None:
        return None
    to_cloud = lease == WORKER_CONTROLLER and trouble.dice.random() < 0.7  # noqa: PLR2004  the rest are licences
    spells = trouble.stage.cloud.faults.spells if to_cloud else trouble.stage.hosts.spells
    verbs = _TO_CLOUD if to_cloud else _TO_LICENCES if lease == WORKER_CONTROLLER else _TO_LABS
    return process, spells, frozenset(trouble.dice.sample(verbs, _AT_ONCE))


def _go_on(trouble: Trouble, process: Process) -> None:
    process.host.resume()
    if process.host.alive:
        trouble.tell(f"{process.name} goes on")


async def _kill(trouble: Trouble) -> None:
    process = trouble.process()
    if process is None:
        return
    host = process.host
    host.kill_at(host.awaits + trouble.dice.randrange(1, _AWAITS))
    await trouble.until(host.until_dead(), 30)
    host.kill()
    trouble.tell(f"{process.name} is killed")
