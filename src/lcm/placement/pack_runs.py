"""Runs of machines on seats of the kind that suits them: a seat's machine is of one kind, but its runs need not stay.

A run is a time in which a machine runs for claims, short gaps included. Between runs it is off, so that each run costs
the same on any seat of its kind. A run that needs little costs less on a smaller machine, and joins others of that
kind.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from lcm.placement.pack_kinds import MachineKind, SeatJudge
from lcm.placement.request import HeldClaim
from lcm.placement.seats import span_of


class _Run(NamedTuple):
    start: int
    end: int
    seat: int
    holders: Sequence[HeldClaim]


class _Row(NamedTuple):
    """What a seat has so far: the kind of its machine, and when its last run ends."""

    kind: MachineKind
    until: int


def regroup_runs(
    rows: Mapping[int, Sequence[HeldClaim]], seats: Collection[int], judge: SeatJudge
) -> dict[str, int] | None:
    """Return the seats of the holders of some seats, so that each run is on a machine of the cheapest kind for it.

    None of these `seats` may have a kind of its own, or anything that has to stay. Runs remain on their seats where
    they can. Return None if there are too few seats for that.
    """
    taken: dict[int, _Row] = {}
    plan: dict[str, int] = {}
    for run in sorted(run for seat in seats for run in _split_runs(seat, rows.get(seat, ()), judge.gap)):
        kind = judge.choose_kind(0, [held.claim for held in run.holders])
        seat = _choose_seat(run, kind, seats, taken, judge.gap)
        if seat is None:
            return None
        taken[seat] = _Row(kind, run.end)
        plan.update((held.holder, seat) for held in run.holders)
    return plan


def _choose_seat(
    run: _Run, kind: MachineKind, seats: Collection[int], taken: Mapping[int, _Row], gap: int
) -> int | None:
    """Return the run's own seat, another of its kind, or one that has nothing yet, whichever is there; else None."""
    same = [seat for seat, row in taken.items() if row.kind == kind and run.start - row.until >= gap]
    if run.seat in same or run.seat not in taken:
        return run.seat
    return next((seat for seat in (*same, *seats) if seat in same or seat not in taken), None)


def _split_runs(seat: int, claims: Sequence[HeldClaim], gap: int) -> Iterator[_Run]:
    """Iterate over the runs of a seat."""
    group: list[HeldClaim] = []
    begin = until = 0
    for held in sorted(claims, key=lambda held: (span_of(held.claim), held.holder)):
        start, end = span_of(held.claim)
        if group and start - until >= gap:
            yield _Run(begin, until, seat, group)
            group = []
        begin, until = (begin, max(until, end)) if group else (start, end)
        group.append(held)
    if group:
        yield _Run(begin, until, seat, group)
