"""The fleet's index, held against the plain arithmetic of claims and against itself rebuilt."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from harness import given
from harness.suite import for_all
from lcm.model.base.capacity import DIMENSIONS, ZERO_AMOUNT, Amount, Claim, Profile
from lcm.placement import fleet as fleet_module
from lcm.placement.bitmap import CPU, FULLEST, MEMORY, STEPS
from lcm.placement.candidate import IndexedPlace, PackedRequest
from lcm.placement.fleet import PlaceIndex
from lcm.placement.place import evaluate_places, place
from lcm.placement.request import HeldClaim, Place, PlacementRequest
from lcm.placement.size_class import SizeClass
from lcm.placement.strategies import SCORES, STRATEGIES, bin_pack
from lcm.placement.timeline import TICK_MICROS, Lanes, Timeline, levels, micros, moment_of, round_up_capacity

START = given.moment("08:00")
STEP = timedelta(minutes=10)
SMALL = Amount(cpu_millis=6, memory_mb=6, storage_mb=6, nodes=6, ports=6, labs=4)
BASES = (CPU, MEMORY)
IDS = ("a", "b", "c", "d", "e")

sizes = st.sampled_from([SMALL, SMALL, msgspec.structs.replace(SMALL, cpu_millis=5), ZERO_AMOUNT, given.machine()])
needs = st.builds(Amount, **dict.fromkeys(DIMENSIONS, st.integers(0, 3)))
huge = st.builds(Amount, cpu_millis=st.sampled_from([0, 1, 2**53]), nodes=st.integers(0, 2**53), labs=st.just(1))
claims = st.builds(
    lambda start, length, need: Claim(start=START + start * STEP, end=START + (start + length) * STEP, need=need),
    st.integers(0, 40),
    st.one_of(st.integers(0, 30), st.integers(0, 30), st.just(900)),
    st.one_of(needs, needs, needs, huge),
)
places = st.builds(
    lambda id_, size, closed, seat, version: Place(
        id=id_, name=id_, capacity=size, region="r", closed=closed, seat=seat, version=version, template="metal"
    ),
    st.sampled_from(IDS),
    sizes,
    st.sampled_from(["", "", "", "draining", "booting"]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from(["2.7", "2.10"]),
)
changes = st.lists(
    st.one_of(
        st.tuples(st.just("put"), places),
        st.tuples(st.just("hold"), st.sampled_from(IDS), st.integers(0, 9).map(str), claims),
        st.tuples(st.just("hold"), st.sampled_from(IDS), st.integers(0, 9).map(str), claims),
        st.tuples(st.just("release"), st.sampled_from(IDS), st.integers(0, 9).map(str)),
        st.tuples(st.just("drop"), st.sampled_from(IDS)),
        st.tuples(st.just("advance"), st.sampled_from([5, 10, 20, 30, 400])),
    ),
    max_size=40,
)


def one(id_: str = "w1", **overrides: Any) -> Place:
    values: dict[str, Any] = {"id": id_, "name": id_, "capacity": given.machine(), "region": "us-east-1"}
    return Place(**values | {"version": "2.9"} | overrides)


def after(several: Sequence[tuple[Any, ...]]) -> PlaceIndex:
    fleet = PlaceIndex(Place(id=id_, name=id_, capacity=SMALL, region="r", version="2.9") for id_ in IDS[:3])
    for change, *values in several:
        match change, values:
            case "put", [new]:
                fleet.put(new)
            case "hold", [id_, holder, claim] if id_ in fleet:
                fleet.hold(id_, HeldClaim(holder, claim))
            case "release", [id_, holder]:
                fleet.release(id_, holder)
            case "drop", [id_]:
                fleet.drop(id_)
            case "advance", [number]:
                fleet.advance(START + number * STEP)
    return fleet


def ids_in(shelf: SizeClass, mask: int) -> list[str]:
    return [line.place.id for line in shelf.places_in(mask)]


def rows_by_id(shelf: SizeClass) -> object:
    return {tick: [ids_in(shelf, mask) for mask in row[:-2]] for tick, row in shelf.rows.items()}


def kinds_by_id(shelf: SizeClass) -> object:
    return sorted(ids_in(shelf, kind.mask) for kind in shelf._kinds._kinds.values())


def steps_from_now(fleet: PlaceIndex, timeline: Timeline) -> object:
    steps = zip(timeline.moments, timeline.levels, strict=True)
    return timeline.used_at(micros(fleet.now)), [step for step in steps if step[0] > micros(fleet.now)]


def from_now(fleet: PlaceIndex, claim: Claim) -> Claim:
    """Return what is left of a claim: nobody asks the index for the past."""
    start = max(claim.start, fleet.now)
    return msgspec.structs.replace(claim, start=start, end=max(claim.end, start))


def inside(fleet: PlaceIndex) -> object:
    """Return all that the index knows, in a form that can be compared."""
    shelves = sorted(
        (*fleet.workers, *fleet.seats),
        key=lambda one: (one.seats, one.size.cpu_millis),
    )
    lines = [
        (line.place, steps_from_now(fleet, line.sampled), steps_from_now(fleet, line.timeline), line.usable)
        for line in fleet.indexed_places()
    ]
    kept = [(s.size, s.seats, rows_by_id(s), kinds_by_id(s)) for s in shelves]
    return kept, lines


@for_all(changes)
def test_the_index_equals_one_built_from_scratch(several: list[tuple[Any, ...]]) -> None:
    fleet = after(several)
    ids = [line.place.id for line in fleet.indexed_places()]
    again = PlaceIndex([fleet[id_] for id_ in ids])
    again.advance(fleet.now)
    for id_ in ids:
        for held in fleet.claims_on(id_):
            again.hold(id_, held)
    assert inside(again) == inside(fleet)


@for_all(changes, claims)
def test_a_claim_fits_where_the_plain_arithmetic_says_so(several: list[tuple[Any, ...]], claim: Claim) -> None:
    fleet = after(several)
    claim = from_now(fleet, claim)
    for line in fleet.indexed_places():
        profile = Profile.of(held.claim for held in fleet.claims_on(line.place.id))
        assert fleet.fits(line.place.id, claim) is profile.fits(claim, line.place.capacity)


@for_all(changes, claims, st.sampled_from(STRATEGIES), st.integers(0, 99))
def test_the_chosen_place_fits_and_nobody_is_turned_away_for_nothing(
    several: list[tuple[Any, ...]], claim: Claim, strategy: str, number: int
) -> None:
    fleet = after(several)
    claim = from_now(fleet, claim)
    request = PlacementRequest("s", claim, cml_version_min="2.9")
    fitting = {
        line.place.id
        for line in fleet.indexed_places()
        if not line.place.closed
        and not line.place.seat
        and line.place.version != "2.7"
        and Profile.of(held.claim for held in fleet.claims_on(line.place.id)).fits(claim, line.place.capacity)
    }
    decision = place(fleet, request, strategy, number=number).decision
    assert (decision.action == "assign") is bool(fitting)
    assert decision.worker_id in fitting or decision.worker_id is None
    assert decision.score is None or 0 <= decision.score <= 1
    assert {a.place.id for a in evaluate_places(fleet, request) if not a.filter and not a.place.seat} == fitting


@for_all(changes, claims, st.sampled_from(sorted(SCORES)))
def test_what_is_chosen_scores_as_it_is_explained(several: list[tuple[Any, ...]], claim: Claim, strategy: str) -> None:
    fleet = after(several)
    request = PlacementRequest("s", claim)
    found = place(fleet, request, strategy)
    if found.decision.action == "assign":
        answers = {answer.place.id: answer for answer in evaluate_places(fleet, request, strategy)}
        assert answers[str(found.decision.worker_id)].score == found.decision.score
        if strategy != "BinPack":
            scores = [a.score for a in answers.values() if a.score is not None and not a.place.seat]
            assert found.decision.score == max(scores)


def scarcity(level: int) -> int:
    return 0 if level < 24 else min(1 + (level - 24) // 2, 5)


def was_too_full(line: IndexedPlace, ask: PackedRequest) -> bool:
    """Return whether a place had too little room just before the first half hour that the rows show of a claim."""
    most = line.shelf.lanes.highest_levels(ask.room(line.shelf.lanes))
    if ask.start < line.shelf.rows.since * TICK_MICROS:
        steps = [
            sum(line.slot in bits(line.shelf.current[base + step]) for step in range(1, FULLEST + 1)) for base in BASES
        ]
        return any(one > STEPS[other] for one, other in zip(steps, most, strict=False))
    used = levels(line.sampled_at(ask.start // TICK_MICROS))
    greater = any(STEPS[one] > STEPS[other] for one, other in zip(used[:2], most[:2], strict=True))
    scarcer = any(scarcity(one) > scarcity(other) for one, other in zip(used[2:], most[2:], strict=True))
    return ask.start % TICK_MICROS > 0 and (greater or scarcer)


def bits(mask: int) -> set[int]:
    return {slot for slot in range(mask.bit_length()) if mask >> slot & 1}


def plain_choice(fleet: PlaceIndex, request: PlacementRequest) -> tuple[str | None, float | None]:
    """Choose by going through all places."""
    ask = PackedRequest(request)
    fitting = [line for line in fleet.indexed_places() if not line.place.seat and ask.rejection(line) is None]
    order = [(was_too_full(line, ask), -bin_pack(line, ask), line.place.id) for line in fitting]
    _, score, id_ = min(order, default=(False, None, None))
    return id_, None if score is None else -score


@for_all(changes, st.lists(claims, min_size=1, max_size=8))
def test_bin_pack_chooses_what_a_look_at_all_places_would(several: list[tuple[Any, ...]], asked: list[Claim]) -> None:
    fleet = after(several)
    for number, claim in enumerate(asked):
        request = PlacementRequest(f"s{number}", claim)
        want = plain_choice(fleet, request)
        found = place(fleet, request).decision
        assert (found.worker_id, found.score) == want
        if found.worker_id:
            fleet.hold(found.worker_id, HeldClaim(request.name, claim))


@for_all(changes, st.lists(claims, min_size=1, max_size=8))
def test_a_size_class_in_blocks_takes_what_it_would_take_in_one(
    several: list[tuple[Any, ...]], asked: list[Claim]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet_module, "BLOCK_PLACES", 1)
        fleet = after(several)
        for number, claim in enumerate(asked):
            request = PlacementRequest(f"s{number}", claim)
            fitting = {
                a.place.id: a.score for a in evaluate_places(fleet, request) if not a.filter and not a.place.seat
            }
            found = place(fleet, request).decision
            assert fitting.get(found.worker_id or "") == found.score
            assert bool(found.worker_id) is bool(fitting)
            if found.worker_id:
                fleet.hold(found.worker_id, HeldClaim(request.name, claim))


@for_all(st.lists(claims, max_size=60), st.sampled_from(STRATEGIES))
def test_nothing_is_ever_over_committed(several: list[Claim], strategy: str) -> None:
    fleet = PlaceIndex(one(id_, capacity=SMALL) for id_ in IDS)
    for number, claim in enumerate(several):
        found = place(fleet, PlacementRequest(str(number), claim), strategy, number=number)
        if found.place is not None and found.decision.action == "assign":
            assert fleet.fits(found.place.id, claim)
            fleet.hold(found.place.id, HeldClaim(str(number), claim))
    for id_ in IDS:
        assert not Profile.of(held.claim for held in fleet.claims_on(id_)).find_overcommitted(SMALL)


@for_all(changes, claims)
def test_the_earliest_moment_is_that_of_the_plain_arithmetic(several: list[tuple[Any, ...]], claim: Claim) -> None:
    fleet = after(several)
    claim = from_now(fleet, claim)
    length = claim.end - claim.start
    for answer in evaluate_places(fleet, PlacementRequest("s", claim)):
        if not answer.place.closed:
            profile = Profile.of(held.claim for held in fleet.claims_on(answer.place.id))
            want = profile.earliest(claim.need, answer.place.capacity, length=length, not_before=claim.start)
            assert answer.earliest == want


def test_a_claim_of_no_length_fits_at_once_even_where_others_hold_too_much() -> None:
    holding = [HeldClaim(str(n), given.claim("09:00", "11:00", cpu_millis=48_000)) for n in range(2)]
    fleet = PlaceIndex([one()], {"w1": holding})
    claim = given.claim("10:00", "10:00", cpu_millis=1_000)
    (answer,) = evaluate_places(fleet, PlacementRequest("s", claim))
    assert answer.earliest == claim.start


@pytest.mark.parametrize("ends", [True, False])
def test_who_was_too_full_takes_a_claim_once_what_filled_it_ends_or_is_released(*, ends: bool) -> None:
    fleet = PlaceIndex([one()], {"w1": [HeldClaim("s1", given.claim("09:00", "09:20", cpu_millis=48_000))]})
    fleet.advance(given.moment("09:00"))
    assert place(fleet, PlacementRequest("early", given.claim("09:05", "11:00"))).decision.action == "wait"
    if not ends:
        assert fleet.release("w1", "s1")
    later = given.claim("09:20" if ends else "09:06", "11:00")
    assert place(fleet, PlacementRequest("later", later)).decision.worker_id == "w1"


def test_who_lacked_the_memory_at_the_half_hour_before_comes_last_though_it_is_fuller_by_cpu() -> None:
    memory = one().capacity.memory_mb
    before = given.claim("08:00", "09:04", cpu_millis=40_000, memory_mb=memory * 7 // 8)
    fuller, emptier = given.claim("08:00", "12:00", cpu_millis=6_000), given.claim("08:00", "12:00", cpu_millis=1_000)
    held = {"w1": [HeldClaim("s1", before), HeldClaim("s2", fuller)], "w2": [HeldClaim("s3", emptier)]}
    fleet = PlaceIndex([one("w1"), one("w2")], held)
    request = PlacementRequest("s4", given.claim("09:05", "10:30", cpu_millis=1_000, memory_mb=memory // 2))
    assert place(fleet, request).decision.worker_id == plain_choice(fleet, request)[0] == "w2"


@for_all(needs, needs)
def test_what_is_packed_can_be_unpacked(need: Amount, more: Amount) -> None:
    lanes = Lanes(SMALL)
    assert lanes.unpack(lanes.pack(need) + lanes.pack(more)) == need + more


@for_all(st.integers(0, 2**53))
def test_rounding_a_size_up_never_makes_it_smaller_nor_much_larger(size: int) -> None:
    found = round_up_capacity(Amount(cpu_millis=size)).cpu_millis
    assert size <= found <= size + size // 4


def test_a_moment_survives_being_a_number() -> None:
    moment = given.moment("09:00:30") + timedelta(microseconds=7)
    assert moment_of(micros(moment)) == moment


def test_a_foreign_lab_without_an_end_holds_for_ever() -> None:
    fleet = PlaceIndex([one()])
    forever = given.claim("09:00", cpu_millis=48_000)
    far = msgspec.structs.replace(forever, end=START.replace(year=9999))
    fleet.hold("w1", HeldClaim("foreign", far))
    asked = PlacementRequest(
        "s", Claim(start=given.moment("09:00", day=400), end=given.moment("10:00", day=400), need=given.amount())
    )
    answer = evaluate_places(fleet, asked)[0]
    assert (answer.filter, answer.reason) == (
        "cpu",
        "4 cores needed, 0 cores free now",
    )
    assert place(fleet, asked).decision.action == "wait"


def test_the_span_of_a_claim_shorter_than_half_an_hour_may_be_empty() -> None:
    short = PlacementRequest("s", given.claim("09:05", "09:20"))
    assert PackedRequest(short).first == PackedRequest(short).stop
    assert place(PlaceIndex([one()]), short).decision.worker_id == "w1"


def test_taking_what_does_not_fit_is_refused_and_holding_it_is_not() -> None:
    fleet = PlaceIndex([one()], {"w1": [HeldClaim("s1", given.claim(cpu_millis=40_000))]})
    large = HeldClaim("s2", given.claim(cpu_millis=9_000))
    assert not fleet.fits("w1", large.claim)
    fleet.hold("w1", large)
    assert {held.holder for held in fleet.claims_on("w1")} == {"s1", "s2"}
    assert fleet.release("w1", "s2")
    assert not fleet.release("w1", "s2")
    assert not fleet.release("w9", "s2")
    assert len(fleet) == 1


def test_a_block_from_which_something_is_released_is_searched_first_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_module, "BLOCK_PLACES", 1)
    fleet = PlaceIndex([one("w1"), one("w2")])
    fleet.advance(given.moment("09:00"))
    large = [PlacementRequest(name, given.claim("09:05", "11:00", cpu_millis=30_000)) for name in ("s1", "s2", "s3")]
    for request, chosen in zip(large, ("w1", "w2", None), strict=True):
        assert place(fleet, request).decision.worker_id == chosen
        if chosen:
            fleet.hold(chosen, HeldClaim(request.name, request.claim))
    assert fleet.release("w1", "s1")
    assert place(fleet, large[2]).decision.worker_id == "w1"


def test_what_began_before_the_dropped_past_is_held_and_released_until_its_end() -> None:
    fleet = PlaceIndex([one()], {"w1": [HeldClaim("s1", given.claim("08:00", "09:00"))]})
    fleet.advance(given.moment("09:10"))
    assert fleet.release("w1", "s1")
    fleet.hold("w1", HeldClaim("s2", given.claim("08:30", "10:00", cpu_millis=40_000)))
    fleet.hold("w1", HeldClaim("s3", given.claim("08:30", "09:05", cpu_millis=40_000)))
    assert not fleet.fits("w1", given.claim("09:10", "11:00", cpu_millis=9_000))
    assert fleet.fits("w1", given.claim("10:00", "11:00", cpu_millis=48_000))
    assert fleet.release("w1", "s2")
    assert fleet.release("w1", "s3")
    assert fleet.fits("w1", given.claim("09:10", "11:00", cpu_millis=48_000))
