"""The lablet controller at work on one simulated machine."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest
import structlog

from harness.lab_hosts import client
from harness.session_world import HOUR, MINUTE, PORTS, SMALL, Lablets, Through, phases, prepared
from harness.workers import beside
from lcm.control.plane.protocol import ObserveResources, Ref
from lcm.controllers.session.progress import collected_uri, prepared_uri, title_of
from lcm.model.base.clock import Clock
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.topology.lab import parse_lab
from lcm.providers.protocols.labhost import LabSummary
from lcm.sim.cml.direct import DirectHost
from lcm.sim.time.loop import run

_P = SessionPhase
S1 = Ref(LabletSession, "s1")


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def test_lesson_15_no_lab_is_ever_open_on_the_ports_of_its_file() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_session(worker)
        seen: set[int] = set()
        async with world.attended():
            while (await world.session()).status.phase is not _P.RUNNING:
                nodes = [node for lab in world.machine(worker).labs for node in lab.nodes.values()]
                seen |= {int(tag.split(":")[1]) for node in nodes for tag in node.spec.tags if ":" in tag}
                await asyncio.sleep(0.01)
        assert seen == set(PORTS.values())
        assert set(world.machine(worker).patty_ports()) == set(PORTS.values())

    run(life)


def test_lesson_8_the_end_of_a_slot_is_observed_and_saved_before_anything_is_removed() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_running(worker, slot=HOUR)
        (node, *_) = world.lab_of(worker, session).nodes.values()
        async with world.attended():
            session = await world.comes_to(_P.COMPLETED)
        assert phases(session) == ["RUNNING", "COLLECTING", "STOPPING", "COMPLETED"]
        assert session.status.observed_resources is not None
        assert session.status.observed_ports == PORTS
        assert session.status.port_drift_detected is False
        (saved,) = session.status.artifacts
        assert saved.expires_at == saved.collected_at + timedelta(days=30)
        data = await world.artifacts.get(collected_uri(session), digest=saved.digest)
        assert node.spec.label.encode() in data
        assert await world.otto.download(S1, "lab.yaml") == data

    run(life)


def test_what_a_lab_uses_is_learned_apart_while_it_boots_and_once_it_runs() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_session(worker)
        async with world.attended():
            session = await world.comes_to(_P.COMPLETED)
        seen, boot = session.status.observed_resources, session.status.boot_use
        assert seen is not None
        assert seen.used is not None
        assert boot is not None
        assert 0 < seen.used.cpu_cores < boot.cpu_cores <= seen.total_cpu_cores, "a node that boots works hard"
        assert 0 < seen.used.memory_mb < seen.total_memory_mb
        definition = await world.otto.get(Ref(LabletDefinition, session.spec.definition))
        assert definition is not None
        assert definition.status.used_cpu_cores is not None
        assert definition.status.boot_cpu_cores is not None
        assert definition.status.used_cpu_cores.latest == seen.used.cpu_cores
        assert definition.status.boot_cpu_cores.latest == boot.cpu_cores

    run(life)


def test_lesson_14_a_tag_edited_on_cml_is_seen_as_drift() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_running(worker, ends_at=world.clock.now() + 2 * HOUR)
        host, lab_id = await world.host(worker), session.status.cml_lab_id or ""
        node = next(one for one in await host.nodes(lab_id) if one.label == "PC")
        await host.set_tags(lab_id, node.node_id, ["serial:6001", "vnc:6002", "pat:7777:22", "core"])
        async with world.attended():
            await world.otto.act(S1, ObserveResources())
            session = await world.until(lambda one: one.status.observation_count == 1, within=MINUTE)
        assert session.status.observed_ports == PORTS | {"PC_pat_tcp_22": 7777}
        assert session.status.port_drift_detected is True
        assert session.status.observation_request is None

    run(life)


def test_lesson_24_labs_are_deleted_not_just_stopped_and_all_of_a_title() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_running(worker, ends_at=world.clock.now() + MINUTE)
        cml = world.machine(worker)
        cml.import_lab(SMALL, cml.users.administrator, title_of(session))
        stranger, _ = cml.import_lab(SMALL, cml.users.administrator, "a stranger's")
        async with world.attended():
            session = await world.comes_to(_P.COMPLETED)
        assert [lab.lab_id for lab in await world.labs(worker)] == [stranger.id]
        assert await world.temporary() == []

    run(life)


def test_a_lab_with_another_title_is_removed_all_the_same() -> None:
    async def life() -> None:
        world, worker = await prepared()
        session = await world.given_running(worker, ends_at=world.clock.now() + MINUTE)
        world.lab_of(worker, session).title = "mine"
        async with world.attended():
            await world.comes_to(_P.COMPLETED)
        assert await world.labs(worker) == []

    run(life)


class SlowHost(DirectHost):
    """Never answers who imports one lab."""

    slow = ""

    async def ensure(self, title: str, topology: str) -> LabSummary:
        if title == self.slow:
            await asyncio.sleep(1e6)
        return await super().ensure(title, topology)


def test_lesson_29_one_slow_lab_keeps_nobody_else_waiting() -> None:
    async def life() -> None:
        world, worker = await prepared()
        slow = await world.given_session(worker, name="slow")
        others = [f"s{number}" for number in range(1, 4)]
        for place, name in enumerate(others):
            ports = {port: number + 10 * (place + 1) for port, number in PORTS.items()}
            await world.given_session(worker, name=name, allocated_ports=ports)
        began, SlowHost.slow = world.clock.now(), title_of(slow)
        async with world.attended(hosts=Through(world, SlowHost)):
            for name in others:
                await world.comes_to(_P.RUNNING, name, within=MINUTE)
            assert world.clock.now() - began < timedelta(seconds=30)
            assert (await world.session("slow")).status.phase is _P.INSTANTIATING

    run(life)


def test_a_whole_life_through_the_client_of_cml() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_session(worker, slot=HOUR)
        hosts = Through(world, client)
        async with world.attended(hosts=hosts):
            await world.comes_to(_P.RUNNING, within=5 * MINUTE)
            assert set(world.machine(worker).patty_ports()) == set(PORTS.values())
            session = await world.comes_to(_P.COMPLETED)
        await hosts.close()
        assert session.status.observed_ports == PORTS
        saved = parse_lab(await world.otto.download(S1, "lab.yaml"))
        assert dict(saved.ports) == PORTS
        assert await world.labs(worker) == []

    run(life)


def test_labs_start_four_at_a_time_oldest_first() -> None:
    async def life() -> None:
        world = Lablets(quick=True)
        await world.define()
        worker = await world.serving(licensed=True)
        names = [f"s{number:02}" for number in range(10)]
        for place, name in enumerate(names):
            ports = {port: number + 10 * place for port, number in PORTS.items()}
            await world.given_session(worker, name=name, allocated_ports=ports)
            await asyncio.sleep(1)
        most, every = 0, await world.sessions()
        async with world.attended():
            while not all(one.status.phase is _P.RUNNING for one in every):
                every = await world.sessions()
                most = max(most, sum(one.status.phase is _P.INSTANTIATING for one in every))
                await asyncio.sleep(0.5)
        begun = [one.status.history[1].at for one in every]
        assert most == 4
        assert begun == sorted(begun)
        assert len(set(begun)) > 1

    run(life)


def test_a_session_that_is_deleted_while_it_runs_goes_with_all_that_is_its() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_running(worker, ends_at=world.clock.now() + HOUR)
        async with world.attended():
            await world.otto.delete(S1)
            async with asyncio.timeout(300):
                while await world.otto.get(S1) is not None:
                    await asyncio.sleep(1)
        assert await world.labs(worker) == []
        assert await world.artifacts.list_temporary() == [], "nobody could read what was saved"

    run(life)


@dataclass(frozen=True)
class Behind:
    """A clock that is slow."""

    clock: Clock

    def now(self) -> datetime:
        return self.clock.now() - MINUTE


def test_a_slow_clock_makes_nobody_observe_an_ended_lab_twice() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_running(worker, slot=HOUR)
        async with beside(replace(world.lablets(), clock=Behind(world.clock)).run()):
            session = await world.comes_to(_P.COMPLETED)
        assert session.status.observation_count == 1

    run(life)


def test_files_that_nobody_owns_are_swept_away() -> None:
    async def life() -> None:
        world, worker = await prepared()
        ended = await world.given_session(worker, _P.FAILED, name="ended")
        await world.given_running(worker, ends_at=world.clock.now() + timedelta(days=40), name="s1")
        await world.artifacts.put_temporary(f"{ended.metadata.uid}/lab.yaml", b"left")
        await world.artifacts.put_temporary("unknown/lab.yaml", b"left")
        await world.artifacts.put_temporary("collected/default/someone/lab.yaml", b"kept")
        async with world.attended():
            await asyncio.sleep(3 * HOUR.total_seconds())
            assert await world.temporary() == [prepared_uri(await world.session())]
            assert len(await world.artifacts.list_temporary()) == 2

    run(life)
