"""Forgets people: one whom an administrator names, and everybody in what ended long ago.

Called by `api` for administrators and by `control.upkeep.housekeeping`. It searches the stored bytes, so that documents
of a newer version and records that are no objects are included. It may be killed and repeated at any point: each commit
stands for itself, files are removed before what names them, and what tells who somebody is goes last.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
import structlog

from lcm.control.access.audit import AUDIT_PREFIX, AuditedAction, is_older_record
from lcm.control.access.tokens import SIGN_INS_PREFIX, TOKENS_PREFIX, Tokens
from lcm.control.accounts.stays import STAY_COSTS, STAYS, is_older_stay, owner_subject
from lcm.control.booking.guards import owner_guard_key
from lcm.control.delivery.sinks import scan_entries
from lcm.control.notices.notice_records import NOTICES
from lcm.control.objects.archive import archived_prefix
from lcm.control.objects.records import CODEC, DEAD_LETTERS, DELETED_SESSIONS, deletion_moment, read_entry
from lcm.control.objects.session_files import stored_name
from lcm.control.objects.uploads import uploads_of
from lcm.control.objects.writer import Writer, commit_ops
from lcm.control.plane.booking_actions import Swap
from lcm.control.plane.protocol import Plane, Terminate, ref_of
from lcm.control.upkeep.pseudonyms import (
    Renaming,
    is_pseudonym,
    make_pseudonym,
    rename_document,
    rename_everybody,
    rename_one,
)
from lcm.model.access.identity import AccessToken
from lcm.model.access.mail_address import normalize_address
from lcm.model.base.errors import Conflict, Fault, Gone, Invalid, Later, Refused, Relist
from lcm.model.base.resource import Count, Part, ShortText
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.reservation import RESERVATION_MACHINE, Reservation
from lcm.model.kinds.session import SESSION_MACHINE, LabletSession
from lcm.providers.protocols.artifacts import Artifacts, temporary_address
from lcm.store.base import ABSENT, Delete, Entry, Op, Put, Store, scan_from
from lcm.system.clock import new_seal_key
from lcm.system.tasks import TimeSlice

MOST_NAMES: Final = 10
MOST_LISTED: Final = 100
AUDIT_KIND: Final = "Person"
"""What the audit calls a person who is forgotten; the name is the pseudonym."""
KEY: Final = "forgetting/key"
"""Where the key is with which pseudonyms are made."""
NO_FILES: Final[Mapping[str, Any]] = {
    "artifacts": [],
    "continues": None,
    "save_request": None,
    "observation_request": None,
}
_SESSIONS: Final = (KINDS[LabletSession.__name__].prefix, archived_prefix(LabletSession))
_ROUNDS: Final = 20
_log: Final = structlog.get_logger()


class ForgetRequest(Part):
    """Whom to forget: all names of one person, of which some may be addresses.

    `cancel` ends first what runs or is booked. `dry_run` only says what there is.
    """

    names: Annotated[tuple[ShortText, ...], msgspec.Meta(min_length=1, max_length=MOST_NAMES)]
    cancel: bool = False
    dry_run: bool = False


class Forgotten(Part):
    """What was found of a person, by all names that they have here; with `done`, nothing of it is left.

    `live` is what runs or is booked, at most a hundred; while there is any, nothing is forgotten.
    """

    names: tuple[str, ...]
    pseudonym: str
    live: tuple[str, ...] = ()
    documents: Count = 0
    files: Count = 0
    tokens: Count = 0
    done: bool = False


@dataclass(frozen=True, slots=True)
class _Person:
    """All names of one person, as they are compared, and how they are replaced."""

    names: frozenset[str]
    pseudonym: str
    renaming: Renaming
    keys: frozenset[str]
    """Keys that hold nothing but the name."""
    prefixes: tuple[str, ...]
    """Prefixes of records that are removed."""
    subjects: frozenset[str]
    """Under what the costs of their stays are kept."""

    def is_named(self, text: str | None) -> bool:
        """Return whether a text is one of the names."""
        return bool(text) and (normalize_address(text) or text) in self.names

    def could_be_in(self, entry: Entry) -> bool:
        """Return False if an entry's bytes certainly do not name them: a fast test that saves decoding most entries."""
        lower = entry.value.lower()
        # A domain may be stored in another script; the part before it is ASCII.
        return any(name.lower().partition("@")[0].encode() in lower for name in self.names)


