"""A controller that dies anywhere while it works on a host, and is started again, leaves exactly what was wanted."""

import asyncio
from collections.abc import Callable

import pytest

from crash.everywhere import crash_everywhere
from harness.lab_hosts import LAB, client, direct, machine
from lcm.model.access.secret import Secret
from lcm.providers.protocols.labhost import LabHost, LabState
from lcm.sim.cml.engine import Cml

TITLE = "exam-1"
FACES = pytest.mark.parametrize("face", [direct, client])
Face = Callable[[Cml], LabHost]


async def empty() -> Cml:
    return machine()


async def with_a_running_lab() -> Cml:
    cml = machine()
    await bring_up(direct(cml))
    return cml


async def licensed() -> Cml:
    cml = machine()
    await enterprise(direct(cml))
    return cml


async def bring_up(host: LabHost) -> None:
    lab = await host.ensure(TITLE, LAB)
    await host.start(lab.lab_id)
    while not await host.converged(lab.lab_id):
        await asyncio.sleep(30)


async def take_down(host: LabHost) -> None:
    while (lab := await host.find(TITLE)) is not None:
        await host.remove(lab.lab_id)


async def enterprise(host: LabHost) -> None:
    await host.register(product="CML_Enterprise", token=Secret("good-token"), expansion_nodes=10)


async def exactly_one_lab_runs(cml: Cml) -> None:
    host = direct(cml)
    (lab,) = await host.labs()
    assert (lab.title, lab.state) == (TITLE, LabState.STARTED)
    assert await host.converged(lab.lab_id)


async def no_lab_is_left(cml: Cml) -> None:
    host = direct(cml)
    assert await host.labs() == []
    assert (await host.stats()).running_nodes == 0
    assert cml.patty_ports() == {}


async def one_seat_is_taken(cml: Cml) -> None:
    licence = await direct(cml).licence()
    assert (licence.in_compliance, licence.expansion_nodes) == (True, 10)
    assert len(cml.licence_server.taken) == 1


async def no_seat_is_taken(cml: Cml) -> None:
    assert not (await direct(cml).licence()).is_registered
    assert cml.licence_server.taken == {}


@FACES
def test_bringing_a_lab_up_survives_a_crash_anywhere(face: Face, tell: Callable[[str], None]) -> None:
    name = f"bring a lab up, {face.__name__}"
    assert crash_everywhere(name, empty, lambda cml: bring_up(face(cml)), exactly_one_lab_runs, report=tell) > 10


@FACES
def test_taking_a_lab_down_survives_a_crash_anywhere(face: Face, tell: Callable[[str], None]) -> None:
    name = f"take a lab down, {face.__name__}"
    assert (
        crash_everywhere(name, with_a_running_lab, lambda cml: take_down(face(cml)), no_lab_is_left, report=tell) > 10
    )


@FACES
def test_registering_survives_a_crash_anywhere(face: Face, tell: Callable[[str], None]) -> None:
    name = f"register, {face.__name__}"
    assert crash_everywhere(name, empty, lambda cml: enterprise(face(cml)), one_seat_is_taken, report=tell) > 10


@FACES
def test_deregistering_survives_a_crash_anywhere(face: Face, tell: Callable[[str], None]) -> None:
    name = f"deregister, {face.__name__}"
    assert crash_everywhere(name, licensed, lambda cml: face(cml).deregister(), no_seat_is_taken, report=tell) > 1
