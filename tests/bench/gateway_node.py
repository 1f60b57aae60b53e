"""A node behind a relay, as a program: prints its port, and does what a connection's first line asks.

`pour N` sends so many bytes, `take N` reads so many and answers with one line, `echo` sends back what it gets.
"""

import asyncio
from contextlib import suppress

CHUNK = bytes(65_536)


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        while words := (await reader.readline()).split():
            match words:
                case [b"pour", count]:
                    await pour(writer, int(count))
                case [b"take", count]:
                    await take(reader, int(count))
                    writer.write(b"taken\n")
                case [b"echo"]:
                    while data := await reader.read(65_536):
                        writer.write(data)
    writer.close()


async def pour(writer: asyncio.StreamWriter, left: int) -> None:
    while left > 0:
        writer.write(CHUNK[:left])
        left -= len(CHUNK)
        await writer.drain()


async def take(reader: asyncio.StreamReader, left: int) -> None:
    while left > 0:
        data = await reader.read(65_536)
        if not data:
            return
        left -= len(data)


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=65_536)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
