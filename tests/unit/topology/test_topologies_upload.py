"""Lab files that come in: stored and looked through, and definitions completed by them or refused with the line."""

import asyncio
from threading import current_thread, main_thread
from typing import Any

import msgspec
import pytest

from harness import given
from harness.api_world import opened
from harness.plane_world import NOW, World, either, on
from lcm.control.admission import topologies
from lcm.control.objects.lab_files import check_lab_file
from lcm.control.objects.records import creation_ops
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Plane, Ref, ref_of
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import Forbidden, Gone, Invalid, Refused, Unreachable
from lcm.model.kinds.definition import LabletDefinition, PortUse, ResourceRequirements, Topology
from lcm.model.kinds.worker import CmlFacts
from lcm.model.telemetry.learning import build_observation
from lcm.model.telemetry.observation import NodeObservation
from lcm.model.topology.lab import ParsedLab, parse_lab, rewrite
from lcm.model.topology.node_definitions import NodeSize
from lcm.providers.protocols.artifacts import digest_of
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.sim.time.loop import VirtualClock, run
from lcm.store.memory import MemoryStore

LAB = b"""\
lab:
  version: 0.3.0
  title: two nodes
nodes:
  - id: n0
    label: R1
    node_definition: iosv
    x: 0
    y: 0
    interfaces: []
    tags:
      - serial:5041
      - pat:tcp:5042:22
  - id: n1
    label: PC
    node_definition: iosv
    cpus: 2
    ram: 1024
    x: 0
    y: 0
    interfaces: []
    tags: ["vnc:${PORT_DESK}"]
links: []
"""
STRANGE = LAB.replace(b"node_definition: iosv\n    x", b"node_definition: my-own\n    x", 1)
BAD = LAB.replace(b"pat:tcp:5042:22", b"pat:tcp:5042")
FOLDED = LAB.replace(b"- serial:5041", b'- "serial:\\\n        5041"')
FILES = {
    "s3://labs/two.yaml": LAB,
    "s3://labs/strange.yaml": STRANGE,
    "s3://labs/bad.yaml": BAD,
    "s3://labs/folded.yaml": FOLDED,
    "file:///labs/two.yaml": LAB,
}
kept = on("memory", "memory-http", "sqlite-http", files=FILES)
LINKED = """\
lab: {version: 0.3.0, title: linked}
nodes:
  - {id: n0, label: R1, node_definition: iosv, x: -120, y: 0.5, tags: ["serial:5041"], interfaces: [{id: i0, label: a}]}
  - {id: n1, label: R2, node_definition: iosv, x: 40, y: 0, interfaces: [{id: i0, label: a}]}
links: [{id: l0, n1: n0, i1: i0, n2: n1, i2: i0}]
"""
EMPTY = b"lab: {version: 0.3.0, title: none}\nnodes: []\nlinks: []\n"
NEEDS = ResourceRequirements(cpu_cores=3.0, memory_gb=1.5)
PORTS = {"R1_serial", "R1_pat_tcp_22", "DESK"}
TWO = Ref(LabletDefinition, "two:1.0")


def definition(uri: str = "s3://labs/two.yaml", **more: object) -> LabletDefinition:
    topology = {"topology": Topology(uri=uri), "name": "two:1.0", "version": "1.0", "uid": ""}
    return given.definition(**topology | more)


async def faults(plane: Plane, wanted: LabletDefinition) -> list[str]:
    with pytest.raises(Invalid) as caught:
        await plane.create(wanted)
    return [str(fault) for fault in caught.value.faults]


@kept
async def test_an_author_uploads_a_lab_and_is_told_what_is_in_it(world: World) -> None:
    told = await world.person("anna").upload_topology(LAB)
    assert (told.uri, told.digest) == (f"artifact://{digest_of(LAB)}", digest_of(LAB))
    assert (told.title, told.node_count, told.link_count, told.size_bytes) == ("two nodes", 2, 0, len(LAB))
    assert (told.needs, told.node_definitions, told.faults) == (NEEDS, ("iosv",), ())
    assert set(told.port_template) == PORTS
    assert world.artifacts is not None
    assert await world.artifacts.get(told.uri) == LAB
    assert await world.person("anna").upload_topology(LAB) == told