@dataclass(frozen=True, slots=True)
class Forgetting:
    """Forgets one person at a time, as an administrator's action."""

    writer: Writer
    plane: Plane
    tokens: Tokens
    artifacts: Artifacts | None

    async def run(self, wish: ForgetRequest) -> Forgotten:
        """Forget a person. May be repeated, also after a crash, until it is `done`.

        Raise Refused for one who has something booked or running, unless that is to be cancelled.
        """
        person = await self._identify(wish.names)
        report = Forgotten(names=tuple(sorted(person.names)), pseudonym=person.pseudonym)
        live = [f"{one.kind} {one.metadata.namespace}/{one.metadata.name}" async for one in self._find_live(person)]
        report = msgspec.structs.replace(report, live=tuple(live[:MOST_LISTED]))
        if live and not wish.dry_run:
            if not wish.cancel:
                raise Refused(f"{wish.names[0]} has {_list(live)}: wait for the end, or cancel it (--cancel)")
            await self._cancel_all(person)
            return report
        if wish.dry_run:
            return await self._count(person, report)
        await self.writer.submit([], deeds=[AuditedAction(verb="forget", kind=AUDIT_KIND, name=person.pseudonym)])
        documents, files = await self._rename_all(person)
        tokens = await self._revoke_all(person)
        more, _ = await self._rename_all(person)  # what was done with those tokens meanwhile
        _log.info("person forgotten", pseudonym=person.pseudonym, documents=documents + more, files=files)
        return msgspec.structs.replace(report, documents=documents + more, files=files, tokens=tokens, done=True)

    async def _identify(self, given: Sequence[str]) -> _Person:
        """Return a person with the addresses that are on their tokens. Raise Invalid for a name that is a pseudonym."""
        if any(map(is_pseudonym, given)):
            raise Invalid(Fault("names", "somebody who is forgotten already", "name the person as they were known"))
        names = {normalize_address(one) or one for one in given}
        names |= {one.reach.email for one in await self.tokens.list() if one.name in names and one.reach.email}
        pseudonym = make_pseudonym(await read_key(self.writer.store), given[0])
        spelled = names | set(given)
        return _Person(
            frozenset(names),
            pseudonym,
            rename_one(names, pseudonym),
            keys=frozenset(key for name in spelled for key in (owner_guard_key(name), uploads_of(name)[1])),
            prefixes=tuple(uploads_of(name)[0] for name in spelled),
            subjects=frozenset(map(owner_subject, spelled)),
        )

    async def _find_live(self, person: _Person) -> AsyncIterator[LabletSession | Reservation]:
        """Yield the sessions and classes that are not over and are theirs or for them."""
        async for entry in scan_entries(self.writer.store, KINDS[Reservation.__name__].prefix):
            whole = read_entry(entry, Reservation)
            people = (whole.spec.owner, *whole.spec.student_emails)
            if whole.status.phase not in RESERVATION_MACHINE.final and any(map(person.is_named, people)):
                yield whole
        async for entry in scan_entries(self.writer.store, _SESSIONS[0]):
            session = read_entry(entry, LabletSession)
            people = (session.spec.owner, session.spec.student_email or "")
            if session.status.phase not in SESSION_MACHINE.final and any(map(person.is_named, people)):
                yield session

    async def _cancel_all(self, person: _Person) -> None:
        """Cancel what is theirs; in the class of another, the seat stays without a person. May be repeated."""
        for whole in [one async for one in self._find_live(person) if isinstance(one, Reservation)]:
            with suppress(Gone, Refused, Conflict):  # it ends already: it is listed until it has
                await self._cancel_class(person, whole)
        for session in [one async for one in self._find_live(person) if isinstance(one, LabletSession)]:
            with suppress(Gone, Refused, Conflict):  # likewise
                await self.plane.act(ref_of(session), Terminate(reason="cancelled by an administrator"))

    async def _cancel_class(self, person: _Person, whole: Reservation) -> None:
        if person.is_named(whole.spec.owner):
            await self.plane.delete(ref_of(whole))
            return
        for learner in filter(person.is_named, whole.spec.student_emails):
            await self.plane.act(ref_of(whole), Swap(learner=learner, other=person.pseudonym))

    async def _count(self, person: _Person, report: Forgotten) -> Forgotten:
        documents = files = 0
        async for entry in scan_entries(self.writer.store, ""):
            documents += any(True for _ in _change(entry, person))
            files += len(_files_of(entry, person))
        tokens = len([one for one in await self.tokens.list() if _is_theirs(one, person)])
        return msgspec.structs.replace(report, documents=documents, files=files, tokens=tokens)

    async def _rename_all(self, person: _Person) -> tuple[int, int]:
        """Replace the person everywhere until nothing names them; return how many documents and files there were."""
        documents = files = 0
        for _ in range(_ROUNDS):
            try:
                changed, removed, disturbed = await self._rename_once(person)
            except Relist:
                changed, removed, disturbed = 0, 0, True
            documents, files = documents + changed, files + removed
            if not changed and not disturbed:
                return documents, files
        raise Later("too many other writes at the same time; repeat it")

    async def _rename_once(self, person: _Person) -> tuple[int, int, bool]:
        changed, removed, disturbed, time_slice = 0, 0, False, TimeSlice()
        async for entry in scan_entries(self.writer.store, ""):
            await time_slice.yield_if_over()
            ops = list(_change(entry, person))
            if not ops:
                continue
            removed += await remove_files(self.artifacts, _files_of(entry, person))
            try:
                # That a person was forgotten is in the audit; each document is not.
                await self.writer.submit(ops, deeds=())
                changed += 1
            except Conflict:
                disturbed = True
        return changed, removed, disturbed

    async def _revoke_all(self, person: _Person) -> int:
        doomed = [one.id for one in await self.tokens.list() if _is_theirs(one, person)]
        for token_id in doomed:
            try:
                await self.tokens.revoke(token_id, writer=self.writer)
            except Gone:
                continue  # it went with the one that it was made with
        return len(doomed)


