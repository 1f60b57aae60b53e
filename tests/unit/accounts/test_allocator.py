"""ResourceAllocator as its document shows it: the examples, the edges, the defaults."""

import asyncio
import inspect
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from lcm.control.accounts.allocator import ResourceAllocator
from lcm.model.base.errors import Invalid
from lcm.store.memory import MemoryStore


class HandClock:
    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.moment


@pytest.fixture
def allocator() -> ResourceAllocator:
    return ResourceAllocator(total_cpu=8.0, total_memory_gb=16)


@pytest.mark.parametrize(
    ("limits", "cpu", "memory_mb"),
    [
        ({"cpu": "1", "memory": "2Gi"}, 1.0, 2048),
        ({"cpu": "0.5", "memory": "512Mi"}, 0.5, 512),
        ({"cpu": "2.5", "memory": "4Gi"}, 2.5, 4096),
        ({"cpu": "1", "memory": "1Gi"}, 1.0, 1024),
        ({"cpu": "1", "memory": "1024Mi"}, 1.0, 1024),
        ({"cpu": "1", "memory": "2G"}, 1.0, 2048),
        ({"cpu": "500m", "memory": "512M"}, 0.5, 512),
    ],
)
async def test_every_documented_format_is_allocated(
    allocator: ResourceAllocator, limits: dict[str, str], cpu: float, memory_mb: int
) -> None:
    assert await allocator.check_availability(limits)
    await allocator.allocate_resources(limits)
    usage = allocator.get_resource_usage()
    assert (usage["allocated_cpu"], usage["allocated_memory_mb"]) == (cpu, memory_mb)


async def test_usage_is_the_documented_example(allocator: ResourceAllocator) -> None:
    await allocator.allocate_resources({"cpu": "1", "memory": "2Gi"})
    await allocator.allocate_resources({"cpu": "2", "memory": "4Gi"})
    assert allocator.get_resource_usage() == {
        "total_cpu": 8.0,
        "allocated_cpu": 3.0,
        "available_cpu": 5.0,
        "cpu_utilization": 37.5,
        "total_memory_mb": 16384,
        "allocated_memory_mb": 6144,
        "available_memory_mb": 10240,
        "memory_utilization": 37.5,
        "active_allocations": 2,
    }


NONSENSE: list[object] = [
    {},
    {"cpu": "1"},
    {"memory": "1Gi"},
    {"cpu": "", "memory": "1Gi"},
    {"cpu": "-1", "memory": "1Gi"},
    {"cpu": "0", "memory": "1Gi"},
    {"cpu": "nan", "memory": "1Gi"},
    {"cpu": "inf", "memory": "1Gi"},
    {"cpu": "two", "memory": "1Gi"},
    {"cpu": 2, "memory": "1Gi"},
    {"cpu": "1", "memory": "1024"},
    {"cpu": "1", "memory": "-1Gi"},
    {"cpu": "1", "memory": "1Ti"},
    {"cpu": "1", "memory": "Gi"},
    {"cpu": "1", "memory": "1Gi", "gpu": "1"},
    None,
    "1 cpu",
]


@pytest.mark.parametrize("limits", NONSENSE, ids=str)
async def test_nonsense_is_not_available_and_cannot_be_allocated(allocator: ResourceAllocator, limits: object) -> None:
    assert await allocator.check_availability(limits) is False  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="resource_limits"):
        await allocator.allocate_resources(limits)  # type: ignore[arg-type]
    assert allocator.get_active_allocations() == {}


async def test_what_does_not_fit_is_refused_with_the_numbers(allocator: ResourceAllocator) -> None:
    await allocator.allocate_resources({"cpu": "7", "memory": "1Gi"})
    too_much = {"cpu": "2", "memory": "1Gi"}
    assert await allocator.check_availability(too_much) is False
    with pytest.raises(ValueError, match="2 CPU and 1024Mi wanted, 1 CPU and 15360Mi available"):
        await allocator.allocate_resources(too_much)


async def test_everything_can_be_allocated_exactly_and_not_a_thousandth_more(allocator: ResourceAllocator) -> None:
    await asyncio.gather(*(allocator.allocate_resources({"cpu": "0.1", "memory": "1Mi"}) for _ in range(80)))
    assert allocator.get_resource_usage()["available_cpu"] == 0
    assert not await allocator.check_availability({"cpu": "0.001", "memory": "1Mi"})


async def test_released_resources_are_available_again(allocator: ResourceAllocator) -> None:
    allocation = await allocator.allocate_resources({"cpu": "8", "memory": "16Gi"})
    await allocator.release_resources(allocation)
    assert await allocator.check_availability({"cpu": "8", "memory": "16Gi"})


async def test_an_allocation_can_be_kept_as_text_and_is_listed(allocator: ResourceAllocator) -> None:
    allocation = await allocator.allocate_resources({"cpu": "2", "memory": "4Gi"})
    assert all(isinstance(value, str) for value in allocation.values())
    listed = allocator.get_active_allocations()
    assert listed == {allocation["allocation_id"]: allocation}
    assert (allocation["cpu"], allocation["memory"]) == ("2", "4096Mi")


