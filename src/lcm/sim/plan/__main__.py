"""`python -m lcm.sim.plan`: a plan as a job. A request as JSON comes in, and lines of JSON go out.

Lines of the form `{"progress": {"share": 0.4, "done": 1, "asked": 4, "doing": "…", "seconds_left": 12.5}}` come while
it works, and one line at its end: `{"result": …, "html": "…"}` and exit code 0, or `{"faults": [{"path", "problem",
"remedy"}]}` and exit code 2. SIGTERM ends it, and every process that it has started; so does the end of whoever
started it.
"""

import os
import signal
import sys
import threading
from types import FrameType
from typing import Final

import msgspec

from lcm.model.errors import Invalid
from lcm.sim.plan.page import page_of
from lcm.sim.plan.planning import Progress
from lcm.sim.plan.request import Request, answer
from lcm.sim.plan.summary import summary

_LOOK_SECONDS: Final = 1.0


def main() -> int:
    """Answer the request on standard input."""
    signal.signal(signal.SIGTERM, _stop)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
        comparison = answer(request, _tell)
    except msgspec.MsgspecError as error:
        _write({"faults": [{"path": "request", "problem": str(error), "remedy": "see docs/planning.md"}]})
        return 2
    except Invalid as error:
        faults = [{"path": one.path, "problem": one.problem, "remedy": one.remedy} for one in error.faults]
        _write({"faults": faults})
        return 2
    _write({"result": summary(comparison), **({"html": page_of(comparison)} if request.html else {})})
    return 0


def _tell(progress: Progress) -> None:
    _write({"progress": progress})


def _write(value: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def _end_with(parent: int) -> None:
    """End with the process that asked: nobody else would read the answer, or end a plan that takes too long."""
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(_LOOK_SECONDS)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)  # those that it has started are of its group
    os._exit(1)


def _stop(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
