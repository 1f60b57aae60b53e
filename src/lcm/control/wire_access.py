"""What the API and the command line exchange about tokens, sign-in and the audit. Used by `api` and `cli`."""

from typing import Annotated, Final

import msgspec

from lcm.control.audit import AuditRecord
from lcm.model.identity import AccessToken, Role, Subject
from lcm.model.resource import Moment, Part

LONGEST_LIFE_SECONDS: Final = 90 * 86_400
"""For tokens that people make for themselves."""
USUAL_LIFE_SECONDS: Final = 30 * 86_400
_MOST_SECONDS: Final = 100 * 365 * 86_400


class TokenWish(Part):
    """A token to be made: by default for the caller, with the caller's role, for thirty days.

    Only administrators make tokens for others, or any that last for more than ninety days; 0 is for ever.
    """

    name: Subject | None = None
    role: Role | None = None
    expires_in_seconds: Annotated[int, msgspec.Meta(ge=0, le=_MOST_SECONDS, examples=[2_592_000])] | None = None


class TokenInfo(Part):
    """A token as it may be shown: neither its text nor its hash. A session is a browser's."""

    id: str
    name: Subject
    role: Role
    created_at: Moment
    expires_at: Moment | None
    session: bool
    made_by: str


class TokenMade(Part):
    """A new token. Its text is not kept and never shown again."""

    token: str
    info: TokenInfo


class TokenList(Part):
    """Tokens, oldest first."""

    items: tuple[TokenInfo, ...]


class SignInLink(Part):
    """Where a browser signs in, once; below the API's address."""

    path: str
    expires_at: Moment


class AuditList(Part):
    """A page of the audit, newest last; `next` is null on the last page."""

    items: tuple[AuditRecord, ...]
    next: str | None


def shown(token: AccessToken) -> TokenInfo:
    """Show a token without what is nobody's business."""
    return TokenInfo(
        id=token.id,
        name=token.name,
        role=token.role,
        created_at=token.created_at,
        expires_at=token.expires_at,
        session=token.session,
        made_by=token.made_by,
    )
