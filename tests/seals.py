"""Keys of tests: known ones that are given, whose numbers used once are counted, or those of a file."""

import base64
import itertools
from collections.abc import Callable
from pathlib import Path

from lcm.model.access.secret import Secret
from lcm.providers.local.sealed import InstalledKeys, ensure_keys

OLD, NEW = bytes(range(32)), bytes(range(32, 64))


def counted() -> Callable[[], bytes]:
    """Give numbers that are used once, without chance."""
    numbers = itertools.count(1)
    return lambda: next(numbers).to_bytes(12)


def given_keys(*keys: bytes) -> InstalledKeys:
    """Give keys that come from the environment, the first of which seals."""
    text = ",".join(base64.b64encode(key).decode() for key in keys or (OLD,))
    return InstalledKeys(Path("/nowhere"), given=Secret(text), new_nonce=counted())


def kept_keys(folder: Path) -> InstalledKeys:
    """Give keys that are in a file, which is made if it is missing."""
    keys = (number.to_bytes(32) for number in itertools.count(1))
    ensure_keys(folder / "seal.key", new_key=lambda: OLD)
    return InstalledKeys(folder / "seal.key", new_key=lambda: next(keys), new_nonce=counted())
