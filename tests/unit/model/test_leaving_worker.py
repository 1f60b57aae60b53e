"""What a session loses when it leaves its worker, and what it keeps."""

from harness import given
from lcm.model.kinds.session import LabletSessionStatus, Seat
from lcm.model.kinds.session_fields import fields_to_place_again, fields_without_worker

NOW = given.moment("09:00")
KEPT = {
    *("phase", "history", "observed_generation", "outcome", "outcome_reason", "expires_at", "ends_at", "claim", "seat"),
    *("requirements", "retry_count", "waiting", "last_decision", "cost_usd", "artifacts", "last_error"),
    *("observed_resources", "observation_count", "observed_at", "observation_request", "observation_error"),
    *("save_request", "save_error", "continues", "taken_by", "prebuilt_in"),
}
"""Its story, what it was promised, what it cost, what was saved, and what was learnt of its definition."""


def test_every_field_is_kept_or_lost_with_the_worker() -> None:
    lost = fields_without_worker(())
    assert set(lost).isdisjoint(KEPT)
    assert set(lost) | KEPT == set(LabletSessionStatus.__struct_fields__)
    assert {name: getattr(LabletSessionStatus(), name) for name in lost} == lost


def test_nothing_of_the_worker_is_left_in_a_session_that_is_placed_again() -> None:
    for session in (given.session(), given.asap()):
        fields = fields_to_place_again(session, "WorkerLost", "its worker w1 is gone", NOW)
        assert fields_without_worker(fields["conditions"]).items() <= fields.items()


def test_a_slot_keeps_its_promise_and_a_session_for_now_does_not() -> None:
    assert "seat" not in fields_to_place_again(given.session(), "WorkerLost", "gone", NOW)
    asap = given.asap(seat=Seat(pool="ccna", number=1))
    fields = fields_to_place_again(asap, "WorkerLost", "gone", NOW)
    assert (fields["claim"], fields["seat"]) == (None, None)
