"""The ledger of licence seats, as workers' steps write it."""

import asyncio
from typing import Any

import msgspec
import pytest

from harness import given
from harness.plane_world import ADA, ANNA, OTTO, ROOT, Stage, service
from harness.workers import TOKEN, P, fleet, move, seats, worker
from lcm.control.accounts.licences import ORPHANED_ALERT, seat_key
from lcm.control.objects.records import encode_checked
from lcm.control.plane.protocol import License, Ref
from lcm.model.base.errors import Forbidden, Gone, NoRoom, Refused
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.model.money.licences import UNRETURNED, SeatState, token_id
from lcm.store.base import Put
from lcm.store.memory import MemoryStore

S = SeatState
LICENSED = {"licensed": True, "license_status": "IN_COMPLIANCE"}
UNLICENSED = {"licensed": False, "license_status": "NOT_REGISTERED"}
GONE = {"client_token": "", "state": "terminated", "gone_at": given.moment("08:00")}


async def state(stage: Stage, uid: str = "uid-w1") -> SeatState | None:
    found = (await seats(stage.store)).get(uid)
    return found.state if found else None


async def licensing(stage: Stage, name: str = "w1", **more: Any) -> LabWorker:
    return await move(stage, await stage.put(worker(name, **more)), P.LICENSING)


async def licensed(stage: Stage, name: str = "w1", **more: Any) -> LabWorker:
    return await move(stage, await licensing(stage, name, **more), P.READY, cml=LICENSED)


async def unlicensing(stage: Stage, **more: Any) -> LabWorker:
    at = await stage.put(worker(phase=P.DRAINING, cml=LICENSED, drain_deadline_at=given.moment("07:00"), **more))
    return await move(stage, at, P.UNLICENSING)


async def test_a_seat_is_taken_before_the_registration_is_asked_for() -> None:
    stage = Stage()
    await licensing(stage)
    (seat,) = (await seats(stage.store)).values()
    assert (seat.worker_name, seat.state, seat.token) == ("w1", S.REGISTERING, token_id(TOKEN))


async def test_a_seat_follows_its_workers_life_and_goes_when_cml_is_seen_without_a_licence() -> None:
    stage = Stage()
    at = await licensed(stage)
    assert await state(stage) is S.REGISTERED
    at = await stage[ROOT].delete(Ref(LabWorker, "w1"))
    at = await move(stage, at, P.UNLICENSING)
    assert await state(stage) is S.RELEASING
    await move(stage, at, P.STOPPING, cml=UNLICENSED)
    assert await state(stage) is None


async def test_a_machine_that_was_licensed_by_hand_has_a_seat_of_an_unknown_token() -> None:
    stage = Stage()
    at = await stage.put(worker(phase=P.STARTING, cml={"licensed": None}, token=None))
    await move(stage, at, P.READY_UNLICENSED, cml=LICENSED)
    (seat,) = (await seats(stage.store)).values()
    assert (seat.state, seat.token) == (S.REGISTERED, "unknown")


async def test_ordinary_steps_leave_the_ledger_alone() -> None:
    stage = Stage()
    at = await licensed(stage)
    before = await stage.store.get("licences/uid-w1")
    for phase in (P.ACTIVE, P.READY, P.STOPPING, P.STOPPED, P.STARTING):
        at = await move(stage, at, phase)
    assert await stage.store.get("licences/uid-w1") == before


@pytest.mark.parametrize("target", [P.READY_UNLICENSED, P.FAILED])
async def test_a_registration_that_cml_answered_as_none_gives_the_seat_back(target: WorkerPhase) -> None:
    stage = Stage()
    at = await licensing(stage)
    await move(stage, at, target, cml=UNLICENSED, last_error="the token is not valid")
    assert await state(stage) is None


@pytest.mark.parametrize("target", [P.READY_UNLICENSED, P.FAILED])
async def test_a_registration_of_which_nothing_is_known_keeps_its_seat(target: WorkerPhase) -> None:
    stage = Stage()
    at = await licensing(stage)
    at = await move(stage, at, target, cml={"licensed": None}, last_error="no answer")
    assert await state(stage) is S.REGISTERING
    if target is P.READY_UNLICENSED:
        await move(stage, at, cml=UNLICENSED)
        assert await state(stage) is None, "now CML has said so"


