"""A naive bookkeeper: what is claimed at each place, and by whom each port is held, by plain addition."""

from dataclasses import dataclass, field

from lcm.control.objects.records import read_entry
from lcm.model.base.capacity import DIMENSIONS, Claim, Profile
from lcm.model.kinds.session import LabletSession, get_claim
from lcm.store.base import Store, scan_all
from market_halls import ROOM


@dataclass
class Books:
    """What the naive bookkeeper knows: for each place what is claimed there, for each worker its ports."""

    claims: dict[str, dict[str, Claim]] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    ports: dict[str, dict[str, frozenset[int]]] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)

    def note(self, session: LabletSession) -> None:
        """Write down what a session claims, and raise an AssertionError if that is more than there is."""
        self.strike(session.metadata.name)
        claim, status = get_claim(session), session.status
        if claim is not None and (status.seat or status.worker_id):
            place = f"{status.seat.pool}/{status.seat.number}" if status.seat else str(status.worker_id)
            self.hold(session.metadata.name, place, claim)
        if status.worker_id is not None:
            self._open_ports(
                session.metadata.name, status.worker_id, frozenset((status.allocated_ports or {}).values())
            )

    def hold(self, name: str, place: str, claim: Claim) -> None:
        others = self.claims.setdefault(place, {})
        others[name], self.places[name] = claim, place
        moments = {claim.start, *(one.start for one in others.values() if claim.start <= one.start < claim.end)}
        for moment in moments:
            there = [one.need for one in others.values() if one.start <= moment < one.end]
            for dimension in DIMENSIONS:
                used = sum(getattr(need, dimension) for need in there)
                assert used <= getattr(ROOM, dimension), f"over-commit of {dimension} on {place} at {moment}: {used}"

    def strike(self, name: str) -> None:
        place, host = self.places.pop(name, None), self.hosts.pop(name, None)
        if place is not None:
            del self.claims[place][name]
        if host is not None:
            del self.ports[host][name]

    def _open_ports(self, name: str, worker_id: str, ports: frozenset[int]) -> None:
        others = self.ports.setdefault(worker_id, {})
        for other, theirs in others.items():
            assert not ports & theirs, f"{name} and {other} share ports {sorted(ports & theirs)[:3]} on {worker_id}"
        others[name], self.hosts[name] = ports, worker_id


async def audited(store: Store) -> tuple[int, int]:
    """Read all sessions from a store and add them up; give how many places are over-committed and ports shared."""
    page = await scan_all(store, "lablet-sessions/")
    sessions = [read_entry(entry, LabletSession) for entry in page.entries]
    claims: dict[str, list[Claim]] = {}
    ports: dict[str, list[int]] = {}
    for one in sessions:
        claim, status = get_claim(one), one.status
        if claim is not None and (status.seat or status.worker_id):
            place = f"{status.seat.pool}/{status.seat.number}" if status.seat else str(status.worker_id)
            claims.setdefault(place, []).append(claim)
        if claim is not None and status.worker_id is not None:
            ports.setdefault(status.worker_id, []).extend((status.allocated_ports or {}).values())
    over = sum(bool(Profile.of(several).find_overcommitted(ROOM)) for several in claims.values())
    shared = sum(len(several) - len(set(several)) for several in ports.values())
    return over, shared
