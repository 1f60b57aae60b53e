"""Quotas as people see them: of one's own, of any owner, and of everybody in a namespace or on a track.

Called by `control.plane.local_operations`.
"""

from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from lcm.control.booking.guards import owner_guard_key, read_guards
from lcm.control.booking.promise import Promises
from lcm.control.booking.quota import MEASURES, UNITS, BookingQuota, Bound, Wish, shared_bounds
from lcm.control.booking.usage import Scope, UseBook, UsedPiece
from lcm.control.objects.writer import Writer
from lcm.control.plane.bodies import QuotaQuery
from lcm.model.access.identity import SEES_ALL, Caller, Role, Subject
from lcm.model.base.errors import Fault, Forbidden, Invalid, Refused
from lcm.model.kinds.settings import QuotaRule
from lcm.model.money.quotas import LIMITS, QuotaLine, QuotaPage, QuotaView
from lcm.placement.timeline import END, micros, moment_of
from lcm.system.tasks import TimeSlice

_NO_LIMIT: Final = "no limit"
_EVERYWHERE: Final = "\0"
"""Stands for a namespace or a track that no rule names."""
_Named = tuple[str | None, str | None]
"""A namespace and a track; None means all of them."""


async def list_quotas(writer: Writer, promises: Promises, asked: QuotaQuery) -> QuotaPage:
    """Return the caller's quotas, or, for staff, those of an owner, of a namespace or a track, or of all there are.

    Raises Forbidden where somebody but staff asks for others, Refused where there are no quotas, Invalid for an owner
    whom nobody could be.
    """
    caller, quota, scope = writer.caller, promises.quota, (asked.namespace or None, asked.track)
    is_staff = caller.role in SEES_ALL
    if not is_staff and (asked.everybody or asked.owner not in ("", caller.name)):
        raise Forbidden(f"a caller of role {caller.role} may not read the quotas of others")
    if quota is None:
        raise Refused("this control plane has no quotas: it was started without limits")
    if asked.owner:
        _check_owner(asked.owner)
    await quota.usage.ready()
    about, now = asked.owner or caller.name, writer.clock.now()
    guards = await read_guards(writer.store, owner_guard_key(about))
    await promises.calendar.wait_for_revision(guards.revision)
    if asked.everybody:
        return await _list_all(quota, asked, now)
    if is_staff and not asked.owner and scope != (None, None):
        return QuotaPage(items=(await _scope_view(quota, scope, now),))
    return QuotaPage(items=tuple(await _owner_views(quota, _caller_of(caller, about, asked.role), scope, now)))


def _check_owner(owner: str) -> None:
    try:
        msgspec.convert(owner, Subject)
    except msgspec.ValidationError as error:
        remedy = "use letters, digits and . _ @ + -, at most 128"
        raise Invalid(Fault("owner", "not a valid name", remedy)) from error


def _caller_of(caller: Caller, owner: str, role: Role | None) -> Caller:
    """Return an owner as a caller. Nobody knows the role of somebody who is not there: it is told, or user."""
    usual = caller.role if owner == caller.name else Role.USER
    return Caller(name=owner, role=role or usual)


async def _list_all(quota: BookingQuota, asked: QuotaQuery, now: datetime) -> QuotaPage:
    """Return a page of all owners; on the first page, everybody's quotas come before them."""
    owners = quota.usage.owners
    first = bisect_right(owners, asked.cursor) if asked.cursor else 0
    shown = owners[first : first + asked.limit]
    rules = () if asked.cursor else quota.rules.shared
    shared = [await _scope_view(quota, (one.namespace, one.track), now) for one in rules]
    views = [
        view
        for owner in shown
        for view in await _owner_views(quota, Caller(name=owner, role=asked.role or Role.USER), (None, None), now)
    ]
    more = first + asked.limit < len(owners)
    return QuotaPage(items=(*shared, *views), next=shown[-1] if more and shown else None)


async def _owner_views(quota: BookingQuota, owner: Caller, scope: _Named, now: datetime) -> Sequence[QuotaView]:
    """Return the quotas of an owner in a scope; of everything, and of each scope for which there are rules, if none."""
    rules = quota.rules.personal_rules(owner.name, owner.role)
    scoped = dict.fromkeys((one.namespace, one.track) for one in rules)
    every = [scope] if scope != (None, None) else [scope, *(one for one in scoped if one != scope)]
    bounds, views = quota.bounds_for(owner), list[QuotaView]()
    for namespace, track in every:
        place = _place_of((namespace, track))
        bounded = {one.limit: one for one in bounds.personal_bounds(place)}
        books = [book for at, book in quota.usage.books_of(owner.name).items() if _is_within(at, (namespace, track))]
        lines = await _lines_of(bounded, books, now)
        views.append(QuotaView(lines=lines, owner=owner.name, namespace=namespace, track=track))
    return views


async def _scope_view(quota: BookingQuota, scope: _Named, now: datetime) -> QuotaView:
    """Return what everybody has in a scope together, with the limits of the rule for exactly that."""
    rule = next((one for one in quota.rules.shared if (one.namespace, one.track) == scope), QuotaRule())
    bounded = {one.limit: one for one in shared_bounds(rule, quota.usage)}
    books = [quota.usage.shared_book(one) for one in quota.usage.scopes if _is_within(one, scope)]
    return QuotaView(lines=await _lines_of(bounded, books, now), namespace=scope[0], track=scope[1])


def _place_of(scope: _Named) -> Scope:
    namespace, track = (_EVERYWHERE if one is None else one for one in scope)
    return namespace, track


def _is_within(place: Scope, scope: _Named) -> bool:
    return scope[0] in (None, place[0]) and scope[1] in (None, place[1])


async def _lines_of(bounded: dict[str, Bound], books: Sequence[UseBook], now: datetime) -> tuple[QuotaLine, ...]:
    """Return a line for each limit, in turns with other tasks; what nothing bounds is counted by these books."""
    lines, time_slice = list[QuotaLine](), TimeSlice()
    for limit in LIMITS:
        bound = bounded.get(limit)
        if limit != "horizon_days":
            lines.append(_line_of(limit, bound, books, now))
        elif bound is not None:
            lines.append(QuotaLine(limit=limit, source=bound.source, most=bound.most, left=bound.most))
        await time_slice.yield_if_over()
    return tuple(lines)


def _line_of(limit: str, bound: Bound | None, books: Sequence[UseBook], now: datetime) -> QuotaLine:
    whole = Wish(pieces=[UsedPiece(micros(now), END, 0, 0)])
    use = next(MEASURES[limit](bound.books if bound else books, whole, micros(now)))
    used = use.used / UNITS.get(limit, 1)
    at = moment_of(use.at) if use.at is not None and use.used else None
    if bound is None:
        return QuotaLine(limit=limit, source=_NO_LIMIT, used=used, at=at)
    left = max(0.0, bound.most - used)
    return QuotaLine(limit=limit, source=bound.source, most=bound.most, used=used, left=left, at=at)
