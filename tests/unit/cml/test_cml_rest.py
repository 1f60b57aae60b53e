"""The simulated CML's REST face: shapes, refusals, who may do what, the admin face, faults, fleets."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from harness.asgi import MemoryTransport
from harness.clouds import LONG, Bench, link, node, one, text
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.faults import HttpFault
from lcm.sim.cml.rest.app import _ADMIN_ROUTES, _ROUTES, CmlApp, CmlFleet
from lcm.sim.cml.rest.routing import LARGE, CmlRoute, CmlRoutes
from lcm.sim.time.chance import Chance
from lcm.sim.time.loop import VirtualClock, run

NOWHERE = "00000000-0000-4000-8000-000000000000"
API = "https://cml/api/v0/"
UUID4 = re.compile(r"[\da-f]{8}-[\da-f]{4}-4[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}")


class Rest(Bench):
    """A machine behind its REST face."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.client = httpx.AsyncClient(transport=MemoryTransport(CmlApp(self.cml)), base_url=API)

    async def sign_in(self, username: str = "admin", password: str = "admin") -> "Rest":
        token = await self("POST", "authenticate", json={"username": username, "password": password})
        self.client.headers["Authorization"] = f"Bearer {token}"
        return self

    async def __call__(self, method: str, path: str, status: int | None = None, **more: Any) -> Any:
        """Make a call and return what it answered; without a status, anything but success is a failure."""
        answer = await self.client.request(method, path, **more)
        assert answer.status_code == status if status else answer.is_success, answer.text
        if answer.status_code >= 400 and answer.status_code != 502:
            assert answer.json().keys() == {"code", "description"}
            assert answer.json()["code"] == answer.status_code
            return answer.json()["description"]
        return answer.json() if answer.content and "json" in answer.headers["content-type"] else answer.text


@pytest.fixture
async def rest() -> AsyncIterator[Rest]:
    made = await Rest().sign_in()
    yield made
    await made.client.aclose()


def routes(tree: CmlRoutes) -> list[CmlRoute]:
    found, places = list[CmlRoute](), [tree._root]
    while places:
        place = places.pop()
        found += place.routes.values()
        places += place.named.values()
        places += [place.variable] if place.variable else []
    return found


OPEN = {"POST authenticate", "POST auth_extended", "GET system_information", "GET system/maintenance_mode"}


async def test_every_call_but_four_needs_a_token() -> None:
    rest = Rest()
    for route in routes(_ROUTES):
        if f"{route.method} {route.path}" in OPEN:
            continue
        path = route.path.replace("{}", NOWHERE)
        assert await rest(route.method, path, 401) == "Unauthorized", path
        for wrong in ("Bearer made-up", "Basic YWRtaW46YWRtaW4=", "Bearer"):
            await rest(route.method, path, 401, headers={"Authorization": wrong})


async def test_what_is_not_there_is_called_so_in_cmls_words(rest: Rest) -> None:
    lab = rest.imported()
    for method, path, words in (
        ("GET", f"labs/{NOWHERE}", f"Lab not found: {NOWHERE}"),
        ("DELETE", f"labs/{NOWHERE}", f"Lab not found: {NOWHERE}"),
        ("GET", f"labs/{NOWHERE}/nodes/{NOWHERE}", f"Lab not found: {NOWHERE}"),
        ("GET", f"labs/{lab.id}/nodes/{NOWHERE}", f"Node not found: {NOWHERE}"),
        ("PUT", f"labs/{lab.id}/nodes/{NOWHERE}/state/start", f"Node not found: {NOWHERE}"),
        ("GET", f"labs/{lab.id}/interfaces/{NOWHERE}", f"Interface not found: {NOWHERE}"),
        ("GET", f"labs/{lab.id}/links/{NOWHERE}", f"Link not found: {NOWHERE}"),
        ("GET", f"users/{NOWHERE}", f"User not found: {NOWHERE}"),
        ("GET", "users/nobody/id", "User not found: nobody"),
        ("GET", "groups/nobody/id", "Group not found: nobody"),
        ("GET", f"resource_pools/{NOWHERE}", f"Resource pool not found: {NOWHERE}"),
        ("GET", f"system/notices/{NOWHERE}", f"System notice not found: {NOWHERE}"),
        ("GET", "node_definitions/unheard", "Node definition not found: unheard"),
        ("GET", "image_definitions/unheard", "Image definition not found: unheard"),
        ("GET", f"labs/{lab.id}/annotations/{NOWHERE}", f"Annotation not found: {NOWHERE}"),
        ("GET", f"labs/{lab.id}/smart_annotations/{NOWHERE}", f"Smart annotation not found: {NOWHERE}"),
        ("GET", "no/such/path", "404: Not Found"),
        ("GET", "system", "404: Not Found"),
        ("GET", "diagnostics/unheard", "Diagnostics not found: unheard"),
    ):
        assert await rest(method, path, 404) == words
    assert await rest("GET", "import", 405) == "405: Method Not Allowed"
    assert await rest("GET", "https://cml/elsewhere", 404)


