"""What keeps a process honest: its parts, its lease, and its claim on a folder."""

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lcm.control.upkeep.installation import PRESENCE_TTL_SECONDS, Presence
from lcm.model.base.errors import Refused, Stuck, Unreachable
from lcm.sim.time.loop import run
from lcm.store.base import Lease
from lcm.store.memory import MemoryStore
from lcm.system.data_folder import claim_folder
from lcm.system.tasks import Supervisor

LEASE = "processes/p1"


async def for_ever() -> None:
    await asyncio.Event().wait()


async def failing(error: BaseException) -> None:
    await asyncio.sleep(1)
    raise error


def test_a_part_that_fails_ends_the_wait_with_its_error() -> None:
    async def main() -> None:
        async with Supervisor() as parts:
            parts.start("one", for_ever())
            parts.start("other", failing(Unreachable("no answer")))
            with pytest.raises(Unreachable, match="no answer"):
                await parts.wait_until(asyncio.Event())

    run(main)


def test_a_part_that_ends_unasked_is_a_bug() -> None:
    async def main() -> None:
        async with Supervisor() as parts:
            parts.start("brief", asyncio.sleep(3))
            with pytest.raises(AssertionError, match="brief ended"):
                await parts.wait_until(asyncio.Event())

    run(main)


def test_what_still_runs_is_cancelled_and_waited_for() -> None:
    ended: list[str] = []

    async def careful() -> None:
        try:
            await for_ever()
        finally:
            await asyncio.sleep(1)
            ended.append("careful")

    async def main() -> None:
        stop = asyncio.Event()
        async with Supervisor() as parts:
            parts.start("careful", careful())
            asyncio.get_running_loop().call_later(5, stop.set)
            await parts.wait_until(stop)
        assert ended == ["careful"]

    run(main)


class Fickle(MemoryStore):
    """A store that does not answer from one moment to another."""

    away = False

    async def renew(self, *leases: Lease) -> None:
        if self.away:
            raise Unreachable("the store is away")
        await super().renew(*leases)

    async def release(self, lease: Lease) -> None:
        if self.away:
            await for_ever()
        await super().release(lease)


async def present(store: MemoryStore) -> bool:
    return await store.lease(LEASE) is not None


def test_a_process_is_present_as_long_as_it_runs() -> None:
    async def main() -> None:
        store = MemoryStore()
        presence = Presence(store, "p1")
        await presence.begin()
        async with Supervisor() as parts:
            parts.start("presence", presence.keep(store))
            await asyncio.sleep(10 * PRESENCE_TTL_SECONDS)
            assert await present(store)
        await presence.end()
        assert not await present(store)

    run(main)


def test_a_process_that_was_cut_off_from_the_store_is_present_again() -> None:
    async def main() -> None:
        store = Fickle()
        presence = Presence(store, "p1")
        await presence.begin()
        async with Supervisor() as parts:
            parts.start("presence", presence.keep(store))
            store.away = True
            await asyncio.sleep(2 * PRESENCE_TTL_SECONDS)
            assert not await present(store)
            store.away = False
            await asyncio.sleep(PRESENCE_TTL_SECONDS)
            assert await present(store)

    run(main)


def test_a_process_that_stops_does_not_wait_long_for_the_store() -> None:
    async def main() -> None:
        store = Fickle()
        presence = Presence(store, "p1")
        await presence.begin()
        store.away = True
        async with asyncio.timeout(3):
            await presence.end()

    run(main)


def test_the_presence_of_a_dead_process_ends_by_itself() -> None:
    async def main() -> None:
        store = MemoryStore()
        await Presence(store, "p1").begin()
        await asyncio.sleep(PRESENCE_TTL_SECONDS + 1)
        assert not await present(store)

    run(main)


def test_a_new_folder_is_its_owners_only(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    with claim_folder(folder, alone=True) as file:
        assert file == folder / "lcm.db"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()] == [0o600]


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_whoever_claims_a_folder_alone_is_alone(tmp_path: Path, first: bool, second: bool) -> None:  # noqa: FBT001
    runs = f"process {os.getpid()} runs" if first else "one or more processes of `lcm serve` run"
    with claim_folder(tmp_path, alone=first), pytest.raises(Refused, match=f"{runs} on {tmp_path}"):
        claim_folder(tmp_path, alone=second).__enter__()
    with claim_folder(tmp_path, alone=second):
        pass


def test_several_may_share_a_folder_and_none_of_them_is_named_for_another(tmp_path: Path) -> None:
    with claim_folder(tmp_path, alone=True):
        pass
    with claim_folder(tmp_path, alone=False):
        with claim_folder(tmp_path, alone=False):
            pass
        with pytest.raises(Refused, match="`lcm serve` run on"):
            claim_folder(tmp_path, alone=True).__enter__()


def test_a_folder_that_others_can_look_into_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o755)
    with claim_folder(tmp_path, alone=True):
        assert f"chmod 700 {tmp_path}" in capsys.readouterr().out
    tmp_path.chmod(0o700)
    with claim_folder(tmp_path, alone=True):
        assert "chmod" not in capsys.readouterr().out


def test_the_claim_of_a_killed_process_is_gone_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from lcm.system.data_folder import claim_folder\n"
        "with claim_folder(Path(sys.argv[1]), alone=True):\n"
        "    print('claimed', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(Refused, match=f"process {process.pid} runs"):
            claim_folder(tmp_path, alone=True).__enter__()
        process.kill()
    with claim_folder(tmp_path, alone=True):
        pass


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Stuck, match="file/data: this folder cannot be used"):
        claim_folder(tmp_path / "file" / "data", alone=True).__enter__()
