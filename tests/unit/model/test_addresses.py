"""Which addresses webhooks may reach, and which URLs are taken."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcm.model.access.webhook import MAX_URL_LENGTH, WebhookPolicy, WebhookTarget, parse_networks
from lcm.model.base.errors import Invalid, Refused

PUBLIC = WebhookPolicy()
OPEN = WebhookPolicy(networks=parse_networks(["127.0.0.0/8", "::1/128", "10.1.0.0/16", "fd00:1::/32"]), plain_http=True)


def words(text: str) -> list[str]:
    return text.split()


FORBIDDEN = words("""
    0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.255.255.254
    168.63.129.16 169.254.0.1 169.254.169.254 169.254.170.2 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.192 192.0.2.1
    192.88.99.1 192.168.0.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1
    255.255.255.255
    :: ::1 ::7f00:1 ::10.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:10.0.0.1 ::ffff:0:127.0.0.1
    64:ff9b::127.0.0.1 64:ff9b::10.0.0.1 64:ff9b::169.254.169.254 64:ff9b:1::808:808 100::1 100:0:0:1::1
    2001::1 2001:0:7f00:1::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1:: 2002:a9fe:a9fe:: 2002:808:808::
    3ffe::1 3fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 febf::1 fec0::1 feff::1 ff02::1 ff0e::1
""")
REACHABLE = words("""
    1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 168.63.129.17
    169.253.255.255 172.15.255.255 172.32.0.0 192.0.1.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0
    223.255.255.255 ::ffff:8.8.8.8 64:ff9b::8.8.8.8 2001:200::1 2606:4700::1111 2a00:1450::1
