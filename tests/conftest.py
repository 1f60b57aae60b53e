"""What holds for the whole suite: CI skips nothing, and every step of a built controller is taken by some test."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import steps
from lcm.model.kinds import MACHINES

FOLDER = Path(".cache/steps")
UNMEASURED = (
    "simulation/",
    "crash/",
    "conformance/test_permit.py",
    "conformance/test_worker_lifecycle.py",
    "conformance/test_api_schema.py",
    "conformance/test_canary.py",
    "conformance/test_discovery",
    "conformance/test_plane_apply.py",
    "conformance/test_plane_callers.py",
    "conformance/test_plane_cuts.py",
    "conformance/test_plane_equivalence.py",
    "conformance/test_plane_ledgers.py",
    "conformance/test_plane_reports.py",
    "conformance/test_plane_watches.py",
    "conformance/test_store_equivalence.py",
    "conformance/test_stream_storm.py",
    "unit/test_api_roles.py",
    "unit/test_cli_render.py",
    "unit/test_companions_walks.py",
    "unit/test_validation.py",
    "unit/test_worker_controller.py",
    "unit/test_worker_drain.py",
    "unit/test_worker_failures.py",
    "unit/test_worker_health.py",
    "unit/test_worker_idling.py",
    "unit/test_worker_silence.py",
)
"""Tests that walk the same lines thousands of times: measuring coverage would more than double their time."""
_write = steps.record(FOLDER, os.environ.get("PYTEST_XDIST_WORKER", "main"))
_skipped: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if str(item.path.relative_to(here)).startswith(UNMEASURED):
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
    if "PYTEST_XDIST_WORKER" in os.environ:
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
