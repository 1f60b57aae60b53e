"""The prebuilt sessions that live, and the definitions that want some, as the calendar of a process knows them.

Made by `Promises`; used by `control.booking.prebuilt`.
"""

from collections.abc import Sequence
from typing import Final

from lcm.control.booking.calendar import Calendar
from lcm.control.objects.records import PREBUILT
from lcm.control.plane.protocol import DefinitionRef, ObjectChange, Ref, SessionRef
from lcm.model.kinds.definition import LabletDefinition
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.session import LabletSession, SessionPhase, is_asap

_P: Final = SessionPhase
COMING: Final = frozenset({_P.PENDING, _P.SCHEDULED, _P.INSTANTIATING})
"""The phases of a session whose lab is not ready yet."""


class PrebuiltLabs:
    """Prebuilt sessions by definition."""

    def __init__(self, calendar: Calendar) -> None:
        self._live: dict[DefinitionRef, dict[SessionRef, LabletSession]] = {}
        self._wanted: set[DefinitionRef] = set()
        calendar.cache.subscribe(self._apply_change)

    def of(self, definition: DefinitionRef) -> Sequence[LabletSession]:
        """Return the prebuilt sessions of a definition that run or come to run, the oldest first."""
        return sorted(self._live.get(definition, {}).values(), key=_age_key)

    def lock_keys(self, booking: Resource) -> Sequence[str]:
        """Return what a booking holds while it is made, so that those who want the same labs go one after another.

        Which version of a lab is meant is not known before the booking is admitted.
        """
        if not isinstance(booking, LabletSession) or not is_asap(booking) or booking.spec.prebuilt:
            return ()
        family, namespace = booking.spec.definition.partition(":")[0], booking.metadata.namespace
        wanted = any(one.namespace == namespace and one.name.partition(":")[0] == family for one in self._wanted)
        return [f"{PREBUILT}{namespace}/{family}"] if wanted else ()

    def _apply_change(self, seen: ObjectChange) -> None:
        if seen.ref.kind is LabletDefinition:
            wants = isinstance(seen.resource, LabletDefinition) and seen.resource.spec.prebuilt is not None
            (self._wanted.add if wants else self._wanted.discard)(seen.ref)
        for one in (seen.before, seen.resource):
            if isinstance(one, LabletSession) and one.spec.prebuilt:
                self._live.get(_definition_of(one), {}).pop(seen.ref, None)
        after = seen.resource
        if isinstance(after, LabletSession) and after.spec.prebuilt and _is_kept(after):
            self._live.setdefault(_definition_of(after), {})[seen.ref] = after


def _definition_of(session: LabletSession) -> DefinitionRef:
    return Ref(LabletDefinition, session.spec.definition, session.metadata.namespace)


def _age_key(session: LabletSession) -> tuple[str, str]:
    made = session.metadata.created_at
    return made.isoformat() if made else "", session.metadata.uid


def _is_kept(session: LabletSession) -> bool:
    going = session.metadata.deletion_timestamp is not None
    return not going and (session.status.phase is _P.RUNNING or session.status.phase in COMING)