@pytest.mark.parametrize("data", [{"allocation_id": "unknown"}, {}, {"allocation_id": ""}, None])
async def test_releasing_an_unknown_allocation_is_safe_and_says_so(
    allocator: ResourceAllocator, data: dict[str, str] | None
) -> None:
    with capture_logs() as logs:
        await allocator.release_resources(data)
    assert [line["event"] for line in logs] == ["nothing to release: unknown or already released"]


async def test_releasing_twice_is_safe_and_says_so(allocator: ResourceAllocator) -> None:
    allocation = await allocator.allocate_resources({"cpu": "1", "memory": "1Gi"})
    other = await allocator.allocate_resources({"cpu": "1", "memory": "1Gi"})
    await allocator.release_resources(allocation)
    with capture_logs() as logs:
        await allocator.release_resources(allocation)
    assert len(logs) == 1
    assert list(allocator.get_active_allocations()) == [other["allocation_id"]]


async def test_expired_allocations_are_cleaned_up_and_counted() -> None:
    clock = HandClock()
    allocator = ResourceAllocator(8.0, 16, clock=clock)
    await allocator.allocate_resources({"cpu": "1", "memory": "1Gi"})
    await allocator.allocate_resources({"cpu": "1", "memory": "1Gi"})
    clock.moment += timedelta(hours=23)
    young = await allocator.allocate_resources({"cpu": "1", "memory": "1Gi"})
    assert await allocator.cleanup_expired_allocations() == 0
    clock.moment += timedelta(hours=2)
    assert await allocator.cleanup_expired_allocations(max_age_hours=24) == 2
    assert list(allocator.get_active_allocations()) == [young["allocation_id"]]


def test_totals_default_to_the_environment_else_32_and_128(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOTAL_CPU_CORES", raising=False)
    monkeypatch.delenv("TOTAL_MEMORY_GB", raising=False)
    usage = ResourceAllocator().get_resource_usage()
    assert (usage["total_cpu"], usage["total_memory_mb"]) == (32.0, 128 * 1024)
    monkeypatch.setenv("TOTAL_CPU_CORES", "4.5")
    monkeypatch.setenv("TOTAL_MEMORY_GB", "8")
    usage = ResourceAllocator().get_resource_usage()
    assert (usage["total_cpu"], usage["total_memory_mb"]) == (4.5, 8 * 1024)
    assert ResourceAllocator(total_cpu=64.0, total_memory_gb=256).get_resource_usage()["total_cpu"] == 64.0


@pytest.mark.parametrize(
    ("name", "value"), [("TOTAL_CPU_CORES", "many"), ("TOTAL_MEMORY_GB", "-1"), ("TOTAL_CPU_CORES", "nan")]
)
def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match=name):
        ResourceAllocator()


@pytest.mark.parametrize(
    ("cpu", "memory"), [(0.0, 1), (-1.0, 1), (0.0001, 1), (float("nan"), 1), (float("inf"), 1), (1.0, 0)]
)
def test_an_impossible_total_is_refused(cpu: float, memory: int) -> None:
    with pytest.raises(ValueError, match="not possible"):
        ResourceAllocator(cpu, memory)


def test_a_store_that_was_not_read_does_not_look_empty() -> None:
    allocator = ResourceAllocator(store=MemoryStore())
    with pytest.raises(RuntimeError, match="open"):
        allocator.get_resource_usage()


@pytest.mark.parametrize(
    ("verb", "is_async"),
    [
        ("check_availability", True),
        ("allocate_resources", True),
        ("release_resources", True),
        ("cleanup_expired_allocations", True),
        ("get_resource_usage", False),
        ("get_active_allocations", False),
    ],
)
def test_the_surface_is_the_documented_one(verb: str, *, is_async: bool) -> None:
    assert inspect.iscoroutinefunction(getattr(ResourceAllocator, verb)) == is_async


async def test_what_is_shown_is_true_when_allocating_and_releasing_overlap(allocator: ResourceAllocator) -> None:
    first = await allocator.allocate_resources({"cpu": "1", "memory": "1Gi"})
    await asyncio.gather(
        allocator.release_resources(first), allocator.allocate_resources({"cpu": "2", "memory": "1Gi"})
    )
    assert allocator.get_resource_usage()["allocated_cpu"] == 2


async def test_an_id_that_exists_already_is_not_tried_for_ever() -> None:
    ids = iter(["same", "same", "other"])
    allocator = ResourceAllocator(8.0, 16, ids=lambda: next(ids))
    await allocator.allocate_resources({"cpu": "1", "memory": "1Gi"})
    assert (await allocator.allocate_resources({"cpu": "1", "memory": "1Gi"}))["allocation_id"] == "other"


def test_totals_that_are_given_need_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOTAL_CPU_CORES", "many")
    assert ResourceAllocator(4.0, 8).get_resource_usage()["total_cpu"] == 4.0
