"""Forgetting: one person by name, everybody by time; also after a crash at any commit, and with costs that add up."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from harness import given
from harness.api_world import Desk, document, opened, path, stock
from harness.plane_world import NOW, hand_clock
from lcm.control.accounts.stays import STAY_COSTS, STAYS, owner_subject, read_spent
from lcm.control.notices.decisions import ToldBooking
from lcm.control.notices.notice_records import MailedPerson, person_key, told_key
from lcm.control.objects.records import CODEC, DELETED_SESSIONS, creation_ops, key_of
from lcm.control.objects.session_files import stored_name
from lcm.control.upkeep.forgetting import KEY, ForgetRequest, Forgetting, Retention
from lcm.control.upkeep.housekeeping import Housekeeping, archive_ended
from lcm.control.upkeep.pseudonyms import is_pseudonym, make_pseudonym, rename_document, rename_everybody, rename_one
from lcm.model.access.identity import Caller, Reach, Role
from lcm.model.access.mail_address import find_mail_address
from lcm.model.base.resource import PhaseChange
from lcm.model.kinds.reservation import ReservationPhase
from lcm.model.kinds.session import Artifact, DeletedSession, LabletSession, SessionPhase, SessionUse
from lcm.model.kinds.settings import PrivacySettings
from lcm.model.money.split import Stay
from lcm.providers.local.directory import DirectoryArtifacts
from lcm.providers.protocols.artifacts import temporary_address
from lcm.store.base import Put, Store, scan_all
from lcm.store.memory import MemoryStore

MAIL: Final = "nora@example.org"
ADMIN: Final = Caller(name="root", role=Role.ADMIN)
BOTH: Final = ForgetRequest(names=("nora", MAIL))
OF_NORAH: Final = "upload-guards/norah"
STAY: Final = Stay(
    session="s1", session_id="u1", namespace="default", definition="x", worker_id="w", share=1, since=NOW, until=NOW
)


def ended(name: str = "s1", **fields: Any) -> LabletSession:
    """Return a session of nora's that she ended."""
    change = PhaseChange(phase="TERMINATED", at=NOW, by="nora", reason="nora had enough; mail Nora@Example.org")
    made = given.session(name=name, uid=f"uid-{name}", **{"owner": "nora", "student_email": MAIL} | fields)
    status = replace(made.status, phase=SessionPhase.TERMINATED, history=(change,), cost_usd=3)
    changed: LabletSession = replace(made, status=status)
    return changed


async def read_all(store: Store) -> Mapping[str, bytes]:
    return {one.key: one.value for one in (await scan_all(store, "")).entries}


async def expect_forgotten(store: Store) -> None:
    """Nothing names her, in no key and no value."""
    found = await read_all(store)
    assert OF_NORAH in found, "it is another's"
    for key, value in found.items():
        if key == OF_NORAH:
            continue
        assert b"nora" not in value.lower(), (key, value)
        assert "nora" not in key.lower()


async def fill(desk: Desk) -> None:
    """Leave traces of nora wherever there may be some."""
    desk.secrets["nora"] = (await desk.tokens.make("nora", Role.AUTHOR, reach=Reach(email=MAIL)))[0].reveal()
    await stock(desk)
    await desk.done(
        "nora",
        "POST",
        path("LabletSession"),
        json=document("LabletSession", name="mine", owner="nora"),
        headers={"Idempotency-Key": "once"},
    )
    await desk.done("nora", "POST", "/api/lablet-sessions/mine/terminate", json={})
    await desk.done("nora", "POST", "/api/feeds", json={})
    await desk.done("nora", "POST", "/api/tokens", json={})
    await desk.done("nora", "POST", "/api/sign-in")
    await desk.ask("nora", "GET", "/api/audit")
    await desk.api.refusals.flush()
    store, told = desk.store, given.session(name="other", uid="uid-other")
    await store.commit(*creation_ops(ended()))
    whole = given.reservation(
        name="past", uid="uid-past", owner="tutor", student_emails=("Nora@example.org", "b@x.org")
    )
    over = replace(whole, status=replace(whole.status, phase=ReservationPhase.COMPLETED))
    await store.commit(*creation_ops(over))
    note = ToldBooking(key=key_of(told), uid="u", name="s", recipient=MAIL, title="t", series_uid="u", at=NOW)
    used = SessionUse(owner="nora", namespace="default", lab_track="x", since=NOW, until=NOW)
    await store.commit(
        Put(told_key(key_of(told), MAIL), CODEC.encode(note)),
        Put(person_key(MAIL), CODEC.encode(MailedPerson(recipient=MAIL, at=NOW))),
        Put(f"{DELETED_SESSIONS}u9", CODEC.encode(DeletedSession(ended_at=NOW, used=used))),
        Put(f"{STAYS}202611/w/20261102T080000.000000Z/u1", CODEC.encode(replace(STAY, owner="nora"))),
        Put(f"{STAY_COSTS}202611/{owner_subject('nora')}/u1/20261102T080000.000000Z", b"700"),
        Put("guards/owners/nora", b""),
        Put("uploads/nora/abc", b"1/1\n{}"),
        Put("upload-guards/nora", b""),
        Put(OF_NORAH, b""),
    )
    await archive_ended(store, NOW, NOW + timedelta(days=1))


