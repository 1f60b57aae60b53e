"""Worker records for machines that discovery found in the cloud. Used by `control.plane.local`.

Imports of one region happen one at a time: each writes the region's guard key, so that two scans never make two records
of one machine. Nor do a scan and a launch: a machine tagged with a worker's uid belongs to that worker, whether or not
its record shows the machine yet.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from lcm.control.admission.admit import Admission, Draft, admit, check_document, looks_like_uid
from lcm.control.delivery.events import IMPORTED
from lcm.control.objects.bundles import BundleItem, pack_bundles
from lcm.control.objects.records import read_entry
from lcm.control.objects.writer import Edit, Writer, retry_conflicts
from lcm.control.plane.bodies import BulkImport, DiscoveredInstance, Imported
from lcm.model.base.errors import Fault, Invalid
from lcm.model.base.resource import DEFAULT_NAMESPACE, NO_CONTROL_CHARACTERS, Metadata
from lcm.model.kinds.worker import AwsSpec, Ec2Facts, IdlePolicy, LabWorker, LabWorkerSpec
from lcm.providers.protocols.compute import OWNER_TAG, WORKER_TAG
from lcm.store.base import ABSENT, Put, scan_all

SOURCE: Final = "lcm/source"
ORPHAN_OF: Final = "lcm/orphan-of"
"""Label of a worker whose machine was launched for another worker, which has no record any more."""

_GUARDS_PREFIX: Final = "imports/"
_ENDING_STATES: Final = frozenset({"shutting-down", "terminated"})
_STOPPED_STATES: Final = frozenset({"stopping", "stopped"})
_UNKNOWN_IMAGE: Final = "unknown"
"""Used where discovery named no image: the machine runs, but no other can be launched from it."""

_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")
_OWN_TAGS: Final = frozenset({OWNER_TAG, WORKER_TAG})
_PRINTED: Final = re.compile(NO_CONTROL_CHARACTERS)
_LONGEST_NAME: Final = 50


@dataclass(slots=True)
class WorkerImport:
    """The instances that one scan of one region found, on their way into the store."""

    writer: Writer
    admission: Admission
    found: BulkImport
    made: list[str] = field(default_factory=list)
    """Names of the workers that were written, including those of disturbed attempts."""

    async def run(self) -> Imported:
        """Create a worker record for each instance that has none."""
        if faults := list(_faults(self.found)):
            raise Invalid(*faults)
        return await retry_conflicts(self._attempt, unless=lambda _: False)

    async def _attempt(self) -> Imported:
        guard = await self.writer.store.get(_GUARDS_PREFIX + self.found.aws_region)
        page = await scan_all(self.writer.store, "workers/")
        workers = [read_entry(entry, LabWorker) for entry in page.entries]
        taken = {one.metadata.name for one in workers if one.metadata.namespace == DEFAULT_NAMESPACE}
        owners = self._find_owners(workers)
        strangers = [one for one in self._live_instances() if one.instance_id not in owners]
        items = [self._item(place, one, taken) for place, one in enumerate(strangers)]
        revision = guard.revision if guard else ABSENT
        for bundle in pack_bundles(items, now=self.writer.clock.now()):
            names = [item.resource.metadata.name for item in bundle.items]
            put = Put(_GUARDS_PREFIX + self.found.aws_region, " ".join(names).encode(), at=revision)
            revision = await self.writer.submit([*bundle.ops, put], bundle.events, deeds=bundle.audited_actions)
            self.made += names
        known = tuple(one for one, owner in owners.items() if owner.metadata.name not in self.made)
        return Imported(imported=tuple(self.made), known=known)

    def _find_owners(self, workers: Sequence[LabWorker]) -> dict[str, LabWorker]:
        """Return the worker of each instance that has one.

        It is the worker that knows the instance, or the one that the instance was launched for.
        """
        here = {one.status.ec2.instance_id: one for one in workers if one.spec.aws.region == self.found.aws_region}
        uids = {one.metadata.uid: one for one in workers}
        owners = (
            (one, here.get(one.instance_id) or uids.get(one.tags.get(WORKER_TAG, ""))) for one in self._live_instances()
        )
        return {one.instance_id: owner for one, owner in owners if owner is not None}

    def _live_instances(self) -> list[DiscoveredInstance]:
        return [one for one in self.found.discovered_instances if one.state not in _ENDING_STATES]

    def _item(self, place: int, instance: DiscoveredInstance, taken: set[str]) -> BundleItem:
        name = _choose_name(instance, taken)
        taken.add(name)
        uid = instance.tags.get(WORKER_TAG, "")
        labels = {SOURCE: self.found.source} | ({ORPHAN_OF: uid} if uid and _PRINTED.search(uid) else {})
        worker = LabWorker(metadata=Metadata(name=name, labels=labels), spec=self._spec(instance))
        check_document(worker, None, ())
        made = admit(
            worker,
            caller=self.writer.caller,
            author=self.writer.author,
            now=self.writer.clock.now(),
            uid=self.admission.ids(),
            target=None,
            reason=f"{instance.instance_id} was found by {self.found.source}",
        )
        status = msgspec.structs.replace(made.status, ec2=msgspec.convert(instance, Ec2Facts, from_attributes=True))
        made = msgspec.structs.replace(made, status=status)
        return BundleItem(place, made, None, Draft(Edit(None, made, origin=IMPORTED, verb="import")))

    def _spec(self, instance: DiscoveredInstance) -> LabWorkerSpec:
        named = instance.ami_id or instance.ami_name
        aws = AwsSpec(
            region=self.found.aws_region,
            market="spot" if instance.spot else "on_demand",
            ami_id=instance.ami_id or (None if named else _UNKNOWN_IMAGE),
            ami_name_pattern=None if instance.ami_id else instance.ami_name or None,
            # The cloud's own tags cannot be set by others, nor can ours.
            tags={
                name: text
                for name, text in instance.tags.items()
                if not name.startswith("aws:") and name not in _OWN_TAGS and all(map(_PRINTED.search, (name, text)))
            },
        )
        if instance.instance_type:
            aws = msgspec.structs.replace(aws, instance_type=instance.instance_type)
        # Nobody has said yet what it is for, so that sessions of any track would go there.
        state: Literal["running", "stopped"] = "stopped" if instance.state in _STOPPED_STATES else "running"
        spec = LabWorkerSpec(aws=aws, wanted_state=state, accepts_sessions=False)
        if WORKER_TAG in instance.tags:
            return spec
        # It is somebody else's machine: do not pause or reboot it before a person allows that.
        return msgspec.structs.replace(spec, idle=IdlePolicy(enabled=False), auto_remediate=False)


def _choose_name(instance: DiscoveredInstance, taken: set[str]) -> str:
    """Return the name that somebody gave the machine, if it is a valid name that no other worker has."""
    given = _clean_name(instance.name or instance.tags.get("Name", ""))
    if given and given not in taken and not looks_like_uid(given):
        return given
    return f"imported-{_clean_name(instance.instance_id)}"


def _clean_name(text: str) -> str:
    return _NOT_IN_NAMES.sub("-", text.lower())[:_LONGEST_NAME].strip("-")


def _faults(found: BulkImport) -> Iterator[Fault]:
    seen: set[str] = set()
    for place, instance in enumerate(found.discovered_instances):
        path = f"discovered_instances[{place}].instance_id"
        if not _clean_name(instance.instance_id):
            yield Fault(path, f"{instance.instance_id!r} is no instance id", "write for example i-0123456789abcdef0")
        if instance.instance_id in seen:
            yield Fault(path, "the same instance twice", "name each once")
        seen.add(instance.instance_id)
