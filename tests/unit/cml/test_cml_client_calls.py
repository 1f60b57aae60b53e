"""What the CML client makes of CML's answers and refusals, call by call."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from harness.http_answers import AnswerServer, Say, refusal, says
from harness.lab_hosts import CANNED_LAB, NODE, STATS, TOKEN, host_of, served
from lcm.model.base.errors import Gone, Invalid, Later, LcmError, NoRoom, Throttled, Unreachable
from lcm.providers.cml.host import CmlHost
from lcm.providers.protocols.labhost import (
    CmlAnswerError,
    CmlApiError,
    CmlAuthenticationError,
    CmlLabCreationError,
    CmlLicensingError,
    LabState,
    NotReady,
)

Verb = Callable[[CmlHost], Awaitable[object]]
SINCE = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def server() -> AsyncIterator[AnswerServer]:
    async with served() as server:
        yield server


@pytest.fixture
async def host(server: AnswerServer) -> AsyncIterator[CmlHost]:
    async with host_of(server.url) as host:
        yield host


async def test_a_field_that_is_missing_is_named(server: AnswerServer, host: CmlHost) -> None:
    server.tell("labs/L1", says({key: value for key, value in CANNED_LAB.items() if key != "lab_title"}))
    with pytest.raises(CmlAnswerError, match="missing required field `lab_title`"):
        await host.look("L1")


async def test_a_state_that_nobody_knows_is_an_error(server: AnswerServer, host: CmlHost) -> None:
    server.tell("labs/L1/state", says("EXPLODED"))
    with pytest.raises(CmlAnswerError, match="EXPLODED"):
        await host.remove("L1")


async def test_fields_that_a_newer_cml_adds_are_ignored(server: AnswerServer, host: CmlHost) -> None:
    server.tell("labs/L1", says(CANNED_LAB | {"autostart": {"enabled": True}}))
    lab = await host.look("L1")
    assert lab is not None
    assert (lab.title, lab.state, lab.modified_at) == ("exam-1", LabState.STARTED, SINCE + timedelta(hours=10))


async def test_a_vanished_lab_is_gone_when_cml_says_so(server: AnswerServer, host: CmlHost) -> None:
    for path in ("", "/start", "/stop", "/state", "/check_if_converged", "/nodes", "/lab_element_state"):
        server.tell(f"labs/L1{path}", refusal(404, "Lab not found: L1"))
    for verb in (host.start, host.stop, host.converged, host.nodes, host.elements, host.topology):
        with pytest.raises(Gone):
            await verb("L1")
    assert await host.look("L1") is None
    assert await host.labs() == []
    await host.remove("L1")


async def test_a_404_that_names_no_object_is_no_absence(server: AnswerServer, host: CmlHost) -> None:
    server.tell("labs/L1", refusal(404, "404: Not Found"))
    with pytest.raises(CmlApiError):
        await host.look("L1")


async def test_a_node_that_vanishes_meanwhile_does_not_make_its_lab_look_gone(
    server: AnswerServer, host: CmlHost
) -> None:
    server.tell("labs/L1/nodes/N1/interfaces", refusal(404, "Node not found: N1"))
    server.tell("labs/L1/nodes/N1/extract_configuration", refusal(404, "Node not found: N1"))
    assert await host.nodes("L1") == []
    assert (await host.topology("L1")).startswith("lab:")
    server.tell("labs/L1/layer3_addresses", refusal(404, "Lab not found: L1"))
    with pytest.raises(Gone):
        await host.nodes("L1")


async def test_a_lab_that_vanishes_right_after_its_import_is_tried_later(server: AnswerServer, host: CmlHost) -> None:
    server.tell("labs", says([]))
    server.tell("labs/L1", refusal(404, "Lab not found: L1"))
    with pytest.raises(Later, match="vanished"):
        await host.ensure("exam-1", "lab: {}")


async def test_a_throttled_call_says_when_to_come_again(server: AnswerServer, host: CmlHost) -> None:
    for header, seconds in (("7", 7), ("Wed, 21 Oct 2026 07:28:00 GMT", 5), ("999999", 3600), ("-1", 5)):
        server.tell("labs", Say(429, headers={"Retry-After": header}))
        with pytest.raises(Throttled) as raised:
            await host.labs()
        assert raised.value.after == timedelta(seconds=seconds)


async def test_refusals_are_told_apart(server: AnswerServer, host: CmlHost) -> None:
    cases: list[tuple[str, Say, Verb, type[LcmError]]] = [
        ("import", refusal(400, "bad topology"), lambda h: h.ensure("new", "x"), CmlLabCreationError),
        ("import", Say(413, b"<html>", "text/html"), lambda h: h.ensure("new", "x"), CmlLabCreationError),
        ("labs/L1/start", refusal(400, "Cannot start lab."), lambda h: h.start("L1"), NoRoom),
        ("labs/L1/start", refusal(409, "compute busy"), lambda h: h.start("L1"), Later),
        ("labs/L1/stop", refusal(400, "no"), lambda h: h.stop("L1"), CmlApiError),
        (
            "labs/L1/nodes/N1",
            refusal(405, "405: Method Not Allowed"),
            lambda h: h.set_tags("L1", "N1", []),
            CmlApiError,
        ),
        ("labs/L1/nodes/N1", refusal(422, "tags"), lambda h: h.set_tags("L1", "N1", []), CmlApiError),
        ("nodes", refusal(403, "Access denied"), lambda h: h.all_nodes(), CmlAuthenticationError),
        (
            "licensing/registration",
            refusal(400, "bad token licence-token-77"),
            lambda h: h.register(product="CML_Enterprise", token=TOKEN),
            CmlLicensingError,
        ),
        (
            "licensing/registration",
            refusal(403, "admins only"),
            lambda h: h.register(product="CML_Enterprise", token=TOKEN),
            CmlLicensingError,
        ),
        (
            "licensing/registration",
            refusal(409, "not now"),
            lambda h: h.register(product="CML_Enterprise", token=TOKEN),
            Later,
        ),
    ]
    for path, say, verb, error in cases:
        server.tell(path, say)
        with pytest.raises(error) as raised:
            await verb(host)
        assert "token-77" not in str(raised.value)


async def test_an_import_whose_answer_was_lost_is_not_repeated(server: AnswerServer, host: CmlHost) -> None:
    server.tell("labs", says([]), says(["L1"]))
    server.tell("import", Say(200, b'{"id": "L1"}', cut=3))
    lab = await host.ensure("exam-1", "lab: {}")
    assert lab.lab_id == "L1"
    assert server.count("import") == 1


async def test_a_lab_is_imported_under_its_title(server: AnswerServer, host: CmlHost) -> None:
    server.tell("labs", says([]))
    await host.ensure("exam 1", "lab: {}\n# ü")
    sent = next(one for one in server.asked if one.path.endswith("/import"))
    assert (sent.query, sent.body.decode()) == ("title=exam+1", "lab: {}\n# ü")


async def test_a_node_that_has_nothing_to_extract_does_not_spoil_the_download(
    server: AnswerServer, host: CmlHost
) -> None:
    server.tell("labs/L1/nodes/N1/extract_configuration", refusal(400, "not supported"))
    assert (await host.topology("L1")).startswith("lab:")


async def test_a_download_may_be_a_json_string(server: AnswerServer, host: CmlHost) -> None:
    server.tell("labs/L1/download", says("lab:\n  title: ü\n"))
    assert await host.topology("L1") == "lab:\n  title: ü\n"


async def test_a_download_that_is_no_lab_is_refused(server: AnswerServer, host: CmlHost) -> None:
    for body in (b"", b"hello", b"\xff\xfe"):
        server.tell("labs/L1/download", Say(200, body, "text/yaml"))
        with pytest.raises(CmlAnswerError):
            await host.topology("L1")


async def test_a_removal_that_does_not_get_on_is_tried_later(server: AnswerServer, host: CmlHost) -> None:
    for path, state in (("stop", "STARTED"), ("wipe", "STOPPED"), ("delete", "DEFINED_ON_CORE")):
        server.tell("labs/L1/state", says(state))
        server.tell("labs/L1/wipe", refusal(400, "The lab must be stopped before it can be wiped"))
        server.tell("labs/L1", refusal(400, "The lab must be wiped"))
        with pytest.raises(Later, match=f"still {state}") as raised:
            await host.remove("L1")
        assert not isinstance(raised.value, Unreachable), path


async def test_health_names_what_is_wrong(server: AnswerServer, host: CmlHost) -> None:
    compute = {"hostname": "cml-1", "libvirt": False, "valid": False, "is_controller": False, "fabric": True}
    controller = {"core_connected": False, "valid": False}
    unhealthy = {"valid": False, "is_licensed": None, "computes": {"C": compute}, "controller": controller}
    server.tell("system_health", says(unhealthy))
    health = await host.health()
    assert (health.healthy, health.licensed) == (False, None)
    assert health.reasons == ("controller: core_connected", "cml-1: libvirt")


async def test_an_id_never_leads_elsewhere(server: AnswerServer, host: CmlHost) -> None:
    for odd in ("", ".", "..", "../users?x=1", "a/b", "L1\n", "%2e%2e", "ü"):
        for verb in (host.look, host.start, host.stop, host.remove, host.nodes, host.topology, host.converged):
            with pytest.raises(Invalid, match="id"):
                await verb(odd)
        with pytest.raises(Invalid, match="id"):
            await host.set_tags("L1", odd, [])
    assert server.asked == []


async def test_a_host_without_a_compute_host_is_not_ready(server: AnswerServer, host: CmlHost) -> None:
    server.tell("system_stats", says({"computes": {}, "all": STATS["all"]}))
    with pytest.raises(NotReady):
        await host.stats()


async def test_what_cml_leaves_empty_is_no_error(server: AnswerServer, host: CmlHost) -> None:
    server.tell("nodes", says([NODE | {"tags": None, "operational": None}]))
    (node,) = (await host.all_nodes())["L1"]
    assert (node.tags, node.cpus, node.ram_mb, node.disk_gb) == ((), None, None, None)
    bare = {"id": "external_connector", "general": {"nature": "external_connector"}, "sim": {"ram": None}}
    server.tell("simplified_node_definitions", says([bare]))
    (kind,) = await host.node_definitions()
    assert (kind.cpus, kind.ram_mb, kind.boot_disk_gb, kind.image_definitions) == (0, 0, 0, ())
