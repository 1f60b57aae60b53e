"""Listens to an event stream over many connections: `python events_client.py PORT TOKEN CONNECTIONS`.

Each line on standard input, "COUNT", waits until every connection was told so many events, and prints the seconds from
the first one's making to the last one's arrival, and the 99th percentile of all delays.
"""

import asyncio
import statistics
import sys
import time

MARK = b'{"at":"'
_connections: list["Connection"] = []


class Connection(asyncio.Protocol):
    """One client; it notes the age of every event as it arrives."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.begun = asyncio.get_running_loop().create_future()
        self.delays: list[float] = []
        self.made: list[float] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.begun.done() and b"hello" in data:
            self.begun.set_result(None)
        now, place = time.time(), data.find(MARK)
        while place >= 0:
            start = place + len(MARK)
            made = float(data[start : data.index(b'"', start)])
            self.made.append(made)
            self.delays.append(now - made)
            place = data.find(MARK, start)


async def main(port: int, token: str, count: int) -> None:
    loop = asyncio.get_running_loop()
    request = f"GET /api/events/stream?snapshot=false HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
    connections: list[Connection] = []
    for _ in range(count):
        _, connection = await loop.create_connection(lambda: Connection(request.encode()), "127.0.0.1", port)
        connections.append(connection)
    await asyncio.gather(*(connection.begun for connection in connections))
    print("ready", flush=True)
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        await report(connections, int(line))


async def report(connections: list[Connection], count: int) -> None:
    async with asyncio.timeout(120):
        while any(len(connection.delays) < count for connection in connections):
            await asyncio.sleep(0.01)
    assert all(len(connection.delays) == count for connection in connections), "told too much"
    first = min(connection.made[0] for connection in connections)
    last = max(made + delay for one in connections for made, delay in zip(one.made, one.delays, strict=True))
    delays = [delay for connection in connections for delay in connection.delays]
    print(last - first, statistics.quantiles(delays, n=100)[98], flush=True)
    for connection in connections:
        connection.made.clear()
        connection.delays.clear()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
