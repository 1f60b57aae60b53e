"""An installation of any size for the growth bench: what one small installation really has, many times over.

In `record_pattern` the product itself boots a worker of a pool, pauses another one and books a session. Their records,
and their machines in the simulated cloud, are copied under other names, uids and addresses. Of a thousand workers a
hundred run, in a pool that plans a thousand; nine hundred are paused. Sessions are booked from two days ahead on.
"""

import asyncio
import json
import random
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, NamedTuple

from browser.installation import Installation, run_installation
from harness.session_world import SMALL
from lcm.store.base import Entry, Put, Store, scan_all
from lcm.store.sqlite.engine import SqliteStore
from lcm.system.data_folder import STORE_FILE

SPEED = 1_000
PLANNED, RUNNING = 1_000, 100
"""How many workers a pool plans, and how many of them run."""
OFTEN = {"METRICS_POLL_INTERVAL": "2", "IDLE_CHECK_INTERVAL": "2"}
SETTLED_SECONDS = 10
"""By then each worker was measured and judged several times, and nothing about it changes any more."""
OWNERS = 2_000
FIRST_SLOT, SLOT_EVERY = timedelta(days=2), timedelta(hours=14)
MARK, PAUSED, SESSION = "xq00", "paused-zz00000", "session-zz000000"
"""What occurs in the names of things that are copied, and in nothing else."""
POOL, LAB, TEMPLATE, WORKER = f"pool-{MARK}", f"lab-{MARK}:1.0.0", f"metal-{MARK}", f"w-{MARK}-1"
_LEFT_OUT = ("audit/", "housekeeping/", "sign-ins/", "history/", "alerts/", "leases/")


