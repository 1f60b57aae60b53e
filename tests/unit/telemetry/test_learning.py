"""What labs teach: sums in real units, spreads as counted by hand, and when somebody is asked to look."""

from datetime import timedelta

import pytest
from hypothesis import strategies as st

from harness import given
from harness.suite import for_all
from lcm.control.objects.actions import perform_action
from lcm.control.objects.records import encode_checked, observations_key, observations_prefix
from lcm.control.plane.protocol import ObserveResources
from lcm.control.telemetry.observations import SAMPLES_PER_KEY, read_samples
from lcm.model.base.errors import IllegalStep
from lcm.model.kinds.definition import LabletDefinition, PortEnd, PortUse, ResourceRequirements, Spread
from lcm.model.kinds.saved_lab import ObservationRequest, has_timed_out
from lcm.model.kinds.session import SESSION_MACHINE, SessionPhase
from lcm.model.kinds.session_fields import clear_timed_out_requests
from lcm.model.kinds.settings import LearningSettings
from lcm.model.telemetry.learning import (
    SAMPLES_KEPT,
    ObservedSample,
    ObservedSamples,
    ReviewPolicy,
    build_observation,
    build_report,
    build_sample,
    compare_measures,
    compute_spread,
    is_steady,
    propose_requirements,
    with_learned_status,
    with_review,
    with_sample,
)
from lcm.model.telemetry.observation import LabUse, NodeObservation, NodeStats, drift
from lcm.model.topology.ports import keep_observable
from lcm.store.base import Put
from lcm.store.memory import MemoryStore

NOW = given.moment("10:00")
TEMPLATE = {
    "PC_serial": PortUse(kind="serial", node="PC"),
    "PC_vnc": PortUse(kind="vnc", node="PC"),
    "WEB_pat_tcp_80": PortUse(kind="pat", node="WEB", protocol="tcp", inside=80),
    "WORD": PortUse(kind="placeholder"),
}
ALLOCATED = {"PC_serial": 5041, "PC_vnc": 5044, "WEB_pat_tcp_80": 5080, "WORD": 5099}


def node(label: str = "PC", *tags: str, **more: object) -> NodeObservation:
    plain = NodeObservation(node_id=f"id-{label}", label=label, node_definition="iosv", state="BOOTED", tags=tags)
    return given.changed(plain, more)


def lab(cores: float = 4, gigabytes: float = 8, **more: object) -> LabletDefinition:
    needs = ResourceRequirements(cpu_cores=cores, memory_gb=gigabytes)
    return given.definition(**{"resource_requirements": needs, "port_template": TEMPLATE} | more)


def sample(number: int, **more: object) -> ObservedSample:
    plain = ObservedSample(
        session_id=f"uid-{number}",
        session_name=f"s{number}",
        observed_at=NOW + timedelta(minutes=number),
        cpu_cores=4.0,
        memory_mb=8_192,
    )
    return given.changed(plain, more)


def samples(*items: ObservedSample) -> ObservedSamples:
    return ObservedSamples(total=len(items), items=items)


async def test_a_session_rewrites_only_a_few_samples_and_the_oldest_are_dropped() -> None:
    store, lab = MemoryStore(), given.definition()
    prefix, written = observations_prefix(lab), []
    for number in range(3 * SAMPLES_KEPT):
        ops = (await read_samples(store, lab)).put_ops(sample(number))
        written.append(sum(len(op.value) for op in ops if isinstance(op, Put)))
        await store.commit(*ops)
    stored = await read_samples(store, lab)
    kept = stored.samples(3 * SAMPLES_KEPT)
    assert max(written) < SAMPLES_PER_KEY * 300
    assert [one.session_name for one in kept.items] == [f"s{n}" for n in range(2 * SAMPLES_KEPT, 3 * SAMPLES_KEPT)]
    assert len(stored.chunks) <= SAMPLES_KEPT // SAMPLES_PER_KEY + 2
    assert all(chunk.key.startswith(prefix) for chunk in stored.chunks)
    again = sample(3 * SAMPLES_KEPT - 20, cpu_cores=9.0)
    await store.commit(*stored.put_ops(again))
    kept = (await read_samples(store, lab)).samples(3 * SAMPLES_KEPT)
    assert [one.cpu_cores for one in kept.items].count(9.0) == 1
    assert len(kept.items) == SAMPLES_KEPT


