"""The screen of a simulated node over VNC, seen by a client of RFB."""

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from harness import given
from harness.consoles import SOON, ConsoleLab, console_lab, viewer
from harness.plane_world import Standing
from lcm.sim.cml.screen import HEIGHT, WIDTH, NodeScreen, PixelFormat


@pytest.fixture
async def lab() -> AsyncIterator[ConsoleLab]:
    async with console_lab() as it:
        yield it


async def test_a_screen_draws_and_shows_what_is_typed_to_every_viewer(lab: ConsoleLab) -> None:
    port = lab.ports["PC_vnc"]
    async with viewer(lab.address, port) as typing, viewer(lab.address, port) as looking:
        assert (typing.name, typing.width, typing.height) == ("PC", WIDTH, HEIGHT)
        for one in (typing, looking):
            one.ask(incremental=False)
            assert await one.update() == (0, 0, WIDTH, HEIGHT)
        assert len(set(struct.iter_unpack("4s", bytes(typing.picture)))) >= 4
        panel = _panel(looking.picture)
        typing.press(ord("x"))
        async with asyncio.timeout(SOON):
            while _panel(looking.picture) == panel:
                looking.ask(incremental=True)
                await looking.update()


async def test_an_update_holds_only_what_changed(lab: ConsoleLab) -> None:
    async with viewer(lab.address, lab.ports["PC_vnc"]) as one:
        one.ask(incremental=False)
        await one.update()
        one.ask(incremental=True)
        _, _, width, height = await one.update()
        assert width * height < WIDTH * HEIGHT / 20


@pytest.mark.parametrize(
    "message",
    [
        b"\x2a",
        struct.pack(">B3xI", 6, 2**31),
        struct.pack(">BxH", 2, 60_000) + bytes(10),
        struct.pack(">B3xBBBBHHHBBB3x", 0, 32, 24, 0, 0, 255, 255, 255, 0, 8, 16),
    ],
)
async def test_a_viewer_that_breaks_the_protocol_is_cut_off(lab: ConsoleLab, message: bytes) -> None:
    async with viewer(lab.address, lab.ports["PC_vnc"]) as one:
        one.writer.write(message)
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(one.reader.read(), SOON) == b""


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("big_endian", [True, False])
def test_pixels_come_in_the_form_that_is_asked_for(bits: int, *, big_endian: bool) -> None:
    maxima = {8: (7, 7, 3), 16: (31, 63, 31), 32: (255, 255, 255)}[bits]
    shifts = {8: (5, 2, 0), 16: (11, 5, 0), 32: (16, 8, 0)}[bits]
    form = PixelFormat(bits, bits, big_endian, maxima, shifts)
    assert PixelFormat.read(form.write()) == form
    pixel = form.encode(bytes([3]))
    value = int.from_bytes(pixel, "big" if big_endian else "little")
    assert len(pixel) == bits // 8
    assert [value >> shift & most for shift, most in zip(shifts, maxima, strict=True)] == [
        round(part * most / 255) for part, most in zip((238, 244, 247), maxima, strict=True)
    ]


def test_what_is_typed_stays_within_the_screen() -> None:
    screen = NodeScreen("PC", "desktop", Standing(given.moment("08:00")).now)
    for _ in range(5_000):
        screen.press(ord("w"))
    for key in (0xFF0D, 0xFF08, 0x20AC, 0xFFE1):
        screen.press(key)
    assert len(screen.draw()) == WIDTH * HEIGHT


def _panel(picture: bytearray) -> bytes:
    return bytes(picture[4 * WIDTH * 80 :])
