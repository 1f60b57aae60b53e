"""Whose address a request comes from: blocks of addresses, and what proxies say about their clients.

`system.serving` and `api.http.limits` count by block; `api.http.request` finds the client behind trusted proxies.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from lcm.model.access.webhook import Network

_IPV6_PREFIX_BITS: Final = 64
"""The part of an IPv6 address that identifies one subscriber; the rest they choose freely."""
_MOST_HOPS: Final = 20


@lru_cache(maxsize=4096)
def address_block(address: str) -> str:
    """Return what stands for an address where callers are counted."""
    found = _parse(address)
    if isinstance(found, IPv6Address):
        return f"{int(found) >> (128 - _IPV6_PREFIX_BITS):x}"
    return str(found) if found else address


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine itself, so that nothing sent there leaves it."""
    found = _parse(host.strip("[]"))
    return host == "localhost" or (found is not None and found.is_loopback)


class TrustedProxies:
    """The networks of our own proxies. What they say of their clients is believed, and nobody else is.

    They say it in `Forwarded` (RFC 7239) if `rfc7239`, else in `X-Forwarded-For` and `X-Forwarded-Proto`. Only what
    they write counts: a proxy that knows one of them passes on what a client writes into the other.
    """

    def __init__(self, networks: Sequence[Network] = (), *, rfc7239: bool = False) -> None:
        self._networks = networks
        self._rfc7239 = rfc7239
        self._trusts = lru_cache(maxsize=4096)(self._is_inside)

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, address: str) -> bool:
        """Return whether an address is one of our proxies'."""
        return bool(self._networks) and self._trusts(address)

    def find_client(self, peer: str, forwarded: str, forwarded_for: str) -> str:
        """Return the address of the client: the last one that was not added by one of our proxies.

        A proxy that hides its client is the client.
        """
        if not self.trusts(peer):
            return peer
        hops = _forwarded_hops(forwarded) if self._rfc7239 else forwarded_for.split(",")
        client = peer
        for hop in reversed(list(hops)[-_MOST_HOPS:]):
            found = _parse(_bare_address(hop))
            if found is None:
                return client
            client = str(found)
            if not self.trusts(client):
                return client
        return client

    def find_scheme(self, forwarded: str, forwarded_proto: str) -> str:
        """Return the scheme that the nearest proxy was asked by; empty when it does not say."""
        last = (forwarded if self._rfc7239 else forwarded_proto).rpartition(",")[2]
        told = _parameter(last, "proto") if self._rfc7239 else last
        return told.strip().lower()

    def _is_inside(self, address: str) -> bool:
        found = _parse(address)
        return found is not None and any(found in network for network in self._networks)


def _forwarded_hops(forwarded: str) -> Iterable[str]:
    return [_parameter(element, "for") for element in forwarded.split(",")]


def _parameter(element: str, wanted: str) -> str:
    for pair in element.split(";"):
        name, _, value = pair.partition("=")
        if name.strip().lower() == wanted:
            return value.strip().strip('"')
    return ""


def _bare_address(hop: str) -> str:
    """Return an address without the port and the brackets that a proxy may write with it."""
    text = hop.strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found
