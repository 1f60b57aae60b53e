"""No write over HTTP can set status, owner or bookkeeping: every kind, every verb, every field that is not theirs."""

from collections.abc import Iterator
from typing import Any

import pytest

from harness import documents
from harness.api_world import OWNED, Desk, document, name_of, opened, path, stock
from lcm.control.objects.records import find_record, removal_ops
from lcm.control.plane.protocol import Ref
from lcm.model.base.resource import Metadata
from lcm.model.kinds.registry import KINDS

THEIRS = {"name", "namespace", "labels", "annotations"}
WRITER = {kind: "ada" if kind in OWNED else "root" for kind in KINDS}
LABELS = {"written": "yes"}


def hostile(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return every field that is not a writer's, with a sound value that it does not have."""
    whole = documents.filled_document(KINDS[kind].struct)
    yield "status", {"status": whole["status"]}
    for field, value in whole["status"].items():
        yield f"status.{field}", {"status": {field: value}}
    for field in sorted(set(Metadata.__struct_fields__) - THEIRS):
        yield f"metadata.{field}", {"metadata": {field: whole["metadata"][field]}}
    if kind in OWNED:
        yield "spec.owner", {"spec": {"owner": "bob"}}
        yield "spec.priority", {"spec": {"priority": 99}}


CASES = [(kind, field, change) for kind in KINDS for field, change in hostile(kind)]


def tampered(kind: str, change: dict[str, Any], name: str | None = None) -> dict[str, Any]:
    sound = document(kind, name=name)
    sound["metadata"] = sound["metadata"] | {"labels": LABELS} | change.get("metadata", {})
    sound["spec"] = sound["spec"] | change.get("spec", {})
    return sound | ({"status": change["status"]} if "status" in change else {})


def fixed(stored: dict[str, Any]) -> dict[str, Any]:
    """Return all of an object that is not its writer's, but for what no two objects or writes have in common."""
    metadata = {
        field: value for field, value in stored["metadata"].items() if field not in {*THEIRS, "resource_version"}
    }
    spec = {field: stored["spec"].get(field) for field in ("owner", "priority")}
    return {"metadata": metadata, "status": stored["status"], "spec": spec}


def made(stored: dict[str, Any]) -> dict[str, Any]:
    kept = fixed(stored)
    history = [{**one, "at": None} for one in kept["status"]["history"]]
    return kept | {"metadata": kept["metadata"] | {"uid": ""}, "status": kept["status"] | {"history": history}}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_new_object_is_as_the_plane_makes_it_whatever_was_sent(kind: str) -> None:
    async with opened() as desk:
        await stock(desk, owner="ada")
        await remove(desk, kind)
        for verb in ("create", "apply"):
            clean = await write(desk, kind, verb, document(kind))
            assert clean is not None
            await remove(desk, kind)
            for _, field, change in (case for case in CASES if case[0] == kind):
                answer = await write(desk, kind, verb, tampered(kind, change))
                if answer is None:
                    assert field.startswith("spec."), (kind, verb, field)
                    continue
                assert made(answer) == made(clean), (kind, verb, field)
                assert answer["metadata"]["labels"] == LABELS
                await remove(desk, kind)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_old_object_keeps_what_is_not_its_writers_whatever_was_sent(kind: str) -> None:
    async with opened() as desk:
        await stock(desk, owner="ada")
        where = path(kind, name_of(kind))
        for _, field, change in (case for case in CASES if case[0] == kind):
            for verb in ("replace", "patch", "apply"):
                before = await desk.done(WRITER[kind], "GET", where)
                answer = await write(desk, kind, verb, tampered(kind, change))
                after = await desk.done(WRITER[kind], "GET", where)
                assert fixed(after) == fixed(before), (kind, verb, field)
                if answer is None:
                    # A revision that it does not have is a demand that fails; an owner or priority is refused.
                    assert field.startswith("spec.") or field == "metadata.resource_version", (kind, verb, field)
                    assert after == before


async def remove(desk: Desk, kind: str) -> None:
    """Take the object out of the store, whatever refers to it."""
    record = await find_record(desk.store, Ref(KINDS[kind].struct, name_of(kind)))
    assert record is not None
    await desk.store.commit(*removal_ops(record))


async def write(desk: Desk, kind: str, verb: str, sent: dict[str, Any]) -> dict[str, Any] | None:
    """Write a document; None when it was turned down."""
    who, where = WRITER[kind], path(kind, name_of(kind))
    match verb:
        case "create":
            answer = await desk.ask(who, "POST", path(kind), json=sent)
        case "replace":
            answer = await desk.ask(who, "PUT", where, json=sent)
        case "patch":
            answer = await desk.ask(who, "PATCH", where, json=sent)
        case _:
            answer = await desk.ask(who, "POST", "/api/apply", json={"documents": [sent]})
    assert answer.is_success or answer.status_code in {403, 409, 412, 422}, answer.text
    return await desk.done(who, "GET", where) if answer.is_success else None
