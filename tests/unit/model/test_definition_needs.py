"""What one session of a definition takes of a worker."""

import msgspec
import pytest

from harness import given
from lcm.model.base.capacity import Amount
from lcm.model.kinds.definition import PortUse, ResourceRequirements, Topology, compute_amount


def test_what_a_session_takes_is_rounded_up_and_counts_nodes_ports_and_itself() -> None:
    spec = given.definition().spec
    spec = msgspec.structs.replace(
        spec,
        resource_requirements=ResourceRequirements(cpu_cores=1.5, memory_gb=0.3, storage_gb=2),
        node_count=4,
        port_template={"R1_serial": PortUse(kind="serial", node="R1"), "R1_vnc": PortUse(kind="vnc", node="R1")},
    )
    assert compute_amount(spec) == Amount(cpu_millis=1500, memory_mb=308, storage_mb=2048, nodes=4, ports=2, labs=1)
    assert compute_amount(msgspec.structs.replace(spec, resource_requirements=None)) is None
    assert compute_amount(msgspec.structs.replace(spec, node_count=None)) is None


def test_a_topology_is_never_another_sessions_temporary_file() -> None:
    for uri in ("artifact://tmp/s1", "artifact://sha256:short", "http://example.org/lab.yaml"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"uri": uri}, Topology)
    for uri in ("s3://labs/a.yaml", "file:///labs/a.yaml", "artifact://sha256:" + 64 * "a"):
        msgspec.convert({"uri": uri}, Topology)