async def test_scalars_are_bare_json_and_files_are_yaml(rest: Rest) -> None:
    lab = rest.imported()
    only = one(lab, "R1")
    for path, body in (
        (f"labs/{lab.id}/state", b'"DEFINED_ON_CORE"'),
        (f"labs/{lab.id}/check_if_converged", b"true"),
        (f"labs/{lab.id}/find/node/label/R1", f'"{only.id}"'.encode()),
        (f"labs/{lab.id}/find/node/label/R9", b"null"),
        ("web_session_timeout", b"86400"),
        ("authok", b'"OK"'),
        ("users/admin/id", b'"00000000-0000-4000-a000-000000000000"'),
    ):
        assert (await rest.client.get(path)).content == body
    tags = await rest.client.patch(f"labs/{lab.id}/nodes/{only.id}?exclude_configurations=false", json={"tags": ["a"]})
    assert tags.content == f'"{only.id}"'.encode()
    for path in (f"labs/{lab.id}/download", "node_definitions/iosv", "image_definitions/iosv-159-3-m8"):
        answer = await rest.client.get(path)
        assert (answer.headers["content-type"], answer.headers["server"]) == ("text/yaml", "nginx")
    stop = await rest.client.put(f"labs/{lab.id}/stop")
    assert (stop.status_code, stop.content, "content-length" in stop.headers) == (204, b"", False)
    assert (await rest("GET", "node_definitions/iosv?json=true"))["id"] == "iosv"
    assert "R1" in await rest("GET", f"labs/{lab.id}/pyats_testbed")


async def test_ids_are_uuids_of_version_4(rest: Rest) -> None:
    lab = await rest("POST", "import", content=text(node("a"), node("b"), links=[link("a/i0", "b/i0")]))
    topology = await rest("GET", f"labs/{lab['id']}/topology")
    ids = [lab["id"], *(one["id"] for one in topology["nodes"] + topology["links"]), topology["lab"]["owner"]]
    assert all(UUID4.fullmatch(ref) for ref in ids)


async def test_a_lab_goes_its_way_over_rest(rest: Rest) -> None:
    made = await rest("POST", "import?title=my+title", content=text(node("a", tags=["serial:5000"])))
    assert made["warnings"] == []
    lab = f"labs/{made['id']}"
    shown = await rest("GET", lab)
    assert (shown["lab_title"], shown["state"], shown["node_count"], shown["owner_username"]) == (
        "my title",
        "DEFINED_ON_CORE",
        1,
        "admin",
    )
    assert shown["created"] == "2026-03-29T01:00:00+00:00"
    await rest("PUT", f"{lab}/start", 204)
    assert await rest("GET", f"{lab}/check_if_converged") is False
    assert "stopped" in await rest("PUT", f"{lab}/wipe", 400)
    rest.wait(LONG)
    (node_id,) = await rest("GET", f"{lab}/nodes")
    assert await rest("GET", f"{lab}/nodes/{node_id}/state") == {"state": "BOOTED", "progress": "Booted"}
    assert (await rest("GET", f"{lab}/lab_element_state")).keys() == {"nodes", "links", "interfaces"}
    events = await rest("GET", f"{lab}/events")
    assert {one["event"] for one in events} == {"STATE_CHANGED"}
    assert {one["element_type"] for one in events} == {"LAB", "NODE"}
    for step, wait in (("stop", 5), ("wipe", 5)):
        await rest("PUT", f"{lab}/{step}", 204)
        rest.wait(wait)
    await rest("DELETE", lab, 204)
    assert await rest("GET", "labs?show_all=true") == []


