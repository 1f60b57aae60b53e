"""What a line of a script may say, and what it does."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from lcm.control.delivery.events import phase_of
from lcm.control.plane.protocol import Extend, Ref, Terminate
from lcm.model.access.identity import Caller, Role
from lcm.model.base.errors import LcmError
from lcm.model.base.resource import Metadata
from lcm.model.kinds.session import LabletSession, LabletSessionSpec
from lcm.model.kinds.worker import LabWorker
from lcm.sim.time.faults import FaultKind, FaultPeriod
from lcm.sim.world.process import Process
from lcm.sim.world.scenario import MONDAY, Scenario
from lcm.sim.world.world import Violation
from lcm.store.base import Change
from world.checked import CheckedWorld
from world.people.person import Person
from world.scenarios import VERSION


@dataclass
class ScriptContext:
    """What the lines of a script act on: a world, and the sessions of each person."""

    world: "TracedWorld"
    names: dict[str, list[str]] = field(default_factory=dict)
    """The names of sessions, by who booked them."""


class TracedWorld(CheckedWorld):
    """A world that writes down, for people to read, what happens and how sessions and workers change."""

    def __init__(self, scenario: Scenario) -> None:
        self.lines: list[str] = []
        self.phases: dict[str, list[str]] = {}
        """The phases that each session has been in, by its name."""
        self._lines_written = 0
        super().__init__(scenario)

    def write_new_lines(self) -> None:
        """Write down what was logged since the last commit."""
        told = self.witness.log[self._lines_written :]
        self._lines_written += len(told)
        self.lines += [f"{line.at[3:8]} {line.text}" for line in told]

    def _on_commit(self, revision: int, changes: Sequence[Change]) -> None:
        objects = self.witness.seen.objects
        before = {change.key: objects.get(change.key) for change in changes}
        super()._on_commit(revision, changes)
        self.write_new_lines()
        for key, old in before.items():
            new = objects.get(key)
            if isinstance(new, LabletSession | LabWorker) and (old is None or phase_of(old) != phase_of(new)):
                name, phase = new.metadata.name, str(phase_of(new))
                self.lines.append(f"{self.clock.now():%H:%M} {name} {phase}")
                self.phases.setdefault(name, []).append(phase)
            elif new is None and isinstance(old, LabletSession | LabWorker):
                self.lines.append(f"{self.clock.now():%H:%M} {old.metadata.name} is gone")


UNMET: Final = "what a scenario expects"
ScriptAction = Callable[..., Coroutine[Any, Any, None]]
_SPAN: Final = r"(\d+)(s|m|h)"
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours"}
_EFFECTS: Final = {"launch": "ensure", "import": "ensure", "start": "start", "remove": "remove"}


async def book(stage: ScriptContext, *said: str) -> None:
    """Book a lab, or several, for a slot or for now."""
    lab, times, hour, minute, number, unit, who = said
    span = _span(number, unit)
    names = [f"{who}-{n}" for n in range(1, int(times) + 1)] if times else [who]
    for name in names:
        wish = LabletSessionSpec(definition=f"{lab}:{VERSION}", duration_minutes=int(span / timedelta(minutes=1)))
        if hour:
            start = MONDAY + timedelta(hours=int(hour), minutes=int(minute))
            wish = LabletSessionSpec(definition=f"{lab}:{VERSION}", timeslot_start=start, timeslot_end=start + span)
        stage.names.setdefault(who, []).append(name)
        session = LabletSession(metadata=Metadata(name=name), spec=wish)
        stage.world.begin(_request(stage, who, f"book {name}", lambda plane, one=session: plane.create(one)))
        await asyncio.sleep(1)


async def cancel(stage: ScriptContext, who: str) -> None:
    """End everything that somebody booked."""
    for name in stage.names[who]:
        ref = Ref(LabletSession, name)
        await _request(stage, who, f"cancel {name}", lambda plane, ref=ref: plane.act(ref, Terminate()))


async def extend(stage: ScriptContext, who: str, number: str, unit: str) -> None:
    """Extend somebody's sessions."""
    minutes = int(_span(number, unit) / timedelta(minutes=1))
    for name in stage.names[who]:
        ref = Ref(LabletSession, name)
        await _request(stage, who, f"extend {name}", lambda plane, ref=ref: plane.act(ref, Extend(minutes=minutes)))


async def kill(stage: ScriptContext, lease: str) -> None:
    """Kill the process that holds a lease."""
    process = _leader(stage, lease)
    process.host.kill()
    stage.world.witness.tell(f"{process.name}, leading {lease}, is killed")


async def kill_all(stage: ScriptContext) -> None:
    """Kill every process."""
    for process in stage.world.alive:
        process.host.kill()
    stage.world.witness.tell("every process is killed")


async def boot(stage: ScriptContext) -> None:
    """Start as many processes as there should be."""
    while len(stage.world.alive) < stage.world.scenario.processes:
        stage.world.witness.tell(f"{stage.world.boot().name} starts")


