"""Cisco's own client, as it comes from PyPI, drives `lcm cml-sim` over HTTPS."""

import contextlib
import gc
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import yaml
from virl2_client import ClientLibrary  # type: ignore[import-untyped]
from virl2_client.exceptions import APIError, InitializationError, LabNotFound  # type: ignore[import-untyped]
from virl2_client.models import Lab  # type: ignore[import-untyped]

SPEED = 2000
SECONDS = 60
LAB = """\
lab: {version: 0.3.0, title: from the file, description: three nodes, notes: read me}
nodes:
  - id: n0
    label: R1
    node_definition: iosv
    x: 0
    y: 0
    tags: [serial:5041, core]
    configuration: [{name: ios_config.txt, content: "hostname R1\\n"}]
    interfaces:
      - {id: i0, label: Loopback0, type: loopback}
      - {id: i1, label: GigabitEthernet0/0, type: physical, slot: 0}
  - id: n1
    label: PC
    node_definition: alpine
    x: 100
    y: 0
    tags: [vnc:5044]
    interfaces:
      - {id: i0, label: eth0, type: physical, slot: 0}
      - {id: i1, label: eth1, type: physical, slot: 1}
  - id: n2
    label: out
    node_definition: external_connector
    x: 200
    y: 0
    configuration: NAT
    interfaces:
      - {id: i0, label: port, type: physical, slot: 0}
links:
  - {id: l0, n1: n0, i1: i1, n2: n1, i2: i0}
  - {id: l1, n1: n1, i1: i1, n2: n2, i2: i0}
"""

Import = Callable[..., Lab]
Connect = Callable[..., ClientLibrary]


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "lcm.cli.main", "cml-sim", "--port=0", f"--speed={SPEED}"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    try:
        found = re.search(r"https://\S+", process.stdout.readline())
        assert found
        yield found[0]
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS)
    assert process.returncode == 0


@pytest.fixture(scope="session")
def connect(url: str) -> Iterator[Connect]:
    """Make clients that are closed at the end; the client itself never closes its connections."""
    with contextlib.ExitStack() as stack:

        def make(user: str = "admin", password: str = "admin") -> ClientLibrary:
            made = ClientLibrary(url, user, password, ssl_verify=False, raise_for_auth_failure=True)
            stack.callback(made._session.close)
            return made

        yield make


@pytest.fixture(scope="session")
def client(connect: Connect) -> ClientLibrary:
    return connect()


@pytest.fixture
def admin(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, verify=False, trust_env=False) as face:
        yield face
        face.delete("/sim/faults")


@pytest.fixture
def imported(client: ClientLibrary) -> Iterator[Import]:
    labs: dict[str, Lab] = {}

    def make(title: str | None = None, topology: str = LAB) -> Lab:
        lab = client.import_lab(topology, title)
        lab.wait_time = 0.01
        lab.auto_sync_interval = 0.0
        labs[lab.id] = lab
        return lab

    yield make
    for lab_id in labs.keys() & set(client.get_lab_list(show_all=True)):
        clean(labs[lab_id])


def clean(lab: Lab) -> None:
    lab.stop(wait=True)
    lab.wipe(wait=True)
    lab.remove()


def states(lab: Lab) -> dict[str, str | None]:
    return {node.label: node.state for node in lab.nodes()}


def test_it_connects_to_a_system_that_is_ready(client: ClientLibrary) -> None:
    assert client.is_system_ready()
    assert client.system_info()["version"].startswith("2.9")
    assert client.get_system_health()["valid"]
    assert client.get_system_stats()["all"]["cpu"]["count"] == 48


def test_a_wrong_password_is_refused(connect: Connect) -> None:
    with pytest.raises(InitializationError, match="check your username and password") as raised:
        connect(password="wrong")
    del raised
    with warnings.catch_warnings():
        # A client that fails to sign in leaves its connection open, and nobody can reach it to close it.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def test_an_expired_token_is_replaced_by_a_new_one(client: ClientLibrary, admin: httpx.Client) -> None:
    client.get_lab_list()
    before = client.jwtoken
    admin.post("/sim/tokens/expire")
    client.get_lab_list()
    assert client.jwtoken != before


