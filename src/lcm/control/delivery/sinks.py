"""The sinks as the store keeps them: what admins read and change, and what housekeeping must leave alone.

Called by `api` for whoever may; `outbox` delivers to what is written here, in whichever process leads.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec

from lcm.control.objects.records import NAME
from lcm.model.access.secret import Secret
from lcm.model.access.webhook import Reach
from lcm.model.base.errors import Conflict, Fault, Gone, Invalid, NoRoom, Refused
from lcm.model.base.resource import Count, Part
from lcm.model.kinds.sink import BUILT_IN, CREDENTIAL, HIDDEN, DeadLetter, Format, Sink, SinkStatus, shown_url
from lcm.providers.protocols.secrets import Secrets
from lcm.store.base import ABSENT, Delete, Entry, Op, Put, Store, everything
from lcm.store.codec import Codec

SINKS: Final = "sinks/"
CURSORS: Final = "sink-cursors/"
LETTERS: Final = "dead-letters/"
MAX_SINKS: Final = 100
"""Each has one event under way at a time, so this bounds what is sent at once."""
KEPT: Final = timedelta(hours=24)
"""How long a sink may be away without losing events: then they become dead letters."""

CODEC: Final = Codec()
_OPERATIONS: Final = 100
_BATCH_BYTES: Final = 500_000
_ROUNDS: Final = 5
_SLACK: Final = "hooks.slack.com"


@dataclass(frozen=True, slots=True)
class House:
    """What the settings say of sinks: where they may lead, and those that are always there."""

    reach: Reach
    built_in: tuple[Sink, ...] = ()


class SinkReport(Part):
    """A sink and how it fares; no status means that nobody delivered to it yet."""

    sink: Sink
    resource_version: Count
    status: SinkStatus | None = None


async def list_sinks(store: Store, built_in: Sequence[Sink] = ()) -> Sequence[SinkReport]:
    """Read all sinks, in the order of their names, after those that the settings make."""
    found = await everything(store, SINKS)
    entries = {entry.key.removeprefix(CURSORS): entry for entry in (await everything(store, CURSORS)).entries}
    fixed = [_built_in(sink, entries.get(sink.name)) for sink in built_in]
    return [*fixed, *(_report(entry, entries.get(entry.key.removeprefix(SINKS))) for entry in found.entries)]


async def find(store: Store, name: str, built_in: Sequence[Sink] = ()) -> SinkReport | None:
    """Read one sink; None means that there is none of this name."""
    for sink in built_in:
        if sink.name == name:
            return _built_in(sink, await store.get(CURSORS + name))
    entry = await store.get(SINKS + name)
    return _report(entry, await store.get(CURSORS + name)) if entry else None


async def put(
    store: Store,
    sink: Sink,
    reach: Reach,
    *,
    now: datetime,
    at: int | None = None,
    dry_run: bool = False,
    beside: Sequence[Op] = (),
) -> SinkReport:
    """Make or replace a sink. Invalid with every fault; NoRoom when there are too many; Conflict as commits say.

    `at` demands a revision, ABSENT that it is new. A URL as it was shown stands for the one that is stored. `beside` is
    written in the same commit. May be repeated: deliveries go on where they were.
    """
    entry = await store.get(SINKS + sink.name)
    if entry and sink.url == shown_url(known := CODEC.decode(entry.value, Sink).url):
        sink = msgspec.structs.replace(sink, url=known)
    admit(sink, reach)
    found = entry.revision if entry else ABSENT
    if at is not None and at != found:
        raise Conflict(SINKS + sink.name, wanted=at, found=found)
    if entry is None and len((await everything(store, SINKS)).entries) >= MAX_SINKS:
        raise NoRoom(f"there are {MAX_SINKS} sinks already; delete one first")
    created_at = CODEC.decode(entry.value, Sink).created_at if entry else now
    sink = msgspec.structs.replace(sink, created_at=created_at)
    if dry_run:
        return SinkReport(sink=sink, resource_version=found)
    value = CODEC.encode(sink, onto=entry.value if entry else None)
    revision = await store.commit(Put(SINKS + sink.name, value, at=found), *beside)
    return SinkReport(sink=sink, resource_version=revision)


async def delete(store: Store, name: str, *, at: int | None = None, beside: Sequence[Op] = ()) -> None:
    """Remove a sink with its dead letters. Gone when there is none; Refused for one that the settings make."""
    if name.startswith(BUILT_IN):
        raise read_only(name)
    if await store.get(SINKS + name) is None:
        raise missing(name)
    await store.commit(Delete(SINKS + name, at=at), Delete(CURSORS + name), *beside)
    letters = [Delete(entry.key) async for entry in entries_of(store, f"{LETTERS}{name}/")]
    for batch in batches(letters):
        await store.commit(*batch)


async def dead(store: Store, name: str) -> Sequence[DeadLetter]:
    """Read a sink's dead letters, oldest first."""
    letters = [CODEC.decode(entry.value, DeadLetter) async for entry in entries_of(store, f"{LETTERS}{name}/")]
    return sorted(letters, key=lambda letter: (letter.at, letter.event.time, letter.event_id))


