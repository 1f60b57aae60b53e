"""CPU and memory as people write them."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import strategies as st

from harness.suite import for_all
from lcm.model.base.errors import Invalid
from lcm.model.base.quantity import Quantity, parse_cpu, parse_limits, parse_memory

MOST = 999_999_999
quantities = st.builds(Quantity, st.integers(1, MOST), st.integers(1, MOST))


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("1", 1_000),
        ("0.5", 500),
        ("2.5", 2_500),
        ("500m", 500),
        ("1500m", 1_500),
        ("0.001", 1),
        (".5", 500),
        ("007", 7_000),
        ("0.0001", 1),
        ("0.5m", 1),
        ("1.0001", 1_001),
        ("999999.999", MOST),
    ],
)
def test_cpu_is_read_into_thousandths(text: str, millis: int) -> None:
    assert parse_cpu(text) == millis


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [
        ("512Mi", 512),
        ("1Gi", 1_024),
        ("1024Mi", 1_024),
        ("2Gi", 2_048),
        ("4Gi", 4_096),
        ("2G", 2_048),
        ("1G", 1_024),
        ("512M", 512),
        ("0.5Gi", 512),
        ("0.1Mi", 1),
        ("1.0001Gi", 1_025),
    ],
)
def test_memory_is_read_into_megabytes_and_every_unit_is_binary(text: str, megabytes: int) -> None:
    assert parse_memory(text) == megabytes


NONSENSE: list[object] = [
    "",
    " ",
    "-1",
    "-0.5",
    "+1",
    "0",
    "0.0",
    "NaN",
    "nan",
    "inf",
    "-inf",
    "Infinity",
    "1e3",
    "0x10",
    "1,5",
    "1.2.3",
    "1 ",
    " 1",
    "1\n",
    "½",
    "٣",
    "one",
    "1 core",
    "1mm",
    "99999999999",
    "1000000",
    None,
    True,
    1,
    0.5,
    math.nan,
    math.inf,
    Decimal(1),
    [],
    {},
    b"1",
]


@pytest.mark.parametrize("value", NONSENSE, ids=repr)
def test_what_is_no_amount_of_cpu_is_refused_with_a_remedy(value: object) -> None:
    with pytest.raises(Invalid) as raised:
        parse_cpu(value)
    (fault,) = raised.value.faults
    assert fault.path == "resource_limits.cpu"
    assert "500m" in fault.remedy


MEMORY_NONSENSE = [
    *(value for value in NONSENSE if value != "1000000"),
    *("512", "1024", "1.5", "0Mi", "0.0Gi", "-1Gi", "NaNMi", "infGi", "Gi", "1 Gi", "1gi", "1GI", "1Ki", "1Ti", "1GB"),
    *("1Gi\n", "1Gii", "1000000000Mi", "999999999Gi"),
]


@pytest.mark.parametrize("value", MEMORY_NONSENSE, ids=repr)
def test_what_is_no_amount_of_memory_is_refused_with_a_remedy(value: object) -> None:
    with pytest.raises(Invalid) as raised:
        parse_memory(value)
    (fault,) = raised.value.faults
    assert fault.path == "resource_limits.memory"
    assert "512Mi" in fault.remedy


@pytest.mark.parametrize(
    ("limits", "want"),
    [
        ({"cpu": "1", "memory": "2Gi"}, Quantity(1_000, 2_048)),
        ({"cpu": "0.5", "memory": "512Mi"}, Quantity(500, 512)),
        ({"cpu": "2.5", "memory": "4Gi"}, Quantity(2_500, 4_096)),
        ({"memory": "2G", "cpu": "1"}, Quantity(1_000, 2_048)),
    ],
)
def test_limits_are_read_in_the_documented_forms(limits: dict[str, str], want: Quantity) -> None:
    assert parse_limits(limits) == want


@pytest.mark.parametrize(
    ("limits", "paths"),
    [
        (None, ["resource_limits"]),
        ("1", ["resource_limits"]),
        ([("cpu", "1")], ["resource_limits"]),
        ({}, ["resource_limits.cpu", "resource_limits.memory"]),
        ({"cpu": "1"}, ["resource_limits.memory"]),
        ({"memory": "1Gi"}, ["resource_limits.cpu"]),
        ({"cpu": "1", "memory": "1Gi", "gpu": "1"}, ["resource_limits.gpu"]),
        ({"CPU": "1", "memory": "1Gi"}, ["resource_limits.CPU", "resource_limits.cpu"]),
        (
            {"cpu": "-1", "memory": "512", 3: "x"},
            ["resource_limits.cpu", "resource_limits.memory", "resource_limits.3"],
        ),
    ],
)
def test_every_fault_of_limits_is_listed_with_its_remedy(limits: Any, paths: list[str]) -> None:
    with pytest.raises(Invalid) as raised:
        parse_limits(limits)
    assert [fault.path for fault in raised.value.faults] == paths
    assert all(fault.problem and fault.remedy for fault in raised.value.faults)


@for_all(quantities)
def test_what_is_written_is_read_back(quantity: Quantity) -> None:
    assert parse_limits(quantity.limits()) == quantity


@for_all(st.integers(0, 999_999), st.integers(0, 999_999_999), st.sampled_from(["", "m"]))
def test_cpu_is_never_rounded_down(whole: int, decimals: int, unit: str) -> None:
    text = f"{whole}.{decimals:09d}"
    asked = Fraction(text) * (1 if unit else 1_000)
    if not 0 < asked <= MOST:
        return
    assert asked <= parse_cpu(text + unit) < asked + 1


@for_all(st.integers(0, 999_999), st.integers(0, 999_999_999), st.sampled_from(["Mi", "M", "Gi", "G"]))
def test_memory_is_never_rounded_down(whole: int, decimals: int, unit: str) -> None:
    text = f"{whole}.{decimals:09d}"
    asked = Fraction(text) * (1_024 if unit.startswith("G") else 1)
    if not 0 < asked <= MOST:
        return
    assert asked <= parse_memory(text + unit) < asked + 1


def test_sums_are_exact() -> None:
    tenth, fifth = Quantity(parse_cpu("0.1")), Quantity(parse_cpu("0.2"))
    assert tenth + fifth == Quantity(parse_cpu("0.3"))
    assert (tenth + fifth).limits()["cpu"] == "0.3"


@for_all(st.lists(quantities))
def test_what_is_added_can_be_taken_away_again(several: list[Quantity]) -> None:
    total = sum(several, start=Quantity())
    for one in several:
        assert one.within(total)
        total -= one
    assert total == Quantity()


@pytest.mark.parametrize(
    ("need", "room", "fits"),
    [
        (Quantity(1, 1), Quantity(1, 1), True),
        (Quantity(2, 1), Quantity(1, 1), False),
        (Quantity(1, 2), Quantity(1, 1), False),
        (Quantity(0, 0), Quantity(0, 0), True),
    ],
)
def test_a_need_fits_only_in_both_dimensions(need: Quantity, room: Quantity, *, fits: bool) -> None:
    assert need.within(room) is fits


def test_a_quantity_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Quantity(1, 1).cpu_millis = 2  # type: ignore[misc]
