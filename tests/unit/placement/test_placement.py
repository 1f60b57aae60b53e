"""Where sessions go and why: strategies, filters, decisions when nothing fits, explanations, and lessons 16 to 19."""

from typing import Any

import msgspec
import pytest

from harness import given
from lcm.model.kinds.worker import LabType, LicenseFlavour
from lcm.placement.fleet import PlaceIndex
from lcm.placement.place import MOST_EXAMPLES, PlaceEvaluation, evaluate_places, place
from lcm.placement.request import HeldClaim, Place, PlacementRequest
from lcm.placement.rules import FILTER_REMEDIES, TOO_LARGE_REMEDY
from lcm.placement.strategies import STRATEGIES


def worker(id_: str = "w1", **overrides: Any) -> Place:
    values: dict[str, Any] = {"id": id_, "name": id_, "capacity": given.machine(), "region": "us-east-1"}
    return Place(**values | {"version": "2.9"} | overrides)


def seat(id_: str = "seat-1", **overrides: Any) -> Place:
    return worker(id_, **{"seat": True, "licensed": None, "version": "", "template": "metal"} | overrides)


def request(
    start: str = "09:00", end: str = "11:00", *, need: dict[str, int] | None = None, **overrides: Any
) -> PlacementRequest:
    values: dict[str, Any] = {"name": "s1", "claim": given.claim(start, end, **need or {})}
    return PlacementRequest(**values | overrides)


def fleet(*places: Place, **held: list[Any]) -> PlaceIndex:
    claims = {id_: [HeldClaim(f"{id_}-{n}", claim) for n, claim in enumerate(several)] for id_, several in held.items()}
    return PlaceIndex(places, claims)


def answer(place_: Place, asked: PlacementRequest, *claims: Any) -> PlaceEvaluation:
    return evaluate_places(fleet(place_, **{place_.id: list(claims)}), asked)[0]


def test_bin_pack_prefers_the_fuller_place() -> None:
    busy = [given.claim("08:00", "12:00", cpu_millis=20_000)]
    found = place(fleet(worker("a"), worker("b"), b=busy), request())
    assert (found.decision.action, found.decision.worker_id) == ("assign", "b")
    assert found.place == worker("b")
    assert found.at == given.moment("09:00")


def test_bin_pack_prefers_a_place_that_runs_anyway_to_a_fuller_one_that_empties_sooner() -> None:
    full_but_soon_empty = [given.claim("08:00", "09:40", cpu_millis=40_000)]
    long = [given.claim("08:00", "11:00", cpu_millis=8_000)]
    assert place(fleet(worker("a"), worker("b"), a=full_but_soon_empty, b=long), request()).decision.worker_id == "b"


def test_bin_pack_prefers_a_place_that_empties_at_the_same_time() -> None:
    longer = [given.claim("08:00", "15:00")]
    as_long = [given.claim("08:00", "11:00")]
    assert place(fleet(worker("a"), worker("b"), a=longer, b=as_long), request()).decision.worker_id == "b"


def test_a_tie_goes_to_the_id_that_sorts_first() -> None:
    for strategy in ("BinPack", "BestFit", "LeastUtilized", "LeastLabs"):
        assert place(fleet(worker("c"), worker("a"), worker("b")), request(), strategy).decision.worker_id == "a"


def test_a_tie_between_sizes_goes_to_the_id_that_sorts_first() -> None:
    large = worker("a", capacity=given.machine(cpu_millis=96_000))
    assert place(fleet(worker("b"), large), request()).decision.worker_id == "a"
    assert place(fleet(worker("b"), worker("c"), large), request()).decision.worker_id == "a"


def test_the_least_utilized_and_the_one_with_the_fewest_labs_may_differ() -> None:
    one_large = [given.claim(cpu_millis=30_000)]
    two_small = [given.claim(cpu_millis=1_000, memory_mb=100)] * 2
    both = fleet(worker("a"), worker("b"), a=one_large, b=two_small)
    assert place(both, request(), "LeastUtilized").decision.worker_id == "b"
    assert place(both, request(), "LeastLabs").decision.worker_id == "a"


def test_round_robin_takes_turns_and_random_takes_what_was_drawn() -> None:
    three = fleet(worker("a"), worker("b"), worker("c"), b=[given.claim(cpu_millis=48_000)])
    for strategy in ("RoundRobin", "Random"):
        turns = [place(three, request(), strategy, number=turn).decision.worker_id for turn in range(4)]
        assert turns == ["a", "c", "a", "c"]


