"""The programs under examples/ run and print what they promise."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_the_allocator_demo_survives_its_restart() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "allocator_demo.py"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "after a restart        CPU  62.5%   memory  50.0%   1 allocations" in done.stdout
    assert "insufficient resources: 2 CPU and 4096Mi wanted, 1 CPU and 3584Mi available" in done.stdout
    assert "nothing to release: unknown or already released" in done.stdout + done.stderr
