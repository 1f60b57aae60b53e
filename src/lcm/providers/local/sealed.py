"""Secrets encrypted at rest: `sealed:KEYID:USE:BASE64URL(nonce|ciphertext)`, by AES-256-GCM; and the keys for that.

Admission seals what people write in clear, `protocols.secrets` opens it for whoever needs it, key rotation seals it
anew. A sealed text is bound to the installation by its key, and to its use (kind and field), which is authenticated
with it: whoever opens a text compares its use with the one at hand. It is not bound to an object: a pool copies its
template's spec into the workers that it makes, and a restore may bring objects back elsewhere; such copies could not be
opened. Texts of older versions name no use, and open everywhere they stand.

Keys stand in a file that only its owner may read, or in a text from the environment: one key a line, in base64; the
first one seals, the others only open. `lcm up` creates the file. `InstalledKeys`, made by `compose`, reads nothing
before it is needed, and reads a changed file anew, so that every process on it seals with the new key at once. To
change keys where several machines share them, give each the new key as its second one, then as its first one, have
everything sealed anew, and only then remove the old one.
"""

import base64
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from lcm.model.access.secret import SEALED_FORM, Secret, use_of
from lcm.model.base.errors import Fault, Invalid, Refused, Stuck, TooLarge
from lcm.providers.local.files import open_regular, read_open, translate_os_error
from lcm.system.clock import new_nonce, new_seal_key

KEY_BYTES: Final = 32
MAX_BYTES: Final = 3000
"""The longest secret: sealed, it must still fit into a reference."""
UNSEALABLE: Final = "SecretUnsealable"
"""The text was changed, or is not what was sealed."""
NO_SEAL_KEY: Final = "SealKeyMissing"
"""The text was sealed with a key that we do not have."""

_NONCE_BYTES: Final = 12


class KeyRing:
    """Keys by their fingerprints. The first one seals, all of them open."""

    def __init__(self, keys: Sequence[bytes], *, new_nonce: Callable[[], bytes]) -> None:
        assert keys
        assert all(len(key) == KEY_BYTES for key in keys)
        self._ciphers = {fingerprint(key): AESGCM(key) for key in keys}
        self._current = fingerprint(keys[0])
        self._new_nonce = new_nonce

    @property
    def current(self) -> str:
        """The id of the key that seals."""
        return self._current

    def seal(self, secret: Secret, use: str) -> str:
        """Encrypt a secret for a use; the same secret gives a different text each time. Raises Invalid, TooLarge."""
        clear = secret.reveal().encode(errors="replace")
        if not clear or clear.decode() != secret.reveal():
            raise Invalid(Fault("secret", "empty, or not a text", "write the secret"))
        if len(clear) > MAX_BYTES:
            raise TooLarge(f"a secret to be sealed has at most {MAX_BYTES} bytes")
        nonce = self._new_nonce()
        assert len(nonce) == _NONCE_BYTES
        sealed = nonce + self._ciphers[self._current].encrypt(nonce, clear, _associated_data(self._current, use))
        bound = f"{self._current}:{use}" if use else self._current
        return f"sealed:{bound}:{base64.urlsafe_b64encode(sealed).rstrip(b'=').decode()}"

    def unseal(self, text: str) -> Secret:
        """Decrypt a sealed text. Raises Stuck when it was not sealed here, or was changed since."""
        form = SEALED_FORM.fullmatch(text)
        if form is None:
            raise Stuck(UNSEALABLE, f"{sealed_label(text)} is not a sealed text")
        if (cipher := self._ciphers.get(form["key"])) is None:
            raise Stuck(
                NO_SEAL_KEY,
                f"{sealed_label(text)} was sealed with a key that is not here; give its key besides the others",
            )
        body, bound = form["body"], _associated_data(form["key"], form["use"] or "")
        whole = len(body) % 4 != 1  # base64 never has a length of 4n + 1
        sealed = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)) if whole else b""
        try:
            clear = cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], bound)
        except (InvalidTag, ValueError):  # ValueError: the text is too short to hold anything
            raise Stuck(UNSEALABLE, f"{sealed_label(text)} is not as it was sealed; write the secret again") from None
        return Secret(clear.decode())

    def reseal(self, text: str) -> str:
        """Seal with the current key what an older one sealed; unchanged when it is current. Raises as `unseal`."""
        return text if text.startswith(f"sealed:{self._current}:") else self.seal(self.unseal(text), use_of(text))


def fingerprint(key: bytes) -> str:
    """Return a key's id, derived from the key, so that no two keys can have the same id by mistake."""
    return hashlib.sha256(b"lcm seal key " + key).hexdigest()[:12]


def sealed_label(text: str) -> str:
    """Return a short form of a sealed text, with only its key id; the rest would fill a screen."""
    form = SEALED_FORM.fullmatch(text)
    return f"sealed:{form['key']}:…" if form else "sealed:…"


def _associated_data(key_id: str, use: str) -> bytes:
    return f"lcm sealed v2 {key_id} {use}".encode() if use else f"lcm sealed v1 {key_id}".encode()


EXPOSED: Final = "SealKeyExposed"
"""Others may read the file, so its keys protect nothing."""

