"""Rotation of the sealing key: everything stored is sealed again, one commit for each entry, while others write.

Called by `api` for administrators. It searches the stored bytes for sealed texts, so that documents of a newer version
and records that are not objects are included. It may be killed and repeated: old keys open as long as anything needs
them.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from lcm.control.access.audit import AuditedAction
from lcm.control.access.sealing import Sealer
from lcm.control.delivery.sinks import scan_entries
from lcm.control.objects.writer import Writer
from lcm.control.upkeep.installation import find_machines
from lcm.model.access.secret import SEALED_FORM, Secret, use_of
from lcm.model.base.errors import Conflict, Later, Refused, Relist, Stuck
from lcm.model.base.resource import Count, Part
from lcm.store.base import Entry, Put

SETTLE_TIME: Final = timedelta(minutes=10)
"""Longer than any request: what was under way when the newest key came has ended since."""

AUDIT_KIND: Final = "SealKey"
"""The audit's kind for a key; its name is the key's id."""
_DOCUMENT_PATTERN: Final = re.compile(rb"[0-9]{1,6}/[0-9]{1,6}\n")
_SEALED_PATTERN: Final = re.compile(rb'"(%s)"' % SEALED_FORM.pattern.encode())
_ROUNDS: Final = 20
_log: Final = structlog.get_logger()


class RotationRequest(Part):
    """Whether to seal with a new key, or to drop the old keys."""

    drop_old: bool = False


class Rotated(Part):
    """The outcome of a rotation. `unopened` names entries that no key here opens: they were lost before."""

    key: str
    new_key: bool = False
    resealed: Count = 0
    dropped: Count = 0
    unopened: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rotation:
    """Seals everything again with the newest key."""

    writer: Writer
    sealer: Sealer

    async def run(self, *, drop_old: bool = False) -> Rotated:
        """Add a key, unless an earlier rotation is unfinished, and seal everything again. May be repeated.

        `drop_old` adds none, and drops the keys that nothing needs any more. Raise Refused too soon after the newest
        key came, and while other machines would not get the new key.
        """
        new = not drop_old and not await self._has_old_seals() and await self._add_key()
        verb = "drop-old" if drop_old else "rotate"
        await self.writer.submit([], deeds=[AuditedAction(verb=verb, kind=AUDIT_KIND, name=self.sealer.current)])
        resealed, unopened = await self._reseal_all()
        dropped = self.sealer.forget_others(settled_by=self.writer.clock.now() - SETTLE_TIME) if drop_old else 0
        done = Rotated(
            key=self.sealer.current, new_key=new, resealed=resealed, dropped=dropped, unopened=tuple(sorted(unopened))
        )
        _log.info("secrets sealed anew", key=done.key, new_key=new, resealed=resealed, dropped=dropped)
        return done

    async def _has_old_seals(self) -> bool:
        current = self.sealer.current
        async for entry in scan_entries(self.writer.store, ""):
            if any(self._unseal(old) for old in _texts_of_other_keys(current, entry)):
                return True
        return False

    async def _add_key(self) -> bool:
        others = await find_machines(self.writer.store)
        if len(others) > 1:
            raise Refused(
                f"several machines run on this store ({', '.join(sorted(others))}), and a key made here would be"
                " unknown to the others: configure the new key on each of them, then rotate"
            )
        return self.sealer.grow()

    async def _reseal_all(self) -> tuple[int, set[str]]:
        """Reseal everything until nothing is left to do; return how much was done, and what cannot be opened."""
        resealed = 0
        for _ in range(_ROUNDS):
            unopened = set[str]()
            try:
                done, disturbed = await self._reseal_once(unopened)
            except Relist:
                done, disturbed = 0, True
            resealed += done
            if not done and not disturbed:
                return resealed, unopened
        raise Later("too many other writes at the same time; repeat it")

    async def _reseal_once(self, unopened: set[str]) -> tuple[int, bool]:
        done, disturbed, current = 0, False, self.sealer.current
        async for entry in scan_entries(self.writer.store, ""):
            anew = self._reseal_value(entry, current, unopened)
            if anew is None:
                continue
            try:
                # The rotation as a whole is in the audit; resealing each entry is not recorded.
                await self.writer.submit([Put(entry.key, anew, entry.labels, at=entry.revision)], deeds=())
                done += 1
            except Conflict:
                disturbed = True
        return done, disturbed

    def _reseal_value(self, entry: Entry, current: str, unopened: set[str]) -> bytes | None:
        """Return an entry's value with everything that an older key sealed sealed again; None when nothing changes."""
        raw = entry.value
        for old in _texts_of_other_keys(current, entry):
            secret = self._unseal(old)
            if secret is None:
                unopened.add(entry.key)
            else:
                raw = raw.replace(b'"%s"' % old.encode(), b'"%s"' % self.sealer.seal(secret, use_of(old)).encode())
        return None if raw == entry.value else raw

    def _unseal(self, text: str) -> Secret | None:
        try:
            return self.sealer.unseal(text)
        except Stuck:
            return None


def _texts_of_other_keys(current: str, entry: Entry) -> set[str]:
    """Find the texts that keys other than the current one sealed."""
    if not _DOCUMENT_PATTERN.match(entry.value):
        return set()
    return {found[1].decode() for found in _SEALED_PATTERN.finditer(entry.value) if found["key"].decode() != current}
