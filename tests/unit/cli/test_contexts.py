"""Contexts: which API, as whom, and a file that only its owner can read."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.api_world import ApiServer, Shell
from lcm.cli.output import connection
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid, Stuck

URL = "http://127.0.0.1:8080"


@pytest.fixture(name="home", autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("LCM_URL", "LCM_TOKEN", "LCM_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def current(environment: Mapping[str, str] | None = None, name: str | None = None) -> tuple[str, str, str] | None:
    found = connection.current_context(name, environment or {})
    return (found.name, found.url, found.token.reveal()) if found else None


def test_without_a_file_there_is_no_context() -> None:
    assert current() is None


def test_what_is_remembered_is_current_and_readable_by_its_owner_alone(home: Path) -> None:
    path = connection.save_context("local", URL + "/", Secret("t1"), make_current=True)
    assert path == home / "lcm" / "contexts.yaml"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert list(path.parent.iterdir()) == [path]
    assert current() == ("local", URL, "t1")


def test_a_folder_that_others_could_enter_is_closed(home: Path) -> None:
    (home / "lcm").mkdir(mode=0o755)
    connection.save_context("local", URL, Secret("t1"), make_current=True)
    assert (home / "lcm").stat().st_mode & 0o777 == 0o700


def test_the_first_context_is_current_and_another_only_if_asked() -> None:
    connection.save_context("local", URL, Secret("t1"), make_current=False)
    connection.save_context("prod", "https://lcm.example.org", Secret("t2"), make_current=False)
    assert current() == ("local", URL, "t1")
    connection.save_context("prod", "https://lcm.example.org", Secret("t3"), make_current=True)
    assert current() == ("prod", "https://lcm.example.org", "t3")
    assert current(name="local") == ("local", URL, "t1")


def test_the_environment_overrides_the_file() -> None:
    connection.save_context("local", URL, Secret("t1"), make_current=True)
    connection.save_context("prod", "https://lcm.example.org", Secret("t2"), make_current=False)
    both = {"LCM_URL": "http://other:1", "LCM_TOKEN": "t9"}
    assert current(both) == ("environment", "http://other:1", "t9")
    assert current({"LCM_CONTEXT": "prod"}) == ("prod", "https://lcm.example.org", "t2")
    assert current({"LCM_TOKEN": "t9"}) == ("local", URL, "t9")
    assert current({"LCM_URL": URL}) == ("local", URL, "t1")
    assert current(both, name="prod") == ("prod", "https://lcm.example.org", "t2")


def test_a_kept_token_is_never_sent_to_another_address() -> None:
    connection.save_context("local", URL, Secret("t1"), make_current=True)
    with pytest.raises(Invalid, match="LCM_TOKEN: missing"):
        current({"LCM_URL": "http://somebody.else"})


def test_a_context_that_does_not_exist_is_named_with_those_that_do() -> None:
    connection.save_context("local", URL, Secret("t1"), make_current=True)
    with pytest.raises(Invalid, match=r"there is no 'prod'.*local"):
        current(name="prod")


@pytest.mark.parametrize(
    "url", ["", "localhost:8080", "ftp://x", "http://", "http://x:99999", "http://x?a=1", "http://["]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="not the address of an API"):
        connection.save_context("local", url, Secret("t1"), make_current=True)


@pytest.mark.parametrize("text", ["{", "contexts: [1]", "current: local\nmore: 1", "contexts:\n  a: {url: x}"])
def test_a_file_that_cannot_be_read_says_so_and_stays(home: Path, text: str) -> None:
    path = home / "lcm" / "contexts.yaml"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(Stuck, match="correct or remove it"):
        connection.save_context("local", URL, Secret("t1"), make_current=True)
    assert path.read_text() == text


def test_a_secret_is_in_no_message(home: Path, api: ApiServer) -> None:
    desk = Shell(home)
    told = desk.lcm("context", "set", "local", "--url", api.url, "--token", "-", stdin="lcm_verysecret\n").output
    told += desk.lcm("context", "list").output
    told += desk.lcm("get", "workers").output
    assert "verysecret" not in told


def test_processes_that_write_at_once_lose_nothing() -> None:
    program = (
        "import sys; from lcm.cli.output import connection as contexts; from lcm.model.access.secret import Secret\n"
        "for n in range(6): contexts.save_context(f'{sys.argv[1]}{n}', 'http://x', Secret('t'), make_current=False)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert sorted(connection.read_contexts().contexts) == [f"{name}{number}" for name in "abc" for number in range(6)]


def test_the_commands_list_use_set_and_delete(home: Path) -> None:
    desk = Shell(home)
    assert "no contexts yet" in desk.lcm("context", "list").stderr
    desk.out("context", "set", "local", "--url", URL, "--token", "t1")
    desk.out("context", "set", "prod", "--url", "https://lcm.example.org", "--token", "t2", "--keep-current")
    assert desk.out("context", "list").splitlines() == [
        "CURRENT  NAME   URL",
        "*        local  http://127.0.0.1:8080",
        "         prod   https://lcm.example.org",
    ]
    desk.out("context", "use", "prod")
    assert current() == ("prod", "https://lcm.example.org", "t2")
    desk.out("context", "delete", "prod")
    assert current() is None
    assert desk.lcm("context", "use", "prod").exit_code == 5


def test_a_token_is_asked_for_without_being_shown(home: Path) -> None:
    result = Shell(home).lcm("context", "set", "local", "--url", URL, stdin="t7\n")
    assert result.exit_code == 0
    assert "t7" not in result.output
    assert current() == ("local", URL, "t7")


def test_the_list_marks_what_the_environment_says(home: Path) -> None:
    connection.save_context("local", URL, Secret("t1"), make_current=True)
    desk = Shell(home, LCM_URL="http://other:1", LCM_TOKEN="t9")
    assert desk.out("context", "list").splitlines()[1:] == [
        "         local          http://127.0.0.1:8080",
        "*        (environment)  http://other:1",
    ]


def test_a_file_that_others_can_read_is_warned_of(home: Path, api: ApiServer) -> None:
    path = connection.save_context("local", api.url, Secret(api.tokens["root"]), make_current=True)
    path.chmod(0o644)
    result = Shell(home).lcm("get", "workers")
    assert result.exit_code == 0
    assert f"chmod 600 {path}" in result.stderr


def test_without_a_context_a_command_says_how_to_get_one(home: Path) -> None:
    result = Shell(home).lcm("get", "workers")
    assert result.exit_code == 1
    assert "`lcm up`, or set LCM_URL and LCM_TOKEN" in result.stderr