async def test_configurations_are_left_out_or_shown_whole(rest: Rest) -> None:
    lab = rest.imported(text(node("a", configuration="hostname a")))
    path, only = f"labs/{lab.id}/topology", f"labs/{lab.id}/nodes/{one(lab, 'a').id}"
    files = [{"name": "ios_config.txt", "content": "hostname a"}]
    for query, want in (("", "hostname a"), ("=", "hostname a"), ("=false", files), ("=true", None)):
        flag = f"?exclude_configurations{query}" if query else ""
        assert (await rest("GET", path + flag))["nodes"][0].get("configuration") == want
        assert (await rest("GET", only + flag)).get("configuration") == want


async def test_a_node_shows_what_it_runs_with_once_it_has_started(rest: Rest) -> None:
    lab = rest.imported()
    path = f"labs/{lab.id}/nodes/{one(lab, 'R1').id}"
    before = await rest("GET", path)
    assert (before["operational"], before["ram"], before["compute_id"], before["serial_consoles"]) == (
        None,
        None,
        None,
        [],
    )
    rest.cml.labs.start(lab)
    rest.wait(LONG)
    after = await rest("GET", path)
    assert (after["operational"]["ram"], after["ram"], after["boot_progress"]) == (512, None, "Booted")
    assert after["compute_id"] == after["operational"]["compute_id"]
    assert (await rest("GET", f"{path}?operational=true"))["compute_id"] is None
    assert (await rest("GET", f"{path}?operational=false"))["operational"] is None
    assert len(after["operational"]["serial_consoles"]) == 2
    assert await rest("GET", f"{path}/keys/console?line=1") == after["serial_consoles"][1]["console_key"]
    assert await rest("GET", f"{path}/keys/console?line=2", 400) == "Serial port does not exist on node"
    assert "con0" in await rest("GET", f"{path}/consoles/0/log")
    await rest("GET", f"{path}/keys/vnc", 404)
    assert len(await rest("GET", "keys/console")) == 2
    assert await rest("GET", "keys/vnc") == {}
    await rest("PUT", f"{path}/clone_image", 400)
    (all_nodes,) = await rest("GET", "nodes")
    assert all_nodes["id"] == after["id"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "labs", {"title": ""}),
        ("POST", "labs", {"titel": "x"}),
        ("POST", "labs", [1]),
        ("PATCH", "{lab}", {"title": "x" * 65}),
        ("POST", "{lab}/nodes", {"label": "x"}),
        ("POST", "{lab}/nodes", {"label": "x", "node_definition": "iosv", "x": 0, "y": 0, "priority": 1}),
        ("PATCH", "{node}", {"tags": "serial:5000"}),
        ("PATCH", "{node}", {"node_definition": "iosv"}),
        ("POST", "{lab}/links", {"src_int": "a"}),
        ("POST", "{lab}/interfaces", {"slot": 1}),
        ("POST", "{lab}/annotations", {"type": "circle"}),
        ("POST", "authenticate", {"username": "admin"}),
        ("POST", "users", {"username": "x"}),
        ("PUT", "licensing/product_license", {"product": "CML_Enterprise"}),
        ("PUT", "licensing/product_license", "no such thing!"),
        ("POST", "licensing/registration", {"token": "not a token"}),
        ("PATCH", "licensing/features", []),
        ("PUT", "licensing/reservation/mode", True),
        ("PATCH", "web_session_timeout/299", None),
        ("PATCH", "web_session_timeout/soon", None),
        ("PUT", "telemetry", {"opt_in": "accepted"}),
        ("POST", "import/virl-1x", None),
        ("POST", "import", None),
    ],
)
async def test_a_body_of_another_shape_is_refused(rest: Rest, method: str, path: str, body: object) -> None:
    lab = rest.imported()
    where = path.format(lab=f"labs/{lab.id}", node=f"labs/{lab.id}/nodes/{one(lab, 'R1').id}")
    assert await rest(method, where, 400, json=body)
    assert await rest(method, where, 400, content=b"{")


