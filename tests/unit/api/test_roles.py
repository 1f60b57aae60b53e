"""Who may call what: every route, every role, what is one's own and what is another's.

The routes are those of the table, so that one that is added later is tried by itself. What follows from the declared
policies is held against a table of its own, written here.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import jsonschema_rs
import msgspec
import pytest

from harness import given
from harness.api_world import OWNED, ROLES, Desk, name_of, opened, path, stock
from harness.api_world import document as document_of
from lcm.api.http.answers import NDJSON, SSE, Answer
from lcm.api.http.auth import _bearer
from lcm.api.http.request import Request
from lcm.api.http.routing import DENY, GET, Route
from lcm.api.openapi.description import ANSWERS, describe
from lcm.api.routes.table import ROUTES
from lcm.control.access.tokens import digest_of
from lcm.control.accounts.licences import seat_key
from lcm.control.objects.records import DELETED_SESSIONS, encode_checked
from lcm.control.plane.wire import ACTOR_HEADER
from lcm.model.access.identity import MAX_TOKEN_LENGTH, Reach, Role
from lcm.model.base.machine import ACTORS
from lcm.model.kinds.registry import Kind
from lcm.model.kinds.session import DeletedSession
from lcm.model.money.licences import SeatState
from lcm.store.base import Put

MAY = """
LabWorker         read   admin operator author instructor viewer service
LabWorker         write  admin operator service
LabWorker         act    admin operator
LabWorkerPool     read   admin operator author instructor viewer service
LabWorkerPool     write  admin operator service
LabWorkerPool     act    admin operator
WorkerTemplate    read   admin operator author instructor viewer service
WorkerTemplate    write  admin operator service
LabletDefinition  read   admin operator author instructor user viewer service
LabletDefinition  write  admin operator author service
LabletSession     read   admin operator author instructor user service guest
LabletSession     write  admin operator author instructor user service
LabletSession     act    admin operator author instructor user service guest
Reservation       read   admin operator author instructor user service
Reservation       write  admin operator author instructor user service
Reservation       act    admin operator author instructor user service
SystemSettings    read   admin operator service
SystemSettings    write  admin operator
Sink              read   admin operator service
Sink              write  admin
internal          any    service
/metrics          any    admin operator service
/api/alerts       any    admin operator service
/api/licenses     any    admin operator service
/api/licenses/{id} any   admin operator
/api/costs        any    admin operator viewer service
/api/budgets      any    admin operator viewer service
/api/costs/ledger any    admin operator author instructor user service
/api/placement/preview any admin operator author instructor user service
/api/placement/slots any admin operator author instructor user service
/api/calendar     any    admin operator author instructor user viewer service
/api/topologies   any    admin operator author service
/api/lablet-definitions/{id}/prebuilt any admin operator service
/api/lablet-definitions/{id}/topology any admin operator author service
/api/node-definitions   any    admin operator author service
/api/plan         any    admin operator
/api/plan/{id}    any    admin operator
/api/plan/{id}/report any admin operator
/api/secrets/seal   any  admin operator
/api/secrets/rotate any  admin
/api/whoami       any    admin operator author instructor user viewer service guest
/api/watch        any    admin operator author instructor user viewer service guest
/api/apply        any    admin operator author instructor user service
/api/batch        any    admin operator author instructor user service
/api/quotas       any    admin operator author instructor user service
/api/tokens       any    admin operator author instructor user viewer
/api/tokens/{id}  any    admin operator author instructor user viewer
/api/sign-in      any    admin operator author instructor user viewer
/api/lablet-sessions/{id}/invitation any admin operator author instructor user
/api/feeds        any    admin operator author instructor user
/api/sign-out     any    admin operator author instructor user viewer service guest
/api/forget       any    admin
/api/audit        any    admin
/api/configuration any   admin operator
/api/workers/{id}/console-output any admin operator
/api/events       any    admin operator author instructor user viewer service guest
/api/events/stream any   admin operator author instructor user viewer service guest
/api/sinks        read   admin operator
/api/sinks        write  admin
/api/sinks/{id}   read   admin operator
/api/sinks/{id}   write  admin
/api/sinks/{id}/dead-letters        any  admin operator
/api/sinks/{id}/dead-letters/replay any  admin operator
/api/sinks/{id}/test                any  admin operator
/api/lablet-sessions/{id}/consoles/{port} any admin operator author instructor user guest
"""
PUBLIC = {
    "/healthz",
    "/readyz",
    "/api/openapi.json",
    "/sign-in",
    "/api/sign-in/ways",
    "/api/sign-in/oidc",
    "/api/sign-in/oidc/callback",
    "/api/feeds/{secret}/calendar.ics",
}
LEARNERS = {"lea": Role.USER, "gus": Role.GUEST}
SEE_ALL = {"root", "otto", "service"}
TOKEN = "/api/tokens/{id}"
EVERYBODY = ["", *ROLES]
SEAT = given.seat(state=SeatState.ORPHANED)
DELETED_UID = "uid-deleted"
PLAN = str(ANSWERS["PlanJob"]["id"])
TAKEN = {"IllegalStep", "AlreadyExists", "Conflict", "Refused", "Deposed"}
"""Reasons for which a request is turned down after it was let in."""

WHOLE = msgspec.json.decode(describe(ROUTES))
DESCRIBED = WHOLE["paths"]


def expected() -> dict[tuple[str, str], set[str]]:
    lines = [line.split() for line in MAY.strip().splitlines()]
    return {(subject, verb): set(roles) for subject, verb, *roles in lines}


def subject(route: Route) -> tuple[str, str]:
    """Return what a route does to what, by its method and path alone."""
    if route.path.startswith("/api/internal/"):
        return "internal", "any"
    if (route.path, "any") in expected():
        return route.path, "any"
    if route.kind is None:
        verb = "read" if route.method == GET else "write"
        return route.path, verb
    beyond = route.path.partition("{id}/")[2]
    if route.method == GET:
        return route.kind.name, "read"
    return route.kind.name, "act" if beyond else "write"


def called(route: Route) -> str:
    return f"{route.method} {route.path}"


@dataclass(frozen=True)
class Attempt:
    """One way to call a route."""

    route: Route
    who: str
    mine: bool

    def __str__(self) -> str:
        return f"{called(self.route)} by {self.who or 'nobody'}, {'own' if self.mine else 'foreign'}"

    @property
    def status(self) -> int | None:
        """The status that turns it down; None when it is let in."""
        policy = self.route.policy
        if policy.public:
            # one is for our own page, the other for whoever knows a secret
            return {"signIn": 403, "showFeed": 404}.get(self.route.operation)
        if not self.who:
            return 401
        if ROLES[self.who] not in policy.roles or (self.who == "vera" and self.route.path == "/api/watch"):
            return 403  # the example of a watch is about sessions
        return 404 if self.hidden else None

    @property
    def hidden(self) -> bool:
        if self.route.path == TOKEN:
            return not self.mine and self.who != "root"
        return not self.mine and self.who not in SEE_ALL


def belongs(route: Route) -> bool:
    """Return whether a route is about one thing that belongs to somebody."""
    return route.path == TOKEN or ("{id}" in route.path and route.kind is not None and route.kind.name in OWNED)


ATTEMPTS = [
    Attempt(route, who, mine)
    for route in ROUTES
    for who in EVERYBODY
    for mine in ((True, False) if belongs(route) else (True,))
]


async def send(desk: Desk, route: Route, who: str, name: str | None = None) -> httpx.Response:
    """Call a route as its description shows it, on the example of its kind."""
    described = DESCRIBED[route.path][route.method.lower()]
    target = name or (name_of(route.kind.name) if route.kind else unkind(route))
    query = {
        one["name"]: one["schema"]["examples"][0]
        for one in described["parameters"]
        if one["in"] == "query" and one["required"]
    }
    body: dict[str, Any] = {}
    if route.body is not None:
        media, content = next(iter(described["requestBody"]["content"].items()))
        body = {"json": content["example"], "headers": {"Content-Type": media}}
    if who == "service" and route.kind is not None and route.path.startswith("/api/internal/"):
        body.setdefault("headers", {})[ACTOR_HEADER] = reporter(route.kind)
    where = (
        route.path.replace("{id}", target)
        .replace("{name}", "a-lease")
        .replace("{file}", "lab.yaml")
        .replace("{port}", "PC_serial")
        .replace("{secret}", "lcm_nobodys")
    )
    method = "HEAD" if route.answer_media in {NDJSON, SSE} else route.method  # an endless answer would not end
    answer = await desk.ask(who, method, where, params=query, **body)
    check_promised(described, answer)
    return answer


def reporter(kind: Kind) -> str:
    """Name a controller that has a part in the lives of a kind's objects."""
    return min({step.by for step in kind.machine.steps} & ACTORS) if kind.machine else min(ACTORS)


