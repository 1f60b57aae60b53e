"""The simulated CML's labs and nodes: states over time, and what may be done in which of them."""

from collections.abc import Callable

import pytest
from hypothesis import given as each
from hypothesis import strategies as st

from harness.clouds import LONG, Bench, link, node, one, text
from harness.stores import HandClock
from lcm.sim.cml.faults import CmlDown, CmlFull, CmlRefusal
from lcm.sim.cml.labs import to_files
from lcm.sim.cml.pace import CmlPace
from lcm.sim.cml.parts import NodeState
from lcm.sim.cml.rest.documents import LabUpdate, NodeSpec, NodeUpdate
from lcm.sim.cml.rest.views import element_states
from lcm.sim.cml.stats import CmlMachine

DEFINED, STOPPED, QUEUED, STARTED, BOOTED = (
    NodeState.DEFINED,
    NodeState.STOPPED,
    NodeState.QUEUED,
    NodeState.STARTED,
    NodeState.BOOTED,
)
ORDER = [DEFINED, QUEUED, STARTED, BOOTED]


def refuses(status: int, verb: Callable[[], object], words: str | None = None) -> None:
    with pytest.raises(CmlRefusal, match=words) as raised:
        verb()
    assert raised.value.status == status


def test_a_node_goes_through_its_states_in_order_and_stays_booted() -> None:
    bench = Bench()
    lab = bench.imported()
    assert bench.states(lab) == [DEFINED]
    bench.cml.labs.start(lab)
    seen = [states[0] for states in bench.through(lab, 200)]
    assert list(dict.fromkeys(seen)) == [QUEUED, STARTED, BOOTED]
    bench.wait(30 * 86_400)
    assert bench.states(lab) == [BOOTED]


def test_boot_times_differ_by_kind_and_by_chance_but_not_by_run() -> None:
    def seconds(seed: int, definition: str) -> int:
        bench = Bench(seed=seed)
        lab = bench.started(text(node("N", definition)))
        return sum(states != [BOOTED] for states in bench.through(lab, LONG))

    assert seconds(1, "alpine") < seconds(1, "iosv") < seconds(1, "nxosv9000")
    assert seconds(1, "iosv") == seconds(1, "iosv") != seconds(2, "iosv")


def test_a_lab_is_started_from_the_first_queued_node_and_converged_when_all_have_booted() -> None:
    bench = Bench()
    lab = bench.imported(text(node("fast", "alpine"), node("slow", "nxosv9000")))
    assert (bench.state(lab), bench.converged(lab)) == (DEFINED, True)
    bench.cml.labs.start(lab)
    assert (bench.state(lab), bench.converged(lab)) == (STARTED, False)
    bench.wait(100)
    assert bench.states(lab) == [BOOTED, STARTED]
    assert not bench.converged(lab)
    bench.wait(LONG)
    assert bench.converged(lab)


def test_stopping_and_wiping_take_a_moment_and_may_be_repeated() -> None:
    bench = Bench()
    labs, lab = bench.cml.labs, bench.booted()
    labs.stop(lab)
    assert (bench.states(lab), bench.converged(lab)) == ([BOOTED], False)
    labs.stop(lab)
    bench.wait(5)
    assert (bench.state(lab), bench.converged(lab)) == (STOPPED, True)
    labs.stop(lab)
    labs.wipe(lab)
    assert (bench.state(lab), bench.converged(lab)) == (STOPPED, False)
    bench.wait(5)
    assert (bench.state(lab), bench.converged(lab)) == (DEFINED, True)
    labs.wipe(lab)
    labs.stop(lab)
    assert bench.state(lab) is DEFINED


