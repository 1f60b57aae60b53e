"""The store's contract: commits, preconditions, limits, reading and paging."""

import asyncio

import pytest

from harness.stores import Arena
from lcm.model.base.errors import Conflict, Invalid, Relist, TooLarge, Unreachable
from lcm.store.base import ABSENT, MAX_BYTES, MAX_OPERATIONS, CheckRevision, Cursor, Delete, Put, Store, scan_all


async def keys(store: Store, prefix: str = "") -> list[str]:
    return [entry.key for entry in (await scan_all(store, prefix)).entries]


async def test_what_was_put_is_read_back(store: Store) -> None:
    revision = await store.commit(Put("a/1", b"\x00one\xff", {"track": "ccna"}))
    entry = await store.get("a/1")
    assert entry is not None
    assert (entry.key, entry.value, dict(entry.labels)) == ("a/1", b"\x00one\xff", {"track": "ccna"})
    assert (entry.revision, entry.created) == (revision, revision)


async def test_several_keys_are_read_at_once_in_the_order_asked_for(store: Store) -> None:
    await store.commit(Put("k/1", b"1"), Put("k/2", b"2"))
    found = await store.get_all("k/2", "k/0", "k/1", "k/2")
    assert [one.value if one else None for one in found] == [b"2", None, b"1", b"2"]
    assert await store.get_all() == []
    with pytest.raises(Invalid):
        await store.get_all("k/1", "")


async def test_a_missing_key_reads_as_none(store: Store) -> None:
    assert await store.get("nothing/here") is None


async def test_revisions_grow_by_one_per_commit(store: Store) -> None:
    first = await store.commit(Put("a", b"1"), Put("b", b"1"))
    assert await store.commit(Put("a", b"2")) == first + 1
    assert await store.commit(Delete("a"), Delete("b")) == first + 2


async def test_created_survives_overwriting_and_ends_with_deletion(store: Store) -> None:
    first = await store.commit(Put("a", b"1"))
    await store.commit(Put("a", b"2"))
    entry = await store.get("a")
    assert entry is not None
    assert (entry.created, entry.revision) == (first, first + 1)
    await store.commit(Delete("a"))
    again = await store.commit(Put("a", b"3"))
    entry = await store.get("a")
    assert entry is not None
    assert entry.created == again


async def test_overwriting_replaces_the_labels(store: Store) -> None:
    await store.commit(Put("a", b"1", {"x": "1", "y": "1"}))
    await store.commit(Put("a", b"1", {"x": "2"}))
    entry = await store.get("a")
    assert entry is not None
    assert dict(entry.labels) == {"x": "2"}


@pytest.mark.parametrize("op", [Put("a", b"new", at=ABSENT), Delete("a", at=ABSENT), CheckRevision("a", ABSENT)])
async def test_absent_is_refused_when_the_key_is_there(store: Store, op: Put | Delete | CheckRevision) -> None:
    revision = await store.commit(Put("a", b"old"))
    with pytest.raises(Conflict) as raised:
        await store.commit(Put("b", b"1"), op)
    assert (raised.value.key, raised.value.wanted, raised.value.found) == ("a", ABSENT, revision)
    assert await keys(store) == ["a"]


@pytest.mark.parametrize("there", [True, False])
async def test_a_stale_revision_is_refused_and_nothing_is_written(store: Store, *, there: bool) -> None:
    stale = await store.commit(Put("a", b"1"))
    newest = await store.commit(Put("a", b"2") if there else Delete("a"))
    for op in (Put("a", b"3", at=stale), Delete("a", at=stale), CheckRevision("a", stale)):
        with pytest.raises(Conflict) as raised:
            await store.commit(Put("other", b""), op, events=[b"never"])
        assert raised.value.found == (newest if there else ABSENT)
    assert await store.get("other") is None
    assert await store.commit(Put("b", b"")) == newest + 1


