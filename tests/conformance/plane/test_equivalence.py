"""Whatever is done, and in whatever order, the plane over HTTP answers as the one in process does."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self

import msgspec
import pytest

from harness import given
from harness.asgi import AsgiTransport
from harness.documents import document
from harness.plane_world import CAST, NOW, Site, template
from lcm.control.objects.records import creation_ops
from lcm.control.plane.bodies import BulkImport, DiscoveredInstance
from lcm.control.plane.protocol import (
    Action,
    Drain,
    Extend,
    ObserveResources,
    Pause,
    Plane,
    Ref,
    Resume,
    Save,
    Snooze,
    Terminate,
    Undrain,
    ref_of,
)
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Conflict, IllegalStep, Invalid, LcmError
from lcm.model.base.machine import LABLET_CONTROLLER, POOL_CONTROLLER, SCHEDULER, WORKER_CONTROLLER
from lcm.model.base.selector import parse_selector
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.model.telemetry.alert import AlertFinding, Severity
from lcm.model.telemetry.learning import build_observation
from lcm.model.telemetry.observation import NodeObservation, ResourceObservation
from lcm.sim.time.chance import Chance, Ids
from lcm.sim.time.loop import VirtualClock, run
from lcm.store.base import Fence
from lcm.store.memory import MemoryStore

SEEDS = range(8)
COMMANDS = 150
KINDS_OF_ALL = tuple(kind.struct for kind in KINDS.values())
ACTORS = (SCHEDULER, WORKER_CONTROLLER, LABLET_CONTROLLER, POOL_CONTROLLER)
BASIS = [
    msgspec.to_builtins(one)
    for one in (template("t0"), given.definition(name="basics:1.0", version="1.0", state="active"))
]
LIVE = "live"
"""A session that runs from the beginning: steps drawn at random hardly lead one so far."""
Command = Callable[[Plane], Awaitable[object]]


@dataclass
class Deck:
    """Draws commands. What it draws is fixed before anybody carries it out."""

    chance: random.Random

    def caller(self) -> Caller:
        name = self.chance.choice([*4 * ["root"], *4 * ["service"], *CAST])
        if name == "service":
            return Caller(name=name, role=Role.SERVICE, actor=self.chance.choice(ACTORS))
        return Caller(name=name, role=CAST[name])

    def command(self) -> tuple[str, Command]:
        verbs = (
            [self.create, self.apply] * 3
            + [self.patch, self.replace, self.delete, self.act, self.step] * 2
            + [self.list, self.report, self.bring_in, self.lead, self.count, self.look_after]
            + [self.observe] * 4
        )
        return self.chance.choice(verbs)()

    def resource(self) -> Resource:
        pick, number = self.chance.choice, self.chance.randrange(3)
        options = {"labels": {"tier": pick(["gold", "tin"])}, "namespace": pick(["default", "default", "other"])}
        made: list[Resource] = [
            given.worker(name=f"w{number}", lab_track=pick(["ccna", ""]), **options),
            template(f"t{number}", **options),
            given.changed(given.pool(template=f"t{number}"), {"metadata": options}),
            given.definition(name=f"basics:{number}.0", version=f"{number}.0", state=pick(["active", "draft"])),
            given.session(name=f"s{number}", definition=pick(["basics", "basics:1.0"]), owner=pick(["", "", "ada"])),
            given.asap(name=f"s{number}", definition="basics", duration_minutes=pick([30, 900])),
            given.reservation(name=f"r{number}", definition=pick(["basics", "none:1.0"])),
            given.settings(),
        ]
        return pick(made)

    def create(self) -> tuple[str, Command]:
        resource, dry_run = self.resource(), self.chance.random() < 0.1
        request = self.chance.choice([*6 * [None], "r-1", "r-2"])
        return f"create {ref_of(resource)}", lambda plane: plane.create(resource, dry_run=dry_run, request=request)

    def apply(self) -> tuple[str, Command]:
        documents = [msgspec.to_builtins(self.resource()) for _ in range(self.chance.randrange(1, 4))]
        if self.chance.random() < 0.2:
            documents.append(document("LabWorker", lab_trak="ccna"))
        return "apply", lambda plane: plane.apply(documents)

    def patch(self) -> tuple[str, Command]:
        ref = ref_of(self.resource())
        changes = self.chance.choice(
            [{"metadata": {"labels": {"tier": None, "n": "1"}}}, {"spec": {"owner": "bob"}}, {"spec": {"x": 1}}, {}]
        )
        at = self.chance.choice([None, None, 3])
        return f"patch {ref}", lambda plane: plane.patch(ref, changes, at=at)

    def replace(self) -> tuple[str, Command]:
        resource = self.resource()
        return f"replace {ref_of(resource)}", lambda plane: plane.replace(resource)

    def delete(self) -> tuple[str, Command]:
        ref, dry_run = ref_of(self.resource()), self.chance.random() < 0.1
        return f"delete {ref}", lambda plane: plane.delete(ref, dry_run=dry_run)

    def act(self) -> tuple[str, Command]:
        number = self.chance.randrange(3)
        actions: Sequence[tuple[Ref[Any], Action]] = [
            *((Ref(LabWorker, f"w{number}"), action) for action in (Drain(), Undrain(), Pause(), Resume(), Snooze())),
            *((Ref(LabletSession, f"s{number}"), action) for action in (Extend(minutes=30), Terminate(reason="x"))),
            *((Ref(LabletSession, name), ObserveResources()) for name in (f"s{number}", LIVE, LIVE)),
            *((Ref(LabletSession, LIVE), Save(name=name)) for name in (None, "one")),
        ]
        ref, action = self.chance.choice(actions)
        request = self.chance.choice([None, None, "a-1"])
        return f"act {ref} {action}", lambda plane: plane.act(ref, action, request=request)

    def step(self) -> tuple[str, Command]:
        ref, late, draw = ref_of(self.resource()), self.chance.random() < 0.1, self.chance.randrange(100)
        fields = {
            "ec2": {"client_token": "t", "instance_id": "i", "state": "running"},
            "cml": {"licensed": False, "api_url": "u"},
        }

        async def step(plane: Plane) -> object:
            seen = await plane.get(ref)
            if seen is None:
                return None
            if late:
                revision = seen.metadata.resource_version - 1
                seen = given.changed(seen, {"metadata": {"resource_version": revision}})
            changes: dict[str, Any] = following(seen, draw) | (fields if isinstance(seen, LabWorker) else {})
            return await plane.step(seen, given.changed(seen.status, changes), reason="seen")

        return f"step {ref}", step

    def list(self) -> tuple[str, Command]:
        kind, selector = self.chance.choice(KINDS_OF_ALL), self.chance.choice(["", "tier=gold", "tier!=gold"])

        async def pages(plane: Plane) -> object:
            where = parse_selector(kind, labels=selector)
            first = await plane.list(kind, where=where, limit=2)
            return first, first.next and await plane.list(kind, where=where, limit=2, cursor=first.next)

        return f"list {kind.__name__} {selector}", pages

    def report(self) -> tuple[str, Command]:
        ref = Ref(LabWorker, f"w{self.chance.randrange(3)}")
        telemetry = given.telemetry(collected_at=given.moment(f"0{self.chance.randrange(9)}:00"), active_labs_count=1)

        async def report(plane: Plane) -> object:
            await plane.report(ref, telemetry)
            return await plane.telemetry(ref)

        return f"report {ref}", report

    def look_after(self) -> tuple[str, Command]:
        ref, severity = Ref(LabWorker, f"w{self.chance.randrange(3)}"), self.chance.choice(list(Severity))
        ill = AlertFinding(alert=self.chance.choice(["Ill", "no name"]), severity=severity, reason="Ill", message="ill")
        settled = self.chance.random() < 0.5

        async def look_after(plane: Plane) -> object:
            await plane.raise_alert(ref, ill)
            raised = await plane.alerts()
            if settled:
                await plane.clear_alert(ref, "Ill")
            return raised, await plane.detect_idle(ref), await plane.history(ref, since=NOW - timedelta(days=1))

        return f"look after {ref}", look_after

    def observe(self) -> tuple[str, Command]:
        ref, answers = Ref(LabletSession, self.chance.choice(["s0", LIVE, LIVE])), self.chance.random() < 0.5
        seconds, cpus = self.chance.randrange(COMMANDS), self.chance.randrange(1, 9)

        async def observe(plane: Plane) -> object:
            seen = await plane.get(ref)
            request = seen.status.observation_request if seen else None
            observation = seen_at(NOW + timedelta(seconds=seconds), cpus)
            made = await plane.record_observation(
                ref, observation, request_id=request.id if request and answers else None
            )
            return made, await plane.observations(Ref(LabletDefinition, made.spec.definition))

        return f"observe {ref}", observe

    def bring_in(self) -> tuple[str, Command]:
        machines = tuple(DiscoveredInstance(instance_id=f"i-{n}") for n in range(self.chance.randrange(3)))
        found = BulkImport(discovered_instances=machines, aws_region="us-east-1")
        return "import", lambda plane: plane.import_workers(found)

    def count(self) -> tuple[str, Command]:
        start = NOW + timedelta(seconds=self.chance.randrange(60))

        async def count(plane: Plane) -> object:
            return await plane.licences(), await plane.costs(since=start, until=start + timedelta(hours=1))

        return "count", count

    def lead(self) -> tuple[str, Command]:
        name, term = self.chance.choice(ACTORS), self.chance.choice([None, 7])
        resource, give_back = self.resource(), self.chance.random() < 0.5

        async def lead(plane: Plane) -> object:
            lease = await plane.acquire(name, "me", ttl_seconds=15) or await plane.lease(name)
            assert lease is not None
            await plane.renew(lease)
            made = await plane.under(Fence(name, term or lease.term)).create(resource)
            if give_back:
                await plane.release(lease)
            return lease, made

        return f"lead {name} {ref_of(resource)}", lead


def running() -> LabletSession:
    """Return Ada's session that runs."""
    end = NOW + timedelta(hours=1)
    return given.asap(name=LIVE, uid=f"uid-{LIVE}", definition="basics:1.0", owner="ada", phase="RUNNING", ends_at=end)


