"""Serves one side of the API's benches: `python api_server.py SIDE FOLDER`; prints a line when ready.

The line holds the port and the token. Sides: `ours` alone on a SQLite file, `shared` on one that others write to,
`etcd` on the server that stands in FOLDER/endpoint, `fastapi`, and `bare`, which sends what stands in FOLDER/body.
"""

import asyncio
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.baseline.asgi import SameBytes
from bench.baseline.fastapi_post import application
from lcm.api.http.app import Api
from lcm.api.http.limits import ApiLimits
from lcm.control.access.tokens import Tokens
from lcm.control.plane.local import ControlPlane
from lcm.model.access.identity import Role
from lcm.store.base import Store
from lcm.store.etcd.engine import EtcdStore
from lcm.store.sqlite.engine import SqliteStore
from lcm.system import log, serving
from lcm.system.clock import SystemClock

UNLIMITED = ApiLimits(requests_per_second=1e9, burst=10**9)


async def _open_store(side: str, folder: Path) -> Store:
    if side == "etcd":
        return await EtcdStore.open([(folder / "endpoint").read_text()])
    return await SqliteStore.open(folder / f"{side}.db", alone=side != "shared")


async def main(side: str, folder: Path) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    listening = serving.listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    if side == "bare":
        print(port, "none", flush=True)
        await serving.serve(SameBytes((folder / "body").read_bytes()), listening, None, stop)
        return
    clock = SystemClock()
    store = await _open_store(side, folder)
    tokens = Tokens(store, clock=clock)
    await tokens.start()
    token, _ = await tokens.make("bench", Role.ADMIN)
    core = ControlPlane(store, clock=clock)
    app = Api(core, tokens, clock=clock, limits=UNLIMITED) if side != "fastapi" else application(core, tokens)
    print(port, token.reveal(), flush=True)
    await serving.serve(app, listening, None, stop)
    await tokens.close()
    await store.close()


if __name__ == "__main__":
    log.configure_logging("ERROR")
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
