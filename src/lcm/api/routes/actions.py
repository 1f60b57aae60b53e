"""The actions of objects, each a sub-path of its object."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from lcm.api.http.answers import Answer, resource_answer
from lcm.api.http.request import Request, convert_document
from lcm.api.http.routing import POST, Handler, Route, policy_for
from lcm.api.routes.shapes import WriteQuery, define_body
from lcm.control.plane.protocol import Action
from lcm.control.plane.wire import ACTIONS, IDEMPOTENCY_KEY
from lcm.model.access.identity import Verb
from lcm.model.access.secret import holds_secrets
from lcm.model.base.resource import Part
from lcm.model.kinds.registry import KINDS, Kind

_EARLIEST: Final = datetime.min.replace(tzinfo=UTC)


def _action_handler(kind: Kind, action: type[Action], body: type[Part], *, needed: bool) -> Handler:
    struct: type[Any] = kind.struct
    empty = None if needed else body()

    async def act(request: Request) -> Answer:
        query, key, plane = request.query(WriteQuery), request.idempotency_key, request.write_plane
        ref = request.ref(struct, query.namespace)
        asked = msgspec.structs.asdict(await _read_action_body(request, body, empty))
        return resource_answer(await plane.act(ref, action(**asked), dry_run=query.dry_run, request=key))

    return act


async def _read_action_body(request: Request, body: type[Part], empty: Part | None) -> Part:
    """Read an action's body. Secrets in clear text are sealed at once."""
    if not holds_secrets(body):
        return await request.read(body, empty=empty)
    document = await request.read(dict[str, Any], empty=None if empty is None else {})
    sealed, faults = request.shared.core.sealing.seal_raw(document, body)
    return convert_document(sealed, body, faults)


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
        needed = any(field.required for field in msgspec.structs.fields(action))
        yield Route(
            POST,
            f"/api/{kind.plural}/{{id}}/{verb}",
            _action_handler(kind, action, body, needed=needed),
            f"{_camel_case(verb)}{kind.name}",
            (action.__doc__ or "").rstrip("."),
            policy=policy_for(kind, Verb.ACT),
            kind=kind,
            query=WriteQuery,
            body=body,
            body_needed=needed,
            answer=kind.struct,
            headers=(IDEMPOTENCY_KEY,),
        )


def _camel_case(verb: str) -> str:
    first, *rest = verb.split("-")
    return first + "".join(map(str.title, rest))


ROUTES: Final[tuple[Route, ...]] = tuple(route for kind in KINDS.values() for route in _action_routes(kind))
