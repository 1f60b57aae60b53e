"""What authors upload: as much as their quota allows, and gone when nothing refers to it."""

import asyncio
from datetime import timedelta

import pytest

from harness import given
from harness.plane_world import hand_clock
from lcm.control.objects.uploads import UPLOADS_PREFIX
from lcm.control.plane.local import ControlPlane, LocalPlane
from lcm.control.plane.protocol import Ref
from lcm.control.upkeep.housekeeping import Housekeeping
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import NoRoom, Unreachable
from lcm.model.kinds.definition import LabletDefinition, Topology
from lcm.providers.protocols.artifacts import digest_of
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.store.memory import MemoryStore

ROOM = 5 * 4_096
"""For five small files: a file counts for 4 KB at least."""


def lab(number: int) -> bytes:
    node = f"nodes:\n  - {{id: n0, label: R{number}, node_definition: iosv, x: 0, y: 0, interfaces: [], tags: []}}\n"
    return f"lab: {{version: 0.3.0, title: lab {number}}}\n{node}links: []\n".encode()


class House:
    """A control plane with files, an author, and somebody who keeps it tidy."""

    def __init__(self) -> None:
        self.clock = hand_clock()
        self.store = MemoryStore()
        self.artifacts = SimulatedArtifacts(self.clock)
        self.core = ControlPlane(self.store, clock=self.clock, artifacts=self.artifacts, quota_bytes=ROOM)
        self.keeping = Housekeeping(self.store, clock=self.clock, artifacts=self.artifacts)
        self.anna = self.person("anna", Role.AUTHOR)

    def person(self, name: str, role: Role) -> LocalPlane:
        return self.core.plane_for(Caller(name=name, role=role))

    async def define(self, uri: str, name: str = "kept:1.0") -> None:
        topology = {"topology": Topology(uri=uri), "name": name, "version": "1.0", "uid": ""}
        await self.anna.create(given.definition(**topology))

    async def records(self) -> int:
        return len((await self.store.scan(UPLOADS_PREFIX)).entries)

    async def tidy_after(self, **span: float) -> None:
        self.clock.step(**span)
        await self.keeping.tidy()


async def test_an_author_may_store_so_much_and_others_have_room_of_their_own() -> None:
    house = House()
    for number in range(5):
        await house.anna.upload_topology(lab(number))
    await house.anna.upload_topology(lab(0))
    with pytest.raises(NoRoom, match="delete definitions that nobody needs"):
        await house.anna.upload_topology(lab(6))
    assert await house.artifacts.find(f"artifact://{digest_of(lab(6))}") is None
    await house.person("arno", Role.AUTHOR).upload_topology(lab(6))
    for number in range(9):
        await house.person("root", Role.ADMIN).upload_topology(lab(number))


async def test_uploads_at_once_do_not_exceed_a_quota_together() -> None:
    house = House()
    told = await asyncio.gather(
        *(house.anna.upload_topology(lab(number)) for number in range(12)), return_exceptions=True
    )
    assert sum(isinstance(one, NoRoom) for one in told) == 7
    assert await house.records() == 5


async def test_what_nothing_refers_to_is_removed_after_a_day_and_counts_no_more() -> None:
    house = House()
    first, left = [await house.anna.upload_topology(lab(number)) for number in range(2)]
    await house.define(first.uri)
    await house.tidy_after(hours=23)
    assert await house.artifacts.find(left.uri) is not None
    await house.tidy_after(hours=2)
    assert await house.artifacts.find(left.uri) is None
    assert await house.artifacts.get(first.uri) == lab(0)
    assert await house.records() == 1
    await house.anna.delete(Ref(LabletDefinition, "kept:1.0"))
    await house.tidy_after(hours=25)
    assert await house.artifacts.find(first.uri) is None
    assert await house.records() == 0


async def test_a_definition_keeps_the_file_that_it_is_made_of_however_old_that_is() -> None:
    house = House()
    old = await house.anna.upload_topology(lab(0))
    house.clock.step(days=3)
    await house.define(old.uri)
    removed_before = house.clock.now() - timedelta(days=1)
    await house.artifacts.remove(
        old.uri, before=removed_before
    )  # by a sweep that began before the definition was there
    assert await house.artifacts.get(old.uri) == lab(0)


async def test_files_that_cannot_be_listed_are_not_taken_for_none() -> None:
    house = House()
    await house.anna.upload_topology(lab(0))
    house.artifacts.fail_next("list_stored", Unreachable("away"))
    await house.tidy_after(days=2)
    assert await house.records() == 1
    await house.tidy_after(hours=2)
    assert await house.records() == 0
