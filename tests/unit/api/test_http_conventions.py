"""The manners of HTTP: entity tags, idempotency keys, dry runs, pages, selectors, HEAD and OPTIONS."""

from collections.abc import AsyncIterator

import httpx
import pytest

from harness.api_world import OWNED, Desk, document, name_of, opened, path, stock
from lcm.api.http.answers import HTML, JSON
from lcm.api.http.routing import GET, Route
from lcm.api.routes.table import ROUTES
from lcm.model.kinds.registry import KINDS

WORKER = path("LabWorker", "ccna-worker-1")
SESSION = path("LabletSession", document("LabletSession")["metadata"]["name"])
WRITTEN = [("PUT", "root"), ("PATCH", "root"), ("DELETE", "root")]


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened() as desk:
        await stock(desk, owner="ada")
        yield desk


async def write(desk: Desk, method: str, **more: object) -> httpx.Response:
    """Change the worker in whatever way the method does."""
    changed = document("LabWorker", drain_deadline_minutes=7)
    body = {} if method == "DELETE" else {"json": changed if method == "PUT" else {"spec": changed["spec"]}}
    return await desk.ask("root", method, WORKER, **body, **more)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_new_object_is_answered_with_its_place_and_its_tag(kind: str) -> None:
    async with opened() as desk:
        await stock(desk)
        if kind != "SystemSettings":
            name = name_of(kind).replace(name_of(kind).split(":")[0], "other")
            apart = {"lab_track": "other"} if kind == "LabWorkerPool" else {}
            made = await desk.ask("root", "POST", path(kind), json=document(kind, name=name, **apart))
            assert made.status_code == 201
            found = await desk.ask("root", "GET", made.headers["location"])
            assert (found.json(), found.headers["etag"]) == (made.json(), made.headers["etag"])
            assert made.headers["etag"] == f'"{made.json()["metadata"]["resource_version"]}"'


async def test_an_object_of_another_namespace_is_found_where_its_place_says(desk: Desk) -> None:
    sent = document("LabWorker")
    sent["metadata"] = {"name": "ccna-worker-1", "namespace": "exams"}
    made = await desk.ask("root", "POST", "/api/workers", json=sent)
    assert made.headers["location"] == f"{WORKER}?namespace=exams"
    assert (await desk.done("root", "GET", made.headers["location"])) == made.json()
    assert (await desk.done("root", "GET", WORKER))["metadata"]["uid"] != made.json()["metadata"]["uid"]


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_a_write_with_a_tag_is_done_only_while_the_tag_is_true(desk: Desk, method: str) -> None:
    old = (await desk.ask("root", "GET", WORKER)).headers["etag"]
    await desk.done("root", "PATCH", WORKER, json={"metadata": {"labels": {"tier": "exam"}}})
    before = await desk.done("root", "GET", WORKER)
    refused = await write(desk, method, headers={"If-Match": old})
    assert refused.status_code == 412
    assert refused.json()["reason"] == "Conflict"
    assert (refused.json()["wanted"], refused.json()["found"]) == (
        int(old[1:-1]),
        before["metadata"]["resource_version"],
    )
    assert await desk.done("root", "GET", WORKER) == before
    new = (await desk.ask("root", "GET", WORKER)).headers["etag"]
    assert (await write(desk, method, headers={"If-Match": new})).status_code == 200


async def test_a_tag_says_nothing_of_what_is_made(desk: Desk) -> None:
    answer = await desk.ask("root", "POST", "/api/workers", json=document("LabWorker"), headers={"If-Match": '"7"'})
    assert (answer.status_code, answer.json()["reason"]) == (409, "AlreadyExists")


async def test_no_number_of_minutes_is_our_mistake(desk: Desk) -> None:
    for _ in range(2):
        answer = await desk.ask("otto", "POST", f"{SESSION}/extend", json={"minutes": 2**31})
        assert answer.status_code == 422, answer.text


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_any_tag_or_none_demands_nothing(desk: Desk, method: str) -> None:
    assert (await write(desk, method, headers={"If-Match": "*"})).status_code == 200