def seen_at(moment: datetime, cpus: float) -> ResourceObservation:
    """Return what is seen of a lab of one node."""
    node = NodeObservation(node_id="n0", label="PC", node_definition="iosv", state="BOOTED", cpus=cpus, ram_mb=512)
    return build_observation([node], {}, at=moment, observer="lablet-controller")


def following(seen: Resource, draw: int) -> dict[str, object]:
    """Choose what a status is to say: mostly one of the phases that may follow."""
    machine = KINDS[seen.kind].machine
    if machine is None or draw % 7 == 0:
        return {"observed_generation": draw}
    phase = getattr(seen.status, "phase", None)
    targets = [step.target for step in machine.steps if step.source is phase]
    return {"phase": (targets or machine.phases)[draw % len(targets or machine.phases)]}


class Refusal(tuple[object, ...]):
    """An error, and what of it a caller may act on."""

    __slots__ = ()

    def __new__(cls, *parts: object) -> Self:
        return super().__new__(cls, parts)


async def outcome(plane: Plane, command: Command) -> object:
    """Carry a command out."""
    try:
        return await command(plane)
    except Conflict as error:
        return Refusal(Conflict, error.key, error.wanted, error.found)
    except Invalid as error:
        return Refusal(Invalid, *(fault.path for fault in error.faults))
    except IllegalStep as error:
        return Refusal(IllegalStep, str(error))
    except LcmError as error:
        return Refusal(type(error))


