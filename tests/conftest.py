"""What holds for the whole suite: CI skips nothing, and every step of a built controller is taken by some test."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import hypothesis
import pytest
from coverage import Coverage

import lcm
from harness import suite
from lcm.model.kinds.registry import STATE_MACHINES

FOLDER = Path(".cache/steps")
os.environ["TZ"] = "UTC"  # `lcm` shows times in the zone of whoever runs it
os.environ.pop("LCM_TZ", None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what runs in its background; every program that tests start would ignore Ctrl-C as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
hypothesis.settings.register_profile("suite", deadline=None)  # a machine may be busy with something else
hypothesis.settings.load_profile("suite")
UNMEASURED = (
    "crash/",
    "simulation/",
    "conformance/system/test_api_schema.py",
    "conformance/providers/test_artifacts.py",
    "conformance/system/test_booking_race.py",
    "conformance/system/test_canary.py",
    "conformance/providers/test_compute.py",
    "conformance/providers/test_discovery.py",
    "conformance/system/test_five_processes.py",
    "conformance/providers/test_labhost.py",
    "conformance/providers/test_labhost_machine.py",
    "conformance/providers/test_labhost_nodes.py",
    "conformance/system/test_newcomer.py",
    "conformance/store/test_outbox_on_stores.py",
    "conformance/providers/test_permit.py",
    "conformance/plane/test_apply.py",
    "conformance/plane/test_callers.py",
    "conformance/plane/test_cuts.py",
    "conformance/plane/test_equivalence.py",
    "conformance/plane/test_learning.py",
    "conformance/plane/test_ledgers.py",
    "conformance/plane/test_placing.py",
    "conformance/plane/test_reads.py",
    "conformance/plane/test_reports.py",
    "conformance/plane/test_steps.py",
    "conformance/plane/test_watches.py",
    "conformance/plane/test_writes.py",
    "conformance/system/test_serve_command.py",
    "conformance/store/test_backup.py",
    "conformance/store/test_commits.py",
    "conformance/store/test_equivalence.py",
    "conformance/store/test_leases.py",
    "conformance/store/test_watches.py",
    "conformance/system/test_story_001.py",
    "conformance/system/test_stream_storm.py",
    "conformance/system/test_worker_lifecycle.py",
    "unit/model/test_addresses.py",
    "unit/plane/test_admission_mass_assignment.py",
    "unit/api/test_doc.py::test_the_example_is_understood",
    "unit/api/test_hostile.py",
    "unit/api/test_malformed.py",
    "unit/api/test_http_conventions.py",
    "unit/api/test_mass_assignment.py",
    "unit/api/test_roles.py",
    "unit/api/test_stream.py",
    "unit/booking/test_applying_bookings.py::test_five_hundred_sessions_for_nine",
    "unit/booking/test_applying_bookings.py::test_four_hundred_claims_of_one",
    "unit/booking/test_applying_bookings.py::test_two_planes_that_apply_and",
    "unit/booking/test_applying_bookings.py::test_what_is_applied_is_promised",
    "conformance/system/test_backup_command.py::test_a_backup_is_taken_beside",
    "unit/access/test_bearer.py",
    "unit/model/test_capacity.py",
    "unit/cli/test_apply.py",
    "unit/cli/test_documents.py::test_what_is_written_is_read_as_it_was",
    "unit/cli/test_get.py",
    "unit/cli/test_render.py",
    "unit/cli/test_wait.py::test_everything_can_be_described_in",
    "unit/cml/test_cml_client_answers.py::test_an_answer_of_the_wrong_form",
    "unit/cml/test_cml_client_answers.py::test_no_bad_answer_looks_like_an_answer",
    "unit/cml/test_cml_engine.py",
    "unit/cml/test_cml_engine_direct.py::test_a_caller_may_die_anywhere",
    "unit/accounts/test_ledger_occupancy.py",
    "unit/accounts/test_ledger_walks.py",
    "unit/server/test_configuration.py::test_a_bad_value_stops_the",
    "unit/server/test_configuration.py::test_a_variable_works_under_its",
    "unit/server/test_configuration_documents.py",
    "unit/runtime/test_controller_cache.py::test_whatever_is_cut_and_down",
    "unit/runtime/test_controller_election.py::test_a_leader_may_sleep_anywhere",
    "unit/runtime/test_controller_election.py::test_candidates_that_die_sleep",
    "unit/model/test_definition_versions.py",
    "unit/booking/test_promises.py",
    "unit/runtime/test_discovery.py",
    "unit/aws/test_ec2_bad_answers.py::test_30_",
    "unit/aws/test_ec2_bad_answers.py::test_wrong_credentials_name_the_action",
    "unit/store/test_housekeeping.py::test_sessions_are_archived_once",
    "unit/worker/test_monitor.py::test_every_worker_is_measured_once",
    "unit/delivery/test_dead_letters.py::test_what_cannot_be_delivered_for",
    "unit/plan/test_trial.py::test_nothing_is_late_or_refused",
    "unit/plane/test_applying.py",
    "unit/plane/test_client.py::test_no_answer_is_never_nothing",
    "unit/plane/test_deletion.py",
    "unit/plane/test_importing.py",
    "unit/plane/test_records.py",
    "unit/plane/test_requests.py",
    "unit/pool/test_demand.py::test_timelines_that_are_changed",
    "unit/pool/test_follower.py::test_a_booking_while_a_worker",
    "unit/pool/test_follower.py::test_a_minimum_that_never_comes",
    "unit/pool/test_follower.py::test_a_worker_is_paused_between",
    "unit/pool/test_follower.py::test_lesson_3_",
    "unit/placement/test_ports.py::test_every_name_gets",
    "unit/model/test_quantity.py",
    "unit/booking/test_reservations.py",
    "unit/aws/test_s3_artifacts.py::test_no_answer_or_half_or",
    "unit/aws/test_s3_artifacts.py::test_what_only_a_person_can",
    "unit/scheduler/test_plan.py::test_five_hundred",
    "unit/scheduler/test_reservations.py::test_the_sessions_of_a_reservation",
    "unit/scheduler/test_risk.py",
    "unit/scheduler/test_sessions.py",
    "unit/scheduler/test_waiting.py::test_a_session_that_ends_makes",
    "unit/scheduler/test_waiting.py::test_lesson_3_",
    "unit/placement/test_seats.py",
    "unit/placement/test_seats_horizon.py",
    "unit/placement/test_seats_slots.py::test_a_group_gets_the_same",
    "unit/placement/test_seats_slots.py::test_under_limits",
    "unit/aws/test_secrets_aws.py::test_what_is_kept_has_a",
    "unit/session/test_deciders.py::test_every_move",
    "unit/session/test_failures.py::test_a_lab_stopped_by_hand",
    "unit/session/test_failures.py::test_a_node_that_never_boots",
    "unit/session/test_lives.py::test_a_whole_life_through_the_client",
    "unit/session/test_restarts.py::test_labs_that_never_come_up",
    "unit/access/test_sign_in.py::test_what_others_make_a_browser",
    "unit/store/test_sqlite_alone.py",
    "unit/topology/test_topology_rewrite.py",
    "unit/topology/test_validation.py",
    "unit/worker/test_controller.py",
    "unit/worker/test_drain.py",
    "unit/worker/test_failures.py",
    "unit/worker/test_health.py",
    "unit/worker/test_idling.py",
    "unit/worker/test_licensing.py::test_a_deleted_worker",
    "unit/worker/test_licensing.py::test_a_licence_server_that_never_answers",
    "unit/worker/test_licensing.py::test_a_licensed_machine_that_ec2",
    "unit/worker/test_licensing.py::test_a_silent_machine",
    "unit/worker/test_licensing.py::test_a_worker_that_gets_no",
    "unit/worker/test_silence.py",
    "browser/",
    "contract/",
    "conformance/system/test_store_trouble.py",
    "conformance/system/test_up_on_aws.py",
    "conformance/system/test_gateway_around.py::test_three_hundred",
    "conformance/system/test_gateway_hostile.py::test_three_hundred",
    "unit/api/test_openapi.py::test_every_body_and_answer",
    "unit/api/test_patterns.py::test_a_pattern_that_takes_more",
    "unit/api/test_system.py::test_equal_problems",
    "unit/api/test_websocket_frames.py::test_f",
    "unit/api/test_gateway_words.py::test_no_flood",
    "unit/booking/test_slots.py::test_what_is_offered",
    "unit/delivery/test_events_page.py::test_many_who_search",
    "unit/delivery/test_feed.py::test_many_who_resume",
    "unit/placement/test_pack_kinds.py::test_from_nothing",
    "unit/placement/test_pack_kinds.py::test_no_plan",
    "unit/placement/test_pack_kinds.py::test_the_same_seed",
    "unit/placement/test_pack_standing.py::test_from",
    "unit/placement/test_pack_standing.py::test_no_plan",
    "unit/placement/test_pack_steps.py::test_every_step",
    "unit/plan/test_choices.py::test_those_that_are_played",
    "unit/plan/test_choices.py::test_what_is_cancelled",
    "unit/runtime/test_private_apis.py::test_every_private_name",
    "unit/scheduler/test_waiting.py::test_who_comes_after",
    "unit/server/test_docs.py",
    "unit/server/test_doctor.py::test_it_fits",
    "unit/server/test_doctor.py::test_no_secret",
    "unit/server/test_runbook.py",
)
"""Tests that walk the same lines thousands of times, or lines that others walk: measuring triples their time."""
WITH_THEIR_PROCESSES = (
    "conformance/system/test_up_on_aws.py::test_nothing_is_done",
    "unit/cli/test_get.py::test_watching_tells_what_is_there",
    "conformance/system/test_cml_sim_command.py::test_it_says_where_it_is",
    "conformance/system/test_up.py::test_a_fleet_comes_alive",
    "conformance/system/test_up.py::test_up_stops_at_once",
)
"""Tests whose processes are measured too. Others start the same ones, which take twice as long to start measured."""
LONG = (
    "simulation/",
    "crash/",
    "conformance/system/test_api_schema.py",
    "conformance/system/test_booking_race.py",
    "conformance/system/test_canary.py",
    "conformance/system/test_five_processes.py",
    "conformance/system/test_newcomer.py",
    "conformance/system/test_story_001.py",
    "conformance/system/test_stream_storm.py",
    "conformance/system/test_up_on_aws.py",
    "unit/plan/test_trial.py",
    "unit/session/test_restarts.py",
    "conformance/system/test_up.py",
)
"""Tests that take seconds: begun last, one of them would keep the run waiting while all other processes are done."""
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""Which process of the run this is; nothing in the one that deals out the tests, and where there is only one."""
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_CONFIGURATION = "COVERAGE_PROCESS_CONFIG"
"""Where a process that starts finds that it is to be measured, and how."""
_ASKED = pytest.StashKey[str]()
_MEASURING = pytest.StashKey[Coverage | None]()
_write = suite.record(FOLDER, WORKER or "main")
_skipped: list[str] = []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Measure no further in the process that only deals out the tests, and let none of the others inherit it.

    They begin by themselves. What they had measured by then they would write while this one gathers what all wrote.
    """
    unmeasure()
    os.environ.pop(_CONFIGURATION, None)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    """Let each process of the run measure itself once.

    Coverage has begun once here by now: pytest-cov takes this process for the first of the run. Where its second
    beginning, the one that counts, is paused, that one would go on.
    """
    if WORKER:
        unmeasure()


def unmeasure() -> None:
    while begun := Coverage.current():
        begun.stop()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Measure in one process what loading the sources runs, the same in each, and nowhere the search for tests.

    No process gets a test before all have found them, so none may be slow. What is found stays: to look for garbage in
    it again and again would take a fifth of the time.
    """
    measuring = Coverage.current()
    if measuring is not None and WORKER in {"", "gw0"}:
        load_sources()
    if measuring is not None:
        measuring.stop()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        if measuring is not None:
            measuring.start()