async def replay(store: Store, name: str, *event_ids: str, beside: Sequence[Op] = ()) -> int:
    """Ask for some dead letters, or for all of a sink's, to be sent once more; return how many are newly asked for.

    What is taken then is gone from the list; what is not stays on it, with the newest error. Gone when one that is
    asked for is not there: then none is sent. May be repeated.
    """
    wanted = {letter_key(name, event_id) for event_id in event_ids}
    for _ in range(_ROUNDS):
        entries = [one async for one in entries_of(store, f"{LETTERS}{name}/") if not wanted or one.key in wanted]
        if absent := wanted - {entry.key for entry in entries}:
            raise Gone(f"sink {name} has no dead letter {min(absent).rpartition('/')[2]}")
        try:
            return await _mark(store, entries, beside)
        except Conflict:
            continue  # some were sent meanwhile, or dropped
    raise Conflict(f"{LETTERS}{name}/", wanted=ABSENT, found=ABSENT)


async def oldest_needed(store: Store, now: datetime) -> int | None:
    """Say which revision compaction must not pass, because a sink is yet to read the events after it; None: any.

    A sink nobody delivered to for a day holds nothing back; when it comes back it is told that events were lost.
    """
    statuses = {
        entry.key.removeprefix(CURSORS): CODEC.decode(entry.value, SinkStatus)
        async for entry in entries_of(store, CURSORS)
    }
    places = [(one.at, one.revision) for name, one in statuses.items() if name.startswith(BUILT_IN)]
    async for entry in entries_of(store, SINKS):
        status = statuses.get(entry.key.removeprefix(SINKS))
        if status is not None and status.sink == entry.created:
            places.append((status.at, status.revision))
        elif (made_at := CODEC.decode(entry.value, Sink).created_at) is not None:
            places.append((made_at, entry.created))
    return min((revision for since, revision in places if now - since < KEPT), default=None)


def admit(sink: Sink, reach: Reach) -> None:
    """Raise Invalid if a sink could never work."""
    faults = [*_name_faults(sink), *_url_faults(sink, reach)]
    if sink.credential is None and (sink.format is Format.PAGERDUTY or CREDENTIAL in sink.url):
        faults.append(Fault("credential", "missing", "say where it is, for example env:SECRET_PAGERDUTY_KEY"))
    if sink.previous_secret is not None and sink.secret is None:
        faults.append(Fault("secret", "missing", "name the present one as well as the previous one"))
    if faults:
        raise Invalid(*faults)


def nameable(name: str) -> bool:
    """Tell whether a sink can be called so; what cannot is no key of the store either."""
    return NAME.fullmatch(name) is not None


def missing(name: str) -> Gone:
    """Say that there is no such sink."""
    return Gone(f"there is no sink {name}")


def read_only(name: str) -> Refused:
    """Say that the settings alone can change a sink."""
    return Refused(f"sink {name} is made by WORKER_NOTIFICATION_WEBHOOKS: change it there")


def letter_key(sink: str, event_id: str) -> str:
    """Say where a dead letter is kept."""
    return f"{LETTERS}{sink}/{event_id}"


async def entries_of(store: Store, prefix: str) -> AsyncIterator[Entry]:
    """Read all entries with a prefix, a page at a time."""
    page = await store.scan(prefix)
    while True:
        for entry in page.entries:
            yield entry
        if page.next is None:
            return
        page = await store.scan(prefix, cursor=page.next)


