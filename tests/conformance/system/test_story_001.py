"""Learning from live labs, whole and over HTTP: what people send and read, what controllers report, what CML is asked.

Three sessions run on one worker. One is edited by hand on CML, where another's port is to be; all differ from what
their definition declares; a person applies what was learned.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import httpx
import pytest
import structlog
import yaml

from harness.event_clients import Listener
from harness.installations import ByAddress, Json, RestLablets
from harness.lab_hosts import PASSWORD, client, machine
from harness.session_world import HOUR, MINUTE
from lcm.placement.ports import allocate
from lcm.sim.time.loop import run

DEFINITION: Final = "/api/lablet-definitions/basics:1.0.0"
S1, S2, S3 = (f"/api/lablet-sessions/{name}" for name in ("s1", "s2", "s3"))
OBSERVED, DRIFTED = "lablet.session.resources.observed", "lablet.session.port_drift.detected"
YAML: Final = {"Content-Type": "text/yaml"}
TOTALS: Final = (
    "observer",
    "total_cpu_cores",
    "total_memory_mb",
    "total_storage_mb",
    "actual_node_count",
    "node_definitions_used",
    "observed_ports",
)
LAB: Final = """\
lab: {version: 0.3.0, title: basics}
nodes:
  - {id: n0, label: PC, node_definition: server, x: 0, y: 0, cpus: 2, cpu_limit: 50, ram: 2048, boot_disk_size: 16,
     tags: [serial:5001, "pat:5003:22", core], configuration: hostname PC,
     interfaces: [{id: i0, label: eth0, type: physical, slot: 0}]}
  - {id: n1, label: out, node_definition: external_connector, x: 100, y: 0, configuration: NAT,
     interfaces: [{id: i0, label: port, type: physical, slot: 0}]}
links: [{id: l0, n1: n0, i1: i0, n2: n1, i2: i0}]
"""


@pytest.fixture(autouse=True)
def without_logs() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


@asynccontextmanager
async def at_cml(world: RestLablets) -> AsyncIterator[httpx.AsyncClient]:
    """Sign in to the worker's CML, as somebody at its own pages."""
    worker = await world.answered("otto", "GET", "/api/workers/ccna-1")
    url = worker["status"]["cml"]["api_url"]
    async with httpx.AsyncClient(transport=ByAddress(world), base_url=f"{url}/api/v0/") as cml:
        key = await cml.post("authenticate", json={"username": "admin", "password": PASSWORD.reveal()})
        cml.headers["Authorization"] = f"Bearer {key.json()}"
        yield cml


async def edit_tags(world: RestLablets, session: Json, tags: list[str]) -> None:
    """Change the tags of the lab's PC by hand."""
    lab = session["status"]["cml_lab_id"]
    async with at_cml(world) as cml:
        nodes = (await cml.get(f"labs/{lab}/nodes", params={"data": "true"})).json()
        node = next(one["id"] for one in nodes if one["label"] == "PC")
        (await cml.patch(f"labs/{lab}/nodes/{node}", json={"tags": tags})).raise_for_status()


async def add_node(world: RestLablets, session: Json, **size: int) -> None:
    """Put another machine into a lab that runs, by hand, and wait until it has booted."""
    lab, added = session["status"]["cml_lab_id"], {"label": "more", "node_definition": "server", "x": 0, "y": 50}
    async with at_cml(world) as cml:
        made = (await cml.post(f"labs/{lab}/nodes", json=added | size)).raise_for_status().json()
        node = f"labs/{lab}/nodes/{made['id']}"
        (await cml.put(f"{node}/state/start")).raise_for_status()
        async with asyncio.timeout(600):
            while (await cml.get(f"{node}/state")).json()["state"] != "BOOTED":
                await asyncio.sleep(5)


