"""Sessions from booking to their end, by all four controllers on simulated machines in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest
import structlog
import yaml

from harness.clouds import HERE
from harness.session_world import HOUR, MINUTE, SMALL, Lablets, phases, told
from harness.workers import beside
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Extend, ObjectChange, Ref, Terminate
from lcm.model.kinds.session import LabletSession, Progress, SessionPhase
from lcm.model.topology.lab import parse_lab
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.topology import write_lab_file
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import VirtualClock, run

_P = SessionPhase
S1 = Ref(LabletSession, "s1")
WHOLE = ["PENDING", "SCHEDULED", "INSTANTIATING", "RUNNING", "COLLECTING", "STOPPING", "COMPLETED"]
THIRTY = 30


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def thirty_nodes() -> str:
    kinds = ["iosv"] * 20 + ["alpine"] * 8 + ["unmanaged_switch", "external_connector"]
    nodes = [
        {"id": f"n{n}", "label": f"H{n}", "node_definition": kind, "x": n, "y": 0, "interfaces": []}
        for n, kind in enumerate(kinds)
    ]
    nodes[0]["tags"] = ["serial:5001"]
    return yaml.safe_dump({"lab": {"version": "0.3.0", "title": "thirty"}, "nodes": nodes, "links": []})


@asynccontextmanager
async def progress_of(world: Lablets, name: str = "s1") -> AsyncIterator[list[Progress]]:
    """Write down what somebody who watches is told."""
    heard: list[Progress] = []

    def note(seen: ObjectChange) -> None:
        session = seen.resource
        progress = session.status.progress if isinstance(session, LabletSession) else None
        if progress is not None and seen.ref.name == name and progress not in heard[-1:]:
            heard.append(progress)

    cache = Cache(world.otto, LabletSession)
    cache.subscribe(note)
    async with beside(cache.run()):
        yield heard


async def opened(text: str = SMALL, *, quick: bool = True, **pool: int) -> Lablets:
    world = Lablets(quick=quick)
    await world.define(text)
    await world.open_pool(**pool)
    return world


def exported(text: str) -> str:
    """Import a lab into another CML and give it as that writes it."""
    cml = Cml(VirtualClock(), Chance(1))
    lab, _ = cml.import_lab(text, cml.users.administrator)
    return write_lab_file(lab)


def test_a_booking_runs_in_its_slot_is_saved_and_leaves_nothing_behind() -> None:
    async def life() -> None:
        world = await opened()
        async with world.everybody(), progress_of(world) as heard:
            start = world.clock.now() + HOUR
            await world.books("s1", start)
            session = await world.comes_to(_P.RUNNING)
            worker = await world.worker("ccna-1")
            ports = session.status.allocated_ports or {}
            address = worker.status.ec2.public_ip
            assert session.status.access_urls == {
                "PC_pat_tcp_22": f"tcp://{address}:{ports['PC_pat_tcp_22']}",
                "PC_serial": f"telnet://{address}:{ports['PC_serial']}",
                "PC_vnc": f"vnc://{address}:{ports['PC_vnc']}",
            }
            assert session.status.ends_at == start + HOUR
            assert world.clock.now() < start
            await asyncio.sleep(1)
            assert set(world.machine(worker).patty_ports()) == set(ports.values())

            session = await world.comes_to(_P.COMPLETED)
            assert phases(session) == WHOLE, told(session)
            assert start + HOUR <= world.clock.now() < start + HOUR + 2 * MINUTE
            assert await world.labs(worker) == []
            assert world.machine(worker).patty_ports() == {}
            assert await world.temporary() == []
            saved = (await world.otto.download(S1, "lab.yaml")).decode()
            assert dict(parse_lab(saved.encode()).ports) == ports
            assert exported(saved) == saved
            assert session.status.access_urls == {}
            assert session.status.observed_resources is not None
            await asyncio.sleep((30 * MINUTE).total_seconds())
            assert world.living() == []
        steps = list(dict.fromkeys(one.step for one in heard))
        assert steps == ["fetch", "converge", "run", "collect", "remove"], "what takes no time is not told"
        up = [one.percent for one in heard if one.step not in ("collect", "remove")]
        assert up == sorted(up)

    run(life)


def test_one_that_is_wanted_now_is_extended_and_ended_by_its_owner() -> None:
    async def life() -> None:
        world = await opened(min_workers=1)
        async with world.everybody():
            await world.wants("s1", minutes=30)
            session = await world.comes_to(_P.RUNNING)
            ends = session.status.ends_at
            assert ends is not None
            await world.otto.act(S1, Extend(minutes=30))
            await asyncio.sleep((45 * MINUTE).total_seconds())
            session = await world.session()
            assert (session.status.phase, session.status.ends_at) == (_P.RUNNING, ends + 30 * MINUTE)
            await world.otto.act(S1, Terminate(reason="done early"))
            session = await world.comes_to(_P.TERMINATED)
            assert phases(session)[-3:] == ["COLLECTING", "STOPPING", "TERMINATED"]
            assert len(session.status.artifacts) == 1
            assert await world.labs(await world.worker("ccna-1")) == []
            assert await world.temporary() == []

    run(life)


def test_lesson_25_whose_machine_dies_gets_another_and_runs_again_in_its_slot() -> None:
    async def life() -> None:
        world = await opened()
        async with world.everybody():
            start = world.clock.now() + HOUR
            await world.books("s1", start, minutes=180)
            await world.comes_to(_P.RUNNING)
            first = await world.worker("ccna-1")
            world.cloud.account.terminate(HERE, first.status.ec2.instance_id)
            await world.until(lambda one: one.status.retry_count == 1, within=HOUR)
            session = await world.comes_to(_P.RUNNING, within=HOUR)
            assert session.status.worker_id != first.metadata.uid
            assert session.status.ends_at == start + 3 * HOUR
            session = await world.comes_to(_P.COMPLETED, within=4 * HOUR)
            assert len(session.status.artifacts) == 1
            assert await world.temporary() == []

    run(life)


def test_cancelled_while_it_starts_it_leaves_nothing() -> None:
    async def life() -> None:
        world = await opened(min_workers=1)
        async with world.everybody():
            await world.wants("s1")
            await world.until(lambda one: one.status.progress is not None and one.status.progress.step == "converge")
            worker = await world.worker("ccna-1")
            assert len(await world.labs(worker)) == 1
            await world.otto.act(S1, Terminate())
            session = await world.comes_to(_P.TERMINATED, within=5 * MINUTE)
            assert phases(session)[-3:] == ["INSTANTIATING", "STOPPING", "TERMINATED"]
            assert await world.labs(worker) == []
            assert await world.temporary() == []

    run(life)


def test_thirty_nodes_run_within_three_minutes(tell: Callable[[str], None]) -> None:
    async def life() -> tuple[timedelta, int]:
        world = await opened(thirty_nodes(), quick=False, min_workers=1)
        async with world.everybody(), progress_of(world) as heard:
            await asyncio.sleep((25 * MINUTE).total_seconds())
            await world.wants("s1")
            session = await world.comes_to(_P.RUNNING)
        story = {line.phase: line.at for line in session.status.history}
        return story[_P.RUNNING] - story[_P.SCHEDULED], len(heard)

    took, told_of = run(life)
    tell(
        f"session: {THIRTY} nodes from SCHEDULED to RUNNING in {took.total_seconds():.1f} s, {told_of} progress writes"
    )
    assert took < 3 * MINUTE
    assert told_of < 40
