"""Which instances in the cloud have a worker record, and what is wrong with those that have none or too many. Pure.

Called by `controllers.discovery.search` with what the cloud listed and with records that were read after that. So a
record created in between is seen, and no instance is taken for an orphan because its record is newer than the list.

An instance of ours without a record costs as much as any other, and nobody sees it. It is not terminated here: a list
does not prove that nobody works on it, and restoring a backup makes orphans of a whole fleet. It is imported as a
worker with the label `lcm/orphan-of` and an alert. So it is visible, monitored, paused when idle, and can be deleted
like any other. It takes no sessions until a person says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from lcm.control.objects.imports import ORPHAN_OF
from lcm.control.plane.protocol import WorkerRef, ref_of
from lcm.model.kinds.worker import LabWorker
from lcm.model.kinds.worker_machine import WORKER_MACHINE
from lcm.model.telemetry.alert import AlertFinding, Severity
from lcm.providers.protocols.compute import ENDING, OWNER_TAG, WORKER_TAG, Instance
from lcm.system.tasks import TimeSlice

GRACE: Final = timedelta(minutes=10)
"""How long an instance of ours may run without a record: launches are recorded within seconds."""

ORPHAN_ALERT: Final = "OrphanedInstance"
STRAY_ALERT: Final = "StrayInstance"
ALERTS: Final = frozenset({ORPHAN_ALERT, STRAY_ALERT})
UNKNOWN_OWNER: Final = "unknown"
"""Replaces the uid of the worker that an orphan was launched for, when somebody has removed the tag."""


@dataclass(frozen=True, slots=True)
class Stray:
    """An instance that runs although its worker has another one, or is recorded as terminated."""

    instance: Instance
    worker: LabWorker

    def alert(self) -> AlertFinding:
        """Return the alert: what is wrong, and what an operator can do about it."""
        what = f"{self.instance.instance_id} in {self.instance.region} is {self.instance.state} and costs money"
        if self.worker.status.phase in WORKER_MACHINE.final:
            why, remedy = "RecordedAsTerminated", "delete this record, and discovery imports the machine as a worker"
        else:
            why, remedy = "SecondInstance", f"the worker uses {self.worker.status.ec2.instance_id}; terminate this one"
        return AlertFinding(alert=STRAY_ALERT, severity=Severity.CRITICAL, reason=why, message=f"{what}: {remedy}")


@dataclass(slots=True)
class Findings:
    """The running instances of one region, each in one list, and the workers that should be reconciled."""

    known: list[Instance] = field(default_factory=list)
    unmanaged: list[Instance] = field(default_factory=list)
    """Without our tag, from an image that we search for."""
    orphans: list[Instance] = field(default_factory=list)
    """Ours, without a record."""
    fresh: list[Instance] = field(default_factory=list)
    """Ours, without a record, but too young to be called orphans."""
    others: list[Instance] = field(default_factory=list)
    """Of another installation."""
    strays: list[Stray] = field(default_factory=list)
    to_reconcile: list[WorkerRef] = field(default_factory=list)
    """Workers whose instance was not listed, or not known to them yet. Only their own controller can find out more."""

    @property
    def total(self) -> int:
        """The number of running instances."""
        recorded, ours = len(self.known) + len(self.strays), len(self.orphans) + len(self.fresh)
        return recorded + ours + len(self.unmanaged) + len(self.others)


class InstanceSorter:
    """Sorts the instances of one region by whether a record describes them."""

    def __init__(self, region: str, now: datetime) -> None:
        self._region = region
        self._now = now
        self._by_id: dict[str, LabWorker] = {}
        """The workers of the region by their instances."""
        self._by_uid: dict[str, LabWorker] = {}
        """All workers."""
        self._time_slice = TimeSlice()

    async def sort(
        self, workers: Iterable[LabWorker], owned: Sequence[Instance], matching: Sequence[Instance]
    ) -> Findings:
        """Sort all listed instances by all workers; others have their turn meanwhile.

        `owned` carries our tag; `matching` runs from an image that we search for.
        """
        for worker in workers:
            self._add_worker(worker)
            await self._time_slice.yield_if_over()
        listed = {one.instance_id: one for one in (*matching, *owned)}
        ours, alive, findings = {one.instance_id for one in owned}, set[str](), Findings()
        for instance in listed.values():
            if instance.state not in ENDING:
                alive.add(instance.instance_id)
                self._sort_instance(instance, findings, is_ours=instance.instance_id in ours)
            await self._time_slice.yield_if_over()
        for known, worker in self._by_id.items():
            if known not in alive and worker.status.phase not in WORKER_MACHINE.final:
                findings.to_reconcile.append(ref_of(worker))
        return findings

    def _add_worker(self, worker: LabWorker) -> None:
        self._by_uid[worker.metadata.uid] = worker
        instance_id = worker.status.ec2.instance_id
        if instance_id and worker.spec.aws.region == self._region:
            self._by_id[instance_id] = worker

    def _sort_instance(self, instance: Instance, findings: Findings, *, is_ours: bool) -> None:
        record = self._by_id.get(instance.instance_id) or self._by_uid.get(instance.tags.get(WORKER_TAG, ""))
        if record is not None:
            self._sort_recorded(instance, record, findings)
        elif is_ours:
            is_fresh = self._now - instance.launched_at < GRACE
            (findings.fresh if is_fresh else findings.orphans).append(instance)
        elif OWNER_TAG in instance.tags:
            findings.others.append(instance)
        else:
            findings.unmanaged.append(instance)

    def _sort_recorded(self, instance: Instance, record: LabWorker, findings: Findings) -> None:
        mine = record.status.ec2.instance_id
        if record.status.phase in WORKER_MACHINE.final or mine not in ("", instance.instance_id):
            findings.strays.append(Stray(instance, record))
            return
        findings.known.append(instance)
        if not mine:
            findings.to_reconcile.append(ref_of(record))


def is_orphan(worker: LabWorker) -> bool:
    """Return whether a worker was imported as an orphan and nobody has dealt with it since."""
    is_ending = worker.metadata.deletion_timestamp is not None or worker.status.phase in WORKER_MACHINE.final
    return ORPHAN_OF in worker.metadata.labels and not is_ending


def orphan_alert(worker: LabWorker) -> AlertFinding:
    """Return the alert for an instance of ours that had no record, with what an operator can do."""
    machine = f"{worker.status.ec2.instance_id} in {worker.spec.aws.region}"
    text = (
        f"{machine} was launched for worker {worker.metadata.labels[ORPHAN_OF]}, of which there is no record; "
        f"delete {worker.metadata.name} to end it, or remove the label {ORPHAN_OF} to keep it; it takes no sessions "
        "before its spec.accepts_sessions is true"
    )
    return AlertFinding(alert=ORPHAN_ALERT, severity=Severity.WARNING, reason="NoRecord", message=text)
