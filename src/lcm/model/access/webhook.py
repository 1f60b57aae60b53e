"""Which addresses outside a webhook may reach, and how its URL must be written. Pure; nothing is looked up here.

`control.sinks` holds a URL against it before it is stored, `providers.outbound` again before anything is sent, and
every address before a socket opens: a URL alone cannot tell where its name will lead.
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

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

LONGEST_URL: Final = 2048
LONGEST_HOST: Final = 253
SAFE_PORTS: Final = frozenset({80, 443})
FREE_PORTS: Final = range(1024, 65536)
"""Below these, only the ports of the web: nobody makes us talk to a mail server."""

_PORTS: Final = {"https": 443, "http": 80}
_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)"
    r"(?P<target>(?:/[\w\-.~%!$&'()*+,;=:@/]*)?(?:\?[\w\-.~%!$&'()*+,;=:@/?]*)?)",
    re.ASCII,
)
_AUTHORITY: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII)
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_LOCALHOST: Final = re.compile(r"(.+\.)?localhost")
_LOOPBACK: Final = (ip_address("127.0.0.1"), ip_address("::1"))

_NOT_GLOBAL_4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network, and "any address of mine"
            "10.0.0.0/8",
            "100.64.0.0/10",  # carriers' NAT; some clouds keep metadata here
            "127.0.0.0/8",
            "168.63.129.16/32",  # looks public, but is Azure's own on every machine there
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
            "3ffe::/16",  # given back
            "3fff::/20",  # documentation
        ),
    )
)
_NAT64: Final = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads, in the parts in which it is used: what was checked is what is sent."""

    scheme: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        """Show the origin only: some receivers' URLs hold a secret in the path."""
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """Host and port as a Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Reach:
    """What the operator lets webhooks reach besides the public internet over https."""

    networks: tuple[Network, ...] = ()
    plain_http: bool = False

    def permits(self, address: Address) -> bool:
        """Tell whether a connection to this address may be opened."""
        plain = _plain(address)
        return any(plain in network for network in self.networks) or _is_global(plain)

    def admit(self, answers: Sequence[str]) -> list[Address]:
        """Read what a name resolved to; Refused if any of it is forbidden, for a mixture is how names are abused."""
        addresses = [_address(answer) for answer in answers]
        for address in addresses:
            if not self.permits(address):
                raise Refused(f"{address} is not an address that webhooks may reach")
        return addresses

    def target(self, url: str) -> Target:
        """Take a URL apart, or raise Invalid; the URL itself, which may hold a secret, is not in the error."""
        if len(url) > LONGEST_URL:
            _refuse("too long", f"use at most {LONGEST_URL} characters")
        found = _URL.fullmatch(url)
        if found is None:
            _refuse("not a URL that we can send to", "write https://host/path, without spaces or fragments")
        scheme = found["scheme"].lower()
        if scheme not in _PORTS:
            _refuse(f"{scheme} is not the web", "write https://…")
        if scheme == "http" and not self.plain_http:
            _refuse("plain http shows everybody the events", "use https, or let the configuration allow http")
        host, port = _host_and_port(found["authority"], _PORTS[scheme])
        self._check_host(host)
        target = found["target"]
        return Target(scheme, host, port, target if target.startswith("/") else f"/{target}")

    def _check_host(self, host: str) -> None:
        """Refuse at once what needs no look-up to be known as forbidden."""
        if _LOCALHOST.fullmatch(host):
            known: Sequence[Address] = _LOOPBACK
        else:
            known = [ip_address(host)] if is_address(host) else []
        if known and not any(map(self.permits, known)):
            remedy = "use one on the public internet, or let the configuration allow its network"
            _refuse(f"{host} is not an address that webhooks may reach", remedy)


def networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read the networks that an operator allows; Invalid names every one that is none."""
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
    """Tell whether a host is an IP address in its usual form, so that there is nothing to look up."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _host_and_port(authority: str, default: int) -> tuple[str, int]:
    if "@" in authority:
        _refuse("it carries a user or a password", "refer to a secret instead")
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        _refuse("it names no host", "use a plain ASCII name (xn--… for others) or an IP address, and a port if need be")
    port = int(found["port"]) if found["port"] else default
    if port not in SAFE_PORTS and port not in FREE_PORTS:
        _refuse(f"port {port} is not for webhooks", "use 443, 80, or 1024 and above")
    return _host(found["host"].lower()), port


def _host(written: str) -> str:
    """Return a host as it is looked up, shown to TLS and compared."""
    if written.startswith("["):
        if ":" not in written or not is_address(written[1:-1]):
            _refuse("what stands in brackets is no IPv6 address", "write for example [2606:4700::1111]")
        return str(ip_address(written[1:-1]))
    host = written.removesuffix(".")
    if _NUMBER.fullmatch(host.rpartition(".")[2]) and not is_address(host):
        # 127.1, 0x7f000001, 017700000001 and 2130706433 are all one address to a resolver.
        _refuse("an IP address in an odd form", "write four decimal numbers")
    if len(host) > LONGEST_HOST or not all(map(_LABEL.fullmatch, host.split("."))):
        _refuse("not a host name", "use letters, digits and hyphens between dots")
    return host


def _address(answer: str) -> Address:
    """Read a resolver's answer. One with a scope is good on one link only."""
    try:
        address = ip_address(answer)
    except ValueError as error:
        raise Refused(f"a resolver answered with {answer[:60]!r}, which is no address") from error
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise Refused(f"{address} is not an address that webhooks may reach")
    return address


