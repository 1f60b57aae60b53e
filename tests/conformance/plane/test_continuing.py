"""The plane's contract: running labs are saved on request, and continued, in process and over HTTP alike."""

import asyncio
from typing import Any

import msgspec
import pytest

from harness import given
from harness.booking_world import HOUR
from harness.plane_world import NOW, World, on
from harness.session_world import SMALL
from lcm.control.objects.records import creation_ops
from lcm.control.objects.session_files import stored_name
from lcm.control.plane.protocol import Ref, Save
from lcm.model.base.errors import Conflict, Gone, IllegalStep, Invalid, Refused
from lcm.model.base.machine import LABLET_CONTROLLER
from lcm.model.base.resource import Metadata, find_condition
from lcm.model.kinds.definition import LabletDefinition, Topology
from lcm.model.kinds.saved_lab import ContinueFrom
from lcm.model.kinds.session import Artifact, LabletSession, LabletSessionSpec, SessionCondition, SessionPhase
from lcm.model.topology.lab import parse_lab
from lcm.providers.protocols.artifacts import digest_of

with_files = on("memory", "memory-http", "sqlite-http", files={})
S1 = Ref(LabletSession, "s1")
DATA = SMALL.encode()
SAVED = Artifact(name="save-one.yaml", digest=digest_of(DATA), size_bytes=len(DATA), collected_at=NOW)


def lab(**more: Any) -> LabletDefinition:
    parsed, digest = parse_lab(DATA), digest_of(DATA)
    topology = Topology(uri=f"artifact://{digest}", digest=digest)
    known = {"port_template": parsed.port_template, "node_count": parsed.node_count, "state": "active"}
    return given.definition(topology=topology, **known | more)


def runs(name: str = "s1", **more: Any) -> LabletSession:
    """Return Ada's session that runs."""
    plain = {"uid": f"uid-{name}", "owner": "ada", "phase": SessionPhase.RUNNING, "ends_at": NOW + HOUR}
    return given.asap(name=name, **plain | more)


async def there(world: World, *sessions: LabletSession) -> None:
    """Have a definition and sessions, with the files that these say they have."""
    assert world.artifacts is not None
    await world.artifacts.put(DATA)
    await world.store.commit(*creation_ops(lab()))
    for session in sessions:
        await world.store.commit(*creation_ops(session))
        for file in session.status.artifacts:
            await world.artifacts.put_temporary(stored_name(session, file.name), DATA)


def wanted(name: str = "s2", **source: Any) -> LabletSession:
    asked = ContinueFrom(**{"session": "s1"} | source)
    spec = LabletSessionSpec(definition="basics", duration_minutes=60, continue_from=asked)
    return LabletSession(metadata=Metadata(name=name), spec=spec)


@with_files
async def test_a_request_to_save_is_stored_once_and_answered_once(world: World) -> None:
    await there(world, runs())
    asked = await world.ada.act(S1, Save(name="one"), request="r1")
    request = asked.status.save_request
    assert request is not None
    assert (request.name, request.requested_by) == ("one", "ada")
    again = await world.ada.act(S1, Save(name="one"), request="r1")
    assert again.status.save_request == request, "who asks again asks once"
    answer = msgspec.structs.replace(asked.status, save_request=None, artifacts=(SAVED,))
    controller = world.service(LABLET_CONTROLLER)
    answers = await asyncio.gather(*(controller.step(asked, answer) for _ in range(2)), return_exceptions=True)
    assert sum(isinstance(one, Conflict) for one in answers) <= 1
    found = await world.ada.get(S1)
    assert found is not None
    assert (found.status.save_request, found.status.artifacts) == (None, (SAVED,))
    with pytest.raises(Refused, match="there is a save one of s1 already"):
        await world.ada.act(S1, Save(name="one"))
    assert (await world.ada.act(S1, Save())).status.save_request is not None


@with_files
async def test_only_who_sees_a_running_session_saves_it(world: World) -> None:
    await there(world, runs(), runs("waits", phase=SessionPhase.PENDING))
    with pytest.raises(Gone):
        await world.bob.act(S1, Save())
    with pytest.raises(IllegalStep, match="only a running session can be saved"):
        await world.ada.act(Ref(LabletSession, "waits"), Save())
    for name in ("", "Capital", "../x", "x" * 41):
        with pytest.raises(Invalid):
            await world.ada.act(S1, Save(name=name))
    assert (await world.person("otto").act(S1, Save())).status.save_request is not None


@with_files
async def test_a_booking_keeps_the_lab_that_it_continues(world: World) -> None:
    await there(world, runs(artifacts=(SAVED,)))
    made = await world.ada.create(wanted(save="one"), request="r1")
    assert made.spec.definition == "basics:1.0.0"
    assert made.status.continues is not None
    assert (made.status.continues.session_id, made.status.continues.needs) == ("uid-s1", None)
    told = find_condition(made.status.conditions, SessionCondition.CONTINUES)
    assert told is not None
    assert told.reason == "AsSaved"
    assert (await world.ada.create(wanted(save="one"), request="r1")) == made
    assert (await world.ada.create(wanted("s3"), dry_run=True)).status.continues == made.status.continues
    with pytest.raises(Invalid, match="cannot be changed any more"):
        await world.ada.patch(Ref(LabletSession, "s2"), {"spec": {"continue_from": None}})


@with_files
async def test_what_is_not_there_or_anothers_is_not_continued(world: World) -> None:
    await there(world, runs(artifacts=(SAVED,)), runs("empty"))
    with pytest.raises(Invalid, match="there is no session s1 that you may read"):
        await world.bob.create(wanted())
    with pytest.raises(Invalid, match="save it first"):
        await world.ada.create(wanted(session="empty"))
    with pytest.raises(Invalid, match="its saves are one"):
        await world.ada.create(wanted(save="two"))
    assert await world.ada.get(Ref(LabletSession, "s2")) is None
