"""`lcm get` against a served API: kinds, names, selectors, formats, and following."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from harness import given
from harness.api_world import SERVICE_KEY, ApiServer, Shell, served, shell
from lcm.cli.documents.texts import read_documents
from lcm.control.objects.records import creation_ops
from lcm.control.plane.protocol import Plane, ref_of
from lcm.control.upkeep import housekeeping
from lcm.model.base.resource import PhaseChange
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import SessionPhase
from lcm.system.clock import SystemClock

LCM = [sys.executable, "-m", "lcm.cli.main"]


@pytest.fixture(name="desk")
def desk_of_root(api: ApiServer, tmp_path: Path) -> Shell:
    return shell(api, tmp_path)


def make(api: ApiServer, *resources: Resource) -> list[Resource]:
    async def work(plane: Plane) -> list[Resource]:
        return [await plane.create(one) for one in resources]

    return api.do(work)


def workers(*names: str, **fields: object) -> list[Resource]:
    return [given.worker(name=name, **fields) for name in names]


def test_a_list_is_a_table_with_a_heading(api: ApiServer, desk: Shell) -> None:
    make(api, *workers("w2", "w1", lab_track="ccna"))
    lines = [line.split() for line in desk.out("get", "workers").splitlines()]
    assert lines[0] == ["NAME", "PHASE", "IDLE", "TRACK", "LICENSED", "TYPE", "REGION", "AGE"]
    assert [line[:4] for line in lines[1:]] == [["w1", "PENDING", "-", "ccna"], ["w2", "PENDING", "-", "ccna"]]


def test_an_empty_list_is_a_message_and_no_error(desk: Shell) -> None:
    result = desk.lcm("get", "pools")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no pools in namespace default\n"


def test_names_are_looked_up_one_by_one_and_a_missing_one_is_an_error(api: ApiServer, desk: Shell) -> None:
    made, _ = make(api, *workers("w1", "w2"))
    result = desk.lcm("get", "worker", "w1", "nope", made.metadata.uid)
    assert result.exit_code == 3
    assert result.stdout.count("w1") == 2
    assert "there is no worker/nope in namespace default" in result.stderr
    assert "lists what is there" in result.stderr


@pytest.mark.parametrize("command", ["get worker", "describe worker", "story worker", "pause", "delete worker"])
def test_a_misspelt_name_is_answered_with_the_one_that_was_meant(api: ApiServer, desk: Shell, command: str) -> None:
    make(api, *workers("workshop", "exam"), given.worker(name="lessons", namespace="lab"))
    result = desk.lcm(*command.split(), "workshpo")
    assert (result.exit_code, "did you mean workshop?" in result.stderr) == (3, True)
    assert "add `-n lab`" in desk.lcm(*command.split(), "lessons").stderr
    assert "; `lcm get workers -A` lists what is there" in desk.lcm(*command.split(), "quite-another").stderr


def test_a_definition_is_found_without_its_version(api: ApiServer, desk: Shell) -> None:
    active, newer = given.definition(state="active"), given.definition(name="basics:1.10.0", version="1.10.0")
    make(api, active, given.definition(name="basics:1.9.0", version="1.9.0", state="active"), newer)
    assert "basics:1.9.0\n" in desk.out("describe", "definition", "basics")
    assert desk.out("get", "definition", "basics", "-o", "name").split() == [
        "definition/basics:1.9.0",
        "definition/basics:1.0.0",
        "definition/basics:1.10.0",
    ]
    observed = desk.lcm("observe", "definition", "basics", "--apply", "p95").stderr
    assert "nothing was observed of definition/basics:1.9.0" in observed
    refused = desk.lcm("describe", "definition", "bascis")
    assert (refused.exit_code, "did you mean basics?" in refused.stderr) == (3, True)
    unclear = desk.lcm("delete", "definition", "basics")
    assert (unclear.exit_code, "name a version: basics:1.0.0, basics:1.10.0, basics:1.9.0" in unclear.stderr) == (
        3,
        True,
    )


@pytest.mark.parametrize("command", [["book"], ["explain", "--definition"], ["book", "--for", "1h"]])
def test_a_booking_of_a_misspelt_definition_is_told_which_was_meant(
    api: ApiServer, desk: Shell, command: list[str]
) -> None:
    make(api, given.definition(state="active"))
    told = desk.lcm(*command, "bascis")
    assert told.exit_code == 5
    assert "there is no LabletDefinition bascis in namespace default; did you mean basics?" in told.stderr
    assert "`lcm get definitions` lists them" in desk.lcm(*command, "quite-another").stderr


def test_namespaces_are_apart_and_all_of_them_are_shown_by_name(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker(name="w1"), given.worker(name="w2", namespace="lab"))
    assert desk.out("get", "w", "-o", "name") == "worker/w1\n"
    assert desk.out("get", "w", "-n", "lab", "-o", "name") == "worker/w2\n"
    assert [line.split()[:2] for line in desk.out("get", "w", "-A").splitlines()] == [
        ["NAMESPACE", "NAME"],
        ["default", "w1"],
        ["lab", "w2"],
    ]


def test_selectors_choose_by_label_and_field(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker(name="w1", labels={"tier": "test"}), given.worker(name="w2", lab_track="ccnp"))
    assert desk.out("get", "w", "-l", "tier=test", "-o", "name") == "worker/w1\n"
    assert desk.out("get", "w", "-l", "!tier", "-o", "name") == "worker/w2\n"
    assert desk.out("get", "w", "--field-selector", "spec.lab_track=ccnp", "-o", "name") == "worker/w2\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["get"], "name a kind: workers, pools"),
        (["get", "wrokers"], "did you mean workers?"),
        (["get", "w", "-l", "a b"], "is no condition"),
        (["get", "w", "-l", "a=b=c"], "is no condition"),
        (["get", "w", "--field-selector", "spec.colour=red"], "LabWorker has no field spec.colour"),
        (["get", "w", "w1", "-l", "a=b"], "names cannot be used with"),
        (["get", "w", "w1", "-A"], "names cannot be used with"),
        (["get", "all", "w1"], "takes no names"),
        (["get", "w/w1", "w2"], "is not KIND/NAME"),
        (["get", "w", "-o", "xml"], "xml"),
        (["gte", "w"], "Did you mean 'get'"),
        (["describe", "w"], "name one object"),
        (["story", "w,s", "x"], "name one object"),
    ],
)
def test_wrong_usage_ends_with_two_and_says_what_is_right(desk: Shell, arguments: list[str], told: str) -> None:
    result = desk.lcm(*arguments)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stdout == ""


def test_several_kinds_are_several_tables(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker(), given.template(), given.pool())
    first, second = desk.out("get", "w,t").split("\n\n")
    assert first.splitlines()[1].startswith("worker/w1")
    assert second.splitlines()[1].startswith("template/metal")
    assert desk.out("get", "all", "-o", "name").split() == ["worker/w1", "pool/ccna", "template/metal"]


def test_all_is_all_that_one_may_see(api: ApiServer, tmp_path: Path) -> None:
    make(api, given.worker(), given.definition(state="active"))
    ada = shell(api, tmp_path, "ada")
    assert ada.out("get", "all", "-o", "name") == "definition/basics:1.0.0\n"
    refused = ada.lcm("get", "workers")
    assert refused.exit_code == 5
    assert "`lcm context list` shows which context you use" in refused.stderr


def test_one_object_as_json_and_yaml_is_that_object(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker())
    found = json.loads(desk.out("get", "worker", "w1", "-o", "json"))
    assert list(found) == ["api_version", "kind", "metadata", "spec", "status"]
    assert found["metadata"]["name"] == "w1"
    (written,), flaws = read_documents(desk.out("get", "worker/w1", "-o", "yaml").encode())
    assert not flaws
    assert written.value == found


def test_many_objects_as_json_or_yaml_can_be_applied_again(api: ApiServer, desk: Shell) -> None:
    make(api, *workers("w1", "w2"), given.template())
    before = api.revision
    listed = desk.out("get", "w,t", "-o", "json")
    assert json.loads(listed)["kind"] == "List"
    for text in (listed, desk.out("get", "w,t", "-o", "yaml")):
        assert desk.out("apply", "-f", "-", stdin=text).split() == [
            word for name in ("worker/w1", "worker/w2", "template/metal") for word in (name, "unchanged")
        ]
    assert api.revision == before


def test_every_page_of_a_long_list_is_read(api: ApiServer, desk: Shell) -> None:
    async def fill(plane: Plane) -> None:
        await plane.apply([document(f"w{number:04}") for number in range(2_100)])

    api.do(fill)
    assert desk.out("get", "w", "-o", "name").split() == [f"worker/w{number:04}" for number in range(2_100)]


def document(name: str) -> dict[str, Any]:
    return {"kind": "LabWorker", "metadata": {"name": name}, "spec": {"aws": {"ami_name_pattern": "CML-*"}}}


@pytest.mark.parametrize("columns", [60, 80, 160])
def test_a_table_is_never_wider_than_the_terminal(api: ApiServer, tmp_path: Path, columns: int) -> None:
    make(api, *workers("a" * 40, "w1", lab_track="a-long-track"))
    lines = shell(api, tmp_path, columns=columns).out("get", "w").splitlines()
    assert max(map(len, lines)) <= columns
    assert "PHASE" in lines[0]


def test_into_a_pipe_everything_is_written_without_colour(api: ApiServer, desk: Shell) -> None:
    make(api, *workers("a" * 60, lab_track="a" * 120))
    told = desk.out("get", "w")
    assert "a" * 120 in told
    assert "\x1b" not in told


def test_a_terminal_without_the_characters_gets_others(api: ApiServer, desk: Shell) -> None:
    make(api, *workers("a" * 60))
    environment = {**os.environ, **{name: value or "" for name, value in desk.environment.items()}}
    done = subprocess.run(
        [*LCM, "get", "w"],
        capture_output=True,
        env=environment | {"COLUMNS": "40", "PYTHONIOENCODING": "latin-1"},
        check=True,
    )
    assert b"?" in done.stdout


def test_a_reader_who_leaves_early_causes_no_noise(api: ApiServer, desk: Shell) -> None:
    make(api, *workers(*(f"w{number}" for number in range(200))))
    environment = {**os.environ, **{name: value or "" for name, value in desk.environment.items()}}
    command = f"{' '.join(LCM)} get w -o json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, env=environment, check=True)
    assert (done.stdout, done.stderr) == (b"{\n", b"")


def test_an_api_that_does_not_answer_is_told_with_what_to_do(tmp_path: Path, api: ApiServer) -> None:
    desk = Shell(tmp_path, LCM_URL="http://127.0.0.1:1", LCM_TOKEN="t")
    result = desk.lcm("get", "w")
    assert result.exit_code == 6
    assert "is the API running? `lcm up` starts one here" in result.stderr
    stranger = Shell(tmp_path, LCM_URL=api.url, LCM_TOKEN="nobody's").lcm("get", "w")
    assert stranger.exit_code == 5
    assert "its token was revoked, has expired, or is of another API; `lcm context list`" in stranger.stderr


class Watching:
    """`lcm get --watch` in a process of its own, on a terminal of its own."""

    def __init__(self, desk: Shell, *arguments: str) -> None:
        environment = {**os.environ, **{name: value or "" for name, value in desk.environment.items()}}
        self.screen, end = pty.openpty()
        command = [*LCM, "get", *arguments, "--watch"]
        self.process = subprocess.Popen(
            command,
            stdout=end,
            stderr=end,
            stdin=subprocess.DEVNULL,
            env=environment | {"COLUMNS": "60", "TERM": "xterm"},
        )
        os.close(end)
        self.seen = ""

    def until(self, text: str) -> str:
        """Read on until something is written."""
        return self._read_until(lambda: text in self.seen)

    def until_screen(self, *lines: str) -> None:
        """Read on until the terminal shows lines that begin like this, and no others."""
        self._read_until(lambda: list(map(_first_word, self.shown)) == list(lines))

    @property
    def shown(self) -> list[str]:
        """The lines that were drawn last, without colours."""
        drawn = re.split(r"\x1b\[[0-9]+A", self.seen)[-1]
        return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", drawn).splitlines()

    def _read_until(self, is_there: Callable[[], bool]) -> str:
        deadline = time.monotonic() + 60
        while not is_there():
            ready, _, _ = select.select([self.screen], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, self.seen
            self.seen += os.read(self.screen, 10_000).decode().replace("\r\n", "\n")
        return self.seen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.screen)


def _first_word(line: str) -> str:
    return line.partition(" ")[0]


def drain(api: ApiServer, name: str) -> None:
    async def work(plane: Plane) -> None:
        await plane.delete(ref_of(given.template(name=name)))

    api.do(work)


def test_watching_keeps_an_aligned_table_up_to_date_and_ends_quietly(api: ApiServer, desk: Shell) -> None:
    make(api, given.template(name="t1"))
    with Watching(desk, "templates") as watching:
        watching.until_screen("NAME", "t1")
        make(api, given.template(name="a-much-longer-name"), given.worker())
        watching.until_screen("NAME", "a-much-longer-name", "t1")
        heading, *rows = watching.shown
        assert {row.index("m5zn") for row in rows} == {heading.index("TYPE")}
        drain(api, "t1")
        watching.until_screen("NAME", "a-much-longer-name")
        watching.process.send_signal(signal.SIGINT)
        assert watching.process.wait(60) == 130


def test_watching_shows_what_ends_meanwhile_and_not_what_had_ended(api: ApiServer, desk: Shell) -> None:
    old = given.history("PENDING", "COMPLETED")
    now = (PhaseChange(phase="COMPLETED", at=SystemClock().now(), by="x"),)
    over = given.asap(name="old", uid="uid-old", phase=SessionPhase.COMPLETED, history=old)
    just = given.asap(name="just-now", uid="uid-new", phase=SessionPhase.COMPLETED, history=now)
    store(api, over, just, given.asap(name="waits", uid="uid-waits"))
    with Watching(desk, "sessions") as watching:
        watching.until_screen("NAME", "just-now", "waits")


def store(api: ApiServer, *resources: Resource) -> None:
    """Put objects into the store as they are, whatever their phase."""

    async def work(_: Plane) -> None:
        for one in resources:
            await api.store.commit(*creation_ops(one))

    api.do(work)


def test_sessions_that_have_ended_are_shown_to_those_who_ask_for_them(api: ApiServer, desk: Shell) -> None:
    over = given.asap(name="old", uid="uid-old", phase=SessionPhase.COMPLETED)
    store(api, over, given.asap(name="waits", uid="uid-waits"))
    told = desk.lcm("get", "sessions")
    assert [line.split()[0] for line in told.stdout.splitlines()] == ["NAME", "waits"]
    assert told.stderr == "1 ended session is not shown; --all shows them\n"
    assert desk.out("get", "sessions", "-o", "name") == "session/waits\n"
    assert desk.out("get", "sessions", "--all", "-o", "name") == "session/old\nsession/waits\n"
    for words in (["get", "session", "old"], ["get", "s", "--field-selector", "status.phase=COMPLETED"]):
        assert desk.out(*words, "-o", "name") == "session/old\n"


def test_the_wide_table_takes_200_columns_and_drops_what_matters_least(api: ApiServer, tmp_path: Path) -> None:
    ports = {f"router-{number}_serial": 2000 + number for number in range(20)}
    long = given.asap(
        name="s1",
        uid="uid-s1",
        phase=SessionPhase.RUNNING,
        allocated_ports=ports,
        access_url="https://198.51.100.7/lab/0123456789abcdef",
        last_error="it did not answer " * 10,
        student_email="somebody.with.a.long.name@students.example.org",
    )
    store(api, long)
    heading, row = shell(api, tmp_path, columns=80).out("get", "sessions", "-o", "wide").splitlines()
    assert len(heading) <= len(row) <= 200
    assert {"NAME", "PHASE", "NOTE", "ENDS", "URL", "LAST-ERROR"} <= set(heading.split())


def test_watching_outlives_the_api_and_lists_again_where_history_was_lost(tmp_path: Path) -> None:
    with served() as api:
        desk = Shell(tmp_path, LCM_URL=api.url, LCM_TOKEN=SERVICE_KEY)
        make(api, given.template(name="t1"), given.template(name="t2"))
        watching = Watching(desk, "templates", "-o", "name")
        watching.until("t2")
    with watching, served(port=api.port) as other:
        make(other, given.template(name="t2"), given.template(name="t3"))
        told = watching.until("template/t1 is gone")
    assert told.splitlines().count("template/t3") == 1


def test_watching_colours_phases_on_a_terminal_only(api: ApiServer, desk: Shell) -> None:
    make(api, given.worker())
    with Watching(desk, "workers") as watching:
        assert "\x1b[33m" in watching.until("PENDING")


def test_one_name_or_uid_is_followed_and_no_other(api: ApiServer, desk: Shell) -> None:
    first, _ = make(api, given.template(name="t1"), given.template(name="t2"))
    with Watching(desk, "template", first.metadata.uid, "-o", "yaml") as watching:
        watching.until("name: t1")
        drain(api, "t2")
        drain(api, "t1")
        told = watching.until("# template/t1 is gone")
    assert "t2" not in told
    assert "\n---\n" in told


def test_watching_nothing_says_so_and_waits(api: ApiServer, desk: Shell) -> None:
    with Watching(desk, "templates", "-o", "json") as watching:
        watching.until("no templates in namespace default yet; waiting")
        make(api, given.template(name="t1"))
        told = watching.until("}\n").splitlines()[-1]
        assert json.loads(told)["metadata"]["name"] == "t1"
        drain(api, "t1")
        gone = watching.until('"gone"').splitlines()[-1]
        assert "t1" in gone


def test_what_is_archived_is_shown_by_name_with_all_and_to_those_who_wait(api: ApiServer, desk: Shell) -> None:
    over = given.asap(
        name="old", uid="uid-old", phase=SessionPhase.COMPLETED, history=given.history("PENDING", "COMPLETED")
    )

    async def work(_: Plane) -> int:
        await api.store.commit(*creation_ops(over))
        return await housekeeping.archive_ended(api.store, given.moment("12:00"), given.moment("12:00"))

    assert api.do(work) == 1
    assert desk.lcm("get", "sessions").stdout == ""
    for words in (("get", "session", "old"), ("get", "sessions", "--all"), ("get", "s", "--all", "-A")):
        assert "COMPLETED" in desk.out(*words)
    assert "is COMPLETED" in desk.out("wait", "session", "old", "--for", "phase=COMPLETED", "--timeout", "5s")
    assert "is deleted" in desk.out("delete", "session", "old")
    assert desk.lcm("get", "sessions", "--all", "--watch").exit_code == 2
