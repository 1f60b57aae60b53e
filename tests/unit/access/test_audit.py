"""The audit: every write of a caller is in it, in the same commit, and nothing else is."""

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness import given
from harness.api_world import Desk, document, name_of, opened, path, served, shell, stock
from harness.plane_world import ADA, NOW, ROOT, Stage, hand_clock, service
from harness.stores import HandClock
from lcm.control.access.audit import (
    AUDIT_PREFIX,
    AuditedAction,
    AuditFilter,
    AuditPage,
    AuditRecord,
    Origin,
    make_record,
    search_newest_records,
    search_records,
)
from lcm.control.plane.bodies import BulkImport, DiscoveredInstance
from lcm.control.plane.protocol import Ref
from lcm.control.upkeep.housekeeping import Housekeeping
from lcm.model.access.identity import Role
from lcm.model.base.errors import Conflict, Forbidden, Invalid, Refused
from lcm.model.base.machine import WORKER_CONTROLLER
from lcm.model.kinds.worker import LabWorker
from lcm.sim.time.loop import run
from lcm.store.base import MAX_OPERATIONS, Put
from lcm.store.memory import MemoryStore

AUDIT = "/api/audit"
WORKER = f"{path('LabWorker')}/{name_of('LabWorker')}"


class Ticking(HandClock):
    """A clock that goes on whenever somebody looks."""

    def now(self) -> datetime:
        self.step(microseconds=1)
        return super().now()


async def audited(desk: Desk, **query: Any) -> list[Any]:
    return list((await desk.done("root", "GET", AUDIT, params=query))["items"])


async def records(stage: Stage, **wish: Any) -> list[AuditRecord]:
    return list((await search_records(stage.store, AuditFilter(**wish), limit=500)).records)


def deeds(found: list[AuditRecord]) -> list[tuple[str, str, str]]:
    return [(deed.verb, deed.kind, deed.name) for record in found for deed in record.deeds]


async def test_a_write_is_told_with_who_what_when_and_from_where() -> None:
    clock = hand_clock()
    async with opened(clock=clock) as desk:
        await stock(desk)
        clock.step(seconds=1)
        answer = await desk.ask("otto", "POST", f"{WORKER}/pause", json={}, headers={"X-Request-ID": "r-7"})
        assert answer.status_code == 200
        (record,) = await audited(desk, who="otto")
        otto = next(one.id for one in await desk.tokens.list() if one.name == "otto")
        assert record | {"id": ""} == {
            "id": "",
            "at": clock.now().isoformat().replace("+00:00", "Z"),
            "who": "otto",
            "role": "operator",
            "address": "in-memory",
            "request": "r-7",
            "token": otto,
            "deeds": [{"verb": "pause", "kind": "LabWorker", "name": "ccna-worker-1", "namespace": "default"}],
            "epoch": desk.store.epoch,
            "revision": answer.json()["metadata"]["resource_version"],
            "refused": "",
            "left_out": 0,
            "detail": "",
        }


async def fill(store: MemoryStore, chance: random.Random) -> None:
    """Write records of some weeks: now and then one, often many in a second, once very many at the same instant."""
    at, crowded = NOW - timedelta(days=30), chance.randrange(60)
    for turn in range(60):
        at += timedelta(seconds=chance.choice([0.0001, 1, 600, 86_400]))
        apart = timedelta(seconds=chance.choice([0, 0.00001, 0.01])) if turn != crowded else timedelta(0)
        for number in range(chance.choice([1, 1, 3, 60]) if turn != crowded else 600):
            deed = AuditedAction(verb="update", kind="LabWorker", name=f"w{chance.randrange(3)}")
            name = f"{chance.randrange(10**6):06}-{turn}-{number}"
            record = make_record(ROOT, Origin(), [deed], at=at + number * apart, name=name, epoch=store.epoch)
            await store.commit(record)


async def read_ids(search: Callable[..., Awaitable[AuditPage]]) -> list[str]:
    """Read all pages of a search."""
    page = await search()
    found = [one.id for one in page.records]
    while page.next is not None:
        page = await search(after=page.next)
        found += [one.id for one in page.records]
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_the_newest_first_are_all_of_a_span_backwards(seed: int) -> None:
    chance, store = random.Random(seed), MemoryStore()
    await fill(store, chance)
    for limit in (11, 100, 500):
        since, until = sorted(NOW - timedelta(days=chance.uniform(-1, 31)) for _ in range(2))
        wish = AuditFilter(
            since=chance.choice([None, since]), until=chance.choice([None, until]), name=chance.choice(["", "w1"])
        )
        oldest = await read_ids(partial(search_records, store, wish, limit=500))
        newest = await read_ids(partial(search_newest_records, store, wish, limit=limit, now=NOW))
        assert newest == oldest[::-1]


