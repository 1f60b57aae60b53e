"""What goes wrong in the cloud, and what people do at its console."""

from dataclasses import replace
from typing import Final

from lcm.model.base.errors import LcmError
from lcm.providers.protocols.compute import OWNER_TAG, InstanceState
from lcm.sim.cloud.account import Order
from lcm.sim.cloud.fleet import size
from lcm.sim.time.faults import Ill, Spell
from lcm.sim.world.mishaps.trouble import Trouble
from lcm.sim.world.scenario import REGION

RUNNING, STOPPED = InstanceState.RUNNING, InstanceState.STOPPED
_EFFECTS: Final = ("ensure", "start", "stop", "remove")
_AT_ONCE: Final = 3
_HALVED: Final = frozenset({"checks", "metrics"})
_ZONES: Final = "abc"
_SHARES: Final = (0.2, 0.35, 0.5)


async def cloud_is_throttled(trouble: Trouble) -> None:
    """Let the cloud want fewer calls."""
    faults, now = trouble.stage.cloud.faults, trouble.world.clock.now()
    trouble.tell("the cloud wants fewer calls")
    faults.throttle(now + trouble.in_(trouble.dice.uniform(30, 600)))
    await trouble.lasts(600, 600)
    faults.throttle(trouble.world.clock.now())


async def cloud_is_away(trouble: Trouble) -> None:
    """Let nobody reach the cloud."""
    trouble.tell("nobody reaches the cloud")
    with trouble.stage.cloud.faults.spells.under(Spell(Ill.SILENT)):
        await trouble.lasts(30, 900)
    trouble.tell("the cloud is reached again")


async def cloud_is_slow(trouble: Trouble) -> None:
    """Let the cloud take its time, or so long that who asks gives up."""
    ill = trouble.dice.choice((Ill.SLOW, Ill.HANGING))
    trouble.tell(f"the cloud {'answers late' if ill is Ill.SLOW else 'hangs'}")
    with trouble.stage.cloud.faults.spells.under(Spell(ill, seconds=trouble.dice.uniform(3, 40))):
        await trouble.lasts(60, 900)
    trouble.tell("the cloud answers in time")


async def cloud_answers_half(trouble: Trouble) -> None:
    """Let the cloud say of some machines only how they are."""
    trouble.tell("the cloud answers half")
    with trouble.stage.cloud.faults.spells.under(Spell(Ill.HALF, verbs=_HALVED)):
        await trouble.lasts(120, 1_800)


async def cloud_has_no_room(trouble: Trouble) -> None:
    """Let there be no machine of a type, or in a zone."""
    account = trouble.stage.cloud.account
    kinds = sorted({pool.instance_type for pool in trouble.world.scenario.pools})
    what = trouble.dice.choice([*kinds, *(REGION + zone for zone in _ZONES)])
    trouble.tell(f"the cloud has no room: {what}")
    account.shortage(REGION, what, trouble.world.clock.now() + trouble.in_(trouble.dice.uniform(60, 2_400)))
    await trouble.lasts(2_400, 2_400)
    if trouble.is_over:
        account.plenty()


async def answers_of_the_cloud_are_lost(trouble: Trouble) -> None:
    """Let something happen that nobody hears of."""
    verbs = frozenset(trouble.dice.sample(_EFFECTS, _AT_ONCE))
    trouble.tell(f"the cloud does not answer {', '.join(sorted(verbs))}, and does it")
    with trouble.stage.cloud.faults.spells.under(Spell(Ill.DEAF, verbs=verbs)):
        await trouble.lasts(120, 1_800)


async def machines_boot_slowly(trouble: Trouble) -> None:
    """Let the next machines take longer than they should."""
    account = trouble.stage.cloud.account
    account.slowness = trouble.dice.uniform(1.5, 6)
    trouble.tell(f"machines boot {account.slowness:.1f} times slower")
    await trouble.lasts(600, 3_600)
    account.slowness = 1.0


async def machine_never_comes_up(trouble: Trouble) -> None:
    """Let nothing come up on the next machine."""
    trouble.tell("the next machine will never come up")
    trouble.stage.cloud.account.never_boot()
    await trouble.lasts(3_600, 3_600)
    trouble.stage.cloud.account.never_boot(0)


async def machines_are_smaller(trouble: Trouble) -> None:
    """Let the next machines have less than their type promises."""
    account = trouble.stage.cloud.account
    account.share = trouble.dice.choice(_SHARES)
    trouble.tell(f"new machines have {account.share:.0%} of what they should")
    await trouble.lasts(600, 3_600)
    account.share = 1.0


