"""A simulated CML on a machine of the simulated cloud: it boots, stops, starts, reboots and ends with the machine."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import httpx
import pytest

from harness.asgi import MemoryTransport
from harness.clouds import HERE, launch, text
from harness.stores import HandClock
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Unreachable
from lcm.providers.protocols.compute import Instance, StatusCheckResult
from lcm.providers.protocols.labhost import LabHost, LabState, NotReady
from lcm.sim.cloud.compute import SimCloud
from lcm.sim.cloud.effects import PowerHistory
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.faults import CmlRefusal
from lcm.sim.cml.rest.app import CmlApp
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import VirtualClock, run

BOOTED = 5 * 60
"""More than CML takes from power-on."""
STOPPED = 6 * 60
"""More than a metal machine takes to stop."""


class Site:
    """A cloud with one machine and the CML on it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.cloud = SimCloud(self.clock, Chance(7), attach=self._install)
        self.cloud.account.add_image(HERE, "CML-2.9.1", self.clock.now())
        self.instance_id = ""

    def _install(self, instance: Instance, power: PowerHistory) -> Cml:
        return Cml(self.clock, Chance(instance.instance_id), power=power)

    async def launched(self) -> "Site":
        self.instance_id = (await self.cloud.ensure(launch("uid"))).instance_id
        await asyncio.sleep(90)
        return self

    async def booted(self) -> "Site":
        await self.launched()
        await asyncio.sleep(BOOTED)
        return self

    @property
    def cml(self) -> Cml:
        found = self.cloud.find_attached(self.instance_id)
        assert isinstance(found, Cml)
        return found

    async def stop(self) -> None:
        await self.cloud.stop(HERE, self.instance_id)

    async def start(self) -> None:
        await self.cloud.start(HERE, self.instance_id)

    async def reboot(self) -> None:
        await self.cloud.reboot(HERE, self.instance_id)

    async def remove(self) -> None:
        await self.cloud.remove(HERE, self.instance_id)

    async def running(self, host: LabHost) -> str:
        lab = await host.ensure("lab", text())
        await host.start(lab.lab_id)
        await asyncio.sleep(600)
        assert await host.converged(lab.lab_id)
        return lab.lab_id


async def state(host: LabHost, lab_id: str) -> LabState | None:
    lab = await host.look(lab_id)
    return lab.state if lab else None


async def ready_after(host: LabHost) -> float:
    """Wait until CML answers and say how many seconds that took."""
    for waited in range(1_000):
        try:
            await host.system()
        except NotReady:
            await asyncio.sleep(1)
        else:
            return waited
    raise AssertionError("CML never answers")


def test_cml_boots_after_its_machine_has() -> None:
    async def main() -> None:
        site = await Site().launched()
        host = DirectHost(site.cml)
        with pytest.raises(NotReady):
            await host.labs()
        assert 120 <= await ready_after(host) <= 240
        assert await host.labs() == []

    run(main)


def test_a_stopped_machine_does_not_answer_and_its_labs_are_stopped_when_it_is_back() -> None:
    async def main() -> None:
        site = await Site().booted()
        host = DirectHost(site.cml)
        lab_id = await site.running(host)
        await host.register(product="CML_Enterprise", token=Secret("good"))
        await site.stop()
        for wait in (0, 60, STOPPED):
            await asyncio.sleep(wait)
            with pytest.raises(Unreachable):
                await host.look(lab_id)
            assert site.cloud.find_attached(site.instance_id) is None
        await site.start()
        await asyncio.sleep(90)
        with pytest.raises(NotReady):
            await host.look(lab_id)
        await ready_after(host)
        assert await state(host, lab_id) is LabState.STOPPED
        assert (await host.licence()).in_compliance
        assert site.cml.patty_ports() == {}

    run(main)


