"""The screen of a simulated node over VNC: RFB 3.8 without a password, and a desktop with a name, a clock and keys.

Made by `sim.cml.patty_ports` for each open VNC port; all connections show one screen. The picture is drawn in colours
of a small palette and sent as raw pixels, in whichever format a viewer asks for. A viewer that has seen everything
waits until something changes, which a clock with seconds sees to.
"""

import asyncio
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from lcm.system.tasks import TimeSlice

WIDTH, HEIGHT = 640, 400
_SCALE: Final = 2
_CELL_WIDTH, _CELL_HEIGHT = 6 * _SCALE, 8 * _SCALE
_COLUMNS: Final = WIDTH // _CELL_WIDTH - 4
_ROWS: Final = 16
_BACKGROUND, _BAR, _PANEL, _INK, _PALE = range(5)
_PALETTE: Final = ((13, 71, 97), (4, 159, 217), (16, 24, 32), (238, 244, 247), (140, 160, 170))
"""Red, green and blue of each colour."""
_VERSION: Final = b"RFB 003.008\n"
_HANDSHAKE_SECONDS: Final = 10.0
_SEND_SECONDS: Final = 30.0
_TICK_SECONDS: Final = 1.0
_MAX_SKIPPED: Final = 65_536
_MESSAGE_BYTES: Final = {0: 19, 2: 3, 3: 9, 4: 7, 5: 5, 6: 7}
"""How long each message of a viewer is after its first byte, without what its own length says."""
_BACKSPACE, _RETURN, _KEYPAD_RETURN = 0xFF08, 0xFF0D, 0xFF8D
_GLYPHS: Final = bytes.fromhex(
    """
    0000000000 00005F0000 0007000700 147F147F14 242A7F2A12 2313086462 3649562050 0008070300
    001C224100 0041221C00 2A1C7F1C2A 08083E0808 0080703000 0808080808 0000606000 2010080402
    3E5149453E 00427F4000 7249494946 2141494D33 1814127F10 2745454539 3C4A494931 4121110907
    3649494936 464949291E 0000140000 0040340000 0008142241 1414141414 0041221408 0201590906
    3E415D594E 7C1211127C 7F49494936 3E41414122 7F4141413E 7F49494941 7F09090901 3E41415173
    7F0808087F 00417F4100 2040413F01 7F08142241 7F40404040 7F021C027F 7F0408107F 3E4141413E
    7F09090906 3E4151215E 7F09192946 2649494932 03017F0103 3F4040403F 1F2040201F 3F4038403F
    6314081463 0304780403 6159494D43 007F414141 0204081020 004141417F 0402010204 4040404040
    0003070800 2054547840 7F28444438 3844444428 384444287F 3854545418 00087E0902 18A4A49C78
    7F08040478 00447D4000 2040403D00 7F10284400 00417F4000 7C04780478 7C08040478 3844444438
    FC18242418 18242418FC 7C08040408 4854545424 04043F4424 3C4040207C 1C2040201C 3C4030403C
    4428102844 4C9090907C 4464544C44 0008364100 0000770000 0041360800 0201020402
    """
)
"""Printable ASCII, five columns of eight pixels for each character, the lowest bit on top."""


class RfbError(ConnectionError):
    """A viewer that does not keep to the protocol."""


@dataclass(frozen=True, slots=True)
class PixelFormat:
    """How a viewer wants its pixels."""

    bits: int = 32
    depth: int = 24
    big_endian: bool = False
    maxima: tuple[int, int, int] = (255, 255, 255)
    shifts: tuple[int, int, int] = (16, 8, 0)

    @classmethod
    def read(cls, data: bytes) -> "PixelFormat":
        """Read the 16 bytes of a format. Raise RfbError for one that has no true colours."""
        bits, depth, big, true_colour, *rest = struct.unpack(">BBBBHHHBBB3x", data)
        maxima, shifts = (rest[0], rest[1], rest[2]), (rest[3], rest[4], rest[5])
        if bits not in (8, 16, 32) or not true_colour or max(shifts) >= bits:
            raise RfbError("only true colours of 8, 16 or 32 bits are served")
        return cls(bits, depth, bool(big), maxima, shifts)

    def write(self) -> bytes:
        """Return the 16 bytes of the format."""
        return struct.pack(">BBBBHHHBBB3x", self.bits, self.depth, self.big_endian, 1, *self.maxima, *self.shifts)

    def encode(self, picture: bytes) -> bytes:
        """Return the pixels of a picture of palette colours, plane by plane, as that is fast."""
        size = self.bits // 8
        out = bytearray(size * len(picture))
        for plane, table in enumerate(_planes(self)):
            out[plane::size] = picture.translate(table)
        return bytes(out)


