"""Random operations give the same answers on every engine as on memory, the reference.

A step runs on both; answers are compared with revisions shifted by the constant distance between the two histories.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from harness.stores import etcd_arena, sqlite_arena
from lcm.model.base.errors import Conflict, LcmError
from lcm.store.base import FIRST_KEY, CheckRevision, Cursor, Delete, Entry, Fence, Lease, Op, Put, Store
from lcm.store.memory import MemoryStore

T = TypeVar("T")
KEYS = [f"{kind}/{name}" for kind in ("a", "b") for name in ("1", "2", "10", "3")]
PREFIXES = ["", "a/", "a/1", "b", "c"]
LABELS = st.dictionaries(st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"]), max_size=2)
DEMANDS = st.one_of(st.none(), st.integers(0, 3))
"""None: no precondition; 0: absent; else the state of so many steps ago."""
VERBS = ["put", "put", "delete", "check"]
OPS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(VERBS), st.binary(max_size=8), LABELS, DEMANDS),
    min_size=1,
    max_size=5,
    unique_by=lambda op: op[0],
)

Wanted = Sequence[tuple[str, str, bytes, dict[str, str], int | None]]


class Twin:
    """One engine and the distance of its revisions from the reference's."""

    def __init__(self, store: Store, distance: int) -> None:
        self.store = store
        self.distance = distance

    def there(self, revision: int) -> int:
        return revision + self.distance if revision else 0

    def entry(self, entry: Entry | None) -> tuple[object, ...] | None:
        if entry is None:
            return None
        back = self.distance
        return (entry.key, entry.value, dict(entry.labels), entry.revision - back, entry.created - back)

    def op(self, wanted: tuple[str, str, bytes, dict[str, str], int | None]) -> Op:
        key, verb, value, labels, at = wanted
        where = None if at is None else self.there(at)
        if verb == "put":
            return Put(key, value, labels, where)
        return Delete(key, where) if verb == "delete" else CheckRevision(key, where or 0)

    async def answer(self, act: Callable[["Twin"], Awaitable[T]]) -> T | tuple[str, ...]:
        try:
            return await act(self)
        except Conflict as error:
            found = error.found - self.distance if error.found else 0
            return ("Conflict", error.key, str(found))
        except LcmError as error:
            return (type(error).__name__,)


