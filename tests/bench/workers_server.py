"""Serves simulated CMLs for the workers bench: `python workers_server.py COUNT`; prints their port and certificate.

Each is found at /w/wN. Each runs a lab of eight nodes and remembers what happened to it, as one in use does.
"""

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.workers_load import allow_sockets
from harness import clouds
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.rest.app import CmlFleet, make_certificate
from lcm.sim.time.chance import Chance
from lcm.system import log, serving
from lcm.system.clock import SystemClock
from lcm.system.tls import make_tls

NODES = 5
"""What CML runs without a licence."""
LOOPBACK = "127.0.0.1"


def fleet(count: int) -> CmlFleet:
    made, clock = CmlFleet(), SystemClock()
    tagged = [clouds.node(f"R{number}", tags=[f"serial:{5000 + number}"]) for number in range(NODES)]
    text = clouds.text(*tagged)
    for number in range(count):
        cml = Cml(clock, Chance(number), speed=1000)
        lab, _ = cml.import_lab(text, cml.users.administrator)
        cml.labs.start(lab)
        for _ in range(50):
            cml.telemetry.record("packet_capture", lab_id=lab.id)
        made.add(f"w{number}", cml)
    return made


async def main(count: int) -> None:
    certificate = make_certificate(LOOPBACK, SystemClock().now())
    listening = serving.listen(LOOPBACK, 0)
    app = fleet(count)
    print(json.dumps([listening.getsockname()[1], certificate.certificate.decode()]), flush=True)
    await serving.serve(app, listening, make_tls(certificate), asyncio.Event())


if __name__ == "__main__":
    log.configure_logging("ERROR")
    allow_sockets()
    asyncio.run(main(int(sys.argv[1])))
