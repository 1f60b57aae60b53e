"""What holds for the whole suite: CI skips nothing, and every step of a built controller is taken by some test."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from coverage import Coverage

import steps
from lcm.model.kinds import MACHINES

FOLDER = Path(".cache/steps")
UNMEASURED = (
    "simulation/",
    "crash/",
    "conformance/test_api_schema.py",
    "conformance/test_booking_race.py",
    "conformance/test_five_processes.py",
    "conformance/test_plane_learning.py",
    "conformance/test_plane_placing.py",
    "conformance/test_artifacts.py::test_any_bytes_survive",
    "conformance/test_canary.py",
    "conformance/test_discovery",
    "conformance/test_newcomer.py",
    "conformance/test_permit.py",
    "conformance/test_plane_apply.py",
    "conformance/test_plane_callers.py",
    "conformance/test_plane_cuts.py",
    "conformance/test_plane_equivalence.py",
    "conformance/test_plane_ledgers.py",
    "conformance/test_plane_reports.py",
    "conformance/test_plane_watches.py",
    "conformance/test_serve_command.py",
    "conformance/test_store_backup.py::test_whatever_can_be_committed",
    "conformance/test_store_commits.py::test_many_small_labels",
    "conformance/test_store_equivalence.py",
    "conformance/test_stream_storm.py",
    "conformance/test_worker_lifecycle.py",
    "unit/test_api_doc.py::test_the_example_is_understood",
    "unit/test_api_malformed.py::test_a_body_of_another_media_type",
    "unit/test_api_malformed.py::test_a_body_that_is_no_json",
    "unit/test_api_manners.py",
    "unit/test_api_mass_assignment.py",
    "unit/test_api_roles.py",
    "unit/test_backup_command.py::test_a_backup_is_taken_beside",
    "unit/test_cli_apply.py::test_one_broken_document_among_a_thousand",
    "unit/test_cli_documents.py::test_what_is_written_is_read_as_it_was",
    "unit/test_cli_render.py",
    "unit/test_cml_client_answers.py::test_an_answer_of_the_wrong_form",
    "unit/test_cml_client_answers.py::test_no_bad_answer_looks_like_an_answer",
    "unit/test_companions_walks.py",
    "unit/test_controller_cache.py::test_whatever_is_cut_and_down",
    "unit/test_controller_election.py::test_candidates_that_die_sleep",
    "unit/test_desk.py::test_lesson_20_",
    "unit/test_pool_demand.py::test_timelines_that_are_changed",
    "unit/test_pool_follower.py::test_lesson_3_",
    "unit/test_ports.py::test_every_name_gets",
    "unit/test_scheduler_plan.py::test_five_hundred",
    "unit/test_scheduler_waiting.py::test_lesson_3_",
    "unit/test_seats_slots.py::test_a_group_gets_the_same",
    "unit/test_seats_slots.py::test_under_limits",
    "unit/test_session_deciders.py::test_every_move",
    "unit/test_ec2_bad_answers.py::test_30_",
    "unit/test_monitor.py::test_every_worker_is_measured_once",
    "unit/test_plane_applying.py::test_a_thousand_documents",
    "unit/test_seats.py::test_a_group_is_promised_as_a_whole",
    "unit/test_seats.py::test_lesson_20_five_hundred",
    "unit/test_seats_horizon.py::test_claims_are_seated_anew",
    "unit/test_up.py::test_the_command_line_works_at_once",
    "unit/test_validation.py",
    "unit/test_worker_controller.py",
    "unit/test_worker_drain.py",
    "unit/test_worker_failures.py",
    "unit/test_worker_health.py",
    "unit/test_worker_idling.py",
    "unit/test_worker_licensing.py::test_a_deleted_worker",
    "unit/test_worker_licensing.py::test_a_licence_server_that_never_answers",
    "unit/test_worker_licensing.py::test_a_silent_machine",
    "unit/test_worker_silence.py",
)
"""Tests that walk the same lines thousands of times, or lines that others walk: measuring triples their time."""
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
"""Which process of the run this is; nothing in the one that deals out the tests, and where there is only one."""
_write = steps.record(FOLDER, WORKER or "main")
_skipped: list[str] = []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Measure no further in the process that only deals out the tests."""
    unmeasure()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart() -> None:
    """Let each process of the run measure itself once.

    Coverage has begun twice here by now: as in every process that a measured one starts, and by pytest-cov, which takes
    this one for the first of the run. Where its third beginning, the one that counts, is paused, these would go on.
    """
    if WORKER:
        unmeasure()


def unmeasure() -> None:
    while begun := Coverage.current():
        begun.stop()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Measure in one process only what loading the tests runs: it is the same in each."""
    measuring = Coverage.current() if WORKER not in {"", "gw0"} else None
    if measuring is None:
        return (yield)
    measuring.stop()
    try:
        return (yield)
    finally:
        measuring.start()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(UNMEASURED):
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(autouse=True)
def _unmeasured_processes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what an unmeasured test starts be unmeasured too."""
    if request.node.get_closest_marker("no_cover"):
        monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)
        monkeypatch.delenv("COVERAGE_PROCESS_START", raising=False)


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
        left = steps.untaken(MACHINES, steps.collected(FOLDER))
        if left:
            fail(session, "steps that no test took", [" ".join(step) for step in left])


def fail(session: pytest.Session, what: str, lines: list[str]) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    assert reporter is not None
    reporter.write_line(f"\n{what}:", red=True)
    for line in lines:
        reporter.write_line(f"  {line}", red=True)
    session.exitstatus = pytest.ExitCode.TESTS_FAILED
