"""All mishaps with their weights, and the loop that starts them one after the other."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from lcm.model.base.errors import LcmError
from lcm.sim.cml.faults import CmlRefusal
from lcm.sim.world.mishaps import cloud, labs, processes, restores
from lcm.sim.world.mishaps.trouble import Trouble

Mishap = Callable[[Trouble], Coroutine[Any, Any, None]]
_HOUR_SECONDS: Final = 3_600

MISHAPS: Final[tuple[tuple[int, Mishap], ...]] = (
    (6, processes.process_is_killed),
    (2, processes.process_is_killed_twice),
    (1, processes.all_are_killed),
    (5, processes.process_dies_over_an_effect),
    (5, processes.process_stands_still_over_an_effect),
    (5, processes.process_stands_still),
    (4, processes.process_is_cut_off_from_the_store),
    (3, processes.commits_are_not_answered),
    (2, processes.watches_are_cut),
    (3, processes.lease_is_lost),
    (2, processes.store_fills_up),
    (2, processes.processes_are_upgraded),
    (1, restores.backup_is_restored),
    (1, restores.store_is_put_back),
    (3, processes.process_is_cut_off_from_the_cloud),
    (3, processes.process_is_cut_off_from_cmls),
    (2, cloud.cloud_is_throttled),
    (2, cloud.cloud_is_away),
    (2, cloud.cloud_is_slow),
    (1, cloud.cloud_answers_half),
    (2, cloud.cloud_has_no_room),
    (4, cloud.answers_of_the_cloud_are_lost),
    (2, cloud.machines_boot_slowly),
    (1, cloud.machine_never_comes_up),
    (2, cloud.machines_are_smaller),
    (2, cloud.machine_comes_back_smaller),
    (2, cloud.machines_are_listed_late),
    (2, cloud.machine_dies),
    (2, cloud.machine_reboots),
    (1, cloud.machine_is_impaired),
    (2, cloud.somebody_stops_a_machine),
    (1, cloud.somebody_starts_a_machine),
    (2, cloud.somebody_terminates_a_machine),
    (1, cloud.somebody_removes_a_tag),
    (1, cloud.somebody_launches_a_machine),
    (3, labs.cml_hangs),
    (2, labs.cml_is_out_of_order),
    (2, labs.cml_is_silent),
    (4, labs.answers_of_cml_are_lost),
    (2, labs.licence_server_is_away),
    (1, labs.licence_is_refused),
    (1, labs.licences_run_out),
    (2, labs.lab_vanishes),
    (2, labs.lab_is_stopped_by_hand),
    (2, labs.lab_is_wiped_by_hand),
    (2, labs.tags_are_edited_by_hand),
    (2, labs.somebody_imports_a_lab),
    (2, labs.files_are_away),
    (1, labs.files_are_slow),
)
"""The weight of each mishap, and its function."""
SPOT_MISHAPS: Final[tuple[tuple[int, Mishap], ...]] = ((6, cloud.spot_machine_is_reclaimed),)
"""Likewise, where there are machines that are only lent."""


def begin(trouble: Trouble) -> None:
    """Start the mishaps, as many an hour as the scenario says."""
    if trouble.world.scenario.mishaps_an_hour:
        trouble.world.begin(_run_mishaps(trouble))


async def _run_mishaps(trouble: Trouble) -> None:
    scenario = trouble.world.scenario
    known = (*MISHAPS, *(SPOT_MISHAPS if any(pool.market == "spot" for pool in scenario.pools) else ()))
    wanted = [one for one in known if not scenario.mishaps or one[1].__name__ in scenario.mishaps]
    weights, mishaps = zip(*wanted, strict=True)
    while True:
        await asyncio.sleep(trouble.dice.expovariate(scenario.mishaps_an_hour / _HOUR_SECONDS))
        if trouble.is_over:
            return
        (mishap,) = trouble.dice.choices(mishaps, weights)
        trouble.world.mishaps += 1
        trouble.world.begin(_run_mishap(trouble, mishap))


async def _run_mishap(trouble: Trouble, mishap: Mishap) -> None:
    # An action by hand that the cloud or CML does not allow just then is refused, and ignored.
    with suppress(LcmError, CmlRefusal):
        await mishap(trouble)
