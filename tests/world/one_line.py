"""A random scenario as one line, from which it can be made again: `seed 7 hours 2 mishaps 12 quiet 4 crowded`.

`world.story` writes it when a run went wrong; `make sim ONE='…'` plays it, and a file in
`tests/simulation/seeds` keeps it. Other differences from one of the known worlds follow `with`, as JSON.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from lcm.settings.load import Settings
from lcm.sim.world.scenario import Scenario
from world.scenarios import CAMPUS, CLASSROOM, CROWDED, draw_campus

S = TypeVar("S", bound=msgspec.Struct)
WORLDS: Final[Mapping[str, Callable[[int], Scenario]]] = {
    "campus": lambda _: CAMPUS,
    "classroom": lambda _: CLASSROOM,
    "crowded": lambda _: CROWDED,
    "drawn": draw_campus,
}
"""The known worlds, by the seed: the last one is different with each."""
_LINE: Final = re.compile(
    r"seed (?P<seed>\d+) hours (?P<hours>[\d.]+) mishaps (?P<mishaps>[\d.]+)"
    r"(?: processes (?P<processes>\d+))?(?: quiet (?P<quiet>[\d.]+))?(?: (?P<world>campus|classroom|crowded|drawn))?"
    r"(?P<client> client)?(?: with (?P<others>\{.*\}))?"
)
_WORDED_FIELDS: Final = frozenset({"seed", "hours", "mishaps_an_hour", "processes", "quiet_hours", "face"})
"""Fields that have words of their own in the line."""


def parse_scenario(line: str) -> Scenario | None:
    """Read a line; None if it is no scenario."""
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    world = WORLDS[found["world"] or "campus"](int(found["seed"]))
    said = msgspec.structs.replace(
        world,
        seed=int(found["seed"]),
        hours=float(found["hours"]),
        mishaps_an_hour=float(found["mishaps"]),
        processes=int(found["processes"] or world.processes),
        quiet_hours=float(found["quiet"] or world.quiet_hours),
        face="client" if found["client"] else "direct",
    )
    return _with_fields(said, msgspec.json.decode(found["others"] or "{}", type=dict[str, Any]))


def format_scenario(scenario: Scenario) -> str:
    """Return a scenario as a line: what differs from the known world that is most like it."""
    differing = {name: _other_fields(scenario, world(scenario.seed)) for name, world in WORLDS.items()}
    name = min(differing, key=lambda one: len(msgspec.json.encode(differing[one])))
    words = [
        f"seed {scenario.seed} hours {_format_number(scenario.hours)}",
        f"mishaps {_format_number(scenario.mishaps_an_hour)}",
        f"processes {scenario.processes} quiet {_format_number(scenario.quiet_hours)} {name}",
        *(["client"] if scenario.face == "client" else []),
        *([f"with {msgspec.json.encode(differing[name]).decode()}"] if differing[name] else []),
    ]
    return " ".join(words)


def _other_fields(scenario: Scenario, world: Scenario) -> dict[str, Any]:
    return {name: value for name, value in _difference(scenario, world).items() if name not in _WORDED_FIELDS}


def _difference(one: msgspec.Struct, other: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that differ; for settings, those within them."""
    pairs = {name: (getattr(one, name), getattr(other, name)) for name in one.__struct_fields__}
    return {
        name: _difference(*pair) if isinstance(pair[0], Settings) else msgspec.to_builtins(pair[0])
        for name, pair in pairs.items()
        if pair[0] != pair[1]
    }


def _with_fields(one: S, others: dict[str, Any]) -> S:
    """Replace fields by values that were read; settings are changed within."""
    types = {field.name: field.type for field in msgspec.structs.fields(one)}
    changes = {
        name: _with_fields(getattr(one, name), value)
        if types[name] is Settings
        else msgspec.convert(value, types[name])
        for name, value in others.items()
    }
    return msgspec.structs.replace(one, **changes)


def _format_number(number: float) -> str:
    short = f"{number:g}"
    return short if float(short) == number else repr(number)