def unkind(route: Route) -> str:
    """Name the example of a route whose path does not say the kind of its object."""
    named = {"/sinks/": "ops-chat", "/alerts/": name_of("LabWorker"), "/licenses/": SEAT.worker_id, "/plan/": PLAN}
    named["/deleted-sessions/"] = DELETED_UID
    return next((name for part, name in named.items() if part in route.path), "")


def check_promised(described: Any, answer: httpx.Response) -> None:
    """Hold an answer against what the description says of its status."""
    promised = described["responses"][str(answer.status_code)]
    if "$ref" in promised:
        promised = WHOLE["components"]["responses"][promised["$ref"].rpartition("/")[2]]
    if answer.content:
        media = answer.headers["content-type"]
        schema = promised["content"][media]["schema"]
        if media.endswith("json"):
            validator(msgspec.json.encode(schema)).validate(answer.json())


@cache
def validator(schema: bytes) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator({**msgspec.json.decode(schema), "components": WHOLE["components"]})


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened() as desk:
        yield desk


async def token_of(desk: Desk, who: str) -> str:
    """Name a token of somebody's; of anybody's if they have none."""
    made = await desk.tokens.list()
    return next((one.id for one in made if one.name == who), made[0].id)


async def sunk(desk: Desk) -> None:
    example = DESCRIBED["/api/sinks"]["post"]["requestBody"]["content"]["application/json"]["example"]
    await desk.done("root", "POST", "/api/sinks", json=example)


