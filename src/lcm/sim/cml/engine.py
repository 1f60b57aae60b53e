"""A simulated CML: one machine with labs, users, a licence, notices, and a clock that may run fast.

It has two interfaces: `direct` for simulations without a network, `rest` for any CML client. Nothing here waits or
ticks: every state follows from stored moments and the clock. A machine in a simulated cloud gets its power history
from there; one that stands alone has a power switch of its own.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from lcm.model.base.clock import Clock
from lcm.sim.cloud.effects import OnLabEffect, PowerHistory, PowerRun, ignore_effect
from lcm.sim.cml.definitions import NodeKind
from lcm.sim.cml.faults import CmlDown, CmlFull, CmlRefusal, HttpFaults, find_known
from lcm.sim.cml.labs import CmlCore, Labs
from lcm.sim.cml.licence import LicenceServer, Licensing, RegistrationAttempt
from lcm.sim.cml.pace import CmlPace, SpeedChange
from lcm.sim.cml.parts import ACTIVE, Node, NodeState, NodeTimeline, SimLab
from lcm.sim.cml.patty import PortMapping, map_ports
from lcm.sim.cml.rest.documents import Json, MaintenanceUpdate, NoticeCreate, NoticeUpdate
from lcm.sim.cml.stats import CmlMachine, MachineUse, MeasuredNodes, machine_use, measure_nodes
from lcm.sim.cml.telemetry import CmlTelemetry, TelemetryEvent
from lcm.sim.cml.topology import build_lab, read_topology
from lcm.sim.cml.users import ResourcePool, ResourcePools, User, Users, resource_usage
from lcm.sim.time.chance import Chance, Ids
from lcm.sim.time.faults import ActiveFaults


@dataclass(slots=True, eq=False)
class SystemNotice:
    """A message from an administrator to everybody."""

    id: str
    level: str
    label: str
    content: str
    enabled: bool
    acknowledged: dict[str, bool] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)


class SystemNotices:
    """All notices, and whether CML is in maintenance mode."""

    def __init__(self, core: CmlCore) -> None:
        self._core = core
        self.all: dict[str, SystemNotice] = {}
        self.maintenance = False
        self.maintenance_notice: str | None = None

    def get(self, ref: str) -> SystemNotice:
        """Return a notice; refuse an unknown one."""
        return find_known("System notice", self.all, ref)

    def add(self, wanted: NoticeCreate) -> SystemNotice:
        """Make a notice."""
        notice = SystemNotice(self._core.ids(), wanted.level, wanted.label, wanted.content, wanted.enabled)
        notice.groups = wanted.groups
        self.all[notice.id] = notice
        self._core.telemetry.record("notice_state_change")
        return notice

    def change(self, notice: SystemNotice, wanted: NoticeUpdate) -> SystemNotice:
        """Change a notice."""
        for name, value in wanted.given().items():
            setattr(notice, name, value)
        return notice

    def remove(self, notice: SystemNotice) -> None:
        """Remove a notice."""
        del self.all[notice.id]
        if self.maintenance_notice == notice.id:
            self.maintenance_notice = None

    def set_maintenance(self, wanted: MaintenanceUpdate) -> None:
        """Enter or leave maintenance mode, with a notice that says why."""
        if isinstance(wanted.maintenance_mode, bool):
            self.maintenance = wanted.maintenance_mode
        if wanted.notice is None or isinstance(wanted.notice, str):
            self.maintenance_notice = self.get(wanted.notice).id if wanted.notice else None
        self._core.telemetry.record("maintenance_state_change")

    def status(self) -> Json:
        """Return whether CML is in maintenance mode, and why."""
        notice = self.all.get(self.maintenance_notice or "")
        return {
            "maintenance_mode": self.maintenance,
            "notice": self.maintenance_notice,
            "resolved_notice": asdict(notice) if notice else None,
        }


_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class Cml:
    """One simulated machine with CML on it."""

    def __init__(
        self,
        clock: Clock,
        chance: Chance,
        *,
        speed: float = 1.0,
        machine: CmlMachine | None = None,
        username: str = "admin",
        password: str = "admin",  # noqa: S107  a simulator's
        licence_server: LicenceServer | None = None,
        on: bool = True,
        power: PowerHistory | None = None,
        on_effect: OnLabEffect = ignore_effect,
    ) -> None:
        self.machine = machine or CmlMachine()
        self.pace = CmlPace(clock, speed)
        self.telemetry = CmlTelemetry(self.pace)
        self._core = CmlCore(self.pace, Ids(chance.stream("ids")), chance.stream("boot"), self.telemetry, on_effect)
        self._labs = Labs(self._core, self._check_limits)
        self.users = Users(self._core, username, password)
        self.pools = ResourcePools(self._core.ids)
        self.notices = SystemNotices(self._core)
        self.licence_server = licence_server or LicenceServer()
        self.licence = Licensing(self._core, self.licence_server, self._core.ids())
        self.faults = HttpFaults()
        self.spells = ActiveFaults()
        """Faults in its answers, for callers of its direct interface."""
        self.ailments: list[str] = []
        """What its health check reports."""
        self._power = power
        self.ended_runs = 0
        """How many times its power has gone off, as far as it knows."""
        self._known_runs: Sequence[PowerRun] = ()
        self._measured: tuple[int, MeasuredNodes] | None = None
        """What its nodes use, and the number of the state in which they were measured."""
        self._steady_since = self._steady_until = _NEVER
        self._on_since: float | None = -self.machine.boot_seconds if on and power is None else None

    @property
    def node_kinds(self) -> dict[str, NodeKind]:
        """The node definitions that are installed, by their ids."""
        return self._labs.kinds

    def new_id(self) -> str:
        """Make an id."""
        return self._core.ids()

    @property
    def has_labs(self) -> bool:
        """Whether it has labs, running or not."""
        return bool(self._labs)

    @property
    def labs(self) -> Labs:
        self._apply_power()
        return self._labs

    @property
    def is_up(self) -> bool:
        self._apply_power()
        return self._on_since is not None and self.pace.age() - self._on_since >= self.machine.boot_seconds

    def check_up(self) -> None:
        """Raise Down unless CML is ready."""
        if not self.is_up:
            silent_until = self.machine.silent_seconds + (self._on_since or 0.0)
            on = self._on_since is not None
            raise CmlDown(listening=on and self.pace.age() >= silent_until, there=on or self._power is None)

    def power_on(self) -> None:
        """Switch the machine on; CML is ready a while later."""
        self._refuse_in_cloud()
        if self._on_since is None:
            self._on_since = self.pace.age()

    def power_off(self) -> None:
        """Switch the machine off: labs stay, their nodes stop, all tokens expire."""
        self._refuse_in_cloud()
        self._switch_off(self.pace.age())

    def restart(self) -> None:
        """Switch the machine off and on."""
        self.power_off()
        self.power_on()

    def import_lab(self, text: str | bytes, owner: User, title: str | None = None) -> tuple[SimLab, list[str]]:
        """Make a lab of a topology file; return it with warnings."""
        return build_lab(self.labs, self._core, read_topology(text), owner.id, title)

    def use(self) -> MachineUse:
        """Return what runs here uses of the machine now."""
        number, age = self.labs.state_number(), self.pace.age()
        if self._measured is None or self._measured[0] != number:
            self._measured = number, measure_nodes(self._labs.nodes(), age)
        return machine_use(self.machine, self._measured[1], age)

    def active_nodes(self) -> list[Node]:
        """Return the nodes that run or are about to."""
        age = self.pace.age()
        return [node for node in self.labs.nodes() if node.life.state(age) in ACTIVE]

    def pool_usage(self, pool: ResourcePool) -> dict[str, Any]:
        """Return what the users of a pool use now."""
        return resource_usage(node for node in self.active_nodes() if self.labs.get(node.lab_id).owner_id in pool.users)

    def patty_ports(self, protocol: str = "tcp") -> dict[int, PortMapping]:
        """Return the ports of one protocol that are open for nodes now."""
        return {one.outside: one for one in self.open_ports() if one.protocol == protocol}

    def open_ports(self) -> list[PortMapping]:
        """Return the ports of both protocols that are open for nodes now."""
        return list(map_ports(self.labs, self.pace.age()).values()) if self.is_up else []

    def _switch_off(self, age: float) -> None:
        self._on_since = None
        self._labs.power_off(age)
        self.users.expire_tokens()

    def _refuse_in_cloud(self) -> None:
        if self._power is not None:
            raise CmlRefusal(409, "The cloud that runs this machine switches it on and off.")

    def _apply_power(self) -> None:
        """Apply what the machine's power has done since the last look."""
        if self._power is None:
            return
        now, runs = self.pace.now(), self._power()
        if runs is self._known_runs and self._steady_since <= now < self._steady_until:
            return
        begun = [run for run in runs if run.on <= now]
        ended = [run.off for run in begun if run.off is not None and run.off <= now]
        for off in ended[self.ended_runs :]:
            self._switch_off(self.pace.age_at(off))
        self.ended_runs = len(ended)
        self._on_since = self.pace.age_at(begun[-1].on) if len(begun) > len(ended) else None
        moments = [moment for run in runs for moment in run if moment is not None and moment > now]
        self._known_runs, self._steady_since, self._steady_until = runs, now, min(moments, default=_NEVER)

    def _check_limits(self, nodes: Sequence[Node]) -> None:
        active = [node for node in self.active_nodes() if node not in nodes]
        wanted = sum(node.kind.needs_licence for node in [*active, *nodes])
        limit = self.licence.node_limit
        if wanted > limit and any(node.kind.needs_licence for node in nodes):
            raise CmlFull(f"Cannot start lab. Node license limit exceeded: {wanted} of {limit}.")
        for pool in self.pools.all.values():
            mine = [node for node in nodes if self.labs.get(node.lab_id).owner_id in pool.users]
            if mine:
                held = [node for node in active if self.labs.get(node.lab_id).owner_id in pool.users]
                self.pools.check_limits(pool, held, mine)


