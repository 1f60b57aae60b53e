"""Learners: who sees a session that is for them, by which address, and what they may do with it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from harness import given
from harness.api_world import Desk, document, name_of, opened, path, stock
from harness.asgi import AsgiTransport
from harness.gateway import Gateway, gateway, read_until
from lcm.control.access.oidc import IssuerTrust, caller_of
from lcm.model.access.identity import Caller, Reach, Role
from lcm.model.access.learner import can_hear, can_see, could_mention, show_to
from lcm.model.access.mail_address import normalize_address
from lcm.model.base.event import NO_ROW, Event
from lcm.model.base.resource import PhaseChange
from lcm.store.codec import Codec

LEA = "lea@example.org"
SESSIONS = path("LabletSession")
SEAT = f"{SESSIONS}/{name_of('LabletSession')}"


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened() as desk:
        await stock(desk, owner="ines")
        await desk.done("ines", "PATCH", SEAT, json={"spec": {"student_email": "Lea@Example.org"}})
        for who in ("lea", "leo"):
            wish = {"name": who, "role": "user", "email": f"{who}@example.org"}
            desk.secrets[who] = (await desk.done("root", "POST", "/api/tokens", json=wish))["token"]
        yield desk


async def names(desk: Desk, who: str) -> set[str]:
    return {one["metadata"]["name"] for one in (await desk.done(who, "GET", SESSIONS))["items"]}


async def test_a_learner_sees_the_own_seat_and_nobody_elses(desk: Desk) -> None:
    assert await names(desk, "lea") == {name_of("LabletSession")}
    assert await names(desk, "leo") == await names(desk, "ada") == set()
    assert (await desk.ask("leo", "GET", SEAT)).status_code == 404


async def test_a_learner_does_not_see_the_class_with_the_addresses_of_the_others(desk: Desk) -> None:
    where = path("Reservation", name_of("Reservation"))
    assert (await desk.ask("lea", "GET", where)).status_code == 404


@pytest.mark.parametrize("verb", ["extend", "terminate"])
async def test_a_learner_extends_and_ends_a_session_only_if_allowed(desk: Desk, verb: str) -> None:
    body = {"minutes": 5} if verb == "extend" else {}
    for dry in ("?dry_run=true", ""):
        refused = await desk.ask("lea", "POST", f"{SEAT}/{verb}{dry}", json=body)
        assert (refused.status_code, refused.json()["reason"]) == (403, "Forbidden")
    await desk.done("ines", "PATCH", SEAT, json={"spec": {"learner_may": [verb]}})
    other = "terminate" if verb == "extend" else "extend"
    assert (await desk.ask("lea", "POST", f"{SEAT}/{other}", json={"minutes": 5} if other == "extend" else {})).is_error
    assert (await desk.ask("lea", "POST", f"{SEAT}/{verb}", json=body)).is_success


async def test_a_learner_changes_nothing_by_any_other_way(desk: Desk) -> None:
    before = await desk.done("ines", "GET", SEAT)
    changed = document("LabletSession", student_email="eve@example.org")
    name = name_of("LabletSession")
    deletion = {"op": "delete", "kind": "LabletSession", "name": name}
    label = {"op": "label", "kind": "LabletSession", "name": name, "labels": {"a": "b"}}
    for dry in ("?dry_run=true", ""):
        assert (await desk.ask("lea", "DELETE", SEAT + dry)).status_code == 403
        patch = {"spec": {"learner_may": ["extend", "terminate"]}}
        assert (await desk.ask("lea", "PATCH", SEAT + dry, json=patch)).status_code == 403
        assert (await desk.ask("lea", "POST", f"/api/apply{dry}", json={"documents": [changed]})).is_error
        moved = await desk.ask("lea", "POST", f"{SEAT}/move{dry}", json={"minutes": 60})
        assert (moved.status_code, moved.json()["reason"]) == (403, "Forbidden"), moved.text
        for mode in ("each", "all"):
            for item in (deletion, label):
                answer = await desk.ask("lea", "POST", f"/api/batch{dry}", json={"mode": mode, "items": [item]})
                assert b'"Forbidden"' in answer.content, answer.text
    assert await desk.done("ines", "GET", SEAT) == before


async def test_a_seat_that_is_given_to_another_is_gone_for_the_first(desk: Desk) -> None:
    revision = (await desk.done("lea", "GET", SESSIONS))["revision"]
    await desk.done("ines", "PATCH", SEAT, json={"spec": {"student_email": "leo@example.org"}})
    assert await names(desk, "lea") == set()
    assert await names(desk, "leo") == {name_of("LabletSession")}
    assert [one["object"] for one in await first_line(desk, "lea", revision)] == [None]
    assert [bool(one["object"]) for one in await first_line(desk, "leo", revision)] == [True]


async def first_line(desk: Desk, who: str, after: int) -> list[dict[str, Any]]:
    async with desk.streamed(who, f"/api/watch?kinds=LabletSession&after={after}") as answer:
        async for line in answer.aiter_lines():
            return list(json.loads(line)["seen"])
    raise AssertionError("the watch ended")


async def test_events_of_a_seat_are_for_its_owner_and_its_learner(desk: Desk) -> None:
    await desk.done("ines", "PATCH", SEAT, json={"metadata": {"labels": {"a": "b"}}})
    heard = {
        who: {one["name"] for one in (await desk.done(who, "GET", "/api/events"))["items"] if "session" in one["type"]}
        for who in ("ines", "lea", "leo", "vera")
    }
    mine = {name_of("LabletSession")}
    assert heard == {"ines": mine, "lea": mine, "leo": set(), "vera": set()}


async def test_the_address_of_a_learner_leaves_in_no_event(desk: Desk) -> None:
    events = await desk.ask("root", "GET", "/api/events")
    assert b"learner" not in events.content


@pytest.mark.parametrize(
    ("claims", "email"),
    [
        ({"email": "Lea@Example.org", "email_verified": True}, LEA),
        ({"email": "lea@example.org", "email_verified": "true"}, LEA),
        ({"email": "lea@example.org", "email_verified": False, "preferred": "x"}, ""),
        ({"email": "lea@example.org"}, ""),
        ({"email": ["lea@example.org"], "email_verified": True}, ""),
        ({"email": "lea", "email_verified": True}, ""),
        ({}, ""),
    ],
)
def test_only_an_address_that_the_issuer_verified_counts(claims: dict[str, object], email: str) -> None:
    trust = IssuerTrust("https://login.example.org", frozenset({"lcm"}), subject_claim="login")
    caller = caller_of({"sub": "lea", "roles": ["user"], **claims}, trust)
    assert isinstance(caller, Caller)
    assert caller.reach.email == email


def test_an_unverified_address_matches_nothing_even_a_session_without_a_learner() -> None:
    nobody = Caller(name="lea@example.org", role=Role.USER)
    assert not can_see(nobody, given.session(owner="ines", student_email=LEA))
    assert not can_see(nobody, given.session(owner="ines"))
    assert not can_see(Caller(name="lea", role=Role.VIEWER, reach=Reach(email=LEA)), given.session(student_email=LEA))


@pytest.mark.parametrize("written", ["lea@example.org", "LEA@EXAMPLE.ORG", "lea@EXAMPLE.org"])
def test_addresses_are_compared_without_regard_to_case(written: str) -> None:
    lea = Caller(name="l", role=Role.USER, reach=Reach(email=LEA))
    session = given.session(owner="ines", student_email=written)
    assert can_see(lea, session)
    assert could_mention(lea, Codec().encode(session))


def test_a_domain_in_another_script_is_the_same_domain() -> None:
    lea = Caller(name="l", role=Role.USER, reach=Reach(email=normalize_address("lea@xn--mnchen-3ya.de")))
    session = given.session(owner="ines", student_email="Lea@münchen.de")
    assert can_see(lea, session)
    assert could_mention(lea, Codec().encode(session))


def test_a_guest_hears_of_one_seat_alone() -> None:
    guest = Caller(name="guest+u1", role=Role.GUEST, reach=Reach(email=LEA, seat="u1"))
    event = Event(
        type="lablet.session.updated",
        time=given.moment("09:00"),
        kind="LabletSession",
        name="s1",
        namespace="default",
        data=NO_ROW,
        owner="guest+u1",
        session_id="u1",
        learner=LEA,
    )
    assert can_hear(guest, event)
    others: tuple[dict[str, Any], ...] = (
        {"session_id": "u2"},
        {"learner": "leo@example.org"},
        {"session_id": None, "public": True},
    )
    for other in others:
        assert not can_hear(guest, msgspec.structs.replace(event, **other))
    assert not can_hear(Caller(name="g", role=Role.GUEST), event)


async def test_only_an_administrator_puts_an_address_on_a_token(desk: Desk) -> None:
    for who in ("otto", "ines", "ada", "leo"):
        answer = await desk.ask(who, "POST", "/api/tokens", json={"email": LEA})
        assert (answer.status_code, answer.json()["reason"]) == (403, "Forbidden")
    mine = await desk.done("lea", "POST", "/api/tokens")
    assert mine["info"]["email"] == LEA
    bad = await desk.ask("root", "POST", "/api/tokens", json={"name": "eve", "email": "eve@"})
    assert bad.status_code == 422


async def test_a_link_of_a_learner_makes_a_browser_that_sees_the_same(desk: Desk) -> None:
    link = (await desk.done("lea", "POST", "/api/sign-in"))["path"]
    ours = {"Sec-Fetch-Site": "same-origin", "Origin": "http://desk"}
    async with httpx.AsyncClient(transport=AsgiTransport(desk.api), base_url="http://desk") as browser:
        assert (await browser.post(link, headers=ours)).status_code == 303
        assert (await browser.get(SEAT)).status_code == 200


async def test_a_token_that_is_limited_to_tracks_books_on_these_only(desk: Desk) -> None:
    wish = {"name": "inga", "role": "instructor", "tracks": ["ccnp", "ccna"]}
    desk.secrets["inga"] = (await desk.done("root", "POST", "/api/tokens", json=wish))["token"]
    wider = await desk.ask("inga", "POST", "/api/tokens", json={"tracks": ["devnet"]})
    assert wider.status_code == 403
    narrow = await desk.done("inga", "POST", "/api/tokens", json={"tracks": ["ccnp"]})
    desk.secrets["inga2"] = narrow["token"]
    assert (await desk.done("inga", "POST", "/api/tokens"))["info"]["tracks"] == ["ccnp", "ccna"]
    for kind in ("LabletSession", "Reservation"):
        booked = await desk.ask("inga", "POST", path(kind), json=document(kind, name="a", owner=""))
        assert booked.status_code == 201, booked.text
        refused = await desk.ask("inga2", "POST", path(kind), json=document(kind, name="b", owner=""))
        assert (refused.status_code, refused.json()["reason"]) == (403, "Forbidden")


async def test_a_viewer_reads_the_fleet_without_the_names_of_people(desk: Desk) -> None:
    worker = path("LabWorker", name_of("LabWorker"))
    for where in (worker, path("LabWorker"), path("LabWorkerPool"), path("WorkerTemplate"), path("LabletDefinition")):
        shown = await desk.ask("vera", "GET", where)
        assert shown.status_code == 200
        for name in (b'"root"', b'"otto"', b'"ines"', b"lea@"):
            assert name not in shown.content.lower(), (where, name)


@pytest.mark.parametrize("reason", ["session ada-lovelace is on it", "its licence is gone, with session ada.l on it"])
def test_a_viewer_does_not_learn_what_people_call_their_sessions(reason: str) -> None:
    change = PhaseChange(phase="ACTIVE", at=given.moment("09:00"), by="worker-controller", reason=reason)
    worker = given.worker(history=(change,))
    assert show_to(Caller(name="otto", role=Role.OPERATOR), worker) == worker
    (shown,) = show_to(Caller(name="vera", role=Role.VIEWER), worker).status.history
    assert "ada" not in shown.reason
    assert shown.reason.endswith("on it")


@pytest.fixture(name="gate")
async def open_gate() -> AsyncIterator[Gateway]:
    async with gateway() as it:
        for who in ("lea", "leo"):
            reach = Reach(email=f"{who}@example.org")
            it.desk.secrets[who] = (await it.desk.tokens.make(who, Role.USER, reach=reach))[0].reveal()
        await it.desk.done("ada", "PATCH", f"{SESSIONS}/s1", json={"spec": {"student_email": LEA}})
        yield it


async def test_a_learner_types_into_the_own_lab_and_is_told_who_looks_along(gate: Gateway) -> None:
    async with gate.open("lea") as socket:
        await read_until(socket, b"R1>")
        async with gate.open("ada", query="?look=true"):
            while not isinstance(told := await socket.recv(), str):
                pass
        assert json.loads(told)["who"] == "ada"
