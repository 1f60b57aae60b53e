"""Places where a LabHost is tried: the simulator's direct face, our client over its REST face, and that over HTTPS.

The first two live in virtual time. The third is a running `lcm cml-sim` of which time is only sped up.
"""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from lcm.model.access.secret import Secret
from lcm.providers.cml.connection import CmlLimits, fetch_certificate
from lcm.providers.cml.host import CmlHost
from lcm.providers.protocols.labhost import LabHost, NotReady
from lcm.sim.cml.direct import DirectHost
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.rest.app import CmlApp
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import VirtualClock, run
from lcm.sim.world.wire import MemoryTransport
from servers import LOOPBACK, READY_SECONDS, free_port

SPEED = 1000
PASSWORD = Secret("admin")
Body = Callable[["World"], Awaitable[None]]


@dataclass
class World:
    """A host, and the machine behind it where a test may reach into that."""

    host: LabHost
    machine: Cml | None = None
    speed: float = 1

    @property
    def cml(self) -> Cml:
        assert self.machine is not None, "a machine behind HTTPS is out of reach"
        return self.machine

    async def pass_time(self, seconds: float) -> None:
        """Let simulated seconds go by."""
        await asyncio.sleep(seconds / self.speed)


def machine() -> Cml:
    return Cml(VirtualClock(), Chance(7))


def client(cml: Cml, password: Secret = PASSWORD, limits: CmlLimits | None = None) -> CmlHost:
    return CmlHost("https://cml", "admin", password, limits=limits, transport=MemoryTransport(CmlApp(cml)))


def direct(cml: Cml) -> DirectHost:
    return DirectHost(cml)


class CmlSim:
    """A running `lcm cml-sim`."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "cml-sim.log"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.pin = ""

    @property
    def url(self) -> str:
        return f"https://{LOOPBACK}:{self._port}"

    def host(self, password: Secret = PASSWORD) -> CmlHost:
        return CmlHost(self.url, "admin", password, pin=self.pin, limits=CmlLimits(poll_seconds=0.05))

    def __enter__(self) -> Self:
        command = [str(Path(sys.executable).with_name("lcm")), "cml-sim", f"--port={self._port}", f"--speed={SPEED}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        self.pin = asyncio.run(self._certificate())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(READY_SECONDS)

    async def _certificate(self) -> str:
        async with asyncio.timeout(READY_SECONDS):
            while True:
                assert self._process is not None
                assert self._process.poll() is None, self._log.read_text()
                try:
                    return await fetch_certificate(LOOPBACK, self._port)
                except NotReady:
                    await asyncio.sleep(0.05)


def _in_virtual_time(make: Callable[[Cml], LabHost]) -> Callable[[Body, pytest.FixtureRequest], None]:
    def play(body: Body, _: pytest.FixtureRequest) -> None:
        async def main() -> None:
            cml = machine()
            await _live(body, World(make(cml), cml))

        run(main)

    return play


def _over_https(body: Body, request: pytest.FixtureRequest) -> None:
    sim: CmlSim = request.getfixturevalue("cml_sim")
    asyncio.run(_live(body, World(sim.host(), speed=SPEED)))


async def _live(body: Body, world: World) -> None:
    try:
        await body(world)
    finally:
        await world.host.close()


_PLAY = {"direct": _in_virtual_time(direct), "client": _in_virtual_time(client), "https": _over_https}


def on(*faces: str) -> Callable[[Body], Callable[..., None]]:
    """Make a test of a body, once for each of these faces."""

    def decorate(body: Body) -> Callable[..., None]:
        def test(face: str, request: pytest.FixtureRequest) -> None:
            _PLAY[face](body, request)

        test.__name__ = body.__name__
        return pytest.mark.parametrize("face", faces)(test)

    return decorate


in_process = on("direct", "client")
everywhere = on("direct", "client", "https")
over_rest = on("client")
