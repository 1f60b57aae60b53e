"""Secrets that people write in clear, as `plain:TEXT`: sealed before anything keeps, compares or repeats a document.

Called by `local` on every way in, by `drafts` where a document meets what is stored, by `requests`, and for sinks. What
seals is handed in by `compose`, so that nothing here knows a cipher.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec
import structlog

from lcm.model.access.secret import PLAIN, SEALED, STAND_IN, Secret, secrets_in, strays, with_raw_secrets, with_secrets
from lcm.model.base.errors import Fault, Invalid, Refused, Stuck, TooLarge
from lcm.model.base.resource import Part, SecretRef
from lcm.model.kinds.validate import measure

S = TypeVar("S", bound=msgspec.Struct)
_KEYS: Final = "an operator must give the API its keys: LCM_SEAL_KEYS or LCM_SEAL_KEY_FILE"
_BELONGS: Final = "write plain:… into fields for secrets only"
_AGAIN: Final = "write it as plain:TEXT once more, or let `lcm secret seal` seal it here"
_log: Final = structlog.get_logger()


class ClearText(Part):
    """A secret to be sealed."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=3000)]


class SealedText(Part):
    """A secret as a document may hold it."""

    sealed: SecretRef


class Sealer(Protocol):
    """The keys of this installation. Every method raises Stuck while they cannot be read."""

    @property
    def current(self) -> str:
        """The id of the key that seals; it stands in what it sealed."""
        ...

    def seal(self, secret: Secret) -> str:
        """Encrypt a secret; twice the same gives different texts. Raises Invalid or TooLarge for what cannot be."""
        ...

    def unseal(self, text: str) -> Secret:
        """Decrypt a sealed text. Raises Stuck when it was not sealed here, or was changed since."""
        ...

    def grow(self) -> bool:
        """Let a new key seal from now on, besides the others; False where keys are given and cannot be added to."""
        ...

    def forget_others(self, *, settled_by: datetime) -> int:
        """Keep only the key that seals, and say how many are gone. Refused if it sealed nothing before that moment."""
        ...


@dataclass(frozen=True, slots=True)
class Sealing:
    """What admission does about secrets; without a sealer, whatever needs one is refused."""

    sealer: Sealer | None = None

    def raw(self, document: object, kind: type[msgspec.Struct] | None) -> tuple[Any, list[Fault]]:
        """Seal what a document has in clear before anybody looks at it; stand-ins take the places of what is faulty.

        Raises Invalid for a secret where no kind keeps one: there it would be shown.
        """
        if not _holds(document, PLAIN):
            return document, []
        measure(document)
        faults: list[Fault] = []

        def change(path: str, ref: str) -> str:
            if not ref.startswith(PLAIN):
                return ref
            try:
                return self._sealed(ref.removeprefix(PLAIN), path)
            except Invalid as error:
                faults.extend(error.faults)
                return STAND_IN

        made = with_raw_secrets(document, kind, change) if kind else document
        if _holds(made, PLAIN) and (lost := strays(_wanted(made))):
            raise Invalid(*faults, *(Fault(path, "a secret in clear, where none is kept", _BELONGS) for path in lost))
        return made, faults

    def typed(self, document: S) -> S:
        """Do the same to a document that code made; raises Invalid with every fault."""
        made, faults = self.raw(document, type(document))
        if faults:
            raise Invalid(*faults)
        sealed: S = made
        return sealed

    def kept(self, stored: S | None, wanted: S) -> S:
        """Hold a document against what is stored: the same secret keeps its text, another one must open.

        Sealing is chance: by their texts alone, no two documents would ever be the same.
        """
        if not _holds(wanted, SEALED):
            return wanted
        old = dict(secrets_in(stored)) if stored is not None else {}
        faults: list[Fault] = []

        def change(path: str, ref: str) -> str:
            before = old.get(path, "")
            if not ref.startswith(SEALED) or ref == before:
                return ref
            secret = self._opened(ref)
            if secret is None:
                faults.append(Fault(path, "a sealed text that cannot be opened here", _AGAIN))
                return ref
            return before if before.startswith(SEALED) and self._opened(before) == secret else ref

        made = with_secrets(wanted, change)
        if faults:
            raise Invalid(*faults)
        return made

    def clear(self, document: S) -> S:
        """Open what is sealed, for a digest that must be the same each time; the result is never kept."""
        return with_secrets(document, lambda _, ref: self.clear_text(ref))

    def clear_text(self, ref: str) -> str:
        """Open one text; what is not sealed, or does not open, stays as it is."""
        secret = self._opened(ref) if ref.startswith(SEALED) else None
        return ref if secret is None else secret.reveal()

    def text(self, secret: Secret) -> str:
        """Seal a text; raises Invalid when it cannot be."""
        return self._sealed(secret.reveal(), "text")

    def need(self) -> Sealer:
        """Give the keys; Refused when this process has none."""
        if self.sealer is None:
            raise Refused(f"there are no keys to seal with: {_KEYS}")
        return self.sealer

    def _sealed(self, text: str, path: str) -> str:
        try:
            return self.need().seal(Secret(text))
        except Invalid:
            problem, remedy = "an empty secret, or no text", "write the secret after plain:"
        except TooLarge as error:
            problem, remedy = "too long", str(error)
        except (Stuck, Refused) as error:
            _log.warning("secret not sealed", path=path, error=str(error))
            problem, remedy = "cannot be sealed here", _KEYS
        raise Invalid(Fault(path, problem, remedy)) from None

    def _opened(self, ref: str) -> Secret | None:
        """Open a sealed text; None for one that does not."""
        try:
            return self.sealer.unseal(ref) if self.sealer else None
        except Stuck as error:
            _log.warning("secret not opened", error=str(error))
            return None


def _holds(document: object, beginning: str) -> bool:
    """Tell whether a text of a document may begin so, which is found out ten times as fast as by a walk."""
    try:
        return f'"{beginning}'.encode() in msgspec.json.encode(document)
    except (UnicodeError, TypeError, RecursionError):  # no JSON can be made of it, and admission will say so
        return True


def _wanted(document: object) -> object:
    """Give what somebody wrote of a document; its status is ours, and tells what people said in words of their own."""
    plain = msgspec.to_builtins(document) if isinstance(document, msgspec.Struct) else document
    return {name: part for name, part in plain.items() if name != "status"} if isinstance(plain, dict) else plain


UNSEALED: Final = Sealing()
"""For where there are no keys."""
