"""Sessions that continue from a saved lab: the same nodes, links and configurations, on ports of their own."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import structlog
import yaml

from harness.session_world import HOUR, MINUTE, S1, SMALL, Lablets, prepared
from harness.workers import beside
from lcm.control.objects.session_files import stored_name
from lcm.control.plane.protocol import Ref, Save, Terminate
from lcm.control.upkeep.housekeeping import Housekeeping
from lcm.controllers.session.progress import collected_uri
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import IllegalStep, Invalid, Refused, Unreachable
from lcm.model.base.resource import Metadata, find_condition
from lcm.model.kinds.definition import LabletDefinition, ResourceRequirements
from lcm.model.kinds.saved_lab import SAVES_KEPT, ContinueFrom
from lcm.model.kinds.session import Artifact, LabletSession, LabletSessionSpec, SessionCondition, SessionPhase
from lcm.model.kinds.worker import LabType
from lcm.model.topology.lab import parse_lab
from lcm.providers.protocols.artifacts import digest_of
from lcm.sim.time.loop import run

_P = SessionPhase
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def without_ports(text: str) -> Any:
    """Return a lab without what may differ: its title, and the numbers in its port tags."""
    lab = yaml.safe_load(text)
    for node in lab["nodes"]:
        node["tags"] = [re.sub(r"^(serial|vnc|pat):(tcp:|udp:)?\d+", r"\1:\2N", tag) for tag in node.get("tags", [])]
    return {name: sorted(lab.get(name) or [], key=str) for name in ("nodes", "links")}


async def fleet() -> Lablets:
    """Have a fleet of one worker, everybody at work."""
    world = Lablets(quick=True)
    await world.define()
    await world.open_pool(min_workers=1)
    return world


@asynccontextmanager
async def taking_bookings(world: Lablets) -> AsyncIterator[None]:
    """Run the calendar beside what a test does."""
    assert world.core.promises is not None
    async with beside(world.core.promises.calendar.run()):
        yield


async def continues(world: Lablets, name: str, source: str, save: str | None = None, **fields: Any) -> LabletSession:
    asked = ContinueFrom(session=source, save=save)
    wanted: dict[str, Any] = {"definition": "basics", "duration_minutes": 60, "continue_from": asked}
    return await world.otto.create(
        LabletSession(metadata=Metadata(name=name), spec=LabletSessionSpec(**wanted | fields))
    )


async def work_in(world: Lablets, name: str, configuration: str) -> str:
    """Change the configuration of a node of a running lab, and return what CML would save of it."""
    session = await world.session(name)
    worker = await world.worker(session.status.worker_name or "")
    node = next(one for one in world.lab_of(worker, session).nodes.values() if one.spec.label == "PC")
    assert node.running is not None
    node.running = [msgspec.structs.replace(one, content=configuration) for one in node.running]
    return await (await world.host(worker)).topology(session.status.cml_lab_id or "")


async def end(world: Lablets, name: str) -> LabletSession:
    await world.otto.act(Ref(LabletSession, name), Terminate())
    return await world.comes_to(_P.TERMINATED, name)


async def text_of(world: Lablets, session: LabletSession) -> str:
    """Return the lab of a running session as it is."""
    worker = await world.worker(session.status.worker_name or "")
    return await (await world.host(worker)).topology(session.status.cml_lab_id or "")


def test_a_session_continues_where_another_stopped_and_so_does_a_third() -> None:
    async def life() -> None:
        world = await fleet()
        async with world.everybody():
            await world.wants("s1")
            first = await world.comes_to(_P.RUNNING, "s1")
            saved = await work_in(world, "s1", "hostname of-mine")
            assert "hostname of-mine" in saved
            await end(world, "s1")
            ports = [first.status.allocated_ports]
            for name, source in (("s2", "s1"), ("s3", "s2")):
                made = await continues(world, name, source)
                assert made.status.continues is not None
                assert made.status.continues.needs is None, "its nodes are those of the definition"
                made = await world.comes_to(_P.RUNNING, name)
                ports.append(made.status.allocated_ports)
                runs = await text_of(world, made)
                assert without_ports(runs) == without_ports(saved)
                assert dict(parse_lab(runs.encode()).ports) == made.status.allocated_ports
                await end(world, name)
            assert len({tuple(sorted((one or {}).items())) for one in ports}) == 3, "each on ports of its own"

    run(life)


LARGER = SMALL.replace(
    "links:",
    """\
  - id: n2
    label: R9
    node_definition: server
    x: 0
    y: 100
    tags: [serial:5009]
    interfaces: [{id: i0, label: eth0, type: physical, slot: 0}]
