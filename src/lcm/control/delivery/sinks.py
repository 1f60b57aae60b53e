"""Sinks as the store keeps them, and the built-in ones that the settings define.

Called by `api` for admins, and by housekeeping, which must not compact events that a sink still needs; `outbox`
delivers to them. Built-in sinks send alerts to the addresses in WORKER_NOTIFICATION_WEBHOOKS and are not stored.
Those addresses are secrets: only the host is part of the sink, the rest is a credential with a scheme that no
document can use.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.control.access.audit import AuditedAction
from lcm.control.objects.records import NAME
from lcm.control.objects.writer import Writer, commit_ops
from lcm.model.access.secret import Secret
from lcm.model.access.webhook import WebhookPolicy
from lcm.model.base.errors import Conflict, Fault, Gone, Invalid, NoRoom, Refused
from lcm.model.base.resource import Count, Part
from lcm.model.kinds.sink import (
    BUILT_IN_PREFIX,
    CREDENTIAL_MARK,
    HIDDEN,
    DeadLetter,
    Format,
    Sink,
    SinkStatus,
    redact_url,
)
from lcm.providers.protocols.secrets import Secrets
from lcm.store.base import ABSENT, Delete, Entry, Op, Put, Store, scan_all
from lcm.store.codec import Codec

SINKS: Final = "sinks/"
CURSORS: Final = "sink-cursors/"
DEAD_LETTERS: Final = "dead-letters/"
MAX_SINKS: Final = 100
"""Each sink has one event in flight at a time, so this bounds what is sent at once."""
EVENTS_KEPT: Final = timedelta(hours=24)
"""How long a sink may be away without losing events: after that they become dead letters."""

CODEC: Final = Codec()
_BATCH_OPERATIONS: Final = 100
_BATCH_BYTES: Final = 500_000
_REPLAY_ATTEMPTS: Final = 5
_SLACK_HOOKS_HOST: Final = "hooks.slack.com"


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """What the settings say about sinks: which addresses are allowed, and the sinks that are always there."""

    reach: WebhookPolicy
    built_in: tuple[Sink, ...] = ()


class SinkReport(Part):
    """A sink and its delivery status; no status means that nothing was delivered to it yet."""

    sink: Sink
    resource_version: Count
    status: SinkStatus | None = None


async def list_sinks(store: Store, built_in: Sequence[Sink] = ()) -> Sequence[SinkReport]:
    """Read all sinks by name, after those that the settings define."""
    found = await scan_all(store, SINKS)
    entries = {entry.key.removeprefix(CURSORS): entry for entry in (await scan_all(store, CURSORS)).entries}
    fixed = [_built_in_report(sink, entries.get(sink.name)) for sink in built_in]
    return [*fixed, *(_stored_report(entry, entries.get(entry.key.removeprefix(SINKS))) for entry in found.entries)]


async def find_sink(store: Store, name: str, built_in: Sequence[Sink] = ()) -> SinkReport | None:
    """Read one sink; None means that there is none of this name."""
    for sink in built_in:
        if sink.name == name:
            return _built_in_report(sink, await store.get(CURSORS + name))
    entry = await store.get(SINKS + name)
    return _stored_report(entry, await store.get(CURSORS + name)) if entry else None


async def put_sink(
    store: Store,
    sink: Sink,
    reach: WebhookPolicy,
    *,
    now: datetime,
    at: int | None = None,
    dry_run: bool = False,
    beside: Sequence[Op] = (),
) -> SinkReport:
    """Create or replace a sink. May be repeated: deliveries go on where they were.

    Raises Invalid with every fault, NoRoom when there are too many, Conflict as commits do. `at` requires a revision,
    ABSENT that the sink is new. A masked URL as it was shown stands for the one that is stored. `beside` is written in
    the same commit.
    """
    entry = await store.get(SINKS + sink.name)
    if entry and sink.url == redact_url(known := CODEC.decode(entry.value, Sink).url):
        sink = msgspec.structs.replace(sink, url=known)
    check_sink(sink, reach)
    found = entry.revision if entry else ABSENT
    if at is not None and at != found:
        raise Conflict(SINKS + sink.name, wanted=at, found=found)
    if entry is None and len((await scan_all(store, SINKS)).entries) >= MAX_SINKS:
        raise NoRoom(f"there are {MAX_SINKS} sinks already; delete one first")
    created_at = CODEC.decode(entry.value, Sink).created_at if entry else now
    sink = msgspec.structs.replace(sink, created_at=created_at)
    if dry_run:
        return SinkReport(sink=sink, resource_version=found)
    value = CODEC.encode(sink, onto=entry.value if entry else None)
    revision = await commit_ops(store, Put(SINKS + sink.name, value, at=found), *beside)
    return SinkReport(sink=sink, resource_version=revision)


async def delete_sink(store: Store, name: str, *, at: int | None = None, beside: Sequence[Op] = ()) -> None:
    """Remove a sink with its dead letters.

    Raises Gone when there is none, Refused for one that the settings define.
    """
    if name.startswith(BUILT_IN_PREFIX):
        raise sink_read_only(name)
    if await store.get(SINKS + name) is None:
        raise no_such_sink(name)
    await commit_ops(store, Delete(SINKS + name, at=at), Delete(CURSORS + name), *beside)
    letters = [Delete(entry.key) async for entry in scan_entries(store, f"{DEAD_LETTERS}{name}/")]
    for batch in split_batches(letters):
        await commit_ops(store, *batch)


async def list_dead_letters(store: Store, name: str) -> Sequence[DeadLetter]:
    """Read a sink's dead letters, oldest first."""
    letters = [CODEC.decode(entry.value, DeadLetter) async for entry in scan_entries(store, f"{DEAD_LETTERS}{name}/")]
    return sorted(letters, key=lambda letter: (letter.at, letter.event.time, letter.event_id))


