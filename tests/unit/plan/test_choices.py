"""What is compared, the search for the smallest fleet, and the way in by a process of its own."""

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lcm.model.base.errors import Invalid
from lcm.sim.plan.__main__ import PlanRequest, run_request
from lcm.sim.plan.fleet_search import TrialJob, find_smallest, most_rounds
from lcm.sim.plan.measure import cost_by_day
from lcm.sim.plan.page import ReportLook, page_of, read_look
from lcm.sim.plan.reading import LiveSystem, combine, inventory_of, read_timetable
from lcm.sim.plan.reading_yaml import Inventory
from lcm.sim.plan.report import remarks
from lcm.sim.plan.results import Comparison, DayCost, MachineRun, RefusedSessions, Trial
from lcm.sim.plan.slots import TimetableRow
from lcm.sim.plan.timetable import SessionRequest, Timetable, price_of
from lcm.sim.plan.trial import play
from lcm.sim.plan.variant import Variant, apply_variant, read_variants

BEGIN = datetime(2027, 3, 1, 9, tzinfo=UTC)
FORM: dict[str, Any] = {
    "definitions": [{"name": "ccna", "track": "ccna", "cpu": 4, "memory": 6, "nodes": 2, "ports": 1}],
    "fleet": [{"track": "ccna", "instance_type": "m5zn.metal", "max": 6, "price": "4.80"}],
    "prices": {"c5.metal": "4.20"},
    "sessions": [{"definition": "ccna", "at": "2027-03-01T09:00", "for": "1h", "count": 2}],
}


def timetable(**changes: Any) -> Timetable:
    return read_timetable("t.yaml", msgspec.json.encode(FORM | changes))


def test_choices_are_combined() -> None:
    names = [one.name for one in read_variants(["max=4,6", "lead=20,30", "faults=0,2"])]
    assert len(names) == len(set(names)) == 8
    assert names[0] == "max=4 lead=20 faults=0"
    assert [one.name for one in read_variants([])] == ["as given"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["size=4"], "write KEY=VALUE"),
        (["max"], "write KEY=VALUE"),
        (["max=0"], "'0' is no value for max"),
        (["instance=t2.nano"], "'t2.nano' is no value for instance"),
        (["strategy=Best"], "use one of BinPack"),
        (["policy=SOON"], "use one of NONE, CAPACITY_BASED"),
        (["max=2", "max=3"], "max appears twice"),
        (["lead@ccna=20"], "lead is the same for all tracks"),
        (["max=1,2,3,4,5,6,7,8,9", "lead=1,2,3,4,5,6,7,8"], "72 combinations; compare 64 at most"),
    ],
)
def test_a_choice_that_cannot_be_read_is_refused_with_a_remedy(asked: list[str], said: str) -> None:
    with pytest.raises(Invalid) as caught:
        read_variants(asked)
    assert said in str(caught.value)


def test_a_choice_for_a_track_that_no_pool_has_is_refused() -> None:
    with pytest.raises(Invalid) as caught:
        run_request(PlanRequest(timetable=FORM, compare=("max@ccnp=3",), cores=1))
    assert "no pool serves the track 'ccnp'; use ccna" in str(caught.value)


def test_other_machines_come_at_their_own_price() -> None:
    (chosen,) = read_variants(["instance=c5.metal", "max@ccna=3"])
    made = apply_variant(timetable(), chosen)
    assert made.pools[0].spec.max_workers == 3
    assert made.templates[0].spec.worker.aws.instance_type == "c5.metal"
    assert price_of(made, made.templates[0]) == Decimal("4.20")


def _trial(variant: Variant, *, fits: bool) -> Trial:
    lack = RefusedSessions(definition="a", track="a", start=BEGIN, count=1, why="full", message="full")
    return Trial(
        variant=variant,
        begins=BEGIN,
        ends=BEGIN,
        zone="UTC",
        wanted=1,
        promised=1,
        session_hours=Decimal(1),
        refused=() if fits else (lack,),
    )


