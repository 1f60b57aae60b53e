"""Who may do what, written down a second time as sentences."""

import pytest

from harness import given
from lcm.model.access.identity import PERMISSIONS, SEES_ALL, Caller, Role, Verb
from lcm.model.access.learner import can_see, owner_of
from lcm.model.base.event import Event as StoredEvent
from lcm.model.base.event import ObjectEvent, decode_event, encode_data, encode_event
from lcm.model.kinds.registry import KINDS

ADA = Caller(name="ada", role=Role.USER)
BOB = Caller(name="bob", role=Role.USER)


def test_every_kind_and_verb_has_its_roles() -> None:
    assert PERMISSIONS.keys() == KINDS.keys()
    assert all(table.keys() == set(Verb) for table in PERMISSIONS.values())


def test_only_services_report_what_was_seen() -> None:
    assert {roles for table in PERMISSIONS.values() for verb, roles in table.items() if verb is Verb.STEP} == {
        frozenset({Role.SERVICE})
    }


@pytest.mark.parametrize("make", [given.session, given.reservation])
def test_a_person_sees_their_own_bookings_only(make: object) -> None:
    assert callable(make)
    booked = make(owner="ada")
    assert can_see(ADA, booked)
    assert not can_see(BOB, booked)
    assert not can_see(Caller(name="bob", role=Role.AUTHOR), booked)
    assert all(can_see(Caller(name="any", role=role), booked) for role in SEES_ALL)


def test_the_fleet_is_hidden_from_learners() -> None:
    assert not can_see(ADA, given.worker())
    assert can_see(Caller(name="eve", role=Role.AUTHOR), given.worker())
    assert can_see(ADA, given.definition())


def test_only_bookings_have_owners() -> None:
    owned = {type(resource).__name__ for resource in given.every() if owner_of(resource) is not None}
    assert owned == {"LabletSession", "Reservation"}


def test_an_event_survives_the_store() -> None:
    data = ObjectEvent(kind="LabWorker", name="w1", namespace="default", uid="u", resource_generation=1)
    event = StoredEvent(
        type="worker.updated",
        time=given.moment("09:00"),
        kind="LabWorker",
        name="w1",
        namespace="default",
        data=encode_data(data),
    )
    again = decode_event(encode_event(event))
    assert (again.type, again.time, bytes(again.data)) == (event.type, event.time, bytes(event.data))
