"""Which seat of a pool takes a claim, and why none does. Pure; `promise`, `slots` and `reseat` ask here.

The seat is chosen whose worker must run the least in addition: one that is in use around that time anyway and ends
with the claim. A tie goes to the lowest number.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from lcm.model.base.capacity import NOTHING, Amount, Claim, exceeded
from lcm.model.kinds.worker import LabWorker
from lcm.placement.candidate import clock
from lcm.placement.limits import LIMITS, OPENING, Rules, barred, outside_hours
from lcm.placement.places import Row, coming_place
from lcm.placement.request import Place, Request
from lcm.placement.rules import static_rejection
from lcm.placement.seats import STRANGERS_STAY, Seat, Seats, Span, length, span_of
from lcm.placement.timeline import micros, moment_of, short_of

REMEDIES: Final[Mapping[str, str]] = {
    "too_large": "make the lab smaller, or give the pool a template with a larger machine",
    "no_worker": "give the pool the policy SCHEDULED or HYBRID, or add workers to it",
    "too_soon": "choose a later slot, or ask for it as soon as possible instead",
    "foreign_labs": "choose one of the nearest free slots, or end the labs on the worker that no session made",
    "full": "choose one of the nearest free slots, or raise the pool's max_workers",
    "hours": "choose a slot within the pool's allowed_hours, or widen them",
    "licences": "choose one of the nearest free slots, or add licence seats",
    "price_unknown": "give the template a price_per_hour_usd, or the price book one for its instance type",
    "hourly_budget": "choose one of the nearest free slots, or raise the pool's hourly budget",
    "monthly_budget": "choose a slot in another month, or raise the pool's monthly budget",
}
"""What helps, by the reason of a refusal."""

_ORDER: Final = ("too_large", "no_worker", "full", "foreign_labs", "too_soon", *LIMITS)
"""The farther a seat came, the more it says about what is in the way."""


def how_far(reason: str) -> int:
    """Say how far one came who was refused for a reason; what is asked before any seat is comes first."""
    return _ORDER.index(reason) if reason in _ORDER else -1


def seat_for(seats: Seats, claim: Claim, rules: Rules, among: Iterable[int] | None = None) -> int | None:
    """Choose the seat that takes a claim; None if none does."""
    span = span_of(claim)
    if claim.start < rules.now or outside_hours([span], rules):
        return None
    numbers = candidates(seats, rules) if among is None else among
    fitting = (number for number in numbers if seats.fits(number, span, asked(seats, number, claim, rules)))
    offers = [offer for number in fitting if (offer := _offer(seats, number, span, rules))]
    if not rules.limited:
        return min(offers)[1] if offers else None
    return next((number for _, number, pieces in sorted(offers) if barred(seats, pieces, rules) is None), None)


def why_not(seats: Seats, claim: Claim, rules: Rules, among: Iterable[int] | None = None) -> tuple[str, str]:
    """Say in a word and in a sentence why no seat takes a claim."""
    span = span_of(claim)
    if claim.start < rules.now:
        return "too_soon", f"it would have to be instantiated from {clock(claim.start)} on, which is past"
    closed = outside_hours([span], rules)
    if closed:
        return "hours", closed
    numbers = among or (number for number in candidates(seats, rules) if number <= seats.most)
    answers = [_rejection(seats, number, claim, rules) for number in numbers]
    none = "no_worker", f"the pool has no worker, and with the policy {rules.policy} it opens no seat for a booking"
    return max(answers or [none], key=lambda answer: how_far(answer[0]))


def candidates(seats: Seats, rules: Rules) -> Iterator[int]:
    """Give the seats that may be promised; of those that are alike and without any claim only the first."""
    fresh = False
    for number in range(1, len(seats) + 1):
        if number in rules.unsuited:
            continue
        if number in rules.usable or (number in seats.always and rules.policy in OPENING):
            yield number
        elif rules.policy in OPENING:
            plain = is_plain(seats, number)
            if not (plain and fresh):
                yield number
            fresh = fresh or plain


def is_plain(seats: Seats, number: int) -> bool:
    """Tell whether a seat has no claim and nothing of its own."""
    seat = seats[number]
    return not seat.held and seat.capacity == seats.capacity and seat.strangers is NOTHING


_Offer = tuple[int, int, Sequence[Span]]


def _offer(seats: Seats, number: int, span: Span, rules: Rules) -> _Offer | None:
    pieces = seats.added(number, span)
    if _too_soon(number, span, pieces, rules):
        return None
    return length(pieces), number, pieces


def _too_soon(number: int, span: Span, pieces: Sequence[Span], rules: Rules) -> bool:
    """Tell whether a seat's worker cannot be up by the time a claim begins."""
    usable = rules.usable.get(number)
    if usable is not None:
        return span.start < micros(usable)
    return bool(pieces) and pieces[0].start < micros(rules.now)


def _rejection(seats: Seats, number: int, claim: Claim, rules: Rules) -> tuple[str, str]:
    seat, span = seats[number], span_of(claim)
    if number > seats.most:
        return "full", f"seat {number} is beyond the pool's size by now, and only keeps what it has"
    large = exceeded(claim.need, seat.capacity)
    if large:
        return "too_large", f"it needs more {_words(large)} than a worker of the pool has"
    short = _short(seat, span, claim.need)
    if short:
        return "full", f"{_taken(seats, rules)}: seat {number} is {short}"
    short = _short(seat, span, asked(seats, number, claim, rules))
    if short:
        return "foreign_labs", f"labs that no session made are in the way: with them seat {number} is {short}"
    pieces = seats.added(number, span)
    if _too_soon(number, span, pieces, rules):
        ready = clock(rules.usable.get(number) or rules.now + timedelta(microseconds=seats.lead))
        return "too_soon", f"seat {number} has a worker from {ready} on, and the claim begins {clock(claim.start)}"
    found = barred(seats, pieces, rules)
    assert found is not None, f"seat {number} takes the claim"
    return found


def asked(seats: Seats, number: int, claim: Claim, rules: Rules) -> Amount:
    """Say what must be free on a seat for a claim: also what others' labs take there, if they may last until then."""
    strangers = seats[number].strangers
    if strangers is NOTHING or claim.start >= rules.now + STRANGERS_STAY:
        return claim.need
    return claim.need + strangers


def _short(seat: Seat, span: Span, need: Amount) -> str:
    """Say of what and when a seat has too little for a need; "" if never."""
    moment = seat.timeline.misfit(span.start, span.end, seat.packed(need))
    if moment is None:
        return ""
    short = short_of(seat.timeline.top - seat.packed(need) - seat.timeline.at(moment))
    return f"short of {_words(short)} at {clock(moment_of(moment))}"


def _taken(seats: Seats, rules: Rules) -> str:
    if rules.unsuited:
        return "all seats that suit it are taken"
    if rules.policy in OPENING:
        return f"all {seats.most} seats are taken"
    several = len(rules.usable) != 1
    return f"the {len(rules.usable)} worker{'s' * several} of the pool {'are' if several else 'is'} taken"


def _words(dimensions: Sequence[str]) -> str:
    return " and ".join(name.removesuffix("_millis").removesuffix("_mb") for name in dimensions)


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
