"""Machines of smaller types: which one is launched for what is claimed of a seat, and what it limits there. Pure.

A seat is promised at the size of its pool's template. When its machine is about to be launched, everything that is
claimed there until the machine can be released is known; if a cheaper type of the template's `smaller_types` holds all
of that, the pool controller commits to it as a `SmallRun`, and launches it at its next look. From the commit until the
run ends, the seat takes only what that machine holds (`RunLimit`), so that no booking breaks another; what is claimed
after that gets another machine, whose type is chosen then.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Final, NamedTuple

from msgspec.structs import replace

from lcm.model.base.capacity import Amount, Claim
from lcm.model.kinds.pool import SmallRun, WorkerTemplate
from lcm.model.kinds.worker import AwsSpec, LabWorkerSpec
from lcm.model.money.prices import PriceBook, declared_capacity
from lcm.placement.pack_kinds import peak_of
from lcm.placement.preference import planned_usd, running_usd
from lcm.placement.seats import KEEP_THROUGH_GAP

EXTENSION_ROOM: Final = timedelta(hours=2)
"""A machine may be kept for so much longer than was claimed when it was chosen, for extensions and further bookings."""
_USABLE_PERCENT: Final = 95
"""The operating system keeps some of the memory for itself."""


class SmallerType(NamedTuple):
    """A type of instance that a pool may launch instead of its template's: what it holds, and what an hour costs."""

    name: str
    room: Amount
    usd_hourly: Decimal


def smaller_room(spec: LabWorkerSpec, name: str) -> Amount | None:
    """Return what a worker of a spec holds at least if its machine is of another type; None if that is not known."""
    declared = declared_capacity(replace(spec, aws=_of_type(spec.aws, name)))
    return replace(declared, memory_mb=declared.memory_mb * _USABLE_PERCENT // 100) if declared else None


def _of_type(aws: AwsSpec, name: str) -> AwsSpec:
    return replace(aws, instance_type=name, instance_type_alternatives=())


def find_smaller_types(template: WorkerTemplate, prices: PriceBook) -> Sequence[SmallerType]:
    """Return the smaller types of a template that cost less than its own, the cheapest first.

    Types of which the size or the price is not known are left out.
    """
    spec, full = template.spec.worker, planned_usd(template, prices)
    found = list[SmallerType]()
    for name in template.spec.smaller_types:
        room, usd = smaller_room(spec, name), running_usd(_of_type(spec.aws, name), prices)
        if room is not None and usd is not None and full is not None and usd < full:
            found.append(SmallerType(name, room, usd))
    return sorted(found, key=lambda one: (one.usd_hourly, one.name))


def run_pause(lead: timedelta) -> timedelta:
    """Return the shortest time between two claims in which a seat's machine is released."""
    return lead + KEEP_THROUGH_GAP


def choose_small_run(
    number: int, claims: Iterable[Claim], types: Sequence[SmallerType], pause: timedelta
) -> SmallRun | None:
    """Return the cheapest type that holds the claims of a seat's next run, and until when; None if none holds them."""
    ahead = sorted(claims, key=lambda one: one.start)
    if not ahead:
        return None
    run, until, following = list[Claim](), ahead[0].end, None
    for claim in ahead:
        if claim.start >= until + pause:
            following = claim.start
            break
        run.append(claim)
        until = max(until, claim.end)
    peak = peak_of(run)
    found = next((one for one in types if peak.within(one.room)), None)
    if found is None:
        return None
    latest = until + EXTENSION_ROOM if following is None else min(until + EXTENSION_ROOM, following - pause)
    return SmallRun(number=number, instance_type=found.name, until=latest)


def holds_run(run: SmallRun, claims: Iterable[Claim], room: Amount, pause: timedelta) -> bool:
    """Return whether all claims of a seat fit its smaller machine, or begin after another has taken its place."""
    here = [one for one in claims if one.start < run.until + pause]
    return all(one.end <= run.until for one in here) and peak_of(here).within(room)


def launched_aws(aws: AwsSpec, run: SmallRun, types: Sequence[SmallerType]) -> AwsSpec:
    """Return how the machine of a small run is launched.

    If the cloud has none of that type, dearer ones are tried that hold as much, and at last those of the template.
    """
    own = next((one for one in types if one.name == run.instance_type), None)
    larger = [one.name for one in types if own is not None and one is not own and own.room.within(one.room)]
    others = dict.fromkeys((*larger, aws.instance_type, *aws.instance_type_alternatives))
    return replace(aws, instance_type=run.instance_type, instance_type_alternatives=tuple(others)[:_MOST_OTHERS])


_MOST_OTHERS: Final = 32


def saved_hourly(
    template: WorkerTemplate, runs: Sequence[SmallRun], prices: PriceBook
) -> Mapping[int, tuple[datetime, Decimal]]:
    """Return, by seat, until when its machine costs less than planned, and by how much an hour."""
    full, types = planned_usd(template, prices), find_smaller_types(template, prices) if runs else ()
    usd = {one.name: one.usd_hourly for one in types}
    return {
        one.number: (one.until, full - usd[one.instance_type])
        for one in runs
        if full is not None and one.instance_type in usd
    }
