"""The consoles that are open in this process: how many there may be, and when each must end.

`api.gateway.consoles` enters and leaves them; `api.http.app` runs the watch over them. Tokens are looked at twice a
second. Sessions are looked at when a console of theirs is opened, when an event says that one changed, whichever
process changed it, and now and then without one. Events also tell the owner's consoles who else has opened one.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import msgspec
import structlog

from lcm.api.http.limits import ApiLimits
from lcm.api.http.problems import BUSY, RATE_LIMITED, Declined
from lcm.api.http.sockets import SESSION_OVER, TOKEN_OVER
from lcm.control.delivery.events import CONSOLE_CLOSED, CONSOLE_OPENED
from lcm.control.delivery.feed import Feed
from lcm.model.access.identity import Caller
from lcm.model.access.learner import can_see, is_learner, is_owner, learner_of
from lcm.model.base.errors import LcmError
from lcm.model.base.event import Event, SessionConsoleJoined
from lcm.model.base.resource import Part
from lcm.model.kinds.session import LabletSession
from lcm.store.codec import decode_known
from lcm.system.tasks import run_until_first_ends

_CHECK_SECONDS: Final = 0.5
_LOOKS_PER_CHECK: Final = 20
"""Every how many checks of the tokens all sessions are read, whatever events say."""
_READS: Final = 16
"""How many sessions are read at once."""
_MAX_NOTICES: Final = 50
_encode: Final = msgspec.json.Encoder().encode
_log: Final = structlog.get_logger()


class ConsoleNotice(Part):
    """A control message to a session's owner and learner: who else has a console of it open, or no longer has."""

    type: str
    who: str
    role: str
    console: str
    looking: bool


class OpenConsole:
    """One open console: whose it is, how to see whether it may stay open, and what is to be told to its client."""

    def __init__(
        self,
        session: LabletSession,
        caller: Caller,
        name: str,
        *,
        looking: bool,
        is_token_valid: Callable[[], bool],
        find_session: Callable[[], Awaitable[LabletSession | None]],
    ) -> None:
        """Describe a console. `find_session` reads its session; None when that does not run any more."""
        self.session_id = session.metadata.uid
        self._session = session
        self.caller = caller
        self.name = name
        self.looking = looking
        self.is_token_valid = is_token_valid
        self.find_session = find_session
        self.is_announced = False
        """Whether the event that tells its owner of it was heard."""
        self.ending: tuple[int, str] | None = None
        """The code and the reason with which it must end."""
        self._notices: deque[str] = deque(maxlen=_MAX_NOTICES)
        self._has_notices, self._must_end = asyncio.Event(), asyncio.Event()

    @property
    def is_own(self) -> bool:
        """Whether it is the console of whom the session is for: nobody needs to be told of it."""
        return self._is_learners if learner_of(self._session) else self._is_owners

    @property
    def is_told(self) -> bool:
        """Whether its client is told who else is there."""
        return self._is_owners or self._is_learners

    @property
    def _is_owners(self) -> bool:
        return is_owner(self.caller, self._session)

    @property
    def _is_learners(self) -> bool:
        return is_learner(self.caller, self._session)

    def notify(self, notice: ConsoleNotice) -> None:
        """Queue a notice for the client."""
        self._notices.append(_encode(notice).decode())
        self._has_notices.set()

    def end(self, code: int, reason: str) -> None:
        """Ask for its end. The first reason counts."""
        self.ending = self.ending or (code, reason)
        self._must_end.set()

    async def next_notice(self) -> str:
        """Wait for what is to be told next."""
        while not self._notices:
            self._has_notices.clear()
            await self._has_notices.wait()
        return self._notices.popleft()

    async def wait_for_end(self) -> None:
        """Wait until it must end."""
        await self._must_end.wait()


