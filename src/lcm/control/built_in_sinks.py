"""Sinks that the settings make: addresses that are told of alerts, without anybody creating a sink for them.

Made by `compose` for `outbox` and `api`. They stand in no store. Their addresses are secrets and are treated as such:
only the host is part of the sink, and the rest is a credential under a scheme that nobody can write into a document.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from lcm.model.secret import Secret
from lcm.model.sink import BUILT_IN, CREDENTIAL, Format, Sink
from lcm.providers.secrets import Secrets

SCHEME: Final = "setting"
EVENT_TYPES: Final = ("alert.*", "worker.idle.warning")

_SLACK: Final = "hooks.slack.com"
_NAME_LENGTH: Final = 8
_ADDRESS: Final = re.compile(r"(?P<origin>[^:/?]+://(?P<host>[^/?]*?)(:[0-9]+)?)(/|(?=\?)|$)(?P<rest>.*)")


class SettingSecrets:
    """Reveals the rest of the addresses, and leaves all other references to others."""

    def __init__(self, known: Mapping[str, Secret], others: Secrets) -> None:
        self._known = known
        self._others = others

    async def reveal(self, ref: str) -> Secret:
        return self._known.get(ref) or await self._others.reveal(ref)


def built_in_sinks(addresses: Iterable[Secret]) -> tuple[tuple[Sink, ...], Mapping[str, Secret]]:
    """Make a sink of each address; give also their secret parts, by their references."""
    sinks, secrets = dict[str, Sink](), dict[str, Secret]()
    for address in addresses:
        origin, host, rest = _apart(address.reveal())
        name = BUILT_IN + hashlib.sha256(address.reveal().encode()).hexdigest()[:_NAME_LENGTH]
        reference = f"{SCHEME}:{name}"
        secrets[reference] = Secret(rest)
        sinks[name] = Sink(
            name=name,
            url=f"{origin}/{CREDENTIAL}" if rest else f"{origin}/",
            format=Format.SLACK if host == _SLACK else Format.CLOUDEVENTS,
            event_types=EVENT_TYPES,
            credential=reference if rest else None,
        )
    return tuple(sinks.values()), secrets


def _apart(url: str) -> tuple[str, str, str]:
    """Take an address apart: where it leads, the host's name in that, and all the rest."""
    found = _ADDRESS.fullmatch(url)
    assert found, "the settings were checked"
    return found["origin"], found["host"].lower(), found["rest"]
