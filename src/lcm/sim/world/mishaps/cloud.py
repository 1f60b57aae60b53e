"""What goes wrong in the cloud, and what people do at its console."""

from dataclasses import replace
from typing import Final

from lcm.model.base.errors import LcmError
from lcm.providers.protocols.compute import OWNER_TAG, InstanceState
from lcm.sim.cloud.account import LaunchOrder
from lcm.sim.cloud.fleet import machine_size
from lcm.sim.time.faults import FaultKind, FaultPeriod
from lcm.sim.world.mishaps.trouble import Trouble
from lcm.sim.world.scenario import REGION

RUNNING, STOPPED = InstanceState.RUNNING, InstanceState.STOPPED
_EFFECTS: Final = ("ensure", "start", "stop", "remove")
_AT_ONCE: Final = 3
_HALVED: Final = frozenset({"checks", "metrics"})
_ZONES: Final = "abc"
_SHARES: Final = (0.2, 0.35, 0.5)


async def cloud_is_throttled(trouble: Trouble) -> None:
    """Make the cloud throttle all calls."""
    faults, now = trouble.stage.cloud.faults, trouble.world.clock.now()
    trouble.tell("the cloud wants fewer calls")
    faults.throttle(now + trouble.span_of(trouble.dice.uniform(30, 600)))
    await trouble.stay(600, 600)
    faults.throttle(trouble.world.clock.now())


async def cloud_is_away(trouble: Trouble) -> None:
    """Make the cloud unreachable."""
    trouble.tell("nobody reaches the cloud")
    with trouble.stage.cloud.faults.spells.inject(FaultPeriod(FaultKind.SILENT)):
        await trouble.stay(30, 900)
    trouble.tell("the cloud is reached again")


async def cloud_is_slow(trouble: Trouble) -> None:
    """Make the cloud slow, or so slow that callers give up."""
    kind = trouble.dice.choice((FaultKind.SLOW, FaultKind.HANGING))
    trouble.tell(f"the cloud {'answers late' if kind is FaultKind.SLOW else 'hangs'}")
    with trouble.stage.cloud.faults.spells.inject(FaultPeriod(kind, seconds=trouble.dice.uniform(3, 40))):
        await trouble.stay(60, 900)
    trouble.tell("the cloud answers in time")


async def cloud_answers_half(trouble: Trouble) -> None:
    """Make the cloud report the state of some machines only."""
    trouble.tell("the cloud answers half")
    with trouble.stage.cloud.faults.spells.inject(FaultPeriod(FaultKind.HALF, verbs=_HALVED)):
        await trouble.stay(120, 1_800)


async def cloud_has_no_room(trouble: Trouble) -> None:
    """Make the cloud run out of machines of one type, or in one zone."""
    account = trouble.stage.cloud.account
    kinds = sorted({pool.instance_type for pool in trouble.world.scenario.pools})
    regions = trouble.world.scenario.regions
    region = trouble.dice.choice(regions) if len(regions) > 1 else regions[0]
    what = trouble.dice.choice([*kinds, *(region + zone for zone in _ZONES)])
    trouble.tell(f"the cloud has no room: {what} in {region}")
    account.add_shortage(region, what, trouble.world.clock.now() + trouble.span_of(trouble.dice.uniform(60, 2_400)))
    await trouble.stay(2_400, 2_400)
    if trouble.is_over:
        account.end_shortages()


async def answers_of_the_cloud_are_lost(trouble: Trouble) -> None:
    """Make the cloud carry out calls without answering them."""
    verbs = frozenset(trouble.dice.sample(_EFFECTS, _AT_ONCE))
    trouble.tell(f"the cloud does not answer {', '.join(sorted(verbs))}, and does it")
    with trouble.stage.cloud.faults.spells.inject(FaultPeriod(FaultKind.DEAF, verbs=verbs)):
        await trouble.stay(120, 1_800)


async def machines_boot_slowly(trouble: Trouble) -> None:
    """Make the next machines boot more slowly than they should."""
    account = trouble.stage.cloud.account
    account.slowness = trouble.dice.uniform(1.5, 6)
    trouble.tell(f"machines boot {account.slowness:.1f} times slower")
    await trouble.stay(600, 3_600)
    account.slowness = 1.0


async def machine_never_comes_up(trouble: Trouble) -> None:
    """Make the next machine never come up."""
    trouble.tell("the next machine will never come up")
    trouble.stage.cloud.account.never_boot()
    await trouble.stay(3_600, 3_600)
    trouble.stage.cloud.account.never_boot(0)


async def machines_are_smaller(trouble: Trouble) -> None:
    """Make the next machines smaller than their type promises."""
    account = trouble.stage.cloud.account
    account.share = trouble.dice.choice(_SHARES)
    trouble.tell(f"new machines have {account.share:.0%} of what they should")
    await trouble.stay(600, 3_600)
    account.share = 1.0


