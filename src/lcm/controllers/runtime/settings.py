"""The settings as controllers go by them: those of the process, and what the SystemSettings object says over them."""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import Seen
from lcm.model.kinds.settings import SystemSettings
from lcm.placement.claims import Terms, sped_up
from lcm.settings.load import Settings, effective

T = TypeVar("T")


class Current:
    """The settings as they are now; asked before each use, and so made anew only when they change."""

    def __init__(self, settings: Settings, cache: Cache) -> None:
        """Follow a cache for as long as that is used."""
        self._settings = settings
        self._cache = cache
        self._stale = True
        self._effective = settings
        self._terms = terms_of(settings)
        cache.subscribe(self._note)

    def __call__(self) -> Settings:
        if self._stale:
            system = next(iter(self._cache.all(SystemSettings)), None)
            self._effective = effective(self._settings, system)
            self._terms = terms_of(self._effective)
            self._stale = False
        return self._effective

    def terms(self) -> Terms:
        """Say what they mean for booking and placing."""
        self()
        return self._terms

    def made(self, make: Callable[[Settings], T]) -> Callable[[], T]:
        """Give what can be asked for what is made of them, which is made anew only when they change."""
        known: tuple[Settings, T] | None = None

        def ask() -> T:
            nonlocal known
            settings = self()
            if known is None or known[0] is not settings:
                known = settings, make(settings)
            return known[1]

        return ask

    def _note(self, seen: Seen) -> None:
        self._stale = self._stale or seen.ref.kind is SystemSettings


def terms_of(settings: Settings) -> Terms:
    """Say what settings mean for booking and placing; on a simulated cloud everything takes as much less as it says."""
    speed = settings.sim_speed if settings.cloud == "simulated" else 1.0
    return Terms(
        boot=sped_up(timedelta(minutes=settings.worker_bootup_delay_minutes), speed),
        instantiation=sped_up(timedelta(minutes=settings.lablet_instantiation_delay_minutes), speed),
        buffer=sped_up(Terms().buffer, speed),
        require_licensed=settings.require_licensed_for_cml,
        strategy=str(settings.scheduler_strategy),
        speed=speed,
    )
