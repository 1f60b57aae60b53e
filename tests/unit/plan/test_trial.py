"""The example timetables are played: the smallest adds up by hand, and where nothing goes wrong nothing is late."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec
import pytest

from harness import given, suite
from lcm.control.objects.records import CODEC, key_of
from lcm.controllers.pool.view import POOL_LABEL
from lcm.model.kinds.worker import Ec2Facts
from lcm.sim.plan.page import ReportLook, page_of
from lcm.sim.plan.reading import read_timetable
from lcm.sim.plan.report import text_of
from lcm.sim.plan.results import Comparison
from lcm.sim.plan.summary import summary
from lcm.sim.plan.timetable import Extension, Timetable
from lcm.sim.plan.trial import play
from lcm.sim.plan.variant import read_variants
from lcm.sim.plan.world import PlanWorld
from lcm.sim.time.loop import run
from lcm.sim.world.scenario import Scenario
from lcm.store.base import Change, Entry

EXAMPLES = suite.ROOT / "examples" / "plan"
MINUTE = Decimal(1) / 60


def example(name: str) -> Timetable:
    return read_timetable(f"{name}.yaml", (EXAMPLES / f"{name}.yaml").read_bytes())


def test_the_reports_of_the_hackathon_agree_with_what_adds_up_by_hand() -> None:
    trial = play(example("hackathon"), read_variants([])[0])
    assert (trial.wanted, trial.promised, trial.refused, trial.late) == (30, 30, (), ())
    # 20 teams x 8 h + 10 teams x 4 h
    assert trial.session_hours == 20 * 8 + 10 * 4 == 200
    # 20 x 8 CPU on machines of 48 are 4 machines for 8 h, 10 x 8 CPU are 2 machines for 4 h; 4.00 USD an hour
    assert trial.bound.hours == 4 * 8 + 2 * 4 == 40
    assert trial.bound.usd == 160
    assert trial.peak == trial.bound.peak == 4
    # Each machine is launched 15 + 20 + 5 min before the slot, for the lab's start, the boot and a buffer. It runs a
    # minute later at most, is billed from then on, and is given back within a minute after the slot's end.
    by_hand = {"2027-06-12": 4 * (8 + 40 * MINUTE), "2027-06-13": 2 * (4 + 40 * MINUTE)}
    machines = {"2027-06-12": 4, "2027-06-13": 2}
    assert {one.day for one in trial.spent} == set(by_hand)
    for one in trial.spent:
        assert abs(one.hours - by_hand[one.day]) <= machines[one.day] * MINUTE
        assert one.usd == pytest.approx(one.hours * 4)
    assert abs(trial.hours - 44) <= 6 * MINUTE
    assert trial.usd == pytest.approx(trial.hours * 4)
    assert trial.hours == pytest.approx(sum(one.hours for one in trial.spent))
    told_alike(Comparison(title="hackathon", trials=(trial,)))


def told_alike(comparison: Comparison) -> None:
    """See that text, page and JSON tell the same numbers."""
    (trial,) = comparison.trials
    text, page, numbers = text_of(comparison), page_of(comparison, ReportLook()), summary(comparison)["variants"][0]
    for told in (f"{trial.hours:.2f}", f"{trial.usd:.2f}", "40.00", "160.00", "200.00"):
        assert told in text
        assert told in page
    assert (numbers["machine_hours"], numbers["usd"]) == (round(float(trial.hours), 4), round(float(trial.usd or 0), 4))
    assert (numbers["bound"]["machine_hours"], numbers["bound"]["usd"], numbers["peak"]) == (40, 160, 4)
    assert max(map(len, text.splitlines())) <= 80
    assert not any(word in page for word in ("src=", "href=", "http://", "https://", "@import", "url("))
    (levels,) = numbers["levels"]
    assert (max(levels["machines"]), levels["machines"][-1], max(levels["claimed_percent"])) == (4, 0, 83.3), (
        "160 of 192 CPU"
    )
    assert sum(len(one["stretches"]) for one in numbers["seats"]) == 6


@pytest.mark.parametrize("name", ["certification-week", "university-course"])
def test_nothing_is_late_or_refused_where_nothing_goes_wrong(name: str) -> None:
    whole = example(name)
    # The whole of it takes a minute; a fourth of those of its first morning come as close together.
    first = min(one.start for one in whole.sessions if one.start)
    some = [one for one in whole.sessions if one.start == first][::4]
    trial = play(msgspec.structs.replace(whole, sessions=tuple(some)), read_variants([])[0])
    assert (trial.promised, trial.refused, trial.late) == (len(some), (), ())
    assert trial.bound.hours <= trial.hours


def test_what_does_not_fit_is_refused_and_counted() -> None:
    whole = example("hackathon")
    trial = play(whole, read_variants(["max=3"])[0])
    # 3 machines x 6 labs of 8 CPU each: two of the twenty teams have no room on Saturday
    assert (trial.promised, trial.refusals, trial.late, trial.peak) == (28, 2, (), 3)
    (refusal,) = trial.refused
    assert (refusal.count, refusal.start) == (2, whole.sessions[0].start)
    assert refusal.message in " ".join(text_of(Comparison(title="x", trials=(trial,))).split())


def test_what_is_booked_early_costs_nothing_yet_and_what_is_booked_too_late_is_refused() -> None:
    whole = example("hackathon")
    slot = whole.sessions[0]
    assert slot.start is not None
    assert slot.end is not None
    early = msgspec.structs.replace(slot, name="early", booked_at=slot.start - timedelta(days=3))
    late = msgspec.structs.replace(slot, name="late", booked_at=slot.end + timedelta(days=1))
    trial = play(msgspec.structs.replace(whole, sessions=(early, late)), read_variants(["min=1"])[0])
    assert (trial.begins, trial.promised, trial.late) == (slot.start - timedelta(hours=2), 1, ())
    assert [one.message for one in trial.refused] == ["spec.timeslot_end: the slot is over; use a later one"]


def test_an_extension_that_finds_no_room_is_counted() -> None:
    whole = example("hackathon")
    slot = whole.sessions[0]
    assert slot.start is not None
    assert slot.end is not None
    asked = Extension(at=slot.start + timedelta(hours=7), minutes=120)
    first = [msgspec.structs.replace(slot, name=f"first-{n}", extended=(asked,) if n == 0 else ()) for n in range(6)]
    then = [msgspec.structs.replace(slot, name=f"then-{n}", start=slot.end + timedelta(hours=1)) for n in range(6)]
    trial = play(msgspec.structs.replace(whole, sessions=(*first, *then)), read_variants(["max=1"])[0])
    assert (trial.promised, trial.late, trial.unextended) == (12, (), 1)
    assert "Extensions that found no room: 1" in text_of(Comparison(title="x", trials=(trial,)))


def test_a_machine_that_somebody_launched_by_hand_is_not_of_the_fleet() -> None:
    scenario = Scenario(seed=1, start=datetime(2027, 6, 12, tzinfo=UTC), hours=1, quiet_hours=1)
    ours = given.worker(name="ours", labels={POOL_LABEL: "p"}, ec2=Ec2Facts(instance_id="i-1"))
    theirs = given.worker(name="theirs", ec2=Ec2Facts(instance_id="i-2"))

    async def seen() -> set[str]:
        onlooker = PlanWorld(scenario).witness
        for one in (ours, theirs):
            entry = Entry(key_of(one), CODEC.encode(one), {}, 1, 1)
            onlooker.record_commit(1, [Change(entry.key, entry)])
        return set(onlooker.hosts)

    assert run(seen, start=scenario.start, horizon=timedelta(hours=1)) == {"i-1"}


def test_a_lab_may_be_called_by_a_number_and_a_track_by_any_text() -> None:
    text = (EXAMPLES / "hackathon.yaml").read_text().replace("track: hackathon", "track: Köln /  2")
    text = text.replace("name: hackathon", "name: 101").replace("definition: hackathon", "definition: 101")
    whole = read_timetable("t.yaml", text.encode())
    trial = play(msgspec.structs.replace(whole, sessions=whole.sessions[:1]), read_variants([])[0])
    assert (trial.promised, trial.late, [one.track for one in trial.spent]) == (1, (), ["Köln /  2"])


def test_who_has_no_slot_runs_soon_after_it_is_booked_and_ends_when_cancelled() -> None:
    whole = example("hackathon")
    slot = whole.sessions[0]
    assert slot.start is not None
    begin = slot.start
    soon = msgspec.structs.replace(slot, name="soon", start=None, minutes=60, booked_at=begin + timedelta(hours=1))
    left = msgspec.structs.replace(slot, name="left", cancelled_at=begin + timedelta(hours=2))
    trial = play(msgspec.structs.replace(whole, sessions=(left, soon)), read_variants([])[0])
    assert (trial.promised, trial.late, trial.unserved) == (1, (), 0)
    (waited,) = trial.waits_seconds
    assert waited < 300, "a machine was warm"
    assert trial.hours < 4, "the machine was given back when both had gone"