def test_the_preferred_region_comes_first_and_the_other_is_better_than_none() -> None:
    near, far = worker("b", region="eu-west-1"), worker("a")
    asked = request(region_preferred="eu-west-1")
    assert place(fleet(near, far), asked).decision.worker_id == "b"
    assert place(fleet(near, far, b=[given.claim(labs=20)]), asked).decision.worker_id == "a"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lesson_16_ports_are_counted_and_reject(strategy: str) -> None:
    taken = [given.claim(ports=5_998)]
    both = fleet(worker("a"), worker("b"), a=taken)
    assert place(both, request(need={"ports": 3}), strategy).decision.worker_id == "b"
    found = answer(worker(), request(need={"ports": 3}), *taken)
    assert (found.filter, found.reason) == ("ports", "3 ports needed, 2 ports free now")


def test_lesson_17_versions_are_compared_as_versions() -> None:
    old, new = worker("a", version="2.7.0"), worker("b", version="2.10.1")
    assert place(fleet(old, new), request(cml_version_min="2.8")).decision.worker_id == "b"
    assert place(fleet(old, new), request(cml_version_max="2.7")).decision.worker_id == "a"
    found = answer(old, request(cml_version_min="2.10"))
    assert (found.filter, found.reason) == ("cml_version", "its CML is 2.7.0, the lab asks for at least 2.10")


def test_lesson_18_the_size_of_the_request_is_read_and_the_score_stays_within_one() -> None:
    most = [given.claim(memory_mb=196_608 - 42 * 1024)]
    asked = request(need={"memory_mb": 64 * 1024})
    assert place(fleet(worker(), w1=most), asked).decision.action == "wait"
    assert answer(worker(), asked, *most).reason == "64 GB memory needed, 42 GB memory free now"
    best = place(fleet(worker(track="t")), request(track="t"), "BestFit").decision
    assert best.score == pytest.approx(1.0)
    assert best.score is not None
    assert best.score <= 1


def test_lesson_18_best_fit_keeps_preferring_the_emptiest_and_bin_pack_does_not() -> None:
    both = fleet(worker("a"), worker("b"), a=[given.claim()])
    assert place(both, request(), "BestFit").decision.worker_id == "b"
    assert place(both, request()).decision.worker_id == "a"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lesson_19_ten_placements_in_a_row_do_not_all_choose_one_worker(strategy: str) -> None:
    view = fleet(worker("a"), worker("b"), worker("c"))
    asked = [request(name=f"s{n}", need={"cpu_millis": 12_000}) for n in range(13)]
    taken = 0
    for one in asked:
        found = place(view, one, strategy)
        if found.place is not None and found.decision.action == "assign":
            assert view.fits(found.place.id, one.claim)
            view.hold(found.place.id, HeldClaim(one.name, one.claim))
            taken += 1
    assert taken == 12
    assert [len(view.claims_on(id_)) for id_ in ("a", "b", "c")] == [4, 4, 4]


def test_lesson_19_a_decision_from_an_old_view_is_not_taken() -> None:
    view = fleet(worker())
    one, other = (request(name=name, need={"cpu_millis": 30_000}) for name in ("s1", "s2"))
    decisions = [place(view, asked).decision.worker_id for asked in (one, other)]
    assert decisions == ["w1", "w1"]
    view.hold("w1", HeldClaim("s1", one.claim))
    assert not view.fits("w1", other.claim)


