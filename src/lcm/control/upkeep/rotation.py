"""A new key for what is sealed: everything that is stored is sealed anew, a commit an object, while others write.

Called by `api` for administrators. It looks at the texts themselves, wherever they stand: what a newer version stores,
and records that are no objects, are not left behind. It may be killed and repeated: the old keys open as long as
anything needs them.
"""

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from lcm.control.access.audit import Deed
from lcm.control.access.sealing import Sealer
from lcm.control.delivery.sinks import entries_of
from lcm.control.objects.writer import Ledger
from lcm.control.upkeep.installation import machines
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Conflict, Later, Refused, Relist, Stuck
from lcm.model.base.resource import Count, Part
from lcm.store.base import Entry, Put

SETTLED: Final = timedelta(minutes=10)
"""Longer than any request: what was under way when the newest key came has ended since."""

KIND: Final = "SealKey"
"""What the audit calls a key; its name is its id."""
_DOCUMENT: Final = re.compile(rb"[0-9]{1,6}/[0-9]{1,6}\n")
_TEXT: Final = re.compile(rb'"(sealed:([0-9a-f]{12}):[A-Za-z0-9_-]+)"')
_ROUNDS: Final = 20
_log: Final = structlog.get_logger()


class RotationWish(Part):
    """Whether to let a new key seal, or to forget the old ones."""

    drop_old: bool = False


class Rotated(Part):
    """What became of a rotation. `unopened` names what no key here opens: it was lost before."""

    key: str
    new_key: bool = False
    resealed: Count = 0
    dropped: Count = 0
    unopened: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rotation:
    """Seals everything with the newest key."""

    ledger: Ledger
    sealer: Sealer

    async def run(self, *, drop_old: bool = False) -> Rotated:
        """Add a key unless a rotation is yet to be finished, and seal everything anew. May be repeated.

        `drop_old` adds none, and forgets those that nothing needs any more. Refused too soon after the newest came, and
        while other machines would not get it.
        """
        new = not drop_old and not await self._unfinished() and await self._grown()
        verb = "drop-old" if drop_old else "rotate"
        await self.ledger.submit([], deeds=[Deed(verb=verb, kind=KIND, name=self.sealer.current)])
        resealed, unopened = await self._all()
        dropped = self._forgotten() if drop_old else 0
        done = Rotated(
            key=self.sealer.current, new_key=new, resealed=resealed, dropped=dropped, unopened=tuple(sorted(unopened))
        )
        _log.info("secrets sealed anew", key=done.key, new_key=new, resealed=resealed, dropped=dropped)
        return done

    async def _unfinished(self) -> bool:
        current = self.sealer.current
        async for entry in entries_of(self.ledger.store, ""):
            if any(self._opened(old) for old in _texts_but(current, entry)):
                return True
        return False

    async def _grown(self) -> bool:
        others = await machines(self.ledger.store)
        if len(others) > 1:
            raise Refused(
                f"several machines run on this store ({', '.join(sorted(others))}), and a key made here would be"
                " unknown to the others: give each of them the new key, then rotate"
            )
        return self.sealer.grow()

    async def _all(self) -> tuple[int, set[str]]:
        """Go over everything until nothing is left to do; say how much was done, and what cannot be."""
        resealed = 0
        for _ in range(_ROUNDS):
            unopened = set[str]()
            try:
                done, disturbed = await self._once(unopened)
            except Relist:
                done, disturbed = 0, True
            resealed += done
            if not done and not disturbed:
                return resealed, unopened
        raise Later("others write too much meanwhile; repeat it")

    async def _once(self, unopened: set[str]) -> tuple[int, bool]:
        done, disturbed, current = 0, False, self.sealer.current
        async for entry in entries_of(self.ledger.store, ""):
            anew = self._anew(entry, current, unopened)
            if anew is None:
                continue
            try:
                # The audit has been told of it as a whole: that its objects are sealed anew is no deed of its own.
                await self.ledger.submit([Put(entry.key, anew, entry.labels, at=entry.revision)], deeds=())
                done += 1
            except Conflict:
                disturbed = True
        return done, disturbed

    def _anew(self, entry: Entry, current: str, unopened: set[str]) -> bytes | None:
        """Write an entry with what an older key sealed sealed anew; None when there is nothing to write."""
        raw = entry.value
        for old in _texts_but(current, entry):
            secret = self._opened(old)
            if secret is None:
                unopened.add(entry.key)
            else:
                raw = raw.replace(b'"%s"' % old.encode(), b'"%s"' % self.sealer.seal(secret).encode())
        return None if raw == entry.value else raw

    def _opened(self, text: str) -> Secret | None:
        try:
            return self.sealer.unseal(text)
        except Stuck:
            return None

    def _forgotten(self) -> int:
        return self.sealer.forget_others(settled_by=self.ledger.clock.now() - SETTLED)


def _texts_but(current: str, entry: Entry) -> set[str]:
    """Find what other keys than the current one sealed."""
    if not _DOCUMENT.match(entry.value):
        return set()
    return {found[1].decode() for found in _TEXT.finditer(entry.value) if found[2].decode() != current}