@kept
async def test_who_may_publish_reads_the_file_of_a_definition_with_its_picture(world: World) -> None:
    data = LINKED.encode()
    told = await world.person("anna").upload_topology(data)
    made = await world.root.create(definition(told.uri))
    found = await world.person("anna").topology(ref_of(made))
    assert found.text.encode() == data
    assert found.graph == told.graph
    assert [(one.label, one.definition, one.x, one.y) for one in told.graph.nodes] == [
        ("R1", "iosv", -120, 0.5),
        ("R2", "iosv", 40, 0),
    ]
    assert [(one.n1, one.n2) for one in told.graph.links] == [("n0", "n1")]
    with pytest.raises(Forbidden):
        await world.ada.topology(ref_of(made))
    with pytest.raises(Gone):
        await world.root.topology(Ref(LabletDefinition, "none:1.0"))


@kept
async def test_a_lab_of_no_use_is_refused_with_the_line_and_not_stored(world: World) -> None:
    for data, line in ((BAD, "line 13"), (b"lab: [", "line 2"), (b"", "line 1"), (EMPTY, "nodes")):
        with pytest.raises(Invalid) as caught:
            await world.root.upload_topology(data)
        assert caught.value.faults[0].path.startswith(line)
    assert world.artifacts is not None
    assert await world.artifacts.list_stored(before=NOW.replace(year=2100)) == []


@kept
async def test_a_node_of_unknown_size_is_told_and_hinders_nothing(world: World) -> None:
    told = await world.root.upload_topology(STRANGE)
    assert told.needs is None
    assert [(one.path, one.problem) for one in told.faults] == [
        ("line 5: nodes[0].node_definition", "the size of a 'my-own' is not known")
    ]


@on("sqlite", "sqlite-http", files={})
async def test_a_large_lab_is_looked_through_as_a_small_one_is(world: World) -> None:
    large = LAB + b"# and so on\n" * 20_000
    told = await world.root.upload_topology(large)
    assert (told.node_count, told.needs, told.size_bytes) == (2, NEEDS, len(large))
    made = await world.root.create(definition(told.uri))
    assert (made.spec.node_count, made.spec.topology.digest) == (2, told.digest)
    with pytest.raises(Invalid, match="line 13"):
        await world.root.upload_topology(BAD + b"# and so on\n" * 20_000)


@on("sqlite", files={})
async def test_large_labs_are_looked_through_one_by_one_beside_the_loop(world: World) -> None:
    """Fifteen files of 97 kB held the loop for 13 s; a dozen in threads left little time to everything else."""
    running, seen = set[str](), list[set[str]]()

    def check(data: bytes) -> ParsedLab:
        running.add(current_thread().name)
        seen.append({*running})
        made = check_lab_file(data)
        running.discard(current_thread().name)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topologies, "check_lab_file", check)
        await asyncio.gather(*(world.root.upload_topology(LAB + b"# and so on\n" * 400 * n) for n in range(1, 5)))
    assert len(seen) == 4
    assert all(len(one) == 1 and main_thread().name not in one for one in seen)


@kept
async def test_who_may_not_publish_may_not_upload(world: World) -> None:
    with pytest.raises(Forbidden):
        await world.ada.upload_topology(LAB)


@either
async def test_where_no_files_are_kept_none_are_taken(world: World) -> None:
    with pytest.raises(Refused, match="keeps no files"):
        await world.root.upload_topology(LAB)
    made = await world.root.create(definition())
    assert (made.spec.node_count, made.spec.port_template, made.spec.topology.digest) == (None, None, "")


@kept
async def test_a_definition_is_completed_by_its_topology(world: World) -> None:
    uploaded = await world.root.upload_topology(LAB)
    for number, uri in enumerate(("s3://labs/two.yaml", "file:///labs/two.yaml", uploaded.uri)):
        made = await world.person("anna").create(definition(uri, name=f"two:1.{number}", version=f"1.{number}"))
        assert (made.spec.resource_requirements, made.spec.node_count) == (NEEDS, 2)
        assert (set(made.spec.port_template or {}), made.spec.topology.digest) == (PORTS, digest_of(LAB))
        assert made.spec.ami_requirements.node_definitions == ("iosv",)


@kept
async def test_a_node_that_cml_does_not_ship_is_sized_by_what_the_workers_cml_says_of_it(world: World) -> None:
    for name, size in (("w1", NodeSize(cpus=4, ram_mb=1024)), ("w2", NodeSize(cpus=2, ram_mb=2048))):
        facts = CmlFacts(node_definitions=("iosv", "my-own"), node_sizes={"my-own": size})
        worker = given.changed(given.worker(name=name, uid=f"uid-{name}"), {"status": {"cml": facts}})
        await world.store.commit(*creation_ops(worker))
    told = await world.root.upload_topology(STRANGE)
    assert (told.needs, told.faults) == (ResourceRequirements(cpu_cores=6, memory_gb=3), ())
    made = await world.root.create(definition("s3://labs/strange.yaml"))
    assert made.spec.resource_requirements == told.needs
    assert made.spec.ami_requirements.node_definitions == ("iosv", "my-own")
    again = await world.root.apply([msgspec.to_builtins(definition("s3://labs/strange.yaml"))])
    assert [one.outcome for one in again] == ["unchanged"]