async def seated(desk: Desk) -> None:
    await desk.store.commit(Put(seat_key(SEAT.worker_id), encode_checked(SEAT)))


async def deleted(desk: Desk) -> None:
    left = DeletedSession(ended_at=given.moment("11:00"))
    await desk.store.commit(Put(DELETED_SESSIONS + DELETED_UID, encode_checked(left)))


async def measured(desk: Desk) -> None:
    report = DESCRIBED["/api/internal/workers/{id}/metrics"]["post"]["requestBody"]["content"]["application/json"]
    await desk.done("service", "POST", "/api/internal/workers/ccna-worker-1/metrics", json=report["example"])


@pytest.mark.parametrize("route", ROUTES, ids=called)
def test_every_route_declares_who_may_call_it(route: Route) -> None:
    assert route.policy != DENY
    assert route.policy.roles


@pytest.mark.parametrize("route", ROUTES, ids=called)
def test_the_declared_policy_is_the_one_that_stands_here(route: Route) -> None:
    assert route.policy.public == (route.path in PUBLIC)
    if not route.policy.public:
        assert set(map(str, route.policy.roles)) == expected().get(subject(route)), "the table here must name it"


def test_everything_that_stands_here_is_served() -> None:
    assert {subject(route) for route in ROUTES} >= expected().keys()


@pytest.mark.parametrize("who", EVERYBODY)
async def test_a_route_lets_in_whom_its_policy_names_and_nobody_else(who: str) -> None:
    for mine in (True, False):
        left = [one for one in ATTEMPTS if one.who == who and one.mine is mine]
        while left:
            async with opened() as desk:
                await stock(desk, owner=who if mine and who else "somebody")
                await measured(desk)
                await sunk(desk)
                await seated(desk)
                await deleted(desk)
                left = left[await tried(desk, left) :]


async def tried(desk: Desk, attempts: Sequence[Attempt]) -> int:
    """Make attempts up to the first that changes what there is; give how many these were."""
    for number, attempt in enumerate(attempts, start=1):
        route, who = attempt.route, attempt.who
        name = await token_of(desk, who if attempt.mine else "bob") if route.path == TOKEN else None
        answer = await send(desk, route, who, name)
        if attempt.status is None:
            done = answer.is_success or answer.status_code == route.status
            assert done or answer.json()["reason"] in TAKEN, (str(attempt), answer.status_code, answer.text)
        else:
            assert answer.status_code == attempt.status, (str(attempt), answer.text)
        if name or (answer.is_success and route.method != "GET"):
            return number
    return len(attempts)


