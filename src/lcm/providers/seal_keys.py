"""The keys of sealed secrets: a file that only its owner may read, or a text from the environment.

One key a line, in base64; the first one seals, the others only open. `compose` reads them at start, and `lcm up` has
the file made. To change keys where several machines share them, give each the new key as its second one, then as its
first one, have everything sealed anew, and only then take the old one away.
"""

import base64
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from lcm.model.errors import Fault, Invalid, LcmError, Stuck
from lcm.providers.files import open_plain, read_plain, translate
from lcm.providers.sealed import KEY_BYTES, NO_SEAL_KEY

EXPOSED: Final = "SealKeyExposed"
"""Others may read the file, so its keys protect nothing."""

_LIMIT_BYTES: Final = 64 * 1024
_COMMENT: Final = "# The first key seals, the others only open. Without them, sealed secrets are lost.\n"
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def parse_keys(text: str, where: str) -> list[bytes]:
    """Read keys in base64, set apart by commas or white space. Raises Invalid, which names only where it was."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    words = " ".join(lines).replace(",", " ").split()
    keys = [_key(word) for word in words]
    if not keys or None in keys:
        raise Invalid(Fault(where, "not keys", f"write {KEY_BYTES} random bytes in base64 for each key"))
    return list(dict.fromkeys(key for key in keys if key))


def read_keys(path: Path) -> list[bytes]:
    """Read the file. Raises Stuck when it is missing or not its owner's alone, Invalid when it does not hold keys."""
    with _translated(path), ExitStack() as stack:
        try:
            fd = open_plain(Path(os.path.realpath(path)), stack)
        except FileNotFoundError:
            raise Stuck(NO_SEAL_KEY, f"{path} does not exist; give the file with the keys of sealed secrets") from None
        facts = os.fstat(fd)
        if stat.S_IMODE(facts.st_mode) & 0o077 or facts.st_uid not in {0, os.geteuid()}:
            raise Stuck(EXPOSED, f"{path} can be read by others; make it your own with mode 0600")
        text = read_plain(fd, str(path), _LIMIT_BYTES).data.decode(errors="replace")
    return parse_keys(text, str(path))


def ensure_keys(path: Path, *, new_key: Callable[[], bytes]) -> list[bytes]:
    """Read the file, made with one new key where there is none. Of several who make it at once, one does."""
    with _translated(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _alone(path):
            if not os.path.lexists(path):
                _write(path, [new_key()])
    return read_keys(path)


def add_key(path: Path, key: bytes) -> list[bytes]:
    """Let a new key seal from now on; the others still open. Returns all of them, as `read_keys` would."""
    with _translated(path), _alone(path):
        _write(path, [key, *read_keys(path)])
    return read_keys(path)


def keep_first_key(path: Path) -> list[bytes]:
    """Forget all keys but the one that seals. What others sealed is lost: have it sealed anew before."""
    with _translated(path), _alone(path):
        _write(path, read_keys(path)[:1])
    return read_keys(path)


def _key(word: str) -> bytes | None:
    try:
        key = base64.b64decode(word.replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep others from changing the file meanwhile: a key lost between two writers is lost with all that it sealed."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
        os.fsync(fd)
    finally:
        os.close(fd)


def _write(path: Path, keys: Sequence[bytes]) -> None:
    draft = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        draft.unlink()  # of somebody who was killed
    with os.fdopen(os.open(draft, _NEW, 0o600), "w", encoding="ascii") as file:
        file.write(_COMMENT + "".join(f"{base64.b64encode(key).decode()}\n" for key in keys))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem: LcmError = translate(error, path)
        raise problem from error
