"""A viewer who only looks: of what it sends to a screen, what would type, point or paste there is left out.

RFB's messages have no common form, so each is known here. One that is not known cannot be skipped, and ends the
connection. Used by `api.gateway.relay`.
"""

from typing import Final

_VERSION, _SECURITY, _PASSWORD, _BEGINNING, _MESSAGES = range(5)
_STAGE_BYTES: Final = {_VERSION: 12, _SECURITY: 1, _PASSWORD: 16, _BEGINNING: 1}
_AFTER_SECURITY: Final = {1: _BEGINNING, 2: _PASSWORD}
"""What comes after the choice of no security, and of a password."""
_VERSIONS: Final = frozenset({b"RFB 003.007\n", b"RFB 003.008\n"})
"""With an older one the server chooses the security, so that all that follows would be read one byte off."""
_SHARED: Final = b"\x01"
"""Others keep their connections. Whoever only looks must not be able to close them."""
_FORMAT, _ENCODINGS, _UPDATE, _KEY, _POINTER, _CUT_TEXT = 0, 2, 3, 4, 5, 6
_CONTINUOUS, _FENCE, _DESKTOP_SIZE, _EXTENDED = 150, 248, 251, 255
_FIXED: Final = {_FORMAT: 20, _UPDATE: 10, _KEY: 8, _POINTER: 6, _CONTINUOUS: 10, _EXTENDED: 12}
_COUNTED: Final = {
    _ENCODINGS: (4, slice(2, 4), 4),
    _CUT_TEXT: (8, slice(4, 8), 1),
    _FENCE: (9, slice(8, 9), 1),
    _DESKTOP_SIZE: (8, slice(6, 7), 16),
}
"""The bytes of a head, where the number of items is in it, and the bytes of an item."""
_DROPPED: Final = frozenset({_KEY, _POINTER, _CUT_TEXT, _DESKTOP_SIZE, _EXTENDED})
_LONGEST_HEAD: Final = 9
_LONGEST: Final = 70_000


class UnknownMessage(Exception):
    """A message that is not known here, or is too long to be one."""


class LookingViewer:
    """Filters what one viewer sends."""

    def __init__(self) -> None:
        self._rest = b""
        self._stage = _VERSION

    def filter(self, data: bytes) -> bytes:
        """Return what may pass. Raise UnknownMessage for what cannot be judged."""
        text, at, passed = self._rest + data, 0, list[bytes]()
        while (size := self._next_size(text[at : at + _LONGEST_HEAD])) and len(text) >= at + size:
            passed.append(self._take(text[at : at + size]))
            at += size
        self._rest = text[at:]
        return b"".join(passed)

    def _next_size(self, text: bytes) -> int:
        """Return how many bytes come next; 0 when that is not known yet."""
        if self._stage != _MESSAGES:
            return _STAGE_BYTES[self._stage]
        if not text:
            return 0
        kind = text[0]
        if kind in _FIXED:
            return _FIXED[kind]
        if kind not in _COUNTED:
            raise UnknownMessage(f"message {kind} of a viewer is not known")
        head, place, item = _COUNTED[kind]
        if len(text) < head:
            return 0
        size = head + item * int.from_bytes(text[place], "big")
        if size > _LONGEST:
            raise UnknownMessage("a message of a viewer is too long")
        return size

    def _take(self, part: bytes) -> bytes:
        if self._stage == _MESSAGES:
            return b"" if part[0] in _DROPPED else part
        if self._stage == _VERSION and part not in _VERSIONS:
            raise UnknownMessage("this version of RFB cannot be followed: use 3.8")
        if self._stage == _SECURITY:
            if part[0] not in _AFTER_SECURITY:
                raise UnknownMessage(f"security type {part[0]} is not known")
            self._stage = _AFTER_SECURITY[part[0]]
            return part
        is_beginning = self._stage == _BEGINNING
        self._stage = {_VERSION: _SECURITY, _PASSWORD: _BEGINNING, _BEGINNING: _MESSAGES}[self._stage]
        return _SHARED if is_beginning else part
