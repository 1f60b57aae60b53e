"""What holds for the whole suite: CI skips nothing, and every step of a built controller is taken by some test."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest
from coverage import Coverage

import lcm
from harness import suite
from lcm.model.kinds.registry import STATE_MACHINES

FOLDER = Path(".cache/steps")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what runs in its background; every program that tests start would ignore Ctrl-C as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
UNMEASURED = (
    "crash/",
    "simulation/",
    "conformance/test_api_schema.py",
    "conformance/test_artifacts.py",
    "conformance/test_booking_race.py",
    "conformance/test_canary.py",
    "conformance/test_compute.py",
    "conformance/test_discovery",
    "conformance/test_five_processes.py",
    "conformance/test_labhost.py",
    "conformance/test_labhost_machine.py",
    "conformance/test_labhost_nodes.py",
    "conformance/test_newcomer.py",
    "conformance/test_outbox_on_stores.py",
    "conformance/test_permit.py",
    "conformance/test_plane_apply.py",
    "conformance/test_plane_callers.py",
    "conformance/test_plane_cuts.py",
    "conformance/test_plane_equivalence.py",
    "conformance/test_plane_learning.py",
    "conformance/test_plane_ledgers.py",
    "conformance/test_plane_placing.py",
    "conformance/test_plane_reads.py",
    "conformance/test_plane_reports.py",
    "conformance/test_plane_steps.py",
    "conformance/test_plane_watches.py",
    "conformance/test_plane_writes.py",
    "conformance/test_serve_command.py",
    "conformance/test_store_backup.py",
    "conformance/test_store_commits.py",
    "conformance/test_store_equivalence.py",
    "conformance/test_store_leases.py",
    "conformance/test_store_watches.py",
    "conformance/test_story_001.py",
    "conformance/test_stream_storm.py",
    "conformance/test_worker_lifecycle.py",
    "unit/test_addresses.py",
    "unit/test_admission_mass_assignment.py",
    "unit/test_api_doc.py::test_the_example_is_understood",
    "unit/test_api_hostile.py",
    "unit/test_api_malformed.py",
    "unit/test_api_manners.py",
    "unit/test_api_mass_assignment.py",
    "unit/test_api_roles.py",
    "unit/test_api_stream.py",
    "unit/test_applying_bookings.py::test_five_hundred_sessions_for_nine",
    "unit/test_applying_bookings.py::test_four_hundred_claims_of_one",
    "unit/test_applying_bookings.py::test_two_planes_that_apply_and",
    "unit/test_applying_bookings.py::test_what_is_applied_is_promised",
    "unit/test_backup_command.py::test_a_backup_is_taken_beside",
    "unit/test_bearer.py",
    "unit/test_capacity.py",
    "unit/test_cli_apply.py",
    "unit/test_cli_documents.py::test_what_is_written_is_read_as_it_was",
    "unit/test_cli_get.py",
    "unit/test_cli_render.py",
    "unit/test_cli_wait.py::test_everything_can_be_described_in",
    "unit/test_cml_client_answers.py::test_an_answer_of_the_wrong_form",
    "unit/test_cml_client_answers.py::test_no_bad_answer_looks_like_an_answer",
    "unit/test_cml_engine.py",
    "unit/test_cml_engine_direct.py::test_a_caller_may_die_anywhere",
    "unit/test_companions_occupancy.py",
    "unit/test_companions_walks.py",
    "unit/test_configuration.py::test_a_bad_value_stops_the",
    "unit/test_configuration.py::test_a_variable_works_under_its",
    "unit/test_configuration_documents.py",
    "unit/test_controller_cache.py::test_whatever_is_cut_and_down",
    "unit/test_controller_election.py::test_a_leader_may_sleep_anywhere",
    "unit/test_controller_election.py::test_candidates_that_die_sleep",
    "unit/test_definition_versions.py",
    "unit/test_desk.py",
    "unit/test_discovery.py",
    "unit/test_ec2_bad_answers.py::test_30_",
    "unit/test_ec2_bad_answers.py::test_wrong_credentials_name_the_action",
    "unit/test_housekeeping.py::test_sessions_are_archived_once",
    "unit/test_monitor.py::test_every_worker_is_measured_once",
    "unit/test_outbox_letters.py::test_what_cannot_be_delivered_for",
    "unit/test_plan_trial.py::test_nothing_is_late_or_refused",
    "unit/test_plane_applying.py",
    "unit/test_plane_client.py::test_no_answer_is_never_nothing",
    "unit/test_plane_deletion.py",
    "unit/test_plane_importing.py",
    "unit/test_plane_records.py",
    "unit/test_plane_requests.py",
    "unit/test_pool_demand.py::test_timelines_that_are_changed",
    "unit/test_pool_follower.py::test_a_booking_while_a_worker",
    "unit/test_pool_follower.py::test_a_minimum_that_never_comes",
    "unit/test_pool_follower.py::test_a_worker_is_paused_between",
    "unit/test_pool_follower.py::test_lesson_3_",
    "unit/test_ports.py::test_every_name_gets",
    "unit/test_quantity.py",
    "unit/test_reservations.py",
    "unit/test_s3_artifacts.py::test_no_answer_or_half_or",
    "unit/test_s3_artifacts.py::test_what_only_a_person_can",
    "unit/test_scheduler_plan.py::test_five_hundred",
    "unit/test_scheduler_reservations.py::test_the_sessions_of_a_reservation",
    "unit/test_scheduler_risk.py",
    "unit/test_scheduler_sessions.py",
    "unit/test_scheduler_waiting.py::test_a_session_that_ends_makes",
    "unit/test_scheduler_waiting.py::test_lesson_3_",
    "unit/test_seats.py",
    "unit/test_seats_horizon.py",
    "unit/test_seats_slots.py::test_a_group_gets_the_same",
    "unit/test_seats_slots.py::test_under_limits",
    "unit/test_secrets_aws.py::test_what_is_kept_has_a",
    "unit/test_session_deciders.py::test_every_move",
    "unit/test_session_failures.py::test_a_lab_stopped_by_hand",
    "unit/test_session_failures.py::test_a_node_that_never_boots",
    "unit/test_session_lives.py::test_a_whole_life_through_the_client",
    "unit/test_session_restarts.py::test_labs_that_never_come_up",
    "unit/test_sign_in.py::test_what_others_make_a_browser",
    "unit/test_sqlite_alone.py",
    "unit/test_topology_rewrite.py",
    "unit/test_validation.py",
    "unit/test_worker_controller.py",
    "unit/test_worker_drain.py",
    "unit/test_worker_failures.py",
    "unit/test_worker_health.py",
    "unit/test_worker_idling.py",
    "unit/test_worker_licensing.py::test_a_deleted_worker",
    "unit/test_worker_licensing.py::test_a_licence_server_that_never_answers",
    "unit/test_worker_licensing.py::test_a_licensed_machine_that_ec2",
    "unit/test_worker_licensing.py::test_a_silent_machine",
    "unit/test_worker_licensing.py::test_a_worker_that_gets_no",
    "unit/test_worker_silence.py",
)
"""Tests that walk the same lines thousands of times, or lines that others walk: measuring triples their time."""
WITH_THEIR_PROCESSES = (
    "conformance/test_up_on_aws.py::test_nothing_is_done",
    "unit/test_cli_get.py::test_watching_tells_what_is_there",
    "unit/test_cml_engine_server.py::test_it_says_where_it_is",
    "unit/test_up.py::test_a_fleet_comes_alive",
    "unit/test_up.py::test_up_stops_at_once",
)
"""Tests whose processes are measured too. Others start the same ones, which take twice as long to start measured."""
LONG = (
    "simulation/",
    "crash/",
    "conformance/test_api_schema.py",
    "conformance/test_booking_race.py",
    "conformance/test_canary.py",
    "conformance/test_five_processes.py",
    "conformance/test_newcomer.py",
    "conformance/test_story_001.py",
    "conformance/test_stream_storm.py",
    "conformance/test_up_on_aws.py",
    "unit/test_plan_trial.py",
    "unit/test_session_restarts.py",
    "unit/test_up.py",
)
"""Tests that take seconds: begun last, one of them would keep the run waiting while all other processes are done."""
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""Which process of the run this is; nothing in the one that deals out the tests, and where there is only one."""
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_CONFIGURATION = "COVERAGE_PROCESS_CONFIG"
"""Where a process that starts finds that it is to be measured, and how."""
_ASKED = pytest.StashKey[str]()
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
    for item in items:
        if among(item, UNMEASURED):
            item.add_marker(pytest.mark.no_cover)
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


def among(item: pytest.Item, names: tuple[str, ...]) -> bool:
    return item.nodeid.removeprefix("tests/").startswith(names)


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
    """Say something that stands at the end of the run, whichever process ran the test."""
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
