"""Where webhooks may be sent, and how their requests are signed. Pure: no name is looked up here.

`control.delivery.sinks` checks a URL before it is stored. `providers.local.outbound` checks it again before sending,
and checks every address before a socket opens, because a URL alone does not show where its name leads. Signatures
follow the Standard Webhooks scheme: `control.delivery.formats` signs, `verify` is for receivers. A request carries
`webhook-id` (the event's id, the same for every attempt), `webhook-timestamp` (seconds, of this attempt) and
`webhook-signature`: one `v1,BASE64` per secret in use, separated by spaces, each the HMAC-SHA256 of
`id.timestamp.body`. A secret is `whsec_` and base64, or any other text, used as it is.
"""

import base64
import hmac
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, NoReturn

from lcm.model.access.secret import Secret
from lcm.model.base.errors import Fault, Invalid, Refused
from lcm.model.base.resource import shorten_text

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL_LENGTH: Final = 2048
MAX_HOST_LENGTH: Final = 253
WEB_PORTS: Final = frozenset({80, 443})
UNPRIVILEGED_PORTS: Final = range(1024, 65536)
"""Below these only the web ports are allowed, so nobody can make us talk to, say, a mail server."""

_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)"
    r"(?P<target>(?:/[\w\-.~%!$&'()*+,;=:@/]*)?(?:\?[\w\-.~%!$&'()*+,;=:@/?]*)?)",
    re.ASCII,
)
_AUTHORITY: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMERIC_LABEL: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_LOCALHOST: Final = re.compile(r"(.+\.)?localhost")
_LOOPBACK: Final = (ip_address("127.0.0.1"), ip_address("::1"))

_NOT_GLOBAL_4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network, and the unspecified address
            "10.0.0.0/8",
            "100.64.0.0/10",  # carriers' NAT; some clouds keep metadata here
            "127.0.0.0/8",
            "168.63.129.16/32",  # looks public, but is Azure's own service on every Azure machine
            "169.254.0.0/16",  # link-local; clouds' metadata
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocol assignments; one cloud's metadata
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, broadcast
        ),
    )
)
_GLOBAL_6: Final = IPv6Network("2000::/3")
_NOT_GLOBAL_6: Final = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, Teredo among them
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4 carries any IPv4 address
            "3ffe::/16",  # 6bone, returned to IANA
            "3fff::/20",  # documentation
        ),
    )
)
_NAT64: Final = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class WebhookTarget:
    """A parsed webhook URL. The parts that were checked are the parts that are used."""

    scheme: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        """Return the origin only: some receivers' URLs hold a secret in the path."""
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """Host and port as in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class WebhookPolicy:
    """What the operator lets webhooks reach besides the public internet over https."""

    networks: tuple[Network, ...] = ()
    plain_http: bool = False

    def permits(self, address: Address) -> bool:
        """Return True if a connection to this address may be opened."""
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        plain = mapped or address
        return any(plain in network for network in self.networks) or _is_global(plain)

    def check_addresses(self, answers: Sequence[str]) -> list[Address]:
        """Parse the addresses that a name resolved to. Raises Refused if any of them is forbidden.

        One forbidden address is enough: a mixture of good and bad ones is how names are abused.
        """
        addresses = [_parse_address(answer) for answer in answers]
        for address in addresses:
            if not self.permits(address):
                raise Refused(f"{address} is not an address that webhooks may reach; WEBHOOK_NETWORKS allows networks")
        return addresses

    def parse_url(self, url: str) -> WebhookTarget:
        """Parse a URL into its parts, or raise Invalid.

        The error does not contain the URL, which may hold a secret.
        """
        if len(url) > MAX_URL_LENGTH:
            _refuse("too long", f"use at most {MAX_URL_LENGTH} characters")
        found = _URL.fullmatch(url)
        if found is None:
            _refuse("not a URL that we can send to", "write https://host/path, without spaces or fragments")
        scheme = found["scheme"].lower()
        if scheme not in _DEFAULT_PORTS:
            _refuse(f"{scheme} is not the web", "write https://…")
        if scheme == "http" and not self.plain_http:
            remedy = "use https, or allow http with WEBHOOK_HTTP_ALLOWED=true in the settings of the API"
            _refuse("plain http shows everybody the events", remedy)
        host, port = _parse_authority(found["authority"], _DEFAULT_PORTS[scheme])
        self._check_host(host)
        target = found["target"]
        return WebhookTarget(scheme, host, port, target if target.startswith("/") else f"/{target}")

    def _check_host(self, host: str) -> None:
        """Refuse a host that is known to be forbidden without a look-up."""
        if _LOCALHOST.fullmatch(host):
            known: Sequence[Address] = _LOOPBACK
        else:
            known = [ip_address(host)] if is_address(host) else []
        if known and not any(map(self.permits, known)):
            remedy = "use one on the public internet, or add its network to WEBHOOK_NETWORKS in the settings of the API"
            _refuse(f"{host} is not an address that webhooks may reach", remedy)


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse the networks that an operator allows. Invalid lists every text that is not a network."""
    found, faults = list[Network](), list[Fault]()
    for text in texts:
        try:
            found.append(ip_network(text.strip()))
        except ValueError as error:
            faults.append(Fault("networks", str(error), "write for example 10.20.0.0/16"))
    if faults:
        raise Invalid(*faults)
    return tuple(found)