async def test_bodies_have_limits(rest: Rest) -> None:
    assert await rest("POST", "labs", 413, content=b"x" * 200_000)
    assert await rest("POST", "import", 413, content=b"x" * (LARGE + 1))
    assert "Invalid" in await rest("POST", "import", 400, content=b"x" * 200_000)


async def test_lab_pieces_are_added_changed_and_removed(rest: Rest) -> None:
    lab = f"labs/{(await rest('POST', 'labs'))['id']}"
    spec = {"label": "a", "node_definition": "iosv", "x": 0, "y": 0}
    a, b = [(await rest("POST", f"{lab}/nodes", json=spec | {"label": label}))["id"] for label in "ab"]
    filled = await rest("POST", f"{lab}/interfaces", json={"node": a, "slot": 2})
    assert [one["slot"] for one in filled] == [0, 1, 2]
    single = await rest("POST", f"{lab}/interfaces", json={"node": b, "mac_address": "52:54:00:00:00:01"})
    assert (single["slot"], single["mac_address"]) == (0, "52:54:00:00:00:01")
    joined = await rest("POST", f"{lab}/links", json={"src_int": filled[0]["id"], "dst_int": single["id"]})
    path = f"{lab}/links/{joined['id']}"
    assert (await rest("GET", path))["label"] == "a-GigabitEthernet0/0<->b-GigabitEthernet0/0"
    assert await rest("GET", f"{path}/check_if_converged") is True
    assert (await rest("PATCH", f"{path}/condition", json={"latency": 9})) == {"latency": 9}
    await rest("DELETE", f"{path}/condition", 204)
    assert await rest("GET", f"{path}/condition") == {}
    await rest("GET", f"{path}/capture/status", 404)
    await rest("PUT", f"{path}/state/stop", 204)
    await rest("PUT", f"{path}/state/start", 204)
    end = f"{lab}/interfaces/{single['id']}"
    assert (await rest("PATCH", end, json={"mac_address": None}))["mac_address"] is None
    assert (await rest("GET", end))["is_connected"] is True
    assert await rest("GET", f"{end}/state") == {"label": "GigabitEthernet0/0", "state": "DEFINED_ON_CORE"}
    await rest("PUT", f"{end}/state/stop", 204)
    await rest("PUT", f"{end}/state/start", 204)
    assert len(await rest("GET", f"{lab}/interfaces")) == 4
    assert len(await rest("GET", f"{lab}/nodes/{a}/interfaces")) == 3
    assert (await rest("GET", f"{lab}/nodes/{a}/interfaces?data=true"))[0]["is_connected"] is True
    assert [one["id"] for one in await rest("GET", f"{lab}/links?data=true")] == await rest("GET", f"{lab}/links")
    await rest("DELETE", end, 204)
    assert await rest("GET", f"{lab}/links") == []
    again = await rest("POST", f"{lab}/interfaces", json={"node": b})
    other = await rest("POST", f"{lab}/links", json={"src_int": filled[1]["id"], "dst_int": again["id"]})
    await rest("DELETE", f"{lab}/links/{other['id']}", 204)
    await rest("DELETE", f"{lab}/nodes/{b}", 204)
    assert await rest("GET", f"{lab}/nodes") == [a]
    await rest("PUT", f"{lab}/nodes/{a}/state/start", 204)
    assert await rest("GET", f"{lab}/nodes/{a}/check_if_converged") is False
    await rest("POST", f"{lab}/interfaces", 400, json={"node": a})
    await rest("PUT", f"{lab}/bootstrap", 204)


async def test_annotations_are_drawn_and_smart_ones_only_restyled(rest: Rest) -> None:
    lab = rest.imported(text(node("a", tags=["core"])))
    path = f"labs/{lab.id}/annotations"
    drawn = await rest("POST", path, json={"type": "text", "text_content": "hi"})
    assert (await rest("PATCH", f"{path}/{drawn['id']}", json={"type": "text", "text_content": "ho"}))["id"] == drawn[
        "id"
    ]
    assert [one["text_content"] for one in await rest("GET", path)] == ["ho"]
    await rest("DELETE", f"{path}/{drawn['id']}", 204)
    smart = f"labs/{lab.id}/smart_annotations"
    (first,) = await rest("GET", smart)
    assert first["tag"] == "core"
    changed = await rest("PATCH", f"{smart}/{first['id']}", json={"is_on": False})
    assert (changed["is_on"], await rest("GET", f"{smart}/{first['id']}")) == (False, changed)
    await rest("PATCH", f"{smart}/{first['id']}", 400, json={"tag": "other"})
    await rest("PATCH", f"{smart}/{first['id']}", 400, json={"shape": "round"})
    await rest("POST", smart, 405)
    await rest("DELETE", f"{smart}/{first['id']}", 405)