async def prepared(world: RestLablets) -> None:
    """Upload the lab, declare more cores and as much memory as it has, and open a pool of one worker."""
    told = await world.answered("anna", "POST", "/api/topologies", content=LAB, headers=YAML)
    spec = {
        "version": "1.0.0",
        "topology": {"uri": told["uri"], "digest": told["digest"]},
        "lab_track": "ccna",
        "state": "active",
        "resource_requirements": {"cpu_cores": 4, "memory_gb": 2},
    }
    await world.answered(
        "anna", "POST", "/api/lablet-definitions", json=document("LabletDefinition", "basics:1.0.0", spec)
    )
    await world.open_pool(min_workers=1, max_workers=1)
    await world.comes("otto", "/api/worker-pools/ccna", phase="READY")


def document(kind: str, name: str, spec: Json) -> Json:
    return {"api_version": "lcm/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


async def wants(world: RestLablets, name: str, **spec: Any) -> Json:
    wish = document("LabletSession", name, {"definition": "basics:1.0.0"} | spec)
    made: Json = await world.answered("ada", "POST", "/api/lablet-sessions", json=wish)
    return made


def slot(start: datetime, length: timedelta) -> Json:
    return {"timeslot_start": start.isoformat(), "timeslot_end": (start + length).isoformat()}


def told_of(heard: Listener, kind: str, session: Json) -> list[Json]:
    uid = session["metadata"]["uid"]
    return [one.data for one in heard.events if one.type == kind and one.data["session_id"] == uid]


async def asked(world: RestLablets, path: str) -> Json:
    """Have a session observed, and wait for the answer."""
    before = await world.answered("ada", "POST", f"{path}/observe-resources")
    request = before["status"]["observation_request"]
    assert request["requested_by"] == "ada"
    count = before["status"]["observation_count"] + 1
    after: Json = await world.comes("ada", path, within=MINUTE, observation_count=count)
    assert after["status"]["observation_request"] is None
    return after


def test_labs_teach_and_a_person_applies_it() -> None:
    async def life() -> None:
        async with RestLablets(quick=True).open() as world, world.listening("otto") as heard:
            await prepared(world)
            s1 = await observed_on_request(world, heard)
            await edited_by_hand(world, heard, s1)
            await reviewed_after_three(world, heard)
            await collected(world)
            await applied(world)

    run(life, horizon=timedelta(days=2))


async def observed_on_request(world: RestLablets, heard: Listener) -> Json:
    """Ask for an observation of a session, which is possible only while it runs, and only for whose it is."""
    await wants(world, "s1", duration_minutes=60)
    assert await world.refused("ada", "POST", f"{S1}/observe-resources") == (409, "IllegalStep")
    await world.comes("ada", S1, phase="RUNNING")
    assert await world.refused("", "POST", f"{S1}/observe-resources") == (401, "Unauthorized")
    assert await world.refused("bob", "POST", f"{S1}/observe-resources") == (404, "NotFound")
    s1 = await asked(world, S1)
    status = s1["status"]
    seen, ports = status["observed_resources"], status["allocated_ports"]
    assert (status["observation_count"], status["observed_at"]) == (1, seen["observed_at"])
    assert (status["observed_ports"], status["port_drift_detected"]) == (ports, False)
    assert {name: seen[name] for name in TOTALS} == {
        "observer": "manual",
        "total_cpu_cores": 2.0,
        "total_memory_mb": 2048,
        "total_storage_mb": 16 * 1024,
        "actual_node_count": 2,
        "node_definitions_used": ["external_connector", "server"],
        "observed_ports": ports,
    }
    (node,) = (one for one in seen["nodes"] if one["label"] == "PC")
    assert (node["node_definition"], node["state"], node["ram_mb"]) == ("server", "BOOTED", 2048)
    assert (node["cpus"], node["cpu_limit"]) == (2.0, 50), "a limit in percent takes no core away"
    assert set(node["tags"]) == {f"serial:{ports['PC_serial']}", f"pat:{ports['PC_pat_tcp_22']}:22", "core"}
    assert [(one["label"], one["slot"], one["state"]) for one in node["interfaces"]] == [("eth0", 0, "STARTED")]
    assert seen["simulation_stats"][node["node_id"]]["boot_seconds"] > 0
    (event,) = told_of(heard, OBSERVED, s1)
    assert (event["instance_id"], event["worker_id"]) == (s1["metadata"]["uid"], status["worker_id"])
    assert (event["total_cpu_cores"], event["port_drift_detected"]) == (2.0, False)
    assert told_of(heard, DRIFTED, s1) == []
    return s1


async def edited_by_hand(world: RestLablets, heard: Listener, s1: Json) -> None:
    """Take, by hand on CML, the port that a booked session would get: it is told of, and that session gets another."""
    s2 = await wants(world, "s2", **slot(world.clock.now() + 20 * MINUTE, 30 * MINUTE))
    own = s1["status"]["allocated_ports"]
    would = allocate(own, taken=own.values(), seed=s2["metadata"]["uid"])
    assert would is not None
    stolen = would["PC_serial"]
    await edit_tags(world, s1, [f"serial:{stolen}", f"pat:{own['PC_pat_tcp_22']}:22", "core"])
    s1 = await world.comes("ada", S1, within=6 * MINUTE, port_drift_detected=True)
    assert s1["status"]["observed_resources"]["observer"] == "lablet-controller", "nobody asked for it"
    assert s1["status"]["observed_ports"] == own | {"PC_serial": stolen}
    assert (s1["status"]["allocated_ports"], s1["status"]["port_drift_detected"]) == (own, True)
    (event,) = told_of(heard, DRIFTED, s1)
    assert event["drift"] == {"PC_serial": {"allocated": own["PC_serial"], "observed": stolen}}
    assert (event["instance_id"], event["worker_id"]) == (s1["metadata"]["uid"], s1["status"]["worker_id"])
    s3 = await wants(world, "s3", duration_minutes=15)
    s3 = await world.comes("ada", S3, phase="RUNNING")
    await add_node(world, s3, cpus=1, ram=512, boot_disk_size=16)
    s2 = await world.comes("ada", S2, phase="RUNNING")
    assert s2["status"]["worker_id"] == s1["status"]["worker_id"]
    given = set(s2["status"]["allocated_ports"].values())
    assert given == set((allocate(own, taken={*own.values(), stolen}, seed=s2["metadata"]["uid"]) or {}).values())
    assert stolen not in given


async def reviewed_after_three(world: RestLablets, heard: Listener) -> None:
    """Let the sessions end by themselves: each is observed then, and the third makes a person look."""
    s3 = await world.comes("ada", S3, phase="COMPLETED")
    *_, event = told_of(heard, OBSERVED, s3)
    assert (event["observer"], event["total_cpu_cores"], event["total_memory_mb"]) == ("lablet-controller", 3.0, 2560)
    before = await world.answered("anna", "GET", f"{DEFINITION}/resource-observations")
    assert (before["observed_sessions"], before["needs_review"], before["review_reason"]) == (2, False, "")
    s2 = await world.answered("ada", "GET", S2)
    await add_node(world, s2, cpus=3, ram=1024, boot_disk_size=16)
    s2 = await world.comes("ada", S2, phase="COMPLETED")
    flagged = await world.answered("anna", "GET", DEFINITION)
    assert flagged["status"]["needs_review"]
    s1 = await world.comes("ada", S1, phase="COMPLETED")
    assert [one["status"]["observation_count"] for one in (s1, s2, s3)] == [3, 2, 2]
    assert s1["status"]["observed_resources"]["observer"] == "lablet-controller"
    assert len(told_of(heard, DRIFTED, s1)) == 1, "the same drift is told once"
    assert told_of(heard, DRIFTED, s2) == told_of(heard, DRIFTED, s3) == []
    assert await world.refused("ada", "POST", f"{S1}/observe-resources") == (409, "IllegalStep")

    report = await world.answered("anna", "GET", f"{DEFINITION}/resource-observations")
    # By end of session: s3, s2, s1.
    cores = {"avg": 10 / 3, "p50": 3.0, "p95": 5.0, "max": 5.0, "latest": 2.0, "count": 3}
    memory = {"avg": 2560.0, "p50": 2560.0, "p95": 3072.0, "max": 3072.0, "latest": 2048.0, "count": 3}
    gb = 1024.0
    disk = {"avg": 80 * gb / 3, "p50": 32 * gb, "p95": 32 * gb, "max": 32 * gb, "latest": 16 * gb, "count": 3}
    assert {one["measure"]: (one["declared"], one["observed"], one["difference"]) for one in report["measures"]} == {
        "cpu_cores": (4.0, cores, 0.25),
        "memory_mb": (2048.0, memory, 0.5),
        "storage_mb": (None, disk, None),
    }
    assert report["needs_review"]
    # Nodes were given more than is declared, and used less: what they used counts.
    used = {one["measure"]: max(one["used"]["p95"], one["boot_used"]["p95"]) for one in report["measures"][:2]}
    assert used["cpu_cores"] < 2
    assert used["memory_mb"] > 1500
    assert report["review_reason"].startswith("cpu_cores: 95 % of 3 sessions used at most 0.")
    assert report["review_reason"].endswith("declared are 4 (-56%): more is declared than is used")
    proposed = {"cpu_cores": used["cpu_cores"], "memory_gb": used["memory_mb"] / 1024, "storage_gb": 32.0}
    assert report["proposed"] == proposed
    assert report["declared"] == {"cpu_cores": 4.0, "memory_gb": 2.0, "storage_gb": 0.0}, "nothing applies itself"
    assert [(one["session_name"], one["cpu_cores"]) for one in report["samples"]] == [("", 3.0), ("", 5.0), ("", 2.0)]


async def collected(world: RestLablets) -> None:
    """Download a session's lab as it was in the end, and import it elsewhere: the same lab comes out again."""
    (file,) = (await world.answered("ada", "GET", f"{S2}/artifacts"))["items"]
    answer = await world.ask("ada", "GET", f"{S2}/artifacts/{file['name']}")
    assert (answer.status_code, len(answer.content)) == (200, file["size_bytes"])
    assert await world.refused("bob", "GET", f"{S2}/artifacts/{file['name']}") == (404, "NotFound")
    lab = yaml.safe_load(answer.content)
    assert [one["label"] for one in lab["nodes"]] == ["PC", "out", "more"]
    assert lab["nodes"][0]["configuration"][0]["content"] == "hostname PC"
    other = client(machine())
    again = await other.ensure(lab["lab"]["title"], answer.text)
    assert yaml.safe_load(await other.topology(again.lab_id)) == lab
    await other.close()
    told = await world.answered("anna", "POST", "/api/topologies", content=answer.content, headers=YAML)
    assert (told["node_count"], told["link_count"], told["digest"]) == (3, 1, file["digest"])
    assert sorted(told["port_template"]) == ["PC_pat_tcp_22", "PC_serial"]
    async with at_cml(world) as cml:
        assert (await cml.get("labs", params={"show_all": "true"})).json() == [], "nothing is left on the worker"


async def applied(world: RestLablets) -> None:
    """Declare what was learned: the next booking claims that, and what was promised before stays as it was."""
    tomorrow = slot(world.clock.now() + 24 * HOUR, HOUR)
    early = await wants(world, "early", **tomorrow)
    learned = {"cpu_cores": 2, "memory_gb": 2}
    wish = {"spec": {"resource_requirements": learned}}
    assert await world.refused("ada", "PATCH", DEFINITION, json=wish) == (403, "Forbidden")
    made = await world.answered("anna", "PATCH", DEFINITION, json=wish)
    assert (made["status"]["needs_review"], made["status"]["review_reason"]) == (False, "")
    late = await wants(world, "late", **tomorrow)
    need = late["status"]["claim"]["need"]
    assert (need["cpu_millis"], need["memory_mb"]) == (2_000, 2 * 1024)
    before = early["status"]["claim"]
    assert (before["need"]["cpu_millis"], before["need"]["memory_mb"]) == (4_000, 2 * 1024)
    assert (await world.answered("ada", "GET", "/api/lablet-sessions/early"))["status"]["claim"] == before
