"""Notices and maintenance mode of a simulated CML."""

from dataclasses import asdict, dataclass, field
from typing import Any

from msgspec import UNSET

from lcm.sim.cml.documents import MaintenanceUpdate, NoticeCreate, NoticeUpdate
from lcm.sim.cml.labs import Core
from lcm.sim.cml.refusals import missing

Json = dict[str, Any]


@dataclass(slots=True, eq=False)
class Notice:
    """Something that an administrator wants everyone to know."""

    id: str
    level: str
    label: str
    content: str
    enabled: bool
    acknowledged: dict[str, bool] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)


class Notices:
    """All notices, and whether CML is closed."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.all: dict[str, Notice] = {}
        self.maintenance = False
        self.maintenance_notice: str | None = None

    def get(self, ref: str) -> Notice:
        """Find a notice or refuse."""
        if ref not in self.all:
            raise missing("System notice", ref)
        return self.all[ref]

    def add(self, wanted: NoticeCreate) -> Notice:
        """Make a notice."""
        notice = Notice(self._core.ids(), wanted.level, wanted.label, wanted.content, wanted.enabled)
        notice.groups = wanted.groups
        self.all[notice.id] = notice
        self._core.telemetry.record("notice_state_change")
        return notice

    def change(self, notice: Notice, wanted: NoticeUpdate) -> Notice:
        """Change a notice."""
        for name in wanted.__struct_fields__:
            if (value := getattr(wanted, name)) is not UNSET:
                setattr(notice, name, value)
        return notice

    def remove(self, notice: Notice) -> None:
        """Remove a notice."""
        del self.all[notice.id]
        if self.maintenance_notice == notice.id:
            self.maintenance_notice = None

    def set_maintenance(self, wanted: MaintenanceUpdate) -> None:
        """Close or open CML, and say why."""
        if isinstance(wanted.maintenance_mode, bool):
            self.maintenance = wanted.maintenance_mode
        if wanted.notice is None or isinstance(wanted.notice, str):
            self.maintenance_notice = self.get(wanted.notice).id if wanted.notice else None
        self._core.telemetry.record("maintenance_state_change")

    def status(self) -> Json:
        """Write whether CML is closed, and why."""
        notice = self.all.get(self.maintenance_notice or "")
        return {
            "maintenance_mode": self.maintenance,
            "notice": self.maintenance_notice,
            "resolved_notice": asdict(notice) if notice else None,
        }
