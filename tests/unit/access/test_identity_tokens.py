"""The life of tokens over the API and the command line: made, listed, revoked, swept; and the keys of services."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness.api_world import ApiServer, Desk, opened, served, shell
from harness.plane_world import CAST, NOW, hand_clock
from lcm.control.access.tokens import Tokens
from lcm.control.upkeep.housekeeping import Housekeeping
from lcm.model.access.identity import PERMISSIONS, Caller, Role
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Forbidden, Invalid, Refused
from lcm.settings.load import load_settings
from lcm.store.memory import MemoryStore

TOKENS = "/api/tokens"
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}
DAY = 86_400
PEOPLE = {name: role for name, role in CAST.items() if name != "bob"}


async def made(desk: Desk, who: str, **wish: Any) -> Any:
    return await desk.done(who, "POST", TOKENS, json=wish)


async def refused(desk: Desk, who: str, **wish: Any) -> tuple[int, str]:
    answer = await desk.ask(who, "POST", TOKENS, json=wish)
    return answer.status_code, answer.json()["reason"]


async def whoami(desk: Desk, token: str) -> httpx.Response:
    return await desk.ask("", "GET", "/api/whoami", headers={"Authorization": f"Bearer {token}"})


async def test_a_new_token_works_at_once_and_its_text_is_shown_once() -> None:
    async with opened() as desk:
        for who, role in PEOPLE.items():
            new = await made(desk, who)
            assert (await whoami(desk, new["token"])).json() == {"name": who, "role": role}
            assert (new["info"]["name"], new["info"]["made_by"], new["info"]["session"]) == (who, who, False)
            assert datetime.fromisoformat(new["info"]["expires_at"]) == NOW + timedelta(days=30)
            listed = await desk.ask("root", "GET", TOKENS)
            assert new["info"] in listed.json()["items"]
            assert new["token"] not in listed.text
            assert not re.search(r"[0-9a-f]{64}", listed.text)


async def test_an_empty_body_asks_for_the_usual() -> None:
    async with opened() as desk:
        assert (await desk.done("ada", "POST", TOKENS))["info"]["role"] == "user"


async def test_people_list_and_revoke_their_own_and_administrators_all() -> None:
    async with opened() as desk:
        for who in PEOPLE:
            names = {one["name"] for one in (await desk.done(who, "GET", TOKENS))["items"]}
            assert names == (set(CAST) if who == "root" else {who})
        theirs = (await made(desk, "ada"))["info"]["id"]
        missing = await desk.ask("bob", "DELETE", f"{TOKENS}/nothing")
        foreign = await desk.ask("bob", "DELETE", f"{TOKENS}/{theirs}")
        assert foreign.status_code == missing.status_code == 404
        assert foreign.text.replace(theirs, "ID") == missing.text.replace("nothing", "ID")
        assert (await desk.ask("ada", "DELETE", f"{TOKENS}/{theirs}")).status_code == 204
        assert (await desk.ask("ada", "DELETE", f"{TOKENS}/{theirs}")).status_code == 404
        other = await made(desk, "bob")
        assert (await desk.ask("root", "DELETE", f"{TOKENS}/{other['info']['id']}")).status_code == 204
        assert (await whoami(desk, other["token"])).status_code == 401


BELOW = {
    Role.ADMIN: set(Role) - {Role.GUEST},
    Role.OPERATOR: {Role.OPERATOR, Role.AUTHOR, Role.INSTRUCTOR, Role.USER, Role.VIEWER},
    Role.AUTHOR: {Role.AUTHOR, Role.USER},
    Role.INSTRUCTOR: {Role.INSTRUCTOR, Role.USER},
    Role.USER: {Role.USER},
    Role.VIEWER: {Role.VIEWER},
}


def test_no_role_makes_tokens_that_may_do_more() -> None:
    for role, below in BELOW.items():
        for one in below - {Role.SERVICE}:
            gained = [
                (kind, verb)
                for kind, verbs in PERMISSIONS.items()
                for verb, roles in verbs.items()
                if one in roles and role not in roles
            ]
            assert not gained, (role, one)


async def test_nobody_but_an_administrator_makes_tokens_for_others_or_above_themselves() -> None:
    async with opened() as desk:
        for who, role in PEOPLE.items():
            for wanted in Role:
                allowed = wanted in BELOW[role]
                answer = await desk.ask(who, "POST", TOKENS, json={"role": wanted})
                assert answer.status_code == (201 if allowed else 403), (who, wanted)
            other = await desk.ask(who, "POST", TOKENS, json={"name": "eve"})
            assert other.status_code == (201 if who == "root" else 403)
        assert (await desk.ask("service", "POST", TOKENS)).status_code == 403


async def test_the_life_of_ones_own_tokens_is_bounded() -> None:
    async with opened() as desk:
        assert await refused(desk, "otto", expires_in_seconds=90 * DAY + 1) == (422, "Invalid")
        assert await refused(desk, "otto", expires_in_seconds=0) == (422, "Invalid")
        assert await refused(desk, "root", expires_in_seconds=59) == (422, "Invalid")
        assert await refused(desk, "root", expires_in_seconds=-1) == (422, "Invalid")
        assert (await made(desk, "root", expires_in_seconds=0))["info"]["expires_at"] is None
        long = await made(desk, "root", name="otto", role="operator", expires_in_seconds=1000 * DAY)
        assert datetime.fromisoformat(long["info"]["expires_at"]) == NOW + timedelta(days=1000)


async def test_nothing_that_a_token_makes_outlives_it() -> None:
    async with opened() as desk:
        first = await made(desk, "ada", expires_in_seconds=DAY)
        sent = {"Authorization": f"Bearer {first['token']}"}
        second = await desk.done("", "POST", TOKENS, json={"expires_in_seconds": 60 * DAY}, headers=sent)
        assert second["info"]["expires_at"] == first["info"]["expires_at"]
        async with httpx.AsyncClient(transport=desk._client._transport, base_url="http://desk") as browser:
            link = await desk.done("", "POST", "/api/sign-in", headers=sent)
            assert (await browser.post(link["path"], headers=SAME_ORIGIN)).status_code == 303
            csrf = {"X-CSRF-Token": browser.cookies["lcm_csrf"], **SAME_ORIGIN}
            third = (await browser.post(TOKENS, headers=csrf)).json()
        assert third["info"]["expires_at"] == first["info"]["expires_at"]


async def test_an_administrators_token_makes_nothing_that_outlives_it() -> None:
    async with opened() as desk:
        first = await made(desk, "root", expires_in_seconds=DAY)
        sent = {"Authorization": f"Bearer {first['token']}"}
        for wish in ({"expires_in_seconds": 0}, {"name": "eve", "expires_in_seconds": 60 * DAY}):
            second = await desk.done("", "POST", TOKENS, json=wish, headers=sent)
            assert second["info"]["expires_at"] == first["info"]["expires_at"]


async def test_what_was_made_with_a_token_is_revoked_with_it() -> None:
    async with opened() as desk:
        first, other = await made(desk, "ada"), await made(desk, "ada")
        sent = {"Authorization": f"Bearer {first['token']}"}
        second = await desk.done("", "POST", TOKENS, headers=sent)
        third = await desk.done("", "POST", TOKENS, headers={"Authorization": f"Bearer {second['token']}"})
        unused = await desk.done("", "POST", "/api/sign-in", headers=sent)
        link = await desk.done("", "POST", "/api/sign-in", headers=sent)
        async with httpx.AsyncClient(transport=desk._client._transport, base_url="http://desk") as browser:
            assert (await browser.post(link["path"], headers=SAME_ORIGIN)).status_code == 303
            csrf = {"X-CSRF-Token": browser.cookies["lcm_csrf"], **SAME_ORIGIN}
            fourth = (await browser.post(TOKENS, headers=csrf)).json()
            assert (await desk.ask("ada", "DELETE", f"{TOKENS}/{first['info']['id']}")).status_code == 204
            assert (await browser.get("/api/whoami")).status_code == 401
            assert (await browser.post(unused["path"], headers=SAME_ORIGIN)).status_code == 401
        for dead in (first, second, third, fourth):
            assert (await whoami(desk, dead["token"])).status_code == 401
        assert (await whoami(desk, other["token"])).status_code == 200
        audit = (await desk.done("root", "GET", "/api/audit?who=ada"))["items"]
        assert {second["info"]["id"], third["info"]["id"]} <= {deed["name"] for one in audit for deed in one["deeds"]}


async def test_a_sign_out_ends_the_session_and_leaves_what_it_made() -> None:
    async with (
        opened() as desk,
        httpx.AsyncClient(transport=desk._client._transport, base_url="http://desk") as browser,
    ):
        first = await made(desk, "ada")
        sent = {"Authorization": f"Bearer {first['token']}"}
        link = await desk.done("", "POST", "/api/sign-in", headers=sent)
        assert (await browser.post(link["path"], headers=SAME_ORIGIN)).status_code == 303
        csrf = {"X-CSRF-Token": browser.cookies["lcm_csrf"], **SAME_ORIGIN}
        second = (await browser.post(TOKENS, headers=csrf)).json()
        assert (await browser.post("/api/sign-out", headers=csrf)).status_code == 204
        assert (await whoami(desk, second["token"])).status_code == 200
        await desk.ask("ada", "DELETE", f"{TOKENS}/{first['info']['id']}")
        assert (await whoami(desk, second["token"])).status_code == 401


async def test_a_token_that_is_revoked_meanwhile_makes_nothing_more() -> None:
    async with opened() as desk:
        text, token = await desk.tokens.make("ada", Role.USER)
        credential = desk.tokens.find_credential(text.reveal())
        await desk.tokens.revoke(token.id)
        with pytest.raises(Forbidden, match="revoked meanwhile"):
            await desk.tokens.make("ada", Role.USER, made_with=credential)


async def test_tokens_made_with_tokens_end_somewhere() -> None:
    async with opened() as desk:
        text, first = await desk.tokens.make("ada", Role.USER)
        for _ in range(16):
            text, _ = await desk.tokens.make("ada", Role.USER, made_with=desk.tokens.find_credential(text.reveal()))
        with pytest.raises(Refused, match="goes back to 16 others"):
            await desk.tokens.make("ada", Role.USER, made_with=desk.tokens.find_credential(text.reveal()))
        await desk.tokens.revoke(first.id)
        assert desk.tokens.find_credential(text.reveal()) is None


async def test_a_token_that_made_very_many_is_revoked_with_all_of_them() -> None:
    async with opened() as desk:
        text, first = await desk.tokens.make("ada", Role.USER)
        parent, before = desk.tokens.find_credential(text.reveal()), len(await desk.tokens.list())
        for _ in range(130):
            await desk.tokens.make("ada", Role.USER, made_with=parent)
        await desk.tokens.revoke(first.id)
        assert len(await desk.tokens.list()) == before - 1


async def test_one_has_so_many_tokens_and_no_more() -> None:
    async with opened() as desk:
        for _ in range(99):
            await desk.tokens.make("ada", Role.USER)
        assert await refused(desk, "ada") == (409, "NoRoom")
        await made(desk, "bob")


async def test_expired_tokens_are_worth_nothing_and_swept() -> None:
    clock = hand_clock()
    async with opened(clock=clock) as desk:
        new = await made(desk, "ada", expires_in_seconds=60)
        await desk.done("ada", "POST", "/api/sign-in")
        clock.step(seconds=60)
        assert (await whoami(desk, new["token"])).status_code == 401
        clock.step(hours=1)
        await Housekeeping(desk.store, clock=clock).tidy()
        assert {one.name for one in await desk.tokens.list()} == set(CAST)
        assert len(await desk.tokens.list()) == len(CAST)
        assert not (await desk.store.scan("sign-ins/")).entries
        assert (await desk.ask("ada", "GET", "/api/whoami")).status_code == 200


async def test_making_and_revoking_is_audited_without_the_secret() -> None:
    clock = hand_clock()
    async with opened(clock=clock) as desk:
        new = await made(desk, "ada")
        clock.step(seconds=1)
        await desk.ask("root", "DELETE", f"{TOKENS}/{new['info']['id']}", headers={"X-Request-ID": "r-1"})
        answer = await desk.ask("root", "GET", "/api/audit?kind=AccessToken")
        told = [(one["who"], one["deeds"][0]["verb"], one["deeds"][0]["name"]) for one in answer.json()["items"]]
        assert told == [("ada", "create", new["info"]["id"]), ("root", "revoke", new["info"]["id"])]
        assert answer.json()["items"][1]["request"] == "r-1"
        assert new["token"] not in answer.text


async def test_two_keys_of_services_are_valid_at_once() -> None:
    tokens = Tokens(MemoryStore(), clock=hand_clock(), service_key=Secret("new-key, old-key"))
    service = Caller(name="service", role=Role.SERVICE, actor="scheduler")
    assert tokens.find_caller("new-key", "scheduler") == tokens.find_caller("old-key", "scheduler") == service
    for wrong in ("new-key, old-key", "", ",", " old-key", "old-key "):
        assert tokens.find_caller(wrong) is None
    assert Tokens(MemoryStore(), clock=hand_clock(), service_key=Secret(",")).find_caller("") is None


@pytest.mark.parametrize("value", ["a,b,c", "a,", ",a", "a,,b"])
def test_more_than_two_keys_or_empty_ones_stop_the_start(value: str) -> None:
    with pytest.raises(Invalid, match="CONTROL_PLANE_API_KEY") as caught:
        load_settings({"CONTROL_PLANE_API_KEY": value})
    assert "a,b" not in str(caught.value)


@pytest.fixture(name="api", scope="module")
def serve_api() -> Iterator[ApiServer]:
    with served() as server:
        yield server


def test_the_command_line_makes_lists_and_revokes(api: ApiServer, tmp_path: Path) -> None:
    root = shell(api, tmp_path)
    result = root.lcm("token", "create", "eve", "--role", "author", "--expires", "12h")
    assert result.exit_code == 0, result.output
    token = result.stdout.splitlines()[-1]  # the API logs to the same place here
    assert token.startswith("lcm_")
    assert "eve" in result.stderr
    api.tokens["eve"] = token
    eve = shell(api, tmp_path, "eve")
    listed = eve.out("token", "list")
    assert "in 12h" in listed
    root.out("token", "create", "somebody-else", "--role", "user")
    narrow = shell(api, tmp_path, columns=80).out("token", "list").splitlines()
    assert "ROLE" in narrow[0]
    assert max(map(len, narrow)) <= 80
    assert "root" in listed  # who made it
    assert token not in listed
    own = eve.out("token", "create").splitlines()[-1]
    assert own != token
    ids = re.findall(r"^([0-9a-f-]{36})", eve.out("token", "list"), re.MULTILINE)
    assert len(ids) == 2
    assert "revoked" in root.out("token", "revoke", *ids)
    assert eve.lcm("token", "list").exit_code == 5
    assert root.lcm("token", "revoke", ids[0]).exit_code == 3


@pytest.mark.parametrize("life", ["0", "soon", "-1d"])
def test_a_life_that_is_none_is_wrong_usage(api: ApiServer, tmp_path: Path, life: str) -> None:
    assert shell(api, tmp_path).lcm("token", "create", f"--expires={life}").exit_code == 2


def test_never_is_for_administrators(api: ApiServer, tmp_path: Path) -> None:
    assert "never" in shell(api, tmp_path).lcm("token", "create", "--expires", "never").stderr
    assert shell(api, tmp_path, "ada").lcm("token", "create", "--expires", "never").exit_code == 5
