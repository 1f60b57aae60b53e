"""What holds for every process that computes for another one: what it inherits, and that it ends with that one.

Used by `compose` where such processes are started, and in those processes.
"""

import os
import signal
import threading
from collections.abc import Mapping
from typing import Final

_INHERITED_VARIABLES: Final = (
    "PATH",
    "PYTHONPATH",
    "PYTHONHOME",
    "LD_LIBRARY_PATH",
    "TMPDIR",
    "TZ",
    "TZDIR",
    "LANG",
    "LC_ALL",
)
_PARENT_CHECK_SECONDS: Final = 1.0


def child_environment(environment: Mapping[str, str] = os.environ) -> Mapping[str, str]:
    """Return the only environment variables that a child needs; the others hold secrets, which it must not have."""
    return {name: environment[name] for name in _INHERITED_VARIABLES if name in environment}


def exit_with_parent() -> None:
    """End this process when its parent ends: nobody else would read its answer, or end it."""
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()


def _watch_parent(parent: int) -> None:
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(_PARENT_CHECK_SECONDS)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)  # its child processes are in its group
    os._exit(1)
