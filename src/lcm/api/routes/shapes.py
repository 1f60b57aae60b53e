"""The types of queries, bodies and answers, concrete for every kind, so that the OpenAPI document is exact.

Used by the tables of `api.routes` and by `api.openapi`. Types that the client shares with the API are in
`control.plane.bodies` and `control.plane.wire`.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from lcm.control.plane.batch import SCHEMAS, AnyObject, ObjectOrNull
from lcm.control.plane.bodies import OneQuery
from lcm.control.plane.problems import Problem
from lcm.control.plane.protocol import LONGEST_APPLY, LONGEST_PAGE, PAGE_SIZE
from lcm.control.plane.wire import EventId
from lcm.model.base.event import Data, Event
from lcm.model.base.resource import Count, Moment, Name, Part, Text
from lcm.model.kinds.registry import KINDS, Kind

_Selector = Annotated[str, Meta(max_length=1024)]
_Cursor = Annotated[str, Meta(min_length=1, max_length=1024)]
_DryRun = Annotated[bool, Meta(description="check everything, answer what would be, write nothing")]
_EVENT_DATA: Final = [{"$ref": f"{SCHEMAS}{one.__name__}"} for one in get_args(Data)]
_EventData = Annotated[Any, Meta(extra_json_schema={"anyOf": _EVENT_DATA})]


class WriteQuery(OneQuery):
    """The namespace to write in, and whether to write or only to check."""

    dry_run: _DryRun = False


class DryQuery(Part):
    """Whether to write or only to check."""

    dry_run: _DryRun = False


class ListQuery(Part):
    """Which objects to list."""

    namespace: Annotated[Name, Meta(description="without it, all namespaces")] | UnsetType = UNSET
    label_selector: Annotated[_Selector, Meta(description="conditions on labels", examples=["tier=exam"])] = ""
    field_selector: Annotated[_Selector, Meta(description="conditions on fields", examples=["status.phase=READY"])] = ""
    limit: Annotated[int, Meta(ge=1, le=LONGEST_PAGE, description="objects in a page, at most")] = PAGE_SIZE
    cursor: Annotated[_Cursor, Meta(description="`next` of the page before")] | UnsetType = UNSET
    archived: Annotated[bool, Meta(description="those in the archive, in place of the live ones")] = False


class WatchQuery(Part):
    """What to follow, and from where."""

    kinds: Annotated[str, Meta(max_length=512, description="kinds, with commas between", examples=["LabletSession"])]
    after: Annotated[Count, Meta(description="the `revision` of a list, or of the last line read", examples=[0])]


class ApplyBody(Part):
    """Documents to create or replace, in any order."""

    documents: Annotated[tuple[AnyObject, ...], Meta(max_length=LONGEST_APPLY)]


class ObjectSeen(msgspec.Struct, frozen=True):
    """An object as a commit left it; null when it is gone, or no longer visible to this caller."""

    kind: str
    namespace: str
    name: str
    object: ObjectOrNull


class WatchLine(msgspec.Struct, frozen=True):
    """One commit. A line that has seen nothing is a keep-alive; a line with a problem is the last."""

    revision: Count
    seen: tuple[ObjectSeen, ...]
    problem: Problem | UnsetType = UNSET


class EventLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event; what `data` holds depends on its type."""

    id: EventId
    type: str
    time: Moment
    kind: str
    name: str
    namespace: str
    data: _EventData
    owner_id: str | UnsetType = UNSET
    session_id: str | UnsetType = UNSET
    worker_id: str | UnsetType = UNSET
    definition_id: str | UnsetType = UNSET

    @classmethod
    def of(cls, number: str, event: Event) -> "EventLine":
        """Return the line of an event, with its id."""
        return cls(
            id=number,
            type=event.type,
            time=event.time,
            kind=event.kind,
            name=event.name,
            namespace=event.namespace,
            data=event.data,
            owner_id=event.owner or UNSET,
            session_id=event.session_id or UNSET,
            worker_id=event.worker_id or UNSET,
            definition_id=event.definition_id or UNSET,
        )


class EventPage(msgspec.Struct, frozen=True):
    """Events in the order in which they happened.

    To go on, send `last` as `after` here, or as Last-Event-ID to the stream; `more` says that there are more already.
    """

    items: tuple[EventLine, ...]
    last: EventId
    more: bool


class Health(msgspec.Struct, frozen=True):
    """The process answers."""

    status: Literal["ok"] = "ok"


class ReadyCheck(msgspec.Struct, frozen=True):
    """One thing that must hold before requests can be served."""

    name: str
    ok: bool


class Readiness(msgspec.Struct, frozen=True):
    """Whether requests could be served at a moment."""

    ready: bool
    at: Moment
    checks: tuple[ReadyCheck, ...]


class DescriptionInfo(msgspec.Struct, frozen=True):
    """Title and version of the API."""

    title: str
    version: str


class Description(msgspec.Struct, frozen=True):
    """An OpenAPI document."""

    openapi: str
    info: DescriptionInfo


def define_body(name: str, about: str | None, fields: Iterable[tuple[str, Any] | tuple[str, Any, Any]]) -> type[Part]:
    """Define the type of a body that follows from a kind or an action."""
    named = {"__doc__": about}
    made = msgspec.defstruct(name, fields, bases=(Part,), frozen=True, kw_only=True, namespace=named)
    assert issubclass(made, Part)
    return made


def _define_list(kind: Kind) -> type[msgspec.Struct]:
    items: Any = tuple[kind.struct, ...]  # type: ignore[name-defined]
    about = {"__doc__": f"A page of {kind.name} objects, true at its revision; `next` is null on the last."}
    fields = [("items", items), ("revision", Count), ("next", str | None)]
    return msgspec.defstruct(f"{kind.name}List", fields, frozen=True, namespace=about)


def _define_report(kind: Kind) -> type[Part]:
    seen = next(field.type for field in msgspec.structs.fields(kind.struct) if field.name == "status")
    about = f"What was seen of a {kind.name} at exactly this revision."
    return define_body(
        f"{kind.name}StatusReport", about, [("resource_version", Count), ("status", seen), ("reason", Text, "")]
    )


LISTS: Final[Mapping[str, type[msgspec.Struct]]] = {name: _define_list(kind) for name, kind in KINDS.items()}
REPORTS: Final[Mapping[str, type[Part]]] = {name: _define_report(kind) for name, kind in KINDS.items()}