def test_signing_out_makes_the_token_worthless(connect: Connect) -> None:
    other = connect()
    assert other.logout()
    other.username = None
    with pytest.raises(APIError, match="Unauthorized"):
        other.get_lab_list()


def test_a_lab_lives_from_import_to_removal(imported: Import, client: ClientLibrary) -> None:
    lab = imported("my title")
    assert (lab.title, lab.description, lab.notes, lab.owner) == ("my title", "three nodes", "read me", "admin")
    assert lab.state() == "DEFINED_ON_CORE"
    lab.start(wait=True)
    assert lab.state() == "STARTED"
    assert states(lab) == {"R1": "BOOTED", "PC": "BOOTED", "out": "BOOTED"}
    assert {link.state for link in lab.links()} == {"STARTED"}
    assert {one.state for one in lab.interfaces()} == {"STARTED"}
    lab.stop(wait=True)
    assert lab.state() == "STOPPED"
    lab.wipe()
    assert lab.state() == "DEFINED_ON_CORE"
    lab_id = lab.id
    lab.remove()
    assert lab_id not in client.get_lab_list(show_all=True)
    with pytest.raises(LabNotFound):
        lab.sync()


def test_a_lab_that_runs_is_neither_wiped_nor_deleted(imported: Import) -> None:
    lab = imported()
    lab.start(wait=True)
    with pytest.raises(APIError, match="must be stopped"):
        lab.wipe()
    with pytest.raises(APIError, match="stopped and wiped"):
        lab.remove()
    lab.stop(wait=True)
    with pytest.raises(APIError, match="stopped and wiped"):
        lab.remove()


def test_a_bad_topology_is_refused(client: ClientLibrary) -> None:
    before = client.get_lab_list(show_all=True)
    for bad in ("lab: {version: 9.9.9}\nnodes: []\nlinks: []", "nodes: [", LAB.replace("i2: i0}", "i2: i9}")):
        with pytest.raises(APIError, match="Invalid topology"):
            client.import_lab(bad)
    assert client.get_lab_list(show_all=True) == before


def test_nodes_show_what_they_are_and_what_they_got(imported: Import) -> None:
    lab = imported()
    router = lab.get_node_by_label("R1")
    assert (router.node_definition, router.cpus, router.tags()) == ("iosv", None, ["serial:5041", "core"])
    assert router.degree() == 1
    assert [peer.label for peer in router.peer_nodes()] == ["PC"]
    lab.start(wait=True)
    lab.sync(topology_only=False)
    assert router.operational["cpus"] == 1
    assert router.operational["ram"] == 512
    assert router.compute_id
    assert router.console_key(0)
    assert lab.get_node_by_label("PC").vnc_key()
    assert router.get_interface_by_slot(0).operational["mac_address"].startswith("52:54:00")


def test_statistics_and_addresses_come_from_running_nodes(imported: Import) -> None:
    lab = imported()
    lab.start(wait=True)
    lab.sync_statistics()
    assert lab.statistics["nodes"] == 3
    assert 0 < lab.get_node_by_label("R1").cpu_usage <= 100
    assert lab.get_node_by_label("R1").disk_read > 0
    lab.sync_layer3_addresses()
    host = lab.get_node_by_label("PC")
    assert [one.discovered_ipv4 for one in host.interfaces()] == [None, ["192.168.255.2"]]


def test_configurations_are_read_changed_and_extracted(imported: Import, admin: httpx.Client) -> None:
    lab = imported()
    router = lab.get_node_by_label("R1")
    assert router.configuration == "hostname R1\n"
    router.configuration = "hostname R2\n"
    lab.start(wait=True)
    with pytest.raises(APIError, match="must be wiped"):
        router.configuration = "too late"
    inside = {"configuration": "hostname solved\n"}
    admin.post(f"/sim/labs/{lab.id}/nodes/{router.id}/configuration", json=inside)
    assert "hostname R2" in lab.download()
    router.extract_configuration()
    assert router.configuration == "hostname solved\n"
    assert "hostname solved" in lab.download()


