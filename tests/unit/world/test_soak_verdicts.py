"""A soak's verdict: noise and steps are flat, a leak is not."""

import random
from collections.abc import Callable, Sequence

import pytest

from soak.verdicts import Compacted, Sample, bytes_per_session, judge_samples, judge_stores, median_slope

MB = 1_000_000
Series = Callable[[int], float]


def taken(memory_mb: Series, files: Series = lambda _: 60, *, until: int = 2_000) -> Sequence[Sample]:
    """Make a sample every 25 sessions, with noise as an allocator and a clock make it."""
    chance = random.Random(7)
    return [
        Sample(
            ended,
            ended / 3,
            int((memory_mb(ended) + chance.uniform(-1.5, 1.5)) * MB),
            int(files(ended) + chance.uniform(-3, 3)),
            *(0, 0, 0, 0),
        )
        for ended in range(25, until + 1, 25)
    ]


@pytest.mark.parametrize(
    "memory_mb",
    [
        pytest.param(lambda _: 112, id="the same"),
        pytest.param(lambda ended: min(90 + ended * 22 / 500, 112), id="grows until it is settled"),
        pytest.param(lambda ended: 112 + ended % 200 / 50, id="rises and falls with the archive"),
        pytest.param(lambda ended: 112 if ended < 1_400 else 114, id="one step of the allocator"),
        pytest.param(lambda ended: 112 - ended / 1_000, id="falls"),
        pytest.param(lambda ended: 140 if ended == 1_900 else 112, id="one peak"),
    ],
)
def test_memory_that_stays_is_flat(memory_mb: Series) -> None:
    assert judge_samples(taken(memory_mb)) == []


@pytest.mark.parametrize(
    "memory_mb",
    [
        pytest.param(lambda ended: 112 + ended * 0.042, id="42 KB a session"),
        pytest.param(lambda ended: 112 + ended * 0.006, id="6 KB a session"),
        pytest.param(lambda ended: 112 if ended < 1_400 else 122, id="a step that stays"),
        pytest.param(lambda ended: 112 if ended < 1_250 else 112 + (ended - 1_250) * 0.03, id="begins late"),
    ],
)
def test_memory_that_grows_is_a_fault(memory_mb: Series) -> None:
    faults = judge_samples(taken(memory_mb))
    assert faults
    assert all(fault.startswith("memory grows") for fault in faults)


def test_open_files_may_vary_but_not_grow() -> None:
    assert judge_samples(taken(lambda _: 112, lambda ended: 60 + ended % 100 / 20)) == []
    loaded, idle = judge_samples(taken(lambda _: 112, lambda ended: 60 + ended / 50))
    assert loaded.startswith("open files under load grow: from 74 to 96;")
    assert idle.startswith("open files without load grow: from 58 to 102;")


def test_files_that_stay_open_when_the_last_session_is_gone_are_a_fault() -> None:
    begun, *loaded = taken(lambda _: 112, lambda _: 90)
    samples = [begun._replace(files=14), *loaded]
    assert judge_samples([*samples, loaded[-1]._replace(files=16)]) == []
    assert judge_samples([*samples, loaded[-1]._replace(files=45)]) == [
        "open files without load grow: from 14 to 45; at most 8 more are allowed"
    ]


def test_a_log_that_is_never_used_again_from_its_start_is_a_fault() -> None:
    samples = [one._replace(log_bytes=one.ended * 10_000) for one in taken(lambda _: 112)]
    assert judge_samples(samples) == ["the store's log takes 20.0 MB; at most 16 are allowed"]


def test_too_few_samples_are_no_proof() -> None:
    assert judge_samples([]) == ["0 samples after session 500 are too few to judge; at least 8 are needed"]
    assert judge_samples(taken(lambda _: 112, until=600)) != []


def test_a_slope_is_that_of_most_points() -> None:
    assert median_slope([(0, 0), (1, 2), (2, 4), (3, 99), (4, 8)]) == 2


def stored(sizes: dict[int, int], *, times_new: float = 1.2, left: int = 70) -> Sequence[Compacted]:
    """Make stores that keep so many sessions in so many bytes."""
    return [
        Compacted(f"{kept} kept", kept, kept * 5 + left, size, size, int(size / times_new))
        for kept, size in sizes.items()
    ]


EVEN = {2_000: 24_300_000, 400: 5_100_000, 100: 1_480_000, 0: 300_000}


def test_a_store_that_follows_what_is_alive_is_well() -> None:
    assert judge_stores(stored(EVEN), 60) == []
    assert bytes_per_session(stored(EVEN)) == pytest.approx([12_000, 12_067, 11_800], rel=0.01)


def test_a_store_that_stays_as_large_as_it_was_is_a_fault() -> None:
    same = stored(dict.fromkeys(EVEN, 24_300_000))
    assert judge_stores(same, 60) == [
        "the store does not follow what is alive: 0.0, 0.0, 0.0 KB per session between one number kept and the next"
    ]


def test_a_store_that_shrinks_too_late_is_a_fault() -> None:
    assert judge_stores(stored(EVEN | {400: 18_000_000}), 60) == [
        "the store does not follow what is alive: 3.9, 55.1, 11.8 KB per session between one number kept and the next"
    ]


def test_a_store_that_is_mostly_empty_is_a_fault() -> None:
    faults = judge_stores(stored(EVEN, times_new=2.5), 60)
    assert len(faults) == len(EVEN)
    assert faults[0].startswith("2000 kept: the store takes 2.50 times what a new one takes with the same content")


def test_what_sessions_leave_behind_is_a_fault() -> None:
    assert judge_stores(stored(EVEN, left=2_070), 60) == [
        "2070 entries are left when every session is gone, 60 were there before the first; at most 200 more are allowed"
    ]
