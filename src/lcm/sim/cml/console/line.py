"""A serial line of a simulated node over telnet: echo, line editing, and a dialog behind it.

Made by `sim.cml.patty_ports` for each open serial port. All connections to one line share it, as on a terminal server:
whoever is connected sees what is typed and answered, and the dialog is the same for all. What a node keeps is in its
configuration; the line itself is gone with its port.
"""

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv4Address
from typing import Final, Protocol

from lcm.sim.cml.console.configuration import DeviceConfiguration
from lcm.sim.cml.console.ios import IosDialog
from lcm.sim.cml.console.shell import ShellDialog, find_addresses
from lcm.sim.cml.engine import Cml
from lcm.sim.cml.faults import CmlRefusal
from lcm.sim.cml.parts import Files, Node, NodeState
from lcm.sim.cml.rest.documents import ConfigurationFile
from lcm.system.tasks import TimeSlice
from lcm.system.telnet import TelnetWords

_TELNET: Final = b"\xff\xfb\x01\xff\xfb\x03"
"""The server will echo, and will suppress go-ahead."""
_KEYS: Final = re.compile(rb"\r\n|\r\x00|\x1b(?:[\[O][0-9;]{0,8}[A-Za-z~]?)?|.", re.DOTALL)
_CHUNK: Final = 512
_MOST_PARSED: Final = 64
"""Configurations whose addresses are kept: a ping asks those of every node of the lab."""
_MAX_LINE: Final = 254
_MAX_HISTORY: Final = 20
_MAX_BEHIND: Final = 262_144
"""Bytes that a connection may leave untaken; then it is closed, lest the others wait for it."""
_IOS_FILE: Final = "ios_config.txt"