class Size(NamedTuple):
    """How many workers and sessions there are."""

    workers: int
    sessions: int

    @property
    def pools(self) -> int:
        return max(1, self.workers // PLANNED)


class Pattern(NamedTuple):
    """The records of the small installation, its simulated cloud, and its administrator's token."""

    entries: Sequence[Entry]
    cloud: Mapping[str, Any]
    token: str
    files: Mapping[str, bytes]
    """Its artifacts, by their path in the data folder."""


async def record_pattern(home: Path) -> Pattern:
    """Run the small installation, and return what it has in the end."""
    with run_installation(home, examples=False, speed=SPEED, settings=OFTEN) as it:
        _furnish(it)
        await asyncio.sleep(SETTLED_SECONDS)
        token = it.token("growth", "admin")
    store = await SqliteStore.open(home / "data" / STORE_FILE)
    try:
        entries = [one for one in (await scan_all(store, "")).entries if not one.key.startswith(_LEFT_OUT)]
    finally:
        await store.close()
    data = home / "data"
    kept = [file for file in (data / "artifacts").rglob("*") if file.is_file()]
    files = {str(file.relative_to(data)): file.read_bytes() for file in kept}
    return Pattern(entries, json.loads((data / "sim-cloud.json").read_bytes()), token, files)


def _furnish(it: Installation) -> None:
    stored = it.ask("POST", "/api/topologies", content=SMALL, headers={"content-type": "text/yaml"})
    needs = {"cpu_cores": 1, "memory_gb": 2}
    track = f"track-{MARK}"
    lab = {"version": "1.0.0", "state": "active", "lab_track": track, "topology": {"uri": stored["uri"]}}
    machine = {"aws": {"ami_name_pattern": "CML-2.9*"}, "cml": {"license_token": "env:CML_LICENSE_TOKEN"}}
    pool = {"lab_track": track, "template": TEMPLATE, "min_workers": 1, "max_workers": PLANNED}
    start = datetime.now(UTC) + FIRST_SLOT
    slot = {"timeslot_start": start.isoformat(), "timeslot_end": (start + timedelta(hours=2)).isoformat()}
    _make(it, "lablet-definitions", LAB, {**lab, "resource_requirements": needs})
    _make(it, "worker-templates", TEMPLATE, {"worker": machine, "name_prefix": f"w-{MARK}"})
    _make(it, "worker-pools", POOL, pool)
    _make(it, "workers", PAUSED, machine)
    it.wait_for(f"/api/workers/{PAUSED}", phases={"READY"})
    it.ask("POST", f"/api/workers/{PAUSED}/pause", json={})
    it.wait_for(f"/api/workers/{PAUSED}", phases={"STOPPED"})
    it.wait_for(f"/api/workers/{WORKER}", phases={"READY"})
    _make(it, "lablet-sessions", SESSION, {"definition": LAB, **slot})
    it.wait_for(f"/api/lablet-sessions/{SESSION}", phases={"SCHEDULED"})


def _make(it: Installation, kind: str, name: str, spec: Mapping[str, Any]) -> None:
    it.ask("POST", f"/api/{kind}", json={"metadata": {"name": name}, "spec": spec})


class Growth:
    """Copies a pattern until it has a size."""

    def __init__(self, pattern: Pattern, size: Size, now: datetime) -> None:
        self._pattern = pattern
        self._size = size
        self._now = now
        self._chance = random.Random(7)
        self._uids = {
            entry.value.decode().rpartition("/")[2]: entry.key.rpartition("/")[2] for entry in self._of("uids/")
        }
        self._machines = {one["tags"]["Name"]: one for one in pattern.cloud["account"]["machines"].values()}
        self._seats: dict[int, list[dict[str, Any]]] = {}
        self.cloud = json.loads(json.dumps(pattern.cloud))
        """The simulated cloud, complete once all records were made."""
        for part in (self.cloud["account"]["machines"], self.cloud["hosts"], self.cloud["taken"]):
            part.clear()
        self.cloud["launches"].clear()
        self._addresses = IPv4Address(self._machines[WORKER]["private_ip"])

    async def puts(self) -> AsyncIterator[Put]:
        """Yield everything that the store has."""
        for put in self._records():
            yield put

    def _records(self) -> Iterator[Put]:
        marks = (MARK, PAUSED, SESSION)
        uids = [uid for name, uid in self._uids.items() if any(mark in name for mark in marks)]
        for entry in self._pattern.entries:
            if not any(word in entry.key or word.encode() in entry.value for word in (*marks, *uids)):
                yield Put(entry.key, entry.value, entry.labels)
        for number in range(self._size.workers):
            pool, place = divmod(number, PLANNED)
            if place < RUNNING:
                yield from self._running_worker(pool, place + 1)
            else:
                yield from self._copy_worker(PAUSED, {PAUSED: f"paused-zz{number:05}"})
        for pool in range(self._size.pools):
            yield from self._pool(pool)
        for number in range(self._size.sessions):
            yield from self._session(number)

    def _running_worker(self, pool: int, seat: int) -> Iterator[Put]:
        name = f"w-{_mark(pool)}-{seat}"
        names = {WORKER: name, MARK: _mark(pool), self._uids[POOL]: _uid(f"pool {pool}")}
        made = list(self._copy_worker(WORKER, {**names, '"lcm/seat":"1"': f'"lcm/seat":"{seat}"'}))
        yield from made
        uid = next(put.key.rpartition("/")[2] for put in made if put.key.startswith("uids/"))
        self._seats.setdefault(pool, []).append({"number": seat, "worker_id": uid, "worker_name": name})

    def _copy_worker(self, name: str, names: Mapping[str, str]) -> Iterator[Put]:
        """Yield a worker's records under other names, and add its machine."""
        machine, uid = self._machines[name], self._uids[name]
        self._addresses += 1
        instance = f"i-{self._chance.getrandbits(68):017x}"
        host = self._pattern.cloud["hosts"][machine["instance_id"]]
        names = {
            **names,
            uid: str(uuid.UUID(int=self._chance.getrandbits(128))),
            machine["instance_id"]: instance,
            machine["private_ip"]: str(self._addresses),
            host["udi"]: str(uuid.UUID(int=self._chance.getrandbits(128))),
        }
        self._add_machine(machine["instance_id"], host["udi"], names)
        for entry in self._pattern.entries:
            own = uid in entry.key or entry.key.endswith(f"/{name}")
            if own and not entry.key.startswith("worker-pools/"):
                labels = {key: _renamed(value, names) for key, value in entry.labels.items()}
                if "lcm/seat" in labels:
                    labels["lcm/seat"] = names[WORKER].rpartition("-")[2]
                value = _renamed(entry.value.decode(), names).encode()
                yield Put(_renamed(entry.key, names), value, labels)

    def _add_machine(self, instance: str, udi: str, names: Mapping[str, str]) -> None:
        cloud, made = self._pattern.cloud, self.cloud
        made["account"]["machines"][names[instance]] = _copied(cloud["account"]["machines"][instance], names)
        made["hosts"][names[instance]] = _copied(cloud["hosts"][instance], names)
        if udi in cloud["taken"]:
            made["taken"][names[udi]] = cloud["taken"][udi]
        launch = next(one for one in cloud["launches"] if one[3] == instance)
        region, token, asked, _ = launch
        made["launches"].append([region, _renamed(token, names), asked, names[instance]])

    def _pool(self, pool: int) -> Iterator[Put]:
        """Yield a pool with its template and its lab."""
        uids = {uid: _uid(f"{name.partition('-')[0]} {pool}") for name, uid in self._uids.items() if MARK in name}
        names = {MARK: _mark(pool), **uids}
        for name in (POOL, LAB, TEMPLATE):
            uid = self._uids[name]
            for entry in self._pattern.entries:
                if entry.key == f"uids/{uid}" or entry.key.endswith(f"/{name}"):
                    value = _renamed(entry.value.decode(), names)
                    if entry.key.startswith("worker-pools/"):
                        value = self._seated(value, pool)
                    yield Put(_renamed(entry.key, names), value.encode(), entry.labels)

    def _seated(self, value: str, pool: int) -> str:
        head, _, body = value.partition("\n")
        document = json.loads(body)
        document["spec"]["min_workers"] = RUNNING
        document["status"]["seats"] = self._seats[pool]
        return f"{head}\n{json.dumps(document)}"

    def _session(self, number: int) -> Iterator[Put]:
        pools = self._size.pools
        pool, place, turn = number % pools, number // pools % PLANNED, number // (pools * PLANNED)
        shift = timedelta(minutes=self._chance.randrange(600))
        start = self._now.replace(second=0, microsecond=0) + FIRST_SLOT + turn * SLOT_EVERY + shift
        uid = _uid(f"session {number}")
        names = {SESSION: f"session-zz{number:06}", MARK: _mark(pool), self._uids[SESSION]: uid}
        for entry in self._pattern.entries:
            if entry.key == f"uids/{self._uids[SESSION]}":
                yield Put(_renamed(entry.key, names), _renamed(entry.value.decode(), names).encode())
            elif entry.key.endswith(f"/{SESSION}"):
                value = _booked(_renamed(entry.value.decode(), names), start, place + 1, number)
                yield Put(_renamed(entry.key, names), value, entry.labels)

    def _of(self, prefix: str) -> Iterator[Entry]:
        return (entry for entry in self._pattern.entries if entry.key.startswith(prefix))


def _booked(value: str, start: datetime, seat: int, number: int) -> bytes:
    """Return a session's record with another slot, planned worker and owner."""
    head, _, body = value.partition("\n")
    document = json.loads(body)
    spec, status = document["spec"], document["status"]
    first = datetime.fromisoformat(spec["timeslot_start"])
    moments = {"timeslot_start": spec, "timeslot_end": spec, "start": status["claim"], "end": status["claim"]}
    for field, part in {**moments, "expires_at": status, "ends_at": status}.items():
        part[field] = (start + (datetime.fromisoformat(part[field]) - first)).isoformat().replace("+00:00", "Z")
    spec["owner"] = f"learner-{number % OWNERS}@example.org"
    status["seat"]["number"] = seat
    return f"{head}\n{json.dumps(document)}".encode()


def _mark(pool: int) -> str:
    return f"xq{pool:02}"


def _uid(text: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, text))


def _renamed(text: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(old, new)
    return text


def _copied(document: Any, names: Mapping[str, str]) -> Any:
    return json.loads(_renamed(json.dumps(document), names))


async def fill(store: Store, folder: Path, pattern: Pattern, size: Size) -> None:
    """Fill a store, and write the file of its simulated cloud."""
    growth = Growth(pattern, size, datetime.now(UTC))
    await store.load(growth.puts(), epoch="growth")
    _write_files(folder, growth, pattern)


def _write_files(folder: Path, growth: Growth, pattern: Pattern) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sim-cloud.json").write_text(json.dumps(growth.cloud))
    for path, data in pattern.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