def test_wipe_needs_a_stop_and_delete_needs_a_wipe() -> None:
    bench = Bench()
    labs, lab = bench.cml.labs, bench.booted()
    only = one(lab, "R1")
    for stage in ("runs", "stops"):
        refuses(400, lambda: labs.wipe(lab), "must be stopped")
        refuses(400, lambda: labs.wipe_node(lab, only), "must be stopped")
        refuses(400, lambda: labs.delete(lab), "stopped and wiped")
        refuses(400, lambda: labs.delete_node(lab, only), "stopped and wiped")
        if stage == "runs":
            labs.stop(lab)
    bench.wait(5)
    refuses(400, lambda: labs.delete(lab))
    labs.wipe(lab)
    refuses(400, lambda: labs.delete(lab))
    bench.wait(5)
    labs.delete(lab)
    refuses(404, lambda: labs.get(lab.id), f"^Lab not found: {lab.id}$")


def test_a_lab_starts_again_after_a_stop_and_while_it_stops() -> None:
    bench = Bench()
    labs, lab = bench.cml.labs, bench.booted()
    labs.stop(lab)
    labs.start(lab)
    assert bench.states(lab) == [QUEUED]
    bench.wait(LONG)
    labs.stop(lab)
    bench.wait(5)
    labs.start(lab)
    bench.wait(LONG)
    assert bench.states(lab) == [BOOTED]


def test_a_stop_in_the_middle_of_booting_never_boots() -> None:
    bench = Bench()
    lab = bench.started()
    bench.wait(20)
    bench.cml.labs.stop(lab)
    seen = [states[0] for states in bench.through(lab, 300)]
    assert list(dict.fromkeys(seen)) == [STARTED, STOPPED]
    assert "boot_node" not in {event.category for _, event in bench.cml.telemetry.past_events()}


def test_one_node_can_be_started_and_stopped_alone() -> None:
    bench = Bench()
    labs, lab = bench.cml.labs, bench.imported(text(node("a"), node("b")))
    labs.start_node(lab, one(lab, "a"))
    labs.start_node(lab, one(lab, "a"))
    bench.wait(LONG)
    assert bench.states(lab) == [BOOTED, DEFINED]
    assert bench.state(lab) is STARTED
    labs.stop_node(lab, one(lab, "a"))
    bench.wait(5)
    assert bench.state(lab) is STOPPED
    labs.wipe_node(lab, one(lab, "a"))
    bench.wait(5)
    assert bench.state(lab) is DEFINED


def test_links_and_interfaces_run_when_both_their_nodes_do() -> None:
    bench = Bench()
    lab = bench.imported(text(node("a"), node("b"), links=[link("a/i0", "b/i0")]))

    def seen() -> tuple[list[str], list[str]]:
        states = element_states(lab, bench.cml.pace.age())
        return list(states["links"].values()), list(states["interfaces"].values())

    assert seen() == ([DEFINED], [DEFINED, DEFINED])
    bench.cml.labs.start_node(lab, one(lab, "a"))
    bench.wait(LONG)
    assert seen() == ([STOPPED], [STARTED, DEFINED])
    bench.cml.labs.start(lab)
    bench.wait(LONG)
    assert seen() == ([STARTED], [STARTED, STARTED])
    one(lab, "b").interfaces[0].down = True
    assert seen() == ([STOPPED], [STARTED, STOPPED])


def test_what_a_node_boots_with_is_fixed_until_it_is_wiped() -> None:
    bench = Bench()
    labs, lab = bench.cml.labs, bench.imported()
    only = one(lab, "R1")
    labs.change_node(lab, only, NodeUpdate(ram=2048, configuration="hostname R1"))
    bench.cml.labs.start(lab)
    for change in (NodeUpdate(ram=4096), NodeUpdate(cpus=4), NodeUpdate(configuration="x"), NodeUpdate(cpu_limit=50)):
        refuses(400, lambda change=change: labs.change_node(lab, only, change))  # type: ignore[misc]
    labs.change_node(lab, only, NodeUpdate(label="R9", x=7, tags=["core"], hide_links=True))
    assert (only.spec.label, only.spec.x, only.spec.tags, only.ram_mb) == ("R9", 7, ["core"], 2048)


