"""The whole story with separate processes on one etcd: two APIs, a scheduler, a pool controller, and what acts on the
simulated cloud, which lives in one process with both its controllers.
"""

import asyncio
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from harness import suite
from harness.commands import Running
from harness.servers import EtcdServer
from lcm.providers.local.directory import DirectoryArtifacts
from lcm.system.clock import SystemClock, new_id

KEY = "a-key-that-nobody-guesses"
LAB = suite.ROOT / "examples" / "first" / "labs" / "ccna-basics.yaml"
PATIENCE = 240.0
TEMPLATE = {
    "kind": "WorkerTemplate",
    "metadata": {"name": "metal"},
    "spec": {"worker": {"aws": {"ami_name_pattern": "CML-2.9*"}, "cml": {"license_token": "env:CML_LICENSE_TOKEN"}}},
}
POOL = {
    "kind": "LabWorkerPool",
    "metadata": {"name": "ccna"},
    "spec": {"lab_track": "ccna", "template": "metal", "min_workers": 0, "max_workers": 2},
}
SESSION = {
    "kind": "LabletSession",
    "metadata": {"name": "one"},
    "spec": {"definition": "basics", "duration_minutes": 5},
}


async def test_a_session_lives_in_five_processes_on_one_etcd(tmp_path: Path, etcd: EtcdServer) -> None:
    said = {
        "CONTROL_PLANE_API_KEY": KEY,
        "ETCD_ENDPOINTS": etcd.endpoint,
        "ETCD_ROOT": f"/{new_id()}/",
        "LCM_CLOUD": "simulated",
        "LCM_SIM_SPEED": "120",
        "ARTIFACTS_DIR": str(tmp_path / "artifacts"),
        "LCM_DATA_DIR": str(tmp_path / "data"),
    }
    with ExitStack() as undo:
        apis = [undo.enter_context(Running(tmp_path, "serve", "api", "--port=0", **said)) for _ in range(2)]
        urls = [api.ready().url for api in apis]
        others = [
            undo.enter_context(Running(tmp_path, "serve", *parts, **said, CONTROL_PLANE_API_URL=urls[place % 2]))
            for place, parts in enumerate(
                (["scheduler"], ["pool-controller"], ["worker-controller", "lablet-controller"])
            )
        ]
        async with apis[0].client(KEY) as one, apis[1].client(KEY) as other:
            await _furnish(one)
            assert (await one.post("/api/lablet-sessions", json=_document(SESSION))).status_code == 201
            running = await _reaches(other, "RUNNING")
            assert set(running["status"]["allocated_ports"]) == {"R1_serial", "R2_serial", "PC_vnc"}
            ended = await one.post("/api/lablet-sessions/one/terminate", json={})
            assert ended.status_code == 200, ended.text
            over = await _reaches(other, "TERMINATED")
            assert [file["name"] for file in over["status"]["artifacts"]] == ["lab.yaml"]
            collected = await other.get("/api/lablet-sessions/one/artifacts/lab.yaml")
            assert b"R1" in collected.content
        # What is killed leaves leases behind, whose end would disturb who counts the revisions of this etcd next.
        assert [process.stop()[0] for process in (*others, *apis)] == [0] * 5
        told = "".join(process.output for process in (*apis, *others))
        assert "Traceback" not in told, told
        assert told.count('"handed over"') == told.count('"elected"') > 0, told
    store = await DirectoryArtifacts.open(tmp_path / "artifacts", clock=SystemClock())
    assert [one.uri for one in await store.list_temporary() if "/collected/" not in one.uri] == []


async def _furnish(client: httpx.AsyncClient) -> None:
    uploaded = await client.post("/api/topologies", content=LAB.read_bytes(), headers={"content-type": "text/yaml"})
    assert uploaded.status_code in (200, 201), uploaded.text
    definition = {
        "kind": "LabletDefinition",
        "metadata": {"name": "basics:1.0.0"},
        "spec": {
            "version": "1.0.0",
            "state": "active",
            "lab_track": "ccna",
            "topology": {"uri": uploaded.json()["uri"]},
        },
    }
    for path, document in (
        ("/api/worker-templates", TEMPLATE),
        ("/api/worker-pools", POOL),
        ("/api/lablet-definitions", definition),
    ):
        made = await client.post(path, json=_document(document))
        assert made.status_code == 201, made.text


def _document(said: dict[str, Any]) -> dict[str, Any]:
    return {"api_version": "lcm/v1", **said}


async def _reaches(client: httpx.AsyncClient, phase: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE
    session: dict[str, Any] = {}
    while time.monotonic() < deadline:
        session = (await client.get("/api/lablet-sessions/one")).json()
        if session["status"]["phase"] == phase:
            return session
        await asyncio.sleep(0.3)
    raise AssertionError(session)
