"""`lcm up` as a person runs it: a process, a folder, Ctrl-C, a kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "lcm.cli.main"]


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200", **environment},
    )


def read_until(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if word in line:
            return seen
    raise AssertionError(seen + (process.stderr.read() if process.stderr else ""))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_says_what_runs_and_stops_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with start("up", "--data", str(tmp_path / "new" / "data")) as process:
        told = read_until(process, "Ctrl-C")
        assert "0 objects" in told
        assert "32 of 32 CPU" in told
        process.send_signal(number)
        rest, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")
    assert "everything is on disk" in rest


def test_up_starts_again_after_a_kill_with_the_same_epoch(tmp_path: Path) -> None:
    epochs = []
    for _ in range(2):
        with start("up", LCM_DATA_DIR=str(tmp_path)) as process:
            told = read_until(process, "Ctrl-C")
            epochs.append(told.partition("epoch ")[2].split()[0])
            process.kill()
    assert epochs[0] == epochs[1]


def test_a_bad_variable_stops_the_start_and_is_named(tmp_path: Path) -> None:
    with start("up", "--data", str(tmp_path), TOTAL_CPU_CORES="lots", LOG_LEVEL="LOUD") as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "TOTAL_CPU_CORES" in errors
    assert "LOG_LEVEL" in errors
    assert "Traceback" not in errors


def test_a_file_that_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "lcm.db"
    file.write_bytes(b"my holiday photos" * 100)
    with start("up", "--data", str(tmp_path)) as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert str(file) in errors
    assert "Traceback" not in errors
    assert file.read_bytes() == b"my holiday photos" * 100


def test_the_version_is_printed() -> None:
    with start("version") as process:
        told, _ = process.communicate(timeout=20)
    assert told.strip() == "0.1.0"
