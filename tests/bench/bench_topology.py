"""Rewriting the ports of a large lab against the round trip of a library that keeps formatting."""

import time

from bench.baseline.topology import round_trips_per_second
from bench.figures import Figure, ratio
from lcm.model.topology.lab import parse_lab, rewrite

NODES = 300
BYTES = 1_000_000
REWRITES = 3
FLOOR_ROUND_TRIPS_PER_SECOND = 0.03


async def bench_rewrite() -> list[Figure]:
    text = large_lab()
    data = text.encode()
    own = parse_lab(data).ports
    ports = {name: 2000 + number for number, name in enumerate(own)}
    tags = {f"serial:{own[name]}": f"serial:{port}" for name, port in ports.items()}

    async def ours() -> float:
        started = time.perf_counter()
        for _ in range(REWRITES):
            rewrite(data, ports)
        return REWRITES / (time.perf_counter() - started)

    async def bare() -> float:
        return round_trips_per_second(text, tags)

    measured = await ratio(ours, bare, floor=FLOOR_ROUND_TRIPS_PER_SECOND)
    note = f"times {measured.bare:.2f} round trips/s of {len(data)} bytes"
    return [Figure("topology_rewrite", measured.ratio, 10, floor_ok=measured.valid, note=note)]


def large_lab() -> str:
    """Write a lab of 300 routers in a ring, as CML exports it, with configurations that fill a megabyte."""
    nodes = "".join(map(_node, range(NODES)))
    links = "".join(
        f"  - id: l{n}\n    n1: n{n}\n    n2: n{(n + 1) % NODES}\n    i1: i1\n    i2: i2\n"
        f"    conditioning: {{}}\n    label: R{n}-GigabitEthernet0/0<->R{(n + 1) % NODES}-GigabitEthernet0/1\n"
        for n in range(NODES)
    )
    annotations = "".join(
        f"  - tag: serial:{4000 + n}\n    is_on: true\n    label: serial:{4000 + n}\n    z_index: {n}\n"
        for n in range(NODES)
    )
    heading = "lab:\n  description: ''\n  notes: ''\n  title: Three hundred\n  version: 0.3.0\n"
    text = f"annotations: []\nsmart_annotations:\n{annotations}nodes:\n{nodes}links:\n{links}{heading}"
    assert len(text) >= BYTES
    return text


def _node(number: int) -> str:
    routes = "".join(f"          ip route 10.{number % 256}.{n}.0 255.255.255.0 192.0.2.{n}\n" for n in range(44))
    interfaces = "".join(
        f"      - id: i{slot + 1}\n        label: GigabitEthernet0/{slot}\n        mac_address: null\n"
        f"        slot: {slot}\n        type: physical\n"
        for slot in range(4)
    )
    return (
        "  - boot_disk_size: null\n    configuration:\n      - name: ios_config.txt\n        content: |-\n"
        f"          hostname R{number}\n{routes}          end\n"
        "    cpu_limit: null\n    cpus: null\n    data_volume: null\n    hide_links: false\n"
        f"    id: n{number}\n    image_definition: null\n    label: R{number}\n    node_definition: iosv\n"
        f"    parameters: {{}}\n    ram: null\n    tags:\n      - serial:{4000 + number}\n"
        f"    x: {number * 40 - 6000}\n    y: 0\n    interfaces:\n"
        "      - id: i0\n        label: Loopback0\n        mac_address: null\n        type: loopback\n"
        f"{interfaces}"
    )