@pytest.mark.parametrize(
    ("place_", "asked", "name", "reason"),
    [
        (worker(closed="draining"), request(), "draining", "it is being drained"),
        (worker(closed="stopped"), request(), "phase", "it takes no sessions: stopped"),
        (worker(closed="booting"), request(), "phase", "it takes no sessions: booting"),
        (worker(), request(lab_type=LabType.CONTAINER), "lab_type", "it hosts CML, not CONTAINER"),
        (
            worker(licence=LicenseFlavour.PERSONAL),
            request(affinity=LicenseFlavour.ENTERPRISE),
            "license_affinity",
            "its licence is personal, the lab asks for enterprise",
        ),
        (worker(licensed=False), request(), "licensed", "it has no licence"),
        (worker(licensed=None), request(), "licensed", "it is not known whether it has a licence"),
        (
            worker(version=""),
            request(cml_version_min="2.8", cml_version_max="2.9"),
            "cml_version",
            "its CML is of an unknown version, the lab asks for at least 2.8 and at most 2.9",
        ),
        (
            worker(node_definitions=frozenset({"iosv"})),
            request(node_definitions=frozenset("abcdefg")),
            "node_definitions",
            "it lacks the node definitions a, b, c, d, e and 2 more",
        ),
        (
            worker(track="ccie"),
            request(track="ccna"),
            "track",
            "it is kept for the track ccie, the session is of ccna",
        ),
        (
            worker(),
            request(region_required="eu-west-1"),
            "region",
            "it is in us-east-1, the session must be in eu-west-1",
        ),
        (
            worker(usable_at=given.moment("09:20")),
            request(),
            "booting",
            "it can be used from 2026-11-02 09:20Z",
        ),
        (
            worker(licensed=False, capacity=given.machine(nodes=5)),
            request(require_licensed=False, need={"nodes": 6}),
            "nodes",
            "6 nodes needed, 5 nodes free now",
        ),
    ],
)
def test_a_place_says_why_it_does_not_take_a_session(
    place_: Place, asked: PlacementRequest, name: str, reason: str
) -> None:
    found = answer(place_, asked)
    assert (found.filter, found.reason, found.score) == (name, reason, None)
    assert found.remedy in {FILTER_REMEDIES[name], TOO_LARGE_REMEDY}
    decision = place(PlaceIndex([place_]), asked).decision
    assert (decision.action, decision.worker_id) == ("wait", None)
    assert [(one.filter, one.count, one.examples) for one in decision.rejections] == [(name, 1, (f"w1: {reason}",))]


def test_what_satisfies_every_filter_is_assigned() -> None:
    place_ = worker(
        track="ccna",
        node_definitions=frozenset({"iosv", "asav"}),
        lab_types=frozenset({LabType.CML, LabType.CONTAINER}),
    )
    asked = request(
        affinity=LicenseFlavour.PERSONAL,
        track="ccna",
        node_definitions=frozenset({"iosv"}),
        cml_version_min="2.8",
        cml_version_max="2.9",
        region_required="us-east-1",
    )
    assert place(fleet(place_), asked).decision.worker_id == "w1"
    assert answer(place_, asked).earliest == given.moment("09:00")


def test_without_a_licence_five_nodes_in_all_may_run() -> None:
    free = worker(licensed=False, capacity=given.machine(nodes=5))
    three = request(require_licensed=False, need={"nodes": 3})
    assert place(fleet(free), three).decision.action == "assign"
    foreign = given.claim("00:00", "23:00", nodes=3, labs=0)
    assert place(fleet(free, w1=[foreign]), three).decision.action == "wait"
    host = worker(licensed=False, lab_types=frozenset({LabType.CONTAINER}))
    assert place(fleet(host), request(lab_type=LabType.CONTAINER)).decision.action == "assign"


def test_a_lab_too_large_for_an_empty_place_is_told_to_shrink() -> None:
    found = answer(worker(), request(need={"cpu_millis": 64_000}))
    assert (found.filter, found.remedy, found.earliest) == ("cpu", TOO_LARGE_REMEDY, None)
    decision = place(fleet(worker()), request(need={"cpu_millis": 64_000})).decision
    assert decision.reason == "no open place will ever fit it"


def test_an_occupied_place_is_waited_for_and_it_is_said_until_when() -> None:
    found = place(fleet(worker(), w1=[given.claim("08:00", "09:30", labs=20)]), request())
    assert found.decision.action == "wait"
    assert found.decision.reason == "w1 will fit it at 2026-11-02 09:30Z"
    assert (found.place, found.at) == (worker(), given.moment("09:30"))
    assert found.decision.rejections[0].filter == "labs"


def test_a_seat_is_opened_when_no_worker_fits_sooner() -> None:
    full = [given.claim("08:00", "12:00", labs=20)]
    opened = seat(usable_at=given.moment("09:25"))
    found = place(fleet(worker(), opened, w1=full), request())
    assert (found.decision.action, found.decision.worker_template) == ("scale_up", "metal")
    assert (found.decision.worker_id, found.place, found.at) == (None, opened, given.moment("09:25"))
    assert {one.filter for one in found.decision.rejections} == {"labs", "booting"}