async def site(store: MemoryStore, seed: int) -> Site:
    made = Site(store, VirtualClock(), ids=Ids(Chance(seed)))
    await made.start()
    return made


async def play(seed: int) -> int:
    deck = Deck(random.Random(seed))
    stores = [MemoryStore(), MemoryStore()]
    here, there = [await site(store, seed) for store in stores]
    way, done = AsgiTransport(there.api), 0
    for one in (here, there):
        await one.core.plane_for(Caller(name="root", role=Role.ADMIN)).apply(BASIS)
    for store in stores:
        await store.commit(*creation_ops(running()))
    for number in range(COMMANDS):
        caller, (name, command) = deck.caller(), deck.command()
        near = await outcome(here.core.plane_for(caller), command)
        plane = there.plane(caller, "http://memory", way)
        assert await outcome(plane, command) == near, f"{number}: {caller.name} {caller.actor}: {name}"
        assert [await revision(store) for store in stores] == 2 * [await revision(stores[0])], name
        done += not isinstance(near, Refusal)
        await asyncio.sleep(1)
    for one in (here, there):
        await one.close()
    return done


async def revision(store: MemoryStore) -> int:
    return (await store.scan("", limit=1)).revision


@pytest.mark.parametrize("seed", SEEDS)
def test_both_planes_answer_alike(seed: int) -> None:
    assert run(lambda: play(seed), start=NOW) >= COMMANDS // 6, "too much of what was tried was refused"
