"""No write of a person can set status, owner or bookkeeping, on any kind, by any verb."""

from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from harness import documents, given
from harness import documents as filled
from harness.plane_world import ADA, ANNA, NOW, OTTO, ROOT, Stage, active
from harness.suite import for_all
from lcm.control.plane.protocol import Ref
from lcm.model.access.identity import PERMISSIONS, Caller, Verb
from lcm.model.base.errors import Invalid
from lcm.model.base.resource import Metadata, Status
from lcm.model.kinds.registry import KINDS, Resource
from lcm.sim.time.loop import run

THEIRS = {"name", "namespace", "labels", "annotations"}
BOOKKEEPING = sorted(set(Metadata.__struct_fields__) - THEIRS)
TAMPERED = {
    "uid": "stolen",
    "generation": 41,
    "resource_version": 0,
    "created_at": "2020-01-01T00:00:00Z",
    "deletion_timestamp": "2020-01-01T00:00:00Z",
    "finalizers": ["mine"],
    "owner": {"kind": "LabWorkerPool", "name": "mine", "uid": "mine"},
}
NEW = ["create", "apply new"]
OLD = ["replace", "patch", "apply"]
OWNED = ("LabletSession", "Reservation")
STATUS: dict[str, type[Status]] = {one.kind: type(one.status) for one in given.every()}
WRITERS = [
    (kind, caller)
    for kind in KINDS
    for caller in (ROOT, OTTO, ANNA, ADA)
    if caller.role in PERMISSIONS[kind][Verb.WRITE]
]


def test_every_field_of_the_bookkeeping_is_tampered_with() -> None:
    assert sorted(TAMPERED) == BOOKKEEPING


def tampered(kind: str, fields: frozenset[str], status: frozenset[str]) -> dict[str, Any]:
    """Return a sound document in which somebody wrote what is not theirs."""
    document = documents.document(kind)
    document["metadata"] |= {name: TAMPERED[name] for name in fields} | {"labels": {"changed": "yes"}}
    whole = filled.filled_document(STATUS[kind])
    return document | {"status": {name: whole[name] for name in status}}


@st.composite
def attempts(draw: st.DrawFn) -> tuple[str, Caller, str, frozenset[str], frozenset[str]]:
    kind, caller = draw(st.sampled_from(WRITERS))
    verbs = NEW if kind in OWNED and caller is ANNA else NEW + OLD  # what is ada's is not there for anna
    fields = draw(st.frozensets(st.sampled_from(BOOKKEEPING), min_size=1))
    status = draw(st.frozensets(st.sampled_from(sorted(filled.filled_document(STATUS[kind])))))
    return kind, caller, draw(st.sampled_from(verbs)), fields, status


async def write(stage: Stage, caller: Caller, verb: str, document: dict[str, Any]) -> None:
    plane = stage[caller]
    match verb:
        case "create":
            await plane.create(stage.core.read(document))
        case "replace":
            await plane.replace(stage.core.read(document))
        case "patch":
            await plane.patch(Ref(KINDS[document["kind"]].struct, document["metadata"]["name"]), document)
        case _:
            await plane.apply([document])


async def untouched(stage: Stage, kind: str) -> Resource:
    """Make the object as the plane makes it when nobody tampers with it."""
    resource = stage.core.read(documents.document(kind))
    return await stage[ADA if kind in OWNED else ROOT].create(resource)


@for_all(attempts())
def test_what_is_not_theirs_stays_as_the_plane_made_it(
    attempt: tuple[str, Caller, str, frozenset[str], frozenset[str]],
) -> None:
    run(partial(tamper, *attempt), start=NOW)


@pytest.mark.parametrize("kind", KINDS)
def test_not_even_everything_at_once_gets_through(kind: str) -> None:
    everything = frozenset(BOOKKEEPING), frozenset(filled.filled_document(STATUS[kind]))
    for verb in NEW + OLD:
        run(partial(tamper, kind, ADA if kind in OWNED else ROOT, verb, *everything), start=NOW)


async def tamper(kind: str, caller: Caller, verb: str, fields: frozenset[str], status: frozenset[str]) -> None:
    stage = Stage()
    if kind != "LabletDefinition":
        await stage.put(active())
    if kind != "WorkerTemplate":
        await stage.put(given.template())
    before = None if verb in NEW else await untouched(stage, kind)
    await write(stage, caller, verb, tampered(kind, fields, status))
    after = await stage.read(stage.core.read(documents.document(kind)))
    assert after is not None
    assert after.metadata.labels == {"changed": "yes"}
    assert theirs(after) == (theirs(before) if before else made(after))
    stored = await stage.store.get(Ref(type(after), after.metadata.name).key)
    assert stored is not None
    assert b'"resource_version":0' in stored.value


def theirs(resource: Resource) -> tuple[object, ...]:
    metadata = resource.metadata
    fixed = (metadata.uid, metadata.generation, metadata.created_at, metadata.deletion_timestamp)
    return (*fixed, metadata.finalizers, metadata.owner, msgspec.structs.replace(resource.status, history=()))


def made(resource: Resource) -> tuple[object, ...]:
    """Return what the plane makes of a new object."""
    finalizers = ("lcm/teardown",) if KINDS[resource.kind].machine else ()
    return ("uid-1", 1, NOW, None, finalizers, None, msgspec.structs.replace(_initial(resource), history=()))


def _initial(resource: Resource) -> Any:
    """Return the status that a new object has; of bookings, what follows from their slot."""
    status: Any = type(resource.status)()
    spec: Any = resource.spec
    if resource.kind == "LabletSession":
        return msgspec.structs.replace(status, expires_at=spec.timeslot_end, ends_at=spec.timeslot_end)
    if resource.kind == "Reservation":
        return msgspec.structs.replace(status, starts_at=spec.timeslot_start, ends_at=spec.timeslot_end)
    return status


@pytest.mark.parametrize("kind", OWNED)
def test_nobody_gives_their_booking_to_somebody_else(kind: str) -> None:
    async def main() -> None:
        stage = Stage()
        await stage.put(active())
        mine = await untouched(stage, kind)
        stolen = documents.document(kind, owner="bob")
        for caller in (ADA, OTTO, ROOT):
            for verb in OLD:
                with pytest.raises(Invalid):
                    await write(stage, caller, verb, stolen)
        assert await stage.read(mine) == mine

    run(main, start=NOW)
