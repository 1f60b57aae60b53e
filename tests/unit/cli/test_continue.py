"""`lcm save` and `lcm book --continue`: a lab is saved, and started again where it stopped."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from harness import given
from harness.api_world import ApiServer, Shell, served, shell
from harness.session_world import SMALL
from lcm.control.objects.session_files import stored_name
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.machine import LABLET_CONTROLLER
from lcm.model.kinds.definition import LabletDefinition, Topology
from lcm.model.kinds.saved_lab import file_of_save
from lcm.model.kinds.session import Artifact, LabletSession, SessionPhase
from lcm.model.topology.lab import parse_lab
from lcm.providers.protocols.artifacts import digest_of
from lcm.sim.cloud.artifacts import SimulatedArtifacts
from lcm.system.clock import SystemClock

DATA = SMALL.encode()
LAB = parse_lab(DATA)
S1 = Ref(LabletSession, "s1")


def entry(name: str) -> Artifact:
    return Artifact(name=name, digest=digest_of(DATA), size_bytes=len(DATA), collected_at=SystemClock().now())


def lab() -> LabletDefinition:
    topology = Topology(uri=f"artifact://{digest_of(DATA)}", digest=digest_of(DATA))
    return given.definition(
        topology=topology, port_template=LAB.port_template, node_count=LAB.node_count, state="active"
    )


@pytest.fixture(name="api")
def api_with_files() -> Iterator[ApiServer]:
    store = SimulatedArtifacts(SystemClock())
    with served(artifacts=store) as api:
        session = given.session(owner="ada", phase=SessionPhase.RUNNING, artifacts=(entry("save-1.yaml"),))
        empty = given.session(name="empty", uid="uid-empty", owner="ada", phase=SessionPhase.RUNNING)
        api.put(lab(), session, empty)
        asyncio.run(store.put(DATA))
        asyncio.run(store.put_temporary(stored_name(session, "save-1.yaml"), DATA))
        yield api


@pytest.fixture(name="desk")
def desk_of_ada(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path / "home", "ada")


def answering(api: ApiServer, error: str = "") -> Callable[[], None]:
    """Be the lablet controller, once."""

    async def work(plane: Plane) -> None:
        found = await plane.get(S1)
        assert found is not None
        assert found.status.save_request is not None
        new = () if error else (entry(file_of_save(found.status.save_request.name)),)
        status = msgspec.structs.replace(
            found.status, save_request=None, save_error=error, artifacts=(*found.status.artifacts, *new)
        )
        await plane.step(found, status)

    return lambda: api.acting(LABLET_CONTROLLER, work)


def test_a_running_lab_is_saved_under_a_name(api: ApiServer, desk: Shell) -> None:
    then = api.once_watched(answering(api))
    result = desk.lcm("save", "s1", "--name", "before-bgp")
    then.join()
    assert result.exit_code == 0, result.output
    assert "saved as before-bgp" in result.stdout
    assert "lcm book --continue s1/before-bgp" in result.output
    assert "save-before-bgp.yaml" in desk.out("artifacts", "s1")


def test_a_save_that_failed_says_why(api: ApiServer, desk: Shell) -> None:
    then = api.once_watched(answering(api, "not saved: the lab file has 9 bytes or more"))
    result = desk.lcm("save", "s1")
    then.join()
    assert result.exit_code != 0
    assert "not saved: the lab file has 9 bytes" in result.output


def test_a_bad_name_and_a_taken_one_are_refused(desk: Shell) -> None:
    assert "there is a save 1 of s1 already" in desk.lcm("save", "s1", "--name", "1").output
    assert "lower-case letters" in desk.lcm("save", "s1", "--name", "../x").output
    assert desk.lcm("save", "nobody").exit_code != 0


def test_a_session_is_continued_as_its_own_lab(api: ApiServer, desk: Shell) -> None:
    result = desk.lcm("book", "--continue", "s1", "--name", "mine")
    assert result.exit_code == 0, result.output
    assert "it continues s1 as saved at" in result.stdout

    async def read(plane: Plane) -> LabletSession | None:
        return await plane.get(Ref(LabletSession, "mine"))

    made = api.do(read)
    assert made is not None
    assert made.spec.definition == "basics:1.0.0"
    assert made.status.continues is not None
    assert made.status.continues.file == "save-1.yaml"
    assert desk.lcm("book", "basics", "--continue", "s1/1", "--name", "too").exit_code == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--continue", "empty"), "save it first: `lcm save empty`"),
        (("--continue", "s1/2"), "its saves are 1"),
        (("--continue", "nobody"), "nobody"),
        (("--continue", "s1/../x"), "SESSION/SAVE"),
        (("--continue", "s1", "--at", "+1h", "--count", "2"), "book one at a time"),
        ((), "name a lab, or a session to --continue"),
    ],
)
def test_what_cannot_be_continued_is_refused_with_what_to_do(desk: Shell, words: tuple[str, ...], problem: str) -> None:
    result = desk.lcm("book", *words)
    assert result.exit_code != 0
    assert problem in " ".join(result.output.split())