def test_smart_annotations_follow_the_tags() -> None:
    bench = Bench()
    labs = bench.cml.labs
    lab = bench.imported(text(node("a", tags=["core", "serial:5000"]), node("b", tags=["core"])))

    def tags() -> list[str]:
        return [str(found["tag"]) for found in lab.smart_annotations.values()]

    kept = {found["tag"]: ref for ref, found in lab.smart_annotations.items()}
    assert tags() == ["core", "serial:5000"]
    labs.change_node(lab, one(lab, "a"), NodeUpdate(tags=["edge"]))
    assert tags() == ["core", "edge"]
    assert lab.smart_annotations[kept["core"]]["tag"] == "core"
    labs.delete_node(lab, one(lab, "b"))
    assert tags() == ["edge"]


def test_removing_a_node_removes_its_links() -> None:
    bench = Bench()
    lab = bench.imported(
        text(node("a"), node("b", interfaces=2), node("c"), links=[link("a/i0", "b/i0"), link("b/i1", "c/i0")])
    )
    bench.cml.labs.delete_node(lab, one(lab, "a"))
    assert [found.label for found in lab.links.values()] == ["b-p1<->c-p0"]
    refuses(404, lambda: bench.cml.labs.node(lab, "gone"), "^Node not found: gone$")


def test_a_new_node_may_come_with_the_interfaces_of_its_kind() -> None:
    bench = Bench()
    lab = bench.cml.labs.create(bench.cml.users.administrator.id, LabUpdate())
    spec = NodeSpec(x=0, y=0, label="S", node_definition="csr1000v", configuration="hostname S")
    made = bench.cml.labs.add_node(lab, spec, populate=True)
    assert [found.label for found in made.interfaces] == [f"GigabitEthernet{n}" for n in (1, 2, 3, 4)]
    assert [(found.name, found.content) for found in made.files] == [("ios_config.txt", "hostname S")]
    assert lab.title.startswith("Lab at Sun 01:00")


def test_without_a_licence_five_nodes_may_run_and_switches_do_not_count() -> None:
    bench = Bench()
    switches = [node(f"S{n}", "unmanaged_switch") for n in range(3)]
    lab = bench.booted(text(*(node(f"H{n}", "server") for n in range(5)), *switches, node("out", "external_connector")))
    assert set(bench.states(lab)) == {BOOTED}
    more = bench.imported()
    with pytest.raises(CmlFull, match="6 of 5"):
        bench.cml.labs.start(more)
    assert bench.states(more) == [DEFINED]
    bench.cml.labs.start(lab)
    bench.cml.labs.stop_node(lab, one(lab, "H0"))
    bench.wait(5)
    bench.cml.labs.start(more)


def test_a_crash_of_a_node_and_a_lost_host_show() -> None:
    bench = Bench()
    lab = bench.booted(text(node("a"), node("b")))
    bench.cml.labs.force_state(one(lab, "a"), NodeState.STOPPED)
    bench.cml.labs.force_state(one(lab, "b"), NodeState.DISCONNECTED)
    assert bench.states(lab) == [STOPPED, NodeState.DISCONNECTED]
    assert not bench.converged(lab)


def test_a_node_may_be_made_to_hang_while_it_boots() -> None:
    bench = Bench()
    bench.cml.labs.never_boot("R1")
    lab = bench.started()
    bench.wait(86_400)
    assert (bench.states(lab), bench.converged(lab)) == ([STARTED], False)
    bench.cml.labs.stop(lab)
    bench.wait(5)
    bench.cml.labs.start(lab)
    bench.wait(LONG)
    assert bench.states(lab) == [BOOTED]


