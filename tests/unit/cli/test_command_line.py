"""`lcm` itself, before any command runs."""

from importlib.metadata import version
from pathlib import Path

from harness.commands import lcm


def test_the_version_is_printed(tmp_path: Path) -> None:
    assert lcm(tmp_path, "version").stdout.strip() == version("lablet-cloud-manager")
