"""Behind proxies: whose address counts, and for what."""

import pytest

from harness.api_world import opened, stock
from harness.asgi import AsgiTransport
from harness.plane_world import NOW
from lcm.api.http.limits import ApiLimits
from lcm.compose.api import connection_limits
from lcm.model.access.address import TrustedProxies, address_block, is_loopback
from lcm.model.access.webhook import parse_networks
from lcm.settings.load import Settings
from lcm.sim.time.loop import run
from lcm.system.clock import open_file_limit

OURS = TrustedProxies(parse_networks(["10.0.0.0/8", "fd00::/8"]))
STANDARD = TrustedProxies(parse_networks(["10.0.0.0/8"]), rfc7239=True)


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "client"),
    [
        ("192.0.2.9", "1.2.3.4", "192.0.2.9"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.7", "203.0.113.7"),
        ("10.0.0.1", "1.1.1.1, 203.0.113.7, 10.0.0.2", "203.0.113.7"),
        ("10.0.0.1", "203.0.113.7:4711", "203.0.113.7"),
        ("fd00::1", "::ffff:203.0.113.7", "203.0.113.7"),
        ("10.0.0.1", "what, ever", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.3, 10.0.0.2", "10.0.0.3"),
        ("10.0.0.1", "10.0.0.2," * 5000, "10.0.0.1"),
    ],
)
def test_the_client_is_the_last_one_that_a_proxy_of_ours_did_not_add(
    peer: str, forwarded_for: str, client: str
) -> None:
    assert OURS.find_client(peer, "for=9.9.9.9", forwarded_for) == client


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.9", "for=1.2.3.4", "192.0.2.9"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "for=203.0.113.7;proto=https", "203.0.113.7"),
        ("10.0.0.1", 'For="[2001:db8::7]:4711", for=10.0.0.2', "2001:db8::7"),
        ("10.0.0.1", "for=_hidden", "10.0.0.1"),
    ],
)
def test_proxies_that_write_the_header_of_the_standard_are_understood(peer: str, forwarded: str, client: str) -> None:
    assert STANDARD.find_client(peer, forwarded, "9.9.9.9") == client


def test_the_nearest_proxy_says_how_it_was_asked() -> None:
    assert STANDARD.find_scheme("for=a;proto=http, for=b;proto=HTTPS", "http") == "https"
    assert STANDARD.find_scheme("for=a", "https") == ""
    assert OURS.find_scheme("for=a;proto=http", "http, https") == "https"
    assert OURS.find_scheme("for=a;proto=https", "") == ""


def test_loopback_and_blocks_of_addresses() -> None:
    assert [is_loopback(one) for one in ("127.0.0.1", "::1", "[::1]", "localhost", "0.0.0.0", "::", "example.org")] == [
        *(True, True, True, True),
        *(False, False, False),
    ]
    assert address_block("2001:db8::1") == address_block("2001:db8::ffff") != address_block("2001:db8:0:1::1")
    assert address_block("::ffff:192.0.2.1") == "192.0.2.1"


def test_those_behind_one_proxy_are_told_apart_by_limits_and_audit() -> None:
    async def main() -> None:
        limits = ApiLimits(requests_per_second=2, burst=3)
        async with opened(limits=limits, proxies=OURS) as desk:
            await stock(desk)
            desk._client._transport = AsgiTransport(desk.api, address="10.0.0.1")

            async def asked(address: str) -> int:
                return (await desk.ask("", "GET", "/api/whoami", headers={"X-Forwarded-For": address})).status_code

            assert [await asked("203.0.113.7") for _ in range(4)] == [401, 401, 401, 429]
            assert [await asked("203.0.113.8") for _ in range(3)] == [401, 401, 401]
            # Most proxies write the second of these only, and leave what a client says in the first as it is.
            headers = {"Forwarded": "for=198.51.100.66", "X-Forwarded-For": "203.0.113.9"}
            told = await desk.ask("otto", "POST", "/api/workers/ccna-worker-1/pause", json={}, headers=headers)
            assert told.status_code == 200
            found = await desk.done("root", "GET", "/api/audit?who=otto")
            assert [one["address"] for one in found["items"]] == ["203.0.113.9"]

    run(main, start=NOW)


def test_connections_leave_files_to_everything_else_and_one_address_leaves_some_to_others() -> None:
    files = open_file_limit()
    limits = connection_limits(Settings(max_connections=1_000_000, connections_per_address=1_000_000), OURS)
    assert files // 2 <= limits.most < files
    assert limits.per_address == limits.most // 2
    simulated = connection_limits(Settings(max_connections=1_000_000, cloud="simulated"), OURS)
    assert 0 < simulated.most < limits.most
    assert connection_limits(Settings(max_connections=50), OURS).most == 50
    assert limits.is_proxy("10.1.2.3")
    assert not limits.is_proxy("192.0.2.1")


@pytest.mark.parametrize("name", ["Authorization", "X-API-Key", "Host", "Lcm-Actor", "If-Match", "Idempotency-Key"])
async def test_a_header_that_must_be_one_and_is_two_is_refused(name: str) -> None:
    async with opened() as desk:
        headers = [("Authorization", f"Bearer {desk.secrets['ada']}")] * (name != "Authorization")
        twice = [(name, f"Bearer {desk.secrets[who]}") for who in ("ada", "root")]
        answer = await desk._client.get("/api/whoami", headers=[*headers, *twice])
        assert (answer.status_code, answer.json()["reason"]) == (400, "Ambiguous")


async def test_answers_are_no_pages_for_browsers() -> None:
    async with opened() as desk:
        for where, status in (("/api/whoami", 200), ("/api/nothing", 404), ("/api/audit", 403)):
            answer = await desk.ask("ada", "GET", where)
            assert answer.status_code == status
            assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["x-content-type-options"] == "nosniff"
