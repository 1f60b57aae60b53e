"""The connection to an etcd cluster: channels, failover, TLS, sign-in, and the meaning of its errors.

The only module that knows gRPC and the generated stubs. A request that may be repeated goes to one member after another
while its time lasts (`call_with_retry`); any other is sent once, over a connection known to work (`call_once`).
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final

import grpc
import msgspec
import structlog
from aetcd import rpc as _rpc
from grpc import StatusCode

from lcm.model.base.errors import (
    Gone,
    LcmError,
    Relist,
    StoreFull,
    Stuck,
    Throttled,
    TooLarge,
    Unreachable,
    WentBack,
)
from lcm.store.base import StoreUsage, went_back_error
from lcm.store.hub import CLOSED

rpc: Final[Any] = _rpc
"""The generated messages, which have no types."""
Message = Any
_EOF: Final = grpc.aio.EOF  # type: ignore[attr-defined]
Method = Callable[["EtcdPeer"], Any]
RANGE: Final[Method] = attrgetter("range")
TXN: Final[Method] = attrgetter("txn")
COMPACT: Final[Method] = attrgetter("compact")
GRANT: Final[Method] = attrgetter("grant")
REVOKE: Final[Method] = attrgetter("revoke")
KEEP_ALIVE: Final[Method] = attrgetter("keep_alive")

CALL_SECONDS: Final = 5.0
PROBE_SECONDS: Final = 2.0
MAX_BACKOFF_SECONDS: Final = 1.0
MAX_RECEIVE_BYTES: Final = 32_000_000

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_RECEIVE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),  # EtcdClient knows what may be repeated; gRPC does not
    # etcd refuses pings more often than every 5 s, and pings without an active call.
    ("grpc.keepalive_time_ms", 6_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # the shorter of the two timeouts applies; this one defaults to a minute
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(PROBE_SECONDS * 1000)),
    ("grpc.max_reconnect_backoff_ms", int(MAX_BACKOFF_SECONDS * 1000)),
)

_ORDERED_REQUESTS: Final = (rpc.RangeRequest, rpc.TxnRequest)
_SIGN_IN_CODES: Final = {StatusCode.UNAUTHENTICATED, StatusCode.PERMISSION_DENIED}

log = structlog.get_logger(__name__)


class EtcdTls(msgspec.Struct, frozen=True):
    """PEM texts for TLS.

    Without `ca` the public authorities are trusted; `name` is the server's name if it differs from its
    address.
    """

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    name: str = ""


class FutureRevision(LcmError):
    """The requested revision has not happened yet."""


class UnmetPrecondition(LcmError):
    """A precondition of a nested transaction failed. Nothing was done."""


class StaleToken(Stuck):
    """The token is not accepted, or no longer: sign in and repeat. Nothing was done."""


class NoSignIn(LcmError):
    """The cluster has no user authentication."""


def _stuck_error(reason: str) -> Callable[[str], LcmError]:
    return lambda text: Stuck(reason, f"etcd says: {text}")


_STATUS_ERRORS: Final[Sequence[tuple[StatusCode, str, Callable[[str], LcmError]]]] = (
    (StatusCode.OUT_OF_RANGE, "compacted", Relist),
    (StatusCode.OUT_OF_RANGE, "future revision", FutureRevision),
    (StatusCode.OUT_OF_RANGE, "", TooLarge),
    (StatusCode.NOT_FOUND, "", Gone),
    (StatusCode.RESOURCE_EXHAUSTED, "space exceeded", lambda text: StoreFull(f"etcd takes no writes: {text}")),
    (StatusCode.RESOURCE_EXHAUSTED, "larger than max", TooLarge),
    (StatusCode.RESOURCE_EXHAUSTED, "", Throttled),
    (StatusCode.UNAUTHENTICATED, "", lambda text: StaleToken("etcd-sign-in", text)),
    (StatusCode.UNKNOWN, "revision in header is old", lambda text: StaleToken("etcd-sign-in", text)),
    (StatusCode.INVALID_ARGUMENT, "auth store is old", lambda text: StaleToken("etcd-sign-in", text)),
    (StatusCode.INVALID_ARGUMENT, "authentication failed", _stuck_error("etcd-sign-in")),
    (StatusCode.INVALID_ARGUMENT, "user name is empty", _stuck_error("etcd-sign-in")),
    (StatusCode.INVALID_ARGUMENT, "too large", TooLarge),
    (StatusCode.INVALID_ARGUMENT, "key not found", UnmetPrecondition),
    (StatusCode.INVALID_ARGUMENT, "", _stuck_error("etcd-refuses")),
    (StatusCode.PERMISSION_DENIED, "", _stuck_error("etcd-permission")),
    (StatusCode.FAILED_PRECONDITION, "not enabled", NoSignIn),
    (StatusCode.UNIMPLEMENTED, "", _stuck_error("etcd-version")),
    (StatusCode.DATA_LOSS, "", _stuck_error("etcd-corrupt")),
)
"""The error for a status with these words; any other status leaves the outcome unknown."""
_STALE_TOKEN_WORDS: Final = ("invalid auth token", "revision in header is old", "auth store is old")


def error_from_status(code: StatusCode, text: str) -> LcmError:
    """Return the error of our tree for a gRPC status."""
    for listed, words, error in _STATUS_ERRORS:
        if code is listed and words.lower() in text.lower():
            return error(text)
    return Unreachable(f"etcd: {code.name}: {text}")


def _stale_token_error(response: Message) -> StaleToken | None:
    """Return an error if a watch was refused for its token.

    etcd reports that in an answer, not by a status.
    """
    refused = response.canceled and any(words in response.cancel_reason for words in _STALE_TOKEN_WORDS)
    return StaleToken("etcd-sign-in", response.cancel_reason) if refused else None


def backoff_seconds(attempt: int) -> float:
    """Return how many seconds to wait before another attempt."""
    return min(MAX_BACKOFF_SECONDS, 0.02 * 2.0 ** min(attempt, 10))


class EtcdPeer:
    """One member of the cluster, and the calls that we make to it."""

    def __init__(self, endpoint: str, tls: EtcdTls | None) -> None:
        scheme, _, address = endpoint.rpartition("://")
        self.endpoint = address
        self.channel = _open_channel(address, EtcdTls() if scheme == "https" and tls is None else tls)
        kv, leases = rpc.KVStub(self.channel), rpc.LeaseStub(self.channel)
        self.range, self.txn, self.compact = kv.Range, kv.Txn, kv.Compact
        self.grant, self.revoke, self._keep_alive = leases.LeaseGrant, leases.LeaseRevoke, leases.LeaseKeepAlive
        self.watch = rpc.WatchStub(self.channel).Watch
        self.status = rpc.MaintenanceStub(self.channel).Status
        self.authenticate = rpc.AuthStub(self.channel).Authenticate

    @property
    def is_connected(self) -> bool:
        return self.channel.get_state() is grpc.ChannelConnectivity.READY

    async def keep_alive(self, request: Message, *, timeout: float, metadata: Sequence[tuple[str, str]]) -> Message:
        """Use one exchange of a stream as if it were a call."""
        call = self._keep_alive(iter([request]), timeout=timeout, metadata=metadata)
        try:
            if (answer := await call.read()) is not _EOF:
                return answer
        finally:
            call.cancel()
        raise Unreachable("etcd ended the stream without an answer")


class EtcdClient:
    """Calls to whichever member of the cluster answers."""

    def __init__(
        self, endpoints: Sequence[str], *, tls: EtcdTls | None, user: str, password: str, call_seconds: float
    ) -> None:
        self._peers = [EtcdPeer(endpoint, tls) for endpoint in endpoints]
        self._peer = self._peers[0]
        self._healthy = self._failing = False
        self._last_failure = "never connected"
        self._revision = 0
        self._went_back: WentBack | None = None
        self.on_went_back: Callable[[WentBack], None] = lambda _: None
        """Called once when the store is found to be older than it was."""
        self._seconds = call_seconds
        # A member that hangs must leave time to try another.
        self._attempt_seconds = call_seconds if len(self._peers) == 1 else call_seconds / 2
        self._user, self._password = user, password
        self._metadata: tuple[tuple[str, str], ...] = ()
        self._signing = asyncio.Lock()
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False

    async def call_with_retry(self, method: Method, request: Message) -> Message:
        """Send a request that may be repeated, until a member answers or its time is over."""
        until = self._now() + self._seconds
        for attempt in itertools.count():
            peer = await self._get_healthy_peer(until)
            try:
                return await self._call(
                    method(peer), request, min(self._attempt_seconds, max(0.1, until - self._now()))
                )
            except Unreachable as error:
                self._mark_failed(peer, error)
                if self._now() >= until:
                    raise
            await asyncio.sleep(backoff_seconds(attempt))
        raise AssertionError("unreachable")

    async def call_once(self, method: Method, request: Message) -> Message:
        """Send a request once. Unreachable leaves open whether it was carried out."""
        peer = self._peer
        if not self._healthy or not peer.is_connected:
            peer = await self._get_healthy_peer(self._now() + self._seconds)
        try:
            return await self._call(method(peer), request, self._seconds)
        except Unreachable as error:
            self._mark_failed(peer, error)
            raise

    async def watch(self, *requests: Message) -> AsyncGenerator[Message]:
        """Open a watch stream, send the requests and yield the answers; ends only with an error."""
        peer = await self._get_healthy_peer(self._now() + self._seconds)
        metadata = self._metadata
        # Makes a member that is cut off from its cluster report that instead of staying silent.
        call = peer.watch(metadata=(("hasleader", "true"), *metadata))
        try:
            for request in requests:
                await call.write(request)
            error: LcmError | None = None
            while error is None and (response := await call.read()) is not _EOF:
                error = _stale_token_error(response)
                if error is None:
                    yield response
            error = error or error_from_status(await call.code(), "the watch stream ended")
        except asyncio.InvalidStateError:  # the stream ended between two requests
            error = error_from_status(await call.code(), await call.details() or "")
        except grpc.aio.AioRpcError as status:
            error = error_from_status(status.code(), status.details() or "")
        finally:
            call.cancel()
        await self._handle_stream_error(peer, metadata, error)

    async def sign_in(self, stale: tuple[tuple[str, str], ...] = ()) -> None:
        """Get a token in place of a stale one, unless another task just did."""
        async with self._signing:
            if self._metadata is not stale:
                return
            request = rpc.AuthenticateRequest(name=self._user, password=self._password)
            peer = await self._get_healthy_peer(self._now() + self._seconds)
            try:
                answer = await self._invoke(peer.authenticate, request, self._seconds, ())
            except NoSignIn:
                self._metadata = ()
            else:
                self._metadata = (("token", answer.token),)

    async def read_usage(self, limit_bytes: int) -> StoreUsage | None:
        """Return the room that the fullest member takes; None when no member says."""
        answers = await asyncio.gather(*map(self._read_status, self._peers))
        fullest = max((one for one in answers if one is not None), key=attrgetter("dbSize"), default=None)
        if fullest is None:
            return None
        return StoreUsage(fullest.dbSize, limit_bytes, fullest.dbSize - (fullest.dbSizeInUse or fullest.dbSize))

    async def close(self) -> None:
        self._closed, self._healthy, self._last_failure = True, False, CLOSED
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        for peer in self._peers:
            await peer.channel.close(None)

    async def _call(self, method: Callable[..., Any], request: Message, seconds: float) -> Message:
        metadata, known = self._metadata, self._revision
        try:
            answer = await self._invoke(method, request, seconds, metadata)
        except StaleToken:
            await self.sign_in(metadata)
            answer = await self._invoke(method, request, seconds, self._metadata)
        if isinstance(request, _ORDERED_REQUESTS):
            self._check_revision(known, answer.header.revision)
        return answer

    def _check_revision(self, known: int, found: int) -> None:
        """Raise WentBack, now and for every later call, when an answer is older than one that came before its request.

        Only for requests that all members answer in one order; a status or a watch may come from a member that lags.
        """
        self._revision = max(self._revision, found)
        if found < known:
            self._healthy = False
            if self._went_back is None:
                self._went_back = went_back_error(known, found)
                self.on_went_back(self._went_back)
            raise self._went_back

    async def _invoke(
        self, method: Callable[..., Any], request: Message, seconds: float, metadata: Sequence[tuple[str, str]]
    ) -> Message:
        try:
            return await method(request, timeout=seconds, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise error_from_status(error.code(), error.details() or "") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and not (task and task.cancelling()):
                raise Unreachable(CLOSED) from None
            raise

    async def _get_healthy_peer(self, until: float) -> EtcdPeer:
        if self._went_back is not None:
            raise self._went_back
        self._healthy = self._healthy and self._peer.is_connected
        while not self._healthy:
            if self._closed or self._now() >= until:
                raise Unreachable(f"no etcd endpoint answers: {self._last_failure}")
            if self._connecting is None or self._connecting.done():
                self._connecting = asyncio.create_task(self._connect())
            await asyncio.wait({self._connecting}, timeout=until - self._now())
        return self._peer

    async def _connect(self) -> None:
        """Find a member that answers and has a leader. Tries the present one first, and goes on without end."""
        for attempt in itertools.count():
            first = self._peers.index(self._peer)
            for peer in self._peers[first:] + self._peers[:first]:
                if await self._probe(peer):
                    self._peer, self._healthy = peer, True
                    if self._failing:
                        log.info("etcd answers again", endpoint=peer.endpoint)
                    self._failing = False
                    return
            await asyncio.sleep(backoff_seconds(attempt))

    async def _read_status(self, peer: EtcdPeer) -> Message | None:
        try:
            return await peer.status(rpc.StatusRequest(), timeout=PROBE_SECONDS, metadata=self._metadata)
        except grpc.aio.AioRpcError:
            return None

    async def _probe(self, peer: EtcdPeer) -> bool:
        try:
            status = await peer.status(rpc.StatusRequest(), timeout=PROBE_SECONDS)
        except grpc.aio.AioRpcError as error:
            self._last_failure = f"{peer.endpoint}: {error.details()}"
            return error.code() in _SIGN_IN_CODES
        self._last_failure = f"{peer.endpoint} has no leader"
        return bool(status.leader)

    async def _handle_stream_error(
        self, peer: EtcdPeer, metadata: tuple[tuple[str, str], ...], error: LcmError
    ) -> None:
        if isinstance(error, StaleToken):
            await self.sign_in(metadata)
            error = Unreachable(str(error))
        elif isinstance(error, Unreachable):
            self._mark_failed(peer, error)
        raise error

    def _mark_failed(self, peer: EtcdPeer, error: Unreachable) -> None:
        if peer is not self._peer or not self._healthy or self._closed:
            return
        self._healthy, self._failing = False, True
        self._peer = self._peers[(self._peers.index(peer) + 1) % len(self._peers)]
        log.warning("etcd endpoint failed", endpoint=peer.endpoint, error=str(error))

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def compact_history(wire: EtcdClient, revision: int) -> None:
    """Discard history before a revision. It is no error if that was done already."""
    with suppress(Relist):
        await wire.call_with_retry(COMPACT, rpc.CompactionRequest(revision=revision))


def _open_channel(address: str, tls: EtcdTls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
    named = (("grpc.ssl_target_name_override", tls.name),) if tls.name else ()
    return grpc.aio.secure_channel(address, credentials, options=_OPTIONS + named)
