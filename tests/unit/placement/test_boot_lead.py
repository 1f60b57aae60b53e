"""How far ahead of a claim a machine is started, by what was measured of those before it."""

from hypothesis import strategies as st

from harness import given
from harness.suite import for_all
from lcm.placement.claims import FEWEST_BOOTS, Terms, boot_lead, usual_boot

BOOTS = st.lists(st.floats(1, 7_200), max_size=2 * FEWEST_BOOTS)


@for_all(BOOTS)
def test_a_machine_is_never_started_later_than_it_usually_takes(boots: list[float]) -> None:
    pool, terms = given.pool(boot_seconds=tuple(boots)), Terms()
    assert boot_lead(pool, terms) >= max(usual_boot(pool, terms), terms.boot) + terms.buffer
