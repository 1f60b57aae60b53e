"""Calendar programs, which read the feeds of those who book: each shows exactly what is its holder's."""

from typing import Final

from harness.calendars import shown_events
from lcm.control.notices.calendar_feeds import make_feed
from lcm.model.access.identity import OWN_CALENDAR, Caller, Reach, Role
from lcm.model.base.errors import Later
from world.checked import CheckedWorld
from world.checks.privacy import feed_shows_their_own
from world.people.person import Person
from world.people.visitors import PERSONS

_EVERY_SECONDS: Final = 1_800


class Subscriber(Person):
    """Reads the feed of one person after the other, from the store itself."""

    def __init__(self, world: CheckedWorld) -> None:
        super().__init__(world, "calendars")

    async def read_feeds(self) -> None:
        """Read a feed once in a while."""
        while True:
            await self.wait_about(_EVERY_SECONDS)
            if self.is_late:
                return
            name = f"person-{self.dice.randrange(PERSONS)}"
            await self._read_feed(Caller(name=name, role=Role.USER, reach=Reach(calendar=OWN_CALENDAR)))

    async def _read_feed(self, holder: Caller) -> None:
        store, now, seen = self.world.stage.store, self.world.clock.now(), self.witness.seen
        before = dict(seen.revisions)
        try:
            raw = await make_feed(store, None, holder, now)
        except Later:
            return  # the store is away: programs read again
        assert raw is not None, "everybody has a feed"
        if seen is self.witness.seen and before == seen.revisions:  # nothing changed meanwhile
            shown = {event.uid.removesuffix("@lcm") for event in shown_events(raw)}
            self.witness.add_violations(feed_shows_their_own(seen, holder.name, shown))