async def test_samples_of_an_earlier_version_count_until_they_are_the_oldest() -> None:
    store, lab = MemoryStore(), given.definition()
    former = samples(*(sample(number) for number in range(SAMPLES_KEPT)))
    await store.commit(Put(observations_key(lab), encode_checked(former)))
    for number in range(SAMPLES_KEPT, 2 * SAMPLES_KEPT + 1):
        found = (await read_samples(store, lab)).samples(number)
        assert len(found.items) == SAMPLES_KEPT
        await store.commit(*(await read_samples(store, lab)).put_ops(sample(number)))
    assert await store.get(observations_key(lab)) is None


def seen(*nodes: NodeObservation, **more: object) -> dict[str, int]:
    return dict(build_observation(nodes, TEMPLATE, at=NOW, observer="manual", **more).observed_ports)  # type: ignore[arg-type]


def test_lesson_12_a_cpu_limit_is_a_percentage_and_never_a_number_of_cores() -> None:
    nodes = [
        node("R1", cpus=2.0, cpu_limit=100, ram_mb=3_072, disk_gb=16.0),
        node("R2", cpus=1.0, cpu_limit=20, ram_mb=512),
        node("LINK"),
    ]
    found = build_observation(nodes, {}, at=NOW, observer="lablet-controller")
    assert (found.total_cpu_cores, found.total_memory_mb, found.total_storage_mb) == (3.0, 3_584, 16_384)
    assert (found.actual_node_count, found.node_definitions_used) == (3, ("iosv",))
    assert build_observation([node()], {}, at=NOW, observer="manual").total_storage_mb is None, "unknown is not zero"


def test_lesson_14_observed_ports_are_those_on_the_lab_now_and_pat_is_among_them() -> None:
    as_given = seen(node("PC", "serial:5041", "vnc:5044"), node("WEB", "pat:tcp:5080:80"))
    assert as_given == {"PC_serial": 5041, "PC_vnc": 5044, "WEB_pat_tcp_80": 5080}
    assert drift(keep_observable(ALLOCATED, TEMPLATE), as_given) == {}, "a word in the lab cannot be observed"
    edited = seen(node("PC", "serial:6000", "vnc:5044"), node("WEB", "pat:5080:80", "pat:udp:6001:53"))
    assert drift(keep_observable(ALLOCATED, TEMPLATE), edited) == {
        "PC_serial": (5041, 6000),
        "WEB_pat_udp_53": (None, 6001),
    }


def test_a_renamed_node_takes_its_ports_to_another_name() -> None:
    renamed = seen(node("LAPTOP", "serial:5041", "vnc:5044"), node("WEB", "pat:tcp:5080:80"))
    assert drift(keep_observable(ALLOCATED, TEMPLATE), renamed) == {
        "LAPTOP_serial": (None, 5041),
        "LAPTOP_vnc": (None, 5044),
        "PC_serial": (5041, None),
        "PC_vnc": (5044, None),
    }


@pytest.mark.parametrize(
    ("states", "steady"),
    [
        ((), False),
        (("BOOTED", "BOOTED"), True),
        (("BOOTED", "STOPPED"), True),
        (("BOOTED", "STARTED"), False),
        (("QUEUED",), False),
        (("DEFINED_ON_CORE",), False),
        (("DISCONNECTED",), False),
    ],
)
def test_boot_and_steady_state_are_apart(states: tuple[str, ...], *, steady: bool) -> None:
    nodes = [node(f"n{number}", state=state) for number, state in enumerate(states)]
    assert is_steady(build_observation(nodes, {}, at=NOW, observer="manual")) is steady


def test_a_sample_says_how_long_the_slowest_node_booted() -> None:
    stats = {"a": NodeStats(boot_seconds=61.5), "b": NodeStats(boot_seconds=120.0), "c": NodeStats()}
    made = build_sample(given.session(), given.observation(simulation_stats=stats), None)
    assert (made.boot_seconds, made.session_id, made.cpu_cores) == (120.0, "uid-s1", 4.0)
    assert build_sample(given.session(), given.observation(), None).boot_seconds is None


def test_spreads_are_those_counted_by_hand() -> None:
    # In order: 2 3 4 5 6 7 8 9 10 30; half of ten are at most 6, and 95 % of ten (all ten of them) at most 30.
    assert compute_spread([6, 2, 9, 4, 30, 3, 8, 5, 10, 7]) == Spread(
        avg=8.4, p50=6, p95=30, max=30, latest=7, count=10
    )
    assert compute_spread([5]) == Spread(avg=5, p50=5, p95=5, max=5, latest=5, count=1)
    assert compute_spread([1, 2]) == Spread(avg=1.5, p50=1, p95=2, max=2, latest=2, count=2)
    twenty = [*range(1, 20), 1000]
    assert compute_spread([float(one) for one in twenty]) == Spread(
        avg=59.5, p50=10, p95=19, max=1000, latest=1000, count=20
    )
    assert compute_spread([]) is None


