"""Seals the secrets that people write in clear (`plain:TEXT`) before a document is stored, compared or repeated.

Called by `control.plane.local` for every incoming document, by `control.admission.admit` where a document meets the
stored one, by `control.objects.requests`, and for sinks. The `Sealer` is passed in by `compose`, so that nothing here
depends on a cipher.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Protocol, TypeVar

import msgspec
import structlog

from lcm.model.access.secret import (
    FINGERPRINT_PREFIX,
    PLACEHOLDER_REF,
    PLAIN_PREFIX,
    SEALED_PREFIX,
    Secret,
    find_stray_secrets,
    fingerprint_of,
    list_secret_uses,
    replace_raw_secrets,
    replace_secrets,
    use_of,
)
from lcm.model.base.errors import Fault, Invalid, Refused, Stuck, TooLarge
from lcm.model.base.resource import Part, SecretRef, SecretUse
from lcm.model.kinds.validate import check_size

S = TypeVar("S", bound=msgspec.Struct)
_KEYS_REMEDY: Final = "an operator must set LCM_SEAL_KEYS or LCM_SEAL_KEY_FILE for the API"
_FIELDS_REMEDY: Final = "write plain:… into fields for secrets only"
_RESEAL_REMEDY: Final = "write it as plain:TEXT again, or seal it here for this field with `lcm secret seal`"
_log: Final = structlog.get_logger()


class ClearText(Part):
    """A secret to be sealed, and the field that it is for."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=3000)]
    use: SecretUse


class SealedText(Part):
    """A secret in the form in which a document may hold it."""

    sealed: SecretRef


