"""A prompt like that of IOS: enough to look around, to configure interfaces, and to see that it was kept.

Made by `sim.cml.console.line` for routers, switches and firewalls. What is entered is the node's running configuration
at once, so that every console of the node shows it, and CML extracts it when the lab is collected. A node that is
stopped starts again with what was saved by `write memory`.
"""

import re
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv4Interface
from typing import Final, Protocol

from lcm.sim.cml.console.configuration import (
    MAX_BYTES,
    NO_ADDRESS,
    SHUTDOWN,
    ConfigurationBlock,
    DeviceConfiguration,
    find_hostname,
)
from lcm.sim.cml.console.words import ADDRESS, LINE, WORD, ConsoleCommand, WrongCommand, find_command, list_next_words
from lcm.sim.cml.parts import Node

USER, PRIVILEGED, CONFIGURE, INTERFACE = "user", "privileged", "configure", "interface"
_EXEC: Final = frozenset({USER, PRIVILEGED})
_ENABLED: Final = frozenset({PRIVILEGED})
_CONFIGURING: Final = frozenset({CONFIGURE, INTERFACE})
_ON_INTERFACE: Final = frozenset({INTERFACE})
_ALL: Final = _EXEC | _CONFIGURING
_PROMPTS: Final = {USER: ">", PRIVILEGED: "#", CONFIGURE: "(config)#", INTERFACE: "(config-if)#"}
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")
_INTERFACE_NAME: Final = re.compile(r"([A-Za-z-]+)\s*([0-9/.]*)")
_MAX_DESCRIPTION: Final = 240
_INVALID: Final = "% Invalid input detected at '^' marker."


class NodeView(Protocol):
    """The node behind a console, as it is now, and the lab that it is in."""

    @property
    def node(self) -> Node:
        """The node. Raise ConnectionError when it is gone."""
        ...

    def read(self) -> str:
        """Return its running configuration."""
        ...

    def write(self, text: str) -> None:
        """Replace its running configuration."""
        ...

    def save(self) -> None:
        """Keep its running configuration on its disk, from which it starts again."""
        ...

    def is_reachable(self, address: IPv4Address) -> bool:
        """Return whether something in the lab has an address, and is up."""
        ...

    def uptime_minutes(self) -> int:
        """Return for how many minutes it has been up."""
        ...


