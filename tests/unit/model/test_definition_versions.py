"""Versions are compared as versions."""

import itertools

import pytest
from hypothesis import strategies as st

from harness.suite import for_all
from lcm.model.kinds.definition import AmiRequirements, is_version_allowed, version_key

ASCENDING = [
    "1",
    "1.0.1",
    "1.2",
    "1.10-rc1",
    "1.10-rc2",
    "1.10",
    "2",
    "2.7",
    "2.9.0-dev",
    "2.9.0",
    "2.9.1",
    "2.10",
    "10",
]
"""From oldest to newest."""


@pytest.mark.parametrize(("older", "newer"), list(itertools.combinations(ASCENDING, 2)))
def test_versions_are_ordered_as_versions(older: str, newer: str) -> None:
    assert version_key(older) < version_key(newer)


@pytest.mark.parametrize(("left", "right"), [("2.7", "2.7.0"), ("2", "2.0.0"), ("02.7", "2.7"), ("0", "0.0")])
def test_zeros_at_the_end_say_nothing(left: str, right: str) -> None:
    assert version_key(left) == version_key(right)


def test_what_follows_the_numbers_is_no_number() -> None:
    assert version_key("2.9.dev1.5")[0] == (2, 9)
    assert version_key("2.9.1+build.7")[0] == (2, 9, 1)


@pytest.mark.parametrize(
    ("version", "low", "high", "allowed"),
    [
        ("2.10.0", "2.7", None, True),
        ("2.7", "2.7.0", None, True),
        ("2.7.0", "2.7", None, True),
        ("2.6.9", "2.7", None, False),
        ("2.9.1+build.7", "2.9", "2.9", True),
        ("2.9.1", None, "2.9", True),
        ("2.9.1", None, "2.9.1", True),
        ("2.9.2", None, "2.9.1", False),
        ("2.9", None, "2.9.1", True),
        ("2.10", None, "2.9", False),
        ("2.9.5", "2.9.1", "2.9", True),
        ("2.9.0", "2.9.1", "2.9", False),
        ("2.9", None, "2.0", False),
        ("2.0.4", None, "2.0", True),
        ("2.10.5", None, "2.10.0", False),
        ("2.9", None, "2", True),
        ("3", None, "2", False),
        ("2.9", None, None, True),
        ("", None, None, True),
        ("", None, "2.9", False),
        ("", "2.9", None, False),
        ("unknown", None, "2.9", False),
    ],
)
def test_a_cml_version_is_held_against_its_bounds(
    version: str, low: str | None, high: str | None, *, allowed: bool
) -> None:
    bounds = AmiRequirements(cml_version_min=low, cml_version_max=high)
    assert is_version_allowed(version, bounds) is allowed


numbers = st.lists(st.integers(0, 12), min_size=1, max_size=4)


def text(parts: list[int]) -> str:
    return ".".join(map(str, parts))


def padded(parts: list[int]) -> tuple[int, ...]:
    return tuple(parts + [0] * (4 - len(parts)))


@for_all(numbers, numbers)
def test_numbers_are_compared_one_by_one_from_the_left(left: list[int], right: list[int]) -> None:
    assert (version_key(text(left)) < version_key(text(right))) is (padded(left) < padded(right))


@for_all(numbers, numbers)
def test_a_lower_bound_is_the_least_version(version: list[int], low: list[int]) -> None:
    allowed = is_version_allowed(text(version), AmiRequirements(cml_version_min=text(low)))
    assert allowed is (padded(version) >= padded(low))


@for_all(numbers, numbers)
def test_an_upper_bound_includes_what_begins_like_it(version: list[int], high: list[int]) -> None:
    allowed = is_version_allowed(text(version), AmiRequirements(cml_version_max=text(high)))
    assert allowed is (padded(version)[: len(high)] <= tuple(high))