def test_a_download_can_be_imported_again(imported: Import) -> None:
    first = imported("first")
    second = imported("second", first.download())
    assert second.title == "second"
    assert yaml.safe_load(second.download())["nodes"] == yaml.safe_load(first.download())["nodes"]
    assert {node.label for node in second.nodes()} == {"R1", "PC", "out"}


def test_tags_and_their_smart_annotations_change_together(imported: Import) -> None:
    lab = imported()
    router = lab.get_node_by_label("R1")
    router.add_tag("pat:2022:22")
    assert {one.tag for one in lab.smart_annotations()} == {"serial:5041", "core", "vnc:5044", "pat:2022:22"}
    assert lab.find_nodes_by_tag("pat:2022:22") == [router]
    router.remove_tag("pat:2022:22")
    lab.sync()
    assert {one.tag for one in lab.smart_annotations()} == {"serial:5041", "core", "vnc:5044"}


def test_a_title_is_changed_and_found(imported: Import, client: ClientLibrary) -> None:
    lab = imported("before")
    lab.title = "after"
    assert lab.details()["lab_title"] == "after"
    assert [one.id for one in client.find_labs_by_title("after")] == [lab.id]
    assert client.find_labs_by_title("before") == []


def test_an_existing_lab_is_joined(imported: Import, connect: Connect) -> None:
    lab = imported("joined")
    other = connect().join_existing_lab(lab.id)
    assert (other.title, len(other.nodes())) == ("joined", 3)
    with pytest.raises(LabNotFound):
        connect().join_existing_lab("00000000-0000-4000-8000-000000000000")


def test_one_node_starts_stops_and_is_wiped(imported: Import) -> None:
    lab = imported()
    host = lab.get_node_by_label("PC")
    host.start(wait=True)
    assert states(lab) == {"R1": "DEFINED_ON_CORE", "PC": "BOOTED", "out": "DEFINED_ON_CORE"}
    host.stop(wait=True)
    assert host.state == "STOPPED"
    host.wipe(wait=True)
    assert host.state == "DEFINED_ON_CORE"
    assert lab.state() == "DEFINED_ON_CORE"


def test_a_lab_is_built_piece_by_piece(client: ClientLibrary) -> None:
    lab = client.create_lab(title="built")
    lab.wait_time, lab.auto_sync_interval = 0.01, 0.0
    left = lab.create_node("left", "iosv", 0, 0, populate_interfaces=True)
    right = lab.create_node("right", "alpine", 100, 0)
    lab.sync()
    link = lab.create_link(left.get_interface_by_slot(1), right.create_interface())
    assert link.state == "DEFINED_ON_CORE"
    assert lab.create_annotation("text", text_content="hello").text_content == "hello"
    link.set_condition(bandwidth=1000, latency=50, loss=0.5, jitter=0)
    assert link.get_condition()["latency"] == 50
    link.remove()
    right.remove()
    assert [node.label for node in lab.nodes()] == ["left"]
    clean(lab)


def test_more_nodes_than_the_licence_allows_do_not_start(imported: Import) -> None:
    nodes = [{"id": f"n{n}", "label": f"H{n}", "node_definition": "server", "x": n, "y": 0} for n in range(6)]
    lab = imported("many", yaml.safe_dump({"lab": {"version": "0.3.0"}, "nodes": nodes, "links": []}))
    with pytest.raises(APIError, match="license limit"):
        lab.start()
    assert lab.state() == "DEFINED_ON_CORE"


def test_a_licence_is_registered_and_given_back(client: ClientLibrary, imported: Import) -> None:
    licensing = client.licensing
    licensing.wait_interval = 0.01
    licensing.set_product_license("CML_Personal")
    licensing.set_product_license("CML_Enterprise")
    licensing.register_wait("a-good-token")
    expansion = licensing.status()["features"][1]["id"]
    licensing.update_features([{"id": expansion, "count": 10}])
    assert licensing.status()["features"][1]["in_use"] == 10
    lab = imported()
    lab.start(wait=True)
    with pytest.raises(APIError, match="nodes are running"):
        licensing.deregister()
    clean(lab)
    assert licensing.deregister() == 204
    assert licensing.status()["registration"]["status"] == "NOT_REGISTERED"