async def test_the_audit_is_listed_from_its_end_if_asked() -> None:
    async with opened(clock=Ticking()) as desk:
        assert await audited(desk, newest="true", name="t1") == []
        for number in range(5):
            await desk.done("root", "POST", path("WorkerTemplate"), json=document("WorkerTemplate", name=f"t{number}"))
        oldest, newest = await audited(desk, limit=500), await audited(desk, limit=500, newest="true")
        assert len(oldest) == 5
        assert newest == oldest[::-1]
        first = await desk.done("root", "GET", AUDIT, params={"newest": "true", "limit": 2})
        second = await audited(desk, newest="true", limit=2, cursor=first["next"])
        assert [*first["items"], *second] == newest[:4]
        for bad in ("x", "99999999T000000.000000Z-a", "00010101T000000.000000Z-"):
            answer = await desk.ask("root", "GET", AUDIT, params={"newest": "true", "cursor": bad})
            assert answer.status_code == 422, answer.text
        assert await audited(desk, newest="true", cursor="00010101T000000.000000Z") == []


async def test_every_way_to_write_is_in_it() -> None:
    async with opened(clock=Ticking()) as desk:
        await stock(desk)
        await desk.done("root", "POST", path("WorkerTemplate"), json=document("WorkerTemplate", name="t2"))
        where = path("WorkerTemplate", "t2")
        await desk.done("root", "PATCH", where, json={"metadata": {"labels": {"a": "b"}}})
        changed = document("WorkerTemplate", name="t2", price_per_hour_usd="1.5")
        await desk.done("root", "PUT", where, json=changed)
        await desk.done("root", "DELETE", where)
        await desk.done("root", "DELETE", WORKER)
        verbs = [deed["verb"] for one in await audited(desk, name="t2") for deed in one["deeds"]]
        assert verbs == ["create", "update", "update", "mark", "delete"]
        assert [one["deeds"][0]["verb"] for one in await audited(desk, kind="LabWorker")][-1] == "delete"


async def test_what_a_person_may_not_do_is_in_it_with_the_reason() -> None:
    async with opened(clock=Ticking()) as desk:
        await stock(desk)
        before = len(await audited(desk))
        await desk.ask("ada", "POST", path("LabWorker"), json=document("LabWorker", name="w9"))
        await desk.ask("ada", "DELETE", path("LabletSession", "ccna-101-ada"))
        await desk.ask("ada", "GET", "/api/audit")
        await desk.api.refusals.flush()
        found = (await audited(desk))[before:]
        assert [(one["who"], one["deeds"][0]["verb"], one["deeds"][0]["kind"]) for one in found] == [
            ("ada", "createLabWorker", "/api/workers"),
            ("ada", "deleteLabletSession", "/api/lablet-sessions/{id}"),
            ("ada", "listAudit", "/api/audit"),
        ]
        assert all(one["refused"] for one in found)


def test_who_is_refused_all_the_time_does_not_fill_it_and_what_was_left_out_is_counted() -> None:
    async def main() -> None:
        async with opened() as desk:
            for _ in range(100):
                assert (await desk.ask("ada", "GET", "/api/audit")).status_code == 403
            await desk.ask("bob", "GET", "/api/audit")
            await asyncio.sleep(10)
            assert len(await audited(desk, who="ada")) == 20
            assert len(await audited(desk, who="bob")) == 1
            await asyncio.sleep(3600)
            for _ in range(100):
                await desk.ask("ada", "GET", "/api/audit")
            await asyncio.sleep(10)
            found = await audited(desk, who="ada")
            assert len(found) == 30
            assert [one["left_out"] for one in found if one["left_out"]] == [80]

    run(main, start=NOW)


