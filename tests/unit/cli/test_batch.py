"""`lcm label`, `lcm batch`, and `lcm cancel` and `lcm drain` of many objects in one call."""

from pathlib import Path

import pytest

from harness import given
from harness.api_world import ApiServer, Shell, shell
from lcm.control.plane.protocol import Plane
from lcm.model.kinds.session import LabletSession, SessionPhase
from lcm.model.kinds.worker import WorkerPhase
from lcm.system.clock import SystemClock


@pytest.fixture(name="root")
def desk_of_root(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path, columns=100)


def workers(api: ApiServer, *phases: WorkerPhase) -> None:
    for number, phase in enumerate(phases):
        made = given.worker(name=f"w{number}", uid=f"uid-w{number}", phase=phase, created_at=SystemClock().now())
        api.put(made)


def sessions(api: ApiServer, count: int, owner: str = "ada") -> None:
    for number in range(count):
        made = given.session(name=f"{owner}{number}", uid=f"uid-{owner}{number}", owner=owner)
        api.put(made)


def phases(api: ApiServer) -> list[str]:
    async def ask(plane: Plane) -> list[str]:
        return [one.status.phase for one in (await plane.list(LabletSession)).items]

    return api.do(ask)


def said(text: str) -> str:
    return " ".join(text.split())


def test_labels_are_set_by_name_and_by_selector(api: ApiServer, root: Shell) -> None:
    workers(api, *3 * [WorkerPhase.READY])
    assert root.lcm("label", "workers", "w0", "w1", "rack=7", "tier=test").output == (
        "worker/w0: rack=7, tier=test\nworker/w1: rack=7, tier=test\n"
    )
    assert root.lcm("label", "workers", "-l", "rack=7", "tier-").output == "worker/w0: rack=7\nworker/w1: rack=7\n"
    missing = root.lcm("label", "workers", "w2", "w9", "rack=8", "--together")
    assert missing.exit_code == 3
    assert "nothing was done: all or none" in missing.output
    assert "nothing is selected" in root.lcm("label", "workers", "-l", "rack=8", "x=y").output
    assert root.lcm("label", "workers", "w0").exit_code == 2
    assert root.lcm("label", "workers", "a=b").exit_code == 2


def test_selected_workers_are_drained_in_one_call(api: ApiServer, root: Shell) -> None:
    workers(api, WorkerPhase.READY, WorkerPhase.READY, WorkerPhase.STOPPED)
    root.lcm("label", "workers", "w0", "w1", "w2", "rack=7")
    refused = root.lcm("drain", "-l", "rack=7", "--together")
    assert refused.exit_code == 5
    assert "worker/w2 is STOPPED: drain is not possible" in said(refused.output)
    assert "nothing was done: all or none" in refused.output
    done = root.lcm("drain", "-l", "rack=7")
    assert done.exit_code == 5
    assert [name for name in ("w0", "w1") if f"worker/{name} drains" in said(done.output)] == ["w0", "w1"]
    assert root.lcm("drain").exit_code == 2


def test_bookings_are_cancelled_together_or_one_by_one(api: ApiServer, tmp_path: Path) -> None:
    sessions(api, 3)
    sessions(api, 1, "bob")
    ada = shell(api, tmp_path, "ada", columns=100)
    assert ada.lcm("cancel", "ada0", "bob0", "--together").exit_code == 3
    assert phases(api) == 4 * [SessionPhase.PENDING]
    told = ada.lcm("cancel", "ada0", "bob0", "ada1")
    assert told.exit_code == 3
    assert told.output.count("is cancelled: it has nothing on a worker") == 2
    assert "bob0" in told.output
    assert phases(api) == [SessionPhase.TERMINATED, SessionPhase.TERMINATED, SessionPhase.PENDING, SessionPhase.PENDING]


FILE = """
mode: all
items:
  - {op: label, kind: LabWorker, name: w0, labels: {rack: "7"}}
  - {op: action, kind: LabWorker, name: w1, action: {action: drain, deadline_minutes: 30}}
"""


def test_a_file_says_what_to_do(api: ApiServer, root: Shell, tmp_path: Path) -> None:
    workers(api, *2 * [WorkerPhase.READY])
    file = tmp_path / "batch.yaml"
    file.write_text(FILE)
    assert "nothing was done: --dry-run" in root.lcm("batch", "-f", file, "--dry-run").output
    assert root.lcm("batch", "-f", file).output == "worker/w0 is READY\nworker/w1 is DRAINING\n"
    file.write_text(FILE.replace("op: label", "op: nonsense"))
    assert "items[0]" in root.lcm("batch", "-f", file).output
    file.write_text("items: 3\n")
    assert root.lcm("batch", "-f", file).exit_code
    file.write_text("items: []\n---\nitems: []\n")
    assert "2 documents" in said(root.lcm("batch", "-f", file).output)


def test_more_than_one_call_holds_is_done_in_several(root: Shell) -> None:
    names = [f"x{number}" for number in range(1005)]
    answer = root.lcm("label", "workers", *names, "a=b")
    assert answer.output.count("error: ") == 1005