class OpenConsoles:
    """All open consoles of this process. It hears the feed's events."""

    def __init__(self, feed: Feed, limits: ApiLimits) -> None:
        feed.listen(self)
        self._limits = limits
        self._by_session: dict[str, set[OpenConsole]] = {}
        self._per_caller: Counter[str] = Counter()
        self._changed: set[str] = set()
        """Sessions of which is known that something happened to them; they are looked at first."""
        self._due: set[str] = set()
        """Sessions that are looked at when nothing happened."""
        self._wake = asyncio.Event()

    @property
    def total(self) -> int:
        """How many are open."""
        return sum(self._per_caller.values())

    def enter(self, console: OpenConsole) -> None:
        """Count a console, and tell an owner who is there. Raise Declined when there are too many.

        Its session may have ended just before, when no event was heard for it yet: it is looked at once more.
        """
        known, limits = self._by_session.get(console.session_id, set()), self._limits
        if self._per_caller[console.caller.name] >= limits.consoles:
            raise Declined(RATE_LIMITED, f"you have {limits.consoles} consoles open; close one", wait=5.0)
        if len(known) >= limits.session_consoles:
            raise Declined(RATE_LIMITED, f"{limits.session_consoles} consoles of this session are open", wait=5.0)
        if self.total >= limits.all_consoles:
            raise Declined(BUSY, "too many consoles are open", wait=5.0)
        self._by_session.setdefault(console.session_id, set()).add(console)
        self._per_caller[console.caller.name] += 1
        self._look_at(self._changed, {console.session_id})
        if console.is_told:
            for other in known:
                if other.is_announced:  # of the others an event will tell
                    console.notify(_notice_about(other))

    def leave(self, console: OpenConsole) -> None:
        """Count a console no more. May be repeated."""
        known = self._by_session.get(console.session_id, set())
        if console not in known:
            return
        known.discard(console)
        if not known:
            del self._by_session[console.session_id]
        self._per_caller[console.caller.name] -= 1
        self._per_caller += Counter()  # drops those who have none

    def hear(self, event: Event) -> None:
        """Note a session that changed; tell its owner who came or left."""
        if event.session_id not in self._by_session:
            return
        if event.type.endswith((CONSOLE_OPENED, CONSOLE_CLOSED)):
            self._announce(decode_known(event.data, SessionConsoleJoined))  # a newer version may tell more
        else:
            self._look_at(self._changed, {event.session_id})

    def lose_track(self) -> None:
        """Look at all sessions."""
        self._look_at(self._due, self._by_session.keys())

    async def run(self) -> None:
        """End the consoles that may not stay open, until cancelled."""
        await run_until_first_ends(self._check_tokens(), *(self._check_sessions() for _ in range(_READS)))

    async def _check_tokens(self) -> None:
        checks = 0
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            checks += 1
            for console in [one for some in self._by_session.values() for one in some]:
                if not console.is_token_valid():
                    console.end(TOKEN_OVER, "the token is no longer valid")
            if checks % _LOOKS_PER_CHECK == 0:
                self.lose_track()

    async def _check_sessions(self) -> None:
        while True:
            while not (waiting := self._changed or self._due):
                self._wake.clear()
                await self._wake.wait()
            await self._check_session(waiting.pop())

    async def _check_session(self, session_id: str) -> None:
        """Read a session once, and end those of its consoles that may not stay open."""
        consoles = list(self._by_session.get(session_id, ()))
        if not consoles:
            return
        try:
            session = await consoles[0].find_session()
        except LcmError as error:  # not known now: it is asked again at the next look
            _log.warning("session of a console cannot be read", session=session_id, error=str(error))
            return
        for console in consoles:
            if session is None or not can_see(console.caller, session):
                console.end(SESSION_OVER, "the session no longer runs")

    def _look_at(self, waiting: set[str], sessions: Iterable[str]) -> None:
        waiting.update(sessions)
        if waiting:
            self._wake.set()

    def _announce(self, joined: SessionConsoleJoined) -> None:
        notice = ConsoleNotice(
            type="joined" if joined.is_open else "left",
            who=joined.who,
            role=joined.role,
            console=joined.console,
            looking=joined.looking,
        )
        for console in self._by_session.get(joined.session_id, ()):
            if (console.caller.name, console.name) == (joined.who, joined.console):
                console.is_announced = joined.is_open
            elif console.is_told:
                console.notify(notice)


def _notice_about(other: OpenConsole) -> ConsoleNotice:
    return ConsoleNotice(
        type="joined", who=other.caller.name, role=other.caller.role, console=other.name, looking=other.looking
    )
