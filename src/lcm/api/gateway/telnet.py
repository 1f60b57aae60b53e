"""Telnet, as far as a serial console needs it: ended here, so that clients see the bytes of the line and nothing else.

The gateway is telnet's client. It agrees that the server echoes and suppresses go-ahead, and that both send bytes of
eight bits; it declines all else. A server that says nothing of telnet gets none either. Used by `api.gateway.relay`.
"""

import re
from typing import Final

from lcm.system.telnet import DO, DONT, IAC, WILL, WONT, TelnetWords

_BINARY, _ECHO, _GO_AHEAD = 0, 1, 3
_THEIRS: Final = frozenset({_BINARY, _ECHO, _GO_AHEAD})
_OURS: Final = frozenset({_BINARY, _GO_AHEAD})
_MAX_REPLIES: Final = 1_000
"""What is answered of one connection; options that are offered more often than that are a loop or an attack."""
_RETURN: Final = re.compile(rb"\r(?!\n)")


class TelnetClient:
    """Our side of one telnet connection."""

    def __init__(self) -> None:
        self._words = TelnetWords()
        self._has_return = False
        self._agreed: dict[tuple[bool, int], bool] = {}
        self._replies = 0

    def receive(self, data: bytes) -> tuple[bytes, bytes]:
        """Return what the line says, and what we must answer to telnet's own words."""
        text, asked = self._words.split(data)
        return self._without_padding(text), b"".join(self._answer(verb, option) for verb, option in asked)

    def send(self, data: bytes) -> bytes:
        """Return what a client typed, as it must be sent."""
        if not self._words.is_spoken:
            return data
        escaped = data.replace(b"\xff", b"\xff\xff")
        return _RETURN.sub(b"\r\x00", escaped) if b"\r" in escaped else escaped

    def _without_padding(self, text: bytes) -> bytes:
        """Remove the zero that telnet puts behind a carriage return."""
        if not self._words.is_spoken or not text:
            return text
        if self._has_return and text.startswith(b"\x00"):
            text = text[1:]
        self._has_return = text.endswith(b"\r")
        return text.replace(b"\r\x00", b"\r")

    def _answer(self, verb: int, option: int) -> bytes:
        """Answer an offer or a request, unless that is how it is already: else two sides could do so for ever."""
        is_theirs = verb in (WILL, WONT)
        wanted = verb in (WILL, DO) and option in (_THEIRS if is_theirs else _OURS)
        known = self._agreed.get((is_theirs, option))
        is_news = known != wanted if verb in (WILL, DO) else known is True
        if not is_news or self._replies >= _MAX_REPLIES:
            return b""
        self._agreed[is_theirs, option] = wanted
        self._replies += 1
        yes, no = (DO, DONT) if is_theirs else (WILL, WONT)
        return bytes([IAC, yes if wanted else no, option])
