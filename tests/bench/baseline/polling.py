"""Polls CMLs with bare httpx: `python polling.py COUNT`; the same questions, nothing done with the answers.

Reads where they are on stdin. Each further line, a number of rounds, is answered with the seconds of a core per poll.
"""

import asyncio
import json
import ssl
import sys
from pathlib import Path

import httpx
import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from bench.workers_load import allow_sockets, priced

QUESTIONS = (
    "system_stats",
    "system_health",
    "nodes?operational=true&exclude_configurations=true",
    "telemetry/events",
)
AT_ONCE = 16


class Poller:
    """One worker's client, signed in."""

    def __init__(self, url: str, trusted: ssl.SSLContext) -> None:
        self._client = httpx.AsyncClient(base_url=f"{url}/api/v0/", verify=trusted, timeout=60, trust_env=False)

    async def sign_in(self) -> None:
        credentials = {"username": "admin", "password": "admin"}
        token = (await self._client.post("auth_extended", json=credentials)).json()["token"]
        self._client.headers["Authorization"] = f"Bearer {token}"

    async def poll(self) -> None:
        for question in QUESTIONS:
            answer = await self._client.get(question)
            assert answer.is_success, answer
            msgspec.json.decode(answer.content)

    async def close(self) -> None:
        await self._client.aclose()


async def main(count: int) -> None:
    port, pin = json.loads(sys.stdin.readline())
    trusted = ssl.create_default_context(cadata=pin)
    pollers = [Poller(f"https://127.0.0.1:{port}/w/w{number}", trusted) for number in range(count)]
    places = asyncio.Semaphore(AT_ONCE)

    async def each(verb: str) -> None:
        async def one(poller: Poller) -> None:
            async with places:
                await getattr(poller, verb)()

        await asyncio.gather(*map(one, pollers))

    await each("sign_in")
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        rounds = int(line)
        spent = 0.0
        for _ in range(rounds):
            spent += await priced(each("poll"))
        print(json.dumps(spent / rounds / count), flush=True)
    await each("close")


if __name__ == "__main__":
    allow_sockets()
    asyncio.run(main(int(sys.argv[1])))
