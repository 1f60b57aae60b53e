"""A small installation that promises: a pool of seats, a lab whose sessions take half of a seat each."""

from datetime import timedelta

import given
from api_server import ApiServer
from estates import spec
from lcm.control.plane.protocol import Plane
from lcm.model.kinds.definition import ResourceRequirements
from lcm.placement.claims import Terms

TERMS = Terms(boot=timedelta(minutes=10), instantiation=timedelta(minutes=5))


def furnish(api: ApiServer, *, seats: int = 2) -> None:
    """Make the pool `ccna` with so many seats, and the lab `basics`, of which two fit on one."""

    async def work(plane: Plane) -> None:
        await plane.create(given.template(worker=spec()))
        await plane.create(given.pool(min_workers=0, max_workers=seats))
        needs = ResourceRequirements(cpu_cores=20, memory_gb=16)
        await plane.create(
            given.definition(
                lab_track="ccna", state="active", node_count=5, resource_requirements=needs, max_duration_minutes=180
            )
        )

    api.do(work)