@lru_cache(maxsize=16)
def _planes(form: PixelFormat) -> tuple[bytes, ...]:
    """Return for each byte of a pixel the table that makes it of a palette colour."""
    size = form.bits // 8
    pixels = [
        sum(
            round(value * most / 255) << shift
            for value, most, shift in zip(colour, form.maxima, form.shifts, strict=True)
        )
        for colour in _PALETTE
    ]
    encoded = [
        (pixel & ((1 << form.bits) - 1)).to_bytes(size, "big" if form.big_endian else "little") for pixel in pixels
    ]
    return tuple(bytes(one[plane] for one in encoded).ljust(256, b"\0") for plane in range(size))


class NodeScreen:
    """What the screen of one node shows: its name, the time, and what was typed."""

    def __init__(self, label: str, kind: str, now: Callable[[], datetime]) -> None:
        self._title = f"{label} - {kind}"
        self._now = now
        self._lines = [""]
        self.name = label

    def press(self, key: int) -> None:
        """Take a key, by its X11 symbol."""
        if key in (_RETURN, _KEYPAD_RETURN):
            self._lines = [*self._lines, ""][-_ROWS:]
        elif key == _BACKSPACE:
            self._lines[-1] = self._lines[-1][:-1]
        elif ord(" ") <= key <= ord("~"):
            if len(self._lines[-1]) >= _COLUMNS - 1:
                self._lines = [*self._lines, ""][-_ROWS:]
            self._lines[-1] += chr(key)

    def draw(self) -> bytes:
        """Return the picture as it is now, a byte for each pixel."""
        return _draw(self._title, f"{self._now():%H:%M:%S}", tuple(self._lines))


