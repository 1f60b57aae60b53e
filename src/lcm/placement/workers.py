"""All workers that are known, by uid, and what those of one image have told. Kept by whoever follows the fleet.

What a machine will have that is not started yet is known from others of its image. Of thousands of them, only one that
tells something new costs more than itself.
"""

from collections.abc import ItemsView, Iterable, Iterator, KeysView
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

from lcm.model.kinds.worker import LabWorker, LabWorkerSpec

_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)


class ImageFacts(NamedTuple):
    """What workers of an image have told: their node definitions, None while none listed them, and CML's version."""

    node_definitions: frozenset[str] | None = None
    version: str = ""


class KnownWorkers:
    """The workers by uid, and by image those that have told something."""

    def __init__(self, workers: Iterable[LabWorker] = ()) -> None:
        self._by_uid: dict[str, LabWorker] = {}
        self._by_image: dict[object, dict[str, LabWorker]] = {}
        self._facts: dict[object, ImageFacts] = {}
        for one in workers:
            self.put(one)

    def __contains__(self, uid: str) -> bool:
        return uid in self._by_uid

    def __iter__(self) -> Iterator[LabWorker]:
        return iter(self._by_uid.values())

    def get(self, uid: str) -> LabWorker | None:
        """Return the worker with a uid; None if it is not known."""
        return self._by_uid.get(uid)

    def items(self) -> ItemsView[str, LabWorker]:
        """Return all workers with their uids."""
        return self._by_uid.items()

    def uids(self) -> KeysView[str]:
        """Return the uids of all workers."""
        return self._by_uid.keys()

    def put(self, worker: LabWorker) -> bool:
        """Add a worker, or replace it as it is now. Return whether it tells something that it did not tell before."""
        uid, image = worker.metadata.uid, image_of(worker.spec)
        before = self._by_uid.get(uid)
        self._by_uid[uid] = worker
        if before is not None and _told(before) == _told(worker):
            if uid in self._by_image.get(image, {}):
                self._by_image[image][uid] = worker
            return False
        if before is not None:
            self._forget(before)
        if worker.status.cml.version or worker.status.cml.node_definitions is not None:
            self._by_image.setdefault(image, {})[uid] = worker
            self._facts.pop(image, None)
        return True

    def remove(self, uid: str) -> None:
        """Remove a worker, if it is known."""
        worker = self._by_uid.pop(uid, None)
        if worker is not None:
            self._forget(worker)

    def image_facts(self, image: object) -> ImageFacts:
        """Return what the workers of an image have told."""
        found = self._facts.get(image)
        if found is None:
            found = self._facts[image] = find_image_facts(self._by_image.get(image, {}).values())
        return found

    def _forget(self, worker: LabWorker) -> None:
        image = image_of(worker.spec)
        alike = self._by_image.get(image, {})
        if alike.pop(worker.metadata.uid, None) is not None:
            self._facts.pop(image, None)
        if not alike:
            self._by_image.pop(image, None)


def image_of(spec: LabWorkerSpec) -> object:
    """Return what names the image of a worker."""
    return spec.aws.region, spec.aws.ami_id, spec.aws.ami_name_pattern


def find_image_facts(workers: Iterable[LabWorker]) -> ImageFacts:
    """Return what workers of one image have told."""
    every = list(workers)
    return ImageFacts(definitions_of(every), version_of(every))


def definitions_of(workers: Iterable[LabWorker]) -> frozenset[str] | None:
    """Return the node definitions that any of the workers has; None while none has listed them."""
    lists = frozenset(names for one in workers if (names := one.status.cml.node_definitions) is not None)
    return _join_names(lists) if lists else None


def version_of(workers: Iterable[LabWorker]) -> str:
    """Return the version of CML that the newest worker that tells it has; "" if none does."""
    told = (one for one in workers if one.status.cml.version)
    newest = max(told, key=lambda one: (one.metadata.created_at or _BEGINNING, one.metadata.uid), default=None)
    return newest.status.cml.version if newest else ""


@lru_cache(maxsize=256)
def _join_names(lists: frozenset[tuple[str, ...]]) -> frozenset[str]:
    """Join lists of names. Workers of one image have one list, and one set serves all of them."""
    return frozenset(name for names in lists for name in names)


def _told(worker: LabWorker) -> object:
    cml = worker.status.cml
    return image_of(worker.spec), cml.version, cml.node_definitions, worker.metadata.created_at