def load_sources() -> None:
    for module in walk_packages(lcm.__path__, "lcm."):
        if not module.name.endswith("__main__"):
            import_module(module.name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    check_names()
    items[:] = long_first(items)


def pytest_collection_finish() -> None:
    """Let the garbage collector not look at ten thousand tests again and again: they stay."""
    gc.freeze()


def long_first(items: list[pytest.Item]) -> list[pytest.Item]:
    """Let the share of each process, which is one piece of the list, begin with its part of the long tests."""
    long, short = ([item for item in items if among(item, LONG) is wanted] for wanted in (True, False))
    ordered: list[pytest.Item] = []
    for number in range(WORKERS):
        share = (len(items) - len(ordered)) // (WORKERS - number)
        begins = long[number::WORKERS]
        goes_on = max(0, share - len(begins))
        ordered += begins + short[:goes_on]
        short = short[goes_on:]
    return ordered + short


def check_names() -> None:
    """Fail where a list names a file that is gone: its tests would silently be measured otherwise, or begin last."""
    named = {name.partition("::")[0] for name in (*UNMEASURED, *WITH_THEIR_PROCESSES, *LONG)}
    gone = sorted(name for name in named if not (suite.ROOT / "tests" / name).exists())
    assert not gone, f"tests/conftest.py names {', '.join(gone)}"


def among(item: pytest.Item, names: tuple[str, ...]) -> bool:
    return item.nodeid.removeprefix("tests/").startswith(names)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Measure a test together with its fixtures, or none of it; to stop and to go on takes longer than many a test."""
    measuring = item.config.stash.setdefault(_MEASURING, Coverage.current())
    if measuring is not None:
        is_on, is_wanted = Coverage.current() is not None, not among(item, UNMEASURED)
        if is_on and not is_wanted:
            measuring.stop()
        elif is_wanted and not is_on:
            measuring.start()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let what a test or its fixtures start be measured only where it is asked for.

    Coverage asks for it in the environment again whenever it goes on after a test that is not measured.
    """
    stash = item.config.stash
    stash[_ASKED] = os.environ.pop(_CONFIGURATION, "") or stash.get(_ASKED, "")
    if stash[_ASKED] and among(item, WITH_THEIR_PROCESSES):
        os.environ[_CONFIGURATION] = stash[_ASKED]


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Print a line at the end of the run, whichever process ran the test."""
    return lambda line: record_property("told", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    told = sorted(str(line) for report in passed for name, line in report.user_properties if name == "told")
    if told:
        terminalreporter.section("counted")
        for line in told:
            terminalreporter.write_line(line)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        _skipped.append(report.nodeid)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    _write()
    if WORKER:
        return
    if os.environ.get("CI") and _skipped:
        fail(session, "skipped in CI", _skipped)
    if os.environ.get("LCM_WHOLE_SUITE"):
        left = suite.untaken(STATE_MACHINES, suite.collected(FOLDER))
        if left:
            fail(session, "steps that no test took", [" ".join(step) for step in left])


def fail(session: pytest.Session, what: str, lines: list[str]) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    reporter.write_line(f"\n{what}:", red=True)
    for line in lines:
        reporter.write_line(f"  {line}", red=True)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
