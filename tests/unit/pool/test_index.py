"""What concerns each pool, followed one change at a time, is the same as if it were read anew."""

from random import Random

from harness import given
from lcm.control.plane.protocol import ObjectChange, Ref, ref_of
from lcm.controllers.pool.index import PoolClaims, PoolIndex, SeatClaim
from lcm.model.base.capacity import Claim
from lcm.model.base.resource import Owner
from lcm.model.kinds.pool import FilledSeat, LabWorkerPool
from lcm.model.kinds.worker import LabWorker
from lcm.placement.request import HeldClaim

NOW = given.moment("09:00")


def claim(number: int, hours: int, worker_id: str | None = None, holder: str = "default/s1") -> SeatClaim:
    start = given.moment("00:00", day=hours // 24).replace(hour=hours % 24)
    return SeatClaim(
        number, HeldClaim(holder, Claim(start=start, end=start.replace(minute=30), need=given.amount())), worker_id
    )


def test_claims_are_found_by_their_start_and_by_who_has_a_worker() -> None:
    chance, claims, there = Random(5), PoolClaims(), dict[str, SeatClaim]()
    for _ in range(1_000):
        holder = f"default/s{chance.randrange(10)}"
        made = claim(chance.randint(1, 5), chance.randrange(72), chance.choice((None, "w1")), holder)
        new = None if chance.random() < 0.4 else made
        assert claims.put(holder, new) == (there.get(holder) != new)
        there.pop(holder, None)
        if new is not None:
            there[holder] = new
        moment = given.moment("12:00", day=chance.randrange(3))
        assert {one.held.holder for one in claims.starting_before(moment)} == {
            name for name, one in there.items() if one.held.claim.start < moment
        }
        assert claims.placed == {name: one for name, one in there.items() if one.worker_id}
        assert claims.highest_number == max((one.number for one in there.values()), default=0)
        assert claims.last_end() == max((one.held.claim.end for one in there.values()), default=None)
        assert (len(claims), set(claims.holders())) == (len(there), set(there))


def test_changes_are_told_once() -> None:
    claims = PoolClaims([claim(1, 9)])
    assert list(claims.take_changes()) == ["default/s1"]
    assert not claims.take_changes()
    claims.put("default/s1", claim(1, 9))
    assert not claims.take_changes()
    claims.put("default/s1", None)
    assert list(claims.take_changes()) == ["default/s1"]


def test_a_worker_concerns_the_pool_that_made_it_the_one_it_fills_and_those_that_could_adopt_it() -> None:
    index, told = PoolIndex(), list[str]()
    index.subscribe(lambda ref: told.append(ref.name))

    def tell(*resources: LabWorker | LabWorkerPool) -> list[str]:
        told.clear()
        for one in resources:
            index._on_change(ObjectChange(ref_of(one), one))
        return sorted(told)

    seat = FilledSeat(number=1, worker_id="u-own", worker_name="own")
    ccna = given.pool(name="ccna", uid="p1", lab_track="ccna", seats=(seat,))
    ccnp = given.pool(name="ccnp", uid="p2", lab_track="ccnp")
    tell(ccna, ccnp)
    owned = given.worker(
        name="made", uid="u-made", lab_track="ccnp", owner=Owner(kind="LabWorkerPool", name="ccna", uid="p1")
    )
    assert tell(owned) == ["ccna"]
    assert tell(given.worker(name="own", uid="u-own", lab_track="other")) == ["ccna"]
    stranger = given.worker(name="stray", uid="u-stray", lab_track="ccnp")
    assert tell(stranger) == ["ccnp"]
    assert [one.metadata.name for one in index.workers_of(ccna)] == ["made", "own"]
    assert [one.metadata.name for one in index.unowned_workers(ccnp)] == ["stray"]
    moved = given.worker(name="stray", uid="u-stray", lab_track="ccna")
    assert tell(moved) == ["ccna", "ccnp"]
    assert index.unowned_workers(ccnp) == []
    index._on_change(ObjectChange(Ref(LabWorker, "stray"), None))
    assert index.unowned_workers(ccna) == []