async def replay_dead_letters(writer: Writer, name: str, *event_ids: str) -> int:
    """Request that some or all dead letters of a sink are sent again; return how many are newly requested.

    A letter that is then accepted leaves the list; one that is not stays on it, with the newest error. Raises Gone when
    a requested one does not exist: then none is sent. May be repeated.
    """
    wanted = {dead_letter_key(name, event_id) for event_id in event_ids}
    for _ in range(_REPLAY_ATTEMPTS):
        entries = [
            one async for one in scan_entries(writer.store, f"{DEAD_LETTERS}{name}/") if not wanted or one.key in wanted
        ]
        if absent := wanted - {entry.key for entry in entries}:
            raise Gone(f"sink {name} has no dead letter {min(absent).rpartition('/')[2]}")
        try:
            return await _mark_for_replay(writer, name, entries)
        except Conflict:
            continue  # some were sent or dropped in the meantime
    raise Conflict(f"{DEAD_LETTERS}{name}/", wanted=ABSENT, found=ABSENT)


async def oldest_needed_revision(store: Store, now: datetime) -> int | None:
    """Return the revision that compaction must not pass, as a sink still has to read events after it.

    None means any. A sink without deliveries for a day holds nothing back; when it returns it is told that events were
    lost.
    """
    statuses = {
        entry.key.removeprefix(CURSORS): CODEC.decode(entry.value, SinkStatus)
        async for entry in scan_entries(store, CURSORS)
    }
    places = [(one.at, one.revision) for name, one in statuses.items() if name.startswith(BUILT_IN_PREFIX)]
    async for entry in scan_entries(store, SINKS):
        status = statuses.get(entry.key.removeprefix(SINKS))
        if status is not None and status.sink == entry.created:
            places.append((status.at, status.revision))
        elif (made_at := CODEC.decode(entry.value, Sink).created_at) is not None:
            places.append((made_at, entry.created))
    return min((revision for since, revision in places if now - since < EVENTS_KEPT), default=None)


def check_sink(sink: Sink, reach: WebhookPolicy) -> None:
    """Raise Invalid if a sink could never work."""
    faults = [*_name_faults(sink), *_url_faults(sink, reach)]
    if sink.credential is None and (sink.format is Format.PAGERDUTY or CREDENTIAL_MARK in sink.url):
        faults.append(Fault("credential", "missing", "say where it is, for example env:SECRET_PAGERDUTY_KEY"))
    if sink.previous_secret is not None and sink.secret is None:
        faults.append(Fault("secret", "missing", "name the present one as well as the previous one"))
    if faults:
        raise Invalid(*faults)


def is_sink_name(name: str) -> bool:
    """Return whether a sink can have this name; a text that cannot be one is no store key either."""
    return NAME.fullmatch(name) is not None


def no_such_sink(name: str) -> Gone:
    """Return the error that there is no such sink."""
    return Gone(f"there is no sink {name}")


def sink_read_only(name: str) -> Refused:
    """Return the error that only the settings can change a sink."""
    return Refused(f"sink {name} is made by WORKER_NOTIFICATION_WEBHOOKS: change it there")


def dead_letter_key(sink: str, event_id: str) -> str:
    """Return the store key of a dead letter."""
    return f"{DEAD_LETTERS}{sink}/{event_id}"


async def scan_entries(store: Store, prefix: str) -> AsyncIterator[Entry]:
    """Read all entries with a prefix, a page at a time."""
    page = await store.scan(prefix)
    while True:
        for entry in page.entries:
            yield entry
        if page.next is None:
            return
        page = await store.scan(prefix, cursor=page.next)


