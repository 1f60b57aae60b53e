"""A prompt like that of a small Linux, for servers and desktops. Made by `sim.cml.console.line`.

Names, addresses and links that are set become lines of the node's file, which CML collects with the lab.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from ipaddress import AddressValueError, IPv4Address, IPv4Interface
from typing import Final

from lcm.sim.cml.console.configuration import MAX_BYTES
from lcm.sim.cml.console.ios import NodeView

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}")
_HOSTNAME: Final = re.compile(r"^hostname\s+(\S{1,63})\s*$", re.MULTILINE)
_ADDRESS: Final = re.compile(r"^ip address add (\S+) dev (\S+)\s*$", re.MULTILINE)
_DOWN: Final = re.compile(r"^ip link set (\S+) down\s*$", re.MULTILINE)
_MAX_LINES: Final = 500
_HELP: Final = "Commands: cat clear echo exit help hostname id ifconfig ip ls ping pwd sudo uname uptime whoami\n"


def find_addresses(text: str) -> Iterator[IPv4Interface]:
    """Yield the addresses that a node's file gives to links that are up."""
    down = set(_DOWN.findall(text))
    for address, link in _ADDRESS.findall(text):
        if link not in down:
            try:
                yield IPv4Interface(address)
            except ValueError:
                continue


class ShellDialog:
    """One line's dialog with a shell."""

    def __init__(self, view: NodeView) -> None:
        self._view = view
        self._programs: Mapping[str, Callable[[list[str]], str]] = {
            "cat": self._show_file,
            "clear": lambda _: "\x1b[H\x1b[2J",
            "echo": lambda words: " ".join(words) + "\n",
            "exit": lambda _: "",
            "help": lambda _: _HELP,
            "hostname": self._name_host,
            "id": lambda _: "uid=1000(cisco) gid=1000(cisco) groups=1000(cisco),27(sudo)\n",
            "ifconfig": lambda _: self._list_links(),
            "ip": self._configure_link,
            "ls": lambda _: "node.cfg\n",
            "ping": self._ping,
            "pwd": lambda _: "/home/cisco\n",
            "sudo": lambda words: self.run(" ".join(words)),
            "uname": lambda words: f"Linux {self._hostname} 6.6.0-lcm x86_64 Linux\n" if words else "Linux\n",
            "uptime": lambda _: f" up {self._view.uptime_minutes()} min,  1 user,  load average: 0.00, 0.01, 0.05\n",
            "whoami": lambda _: "cisco\n",
        }

    @property
    def prompt(self) -> str:
        return f"{self._hostname}:~$ "

    def run(self, line: str) -> str:
        """Perform a line, and return what it prints."""
        program, *words = line.split() or [""]
        if not program or program.startswith("#"):
            return ""
        known = self._programs.get(program)
        return known(words) if known else f"-ash: {program}: not found\n"

    def show_help(self, line: str) -> str:
        """Return what may follow the line as typed so far."""
        return _HELP if not line.strip() else ""

    def complete(self, line: str) -> str:
        """Return the rest of the word at the end of the line, if it can only be one."""
        fitting = [name for name in self._programs if line and name.startswith(line)]
        return fitting[0][len(line) :] + " " if len(fitting) == 1 else ""

    def interrupt(self) -> str:
        """Take Ctrl-C: there is never a program to stop."""
        return ""

    def end(self) -> str:
        """Take Ctrl-Z, likewise."""
        return ""

    @property
    def _hostname(self) -> str:
        named = _HOSTNAME.findall(self._view.read())
        return named[-1] if named else re.sub(r"[^A-Za-z0-9.-]", "-", self._view.node.spec.label)[:63] or "node"

    def _name_host(self, words: list[str]) -> str:
        if not words:
            return f"{self._hostname}\n"
        if not _NAME.fullmatch(words[0]):
            return "hostname: invalid name\n"
        return self._record(f"hostname {words[0]}", "hostname ")

    def _show_file(self, words: list[str]) -> str:
        files = {"node.cfg": self._view.read(), "/etc/hostname": f"{self._hostname}\n"}
        shown = [files.get(name, f"cat: {name}: No such file or directory\n") for name in words]
        return "".join(text if text.endswith("\n") or not text else f"{text}\n" for text in shown)

    def _configure_link(self, words: list[str]) -> str:
        links = [one.label for one in self._view.node.interfaces]
        match words:
            case ["a" | "addr" | "address"] | ["link"]:
                return self._list_links()
            case ["a" | "addr" | "address", "add", address, "dev", link] if link in links:
                try:
                    wanted = IPv4Interface(address)
                except ValueError:
                    return f'Error: any valid prefix is expected rather than "{address}".\n'
                return self._record(f"ip address add {wanted} dev {link}")
            case ["link", "set", link, "up" | "down" as state] if link in links:
                return self._record(f"ip link set {link} {state}", f"ip link set {link} ")
            case ["link", "set", *_] | [_, "add", _, "dev", _]:
                return "Cannot find device\n"
        return "Usage: ip address [add ADDRESS/PREFIX dev LINK] | ip link set LINK up|down\n"

    def _list_links(self) -> str:
        text = self._view.read()
        down, given = set(_DOWN.findall(text)), _ADDRESS.findall(text)
        lines: list[str] = []
        for number, one in enumerate(self._view.node.interfaces, 1):
            state = "DOWN" if one.label in down else "UP"
            lines += [f"{number}: {one.label}: <BROADCAST,MULTICAST,{state}> mtu 1500 state {state}"]
            lines += [f"    link/ether {one.operational_mac or '00:00:00:00:00:00'}"]
            lines += [f"    inet {address}" for address, link in given if link == one.label]
            lines += [f"    inet {one.ip4}/24"] if one.ip4 else []
        return "\n".join(lines) + "\n"

    def _ping(self, words: list[str]) -> str:
        try:
            address = IPv4Address(words[-1] if words else "")
        except AddressValueError:
            return f"ping: bad address '{words[-1] if words else ''}'\n"
        is_there = self._view.is_reachable(address)
        answers = [f"64 bytes from {address}: seq={n} ttl=64 time=1.{n} ms" for n in range(3)] if is_there else []
        lost = 0 if is_there else 100
        summary = f"3 packets transmitted, {len(answers)} packets received, {lost}% packet loss"
        return "\n".join(
            [f"PING {address}: 56 data bytes", *answers, f"--- {address} ping statistics ---", summary, ""]
        )

    def _record(self, line: str, replaced: str = "") -> str:
        """Add a line to the node's file, in place of those that begin so."""
        text = self._view.read()
        kept = [one for one in text.splitlines() if one != line and not (replaced and one.startswith(replaced))]
        if len(kept) >= _MAX_LINES or len(text) + len(line) >= MAX_BYTES:
            return "-ash: No space left on device\n"
        self._view.write("\n".join([*kept, line, ""]))
        self._view.save()
        return ""