links:""",
)


async def saved_session(world: Lablets, text: str = SMALL) -> str:
    """Have a session that ended with its lab saved; return what was saved."""
    worker = await world.serving()
    await world.given_running(worker, text, ends_at=world.clock.now() + MINUTE)
    async with world.attended():
        session = await world.comes_to(_P.COMPLETED)
    return (await world.artifacts.get(collected_uri(session))).decode()


def test_a_definition_that_changed_is_compared_and_the_saved_lab_starts_as_it_was() -> None:
    async def life() -> None:
        world = await fleet()
        async with world.everybody():
            await world.wants("s1")
            await world.comes_to(_P.RUNNING, "s1")
            saved = await work_in(world, "s1", "hostname of-mine")
            await end(world, "s1")
            await world.define(LARGER, "basics:2.0.0")
            await world.otto.patch(Ref(LabletDefinition, "basics:1.0.0"), {"spec": {"state": "deprecated"}})
            made = await continues(world, "s2", "s1")
            assert made.spec.definition == "basics:2.0.0"
            told = find_condition(made.status.conditions, SessionCondition.CONTINUES)
            assert told is not None
            assert told.reason == "DefinitionDiffers"
            assert "saved of basics:1.0.0 and is booked as basics:2.0.0" in told.message
            assert "basics:2.0.0 has R9, which it does not have" in told.message
            assert "it has 3 ports, basics:2.0.0 has 4" in told.message
            made = await world.comes_to(_P.RUNNING, "s2")
            assert without_ports(await text_of(world, made)) == without_ports(saved)
            assert find_condition(made.status.conditions, SessionCondition.CONTINUES) == told
            assert set(made.status.access_urls) == {"PC_serial", "PC_vnc", "PC_pat_tcp_22"}
            observed = await world.otto.get(Ref(LabletDefinition, "basics:2.0.0"))
            await end(world, "s2")
            assert await world.otto.get(Ref(LabletDefinition, "basics:2.0.0")) == observed, "it taught nothing of that"

    run(life)


def test_a_larger_lab_claims_what_it_needs_though_its_definition_became_smaller() -> None:
    async def life() -> None:
        world = Lablets(quick=True)
        await world.define(LARGER)
        await world.open_pool(min_workers=1)
        async with world.everybody():
            await world.wants("s1")
            await world.comes_to(_P.RUNNING, "s1")
            await end(world, "s1")
            small = {"cpu_cores": 1, "memory_gb": 1}
            await world.define(
                SMALL, "basics:1.1.0", resource_requirements=msgspec.convert(small, ResourceRequirements)
            )
            made = await continues(world, "s2", "s1")
            needs = made.status.continues.needs if made.status.continues else None
            assert needs is not None
            assert (needs.node_count, len(needs.port_template)) == (3, 4)
            assert (needs.resource_requirements.cpu_cores, needs.resource_requirements.memory_gb) == (4, 8)
            made = await world.comes_to(_P.RUNNING, "s2")
            assert made.status.claim is not None
            assert (made.status.claim.need.cpu_millis, made.status.claim.need.ports) == (4000, 4)
            assert len(made.status.allocated_ports or {}) == 4
            told = find_condition(made.status.conditions, SessionCondition.CONTINUES)
            assert told is not None
            assert "it claims 4 CPU, 8 GB memory" in told.message

    run(life)


def test_a_lab_of_which_only_a_deprecated_definition_is_left_is_continued() -> None:
    async def life() -> None:
        world = Lablets(quick=True)
        await world.define()
        await saved_session(world)
        await world.otto.patch(Ref(LabletDefinition, "basics:1.0.0"), {"spec": {"state": "deprecated"}})
        async with taking_bookings(world):
            with pytest.raises(Invalid, match="deprecated"):
                await world.wants("s3", definition="basics")
            made = await continues(world, "s2", "s1")
            assert made.spec.definition == "basics:1.0.0"
            told = find_condition(made.status.conditions, SessionCondition.CONTINUES)
            assert told is not None
            assert told.reason == "AsSaved"

    run(life)


def test_the_lab_of_a_booking_stays_when_its_source_is_deleted_and_expired() -> None:
    async def life() -> None:
        world = Lablets(quick=True)
        await world.define()
        await saved_session(world)
        async with taking_bookings(world):
            made = await continues(world, "s2", "s1", duration_minutes=60, give_up_at=world.clock.now() + 90 * DAY)
            await world.otto.delete(S1)
            for uri in [one.uri for one in await world.artifacts.list_temporary()]:
                await world.artifacts.remove(uri)
            keeper = Housekeeping(world.store, clock=world.clock, artifacts=world.artifacts)
            for _ in range(3):
                await asyncio.sleep(DAY.total_seconds())
                await keeper.tidy()
            lab = made.status.continues
            assert lab is not None
            data = await world.artifacts.get(lab.topology.uri, digest=lab.topology.digest)
            assert parse_lab(data).node_count == 2
            await world.otto.delete(Ref(LabletSession, "s2"))
            await asyncio.sleep(2 * DAY.total_seconds())
            await keeper.tidy()
            assert await world.artifacts.find(lab.topology.uri) is None, "nobody needs it any more"

    run(life)


def test_archived_sessions_are_continued_too() -> None:
    async def life() -> None:
        world = Lablets(quick=True)
        await world.define()
        await saved_session(world)
        await asyncio.sleep(2 * DAY.total_seconds())
        assert await Housekeeping(world.store, clock=world.clock).archive() == 1
        async with taking_bookings(world):
            made = await continues(world, "s2", "s1")
            assert made.status.continues is not None
            assert made.status.continues.session == "s1"

    run(life)


def test_what_cannot_be_continued_is_refused_with_what_to_do() -> None:
    async def life() -> None:
        world, worker = await prepared()
        ada = world.core.plane_for(Caller(name="ada", role=Role.USER))
        await world.define(name="other:1.0.0")
        await world.given_running(worker, ends_at=world.clock.now() + HOUR)
        await world.given_session(worker, _P.FAILED, name="failed", outcome_reason="its lab is gone")
        await world.given_session(None, _P.PENDING, name="waits")
        await world.given_session(worker, _P.COMPLETED, name="boxes", spec={"lab_instance_type": LabType.CONTAINER})
        gone = Artifact(name="lab.yaml", digest=digest_of(b"x"), size_bytes=1, collected_at=world.clock.now())
        await world.given_session(worker, _P.COMPLETED, name="lost", artifacts=(gone,))
        old = msgspec.structs.replace(gone, expires_at=world.clock.now() - MINUTE)
        await world.given_session(worker, _P.COMPLETED, name="old", artifacts=(old,))
        torn = await world.given_session(worker, _P.COMPLETED, name="torn", artifacts=(gone,))
        await world.artifacts.put_temporary(stored_name(torn, "lab.yaml"), b"lab: [")
        bad = msgspec.structs.replace(gone, digest=digest_of(b"lab: ["))
        broken = await world.given_session(worker, _P.COMPLETED, name="broken", artifacts=(bad,))
        await world.artifacts.put_temporary(stored_name(broken, "lab.yaml"), b"lab: [")
        async with taking_bookings(world):
            for source, save, problem in (
                ("s1", None, "is running, and nothing of it was saved yet.*save it first: `lcm save s1`"),
                ("waits", None, "waits is PENDING"),
                ("failed", None, "was not collected: its lab is gone"),
                ("boxes", None, "only CML labs can be continued"),
                ("lost", None, "missing from the file store"),
                ("old", None, "has expired"),
                ("torn", None, "is damaged"),
                ("broken", None, "cannot be started"),
                ("nobody", None, "there is no session nobody"),
                ("s1", "1", "there is no save 1 of s1.*it has none"),
            ):
                with pytest.raises(Invalid, match=problem):
                    await continues(world, "s2", source, save)
            with pytest.raises(Invalid, match=r"cannot be continued as other:1.0.0.*use basics"):
                await continues(world, "s2", "broken", definition="other")
            mine = LabletSessionSpec(definition="basics", duration_minutes=60, continue_from=ContinueFrom(session="s1"))
            with pytest.raises(Invalid, match="there is no session s1 that you may read"):
                await ada.create(LabletSession(metadata=Metadata(name="s2"), spec=mine))

    run(life)


def test_a_running_lab_is_saved_on_request_and_continued_from_any_of_its_saves() -> None:
    async def life() -> None:
        world = await fleet()
        async with world.everybody():
            await world.wants("s1", minutes=120)
            await world.comes_to(_P.RUNNING, "s1")
            texts = {}
            for name in (None, "before-bgp"):
                texts[name or "1"] = await work_in(world, "s1", f"hostname {name}")
                asked = await world.otto.act(S1, Save(name=name))
                assert asked.status.save_request is not None
                await world.until(lambda one: one.status.save_request is None, "s1", MINUTE)
            session = await work_on(world)
            assert [one.name for one in session.status.artifacts] == ["save-1.yaml", "save-before-bgp.yaml"]
            assert session.status.phase is _P.RUNNING
            for number, (save, text) in enumerate(texts.items()):
                await continues(world, f"t{number}", "s1", save)
                made = await world.comes_to(_P.RUNNING, f"t{number}")
                assert without_ports(await text_of(world, made)) == without_ports(text)
            newest = await continues(world, "t9", "s1")
            assert newest.status.continues is not None
            assert newest.status.continues.file == "save-before-bgp.yaml"

    run(life)


async def work_on(world: Lablets) -> LabletSession:
    await work_in(world, "s1", "hostname later")
    return await world.session("s1")


def test_a_save_is_asked_for_once_and_only_of_what_runs() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_session(worker, _P.SCHEDULED, name="waits")
        await world.given_running(worker, ends_at=world.clock.now() + HOUR)
        asked = await world.otto.act(S1, Save(name="one"))
        assert await world.otto.act(S1, Save()) == asked, "who asks again asks once"
        with pytest.raises(Refused, match="being saved as one"):
            await world.otto.act(S1, Save(name="two"))
        with pytest.raises(IllegalStep, match="only a running session can be saved"):
            await world.otto.act(Ref(LabletSession, "waits"), Save())
        async with world.attended():
            await world.until(lambda one: bool(one.status.artifacts), within=MINUTE)
            with pytest.raises(Refused, match="there is a save one of s1 already"):
                await world.otto.act(S1, Save(name="one"))

    run(life)


def test_only_the_newest_saves_are_kept_and_the_others_are_swept() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_running(worker, ends_at=world.clock.now() + 9 * HOUR)
        async with world.attended():
            for _ in range(SAVES_KEPT + 2):
                await world.otto.act(S1, Save())
                await world.until(lambda one: one.status.save_request is None, within=MINUTE)
            session = await world.session()
            assert [one.name for one in session.status.artifacts] == [f"save-{number}.yaml" for number in range(3, 8)]
            await asyncio.sleep(4 * HOUR.total_seconds())
            kept = {one.uri.rpartition("/")[2] for one in await world.artifacts.list_temporary()}
            assert {one for one in kept if one.startswith("save-")} == {one.name for one in session.status.artifacts}

    run(life)


def test_a_save_that_nobody_answers_is_given_up() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_running(worker, ends_at=world.clock.now() + HOUR)
        (await world.host(worker)).fail_next("topology", Unreachable("cut"), times=100)
        await world.otto.act(S1, Save())
        async with world.attended():
            session = await world.until(lambda one: one.status.save_request is None, within=5 * MINUTE)
        assert session.status.save_error.startswith("not saved: otto asked at")
        assert session.status.save_error.endswith("ask again")

    run(life)


def test_a_save_of_a_session_that_ends_first_is_told_so() -> None:
    async def life() -> None:
        world, worker = await prepared()
        await world.given_running(worker, ends_at=world.clock.now() + HOUR)
        await world.otto.act(S1, Save())
        await world.otto.act(S1, Terminate())
        async with world.attended():
            session = await world.comes_to(_P.TERMINATED)
        assert session.status.save_request is None
        assert "STOPPING before otto could be answered" in session.status.save_error
        assert [one.name for one in session.status.artifacts] == ["lab.yaml"]

    run(life)
