"""Pages of lists with selectors, and watches, for one caller. Used by `control.plane.local`.

A caller who does not see everything learns nothing of other people's objects, not even that one was deleted: the watch
knows which keys were visible to the caller at the revision it begins at.
"""

import base64
import binascii
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic

import msgspec

from lcm.control.objects.archive import archived_prefix
from lcm.control.objects.records import CODEC, NAME, codec_of, read_entry, ref_of_key
from lcm.control.objects.writer import Writer
from lcm.control.plane.protocol import LONGEST_PAGE, PAGE_SIZE, Changes, Listing, ObjectChange, PlaneWatch, R
from lcm.model.access.identity import PERMISSIONS, SEES_ALL, Verb
from lcm.model.access.learner import can_see, could_mention, show_to
from lcm.model.base.errors import Fault, Forbidden, Invalid, LcmError
from lcm.model.base.resource import shorten_text
from lcm.model.base.selector import ObjectSelector, find_needed_texts, selects
from lcm.model.kinds.registry import KINDS, Kind, Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.store.base import Change, Cursor, Page, StoreWatch, check_key, future_revision_error
from lcm.system.tasks import TimeSlice

_MAX_REVISION: Final = 2**53
PAGE_BYTES: Final = 8_000_000
"""What the objects of a page have in the store, at most: a page of large ones ends before its limit."""
MOST_EXAMINED: Final = 10_000
"""How many objects are looked at for a page, at most: of a rare kind it may be empty though others follow."""
_cursor_decoder: Final = msgspec.msgpack.Decoder(tuple[int, str])


@dataclass(frozen=True, slots=True)
class ListRequest(Generic[R]):
    """What a caller wants listed: live objects, or those in the archive."""

    kind: type[R]
    namespace: str | None
    where: ObjectSelector
    limit: int
    archived: bool = False

    @property
    def prefix(self) -> str:
        """The key prefix of these objects."""
        if self.archived:
            return archived_prefix(self.kind)
        kind = KINDS[self.kind.__name__]
        return kind.prefix_in(self.namespace) if self.namespace is not None else kind.prefix

    def matches(self, resource: R) -> bool:
        """Return whether an object belongs in the list."""
        return self.namespace in (None, resource.metadata.namespace) and selects(self.where, resource)


async def list_page(writer: Writer, asked: ListRequest[R], cursor: str | None) -> Listing[R]:
    """Read a page of a list for a caller."""
    namespace, limit = asked.namespace, asked.limit
    if not 1 <= limit <= LONGEST_PAGE:
        raise Invalid(Fault("limit", f"{limit} is out of range", f"use 1 to {LONGEST_PAGE}"))
    if namespace is not None and not NAME.fullmatch(namespace):
        raise Invalid(
            Fault("namespace", f"{shorten_text(namespace, 80)!r} is invalid", "use lower-case letters, digits and -")
        )
    start = _decode_cursor(cursor, asked.prefix) if cursor is not None else None
    where = asked.where
    beyond = asked.archived or bool(where.fields) or len(where.exact_labels) < len(where.labels)
    if not beyond and not _sees_only_own(writer, asked.kind):
        page = await writer.store.scan(asked.prefix, labels=where.exact_labels, limit=limit, cursor=start)
        return await _read_page(page, asked.kind)
    return await _filter_page(writer, asked, start)


async def _read_page(page: Page, kind: type[R]) -> Listing[R]:
    found, size, time_slice = list[R](), 0, TimeSlice()
    for place, entry in enumerate(page.entries):
        size += len(entry.value)
        if found and size > PAGE_BYTES:
            last = Cursor(page.revision, page.entries[place - 1].key)
            return Listing(found, page.revision, _encode_cursor(last))
        await time_slice.yield_if_over()
        found.append(read_entry(entry, kind))
    return Listing(found, page.revision, _encode_cursor(page.next))


def _sees_only_own(writer: Writer, kind: type[R]) -> bool:
    return kind in (LabletSession, Reservation) and writer.caller.role not in SEES_ALL


async def _filter_page(writer: Writer, asked: ListRequest[R], start: Cursor | None) -> Listing[R]:
    limited, found, last, examined = _sees_only_own(writer, asked.kind), list[R](), start, 0
    labels, size, time_slice = asked.where.exact_labels, 0, TimeSlice()
    needed = find_needed_texts(KINDS[asked.kind.__name__].struct, asked.where) if codec_of(asked.kind) is CODEC else ()
    page = await writer.store.scan(asked.prefix, labels=labels, limit=PAGE_SIZE, cursor=start)
    while True:
        for entry in page.entries:
            await time_slice.yield_if_over()
            if limited and not could_mention(writer.caller, entry.value):
                continue
            if not all(any(text in entry.value for text in texts) for texts in needed):
                continue
            resource = read_entry(entry, asked.kind)
            if not (can_see(writer.caller, resource) and asked.matches(resource)):
                continue
            size += len(entry.value)
            if len(found) == asked.limit or (found and size > PAGE_BYTES):
                return Listing(found, page.revision, _encode_cursor(last))
            found.append(resource)
            last = Cursor(page.revision, entry.key)
        examined += len(page.entries)
        if page.next is None or examined >= MOST_EXAMINED:
            return Listing(found, page.revision, _encode_cursor(page.next))
        page = await writer.store.scan(asked.prefix, labels=labels, limit=PAGE_SIZE, cursor=page.next)


