"""What the gateway reads of telnet and of RFB: words in any pieces, whatever is sent, in linear time."""

from time import thread_time

import pytest
from hypothesis import given as for_any
from hypothesis import strategies as st

from lcm.api.gateway.telnet import TelnetClient
from lcm.api.gateway.viewer import LookingViewer, UnknownMessage

WILL_ECHO, WILL_GO_AHEAD = b"\xff\xfb\x01", b"\xff\xfb\x03"
HANDS = b"RFB 003.008\n\x01\x00"
KEY, POINTER, UPDATE = b"\x04\x01\0\0\0\0\0x", b"\x05\0\0\0\0\0", b"\x03\x01\0\0\0\0\0\x09\0\x09"
CUT, ENCODINGS = b"\x06\0\0\0\0\0\0\x03abc", b"\x02\0\0\x02\0\0\0\0\0\0\0\x01"


@pytest.mark.parametrize(
    ("sent", "line", "answer"),
    [
        (b"plain", b"plain", b""),
        (WILL_ECHO + WILL_GO_AHEAD + b"R1>", b"R1>", b"\xff\xfd\x01\xff\xfd\x03"),
        (WILL_ECHO * 5 + b"x", b"x", b"\xff\xfd\x01"),
        (b"\xff\xfd\x18\xff\xfd\x1f", b"", b"\xff\xfc\x18\xff\xfc\x1f"),
        (b"\xff\xfb\x22", b"", b"\xff\xfe\x22"),
        (b"\xff\xfa\x18\x01\xff\xf0after", b"after", b""),
        (b"a\xff\xffb", b"a\xffb", b""),
        (b"a\xff\xf1b\r\x00c", b"ab\rc", b""),
        (b"\xff\xfe\x01\xff\xfc\x01", b"", b""),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_telnet_is_read_in_any_pieces(sent: bytes, line: bytes, answer: bytes, size: int) -> None:
    client = TelnetClient()
    parts = [client.receive(sent[at : at + size]) for at in range(0, len(sent), size)]
    assert (b"".join(one for one, _ in parts), b"".join(one for _, one in parts)) == (line, answer)


def test_what_is_typed_is_escaped_for_those_who_speak_telnet_only() -> None:
    client = TelnetClient()
    assert client.send(b"\xff\r") == b"\xff\r"
    client.receive(WILL_ECHO)
    assert client.send(b"\xff\r\r\n") == b"\xff\xff\r\x00\r\n"


@pytest.mark.parametrize("unit", [b"\xff\xfa", b"\xff", b"\xff\xfb\x01\xff\xfc\x01", b"\xff\xfa\xff\xf0", b"\r\x00"])
def test_no_flood_of_words_takes_long(unit: bytes) -> None:
    client, flood = TelnetClient(), unit * (400_000 // len(unit))
    began = thread_time()
    answers = [client.receive(flood[at : at + 65_536])[1] for at in range(0, len(flood), 65_536)]
    assert thread_time() - began < 2.0
    assert len(b"".join(answers)) <= 3_000


@for_any(st.lists(st.binary(max_size=40), max_size=10))
def test_telnet_takes_whatever_comes(parts: list[bytes]) -> None:
    client = TelnetClient()
    for part in parts:
        client.receive(part)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_who_looks_sees_but_neither_types_points_nor_pastes(size: int) -> None:
    sent, viewer = HANDS + UPDATE + KEY + POINTER + CUT + ENCODINGS + UPDATE, LookingViewer()
    passed = b"".join(viewer.filter(sent[at : at + size]) for at in range(0, len(sent), size))
    assert passed == b"RFB 003.008\n\x01\x01" + UPDATE + ENCODINGS + UPDATE, "others keep their connections, too"


@pytest.mark.parametrize(
    "sent",
    [
        HANDS + b"\x63",
        b"RFB 003.008\n\x13",
        HANDS + b"\x06\0\0\0\xff\xff\xff\xff",
        b"RFB 003.003\n",
        b"RFB 003.006\n",
        b"RFB 004.001\n",
        b"XFB 003.008\n",
    ],
)
def test_what_cannot_be_judged_does_not_pass(sent: bytes) -> None:
    with pytest.raises(UnknownMessage):
        LookingViewer().filter(sent)
