"""The settings as controllers go by them: those of the process, and what the SystemSettings object says over them."""

from datetime import timedelta

from lcm.config import Settings, effective
from lcm.control.cache import Cache
from lcm.model.settings import SystemSettings
from lcm.placement.terms import Terms


class Current:
    """The settings as they are now; asked before each use."""

    def __init__(self, settings: Settings, cache: Cache) -> None:
        self._settings = settings
        self._cache = cache
        self._seen: SystemSettings | None = None
        self._effective = settings

    def __call__(self) -> Settings:
        system = next(iter(self._cache.all(SystemSettings)), None)
        if system is not self._seen:
            self._seen, self._effective = system, effective(self._settings, system)
        return self._effective


def terms_of(settings: Settings) -> Terms:
    """Say what settings mean for booking and placing."""
    return Terms(
        boot=timedelta(minutes=settings.worker_bootup_delay_minutes),
        instantiation=timedelta(minutes=settings.lablet_instantiation_delay_minutes),
        require_licensed=settings.require_licensed_for_cml,
        strategy=str(settings.scheduler_strategy),
    )