@pytest.mark.parametrize("target", [P.STOPPED, P.TERMINATED, P.UNLICENSING])
async def test_a_machine_that_no_longer_answers_proves_nothing(target: WorkerPhase) -> None:
    stage = Stage()
    at = await licensing(stage)  # and so without a licence, as far as is known from before
    facts: dict[str, Any] = {"ec2": GONE} if target is P.TERMINATED else {}
    at = await move(stage, at, target, **facts)
    kept = {P.STOPPED: S.REGISTERING, P.TERMINATED: S.ORPHANED, P.UNLICENSING: S.RELEASING}
    assert await state(stage) is kept[target]
    if target is P.UNLICENSING:
        await move(stage, at, last_error="CML does not answer")
        assert await state(stage) is S.RELEASING


async def test_a_lost_licence_keeps_its_seat_for_the_next_registration() -> None:
    stage = Stage(fleet=fleet(seats=1))
    at = await licensed(stage)
    at = await move(stage, at, P.READY_UNLICENSED, cml=UNLICENSED)
    assert await state(stage) is S.REGISTERED
    await move(stage, at, P.LICENSING)
    assert await state(stage) is S.REGISTERING


@pytest.mark.parametrize("facts", [LICENSED, UNLICENSED, {"licensed": None}], ids=str)
async def test_lesson_11_a_worker_that_ends_with_its_seat_leaves_an_orphan_and_an_alert(facts: dict[str, Any]) -> None:
    stage = Stage()
    at = await licensed(stage)
    at = await stage[ROOT].delete(Ref(LabWorker, "w1"))
    revision = await stage.revision()
    await move(stage, at, P.TERMINATED, ec2=GONE, cml=facts)
    assert await stage.read(at) is None, "its record goes all the same"
    assert await state(stage) is S.ORPHANED
    (alert,) = await stage[OTTO].alerts()
    assert (alert.alert, alert.kind, alert.uid, alert.severity) == (ORPHANED_ALERT, "LicenceSeat", "uid-w1", "critical")
    assert "DELETE /api/licenses/uid-w1" in alert.message
    assert (await stage.types(revision)).count("alert.raised") == 1


@pytest.mark.parametrize("said", sorted(UNRETURNED))
async def test_lesson_11_a_seat_that_cml_did_not_give_back_is_orphaned_at_once(said: str) -> None:
    stage = Stage()
    at = await unlicensing(stage)
    at = await move(stage, at, P.STOPPING, cml={"licensed": False, "license_status": said})
    assert await state(stage) is S.ORPHANED
    at = await move(stage, at, P.STOPPED)
    at = await move(stage, at, P.STARTING)
    at = await move(stage, at, P.READY_UNLICENSED)
    with pytest.raises(NoRoom, match="was not returned: free it"):
        await move(stage, at, P.LICENSING)
    await stage[OTTO].free_licence("uid-w1")
    await move(stage, at, P.LICENSING)


async def test_lesson_11_a_machine_that_is_replaced_with_its_seat_leaves_an_orphan() -> None:
    stage = Stage()
    at = await stage.put(worker(phase=P.TERMINATING_EC2))
    await stage.store.commit(Put(seat_key("uid-w1"), encode_checked(given.seat())))
    facts = {"instance_id": "", **GONE, "state": ""}
    await move(stage, at, P.PENDING, ec2=facts)
    assert await state(stage) is S.ORPHANED


async def orphan(stage: Stage) -> None:
    await move(stage, await licensed(stage), P.TERMINATED, ec2=GONE)


async def test_a_person_frees_an_orphan_and_the_alert_is_cleared() -> None:
    stage = Stage()
    await orphan(stage)
    revision = await stage.revision()
    await stage[OTTO].free_licence("uid-w1")
    assert not await seats(stage.store)
    assert not await stage[OTTO].alerts()
    assert await stage.types(revision) == ["alert.cleared"]
    with pytest.raises(Gone):
        await stage[OTTO].free_licence("uid-w1")


