"""The contexts of `lcm up`: several at once, one after the other, and beside those that people made."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from harness.api_world import Shell
from lcm.cli.output import connection
from lcm.cli.server.greeting import ADMIN, LocalContext, write_local_context
from lcm.compose.api import RunningApi
from lcm.compose.process import run_embedded
from lcm.model.access.identity import Role
from lcm.model.access.secret import Secret
from lcm.settings.load import Settings


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("LCM_URL", "LCM_TOKEN", "LCM_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@asynccontextmanager
async def up(folder: Path) -> AsyncIterator[tuple[RunningApi, LocalContext]]:
    async with run_embedded(Settings(data_dir=folder, port=0)) as it:
        yield it.running, await write_local_context(it.running, folder)


def current() -> tuple[str, str]:
    found = connection.current_context(None, {})
    assert found
    return found.name, found.token.reveal()


async def test_a_second_one_leaves_the_first_ones_context_alone_while_that_answers(home: Path) -> None:
    async with up(home / "a") as (first, kept):
        assert kept == LocalContext("local", current=True)
        token = current()[1]
        async with up(home / "b") as (second, beside):
            assert beside == LocalContext("local-b", current=False, previous="local")
            assert current() == ("local", token)
            found = connection.read_contexts().find_context(beside.name)
            assert (found.url, second.tokens.find_caller(found.token.reveal()) is not None) == (second.url, True)
    assert first.url != second.url


async def test_going_back_to_a_folder_is_going_back_to_its_token(home: Path) -> None:
    async with up(home / "a"):
        first = current()
    async with up(home / "b"):
        second = current()
    assert (first[0], second[0], first[1] == second[1]) == ("local", "local-b", False)
    assert connection.read_contexts().find_context("local").token.reveal() == first[1], "its shells keep their context"
    async with up(home / "a") as (running, _):
        assert current() == first
        assert [one.name for one in await running.tokens.list()] == [ADMIN]


async def test_a_context_that_a_person_made_is_not_replaced(home: Path) -> None:
    connection.save_context("local", "https://lcm.example.org", Secret("mine"), make_current=True)
    async with up(home / "a") as (running, kept):
        assert kept == LocalContext("local-a", current=True, previous="local")
        assert connection.read_contexts().find_context("local-a").url == running.url
    found = connection.read_contexts().find_context("local")
    assert (found.url, found.token.reveal()) == ("https://lcm.example.org", "mine")


async def test_a_new_token_ends_the_one_before_and_no_other(home: Path) -> None:
    async with up(home / "a") as (running, _):
        lost = current()[1]
        by_hand, _ = await running.tokens.make(ADMIN, Role.ADMIN, made_by=ADMIN)
    connection.contexts_path().unlink()
    async with up(home / "a") as (running, _):
        assert running.tokens.find_caller(lost) is None
        assert running.tokens.find_caller(current()[1]) is not None
        assert running.tokens.find_caller(by_hand.reveal()) is not None


async def test_a_token_of_no_administrator_is_not_taken_for_ones_own(home: Path) -> None:
    async with up(home / "a") as (running, _):
        token, _ = await running.tokens.make("eve", Role.USER)
        connection.save_context("local", running.url, token, make_current=True)
        connection.change_contexts(lambda book: connection.ContextsFile(book.current, book.contexts))
        await write_local_context(running, home / "a")
        found = running.tokens.find_caller(current()[1])
        assert found
        assert found.role is Role.ADMIN


async def test_the_commands_on_contexts_keep_what_up_remembers(home: Path) -> None:
    async with up(home / "a"):
        token = current()[1]
    desk = Shell(home / "config")
    desk.out("context", "set", "other", "--url", "http://127.0.0.1:1", "--token", "t1")
    desk.out("context", "use", "local")
    desk.out("context", "delete", "local")
    async with up(home / "a"):
        assert current() == ("local", token)
    found = connection.read_contexts().find_context("local")
    assert found.token.reveal() == token


def test_the_token_in_use_is_printed_for_programs(home: Path) -> None:
    connection.save_context("local", "http://127.0.0.1:1", Secret("t1"), make_current=True)
    assert Shell(home / "config").out("context", "token") == "t1\n"
    desk = Shell(home / "config", LCM_URL="http://127.0.0.1:2", LCM_TOKEN="t2")
    assert desk.out("context", "token") == "t2\n"
    assert Shell(home / "config").lcm("context", "token", "--context", "none").exit_code == 5


async def test_a_folder_keeps_its_context_on_every_port_and_a_lost_folder_loses_it(home: Path) -> None:
    for folder in ("a", "lab one/.data", "lab one/data", "a"):
        (home / folder).mkdir(parents=True, exist_ok=True)
        async with up(home / folder):
            pass
    assert sorted(connection.read_contexts().contexts) == ["local", "local-lab-one", "local-lab-one-2"]
    shutil.rmtree(home / "lab one")
    async with up(home / "a") as (_, kept):
        assert kept == LocalContext("local", current=True)
    assert list(connection.read_contexts().contexts) == ["local"]