async def test_what_changes_nothing_or_cannot_be_done_is_not_in_it() -> None:
    async with opened() as desk:
        await stock(desk)
        before = await audited(desk)
        await desk.ask("root", "POST", path("LabWorker"), json={"spec": 7})
        await desk.ask("root", "POST", path("LabWorker"), json=document("LabWorker"))
        await desk.ask("root", "DELETE", WORKER, headers={"If-Match": '"1"'})
        await desk.done("root", "DELETE", f"{WORKER}?dry_run=true")
        await desk.done("root", "POST", "/api/apply", json={"documents": [document("LabWorker")]})
        await desk.done("root", "GET", path("LabWorker"))
        assert await audited(desk) == before


async def test_a_deletion_that_is_refused_half_way_is_told_as_it_was() -> None:
    stage = Stage()
    await stage.put(given.template(name="metal"))
    await stage.put(given.pool(template="metal"))
    with pytest.raises(Refused):
        await stage[ROOT].delete(Ref(type(given.template()), "metal"))
    assert deeds(await records(stage)) == []


async def test_status_and_measurements_that_controllers_report_are_not_in_it() -> None:
    stage = Stage()
    await stage.put(given.worker())
    plane = stage[service(WORKER_CONTROLLER)]
    worker = await plane.get(Ref(LabWorker, "w1"))
    assert worker is not None
    await plane.step(worker, msgspec.structs.replace(worker.status, last_error="none"), reason="seen")
    await plane.report(Ref(LabWorker, "w1"), given.telemetry())
    assert await records(stage) == []


async def test_what_controllers_make_is_in_it_under_the_name_of_their_part() -> None:
    stage = Stage()
    found = BulkImport(discovered_instances=(DiscoveredInstance(instance_id="i-1"),), aws_region="us-east-1")
    await stage[service(WORKER_CONTROLLER)].import_workers(found)
    (record,) = await records(stage)
    assert (record.who, record.role) == (WORKER_CONTROLLER, Role.SERVICE)
    assert deeds([record]) == [("import", "LabWorker", "imported-i-1")]


async def test_a_record_is_in_the_commit_that_it_tells_of() -> None:
    stage = Stage()
    async with stage.store.watch("", after=0) as watch:
        made = await stage[ROOT].create(given.template())
        changed = await anext(watch)
    assert changed.revision == made.metadata.resource_version
    keys = [change.key.partition("/")[0] for change in changed.changes]
    assert keys == ["worker-templates", "uids", "guards", "audit"]
    assert (await records(stage))[0].revision == changed.revision


async def test_a_commit_that_fails_leaves_no_record() -> None:
    stage = Stage()
    made = await stage[ROOT].create(given.template())
    with pytest.raises(Conflict):
        await stage[ROOT].replace(made, at=made.metadata.resource_version + 1)
    with pytest.raises(Forbidden):
        await stage[ADA].create(given.template(name="other"))
    assert len(await records(stage)) == 1


async def test_a_large_apply_stays_within_the_limits_of_commits_and_lists_every_object_once() -> None:
    stage = Stage()
    folder = [{**document("WorkerTemplate", name=f"{'t' * 55}-{number}")} for number in range(200)]
    await stage.core.plane_for(ROOT, Origin("192.0.2.7", "r-1")).apply(folder)
    found = await records(stage)
    assert 1 < len(found) < 10
    assert sorted(name for _, _, name in deeds(found)) == sorted(one["metadata"]["name"] for one in folder)
    assert {(one.address, one.request) for one in found} == {("192.0.2.7", "r-1")}
    assert all(2 * len(one.deeds) + 2 <= MAX_OPERATIONS for one in found)


async def test_pages_go_from_old_to_new_and_hold_everything_once() -> None:
    clock = hand_clock()
    async with opened(clock=clock) as desk:
        for number in range(25):
            clock.step(seconds=1)
            await desk.done("root", "POST", path("WorkerTemplate"), json=document("WorkerTemplate", name=f"t{number}"))
        whole, cursor = [], None
        for _ in range(10):
            query = {"limit": 7} | ({"cursor": cursor} if cursor else {})
            page = await desk.done("root", "GET", AUDIT, params=query)
            assert len(page["items"]) <= 7
            whole += page["items"]
            cursor = page["next"]
            if cursor is None:
                break
        assert [one["deeds"][0]["name"] for one in whole] == [f"t{number}" for number in range(25)]
        moments = [one["at"] for one in whole]
        some = await audited(desk, since=moments[5], until=moments[8])
        assert [one["at"] for one in some] == moments[5:8]
        assert [one["deeds"][0]["name"] for one in await audited(desk, name="t3", kind="WorkerTemplate")] == ["t3"]
        assert await audited(desk, name="t3", kind="LabWorker") == []
        assert await audited(desk, who="ada") == []


