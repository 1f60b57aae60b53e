"""The audit over HTTP, for administrators: who did what to which objects, when and from where."""

from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from lcm.api.answers import Answer, value
from lcm.api.http import Request
from lcm.api.routes import GET, Policy, Route
from lcm.control.audit import Wish, search
from lcm.control.wire_access import AuditList
from lcm.model.identity import ADMINS
from lcm.model.resource import Moment, Part

LONGEST: Final = 500
_Text = Annotated[str, Meta(max_length=512)]


class AuditQuery(Part):
    """Which records to list."""

    since: Annotated[Moment, Meta(description="from this moment on")] | UnsetType = UNSET
    until: Annotated[Moment, Meta(description="before this moment")] | UnsetType = UNSET
    who: Annotated[_Text, Meta(description="of this caller only")] = ""
    kind: Annotated[_Text, Meta(description="about things of this kind only", examples=["LabWorker"])] = ""
    name: Annotated[_Text, Meta(description="about things of this name only")] = ""
    limit: Annotated[int, Meta(ge=1, le=LONGEST, description="records in a page, at most")] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=256, description="`next` of the page before")] | UnsetType = (
        UNSET
    )


async def _list(request: Request) -> Answer:
    query = request.query(AuditQuery)
    wish = Wish(
        since=None if isinstance(query.since, UnsetType) else query.since,
        until=None if isinstance(query.until, UnsetType) else query.until,
        who=query.who,
        kind=query.kind,
        name=query.name,
    )
    after = None if isinstance(query.cursor, UnsetType) else query.cursor
    found = await search(request.shared.core.store, wish, limit=query.limit, after=after)
    return value(AuditList(items=tuple(found.records), next=found.next))


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/audit",
        _list,
        "listAudit",
        "List who wrote what, newest last",
        policy=Policy(ADMINS),
        query=AuditQuery,
        answer=AuditList,
    ),
)
