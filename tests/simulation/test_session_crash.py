"""A lablet controller that dies anywhere leaves, with its successor, the labs and files wanted, and no others."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
import structlog

from crash.everywhere import crash_everywhere, pause_everywhere
from harness.session_world import PORTS, Lablets, told
from harness.suite import TIMES
from lcm.control.plane.protocol import Ref, Save, Terminate
from lcm.controllers.session.progress import collected_uri, title_of
from lcm.controllers.session.view import SessionRules
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.topology.lab import parse_lab
from lcm.providers.protocols.labhost import LabState
from lcm.settings.load import Settings
from lcm.sim.time.host import HOST

_P = SessionPhase
LEASE = timedelta(seconds=15)
A_NAP = timedelta(seconds=40)
"""Longer than a lease: it wakes up while another goes on, or after that has finished."""
SPEED = 0.2
"""Looks every five seconds: there must not be thousands of awaits."""
SETTLES, SEEN_TO_SETTLE = SessionRules().settle / SPEED, timedelta(seconds=30)
SETTINGS = Settings(worker_monitoring_enabled=False, worker_discovery_enabled=False)


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    """Let thousands of runs not write down what each of them did."""
    with structlog.testing.capture_logs():
        yield


async def world() -> Lablets:
    made = Lablets(seed=13, quick=True, settings=SETTINGS, speed=SPEED)
    await made.define()
    return made


async def scheduled() -> Lablets:
    made = await world()
    await made.given_session(await made.serving())
    return made


async def at_its_end() -> Lablets:
    made = await world()
    worker = await made.serving()
    session = await made.given_running(worker)
    await made.put(session, ends_at=made.clock.now())
    return made


async def cancelled_while_it_started() -> Lablets:
    made = await world()
    worker = await made.serving()
    session = await made.given_running(worker)
    await made.put(session, phase=_P.INSTANTIATING, cml_lab_id=None)
    await made.otto.act(Ref(LabletSession, "s1"), Terminate())
    # Only the last looks are left until no import shows any more: the first ones are like them.
    await asyncio.sleep((SETTLES - SEEN_TO_SETTLE).total_seconds())
    return made


async def lost_with_its_lab() -> Lablets:
    made = await world()
    worker = await made.serving()
    session = await made.given_running(worker, slot=timedelta(hours=1))
    cml = made.machine(worker)
    cml.labs.lose_lab(made.lab_of(worker, session))
    return made


SAVED = "save-one.yaml"


async def asked_to_save() -> Lablets:
    made = await world()
    await made.given_running(await made.serving(), slot=timedelta(hours=1))
    await made.otto.act(Ref(LabletSession, "s1"), Save(name="one"))
    return made


async def live_until_saved(made: Lablets) -> None:
    """Be a process: run the lablet controller until a request to save is answered, then end without a word."""
    host = HOST.get()
    assert host is not None
    life = asyncio.create_task(made.lablets(holder=host.name, alone=True).run())
    while not life.done() and (await made.session()).status.save_request is not None:
        await asyncio.sleep(5)
    if life.done():
        await life


async def check_saved_once(made: Lablets) -> None:
    deposed = [deed for deed in made.deeds if deed.host != deed.leader]
    assert not deposed, f"done by who did not lead: {deposed}"
    session, worker = await made.session(), await made.worker()
    assert session.status.phase is _P.RUNNING, told(session)
    assert (session.status.save_request, session.status.save_error) == (None, "")
    assert [one.name for one in session.status.artifacts] == [SAVED]
    stored = [one.uri for one in await made.artifacts.list_temporary() if "/collected/" in one.uri]
    assert stored == [collected_uri(session, SAVED)]
    data = await made.artifacts.get(stored[0], digest=session.status.artifacts[0].digest)
    assert dict(parse_lab(data).ports) == PORTS
    assert [lab.state for lab in await made.labs(worker)] == [LabState.STARTED]


@dataclass(frozen=True)
class Path:
    """Where a session is, where it is to come, and what must be left then."""

    name: str
    world: Callable[[], Awaitable[Lablets]]
    goal: SessionPhase
    labs: int = 0
    saved: bool = False

    def __str__(self) -> str:
        return self.name

    async def body(self, made: Lablets) -> None:
        await made.lives_until(self.goal)

    async def check(self, made: Lablets) -> None:
        deposed = [deed for deed in made.deeds if deed.host != deed.leader]
        assert not deposed, f"done by who did not lead: {deposed}"
        session, worker = await made.session(), await made.worker()
        assert session.status.phase is self.goal, told(session)
        labs = await made.labs(worker)
        assert [lab.title for lab in labs] == [title_of(session)] * self.labs
        assert all(lab.state is LabState.STARTED for lab in labs)
        assert set(made.machine(worker).patty_ports()) == (set(PORTS.values()) if self.labs else set())
        assert len(await made.temporary()) == self.labs
        assert session.status.allocated_ports == (None if self.goal is _P.PENDING else PORTS)
        assert bool(session.status.artifacts) is self.saved
        if self.saved:
            lab = parse_lab(await made.artifacts.get(collected_uri(session), digest=session.status.artifacts[0].digest))
            assert dict(lab.ports) == PORTS
            assert session.status.observation_count >= 1


PATHS = [
    Path("instantiate", scheduled, _P.RUNNING, labs=1),
    Path("collect and tear down", at_its_end, _P.COMPLETED, saved=True),
    Path("tear down what was cancelled", cancelled_while_it_started, _P.TERMINATED),
    Path("try again what was lost", lost_with_its_lab, _P.PENDING),
]
SLEEPERS = PATHS if TIMES > 1 else PATHS[:1]


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_lablet_controller_that_dies_anywhere_is_replaced(path: Path, tell: Callable[[str], None]) -> None:
    awaits = crash_everywhere(
        f"session: {path.name}", path.world, path.body, path.check, restart_after=LEASE, report=tell
    )
    assert awaits >= 30


def test_a_save_is_answered_once_whoever_dies_meanwhile(tell: Callable[[str], None]) -> None:
    awaits = crash_everywhere(
        "session: save", asked_to_save, live_until_saved, check_saved_once, restart_after=LEASE, report=tell
    )
    assert awaits >= 10


def test_a_leader_that_sleeps_during_a_save_does_nothing_when_it_wakes_up(tell: Callable[[str], None]) -> None:
    name = f"session: save, for {A_NAP}"
    awaits = pause_everywhere(name, asked_to_save, live_until_saved, check_saved_once, pause_for=A_NAP, report=tell)
    assert awaits >= 10


@pytest.mark.parametrize("path", SLEEPERS, ids=str)
def test_a_lablet_controller_that_sleeps_anywhere_does_nothing_when_it_wakes_up(
    path: Path, tell: Callable[[str], None]
) -> None:
    name = f"session: {path.name}, for {A_NAP}"
    awaits = pause_everywhere(name, path.world, path.body, path.check, pause_for=A_NAP, report=tell)
    assert awaits >= 30
