"""The settings that controllers use: those of the process, with the values of the SystemSettings object on top."""

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from lcm.control.booking.quota import OwnerLimits
from lcm.control.objects.cache import Cache
from lcm.control.plane.protocol import ObjectChange
from lcm.model.kinds.settings import SystemSettings
from lcm.placement.claims import Terms, scale_duration
from lcm.settings.load import Settings, effective_settings

T = TypeVar("T")


class CurrentSettings:
    """The settings in force now. Callers ask before each use; values are recomputed only when the settings change."""

    def __init__(self, settings: Settings, cache: Cache) -> None:
        """Follow a cache, until `stop` is called."""
        self._settings = settings
        self._cache = cache
        self._stale = True
        self._effective = settings
        self._terms = terms_of(settings)
        self.stop = cache.subscribe(self._on_change)

    def __call__(self) -> Settings:
        if self._stale:
            system = next(iter(self._cache.all(SystemSettings)), None)
            self._effective = effective_settings(self._settings, system)
            self._terms = terms_of(self._effective)
            self._stale = False
        return self._effective

    def terms(self) -> Terms:
        """Return what the settings mean for booking and placement."""
        self()
        return self._terms

    def derive(self, make: Callable[[Settings], T]) -> Callable[[], T]:
        """Return a function for a value derived from the settings; it is recomputed only when they change."""
        known: tuple[Settings, T] | None = None

        def ask() -> T:
            nonlocal known
            settings = self()
            if known is None or known[0] is not settings:
                known = settings, make(settings)
            return known[1]

        return ask

    def _on_change(self, seen: ObjectChange) -> None:
        self._stale = self._stale or seen.ref.kind is SystemSettings


def terms_of(settings: Settings) -> Terms:
    """Return what settings mean for booking and placement; a simulated cloud divides durations by its speed."""
    speed = settings.sim_speed if settings.cloud == "simulated" else 1.0
    return Terms(
        boot=scale_duration(timedelta(minutes=settings.worker_bootup_delay_minutes), speed),
        instantiation=scale_duration(timedelta(minutes=settings.lablet_instantiation_delay_minutes), speed),
        buffer=scale_duration(Terms().buffer, speed),
        require_licensed=settings.require_licensed_for_cml,
        strategy=str(settings.scheduler_strategy),
        speed=speed,
    )


def owner_limits_of(settings: Settings) -> OwnerLimits:
    """Return how much one owner may book by these settings."""
    return OwnerLimits(
        pending=settings.max_pending_per_owner,
        live=settings.max_live_per_owner,
        ahead=settings.max_ahead_per_owner,
        horizon=timedelta(days=settings.booking_horizon_days),
        nodes=settings.max_nodes_per_owner,
        hours_ahead=settings.max_hours_ahead_per_owner,
        hours_per_month=settings.max_hours_per_owner_month,
        usd_per_month=settings.max_usd_per_owner_month,
    )