async def test_addresses_and_connectors_are_told(rest: Rest) -> None:
    topology = text(node("a", "alpine"), node("out", "external_connector"), links=[link("a/i0", "out/i0")])
    lab = rest.booted(topology)
    path = f"labs/{lab.id}"
    (seen,) = (await rest("GET", f"{path}/layer3_addresses")).values()
    assert await rest("GET", f"{path}/nodes/{one(lab, 'a').id}/layer3_addresses") == seen
    words = await rest("GET", f"{path}/nodes/{one(lab, 'out').id}/layer3_addresses", 400)
    assert words == "Can't get L3 addresses of an external_connector."
    assert [found["key"] for found in await rest("GET", f"{path}/connector_mappings")] == ["NAT"]
    assert await rest("GET", f"{path}/find_all/node/tag/none") == []
    assert (await rest("GET", f"{path}/tile"))["topology"]["nodes"][0]["state"] == "BOOTED"
    assert list((await rest("GET", "populate_lab_tiles"))["lab_tiles"]) == [lab.id]


async def test_users_see_and_do_only_what_they_may(rest: Rest) -> None:
    made = await rest("POST", "users", 201, json={"username": "ann", "password": "secret-word"})
    assert "password" not in made
    theirs, ours = f"labs/{rest.imported().id}", rest
    ann = Rest()
    ann.cml, ann.client = rest.cml, httpx.AsyncClient(transport=MemoryTransport(CmlApp(rest.cml)), base_url=API)
    await ann.sign_in("ann", "secret-word")
    assert await ann("GET", "labs?show_all=true") == []
    await ann("GET", theirs, 404)
    for method, path in (
        ("GET", "licensing"),
        ("POST", "users"),
        ("POST", "groups"),
        ("POST", "resource_pools"),
        ("GET", "telemetry/events"),
        ("GET", f"users/{rest.cml.users.administrator.id}"),
    ):
        await ann(method, path, 403, json={})
    assert (await ann("GET", "system_health"))["computes"] == {}
    assert len(await ann("GET", "users")) == 2
    rights = [{"id": theirs.removeprefix("labs/"), "permissions": ["lab_view"]}]
    changed = await ours("PATCH", f"users/{made['id']}", json={"associations": rights})
    assert changed["associations"] == rights
    assert (await ann("GET", theirs))["effective_permissions"] == ["lab_view"]
    for method, path in (("PUT", "start"), ("PATCH", ""), ("DELETE", "")):
        await ann(method, f"{theirs}/{path}".rstrip("/"), 403, json={})
    await ann("PATCH", f"users/{made['id']}", 403, json={"admin": True})
    group = await ours("POST", "groups", 201, json={"name": "class", "members": [made["id"]]})
    await ours("PATCH", f"groups/{group['id']}", json={"associations": [rights[0] | {"permissions": ["lab_edit"]}]})
    assert (await ann("GET", theirs))["effective_permissions"] == ["lab_edit", "lab_view"]
    assert await ours("GET", f"groups/{group['id']}/members") == [made["id"]]
    assert await ours("GET", f"groups/{group['id']}/labs") == [theirs.removeprefix("labs/")]
    assert await ours("GET", "groups/class/id") == group["id"]
    assert await ann("GET", f"users/{made['id']}/groups") == [group["id"]]
    assert [found["name"] for found in await ann("GET", "groups")] == ["class"]
    await ours("DELETE", f"groups/{group['id']}", 204)
    await ours("PATCH", "system/maintenance_mode", json={"maintenance_mode": True})
    await ann("POST", "authenticate", 403, json={"username": "ann", "password": "secret-word"})
    await ours("DELETE", f"users/{made['id']}", 204)
    await ann("GET", "labs", 401)
    await ann.client.aclose()