def test_the_smallest_fleet_is_found_by_halves_for_each_track() -> None:
    fleet = [{"track": track, "instance_type": "m5zn.metal", "max": 32, "price": "4"} for track in ("a", "b")]
    labs = [{"name": track, "track": track, "cpu": 4, "memory": 6} for track in ("a", "b")]
    wishes = [{"definition": track, "at": "2027-03-01T09:00", "for": "1h", "count": 24} for track in ("a", "b")]
    whole = timetable(definitions=labs, fleet=fleet, sessions=wishes)
    needs = {"a": 5, "b": 11}
    played: list[Variant] = []
    rounds: list[list[bool]] = []

    def model(jobs: Sequence[TrialJob]) -> Sequence[Trial]:
        """Keep everything with as many machines as each track needs."""
        played.extend(one.variant for one in jobs)
        rounds.append([one.brief for one in jobs])
        return [_trial(one.variant, fits=fits(one.variant)) for one in jobs]

    def fits(variant: Variant) -> bool:
        return all(size >= needs[track] for track, size in _sizes(variant).items())

    best, _ = find_smallest(whole, read_variants([]), model)
    assert best is not None
    assert _sizes(best.variant) == needs
    assert len(played) <= 2 * 5 + 1
    assert len(rounds) <= most_rounds(whole, read_variants([])) <= 6
    assert rounds[-1] == [False], "only the answer is played to its end"
    assert all(all(one) for one in rounds[:-1])


POOL = {"track": "ccna", "instance_type": "m5zn.metal"}
TWO_POOLS = [
    POOL | {"region": "us-east-1", "max": 2, "price": "4"},
    POOL | {"name": "ccna-eu", "region": "eu-central-1", "max": 8, "price": "6"},
]


def test_two_pools_of_a_track_in_two_regions_are_kept_apart() -> None:
    labs = [{"name": "ccna", "track": "ccna", "cpu": 24, "memory": 6}]
    slot = {"definition": "ccna", "at": "2027-03-01T09:00", "for": "1h"}
    wishes = [slot | {"count": 2}, slot | {"region": "eu-central-1"}, slot | {"prefer_region": "eu-central-1"}]
    trial = play(timetable(definitions=labs, fleet=TWO_POOLS, sessions=wishes), read_variants([])[0])
    assert Counter(one.pool for one in trial.uses) == {"ccna-us-east-1": 2, "ccna-eu": 2}
    assert {(one.track, str(one.hourly_usd)) for one in trial.runs} == {("ccna-us-east-1", "4"), ("ccna-eu", "6")}
    assert {one.track for one in trial.spent} == {"ccna-us-east-1", "ccna-eu"}


def test_of_several_pools_of_a_track_the_dearest_is_made_smaller_first() -> None:
    def model(jobs: Sequence[TrialJob]) -> Sequence[Trial]:
        """Keep everything with four machines, wherever they are."""
        return [_trial(one.variant, fits=sum(_sizes(one.variant).values()) >= 4) for one in jobs]

    whole = timetable(fleet=TWO_POOLS)
    best, _ = find_smallest(whole, read_variants([]), model)
    assert best is not None
    assert best.variant.name == "max@ccna-eu=2 max@ccna-us-east-1=2"
    made = apply_variant(whole, read_variants(["min@ccna-eu=1"])[0])
    assert [one.spec.min_workers for one in made.pools] == [0, 1]


def test_the_smallest_fleet_is_proved_by_playing_it() -> None:
    # Five labs of 9 CPU are on a machine of 48: sixteen need four, though three would hold as many CPU.
    labs = [{"name": "ccna", "track": "ccna", "cpu": 9, "memory": 6}]
    wishes = [{"definition": "ccna", "at": "2027-03-01T09:00", "for": "1h", "count": 16}]
    told: list[float] = []
    asked = PlanRequest(timetable=FORM | {"definitions": labs, "sessions": wishes}, smallest=True, cores=1)
    found = run_request(asked, lambda one: told.append(one.share))
    (best,) = found.trials
    assert (found.smallest, best.keeps_everything, best.bound.peak, best.peak) == ("max@ccna=4", True, 3, 4)
    assert told == sorted(told), "the bar never goes back from one round to the next"
    assert told[-1] <= 1


