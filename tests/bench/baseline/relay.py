"""A bare relay: TCP to TCP, two tasks a connection, no protocol, no caller, no limits.

Run as a program: `relay.py PORT_OF_THE_NODE` prints its own port, and serves until it is killed.
"""

import asyncio
import sys
from contextlib import suppress

CHUNK = 65_536


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()


async def relay(node: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    node_reader, node_writer = await asyncio.open_connection("127.0.0.1", node, limit=CHUNK)
    await asyncio.gather(pump(reader, node_writer), pump(node_reader, writer))


async def main(node: int) -> None:
    server = await asyncio.start_server(lambda r, w: relay(node, r, w), "127.0.0.1", 0, limit=CHUNK)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
