"""The first token of a store that nobody can sign in to yet, made without an API."""

from pathlib import Path

import httpx
import pytest

from harness.api_world import Shell
from harness.commands import Running

KEY = {"CONTROL_PLANE_API_KEY": "a-key-that-nobody-guesses"}


def test_a_fresh_api_says_how_to_sign_in_and_the_token_works_at_once(tmp_path: Path) -> None:
    data = f"--data={tmp_path / 'data'}"
    with Running(tmp_path, "serve", "api", "--port=0", data, **KEY) as it:
        it.ready()
        assert "lcm token create NAME --role admin --offline" in it.output
        made = Shell(tmp_path).lcm("token", "create", "ada", "--role=admin", "--offline", data)
        assert made.exit_code == 0, made.stderr
        assert made.stdout.startswith("lcm_")
        assert "for ada, role admin" in made.stderr
        head = {"authorization": f"Bearer {made.stdout.strip()}"}
        said = httpx.get(f"{it.url}/api/whoami", headers=head, trust_env=False).json()
        assert said == {"name": "ada", "role": "admin"}
        audit = httpx.get(f"{it.url}/api/audit?kind=AccessToken", headers=head, trust_env=False).json()
        assert [(one["who"], one["deeds"][0]["verb"]) for one in audit["items"]] == [("offline", "create")]
    with Running(tmp_path, "serve", "api", "--port=0", data, **KEY) as it:
        it.ready()
        assert "Nobody can sign in" not in it.output


@pytest.mark.parametrize("arguments", [["ada"], ["--role=admin"], []])
def test_without_an_api_it_must_be_said_whose_it_is(tmp_path: Path, arguments: list[str]) -> None:
    refused = Shell(tmp_path).lcm("token", "create", *arguments, "--offline", f"--data={tmp_path}")
    assert (refused.exit_code, "--offline" in refused.stderr) == (2, True)


def test_no_store_is_begun_for_a_token(tmp_path: Path) -> None:
    named = ("ada", "--role=admin", "--offline", f"--data={tmp_path / 'none'}")
    refused = Shell(tmp_path).lcm("token", "create", *named)
    assert (refused.exit_code, "there is no store in this folder" in refused.stderr) == (5, True)
    assert not (tmp_path / "none").exists()