def test_what_is_cancelled_leaves_its_room_in_the_smallest_fleet_to_others() -> None:
    lab = FORM["definitions"][0] | {"cpu": 40}
    slot = {"definition": "ccna", "at": "2027-03-01T09:00", "for": "1h"}
    wishes = [slot | {"cancelled_at": "2027-03-01T05:00"}, slot | {"booked_at": "2027-03-01T06:00"}]
    found = run_request(
        PlanRequest(timetable=FORM | {"definitions": [lab], "sessions": wishes}, smallest=True, cores=1)
    )
    assert found.smallest == "max@ccna=1"


def test_those_that_are_played_one_after_the_other_are_counted() -> None:
    told: list[str] = []
    run_request(PlanRequest(timetable=FORM, compare=("max=1,2",), cores=1), lambda one: told.append(one.doing))
    assert list(dict.fromkeys(told)) == ["0 of 2 played", "1 of 2 played", "2 of 2 played"]


def test_no_fleet_is_found_beyond_what_is_allowed() -> None:
    changes = {
        "definitions": [FORM["definitions"][0] | {"cpu": 40}],
        "fleet": [FORM["fleet"][0] | {"max": 2}],
        "sessions": [FORM["sessions"][0] | {"count": 3}],
    }
    found = run_request(PlanRequest(timetable=FORM | changes, smallest=True, cores=1))
    (only,) = found.trials
    assert (found.smallest, only.variant.name, only.refusals) == (None, "max@ccna=2", 1)


def _sizes(variant: Variant) -> dict[str, int]:
    return {one.track: int(one.value) for one in variant.choices if one.key == "max"}


def test_what_a_live_system_has_is_what_a_plan_goes_on_from() -> None:
    known = timetable()
    live = LiveSystem(at=BEGIN, definitions=known.definitions, templates=known.templates, pools=known.pools)
    row = TimetableRow(where="line 1", definition="ccna", minutes=60, start=datetime(2027, 3, 1, 12, tzinfo=UTC))
    made = combine([inventory_of(live)], [row])
    assert [one.definition for one in made.sessions] == ["ccna:1.0.0"]
    assert made.now == datetime(2027, 3, 1, 9, 1, tzinfo=UTC)


def test_a_session_of_a_plan_is_not_taken_for_one_that_a_live_system_has_promised() -> None:
    known = timetable()
    alike = SessionRequest(name="ccna-2", definition="ccna:1.0.0", track="ccna", minutes=60, start=BEGIN, standing=True)
    stock = Inventory(definitions=known.definitions, templates=known.templates, pools=known.pools, sessions=(alike,))
    made = combine([stock], [TimetableRow(where="line 1", definition="ccna", minutes=60, start=BEGIN, count=2)])
    assert [one.name for one in made.sessions] == ["ccna-2", "ccna-2-1", "ccna-3"]


def test_the_peak_and_the_cost_follow_from_runs() -> None:
    hours = [(9, 11), (10, 12), (12, 13)]
    runs = [
        MachineRun(
            track="a",
            instance_type="m5zn.metal",
            machine=str(n),
            since=BEGIN.replace(hour=since),
            until=BEGIN.replace(hour=until),
            hourly_usd=Decimal(4),
        )
        for n, (since, until) in enumerate(hours)
    ]
    found = Trial(
        variant=Variant(),
        begins=BEGIN,
        ends=BEGIN,
        zone="UTC",
        wanted=1,
        promised=1,
        session_hours=Decimal(1),
        runs=tuple(runs),
    )
    assert (found.peak, found.hours, found.usd) == (2, Decimal(5), Decimal(20))
    dear = msgspec.structs.replace(runs[0], instance_type="new.metal", hourly_usd=None)
    unknown = msgspec.structs.replace(found, runs=(*runs, dear), ends=BEGIN.replace(hour=13), unserved=2)
    assert unknown.usd is None
    assert list(remarks(unknown)) == [
        "2 without a slot never ran",
        "The price of new.metal is not known: add `price` or `prices`",
    ]
    day = DayCost(day="2027-03-01", track="a", hours=Decimal(1), usd=Decimal(4))
    days = (day, msgspec.structs.replace(day, day="2027-03-03"))
    compared = Comparison(title="</script><b>", trials=(msgspec.structs.replace(unknown, spent=days),))
    page = page_of(compared, ReportLook(style="p{}", script="draw('</script>')"))
    text = " ".join(unescape(page).split())
    assert all(aside in text for aside in remarks(unknown))
    assert page.count("</script>") == 2, "what people wrote ends no script"
    assert "<b>" not in page
    assert read_look(Path("nowhere")).script == "", "without the built pages it is a text"