async def machine_comes_back_smaller(trouble: Trouble) -> None:
    """Reboot a machine, which comes back with less capacity."""
    machine = await trouble.find_soon(lambda: trouble.choose_machine(RUNNING))
    cml = trouble.stage.cml(machine.instance_id) if machine else None
    if machine is None or cml is None:
        return
    share, (cpus, memory_gb) = trouble.dice.choice(_SHARES), machine_size(machine.instance_type)
    trouble.tell(f"{machine.instance_id} reboots with {share:.0%} of what it should have")
    cml.machine = replace(cml.machine, cpu_count=int(cpus * share), memory_mb=int(memory_gb * 1024 * share))
    trouble.stage.cloud.account.reboot(machine.region, machine.instance_id)


async def machines_are_listed_late(trouble: Trouble) -> None:
    """Make the next machines exist long before the cloud lists them."""
    account = trouble.stage.cloud.account
    account.listed_late = trouble.span_of(trouble.dice.uniform(5, 60))
    trouble.tell(f"new machines are listed {account.listed_late.total_seconds():.0f} s late")
    await trouble.stay(600, 3_600)
    account.listed_late = trouble.span_of(0)


async def machine_dies(trouble: Trouble) -> None:
    """Make the cloud lose a machine."""
    if (machine := await trouble.find_soon(lambda: trouble.choose_machine(RUNNING))) is not None:
        trouble.tell(f"{machine.instance_id} dies")
        trouble.stage.cloud.account.die(machine.region, machine.instance_id)


async def spot_machine_is_reclaimed(trouble: Trouble) -> None:
    """Announce that the cloud takes a spot machine away."""
    if (machine := await trouble.find_soon(lambda: trouble.choose_machine(RUNNING, spot=True))) is not None:
        trouble.tell(f"the cloud takes {machine.instance_id} away in two minutes")
        trouble.stage.cloud.account.reclaim(machine.region, machine.instance_id)


async def machine_reboots(trouble: Trouble) -> None:
    """Make the cloud reboot a machine."""
    if (machine := await trouble.find_soon(lambda: trouble.choose_machine(RUNNING))) is not None:
        trouble.tell(f"{machine.instance_id} reboots")
        trouble.stage.cloud.account.reboot(machine.region, machine.instance_id)


async def machine_is_impaired(trouble: Trouble) -> None:
    """Make a machine fail one of the cloud's checks until it is rebooted, or stopped and started."""
    if (machine := await trouble.find_soon(lambda: trouble.choose_machine(RUNNING))) is not None:
        trouble.tell(f"{machine.instance_id} fails its instance check")
        trouble.stage.cloud.account.impair(machine.region, machine.instance_id)


async def somebody_stops_a_machine(trouble: Trouble) -> None:
    """Stop a machine at the console, and perhaps start it again."""
    machine = await trouble.find_soon(lambda: trouble.choose_machine(RUNNING))
    if machine is None:
        return
    account = trouble.stage.cloud.account
    trouble.tell(f"somebody stops {machine.instance_id} at the console")
    account.stop(machine.region, machine.instance_id)
    await trouble.stay(300, 3_600)
    if machine.state(trouble.world.clock.now()) is STOPPED and trouble.dice.random() < 0.7:  # noqa: PLR2004  or forgets
        trouble.tell(f"somebody starts {machine.instance_id} at the console")
        account.start(machine.region, machine.instance_id)


async def somebody_starts_a_machine(trouble: Trouble) -> None:
    """Start a machine at the console."""
    if (machine := await trouble.find_soon(lambda: trouble.choose_machine(STOPPED))) is not None:
        trouble.tell(f"somebody starts {machine.instance_id} at the console")
        trouble.stage.cloud.account.start(machine.region, machine.instance_id)


async def somebody_terminates_a_machine(trouble: Trouble) -> None:
    """Terminate a machine at the console."""
    if (machine := await trouble.find_soon(lambda: trouble.choose_machine(RUNNING, STOPPED))) is not None:
        trouble.tell(f"somebody terminates {machine.instance_id} at the console")
        trouble.stage.cloud.account.terminate(machine.region, machine.instance_id)


async def somebody_removes_a_tag(trouble: Trouble) -> None:
    """Remove the tag by which a machine is known as ours."""
    if (machine := await trouble.find_soon(lambda: trouble.choose_machine(RUNNING))) is not None:
        trouble.tell(f"somebody removes the tag {OWNER_TAG} of {machine.instance_id}")
        trouble.stage.cloud.account.untag(machine.region, machine.instance_id, OWNER_TAG)


async def somebody_launches_a_machine(trouble: Trouble) -> None:
    """Launch a machine with CML by hand, and terminate it some hours later."""
    account = trouble.stage.cloud.account
    image = trouble.dice.choice(account.images(REGION, "CML-*"))
    machine = account.run(LaunchOrder(REGION, "m5zn.metal", image.image_id))
    trouble.tell(f"somebody launches {machine.instance_id} by hand")
    await trouble.stay(1_800, 4 * 3_600)
    trouble.tell(f"somebody terminates {machine.instance_id}, launched by hand")
    try:
        account.terminate(machine.region, machine.instance_id)
    except LcmError as error:
        trouble.tell(f"{machine.instance_id}: {error}")