async def test_pools_tell_their_limits_and_use_in_hundredths_of_a_cpu(rest: Rest) -> None:
    admin = rest.cml.users.administrator.id
    pool = await rest("POST", "resource_pools", json={"label": "all", "cpus": 8, "users": [admin]})
    rest.booted()
    usage = await rest("GET", f"resource_pool_usage/{pool['id']}")
    assert (usage["limit"]["cpus"], usage["usage"]["cpus"], usage["usage"]["licenses"]) == (800, 100, 1)
    assert await rest("GET", "resource_pool_usage") == [usage]
    assert await rest("GET", "resource_pools") == [pool["id"]]
    assert await rest("GET", "resource_pools?data=true") == [pool]
    assert (await rest("GET", "users"))[0]["resource_pool"] == pool["id"]
    assert (await rest("PATCH", f"resource_pools/{pool['id']}", json={"cpus": None}))["cpus"] is None
    assert (await rest("GET", f"resource_pools/{pool['id']}"))["cpus"] is None
    await rest("DELETE", f"resource_pools/{pool['id']}", 204)
    assert len(await rest("POST", "resource_pools", json={"label": "c", "users": [admin], "shared": False})) == 2


async def test_the_licence_is_managed_over_rest(rest: Rest) -> None:
    await rest("PUT", "licensing/product_license", 204, json="CML_Personal")
    await rest("PUT", "licensing/product_license", 204, json="CML_Enterprise")
    await rest("PUT", "licensing/transport", 204, json={"ssms": None, "proxy": {"server": "proxy", "port": 80}})
    await rest("POST", "licensing/registration", 204, json={"token": "good", "reregister": False})
    rest.wait(60)
    status = await rest("GET", "licensing")
    assert (status["authorization"]["status"], status["transport"]["proxy"]["server"]) == ("IN_COMPLIANCE", "proxy")
    for path in ("registration/renew", "authorization/renew"):
        await rest("PUT", f"licensing/{path}", 204)
    (_, expansion) = await rest("GET", "licensing/features")
    await rest("PATCH", "licensing/features", 204, json=[{"id": expansion["id"], "count": 7}])
    assert "COMPLETED" in await rest("GET", "licensing/tech_support")
    lab = rest.booted()
    assert "running" in await rest("DELETE", "licensing/deregistration", 409)
    rest.cml.labs.power_off()
    rest.cml.licence_server.reachable = False
    await rest("DELETE", "licensing/deregistration", 202)
    await rest("DELETE", "licensing/deregistration", 400)
    assert lab.id in await rest("GET", "labs")


async def test_the_system_describes_itself(rest: Rest) -> None:
    assert (await rest("GET", "system_information")).keys() == {"version", "ready", "allow_ssh_pubkey_auth", "oui"}
    assert (await rest("GET", "auth_extended", 405)) == "405: Method Not Allowed"
    known = await rest("POST", "auth_extended", json={"username": "admin", "password": "admin"})
    assert (known["admin"], known["error"]) == (True, None)
    assert (await rest("GET", "authentication"))["username"] == "admin"
    assert await rest("GET", "system/auth/config") == {"method": "local"}
    assert (await rest("GET", "system/compute_hosts"))[0]["is_connector"] is True
    assert await rest("GET", "system/compute_hosts/configuration") == {"admission_state": "REGISTERED"}
    assert (await rest("GET", "diagnostics/labs")) == {"labs": 0, "running_nodes": 0}
    assert await rest("PUT", "telemetry", json={"opt_in": None}) == {"opt_in": None, "show_modal": False}
    assert len(await rest("GET", "node_definitions")) == len(await rest("GET", "simplified_node_definitions")) > 30
    assert await rest("GET", "node_definitions/iosv/image_definitions") == [
        found for found in await rest("GET", "image_definitions") if found["node_definition_id"] == "iosv"
    ]
    assert await rest("PATCH", "web_session_timeout/300") == "OK"
    notice = await rest("POST", "system/notices", json={"level": "INFO", "label": "hello"})
    assert (await rest("PATCH", f"system/notices/{notice['id']}", json={"enabled": True}))["enabled"] is True
    mode = await rest("PATCH", "system/maintenance_mode", json={"notice": notice["id"]})
    assert mode["resolved_notice"]["label"] == (await rest("GET", f"system/notices/{notice['id']}"))["label"]
    await rest("DELETE", f"system/notices/{notice['id']}", 204)
    assert await rest("GET", "system/notices") == []
    assert (await rest("GET", "system/maintenance_mode"))["notice"] is None
    assert await rest("DELETE", "logout?clear_all_sessions=true") is True
    await rest("GET", "authok", 401)


