"""Which seats of a pool suit a request: by the worker that fills a seat, or by the template where none does. Pure.

A worker may be of another kind than its pool's template: it was adopted, or made before the template was changed. When
a session is put on it, it is asked itself; so bookings and their explanations ask here.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lcm.model.worker import LabWorker
from lcm.placement.limits import Rules
from lcm.placement.request import Place, Request
from lcm.placement.roster import Row, coming_place
from lcm.placement.rules import static_rejection
from lcm.placement.seating import candidates
from lcm.placement.seats import Seats

Turned = tuple[str, str]
"""The filter that turned a request away, and its reason."""


@dataclass(frozen=True, slots=True)
class Kinds:
    """What the seats of a pool are alike in: those without a worker as `template` says, the others by their workers."""

    template: Place
    workers: Sequence[tuple[Place, Sequence[int]]] = ()

    def unsuited(self, request: Request, seats: Iterable[int]) -> Mapping[int, Turned]:
        """Give the seats that do not suit a request, each with the reason."""
        found: dict[int, Turned] = {}
        general = static_rejection(self.template, request)
        if general is not None:
            found = dict.fromkeys(seats, general)
        for place, numbers in self.workers:
            rejected = static_rejection(place, request)
            for number in numbers:
                if rejected is not None:
                    found[number] = rejected
                else:
                    found.pop(number, None)
        return found


def kinds_of(row: Row, template: Place) -> Kinds:
    """Sort a pool's seats by what their workers are; a worker that leaves says nothing of who comes after it."""
    alike: dict[object, list[int]] = defaultdict(list)
    for number, worker in row.workers.items():
        alike[_seen_of(worker)].append(number)
    found = ((coming_place(row.workers[numbers[0]]), numbers) for numbers in alike.values())
    return Kinds(template, [(place, numbers) for place, numbers in found if place is not None])


def _seen_of(worker: LabWorker) -> object:
    """Give what a worker's place is made of: a pool has many workers and few kinds of them."""
    spec, status, cml = worker.spec, worker.status, worker.spec.cml
    going = worker.metadata.deletion_timestamp is not None
    told = status.phase, status.failure, status.cml.licensed, status.cml.version
    return spec.aws.region, spec.lab_track, spec.lab_types, cml.license_flavour, cml.license_token, going, told


def suited(kinds: Kinds, request: Request, seats: Seats, rules: Rules) -> Rules | Turned:
    """Leave out the seats that do not suit a request; or say what turns it away, if that is all of them."""
    away = kinds.unsuited(request, range(1, len(seats) + 1))
    if not away:
        return rules
    rest = replace(rules, unsuited=frozenset(away))
    if next(candidates(seats, rest), None) is not None:
        return rest
    return away[next(candidates(seats, rules), min(away))]