class ConsoleNode:
    """The node behind a line, as its dialog sees it."""

    def __init__(self, cml: Cml, lab_id: str, node_id: str) -> None:
        self._cml = cml
        self._lab_id = lab_id
        self._node_id = node_id

    @property
    def node(self) -> Node:
        """The node. Raise ConnectionError when it is gone."""
        try:
            labs = self._cml.labs
            return labs.node(labs.get(self._lab_id), self._node_id)
        except CmlRefusal as error:
            raise ConnectionError(f"the node is gone: {error}") from error

    @property
    def is_booted(self) -> bool:
        return self.node.life.state(self._cml.pace.age()) is NodeState.BOOTED

    def read(self) -> str:
        """Return its running configuration."""
        files = _files(self.node)
        return files[0].content or "" if files else ""

    def write(self, text: str) -> None:
        """Replace its running configuration."""
        node = self.node
        files = _files(node)
        name = files[0].name if files else node.kind.main_file
        node.running = [ConfigurationFile(name, text), *files[1:]]

    def save(self) -> None:
        """Keep its running configuration on its disk."""
        self.node.saved = self.node.running

    def is_reachable(self, address: IPv4Address) -> bool:
        """Return whether something in the lab has an address, and is up."""
        age = self._cml.pace.age()
        nodes = self._cml.labs.get(self._lab_id).nodes.values()
        return any(_has_address(one, address) for one in nodes if one.life.state(age) is NodeState.BOOTED)

    def uptime_minutes(self) -> int:
        """Return for how many minutes it has been up."""
        booted = self.node.life.age_entered(NodeState.BOOTED)
        return int((self._cml.pace.age() - (booted or 0.0)) // 60)


def _files(node: Node) -> Files:
    return node.files if node.running is None else node.running


def _has_address(node: Node, address: IPv4Address) -> bool:
    files = _files(node)
    text = files[0].content or "" if files else ""
    if any(one.ip4 == str(address) for one in node.interfaces):
        return True
    if node.kind.main_file != _IOS_FILE:
        return any(one.ip == address for one in find_addresses(text))
    return address in _addresses_up(text)


@lru_cache(maxsize=_MOST_PARSED)
def _addresses_up(configuration: str) -> frozenset[IPv4Address]:
    """Return the addresses of a router's interfaces that are up."""
    blocks = DeviceConfiguration.parse(configuration, "node", ()).interfaces
    return frozenset(one.address.ip for one in blocks if one.is_up and one.address is not None)


class ConsoleDialog(Protocol):
    """What a line leads to."""

    @property
    def prompt(self) -> str:
        """What stands before the line that is typed."""
        ...

    def run(self, line: str) -> str:
        """Perform a line, and return what it prints."""
        ...

    def show_help(self, line: str) -> str:
        """Return what may follow the line as typed so far."""
        ...

    def complete(self, line: str) -> str:
        """Return the rest of the word at the end of the line, if it can only be one."""
        ...

    def interrupt(self) -> str:
        """Take Ctrl-C, and return what it prints."""
        ...

    def end(self) -> str:
        """Take Ctrl-Z, and return what it prints."""
        ...


class LineEditor:
    """Turns keys into lines for a dialog, and into what the terminal shows."""

    def __init__(self, dialog: ConsoleDialog) -> None:
        self._dialog = dialog
        self._typed = ""
        self._history: list[str] = []
        self._back = 0
        """How far back in the history the line is that is shown; 0 for one that is new."""
        self._actions: Mapping[bytes, Callable[[], str]] = {
            **dict.fromkeys((b"\r", b"\n", b"\r\n", b"\r\x00"), self._enter),
            **dict.fromkeys((b"\x7f", b"\x08"), lambda: self._erase(1)),
            b"\x15": lambda: self._erase(len(self._typed)),
            b"\x17": self._erase_word,
            b"\x03": lambda: self._restart("^C", self._dialog.interrupt),
            b"\x1a": lambda: self._restart("^Z", self._dialog.end),
            **dict.fromkeys((b"\x1b[A", b"\x1bOA", b"\x10"), lambda: self._recall(1)),
            **dict.fromkeys((b"\x1b[B", b"\x1bOB", b"\x0e"), lambda: self._recall(-1)),
            b"\t": lambda: self._type(self._dialog.complete(self._typed)),
            b"?": self._show_help,
        }

    @property
    def shown(self) -> str:
        """The prompt with what is typed so far."""
        return self._dialog.prompt + self._typed

    def press(self, keys: bytes) -> Iterator[str]:
        """Take some keys, and yield what the terminal shows after each of them."""
        return (self._press(found.group()) for found in _KEYS.finditer(keys))

    def _press(self, key: bytes) -> str:
        if known := self._actions.get(key):
            return known()
        text = key.decode("ascii", "ignore")
        return self._type(text) if text.isprintable() else ""

    def _erase_word(self) -> str:
        before, blank, _ = self._typed.rstrip().rpartition(" ")
        return self._erase(len(self._typed) - len(before + blank))

    def _show_help(self) -> str:
        return f"?\r\n{_crlf(self._dialog.show_help(self._typed))}{self.shown}"

    def _type(self, text: str) -> str:
        fitting = text[: _MAX_LINE - len(self._typed)]
        self._typed += fitting
        return fitting if fitting or not text else "\a"

    def _erase(self, count: int) -> str:
        count = min(count, len(self._typed))
        self._typed = self._typed[: len(self._typed) - count]
        return "\b \b" * count

    def _enter(self) -> str:
        line, self._typed, self._back = self._typed, "", 0
        if line.strip() and self._history[-1:] != [line]:
            self._history = [*self._history, line][-_MAX_HISTORY:]
        return f"\r\n{_crlf(self._dialog.run(line))}{self._dialog.prompt}"

    def _restart(self, mark: str, act: Callable[[], str]) -> str:
        self._typed, self._back = "", 0
        return f"{mark}\r\n{_crlf(act())}{self._dialog.prompt}"

    def _recall(self, step: int) -> str:
        self._back = max(0, min(len(self._history), self._back + step))
        erased = self._erase(len(self._typed))
        return erased + self._type(self._history[-self._back] if self._back else "")


def _crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


class SerialLine:
    """One serial line with all its connections."""

    def __init__(self, node: ConsoleNode, line: int) -> None:
        self._node = node
        self._number = line
        dialog = IosDialog(node) if node.node.kind.main_file == _IOS_FILE else ShellDialog(node)
        self._editor = LineEditor(dialog)
        self._writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until its client closes it, or the node is gone."""
        telnet = TelnetWords()
        writer.write(_TELNET + self._greeting())
        self._writers.add(writer)
        try:
            while data := await reader.read(_CHUNK):
                await self._take_keys(telnet.split(data)[0])
                await writer.drain()
        finally:
            self._writers.discard(writer)

    def _greeting(self) -> bytes:
        label = self._node.node.spec.label
        shown = self._editor.shown if self._node.is_booted else f"{label} is booting ..."
        return f"\r\n{label} con{self._number} is now available\r\n\r\n{shown}".encode()

    async def _take_keys(self, keys: bytes) -> None:
        """Show what follows from keys. Others have their turn between two of them: a few may be many commands."""
        if keys and not self._node.is_booted:
            self._broadcast(b"\r\n% The node is booting; try again in a moment\r\n")
            return
        shown, turn = bytearray(), TimeSlice()
        for part in self._editor.press(keys):
            shown += part.encode()
            if turn.is_over():
                self._broadcast(bytes(shown))
                shown.clear()
                await turn.yield_if_over()
        self._broadcast(bytes(shown))

    def _broadcast(self, shown: bytes) -> None:
        if not shown:
            return
        for writer in list(self._writers):
            writer.write(shown)
            if writer.transport.get_write_buffer_size() > _MAX_BEHIND:
                writer.transport.abort()