def test_a_machine_that_is_switched_off_keeps_its_labs_stopped() -> None:
    bench = Bench(machine=CmlMachine(silent_seconds=10, boot_seconds=60))
    lab = bench.booted(text(node("a")))
    untouched = bench.imported(text(node("b")))
    bench.cml.power_off()
    with pytest.raises(CmlDown) as off:
        bench.cml.check_up()
    assert not off.value.listening
    bench.cml.power_on()
    bench.cml.power_on()
    for wait, listening in ((9, False), (2, True), (48, True)):
        bench.wait(wait)
        with pytest.raises(CmlDown) as booting:
            bench.cml.check_up()
        assert booting.value.listening is listening
    bench.wait(1)
    bench.cml.check_up()
    assert (bench.states(lab), bench.states(untouched)) == ([STOPPED], [DEFINED])


def test_a_learners_work_is_extracted_only_from_a_booted_node_and_lost_by_a_wipe() -> None:
    bench = Bench()
    lab = bench.booted(text(node("R1", configuration="as given")))
    only = one(lab, "R1")
    only.running = only.saved = to_files("as solved", only.kind)
    assert only.files[0].content == "as given"
    bench.cml.labs.stop(lab)
    bench.wait(5)
    bench.cml.labs.extract(only)
    assert only.files[0].content == "as given"
    bench.cml.labs.start(lab)
    bench.wait(LONG)
    bench.cml.labs.extract(only)
    assert only.files[0].content == "as solved"
    bench.cml.labs.stop(lab)
    bench.wait(5)
    bench.cml.labs.wipe(lab)
    assert only.running is None


def test_what_happened_is_told_with_the_moments_at_which_it_happened() -> None:
    bench = Bench()
    begin = bench.clock.now()
    lab = bench.started()
    bench.wait(LONG)
    bench.cml.labs.stop(lab)
    bench.wait(60)
    told = bench.cml.telemetry.past_events(lab.id)
    assert [event.category for _, event in told] == [
        "import_lab",
        "start_lab",
        "queue_node",
        "start_node",
        "boot_node",
        "stop_lab",
        "stop_node",
    ]
    moments = [(at - begin).total_seconds() for at, _ in told]
    assert moments == sorted(moments)
    assert 60 < moments[4] < 200
    assert moments[6] == LONG + 4
    assert bench.cml.telemetry.past_events("another lab") == []


SPEEDS = st.lists(st.tuples(st.floats(0.1, 5000), st.integers(0, 60)), max_size=12)


@each(SPEEDS)
def test_changing_the_speed_never_turns_a_state_back(changes: list[tuple[float, int]]) -> None:
    bench = Bench()
    lab = bench.started()
    seen = [bench.states(lab)[0]]
    for speed, seconds in changes:
        bench.cml.pace.speed = speed
        seen.append(bench.states(lab)[0])
        bench.wait(seconds)
        seen.append(bench.states(lab)[0])
    assert [ORDER.index(state) for state in seen] == sorted(ORDER.index(state) for state in seen)


@each(SPEEDS)
def test_ages_turn_back_into_the_moments_at_which_they_were(changes: list[tuple[float, int]]) -> None:
    clock = HandClock()
    pace = CmlPace(clock)
    seen = []
    for speed, seconds in changes:
        seen.append((pace.age(), clock.now()))
        pace.speed = speed
        clock.step(seconds=seconds)
    for age, moment in seen:
        assert abs((pace.moment(age) - moment).total_seconds()) < 0.01


def test_a_faster_machine_boots_in_less_of_the_clocks_time() -> None:
    def seconds(speed: float) -> float:
        bench = Bench(speed=speed)
        lab = bench.started()
        for tenth in range(10 * LONG):
            if bench.states(lab) == [BOOTED]:
                return tenth / 10
            bench.wait(0.1)
        raise AssertionError("never booted")

    assert seconds(10) == pytest.approx(seconds(1) / 10, abs=0.2)


@pytest.mark.parametrize("speed", [0, -1, 1e7])
def test_a_senseless_speed_is_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        Bench(speed=speed)


def test_a_clock_that_jumps_back_does_not_unboot() -> None:
    bench = Bench()
    lab = bench.booted()
    assert bench.states(lab) == [BOOTED]
    bench.wait(-1800)
    assert bench.states(lab) == [BOOTED]
