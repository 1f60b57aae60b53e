"""Of all who were promised a seat, those are found who can be in danger, in the order in which they came."""

from datetime import timedelta

from hypothesis import given as for_all
from hypothesis import strategies as st

from harness import given
from lcm.control.plane.protocol import Ref
from lcm.controllers.scheduler.index import PromisedSessions
from lcm.model.base.capacity import ZERO_AMOUNT, Claim
from lcm.model.kinds.session import LabletSession

_NOW = given.moment("09:00")
_HOUR = timedelta(hours=1)
_SPANS = st.integers(-3, 3).map(lambda hours: hours * _HOUR)
_STEPS = st.lists(st.tuples(st.integers(0, 5), _SPANS, _SPANS, st.booleans()), max_size=30)


@for_all(_STEPS, _SPANS, _SPANS)
def test_a_bench_finds_whom_one_would_find_by_looking_at_all(
    steps: list[tuple[int, timedelta, timedelta, bool]], until: timedelta, after: timedelta
) -> None:
    bench, here = PromisedSessions(), dict[int, tuple[LabletSession, timedelta, timedelta]]()
    for number, begins, later, stays in steps:
        ref = Ref(LabletSession, f"s{number}")
        if here.pop(number, None) is not None:
            bench.remove(ref)
        if stays:
            session = _promised(begins, later)
            here[number] = session, begins, later
            bench.add(ref, session)
    assert len(bench) == len(here)
    assert bench.all() == [session for session, _, _ in here.values()]
    found = [session for session, begins, later in here.values() if begins <= until or later > after]
    assert list(bench.find_early_or_late(_NOW + until, after)) == found


def _promised(begins: timedelta, later: timedelta) -> LabletSession:
    """Return a session whose claim begins then, so much later than its slot."""
    start = _NOW + begins
    claim = Claim(start=start, end=start + 9 * _HOUR, need=ZERO_AMOUNT)
    return given.session(timeslot_start=start - later, timeslot_end=start - later + _HOUR, claim=claim)