def test_a_booting_worker_is_waited_for_rather_than_opening_another_seat() -> None:
    booting = worker(closed="booting", usable_at=given.moment("09:10"))
    found = place(fleet(booting, seat(usable_at=given.moment("09:25"))), request())
    assert (found.decision.action, found.decision.reason) == ("wait", "w1 will fit it at 2026-11-02 09:10Z")
    assert place(fleet(booting), request("09:10")).decision.action == "assign"


def test_a_booked_slot_does_not_move() -> None:
    occupied = {"w1": [given.claim("08:00", "09:30", labs=20)]}
    found = place(fleet(worker(), **occupied), request(movable=False))
    assert (found.decision.action, found.decision.reason) == ("wait", "no open place fits it at its time")
    assert found.at is None
    found = place(fleet(worker(), seat(), **occupied), request(movable=False))
    assert (found.decision.action, found.at) == ("scale_up", given.moment("09:00"))


def test_a_full_seat_is_not_opened() -> None:
    found = place(fleet(seat(), **{"seat-1": [given.claim("08:00", "23:00", labs=20)]}), request(movable=False))
    assert found.decision.action == "wait"


def test_rejections_are_counted_with_a_few_examples() -> None:
    many = [worker(f"w{number:02}", closed="draining" if number < 12 else "") for number in range(15)]
    decision = place(PlaceIndex(many), request(need={"cpu_millis": 49_000})).decision
    assert [(one.filter, one.count, len(one.examples)) for one in decision.rejections] == [
        ("draining", 12, MOST_EXAMPLES),
        ("cpu", 3, 3),
    ]
    assert decision.candidates_evaluated == 15


def test_the_explanation_puts_first_what_fits_then_what_would_fit_soonest() -> None:
    places = (worker("a", closed="failed"), worker("b"), worker("c"), worker("d"), worker("e"))
    held = {
        "b": [given.claim("08:00", "10:00", labs=20)],
        "c": [given.claim("08:00", "09:30", labs=20)],
        "e": [given.claim("08:00", "12:00")],
    }
    answers = evaluate_places(fleet(*places, **held), request())
    assert [one.place.id for one in answers] == ["e", "d", "c", "b", "a"]
    assert [one.earliest for one in answers] == [*map(given.moment, ("09:00", "09:00", "09:30", "10:00")), None]
    assert [one.score is None for one in answers] == [False, False, True, True, True]
    assert evaluate_places(fleet(worker()), request(), "Random")[0].score is None


def test_a_place_changes_without_losing_its_claims() -> None:
    view = fleet(worker("a"), worker("b"), a=[given.claim()])
    view.put(worker("a", closed="draining"))
    assert place(view, request()).decision.worker_id == "b"
    view.put(worker("a", capacity=given.machine(cpu_millis=96_000)))
    assert place(view, request(need={"cpu_millis": 90_000})).decision.worker_id == "a"
    assert [held.holder for held in view.claims_on("a")] == ["a-0"]
    assert [held.holder for held in view.drop("a")] == ["a-0"]
    assert view.drop("a") == ()
    assert "a" not in view


def test_the_past_is_forgotten_and_what_goes_on_is_not() -> None:
    view = fleet(worker(), w1=[given.claim("08:00", "12:00", labs=19), given.claim("08:00", "09:00")])
    view.advance(given.moment("09:10"))
    assert view.release("w1", "w1-1")
    assert place(view, request("09:10")).decision.worker_id == "w1"
    view.hold("w1", HeldClaim("s1", given.claim("09:10", "11:00")))
    assert place(view, request("09:10")).decision.action == "wait"
    assert msgspec.to_builtins(place(view, request("12:00", "13:00")).decision)["worker_id"] == "w1"


def test_a_place_that_refused_a_request_is_not_proposed_to_it_again_and_is_to_others() -> None:
    view = fleet(worker("a"), worker("b", closed="draining"), worker("c"))
    refused = {"a": ("hours", "pool p: it is closed by then"), "gone": ("phase", "it left")}
    asked = request(refused=refused)
    assert place(view, request()).decision.worker_id == "a"
    assert place(view, asked).decision.worker_id == "c"
    decision = place(view, request(refused=refused | {"c": ("hours", "likewise")})).decision
    assert (decision.action, [(one.filter, one.count) for one in decision.rejections]) == (
        "wait",
        [("hours", 2), ("draining", 1)],
    )