class SameAnswers(RuleBasedStateMachine):
    open_store: ClassVar[Callable[[], Coroutine[Any, Any, Store]]]

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.memory, self.engine = self.runner.run(self.begin())
        self.revisions = {key: [0] for key in KEYS}
        self.newest = 1
        self.marks = [1]
        self.leases: list[tuple[Lease, Lease]] = []

    async def begin(self) -> tuple[Twin, Twin]:
        memory, engine = MemoryStore(), await type(self).open_store()
        distance = (await engine.scan("")).revision - (await memory.scan("")).revision
        return Twin(memory, 0), Twin(engine, distance)

    def teardown(self) -> None:
        self.runner.run(self.end())
        self.runner.close()

    async def end(self) -> None:
        for _, lease in self.leases:
            await self.engine.store.release(lease)
        await self.engine.store.close()
        await self.memory.store.close()

    def both(self, act: Callable[[Twin], Awaitable[T]]) -> T | tuple[str, ...]:
        async def run() -> tuple[object, object]:
            return await self.memory.answer(act), await self.engine.answer(act)

        want, got = self.runner.run(run())
        assert got == want
        return want  # type: ignore[return-value]

    def demand(self, key: str, back: int | None) -> int | None:
        if back is None or back == 0:
            return back
        return self.revisions[key][-min(back, len(self.revisions[key]))]

    @rule(wanted=OPS, events=st.lists(st.binary(max_size=4), max_size=2), fenced=st.integers(0, 3))
    def commit(self, wanted: Wanted, events: list[bytes], fenced: int) -> None:
        resolved = [(key, verb, value, labels, self.demand(key, back)) for key, verb, value, labels, back in wanted]
        place = fenced - 1 if 0 < fenced <= len(self.leases) else None

        def fence(twin: Twin) -> Fence | None:
            return None if place is None else self.leases[place][twin is self.engine].fence()

        async def act(twin: Twin) -> int:
            ops = [twin.op(one) for one in resolved]
            return await twin.store.commit(*ops, events=events, fence=fence(twin)) - twin.distance

        answer = self.both(act)
        if isinstance(answer, int) and answer > self.newest:
            self.newest = answer
            self.marks.append(answer)
            for key, verb, *_ in resolved:
                if verb == "put":
                    self.revisions[key].append(answer)

    @rule(key=st.sampled_from(KEYS))
    def get(self, key: str) -> None:
        async def act(twin: Twin) -> tuple[object, ...] | None:
            return twin.entry(await twin.store.get(key))

        self.both(act)

    @rule(prefix=st.sampled_from(PREFIXES), labels=LABELS, limit=st.integers(1, 4), back=st.integers(0, 3))
    def scan(self, prefix: str, labels: dict[str, str], limit: int, back: int) -> None:
        revision = self.marks[-min(back, len(self.marks))] if back else None

        async def act(twin: Twin) -> list[object]:
            cursor = Cursor(twin.there(revision), prefix or FIRST_KEY) if revision else None
            found: list[object] = []
            while True:
                page = await twin.store.scan(prefix, labels=labels, limit=limit, cursor=cursor)
                found += [len(page.entries), page.revision - twin.distance, *map(twin.entry, page.entries)]
                if page.next is None:
                    return found
                cursor = page.next

        self.both(act)

    @rule(back=st.integers(1, 6), prefix=st.sampled_from(["", "a/"]))
    def watch(self, back: int, prefix: str) -> None:
        after = self.marks[-min(back, len(self.marks))]

        async def act(twin: Twin) -> list[object]:
            stop = await twin.store.commit(Put("a/stop", b""), Put("b/stop", b""))
            seen: list[object] = []
            async with asyncio.timeout(60), twin.store.watch(prefix, after=twin.there(after)) as watch:
                async for batch in watch:
                    seen.append(batch.revision - twin.distance)
                    seen += [(change.key, twin.entry(change.entry)) for change in batch.changes]
                    if batch.revision >= stop:
                        break
            return seen

        self.both(act)
        self.newest += 1
        self.marks.append(self.newest)

    @rule(back=st.integers(1, 6))
    def follow_events(self, back: int) -> None:
        after = self.marks[-min(back, len(self.marks))]

        async def act(twin: Twin) -> list[object]:
            stop = await twin.store.commit(events=[b"stop"])
            seen: list[object] = []
            async with asyncio.timeout(60), twin.store.events(after=twin.there(after)) as reader:
                async for happened in reader:
                    seen.append((happened.revision - twin.distance, list(happened.events)))
                    if happened.revision >= stop:
                        break
            return seen

        self.both(act)
        self.newest += 1
        self.marks.append(self.newest)

    @rule(back=st.integers(0, 3))
    def compact(self, back: int) -> None:
        revision = self.marks[-min(back + 1, len(self.marks))]

        async def act(twin: Twin) -> None:
            await twin.store.compact(twin.there(revision))

        self.both(act)

    @rule(name=st.sampled_from(["one", "two"]), holder=st.sampled_from(["h", "i"]))
    def acquire(self, name: str, holder: str) -> None:
        taken: dict[Twin, Lease] = {}

        async def act(twin: Twin) -> tuple[object, ...] | None:
            lease = await twin.store.acquire(name, holder, ttl_seconds=600)
            if lease is None:
                return None
            taken[twin] = lease
            return (lease.name, lease.holder, lease.term - twin.distance, lease.ttl_seconds)

        if self.both(act) is not None:
            self.leases.append((taken[self.memory], taken[self.engine]))
            self.newest += 1
            self.marks.append(self.newest)

    @precondition(lambda self: self.leases)
    @rule(place=st.integers(0, 5), renew=st.booleans())
    def end_lease(self, place: int, *, renew: bool) -> None:
        pair = self.leases[place % len(self.leases)]

        async def act(twin: Twin) -> int:
            lease = pair[twin is self.engine]
            await (twin.store.renew(lease) if renew else twin.store.release(lease))
            return (await twin.store.scan("")).revision - twin.distance

        answer = self.both(act)
        if isinstance(answer, int):
            self.newest = max(self.newest, answer)

    @rule(name=st.sampled_from(["one", "two", "three"]))
    def who_leads(self, name: str) -> None:
        async def act(twin: Twin) -> tuple[object, ...] | None:
            lease = await twin.store.lease(name)
            return (lease.holder, lease.term - twin.distance) if lease else None

        self.both(act)


@pytest.mark.parametrize("engine", ["sqlite", "sqlite-alone", "etcd"])
def test_random_operations_give_the_same_answers_as_on_memory(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    def open_store() -> Coroutine[Any, Any, Store]:
        if engine != "etcd":
            return sqlite_arena(tmp_path, alone=engine == "sqlite-alone").open()
        return etcd_arena(request.getfixturevalue("etcd").endpoint).open()

    class OnThisEngine(SameAnswers):
        pass

    OnThisEngine.open_store = staticmethod(open_store)
    run_state_machine_as_test(
        OnThisEngine,
        settings=settings(
            max_examples=12 if engine == "etcd" else 30,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