_LIMIT_BYTES: Final = 64 * 1024
_COMMENT: Final = "# The first key seals, the others only open. Without them, sealed secrets are lost.\n"
_NEW_FILE_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def parse_keys(text: str, where: str) -> list[bytes]:
    """Parse keys in base64, separated by commas or white space. Raises Invalid, which names only the source."""
    lines = (line.partition("#")[0] for line in text.splitlines())
    words = " ".join(lines).replace(",", " ").split()
    keys = [_decode_key(word) for word in words]
    if not keys or None in keys:
        raise Invalid(Fault(where, "not keys", f"write {KEY_BYTES} random bytes in base64 for each key"))
    return list(dict.fromkeys(key for key in keys if key))


def read_keys(path: Path) -> list[bytes]:
    """Read the key file.

    Raises Stuck when it is missing or others may read it, Invalid when it does not hold keys.
    """
    with _translate_errors(path), ExitStack() as stack:
        try:
            fd = open_regular(Path(os.path.realpath(path)), stack)
        except FileNotFoundError:
            raise Stuck(NO_SEAL_KEY, f"{path} does not exist; give the file with the keys of sealed secrets") from None
        facts = os.fstat(fd)
        if stat.S_IMODE(facts.st_mode) & 0o077 or facts.st_uid not in {0, os.geteuid()}:
            raise Stuck(EXPOSED, f"{path} can be read by others; make it your own with mode 0600")
        text = read_open(fd, str(path), _LIMIT_BYTES).data.decode(errors="replace")
    return parse_keys(text, str(path))


def ensure_keys(path: Path, *, new_key: Callable[[], bytes]) -> list[bytes]:
    """Read the key file; create it with one new key if there is none. Of several callers at once, one creates it."""
    with _translate_errors(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _exclusive(path):
            if not os.path.lexists(path):
                _write_keys(path, [new_key()])
    return read_keys(path)


def add_key(path: Path, key: bytes) -> list[bytes]:
    """Make a new key the one that seals; the others still open. Return all of them, as `read_keys` would."""
    with _translate_errors(path), _exclusive(path):
        _write_keys(path, [key, *read_keys(path)])
    return read_keys(path)


def keep_first_key(path: Path) -> list[bytes]:
    """Remove all keys but the one that seals. What others sealed is lost, so reseal it before."""
    with _translate_errors(path), _exclusive(path):
        _write_keys(path, read_keys(path)[:1])
    return read_keys(path)


def _decode_key(word: str) -> bytes | None:
    try:
        key = base64.b64decode(word.replace("-", "+").replace("_", "/"), validate=True)
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Keep others from changing the file meanwhile: a key lost between two writers is lost with all that it sealed."""
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_keys(path: Path, keys: Sequence[bytes]) -> None:
    draft = path.with_name(f".{path.name}.new")
    with suppress(FileNotFoundError):
        draft.unlink()  # left by a killed process
    with os.fdopen(os.open(draft, _NEW_FILE_FLAGS, 0o600), "w", encoding="ascii") as file:
        file.write(_COMMENT + "".join(f"{base64.b64encode(key).decode()}\n" for key in keys))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise translate_os_error(error, path) from error


KEYS_VARIABLE: Final = "LCM_SEAL_KEYS"


class InstalledKeys:
    """The keys in use. The first key seals, all of them open."""

    def __init__(
        self,
        file: Path,
        *,
        given: Secret | None = None,
        new_key: Callable[[], bytes] = new_seal_key,
        new_nonce: Callable[[], bytes] = new_nonce,
    ) -> None:
        """Use the given keys, else those of a file. Raises Invalid when the given text is not keys."""
        self._file = file
        self._new_key = new_key
        self._new_nonce = new_nonce
        self._given = self._make_ring(parse_keys(given.reveal(), KEYS_VARIABLE)) if given else None
        self._read: KeyRing | None = None
        self._seen: tuple[int, ...] | None = None

    @property
    def current(self) -> str:
        return self._load_ring().current

    def seal(self, secret: Secret, use: str) -> str:
        return self._load_ring().seal(secret, use)

    def unseal(self, text: str) -> Secret:
        return self._load_ring().unseal(text)

    def grow(self) -> bool:
        if self._given is not None:
            return False
        add_key(self._file, self._new_key())
        return True

    def forget_others(self, *, settled_by: datetime) -> int:
        if self._given is not None:
            raise Refused(f"the keys are given by {KEYS_VARIABLE}: take the old ones out there, and start again")
        count = len(read_keys(self._file)) - 1
        if not count:
            return 0
        changed = datetime.fromtimestamp(self._file.stat().st_mtime, UTC)
        if changed > settled_by:
            raise Refused(
                f"the newest key is of {changed:%H:%M:%S} UTC: something that is under way may still use an older one;"
                " ask again some minutes later"
            )
        keep_first_key(self._file)
        return count

    def _load_ring(self) -> KeyRing:
        if self._given is not None:
            return self._given
        seen = _file_signature(self._file)
        if self._read is None or seen is None or seen != self._seen:
            self._read, self._seen = self._make_ring(read_keys(self._file)), seen
        return self._read

    def _make_ring(self, keys: Sequence[bytes]) -> KeyRing:
        return KeyRing(keys, new_nonce=self._new_nonce)


def _file_signature(path: Path) -> tuple[int, ...] | None:
    """Return a value that differs between states of a file; None if it cannot be read: the reader says why."""
    try:
        facts = os.stat(path)  # noqa: PTH116 - on the way of every secret
    except OSError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