async def test_a_document_may_carry_its_revision_instead_of_a_tag(desk: Desk) -> None:
    stored = await desk.done("root", "GET", WORKER)
    stored["spec"]["drain_deadline_minutes"] = 9
    assert (await desk.ask("root", "PUT", WORKER, json=stored)).status_code == 200
    stale = await desk.ask("root", "PUT", WORKER, json=stored)
    assert (stale.status_code, stale.json()["reason"]) == (409, "Conflict")


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
async def test_a_dry_run_answers_what_would_be_and_writes_nothing(desk: Desk, method: str) -> None:
    before, revision = await desk.done("root", "GET", WORKER), await desk.revision()
    answer = await write(desk, method, params={"dry_run": "true"})
    assert answer.status_code == 200
    assert answer.json()["spec"] != before["spec"] or method == "DELETE"
    assert await desk.done("root", "GET", WORKER) == before
    assert await desk.revision() == revision


async def test_a_dry_run_of_a_new_object_says_no_place(desk: Desk) -> None:
    revision = await desk.revision()
    sent = document("LabWorker", name="other")
    answer = await desk.ask("root", "POST", "/api/workers?dry_run=true", json=sent)
    assert answer.status_code == 201
    assert "location" not in answer.headers
    for refused, status in ((document("LabWorker"), 409), (document("LabWorker", name="X"), 422)):
        assert (await desk.ask("root", "POST", "/api/workers?dry_run=true", json=refused)).status_code == status
    assert await desk.revision() == revision
    applied = await desk.done("root", "POST", "/api/apply?dry_run=true", json={"documents": [sent]})
    assert [one["outcome"] for one in applied["results"]] == ["created"]
    acted = await desk.ask("root", "POST", f"{WORKER}/pause?dry_run=true")
    assert acted.json()["spec"]["wanted_state"] == "stopped"
    assert await desk.revision() == revision


async def test_a_request_repeated_with_its_key_is_done_once(desk: Desk) -> None:
    sent, key = document("LabWorker", name="once"), {"Idempotency-Key": "key-1"}
    first = await desk.ask("root", "POST", "/api/workers", json=sent, headers=key)
    revision = await desk.revision()
    again = await desk.ask("root", "POST", "/api/workers", json=sent, headers=key)
    assert (first.status_code, first.json()) == (again.status_code, again.json())
    assert await desk.revision() == revision
    without = await desk.ask("root", "POST", "/api/workers", json=sent)
    assert (without.status_code, without.json()["reason"]) == (409, "AlreadyExists")


async def test_a_key_is_its_callers_own_and_means_one_request(desk: Desk) -> None:
    key = {"Idempotency-Key": "key-1"}
    await desk.done("ada", "POST", "/api/lablet-sessions", json=document("LabletSession", name="a"), headers=key)
    other = await desk.ask("ada", "POST", "/api/lablet-sessions", json=document("LabletSession", name="b"), headers=key)
    assert (other.status_code, other.json()["reason"]) == (422, "Invalid")
    assert other.json()["faults"][0]["path"] == "Idempotency-Key"
    bobs = await desk.done("bob", "POST", "/api/lablet-sessions", json=document("LabletSession", name="b"), headers=key)
    assert bobs["spec"]["owner"] == "bob"


async def test_an_action_repeated_with_its_key_is_done_once(desk: Desk) -> None:
    sent, key = {"minutes": 30}, {"Idempotency-Key": "key-1"}
    where = f"{path('LabletSession', 'ada-monday')}/extend"
    answers = [await desk.ask("ada", "POST", where, json=sent, headers=key) for _ in range(2)]
    assert answers[0].content == answers[1].content