def _plain(address: Address) -> Address:
    """Undo the form in which IPv6 sockets show IPv4 addresses."""
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def _is_global(address: Address) -> bool:
    """Tell whether the public internet would lead there. Our own tables: Python's differ from version to version."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_GLOBAL_4)
    if address in _NAT64:
        return _is_global(IPv4Address(int(address) & 0xFFFF_FFFF))
    return address in _GLOBAL_6 and not any(address in network for network in _NOT_GLOBAL_6)


def _refuse(problem: str, remedy: str) -> NoReturn:
    raise Invalid(Fault("url", problem, remedy))


ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE: Final = timedelta(minutes=5)

_VERSION: Final = "v1,"
_ENCODED: Final = "whsec_"
_SECONDS: Final = re.compile(r"[0-9]{1,11}", re.ASCII)


def signed(event_id: str, body: bytes, secrets: Iterable[Secret], *, now: datetime) -> dict[str, str]:
    """Make the headers of one attempt; without secrets it has no signature."""
    seconds = str(int(now.timestamp()))
    headers = {ID: event_id, TIMESTAMP: seconds}
    signatures = [_VERSION + _mac(secret, event_id, seconds, body) for secret in secrets]
    return {**headers, SIGNATURE: " ".join(signatures)} if signatures else headers


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: Iterable[Secret],
    *,
    now: datetime,
    tolerance: timedelta = TOLERANCE,
) -> str:
    """Return the id of a request that one of the secrets signed a short while ago; Refused for any other.

    Names of headers count in any case. Keep the ids of late: an event may arrive more than once.
    """
    found = {name.lower(): value for name, value in headers.items()}
    event_id, seconds, signatures = (found.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    if not (event_id and _SECONDS.fullmatch(seconds)):
        raise Refused("the request names no id, or no time")
    if abs(datetime.fromtimestamp(int(seconds), UTC) - now) > tolerance:
        raise Refused("the request was signed too long ago, or by a wrong clock")
    given = [one for one in signatures.split() if one.startswith(_VERSION)]
    wanted = [_VERSION + _mac(secret, event_id, seconds, body) for secret in secrets]
    # All are compared, so that the time it takes tells nothing.
    same = [hmac.compare_digest(mine.encode(), theirs.encode(errors="replace")) for mine in wanted for theirs in given]
    if not any(same):
        raise Refused("no secret that we know made this signature")
    return event_id


def _mac(secret: Secret, event_id: str, seconds: str, body: bytes) -> str:
    content = f"{event_id}.{seconds}.".encode(errors="replace") + body
    return base64.b64encode(hmac.digest(_key(secret), content, "sha256")).decode()


def _key(secret: Secret) -> bytes:
    text = secret.reveal()
    try:
        key = (
            base64.b64decode(text.removeprefix(_ENCODED), validate=True) if text.startswith(_ENCODED) else text.encode()
        )
    except ValueError as error:
        raise Invalid(Fault("secret", "what follows whsec_ is not base64", "make a new one")) from error
    if not key:
        raise Invalid(Fault("secret", "it is empty, so that anybody could sign", "make a new one"))
    return key
