"""A controller whose every answer is written down, and clients of it."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from answers import AnswerServer, Say, says
from lcm.model.access.secret import Secret
from lcm.providers.cml.connection import CmlLimits
from lcm.providers.cml.host import CmlHost

TOKEN = Secret("licence-token-77")
LAB = {
    "id": "L1",
    "lab_title": "exam-1",
    "state": "STARTED",
    "node_count": 1,
    "owner_username": "admin",
    "created": "2026-01-01T10:00:00+00:00",
    "modified": "2026-01-01T10:00:00",
}
SIZE = {"cpus": 2, "cpu_limit": 50, "ram": 512, "boot_disk_size": 4, "data_volume": None}
NODE = {
    "id": "N1",
    "lab_id": "L1",
    "label": "R1",
    "node_definition": "iosv",
    "state": "BOOTED",
    "tags": ["serial:5001"],
    "cpus": None,
    "ram": None,
    "operational": SIZE,
}
LICENCE = {
    "registration": {"status": "NOT_REGISTERED", "register_time": {"attempted": None, "failure": None}},
    "authorization": {"status": "INIT"},
    "features": [],
    "product_license": {"active": "CML_Enterprise"},
}
REGISTERED = LICENCE | {"registration": {"status": "COMPLETED"}, "authorization": {"status": "IN_COMPLIANCE"}}
SPACE = {"total": 2097152.0, "used": 1048576.0}
DOMINFO = {"running_nodes": 1, "total_nodes": 2, "allocated_cpus": 2, "allocated_memory": 1048576}
STATS = {
    "computes": {"C": {"stats": {"dominfo": DOMINFO}}},
    "all": {"cpu": {"count": 6, "percent": 4.1}, "memory": SPACE, "disk": SPACE},
}
GOOD: dict[str, object] = {
    "system_information": {"version": "2.9.1+build.7", "ready": True},
    "system_health": {"valid": True, "is_licensed": True, "computes": {}, "controller": {"valid": True}},
    "system_stats": STATS,
    "system/maintenance_mode": {"maintenance_mode": False},
    "system/notices": [],
    "licensing": LICENCE,
    "labs": ["L1"],
    "labs/L1": LAB,
    "labs/L1/state": "STARTED",
    "labs/L1/check_if_converged": True,
    "labs/L1/lab_element_state": {"nodes": {"N1": "BOOTED"}, "links": {}, "interfaces": {}},
    "labs/L1/nodes": [NODE],
    "labs/L1/nodes/N1": "N1",
    "labs/L1/nodes/N1/extract_configuration": {},
    "labs/L1/nodes/N1/interfaces": [{"id": "I1", "label": "eth0", "state": "STARTED", "slot": 0}],
    "labs/L1/layer3_addresses": {},
    "labs/L1/simulation_stats": {"nodes": {}, "links": {}},
    "nodes": [NODE],
    "import": {"id": "L1", "warnings": []},
    "resource_pool_usage": [],
    "telemetry/events": [],
    "simplified_node_definitions": [],
}


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[AnswerServer]:
    async with AnswerServer() as server:
        for path, value in GOOD.items():
            server.tell(path, says(value))
        for path in ("start", "stop", "wipe"):
            server.tell(f"labs/L1/{path}", Say(204))
        server.tell("labs/L1/download", Say(200, b"lab:\n  title: exam-1\n", "text/yaml"))
        for path in ("registration", "product_license", "deregistration"):
            server.tell(f"licensing/{path}", Say(204))
        yield server


@contextlib.asynccontextmanager
async def host_of(url: str, **limits: Any) -> AsyncIterator[CmlHost]:
    limited = CmlLimits(**{"poll_seconds": 0.01, "licence_seconds": 0.05, "removal_seconds": 0.05} | limits)
    host = CmlHost(url, "admin", Secret("swordfish"), limits=limited)
    try:
        yield host
    finally:
        await host.close()
