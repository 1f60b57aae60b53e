"""Which seat of a pool takes a claim, and why none does. Pure.

The seat is chosen whose worker must run the least in addition: one in use around that time anyway that ends with the
claim. A tie goes to the lowest number. A worker may be of another kind than its pool's template, because it was
adopted or is older than the template's last change: `SeatKinds` says which seats suit a request, by the worker or
else by the template.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from lcm.model.base.capacity import ZERO_AMOUNT, Amount, Claim, dimension_words, find_exceeded
from lcm.model.kinds.worker import LabWorker
from lcm.placement.candidate import format_apart, format_moment
from lcm.placement.limits import LIMITS, OPENING_POLICIES, PromiseRules, find_closed_time, find_violated_limit
from lcm.placement.places import PoolSnapshot, expected_place, with_image_facts
from lcm.placement.request import Place, PlacementRequest
from lcm.placement.rules import static_rejection
from lcm.placement.seats import FOREIGN_LABS_STAY, Seats, SeatTimeline, Span, span_of, total_length
from lcm.placement.timeline import micros, moment_of, short_of

SEAT_REMEDIES: Final[Mapping[str, str]] = {
    "too_large": "make the lab smaller, or use a template with a larger machine for the pool",
    "no_worker": "set the pool's policy to SCHEDULED or HYBRID, or add workers to it",
    "too_soon": "choose a later slot, or ask for it as soon as possible instead",
    "foreign_labs": "choose one of the nearest free slots, or end the labs on the worker that no session made",
    "full": "choose one of the nearest free slots, or raise the pool's max_workers",
    "paused": "choose one of the nearest free slots, or resume the pool",
    "hours": "choose a slot within the pool's allowed_hours, or widen them",
    "licences": "choose one of the nearest free slots, or add licence seats",
    "price_unknown": "set price_per_hour_usd in the template, or add its instance type to the price book",
    "hourly_budget": "choose one of the nearest free slots, or raise the pool's hourly budget",
    "monthly_budget": "choose a slot in another month, or raise the pool's monthly budget",
    "track_budget": "choose a slot in another month, or ask an operator to raise the track's budget in the settings",
}
"""The remedy for each reason of a refusal."""

_REFUSAL_ORDER: Final = ("too_large", "no_worker", "full", "foreign_labs", "too_soon", *LIMITS)
"""The more checks a seat passed, the more its refusal says about what is in the way."""


def refusal_rank(reason: str) -> int:
    """Return how many checks were passed before a refusal for this reason; -1 if it came before any seat was asked."""
    return _REFUSAL_ORDER.index(reason) if reason in _REFUSAL_ORDER else -1


def choose_seat(seats: Seats, claim: Claim, rules: PromiseRules, among: Iterable[int] | None = None) -> int | None:
    """Choose the seat whose worker must run least longer for a claim, the first of several; None if none takes it."""
    span = span_of(claim)
    if claim.start < rules.now or find_closed_time([span], rules):
        return None
    numbers = candidate_seats(seats, rules) if among is None else sorted(among)
    offers: list[tuple[int, int, Sequence[Span]]] = []
    for number in numbers:
        if seats.fits(number, span, required_room(seats, number, claim, rules)):
            pieces = seats.added_runtime(number, span)
            if _is_too_soon(number, span, pieces, rules):
                continue
            if not pieces and find_limit(seats, number, span, pieces, rules) is None:
                return number  # it runs anyway
            offers.append((total_length(pieces), number, pieces))
    if not rules.has_limits:
        return min(offers)[1] if offers else None
    return next(
        (number for _, number, pieces in sorted(offers) if find_limit(seats, number, span, pieces, rules) is None),
        None,
    )


def find_limit(
    seats: Seats, number: int, span: Span, pieces: Sequence[Span], rules: PromiseRules
) -> tuple[str, str] | None:
    """Return the limit that forbids a claim on a seat whose worker must run so much longer for it; None if none does.

    A worker that always runs does so while the pool is open, and must have been started by the time of the claim.
    """
    if number in seats.always:
        began = Span(max(span.start - seats.lead, min(span.start, micros(rules.now))), span.end)
        closed = find_closed_time([began], rules)
        if closed is not None:
            return closed
    return find_violated_limit(seats, pieces, rules)


def explain_refusal(
    seats: Seats, claim: Claim, rules: PromiseRules, among: Iterable[int] | None = None
) -> tuple[str, str]:
    """Return why no seat takes a claim, in a word and in a sentence."""
    span = span_of(claim)
    if claim.start < rules.now:
        return (
            "too_soon",
            f"it would have to be instantiated from {format_moment(claim.start)} on, which is in the past",
        )
    closed = find_closed_time([span], rules)
    if closed is not None:
        return closed
    numbers = among or (number for number in candidate_seats(seats, rules) if number <= seats.most)
    answers = [_seat_rejection(seats, number, claim, rules) for number in numbers]
    none = "no_worker", f"the pool has no worker, and with the policy {rules.policy} it starts no worker for a booking"
    return max(answers or [none], key=lambda answer: refusal_rank(answer[0]))


def candidate_seats(seats: Seats, rules: PromiseRules) -> Iterator[int]:
    """Iterate over the seats that may be promised; of those that are alike and have no claim only the first."""
    fresh = False
    for number in range(1, len(seats) + 1):
        if number in rules.unsuited:
            continue
        if number in rules.usable or (number in seats.always and rules.policy in OPENING_POLICIES):
            yield number
        elif rules.policy in OPENING_POLICIES:
            plain = is_plain(seats, number)
            if not (plain and fresh):
                yield number
            fresh = fresh or plain


def is_plain(seats: Seats, number: int) -> bool:
    """Return whether a seat has no claim and nothing that distinguishes it."""
    seat = seats[number]
    alike = seat.capacity == seats.capacity and seat.strangers is ZERO_AMOUNT and seat.limit is None
    return alike and not seat.held


def _is_too_soon(number: int, span: Span, pieces: Sequence[Span], rules: PromiseRules) -> bool:
    """Return whether a seat's worker cannot be up by the time a claim begins."""
    usable = rules.usable.get(number)
    if usable is not None:
        return span.start < micros(usable)
    return bool(pieces) and pieces[0].start < micros(rules.now)