def test_nodes_that_were_to_boot_while_the_machine_was_off_never_did() -> None:
    async def main() -> None:
        site = await Site().booted()
        host = DirectHost(site.cml)
        lab = await host.ensure("lab", text())
        await host.start(lab.lab_id)
        await asyncio.sleep(10)
        begun = site.clock.now()
        await site.stop()
        await asyncio.sleep(STOPPED)
        await site.start()
        await asyncio.sleep(90 + BOOTED)
        seen = {one.category for one in await host.activity(since=begun - timedelta(hours=1))}
        assert "start_node" in seen
        assert "boot_node" not in seen
        assert await state(host, lab.lab_id) is LabState.STOPPED
        await host.start(lab.lab_id)
        await asyncio.sleep(600)
        assert await host.converged(lab.lab_id)
        assert await state(host, lab.lab_id) is LabState.STARTED

    run(main)


def test_a_reboot_stops_the_labs_and_boots_cml() -> None:
    async def main() -> None:
        site = await Site().booted()
        host = DirectHost(site.cml)
        lab_id = await site.running(host)
        for _ in range(2):
            await site.reboot()
            with pytest.raises(NotReady):
                await host.look(lab_id)
            assert await ready_after(host) == 240
            assert await state(host, lab_id) is LabState.STOPPED
            await site.running(host)

    run(main)


def test_what_happens_at_one_moment_happens_in_order() -> None:
    async def main() -> None:
        site = await Site().booted()
        host = DirectHost(site.cml)
        lab_id = await site.running(host)
        await site.reboot()
        with pytest.raises(NotReady):
            await host.look(lab_id)
        await site.stop()
        with pytest.raises(Unreachable):
            await host.look(lab_id)

    run(main)


@pytest.mark.parametrize("end", [Site.remove, None])
def test_a_machine_that_has_ended_never_answers_again(end: Callable[[Site], Awaitable[None]] | None) -> None:
    async def main() -> None:
        site = await Site().booted()
        host = DirectHost(site.cml)
        lab_id = await site.running(host)
        if end:
            await end(site)
        else:
            site.cloud.account.die(HERE, site.instance_id)
        for wait in (0, 3_600):
            await asyncio.sleep(wait)
            with pytest.raises(Unreachable):
                await host.look(lab_id)
            assert site.cloud.find_attached(site.instance_id) is None

    run(main)


def test_the_rest_face_follows_the_machine_too() -> None:
    async def main() -> None:
        site = await Site().booted()
        transport = MemoryTransport(CmlApp(site.cml))
        async with httpx.AsyncClient(transport=transport, base_url="https://cml/api/v0/") as client:
            signed_in = await client.post("authenticate", json={"username": "admin", "password": "admin"})
            client.headers["Authorization"] = f"Bearer {signed_in.json()}"
            assert (await client.get("labs")).status_code == 200
            await site.stop()
            with pytest.raises(httpx.ConnectError, match="does not run"):
                await client.get("labs")
            switched = await client.post("https://cml/sim/power", json={"on": True})
            assert switched.status_code == 409
            await asyncio.sleep(STOPPED)
            await site.start()
            await asyncio.sleep(90 + 60)
            assert (await client.get("labs")).status_code == 502
            await asyncio.sleep(BOOTED)
            assert (await client.get("labs")).status_code == 401, "a token does not survive"

    run(main)


def test_a_machine_may_never_boot() -> None:
    async def main() -> None:
        site = Site()
        site.cloud.account.never_boot()
        await site.launched()
        host = DirectHost(site.cml)
        await asyncio.sleep(3_600)
        checks = await site.cloud.checks(HERE, [site.instance_id])
        assert checks[site.instance_id].instance is StatusCheckResult.IMPAIRED
        for again in (site.reboot, site.reboot):
            with pytest.raises(Unreachable):
                await host.system()
            await again()
        await site.remove()
        second = await site.cloud.ensure(launch("other"))
        await asyncio.sleep(3_600)
        fresh = site.cloud.find_attached(second.instance_id)
        assert isinstance(fresh, Cml)
        assert fresh.is_up

    run(main)


def test_only_a_machine_that_stands_alone_has_a_switch() -> None:
    cml = Cml(HandClock(), Chance(1), power=list)
    for switch in (cml.power_on, cml.power_off, cml.restart):
        with pytest.raises(CmlRefusal):
            switch()
    assert not cml.is_up
