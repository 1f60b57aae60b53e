"""What a simulated world is made of, as values: labs, pools, people, what goes wrong, and the seed of all chance."""

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import msgspec

from lcm.config import Settings

MONDAY: Final = datetime(2026, 1, 5, tzinfo=UTC)
SECRET: Final = "canary-5f3a9c"  # noqa: S105  opens nothing; who finds it anywhere has found a leak


class Lab(msgspec.Struct, frozen=True, kw_only=True):
    """A lab that can be booked."""

    name: str
    track: str
    cpu_cores: int = 4
    memory_gb: int = 8
    storage_gb: int = 10
    nodes: int = 4


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Machines of one kind for one track."""

    track: str
    instance_type: str = "m5zn.metal"
    least: int = 0
    most: int = 10
    licensed: bool = True
    price_per_hour_usd: str = "4.0"


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A world and what happens in it. Two runs of one scenario are the same to the last commit."""

    seed: int = 1
    start: datetime = MONDAY
    hours: float = 24
    """How long people come and things go wrong."""
    quiet_hours: float = 8
    """How long nothing happens then, so that all is done that was begun."""
    processes: int = 3
    """How many of ours there are, each with an API and every controller."""
    face: Literal["direct", "client"] = "direct"
    """How a CML is spoken to: by its simulator's own verbs, or by our client over its REST face."""
    labs: tuple[Lab, ...] = ()
    pools: tuple[Pool, ...] = ()
    sessions_a_day: int = 300
    mishaps_an_hour: float = 0.0
    mishaps: tuple[str, ...] = ()
    """Which, by their names; empty: all."""
    bystanders: bool = True
    """Whether there are operators, strangers, listeners and auditors besides those who book."""
    settings: Settings = msgspec.field(default_factory=Settings)

    @property
    def end(self) -> datetime:
        """When people stop to come."""
        return self.start + timedelta(hours=self.hours)


CAMPUS: Final = Scenario(
    labs=(
        Lab(name="ccna-basics", track="ccna", cpu_cores=8, memory_gb=16),
        Lab(name="ccna-exam", track="ccna", cpu_cores=12, memory_gb=24, nodes=6),
        Lab(name="ccnp-core", track="ccnp", cpu_cores=16, memory_gb=32, nodes=5),
    ),
    pools=(Pool(track="ccna", most=10), Pool(track="ccnp", most=10, least=1)),
    settings=Settings(
        worker_controller_leader_lease_ttl=60,
        worker_controller_reconcile_interval=60,
        scheduler_reconcile_interval=60,
        metrics_poll_interval=120,
        lablet_watch_interval=60,
    ),
)
"""Twenty workers and three hundred sessions a day, looked at as often as a frugal operator would have it."""

CLASSROOM: Final = Scenario(
    start=MONDAY + timedelta(hours=8),
    processes=2,
    labs=(Lab(name="ccna-basics", track="ccna", cpu_cores=8, memory_gb=16),),
    pools=(Pool(track="ccna", most=4),),
    sessions_a_day=60,
)
"""Four workers and sixty sessions a day, for tests and for scenarios that are written down."""

CROWDED: Final = msgspec.structs.replace(
    CLASSROOM, processes=3, sessions_a_day=480, pools=(Pool(track="ccna", most=4, least=2),)
)
"""The same with workers that are always there and far more sessions: most happens in least time."""
