"""What a visitor of a simulated port hears: a console, a screen, or a port of the node. Used by `patty_ports`."""

import re
from typing import Final, Protocol

from lcm.sim.cml.patty import Mapped

_TELNET: Final = b"\xff\xfb\x01\xff\xfb\x03"
"""The server will echo, and will not say go-ahead."""
_COMMAND: Final = re.compile(rb"\xff(?:[\xfb-\xfe].|\xfa.*?\xff\xf0|[^\xfa-\xfe])", re.DOTALL)
_UNFINISHED: Final = re.compile(rb"\xff(?:[\xfb-\xfe]|\xfa.*)?\Z", re.DOTALL)
_LONGEST: Final = 256
_ENTER: Final = re.compile(rb"\r\n|\r\x00|\r|\n")
_RFB: Final = b"RFB 003.008\n"
_NO_SCREEN: Final = b"this screen is simulated: there is nothing to see"


class Talk(Protocol):
    """One visit."""

    greeting: bytes

    def answer(self, data: bytes) -> bytes:
        """Say what to send back."""
        ...


class Console:
    """A serial line over telnet: what is typed comes back, and every line ends with a prompt."""

    def __init__(self, label: str, line: int) -> None:
        self._prompt = f"\r\n{label}>".encode()
        self.greeting = _TELNET + f"\r\n{label} con{line} is now available\r\n".encode() + self._prompt
        self._rest = b""

    def answer(self, data: bytes) -> bytes:
        text = _COMMAND.sub(b"", self._rest + data)
        unfinished = _UNFINISHED.search(text)
        end = unfinished.start() if unfinished else len(text)
        self._rest = text[end : end + _LONGEST]
        return _ENTER.sub(lambda _: self._prompt, text[:end])


class Screen:
    """A VNC server that tells its version, and then that it has nothing to show."""

    greeting = _RFB

    def __init__(self) -> None:
        self._told = False

    def answer(self, data: bytes) -> bytes:
        if self._told or not data.endswith(b"\n"):
            return b""
        self._told = True
        # No way to sign in, and the reason, which viewers show.
        return b"\0" + len(_NO_SCREEN).to_bytes(4, "big") + _NO_SCREEN


class Inside:
    """A port of the node: names itself, then sends back what it gets."""

    def __init__(self, label: str, port: int) -> None:
        self.greeting = f"{label} port {port}\r\n".encode()

    def answer(self, data: bytes) -> bytes:
        return data


def talk(port: Mapped, label: str) -> Talk:
    """Begin a visit to a TCP port."""
    if port.kind == "vnc":
        return Screen()
    return Console(label, port.inside) if port.kind == "serial" else Inside(label, port.inside)
