"""Whatever CML, its proxy or the network answers, every verb ends in the right error, and never in "nothing there"."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime

import pytest

from harness.http_answers import PAGE, AnswerServer, Say, refusal, says
from harness.lab_hosts import CANNED_LAB, DOMINFO, GOOD, NODE, STATS, TOKEN, host_of, served
from lcm.model.base.errors import LcmError, Throttled, Unreachable
from lcm.providers.cml.host import CmlHost
from lcm.providers.protocols.labhost import CmlAnswerError, NotReady

BODY_BYTES = 300_000
SINCE = datetime(2026, 1, 1, tzinfo=UTC)
VAST = {"stats": {"dominfo": DOMINFO | {"allocated_memory": 1.7e308}}}

Verb = Callable[[CmlHost], Awaitable[object]]
Bad = dict[str, tuple[Say, type[LcmError] | tuple[type[LcmError], ...]]]
SIGN_IN = "auth_extended"
DEEP = b"[" * 100_000 + b"]" * 100_000
READS: list[tuple[str, Verb]] = [
    ("system_information", lambda host: host.system()),
    ("system_health", lambda host: host.health()),
    ("system_stats", lambda host: host.stats()),
    ("system/maintenance_mode", lambda host: host.maintenance()),
    ("system/notices", lambda host: host.maintenance()),
    ("licensing", lambda host: host.licence()),
    ("licensing", lambda host: host.register(product="CML_Enterprise", token=TOKEN)),
    ("licensing", lambda host: host.deregister()),
    ("labs", lambda host: host.labs()),
    ("labs/L1", lambda host: host.labs()),
    ("labs", lambda host: host.find("exam-1")),
    ("labs/L1", lambda host: host.find("exam-1")),
    ("labs/L1", lambda host: host.look("L1")),
    ("labs", lambda host: host.ensure("exam-1", "lab: {}")),
    ("import", lambda host: host.ensure("exam-2", "lab: {}")),
    ("labs/L1/check_if_converged", lambda host: host.converged("L1")),
    ("labs/L1/state", lambda host: host.remove("L1")),
    ("labs/L1/lab_element_state", lambda host: host.elements("L1")),
    ("labs/L1/nodes", lambda host: host.nodes("L1")),
    ("labs/L1/nodes/N1/interfaces", lambda host: host.nodes("L1")),
    ("labs/L1/layer3_addresses", lambda host: host.nodes("L1")),
    ("nodes", lambda host: host.all_nodes()),
    ("labs/L1/simulation_stats", lambda host: host.simulation_stats("L1")),
    ("labs/L1/nodes", lambda host: host.topology("L1")),
    ("resource_pool_usage", lambda host: host.pools()),
    ("telemetry/events", lambda host: host.activity(since=SINCE)),
    ("simplified_node_definitions", lambda host: host.node_definitions()),
    (SIGN_IN, lambda host: host.sign_in()),
    (SIGN_IN, lambda host: host.labs()),
]
EFFECTS: list[tuple[str, Verb]] = [
    ("labs/L1/start", lambda host: host.start("L1")),
    ("labs/L1/stop", lambda host: host.stop("L1")),
    ("labs/L1/stop", lambda host: host.remove("L1")),
    ("labs/L1/nodes/N1", lambda host: host.set_tags("L1", "N1", ["serial:5002"])),
    ("labs/L1/nodes/N1/extract_configuration", lambda host: host.topology("L1")),
    ("labs/L1/download", lambda host: host.topology("L1")),
    ("licensing/registration", lambda host: host.register(product="CML_Enterprise", token=TOKEN)),
    ("licensing/product_license", lambda host: host.register(product="CML_Personal", token=TOKEN)),
]
OUTAGES: Bad = {
    "an internal error": (refusal(500, "The API encountered an unexpected error."), Unreachable),
    "a proxy's error page": (Say(500, b"<html>", "text/html"), Unreachable),
    "not ready": (Say(502, b"<html>Bad Gateway</html>", "text/html"), NotReady),
    "unavailable": (Say(503, b""), Unreachable),
    "half an answer": (Say(200, b'["L1", "L2"]', cut=5), Unreachable),
    "a head without a body": (Say(200, b'["L1", "L2"]', cut=0), Unreachable),
    "a web page": (PAGE, Unreachable),
    "a proxy's 404": (Say(404, b"<html>Not Found</html>", "text/html"), Unreachable),
    "another program's 404": (says({"detail": "Not Found"}, 404), Unreachable),
    "a proxy's 403": (Say(403, b"<html>Forbidden</html>", "text/html"), Unreachable),
    "a redirect": (Say(302, b"", headers={"Location": "/login"}), Unreachable),
    "too many requests": (Say(429, b"slow down", "text/plain", {"Retry-After": "7"}), Throttled),
    "an endless answer": (Say(200, endless=True), CmlAnswerError),
    "a refusal that is not UTF-8": (Say(404, b'{"code": 404, "description": "Lab not found: \xff"}'), Unreachable),
    "a refusal nested too deeply": (Say(404, b'{"code": 404, "description": "", "more": ' + DEEP + b"}"), Unreachable),
}
ODD: Bad = {
    "a number": (says(17), CmlAnswerError),
    "null": (says(None), CmlAnswerError),
    "a list of numbers": (says([1, 2]), CmlAnswerError),
    "broken JSON": (Say(200, b"}{"), Unreachable),
    "nothing": (Say(200, b""), Unreachable),
    "text that is not UTF-8": (Say(200, b'["\xff"]'), (CmlAnswerError, Unreachable)),
    "a name that is not UTF-8": (Say(200, b'{"\xff": 1}'), (CmlAnswerError, Unreachable)),
    "lists nested too deeply": (Say(200, DEEP), (CmlAnswerError, Unreachable)),
    "a field nested too deeply": (Say(200, b'{"more": ' + DEEP + b"}"), (CmlAnswerError, Unreachable)),
}


@pytest.fixture
async def server() -> AsyncIterator[AnswerServer]:
    async with served() as server:
        yield server


def verbs(*groups: list[tuple[str, Verb]]) -> pytest.MarkDecorator:
    cases = [pytest.param(path, verb, id=f"{path}-{n}") for group in groups for n, (path, verb) in enumerate(group)]
    return pytest.mark.parametrize(("path", "verb"), cases)


async def fails(server: AnswerServer, path: str, verb: Verb, bad: Bad) -> AsyncIterator[tuple[str, LcmError]]:
    """Answer a verb in each of these ways, and tell how it fails."""
    async with host_of(server.url, body_bytes=BODY_BYTES) as signed_in:
        await signed_in.sign_in()
        for name, (say, error) in bad.items():
            server.tell(path, say)
            async with host_of(server.url, body_bytes=BODY_BYTES) as fresh:
                with pytest.raises(error) as raised:
                    await verb(fresh if path == SIGN_IN else signed_in)
            yield name, raised.value


@verbs(READS, EFFECTS)
async def test_no_bad_answer_looks_like_an_answer(server: AnswerServer, path: str, verb: Verb) -> None:
    async for name, error in fails(server, path, verb, OUTAGES):
        assert path in str(error) or isinstance(error, NotReady), name


@verbs(READS)
async def test_an_answer_of_the_wrong_form_says_what_was_expected(server: AnswerServer, path: str, verb: Verb) -> None:
    async for name, error in fails(server, path, verb, ODD):
        assert path in str(error), name
        assert "xpected" in str(error) or "missing" in str(error) or isinstance(error, Unreachable), name


@pytest.mark.parametrize(
    ("path", "body", "verb"),
    [
        ("system_information", b'{"version": "\xff", "ready": true}', lambda host: host.system()),
        ("system_information", b'{"version": "", "ready": true, "z": ' + DEEP + b"}", lambda host: host.system()),
        ("labs", b'["\xff"]', lambda host: host.labs()),
        ("labs/L1/download", b'"lab: \xff"', lambda host: host.topology("L1")),
        (SIGN_IN, b'{"token": "\xff", "admin": true}', lambda host: host.sign_in()),
    ],
)
async def test_what_is_no_json_is_no_answer_of_cml(server: AnswerServer, path: str, body: bytes, verb: Verb) -> None:
    server.tell(path, Say(200, body))
    async with host_of(server.url) as host:
        with pytest.raises(Unreachable, match="not JSON"):
            await verb(host)


@pytest.mark.parametrize(
    ("path", "value", "verb"),
    [
        ("system_stats", STATS | {"computes": dict.fromkeys("CD", VAST)}, lambda host: host.stats()),
        ("nodes", [NODE | {"operational": {"boot_disk_size": 10**400}}], lambda host: host.all_nodes()),
        (
            "simplified_node_definitions",
            [{"id": "x", "general": {"nature": ""}, "sim": {"data_volume": 10**400}}],
            lambda host: host.node_definitions(),
        ),
    ],
)
async def test_a_number_beyond_all_measure_is_not_believed(
    server: AnswerServer, path: str, value: object, verb: Verb
) -> None:
    server.tell(path, says(value))
    async with host_of(server.url) as host:
        with pytest.raises(CmlAnswerError):
            await verb(host)


async def test_a_moment_beyond_the_calendar_is_its_first_or_last(server: AnswerServer) -> None:
    early, late = "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"
    server.tell("labs/L1", says(CANNED_LAB | {"created": early, "modified": late}))
    async with host_of(server.url) as host:
        lab = await host.look("L1")
    assert lab is not None
    assert lab.created_at == datetime.min.replace(tzinfo=UTC)
    assert lab.modified_at == datetime.max.replace(tzinfo=UTC)


async def test_an_id_that_leads_elsewhere_is_not_followed(server: AnswerServer) -> None:
    cases: list[tuple[str, object, Verb]] = [
        ("labs", ["L1", "../users"], lambda host: host.labs()),
        ("import", {"id": ".."}, lambda host: host.ensure("exam-2", "lab: {}")),
        ("labs/L1/nodes", [NODE | {"id": ".."}], lambda host: host.nodes("L1")),
        ("labs/L1/nodes", [NODE | {"lab_id": "L1/.."}], lambda host: host.nodes("L1")),
    ]
    async with host_of(server.url) as host:
        for path, value, verb in cases:
            server.tell(path, says(value))
            with pytest.raises(CmlAnswerError):
                await verb(host)
            server.tell(path, says(GOOD[path]))
    assert not [one.path for one in server.asked if "users" in one.path or ".." in one.path]


async def test_a_call_without_an_answer_ends() -> None:
    async def hang(path: str, verb: Verb) -> None:
        async with served() as server:
            server.tell(path, Say(hang=True))
            async with host_of(server.url, question_seconds=0.5, effect_seconds=0.5) as host:
                with pytest.raises(Unreachable):
                    await verb(host)

    await asyncio.gather(*(hang(path, verb) for path, verb in READS + EFFECTS))