def test_what_days_cost_adds_up_to_what_the_run_costs() -> None:
    since = BEGIN.replace(hour=22, second=7, microsecond=600_000)
    run = MachineRun(
        track="a",
        instance_type="m5zn.metal",
        machine="i-1",
        since=since,
        until=since + timedelta(days=2, seconds=1, microseconds=200_000),
        hourly_usd=Decimal("4.80"),
    )
    days = list(cost_by_day([run], "Europe/Berlin"))
    assert [one.day for one in days] == ["2027-03-01", "2027-03-02", "2027-03-03"]
    assert sum(one.hours for one in days) == pytest.approx(run.hours)


def job(request: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-m", "lcm.sim.plan"], input=msgspec.json.encode(request), capture_output=True, check=False
    )
    assert not done.stderr, done.stderr.decode()
    return done.returncode, [msgspec.json.decode(line) for line in done.stdout.splitlines()]


def test_a_job_tells_how_far_it_is_and_then_the_result() -> None:
    code, lines = job({"timetable": FORM, "title": "two", "compare": ["max=1,2"], "html": True})
    *progress, last = lines
    assert code == 0
    shares = [line["progress"]["share"] for line in progress]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert [(one["promised"], one["late"]) for one in last["result"]["variants"]] == [(2, 0), (2, 0)]
    assert last["html"].startswith("<!doctype html>")


def test_a_job_reads_a_file_in_its_own_form_and_tells_faults_with_their_lines() -> None:
    file = {"name": "t.yaml", "text": msgspec.json.encode(FORM).decode()}
    (trial,) = run_request(msgspec.convert({"file": file, "cores": 1}, PlanRequest)).trials
    assert (trial.wanted, trial.promised) == (2, 2)
    table = {"name": "t.csv", "text": "definition,start,minutes\nnobodys,2027-03-01T09:00,60\n"}
    with pytest.raises(Invalid) as caught:
        run_request(msgspec.convert({"file": table}, PlanRequest))
    assert caught.value.faults[0].path == "line 2"


def test_a_job_that_cannot_be_read_tells_its_faults() -> None:
    code, (line,) = job({"table": {}})
    assert (code, line["faults"][0]["path"]) == (2, "request")


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (
            {"timetable": FORM | {"sessions": [{"definition": "x", "at": "2027-03-01T09:00", "for": "1h"}]}},
            "sessions[0]",
        ),
        ({"timetable": FORM | {"fleet": [{"track": "ccna", "max": 1}]}}, "fleet[0]"),
        ({"timetable": FORM, "compare": ["max=0"]}, "compare"),
        ({"timetable": FORM, "faults": 61}, "faults"),
    ],
)
def test_a_request_that_cannot_be_planned_is_refused_by_its_path(request_: dict[str, Any], path: str) -> None:
    with pytest.raises(Invalid) as caught:
        run_request(msgspec.convert(request_, PlanRequest))
    assert caught.value.faults[0].path == path


def test_pools_have_the_policy_that_they_say_or_that_is_compared() -> None:
    fleet = [{"track": "ccna", "instance_type": "m5zn.metal", "max": 6, "policy": "CAPACITY_BASED", "warm": 2}]
    (said,) = timetable(fleet=fleet).pools
    assert (said.spec.policy, said.spec.warm_workers) == ("CAPACITY_BASED", 2)
    (other,) = (apply_variant(timetable(fleet=fleet), one).pools[0] for one in read_variants(["policy@ccna=HYBRID"]))
    assert other.spec == msgspec.structs.replace(said.spec, policy=other.spec.policy)
    assert other.spec.policy == "HYBRID"
    with pytest.raises(Invalid, match="no scaling policy"):
        timetable(fleet=[fleet[0] | {"policy": "SOON"}])
