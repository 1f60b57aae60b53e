"""A new key for what is sealed: nothing is lost, whoever is killed meanwhile and whatever others write."""

import itertools
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from crash.everywhere import crash_everywhere, pause_everywhere
from harness import given
from harness.api_world import Desk, opened
from harness.credentials import NEW, OLD, given_keys, kept_keys
from harness.plane_world import OTTO, ROOT, Stage, Standing, service
from lcm.control.access.audit import AuditedAction, AuditFilter, search_records
from lcm.control.objects.writer import Writer
from lcm.control.plane.protocol import Ref
from lcm.control.upkeep.installation import Presence
from lcm.control.upkeep.rotation import Rotated, Rotation
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Refused, Stuck
from lcm.model.base.resource import SecretUse
from lcm.model.kinds.worker import LabWorker
from lcm.providers.local.sealed import fingerprint, read_keys
from lcm.store.base import scan_all

WORD = Secret("swordfish")
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


class Sealed(Stage):
    """A store with sealed texts in objects, a sink and the record of a request, and keys in a file."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.file = folder / "seal.key"
        super().__init__(sealer=kept_keys(folder), clock=Standing(datetime.now(UTC)))

    async def fill(self) -> "Sealed":
        for number in range(2):
            worker = given.worker(name=f"w{number}", cml={"admin_password": "plain:swordfish"})
            await self[OTTO].create(worker, request=f"r-{number}")
        await self[ROOT].create(given.sink(secret=self.sealer.seal(WORD, SecretUse.SIGNING_SECRET)))
        return self

    async def rotate(self, *, drop_old: bool = False) -> Rotated:
        return await Rotation(Writer(self.store, self.clock, ROOT), self.sealer).run(drop_old=drop_old)

    async def texts(self) -> list[str]:
        """Return every text that is sealed."""
        pieces = [entry.value.split(b'"') for entry in (await scan_all(self.store, "")).entries]
        return [one.decode() for one in itertools.chain(*pieces) if one.startswith(b"sealed:")]

    async def check(self) -> None:
        """Check that everything opens with the key that seals now."""
        texts = await self.texts()
        assert len(texts) == 6
        assert all(text.startswith(f"sealed:{self.sealer.current}:") for text in texts)
        assert sum(self.sealer.unseal(text) == WORD for text in texts) == 3

    def settle(self) -> None:
        """Let the newest key be old enough."""
        os.utime(self.file, (LONG_AGO.timestamp(), LONG_AGO.timestamp()))


@pytest.fixture(name="stage")
async def make_stage(tmp_path: Path) -> Sealed:
    return await Sealed(tmp_path / "keys").fill()


def folders(root: Path) -> Callable[[], Path]:
    numbers = itertools.count()
    return lambda: root / str(next(numbers))


async def test_everything_is_sealed_anew_by_a_new_key(stage: Sealed) -> None:
    before = await stage[OTTO].get(Ref(LabWorker, "w0"))
    done = await stage.rotate()
    assert (done.new_key, done.resealed, done.dropped, done.unopened) == (True, 5, 0, ())
    assert done.key != fingerprint(OLD)
    await stage.check()
    after = await stage[OTTO].get(Ref(LabWorker, "w0"))
    assert before is not None
    assert after is not None
    assert after.metadata.generation == before.metadata.generation
    assert msgspec.structs.replace(after.spec, cml=before.spec.cml) == before.spec


async def test_it_means_nothing_to_the_outside(stage: Sealed) -> None:
    revision = await stage.revision()
    await stage.rotate()
    assert await stage.told(revision) == []


async def test_the_audit_tells_of_it_once(stage: Sealed) -> None:
    done = await stage.rotate()
    record = (await search_records(stage.store, AuditFilter(kind="SealKey"), limit=10)).records
    assert [(one.who, *one.deeds) for one in record] == [
        ("root", AuditedAction(verb="rotate", kind="SealKey", name=done.key))
    ]


async def test_a_request_is_known_again_after_a_rotation(stage: Sealed) -> None:
    await stage.rotate()
    worker = given.worker(name="w0", cml={"admin_password": "plain:swordfish"})
    assert (await stage[OTTO].create(worker, request="r-0")).metadata.name == "w0"


async def test_the_old_key_goes_only_when_asked_and_when_nothing_can_need_it(stage: Sealed) -> None:
    await stage.rotate()
    assert len(read_keys(stage.file)) == 2
    with pytest.raises(Refused, match="some minutes later"):
        await stage.rotate(drop_old=True)
    stage.settle()
    done = await stage.rotate(drop_old=True)
    assert (done.new_key, done.resealed, done.dropped) == (False, 0, 1)
    assert len(read_keys(stage.file)) == 1
    await stage.check()
    assert (await stage.rotate(drop_old=True)).dropped == 0


async def test_what_came_with_an_old_key_meanwhile_is_sealed_anew_before_that_goes(stage: Sealed) -> None:
    await stage.rotate()
    worker = given.worker(name="late", cml={"admin_password": given_keys(OLD).seal(WORD, SecretUse.ADMIN_PASSWORD)})
    await stage[OTTO].create(worker)
    stage.settle()
    done = await stage.rotate(drop_old=True)
    assert (done.resealed, done.dropped) == (1, 1)
    late = await stage[service("")].get(Ref(LabWorker, "late"))
    assert late is not None
    assert stage.sealer.unseal(late.spec.cml.admin_password) == WORD


async def test_a_rotation_that_was_not_finished_is_finished_with_its_own_key(stage: Sealed) -> None:
    assert stage.sealer.grow()
    done = await stage.rotate()
    assert (done.new_key, done.resealed) == (False, 5)
    assert len(read_keys(stage.file)) == 2


async def test_what_no_key_opens_is_named_and_left_alone(stage: Sealed) -> None:
    lost = given_keys(NEW).seal(WORD, SecretUse.ADMIN_PASSWORD)
    await stage.put(given.worker(name="lost", cml={"admin_password": lost}))
    done = await stage.rotate()
    assert done.unopened == ("workers/default/lost",)
    assert lost in await stage.texts()


async def test_keys_that_are_given_are_used_but_not_changed() -> None:
    stage = Stage(sealer=given_keys(OLD))
    await stage[OTTO].create(given.worker(cml={"admin_password": "plain:swordfish"}))
    both = given_keys(NEW, OLD)
    rotation = Rotation(Writer(stage.store, stage.clock, ROOT), both)
    done = await rotation.run()
    assert (done.key, done.new_key, done.resealed) == (fingerprint(NEW), False, 1)
    with pytest.raises(Refused, match="LCM_SEAL_KEYS"):
        await rotation.run(drop_old=True)


async def test_no_key_is_made_that_another_machine_would_not_have(stage: Sealed) -> None:
    for process in ("ada-1-0123abcd", "ada-2-0123abcd", "bob-1-0123abcd"):
        await Presence(stage.store, process).begin()
    with pytest.raises(Refused, match="ada, bob"):
        await stage.rotate()
    assert len(read_keys(stage.file)) == 1


async def test_without_its_file_nothing_is_rotated(stage: Sealed) -> None:
    stage.file.unlink()
    with pytest.raises(Stuck, match="does not exist"):
        await stage.rotate()


def test_a_rotation_may_be_killed_anywhere(tmp_path: Path) -> None:
    folder = folders(tmp_path)

    async def check(stage: Sealed) -> None:
        await stage.check()
        stage.settle()
        await stage.rotate(drop_old=True)
        await stage.check()
        assert len(read_keys(stage.file)) == 1

    crash_everywhere("rotation", lambda: Sealed(folder()).fill(), Sealed.rotate, check)
    pause_everywhere("rotation", lambda: Sealed(folder()).fill(), Sealed.rotate, check, pause_for=timedelta(hours=1))


def test_dropping_the_old_key_may_be_killed_anywhere(tmp_path: Path) -> None:
    folder = folders(tmp_path)

    async def begun() -> Sealed:
        stage = await Sealed(folder()).fill()
        stage.sealer.grow()
        stage.settle()
        return stage

    async def drop(stage: Sealed) -> None:
        await stage.rotate(drop_old=True)

    crash_everywhere("dropping of old keys", begun, drop, Sealed.check)


async def test_staff_may_seal_and_administrators_rotate() -> None:
    async with opened() as desk:
        wish = {"text": "swordfish", "use": "Sink.secret"}
        sealed = (await desk.done("otto", "POST", "/api/secrets/seal", json=wish))["sealed"]
        assert desk.core.sealing.need_sealer().unseal(sealed) == WORD
        assert await _status(desk, "otto", "/api/secrets/rotate") == 403
        assert await _status(desk, "anna", "/api/secrets/seal", text="x") == 403
        assert (await desk.done("root", "POST", "/api/secrets/rotate"))["resealed"] == 0


@pytest.mark.parametrize("text", ["", "x" * 3001, "é" * 1501, 7, None, ["swordfish"]])
async def test_what_cannot_be_sealed_is_refused_by_name(text: object) -> None:
    async with opened() as desk:
        answer = await desk.ask("otto", "POST", "/api/secrets/seal", json={"text": text, "use": "Sink.secret"})
        assert answer.status_code == 422
        assert [fault["path"] for fault in answer.json()["faults"]] == ["text"]


async def _status(desk: Desk, who: str, path: str, **body: str) -> int:
    return (await desk.ask(who, "POST", path, json=body)).status_code