def batches(ops: Iterable[Op]) -> Iterator[Sequence[Op]]:
    """Split operations into commits that are within the store's limits."""
    batch, size = list[Op](), 0
    for op in ops:
        grown = len(op.value) if isinstance(op, Put) else 0
        if batch and (len(batch) >= _OPERATIONS or size + grown > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(op)
        size += grown
    if batch:
        yield batch


async def _mark(store: Store, entries: Iterable[Entry], beside: Sequence[Op]) -> int:
    letters = [(entry, CODEC.decode(entry.value, DeadLetter)) for entry in entries]
    puts = [
        Put(entry.key, CODEC.encode(msgspec.structs.replace(letter, replay=True)), at=entry.revision)
        for entry, letter in letters
        if not letter.replay
    ]
    for batch in batches(puts):
        await store.commit(*batch, *beside)
        beside = ()
    return len(puts)


def _name_faults(sink: Sink) -> Iterator[Fault]:
    if sink.name.startswith(BUILT_IN):
        yield Fault("name", f"names that begin with {BUILT_IN} are for sinks of the settings", "choose another")


def _url_faults(sink: Sink, reach: Reach) -> Collection[Fault]:
    try:
        target = reach.target(sink.url.replace(CREDENTIAL, "~"))  # which no host may hold
    except Invalid as error:
        return error.faults
    if HIDDEN in sink.url:
        return [Fault("url", f"{HIDDEN} stands in it for what is not shown", "write the whole URL")]
    if target.host == _SLACK and CREDENTIAL not in sink.url:
        remedy = f"write https://{_SLACK}/services/{CREDENTIAL}, and where the rest is as the credential"
        return [Fault("url", "it is a secret, and would be stored in clear", remedy)]
    return []


def _built_in(sink: Sink, cursor: Entry | None) -> SinkReport:
    status = CODEC.decode(cursor.value, SinkStatus) if cursor else None
    return SinkReport(sink=sink, resource_version=0, status=status)


def _report(entry: Entry, cursor: Entry | None) -> SinkReport:
    sink = CODEC.decode(entry.value, Sink)
    status = CODEC.decode(cursor.value, SinkStatus) if cursor else None
    return SinkReport(sink=sink, resource_version=entry.revision, status=status)


SCHEME: Final = "setting"
EVENT_TYPES: Final = ("alert.*", "worker.idle.warning")

_NAME_LENGTH: Final = 8
_ADDRESS: Final = re.compile(r"(?P<origin>[^:/?]+://(?P<host>[^/?]*?)(:[0-9]+)?)(/|(?=\?)|$)(?P<rest>.*)")


class SettingSecrets:
    """Reveals the rest of the addresses, and leaves all other references to others."""

    def __init__(self, known: Mapping[str, Secret], others: Secrets) -> None:
        self._known = known
        self._others = others

    async def reveal(self, ref: str) -> Secret:
        return self._known.get(ref) or await self._others.reveal(ref)


def built_in_sinks(addresses: Iterable[Secret]) -> tuple[tuple[Sink, ...], Mapping[str, Secret]]:
    """Make a sink of each address; give also their secret parts, by their references."""
    sinks, secrets = dict[str, Sink](), dict[str, Secret]()
    for address in addresses:
        origin, host, rest = _apart(address.reveal())
        name = BUILT_IN + hashlib.sha256(address.reveal().encode()).hexdigest()[:_NAME_LENGTH]
        reference = f"{SCHEME}:{name}"
        secrets[reference] = Secret(rest)
        sinks[name] = Sink(
            name=name,
            url=f"{origin}/{CREDENTIAL}" if rest else f"{origin}/",
            format=Format.SLACK if host == _SLACK else Format.CLOUDEVENTS,
            event_types=EVENT_TYPES,
            credential=reference if rest else None,
        )
    return tuple(sinks.values()), secrets


def _apart(url: str) -> tuple[str, str, str]:
    """Take an address apart: where it leads, the host's name in that, and all the rest."""
    found = _ADDRESS.fullmatch(url)
    assert found, "the settings were checked"
    return found["origin"], found["host"].lower(), found["rest"]
