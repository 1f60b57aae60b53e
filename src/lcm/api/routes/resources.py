"""The resource routes: list, create, get, replace, patch and delete, the same for every kind; and apply."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import msgspec

from lcm.api.http.answers import JSON, MERGE_PATCH, Answer, json_answer, resource_answer, stored_answer
from lcm.api.http.request import Request, convert_document, epoch_header
from lcm.api.http.routing import DELETE, FOR_BOOKERS, GET, PATCH, POST, PUT, Handler, Patch, Route, policy_for
from lcm.api.routes.shapes import LISTS, ApplyBody, DryQuery, ListQuery, WriteQuery, define_body
from lcm.control.objects.writer import missing_error
from lcm.control.plane.batch import BatchAnswer, BatchRequest
from lcm.control.plane.bodies import OneQuery
from lcm.control.plane.protocol import Action, Ref
from lcm.control.plane.wire import ACTIONS, IDEMPOTENCY_KEY, Results
from lcm.model.access.identity import SEES_ALL, Verb
from lcm.model.access.secret import holds_secrets
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import DEFAULT_NAMESPACE, Part
from lcm.model.base.selector import EVERYTHING, parse_selector
from lcm.model.kinds.registry import KINDS, Kind

IF_MATCH: Final = "If-Match"


class ResourceHandlers:
    """The HTTP handlers of one kind."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._struct: type[Any] = kind.struct

    async def list(self, request: Request) -> Answer:
        """Answer a page of objects."""
        query = request.query(ListQuery)
        selected = query.label_selector or query.field_selector
        where = parse_selector(self._struct, query.label_selector, query.field_selector) if selected else EVERYTHING
        page = await request.plane.list(
            self._struct,
            namespace=query.namespace or None,
            where=where,
            limit=query.limit,
            cursor=query.cursor or None,
            archived=query.archived,
        )
        answer = json_answer({"items": page.items, "revision": page.revision, "next": page.next})
        answer.headers = (epoch_header(request),)
        return answer

    async def create(self, request: Request) -> Answer:
        """Create an object."""
        query, key, plane = request.query(DryQuery), request.idempotency_key, request.write_plane
        wanted = request.shared.core.read(await request.document(), self._struct)
        made = await plane.create(wanted, dry_run=query.dry_run, request=key)
        namespace = made.metadata.namespace
        within = "" if namespace == DEFAULT_NAMESPACE else f"?namespace={namespace}"
        location = f"/api/{self._kind.plural}/{made.metadata.name}{within}".encode()
        return resource_answer(made, 201, () if query.dry_run else ((b"location", location),))

    async def get(self, request: Request) -> Answer:
        """Answer one object."""
        ref = request.ref(self._struct, request.query(OneQuery).namespace)
        found = await request.plane.get(ref)
        if found is None:
            raise missing_error(ref)
        return stored_answer(found)

    async def replace(self, request: Request) -> Answer:
        """Replace an object by a document."""
        query, at, plane = request.query(WriteQuery), request.if_match, request.write_plane
        ref = request.ref(self._struct, query.namespace)
        document = await self._with_address(request, ref, await request.document())
        return resource_answer(await plane.put(ref, document, at=at, dry_run=query.dry_run))

    async def patch(self, request: Request) -> Answer:
        """Merge a document into an object."""
        query, at, plane = request.query(WriteQuery), request.if_match, request.write_plane
        ref = request.ref(self._struct, query.namespace)
        document = await request.document()
        if not isinstance(document, Mapping):
            raise Invalid(Fault("document", "not an object", "send the fields that are to change"))
        return resource_answer(await plane.patch(ref, document, at=at, dry_run=query.dry_run))

    async def delete(self, request: Request) -> Answer:
        """Request the deletion of an object."""
        query, at = request.query(WriteQuery), request.if_match
        ref = request.ref(self._struct, query.namespace)
        return resource_answer(await request.write_plane.delete(ref, at=at, dry_run=query.dry_run))

    async def _with_address(self, request: Request, ref: Ref[Any], document: object) -> object:
        """Check a document's name against the path, which may hold a uid, and fill in what it leaves out."""
        metadata = document.get("metadata", {}) if isinstance(document, Mapping) else None
        if not isinstance(document, Mapping) or not isinstance(metadata, Mapping):
            return document
        name = ref.name
        if metadata.get("name") != name:
            found = await request.plane.get(ref)
            if found is None:
                raise missing_error(ref)
            name = found.metadata.name
        address = {"name": name, "namespace": ref.namespace}
        faults = [
            Fault(f"metadata.{field}", "differs from the path", f"use {wanted}, or leave it out")
            for field, wanted in address.items()
            if metadata.get(field, wanted) != wanted
        ]
        if faults:
            raise Invalid(*faults)
        return {**document, "metadata": {**metadata, **address}}


async def _apply_documents(request: Request) -> Answer:
    query, plane = request.query(DryQuery), request.write_plane
    documents = (await request.read(ApplyBody)).documents
    strange = [number for number, one in enumerate(documents) if not isinstance(one, Mapping)]
    if strange:
        raise Invalid(*(Fault(f"documents[{number}]", "not an object", "begin with `kind`") for number in strange))
    return json_answer({"results": await plane.apply(documents, dry_run=query.dry_run)})


