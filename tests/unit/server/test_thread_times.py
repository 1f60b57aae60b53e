"""What became of the time of threads."""

import threading
import time

import pytest

from lcm.system.thread_times import Moment, ThreadReader, ThreadTimes, busiest_since, lost_between, times_of


def table(*stolen: int) -> bytes:
    """Make the system's table of processors, which were stolen for so many hundredths of a second."""
    lines = [f"cpu{number} 5 0 7 90 1 0 2 {one} 0 0" for number, one in enumerate(stolen)]
    return "\n".join([f"cpu  9 0 9 99 9 0 9 {sum(stolen)} 0 0", *lines, "intr 12 3", ""]).encode()


def moment(at: float, *stolen: int, ran: float = 0.0, waited: float = 0.0, on: str = "0") -> Moment:
    return Moment(at, ThreadTimes(ran, waited), {}, on, table(*stolen))


BEGIN = moment(10.0, 500, 700)


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        pytest.param(moment(10.4, 500, 700), 0.0, id="a step that waits for something"),
        pytest.param(moment(10.4, 500, 700, ran=0.4), 0.0, id="a step that computes"),
        pytest.param(moment(10.4, 500, 700, ran=0.1, waited=0.3), 0.3, id="other programs ran"),
        pytest.param(moment(10.4, 530, 700), 0.3, id="its processor was stolen"),
        pytest.param(moment(10.4, 500, 730), 0.0, id="another processor was stolen"),
        pytest.param(moment(10.4, 530, 700, on="1"), 0.3, id="it woke elsewhere, and its processor was stolen"),
        pytest.param(moment(10.4, 500, 730, on="1"), 0.3, id="it woke on a processor that was stolen"),
        pytest.param(moment(10.4, 520, 700, waited=0.3), 0.3, id="it waited for a stolen processor"),
        pytest.param(moment(10.4, 540, 700, ran=0.3), 0.1, id="what it ran is not lost"),
    ],
)
def test_time_is_lost_while_others_have_the_processor(after: Moment, lost: float) -> None:
    assert lost_between(BEGIN, after) == pytest.approx(lost)


@pytest.mark.parametrize("told", [b"", b"cpu  1 2\n", b"cpu  1 2 3 4\ncpu0 1 2 3 4\n"])
def test_where_the_system_does_not_tell_what_was_stolen_nothing_was(told: bytes) -> None:
    after = Moment(10.4, ThreadTimes(waited=0.1), processor="0", stolen=told)
    assert lost_between(Moment(10.0, processor="0", stolen=told), after) == pytest.approx(0.1)


LONG = 100
"""So often wakes up who waits for Python's lock for half a second."""


@pytest.mark.parametrize(
    ("own", "others", "lost"),
    [
        pytest.param(ThreadTimes(0, 0, LONG), [(0.5, 0.0)], 0.0, id="another thread computed"),
        pytest.param(ThreadTimes(0, 0, LONG), [(0.1, 0.4)], 0.4, id="another thread had no processor"),
        pytest.param(ThreadTimes(0, 0.1, LONG), [(0.1, 0.4)], 0.4, id="neither had one"),
        pytest.param(ThreadTimes(0, 0, LONG), [(0.1, 0.2)], 0.2, id="another thread slept with the lock for a while"),
        pytest.param(ThreadTimes(0, 0, LONG), [(0.1, 0.4), (0.3, 0.0)], 0.1, id="a third one computed meanwhile"),
        pytest.param(ThreadTimes(0, 0, LONG), [(0.0, 0.0)], 0.0, id="another thread slept with the lock"),
        pytest.param(ThreadTimes(0, 0, 1), [(0.1, 0.4)], 0.0, id="the step waited for something else"),
        pytest.param(ThreadTimes(0.5, 0, LONG), [(0.1, 0.4)], 0.0, id="the step computed"),
        pytest.param(ThreadTimes(0, 0, LONG), [], 0.0, id="it was alone"),
    ],
)
def test_time_is_lost_while_the_holder_of_the_lock_has_no_processor(
    own: ThreadTimes, others: list[tuple[float, float]], lost: float
) -> None:
    times = {number: ThreadTimes(*one) for number, one in enumerate(others)}
    assert lost_between(Moment(10.0), Moment(10.5, own, times)) == pytest.approx(lost, abs=1e-6)


@pytest.mark.parametrize(("read_at", "lost"), [(10.0, 0.3), (9.9, 0.2), (9.0, 0.0), (10.05, 0.25)])
def test_by_what_lies_between_two_readings_less_is_lost(read_at: float, lost: float) -> None:
    own, others = ThreadTimes(0, 0, LONG), {1: ThreadTimes(0.2, 0.3)}
    found = lost_between(Moment(10.0), Moment(10.5, own, others), Moment(read_at))
    assert found == pytest.approx(lost, abs=1e-6)


@pytest.mark.parametrize(("read_at", "lost"), [(10.0, 0.3), (9.9, 0.2), (9.0, 0.0), (10.05, 0.3)])
def test_what_was_stolen_before_is_not_lost(read_at: float, lost: float) -> None:
    around = BEGIN._replace(at=read_at)
    assert lost_between(Moment(10.0), moment(10.4, 530, 700), around) == pytest.approx(lost)


def test_a_reader_tells_what_a_thread_ran() -> None:
    with ThreadReader(threading.get_native_id(), time.monotonic) as reader:
        before = reader.read()
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        after = reader.read()
    assert after.at - before.at >= 0.1
    if before.processor:
        assert after.times.ran - before.times.ran >= 0.09
        assert lost_between(before, after) <= after.at - before.at - 0.09


def test_the_busiest_thread_is_found() -> None:
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            sum(range(100))

    idle, busy = threading.Thread(target=over.wait), threading.Thread(target=work)
    with ThreadReader(threading.get_native_id(), time.monotonic) as reader:
        before = reader.read()
        for one in (idle, busy):
            one.start()
        time.sleep(0.5)  # meanwhile the busy one runs
        after, found = reader.read(), busiest_since(before, besides=0)
        over.set()
        for one in (idle, busy):
            one.join()
        gone = reader.read()
    assert found is not None
    if before.processor:
        assert found[0] is busy
        assert 0.1 < found[1] < 60
        assert {idle.native_id, busy.native_id} <= after.others.keys()
        assert not {idle.native_id, busy.native_id} & gone.others.keys()
        assert times_of(0) == ThreadTimes()
