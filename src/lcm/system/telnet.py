"""Telnet's own words among the bytes of a line, found in one pass whatever is sent.

Used on both sides: by `api.gateway.telnet`, the client of workers' consoles, and by the consoles of simulated nodes.
"""

from typing import Final

IAC, DONT, DO, WONT, WILL, SB, SE = 255, 254, 253, 252, 251, 250, 240
_OPTION_VERBS: Final = frozenset({DONT, DO, WONT, WILL})
_SB_END: Final = bytes([IAC, SE])
_MAX_UNFINISHED: Final = 512


class TelnetWords:
    """Takes telnet's words out of one direction of a connection."""

    def __init__(self) -> None:
        self._rest = b""
        self.is_spoken = False
        """Whether there has been a word."""

    def split(self, data: bytes) -> tuple[bytes, list[tuple[int, int]]]:
        """Return the bytes of the line, and the offers and requests of options among them: verb and option.

        An unfinished word waits for its end; one that is too long to be a word is thrown away.
        """
        if not self._rest and IAC not in data:
            return data, []
        text, plain, asked, at = self._rest + data, bytearray(), list[tuple[int, int]](), 0
        self._rest = b""
        while (start := text.find(IAC, at)) >= 0:
            plain += text[at:start]
            at = _find_end(text, start)
            if at < 0:
                self._rest = text[start:] if len(text) - start <= _MAX_UNFINISHED else b""
                return bytes(plain), asked
            verb = text[start + 1]
            if verb == IAC:
                plain.append(IAC)
            elif verb in _OPTION_VERBS:
                asked.append((verb, text[start + 2]))
            self.is_spoken = True
        return bytes(plain + text[at:]), asked


def _find_end(text: bytes, start: int) -> int:
    """Return where the word that begins here ends; -1 when its end is not there yet."""
    if len(text) < start + 2:
        return -1
    if text[start + 1] == SB:
        end = text.find(_SB_END, start + 2)
        return end + 2 if end >= 0 else -1
    size = 3 if text[start + 1] in _OPTION_VERBS else 2
    return start + size if len(text) >= start + size else -1
