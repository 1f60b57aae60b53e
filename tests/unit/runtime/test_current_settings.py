"""The settings as controllers go by them change with the SystemSettings object, and are not made anew in between."""

import asyncio
from datetime import timedelta

from harness.plane_world import ROOT, Stage
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ref_of
from lcm.controllers.runtime.settings import CurrentSettings
from lcm.model.base.resource import Metadata
from lcm.model.kinds.settings import SchedulerSettings, SystemSettings, SystemSettingsSpec
from lcm.settings.load import Settings
from lcm.sim.time.loop import run
from lcm.system.tasks import cancel_and_wait


def test_settings_follow_the_object_that_stands_over_them() -> None:
    async def main() -> None:
        root = Stage()[ROOT]
        cache = Cache(root, SystemSettings)
        following = asyncio.create_task(cache.run())
        await cache.ready()
        current = CurrentSettings(Settings(), cache)
        first = current()
        assert first is current()
        assert current.terms() is current.terms()
        said = SystemSettingsSpec(scheduler=SchedulerSettings(worker_bootup_delay_minutes=7))
        made = await root.create(SystemSettings(metadata=Metadata(name="system"), spec=said))
        await asyncio.sleep(1)
        assert (current().worker_bootup_delay_minutes, current.terms().boot) == (7, timedelta(minutes=7))
        await root.delete(ref_of(made))
        await asyncio.sleep(1)
        assert current() == first
        await cancel_and_wait([following])

    run(main)