@pytest.mark.parametrize("query", ["cursor=x", "limit=0", "limit=501", "since=yesterday", "until=2026-01-01", "verb=a"])
async def test_a_query_that_is_wrong_is_said_to_be(query: str) -> None:
    async with opened() as desk:
        assert (await desk.ask("root", "GET", f"{AUDIT}?{query}")).status_code == 422


async def test_a_search_that_finds_little_goes_on_where_it_stopped() -> None:
    stage = Stage()
    await stage[ROOT].create(given.template())
    written = (await stage.store.scan(AUDIT_PREFIX)).entries[0].value
    for start in range(0, 5200, 100):
        puts = [
            Put(f"{AUDIT_PREFIX}20200101T000000.{number:06}Z-x", written.replace(b'"root"', b'"else"'))
            for number in range(start, start + 100)
        ]
        await stage.store.commit(*puts)
    first = await search_records(stage.store, AuditFilter(who="root"), limit=10)
    assert first.records == []
    assert first.next is not None
    second = await search_records(stage.store, AuditFilter(who="root"), limit=10, after=first.next)
    assert [one.who for one in second.records] == ["root"]
    assert second.next is None


async def test_old_records_are_swept_and_others_stay() -> None:
    clock = hand_clock()
    stage = Stage(clock=clock)
    for number in range(150):
        await stage[ROOT].create(given.template(name=f"old-{number}"))
    clock.step(days=60)
    await stage[ROOT].create(given.template(name="young"))
    clock.step(days=31)
    await Housekeeping(stage.store, clock=clock).tidy()
    assert deeds(await records(stage)) == [("create", "WorkerTemplate", "young")]
    await Housekeeping(stage.store, clock=clock, audit_kept=timedelta(days=30)).tidy()
    assert await records(stage) == []


async def test_after_a_restore_the_old_revisions_are_not_pretended() -> None:
    stage = Stage()
    await stage[ROOT].create(given.template())
    entries = (await stage.store.scan("")).entries

    async def backup() -> Any:
        for entry in entries:
            yield Put(entry.key, entry.value, entry.labels)

    other = MemoryStore(epoch="another")
    await other.load(backup(), epoch="another")
    found = await search_records(other, AuditFilter(), limit=10)
    assert [(one.revision, one.who) for one in found.records] == [(None, "root")]


async def test_a_strange_request_id_is_not_written_down() -> None:
    async with opened() as desk:
        sent = {"X-Request-ID": "a b\x1b[31m"}
        await desk.done("root", "POST", path("WorkerTemplate"), json=document("WorkerTemplate"), headers=sent)
        (record,) = await audited(desk)
        assert "\x1b" not in record["request"]
        assert record["request"]


async def test_many_at_once_are_all_in_it() -> None:
    stage = Stage()
    await asyncio.gather(*(stage[ROOT].create(given.template(name=f"t{number}")) for number in range(50)))
    assert len(await records(stage)) == 50


def test_the_command_line_lists_it_for_administrators(tmp_path: Path) -> None:
    with served() as api:
        root = shell(api, tmp_path)
        assert "nothing" in root.lcm("audit", "--who", "ada").stderr
        api.do(lambda plane: plane.create(given.template(name="metal")))
        token = root.out("token", "create", "eve").splitlines()[-1]
        shown = root.out("audit")
        assert "create WorkerTemplate/metal" in shown
        assert "create AccessToken/" in shown
        assert "127.0.0.1" in shown
        assert token not in shown
        narrow = shell(api, tmp_path, columns=80).out("audit").splitlines()
        assert max(map(len, narrow)) <= 80
        assert re.match(r"[-0-9]{10} [:0-9]{8}\S* .*create WorkerTemplate/metal", narrow[1])
        lines = root.out("audit", "-o", "json", "--kind", "WorkerTemplate", "--since", "all").splitlines()
        assert [msgspec.json.decode(line)["who"] for line in lines] == ["root"]
        assert root.out("audit", "--until", "1h") == ""
        assert root.lcm("audit", "--since", "whenever").exit_code == 2
        assert shell(api, tmp_path, "ada").lcm("audit").exit_code == 5


async def test_a_cursor_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(Invalid):
        await search_records(MemoryStore(), AuditFilter(), limit=1, after="../tokens/")
