"""A token made in the store itself, for whoever may open it: the first one of a store that nobody can sign in to.

Called by `lcm token create --offline`. Running processes learn of it as of any other token.
"""

from datetime import timedelta

from lcm.cli.server.backup import check_store_exists, open_for_command
from lcm.control.access.tokens import Tokens
from lcm.control.objects.writer import Writer
from lcm.model.access.identity import AccessToken, Caller, Role
from lcm.model.access.secret import Secret
from lcm.settings.load import Settings
from lcm.system.clock import SystemClock

_OFFLINE_CALLER = Caller(name="offline", role=Role.ADMIN)


async def make_offline_token(settings: Settings, name: str, role: Role, life: timedelta) -> tuple[Secret, AccessToken]:
    """Make a token in the store of the settings; a `life` of zero means it never expires."""
    check_store_exists(settings)
    clock = SystemClock()
    async with open_for_command(settings) as store:
        return await Tokens(store, clock=clock).make(
            name,
            role,
            expires_at=clock.now() + life if life else None,
            made_by=_OFFLINE_CALLER.name,
            writer=Writer(store, clock, _OFFLINE_CALLER),
        )