def split_batches(ops: Iterable[Op]) -> Iterator[Sequence[Op]]:
    """Split operations into commits that are within the store's limits."""
    batch, size = list[Op](), 0
    for op in ops:
        grown = len(op.value) if isinstance(op, Put) else 0
        if batch and (len(batch) >= _BATCH_OPERATIONS or size + grown > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(op)
        size += grown
    if batch:
        yield batch


async def _mark_for_replay(writer: Writer, name: str, entries: Iterable[Entry]) -> int:
    letters = [(entry, CODEC.decode(entry.value, DeadLetter)) for entry in entries]
    puts = [
        Put(entry.key, CODEC.encode(msgspec.structs.replace(letter, replay=True)), at=entry.revision)
        for entry, letter in letters
        if not letter.replay
    ]
    deeds: Sequence[AuditedAction] = [AuditedAction(verb="replay", kind=Sink.__name__, name=name)]
    for batch in split_batches(puts):
        await writer.submit(batch, deeds=deeds)
        deeds = ()
    return len(puts)


def _name_faults(sink: Sink) -> Iterator[Fault]:
    if sink.name.startswith(BUILT_IN_PREFIX):
        yield Fault("name", f"names that begin with {BUILT_IN_PREFIX} are for sinks of the settings", "choose another")


def _url_faults(sink: Sink, reach: WebhookPolicy) -> Collection[Fault]:
    try:
        target = reach.parse_url(sink.url.replace(CREDENTIAL_MARK, "~"))  # a character that no host name can contain
    except Invalid as error:
        return error.faults
    if HIDDEN in sink.url:
        return [Fault("url", f"{HIDDEN} stands in it for what is not shown", "write the whole URL")]
    if target.host == _SLACK_HOOKS_HOST and CREDENTIAL_MARK not in sink.url:
        remedy = (
            f"write https://{_SLACK_HOOKS_HOST}/services/{CREDENTIAL_MARK}, and where the rest is as the credential"
        )
        return [Fault("url", "it is a secret, and would be stored in clear", remedy)]
    return []


def _built_in_report(sink: Sink, cursor: Entry | None) -> SinkReport:
    status = CODEC.decode(cursor.value, SinkStatus) if cursor else None
    return SinkReport(sink=sink, resource_version=0, status=status)


def _stored_report(entry: Entry, cursor: Entry | None) -> SinkReport:
    sink = CODEC.decode(entry.value, Sink)
    status = CODEC.decode(cursor.value, SinkStatus) if cursor else None
    return SinkReport(sink=sink, resource_version=entry.revision, status=status)


SETTING_SCHEME: Final = "setting"
BUILT_IN_EVENT_TYPES: Final = ("alert.*", "worker.idle.warning")

_HASH_LENGTH: Final = 8
_URL_PARTS: Final = re.compile(r"(?P<origin>[^:/?]+://(?P<host>[^/?]*?)(:[0-9]+)?)(/|(?=\?)|$)(?P<rest>.*)")


class SettingSecrets:
    """Reveals the secret part of the addresses, and passes all other references on."""

    def __init__(self, known: Mapping[str, Secret], others: Secrets) -> None:
        self._known = known
        self._others = others

    async def reveal(self, ref: str) -> Secret:
        return self._known.get(ref) or await self._others.reveal(ref)


def make_built_in_sinks(addresses: Iterable[Secret]) -> tuple[tuple[Sink, ...], Mapping[str, Secret]]:
    """Make a sink of each address; return also the secret parts, by reference."""
    sinks, secrets = dict[str, Sink](), dict[str, Secret]()
    for address in addresses:
        origin, host, rest = _split_url(address.reveal())
        name = BUILT_IN_PREFIX + hashlib.sha256(address.reveal().encode()).hexdigest()[:_HASH_LENGTH]
        reference = f"{SETTING_SCHEME}:{name}"
        secrets[reference] = Secret(rest)
        sinks[name] = Sink(
            name=name,
            url=f"{origin}/{CREDENTIAL_MARK}" if rest else f"{origin}/",
            format=Format.SLACK if host == _SLACK_HOOKS_HOST else Format.CLOUDEVENTS,
            event_types=BUILT_IN_EVENT_TYPES,
            credential=reference if rest else None,
        )
    return tuple(sinks.values()), secrets


def _split_url(url: str) -> tuple[str, str, str]:
    """Split an address into its origin, the host name in that, and the rest."""
    found = _URL_PARTS.fullmatch(url)
    assert found, "the settings were checked"
    return found["origin"], found["host"].lower(), found["rest"]