async def test_the_present_revision_is_accepted(store: Store) -> None:
    revision = await store.commit(Put("a", b"1"), Put("b", b"1"), Put("c", b"1"))
    after = await store.commit(Put("a", b"2", at=revision), Delete("b", at=revision), CheckRevision("c", revision))
    assert after == revision + 1
    assert await keys(store) == ["a", "c"]


async def test_a_commit_that_changes_nothing_spends_no_revision(store: Store) -> None:
    revision = await store.commit(Put("a", b"1"))
    assert await store.commit(Delete("nothing")) == revision
    assert await store.commit(CheckRevision("a", revision)) == revision
    assert await store.commit(Put("b", b"1")) == revision + 1


async def test_a_put_of_equal_bytes_is_a_new_revision(store: Store) -> None:
    revision = await store.commit(Put("a", b"1"))
    assert await store.commit(Put("a", b"1")) == revision + 1


async def test_as_many_operations_as_allowed_and_not_one_more(store: Store) -> None:
    puts = [Put(f"k/{n:03}", b"", at=ABSENT) for n in range(MAX_OPERATIONS)]
    await store.commit(*puts)
    for extra in ({"ops": [*puts, Put("one-more", b"")]}, {"ops": puts, "events": [b"event"]}):
        with pytest.raises(TooLarge):
            await store.commit(*extra["ops"], events=extra.get("events", []))  # type: ignore[misc, arg-type]
    assert len(await keys(store)) == MAX_OPERATIONS


async def test_a_full_commit_is_refused_as_a_whole(store: Store) -> None:
    puts = [Put(f"k/{n:03}", b"", at=ABSENT) for n in range(MAX_OPERATIONS)]
    start = await store.commit(Put(f"k/{MAX_OPERATIONS - 1:03}", b"first"))
    with pytest.raises(Conflict) as raised:
        await store.commit(*puts)
    assert (raised.value.key, raised.value.wanted, raised.value.found) == (puts[-1].key, ABSENT, start)
    assert await keys(store) == [puts[-1].key]
    revision = await store.commit(*puts[:-1], Put(puts[-1].key, b"second", at=start))
    assert revision == start + 1
    async with store.watch("k/", after=start) as watch, asyncio.timeout(60):
        [*changes] = (await anext(watch)).changes
    assert [change.key for change in changes] == [put.key for put in puts]


async def test_as_many_bytes_as_allowed_and_not_one_more(store: Store) -> None:
    await store.commit(Put("big", b"x" * (MAX_BYTES - 3)))
    with pytest.raises(TooLarge):
        await store.commit(Put("big", b"x" * (MAX_BYTES - 2)))
    with pytest.raises(TooLarge):
        await store.commit(Put("big", b"x" * 500_000), events=[b"x" * 500_001])
    entry = await store.get("big")
    assert entry is not None
    assert len(entry.value) == MAX_BYTES - 3


