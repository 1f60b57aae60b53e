"""Calendar feeds: made for people who are signed in, read by calendar programs that only know an address.

The secret in the address is all that protects a feed, so what is wrong with one is not told: one that is unknown,
revoked or expired is not there.
"""

import asyncio
from datetime import timedelta
from hashlib import sha256
from typing import Final

from lcm.api.http.answers import Answer, json_answer
from lcm.api.http.problems import NOT_FOUND, RATE_LIMITED, Declined
from lcm.api.http.request import Request
from lcm.api.http.routing import GET, POST, PUBLIC, Policy, Route
from lcm.api.routes.access import check_room
from lcm.control.access.invitations import make_feed_token
from lcm.control.access.tokens import Credential
from lcm.control.plane.protocol import Ref
from lcm.control.plane.wire import FeedMade, FeedRequest, token_info
from lcm.model.access.identity import BOOKERS, PEOPLE
from lcm.model.base.errors import Fault, Invalid
from lcm.model.kinds.reservation import Reservation

CALENDAR: Final = b"text/calendar; charset=utf-8"
_MAX_SECRET_LENGTH: Final = 200
_KEPT: Final = b"private, no-cache"
_PAGE_POLICY: Final = b"default-src 'none'; frame-ancestors 'none'"


def feed_path(secret: str) -> str:
    """Return the path of a feed, without the address of the API."""
    return f"/api/feeds/{secret}/calendar.ics"


async def _make_feed(request: Request) -> Answer:
    wish = await request.read(FeedRequest, empty=FeedRequest())
    check_room(request, request.signed_in.name)
    writer, whole = request.writer, None
    if wish.reservation is not None:
        found = await writer.find(Ref(Reservation, wish.reservation, wish.namespace))
        if found is None:
            raise Invalid(Fault("reservation", "you have no such class", "`lcm get reservations` lists yours"))
        whole = found.resource
    secret, token = await make_feed_token(
        request.shared.tokens,
        whole,
        writer=writer,
        made_with=request.credential,
        life=timedelta(seconds=wish.expires_in_seconds),
    )
    return json_answer(FeedMade(path=feed_path(secret.reveal()), info=token_info(token)), 201)


async def _show_feed(request: Request) -> Answer:
    # iCalendar is slow to load, and few processes write any.
    from lcm.control.notices.calendar_feeds import make_feed  # noqa: PLC0415

    shared, credential = request.shared, _find_feed(request)
    if wait := shared.feeds.take(credential.id, asyncio.get_running_loop().time()):
        raise Declined(RATE_LIMITED, "this feed is read too often", wait=wait)
    body = await make_feed(shared.core.store, shared.core.cache, credential.caller, shared.clock.now())
    if body is None:
        raise _no_feed()
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = ((b"etag", tag.encode()),)
    if _is_known(request, tag):
        return Answer(304, headers=headers, page_policy=_PAGE_POLICY, kept=_KEPT)
    return Answer(body=body, media=CALENDAR, headers=headers, page_policy=_PAGE_POLICY, kept=_KEPT)


def _find_feed(request: Request) -> Credential:
    """Return whose feed the path's secret opens. Raise Declined for a wrong one, which counts as a failed sign-in."""
    presented = request.params[0]
    found = request.shared.tokens.find_feed(presented) if len(presented) <= _MAX_SECRET_LENGTH else None
    if found is None:
        raise request.shared.failures.count(request.address, NOT_FOUND, str(_no_feed()))
    return found


def _no_feed() -> Declined:
    return Declined(NOT_FOUND, "there is no such feed, or it was revoked: `lcm feed create` makes one")


def _is_known(request: Request, tag: str) -> bool:
    """Return whether the client says that it has this state of the feed."""
    known = [one.strip().removeprefix("W/") for one in (request.header("if-none-match") or "").split(",")]
    return tag in known or known == ["*"]


ROUTES: Final[tuple[Route, ...]] = (
    Route(
        POST,
        "/api/feeds",
        _make_feed,
        "makeFeed",
        "Make a calendar feed of a class, or of all that is the caller's; it is listed and revoked as a token",
        policy=Policy(BOOKERS & PEOPLE),
        body=FeedRequest,
        body_needed=False,
        answer=FeedMade,
        status=201,
        also=(409,),
    ),
    Route(
        GET,
        "/api/feeds/{secret}/calendar.ics",
        _show_feed,
        "showFeed",
        "Read a calendar feed (RFC 5545) by the secret in its address",
        policy=PUBLIC,
        answer=str,
        answer_media=CALENDAR,
        headers=("If-None-Match",),
        also=(304, 404),
    ),
)
