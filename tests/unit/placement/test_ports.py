"""Ports for sessions, whoever holds which."""

from collections.abc import Mapping

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from harness import given
from lcm.model.topology.ports import OPEN_PORTS
from lcm.placement.ports import allocate, count_free_ports, ports_in_use

PORTS = st.integers(1990, 8010)
NAMES = st.sets(st.text("abcdef_", min_size=1, max_size=4), max_size=12)


@settings(max_examples=150)
@drawn(NAMES, st.sets(PORTS, max_size=80), st.dictionaries(st.sampled_from("abcdef"), PORTS), st.text(max_size=8))
def test_every_name_gets_a_port_of_its_own_that_nobody_has(
    names: set[str], taken: set[int], preferred: Mapping[str, int], seed: str
) -> None:
    made = allocate(names, taken=taken, seed=seed, preferred=preferred)
    assert made is not None
    assert made.keys() == names
    assert len(set(made.values())) == len(names)
    assert set(made.values()) <= set(OPEN_PORTS) - taken
    assert made == allocate(names, taken=taken, seed=seed, preferred=preferred)


@settings(max_examples=50)
@drawn(NAMES, st.sets(st.sampled_from(OPEN_PORTS), max_size=14), st.text(max_size=8))
def test_ports_are_given_as_long_as_there_are_enough(names: set[str], free: set[int], seed: str) -> None:
    taken = set(OPEN_PORTS) - free
    made = allocate(names, taken=taken, seed=seed)
    assert (made is None) == (len(names) > len(free))
    assert made is None or set(made.values()) <= free


@settings(max_examples=50)
@drawn(st.sets(PORTS, max_size=50), st.text(max_size=8))
def test_who_is_tried_again_gets_the_same_ports_wherever_they_are_free(taken: set[int], seed: str) -> None:
    first = allocate(["a", "b", "c"], taken=taken, seed=seed)
    assert first is not None
    assert allocate(["a", "b", "c"], taken=taken - {2000}, seed=seed, preferred=first) == first
    assert allocate(["a", "b", "c"], taken=(), seed=seed, preferred=first) == first


@pytest.mark.parametrize("preferred", [80, 8000, 2500, 65_535])
def test_a_wish_that_cannot_be_granted_is_passed_over(preferred: int) -> None:
    made = allocate(["a"], taken={2500}, seed="s", preferred={"a": preferred})
    assert made is not None
    assert made["a"] in OPEN_PORTS
    assert made["a"] != preferred


def test_two_names_do_not_get_the_port_that_both_prefer() -> None:
    made = allocate(["a", "b"], taken=(), seed="s", preferred={"a": 2500, "b": 2500})
    assert made is not None
    assert made["a"] == 2500
    assert made["b"] != 2500


def test_ports_beyond_the_range_take_nothing_of_it() -> None:
    assert count_free_ports({22, 80, 8000, 2000, 7999}) == len(OPEN_PORTS) - 2
    assert allocate([f"p{number}" for number in OPEN_PORTS], taken={22}, seed="s") is not None
    assert allocate([f"p{number}" for number in OPEN_PORTS], taken={2000}, seed="s") is None


def test_given_drifted_and_foreign_ports_are_all_taken() -> None:
    worker = given.worker(foreign_ports=(3000,))
    drifted = given.session(allocated_ports={"a": 4000}, observed_ports={"a": 4001})
    assert ports_in_use(worker, [drifted, given.session()]) == {3000, 4000, 4001}
