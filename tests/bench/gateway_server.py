"""The API with the gateway, as a program: its session's consoles lead to the given port. Prints port and token."""

import asyncio
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dataclasses import replace

from harness.gateway import gateway
from harness.plane_world import LIMITS

MOST = 1_000


async def main(node: int) -> None:
    limits = replace(LIMITS, consoles=MOST, session_consoles=MOST, all_consoles=MOST)
    ports = {"PC_pat_tcp_22": node, "R1_serial": node}
    async with gateway(ports=ports, limits=limits) as gate:
        print("ready", gate.port, gate.desk.secrets["ada"], flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