def is_address(text: str) -> bool:
    """Return True if a host is an IP address in its usual form, so that there is nothing to look up."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _parse_authority(authority: str, default: int) -> tuple[str, int]:
    if "@" in authority:
        _refuse("it carries a user or a password", "refer to a secret instead")
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        _refuse("it names no host", "use a plain ASCII name (xn--… for others) or an IP address, and a port if need be")
    port = int(found["port"]) if found["port"] else default
    if port not in WEB_PORTS and port not in UNPRIVILEGED_PORTS:
        _refuse(f"port {port} is not for webhooks", "use 443, 80, or 1024 and above")
    return _normalize_host(found["host"].lower()), port


def _normalize_host(written: str) -> str:
    """Return a host in the one form in which it is looked up, shown to TLS and compared."""
    if written.startswith("["):
        if ":" not in written or not is_address(written[1:-1]):
            _refuse("what stands in brackets is no IPv6 address", "write for example [2606:4700::1111]")
        return str(ip_address(written[1:-1]))
    host = written.removesuffix(".")
    if _NUMERIC_LABEL.fullmatch(host.rpartition(".")[2]) and not is_address(host):
        # To a resolver 127.1, 0x7f000001, 017700000001 and 2130706433 are all the same address.
        _refuse("an IP address in an odd form", "write four decimal numbers")
    if len(host) > MAX_HOST_LENGTH or not all(map(_LABEL.fullmatch, host.split("."))):
        _refuse("not a host name", "use letters, digits and hyphens between dots")
    return host


def _parse_address(answer: str) -> Address:
    """Parse a resolver's answer. One with a scope is refused: it is valid on one link only."""
    try:
        address = ip_address(answer)
    except ValueError as error:
        raise Refused(f"a resolver answered with {shorten_text(answer, 60)!r}, which is no address") from error
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise Refused(f"{address} is not an address that webhooks may reach")
    return address


def _is_global(address: Address) -> bool:
    """Return True if the address is on the public internet.

    We keep our own tables, because Python's differ from version to version.
    """
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_GLOBAL_4)
    if address in _NAT64:
        return _is_global(IPv4Address(int(address) & 0xFFFF_FFFF))
    return address in _GLOBAL_6 and not any(address in network for network in _NOT_GLOBAL_6)


def _refuse(problem: str, remedy: str) -> NoReturn:
    raise Invalid(Fault("url", problem, remedy))


ID_HEADER: Final = "webhook-id"
TIMESTAMP_HEADER: Final = "webhook-timestamp"
SIGNATURE_HEADER: Final = "webhook-signature"
TOLERANCE: Final = timedelta(minutes=5)

_VERSION_PREFIX: Final = "v1,"
_BASE64_PREFIX: Final = "whsec_"
_SECONDS: Final = re.compile(r"[0-9]{1,11}", re.ASCII)


def sign_request(event_id: str, body: bytes, secrets: Iterable[Secret], *, now: datetime) -> dict[str, str]:
    """Return the headers of one attempt. Without secrets there is no signature header."""
    seconds = str(int(now.timestamp()))
    headers = {ID_HEADER: event_id, TIMESTAMP_HEADER: seconds}
    signatures = [_VERSION_PREFIX + _compute_mac(secret, event_id, seconds, body) for secret in secrets]
    return {**headers, SIGNATURE_HEADER: " ".join(signatures)} if signatures else headers


def verify(headers: Mapping[str, str], body: bytes, secrets: Iterable[Secret], *, now: datetime) -> str:
    """Return the id of a request that was signed recently with one of the secrets; else raise Refused.

    Header names may be in any case. Remember recent ids: an event may arrive more than once.
    """
    found = {name.lower(): value for name, value in headers.items()}
    event_id, seconds, signatures = (found.get(name, "") for name in (ID_HEADER, TIMESTAMP_HEADER, SIGNATURE_HEADER))
    if not (event_id and _SECONDS.fullmatch(seconds)):
        raise Refused("the request names no id, or no time")
    if abs(datetime.fromtimestamp(int(seconds), UTC) - now) > TOLERANCE:
        raise Refused("the request was signed too long ago, or by a wrong clock")
    given = [one for one in signatures.split() if one.startswith(_VERSION_PREFIX)]
    wanted = [_VERSION_PREFIX + _compute_mac(secret, event_id, seconds, body) for secret in secrets]
    # Compare all of them, so that the time taken reveals nothing.
    same = [hmac.compare_digest(mine.encode(), theirs.encode(errors="replace")) for mine in wanted for theirs in given]
    if not any(same):
        raise Refused("no secret that we know made this signature")
    return event_id


def _compute_mac(secret: Secret, event_id: str, seconds: str, body: bytes) -> str:
    content = f"{event_id}.{seconds}.".encode(errors="replace") + body
    return base64.b64encode(hmac.digest(_decode_secret(secret), content, "sha256")).decode()


def _decode_secret(secret: Secret) -> bytes:
    text = secret.reveal()
    try:
        key = (
            base64.b64decode(text.removeprefix(_BASE64_PREFIX), validate=True)
            if text.startswith(_BASE64_PREFIX)
            else text.encode()
        )
    except ValueError as error:
        raise Invalid(Fault("secret", "what follows whsec_ is not base64", "make a new one")) from error
    if not key:
        raise Invalid(Fault("secret", "it is empty, so that anybody could sign", "make a new one"))
    return key
