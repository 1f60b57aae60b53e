"""`lcm delete` against a served API: by name, by selector, from files, and waiting for the end."""

from pathlib import Path

import pytest

from harness import given
from harness.api_world import ApiServer, Shell, shell
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import SessionPhase
from lcm.model.kinds.worker import LabWorker, WorkerPhase


@pytest.fixture(name="desk")
def desk_of_root(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path / "home")


def make(api: ApiServer, *resources: Resource) -> None:
    async def work(plane: Plane) -> None:
        for one in resources:
            await plane.create(one)

    api.do(work)


def names(desk: Shell, kind: str) -> list[str]:
    return desk.out("get", kind, "-o", "name").split()


def end(api: ApiServer, name: str) -> None:
    """Let a worker that never was launched be gone."""

    async def work(plane: Plane) -> None:
        worker = await plane.get(Ref(LabWorker, name))
        assert worker is not None
        await plane.step(worker, given.changed(worker.status, {"phase": WorkerPhase.TERMINATED}), reason="gone")

    api.acting(WORKER_CONTROLLER, work)


def test_what_has_no_life_of_its_own_is_gone_at_once(api: ApiServer, desk: Shell) -> None:
    make(api, given.template(name="t1"), given.template(name="t2"))
    assert desk.out("delete", "template", "t1") == "template/t1 is deleted\n"
    assert desk.out("delete", "t/t2") == "template/t2 is deleted\n"
    assert names(desk, "t") == []


def test_what_has_a_life_of_its_own_is_going(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker())
    assert desk.out("delete", "w", "w1") == "worker/w1 is being deleted (PENDING)\n"
    assert "PENDING (deleting)" in desk.out("get", "w")


def test_it_is_told_what_a_pool_or_a_worker_waits_for(api: ApiServer, desk: Shell) -> None:
    make(api, given.template(), given.pool(), given.worker())
    for name, phase in (("s1", SessionPhase.SCHEDULED), ("s2", SessionPhase.RUNNING), ("s3", SessionPhase.COMPLETED)):
        booked = {"seat": {"pool": "ccna", "number": 1}, "worker_ref": "default/w1" if name != "s1" else None}
        api.put(given.changed(given.session(name=name, uid=name, phase=phase), {"status": booked}))
    assert desk.out("delete", "pool", "ccna").endswith(" deleted (DRAINING), after 2 sessions (s1, s2)\n")
    assert desk.out("delete", "w", "w1") == "worker/w1 is being deleted (PENDING), after 1 session (s2)\n"


def test_a_dry_run_deletes_nothing(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker(), given.template())
    assert desk.out("delete", "w,t", "--all", "--dry-run").splitlines() == [
        "worker/w1 would be deleted (PENDING)",
        "template/metal would be deleted",
    ]
    assert names(desk, "w,t") == ["worker/w1", "template/metal"]


def test_what_is_not_there_is_an_error_unless_it_may_be_missing(api: ApiServer, desk: Shell) -> None:
    make(api, given.template(name="t1"))
    result = desk.lcm("delete", "t", "nope", "t1")
    assert result.exit_code == 3
    assert "there is no template/nope in namespace default" in result.stderr
    assert result.stdout == "template/t1 is deleted\n"
    assert desk.lcm("delete", "t", "nope", "--ignore-not-found").exit_code == 0


def test_what_others_refer_to_is_refused_by_their_names(api: ApiServer, desk: Shell) -> None:
    make(api, given.template(), given.pool())
    result = desk.lcm("delete", "t", "metal")
    assert result.exit_code == 5
    assert "LabWorkerPool ccna" in result.stderr


def labs(*names: str) -> list[Resource]:
    return [given.definition(name=f"{name}:1.0.0", labels={"tier": name[0]}) for name in names]


@pytest.mark.parametrize(
    ("answer", "code", "left"),
    [("y\n", 0, []), ("n\n", 1, ["a1", "a2"]), ("", 1, ["a1", "a2"])],
)
def test_several_by_selector_are_asked_about(
    api: ApiServer, desk: Shell, answer: str, code: int, left: list[str]
) -> None:
    make(api, *labs("a1", "a2"))
    result = desk.lcm("delete", "d", "-l", "tier=a", stdin=answer)
    assert result.exit_code == code
    assert "Delete 2 objects: definition/a1:1.0.0, definition/a2:1.0.0?" in result.stderr
    assert names(desk, "d") == [f"definition/{name}:1.0.0" for name in left]


def test_one_by_selector_and_several_with_yes_are_not_asked_about(api: ApiServer, desk: Shell) -> None:
    make(api, *labs("a", "b1", "b2"))
    assert desk.out("delete", "d", "-l", "tier=a") == "definition/a:1.0.0 is deleted\n"
    assert desk.out("delete", "d", "--all", "--yes").splitlines() == [
        "definition/b1:1.0.0 is deleted",
        "definition/b2:1.0.0 is deleted",
    ]
    assert "no object matches" in desk.lcm("delete", "d", "--all").stderr


def test_files_name_what_is_to_go_and_users_go_before_what_they_use(
    api: ApiServer, desk: Shell, tmp_path: Path
) -> None:
    text = (
        "kind: WorkerTemplate\nmetadata: {name: metal}\n---\nkind: LabWorkerPool\nmetadata: {name: ccna}\n"
        "---\nkind: LabWorker\nmetadata: {name: w1, namespace: lab}\n"
    )
    (tmp_path / "all.yaml").write_text(text)
    make(api, given.template(), given.worker(namespace="lab"))
    result = desk.lcm("delete", "-f", tmp_path / "all.yaml", "--ignore-not-found")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == ["worker/w1 is being deleted (PENDING)", "template/metal is deleted"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["t"], "name objects, or use -l"),
        (["t", "t1", "--all"], "name objects, or use -l"),
        (["-f", "x.yaml", "t"], "-f cannot be used with"),
        ([], "name a kind"),
        (["t", "t1", "--timeout", "soon"], "not a duration"),
    ],
)
def test_what_is_to_go_must_be_said_in_one_way(desk: Shell, arguments: list[str], told: str) -> None:
    result = desk.lcm("delete", *arguments)
    assert result.exit_code == 2
    assert told in result.stderr


def test_waiting_ends_when_the_object_is_gone(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker(name="w1"), given.worker(name="w2"))

    def end_both() -> None:
        end(api, "w2")
        end(api, "w1")

    then = api.once_watched(end_both)
    told = desk.out("delete", "w", "w1", "w2", "--wait", "--timeout", "60s").splitlines()
    then.join()
    assert told[:2] == ["worker/w1 is being deleted (PENDING)", "worker/w2 is being deleted (PENDING)"]
    assert told[2:] == ["worker/w1 is gone", "worker/w2 is gone"]


def test_waiting_gives_up_in_time_and_names_what_is_left(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker(name="w1"))
    result = desk.lcm("delete", "w", "w1", "--wait", "--timeout", "1s")
    assert result.exit_code == 7
    assert "not gone after 1s: worker/w1" in result.stderr