@pytest.mark.parametrize("kind", KINDS)
async def test_an_object_is_reached_by_its_uid_too(desk: Desk, kind: str) -> None:
    stored = await desk.done("root", "GET", path(kind, name_of(kind)))
    where = path(kind, stored["metadata"]["uid"])
    assert await desk.done("root", "GET", where) == stored
    assert (await desk.done("root", "PUT", where, json=document(kind)))["metadata"]["uid"] == stored["metadata"]["uid"]
    patched = await desk.done("root", "PATCH", where, json={"metadata": {"labels": {"a": "b"}}})
    assert patched["metadata"]["labels"] == {"a": "b"}


async def test_a_document_that_is_put_must_be_the_one_of_the_path(desk: Desk) -> None:
    await desk.done("root", "POST", "/api/workers", json=document("LabWorker", name="other"))
    refused = await desk.ask("root", "PUT", WORKER, json=document("LabWorker", name="other"))
    assert [fault["path"] for fault in refused.json()["faults"]] == ["metadata.name"]
    elsewhere = document("LabWorker")
    elsewhere["metadata"] = {"name": "ccna-worker-1", "namespace": "exams"}
    refused = await desk.ask("root", "PUT", WORKER, json=elsewhere)
    assert [fault["path"] for fault in refused.json()["faults"]] == ["metadata.namespace"]
    nameless = {"spec": {**document("LabWorker")["spec"], "drain_deadline_minutes": 11}}
    assert (await desk.done("root", "PUT", WORKER, json=nameless))["spec"]["drain_deadline_minutes"] == 11
    missing = await desk.ask("root", "PUT", path("LabWorker", "nobody"), json=document("LabWorker", name="nobody"))
    assert missing.status_code == 404


async def test_a_document_of_another_kind_is_not_written_here(desk: Desk) -> None:
    for method, where in (("POST", "/api/workers"), ("PUT", WORKER)):
        sent = document("WorkerTemplate", name="ccna-worker-1")
        refused = await desk.ask("root", method, where, json=sent)
        assert (refused.status_code, refused.json()["faults"][0]["path"]) == (422, "kind")


async def test_every_fault_of_a_document_is_told_at_once(desk: Desk) -> None:
    sent = document("LabWorker", name="other", lab_types=["NONE"], drain_deadline_minutes="soon", nonsense=1)
    refused = await desk.ask("root", "POST", "/api/workers", json=sent)
    assert {fault["path"] for fault in refused.json()["faults"]} >= {
        "spec.lab_types[0]",
        "spec.drain_deadline_minutes",
        "spec.nonsense",
    }


async def test_pages_follow_each_other_without_gap_or_repetition(desk: Desk) -> None:
    documents = [document("LabWorker", name=f"w{number:02}") for number in range(25)]
    await desk.done("root", "POST", "/api/apply", json={"documents": documents})
    names, query = list[str](), {"limit": "7"}
    first = await desk.done("root", "GET", "/api/workers", params=query)
    page = first
    while True:
        names += [one["metadata"]["name"] for one in page["items"]]
        assert page["revision"] == first["revision"]
        if page["next"] is None:
            break
        await desk.done("root", "DELETE", path("LabWorker", "w24"))  # what happens meanwhile is not seen
        page = await desk.done("root", "GET", "/api/workers", params=query | {"cursor": page["next"]})
    assert names == sorted(["ccna-worker-1", *(f"w{number:02}" for number in range(25))])


async def test_selectors_choose_by_label_and_by_field(desk: Desk) -> None:
    for name, tier in (("gold", "exam"), ("lead", "test")):
        sent = document("LabWorker", name=name)
        sent["metadata"]["labels"] = {"tier": tier}
        await desk.done("root", "POST", "/api/workers", json=sent)

    async def names(**query: str) -> list[str]:
        listed = await desk.done("root", "GET", "/api/workers", params=query)
        return [one["metadata"]["name"] for one in listed["items"]]

    assert await names(label_selector="tier=exam") == ["gold"]
    assert await names(label_selector="tier in (exam,test),tier!=exam") == ["lead"]
    assert await names(label_selector="!tier") == ["ccna-worker-1"]
    assert await names(field_selector="metadata.name=lead,status.phase=PENDING") == ["lead"]
    assert await names(field_selector="status.phase=READY") == []
    assert await names(namespace="elsewhere") == []