@pytest.mark.parametrize("who", ["anna", "ada"])
async def test_what_is_anothers_is_answered_byte_for_byte_like_what_is_missing(who: str) -> None:
    hidden = [one.route for one in ATTEMPTS if one.who == who and one.status == 404 and one.route.kind]
    assert hidden
    for route in hidden:
        async with opened() as desk:
            await stock(desk, owner="somebody")
            assert route.kind is not None
            stored = await desk.done("root", "GET", path(route.kind.name, name_of(route.kind.name)))
            names = (None, stored["metadata"]["uid"])
            foreign = [await send(desk, route, who, name) for name in names]
        async with opened() as desk:
            missing = [await send(desk, route, who, name) for name in names]
        for one, other in zip(foreign, missing, strict=True):
            assert (one.status_code, one.content, one.headers) == (other.status_code, other.content, other.headers)


@pytest.mark.parametrize("kind", OWNED)
async def test_a_list_shows_people_their_own_bookings_and_staff_all(desk: Desk, kind: str) -> None:
    await stock(desk, owner="bob")
    await desk.done("ada", "POST", path(kind), json=document_of(kind, name="of-ada"))
    for who in ROLES.keys() - {"vera"}:
        listed = await desk.done(who, "GET", path(kind))
        names = {one["metadata"]["name"] for one in listed["items"]}
        assert names == ({"of-ada", name_of(kind)} if who in SEE_ALL else {"of-ada"} if who == "ada" else set())


@pytest.mark.parametrize("kind", OWNED)
async def test_a_name_that_is_anothers_is_taken_and_nothing_more_is_told(desk: Desk, kind: str) -> None:
    await stock(desk, owner="bob")
    told = []
    for query in ("", "?dry_run=true"):
        answer = await desk.ask("ada", "POST", path(kind) + query, json=document_of(kind))
        assert (answer.status_code, answer.json()["reason"]) == (409, "AlreadyExists")
        told.append(answer.json())
        label = {"metadata": {"labels": {"changed": query.strip("?=") or "no"}}}
        await desk.done("bob", "PATCH", path(kind, name_of(kind)), json=label)
    assert told[0] == told[1]
    assert not {"found", "key"} & told[0].keys()
    assert "revision" not in told[0]["detail"]


@pytest.mark.parametrize("kind", OWNED)
async def test_nobody_applies_over_what_is_anothers(desk: Desk, kind: str) -> None:
    await stock(desk, owner="bob")
    before = await desk.done("bob", "GET", path(kind, name_of(kind)))
    answer = await desk.ask("ada", "POST", "/api/apply", json={"documents": [document_of(kind)]})
    assert answer.status_code in {403, 404, 409, 422}, answer.text
    assert await desk.done("bob", "GET", path(kind, name_of(kind))) == before


@pytest.mark.parametrize("kind", OWNED)
async def test_only_staff_and_services_book_for_somebody_else(desk: Desk, kind: str) -> None:
    await stock(desk)
    for who in ROLES:
        wanted = document_of(kind, name=f"by-{who}", owner="bob")
        answer = await desk.ask(who, "POST", path(kind), json=wanted)
        assert answer.status_code == (201 if who in SEE_ALL else 403)


async def seat_learners(desk: Desk, address: str) -> None:
    """Make the example session one for an address; lea proves hers, and gus was invited to a seat that she has."""
    where = path("LabletSession", name_of("LabletSession"))
    patch = {"spec": {"student_email": address}}
    uid = (await desk.done("root", "PATCH", where, json=patch))["metadata"]["uid"]
    for who, role, reach in (
        ("lea", Role.USER, Reach(email="lea@example.org")),
        ("gus", Role.GUEST, Reach(email="lea@example.org", seat=uid)),
    ):
        desk.secrets[who] = (await desk.tokens.make(who, role, reach=reach))[0].reveal()


def learner_status(route: Route, role: Role, *, mine: bool) -> int | None:
    """Return the status that turns a learner's attempt down; None when it is let in."""
    if role not in route.policy.roles:
        return 403
    if not mine or route.kind is None or route.kind.name != "LabletSession":
        return 404
    is_use = route.method == GET or route.path.endswith(("/observe-resources", "/save"))
    return None if is_use else 403