async def _run_batch(request: Request) -> Answer:
    query, key, plane = request.query(DryQuery), request.idempotency_key, request.write_plane
    asked = await request.read(BatchRequest)
    if request.signed_in.role not in SEES_ALL:  # as many changes as if each had come by itself
        request.shared.writes.charge(request.signed_in.name, len(asked.items) - 1)
    return json_answer(await plane.batch(asked, dry_run=query.dry_run, request=key))


def _resource_routes(kind: Kind) -> Iterator[Route]:
    struct, name, of = kind.struct, kind.name, ResourceHandlers(kind)
    many, one = f"/api/{kind.plural}", f"/api/{kind.plural}/{{id}}"
    noun = "EventSink" if kind.plural == "event-sinks" else name  # the ids with Sink are those of /api/sinks
    read, write = policy_for(kind, Verb.READ), policy_for(kind, Verb.WRITE)
    patch = (MERGE_PATCH, JSON)
    common: dict[str, Any] = {"kind": kind, "answer": struct}
    changing = {**common, "policy": write, "query": WriteQuery, "headers": (IF_MATCH,)}
    yield Route(
        GET,
        many,
        of.list,
        f"list{noun.removesuffix('s')}s",
        f"List {name} objects",
        policy=read,
        kind=kind,
        query=ListQuery,
        answer=LISTS[name],
        also=(410,),
    )
    yield Route(
        POST,
        many,
        of.create,
        f"create{noun}",
        f"Create a {name}",
        **common,
        policy=write,
        query=DryQuery,
        body=struct,
        status=201,
        headers=(IDEMPOTENCY_KEY,),
    )
    yield Route(GET, one, of.get, f"get{noun}", f"Read a {name}", **common, policy=read, query=OneQuery)
    yield Route(PUT, one, of.replace, f"replace{noun}", f"Replace a {name}'s spec and labels", **changing, body=struct)
    yield Route(
        PATCH,
        one,
        of.patch,
        f"patch{noun}",
        f"Merge into a {name}'s spec and labels",
        **changing,
        body=Patch(struct),
        body_media=patch,
    )
    yield Route(DELETE, one, of.delete, f"delete{noun}", f"Delete a {name}", **changing)


ROUTES: Final[tuple[Route, ...]] = (
    *(route for kind in KINDS.values() for route in _resource_routes(kind)),
    Route(
        POST,
        "/api/apply",
        _apply_documents,
        "apply",
        "Create or replace many objects",
        policy=FOR_BOOKERS,
        query=DryQuery,
        body=ApplyBody,
        answer=Results,
        large=True,
    ),
    Route(
        POST,
        "/api/batch",
        _run_batch,
        "batch",
        "Create, delete, act on or label many objects, each by itself or all in one commit",
        policy=FOR_BOOKERS,
        query=DryQuery,
        body=BatchRequest,
        answer=BatchAnswer,
        large=True,
        headers=(IDEMPOTENCY_KEY,),
    ),
)


_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


def _action_handler(kind: Kind, action: type[Action], body: type[Part], *, needed: bool) -> Handler:
    struct: type[Any] = kind.struct
    empty = None if needed else body()

    async def act(request: Request) -> Answer:
        query, key, plane, at = (
            request.query(WriteQuery),
            request.idempotency_key,
            request.write_plane,
            request.if_match,
        )
        ref = request.ref(struct, query.namespace)
        asked = msgspec.structs.asdict(await _read_action_body(request, body, empty))
        return resource_answer(await plane.act(ref, action(**asked), at=at, dry_run=query.dry_run, request=key))

    return act


async def _read_action_body(request: Request, body: type[Part], empty: Part | None) -> Part:
    """Read an action's body. Secrets in clear text are sealed at once."""
    if not holds_secrets(body):
        return await request.read(body, empty=empty)
    document = await request.read(dict[str, Any], empty=None if empty is None else {})
    sealed, faults = request.shared.core.sealing.seal_raw(document, body)
    return convert_document(sealed, body, faults)


@cache
def _body_type(action: type[Action]) -> type[Part]:
    """Return the body type of an action: its fields without the tag, which is part of the path."""
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [
        (field.name, field.type) if field.required else (field.name, field.type, field.default)
        for field in msgspec.structs.fields(action)
    ]
    return define_body(f"{action.__name__}Body", action.__doc__, fields)


def _action_routes(kind: Kind) -> Iterator[Route]:
    for action in ACTIONS.get(kind.name, ()):
        verb, body = str(action.__struct_config__.tag), _body_type(action)
        first, *rest = verb.split("-")
        needed = any(field.required for field in msgspec.structs.fields(action))
        yield Route(
            POST,
            f"/api/{kind.plural}/{{id}}/{verb}",
            _action_handler(kind, action, body, needed=needed),
            f"{first}{''.join(map(str.title, rest))}{kind.name}",
            (action.__doc__ or "").rstrip("."),
            policy=policy_for(kind, Verb.ACT),
            kind=kind,
            query=WriteQuery,
            body=body,
            body_needed=needed,
            answer=kind.struct,
            headers=(IDEMPOTENCY_KEY, IF_MATCH),
        )


ACTION_ROUTES: Final[tuple[Route, ...]] = tuple(route for kind in KINDS.values() for route in _action_routes(kind))
