"""One plan for all who wait: order, backfill, what is kept, and what each is told. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from time import process_time
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from harness import given, suite
from lcm.controllers.scheduler.effects import explain_estimate, gives_up_seat, is_news, waiting_status
from lcm.controllers.scheduler.places import BootTime
from lcm.controllers.scheduler.queue_plan import MINUTE, PlacementOutcome, QueueRules, Seeker, order_fairly, plan
from lcm.model.base.capacity import Amount, Claim
from lcm.model.kinds.session import Seat, Waiting
from lcm.placement.fleet import PlaceIndex
from lcm.placement.request import BOOTING, HeldClaim, Place, PlacementRequest
from lcm.system.clock import SystemStopwatch

if TYPE_CHECKING:
    from lcm.controllers.scheduler.view import SchedulerView

NOW = given.moment("08:00")
ROOM = Amount(cpu_millis=8, labs=8)
BOOT = BootTime(12 * MINUTE, 25 * MINUTE)
RULES = QueueRules("BinPack", SystemStopwatch())


def at(clock: str) -> datetime:
    return given.moment(clock)


def worker(name: str, **fields: object) -> Place:
    return msgspec.structs.replace(Place(id=name, name=name, capacity=ROOM, region="us-east-1"), **fields)


def seat(name: str, **fields: object) -> Place:
    usual = {"seat": True, "licensed": None, "usable_at": NOW + BOOT.lead, "template": "metal"}
    return worker(name, **usual | fields)


def boots(name: str, usable: str) -> Place:
    return seat(name, closed=BOOTING, usable_at=at(usable))


def seeker(name: str, cpu: int = 4, *, minutes: int = 60, created: str = "07:50", **fields: object) -> Seeker:
    kept = fields.pop("kept", None)
    session = given.asap(name=name, uid=name, created_at=at(created), **fields)
    claim = Claim(start=NOW, end=NOW + minutes * MINUTE, need=Amount(cpu_millis=cpu, labs=1))
    assert kept is None or isinstance(kept, str)
    return Seeker(session, PlacementRequest(name=name, claim=claim), 5 * MINUTE, kept)


def held(holder: str, cpu: int, start: str, end: str) -> HeldClaim:
    return HeldClaim(f"default/{holder}", Claim(start=at(start), end=at(end), need=Amount(cpu_millis=cpu, labs=1)))


def planned(fleet: PlaceIndex, *seekers: Seeker) -> dict[str, PlacementOutcome]:
    return {one.seeker.session.metadata.name: one for one in plan(fleet, seekers, RULES)}


def order(outcomes: Sequence[PlacementOutcome]) -> list[str]:
    return [one.seeker.session.metadata.name for one in outcomes]


def test_lesson_19_each_is_held_before_the_next_is_placed() -> None:
    fleet = PlaceIndex([worker(f"w{number}") for number in range(5)])
    found = plan(fleet, [seeker(f"s{number}") for number in range(10)], RULES)
    assert Counter(one.place.id for one in found if one.place and one.is_assigned) == {
        f"w{number}": 2 for number in range(5)
    }
    assert not any(fleet.claims_on(f"w{number}") for number in range(5))


def test_who_came_first_goes_first_and_a_priority_is_worth_a_minute_each() -> None:
    early, late = seeker("early", created="07:40"), seeker("late", created="07:50")
    urgent = seeker("urgent", created="07:55", priority=10)
    assert order(plan(PlaceIndex(), [late, early, urgent], RULES)) == ["early", "urgent", "late"]


def test_nobody_starves_behind_those_of_higher_priority_who_come_later() -> None:
    patient = seeker("patient", 8, created="06:00", priority=-50)
    others = [seeker(f"urgent{number}", 8, created="07:59", priority=60) for number in range(3)]
    assert order(plan(PlaceIndex(), [patient, *others], RULES))[0] == "patient"


def test_owners_take_turns_however_many_sessions_one_of_them_has_waiting() -> None:
    greedy = [seeker(f"g{number:04}", created="07:00", owner="mallory") for number in range(2_980)]
    others = [seeker("victim", created="07:55", owner="ada"), seeker("last", created="07:59", owner="bob")]
    assert order(plan(PlaceIndex(), [*greedy, *others], RULES))[:4] == ["g0000", "victim", "last", "g0001"]


def test_whom_workers_serve_already_waits_behind_whom_they_do_not() -> None:
    rich = replace(seeker("rich", created="06:30", owner="mallory"), served=1)
    poor = seeker("poor", created="07:59", owner="ada")
    assert order(plan(PlaceIndex(), [rich, poor], RULES)) == ["poor", "rich"]
    patient = replace(rich, session=seeker("rich", created="05:58", owner="mallory").session)
    assert order(plan(PlaceIndex(), [patient, poor], RULES)) == ["rich", "poor"], "two hours outweigh a session"


def test_a_priority_orders_only_what_is_equally_fair() -> None:
    urgent = [seeker(f"urgent{number}", priority=100, owner="otto") for number in range(2)]
    usual, patient = seeker("usual", owner="ada"), seeker("patient", priority=-100, owner="bob")
    found = order(plan(PlaceIndex(), [usual, patient, *urgent], RULES))
    assert found == ["urgent0", "usual", "urgent1", "patient"], "its own wish puts the patient one last"


def test_the_sessions_of_one_owner_keep_their_order_and_promised_ones_come_first() -> None:
    several = [seeker(f"s{number}", created=f"07:{50 - number}", priority=number % 3) for number in range(9)]
    slot = given.session(name="slot", uid="slot", created_at=at("07:59"))
    claim = Claim(start=at("08:45"), end=at("11:10"), need=Amount(cpu_millis=8, labs=1))
    promised = Seeker(slot, PlacementRequest(name="slot", claim=claim, movable=False), served=9)
    alone = sorted(several, key=lambda one: one.order)
    assert order_fairly([*several, promised]) == [promised, *alone]


def test_a_small_one_goes_before_a_large_one_only_if_that_delays_nobody() -> None:
    fleet = PlaceIndex([worker("w1")])
    fleet.hold("w1", held("runs", 4, "07:00", "09:00"))
    found = planned(fleet, seeker("large", 8), seeker("short", 4, created="07:51"))
    assert (found["large"].at, found["large"].position) == (at("09:00"), 1)
    assert found["short"].is_assigned
    found = planned(fleet, seeker("large", 8), seeker("long", 4, minutes=61, created="07:51"))
    assert found["long"].at == at("10:00")
    assert found["long"].position == 2


def test_seats_are_opened_for_as_many_as_need_them() -> None:
    fleet = PlaceIndex([seat(f"pool/{number}") for number in range(1, 10)])
    found = plan(fleet, [seeker(f"s{number}") for number in range(5)], RULES)
    assert Counter(one.place.id for one in found if one.place) == {"pool/1": 2, "pool/2": 2, "pool/3": 1}
    assert {one.decision.action for one in found} == {"scale_up"}
    assert {one.decision.worker_template for one in found} == {"metal"}


def test_a_worker_that_boots_is_waited_for_rather_than_another_one_started() -> None:
    fleet = PlaceIndex([boots("w1", "08:10"), seat("pool/2")])
    found = planned(fleet, seeker("s1"), seeker("s2"), seeker("s3"))
    assert [one.decision.action for one in found.values()] == ["wait", "wait", "scale_up"]


def test_what_somebody_has_is_kept_unless_something_is_better_by_more_than_a_minute() -> None:
    mine = seeker("s1", kept="w2")
    fleet = PlaceIndex([boots("w1", "08:10"), boots("w2", "08:11")])
    fleet.hold("w2", held("s1", 4, "08:11", "09:11"))
    kept = planned(fleet, mine)["s1"]
    assert kept.place is not None
    assert kept.place.id == "w2"
    fleet.put(boots("w2", "08:12"))
    moved = planned(fleet, mine)["s1"]
    assert moved.place is not None
    assert moved.place.id == "w1"
    assert [one.holder for one in fleet.claims_on("w2")] == ["default/s1"]


def test_who_has_a_seat_goes_to_its_worker_as_soon_as_that_is_up() -> None:
    fleet = PlaceIndex([worker("w1"), worker("w2")])
    found = planned(fleet, seeker("s1", kept="w2"))["s1"]
    assert found.is_assigned
    assert found.place is not None
    assert found.place.id == "w2"


def test_a_slot_that_lost_its_place_comes_before_all_who_wait() -> None:
    slot = given.session(name="slot", uid="slot", created_at=at("07:59"))
    claim = Claim(start=at("08:45"), end=at("11:10"), need=Amount(cpu_millis=8, labs=1))
    lost = Seeker(slot, PlacementRequest(name="slot", claim=claim, movable=False))
    found = plan(PlaceIndex([worker("w1")]), [seeker("s1", 8, created="01:00"), lost], RULES)
    assert order(found) == ["slot", "s1"]
    assert found[0].at == at("08:45")
    assert found[1].at == at("11:10")


def test_nobody_is_promised_away_from_where_it_can_stay_even_if_that_is_closed_to_others() -> None:
    claim = Claim(start=at("08:45"), end=at("11:10"), need=Amount(cpu_millis=8, labs=1))
    slots = [
        Seeker(given.session(name=name, uid=name), PlacementRequest(name=name, claim=claim, movable=False), kept=kept)
        for name, kept in (("a", "w1"), ("b", "w1"), ("c", "w2"), ("d", "w3"))
    ]
    found = planned(PlaceIndex([worker("w1"), worker("w2"), worker("w3", closed="refused")]), *slots)
    places = {name: one.place.id if one.place else None for name, one in found.items()}
    assert places == {"a": "w1", "b": None, "c": "w2", "d": "w3"}


def test_a_wait_says_what_it_is_based_on() -> None:
    fleet = PlaceIndex([worker("ccna-1")])
    fleet.hold("ccna-1", held("s-41", 8, "07:00", "10:40"))
    occupied = planned(fleet, seeker("s1"))["s1"]
    assert explain_estimate(occupied, BOOT) == "a session on ccna-1 ends before"
    assert waiting_status(occupied, BOOT).estimated_start == at("10:45")
    booting = planned(PlaceIndex([boots("ccna-2", "08:07")]), seeker("s1"))["s1"]
    assert explain_estimate(booting, BOOT) == "worker ccna-2 is booting and usually takes 12 min"
    opened = planned(PlaceIndex([seat("ccna/3")]), seeker("s1"))["s1"]
    assert (
        explain_estimate(opened, BOOT)
        == "a machine will be started for planned worker ccna/3, which usually takes 12 min"
    )
    assert waiting_status(opened, BOOT).estimated_start == NOW + BOOT.usual + 5 * MINUTE
    fast = BootTime(usual=timedelta(seconds=4.6), lead=timedelta(seconds=5))
    assert explain_estimate(booting, fast) == "worker ccna-2 is booting and usually takes 5 s"
    never = planned(PlaceIndex([worker("ccna-1")]), seeker("s1", 9))["s1"]
    assert explain_estimate(never, BOOT).startswith("no worker, present or planned, can ever take it; 1 of 1 such as")
    assert waiting_status(never, BOOT).estimated_start is None


def test_what_was_in_the_way_is_counted_for_who_is_told() -> None:
    fleet = PlaceIndex([worker("w1"), worker("w2", region="eu-west-1")])
    fleet.hold("w1", held("runs", 8, "07:00", "10:00"))
    asks = seeker("s1")
    asks = replace(asks, request=replace(asks.request, region_required="us-east-1"))
    decision = planned(fleet, asks)["s1"].full_decision
    assert {one.filter: one.count for one in decision.rejections} == {"cpu": 1, "region": 1}


def test_who_waits_is_told_again_only_when_it_matters() -> None:
    known = Waiting(queue_position=2, estimated_start=at("10:00"), basis="a boot")
    session = given.asap(waiting=known)

    def news(**fields: object) -> bool:
        return is_news(session, given.changed(known, fields), NOW)

    assert not news()
    assert not news(estimated_start=at("10:05"))
    assert news(estimated_start=at("10:07"))
    assert news(estimated_start=None)
    assert news(queue_position=1)
    assert news(basis="another")
    near = given.asap(waiting=given.changed(known, {"estimated_start": at("08:05")}))
    assert not is_news(near, given.changed(known, {"estimated_start": at("08:06")}), NOW)
    assert is_news(near, given.changed(known, {"estimated_start": at("08:06:30")}), NOW)


def test_five_hundred_who_wait_for_a_thousand_workers_are_planned_without_searching_anew_for_each() -> None:
    fleet = PlaceIndex([worker(f"w{number:04}") for number in range(1000)])
    for number in range(1000):
        fleet.hold(f"w{number:04}", held(f"x{number}", 8, "07:00", f"09:{number % 60:02}"))
    waits = [seeker(f"s{number:03}", 4 + number % 2, minutes=60 + 30 * (number % 3)) for number in range(500)]
    began = process_time()
    found = plan(fleet, waits, RULES)
    assert [one.position for one in found] == list(range(1, 501))
    assert process_time() - began < suite.here(5)  # about 0.3 s; a search for each would take ten times as long
    assert timedelta(hours=1) <= max(one.at - NOW for one in found if one.at) <= timedelta(hours=2)


@pytest.mark.parametrize(("others_until", "gives_up"), [("08:20", False), ("08:30", False), ("09:20", True)])
def test_a_claim_keeps_its_machine_coming_while_somebody_else_is_on_it(others_until: str, *, gives_up: bool) -> None:
    mine, slot = Seat(pool="ccna", number=3), Claim(start=at("08:40"), end=at("09:40"), need=Amount(cpu_millis=8))
    fleet = PlaceIndex([boots("w1", "08:20")])
    fleet.hold("w1", held("other", 8, "08:00", others_until))
    outcome = planned(fleet, seeker("s1", 8, seat=mine, claim=slot))["s1"]
    assert outcome.at == max(at("08:20"), at(others_until))
    view = cast("SchedulerView", SimpleNamespace(seat_of=lambda _: mine))
    assert gives_up_seat(view, outcome) is gives_up
