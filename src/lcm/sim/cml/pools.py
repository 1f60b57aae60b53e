"""Resource pools of a simulated CML: what groups of users may use together, and what they use."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET

from lcm.sim.cml.documents import PoolCreate, PoolUpdate
from lcm.sim.cml.parts import Node
from lcm.sim.cml.refusals import Full, Refusal, missing

Json = dict[str, Any]


@dataclass(slots=True, eq=False)
class Pool:
    """A resource pool; None is no limit."""

    id: str
    label: str
    description: str = ""
    template: str | None = None
    licenses: int | None = None
    ram: int | None = None
    cpus: int | None = None
    disk_space: int | None = None
    external_connectors: list[str] | None = None
    users: list[str] = field(default_factory=list)

    def limit(self) -> Json:
        """Write its limits, CPUs in hundredths as CML does."""
        cpus = None if self.cpus is None else self.cpus * 100
        return {
            "licenses": self.licenses,
            "cpus": cpus,
            "ram": self.ram,
            "disk_space": self.disk_space,
            "external_connectors": self.external_connectors,
        }


class Pools:
    """All resource pools."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self.all: dict[str, Pool] = {}

    def get(self, ref: str) -> Pool:
        """Find a pool or refuse."""
        if ref not in self.all:
            raise missing("Resource pool", ref)
        return self.all[ref]

    def of_user(self, user_id: str) -> Pool | None:
        """Find the pool of a user."""
        return next((pool for pool in self.all.values() if user_id in pool.users), None)

    def add(self, wanted: PoolCreate) -> list[Pool]:
        """Make a shared pool, or one for each user under a template."""
        if wanted.shared:
            return [self._make(wanted, wanted.users, wanted.template)]
        made = [] if wanted.template else [self._make(wanted, [], None)]
        template = wanted.template or made[0].id
        return made + [self._make(wanted, [user], template) for user in wanted.users]

    def change(self, pool: Pool, wanted: PoolUpdate) -> Pool:
        """Change a pool."""
        for name in wanted.__struct_fields__:
            if (value := getattr(wanted, name)) is not UNSET:
                setattr(pool, name, value)
        return pool

    def remove(self, pool: Pool) -> None:
        """Remove a pool from which no others are made."""
        if self.children(pool):
            raise Refusal(409, "The resource pool is a template of other pools.")
        del self.all[pool.id]

    def children(self, pool: Pool) -> list[str]:
        """List the pools made from a template."""
        return [one.id for one in self.all.values() if one.template == pool.id]

    def check(self, pool: Pool, running: Iterable[Node], more: Sequence[Node]) -> None:
        """Refuse nodes that would exceed the pool."""
        used = usage([*running, *more])
        for what, most in pool.limit().items():
            if isinstance(most, int) and used[what] > most:
                raise Full(f"Resource pool {pool.label} limit exceeded: {what}.")

    def _make(self, wanted: PoolCreate, users: list[str], template: str | None) -> Pool:
        limits = {name: getattr(wanted, name) for name in ("licenses", "ram", "cpus", "disk_space")}
        pool = Pool(self._new_id(), wanted.label, wanted.description, template, users=users, **limits)
        pool.external_connectors = wanted.external_connectors
        self.all[pool.id] = pool
        return pool


def usage(nodes: Iterable[Node]) -> Json:
    """Add up what nodes use, CPUs in hundredths as CML does."""
    held = list(nodes)
    return {
        "licenses": sum(node.kind.licensed for node in held),
        "cpus": sum(node.cpus * 100 for node in held),
        "ram": sum(node.ram_mb for node in held),
        "disk_space": sum(node.boot_disk_gb + node.data_volume_gb for node in held),
        "external_connectors": ["virbr0"] if any(n.kind.nature == "external_connector" for n in held) else [],
    }
