"""The way of our CML client to simulated machines: what is wrong with a CML is met, and the sender answers for it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from lcm.model.access.secret import Secret
from lcm.model.base.errors import LcmError, Unreachable
from lcm.providers.cml.host import CmlHost
from lcm.providers.protocols.labhost import NotReady
from lcm.sim.cloud.account import LaunchOrder
from lcm.sim.cloud.effects import SENDER, Effect
from lcm.sim.cloud.fleet import SimFleet
from lcm.sim.cml.engine import Cml
from lcm.sim.time.chance import Chance
from lcm.sim.time.faults import ActiveFaults, FaultKind, FaultPeriod
from lcm.sim.time.host import Host
from lcm.sim.time.loop import VirtualClock, run
from lcm.sim.world.scenario import REGION, ScenarioLab, lab_topology
from world.wire import SimulatedCmlTransport

BOOT_SECONDS = 1_200
LAB = lab_topology(ScenarioLab(name="one", track="t", nodes=2)).decode()


@dataclass
class Site:
    """A machine, the way to it, and who did what there."""

    cml: Cml
    host: CmlHost
    spells: ActiveFaults
    deeds: list[tuple[str, str | None]]
    stop: Callable[[], object]


def on_a_machine(body: Callable[[Site], Awaitable[None]]) -> None:
    async def main() -> None:
        clock, spells, deeds = VirtualClock(), ActiveFaults(), list[tuple[str, str | None]]()

        def done(effect: Effect) -> None:
            deeds.append((effect.verb, SENDER.get()))

        fleet = SimFleet(clock, Chance(1), on_effect=done)
        account = fleet.cloud.account
        machine = account.run(LaunchOrder(REGION, "m5zn.metal", account.images(REGION, "CML-2.9*")[0].image_id))
        await asyncio.sleep(BOOT_SECONDS)
        (found,) = fleet.running_machines()
        address = machine.instance(clock.now()).public_ip
        host = CmlHost(
            f"https://{address}",
            "admin",
            Secret("admin"),
            transport=SimulatedCmlTransport(fleet.cloud, clock, spells, "process-7"),
        )
        await body(Site(found.cml, host, spells, deeds, lambda: account.stop(REGION, machine.instance_id)))

    run(main)


def test_whoever_sends_a_request_answers_for_its_effect() -> None:
    async def body(site: Site) -> None:
        await site.host.ensure("lab", LAB)
        assert ("import", "process-7") in site.deeds

    on_a_machine(body)


@pytest.mark.parametrize(
    ("spell", "heard"),
    [
        (FaultPeriod(FaultKind.SILENT), Unreachable),
        (FaultPeriod(FaultKind.HANGING, seconds=20), Unreachable),
        (FaultPeriod(FaultKind.SILENT, error=NotReady("502")), NotReady),
    ],
    ids=["silent", "hangs", "out of order"],
)
def test_what_is_wrong_with_a_cml_is_heard_and_nothing_happens(spell: FaultPeriod, heard: type[LcmError]) -> None:
    async def body(site: Site) -> None:
        with site.cml.spells.inject(spell), pytest.raises(heard):
            await site.host.ensure("lab", LAB)
        assert not len(site.cml.labs)

    on_a_machine(body)


def test_an_answer_is_lost_of_what_is_done_all_the_same() -> None:
    async def body(site: Site) -> None:
        lab = await site.host.ensure("lab", LAB)
        with site.spells.inject(FaultPeriod(FaultKind.DEAF, verbs=frozenset({"start"}))), pytest.raises(Unreachable):
            await site.host.start(lab.lab_id)
        assert len(site.cml.active_nodes()) == 2

    on_a_machine(body)


def test_who_dies_over_an_effect_has_had_it() -> None:
    async def body(site: Site) -> None:
        sender = Host("process-7")
        with site.spells.inject(FaultPeriod(FaultKind.DEADLY_AFTER, host="process-7", verbs=frozenset({"ensure"}))):
            sender.spawn(site.host.ensure("lab", LAB))
            await sender.until_dead()
        assert ("import", "process-7") in site.deeds

    on_a_machine(body)


def test_nobody_answers_at_the_address_of_a_machine_that_is_stopped() -> None:
    async def body(site: Site) -> None:
        await site.host.labs()
        site.stop()
        await asyncio.sleep(BOOT_SECONDS)
        with pytest.raises(Unreachable):
            await site.host.labs()

    on_a_machine(body)
