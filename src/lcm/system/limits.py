"""The limits of the server's connections, over HTTP and as WebSockets. Made by `compose.api`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

MAX_CONNECTIONS: Final = 10_000
"""How many connections are served at once by default."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """How many connections there may be, and how long each state of one may last."""

    most: int = MAX_CONNECTIONS
    per_address: int = MAX_CONNECTIONS
    """Connections from one address; addresses for which `is_proxy` holds have no limit of their own."""
    is_proxy: Callable[[str], bool] = lambda _: False
    handshake_seconds: float = 10.0
    head_seconds: float = 10.0
    """From the first byte of a request, or from the connection's beginning, to the end of its head."""
    unread_seconds: float = 5.0
    """For the rest of a body after its answer, so that a client that still writes can read the answer."""
    idle_seconds: float = 75.0
    """Between two requests."""
    send_seconds: float = 30.0
    """Without progress while an answer waits to be taken."""
    message_bytes: int = 0
    """The longest message of a WebSocket; 0 where none are served."""
    ping_seconds: float = 20.0
    """After this silence the client of a WebSocket is asked whether it is there."""
    silent_seconds: float = 60.0
    """After this silence it is not."""
    close_seconds: float = 1.0
    """For its answer when a WebSocket is closed."""