def _encode_cursor(cursor: Cursor | None) -> str | None:
    if cursor is None:
        return None
    return base64.urlsafe_b64encode(msgspec.msgpack.encode((cursor.revision, cursor.key))).decode().rstrip("=")


def _decode_cursor(text: str, prefix: str) -> Cursor:
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        revision, key = _cursor_decoder.decode(raw)
        check_key(key)
    except (binascii.Error, ValueError, Invalid) as error:
        raise _cursor_error() from error
    if not (0 < revision < _MAX_REVISION and key.startswith(prefix)):
        raise _cursor_error()
    return Cursor(revision, key)


def _cursor_error() -> Invalid:
    return Invalid(Fault("cursor", "not of this list", "use `next` of the page before, with the same arguments"))


_SCAN_PAGE_SIZE: Final = 500


class LocalWatch(PlaneWatch):
    """Changes of some kinds, as one caller may see them."""

    def __init__(self, writer: Writer, kinds: Sequence[type[Resource]], after: int) -> None:
        self._writer = writer
        self._caller = writer.caller
        self._after = after
        readable = [kind for kind in KINDS.values() if writer.caller.role in PERMISSIONS[kind.name][Verb.READ]]
        self._kinds = {kind.prefix: kind for kind in [KINDS[one.__name__] for one in kinds] or readable}
        self._visible_keys: set[str] | None = None
        self._refusal: LcmError | None = _find_refusal(writer, self._kinds.values())
        self._watch: StoreWatch | None = None if self._refusal else writer.store.watch(*self._kinds, after=after)

    async def __anext__(self) -> Changes:
        if self._refusal is not None:
            raise self._refusal
        assert self._watch is not None, "what is not refused is watched"
        if self._visible_keys is None:
            await self._check_start()
            self._visible_keys = await self._read_visible_keys()
        while True:
            changed = await anext(self._watch)
            if seen := [one for change in changed.changes if (one := self._visible_change(change, self._visible_keys))]:
                return Changes(changed.revision, seen)
            self.passed_revision = changed.revision

    async def aclose(self) -> None:
        if self._watch is not None:
            await self._watch.aclose()

    def _visible_change(self, change: Change, own: set[str]) -> ObjectChange | None:
        ref = ref_of_key(change.key)
        if ref is None or ref.kind_info.prefix not in self._kinds:
            return None
        entry = change.entry
        if not _sees_only_own(self._writer, ref.kind):
            return ObjectChange(ref, self._show(read_entry(entry, ref.kind)) if entry else None)
        resource = read_entry(entry, ref.kind) if entry and could_mention(self._caller, entry.value) else None
        if resource is not None and can_see(self._caller, resource):
            own.add(change.key)
            return ObjectChange(ref, resource)
        if change.key not in own:
            return None
        own.discard(change.key)
        return ObjectChange(ref, None)

    def _show(self, resource: Resource) -> Resource:
        return show_to(self._caller, resource)

    async def _check_start(self) -> None:
        """Raise Relist when the revision to start after has not happened: what comes before it would be missed."""
        page = await self._writer.store.scan(next(iter(self._kinds)), limit=1)
        if self._after > page.revision:
            self._refusal = future_revision_error(self._after)
            await self.aclose()
            raise self._refusal

    async def _read_visible_keys(self) -> set[str]:
        keys: set[str] = set()
        for kind in [one for one in self._kinds.values() if _sees_only_own(self._writer, one.struct)]:
            at: Cursor | None = Cursor(self._after, kind.prefix)
            while at is not None:
                page = await self._writer.store.scan(kind.prefix, limit=_SCAN_PAGE_SIZE, cursor=at)
                mine = (entry for entry in page.entries if could_mention(self._caller, entry.value))
                keys.update(entry.key for entry in mine if can_see(self._caller, read_entry(entry, kind.struct)))
                at = page.next
        return keys


def _find_refusal(writer: Writer, kinds: Iterable[Kind]) -> Forbidden | None:
    """Return the error if a kind is not for this caller. It is raised on the first read, as HTTP requires."""
    try:
        for kind in kinds:
            writer.require_permission(Verb.READ, kind.struct)
    except Forbidden as error:
        return error
    return None