SIM = "https://cml/sim"


async def test_the_admin_face_needs_no_sign_in_and_sets_everything() -> None:
    rest = Rest()
    lab = rest.booted()
    only = one(lab, "R1")
    await rest("POST", f"{SIM}/speed", 204, json={"speed": 60})
    await rest("POST", f"{SIM}/faults", 204, json={"match": "GET *", "status": 503})
    await rest("POST", f"{SIM}/license", 204, json={"reachable": False, "bad_tokens": ["x"], "seats": 3})
    await rest("POST", f"{SIM}/health", 204, json={"ailments": ["libvirt"]})
    overview = await rest("GET", SIM)
    assert (overview["speed"], overview["up"], overview["labs"], overview["ailments"]) == (60, True, 1, ["libvirt"])
    assert (overview["licence_server"]["seats"], overview["licence_server"]["bad_tokens"]) == (3, ["x"])
    assert (await rest("GET", f"{SIM}/faults"))[0]["status"] == 503
    await rest("DELETE", f"{SIM}/faults", 204)
    path = f"{SIM}/labs/{lab.id}/nodes/{only.id}"
    await rest("POST", f"{path}/configuration", 204, json={"configuration": "hostname solved"})
    assert only.running is not None
    assert only.running[0].content == "hostname solved"
    await rest("POST", f"{path}/state", 204, json={"state": "STOPPED"})
    assert rest.states(lab) == ["STOPPED"]
    await rest("POST", f"{path}/state", 400, json={"state": "ASLEEP"})
    await rest("POST", f"{SIM}/never-boot", 204, json={"label": "R1"})
    assert await rest("GET", f"{SIM}/patty") == []
    await rest("DELETE", f"{SIM}/labs/{lab.id}", 204)
    assert (await rest("GET", SIM))["labs"] == 0
    for on in (False, True):
        await rest("POST", f"{SIM}/power", 204, json={"on": on})
    await rest("POST", f"{SIM}/restart", 204)
    await rest("POST", f"{SIM}/tokens/expire", 204)
    assert (await rest("GET", SIM))["up"] is False
    for path, body in (("speed", {"speed": 0}), ("faults", {"status": 200}), ("power", {}), ("license", {"seat": 1})):
        await rest("POST", f"{SIM}/{path}", 400, json=body)
    assert {route.access for route in routes(_ADMIN_ROUTES)} == {"anybody"}


async def test_a_fault_hits_so_many_matching_requests(rest: Rest) -> None:
    rest.cml.faults.add(HttpFault(match="GET /api/v0/labs", status=502, times=2))
    await rest("GET", "users")
    for _ in range(2):
        assert await rest("GET", "labs", 502)
    assert await rest("GET", "labs") == []


async def test_a_fault_may_answer_nonsense_after_the_deed(rest: Rest) -> None:
    rest.cml.faults.add(HttpFault(match="POST /api/v0/labs", body='["what?"]'))
    assert await rest("POST", "labs") == ["what?"]
    assert len(await rest("GET", "labs")) == 1


@pytest.mark.parametrize("path", ["labs", "import"])
async def test_an_answer_may_break_off_after_the_deed(rest: Rest, path: str) -> None:
    rest.cml.faults.add(HttpFault(match="POST *", cut=True))
    with pytest.raises(httpx.RemoteProtocolError):
        await rest("POST", path, content=text())
    assert len(await rest("GET", "labs")) == (1 if path == "import" else 0)


async def test_an_answer_without_a_body_may_break_off_too(rest: Rest) -> None:
    lab = rest.imported()
    rest.cml.faults.add(HttpFault(match="PUT *", cut=True))
    with pytest.raises(httpx.RemoteProtocolError):
        await rest("PUT", f"labs/{lab.id}/start")
    assert rest.states(lab) == ["QUEUED"]


