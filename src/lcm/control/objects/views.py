"""What callers were last shown of objects, so that an object that did not change is not read, judged and shown anew.

`control.plane.local` keeps one for a process. The state that something was made of is kept with it: whoever finds
something here compares that state with the store's.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lcm.control.objects.records import Record, is_same_state, read_entry
from lcm.control.objects.writer import Writer
from lcm.control.plane.protocol import R, Ref
from lcm.model.access.identity import Caller, Verb
from lcm.model.access.learner import can_see
from lcm.model.kinds.registry import Resource
from lcm.store.base import Entry

_MOST_VIEWS: Final = 2_000
_MOST_BYTES: Final = 8_192


class ObjectView(NamedTuple):
    """An object as a caller may see it, and the entry that it was made of."""

    entry: Entry
    shown: Any


class ObjectViews:
    """The views that were made last."""

    def __init__(self) -> None:
        self._views: dict[tuple[Ref[Any], Caller], ObjectView] = {}

    async def read(self, writer: Writer, ref: Ref[R], show: Callable[[R], R]) -> R | None:
        """Return the newest state of an object as the writer's caller may see it; None means that there is none.

        The store is asked each time. `show` is called for a state that this caller was not shown last.
        """
        view = self.find(ref, writer.caller)
        if view is None:
            writer.require_permission(Verb.READ, ref.kind)
            record = await writer.find_anywhere(ref)
        else:
            entry = await writer.store.get(view.entry.key)
            if entry is not None and is_same_state(entry, view.entry):
                known: R = view.shown
                return known
            record = Record(read_entry(entry, ref.kind), entry) if entry else await writer.find_anywhere(ref)
        if record is None or not can_see(writer.caller, record.resource):
            return None
        shown = show(record.resource)
        self.keep(ref, writer.caller, record.entry, shown)
        return shown

    def find(self, ref: Ref[Any], caller: Caller) -> ObjectView | None:
        """Return what a caller was last shown of an object; None means that nothing is remembered."""
        return self._views.get((ref, caller))

    def keep(self, ref: Ref[Any], caller: Caller, entry: Entry, shown: Resource) -> None:
        """Remember what a caller is shown, if it is small and has this name: a uid may be looked up elsewhere."""
        if len(entry.value) > _MOST_BYTES or entry.key != ref.key:
            return
        if len(self._views) >= _MOST_VIEWS:
            self._views.clear()
        self._views[ref, caller] = ObjectView(entry, shown)
