"""Which checks run when."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from lcm.model.kinds.pool import LabWorkerPool
from lcm.model.kinds.registry import Resource
from lcm.model.kinds.reservation import Reservation
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker
from lcm.sim.world.environment import Environment
from lcm.sim.world.world import Violation
from world.checks.capacity import seat_holds_what_is_promised, worker_is_not_overcommitted
from world.checks.continued import booking_keeps_what_was_saved, continued_lab_is_the_saved_one
from world.checks.events import alerts_are_told, change_is_told
from world.checks.hosting import nobody_waits_beside_room, reasons_are_its_own, unhostable_is_not_placed
from world.checks.labs import ended_session_left_no_lab, lab_is_made_for_a_live_session, old_lab_is_removed
from world.checks.leaders import effect_is_the_leaders, write_is_the_leaders
from world.checks.licences import ledger_is_right, licence_is_given_back_first, taken_seats_are_known
from world.checks.machines import (
    machine_has_a_record,
    machine_is_not_taken_by_effect,
    machine_is_not_taken_by_step,
    record_has_its_machine,
    session_is_not_ended_unwarned,
    worker_has_one_machine,
)
from world.checks.phases import phase_changes_by_the_table, story_is_only_added_to
from world.checks.places import place_is_as_wished
from world.checks.pools import (
    closed_pools_rest,
    hourly_budget_is_kept,
    load_stop_is_remembered,
    load_waits_for_cooldown,
    pools_have_their_minimum,
    pools_keep_their_maximum,
    promise_is_within_hours,
    start_is_allowed,
)
from world.checks.ports import ports_are_not_shared, ports_in_use_are_not_given, ports_in_use_are_seen
from world.checks.prebuilt import lab_is_given_once, prebuilt_gives_way, prebuilt_holds_no_promise
from world.checks.privacy import touched_is_their_own
from world.checks.promises import (
    booking_is_promised,
    late_start_has_its_reason,
    promise_is_not_taken_back,
    reservation_is_fulfilled,
    reservation_keeps_its_claims,
    seat_stays_with_its_worker,
    session_ends_in_time,
)
from world.checks.quotas import owner_is_within_limits, turn_is_fair
from world.checks.rest import (
    files_are_gone,
    labs_are_gone,
    machines_are_wanted,
    pools_are_small_again,
    sessions_are_over,
    workers_are_settled,
)
from world.checks.restores import held_lab_is_not_removed, held_labs_are_told
from world.checks.sizes import misfits_are_told, reason_is_true, size_is_seen
from world.checks.versions import upgrade_restarts_nothing
from world.checks.writes import nothing_goes_without_reason, object_comes_to_rest, wish_is_not_put_back
from world.observed import Commit, ObservedChange, ObservedEffect, ObservedState

ChangeCheck = Callable[[ObservedState, ObservedChange[Any]], Sequence[Violation]]

_EVERY: Final = (
    phase_changes_by_the_table,
    story_is_only_added_to,
    wish_is_not_put_back,
    object_comes_to_rest,
)
ALWAYS: Final[Mapping[type[Resource], Sequence[ChangeCheck]]] = {
    LabletSession: (
        *_EVERY,
        worker_is_not_overcommitted,
        ports_are_not_shared,
        ports_in_use_are_not_given,
        seat_holds_what_is_promised,
        booking_is_promised,
        promise_is_not_taken_back,
        seat_stays_with_its_worker,
        late_start_has_its_reason,
        session_is_not_ended_unwarned,
        upgrade_restarts_nothing,
        unhostable_is_not_placed,
        reasons_are_its_own,
        turn_is_fair,
        place_is_as_wished,
        promise_is_within_hours,
        booking_keeps_what_was_saved,
        lab_is_given_once,
        prebuilt_holds_no_promise,
    ),
    Reservation: (*_EVERY, seat_holds_what_is_promised, reservation_keeps_its_claims, promise_is_within_hours),
    LabWorker: (*_EVERY, machine_is_not_taken_by_step),
    LabWorkerPool: (*_EVERY, load_waits_for_cooldown, load_stop_is_remembered),
}
"""After each commit, about each object of a kind that it changed."""
OTHERS: Final[Sequence[ChangeCheck]] = _EVERY
"""Likewise, about objects of every other kind."""

LOOKING: Final[
    Mapping[type[Resource], Sequence[Callable[[ObservedState, ObservedChange[Any], Environment], Sequence[Violation]]]]
] = {
    LabletSession: (ended_session_left_no_lab, continued_lab_is_the_saved_one),
}
"""Likewise, and compared with what is really there."""

EACH_COMMIT: Final[Sequence[Callable[[ObservedState, Commit], Sequence[Violation]]]] = (
    write_is_the_leaders,
    nothing_goes_without_reason,
    touched_is_their_own,
    change_is_told,
    owner_is_within_limits,
)
"""After each commit, about all of it."""

LOOKING_AT_COMMIT: Final[Sequence[Callable[[ObservedState, Commit, Environment], Sequence[Violation]]]] = (
    start_is_allowed,
)
"""Likewise, and compared with what is really there."""

AFTER_EFFECT: Final[Sequence[Callable[[ObservedState, ObservedEffect, Environment], Sequence[Violation]]]] = (
    effect_is_the_leaders,
    worker_has_one_machine,
    machine_is_not_taken_by_effect,
    licence_is_given_back_first,
    lab_is_made_for_a_live_session,
    held_lab_is_not_removed,
)
"""After each effect on the outside."""

EVERY_MINUTE: Final[Sequence[Callable[[ObservedState, Environment, datetime], Sequence[Violation]]]] = (
    machine_has_a_record,
    record_has_its_machine,
    old_lab_is_removed,
    held_labs_are_told,
    session_ends_in_time,
    reservation_is_fulfilled,
    nobody_waits_beside_room,
    size_is_seen,
    misfits_are_told,
    reason_is_true,
    ports_in_use_are_seen,
    pools_have_their_minimum,
    pools_keep_their_maximum,
    closed_pools_rest,
    hourly_budget_is_kept,
    prebuilt_gives_way,
)
"""Every minute: what may be so for a while, and not for long."""

AT_REST: Final[Sequence[Callable[[ObservedState, Environment], Sequence[Violation]]]] = (
    sessions_are_over,
    labs_are_gone,
    machines_are_wanted,
    pools_are_small_again,
    workers_are_settled,
    taken_seats_are_known,
    ledger_is_right,
    files_are_gone,
)
"""When nothing is going on any more."""


def at_rest(seen: ObservedState, stage: Environment) -> Sequence[Violation]:
    """Run all checks that must hold when nothing is going on any more."""
    return [*(found for check in AT_REST for found in check(seen, stage)), *alerts_are_told(seen)]
