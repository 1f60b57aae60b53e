"""Records for machines that discovery found in the cloud.

One import of a region at a time: each touches the region's guard key, so that two scans never make two records of one
machine. Nor do a scan and a launch: a machine that carries the uid of a worker is that worker's, whether or not the
record has learned of it yet. Used by `local`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from lcm.control.admission.admit import Draft, Drafts, admitted, held, looks_like_a_uid
from lcm.control.delivery.events import IMPORTED
from lcm.control.objects.bundles import Item, bundled
from lcm.control.objects.records import opened
from lcm.control.objects.writer import Edit, Ledger, persistently
from lcm.control.plane.protocol import BulkImport, DiscoveredInstance, Imported
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import DEFAULT_NAMESPACE, PRINTED, Metadata
from lcm.model.kinds.worker import AwsSpec, Ec2Facts, IdlePolicy, LabWorker, LabWorkerSpec
from lcm.providers.protocols.compute import OWNER_TAG, WORKER_TAG
from lcm.store.base import ABSENT, Put, everything

SOURCE: Final = "lcm/source"
ORPHAN_OF: Final = "lcm/orphan-of"
"""Label of a worker whose machine we launched for another one, of which there is no record any more."""

_GUARDS: Final = "imports/"
_ENDING: Final = frozenset({"shutting-down", "terminated"})
_RESTING: Final = frozenset({"stopping", "stopped"})
_UNKNOWN_IMAGE: Final = "unknown"
"""Stands where discovery named no image: the machine runs all the same, and no other can be launched of it."""

_STRANGE: Final = re.compile(r"[^a-z0-9]+")
_OURS: Final = frozenset({OWNER_TAG, WORKER_TAG})
_PRINTED: Final = re.compile(PRINTED)
_LONGEST_NAME: Final = 50


@dataclass(slots=True)
class Import:
    """What one scan of one region found, on its way into the store."""

    ledger: Ledger
    drafts: Drafts
    found: BulkImport
    made: list[str] = field(default_factory=list)
    """Names of the workers that were written, by attempts that were disturbed too."""

    async def run(self) -> Imported:
        """Make a record for each instance that has none."""
        if faults := list(_faults(self.found)):
            raise Invalid(*faults)
        return await persistently(self._attempt, unless=lambda _: False)

    async def _attempt(self) -> Imported:
        guard = await self.ledger.store.get(_GUARDS + self.found.aws_region)
        page = await everything(self.ledger.store, "workers/")
        workers = [opened(entry, LabWorker) for entry in page.entries]
        taken = {one.metadata.name for one in workers if one.metadata.namespace == DEFAULT_NAMESPACE}
        owners = self._owners(workers)
        strangers = [one for one in self._alive() if one.instance_id not in owners]
        items = [self._item(place, one, taken) for place, one in enumerate(strangers)]
        await self._write(items, guard.revision if guard else ABSENT)
        known = tuple(one for one, owner in owners.items() if owner.metadata.name not in self.made)
        return Imported(imported=tuple(self.made), known=known)

    def _owners(self, workers: Sequence[LabWorker]) -> dict[str, LabWorker]:
        """Tell which of the instances have a worker: one that knows them, or one that they were launched for."""
        here = {one.status.ec2.instance_id: one for one in workers if one.spec.aws.region == self.found.aws_region}
        uids = {one.metadata.uid: one for one in workers}
        owners = ((one, here.get(one.instance_id) or uids.get(one.tags.get(WORKER_TAG, ""))) for one in self._alive())
        return {one.instance_id: owner for one, owner in owners if owner is not None}

    async def _write(self, items: list[Item], revision: int) -> None:
        for bundle in bundled(items, now=self.ledger.clock.now()):
            names = [item.resource.metadata.name for item in bundle.items]
            guard = Put(_GUARDS + self.found.aws_region, " ".join(names).encode(), at=revision)
            revision = await self.ledger.submit([*bundle.ops, guard], bundle.events, deeds=bundle.deeds)
            self.made += names

    def _alive(self) -> list[DiscoveredInstance]:
        return [one for one in self.found.discovered_instances if one.state not in _ENDING]

    def _item(self, place: int, instance: DiscoveredInstance, taken: set[str]) -> Item:
        name = _name(instance, taken)
        taken.add(name)
        worker = LabWorker(metadata=Metadata(name=name, labels=self._labels(instance)), spec=self._spec(instance))
        held(worker, None, ())
        made = admitted(
            worker,
            caller=self.ledger.caller,
            author=self.ledger.author,
            now=self.ledger.clock.now(),
            uid=self.drafts.ids(),
            target=None,
            reason=f"{instance.instance_id} was found by {self.found.source}",
        )
        status = msgspec.structs.replace(made.status, ec2=_facts(instance))
        made = msgspec.structs.replace(made, status=status)
        return Item(place, made, None, Draft(Edit(None, made, origin=IMPORTED, verb="import")))

    def _labels(self, instance: DiscoveredInstance) -> dict[str, str]:
        uid = instance.tags.get(WORKER_TAG, "")
        return {SOURCE: self.found.source} | ({ORPHAN_OF: uid} if uid and _PRINTED.search(uid) else {})

    def _spec(self, instance: DiscoveredInstance) -> LabWorkerSpec:
        named = instance.ami_id or instance.ami_name
        aws = AwsSpec(
            region=self.found.aws_region,
            ami_id=instance.ami_id or (None if named else _UNKNOWN_IMAGE),
            ami_name_pattern=None if instance.ami_id else instance.ami_name or None,
            tags={name: text for name, text in instance.tags.items() if _kept(name, text)},
        )
        if instance.instance_type:
            aws = msgspec.structs.replace(aws, instance_type=instance.instance_type)
        spec = LabWorkerSpec(aws=aws, wanted_state="stopped" if instance.state in _RESTING else "running")
        if WORKER_TAG in instance.tags:
            return spec
        # It is somebody else's machine: it is not paused or rebooted before somebody says so.
        return msgspec.structs.replace(spec, idle=IdlePolicy(enabled=False), auto_remediate=False)


def _facts(instance: DiscoveredInstance) -> Ec2Facts:
    return Ec2Facts(
        instance_id=instance.instance_id,
        instance_type=instance.instance_type,
        state=instance.state,
        availability_zone=instance.availability_zone,
        private_ip=instance.private_ip,
        public_ip=instance.public_ip,
        launched_at=instance.launched_at,
    )


def _name(instance: DiscoveredInstance, taken: set[str]) -> str:
    """Take the name that somebody gave the machine, if it makes one of ours that nothing else has."""
    given = _clean(instance.name or instance.tags.get("Name", ""))
    if given and given not in taken and not looks_like_a_uid(given):
        return given
    return f"imported-{_clean(instance.instance_id)}"


def _kept(name: str, text: str) -> bool:
    """Tell whether a tag is one that a document may have too: the cloud's own cannot be set by others, nor can ours."""
    return not name.startswith("aws:") and name not in _OURS and all(map(_PRINTED.search, (name, text)))


def _clean(text: str) -> str:
    return _STRANGE.sub("-", text.lower())[:_LONGEST_NAME].strip("-")


def _faults(found: BulkImport) -> Iterator[Fault]:
    seen: set[str] = set()
    for place, instance in enumerate(found.discovered_instances):
        path = f"discovered_instances[{place}].instance_id"
        if not _clean(instance.instance_id):
            yield Fault(path, f"{instance.instance_id!r} is no instance's id", "write for example i-0123456789abcdef0")
        if instance.instance_id in seen:
            yield Fault(path, "the same instance twice", "name each once")
        seen.add(instance.instance_id)
