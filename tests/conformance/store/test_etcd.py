"""What only the etcd engine has: endpoints, broken connections, sign-in, TLS, an envelope, and its server's limits."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
import pytest
from grpc import StatusCode

from harness.servers import LOOPBACK, Authority, EtcdServer, Proxy, free_port
from lcm.model.base.errors import (
    Conflict,
    Invalid,
    Later,
    LcmError,
    Relist,
    StoreFull,
    Stuck,
    Throttled,
    TooLarge,
    Unreachable,
)
from lcm.store.base import ABSENT, MAX_OPERATIONS, Change, CommitChanges, Delete, Put, scan_all
from lcm.store.etcd.engine import EtcdStore
from lcm.store.etcd.keys import pack_value, unpack_value
from lcm.store.etcd.transactions import EtcdRestore
from lcm.store.etcd.wire import EtcdClient, EtcdPeer, EtcdTls, Message, Method, error_from_status, rpc

_serial = itertools.count()


@pytest.fixture
def root() -> str:
    return f"/own-{next(_serial)}/"


@pytest.fixture
async def proxies(etcd: EtcdServer) -> AsyncIterator[list[Proxy]]:
    async with Proxy(etcd.endpoint) as one, Proxy(etcd.endpoint) as other:
        yield [one, other]


@pytest.fixture
async def store(etcd: EtcdServer, root: str) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open([etcd.endpoint], root=root)
    yield store
    await store.close()


@pytest.fixture
async def far(proxies: list[Proxy], root: str) -> AsyncIterator[EtcdStore]:
    """A client of the same state that goes through the proxies."""
    store = await EtcdStore.open([proxy.endpoint for proxy in proxies], root=root, call_seconds=2)
    yield store
    await store.close()


async def puts(*some: Put) -> AsyncIterator[Put]:
    for put in some:
        yield put


class Tapped:
    """The wire of a store, which tells how many keys were asked for, and breaks for ever after so many requests."""

    def __init__(self, store: EtcdStore, breaks_after: int = 1_000) -> None:
        self.asked: list[int] = []
        self._left = breaks_after
        self._wire = store._client
        store._client = cast("EtcdClient", self)

    async def call_with_retry(self, method: Method, request: Message) -> Message:
        self._spend()
        for step in getattr(request, "success", ()):
            self.asked.append(step.request_range.limit)
        return await self._wire.call_with_retry(method, request)

    async def call_once(self, method: Method, request: Message) -> Message:
        self._spend()
        return await self._wire.call_once(method, request)

    async def close(self) -> None:
        await self._wire.close()

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Unreachable("the wire is broken")


async def next_of(watch: AsyncIterator[CommitChanges], seconds: float = 60) -> list[tuple[str, bytes | None]]:
    async with asyncio.timeout(seconds):
        changed = await anext(watch)
    return [(change.key, change.entry.value if change.entry else None) for change in changed.changes]


@pytest.mark.parametrize(
    "labels", [{}, {"track": "ccnp"}, {"a": "1", "größe": "ß\0"}, {str(n): "x" for n in range(50)}]
)
@pytest.mark.parametrize("value", [b"", b"\0", b"\1\1\1\1\1", b"x" * 5_000])
def test_the_envelope_gives_back_what_was_put_into_it(labels: dict[str, str], value: bytes) -> None:
    assert unpack_value(pack_value(Put("a", value, labels))) == (labels, value)


@pytest.mark.parametrize("code", list(StatusCode))
def test_every_status_has_its_error(code: StatusCode) -> None:
    assert isinstance(error_from_status(code, "some words"), LcmError)


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (StatusCode.UNAVAILABLE, "etcdserver: request timed out", Unreachable),
        (StatusCode.DEADLINE_EXCEEDED, "", Unreachable),
        (StatusCode.CANCELLED, "stream reset", Unreachable),
        (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests", Throttled),
        (StatusCode.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", StoreFull),
        (StatusCode.RESOURCE_EXHAUSTED, "CLIENT: Received message larger than max (9 vs. 5)", TooLarge),
        (StatusCode.INVALID_ARGUMENT, "etcdserver: request is too large", TooLarge),
        (StatusCode.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Relist),
        (StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", Stuck),
    ],
)
def test_etcd_errors_are_told_apart_by_what_to_do(code: StatusCode, text: str, error: type[LcmError]) -> None:
    assert type(error_from_status(code, text)) is error


async def test_a_scan_of_more_than_a_message_may_hold_comes_whole(store: EtcdStore) -> None:
    for start in range(0, 3000, 100):
        await store.commit(*(Put(f"k/{n:05}", b"x" * 2_000) for n in range(start, start + 100)))
    page = await store.scan("k/", limit=5_000)
    assert [entry.key for entry in page.entries] == [f"k/{n:05}" for n in range(3000)]
    assert page.next is None


async def test_a_scan_that_is_repeated_finds_what_came_and_misses_what_went(store: EtcdStore) -> None:
    keys = [f"k/{number:04}" for number in range(200)]
    await store.commit(*(Put(key, b"") for key in keys[:100]))
    await store.commit(*(Put(key, b"") for key in keys[100:]))
    for limit in (20, 150, 20, 500):
        assert await scan_in_pages(store, limit) == keys
    await store.commit(*(Delete(key) for key in keys[10:90]), *(Put(f"k/0005-{n}", b"") for n in range(20)))
    left = sorted([*keys[:10], *keys[90:], *(f"k/0005-{number}" for number in range(20))])
    for limit in (20, 150, 20, 500):
        assert await scan_in_pages(store, limit) == left


async def scan_in_pages(store: EtcdStore, limit: int) -> list[str]:
    page = await store.scan("k/", limit=limit)
    keys = [entry.key for entry in page.entries]
    while page.next is not None:
        page = await store.scan("k/", limit=limit, cursor=page.next)
        keys += [entry.key for entry in page.entries]
    return keys


async def test_a_page_of_large_values_is_asked_for_in_smaller_steps(store: EtcdStore) -> None:
    for n in range(40):
        await store.commit(Put(f"k/{n:02}", b"x" * 900_000))
    tapped = Tapped(store)
    page = await store.scan("k/", limit=40)
    assert [entry.key for entry in page.entries] == [f"k/{n:02}" for n in range(40)]
    assert tapped.asked == [32, 4, 4]


async def test_a_page_of_small_values_is_asked_for_in_larger_steps(store: EtcdStore) -> None:
    for start in range(0, 1200, 100):
        await store.commit(*(Put(f"k/{n:04}", b"x" * 100) for n in range(start, start + 100)))
    tapped = Tapped(store)
    assert len((await store.scan("k/", limit=2_000)).entries) == 1200
    assert tapped.asked == [32, 500, 500, 500]


async def test_a_history_too_large_for_one_message_keeps_its_commits_whole(store: EtcdStore) -> None:
    start = (await store.scan("")).revision
    for n in range(40):
        await store.commit(*(Put(f"k/{m}", bytes([n]) * 10_000) for m in range(20)))
    async with store.watch("k/", after=start) as watch:
        for n in range(40):
            assert await next_of(watch) == [(f"k/{m}", bytes([n]) * 10_000) for m in range(20)]


async def test_a_compaction_beyond_the_present_ends_at_the_present(store: EtcdStore) -> None:
    revision = await store.commit(Put("a", b"1"))
    await store.compact(revision + 1_000)
    await store.compact(revision + 1_000)
    assert (await store.get("a")) is not None
    async with store.watch("a", after=revision) as watch:
        await store.commit(Put("a", b"2"))
        assert await next_of(watch) == [("a", b"2")]


async def test_another_endpoint_takes_over(far: EtcdStore, proxies: list[Proxy]) -> None:
    await far.commit(Put("a", b"1"))
    await proxies[0].refuse()
    assert await far.get("a") is not None
    await far.commit(Put("a", b"2"))
    await proxies[0].open()
    await proxies[1].refuse()
    assert await far.get("a") is not None
    await far.commit(Put("a", b"3"))
    entry = await far.get("a")
    assert entry is not None
    assert entry.value == b"3"


async def test_an_endpoint_that_is_no_etcd_is_passed_over(etcd: EtcdServer, root: str) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    port = free_port()
    async with await asyncio.start_server(answer, LOOPBACK, port):
        store = await EtcdStore.open([f"{LOOPBACK}:{port}", etcd.endpoint], root=root)
        await store.commit(Put("a", b"1"))
        await store.close()


async def test_a_silent_endpoint_is_given_up_for_another(far: EtcdStore, proxies: list[Proxy]) -> None:
    await far.commit(Put("a", b"1"))
    proxies[0].silent = True
    assert await far.get("a") is not None


async def test_an_idle_watch_notices_a_silent_endpoint(far: EtcdStore, store: EtcdStore, proxies: list[Proxy]) -> None:
    start = await store.commit(Put("a", b"1"))
    async with far.watch("a", after=start) as watch:
        await store.commit(Put("a", b"2"))
        assert await next_of(watch) == [("a", b"2")]
        proxies[0].silent = True
        await store.commit(Put("a", b"3"))
        assert await next_of(watch) == [("a", b"3")]


async def test_no_endpoint_is_unreachable_and_nothing_is_sent_later(
    far: EtcdStore, store: EtcdStore, proxies: list[Proxy]
) -> None:
    for proxy in proxies:
        await proxy.refuse()
    with pytest.raises(Unreachable):
        await far.get("a")
    with pytest.raises(Unreachable, match="refused"):
        await far.commit(Put("a", b"1"))
    for proxy in proxies:
        await proxy.open()
    assert await far.get("a") is None
    assert await store.get("a") is None


async def test_a_commit_without_an_answer_is_unreachable_and_not_repeated(
    far: EtcdStore, store: EtcdStore, proxies: list[Proxy]
) -> None:
    start = await store.commit(Put("a", b"0"))
    for proxy in proxies:
        proxy.silent = True
    with pytest.raises(Unreachable):
        await far.commit(Put("a", b"1"))
    for proxy in proxies:
        proxy.silent = False
        await proxy.cut()
    async with store.watch("a", after=start) as watch:
        assert await next_of(watch) == [("a", b"1")]
        await far.commit(Put("a", b"2"))
        assert await next_of(watch) == [("a", b"2")]


async def test_a_watch_goes_on_after_cuts_and_restarts(tmp_path: Path) -> None:
    with EtcdServer(tmp_path) as server:
        async with Proxy(server.endpoint) as proxy:
            store = await EtcdStore.open([proxy.endpoint])
            revisions = [await store.commit(Put("a", b"0"))]
            async with store.watch("a", after=revisions[0]) as watch:
                for n in range(1, 6):
                    revisions.append(await store.commit(Put("a", str(n).encode())))
                    assert await next_of(watch) == [("a", str(n).encode())]
                    await (proxy.cut() if n % 2 else asyncio.to_thread(server.restart))
                    await store.get("a")
            await store.close()
    assert revisions == sorted(set(revisions))


async def test_a_watch_of_quiet_keys_outlives_compaction(tmp_path: Path) -> None:
    with EtcdServer(tmp_path, "--experimental-watch-progress-notify-interval=100ms") as server:
        async with Proxy(server.endpoint) as proxy:
            store = await EtcdStore.open([proxy.endpoint])
            async with store.watch("quiet/", after=await store.commit(Put("a", b""))) as watch:
                reading = asyncio.create_task(next_of(watch))
                await asyncio.sleep(0.2)
                last = [await store.commit(Put("a", b"")) for _ in range(10)][-1]
                await asyncio.sleep(0.4)
                await store.compact(last)
                await proxy.cut()
                await store.get("a")
                await store.commit(Put("quiet/1", b"1"))
                assert await reading == [("quiet/1", b"1")]
            await store.close()


async def test_closing_ends_a_call_under_way(etcd: EtcdServer, root: str) -> None:
    async with Proxy(etcd.endpoint) as proxy:
        store = await EtcdStore.open([proxy.endpoint], root=root)
        proxy.silent = True
        reading = asyncio.create_task(store.get("a"))
        await asyncio.sleep(0.1)
        await store.close()
        with pytest.raises(Unreachable):
            await reading
        with pytest.raises(Unreachable):
            await store.commit(Put("a", b""))


async def test_a_restore_ends_watches_elsewhere_without_telling_of_its_deletes(
    store: EtcdStore, etcd: EtcdServer, root: str
) -> None:
    other = await EtcdStore.open([etcd.endpoint], root=root)
    start = await store.commit(*(Put(f"k/{n}", b"old") for n in range(100)))
    async with other.watch("k/", after=start) as watch, store.watch("k/", after=start) as mine:
        await store.commit(Put("k/0", b"last"))
        assert await next_of(watch) == [("k/0", b"last")]
        revision = await store.load(puts(Put("k/1", b"new", at=7), Put("z", b"new")), epoch="second")
        for ended in (watch, mine):
            with pytest.raises(Relist):
                await next_of(ended)
    assert (store.epoch, other.epoch) == ("second", "second")
    found = await scan_all(other, "")
    assert [(entry.key, entry.value) for entry in found.entries] == [("k/1", b"new"), ("z", b"new")]
    async with other.watch("", after=revision) as watch:
        await store.commit(Delete("z"))
        assert await next_of(watch) == [("z", None)]
    await other.close()


async def test_an_interrupted_restore_must_be_repeated(store: EtcdStore, etcd: EtcdServer, root: str) -> None:
    await store.commit(Put("a", b"old"))
    first = EtcdRestore(store._client, store._keys)
    await first.begin()
    with pytest.raises(Stuck, match="repeat"):
        await EtcdStore.open([etcd.endpoint], root=root)
    again = await EtcdStore.open([etcd.endpoint], root=root, interrupted_load=True)
    early = again.watch("k/", after=1)
    with pytest.raises(TimeoutError):
        await next_of(early, 0.3)
    many = [Put(f"k/{n:03}", b"x" * 9_000) for n in range(250)]
    await again.load(puts(*many), epoch="second")
    with pytest.raises(Relist):
        await next_of(early)
    await again.close()
    with pytest.raises(LcmError, match="another restore"):
        await first.finish("first")
    reopened = await EtcdStore.open([etcd.endpoint], root=root)
    assert reopened.epoch == "second"
    assert [entry.key for entry in (await scan_all(reopened, "")).entries] == [put.key for put in many]
    await reopened.close()


STEPS_OF_A_LOAD = 6


@pytest.mark.parametrize("steps", range(STEPS_OF_A_LOAD + 1))
async def test_a_restore_cut_off_after_any_step_is_never_taken_for_ordinary_deletes(
    etcd: EtcdServer, root: str, steps: int
) -> None:
    dying = await EtcdStore.open([etcd.endpoint], root=root)
    start = await dying.commit(Put("k/1", b"old"), Put("k/2", b"old"))
    last = await dying.commit(Put("k/3", b"old"))
    Tapped(dying, breaks_after=steps)
    if steps < STEPS_OF_A_LOAD:
        with pytest.raises(Unreachable):
            await dying.load(puts(Put("k/2", b"new")), epoch="second")
    else:
        await dying.load(puts(Put("k/2", b"new")), epoch="second")
    await dying.close()
    if 0 < steps < STEPS_OF_A_LOAD:
        with pytest.raises(Stuck, match="repeat"):
            await EtcdStore.open([etcd.endpoint], root=root)
        again = await EtcdStore.open([etcd.endpoint], root=root, interrupted_load=True)
        await again.load(puts(Put("k/2", b"newer")), epoch="third")
        await again.close()
    store = await EtcdStore.open([etcd.endpoint], root=root)
    async with store.watch("k/", after=start) as watch:
        if steps == 0:
            assert await next_of(watch) == [("k/3", b"old")]
        else:
            assert [entry.key for entry in (await scan_all(store, "")).entries] == ["k/2"]
            with pytest.raises(Relist):
                await next_of(watch)
    assert (await store.scan("")).revision >= last
    await store.close()


async def test_nobody_reads_or_writes_a_state_that_is_half_restored(store: EtcdStore) -> None:
    revision = await store.commit(Put("a", b"old"), Put("b", b"old"))
    lease = await store.acquire("leader", "me", ttl_seconds=60)
    assert lease is not None
    await store.release(lease)
    full = [Put(f"k/{n}", b"late", at=ABSENT) for n in range(MAX_OPERATIONS)]
    loading = EtcdRestore(store._client, store._keys)
    await loading.begin()
    for half_restored in (False, True):
        if half_restored:
            await loading.replace([Put("b", b"new")])
        for verb in (
            lambda: store.get("a"),
            lambda: store.scan(""),
            lambda: store.lease("leader"),
            lambda: store.acquire("leader", "me", ttl_seconds=60),
            lambda: store.renew(lease),
            lambda: store.commit(Put("late", b"")),
            lambda: store.commit(Put("a", b"late", at=revision), fence=lease.fence()),
            lambda: store.commit(events=[b"late"]),
            lambda: store.commit(*full),
        ):
            with pytest.raises(Later, match="a restore is under way"):
                await verb()
    await loading.finish("second")
    assert [(entry.key, entry.value) for entry in (await scan_all(store, "")).entries] == [("b", b"new")]
    with pytest.raises(Conflict):
        await store.commit(Put("a", b"late", at=revision))
    await store.commit(*full)


async def test_a_bad_backup_leaves_the_old_state(store: EtcdStore) -> None:
    await store.commit(Put("a", b"old"))
    with pytest.raises(TooLarge):
        await store.load(puts(Put("a", b"new"), Put("b", b"x" * 2_000_000)), epoch="second")
    entry = await store.get("a")
    assert entry is not None
    assert entry.value == b"old"


async def test_a_store_emptied_by_somebody_else_is_no_empty_store(store: EtcdStore) -> None:
    start = await store.commit(Put("a", b"1"))
    async with store.watch("a", after=start) as watch:
        await store.commit(Put("a", b"2"))
        assert await next_of(watch) == [("a", b"2")]
        low, high = store._keys.encode_range("")
        everywhere = rpc.DeleteRangeRequest(key=low.removesuffix(b'"'), range_end=high)
        await rpc.KVStub(store._client._peer.channel).DeleteRange(everywhere)
        with pytest.raises(Stuck):
            await next_of(watch)


async def test_a_foreign_value_is_named_not_guessed(store: EtcdStore) -> None:
    start = await store.commit(Put("a", b"1"))
    alien = rpc.PutRequest(key=store._keys.encode_key("alien"), value=b"hello")
    await rpc.KVStub(store._client._peer.channel).Put(alien)
    with pytest.raises(Stuck, match="alien"):
        await store.scan("")
    async with store.watch("", after=start) as watch:
        with pytest.raises(Stuck, match="alien"):
            await next_of(watch)


async def test_a_proxy_lets_go_of_a_connection_it_is_told_to_cut_at_once(etcd: EtcdServer) -> None:
    async with Proxy(etcd.endpoint) as proxy, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*proxy.endpoint.split(":"))
        while not await proxy.cut():
            await asyncio.sleep(0)
        assert proxy.connections == 0
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_there_must_be_an_endpoint() -> None:
    with pytest.raises(Invalid):
        await EtcdStore.open([])


async def test_tls_with_a_client_certificate(tmp_path: Path, root: str) -> None:
    authority = Authority(tmp_path)
    flags = authority.server_flags()
    with EtcdServer(tmp_path, *flags, scheme="https") as server:
        certificate, key = authority.issue("client")
        tls = EtcdTls(ca=authority.pem, certificate=certificate, key=key)
        for endpoint in (server.endpoint, f"https://{server.endpoint}"):
            store = await EtcdStore.open([endpoint], root=root, tls=tls)
            revision = await store.commit(Put("a", b"1"))
            async with store.watch("a", after=revision - 1) as watch:
                assert await next_of(watch) == [("a", b"1")]
            await store.close()
        await (await EtcdStore.open([server.endpoint], tls=msgspec.structs.replace(tls, name="server.test"))).close()
        stranger = Authority(tmp_path)
        others = (
            EtcdTls(ca=stranger.pem, certificate=certificate, key=key),
            EtcdTls(ca=authority.pem),
            msgspec.structs.replace(tls, name="other.test"),
            None,
        )
        for bad in others:
            with pytest.raises(Unreachable):
                await EtcdStore.open([server.endpoint], root=root, tls=bad, call_seconds=0.5)


async def enable_users(endpoint: str, root: str) -> None:
    peer = EtcdPeer(endpoint, None)
    auth = rpc.AuthStub(peer.channel)
    await auth.UserAdd(rpc.AuthUserAddRequest(name="root", password="secret"))
    await auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
    await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
    await auth.UserAdd(rpc.AuthUserAddRequest(name="lcm", password="word"))
    await auth.RoleAdd(rpc.AuthRoleAddRequest(name="lcm"))
    end = root[:-1] + chr(ord(root[-1]) + 1)
    ours = rpc.Permission(permType=rpc.Permission.READWRITE, key=root.encode(), range_end=end.encode())
    await auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="lcm", perm=ours))
    await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="lcm", role="lcm"))
    await auth.AuthEnable(rpc.AuthEnableRequest())
    await peer.channel.close(None)


async def disable_users(endpoint: str) -> None:
    peer = EtcdPeer(endpoint, None)
    auth = rpc.AuthStub(peer.channel)
    answer = await auth.Authenticate(rpc.AuthenticateRequest(name="root", password="secret"))
    await auth.AuthDisable(rpc.AuthDisableRequest(), metadata=(("token", answer.token),))
    await peer.channel.close(None)


async def test_user_and_password(tmp_path: Path, root: str) -> None:
    with EtcdServer(tmp_path) as server:
        await enable_users(server.endpoint, root)
        for user, password, where in (("", "", root), ("lcm", "wrong", root), ("lcm", "word", "/elsewhere/")):
            with pytest.raises(Stuck):
                await EtcdStore.open([server.endpoint], root=where, user=user, password=password)
        store = await EtcdStore.open([server.endpoint], root=root, user="lcm", password="word")
        revision = await store.commit(Put("a", b"1"))
        lease = await store.acquire("leader", "me", ttl_seconds=60)
        assert lease is not None
        async with store.watch("a", after=revision) as watch:
            await store.commit(Put("a", b"2"), fence=lease.fence())
            assert await next_of(watch) == [("a", b"2")]
            # A restarted server knows no token any more, also if nobody but the watch asks.
            await asyncio.to_thread(server.restart)
            other = await EtcdStore.open([server.endpoint], root=root, user="lcm", password="word")
            await other.commit(Put("a", b"2b"))
            await other.close()
            assert await next_of(watch) == [("a", b"2b")]
            await store.renew(lease)
            await store.commit(Put("a", b"3"), fence=lease.fence())
            assert await next_of(watch) == [("a", b"3")]
            await disable_users(server.endpoint)
            await store.release(lease)
            await store.commit(Put("a", b"4"))
            assert await next_of(watch) == [("a", b"4")]
        await store.compact(revision)
        await store.close()


async def test_a_change_of_a_lease_reads_like_a_lease(store: EtcdStore) -> None:
    start = (await store.scan("")).revision
    lease = await store.acquire("leader", "me", ttl_seconds=60)
    assert lease is not None
    async with store.watch("!leases/", after=start) as watch, asyncio.timeout(60):
        changed = await anext(watch)
        await store.release(lease)
        assert (await anext(watch)).changes == [Change("!leases/leader", None)]
    entry = changed.changes[0].entry
    assert entry is not None
    assert entry.value == b'{"name":"leader","holder":"me","term":%d,"ttl_seconds":60}' % lease.term
