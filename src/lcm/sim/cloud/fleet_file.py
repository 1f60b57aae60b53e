"""The file of a simulated cloud: its account, licences and hosts as one JSON document. Used by `sim.cloud.fleet`.

A part is encoded when it changed, however many others there are; all of them are written together, in a thread. They
are decoded one by one, and joined a few at a time: while that is done, in whatever thread, no other thread runs.
"""

import asyncio
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from lcm.model.base.errors import Stuck
from lcm.providers.protocols.compute import Image
from lcm.sim.cloud.account import AccountState
from lcm.sim.cloud.compute import PastLaunch
from lcm.sim.cloud.machines import SimMachine
from lcm.sim.cml.engine import CmlSnapshot, decode_timeline, encode_timeline

_FILE_FORMAT: Final = 1
_JOINED_PARTS: Final = 100
_encode: Final = msgspec.json.Encoder(enc_hook=encode_timeline).encode


class FleetContent(msgspec.Struct, frozen=True):
    """The content of the file."""

    form: int
    account: AccountState
    launches: tuple[PastLaunch, ...]
    taken: dict[str, str]
    hosts: dict[str, CmlSnapshot]


class _AccountOutline(msgspec.Struct, frozen=True):
    images: dict[str, list[tuple[Image, str]]]
    machines: dict[str, msgspec.Raw]
    addresses: int


class _Outline(msgspec.Struct, frozen=True):
    """The content of the file, of which the parts are yet to be decoded."""

    form: int
    account: msgspec.Raw
    launches: msgspec.Raw
    taken: dict[str, str]
    hosts: msgspec.Raw


_decode_outline: Final = msgspec.json.Decoder(_Outline).decode
_decode_account: Final = msgspec.json.Decoder(_AccountOutline).decode
_decode_list: Final = msgspec.json.Decoder(tuple[msgspec.Raw, ...]).decode
_decode_table: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_machine: Final = msgspec.json.Decoder(SimMachine).decode
_decode_launch: Final = msgspec.json.Decoder(PastLaunch).decode
_decode_host: Final = msgspec.json.Decoder(CmlSnapshot, dec_hook=decode_timeline).decode


def _decode(data: bytes) -> FleetContent:
    """Return the content. Raises msgspec.MsgspecError when it cannot be understood."""
    outline = _decode_outline(data)
    account = _decode_account(outline.account)
    machines = {name: _decode_machine(one) for name, one in account.machines.items()}
    return FleetContent(
        outline.form,
        AccountState(account.images, machines, account.addresses),
        tuple(_decode_launch(one) for one in _decode_list(outline.launches)),
        outline.taken,
        {name: _decode_host(one) for name, one in _decode_table(outline.hosts).items()},
    )


class FleetFile:
    """Knows what is in the file, part by part, and writes it anew when a part changed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._images = self._taken = b"{}"
        self._known_taken: dict[str, str] = {}
        self._addresses = 0
        self._machines: dict[str, bytes] = {}
        self._hosts: dict[str, bytes] = {}
        self._launches: dict[tuple[str, str], bytes] = {}
        self._is_changed = not file.exists()
        self._writing = asyncio.Lock()

    def read(self) -> FleetContent | None:
        """Read the file; None if there is none. Raises Stuck when it cannot be understood."""
        if not self._file.exists():
            return None
        try:
            known = _decode(self._file.read_bytes())
        except (OSError, msgspec.MsgspecError) as error:
            remedy = "remove the file to begin with an empty one"
            message = f"{self._file}: the simulated cloud cannot be read ({error}); {remedy}"
            raise Stuck("SimulatedCloudUnreadable", message) from error
        for machine in known.account.machines.values():
            self.put_machine(machine)
        for instance_id, snapshot in known.hosts.items():
            self.put_host(instance_id, snapshot)
        self.put_account(known.account.images, known.account.addresses)
        self.put_launches(known.launches)
        self.put_licences(known.taken)
        self._is_changed = False
        return known

    def put_account(self, images: Mapping[str, Sequence[tuple[Image, str]]], addresses: int) -> None:
        """Set the images, and how many addresses were given out."""
        before, self._images, self._addresses = (self._images, self._addresses), _encode(images), addresses
        self._note_change(before != (self._images, addresses))

    def put_machine(self, machine: SimMachine) -> None:
        """Set the state of a machine."""
        self._put(self._machines, machine.instance_id, machine)

    def put_host(self, instance_id: str, snapshot: CmlSnapshot | None) -> None:
        """Set the state of what runs on a machine; None if that is gone for good."""
        if snapshot is None:
            self._note_change(self._hosts.pop(instance_id, None) is not None)
        else:
            self._put(self._hosts, instance_id, snapshot)

    def put_launches(self, launches: Iterable[PastLaunch]) -> None:
        """Add launches that are not there yet."""
        for one in launches:
            if (one.region, one.token) not in self._launches:
                self._launches[one.region, one.token] = _encode(one)
                self._is_changed = True

    def put_licences(self, taken: Mapping[str, str]) -> None:
        """Set the licences that are taken."""
        if taken != self._known_taken:
            self._known_taken, self._taken = dict(taken), _encode(taken)
            self._is_changed = True

    async def write(self) -> None:
        """Write the file if something changed since it was last written. Raises Stuck when it cannot be written."""
        async with self._writing:
            if not self._is_changed:
                return
            self._is_changed = False
            try:
                await asyncio.to_thread(_replace_file, self._file, self._content())
            except Stuck:
                self._is_changed = True
                raise

    def _content(self) -> Iterable[bytes]:
        """Return the document as it is now, in pieces that are made as they are taken."""
        head = b'{"form":%d,"account":{"images":%s,"addresses":%d,"machines":{'
        return chain(
            [head % (_FILE_FORMAT, self._images, self._addresses)],
            _with_commas(list(self._machines.values())),
            [b'}},"launches":['],
            _with_commas(list(self._launches.values())),
            [b'],"taken":%s,"hosts":{' % self._taken],
            _with_commas(list(self._hosts.values())),
            [b"}}"],
        )

    def _put(self, into: dict[str, bytes], name: str, value: object) -> None:
        text = b"%s:%s" % (_encode(name), _encode(value))
        self._note_change(into.get(name) != text)
        into[name] = text

    def _note_change(self, changed: bool) -> None:  # noqa: FBT001 - it is what is noted
        self._is_changed = self._is_changed or changed


def _with_commas(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Yield parts with commas between them, many at a time."""
    for at in range(0, len(parts), _JOINED_PARTS):
        yield b"," * (at > 0) + b",".join(parts[at : at + _JOINED_PARTS])


def _replace_file(file: Path, pieces: Iterable[bytes]) -> None:
    """Replace a file, completely or not at all."""
    new_file = file.with_suffix(".new")
    try:
        with os.fdopen(os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
            out.writelines(pieces)
        new_file.replace(file)
    except OSError as error:
        message = f"{file}: the simulated cloud cannot be saved ({error.strerror}); check the folder and its disk"
        raise Stuck("SimulatedCloudNotKept", message) from error