def _seat_rejection(seats: Seats, number: int, claim: Claim, rules: PromiseRules) -> tuple[str, str]:
    seat, span = seats[number], span_of(claim)
    if number > seats.most:
        return "full", f"planned worker {number} is beyond the pool's size by now, and takes no more bookings"
    large = find_exceeded(claim.need, seat.capacity)
    if large:
        return "too_large", f"it needs more {dimension_words(large)} than a worker of the pool has"
    short = _describe_shortage(seat, span, claim.need)
    if short:
        until = seat.limit.until + seat.limit.pause if seat.limit else span.start
        small = f", with a smaller machine until {format_moment(moment_of(until))}" if until > span.start else ""
        return "full", f"{_describe_taken(seats, rules)}: planned worker {number} is {short}{small}"
    short = _describe_shortage(seat, span, required_room(seats, number, claim, rules))
    if short:
        return "foreign_labs", f"labs that no session made are in the way: with them planned worker {number} is {short}"
    pieces = seats.added_runtime(number, span)
    if _is_too_soon(number, span, pieces, rules):
        usable = rules.usable.get(number) or rules.now + timedelta(microseconds=seats.lead)
        ready, begins = format_apart(usable, claim.start)
        return "too_soon", f"planned worker {number} has a machine from {ready} on, and the claim begins {begins}"
    found = find_limit(seats, number, span, pieces, rules)
    assert found is not None, f"seat {number} takes the claim"
    return found


def required_room(seats: Seats, number: int, claim: Claim, rules: PromiseRules) -> Amount:
    """Return what must be free on a seat for a claim.

    That includes what labs take there that no session made, if they may last until the claim begins.
    """
    strangers = seats[number].strangers
    if strangers is ZERO_AMOUNT or claim.start >= rules.now + FOREIGN_LABS_STAY:
        return claim.need
    return claim.need + strangers


def _describe_shortage(seat: SeatTimeline, span: Span, need: Amount) -> str:
    """Describe which dimensions of a seat are too small for a need, and when; "" if none ever is."""
    moment = seat.timeline.first_misfit(span.start, span.end, seat.pack_need(need))
    if moment is None:
        return ""
    short = short_of(seat.timeline.top - seat.pack_need(need) - seat.timeline.used_at(moment))
    return f"short of {dimension_words(short)} at {format_moment(moment_of(moment))}"


def _describe_taken(seats: Seats, rules: PromiseRules) -> str:
    if rules.unsuited:
        return "all planned workers that suit it are taken"
    if rules.policy in OPENING_POLICIES:
        return f"all {seats.most} planned workers are taken"
    several = len(rules.usable) != 1
    return f"the {len(rules.usable)} worker{'s' * several} of the pool {'are' if several else 'is'} taken"


FilterRejection = tuple[str, str]
"""The filter that rejected a request, and its reason."""


@dataclass(frozen=True, slots=True)
class SeatKinds:
    """The kinds of a pool's seats: those without a worker are like `template`, the others like their workers."""

    template: Place
    workers: Sequence[tuple[Place, Sequence[int]]] = ()

    def unsuitable_seats(self, request: PlacementRequest, seats: Iterable[int]) -> Mapping[int, FilterRejection]:
        """Return the seats that do not suit a request, each with the reason."""
        found: dict[int, FilterRejection] = {}
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


def seat_kinds_of(row: PoolSnapshot, template: Place) -> SeatKinds:
    """Group a pool's seats by the kind of their workers; a worker that leaves says nothing about its successor."""
    alike: dict[object, list[int]] = defaultdict(list)
    for number, worker in row.workers.items():
        alike[_worker_facts(worker)].append(number)
    first = ((row.workers[numbers[0]], numbers) for numbers in alike.values())
    found = ((worker, expected_place(worker), numbers) for worker, numbers in first)
    kinds = [(with_image_facts(place, worker, row), numbers) for worker, place, numbers in found if place is not None]
    return SeatKinds(template, kinds)


def _worker_facts(worker: LabWorker) -> object:
    """Return what a worker's place is computed from: a pool has many workers and few kinds of them."""
    spec, status, cml = worker.spec, worker.status, worker.spec.cml
    going = worker.metadata.deletion_timestamp is not None
    state = status.phase, status.failure, status.cml.licensed, status.cml.version, status.cml.node_definitions
    image = spec.aws.region, spec.aws.market, spec.aws.ami_id, spec.aws.ami_name_pattern
    return image, spec.lab_track, spec.lab_types, cml.license_flavour, cml.license_token, going, state


def exclude_unsuitable(
    kinds: SeatKinds, request: PlacementRequest, seats: Seats, rules: PromiseRules
) -> PromiseRules | FilterRejection:
    """Return rules without the seats that do not suit a request, or the rejection if none of them does."""
    away = kinds.unsuitable_seats(request, range(1, len(seats) + 1))
    if not away:
        return rules
    rest = replace(rules, unsuited=frozenset(away))
    if next(candidate_seats(seats, rest), None) is not None:
        return rest
    return away[next(candidate_seats(seats, rules), min(away))]