@pytest.fixture(name="desk")
async def open_desk() -> AsyncIterator[Desk]:
    async with opened(clock=hand_clock()) as desk:
        await fill(desk)
        yield desk


def forget(desk: Desk, **wish: Any) -> Any:
    return desk.ask("root", "POST", "/api/forget", json={"names": ["nora"], **wish})


async def test_nothing_names_a_person_any_more_and_costs_still_add_up(desk: Desk) -> None:
    answer = (await forget(desk)).json()
    assert answer["done"], answer
    assert answer["names"] == ["nora", MAIL], "the address on her tokens is hers, too"
    await expect_forgotten(desk.store)
    pseudonym = answer["pseudonym"]
    assert is_pseudonym(pseudonym)
    assert find_mail_address(pseudonym) is None, "nobody is written to"
    spent = await read_spent(desk.store, owner_subject(pseudonym), [NOW])
    assert spent == [700]
    found = await desk.done("root", "GET", "/api/lablet-sessions/s1")
    assert (found["spec"]["owner"], found["spec"]["student_email"]) == (pseudonym, pseudonym)
    assert found["status"]["cost_usd"] == "3"
    assert found["status"]["history"][0]["by"] == pseudonym
    assert (await desk.ask("nora", "GET", "/api/whoami")).status_code == 401


async def test_others_keep_their_names(desk: Desk) -> None:
    await forget(desk)
    whole = await desk.done("root", "GET", "/api/reservations/past")
    assert whole["spec"]["student_emails"][1] == "b@x.org"
    assert whole["spec"]["owner"] == "tutor"


async def test_a_dry_run_counts_and_changes_nothing_and_a_second_run_finds_nothing(desk: Desk) -> None:
    before = await read_all(desk.store)
    would = (await forget(desk, dry_run=True)).json()
    after = await read_all(desk.store)
    assert {key for key in after if after[key] != before.get(key)} <= {KEY}
    assert not would["done"]
    done = (await forget(desk)).json()
    assert (done["tokens"], done["documents"]) >= (would["tokens"], 5)
    again = (await forget(desk, names=["nora", MAIL])).json()
    assert (again["documents"], again["tokens"], again["done"]) == (0, 0, True)
    assert again["pseudonym"] == done["pseudonym"]


async def test_only_administrators_forget_and_the_audit_says_so_without_the_name(desk: Desk) -> None:
    for who in ("otto", "anna", "ada", "nora", "service"):
        assert (await desk.ask(who, "POST", "/api/forget", json={"names": ["nora"]})).status_code == 403
    done = (await forget(desk)).json()
    records = (await desk.done("root", "GET", "/api/audit?kind=Person"))["items"]
    assert [(one["who"], one["deeds"][0]["verb"], one["deeds"][0]["name"]) for one in records] == [
        ("root", "forget", done["pseudonym"])
    ]


async def test_what_is_booked_is_listed_and_refused_unless_it_is_cancelled(desk: Desk) -> None:
    await desk.done("nora", "POST", path("LabletSession"), json=document("LabletSession", name="next", owner="nora"))
    whole = given.reservation(name="next", uid="uid-next", owner="tutor", student_emails=(MAIL,))
    promised = replace(whole, status=replace(whole.status, phase=ReservationPhase.PROMISED))
    await desk.store.commit(*creation_ops(promised))
    refused = await forget(desk)
    assert (refused.status_code, refused.json()["reason"]) == (409, "Refused")
    assert "LabletSession default/next" in refused.json()["detail"]
    assert (await forget(desk, dry_run=True)).json()["live"] == [
        "Reservation default/next",
        "LabletSession default/next",
    ]


class StoppedClock:
    """Shows the time that it is set to."""

    def __init__(self, moment: datetime) -> None:
        self.moment = moment

    def now(self) -> datetime:
        return self.moment


