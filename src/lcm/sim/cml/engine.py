"""A simulated CML: one machine with labs, users, a licence, and a clock that may run fast.

`direct` and `http` are its two faces: the first for simulations without a network, the second for any CML
client. Nothing here waits or ticks: every state follows from stored moments and the clock. A machine in a simulated
cloud tells by `power` when it was on; one that stands alone has a switch of its own.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import UNSET

from lcm.model.base.clock import Clock
from lcm.sim.cloud.effects import OnLab, Power, Run, unheard
from lcm.sim.cml.faults import Down, Faults, Full, Refusal, missing
from lcm.sim.cml.labs import Core, Labs
from lcm.sim.cml.licence import LicenceServer, Licensing
from lcm.sim.cml.pace import Pace
from lcm.sim.cml.parts import ACTIVE, Lab, Node
from lcm.sim.cml.patty import Mapped, mapping
from lcm.sim.cml.rest.documents import MaintenanceUpdate, NoticeCreate, NoticeUpdate
from lcm.sim.cml.stats import Machine
from lcm.sim.cml.telemetry import Telemetry
from lcm.sim.cml.topology import build, read
from lcm.sim.cml.users import Pool, Pools, User, Users, usage
from lcm.sim.time.chance import Chance, Ids
from lcm.sim.time.faults import Spells

Json = dict[str, Any]


@dataclass(slots=True, eq=False)
class Notice:
    """Something that an administrator wants everyone to know."""

    id: str
    level: str
    label: str
    content: str
    enabled: bool
    acknowledged: dict[str, bool] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)


class Notices:
    """All notices, and whether CML is closed."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.all: dict[str, Notice] = {}
        self.maintenance = False
        self.maintenance_notice: str | None = None

    def get(self, ref: str) -> Notice:
        """Find a notice or refuse."""
        if ref not in self.all:
            raise missing("System notice", ref)
        return self.all[ref]

    def add(self, wanted: NoticeCreate) -> Notice:
        """Make a notice."""
        notice = Notice(self._core.ids(), wanted.level, wanted.label, wanted.content, wanted.enabled)
        notice.groups = wanted.groups
        self.all[notice.id] = notice
        self._core.telemetry.record("notice_state_change")
        return notice

    def change(self, notice: Notice, wanted: NoticeUpdate) -> Notice:
        """Change a notice."""
        for name in wanted.__struct_fields__:
            if (value := getattr(wanted, name)) is not UNSET:
                setattr(notice, name, value)
        return notice

    def remove(self, notice: Notice) -> None:
        """Remove a notice."""
        del self.all[notice.id]
        if self.maintenance_notice == notice.id:
            self.maintenance_notice = None

    def set_maintenance(self, wanted: MaintenanceUpdate) -> None:
        """Close or open CML, and say why."""
        if isinstance(wanted.maintenance_mode, bool):
            self.maintenance = wanted.maintenance_mode
        if wanted.notice is None or isinstance(wanted.notice, str):
            self.maintenance_notice = self.get(wanted.notice).id if wanted.notice else None
        self._core.telemetry.record("maintenance_state_change")

    def status(self) -> Json:
        """Write whether CML is closed, and why."""
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
        machine: Machine | None = None,
        username: str = "admin",
        password: str = "admin",  # noqa: S107  a simulator's
        licence_server: LicenceServer | None = None,
        on: bool = True,
        power: Power | None = None,
        on_effect: OnLab = unheard,
    ) -> None:
        self.machine = machine or Machine()
        self.pace = Pace(clock, speed)
        self.telemetry = Telemetry(self.pace)
        self._core = Core(self.pace, Ids(chance.stream("ids")), chance.stream("boot"), self.telemetry, on_effect)
        self._labs = Labs(self._core, self._check_room)
        self.users = Users(self._core, username, password)
        self.pools = Pools(self._core.ids)
        self.notices = Notices(self._core)
        self.licence_server = licence_server or LicenceServer()
        self.licence = Licensing(self._core, self.licence_server, self._core.ids())
        self.faults = Faults()
        self.spells = Spells()
        """What is wrong with its answers, for whoever speaks to its direct face."""
        self.ailments: list[str] = []
        """What its health check complains about."""
        self._power = power
        self.ended_runs = 0
        """How often its power has gone, as far as it knows."""
        self._known_runs: Sequence[Run] = ()
        self._steady_since = self._steady_until = _NEVER
        self._on_since: float | None = -self.machine.boot_seconds if on and power is None else None

    def new_id(self) -> str:
        """Make an id."""
        return self._core.ids()

    @property
    def labs(self) -> Labs:
        self._follow_power()
        return self._labs

    @property
    def up(self) -> bool:
        self._follow_power()
        return self._on_since is not None and self.pace.age() - self._on_since >= self.machine.boot_seconds

    def check_up(self) -> None:
        """Raise Down unless CML is ready."""
        if not self.up:
            silent_until = self.machine.silent_seconds + (self._on_since or 0.0)
            on = self._on_since is not None
            raise Down(listening=on and self.pace.age() >= silent_until, there=on or self._power is None)

    def power_on(self) -> None:
        """Switch the machine on; CML is ready a while later."""
        self._check_switch()
        if self._on_since is None:
            self._on_since = self.pace.age()

    def power_off(self) -> None:
        """Switch the machine off: labs stay, their nodes stop, nobody is signed in."""
        self._check_switch()
        self._switch_off(self.pace.age())

    def restart(self) -> None:
        """Switch the machine off and on."""
        self.power_off()
        self.power_on()

    def import_lab(self, text: str | bytes, owner: User, title: str | None = None) -> tuple[Lab, list[str]]:
        """Make a lab of a topology file; return it with warnings."""
        return build(self.labs, self._core, read(text), owner.id, title)

    def active_nodes(self) -> list[Node]:
        """List the nodes that run or are about to."""
        age = self.pace.age()
        return [node for node in self.labs.nodes() if node.life.state(age) in ACTIVE]

    def pool_usage(self, pool: Pool) -> dict[str, Any]:
        """Add up what the users of a pool use now."""
        return usage(node for node in self.active_nodes() if self.labs.get(node.lab_id).owner_id in pool.users)

    def patty(self, protocol: str = "tcp") -> dict[int, Mapped]:
        """Return the ports that are open for nodes now."""
        return {one.outside: one for one in self.open_ports() if one.protocol == protocol}

    def open_ports(self) -> list[Mapped]:
        """Return the ports of either protocol that are open for nodes now."""
        return list(mapping(self.labs, self.pace.age()).values()) if self.up else []

    def _switch_off(self, age: float) -> None:
        self._on_since = None
        self._labs.power_off(age)
        self.users.expire_tokens()

    def _check_switch(self) -> None:
        if self._power is not None:
            raise Refusal(409, "The cloud that runs this machine switches it on and off.")

    def _follow_power(self) -> None:
        """Let happen what the machine's power has done since somebody last looked."""
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

    def _check_room(self, nodes: Sequence[Node]) -> None:
        active = [node for node in self.active_nodes() if node not in nodes]
        wanted = sum(node.kind.licensed for node in [*active, *nodes])
        limit = self.licence.node_limit
        if wanted > limit and any(node.kind.licensed for node in nodes):
            raise Full(f"Cannot start lab. Node license limit exceeded: {wanted} of {limit}.")
        for pool in self.pools.all.values():
            mine = [node for node in nodes if self.labs.get(node.lab_id).owner_id in pool.users]
            if mine:
                held = [node for node in active if self.labs.get(node.lab_id).owner_id in pool.users]
                self.pools.check(pool, held, mine)
