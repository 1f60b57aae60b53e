"""Which steps of the state machines the tests took, and which a finished controller left untaken.

Every process of the test run notes its steps in a folder; at the end the whole is held against the tables.
"""

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from lcm.model.base import machine as machines
from lcm.model.base.machine import StateMachine

Taken = tuple[str, str, str, str]
"""Machine, source, target, by."""

BOOKING = "booking"
"""The part of the control plane that promises reservations, or refuses them."""

MODULES = {
    BOOKING: "lcm.control.booking",
    machines.CONTROL_PLANE: "lcm.control.plane.local",
    machines.SCHEDULER: "lcm.controllers.scheduler",
    machines.WORKER_CONTROLLER: "lcm.controllers.worker",
    machines.LABLET_CONTROLLER: "lcm.controllers.session",
    machines.POOL_CONTROLLER: "lcm.controllers.pool",
}


PROMISES = {("Reservation", "PENDING", target, machines.CONTROL_PLANE) for target in ("PROMISED", "FAILED")}


def part(step: Taken) -> str:
    """Name the part that takes a step."""
    return BOOKING if step in PROMISES else step[3]


def exists(part: str) -> bool:
    """Tell whether a part that takes steps has been built."""
    try:
        return importlib.util.find_spec(MODULES[part]) is not None
    except ModuleNotFoundError:
        return False


def untaken(
    tables: Iterable[StateMachine[Any]], taken: set[Taken], *, built: Callable[[str], bool] = exists
) -> list[Taken]:
    """List the steps of built controllers that no test took."""
    rows = [(table.name, str(row.source), str(row.target), row.by) for table in tables for row in table.steps]
    return [step for step in rows if built(part(step)) and step not in taken]


def record(folder: Path, worker: str) -> Callable[[], None]:
    """Note every step that is taken from now on; the result writes the notes down."""
    taken: set[Taken] = set()
    take = StateMachine.check_step

    def noted(self: StateMachine[Any], source: Any, target: Any, **rest: Any) -> Any:
        step = take(self, source, target, **rest)
        taken.add((self.name, str(source), str(target), step.by))
        return step

    StateMachine.check_step = noted  # type: ignore[method-assign]

    def write() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / worker).write_text("".join("\t".join(step) + "\n" for step in sorted(taken)))

    return write


def collected(folder: Path) -> set[Taken]:
    """Read what all processes noted."""
    lines = [line for file in folder.glob("*") for line in file.read_text().splitlines()]
    return {(machine, source, target, by) for machine, source, target, by in (line.split("\t") for line in lines)}