def _list(live: Sequence[str]) -> str:
    few = ", ".join(live[:5])
    return f"{few} and {len(live) - 5} more" if len(live) > len(live[:5]) else few


def _is_theirs(token: AccessToken, person: _Person) -> bool:
    return person.is_named(token.name) or person.is_named(token.reach.email)


def _change(entry: Entry, person: _Person) -> Iterator[Op]:
    """Yield what is done to an entry so that it no longer names a person."""
    key = entry.key
    if key.startswith(TOKENS_PREFIX):
        return
    if key in person.keys or key.startswith(person.prefixes):
        yield Delete(key, at=entry.revision)
    elif key.startswith(STAY_COSTS):
        yield from _move_cost(entry, person)
    elif person.could_be_in(entry):
        drop = NO_FILES if _is_users(entry, person) else None
        raw = rename_document(entry.value, person.renaming, drop)
        if raw is None:
            return
        if key.startswith((NOTICES, DEAD_LETTERS, SIGN_INS_PREFIX)):
            yield Delete(key, at=entry.revision)
        else:
            labels = {name: person.renaming.address(value) for name, value in entry.labels.items()}
            yield Put(key, raw, labels, at=entry.revision)


def _move_cost(entry: Entry, person: _Person) -> Iterator[Op]:
    """Yield what keeps the cost of a stay under the pseudonym: it still adds up to what the owner spent."""
    parts = entry.key.split("/")
    if parts[2] in person.subjects:
        parts[2] = owner_subject(person.pseudonym)
        yield Delete(entry.key, at=entry.revision)
        yield Put("/".join(parts), entry.value)


def _is_users(entry: Entry, person: _Person) -> bool:
    """Return whether an entry is a session that has ended and was the person's to use."""
    session = _read_session(entry)
    if session is None or session.status.phase not in SESSION_MACHINE.final:
        return False
    return person.is_named(session.spec.student_email or session.spec.owner)


def _read_session(entry: Entry) -> LabletSession | None:
    return CODEC.decode(entry.value, LabletSession) if entry.key.startswith(_SESSIONS) else None