@pytest.mark.parametrize("label", ["\U0001f680" * (MAX_BYTES // 4), "\x00" * MAX_BYTES, "é" * (MAX_BYTES // 2)])
async def test_labels_count_by_the_bytes_they_take(store: Store, label: str) -> None:
    await store.commit(Put("a", b"", {"x": label[: len(label) - 20]}))
    with pytest.raises(TooLarge):
        await store.commit(Put("a", b"", {"x": label}))
    entry = await store.get("a")
    assert entry is not None
    assert entry.labels["x"] == label[: len(label) - 20]


async def test_many_small_labels_and_empty_events_are_not_free(store: Store) -> None:
    with pytest.raises(TooLarge):
        await store.commit(Put("a", b"", {f"{n:x}": "" for n in range(100_000)}))
    with pytest.raises(TooLarge):
        await store.commit(events=[b""] * 250_000)
    await store.commit(Put("a", b"", {f"{n:x}": "" for n in range(60_000)}), events=[b""] * 1_000)


async def test_labels_that_are_no_text_are_refused(store: Store) -> None:
    for labels in ({"x": "\ud800"}, {"\udfff": "x"}):
        with pytest.raises(Invalid, match="surrogates"):
            await store.commit(Put("a", b"", labels))


@pytest.mark.parametrize("value", ["text", None, bytearray(b"x"), [1]])
async def test_values_and_events_are_bytes(store: Store, value: bytes) -> None:
    with pytest.raises(Invalid, match="bytes"):
        await store.commit(Put("a", value))
    with pytest.raises(Invalid, match="bytes"):
        await store.commit(events=[value])


@pytest.mark.parametrize("key", ["", "!leases/x", "/slash", "a b", "a\n", "ü", "a" * 513, " "])
async def test_a_key_that_some_engine_could_not_hold_is_refused(store: Store, key: str) -> None:
    for op in (Put(key, b""), Delete(key), CheckRevision(key, 0)):
        with pytest.raises(Invalid):
            await store.commit(op)
    with pytest.raises(Invalid):
        await store.get(key)


async def test_a_key_twice_in_a_commit_is_refused(store: Store) -> None:
    with pytest.raises(Invalid, match="twice"):
        await store.commit(Put("a", b"1"), Delete("a"))


async def test_a_scan_is_sorted_and_keeps_to_its_prefix(store: Store) -> None:
    await store.commit(*(Put(key, key.encode()) for key in ("b/2", "a/1", "b/10", "b0", "b", "c", "z~")))
    assert await keys(store, "b/") == ["b/10", "b/2"]
    assert await keys(store, "b") == ["b", "b/10", "b/2", "b0"]
    assert await keys(store) == ["a/1", "b", "b/10", "b/2", "b0", "c", "z~"]


async def test_a_scan_never_shows_what_belongs_to_the_engine(store: Store) -> None:
    assert await store.acquire("leader", "me", ttl_seconds=15) is not None
    await store.commit(Put("a", b"1"), events=[b"event"])
    assert await keys(store) == ["a"]


async def test_all_pages_are_true_at_one_revision(store: Store) -> None:
    await store.commit(*(Put(f"k/{n:02}", b"old") for n in range(25)))
    page = await store.scan("k/", limit=10)
    await store.commit(Put("k/12", b"new"), Delete("k/15"), Put("k/99", b"late"), Put("k/155", b"late"))
    pages = [page]
    while page.next is not None:
        page = await store.scan("k/", limit=10, cursor=page.next)
        pages.append(page)
    assert [len(page.entries) for page in pages] == [10, 10, 5]
    assert {page.revision for page in pages} == {pages[0].revision}
    entries = [entry for page in pages for entry in page.entries]
    assert [entry.key for entry in entries] == [f"k/{n:02}" for n in range(25)]
    assert {entry.value for entry in entries} == {b"old"}


async def test_a_page_that_ends_exactly_at_the_limit_is_the_last(store: Store) -> None:
    await store.commit(*(Put(f"k/{n}", b"") for n in range(4)))
    assert (await store.scan("k/", limit=4)).next is None
    assert (await store.scan("none/", limit=4)).entries == []


@pytest.mark.parametrize("limit", [0, -1, -500])
async def test_a_page_must_have_room(store: Store, limit: int) -> None:
    with pytest.raises(Invalid):
        await store.scan("", limit=limit)


async def test_a_cursor_from_another_history_says_relist(store: Store) -> None:
    revision = await store.commit(Put("a", b""), Put("b", b""))
    with pytest.raises(Relist):
        await store.scan("", cursor=Cursor(revision + 1, "a"))
    page = await store.scan("", cursor=Cursor(revision, "a"))
    assert [entry.key for entry in page.entries] == ["b"]


async def test_labels_select_and_pages_are_still_full(store: Store) -> None:
    ops = [Put(f"k/{n:02}", b"", {"odd": str(n % 2), "third": str(n % 3)}) for n in range(40)]
    await store.commit(*ops)
    page = await store.scan("k/", labels={"odd": "1"}, limit=15)
    assert [entry.key for entry in page.entries] == [f"k/{n:02}" for n in range(1, 30, 2)]
    rest = await store.scan("k/", labels={"odd": "1"}, limit=15, cursor=page.next)
    assert [entry.key for entry in rest.entries] == [f"k/{n:02}" for n in range(31, 40, 2)]
    both = await scan_all(store, "k/", labels={"odd": "1", "third": "0"})
    assert [entry.key for entry in both.entries] == [f"k/{n:02}" for n in range(3, 40, 6)]


async def test_labels_may_hold_any_text(store: Store) -> None:
    labels = {"owner": 'Zoë "Z" \\ O\'Neil', "e": "", "ключ": "\U0001f680"}
    await store.commit(Put("a", b"", labels))
    assert [dict(entry.labels) for entry in (await scan_all(store, "", labels=labels)).entries] == [labels]


async def test_paging_into_compacted_history_says_relist(store: Store) -> None:
    await store.commit(*(Put(f"k/{n}", b"") for n in range(4)))
    page = await store.scan("k/", limit=2)
    await store.compact(await store.commit(Put("k/0", b"new")))
    with pytest.raises(Relist):
        await store.scan("k/", limit=2, cursor=page.next)
    assert await keys(store) == ["k/0", "k/1", "k/2", "k/3"]


async def test_compaction_keeps_the_present_and_may_be_repeated(store: Store) -> None:
    await store.commit(Put("a", b"1"), Put("gone", b"1"))
    await store.commit(Put("a", b"2"), Delete("gone"))
    newest = await store.commit(Delete("nothing"), Put("b", b"1"))
    for revision in (newest, newest - 1, newest + 1_000):
        await store.compact(revision)
    assert await keys(store) == ["a", "b"]
    assert await store.commit(Put("gone", b"2", at=ABSENT)) == newest + 1


async def test_the_revision_never_goes_back_after_compacting_a_deletion(store: Store) -> None:
    await store.commit(Put("a", b"1"))
    newest = await store.commit(Delete("a"))
    await store.compact(newest)
    assert (await store.scan("")).revision == newest
    assert await store.commit(Put("a", b"2", at=ABSENT)) == newest + 1


async def test_writers_that_race_lose_no_increment(arena: Arena) -> None:
    stores = [await arena.open(), await arena.open()]
    await stores[0].commit(Put("counter", b"0"))

    async def increment(store: Store) -> None:
        while True:
            entry = await store.get("counter")
            assert entry is not None
            try:
                await store.commit(Put("counter", str(int(entry.value) + 1).encode(), at=entry.revision))
            except Conflict:
                continue
            return

    async with asyncio.TaskGroup() as group:
        for n in range(40):
            group.create_task(increment(stores[n % 2]))
    entry = await stores[1].get("counter")
    assert entry is not None
    assert entry.value == b"40"


async def test_of_writers_that_claim_one_key_exactly_one_wins(arena: Arena) -> None:
    stores = [await arena.open(), await arena.open()]
    claims = [stores[n % 2].commit(Put("seat", str(n).encode(), at=ABSENT)) for n in range(20)]
    results = await asyncio.gather(*claims, return_exceptions=True)
    assert sum(isinstance(result, int) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 19


@pytest.mark.parametrize("prefix", ["ü", "\U0010ffff", "a b", "a\n"])
async def test_a_prefix_with_which_no_key_can_begin_is_refused(store: Store, prefix: str) -> None:
    with pytest.raises(Invalid):
        await store.scan(prefix)
    with pytest.raises(Invalid):
        store.watch(prefix, after=0)


async def test_a_closed_store_answers_nothing(store: Store) -> None:
    await store.commit(Put("a", b"1"))
    await store.close()
    for call in (store.commit(Put("a", b"2")), store.get("a"), store.scan(""), store.lease("leader")):
        with pytest.raises(Unreachable):
            await call
