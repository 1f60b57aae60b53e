"""A scenario as text: what happens when, one line each, and below `---` the expected result, compared exactly.

    # Comments and empty lines are free.
    processes 2
    at 08:05 book ccna-basics at 09:00 for 1h as ada
    at 08:40 kill process leading scheduler
    expect ada RUNNING by 09:00
    until 11:00

Times are those of one Monday, which begins at 08:00. Or a single line, as `sim.world.one_line` reads it, for a random
run of which only `no violation` is expected: this is how seeds are kept that have failed once. Used by tests and by
`python -m lcm.sim.world FILE`; `sim.world.script_deeds` has what a line may say.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from lcm.sim.time.loop import run
from lcm.sim.world.scenario import MONDAY, Scenario
from lcm.sim.world.world import capture_logs
from world.one_line import parse_scenario
from world.playing import play
from world.scenarios import CLASSROOM
from world.script_actions import SCRIPT_ACTIONS, ScriptContext, TracedWorld
from world.story import describe_outcome

CUT: Final = "---\n"
NOTHING_WRONG: Final = "no violation"
_CLOCK: Final = r"(\d\d):(\d\d)"
_AT: Final = re.compile(rf"at {_CLOCK} (.+)")
_EXPECT: Final = re.compile(rf"expect (\S+) ([A-Z]+) by {_CLOCK}")
_UNTIL: Final = re.compile(rf"until {_CLOCK}")
_SET: Final = re.compile(r"(processes|seed|seats) (\d+)")


@dataclass(frozen=True, slots=True)
class ScriptEntry:
    """Something that happens at a moment."""

    at: datetime
    text: str


@dataclass(frozen=True)
class Script:
    """A scenario that was read, what happens in it, and the expected result."""

    scenario: Scenario
    entries: Sequence[ScriptEntry] = ()
    by_dice: bool = False
    expected: str = ""


def read_script(text: str) -> Script:
    """Read a script. A line that is not understood is refused with its number."""
    head, _, expected = text.partition(CUT)
    lines = [(number, line.split("#")[0].strip()) for number, line in enumerate(head.splitlines(), 1)]
    said = [(number, line) for number, line in lines if line]
    if len(said) == 1 and (by_dice := parse_scenario(said[0][1])) is not None:
        return Script(by_dice, by_dice=True, expected=expected)
    scenario = msgspec.structs.replace(CLASSROOM, sessions_a_day=0, bystanders=False)
    entries: list[ScriptEntry] = []
    for number, line in said:
        if found := _SET.fullmatch(line):
            scenario = _set_option(scenario, found[1], int(found[2]))
        elif found := _UNTIL.fullmatch(line):
            length = _moment(found[1], found[2]) - scenario.start
            scenario = msgspec.structs.replace(scenario, hours=length / timedelta(hours=1), quiet_hours=0)
        elif found := _AT.fullmatch(line):
            entries.append(ScriptEntry(_moment(found[1], found[2]), found[3]))
        elif found := _EXPECT.fullmatch(line):
            entries.append(ScriptEntry(_moment(found[3], found[4]), f"expect {found[1]} {found[2]}"))
        else:
            raise ValueError(f"line {number} says nothing known: {line}")
    return Script(scenario, sorted(entries, key=lambda one: one.at), expected=expected)


def run_script(script: Script) -> str:
    """Play a script, and return what happened as text."""
    if script.by_dice:
        return (describe_outcome(play(script.scenario)) or NOTHING_WRONG) + "\n"

    async def life() -> str:
        world = TracedWorld(script.scenario)
        await world.prepare()
        stage = ScriptContext(world)
        for entry in script.entries:
            await world.pass_time(entry.at - world.clock.now())
            await _run_entry(stage, entry.text)
        await world.pass_time(script.scenario.end - world.clock.now())
        world.write_new_lines()
        return "\n".join([*world.lines, *(f"! {one.rule}: {one.text}" for one in world.witness.violations), ""])

    with capture_logs(lambda _: None):
        return run(life, start=script.scenario.start)


def run_file(path: Path, *, rewrite: bool = False) -> tuple[str, str]:
    """Play a file; return the expected and the actual text. With `rewrite`, the actual becomes the expected one."""
    text = path.read_text()
    script = read_script(text)
    told = run_script(script)
    if rewrite and told != script.expected and "\n!" not in f"\n{told}":
        path.write_text(text.partition(CUT)[0] + CUT + told)
        return told, told
    return script.expected, told


async def _run_entry(stage: ScriptContext, text: str) -> None:
    for pattern, deed in SCRIPT_ACTIONS:
        if found := pattern.fullmatch(text):
            await deed(stage, *found.groups())
            return
    raise ValueError(f"nobody knows how to do this: {text}")


def _set_option(scenario: Scenario, what: str, number: int) -> Scenario:
    if what == "seats":
        pools = tuple(msgspec.structs.replace(pool, most=number) for pool in scenario.pools)
        return msgspec.structs.replace(scenario, pools=pools)
    return msgspec.structs.replace(scenario, **{what: number})


def _moment(hour: str, minute: str) -> datetime:
    return MONDAY + timedelta(hours=int(hour), minutes=int(minute))