""")
ODD_HOSTS = [
    *words("127.0.0.1 127.1 0x7f000001 0x7F.1 017700000001 2130706433 0 127.0.0.1. 127.0.0.01 1.2.3.256 1.2.3.4.5"),
    *words("0177.0.0.1 0x7f.0x0.0x0.0x1 169.254.169.254 100.64.0.1 10.0.0.1 [8.8.8.8] [localhost] [::1 ::1 [] [1:2]"),
    *words(
        "[::1] [::] [::ffff:169.254.169.254] [::ffff:7f00:1] [fe80::1] [fe80::1%25eth0] [fe80::1%1] [64:ff9b::7f00:1]"
    ),
    *words("[2002:7f00:1::] localhost LOCALHOST localhost. a.localhost a.LocalHost. %6c%6fcalhost 127%2e0.0.1"),
    *("127\u30020\u30020\u30021", "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460", "\uff11\uff12\uff17.0.0.1"),
    *("\uff4cocalhost", "b\u00fccher.example"),
    *words("user@h.example user:pass@h.example :@h.example @h.example 8.8.8.8@127.0.0.1 h.example\\@127.0.0.1"),
    *words("h.example: h.example:0 h.example:22 h.example:25 h.example:1023 h.example:65536 h.example:99999"),
    *words("h.example:x h.example:+80 h.example:-1 . .. a..b .a -a.example a-.example h^x {credential} ~"),
    *("", "h ost", "h\tost", "h\n.example", " h.example", "h.example ", "h.example\x00"),
    *(f"{'a' * 64}.example", ".".join(["a" * 60] * 5)),
]


@pytest.mark.parametrize("address", FORBIDDEN)
def test_what_the_internet_does_not_lead_to_is_forbidden(address: str) -> None:
    assert not PUBLIC.permits(ip_address(address))
    with pytest.raises(Refused):
        PUBLIC.check_addresses([address])


@pytest.mark.parametrize("address", REACHABLE)
def test_what_the_internet_leads_to_is_permitted(address: str) -> None:
    assert PUBLIC.permits(ip_address(address))
    assert PUBLIC.check_addresses([address]) == [ip_address(address)]


@given(st.integers(0, 2**32 - 1).map(IPv4Address) | st.integers(0, 2**128 - 1).map(IPv6Address))
def test_nothing_is_permitted_that_python_knows_as_not_global(address: IPv4Address | IPv6Address) -> None:
    if PUBLIC.permits(address):
        plain = (isinstance(address, IPv6Address) and address.ipv4_mapped) or address
        assert plain.is_global
        assert not any([plain.is_multicast, plain.is_private, plain.is_reserved, plain.is_link_local])


@given(st.integers(0, 2**32 - 1).map(IPv4Address))
def test_the_ipv6_forms_of_an_ipv4_address_fare_no_better(address: IPv4Address) -> None:
    number = int(address)
    mapped, nat64 = IPv6Address(0xFFFF << 32 | number), IPv6Address((0x64FF9B << 96) | number)
    assert PUBLIC.permits(mapped) is PUBLIC.permits(nat64) is PUBLIC.permits(address)
    others = [IPv6Address(number), IPv6Address(0xFFFF << 48 | number), IPv6Address(0x2002 << 112 | number << 80)]
    assert not any(map(PUBLIC.permits, others))


@pytest.mark.parametrize("answers", [["8.8.8.8", "10.0.0.1"], ["::1", "8.8.8.8"], ["8.8.8.8", "::ffff:127.0.0.1"]])
def test_one_forbidden_answer_spoils_all(answers: list[str]) -> None:
    with pytest.raises(Refused, match="may reach"):
        PUBLIC.check_addresses(answers)


@pytest.mark.parametrize("answer", ["fe80::1%eth0", "2606:4700::1111%2", "localhost", "", "127.1", "8.8.8.8:80"])
def test_answers_with_a_scope_or_of_another_form_are_refused(answer: str) -> None:
    for reach in (PUBLIC, OPEN):
        with pytest.raises(Refused):
            reach.check_addresses([answer])


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.1.2.3", "::ffff:10.1.2.3", "fd00:1::5", "8.8.8.8"])
def test_networks_that_the_operator_allows_are_permitted(address: str) -> None:
    assert OPEN.permits(ip_address(address))


@pytest.mark.parametrize("address", ["10.2.0.1", "169.254.169.254", "fd00:2::1", "64:ff9b::10.1.2.3", "2002:a01:203::"])
def test_only_those_networks_are(address: str) -> None:
    assert not OPEN.permits(ip_address(address))


def test_bad_networks_are_named_all_at_once() -> None:
    with pytest.raises(Invalid) as caught:
        parse_networks(["10.0.0.0/8", "10.0.0.1/8", "everything"])
    assert len(caught.value.faults) == 2


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://hooks.example.org/lcm", WebhookTarget("https", "hooks.example.org", 443, "/lcm")),
        ("HTTPS://Hooks.Example.ORG./lcm", WebhookTarget("https", "hooks.example.org", 443, "/lcm")),
        ("https://hooks.example.org", WebhookTarget("https", "hooks.example.org", 443, "/")),
        ("https://hooks.example.org?a=b", WebhookTarget("https", "hooks.example.org", 443, "/?a=b")),
        ("https://h.example:8443/a/b?c=d&e=%20", WebhookTarget("https", "h.example", 8443, "/a/b?c=d&e=%20")),
        ("https://xn--bcher-kva.example/", WebhookTarget("https", "xn--bcher-kva.example", 443, "/")),
        ("https://8.8.8.8/x", WebhookTarget("https", "8.8.8.8", 443, "/x")),
        ("https://[2606:4700:0::1111]:444/", None),
        ("https://[2606:4700:0::1111]:4443/", WebhookTarget("https", "2606:4700::1111", 4443, "/")),
        ("https://h.example/@x:y", WebhookTarget("https", "h.example", 443, "/@x:y")),
    ],
)
def test_a_url_is_taken_apart(url: str, target: WebhookTarget | None) -> None:
    if target is None:
        with pytest.raises(Invalid, match="port"):
            PUBLIC.parse_url(url)
    else:
        assert PUBLIC.parse_url(url) == target


@pytest.mark.parametrize("host", ODD_HOSTS)
def test_hosts_that_are_forbidden_or_odd_are_refused(host: str) -> None:
    with pytest.raises(Invalid) as caught:
        PUBLIC.parse_url(f"https://{host}/hook")
    assert caught.value.faults[0].path == "url"


@pytest.mark.parametrize(
    "url",
    [
        *("http://h.example/", "ftp://h.example/", "file:///etc/passwd", "gopher://h.example/", "https:h.example"),
        *("https:/h.example", "//h.example", "h.example", "", "https://", "https:///x", "javascript:alert(1)"),
        *("https://h.example/#top", "https://h.example/a b", "https://h.example/\r\nX: y", "https://h.example/a\\b"),
        *("https://h.example/\u00fc", "https://h.example/<x>", 'https://h.example/"', "\thttps://h.example/"),
        *("https://h.example/\n", f"https://h.example/{'a' * MAX_URL_LENGTH}"),
    ],
)
def test_urls_that_are_not_plain_https_are_refused(url: str) -> None:
    with pytest.raises(Invalid):
        PUBLIC.parse_url(url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/x", "http://localhost/x", "https://[::1]:8443/", "http://a.example/"]
)
def test_configuration_opens_http_and_networks(url: str) -> None:
    assert OPEN.parse_url(url).host


def test_a_target_shows_its_origin_only() -> None:
    target = PUBLIC.parse_url("https://hooks.example.org:8443/services/very-secret?token=hush")
    assert str(target) == "https://hooks.example.org:8443"
    assert str(PUBLIC.parse_url("https://[2606:4700::1111]/x")) == "https://[2606:4700::1111]"


@pytest.mark.parametrize("url", ["https://user:hush@h.example/", "https://h.example/hush#x", "http://h.example/hush"])
def test_an_error_does_not_repeat_the_url(url: str) -> None:
    with pytest.raises(Invalid) as caught:
        PUBLIC.parse_url(url)
    assert "hush" not in str(caught.value)
