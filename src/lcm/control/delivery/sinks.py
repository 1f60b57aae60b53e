"""What is particular to sinks: which could work, their dead letters, and the built-in ones that the settings define.

Called by admission, by `api`, and by housekeeping, which must not compact events that a sink still needs; `outbox`
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
from lcm.control.objects.records import CODEC, DEAD_LETTERS, SINK_CODEC, SINK_CURSORS
from lcm.control.objects.writer import Writer, commit_ops, retry_conflicts
from lcm.model.access.secret import Secret
from lcm.model.access.webhook import WebhookPolicy
from lcm.model.base.errors import Fault, Gone, Invalid, NoRoom
from lcm.model.base.resource import DEFAULT_NAMESPACE, Metadata
from lcm.model.kinds.registry import KINDS
from lcm.model.kinds.sink import (
    BUILT_IN_PREFIX,
    CREDENTIAL_MARK,
    HIDDEN,
    DeadLetter,
    Format,
    Sink,
    SinkSpec,
    SinkStatus,
)
from lcm.providers.protocols.secrets import Secrets
from lcm.store.base import Delete, Entry, Op, Put, Store, scan_all

SINKS: Final = KINDS[Sink.__name__].prefix
MAX_SINKS: Final = 100
"""Each sink has one event in flight at a time, so this bounds what is sent at once."""
EVENTS_KEPT: Final = timedelta(hours=24)
"""How long a sink may be away without losing events: after that they become dead letters."""

MAIL_SINK: Final = f"{BUILT_IN_PREFIX}mail"
"""The name under which notices by mail are listed among the sinks."""

_BATCH_OPERATIONS: Final = 100
_BATCH_BYTES: Final = 500_000
_SLACK_HOOKS_HOST: Final = "hooks.slack.com"


@dataclass(frozen=True, slots=True)
class SinkSettings:
    """What the settings say about sinks: which addresses are allowed, and the sinks that are always there."""

    reach: WebhookPolicy
    built_in: tuple[Sink, ...] = ()


NO_SINKS: Final = SinkSettings(WebhookPolicy())


async def refuse_surplus(store: Store, names: Collection[str]) -> None:
    """Raise NoRoom if there would be too many sinks with those of these names."""
    if names:
        stored = {entry.key.removeprefix(SINKS) for entry in (await scan_all(store, SINKS)).entries}
        if len(stored | set(names)) > MAX_SINKS:
            raise NoRoom(f"there are {len(stored)} sinks already, and the limit is {MAX_SINKS}; delete one first")


async def read_statuses(store: Store) -> Mapping[str, SinkStatus]:
    """Read how far each sink has got, by name; one that nothing was delivered to yet is missing."""
    return {
        entry.key.removeprefix(SINK_CURSORS): CODEC.decode(entry.value, SinkStatus)
        async for entry in scan_entries(store, SINK_CURSORS)
    }


async def delete_dead_letters(store: Store, name: str) -> None:
    """Remove the dead letters of a deleted sink. May be repeated; `outbox` removes what is left of them."""
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

    async def attempt() -> int:
        every = [entry async for entry in scan_entries(writer.store, f"{DEAD_LETTERS}{name}/")]
        entries = [entry for entry in every if not wanted or entry.key in wanted]
        if absent := wanted - {entry.key for entry in entries}:
            raise Gone(f"sink {name} has no dead letter {min(absent).rpartition('/')[2]}")
        return await _mark_for_replay(writer, name, entries)

    return await retry_conflicts(attempt, unless=lambda _: False)


async def oldest_needed_revision(store: Store, now: datetime) -> int | None:
    """Return the revision that compaction must not pass, as a sink still has to read events after it.

    None means any. A sink without deliveries for a day holds nothing back; when it returns it is told that events were
    lost.
    """
    statuses = await read_statuses(store)
    places = [(one.at, one.revision) for name, one in statuses.items() if name.startswith(BUILT_IN_PREFIX)]
    async for entry in scan_entries(store, SINKS):
        status = statuses.get(entry.key.removeprefix(SINKS))
        if status is not None and status.sink == entry.created:
            places.append((status.at, status.revision))
        elif (made_at := SINK_CODEC.decode(entry.value, Sink).metadata.created_at) is not None:
            places.append((made_at, entry.created))
    return min((revision for since, revision in places if now - since < EVENTS_KEPT), default=None)


def check_sink(sink: Sink, reach: WebhookPolicy) -> None:
    """Raise Invalid if a sink could never work."""
    spec, faults = sink.spec, [*_name_faults(sink), *_url_faults(sink.spec, reach)]
    if spec.credential is None and (spec.format is Format.PAGERDUTY or CREDENTIAL_MARK in spec.url):
        faults.append(Fault("spec.credential", "missing", "write where it is, for example env:SECRET_PAGERDUTY_KEY"))
    if spec.previous_secret is not None and spec.secret is None:
        faults.append(Fault("spec.secret", "missing", "set the current one as well as the previous one"))
    if faults:
        raise Invalid(*faults)


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
    if sink.metadata.name.startswith(BUILT_IN_PREFIX):
        problem = f"names that begin with {BUILT_IN_PREFIX} are reserved for sinks that the settings define"
        yield Fault("metadata.name", problem, "choose another")
    if sink.metadata.namespace != DEFAULT_NAMESPACE:
        yield Fault("metadata.namespace", "a sink gets the events of all namespaces", "leave it out")


def _url_faults(spec: SinkSpec, reach: WebhookPolicy) -> Collection[Fault]:
    try:
        target = reach.parse_url(spec.url.replace(CREDENTIAL_MARK, "~"))  # a character that no host name can contain
    except Invalid as error:
        return [Fault(f"spec.{fault.path}", fault.problem, fault.remedy) for fault in error.faults]
    if HIDDEN in spec.url and spec.sealed_url is None:
        return [Fault("spec.url", f"{HIDDEN} in it stands for the part that is not shown", "write the whole URL")]
    if target.host == _SLACK_HOOKS_HOST and CREDENTIAL_MARK not in spec.url:
        remedy = (
            f"write https://{_SLACK_HOOKS_HOST}/services/{CREDENTIAL_MARK}, and set the credential to where the rest is"
        )
        return [Fault("spec.url", "it is a secret as a whole", remedy)]
    return []


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
        found = _URL_PARTS.fullmatch(address.reveal())
        assert found, "the settings were checked"
        origin, host, rest = found["origin"], found["host"].lower(), found["rest"]
        name = BUILT_IN_PREFIX + hashlib.sha256(address.reveal().encode()).hexdigest()[:_HASH_LENGTH]
        reference = f"{SETTING_SCHEME}:{name}"
        secrets[reference] = Secret(rest)
        spec = SinkSpec(
            url=f"{origin}/{CREDENTIAL_MARK}" if rest else f"{origin}/",
            format=Format.SLACK if host == _SLACK_HOOKS_HOST else Format.CLOUDEVENTS,
            event_types=BUILT_IN_EVENT_TYPES,
            credential=reference if rest else None,
        )
        sinks[name] = Sink(metadata=Metadata(name=name), spec=spec)
    return tuple(sinks.values()), secrets


def make_mail_sink(host: str, port: int) -> Sink:
    """Make the sink under which mail is listed; no event is posted to it."""
    return Sink(
        metadata=Metadata(name=MAIL_SINK), spec=SinkSpec(url=f"smtp://{host}:{port}", event_types=("notice.*",))
    )
