"""What was read lately, kept by an engine that is alone on its file: reading it again costs no change of thread.

A key that is being written is not answered from here, and not kept, until its writing is over: whoever was told of a
commit, by its answer or by a watch, never reads what was there before it.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Final

from lcm.store.base import Entry

MOST: Final = 2_000
LARGEST_BYTES: Final = 16_384


class Recent:
    """The newest entries of the keys that were asked for last."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._writing: Counter[str] = Counter()
        self.writes = 0
        """Grows when a writing begins or ends; what was asked for before that is not worth keeping after it."""

    def get(self, key: str) -> Entry | None:
        """Give a key's newest entry, if it is known."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def keep(self, entry: Entry, *, asked_at: int) -> None:
        """Remember what was read by a question asked when there had been so many writes."""
        if asked_at != self.writes or self._writing[entry.key] or len(entry.value) > LARGEST_BYTES:
            return
        self._entries[entry.key] = entry
        if len(self._entries) > MOST:
            self._entries.popitem(last=False)

    def begin(self, keys: Iterable[str]) -> None:
        """Forget keys that are about to be written."""
        self.writes += 1
        for key in keys:
            self._writing[key] += 1
            self._entries.pop(key, None)

    def end(self, keys: Iterable[str]) -> None:
        """Let keys be remembered again, whatever became of the writing."""
        self.writes += 1
        for key in keys:
            self._writing[key] -= 1
            if not self._writing[key]:
                del self._writing[key]

    def clear(self) -> None:
        """Forget everything."""
        self.writes += 1
        self._entries.clear()