@pytest.mark.parametrize("mine", [True, False], ids=["own", "another's"])
@pytest.mark.parametrize("who", LEARNERS)
async def test_a_learner_uses_the_own_seat_and_no_other_and_manages_none(who: str, mine: bool) -> None:  # noqa: FBT001
    for route in [one for one in ROUTES if belongs(one) and one.path != TOKEN]:
        async with opened() as desk:
            await stock(desk, owner="somebody")
            await seat_learners(desk, "Lea@Example.org" if mine else "leo@example.org")
            answer = await send(desk, route, who)
        wanted = learner_status(route, LEARNERS[who], mine=mine)
        if wanted is None:
            done = answer.is_success or answer.status_code == route.status
            assert done or answer.json()["reason"] in TAKEN, (called(route), answer.text)
        else:
            assert answer.status_code == wanted, (called(route), answer.text)


async def test_a_guest_is_let_in_where_the_policy_names_guests_and_sees_one_session() -> None:
    for route in [one for one in ROUTES if not belongs(one) and not one.policy.public]:
        async with opened() as desk:
            await stock(desk, owner="gus")
            await seat_learners(desk, "leo@example.org")
            answer = await send(desk, route, "gus")
            listed = await desk.done("gus", "GET", path("LabletSession"))
        refused = Role.GUEST not in route.policy.roles
        assert (answer.status_code == 403) == refused or answer.status_code == 409, (called(route), answer.text)
        assert not listed["items"], "a guest owns nothing"


async def test_a_route_that_declares_nothing_serves_nobody() -> None:
    async def reached(_: Request) -> Answer:
        raise AssertionError("somebody was let in")

    route = Route(GET, "/api/undeclared", reached, "undeclared", "Says nothing about who may call it")
    async with opened(routes=[*ROUTES, route]) as desk:
        for who in EVERYBODY:
            answer = await desk.ask(who, "GET", "/api/undeclared")
            assert answer.status_code == (403 if who else 401)


async def test_only_services_act_under_a_name_or_under_a_lease(desk: Desk) -> None:
    await stock(desk)
    where = path("LabWorker", name_of("LabWorker"))
    for who in ROLES:
        allowed = who == "service"
        acting = await desk.ask(who, "GET", "/api/whoami", headers={"Lcm-Actor": "scheduler"})
        assert acting.status_code == (200 if allowed else 403)
        fenced = await desk.ask(who, "DELETE", where, headers={"Lcm-Fence": "scheduler;1"})
        assert (fenced.status_code, fenced.json()["reason"]) == ((409, "Deposed") if allowed else (403, "Forbidden"))


async def test_a_token_of_any_kind_works_in_either_header(desk: Desk) -> None:
    for who, role in ROLES.items():
        by_key = await desk.done("", "GET", "/api/whoami", headers={"X-API-Key": desk.secrets[who]})
        assert by_key == await desk.done(who, "GET", "/api/whoami") == {"name": who, "role": str(role)}


@pytest.mark.parametrize("name", ["Authorization", "X-API-Key"])
async def test_what_is_too_long_to_be_a_token_is_neither_hashed_nor_kept(desk: Desk, name: str) -> None:
    before = digest_of.cache_info().currsize, _bearer.cache_info().currsize
    for number in range(20):
        text = f"Bearer {number}" + "x" * MAX_TOKEN_LENGTH
        answer = await desk.ask("", "GET", "/api/whoami", headers={name: text})
        assert (answer.status_code, answer.json()["reason"]) == (401, "Unauthorized")
    assert digest_of.cache_info().currsize <= before[0] + 1
    assert _bearer.cache_info().currsize == before[1]


@pytest.mark.parametrize("header", ["Basic cm9vdDpyb290", "Bearer", "Bearer ", "bearer nobody", "", "Bearer \xff\xfe"])
async def test_what_is_no_valid_token_is_turned_away_before_anything_else(desk: Desk, header: str) -> None:
    sent = {"Authorization": header.encode("latin-1")}
    answer = await desk.ask("", "POST", "/api/workers?nonsense=1", content=b"{", headers=sent)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["reason"] == "Unauthorized"


async def test_a_revoked_token_is_worth_nothing_at_once(desk: Desk) -> None:
    assert (await desk.ask("ada", "GET", "/api/whoami")).status_code == 200
    await desk.tokens.revoke(next(one.id for one in await desk.tokens.list() if one.name == "ada"))
    assert (await desk.ask("ada", "GET", "/api/whoami")).status_code == 401
