"""When a pool wants to grow or shrink."""

import msgspec
import pytest
from hypothesis import strategies as st

from harness.suite import for_all
from lcm.model.kinds.pool import (
    CapacityThresholds,
    PoolCapacitySummary,
    get_overall_utilization,
    needs_scale_down,
    needs_scale_up,
)

DEFAULTS = CapacityThresholds()


def pool(cpu: float | None, memory: float | None, labs: int = 10, workers: int = 2) -> PoolCapacitySummary:
    return PoolCapacitySummary(
        workers=workers, ready_workers=workers, labs=labs, cpu_utilization=cpu, memory_utilization=memory
    )


@pytest.mark.parametrize(
    ("summary", "grows"),
    [
        (pool(0.5, 0.5), False),
        (pool(0.75, 0.80), False),
        (pool(0.76, 0.10), True),
        (pool(0.10, 0.81), True),
        (pool(None, None), False),
        (pool(None, 0.9), True),
        (pool(0.1, 0.1, labs=30), False),
        (pool(0.1, 0.1, labs=31), True),
        (pool(None, None, labs=1, workers=0), True),
        (pool(None, None, labs=0, workers=0), False),
    ],
)
def test_a_pool_grows_when_any_threshold_is_passed(summary: PoolCapacitySummary, *, grows: bool) -> None:
    assert needs_scale_up(summary, DEFAULTS) is grows


@pytest.mark.parametrize(
    ("summary", "shrinks"),
    [
        (pool(0.29, 0.39, labs=5), True),
        (pool(0.30, 0.39, labs=5), False),
        (pool(0.29, 0.40, labs=5), False),
        (pool(0.29, 0.39, labs=6), False),
        (pool(None, 0.1, labs=0), False),
        (pool(0.1, None, labs=0), False),
        (pool(0.0, 0.0, labs=0, workers=0), False),
    ],
)
def test_a_pool_shrinks_only_when_all_are_passed_and_all_was_measured(
    summary: PoolCapacitySummary, *, shrinks: bool
) -> None:
    assert needs_scale_down(summary, DEFAULTS) is shrinks


@pytest.mark.parametrize(
    ("cpu", "memory", "want"),
    [(0.2, 0.6, 0.6), (0.7, 0.6, 0.7), (None, 0.6, 0.6), (0.7, None, 0.7), (None, None, None)],
)
def test_overall_utilization_is_the_scarcer_of_the_two(
    cpu: float | None, memory: float | None, want: float | None
) -> None:
    assert get_overall_utilization(pool(cpu, memory)) == want


measured = st.none() | st.floats(0, 1)


@for_all(measured, measured, st.integers(0, 200), st.integers(0, 10))
def test_no_pool_wants_both(cpu: float | None, memory: float | None, labs: int, workers: int) -> None:
    summary = pool(cpu, memory, labs, workers)
    assert not (needs_scale_up(summary, DEFAULTS) and needs_scale_down(summary, DEFAULTS))


def test_lesson_3_a_booting_worker_counts_so_that_none_is_asked_for_twice() -> None:
    busy = PoolCapacitySummary(workers=2, ready_workers=1, booting_workers=1, labs=20, cpu_utilization=0.5)
    assert not needs_scale_up(busy, CapacityThresholds())
    assert needs_scale_up(msgspec.structs.replace(busy, booting_workers=0), CapacityThresholds())
    assert needs_scale_up(msgspec.structs.replace(busy, labs=31), CapacityThresholds())
    assert needs_scale_up(msgspec.structs.replace(busy, cpu_utilization=0.76), CapacityThresholds())
