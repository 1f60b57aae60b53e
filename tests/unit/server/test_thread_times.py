"""What became of the time of threads."""

import threading
import time

import pytest

from lcm.system.thread_times import BusyThreads, Moment, lost_between, moments


def table(*stolen: int) -> bytes:
    """Make the system's table of processors, which were stolen for so many hundredths of a second."""
    lines = [f"cpu{number} 5 0 7 90 1 0 2 {one} 0 0" for number, one in enumerate(stolen)]
    return "\n".join([f"cpu  9 0 9 99 9 0 9 {sum(stolen)} 0 0", *lines, "intr 12 3", ""]).encode()


def moment(at: float, *stolen: int, ran: float = 0.0, waited: float = 0.0, on: str = "0") -> Moment:
    return Moment(at, ran, waited, on, table(*stolen))


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
    after = Moment(10.4, waited=0.1, processor="0", stolen=told)
    assert lost_between(Moment(10.0, processor="0", stolen=told), after) == pytest.approx(0.1)


def test_moments_tell_what_a_thread_ran() -> None:
    with moments(time.monotonic) as read:
        before = read()
        until = time.thread_time() + 0.1
        while time.thread_time() < until:
            pass
        after = read()
    assert after.at - before.at >= 0.1
    if before.processor:
        assert after.ran - before.ran >= 0.09
        assert lost_between(before, after) <= after.at - before.at - 0.09


def test_the_busiest_thread_is_found() -> None:
    over, threads = threading.Event(), BusyThreads()

    def work() -> None:
        while not over.is_set():
            sum(range(100))

    idle = threading.Thread(target=over.wait, name="idle")
    busy = threading.Thread(target=work, name="busy")
    threads.note()
    for one in (idle, busy):
        one.start()
    time.sleep(0.5)
    found = threads.busiest(besides=0)
    over.set()
    for one in (idle, busy):
        one.join()
    assert found is not None
    assert found[0] is busy
    assert 0.1 < found[1] < 60