def test_a_bad_licence_token_fails_later(client: ClientLibrary) -> None:
    assert client.licensing.register("bad-token")
    client.licensing.wait_interval = 0.01
    client.licensing.wait_for_status("registration", "FAILED")
    assert "is not valid" in client.licensing.status()["registration"]["register_time"]["failure"]
    client.licensing.deregister()


def test_resource_pools_limit_their_users(client: ClientLibrary, connect: Connect) -> None:
    pools, users = client.resource_pool_management, client.user_management
    pool = pools.create_resource_pool("small", licenses=1)
    made = users.create_user("limited", "secret-word", resource_pool=pool.id)
    other = connect("limited", "secret-word")
    lab = other.import_lab(LAB)
    lab.wait_time = 0.01
    assert [one.id for one in lab.resource_pools] == [pool.id]
    with pytest.raises(APIError, match="limit exceeded: licenses"):
        lab.start()
    lab.get_node_by_label("PC").start(wait=True)
    assert pool.get_usage().usage.licenses == 1
    clean(lab)
    users.delete_user(made["id"])
    pool.remove()


def test_users_and_groups_share_labs(client: ClientLibrary, connect: Connect, imported: Import) -> None:
    users, groups = client.user_management, client.group_management
    made = users.create_user("reader", "secret-word", fullname="A Reader")
    assert users.user_id("reader") == made["id"]
    lab = imported("shared")
    other = connect("reader", "secret-word")
    assert other.get_lab_list(show_all=True) == []
    group = groups.create_group("readers", members=[made["id"]])
    lab.update_associations({"groups": [{"id": group["id"], "permissions": ["lab_view"]}], "users": []})
    assert other.get_lab_list(show_all=True) == [lab.id]
    with pytest.raises(APIError, match="denied"):
        other.join_existing_lab(lab.id).start()
    with pytest.raises(APIError, match="denied"):
        other.licensing.status()
    users.update_user(made["id"], password_dict={"old_password": "", "new_password": "another-word"})
    other.password = "another-word"
    assert other.get_lab_list(show_all=True) == [lab.id]
    groups.delete_group(group["id"])
    users.delete_user(made["id"])
    with pytest.raises(APIError):
        other.get_lab_list()


def test_the_system_says_what_it_can_run_and_what_happened(client: ClientLibrary, imported: Import) -> None:
    known = {one["id"] for one in client.definitions.node_definitions()}
    assert {"iosv", "alpine", "external_connector"} <= known
    assert yaml.safe_load(client.definitions.download_node_definition("iosv"))["id"] == "iosv"
    assert client.definitions.image_definitions_for_node_definition("iosv")
    system = client.system_management
    assert system.controller.node_counts["total_nodes"] == 0
    assert system.get_external_connectors()[0]["device_name"] == "virbr0"
    lab = imported()
    assert "import_lab" in {event["category"] for event in system.get_telemetry_events()}
    assert system.telemetry["opt_in"] is True
    system.maintenance_mode = True
    system.sync_system_notices()
    assert system.maintenance_mode
    system.maintenance_mode = False
    assert lab.state() == "DEFINED_ON_CORE"


def test_a_controller_that_restarts_is_waited_for(client: ClientLibrary, admin: httpx.Client, imported: Import) -> None:
    lab = imported()
    lab.start(wait=True)
    admin.post("/sim/speed", json={"speed": 480})
    admin.post("/sim/restart")
    assert not client.is_system_ready(sleep=0)
    assert client.is_system_ready(wait=True, max_wait=SECONDS, sleep=1)
    admin.post("/sim/speed", json={"speed": SPEED})
    assert lab.state() == "STOPPED"


def test_faults_are_injected_on_request(client: ClientLibrary, admin: httpx.Client) -> None:
    fault: dict[str, Any] = {"match": "GET /api/v0/labs", "status": 500, "times": 1}
    admin.post("/sim/faults", json=fault).raise_for_status()
    with pytest.raises(APIError, match="Server error"):
        client.get_lab_list()
    assert isinstance(client.get_lab_list(), list)
    admin.post("/sim/faults", json={"match": "GET /api/v0/labs", "cut": True}).raise_for_status()
    with pytest.raises(httpx.RemoteProtocolError):
        client.get_lab_list()