class CmlSnapshot(msgspec.Struct, frozen=True):
    """The state of a simulated CML, ready to be serialized."""

    turns: tuple[SpeedChange, ...]
    ended_runs: int
    udi: str
    product: str
    expansion: int
    attempt: RegistrationAttempt | None
    opt_in: bool | None
    events: tuple[TelemetryEvent, ...]
    labs: tuple[SimLab, ...]


def take_snapshot(cml: Cml) -> CmlSnapshot:
    """Return the present state of a CML."""
    licence = cml.licence
    labs = tuple(cml.labs)  # reading them applies what its power has done
    return CmlSnapshot(
        turns=tuple(cml.pace.turns),
        ended_runs=cml.ended_runs,
        udi=licence.udi,
        product=licence.product,
        expansion=licence.expansion,
        attempt=licence.attempt,
        opt_in=cml.telemetry.opt_in,
        events=tuple(cml.telemetry.events),
        labs=labs,
    )


def restore_snapshot(cml: Cml, known: CmlSnapshot) -> None:
    """Give a new CML the state of another one."""
    cml.pace.restore_turns(known.turns)
    cml.ended_runs = known.ended_runs
    cml.licence.udi, cml.licence.product = known.udi, known.product
    cml.licence.expansion, cml.licence.attempt = known.expansion, known.attempt
    cml.telemetry.opt_in = known.opt_in
    cml.telemetry.restore_events(known.events)
    for lab in known.labs:
        own = {one.id: one for node in lab.nodes.values() for one in node.interfaces}
        for link in lab.links.values():  # they refer to the nodes' own interfaces, not to decoded copies
            link.a, link.b = own[link.a.id], own[link.b.id]
    cml.labs.restore_labs(known.labs)


def encode_timeline(value: object) -> object:
    """Encode a type that msgspec does not know."""
    if isinstance(value, NodeTimeline):
        return value.changes
    raise NotImplementedError(type(value))


def decode_timeline(kind: type, value: Any) -> object:  # noqa: ANN401 - JSON of any shape
    """Decode what `encode_timeline` wrote."""
    if kind is NodeTimeline:
        return NodeTimeline.from_changes((age, NodeState(state)) for age, state in value)
    raise NotImplementedError(kind)