@kept
async def test_what_an_author_says_stays_as_it_is(world: World) -> None:
    own = ResourceRequirements(cpu_cores=8, memory_gb=4)
    made = await world.root.create(definition("s3://labs/strange.yaml", resource_requirements=own, node_count=7))
    assert (made.spec.resource_requirements, made.spec.node_count) == (own, 7)


@kept
async def test_the_same_document_applied_twice_changes_nothing(world: World) -> None:
    document: dict[str, Any] = msgspec.to_builtins(definition())
    assert [one.outcome for one in await world.root.apply([document])] == ["created"]
    assert [one.outcome for one in await world.root.apply([document])] == ["unchanged"]
    made = await world.root.patch(TWO, {"spec": {"state": "active", "resource_requirements": None}})
    assert (made.spec.resource_requirements, made.spec.state) == (NEEDS, "active")
    with pytest.raises(Invalid, match=r"spec\.topology"):
        await world.root.patch(TWO, {"spec": {"topology": {"digest": digest_of(b"another")}}})


@kept
async def test_a_definition_whose_topology_is_of_no_use_is_refused_and_told_why(world: World) -> None:
    found = await faults(world.root, definition("s3://labs/bad.yaml"))
    assert found[0].startswith("spec.topology: line 13: nodes[0].tags[1]:")
    found = await faults(world.root, definition("s3://labs/strange.yaml"))
    assert "line 5: nodes[0].node_definition: the size of a 'my-own' is not known" in found[0]
    found = await faults(world.root, definition("s3://labs/nothing.yaml"))
    assert found == [
        "spec.topology.uri: s3://labs/nothing.yaml does not exist; upload the file first, or correct the address"
    ]
    wrong = Topology(uri="s3://labs/two.yaml", digest=digest_of(b"another"))
    found = await faults(world.root, definition(topology=wrong))
    assert found[0].startswith("spec.topology.digest: 's3://labs/two.yaml' has the digest")
    lacking = {"R1_serial": PortUse(kind="serial", node="R1")}
    found = await faults(world.root, definition(port_template=lacking))
    assert found[0].startswith("spec.port_template: lacks ports of the topology: DESK, R1_pat_tcp_22;")
    listed = await world.root.list(LabletDefinition)
    assert listed.items == []


@kept
async def test_a_tag_that_cannot_be_rewritten_is_refused_before_anybody_books_it(world: World) -> None:
    found = await faults(world.root, definition("s3://labs/folded.yaml"))
    assert found[0].startswith("spec.topology: line 12:")
    assert "cannot be changed in place" in found[0]


@kept
async def test_what_is_no_lab_of_cml_is_not_looked_into(world: World) -> None:
    made = await world.root.create(definition("s3://labs/nothing.yaml", lab_type="CONTAINER"))
    assert made.spec.port_template is None


def test_an_outage_is_no_fault_of_the_document() -> None:
    async def main() -> None:
        artifacts = SimulatedArtifacts(VirtualClock())
        plane = ControlPlane(MemoryStore(), clock=VirtualClock(), artifacts=artifacts).plane_for(
            Caller(name="root", role=Role.ADMIN)
        )
        artifacts.fail_next("get", Unreachable("nobody answers"))
        with pytest.raises(Unreachable):
            await plane.create(definition())

    run(main, start=NOW)


async def test_a_file_must_say_that_it_is_one() -> None:
    async with opened() as desk:
        sent = {"content": LAB, "headers": {"Content-Type": "application/json"}}
        assert (await desk.ask("root", "POST", "/api/topologies", **sent)).status_code == 415


def test_rewritten_ports_are_the_ones_that_are_observed() -> None:
    ports = {"R1_serial": 2001, "R1_pat_tcp_22": 2002, "DESK": 2003}
    lab = parse_lab(rewrite(LAB, ports))
    nodes = [
        NodeObservation(node_id=one.node_id, label=one.label, node_definition="iosv", state="BOOTED", tags=one.tags)
        for one in lab.nodes
    ]
    seen = build_observation(nodes, parse_lab(LAB).port_template, at=NOW, observer="manual")
    assert seen.observed_ports == ports
