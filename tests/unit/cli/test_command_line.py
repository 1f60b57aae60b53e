"""`lcm` itself, before any command runs."""

import re
from pathlib import Path

from harness.commands import lcm
from lcm.system.build import build_name


def test_the_version_is_printed(tmp_path: Path) -> None:
    assert lcm(tmp_path, "version").stdout.strip() == build_name()
    assert re.fullmatch(r"[0-9.]+\+[0-9a-f]{12}", build_name()), "a working copy names its commit"
