"""The consoles of a session: what its ports lead to, and where the gateway serves them.

Listed by the control plane, opened by `api.gateway`, and shown as a session's addresses by the lablet controller where
labs are reached by the gateway only.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Final
from urllib.parse import quote, urlencode

from lcm.model.base.resource import DEFAULT_NAMESPACE, Part
from lcm.model.kinds.definition import PortEnd, PortUse
from lcm.model.kinds.session import LabletSession, SessionPhase

CONSOLES_PATH: Final = "/api/lablet-sessions/{id}/consoles"


class ConsoleKind(StrEnum):
    """What is spoken on a console: the bytes of a serial line, RFB, or whatever a port of the node speaks."""

    SERIAL = "serial"
    VNC = "vnc"
    TCP = "tcp"


class Console(Part):
    """One port of a session that the gateway serves. `path` is where, below the address of the API."""

    name: str
    kind: ConsoleKind
    node: str
    path: str
    is_open: bool
    """Whether it can be opened now: while the session is RUNNING."""
    line: int | None = None
    inside: int | None = None
    """The port of the node, for kind tcp."""


def consoles_of(session: LabletSession, template: Mapping[str, PortUse]) -> tuple[Console, ...]:
    """Return a session's consoles, by name; ports that lead nowhere, or only by UDP, are none."""
    return tuple(_find_consoles(session, template))


def _find_consoles(session: LabletSession, template: Mapping[str, PortUse]) -> Iterator[Console]:
    is_open = session.status.phase is SessionPhase.RUNNING
    for name in sorted(session.status.allocated_ports or {}):
        end = template[name].ends[0] if name in template and template[name].ends else None
        if end is not None and end.protocol != "udp":
            yield Console(
                name=name,
                kind=_kind_of(end),
                node=end.node,
                path=console_path(session, name),
                is_open=is_open,
                line=end.line,
                inside=end.inside,
            )


def _kind_of(end: PortEnd) -> ConsoleKind:
    return ConsoleKind.TCP if end.kind == "pat" else ConsoleKind(end.kind)


def console_path(session: LabletSession, port: str) -> str:
    """Return where the gateway serves a port of a session."""
    metadata = session.metadata
    query = "" if metadata.namespace == DEFAULT_NAMESPACE else "?" + urlencode({"namespace": metadata.namespace})
    return f"{CONSOLES_PATH.format(id=quote(metadata.name, safe=''))}/{quote(port, safe='')}{query}"
