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
from typing import Any, Final

import msgspec

from lcm.model.base.errors import Fault, Invalid
from lcm.sim.plan.compare import Heard, Progress, plan
from lcm.sim.plan.page import page_of
from lcm.sim.plan.reading import Live, combined, stock_of
from lcm.sim.plan.reading_yaml import read_yaml
from lcm.sim.plan.results import Comparison, summary
from lcm.sim.plan.timetable import Timetable
from lcm.sim.plan.variant import variants

_MOST_FAULTS = 60


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody wants planned. `timetable` is JSON of the form that the YAML has."""

    timetable: dict[str, Any]
    title: str = "plan"
    compare: tuple[str, ...] = ()
    smallest: bool = False
    faults: float = 0.0
    seed: int = 1
    cores: int | None = None
    html: bool = False
    live: Live | None = None


def asked(request: Request) -> Timetable:
    """Read the timetable of a request; Invalid with every fault, each with its path."""
    text = msgspec.json.encode(request.timetable).decode()
    own, rows = read_yaml(text, lines=False)
    return combined((own, *([stock_of(request.live)] if request.live else [])), rows)


def answer(request: Request, heard: Heard = lambda _: None) -> Comparison:
    """Plan what was asked for."""
    if not 0 <= request.faults <= _MOST_FAULTS:
        raise Invalid(Fault("faults", f"{request.faults:g} an hour", f"use a number from 0 to {_MOST_FAULTS}"))
    timetable = asked(request)
    wanted = variants(request.compare, faults=request.faults, seed=request.seed)
    return plan(request.title, timetable, wanted, search=request.smallest, cores=request.cores, heard=heard)


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