async def test_only_staff_frees_seats_and_only_those_that_are_orphaned() -> None:
    stage = Stage()
    at = await licensed(stage)
    with pytest.raises(Refused, match="is registered"):
        await stage[OTTO].free_licence("uid-w1")
    for caller in (ADA, ANNA, service("worker-controller")):
        with pytest.raises(Forbidden):
            await stage[caller].free_licence("uid-w1")
    for caller in (ADA, ANNA):
        with pytest.raises(Forbidden):
            await stage[caller].licences()
    for nonsense in ("", "../w1", "UID", "a b"):
        with pytest.raises(Gone):
            await stage[OTTO].free_licence(nonsense)
    assert (await stage.read(at)) == at


async def test_an_operator_sees_tokens_and_seats() -> None:
    stage = Stage(fleet=fleet(seats=3))
    assert (await stage[OTTO].licences()).tokens[0].free == 3
    await licensed(stage)
    await licensing(stage, "w2")
    book = await stage[OTTO].licences()
    (token,) = book.tokens
    assert (token.token, token.seats, token.used, token.free) == (token_id(TOKEN), 3, 2, 1)
    assert [(seat.worker_name, seat.state) for seat in book.seats] == [("w1", S.REGISTERED), ("w2", S.REGISTERING)]
    assert TOKEN not in msgspec.json.encode(book).decode()


async def test_no_worker_registers_when_every_seat_is_taken_also_by_an_orphan() -> None:
    stage = Stage(fleet=fleet(seats=2))
    await licensed(stage, "w2")
    await orphan(stage)
    at = await stage.put(worker("w3"))
    with pytest.raises(NoRoom, match=r"no licence seat is free \(2 of 2 taken\): free the seats of w1"):
        await move(stage, at, P.LICENSING)
    assert await stage.read(at) == at
    await stage[OTTO].free_licence("uid-w1")
    await move(stage, at, P.LICENSING)
    with pytest.raises(NoRoom, match="delete or pause"):
        await licensing(stage, "w4")


async def test_seats_of_other_tokens_do_not_count() -> None:
    stage = Stage(fleet=fleet(seats=1))
    await licensed(stage)
    at = await stage.put(worker("w2"))
    at = await stage[OTTO].act(Ref(LabWorker, "w2"), License(license_token="env:CML_OTHER_TOKEN"))
    at = await move(stage, at, P.LICENSING)
    assert [one.seats for one in (await stage[OTTO].licences()).tokens if one.used] in ([1, None], [None, 1])


class Halting(MemoryStore):
    """Lets everybody read before anybody writes."""

    def __init__(self, readers: int) -> None:
        super().__init__()
        self.barrier: asyncio.Barrier | None = None
        self.readers = readers

    async def commit(self, *ops: Any, **more: Any) -> int:
        if self.barrier is not None:
            barrier, self.barrier = self.barrier, self.barrier if self.barrier.n_waiting < self.readers - 1 else None
            await barrier.wait()
        return await super().commit(*ops, **more)


async def test_of_workers_that_race_for_the_last_seat_one_gets_it() -> None:
    store = Halting(4)
    stages = [Stage(store=store, fleet=fleet(seats=2)) for _ in range(4)]
    workers = [await stages[0].put(worker(f"w{number}")) for number in range(4)]
    store.barrier = asyncio.Barrier(4)
    steps = (move(stage, at, P.LICENSING) for stage, at in zip(stages, workers, strict=True))
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    assert sum(isinstance(one, LabWorker) for one in outcomes) == 2
    assert sum(isinstance(one, NoRoom) for one in outcomes) == 2, outcomes
    assert len(await seats(store)) == 2


async def test_a_seat_found_taken_counts_for_one_who_asks_at_the_same_moment() -> None:
    store = Halting(2)
    stages = [Stage(store=store, fleet=fleet(seats=1)) for _ in range(2)]
    asking = await stages[0].put(worker("w1"))
    found = await stages[0].put(worker("w2", phase=P.STARTING, cml={"licensed": None}))
    store.barrier = asyncio.Barrier(2)
    steps = [move(stages[0], asking, P.LICENSING), move(stages[1], found, P.READY_UNLICENSED, cml=LICENSED)]
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    assert isinstance(outcomes[1], LabWorker), "what is so cannot be refused"
    taken = await seats(store)
    assert isinstance(outcomes[0], NoRoom) or len(taken) == 2, "or it was there first"


def test_a_token_is_told_apart_by_where_it_is() -> None:
    assert token_id(TOKEN) == token_id(TOKEN) != token_id("env:OTHER")
    assert len(token_id(TOKEN)) == 12
