"""The configuration of a simulated router or switch: its text, read into blocks, changed and written again.

Used by `sim.cml.console.ios`. Blocks that nobody here understands stay as they are, so that what a learner enters and
what the lab's file said are collected together.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Interface
from typing import Final, Self

MAX_BYTES: Final = 65_536
MAX_INTERFACES: Final = 128
_HOSTNAME: Final = re.compile(r"hostname\s+(\S{1,63})")
_HOSTNAME_LINE: Final = re.compile(r"^hostname[ \t]{1,8}(\S{1,63})", re.MULTILINE)
_INTERFACE: Final = re.compile(r"interface\s+(\S.*)", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"ip address (\d+\.\d+\.\d+\.\d+) (\d+\.\d+\.\d+\.\d+)")
SHUTDOWN: Final = "shutdown"
NO_ADDRESS: Final = "no ip address"


@dataclass(slots=True)
class ConfigurationBlock:
    """A line of the configuration, with the indented lines below it."""

    head: str
    lines: list[str] = field(default_factory=list)
    interface: str = field(init=False)
    """The interface that the block is about, for good; empty when it is about something else."""

    def __post_init__(self) -> None:
        found = _INTERFACE.fullmatch(self.head)
        self.interface = found[1].strip() if found else ""

    def put(self, line: str, *replaced: str) -> None:
        """Set a line in place of those that begin with one of these words."""
        self.lines = [one for one in self.lines if not one.startswith(replaced)]
        self.lines.append(line)

    def drop(self, *beginnings: str) -> None:
        """Remove the lines that begin with one of these words."""
        self.lines = [one for one in self.lines if not one.startswith(beginnings)]

    @property
    def address(self) -> IPv4Interface | None:
        """The address of the interface; None without one, or with one that is none."""
        for line in self.lines:
            if found := _ADDRESS.match(line):
                try:
                    return IPv4Interface(f"{found[1]}/{found[2]}")
                except ValueError:
                    return None
        return None

    @property
    def is_up(self) -> bool:
        return SHUTDOWN not in self.lines


def find_hostname(text: str) -> str:
    """Return the hostname that a configuration sets; empty when it sets none."""
    found = _HOSTNAME_LINE.search(text)
    return found[1] if found else ""


class DeviceConfiguration:
    """The running configuration of one device."""

    def __init__(self, blocks: list[ConfigurationBlock]) -> None:
        self._blocks = blocks

    @classmethod
    def parse(cls, text: str, hostname: str, interfaces: Sequence[str]) -> Self:
        """Read a configuration; what it does not say of the hostname and the interfaces is as in a new device."""
        made = cls(list(_parse_blocks(text[:MAX_BYTES])))
        if not any(_HOSTNAME.match(one.head) for one in made._blocks):
            made._blocks.insert(0, ConfigurationBlock(f"hostname {hostname}"))
        known = {one.interface.lower() for one in made._blocks}
        made._add_interfaces([name for name in interfaces if name.lower() not in known])
        return made

    @property
    def hostname(self) -> str:
        return next(found[1] for one in self._blocks if (found := _HOSTNAME.match(one.head)))

    @hostname.setter
    def hostname(self, name: str) -> None:
        next(one for one in self._blocks if _HOSTNAME.match(one.head)).head = f"hostname {name}"

    @property
    def interfaces(self) -> list[ConfigurationBlock]:
        return [one for one in self._blocks if one.interface]

    def find_interface(self, name: str) -> ConfigurationBlock | None:
        """Return the block of an interface; None when there is none."""
        return next((one for one in self._blocks if one.interface.lower() == name.lower()), None)

    def add_interface(self, name: str) -> ConfigurationBlock | None:
        """Add an interface as a new device has it; None when there are too many."""
        return next(iter(self._add_interfaces([name])), None)

    def _add_interfaces(self, names: Sequence[str]) -> Sequence[ConfigurationBlock]:
        """Add interfaces after those that there are, as many as there may be; return the new ones."""
        numbers = [number for number, one in enumerate(self._blocks) if one.interface]
        fitting = names[: max(0, MAX_INTERFACES - len(numbers))]
        made = [ConfigurationBlock(f"interface {name}", _new_lines(name)) for name in fitting]
        after = max(numbers, default=0) + 1
        self._blocks[after:after] = made
        return made

    def write(self) -> str:
        """Return the configuration as text."""
        lines: list[str] = []
        for block in self._blocks:
            lines += [block.head, *(f" {line}" for line in block.lines), *(["!"] if block.lines else [])]
        return "\n".join([*lines, "end", ""])


def _new_lines(interface: str) -> list[str]:
    return [NO_ADDRESS] if interface.startswith("Loopback") else [NO_ADDRESS, SHUTDOWN]


def _parse_blocks(text: str) -> Iterator[ConfigurationBlock]:
    block: ConfigurationBlock | None = None
    for line in text.splitlines():
        stripped = line.strip()
        if stripped in ("", "!", "end"):
            continue
        if line[:1].isspace() and block is not None:
            if stripped != f"no {SHUTDOWN}":
                block.lines.append(stripped)
        else:
            if block is not None:
                yield block
            block = ConfigurationBlock(stripped)
    if block is not None:
        yield block
