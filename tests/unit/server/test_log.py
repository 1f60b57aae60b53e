"""The log in a file: of limited size, and no reason to stop."""

from pathlib import Path

import pytest

from lcm.cli.server.status_line import FleetCounts, status_text
from lcm.sim.time.loop import START
from lcm.system.log import LogFile


def test_a_full_log_is_put_aside_and_the_one_before_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lcm.log"
    log = LogFile(path, most_bytes=10)
    for line in ("first line\n", "second line\n", "third line\n"):
        log.write(line)
    log.close()
    assert path.read_text() == "third line\n"
    assert (path.parent / "lcm.log.1").read_text() == "second line\n"
    assert len(list(path.parent.iterdir())) == 2


def test_a_log_goes_on_where_it_ended(tmp_path: Path) -> None:
    for line in ("one\n", "two\n"):
        log = LogFile(tmp_path / "lcm.log")
        log.write(line)
        log.close()
    assert (tmp_path / "lcm.log").read_text() == "one\ntwo\n"


def test_a_log_that_cannot_be_written_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    LogFile(tmp_path / "file" / "lcm.log").write("a line\n")
    assert capsys.readouterr().err == "a line\n"


def test_the_status_line_fits_80_columns() -> None:
    text = status_text(FleetCounts(120, 118, 4000, 1200, 1), START)
    assert text.endswith("118 of 120 workers ready, 1200 of 4000 sessions running, 1 open alert")
    assert len(text) < 80
