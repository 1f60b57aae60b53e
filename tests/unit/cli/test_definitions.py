"""`lcm apply` with lab files: those that definitions name beside them, and a definition made of a lab alone."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import given
from harness.api_world import ApiServer, Shell, served, shell
from lcm.control.plane.local import ControlPlane
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.access.identity import Caller, Role
from lcm.model.kinds.definition import DefinitionState, LabletDefinition, ResourceRequirements
from lcm.model.topology.node_definitions import KnownNode, parse_node_size
from lcm.providers.protocols.artifacts import digest_of
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.store.memory import MemoryStore
from lcm.system.clock import SystemClock

LAB = """\
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
    x: 0
    y: 0
    interfaces: []
    tags: ["vnc:${PORT_DESK}"]
links: []
"""
DEFINITION = """\
kind: LabletDefinition
metadata:
  name: two:1.0.0
spec:
  version: 1.0.0
  state: active
  lab_track: ccna
  topology:
    uri: labs/two.yaml
"""
SESSION = "kind: LabletSession\nmetadata: {name: s1}\nspec: {definition: two, duration_minutes: 60}\n"
DIGEST = digest_of(LAB.encode())
NEEDS = ResourceRequirements(cpu_cores=2, memory_gb=1)


@pytest.fixture(name="store")
def store_of_files() -> SimulatedArtifacts:
    return SimulatedArtifacts(SystemClock())


@pytest.fixture(name="api")
def api_that_keeps_files(store: SimulatedArtifacts) -> Iterator[ApiServer]:
    with served(artifacts=store) as api:
        yield api


@pytest.fixture(name="desk")
def desk_of_an_author(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path / "home", "anna")


@pytest.fixture(name="folder")
def folder_of_a_lab(tmp_path: Path) -> Path:
    (tmp_path / "docs" / "labs").mkdir(parents=True)
    (tmp_path / "docs" / "labs" / "two.yaml").write_text(LAB)
    (tmp_path / "docs" / "two.yaml").write_text(DEFINITION)
    return tmp_path / "docs"


def found(api: ApiServer, name: str = "two:1.0.0") -> LabletDefinition | None:
    async def work(plane: Plane) -> LabletDefinition | None:
        return await plane.get(Ref(LabletDefinition, name))

    return api.do(work)


def made(api: ApiServer, name: str = "two:1.0.0") -> LabletDefinition:
    definition = found(api, name)
    assert definition is not None
    return definition


def kept(store: SimulatedArtifacts) -> list[str]:
    later = SystemClock().now().replace(year=2100)
    return [one.uri for one in asyncio.run(store.list_stored(before=later))]


def refused(desk: Shell, *arguments: object) -> list[str]:
    result = desk.lcm("apply", *arguments)
    assert (result.exit_code, result.stdout) == (5, "")
    return result.stderr.splitlines()


def test_a_lab_beside_its_definition_is_uploaded_and_completes_it(api: ApiServer, desk: Shell, folder: Path) -> None:
    assert desk.out("apply", "-f", folder / "two.yaml") == "definition/two:1.0.0 created\n"
    spec = made(api).spec
    assert (spec.topology.uri, spec.topology.digest) == (f"artifact://{DIGEST}", DIGEST)
    assert (spec.node_count, spec.resource_requirements) == (2, NEEDS)
    assert set(spec.port_template or {}) == {"R1_serial", "R1_pat_tcp_22", "DESK"}


def test_applied_again_it_changes_nothing_and_uploads_nothing(api: ApiServer, desk: Shell, folder: Path) -> None:
    desk.out("apply", "-f", folder)
    before = api.revision
    assert desk.out("apply", "-f", folder) == "definition/two:1.0.0 unchanged\n"
    assert api.revision == before


@pytest.mark.parametrize("more", ["", f"---\n{SESSION}"])
def test_a_dry_run_checks_everything_and_stores_nothing(
    api: ApiServer, store: SimulatedArtifacts, folder: Path, more: str
) -> None:
    root = shell(api, folder / "home")
    (folder / "two.yaml").write_text(DEFINITION + more)
    (folder / "settings.yaml").write_text("kind: SystemSettings\nmetadata: {name: system}\nspec: {}\n")
    told = root.out("apply", "-f", folder, "--dry-run").splitlines()
    wanted = ["settings/system created (dry run)", "definition/two:1.0.0 created (dry run)"]
    assert told == wanted + (["session/s1 created (dry run)"] if more else [])
    assert found(api) is None
    assert kept(store) == []
    assert all(line.endswith(" created") for line in root.out("apply", "-f", folder).splitlines())


def test_labs_among_documents_are_left_out_and_those_nobody_names_are_noted(desk: Shell, folder: Path) -> None:
    (folder / "labs" / "other.yaml").write_text(LAB + "# another\n")
    result = desk.lcm("apply", "-f", folder, "-R")
    assert (result.exit_code, result.stdout) == (0, "definition/two:1.0.0 created\n")
    assert result.stderr.splitlines() == [
        f"{folder}/labs/other.yaml is a lab, not a document: ignored, because no definition here names it"
    ]
    assert desk.out("delete", "-f", folder, "-R") == "definition/two:1.0.0 is deleted\n"


def test_faults_of_a_lab_have_its_file_and_line_and_nothing_is_stored(
    api: ApiServer, store: SimulatedArtifacts, desk: Shell, folder: Path
) -> None:
    bad = folder / "labs" / "two.yaml"
    bad.write_text(LAB.replace("pat:tcp:5042:22", "pat:tcp:5042"))
    (line,) = refused(desk, "-f", folder)
    assert line.startswith(f"error: {bad}:13: nodes[0].tags[1]: ")
    bad.write_text(LAB.replace("node_definition: iosv", "node_definition: my-own", 1))
    (line,) = refused(desk, "-f", folder)
    assert line.startswith(f"error: {bad}:5: nodes[0].node_definition: the size of a 'my-own' is not known")
    bad.unlink()
    (line,) = refused(desk, "-f", folder)
    assert line.startswith(f"error: {folder}/two.yaml:9: spec.topology.uri: there is no file {bad}")
    assert found(api) is None
    assert kept(store) == []


def test_a_fault_elsewhere_lets_no_lab_be_stored(store: SimulatedArtifacts, desk: Shell, folder: Path) -> None:
    (folder / "wrong.yaml").write_text(DEFINITION.replace("two:", "three:").replace("lab_track", "track"))
    (line,) = refused(desk, "-f", folder)
    assert line.startswith(f"error: {folder}/wrong.yaml:7: spec.track: unknown field")
    assert kept(store) == []


def test_what_is_wrong_with_a_lab_and_with_documents_is_told_at_once(desk: Shell, folder: Path) -> None:
    (folder / "labs" / "two.yaml").write_text("nodes: []\nlab: 1\n")
    (folder / "wrong.yaml").write_text(DEFINITION.replace("two:1", "three:1").replace("lab_track", "track"))
    told = "\n".join(refused(desk, "-f", folder))
    assert f"{folder}/labs/two.yaml:" in told
    assert f"{folder}/wrong.yaml:7: spec.track: unknown field" in told
    assert "spec.topology" not in told


def test_a_version_keeps_its_lab(api: ApiServer, store: SimulatedArtifacts, desk: Shell, folder: Path) -> None:
    desk.out("apply", "-f", folder)
    (folder / "labs" / "two.yaml").write_text(LAB.replace("two nodes", "two others"))
    lines = refused(desk, "-f", folder)
    assert f"{folder}/two.yaml:8: spec.topology" in lines[0]
    assert made(api).spec.topology.digest == DIGEST
    assert len(kept(store)) == 1


def test_a_digest_that_is_another_files_is_refused(desk: Shell, folder: Path) -> None:
    (folder / "two.yaml").write_text(f"{DEFINITION}    digest: {digest_of(b'another')}\n")
    (line,) = refused(desk, "-f", folder)
    assert line.startswith(f"error: {folder}/two.yaml:10: spec.topology.digest: {folder}/labs/two.yaml has {DIGEST}")


def test_a_definition_is_made_of_a_lab_alone(api: ApiServer, desk: Shell, folder: Path) -> None:
    lab = folder / "labs" / "two.yaml"
    result = desk.lcm("apply", "-f", lab, "--as-definition", "alone", "--track", "ccna")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "definition/alone:1.0.0 created",
        "  Title:  two nodes",
        "  Nodes:  2 (iosv), 0 links",
        "  Needs:  2 CPU, 1 GB memory, 0 GB disk",
        "  Ports:  3: DESK, R1_pat_tcp_22, R1_serial",
        "  Track:  ccna",
        "  State:  draft",
        f"  File:   {DIGEST}",
    ]
    assert "a draft cannot be booked: repeat the command with --activate" in result.stderr
    assert made(api, "alone:1.0.0").spec.state is DefinitionState.DRAFT
    told = desk.out("apply", "-f", lab, "--as-definition", "alone", "--activate").splitlines()
    assert told[0] == "definition/alone:1.0.0 configured"
    spec = made(api, "alone:1.0.0").spec
    assert (spec.state, spec.lab_track) == (DefinitionState.ACTIVE, "ccna")
    again = desk.lcm("apply", "-f", lab, "--as-definition", "alone:1.0.0")
    assert again.stdout.splitlines()[0] == "definition/alone:1.0.0 unchanged"
    assert again.stderr == ""


def test_a_definition_of_standard_input_and_of_another_version(api: ApiServer, desk: Shell) -> None:
    told = desk.out("apply", "-f", "-", "--as-definition", "alone:2.1", "--dry-run", stdin=LAB)
    assert told.startswith("definition/alone:2.1 created (dry run)\n")
    assert found(api, "alone:2.1") is None
    desk.out("apply", "-f", "-", "--as-definition", "alone:2.1", stdin=LAB)
    assert made(api, "alone:2.1").spec.version == "2.1"


def test_a_lab_of_no_use_makes_no_definition(desk: Shell, folder: Path) -> None:
    lab = folder / "labs" / "two.yaml"
    lab.write_text(LAB.replace("serial:5041", "serial:70000"))
    (line,) = refused(desk, "-f", lab, "--as-definition", "alone")
    assert line.startswith(f"error: {lab}:12: nodes[0].tags[0]: ")


def test_what_makes_no_sense_is_wrong_usage(desk: Shell, folder: Path) -> None:
    lab = folder / "labs" / "two.yaml"
    result = desk.lcm("apply", "-f", lab)
    assert result.exit_code == 2
    assert "--as-definition NAME` creates a definition from it" in " ".join(result.stderr.replace("│", " ").split())
    assert desk.lcm("apply", "-f", lab, "-f", folder / "two.yaml", "--as-definition", "a").exit_code == 2
    for option in (["--track", "x"], ["--activate"], ["-n", "other"]):
        assert desk.lcm("apply", "-f", folder / "two.yaml", *option).exit_code == 2


def test_who_may_not_publish_stores_nothing(api: ApiServer, store: SimulatedArtifacts, folder: Path) -> None:
    ada = shell(api, folder / "home", "ada")
    assert ada.lcm("apply", "-f", folder).exit_code == 5
    assert ada.lcm("apply", "-f", folder / "labs" / "two.yaml", "--as-definition", "a").exit_code == 5
    assert kept(store) == []


STRANGE = LAB.replace("node_definition: iosv", "node_definition: my-own", 1)


def publish(desk: Shell, folder: Path, *options: str) -> Any:
    (folder / "lab.yaml").write_text(STRANGE)
    return desk.lcm("apply", "-f", folder / "lab.yaml", "--as-definition", "odd", *options)


def test_a_lab_with_a_node_of_unknown_size_is_refused_with_what_to_do(desk: Shell, folder: Path) -> None:
    result = publish(desk, folder)
    assert result.exit_code != 0
    told = result.stderr.splitlines()[0]
    assert told.startswith(f"error: {folder}/lab.yaml:5: nodes[0].node_definition: the size of a 'my-own' is not known")
    assert "publish it with --node-size my-own=CPUS/MEMORY, name its size in NODE_SIZES" in told
    assert publish(desk, folder, "--cpu", "4").exit_code != 0, "its memory is still not known"


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        (["--node-size", "my-own=4/8G/60G"], ResourceRequirements(cpu_cores=5, memory_gb=8.5, storage_gb=60)),
        (["--cpu", "6", "--memory", "12G"], ResourceRequirements(cpu_cores=6, memory_gb=12)),
        (["--node-size", "my-own=4/8G", "--cpu", "2.5"], ResourceRequirements(cpu_cores=2.5, memory_gb=8.5)),
    ],
)
def test_an_author_says_what_a_lab_needs(
    api: ApiServer, desk: Shell, folder: Path, options: list[str], needs: ResourceRequirements
) -> None:
    dry = publish(desk, folder, *options, "--dry-run")
    assert (dry.exit_code, found(api, "odd:1.0.0")) == (0, None)
    result = publish(desk, folder, *options)
    assert result.exit_code == 0, result.output
    spec = made(api, "odd:1.0.0").spec
    assert spec.resource_requirements == needs
    assert spec.ami_requirements.node_definitions == ("iosv", "my-own")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--node-size", "your-own=4/8G"], "no node of the lab is a your-own; it has iosv, my-own"),
        (["--node-size", "my-own=4"], "Invalid value for --node-size: 'my-own=4' is no size of a node; write NAME="),
        (["--memory", "12"], "Invalid value for --memory: '12' is no amount of memory"),
    ],
)
def test_a_need_that_makes_no_sense_is_refused(desk: Shell, folder: Path, options: list[str], told: str) -> None:
    result = publish(desk, folder, *options)
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.replace("│", " ").split())


def test_what_no_worker_has_is_told_as_a_booking_would_be(api: ApiServer, desk: Shell, folder: Path) -> None:
    api.put(given.changed(given.worker(), {"status": {"cml": {"node_definitions": ["iosv"]}}}))
    told = publish(desk, folder, "--node-size", "my-own=4/8G").stderr
    assert "no worker has the node definitions my-own: bookings are refused, or wait, until one does" in told


def test_a_lab_without_ports_is_published_with_a_word_that_nobody_can_reach_it(desk: Shell, folder: Path) -> None:
    lines = (line for line in LAB.splitlines(keepends=True) if ":50" not in line and "tags:" not in line)
    (folder / "labs" / "two.yaml").write_text("".join(lines))
    word = "nodes: none has a port tag, so nobody can reach the lab; tag nodes with ports"
    result = desk.lcm("apply", "-f", folder)
    assert result.exit_code == 0
    assert word in result.stderr
    result = desk.lcm("apply", "-f", folder / "labs" / "two.yaml", "--as-definition", "silent")
    assert result.exit_code == 0
    assert word in result.stderr


def test_node_sizes_of_the_settings_count_where_a_lab_is_published() -> None:
    async def main() -> None:
        sizes = dict(map(parse_node_size, ("my-own=4/8G", "iosv=2/1G")))
        core = ControlPlane(
            MemoryStore(), clock=SystemClock(), artifacts=SimulatedArtifacts(SystemClock()), node_sizes=sizes
        )
        plane = core.plane_for(Caller(name="root", role=Role.ADMIN))
        told = await plane.upload_topology(STRANGE.encode())
        assert told.needs == ResourceRequirements(cpu_cores=6, memory_gb=9)
        known = {one.definition_id: one for one in await plane.node_definitions()}
        assert known["my-own"] == KnownNode(definition_id="my-own", size=sizes["my-own"])

    asyncio.run(main())
