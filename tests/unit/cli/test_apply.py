"""`lcm apply` against a served API: all or nothing, and every fault with its file and line."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness import given
from harness.api_world import ApiServer, Shell, served, shell
from lcm.cli.documents import apply as command
from lcm.cli.documents.texts import write_document
from lcm.control.plane.protocol import Plane, Ref
from lcm.model.kinds.registry import KINDS, Resource
from lcm.model.kinds.worker import LabWorker

WORKER = """\
kind: LabWorker
metadata:
  name: {name}
spec:
  lab_track: ccna
  aws:
    ami_name_pattern: CML-2.9*
"""
TEMPLATE = "kind: WorkerTemplate\nmetadata: {name: metal}\nspec: {worker: {aws: {ami_name_pattern: CML-*}}}\n"
DEFINITION = """\
kind: LabletDefinition
metadata: {name: "basics:1.0.0"}
spec: {version: 1.0.0, topology: {uri: s3://a/b}, state: active}
"""
REMEDY = "create it first, or correct the name"
SESSION = "kind: LabletSession\nmetadata: {{name: {name}}}\nspec: {{definition: basics, duration_minutes: 60{more}}}\n"
POOL = "kind: LabWorkerPool\nmetadata: {name: ccna}\nspec: {lab_track: ccna, template: metal}\n"


@pytest.fixture(name="desk")
def desk_of_root(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path / "home")


@pytest.fixture(name="folder")
def folder_of_documents(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    return tmp_path / "docs"


def worker(name: str = "w1") -> str:
    return WORKER.format(name=name)


def found(api: ApiServer, name: str = "w1") -> LabWorker | None:
    async def work(plane: Plane) -> LabWorker | None:
        return await plane.get(Ref(LabWorker, name))

    return api.do(work)


def refused(desk: Shell, *arguments: object, stdin: str | None = None) -> list[str]:
    result = desk.lcm("apply", *arguments, stdin=stdin)
    assert (result.exit_code, result.stdout) == (5, "")
    return result.stderr.splitlines()


def test_what_is_being_deleted_is_not_said_to_be_restored(desk: Shell) -> None:
    desk.out("apply", "-f", "-", stdin=worker())
    desk.out("delete", "worker", "w1")
    told = "worker/w1 unchanged, but it is being deleted: apply it again when it is gone\n"
    assert desk.out("apply", "-f", "-", stdin=worker()) == told


def test_documents_are_created_then_configured_then_unchanged(api: ApiServer, desk: Shell, folder: Path) -> None:
    file = folder / "w1.yaml"
    file.write_text(worker())
    assert desk.out("apply", "-f", file) == "worker/w1 created\n"
    file.write_text(worker().replace("ccna", "ccnp"))
    assert desk.out("apply", "-f", file) == "worker/w1 configured\n"
    before = api.revision
    assert desk.out("apply", "-f", file) == "worker/w1 unchanged\n"
    assert api.revision == before


def test_a_dry_run_says_what_would_be_and_writes_nothing(api: ApiServer, desk: Shell) -> None:
    assert desk.out("apply", "-f", "-", "--dry-run", stdin=worker()) == "worker/w1 created (dry run)\n"
    assert found(api) is None


def test_documents_may_refer_to_each_other_in_any_order(desk: Shell, folder: Path) -> None:
    (folder / "a.yml").write_text(f"{POOL}---\n{worker()}")
    (folder / "b.json").write_text(json.dumps({"kind": "List", "items": []}))
    (folder / "below").mkdir()
    (folder / "below" / "c.yaml").write_text(TEMPLATE)
    (folder / "notes.txt").write_text("{not: read")
    assert sorted(desk.out("apply", "-f", folder, "-R").splitlines()) == [
        "pool/ccna created",
        "template/metal created",
        "worker/w1 created",
    ]


def test_without_r_the_folders_in_a_folder_are_left_alone(desk: Shell, folder: Path) -> None:
    (folder / "a.yaml").write_text(worker())
    (folder / "below").mkdir()
    (folder / "below" / "c.yaml").write_text("{broken")
    assert desk.out("apply", "-f", folder) == "worker/w1 created\n"


def test_the_same_file_named_twice_is_read_once(desk: Shell, folder: Path) -> None:
    (folder / "a.yaml").write_text(worker())
    assert desk.out("apply", "-f", folder, "-f", folder / "a.yaml") == "worker/w1 created\n"


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_applied_as_it_is_written(desk: Shell, kind: str) -> None:
    after = given.moment("09:00", day=365 * 20)
    slot = {"timeslot_start": after, "timeslot_end": after.replace(hour=11)}
    one: Resource = next(one for one in given.every() if one.kind == kind)
    if kind in {"LabletSession", "Reservation"}:
        one = given.with_fields(one, slot)
    first: list[Resource] = [given.template(), given.definition(state="active")]
    text = "---\n".join(write_document(each) for each in [*(each for each in first if each.kind != kind), one])
    told = desk.out("apply", "-f", "-", stdin=text).splitlines()
    assert told[-1].endswith(" created")
    assert desk.out("apply", "-f", "-", stdin=text).splitlines()[-1] == told[-1].replace("created", "unchanged")


def test_every_fault_is_shown_with_file_line_path_and_remedy(api: ApiServer, desk: Shell, folder: Path) -> None:
    (folder / "good.yaml").write_text(worker("w0"))
    (folder / "bad.yaml").write_text(f"# first\n{worker().replace('lab_track', 'lab_trak')}---\n{worker('W 2')}")
    (folder / "worse.yaml").write_text("kind: LabWorker\nmetadata:\n  name: w3\nspec:\n  max_concurrent_labs: 99\n")
    lines = refused(desk, "-f", folder)
    assert lines[0] == "error: 4 faults"
    assert lines[1] == f"{folder}/bad.yaml:6: spec.lab_trak: unknown field; did you mean lab_track?"
    assert lines[2].startswith(f"{folder}/bad.yaml:12: metadata.name: ")
    assert lines[3].startswith(f"{folder}/worse.yaml:5: spec.max_concurrent_labs: ")
    assert lines[4].startswith(f"{folder}/worse.yaml:4: spec.aws: no image")
    assert found(api, "w0") is None


def test_a_reference_to_nothing_is_traced_to_its_line(api: ApiServer, desk: Shell, folder: Path) -> None:
    (folder / "a.yaml").write_text(worker())
    (folder / "pool.yaml").write_text(
        "kind: LabWorkerPool\nmetadata: {name: ccna}\nspec:\n  lab_track: a\n  template: no\n"
    )
    (line,) = refused(desk, "-f", folder)
    assert line.startswith(f"error: {folder}/pool.yaml:5: spec.template: ")
    assert found(api) is None


def test_a_revision_that_is_gone_by_is_a_fault_at_its_line(desk: Shell, folder: Path) -> None:
    (folder / "a.yaml").write_text(worker())
    desk.out("apply", "-f", folder)
    (folder / "a.yaml").write_text(worker().replace("name: w1", "name: w1\n  resource_version: 1"))
    (line,) = refused(desk, "-f", folder)
    assert line.startswith(f"error: {folder}/a.yaml:4: metadata.resource_version: 1 was asked for")


def test_what_one_may_not_do_is_shown_with_its_document(api: ApiServer, desk: Shell, folder: Path) -> None:
    desk.out("apply", "-f", "-", stdin=DEFINITION + "---\n" + SESSION.format(name="s1", more=""))
    (folder / "a.yaml").write_text(SESSION.format(name="s1", more=""))
    (folder / "b.yaml").write_text("# hers\n" + SESSION.format(name="s2", more=", priority: 9"))
    (folder / "c.yaml").write_text("# none\n" + SESSION.format(name="s3", more="").replace("basics", "none"))
    lines = refused(shell(api, folder / "home", "ada"), "-f", folder)
    assert lines == [
        "error: 3 faults",
        f"{folder}/a.yaml:2: metadata.name: the name is taken; use another",
        f"{folder}/b.yaml:2: document: only staff may set a priority above 0; ask somebody who may do that",
        f"{folder}/c.yaml:4: spec.definition: there is no LabletDefinition none in namespace default; " + REMEDY,
    ]


def test_the_same_object_twice_is_a_fault_that_names_both_places(api: ApiServer, desk: Shell, folder: Path) -> None:
    (folder / "a.yaml").write_text(worker())
    (folder / "b.yaml").write_text(f"# again\n{worker()}")
    (line,) = refused(desk, "-f", folder)
    assert line == (
        f"error: {folder}/b.yaml:4: metadata.name: LabWorker w1 is also at {folder}/a.yaml:3; keep one of them"
    )
    assert found(api) is None


def test_faults_of_the_text_and_of_the_documents_are_shown_together(desk: Shell, folder: Path) -> None:
    (folder / "a.yaml").write_text(worker() + "  lab_track: twice\n")
    (folder / "b.yaml").write_text(worker("w2").replace("ccna", "[1]"))
    lines = refused(desk, "-f", folder)
    assert [line.partition(" ")[0] for line in lines[1:]] == [f"{folder}/a.yaml:8:", f"{folder}/b.yaml:5:"]


def test_a_file_that_breaks_off_accuses_no_other_of_missing_what_it_held(desk: Shell, folder: Path) -> None:
    (folder / "a.yaml").write_text("spec: [\n" + TEMPLATE)
    (folder / "b.yaml").write_text(POOL)
    (line,) = refused(desk, "-f", folder)
    assert line.startswith(f"error: {folder}/a.yaml:")


def test_documents_from_standard_input_have_lines_too(desk: Shell) -> None:
    (line,) = refused(desk, "-f", "-", stdin=worker().replace("lab_track", "track"))
    assert line.startswith("error: stdin:5: spec.track: unknown field")


def test_what_the_api_fills_in_is_no_fault(folder: Path, tmp_path: Path) -> None:
    defaults = {"LabWorker": {"spec": {"aws": {"ami_name_pattern": "CML-2.9*"}}}}
    (folder / "a.yaml").write_text("kind: LabWorker\nmetadata: {name: w1}\n")
    with served(defaults=defaults) as api:
        assert shell(api, tmp_path / "home").out("apply", "-f", folder) == "worker/w1 created\n"
        assert shell(api, tmp_path / "home").out("apply", "-f", folder) == "worker/w1 unchanged\n"


def test_without_an_api_what_can_be_checked_here_is_checked(folder: Path, tmp_path: Path) -> None:
    away = Shell(tmp_path, LCM_URL="http://127.0.0.1:1", LCM_TOKEN="t")
    (folder / "a.yaml").write_text(worker())
    assert away.lcm("apply", "-f", folder).exit_code == 6
    (folder / "a.yaml").write_text(worker().replace("lab_track", "track"))
    lines = refused(away, "-f", folder)
    assert lines[0] == "the API could not be reached, so the files were checked here only"
    assert f"{folder}/a.yaml:5: spec.track" in lines[1]
    assert f"{folder}/a.yaml:5: spec.track" in refused(Shell(tmp_path), "-f", folder)[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "name a file, a folder"),
        (["-f", "nowhere.yaml"], "there is no nowhere.yaml"),
        (["-f", "-"], "the files contain no document"),
        (["-f", "empty"], "holds no .yaml, .yml or .json file; -R looks"),
        (["-f", "locked.yaml"], "cannot be read"),
    ],
)
def test_what_cannot_be_read_at_all_is_wrong_usage(
    desk: Shell, folder: Path, arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir()
    (folder / "locked.yaml").symlink_to("/proc/self/mem")
    result = desk.lcm("apply", *arguments, stdin="# nothing\n")
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())


def test_too_many_documents_are_refused_before_any_is_sent(desk: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LONGEST_APPLY", 2)
    result = desk.lcm("apply", "-f", "-", stdin="---\n".join(map(worker, ("a", "b", "c"))))
    assert result.exit_code == 5
    assert "3 documents; apply at most 2 at once" in result.stderr


def thousand(folder: Path) -> list[str]:
    """Write a thousand documents of four kinds, most in files of their own."""
    documents: list[Resource] = [given.template(name=f"t{number}") for number in range(50)]
    documents += [
        given.pool(name=f"p{number}", lab_track=f"t{number}", template=f"t{number % 50}") for number in range(150)
    ]
    documents += [given.definition(name=f"d{number}:1.0.0") for number in range(300)]
    documents += [given.worker(name=f"w{number}", lab_track=f"t{number % 150}") for number in range(500)]
    for number, one in enumerate(documents[:990]):
        (folder / f"{number:04}.yaml").write_text(write_document(_as_written(one)))
    (folder / "last.yaml").write_text("---\n".join(write_document(_as_written(one)) for one in documents[990:]))
    return [one.metadata.name for one in documents]


def _as_written(one: Resource) -> dict[str, Any]:
    return {"kind": one.kind, "metadata": {"name": one.metadata.name}, "spec": one.spec}


def test_a_thousand_objects_are_applied_twice_and_the_second_time_spends_no_revision(
    api: ApiServer, desk: Shell, folder: Path
) -> None:
    names = thousand(folder)
    first = desk.lcm("apply", "-f", folder)
    assert first.exit_code == 0
    assert len(first.stdout.splitlines()) == len(names) == 1_000
    assert {line.split()[1] for line in first.stdout.splitlines()} == {"created"}
    assert first.stderr == "1000 objects: 1000 created\n"
    before = api.revision
    second = desk.lcm("apply", "-f", folder)
    assert second.stderr == "1000 objects: 1000 unchanged\n"
    assert api.revision == before


def test_one_broken_document_among_a_thousand_lets_none_be_written(api: ApiServer, desk: Shell, folder: Path) -> None:
    thousand(folder)
    broken = folder / "0700.yaml"
    text = (
        broken.read_text()
        .replace("wanted_state: running", "wanted_state: flying")
        .replace("warn_minutes: 5", "warn: 5")
    )
    broken.write_text(text)
    before = api.revision
    lines = refused(desk, "-f", folder)
    wanted = {path: 1 + text[: text.index(mark)].count("\n") for path, mark in _MARKS.items()}
    assert lines[0] == "error: 2 faults"
    assert sorted(line.split(": ")[0] for line in lines[1:]) == sorted(f"{broken}:{line}" for line in wanted.values())
    assert api.revision == before
    assert found(api, "w0") is None


_MARKS = {"spec.wanted_state": "wanted_state", "spec.idle.warn": "warn:"}
