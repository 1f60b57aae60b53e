"""Makes a token in the store itself, for whoever may open that: the first one of a store that nobody can sign in to.

Called by `token`. What runs on the store hears of the token as of any other.
"""

from datetime import timedelta

from lcm.api.routes.access import KIND
from lcm.cli.server.backup import check_there, opened
from lcm.control.access.audit import NOWHERE, Deed, Pen
from lcm.control.access.tokens import Tokens
from lcm.model.access.identity import AccessToken, Caller, Role
from lcm.model.access.secret import Secret
from lcm.settings.load import Settings
from lcm.system.clock import SystemClock

_WHO = Caller(name="offline", role=Role.ADMIN)


async def make(settings: Settings, name: str, role: Role, life: timedelta) -> tuple[Secret, AccessToken]:
    """Make a token in the store of the settings; it never expires if its life is nothing."""
    check_there(settings)
    clock = SystemClock()
    async with opened(settings) as store:
        pen = Pen(store, clock)
        return await Tokens(store, clock=clock).make(
            name,
            role,
            expires_at=clock.now() + life if life else None,
            made_by=_WHO.name,
            note=lambda made: [pen.note(_WHO, NOWHERE, Deed(verb="create", kind=KIND, name=made.id))],
        )
