"""Requests that may be sent again: a record of each is kept in the commit that it led to, for a day.

Used by `local` for creates and actions that carry a key, and by `housekeeping`, which sweeps the old ones.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

import msgspec

from lcm.control.access.sealing import UNSEALED, Sealing
from lcm.control.objects.records import CODEC, Record, key_of, opened
from lcm.control.objects.writer import Ledger
from lcm.control.plane.protocol import R, Ref
from lcm.control.plane.wire import IDEMPOTENCY_KEY, check_request
from lcm.control.upkeep.archive import recalled
from lcm.model.access.identity import Caller
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Gone, Invalid
from lcm.model.base.resource import Moment, Part
from lcm.store.base import ABSENT, Delete, Put, Store

PREFIX: Final = "requests/"
KEPT: Final = timedelta(hours=24)
_SWEPT: Final = 100


class Answered(Part):
    """What is kept of a request: what it asked for, and which object it was about."""

    digest: str
    key: str
    uid: str
    at: Moment


@dataclass(frozen=True, slots=True)
class Request:
    """One request under the key that its sender gave it."""

    key: str
    digest: str
    sealing: Sealing | None = None
    """Seals the digest, if it must be."""

    @classmethod
    def of(cls, caller: Caller, given: str, verb: str, asked: msgspec.Struct, sealing: Sealing = UNSEALED) -> "Request":
        """Know a request again: by its sender, their key, and what was asked, secrets included."""
        check_request(given)
        sender = sha256(f"{caller.name}\n{given}".encode())
        clear = sealing.clear(asked)
        digest = sha256(msgspec.json.encode((caller.role, verb, type(asked).__name__, clear)))
        # A digest of what is secret could be guessed at, so that it is kept sealed itself.
        return cls(PREFIX + sender.hexdigest(), digest.hexdigest(), None if clear is asked else sealing)

    def answered(self, resource: R, now: datetime) -> Put:
        """Keep that it was answered with this object."""
        digest = self.sealing.text(Secret(self.digest)) if self.sealing else self.digest
        record = Answered(digest=digest, key=key_of(resource), uid=resource.metadata.uid, at=now)
        return Put(self.key, CODEC.encode(record), at=ABSENT)

    async def earlier(self, ledger: Ledger, ref: Ref[R]) -> Record[R] | None:
        """Find the object that it was answered with before; None means that it is new."""
        entry = await ledger.store.get(self.key)
        if entry is None:
            return None
        record = CODEC.decode(entry.value, Answered)
        digest = self.sealing.clear_text(record.digest) if self.sealing else record.digest
        if digest != self.digest:
            problem = "was used for another request"
            raise Invalid(Fault(IDEMPOTENCY_KEY, problem, "use a new key for a new request"))
        entry = await ledger.store.get(record.key)
        live = Record(opened(entry, ref.kind), entry) if entry else None
        if live is not None and live.resource.metadata.uid == record.uid:
            return live
        archived = await recalled(ledger.store, Ref(ref.kind, record.uid, ref.namespace))
        if archived is None:
            raise Gone(f"{record.key} was answered to this request and is gone since")
        return archived


async def sweep(store: Store, before: datetime) -> int:
    """Forget the requests from before a moment, and say how many those were. May be repeated."""
    swept, page = 0, await store.scan(PREFIX, limit=_SWEPT)
    while True:
        old = [entry for entry in page.entries if CODEC.decode(entry.value, Answered).at < before]
        if old:
            await store.commit(*(Delete(entry.key, at=entry.revision) for entry in old))
        swept += len(old)
        if page.next is None:
            return swept
        page = await store.scan(PREFIX, limit=_SWEPT, cursor=page.next)