@for_all(st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
def test_a_spread_is_of_the_values_and_in_order(values: list[float]) -> None:
    found = compute_spread(values)
    assert found is not None
    assert {found.p50, found.p95, found.max, found.latest} <= set(values)
    assert found.p50 <= found.p95 <= found.max == max(values)
    assert sum(value <= found.p95 for value in values) >= 0.95 * len(values) - 1e-9


def test_a_session_that_is_observed_often_counts_once() -> None:
    first = with_sample(ObservedSamples(), sample(1, cpu_cores=2.0))
    again = with_sample(first, sample(1, cpu_cores=6.0))
    assert (again.total, [one.cpu_cores for one in again.items]) == (1, [6.0])
    other = with_sample(again, sample(0))
    assert (other.total, [one.session_name for one in other.items]) == (2, ["s0", "s1"]), "in the order of time"


def test_the_oldest_samples_are_forgotten_and_all_sessions_counted() -> None:
    kept = ObservedSamples()
    for number in range(SAMPLES_KEPT + 5):
        kept = with_sample(kept, sample(number))
    assert (kept.total, len(kept.items), kept.items[0].session_name) == (SAMPLES_KEPT + 5, SAMPLES_KEPT, "s5")
    assert with_learned_status(lab(), kept, ReviewPolicy()).status.observed_sessions == SAMPLES_KEPT + 5


def test_a_definition_learns_what_its_sessions_had() -> None:
    three = [
        sample(1, cpu_cores=3.0, memory_mb=6_000),
        sample(2, cpu_cores=5.0, memory_mb=8_000, storage_mb=100, boot_seconds=90.0),
        sample(3, cpu_cores=4.0, memory_mb=7_000),
    ]
    status = with_learned_status(lab(), samples(*three), ReviewPolicy()).status
    assert status.cpu_cores == Spread(avg=4, p50=4, p95=5, max=5, latest=4, count=3)
    assert status.memory_mb == Spread(avg=7_000, p50=7_000, p95=8_000, max=8_000, latest=7_000, count=3)
    assert status.storage_mb == Spread(avg=100, p50=100, p95=100, max=100, latest=100, count=1)
    assert status.boot_seconds == Spread(avg=90, p50=90, p95=90, max=90, latest=90, count=1)
    assert status.observed_sessions == 3


@pytest.mark.parametrize(
    ("cores", "sessions", "flagged"),
    [(5.0, 3, True), (4.99, 3, False), (3.0, 3, True), (3.01, 3, False), (40.0, 2, False), (4.0, 3, False)],
)
def test_a_difference_of_a_quarter_over_three_sessions_wants_a_person(
    cores: float, sessions: int, *, flagged: bool
) -> None:
    made = with_learned_status(
        lab(), samples(*(sample(number, cpu_cores=cores) for number in range(sessions))), ReviewPolicy()
    )
    assert made.status.needs_review is flagged
    assert bool(made.status.review_reason) is flagged


def test_a_review_says_what_differs_and_by_how_much() -> None:
    told = with_learned_status(
        lab(), samples(*(sample(number, cpu_cores=6.0) for number in range(3))), ReviewPolicy()
    ).status
    assert told.review_reason == "cpu_cores: 95 % of 3 sessions had at most 6, declared are 4 (+50%)"


def used(
    number: int, *, cores: float = 0.3, boot: float = 1.0, memory: float = 7_000, **more: object
) -> ObservedSample:
    """Return a session whose nodes had what was declared, and used some of it."""
    use = {"used_cpu_cores": cores, "boot_cpu_cores": boot, "used_memory_mb": memory, "boot_memory_mb": memory / 2}
    return sample(number, **use | more)


def review_of(*taught: ObservedSample, definition: LabletDefinition | None = None) -> str:
    return with_learned_status(definition or lab(), samples(*taught), ReviewPolicy()).status.review_reason


def test_what_is_declared_and_never_used_wants_a_person() -> None:
    told = review_of(*(used(number) for number in range(3)))
    assert told == (
        "cpu_cores: 95 % of 3 sessions used at most 0.3, and 1 while booting, declared are 4 (-75%): "
        "more is declared than is used"
    )
    assert review_of(*(used(number, boot=3.5) for number in range(3))) == "", "it is needed while they boot"
    assert review_of(*(used(number) for number in range(2))) == "", "two are too few"
    assert review_of(*(used(number, boot_cpu_cores=None) for number in range(3))) == "", "the boot is not known"


def test_more_use_than_is_declared_wants_a_person() -> None:
    small = lab(gigabytes=4)
    had = {"memory_mb": 4_096, "boot": 3.5}
    told = review_of(*(used(number, memory=6_000, **had) for number in range(3)), definition=small)
    assert told.startswith("memory_mb: 95 % of 3 sessions used at most 6000, and 3000 while booting, declared are 4096")
    assert told.endswith("(+46%): too little is declared")


def test_what_was_declared_by_what_is_used_is_no_longer_held_against_what_was_given() -> None:
    given_more = [used(number, boot=2.9, memory=5_900) for number in range(3)]
    assert review_of(*given_more, definition=lab(cores=3, gigabytes=6)) == ""
    assert "had at most 4, declared are 3 (+33%)" in review_of(
        *(sample(number) for number in range(3)), definition=lab(cores=3)
    )


def test_a_report_shows_use_beside_what_was_given() -> None:
    three = samples(*(used(number, cores=0.1 * number) for number in range(3)))
    cpu, memory, storage = compare_measures(with_learned_status(lab(), three, ReviewPolicy()))
    assert cpu.used is not None
    assert cpu.boot_used is not None
    assert (cpu.used.p95, cpu.used.p50, cpu.boot_used.p95) == (0.2, 0.1, 1.0)
    assert cpu.use_difference == -0.75
    assert memory.use_difference == (7_000 - 8_192) / 8_192
    assert (storage.used, storage.boot_used, storage.use_difference) == (None, None, None)


def test_use_is_counted_of_what_nodes_were_given_and_of_those_that_have_booted() -> None:
    stats = {
        "id-R1": NodeStats(cpu_usage=25.0, ram_usage=50.0, cpus=2.0, ram_mb=3_072),
        "id-R2": NodeStats(cpu_usage=130.0, ram_usage=10.0, cpus=1.0, ram_mb=512),
        "id-R3": NodeStats(cpu_usage=90.0, ram_usage=90.0, cpus=4.0, ram_mb=4_096),
        "id-SW": NodeStats(),
    }
    nodes = [node("R1", cpus=2.0), node("R2"), node("R3", state="STARTED"), node("SW"), node("LINK")]
    found = build_observation(nodes, {}, at=NOW, observer="manual", stats=stats)
    assert found.used == LabUse(cpu_cores=1.5, memory_mb=1_587.2)
    assert build_observation(nodes, {}, at=NOW, observer="manual").used is None
    assert build_observation([node("SW")], {}, at=NOW, observer="manual", stats=stats).used is None
    session = given.session(boot_use=LabUse(cpu_cores=3.0, memory_mb=900.0))
    made = build_sample(session, found, None)
    assert (made.used_cpu_cores, made.used_memory_mb) == (1.5, 1_587.2)
    assert (made.boot_cpu_cores, made.boot_memory_mb) == (3.0, 900.0)


def test_when_to_look_is_a_setting() -> None:
    one = samples(sample(1, cpu_cores=4.5))
    assert not with_learned_status(lab(), one, ReviewPolicy()).status.needs_review
    settings = given.settings(learning=LearningSettings(review_difference=0.1, review_sessions=1))
    assert ReviewPolicy().with_settings(settings) == ReviewPolicy(0.1, 1)
    assert with_learned_status(lab(), one, ReviewPolicy().with_settings(settings)).status.needs_review
    assert (
        ReviewPolicy(0.5, 7).with_settings(None)
        == ReviewPolicy(0.5, 7)
        == ReviewPolicy(0.5, 7).with_settings(given.settings())
    )


def test_what_is_not_declared_differs_from_nothing() -> None:
    three = samples(*(sample(number, storage_mb=50_000) for number in range(3)))
    assert not with_learned_status(lab(), three, ReviewPolicy()).status.needs_review, "no storage is declared"
    assert not with_learned_status(given.definition(), three, ReviewPolicy()).status.needs_review, "nothing is"


def test_ports_of_other_names_than_the_template_s_want_a_person_at_once() -> None:
    renamed = seen(node("LAPTOP", "serial:5041"), node("PC", "vnc:5044"), node("WEB", "pat:5080:80"))
    made = build_sample(given.session(), given.observation(observed_ports=renamed), TEMPLATE)
    assert made.other_ports == ("LAPTOP_serial", "PC_serial")
    told = with_learned_status(lab(), samples(made), ReviewPolicy()).status
    assert told.needs_review
    assert "LAPTOP_serial, PC_serial" in told.review_reason
    moved = {"PC_serial": 6000, "PC_vnc": 5044, "WEB_pat_tcp_80": 5080}
    assert build_sample(given.session(), given.observation(observed_ports=moved), TEMPLATE).other_ports == ()


def test_what_was_applied_needs_no_review_any_more() -> None:
    flagged = with_learned_status(
        lab(), samples(*(sample(number, cpu_cores=6.0) for number in range(3))), ReviewPolicy()
    )
    wanted = propose_requirements(flagged)
    assert wanted == ResourceRequirements(cpu_cores=6.0, memory_gb=8.0)
    applied = with_review(given.changed(flagged, {"spec": {"resource_requirements": wanted}}), ReviewPolicy())
    assert (applied.status.needs_review, applied.status.review_reason) == (False, "")
    assert with_review(applied, ReviewPolicy()) is applied
    assert propose_requirements(lab()) is None


def test_a_report_holds_what_was_seen_against_what_is_declared() -> None:
    three = samples(*(sample(number, cpu_cores=6.0) for number in range(3)))
    made = with_learned_status(lab(), three, ReviewPolicy())
    cpu, memory, storage = compare_measures(made)
    assert (cpu.declared, cpu.difference, cpu.observed) == (4.0, 0.5, made.status.cpu_cores)
    assert (memory.declared, memory.difference) == (8_192, 0.0)
    assert (storage.declared, storage.observed, storage.difference) == (None, None, None)
    told = build_report(made, three, named=True)
    assert [one.session_name for one in told.samples] == ["s0", "s1", "s2"]
    hidden = build_report(made, three, named=False)
    assert {(one.session_id, one.session_name) for one in hidden.samples} == {("", "")}
    assert [one.cpu_cores for one in hidden.samples] == [6.0, 6.0, 6.0]


def test_a_port_s_name_that_is_too_long_is_cut() -> None:
    found = build_observation([node("L" * 120, "pat:tcp:7001:65000")], TEMPLATE, at=NOW, observer="manual")
    (*_, longest) = sorted(build_sample(given.session(), found, TEMPLATE).other_ports, key=len)
    assert longest == ("L" * 120 + "_pat_tcp")[:128]


def test_a_request_lasts_half_a_minute() -> None:
    request = ObservationRequest(id="r-1", requested_at=NOW, requested_by="ada")
    status = given.session(observation_request=request).status
    soon, late = NOW + timedelta(seconds=29.9), NOW + timedelta(seconds=30)
    assert not has_timed_out(None, late)
    assert not has_timed_out(request, soon)
    assert has_timed_out(request, late)
    assert clear_timed_out_requests(status, soon) is status
    cleared = clear_timed_out_requests(status, late)
    assert cleared.observation_request is None
    assert cleared.observation_error == (
        "not observed: ada asked at 2026-11-02T10:00:00Z, and no answer came within 30 s; ask again"
    )


def test_who_asks_again_in_time_asks_once() -> None:
    running = given.session(phase=SessionPhase.RUNNING, observation_error="not observed")
    ids = iter(["r-1", "r-2"])
    asked = perform_action(running, ObserveResources(), now=NOW, author="ada", ids=lambda: next(ids))
    assert asked.status.observation_request == ObservationRequest(id="r-1", requested_at=NOW, requested_by="ada")
    assert asked.status.observation_error == ""
    soon, late = NOW + timedelta(seconds=29), NOW + timedelta(seconds=31)
    assert perform_action(asked, ObserveResources(), now=soon, author="bob", ids=lambda: next(ids)) is asked
    again = perform_action(
        asked, ObserveResources(), now=late, author="bob", ids=lambda: next(ids)
    ).status.observation_request
    assert again == ObservationRequest(id="r-2", requested_at=late, requested_by="bob")


@pytest.mark.parametrize("phase", sorted(set(SESSION_MACHINE.phases) - {SessionPhase.RUNNING}))
def test_only_what_runs_is_observed_on_request(phase: SessionPhase) -> None:
    with pytest.raises(IllegalStep, match="no observe-resources; only a running session can be observed"):
        perform_action(given.session(phase=phase), ObserveResources(), now=NOW, author="ada")


def test_several_ends_of_one_port_are_one_port() -> None:
    shared = {"BOTH": PortUse(kind="serial", node="A", also=(PortEnd(kind="serial", node="B"),))}
    found = build_observation([node("A", "serial:5000"), node("B", "serial:5000")], shared, at=NOW, observer="manual")
    assert found.observed_ports == {"BOTH": 5000}