def _files_of(entry: Entry, person: _Person) -> Sequence[str]:
    """Return where the files are that were collected from a session of theirs."""
    if not entry.key.startswith(_SESSIONS) or not person.could_be_in(entry) or not _is_users(entry, person):
        return ()
    session = _read_session(entry)
    return list_files_of(session) if session else ()


def list_files_of(session: LabletSession) -> Sequence[str]:
    """Return where the files are that were collected from a session."""
    return [temporary_address(stored_name(session, one.name)).uri for one in session.status.artifacts]


async def remove_files(artifacts: Artifacts | None, uris: Sequence[str]) -> int:
    """Remove files; return how many. May be repeated."""
    if artifacts is None:
        return 0
    for uri in uris:
        await artifacts.remove(uri)
    return len(uris)


async def read_key(store: Store) -> bytes:
    """Return the key with which pseudonyms are made here; made when it is first needed."""
    if (known := await store.get(KEY)) is not None:
        return known.value
    made = new_seal_key()
    try:
        await commit_ops(store, Put(KEY, made, at=ABSENT))
    except Conflict:
        return await read_key(store)
    return made


@dataclass(slots=True)
class Retention:
    """Forgets everybody in what ended long ago: sessions in the archive, classes, deleted sessions, stays, the audit.

    Kept by `control.upkeep.housekeeping`; what it has looked at is not looked at again by the same process.
    """

    store: Store
    artifacts: Artifacts | None
    _reached: dict[str, str] = field(default_factory=dict)

    async def forget_before(self, before: datetime) -> int:
        """Forget everybody in what ended before a moment; return how many documents changed. May be repeated."""
        key, changed = await read_key(self.store), 0
        for prefix, is_over in _ENDINGS.items():
            async for entry in scan_from(self.store, prefix, self._reached.get(prefix, prefix)):
                if not is_over(entry, before):
                    if prefix in _OLDEST_FIRST:
                        break
                    continue
                changed += await self._forget_in(entry, key)
                if prefix in _OLDEST_FIRST:
                    self._reached[prefix] = entry.key
        return changed

    async def _forget_in(self, entry: Entry, key: bytes) -> bool:
        renaming, session = rename_everybody(key, entry.value), _read_session(entry)
        if session is not None:
            await remove_files(self.artifacts, list_files_of(session))
        raw = rename_document(entry.value, renaming, NO_FILES if session is not None else None)
        if raw is None:
            return False
        labels = {name: renaming.address(value) for name, value in entry.labels.items()}
        with suppress(Conflict):  # somebody changed it: it is looked at again
            await commit_ops(self.store, Put(entry.key, raw, labels, at=entry.revision))
            return True
        return False


def _is_ended_session(entry: Entry, before: datetime) -> bool:
    session = _read_session(entry)
    assert session is not None, "these are sessions"
    return session.status.phase in SESSION_MACHINE.final and _last_change(session) < before


def _is_ended_class(entry: Entry, before: datetime) -> bool:
    whole = CODEC.decode(entry.value, Reservation)
    return whole.status.phase in RESERVATION_MACHINE.final and _last_change(whole) < before


def _last_change(resource: LabletSession | Reservation) -> datetime:
    history = resource.status.history
    moment = history[-1].at if history else resource.metadata.created_at
    assert moment is not None, "what was admitted has a time"
    return moment


_ENDINGS: Final[Mapping[str, Callable[[Entry, datetime], bool]]] = {
    archived_prefix(LabletSession): _is_ended_session,
    KINDS[LabletSession.__name__].prefix: _is_ended_session,
    KINDS[Reservation.__name__].prefix: _is_ended_class,
    DELETED_SESSIONS: lambda entry, before: deletion_moment(entry) < before,
    STAYS: lambda entry, before: is_older_stay(entry.key, before),
    AUDIT_PREFIX: is_older_record,
}
"""What tells of people after it is over, and when it is over."""
_OLDEST_FIRST: Final = frozenset({archived_prefix(LabletSession), STAYS, AUDIT_PREFIX})
"""Prefixes whose keys are in the order of their age: behind the first that is kept, all are."""