async def machine_comes_back_smaller(trouble: Trouble) -> None:
    """Let a machine reboot and find less of itself."""
    machine = await trouble.soon(lambda: trouble.machine(RUNNING))
    cml = trouble.stage.cml(machine.instance_id) if machine else None
    if machine is None or cml is None:
        return
    share, (cpus, memory_gb) = trouble.dice.choice(_SHARES), size(machine.instance_type)
    trouble.tell(f"{machine.instance_id} reboots with {share:.0%} of what it should have")
    cml.machine = replace(cml.machine, cpu_count=int(cpus * share), memory_mb=int(memory_gb * 1024 * share))
    trouble.stage.cloud.account.reboot(machine.region, machine.instance_id)


async def machines_are_listed_late(trouble: Trouble) -> None:
    """Let the next machines be there long before the cloud says so."""
    account = trouble.stage.cloud.account
    account.listed_late = trouble.in_(trouble.dice.uniform(5, 60))
    trouble.tell(f"new machines are listed {account.listed_late.total_seconds():.0f} s late")
    await trouble.lasts(600, 3_600)
    account.listed_late = trouble.in_(0)


async def machine_dies(trouble: Trouble) -> None:
    """Let the cloud lose a machine."""
    if (machine := await trouble.soon(lambda: trouble.machine(RUNNING))) is not None:
        trouble.tell(f"{machine.instance_id} dies")
        trouble.stage.cloud.account.die(machine.region, machine.instance_id)


async def machine_reboots(trouble: Trouble) -> None:
    """Let the cloud reboot a machine."""
    if (machine := await trouble.soon(lambda: trouble.machine(RUNNING))) is not None:
        trouble.tell(f"{machine.instance_id} reboots")
        trouble.stage.cloud.account.reboot(machine.region, machine.instance_id)


async def machine_is_impaired(trouble: Trouble) -> None:
    """Let a machine fail one of the cloud's checks until it is rebooted, or stopped and started."""
    if (machine := await trouble.soon(lambda: trouble.machine(RUNNING))) is not None:
        trouble.tell(f"{machine.instance_id} fails its instance check")
        trouble.stage.cloud.account.impair(machine.region, machine.instance_id)


async def somebody_stops_a_machine(trouble: Trouble) -> None:
    """Let somebody press stop at the console, and perhaps start."""
    machine = await trouble.soon(lambda: trouble.machine(RUNNING))
    if machine is None:
        return
    account = trouble.stage.cloud.account
    trouble.tell(f"somebody stops {machine.instance_id} at the console")
    account.stop(machine.region, machine.instance_id)
    await trouble.lasts(300, 3_600)
    if machine.state(trouble.world.clock.now()) is STOPPED and trouble.dice.random() < 0.7:  # noqa: PLR2004  or forgets
        trouble.tell(f"somebody starts {machine.instance_id} at the console")
        account.start(machine.region, machine.instance_id)


async def somebody_starts_a_machine(trouble: Trouble) -> None:
    """Let somebody press start at the console."""
    if (machine := await trouble.soon(lambda: trouble.machine(STOPPED))) is not None:
        trouble.tell(f"somebody starts {machine.instance_id} at the console")
        trouble.stage.cloud.account.start(machine.region, machine.instance_id)


async def somebody_terminates_a_machine(trouble: Trouble) -> None:
    """Let somebody press terminate at the console."""
    if (machine := await trouble.soon(lambda: trouble.machine(RUNNING, STOPPED))) is not None:
        trouble.tell(f"somebody terminates {machine.instance_id} at the console")
        trouble.stage.cloud.account.terminate(machine.region, machine.instance_id)


async def somebody_removes_a_tag(trouble: Trouble) -> None:
    """Let somebody remove the tag by which a machine is known as ours."""
    if (machine := await trouble.soon(lambda: trouble.machine(RUNNING))) is not None:
        trouble.tell(f"somebody removes the tag {OWNER_TAG} of {machine.instance_id}")
        trouble.stage.cloud.account.untag(machine.region, machine.instance_id, OWNER_TAG)


async def somebody_launches_a_machine(trouble: Trouble) -> None:
    """Let somebody launch a machine with CML by hand, and terminate it some hours later."""
    account = trouble.stage.cloud.account
    image = trouble.dice.choice(account.images(REGION, "CML-*"))
    machine = account.run(Order(REGION, "m5zn.metal", image.image_id))
    trouble.tell(f"somebody launches {machine.instance_id} by hand")
    await trouble.lasts(1_800, 4 * 3_600)
    trouble.tell(f"somebody terminates {machine.instance_id}, launched by hand")
    try:
        account.terminate(machine.region, machine.instance_id)
    except LcmError as error:
        trouble.tell(f"{machine.instance_id}: {error}")
