"""Hours of mishaps and people's doings upon a fleet; when all is quiet again, nothing is lost, doubled or left over."""

from datetime import timedelta

import pytest

from harness.fleet_world import virtually
from harness.suite import TIMES
from lcm.control.plane.protocol import ref_of
from simulation.worker_mayhem import Mayhem


@pytest.mark.parametrize("seed", range(1, 1 + TIMES))
@virtually
async def test_whatever_happens_every_worker_comes_to_rest_and_goes_without_a_trace(seed: int) -> None:
    fleet = Mayhem(seed=seed)
    fleet.begin()
    await fleet.rage(timedelta(hours=2))
    await fleet.settle(timedelta(hours=2))
    await fleet.check()
    for worker in await fleet.workers():
        await fleet.otto.delete(ref_of(worker))
    await fleet.settle(timedelta(hours=2))
    left = await fleet.workers()
    assert not left, fleet.tale(left[0])
    assert fleet.living() == []
    await fleet.check()
    for process in fleet.alive:
        process.kill()
