"""`lcm version`."""

import sys
from importlib import metadata


def version() -> None:
    """Print the version."""
    sys.stdout.write(f"{metadata.version('lablet-cloud-manager')}\n")
