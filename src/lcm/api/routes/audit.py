"""The audit, for administrators, and secrets.

The audit lists who did what to which objects, when and from where. A secret is sealed for whoever puts it into a
document, and all secrets are sealed again when the key is rotated.
"""

from typing import Annotated, Final

from msgspec import UNSET, Meta, UnsetType

from lcm.api.http.answers import Answer, json_answer
from lcm.api.http.request import Request
from lcm.api.http.routing import GET, POST, Policy, Route
from lcm.control.access.audit import AuditFilter, search_records
from lcm.control.access.sealing import ClearText, SealedText
from lcm.control.plane.wire import AuditList
from lcm.control.upkeep.rotation import Rotated, Rotation, RotationRequest
from lcm.model.access.identity import ADMINS, STAFF
from lcm.model.access.secret import Secret
from lcm.model.base.resource import Moment, Part

LONGEST_PAGE: Final = 500
_Text = Annotated[str, Meta(max_length=512)]


class AuditQuery(Part):
    """Which audit records to list."""

    since: Annotated[Moment, Meta(description="from this moment on")] | UnsetType = UNSET
    until: Annotated[Moment, Meta(description="before this moment")] | UnsetType = UNSET
    who: Annotated[_Text, Meta(description="of this caller only")] = ""
    kind: Annotated[_Text, Meta(description="about things of this kind only", examples=["LabWorker"])] = ""
    name: Annotated[_Text, Meta(description="about things of this name only")] = ""
    limit: Annotated[int, Meta(ge=1, le=LONGEST_PAGE, description="records in a page, at most")] = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=256, description="`next` of the page before")] | UnsetType = (
        UNSET
    )


async def _list_audit(request: Request) -> Answer:
    query = request.query(AuditQuery)
    wish = AuditFilter(
        since=None if isinstance(query.since, UnsetType) else query.since,
        until=None if isinstance(query.until, UnsetType) else query.until,
        who=query.who,
        kind=query.kind,
        name=query.name,
    )
    after = None if isinstance(query.cursor, UnsetType) else query.cursor
    found = await search_records(request.shared.core.store, wish, limit=query.limit, after=after)
    return json_answer(AuditList(items=tuple(found.records), next=found.next))


AUDIT_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        GET,
        "/api/audit",
        _list_audit,
        "listAudit",
        "List who wrote what, newest last",
        policy=Policy(ADMINS),
        query=AuditQuery,
        answer=AuditList,
    ),
)


async def _seal_secret(request: Request) -> Answer:
    text = Secret((await request.read(ClearText)).text)
    return json_answer(SealedText(sealed=request.shared.core.sealing.seal_text(text)))


async def _rotate_keys(request: Request) -> Answer:
    wish = await request.read(RotationRequest, empty=RotationRequest())
    rotation = Rotation(request.writer, request.shared.core.sealing.need_sealer())
    return json_answer(await rotation.run(drop_old=wish.drop_old))


SECRET_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        POST,
        "/api/secrets/seal",
        _seal_secret,
        "sealSecret",
        "Seal a secret for a document",
        policy=Policy(STAFF),
        body=ClearText,
        answer=SealedText,
    ),
    Route(
        POST,
        "/api/secrets/rotate",
        _rotate_keys,
        "rotateSealKeys",
        "Seal all secrets anew with another key",
        policy=Policy(ADMINS),
        body=RotationRequest,
        body_needed=False,
        answer=Rotated,
    ),
)
