"""Secrets that are known again wherever they come to light: in clear, or in a form that anybody can undo."""

import base64
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

_SHOWN = 60


@dataclass
class Canary:
    """A mark that is part of every secret, and everything that was seen of a system which must not hold it."""

    mark: str = field(default_factory=lambda: f"kNrY{secrets.token_hex(10)}")
    found: list[str] = field(default_factory=list)
    looked_at: int = 0

    def secret(self, place: str) -> str:
        """Give a secret for a place; its name tells where a leak comes from."""
        return f"{self.mark}-{re.sub('[^A-Za-z0-9]+', '-', place)}"

    def key(self) -> str:
        """Give a key for seals, 32 bytes in base64, that has the mark in it."""
        return self.mark.ljust(43, "A") + "="

    def look(self, where: str, data: bytes | str, *others: str) -> None:
        """Look for the mark, and for other texts, in what came out of somewhere."""
        raw = data.encode() if isinstance(data, str) else data
        low = raw.lower()
        self.looked_at += 1
        for text in (self.mark, *others):
            for form, needle in _forms(text).items():
                if (at := low.find(needle)) >= 0:
                    near = raw[max(0, at - _SHOWN) : at + len(needle) + _SHOWN]
                    self.found.append(f"{where}: {form}: {near!r}")

    def look_into(self, folder: Path, *others: str) -> None:
        """Look into every file of a folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.look(str(path), path.read_bytes(), *others)


@cache
def _forms(text: str) -> dict[str, bytes]:
    return {form: needle.lower() for form, needle in _written(text.encode())}


def _written(raw: bytes) -> Iterator[tuple[str, bytes]]:
    yield "in clear", raw
    yield "backwards", raw[::-1]
    yield "in hex", raw.hex().encode()
    yield "percent-encoded", b"".join(b"%%%02x" % byte for byte in raw)
    for shift in range(3):
        whole = base64.b64encode(bytes(shift) + raw + bytes(2))
        inner = whole[(shift * 8 + 5) // 6 : (shift + len(raw)) * 8 // 6]
        yield f"in base64, {shift}", inner
        yield f"in base64url, {shift}", inner.replace(b"+", b"-").replace(b"/", b"_")
