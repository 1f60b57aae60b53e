"""How many prebuilt labs are wanted, which of them give way, and where one may go. Pure.

Used by the scheduler, which keeps them, and by the control plane, which shows them. Nobody is promised a prebuilt lab,
and it holds no time on a planned worker: it uses what is free of a machine that runs anyway.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Final, NamedTuple, TypeVar

from lcm.model.base.capacity import ZERO_AMOUNT, Amount, Claim, Profile
from lcm.model.kinds.definition import DefinitionState, LabletDefinition, LabletDefinitionSpec
from lcm.model.kinds.prebuilt import LEARNED_DAYS, AskedHour, hours_before
from lcm.model.kinds.session import LabletSession
from lcm.placement.claims import need_of
from lcm.placement.hours import OpenTimes, describe_hours

GIVES_WAY_BEFORE: Final = timedelta(minutes=15)
"""So long before a claim begins, what is in its way ends: as long as a lab may take to be removed, and more."""
FREE_FOR: Final = timedelta(hours=1)
"""A prebuilt lab is only placed where nobody needs the room for this time."""
STARTS_AT_ONCE: Final = 2
"""So many prebuilt labs start on a machine at once, so that others find a turn beside them."""
_USUAL_SHARE: Final = 0.8
"""The share of days on which the learned number would have been enough."""
T = TypeVar("T")


class WantedLabs(NamedTuple):
    """How many labs are to be kept, and why."""

    number: int
    reason: str


def decide_prebuilt(spec: LabletDefinitionSpec, asked: Sequence[AskedHour], now: datetime) -> WantedLabs:
    """Return how many labs of a definition are wanted started now, by what was asked for lately."""
    policy = spec.prebuilt
    if policy is None or policy.count == 0:
        return WantedLabs(0, "its definition wants none")
    if spec.state is not DefinitionState.ACTIVE:
        return WantedLabs(0, f"its definition is {spec.state}")
    if OpenTimes(policy.hours).closed_reason(now):
        return WantedLabs(0, f"they are wanted from {describe_hours(policy.hours)}")
    if not policy.learned:
        return WantedLabs(policy.count, "its definition wants as many")
    usual = usual_demand(asked, now)
    told = f"{usual} were usually wanted at this time of the day"
    return WantedLabs(min(policy.count, usual), told + f", and {policy.count} are the most" * (usual > policy.count))


def is_current(lab: LabletSession, definition: LabletDefinition) -> bool:
    """Return whether a prebuilt session is of its definition as it is now, not of an earlier one of that name."""
    made, published, claim = lab.metadata.created_at, definition.metadata.created_at, lab.status.claim
    is_older = made is not None and published is not None and made < published
    same = claim is None or claim.need == need_of(None, definition)
    return same and not is_older and lab.spec.lab_track == definition.spec.lab_track


def usual_demand(asked: Iterable[AskedHour], now: datetime) -> int:
    """Return how many labs were enough in this hour, and in the next, on four of five of the days that are known."""
    counts = {one.hour: one.count for one in asked}
    return max(_usual_at(counts, now), _usual_at(counts, now + timedelta(hours=1)))


def _usual_at(counts: Mapping[int, int], moment: datetime) -> int:
    seen = sorted(counts.get(hours_before(moment, days), 0) for days in range(1, LEARNED_DAYS + 1))
    return seen[ceil(_USUAL_SHARE * len(seen)) - 1]


@dataclass(frozen=True, slots=True)
class PrebuiltHost:
    """A worker that may have prebuilt labs: its room, and what others claim of it."""

    room: Amount
    claims: Sequence[Claim]

    def left(self, now: datetime, ahead: timedelta) -> Amount:
        """Return what others leave of it from now on for a while; below zero is more than it has."""
        return self.room - Profile.of(self.claims).peak(now, now + ahead)


def choose_host(
    hosts: Mapping[str, PrebuiltHost], taken: Mapping[str, Amount], need: Amount, now: datetime
) -> str | None:
    """Return where a prebuilt lab goes: where most others are, of those that have room; None if none has.

    `taken` is what prebuilt labs have of each already.
    """
    fitting = [
        uid for uid, host in hosts.items() if (taken.get(uid, ZERO_AMOUNT) + need).within(host.left(now, FREE_FOR))
    ]
    return min(fitting, key=lambda uid: (-len(hosts[uid].claims), uid), default=None)


def hosts_of_waiting(
    hosts: Mapping[str, PrebuiltHost],
    taken: Mapping[str, Amount],
    waiting: Iterable[tuple[Amount, Callable[[str], bool]]],
    now: datetime,
) -> Mapping[str, Amount]:
    """Return what those who wait need of each worker: first where nothing has to give way for them.

    Each says what it needs and which workers suit it. Whom no worker would hold even without prebuilt labs has no use
    of their room.
    """
    wanted: dict[str, Amount] = {}
    for need, suits in waiting:
        left = {
            uid: host.left(now, GIVES_WAY_BEFORE) - wanted.get(uid, ZERO_AMOUNT)
            for uid, host in hosts.items()
            if suits(uid)
        }
        fitting = [uid for uid, amount in left.items() if need.within(amount)]
        beside = [uid for uid in fitting if (need + taken.get(uid, ZERO_AMOUNT)).within(left[uid])]
        uid = min(beside or fitting, default=None)
        if uid is not None:
            wanted[uid] = wanted.get(uid, ZERO_AMOUNT) + need
    return wanted


def choose_leaving(labs: Iterable[tuple[T, Amount]], left: Amount) -> Sequence[T]:
    """Return which prebuilt labs of a worker must end, so that the others fit into what is left of it.

    The first ones end first.
    """
    labs = list(labs)
    total = ZERO_AMOUNT
    for _, need in labs:
        total += need
    ending = list[T]()
    for one, need in labs:
        if total.within(left):
            break
        total -= need
        ending.append(one)
    return ending