READ = [route for route in ROUTES if route.method == GET]


@pytest.mark.parametrize("route", READ, ids=lambda route: route.path)
async def test_head_answers_what_get_does_without_its_body(desk: Desk, route: Route) -> None:
    name = name_of(route.kind.name) if route.kind else ""
    where = route.path.replace("{id}", name).replace("{name}", "a-lease").replace("{file}", "lab.yaml")
    query = {"kinds": "LabletSession", "after": "0"} if route.operation == "watch" else {}
    head = await desk.ask("service", "HEAD", where, params=query)
    assert head.content == b""
    if route.answer_media not in {JSON, HTML}:  # streams have no end, and metrics count this very request
        # no files are kept here, and this is nobody's secret
        assert head.status_code == (409 if "{file}" in route.path else 404 if "{secret}" in route.path else 200)
        return
    get = await desk.ask("service", "GET", where, params=query)
    assert head.status_code == get.status_code
    assert head.headers == get.headers


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_a_path_tells_its_methods_and_takes_no_others(desk: Desk, route: Route) -> None:
    where = route.path.replace("{id}", "x").replace("{name}", "x")
    served = {one.method for one in ROUTES if one.path == route.path}
    wanted = served | {"OPTIONS"} | ({"HEAD"} if "GET" in served else set())
    options = await desk.ask("", "OPTIONS", where, headers={"Origin": "https://elsewhere.example"})
    assert options.status_code == 204
    assert set(options.headers["allow"].split(", ")) == wanted
    assert not [name for name in options.headers if name.startswith("access-control-")]
    for method in {"GET", "PUT", "POST", "PATCH", "DELETE", "TRACE", "BREW"} - wanted:
        refused = await desk.ask("root", method, where)
        assert (refused.status_code, refused.json()["reason"]) == (405, "MethodNotAllowed")
        assert set(refused.headers["allow"].split(", ")) == wanted


@pytest.mark.parametrize("who", ["", "root"])
async def test_no_answer_is_kept_or_guessed_at_by_a_browser(desk: Desk, who: str) -> None:
    for where in ("/healthz", "/api/workers", "/api/workers/nobody", "/nowhere", "/api/openapi.json"):
        answer = await desk.ask(who, "GET", where, headers={"Origin": "https://elsewhere.example"})
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("action", ["drain", "undrain", "pause", "resume", "snooze"])
async def test_an_action_without_wishes_needs_no_body(desk: Desk, action: str) -> None:
    answer = await desk.ask("root", "POST", f"{WORKER}/{action}")
    assert answer.is_success or answer.json()["reason"] == "IllegalStep"


async def test_an_action_that_needs_a_number_says_so(desk: Desk) -> None:
    bodies: list[dict[str, object]] = [{}, {"json": {}}, {"json": {"minutes": 0}}, {"json": {"minutes": 1, "more": 2}}]
    for body in bodies:
        answer = await desk.ask("ada", "POST", f"{path('LabletSession', 'ada-monday')}/extend", **body)
        assert answer.status_code in {400, 415, 422}


@pytest.mark.parametrize("kind", OWNED)
async def test_a_booking_belongs_to_who_makes_it(desk: Desk, kind: str) -> None:
    made = await desk.done("bob", "POST", path(kind), json=document(kind, name="of-bob"))
    assert made["spec"]["owner"] == "bob"
    assert (await desk.ask("ada", "GET", path(kind, "of-bob"))).status_code == 404