@lru_cache(maxsize=64)
def _draw(title: str, clock: str, lines: tuple[str, ...]) -> bytes:
    picture = bytearray([_BACKGROUND]) * (WIDTH * HEIGHT)
    _fill(picture, (0, 0), WIDTH, 2 * _CELL_HEIGHT, _BAR)
    _write(picture, 12, _CELL_HEIGHT // 2, title[: _COLUMNS - 10], _INK)
    _write(picture, WIDTH - 12 - _CELL_WIDTH * len(clock), _CELL_HEIGHT // 2, clock, _INK)
    _write(picture, 24, 3 * _CELL_HEIGHT, "A simulated screen. What you type appears here:", _PALE)
    _fill(picture, (16, 5 * _CELL_HEIGHT), WIDTH - 32, (_ROWS + 1) * _CELL_HEIGHT, _PANEL)
    for number, line in enumerate(lines):
        cursor = "_" if number == len(lines) - 1 else ""
        _write(picture, 24, (5 + number) * _CELL_HEIGHT + _CELL_HEIGHT // 2, line + cursor, _INK)
    return bytes(picture)


def _fill(picture: bytearray, at: tuple[int, int], width: int, height: int, colour: int) -> None:
    left, top = at
    row = bytes([colour]) * width
    for line in range(top, min(top + height, HEIGHT)):
        picture[line * WIDTH + left : line * WIDTH + left + width] = row


def _write(picture: bytearray, left: int, top: int, text: str, colour: int) -> None:
    ink = bytes([colour]) * _SCALE
    for place, letter in enumerate(text.encode("ascii", "replace")):
        number = letter - ord(" ") if ord(" ") <= letter <= ord("~") else ord("?") - ord(" ")
        for column, bits in enumerate(_GLYPHS[number * 5 : number * 5 + 5]):
            x = left + place * _CELL_WIDTH + column * _SCALE
            for row in range(8):
                if bits >> row & 1:
                    for line in range(top + row * _SCALE, top + (row + 1) * _SCALE):
                        picture[line * WIDTH + x : line * WIDTH + x + _SCALE] = ink


class VncScreen:
    """One VNC port with all its viewers."""

    def __init__(self, screen: NodeScreen) -> None:
        self._screen = screen
        self._viewers: set[_Viewer] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a viewer until it closes the connection, or breaks the protocol."""
        viewer = _Viewer(self._screen, reader, writer)
        self._viewers.add(viewer)
        sending = asyncio.create_task(viewer.send_updates())
        try:
            await viewer.shake_hands()
            turn = TimeSlice()
            while await viewer.read_message():
                for one in self._viewers:
                    one.changed.set()
                await turn.yield_if_over()  # reading does not wait while messages are there
        except (asyncio.IncompleteReadError, TimeoutError):
            pass  # the viewer left in the middle of a message, or was too slow
        finally:
            self._viewers.discard(viewer)
            sending.cancel()
            await asyncio.wait([sending])


class _Viewer:
    """One connection: what it asked for, and what it has seen."""

    def __init__(self, screen: NodeScreen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._screen = screen
        self._reader = reader
        self._writer = writer
        self._format = PixelFormat()
        self._seen: bytes | None = None
        self._asked = False
        self.changed = asyncio.Event()

    async def shake_hands(self) -> None:
        """Agree on the version and on no security, and introduce the screen."""
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            self._writer.write(_VERSION)
            if await self._reader.readexactly(len(_VERSION)) != _VERSION:
                raise RfbError("only RFB 3.8 is served")
            self._writer.write(b"\x01\x01")
            if await self._reader.readexactly(1) != b"\x01":
                raise RfbError("there is no security but none")
            self._writer.write(bytes(4))
            await self._reader.readexactly(1)
        name = self._screen.name.encode()[:255]
        self._writer.write(
            struct.pack(">HH", WIDTH, HEIGHT) + self._format.write() + struct.pack(">I", len(name)) + name
        )

    async def read_message(self) -> bool:
        """Take the next message of the viewer. Return False when it left."""
        kind = await self._reader.read(1)
        if not kind:
            return False
        if kind[0] not in _MESSAGE_BYTES:
            raise RfbError(f"there is no message {kind[0]}")
        body = await self._reader.readexactly(_MESSAGE_BYTES[kind[0]])
        match kind[0]:
            case 0:
                self._format, self._seen = PixelFormat.read(body[3:]), None
            case 2:
                await self._skip(4 * int.from_bytes(body[1:], "big"))
            case 3:
                self._seen, self._asked = self._seen if body[0] else None, True
            case 4 if body[0]:
                self._screen.press(int.from_bytes(body[3:], "big"))
            case 6:
                await self._skip(int.from_bytes(body[3:], "big"))
        return True

    async def _skip(self, length: int) -> None:
        if length > _MAX_SKIPPED:
            raise RfbError("too long a message")
        await self._reader.readexactly(length)

    async def send_updates(self) -> None:
        """Send what changed whenever the viewer has asked for it, until cancelled or until it takes too long."""
        while True:
            try:
                async with asyncio.timeout(_TICK_SECONDS):
                    await self.changed.wait()
            except TimeoutError:
                pass  # the clock has moved on
            self.changed.clear()
            picture = self._screen.draw()
            if not self._asked or picture == self._seen:
                continue
            self._writer.write(_update(self._seen, picture, self._format))
            self._seen, self._asked = picture, False
            try:
                async with asyncio.timeout(_SEND_SECONDS):
                    await self._writer.drain()
            except (TimeoutError, OSError):
                self._writer.transport.abort()
                return


def _update(before: bytes | None, after: bytes, form: PixelFormat) -> bytes:
    """Return an update of the smallest rectangle that holds all changes."""
    left, top, width, height = (0, 0, WIDTH, HEIGHT) if before is None else _changed_part(before, after)
    rows = (after[line * WIDTH + left : line * WIDTH + left + width] for line in range(top, top + height))
    return struct.pack(">BxHHHHHi", 0, 1, left, top, width, height, 0) + form.encode(b"".join(rows))


def _changed_part(before: bytes, after: bytes) -> tuple[int, int, int, int]:
    starts = range(0, WIDTH * HEIGHT, WIDTH)
    changed = [one for one in starts if before[one : one + WIDTH] != after[one : one + WIDTH]]
    lefts, rights = [], []
    for one in changed:
        places = [x for x in range(WIDTH) if before[one + x] != after[one + x]]
        lefts.append(places[0])
        rights.append(places[-1])
    top, bottom = changed[0] // WIDTH, changed[-1] // WIDTH
    return min(lefts), top, max(rights) - min(lefts) + 1, bottom - top + 1
