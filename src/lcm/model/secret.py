"""Passwords, tokens and licence tokens as a type that prints `***`. Whoever needs the text says `reveal`."""

import hmac
from typing import Final, NoReturn

_HIDDEN: Final = "***"


class Secret:
    """A text that no log, error, dump or debugger shows by accident."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, for the one call that sends it."""
        return self._text

    def hide_in(self, text: str) -> str:
        """Blot the secret out of a text that somebody else wrote."""
        return text.replace(self._text, _HIDDEN) if self._text else text

    def __repr__(self) -> str:
        return _HIDDEN

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, _: object) -> "Secret":
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not written into files: store where it is, not what it is")