async def pause(stage: ScriptContext, lease: str, number: str, unit: str) -> None:
    """Pause the process that holds a lease for a while."""
    process = _leader(stage, lease)
    stage.world.witness.tell(f"{process.name}, leading {lease}, stands still")
    process.host.pause()
    asyncio.get_running_loop().call_later(_span(number, unit).total_seconds(), process.host.resume)


async def die_over(stage: ScriptContext, lease: str, when: str, verb: str) -> None:
    """Kill the process that holds a lease right before, or right after, its next effect of a kind on the outside."""
    process = _leader(stage, lease)
    spells = stage.world.stage.cloud.faults.spells if verb == "launch" else stage.world.stage.hosts.spells
    ill = FaultKind.DEADLY_BEFORE if when == "before" else FaultKind.DEADLY_AFTER

    async def wait() -> None:
        with spells.inject(FaultPeriod(ill, host=process.name, verbs=frozenset({_EFFECTS[verb]}))):
            await process.host.until_dead()
        stage.world.witness.tell(f"{process.name} died {when} its {verb}")

    stage.world.begin(wait())


async def lose_machine(stage: ScriptContext, who: str) -> None:
    """Make the cloud lose the machine that somebody's lab is on."""
    account = stage.world.stage.cloud.account
    for name in stage.names[who]:
        session = next(one for one in stage.world.witness.seen.live_sessions() if one.metadata.name == name)
        worker = stage.world.witness.seen.workers[session.status.worker_id or ""]
        stage.world.witness.tell(f"the machine of {worker.metadata.name} dies")
        account.die(worker.spec.aws.region, worker.status.ec2.instance_id)


async def lose_lab(stage: ScriptContext, who: str) -> None:
    """Make somebody's lab vanish from its machine."""
    for name in stage.names[who]:
        for host in stage.world.stage.fleet.running_machines():
            left = [lab for lab in host.cml.labs if f"/{name} [" not in lab.title]
            if len(left) < len(host.cml.labs):
                stage.world.witness.tell(f"the lab of {name} vanishes")
                host.cml.labs.restore_labs(left)


async def lose_answer(stage: ScriptContext, verb: str) -> None:
    """Make the cloud carry out the next call of a kind without answering it."""
    stage.world.witness.tell(f"the cloud will not answer the next {verb}")
    stage.world.stage.cloud.lose_answer_next(_EFFECTS[verb])


async def throttle(stage: ScriptContext, number: str, unit: str) -> None:
    """Make the cloud refuse all calls for a while."""
    stage.world.witness.tell("the cloud wants fewer calls")
    stage.world.stage.cloud.faults.throttle(stage.world.clock.now() + _span(number, unit))


async def expect(stage: ScriptContext, who: str, phase: str) -> None:
    """Check that all sessions of somebody have been in a phase by now."""
    world = stage.world
    missing = [name for name in stage.names[who] if phase not in world.phases.get(name, ())]
    if missing:
        text = f"{', '.join(missing)} {phase} by {world.clock.now():%H:%M}"
        world.witness.add_violations([Violation(UNMET, text, tuple(missing))])


async def _request(stage: ScriptContext, who: str, what: str, question: Any) -> None:
    person = Person(stage.world, who, Role.USER)
    caller = Caller(name=who, role=Role.USER)
    try:
        await person.ask(question, caller)
    except LcmError as error:
        stage.world.witness.tell(f"{who} wants to {what}: {type(error).__name__} {error}")
    else:
        stage.world.witness.tell(f"{who} wants to {what}: done")


def _leader(stage: ScriptContext, lease: str) -> Process:
    holder = stage.world.stage.store.holder(lease)
    return next(one for one in stage.world.alive if one.name == holder)


def _span(number: str, unit: str) -> timedelta:
    return timedelta(**{_UNITS[unit]: int(number)})


def _action(pattern: str, deed: ScriptAction) -> tuple[re.Pattern[str], ScriptAction]:
    return re.compile(pattern), deed


SCRIPT_ACTIONS: Final = (
    _action(rf"book (\S+)(?: x(\d+))?(?: at (\d\d):(\d\d))? for {_SPAN} as (\S+)", book),
    _action(r"cancel (\S+)", cancel),
    _action(rf"extend (\S+) by {_SPAN}", extend),
    _action(r"kill process leading (\S+)", kill),
    _action(r"kill every process", kill_all),
    _action(r"start processes", boot),
    _action(rf"pause process leading (\S+) for {_SPAN}", pause),
    _action(r"process leading (\S+) dies (before|after) its next (launch|import|start|remove)", die_over),
    _action(r"the cloud loses the machine of (\S+)", lose_machine),
    _action(r"the lab of (\S+) vanishes", lose_lab),
    _action(r"the answer to the next (launch) is lost", lose_answer),
    _action(rf"the cloud is throttled for {_SPAN}", throttle),
    _action(r"expect (\S+) ([A-Z]+)", expect),
)
"""What a line may say after its time, and what it does."""
