"""What a simulated world is made of, as values: labs, pools, people, mishaps, and the random seed."""

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import msgspec

from lcm.model.kinds.hours import AllowedHours
from lcm.model.kinds.pool import Budget, ScalingPolicy
from lcm.model.kinds.prebuilt import PrebuiltPolicy
from lcm.model.kinds.settings import QuotaRule
from lcm.settings.load import Settings

MONDAY: Final = datetime(2026, 1, 5, tzinfo=UTC)
REGION: Final = "us-east-1"
SECRET: Final = "canary-5f3a9c"  # noqa: S105  opens nothing; who finds it anywhere has found a leak


class ScenarioLab(msgspec.Struct, frozen=True, kw_only=True):
    """A lab that can be booked."""

    name: str
    track: str
    cpu_cores: int = 4
    memory_gb: int = 8
    storage_gb: int = 10
    nodes: int = 4
    node_definition: str = "alpine"
    cml_version_min: str | None = None
    prebuilt: PrebuiltPolicy | None = None


class ScenarioPool(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of one type for one track, or of smaller ones while these are enough.

    Without a name it is called after its track.
    """

    track: str
    name: str = ""
    region: str = REGION
    market: Literal["on_demand", "spot"] = "on_demand"
    instance_type: str = "m5zn.metal"
    smaller_types: tuple[str, ...] = ()
    least: int = 0
    most: int = 10
    warm: int = 0
    policy: ScalingPolicy = ScalingPolicy.SCHEDULED
    hours: AllowedHours | None = None
    budget: Budget = Budget()
    licensed: bool = True
    price_per_hour_usd: str | None = "4.0"
    """What the operator plans a machine with; None means by the price book."""

    @property
    def pool_name(self) -> str:
        """The name of the pool, and of its template."""
        return self.name or self.track


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A world, and what happens in it. Two runs of one scenario are the same to the last commit."""

    seed: int = 1
    start: datetime = MONDAY
    hours: float = 24
    """How long people come and things go wrong."""
    quiet_hours: float = 8
    """How long nothing new happens after that, so that everything that was begun can end."""
    processes: int = 3
    """How many of our processes there are, each with an API and every controller."""
    face: Literal["direct", "client"] = "direct"
    """How a CML is called: by its simulator's own methods or, in worlds of tests, by our client over its REST API."""
    labs: tuple[ScenarioLab, ...] = ()
    unhostable: tuple[ScenarioLab, ...] = ()
    """Labs that can be booked and that no machine of any pool could ever host."""
    pools: tuple[ScenarioPool, ...] = ()
    quotas: tuple[QuotaRule, ...] = ()
    """What owners, roles and tracks may have besides what everybody may."""
    sessions_a_day: int = 300
    mishaps_an_hour: float = 0.0
    mishaps: tuple[str, ...] = ()
    """Mishaps by their names; empty means all."""
    bystanders: bool = True
    """Whether there are operators, strangers, listeners and auditors besides those who book."""
    returners: int = 0
    """How many people save their labs and continue them."""
    settings: Settings = msgspec.field(default_factory=Settings)

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions in which there are pools; the usual one if there is none."""
        return tuple(dict.fromkeys(one.region for one in self.pools)) or (REGION,)

    @property
    def end(self) -> datetime:
        """When people stop coming."""
        return self.start + timedelta(hours=self.hours)


def lab_topology(lab: ScenarioLab) -> bytes:
    """Return a lab's file: a chain of nodes, each with a console."""
    nodes = "".join(_node_yaml(number, lab.node_definition) for number in range(lab.nodes))
    links = "".join(
        f"- {{id: l{n}, n1: n{n}, i1: i1, n2: n{n + 1}, i2: i0, label: l{n}}}\n" for n in range(lab.nodes - 1)
    )
    return f"lab: {{version: 0.3.0, title: {lab.name}}}\nnodes:\n{nodes}links:\n{links}".encode()


def _node_yaml(number: int, definition: str) -> str:
    interfaces = ", ".join(f"{{id: i{n}, label: eth{n}, slot: {n}, type: physical}}" for n in range(2))
    return (
        f"- id: n{number}\n  label: R{number}\n  node_definition: {definition}\n  x: {100 * number}\n  y: 0\n"
        f"  tags:\n  - serial:{2000 + number}\n  configuration: hostname R{number}\n  interfaces: [{interfaces}]\n"
    )
