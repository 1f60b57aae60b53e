"""`python -m lcm.sim.plan`: a plan as a job. A request as JSON comes in, and lines of JSON go out.

Lines of the form `{"progress": {"share": 0.4, "done": 1, "asked": 4, "doing": "…", "seconds_left": 12.5}}` are
written while it works, and one line at its end: `{"result": …, "html": "…"}` and exit code 0, or `{"faults":
[{"path", "problem", "remedy"}]}` and exit code 2. SIGTERM ends it and every process that it has started; so does the
end of its parent process. PlanRequest is the request: a timetable, what to compare, and the objects of a live
system.
"""

import signal
import sys
from types import FrameType
from typing import Any

import msgspec

from lcm.model.base.errors import Fault, Invalid
from lcm.sim.plan.fleet_search import OnProgress, PlanProgress, plan
from lcm.sim.plan.page import page_of, read_look
from lcm.sim.plan.reading import LiveSystem, combine, inventory_of, read_timetable
from lcm.sim.plan.reading_yaml import read_yaml
from lcm.sim.plan.results import Comparison
from lcm.sim.plan.summary import summary
from lcm.sim.plan.timetable import Timetable
from lcm.sim.plan.variant import read_variants
from lcm.system.child_process import exit_with_parent

_MOST_FAULTS = 60


class TimetableFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A timetable as a file; the ending of its name says which form it has."""

    name: str
    text: str


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A plan as it is requested. `timetable` is JSON of the same form as the YAML; a `file` is read instead of it."""

    timetable: dict[str, Any] = {}
    file: TimetableFile | None = None
    title: str = "plan"
    compare: tuple[str, ...] = ()
    smallest: bool = False
    faults: float = 0.0
    seed: int = 1
    cores: int | None = None
    html: bool = False
    live: LiveSystem | None = None


def timetable_of(request: PlanRequest) -> Timetable:
    """Return the timetable of a request. Raises Invalid with every fault, each with its path."""
    live = [inventory_of(request.live)] if request.live else []
    if request.file:
        return read_timetable(request.file.name, request.file.text.encode(), live)
    text = msgspec.json.encode(request.timetable).decode()
    own, rows = read_yaml(text, lines=False)
    return combine((own, *live), rows)


def run_request(request: PlanRequest, heard: OnProgress = lambda _: None) -> Comparison:
    """Run the plan that was requested."""
    if not 0 <= request.faults <= _MOST_FAULTS:
        raise Invalid(Fault("faults", f"{request.faults:g} an hour", f"use a number from 0 to {_MOST_FAULTS}"))
    timetable = timetable_of(request)
    wanted = read_variants(request.compare, faults=request.faults, seed=request.seed)
    return plan(request.title, timetable, wanted, search=request.smallest, cores=request.cores, heard=heard)


def main() -> int:
    """Run the request on standard input, and write progress and result to standard output."""
    signal.signal(signal.SIGTERM, _exit_on_signal)
    exit_with_parent()
    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=PlanRequest)
        comparison = run_request(request, _write_progress)
    except msgspec.MsgspecError as error:
        _write_line({"faults": [{"path": "request", "problem": str(error), "remedy": "see docs/planning.md"}]})
        return 2
    except Invalid as error:
        faults = [{"path": one.path, "problem": one.problem, "remedy": one.remedy} for one in error.faults]
        _write_line({"faults": faults})
        return 2
    _write_line({"result": summary(comparison), **({"html": page_of(comparison, read_look())} if request.html else {})})
    return 0


def _write_progress(progress: PlanProgress) -> None:
    _write_line({"progress": progress})


def _write_line(value: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
    sys.stdout.buffer.flush()


def _exit_on_signal(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
