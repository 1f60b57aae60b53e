"""Which machines in the cloud have a record, and what is wrong with those that have none or too many. Pure.

Called by `region_search` with what the cloud listed and with records that were read after that: a record made in
between is seen, and a machine is never taken for an orphan because its record is younger than the list.

A machine of ours without a record costs as much as any other and nobody sees it. It is not ended from here, for a list
is no proof that nobody works on it, and a restored backup makes orphans of a whole fleet. It is imported as a worker,
labelled `lcm/orphan-of`, with an alert: so it is visible, monitored, paused when idle, and deleted like any other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from lcm.control.objects.imports import ORPHAN_OF
from lcm.control.plane.protocol import WorkerRef, ref_of
from lcm.model.kinds.worker import LabWorker
from lcm.model.kinds.worker_machine import WORKER
from lcm.model.telemetry.alert import Complaint, Severity
from lcm.providers.protocols.compute import ENDING, OWNER_TAG, WORKER_TAG, Instance

GRACE: Final = timedelta(minutes=10)
"""How long a machine of ours may run before somebody must know it: launches are recorded within seconds."""

ORPHANED: Final = "OrphanedInstance"
STRAY: Final = "StrayInstance"
ALERTS: Final = frozenset({ORPHANED, STRAY})
UNKNOWN: Final = "unknown"
"""Stands for the uid of the worker that an orphan was launched for, when somebody has removed the tag."""


@dataclass(frozen=True, slots=True)
class Stray:
    """A machine that lives though its worker has another one, or is recorded as terminated."""

    instance: Instance
    worker: LabWorker

    def complaint(self) -> Complaint:
        """Say what is wrong, and what a person can do about it."""
        what = f"{self.instance.instance_id} in {self.instance.region} is {self.instance.state} and costs money"
        if self.worker.status.phase in WORKER.final:
            why, remedy = "RecordedAsTerminated", "delete this record, and discovery imports the machine as a worker"
        else:
            why, remedy = "SecondInstance", f"the worker uses {self.worker.status.ec2.instance_id}; terminate this one"
        return Complaint(alert=STRAY, severity=Severity.CRITICAL, reason=why, message=f"{what}: {remedy}")


@dataclass(slots=True)
class Findings:
    """The living machines of one region, each in one list, and the workers that should be looked at."""

    known: list[Instance] = field(default_factory=list)
    strangers: list[Instance] = field(default_factory=list)
    """Nobody's, from an image that we look for."""
    orphans: list[Instance] = field(default_factory=list)
    """Ours, and no record knows them."""
    fresh: list[Instance] = field(default_factory=list)
    """Ours, without a record, and too young to be called orphans."""
    others: list[Instance] = field(default_factory=list)
    """Another installation's."""
    strays: list[Stray] = field(default_factory=list)
    look_at: list[WorkerRef] = field(default_factory=list)
    """Workers whose machine was not listed, or who have not learned of it yet; only a look of their own tells more."""

    @property
    def total(self) -> int:
        """Count the living machines."""
        recorded, ours = len(self.known) + len(self.strays), len(self.orphans) + len(self.fresh)
        return recorded + ours + len(self.strangers) + len(self.others)


class Sorting:
    """Puts the machines of one region where they belong."""

    def __init__(self, region: str, workers: Sequence[LabWorker], now: datetime) -> None:
        self._here = [one for one in workers if one.spec.aws.region == region]
        self._by_id = {one.status.ec2.instance_id: one for one in self._here if one.status.ec2.instance_id}
        self._by_uid = {one.metadata.uid: one for one in workers}
        self._now = now

    def sort(self, owned: Sequence[Instance], matching: Sequence[Instance]) -> Findings:
        """Judge everything that was listed: `owned` carries our tag, `matching` runs from an image we look for."""
        listed = {one.instance_id: one for one in (*matching, *owned)}
        living = [one for one in listed.values() if one.state not in ENDING]
        ours, findings = {one.instance_id for one in owned}, Findings()
        for instance in living:
            self._place(instance, findings, is_ours=instance.instance_id in ours)
        alive = {one.instance_id for one in living}
        findings.look_at += self._unseen(alive)
        return findings

    def _place(self, instance: Instance, findings: Findings, *, is_ours: bool) -> None:
        record = self._by_id.get(instance.instance_id) or self._by_uid.get(instance.tags.get(WORKER_TAG, ""))
        if record is not None:
            self._recorded(instance, record, findings)
        elif is_ours:
            is_fresh = self._now - instance.launched_at < GRACE
            (findings.fresh if is_fresh else findings.orphans).append(instance)
        elif OWNER_TAG in instance.tags:
            findings.others.append(instance)
        else:
            findings.strangers.append(instance)

    def _recorded(self, instance: Instance, record: LabWorker, findings: Findings) -> None:
        mine = record.status.ec2.instance_id
        if record.status.phase in WORKER.final or mine not in ("", instance.instance_id):
            findings.strays.append(Stray(instance, record))
            return
        findings.known.append(instance)
        if not mine:
            findings.look_at.append(ref_of(record))

    def _unseen(self, alive: set[str]) -> Iterator[WorkerRef]:
        for known, worker in self._by_id.items():
            if known not in alive and worker.status.phase not in WORKER.final:
                yield ref_of(worker)


def is_orphan(worker: LabWorker) -> bool:
    """Tell whether a worker was imported as an orphan and nobody has taken care of it since."""
    is_ending = worker.metadata.deletion_timestamp is not None or worker.status.phase in WORKER.final
    return ORPHAN_OF in worker.metadata.labels and not is_ending


def orphaned(worker: LabWorker) -> Complaint:
    """Say that a machine of ours had no record, and what a person can do about it."""
    machine = f"{worker.status.ec2.instance_id} in {worker.spec.aws.region}"
    text = (
        f"{machine} was launched for worker {worker.metadata.labels[ORPHAN_OF]}, of which there is no record; "
        f"delete {worker.metadata.name} to end it, or remove the label {ORPHAN_OF} to keep it"
    )
    return Complaint(alert=ORPHANED, severity=Severity.WARNING, reason="NoRecord", message=text)