class IosDialog:
    """One line's dialog with a device: its mode, and what its commands do."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._mode = USER
        self._interface = ""

    @property
    def prompt(self) -> str:
        name = find_hostname(self._view.read()) or _clean(self._view.node.spec.label)
        return name[:20] + _PROMPTS[self._mode]

    def run(self, line: str) -> str:
        """Perform a line, and return what it prints."""
        if not line.strip() or line.lstrip().startswith("!"):
            return ""
        try:
            command, given = find_command(self._commands(), line)
            return command.run(self, *given)
        except WrongCommand as error:
            marker = "" if error.column < 0 else " " * (len(self.prompt) + error.column) + "^\n"
            return f"{marker}{error}\n"

    def show_help(self, line: str) -> str:
        """Return what may follow the line as typed so far."""
        found = list_next_words(self._commands(), line)
        width = max((len(word) for word, _ in found), default=0)
        return "".join(f"  {word:{width}}  {text}\n" for word, text in found) or "% Unrecognized command\n"

    def complete(self, line: str) -> str:
        """Return the rest of the word at the end of the line, if it can only be one."""
        typed = line.rpartition(" ")[2].lower()
        words = [word for word, _ in list_next_words(self._commands(), line) if word.islower()]
        return words[0][len(typed) :] + " " if typed and len(words) == 1 else ""

    def interrupt(self) -> str:
        """Take Ctrl-C: out of configuring."""
        return self._leave_configuring()

    def end(self) -> str:
        """Take Ctrl-Z: the same as `end`."""
        return self._leave_configuring()

    def _commands(self) -> list[ConsoleCommand]:
        return [one for one in COMMANDS if self._mode in one.modes]

    def _device(self) -> DeviceConfiguration:
        node = self._view.node
        physical = [one.label for one in node.interfaces if not one.label.startswith("Loopback")]
        return DeviceConfiguration.parse(self._view.read(), _clean(node.spec.label), physical)

    def _change(self, change: Callable[[DeviceConfiguration], str | None]) -> str:
        device = self._device()
        refusal = change(device)
        text = device.write()
        if refusal is not None or len(text) > MAX_BYTES:
            return f"{refusal or '% The configuration is too long'}\n"
        self._view.write(text)
        return ""

    def _change_interface(self, change: Callable[[ConfigurationBlock], None]) -> str:
        block_name = self._interface

        def apply(device: DeviceConfiguration) -> str | None:
            block = device.find_interface(block_name)
            if block is None:
                return "% The interface is gone"
            change(block)
            return None

        return self._change(apply)

    def _leave_configuring(self) -> str:
        if self._mode in _CONFIGURING:
            self._mode = PRIVILEGED
        return ""

    def enable(self) -> str:
        self._mode = PRIVILEGED
        return ""

    def disable(self) -> str:
        self._mode = USER
        return ""

    def configure(self) -> str:
        self._mode = CONFIGURE
        return "Enter configuration commands, one per line.  End with CNTL/Z.\n"

    def leave(self) -> str:
        """Go one mode up; from the outermost to the beginning."""
        self._mode = {INTERFACE: CONFIGURE, CONFIGURE: PRIVILEGED}.get(self._mode, USER)
        return ""

    def set_hostname(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            return "% Hostname contains one or more illegal characters.\n"
        return self._change(lambda device: setattr(device, "hostname", name))

    def enter_interface(self, typed: str) -> str:
        device = self._device()
        name = _find_interface(device, typed)
        if not name:
            return f"{' ' * (len(self.prompt) + len('interface '))}^\n{_INVALID}\n"
        if device.find_interface(name) is None:
            refusal = self._change(lambda one: None if one.add_interface(name) else "% Too many interfaces")
            if refusal:
                return refusal
        self._mode, self._interface = INTERFACE, name
        return ""

    def set_address(self, address: str, mask: str) -> str:
        try:
            wanted = IPv4Interface(f"{address}/{mask}")
        except ValueError:
            return f"Bad mask {mask} for address {address}\n"
        overlap = next(
            (
                one.interface
                for one in self._device().interfaces
                if one.interface != self._interface and one.address and one.address.network.overlaps(wanted.network)
            ),
            "",
        )
        if overlap:
            return f"% {wanted.network.network_address} overlaps with {overlap}\n"
        line = f"ip address {wanted.ip} {wanted.netmask}"
        return self._change_interface(lambda block: block.put(line, "ip address", NO_ADDRESS))

    def remove_address(self) -> str:
        return self._change_interface(lambda block: block.put(NO_ADDRESS, "ip address", NO_ADDRESS))

    def describe(self, text: str) -> str:
        line = f"description {text[:_MAX_DESCRIPTION]}"
        return self._change_interface(lambda block: block.put(line, "description "))

    def undescribe(self) -> str:
        return self._change_interface(lambda block: block.drop("description "))

    def shut(self) -> str:
        return self._change_interface(lambda block: block.put(SHUTDOWN, SHUTDOWN))

    def unshut(self) -> str:
        name = self._interface
        refusal = self._change_interface(lambda block: block.drop(SHUTDOWN))
        return refusal or f"%LINK-3-UPDOWN: Interface {name}, changed state to up\n"

    def show_version(self) -> str:
        node, device = self._view.node, self._device()
        minutes = self._view.uptime_minutes()
        lines = [
            f"Cisco IOS Software, {node.kind.id} Software, simulated by the Lablet Cloud Manager",
            f"{device.hostname} uptime is {minutes // 60} hours, {minutes % 60} minutes",
            f"{node.kind.id} ({node.kind.nature}) with {node.ram_mb * 1024}K bytes of memory.",
            f"{len(node.interfaces)} interfaces",
            "Configuration register is 0x2102",
        ]
        return "\n".join(lines) + "\n"

    def show_interfaces(self) -> str:
        heading = f"{'Interface':<23}{'IP-Address':<16}{'OK? Method Status':<40}Protocol"
        return "\n".join([heading, *map(_brief_line, self._device().interfaces)]) + "\n"

    def show_configuration(self) -> str:
        text = self._device().write()
        return f"Building configuration...\n\nCurrent configuration : {len(text)} bytes\n!\n{text}"

    def save(self) -> str:
        self._view.write(self._device().write())
        self._view.save()
        return "Building configuration...\n[OK]\n"

    def ping(self, address: str) -> str:
        is_there = self._view.is_reachable(IPv4Address(address))
        marks, rate = ("!!!!!", 100) if is_there else (".....", 0)
        timing = ", round-trip min/avg/max = 1/2/4 ms" if is_there else ""
        return (
            f"Type escape sequence to abort.\nSending 5, 100-byte ICMP Echos to {address}, timeout is 2 seconds:\n"
            f"{marks}\nSuccess rate is {rate} percent ({rate // 20}/5){timing}\n"
        )

    def do(self, line: str) -> str:
        """Perform a command of the privileged mode while configuring."""
        mode, self._mode = self._mode, PRIVILEGED
        try:
            return self.run(line)
        finally:
            self._mode = mode


def _brief_line(block: ConfigurationBlock) -> str:
    address = str(block.address.ip) if block.address else "unassigned"
    method = "manual" if block.address else "unset"
    status, protocol = ("up", "up") if block.is_up else ("administratively down", "down")
    state = f"YES {method:<6} {status}"
    return f"{block.interface:<23}{address:<16}{state:<40}{protocol}"


def _find_interface(device: DeviceConfiguration, typed: str) -> str:
    """Return the name of the interface that somebody means; a loopback need not exist. Empty when there is none."""
    found = _INTERFACE_NAME.fullmatch(typed.strip())
    if found is None:
        return ""
    kind, number = found[1].lower(), found[2]
    for block in device.interfaces:
        known = _INTERFACE_NAME.fullmatch(block.interface)
        if known is not None and known[1].lower().startswith(kind) and known[2] == number:
            return block.interface
    return f"Loopback{number}" if "loopback".startswith(kind) and number.isdigit() and len(number) <= 9 else ""  # noqa: PLR2004


def _clean(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", label)[:63] or "node"


def _rows() -> Iterator[ConsoleCommand]:
    yield _row("enable", {USER, PRIVILEGED}, "Turn on privileged commands", IosDialog.enable)
    yield _row("disable", _ENABLED, "Turn off privileged commands", IosDialog.disable)
    yield _row("show version", _EXEC, "Show running system information", IosDialog.show_version)
    yield _row("show ip interface brief", _EXEC, "Show running system information", IosDialog.show_interfaces)
    yield _row("show running-config", _ENABLED, "Show running system information", IosDialog.show_configuration)
    yield _row("configure terminal", _ENABLED, "Enter configuration mode", IosDialog.configure)
    yield _row("write memory", _ENABLED, "Write running configuration to memory", IosDialog.save)
    yield _row("write", _ENABLED, "Write running configuration to memory", IosDialog.save)
    yield _row("copy running-config startup-config", _ENABLED, "Copy from one file to another", IosDialog.save)
    yield _row(f"ping {ADDRESS}", _EXEC, "Send echo messages", IosDialog.ping)
    yield _row("exit", _ALL, "Exit from the current mode", IosDialog.leave)
    yield _row("logout", _EXEC, "Exit from the EXEC", IosDialog.disable)
    yield _row("end", _CONFIGURING, "Exit from configure mode", IosDialog.end)
    yield _row(f"do {LINE}", _CONFIGURING, "Run exec commands in config mode", IosDialog.do)
    yield _row(f"hostname {WORD}", _CONFIGURING, "Set system's network name", IosDialog.set_hostname)
    yield _row(f"interface {LINE}", _CONFIGURING, "Select an interface to configure", IosDialog.enter_interface)
    yield _row(f"ip address {ADDRESS} {ADDRESS}", _ON_INTERFACE, "Interface IP commands", IosDialog.set_address)
    yield _row("no ip address", _ON_INTERFACE, "Negate a command", IosDialog.remove_address)
    yield _row(f"description {LINE}", _ON_INTERFACE, "Interface specific description", IosDialog.describe)
    yield _row("no description", _ON_INTERFACE, "Negate a command", IosDialog.undescribe)
    yield _row("shutdown", _ON_INTERFACE, "Shutdown the selected interface", IosDialog.shut)
    yield _row("no shutdown", _ON_INTERFACE, "Negate a command", IosDialog.unshut)


def _row(words: str, modes: set[str] | frozenset[str], text: str, run: Callable[..., str]) -> ConsoleCommand:
    return ConsoleCommand(tuple(words.split()), frozenset(modes), text, run)


COMMANDS: Final = tuple(_rows())