def test_delays_and_silence_pass_in_virtual_time() -> None:
    async def main() -> tuple[timedelta, timedelta]:
        clock = VirtualClock()
        cml = Cml(clock, Chance(1))
        transport = MemoryTransport(CmlApp(cml))
        async with httpx.AsyncClient(transport=transport, base_url=API, timeout=100) as client:
            cml.faults.add(HttpFault(delay_seconds=30))
            begin = clock.now()
            (await client.get("system_information")).raise_for_status()
            delayed = clock.now() - begin
            cml.faults.add(HttpFault(hang=True))
            with pytest.raises(httpx.ReadTimeout):
                await client.get("system_information")
            return delayed, clock.now() - begin - delayed

    assert run(main) == (timedelta(seconds=30), timedelta(seconds=100))


async def test_an_upload_that_breaks_off_is_no_upload(rest: Rest) -> None:
    whole = text(node("R1"), node("R2")).encode()
    came = [{"type": "http.request", "body": whole, "more_body": True}, {"type": "http.disconnect"}]
    sent: list[object] = []

    async def receive() -> Any:
        return came.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    fleet = CmlFleet()
    fleet.add("w1", rest.cml)
    token = rest.client.headers["Authorization"].encode()
    scope = {"type": "http", "method": "POST", "query_string": b"", "headers": [(b"authorization", token)]}
    for app, path in ((CmlApp(rest.cml), "/api/v0/import"), (fleet, "/w/w1/api/v0/import"), (fleet, "/w/w2/import")):
        left = list(came)
        await app({**scope, "path": path}, receive, send)
        assert came == []
        came.extend(left)
    assert sent == []
    assert len(rest.cml.labs) == 0


async def test_a_fault_waits_for_a_request_that_arrives(rest: Rest) -> None:
    rest.cml.faults.add(HttpFault(status=503))
    rest.cml.restart()
    with pytest.raises(httpx.ConnectError):
        await rest("GET", "system_information")
    rest.wait(LONG)
    await rest("GET", "system_information", 503)


async def test_a_machine_that_boots_refuses_first_and_answers_502_then() -> None:
    rest = Rest()
    rest.cml.restart()
    with pytest.raises(httpx.ConnectError) as raised:
        await rest("GET", "system_information")
    assert isinstance(raised.value.__cause__, ConnectionRefusedError)
    rest.wait(100)
    assert "Bad Gateway" in await rest("GET", "system_information", 502)
    rest.wait(200)
    assert (await rest("GET", "system_information"))["ready"] is True


async def test_a_machine_behind_another_transport_answers_502_when_it_is_off() -> None:
    bench = Bench()
    bench.cml.power_off()
    transport = httpx.ASGITransport(CmlApp(bench.cml))
    async with httpx.AsyncClient(transport=transport, base_url=API) as client:
        assert (await client.get("system_information")).status_code == 502
        bench.cml.power_on()
        bench.wait(LONG)
        assert (await client.get("system_information")).json()["ready"] is True


async def test_a_fleet_serves_machines_by_path_and_by_host_name() -> None:
    fleet, benches = CmlFleet(), {name: Bench(username=name) for name in ("w1", "w2")}
    for name, bench in benches.items():
        fleet.add(name, bench.cml)
    async with httpx.AsyncClient(transport=MemoryTransport(fleet)) as client:
        for base in ("https://sim/w/{}", "https://{}:8443"):
            for name in benches:
                body = {"username": name, "password": "admin"}
                answer = await client.post(f"{base.format(name)}/api/v0/authenticate", json=body)
                assert answer.status_code == 200
        fleet.remove("w2")
        for url in ("https://sim/w/w2/api/v0/system_information", "https://w2/api/v0/system_information"):
            assert (await client.get(url)).status_code == 502
        assert (await client.get("https://sim/w/w1/sim")).json()["speed"] == 1


async def test_both_apps_live_and_die_as_servers_want() -> None:
    bench = Bench()
    for app in (CmlApp(bench.cml), CmlFleet()):
        said = asyncio.Queue[dict[str, str]]()
        for stage in ("startup", "shutdown"):
            said.put_nowait({"type": f"lifespan.{stage}"})
        heard: list[Any] = []

        async def send(message: Any, heard: list[Any] = heard) -> None:
            heard.append(message["type"])

        await app({"type": "lifespan"}, said.get, send)
        await app({"type": "websocket"}, said.get, send)
        assert heard == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
