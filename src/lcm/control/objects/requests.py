"""Idempotent requests: a record of each is written in the commit it led to, and kept for a day.

Used by `control.plane.local` for creates and actions with an idempotency key, and by `control.upkeep.housekeeping`,
which sweeps the old ones.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

import msgspec

from lcm.control.access.sealing import NO_SEALING, Sealing
from lcm.control.objects.archive import find_archived
from lcm.control.objects.records import CODEC, Record, key_of, read_entry
from lcm.control.objects.writer import Writer
from lcm.control.plane.protocol import R, Ref
from lcm.control.plane.wire import IDEMPOTENCY_KEY, check_idempotency_key
from lcm.model.access.identity import Caller
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Gone, Invalid
from lcm.model.base.resource import Moment, Part
from lcm.store.base import ABSENT, Entry, Put

PREFIX: Final = "requests/"
RETENTION: Final = timedelta(hours=24)


_DIGEST_USE: Final = "Request.digest"
"""What a digest is sealed for."""


class RequestRecord(Part):
    """What is stored of a request: what it asked for, and which object it was about."""

    digest: str
    key: str
    uid: str
    at: Moment
    answer: str = ""
    """The whole answer to a request that was about several objects, as JSON."""


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """One request under the idempotency key of its sender."""

    key: str
    digest: str
    sealing: Sealing | None = None
    """Seals the digest, if the request holds secrets."""

    @classmethod
    def of(
        cls, caller: Caller, given: str, verb: str, asked: msgspec.Struct, sealing: Sealing = NO_SEALING
    ) -> "IdempotentRequest":
        """Identify a request by its sender, their key, and what was asked, secrets included."""
        check_idempotency_key(given)
        sender = sha256(f"{caller.name}\n{given}".encode())
        clear = sealing.unseal_document(asked)
        digest = sha256(msgspec.json.encode((caller.role, verb, type(asked).__name__, clear)))
        # A secret could be guessed from its digest, so the digest is sealed too.
        is_secret = clear is not asked or sealing.may_hold_clear_secrets(asked)
        return cls(PREFIX + sender.hexdigest(), digest.hexdigest(), sealing if is_secret else None)

    def record_answer(self, resource: R, now: datetime) -> Put:
        """Return the operation that records this object as the answer."""
        return self._put(RequestRecord(digest="", key=key_of(resource), uid=resource.metadata.uid, at=now))

    def record_text(self, answer: str, now: datetime) -> Put:
        """Return the operation that records a whole answer."""
        return self._put(RequestRecord(digest="", key="", uid="", at=now, answer=answer))

    def _put(self, record: RequestRecord) -> Put:
        digest = self.sealing.seal_text(Secret(self.digest), _DIGEST_USE) if self.sealing else self.digest
        return Put(self.key, CODEC.encode(msgspec.structs.replace(record, digest=digest)), at=ABSENT)

    async def find_earlier_answer(self, writer: Writer, ref: Ref[R]) -> Record[R] | None:
        """Return the object that the request was answered with before; None means that the request is new.

        Raise Invalid when the key was used for another request, and Gone when the object is gone.
        """
        record = await self.find_record(writer)
        if record is None:
            return None
        entry = await writer.store.get(record.key)
        live = Record(read_entry(entry, ref.kind), entry) if entry else None
        if live is not None and live.resource.metadata.uid == record.uid:
            return live
        archived = await find_archived(writer.store, Ref(ref.kind, record.uid, ref.namespace))
        if archived is None:
            raise Gone(f"{record.key} was the answer to this request and no longer exists")
        return archived

    async def find_record(self, writer: Writer) -> RequestRecord | None:
        """Return what is stored of the request; None means that it is new.

        Raise Invalid when the key was used for another request.
        """
        entry = await writer.store.get(self.key)
        if entry is None:
            return None
        record = CODEC.decode(entry.value, RequestRecord)
        digest = self.sealing.unseal_text(record.digest) if self.sealing else record.digest
        if digest != self.digest:
            problem = "was used for another request"
            raise Invalid(Fault(IDEMPOTENCY_KEY, problem, "use a new key for a new request"))
        return record


def request_moment(entry: Entry) -> datetime:
    """Return when a request was made, by its record."""
    return CODEC.decode(entry.value, RequestRecord).at
