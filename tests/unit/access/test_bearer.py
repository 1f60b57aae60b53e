"""Tokens and keys that cannot be sent: named by where they are, never repeated, and stopped before any library."""

from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from harness.api_world import ApiServer, Shell, served, shell
from lcm.cli.main import app
from lcm.cli.output import connection
from lcm.control.plane.transport import ApiConnection, ClientTimeouts, unreachable_error
from lcm.model.access.identity import MAX_TOKEN_LENGTH, parse_token
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid
from lcm.settings.load import load_settings

BAD = [
    "lcm_hush\rhush",
    "lcm_hush hush",
    "lcm_hushé",
    "lcm_hush\x7f",
    "hush" * MAX_TOKEN_LENGTH,
    "\x00hush",
    "hush\n\nhush",
]
URL = "http://127.0.0.1:1"


@pytest.fixture(name="home", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.chdir(folder)


def test_what_is_around_a_token_does_not_count() -> None:
    assert parse_token(" lcm_t1\r\n", "LCM_TOKEN") == Secret("lcm_t1")
    assert parse_token("x" * MAX_TOKEN_LENGTH, "LCM_TOKEN").reveal() == "x" * MAX_TOKEN_LENGTH


@pytest.mark.parametrize("text", [*BAD, "", " \n"])
def test_a_token_that_is_none_is_named_and_not_repeated(text: str) -> None:
    with pytest.raises(Invalid, match=r"^LCM_TOKEN: ") as caught:
        parse_token(text, "LCM_TOKEN")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("command", [["get", "sessions"], ["doctor"]])
@pytest.mark.parametrize("text", [one for one in BAD if "\x00" not in one])
def test_a_bad_token_in_the_environment_is_not_shown(text: str, command: list[str]) -> None:
    result = CliRunner(env={"LCM_URL": URL, "LCM_TOKEN": text}).invoke(app, command, catch_exceptions=False)
    assert result.exit_code
    assert "LCM_TOKEN" in result.output
    assert "hush" not in result.output


@pytest.mark.parametrize("text", ["lcm_hush\rhush", "lcm_hushé"])
def test_a_bad_token_is_not_kept_and_one_that_was_kept_is_not_shown(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    desk = Shell(tmp_path_factory.mktemp("other"))
    refused = desk.lcm("context", "set", "foo", "--url", URL, "--token", text)
    assert (refused.exit_code, "hush" in refused.output) == (5, False)
    connection.change_contexts(lambda _: connection.ContextsFile("foo", {"foo": connection.StoredContext(URL, text)}))
    for command in (["get", "sessions"], ["doctor"], ["get", "sessions", "--context", "foo"]):
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert "token of context foo" in " ".join(result.output.split())
        assert "hush" not in result.output


@pytest.mark.parametrize("text", BAD)
def test_no_line_is_opened_with_a_token_that_cannot_be_sent(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        ApiConnection(URL, Secret(text), actor="", limits=ClientTimeouts(), trust=None, transport=None)
    assert "hush" not in str(caught.value)


def test_what_the_library_says_of_a_header_is_not_passed_on() -> None:
    error = httpx.LocalProtocolError("Illegal header value b'Bearer hush\\r'")
    assert "hush" not in str(unreachable_error(httpx.Request("GET", URL), error))


def test_a_token_with_the_end_of_its_line_works(tmp_path_factory: pytest.TempPathFactory) -> None:
    with served() as api:
        desk = Shell(tmp_path_factory.mktemp("desk"), LCM_URL=api.url, LCM_TOKEN=api.tokens["root"] + "\r\n")
        desk.out("get", "workers")


def test_a_service_key_of_sixteen_characters_is_long_enough() -> None:
    assert load_settings({"CONTROL_PLANE_API_KEY": "hush-little-babe"}).control_plane_api_key == Secret(
        "hush-little-babe"
    )


@pytest.mark.parametrize(
    "text", ["hush", "hush-hush-hush-", "a-long-enough-key-hush,hush", "h" * 16, "hush-hush-hush-hush", *BAD]
)
def test_a_service_key_that_is_short_or_cannot_be_sent_stops_the_start_by_name(text: str) -> None:
    with pytest.raises(Invalid, match="CONTROL_PLANE_API_KEY: ") as caught:
        load_settings({"CONTROL_PLANE_API_KEY": text})
    assert "hush" not in str(caught.value)


def test_a_token_is_revoked_by_the_name_of_who_uses_it(api: ApiServer, tmp_path: Path) -> None:
    root = shell(api, tmp_path)
    root.out("token", "create", "eve")
    misspelt = root.lcm("token", "revoke", "eev")
    assert (misspelt.exit_code, "did you mean eve?" in misspelt.stderr) == (3, True)
    root.out("token", "revoke", "eve")
    assert " eve " not in root.out("token", "list")
    first, second = root.lcm("token", "create", "eve"), root.lcm("token", "create", "eve")
    ids = [one.stderr.split()[1] for one in (first, second)]
    several = root.lcm("token", "revoke", "eve")
    assert (several.exit_code, all(one in several.stderr for one in ids)) == (5, True)
    root.out("token", "revoke", ids[0])
    root.out("token", "create", "eve")
    assert root.out("token", "revoke", "eve", "--all").count(" revoked\n") == 2