class DyingStore(MemoryStore):
    """Dies at a commit."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    async def commit(self, *ops: Any, **more: Any) -> int:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise asyncio.CancelledError
        return await super().commit(*ops, **more)


@pytest.mark.parametrize("dies_after", range(0, 18, 3))
async def test_a_crash_half_way_is_completed_by_the_next_run(dies_after: int, tmp_path: Path) -> None:
    store = DyingStore()
    async with opened(clock=hand_clock(), store=store) as desk:
        await fill(desk)
        artifacts = await DirectoryArtifacts.open(tmp_path, clock=hand_clock())
        name = stored_name(ended("filed"), "lab.yaml")
        kept = await artifacts.put_temporary(name, b"lab: {}")
        filed = ended("filed")
        one = Artifact(name="lab.yaml", digest=kept.digest, size_bytes=7, collected_at=NOW)
        await store.commit(*creation_ops(replace(filed, status=replace(filed.status, artifacts=(one,)))))
        forgetting = Forgetting(desk.core.writer_for(ADMIN), desk.core.plane_for(ADMIN), desk.tokens, artifacts)
        store.left = dies_after
        with pytest.raises(asyncio.CancelledError):
            await forgetting.run(ForgetRequest(names=("nora",)))
        store.left = None
        assert (await forgetting.run(ForgetRequest(names=("nora",)))).done
        assert await artifacts.find(temporary_address(name).uri) is None
        await expect_forgotten(store)


def test_a_name_is_replaced_where_people_stand_and_in_words_not_within_others() -> None:
    raw = b'1/1\n{"spec":{"owner":"ann","definition":"ann"},"status":{"reason":"ann left, anna and x@ann.org not"}}'
    found = rename_document(raw, rename_one(["ann"], "P"))
    assert (
        found == b'1/1\n{"spec":{"owner":"P","definition":"ann"},"status":{"reason":"P left, anna and x@ann.org not"}}'
    )
    assert rename_document(b"ann", rename_one(["ann"], "P")) is None, "no document"
    assert rename_document(b'1/1\n{"by":"anna"}', rename_one(["ann"], "P")) is None


def test_an_address_is_replaced_everywhere_however_it_is_written() -> None:
    raw = b'1/1\n{"email":"Ann@Example.org","note":"to ann@example.org.","more":"joann@example.org ann@example.orgx"}'
    found = rename_document(raw, rename_one(["ann@example.org"], "P"))
    assert found == b'1/1\n{"email":"P","note":"to P.","more":"joann@example.org ann@example.orgx"}'


def test_pseudonyms_are_stable_different_and_not_made_twice() -> None:
    key = b"k" * 32
    one, other = make_pseudonym(key, "ann@example.org"), make_pseudonym(key, "ben@example.org")
    assert one == make_pseudonym(key, "Ann@Example.org") != other
    assert make_pseudonym(b"another", "ann@example.org") != one
    rename = rename_everybody(key, b"").name
    assert [rename(name) for name in (one, "scheduler", "service", "")] == [one, "scheduler", "service", ""]


async def test_after_a_time_everybody_is_forgotten_in_what_is_over() -> None:
    store, clock = MemoryStore(), StoppedClock(NOW + timedelta(days=40))
    await store.commit(
        *creation_ops(ended("old")),
        *creation_ops(given.session(name="live", uid="uid-live", owner="nora")),
        Put(f"{STAYS}202609/w/20260902T080000.000000Z/u1", CODEC.encode(replace(STAY, owner="nora"))),
    )
    housekeeping = Housekeeping(store, clock=clock, archived=timedelta(days=400))
    await housekeeping.tidy()
    assert sum(b"nora" in value for value in (await read_all(store)).values()) == 3, "nobody asked for it"
    await store.commit(*creation_ops(given.settings(privacy=PrivacySettings(retention_days=30))))
    clock.moment += timedelta(hours=2)
    await housekeeping.tidy()
    left = [key for key, value in (await read_all(store)).items() if b"nora" in value.lower()]
    assert left == ["lablet-sessions/default/live"], "what runs keeps its names"


async def test_what_was_forgotten_by_time_is_not_changed_again() -> None:
    store = MemoryStore()
    await store.commit(*creation_ops(ended("old")))
    assert await Retention(store, None).forget_before(NOW) == 0
    assert await Retention(store, None).forget_before(NOW + timedelta(days=1)) == 1
    assert await Retention(store, None).forget_before(NOW + timedelta(days=1)) == 0
