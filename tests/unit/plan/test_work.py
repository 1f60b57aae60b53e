"""How far a trial is, is told by what there is to do: nights go by in no time, and a morning of labs does not."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from harness.api_world import Shell
from lcm.sim.plan.timetable import SessionRequest
from lcm.sim.plan.trial import WorkItem, booking_share, milestones, work_items

BEGIN = datetime(2027, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_milestones_come_where_the_work_is() -> None:
    busy = WorkItem(BEGIN + 9 * HOUR, BEGIN + 10 * HOUR, 99.0)
    idle = WorkItem(BEGIN, BEGIN + 100 * HOUR, 1.0)
    told = list(milestones([busy, idle], 10))
    assert [share for _, share in told] == [step / 10 for step in range(1, 10)]
    assert [at for at, _ in told] == sorted(at for at, _ in told)
    assert all(busy.since < at < busy.until for at, _ in told)


def test_nothing_to_do_is_told_to_nobody() -> None:
    assert not list(milestones([], 10))
    assert booking_share(0, []) == 0


def test_all_that_a_session_costs_is_counted_once() -> None:
    slot = SessionRequest(name="a", definition="lab:1.0.0", track="t", minutes=60, start=BEGIN + 9 * HOUR)
    soon = SessionRequest(name="b", definition="lab:1.0.0", track="t", minutes=60, booked_at=BEGIN + 9 * HOUR)
    one, two, none = (list(work_items(several, BEGIN, BEGIN + 24 * HOUR)) for several in ([slot], [slot, soon], []))
    assert _sum(one) - _sum(none) == 10
    assert _sum(two) - _sum(none) == 21, "what is booked later is counted when it is"
    assert booking_share(1, one) == 1 / (1 + _sum(one))


def test_where_the_page_is_is_told(tmp_path: Path) -> None:
    timetable = tmp_path / "one.yaml"
    timetable.write_text(
        "definitions: [{name: lab, track: t, cpu: 4, memory: 6, storage: 16, nodes: 2, ports: 1}]\n"
        'fleet: [{track: t, instance_type: m5zn.metal, region: eu-central-1, min: 0, max: 1, price: "4"}]\n'
        "sessions: [{definition: lab, at: 2027-03-01T09:00, for: 1h}]\n"
    )
    done = Shell(tmp_path, columns=80).lcm("plan", timetable, "--html", tmp_path / "page.html", "--cores", "1")
    assert done.exit_code == 0, done.output
    assert "the page with plots is" in done.stderr
    assert (tmp_path / "page.html").exists()


def _sum(several: list[WorkItem]) -> float:
    return sum(one.weight for one in several)