class Sealer(Protocol):
    """The sealing keys of this installation. Every method raises Stuck while they cannot be read."""

    @property
    def current(self) -> str:
        """The id of the key that seals; each sealed text contains it."""
        ...

    def seal(self, secret: Secret, use: str) -> str:
        """Encrypt a secret for one use, which the text names; the same secret gives a different text each time.

        Raises Invalid or TooLarge for what cannot be sealed.
        """
        ...

    def unseal(self, text: str) -> Secret:
        """Decrypt a sealed text. Raises Stuck when it was not sealed here, or was changed since."""
        ...

    def grow(self) -> bool:
        """Add a new key, which seals from now on.

        Returns False where the keys are given by the settings and cannot be added to.
        """
        ...

    def forget_others(self, *, settled_by: datetime) -> int:
        """Keep only the key that seals, and return how many others were removed.

        Raises Refused if that key sealed nothing before `settled_by`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Sealing:
    """How admission treats secrets; without a sealer, whatever needs one is refused."""

    sealer: Sealer | None = None

    def seal_raw(self, document: object, kind: type[msgspec.Struct] | None) -> tuple[Any, list[Fault]]:
        """Seal the clear-text secrets of a raw document; placeholders take the place of faulty ones.

        Raises Invalid for a secret in a field that is not for secrets: there it would be shown.
        """
        if not _may_contain(document, PLAIN_PREFIX):
            return document, []
        check_size(document)
        faults: list[Fault] = []

        def change(path: str, ref: str, use: str) -> str:
            if not ref.startswith(PLAIN_PREFIX):
                return ref
            try:
                return self._seal(ref.removeprefix(PLAIN_PREFIX), path, use)
            except Invalid as error:
                faults.extend(error.faults)
                return PLACEHOLDER_REF

        made = replace_raw_secrets(document, kind, change) if kind else document
        if _may_contain(made, PLAIN_PREFIX) and (lost := find_stray_secrets(_without_status(made))):
            raise Invalid(
                *faults, *(Fault(path, "a secret in a field that is not for secrets", _FIELDS_REMEDY) for path in lost)
            )
        return made, faults

    def seal_typed(self, document: S) -> S:
        """Do the same for a document made by code; raises Invalid with every fault."""
        made, faults = self.seal_raw(document, type(document))
        if faults:
            raise Invalid(*faults)
        sealed: S = made
        return sealed

    def keep_sealed(self, stored: S | None, wanted: S, *, copies: bool = False) -> S:
        """Compare a document with the stored one: an unchanged secret, or its fingerprint, keeps its sealed text.

        A changed one must be one that can be opened here, and sealed for its field: the text of another field would
        send one secret in the place of another. Only who `copies` whole documents, as a pool does, may also bring a
        text that an older version sealed for no field. Sealing is random: by their sealed texts alone, no two documents
        would ever be equal.
        """
        if not _may_contain(wanted, SEALED_PREFIX):
            return wanted
        old = list_secret_uses(stored) if stored is not None else []
        faults: list[Fault] = []

        def change(path: str, ref: str, use: str) -> str:
            if not ref.startswith(SEALED_PREFIX):
                return ref
            kept = self._find_kept([(where, text) for where, text, its_use in old if its_use == use], path, ref)
            if kept is None and (problem := self._find_problem(ref, use, copies=copies)):
                faults.append(Fault(path, problem, _RESEAL_REMEDY))
            return kept or ref

        made = replace_secrets(wanted, change)
        if faults:
            raise Invalid(*faults)
        return made

    def _find_kept(self, stored: Sequence[tuple[str, str]], path: str, ref: str) -> str | None:
        """Return the stored text that a sealed text repeats: itself, by its fingerprint, or by the same secret."""
        for where, text in stored:
            if ref in (text, fingerprint_of(text)):
                return text
            if where == path and text.startswith(SEALED_PREFIX) and not ref.startswith(FINGERPRINT_PREFIX):
                secret = self._unseal(ref)
                if secret is not None and secret == self._unseal(text):
                    return text
        return None

    def _find_problem(self, ref: str, use: str, *, copies: bool) -> str:
        """Return why a sealed text is not accepted as a new secret of a field; empty if it is."""
        if ref.startswith(FINGERPRINT_PREFIX):
            return "a fingerprint of a secret that this object does not have in such a field"
        if self._unseal(ref) is None:
            return "a sealed text that cannot be opened here"
        meant = use_of(ref)
        return (
            "" if meant == use or (copies and not meant) else f"it was sealed for {meant or 'no field'}, not for {use}"
        )

    def may_hold_clear_secrets(self, document: object) -> bool:
        """Return whether a document may have secrets that are still to be sealed, and here they can be."""
        return self.sealer is not None and _may_contain(document, PLAIN_PREFIX)

    def unseal_document(self, document: S) -> S:
        """Unseal all secrets, for a digest that must be the same each time; the result is never stored."""
        return replace_secrets(document, lambda _, ref, __: self.unseal_text(ref))

    def unseal_text(self, ref: str) -> str:
        """Unseal one text; a text that is not sealed, or cannot be opened, is returned as it is."""
        secret = self._unseal(ref) if ref.startswith(SEALED_PREFIX) else None
        return ref if secret is None else secret.reveal()

    def seal_text(self, secret: Secret, use: str, path: str = "text") -> str:
        """Seal a text for one use; raises Invalid when it cannot be sealed."""
        return self._seal(secret.reveal(), path, use)

    def need_sealer(self) -> Sealer:
        """Return the sealer; raises Refused when this process has none."""
        if self.sealer is None:
            raise Refused(f"there are no keys to seal with: {_KEYS_REMEDY}")
        return self.sealer

    def _seal(self, text: str, path: str, use: str) -> str:
        try:
            return self.need_sealer().seal(Secret(text), use)
        except Invalid:
            problem, remedy = "an empty secret, or no text", "write the secret after plain:"
        except TooLarge as error:
            problem, remedy = "too long", str(error)
        except (Stuck, Refused) as error:
            _log.warning("secret not sealed", path=path, error=str(error))
            problem, remedy = "cannot be sealed here", _KEYS_REMEDY
        raise Invalid(Fault(path, problem, remedy)) from None

    def _unseal(self, ref: str) -> Secret | None:
        """Unseal a text; None for one that cannot be opened."""
        try:
            return self.sealer.unseal(ref) if self.sealer else None
        except Stuck as error:
            _log.warning("secret not opened", error=str(error))
            return None


def _may_contain(document: object, beginning: str) -> bool:
    """Return whether a text of a document may begin like this; ten times as fast as a walk through it."""
    try:
        return f'"{beginning}'.encode() in msgspec.json.encode(document)
    except (UnicodeError, TypeError, RecursionError):  # it cannot be encoded as JSON, and admission will report that
        return True


def _without_status(document: object) -> object:
    """Return a document without its status.

    The status is ours, and quotes what people wrote in their own words.
    """
    plain = msgspec.to_builtins(document) if isinstance(document, msgspec.Struct) else document
    return {name: part for name, part in plain.items() if name != "status"} if isinstance(plain, dict) else plain


NO_SEALING: Final = Sealing()
"""For processes without keys."""
