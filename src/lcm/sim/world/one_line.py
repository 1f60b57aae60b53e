"""A scenario by the dice in one line, from which it is made again: `seed 7 hours 2 mishaps 12 quiet 4 crowded`.

`telling` writes it where a run went wrong; `make sim ONE='…'` plays it, and a file of `tests/simulation/seeds` keeps
it. What differs from one of the known worlds otherwise stands behind `with`, as JSON.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from lcm.settings.load import Settings
from lcm.sim.world.scenario import CAMPUS, CLASSROOM, CROWDED, Scenario

S = TypeVar("S", bound=msgspec.Struct)
WORLDS: Final[Mapping[str, Scenario]] = {"campus": CAMPUS, "classroom": CLASSROOM, "crowded": CROWDED}
_LINE: Final = re.compile(
    r"seed (?P<seed>\d+) hours (?P<hours>[\d.]+) mishaps (?P<mishaps>[\d.]+)"
    r"(?: processes (?P<processes>\d+))?(?: quiet (?P<quiet>[\d.]+))?(?: (?P<world>campus|classroom|crowded))?"
    r"(?P<client> client)?(?: with (?P<others>\{.*\}))?"
)
_SAID: Final = frozenset({"seed", "hours", "mishaps_an_hour", "processes", "quiet_hours", "face"})
"""Fields that have words of their own."""


def scenario_in(line: str) -> Scenario | None:
    """Read a line; None if it is none."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    world = WORLDS[found["world"] or "campus"]
    said = msgspec.structs.replace(
        world,
        seed=int(found["seed"]),
        hours=float(found["hours"]),
        mishaps_an_hour=float(found["mishaps"]),
        processes=int(found["processes"] or world.processes),
        quiet_hours=float(found["quiet"] or world.quiet_hours),
        face="client" if found["client"] else "direct",
    )
    return _changed(said, msgspec.json.decode(found["others"] or "{}", type=dict[str, Any]))


def line_of(scenario: Scenario) -> str:
    """Write a scenario, as what differs from the known world that is most like it."""
    differing = {name: _others(scenario, world) for name, world in WORLDS.items()}
    name = min(differing, key=lambda one: len(msgspec.json.encode(differing[one])))
    words = [
        f"seed {scenario.seed} hours {_number(scenario.hours)} mishaps {_number(scenario.mishaps_an_hour)}",
        f"processes {scenario.processes} quiet {_number(scenario.quiet_hours)} {name}",
        *(["client"] if scenario.face == "client" else []),
        *([f"with {msgspec.json.encode(differing[name]).decode()}"] if differing[name] else []),
    ]
    return " ".join(words)


def _others(scenario: Scenario, world: Scenario) -> dict[str, Any]:
    return {name: value for name, value in _difference(scenario, world).items() if name not in _SAID}


def _difference(one: msgspec.Struct, other: msgspec.Struct) -> dict[str, Any]:
    """Give the fields that differ; of settings those within them."""
    pairs = {name: (getattr(one, name), getattr(other, name)) for name in one.__struct_fields__}
    return {
        name: _difference(*pair) if isinstance(pair[0], Settings) else msgspec.to_builtins(pair[0])
        for name, pair in pairs.items()
        if pair[0] != pair[1]
    }


def _changed(one: S, others: dict[str, Any]) -> S:
    """Put values that were read over fields; settings are changed within."""
    types = {field.name: field.type for field in msgspec.structs.fields(one)}
    changes = {
        name: _changed(getattr(one, name), value) if types[name] is Settings else msgspec.convert(value, types[name])
        for name, value in others.items()
    }
    return msgspec.structs.replace(one, **changes)


def _number(number: float) -> str:
    short = f"{number:g}"
    return short if float(short) == number else repr(number)
