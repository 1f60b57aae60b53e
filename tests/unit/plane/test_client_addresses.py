"""A client that knows several addresses of an API uses one that answers."""

from collections.abc import Callable

import httpx
import pytest

from lcm.control.plane.transport import ApiConnection, ClientTimeouts
from lcm.model.access.secret import Secret
from lcm.model.base.errors import Invalid, Unreachable

Answer = Callable[[httpx.Request], httpx.Response]


class Replicas(httpx.AsyncBaseTransport):
    """Replicas by their hosts; each answers, or raises what a broken one does."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.host)
        return self.answers[request.url.host](request)


def connected(replicas: Replicas, url: str = "http://one,http://two/,http://three") -> ApiConnection:
    return ApiConnection(
        url, Secret("a-token-for-a-test"), actor="", limits=ClientTimeouts(), trust=None, transport=replicas
    )


def works(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=b"yes")


def is_full(_: httpx.Request) -> httpx.Response:
    return httpx.Response(503, content=b"no")


def takes_no_connection(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def breaks_off(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("cut", request=request)


async def test_an_address_that_takes_no_connection_is_left_at_once_and_for_good() -> None:
    replicas = Replicas(one=takes_no_connection, two=works, three=works)
    line = connected(replicas)
    assert await line.request("POST", "/api/workers") == b"yes"
    assert await line.request("POST", "/api/workers") == b"yes"
    assert replicas.asked == ["one", "two", "two"]


async def test_what_may_have_been_done_is_not_done_again_elsewhere_by_itself() -> None:
    replicas = Replicas(one=breaks_off, two=works, three=works)
    line = connected(replicas)
    with pytest.raises(Unreachable, match="http://one/api/workers"):
        await line.request("POST", "/api/workers")
    assert replicas.asked == ["one"]
    assert await line.request("POST", "/api/workers") == b"yes"
    assert replicas.asked == ["one", "two"]


async def test_a_replica_that_cannot_serve_is_left() -> None:
    replicas = Replicas(one=is_full, two=works, three=works)
    line = connected(replicas)
    with pytest.raises(Unreachable):
        await line.request("GET", "/api/workers")
    assert await line.request("GET", "/api/workers") == b"yes"


async def test_streams_go_where_requests_go() -> None:
    replicas = Replicas(one=takes_no_connection, two=breaks_off, three=works)
    line = connected(replicas)
    with pytest.raises(Unreachable):
        async with line.stream("/api/watch", {}):
            pass
    async with line.stream("/api/watch", {}) as answer:
        assert await answer.aread() == b"yes"
    assert replicas.asked == ["one", "two", "three"]


async def test_each_address_is_asked_once_before_all_are_said_to_be_away() -> None:
    replicas = Replicas(one=takes_no_connection, two=takes_no_connection, three=takes_no_connection)
    line = connected(replicas)
    for _ in range(2):
        with pytest.raises(Unreachable):
            await line.request("GET", "/api/workers")
    assert len(replicas.asked) == 6
    assert set(replicas.asked) == {"one", "two", "three"}


def test_a_faulty_address_among_others_is_refused() -> None:
    for url in ("http://one,", "http://one,two", "http://one,http://user@two"):
        with pytest.raises(Invalid, match="not the address of an API"):
            connected(Replicas(), url)
