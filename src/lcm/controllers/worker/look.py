"""Looking: what each phase needs to know of the outside, asked for and put into a `View`.

No answer, or none in time, becomes `Unknown`, here and nowhere else; so does an answer that only a
person can change.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from lcm.controllers.worker.view import Rules, Unknown, View
from lcm.model.base.clock import Clock
from lcm.model.base.errors import Later, Stuck
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.providers.protocols.compute import WORKER_TAG, Checks, Compute, Instance, InstanceState, oldest_live
from lcm.providers.protocols.labhost import Hosts, LabHost, Licence, NodeFacts, NotReady, System

T = TypeVar("T")

HOST_SECONDS: Final = 10.0
"""How long one question to a host may take here: who waits for a silent one keeps others waiting. The first that is
not answered is the last of a look."""

_QUIET: Final = frozenset({"STOPPED", "DEFINED_ON_CORE"})
_UP: Final = frozenset({"", str(InstanceState.RUNNING), str(InstanceState.PENDING)})
_P = WorkerPhase
_MACHINE: Final = frozenset(
    {_P.PROVISIONING_EC2, _P.EC2_READY, _P.STARTING, _P.STOPPING, _P.TERMINATING_EC2, _P.FAILED}
)
"""Phases in which the machine itself is looked at each time; in the others the monitor's facts do."""
_WATCHED: Final = frozenset({_P.READY_UNLICENSED, _P.LICENSING, _P.READY, _P.ACTIVE, _P.DRAINING, _P.UNLICENSING})


@dataclass(frozen=True, slots=True)
class Eyes:
    """Looks at machines and at what runs on them."""

    cloud: Compute
    hosts: Hosts
    clock: Clock

    async def look(self, worker: LabWorker, sessions: Sequence[LabletSession], rules: Rules) -> View:
        """See what a worker's phase needs."""
        seen: dict[str, Any] = {}
        phase = worker.status.phase
        if _looks_at_machine(worker, rules):
            seen["instance"] = await self._instance(worker)
        if phase is _P.PENDING and not worker.status.ec2.instance_id:
            seen["image_missing"] = await self._image_missing(worker)
        if phase is _P.STARTING and _runs(seen.get("instance")):
            seen |= await self._boot(worker)
        if _looks_at_licence(worker, rules):
            seen |= await self._licence(worker, labs=phase is _P.UNLICENSING)
        return View(worker=worker, now=self.clock.now(), rules=rules, sessions=sessions, **seen)

    async def _instance(self, worker: LabWorker) -> Instance | Unknown | None:
        known, region = worker.status.ec2, worker.spec.aws.region
        if known.instance_id:
            return await asked(self.cloud.find(region, known.instance_id, launched_at=_fresh(worker)))
        if worker.status.phase is not _P.TERMINATING_EC2:
            return Unknown()
        owned = await asked(self.cloud.list_owned(region))
        if isinstance(owned, Unknown):
            return owned
        return oldest_live(one for one in owned if one.tags.get(WORKER_TAG) == worker.metadata.uid)

    async def _image_missing(self, worker: LabWorker) -> bool | Unknown:
        aws = worker.spec.aws
        if aws.ami_id or not aws.ami_name_pattern:
            return False
        image = await asked(self.cloud.newest_image(aws.region, aws.ami_name_pattern))
        return image if isinstance(image, Unknown) else image is None

    async def _boot(self, worker: LabWorker) -> Mapping[str, Any]:
        region, instance_id = worker.spec.aws.region, worker.status.ec2.instance_id
        every = await asked(self.cloud.checks(region, [instance_id]))
        missing = Unknown("EC2 does not say")
        checks: Checks | Unknown = every if isinstance(every, Unknown) else every.get(instance_id, missing)
        seen: dict[str, Any] = {"checks": checks}
        certificate = worker.status.cml.certificate or await answered(self.hosts.certificate(worker))
        if isinstance(certificate, Unknown):
            return seen | {"system": certificate}
        seen["certificate"] = certificate
        if certificate != worker.status.cml.certificate:
            return seen | {"system": Unknown("its certificate is pinned first", answered=True)}
        host = await answered(self.hosts.of(worker))
        if isinstance(host, Unknown):
            return seen | {"system": host}
        system = await answered(host.system())
        seen["system"] = system
        if not isinstance(system, System) or not system.ready:
            return seen
        stats = await answered(host.stats())
        is_silent = isinstance(stats, Unknown) and not stats.answered
        return seen | {"stats": stats, "licence": stats if is_silent else await answered(host.licence())}

    async def _licence(self, worker: LabWorker, *, labs: bool) -> Mapping[str, Any]:
        host = await answered(self.hosts.of(worker))
        if isinstance(host, Unknown):
            return {"licence": host, "busy_labs": host}
        licence: Licence | Unknown = await answered(host.licence())
        if not labs or isinstance(licence, Unknown):
            return {"licence": licence}
        return {"licence": licence, "busy_labs": await self._busy_labs(host)}

    async def _busy_labs(self, host: LabHost) -> Sequence[str] | Unknown:
        nodes = await answered(host.all_nodes())
        return nodes if isinstance(nodes, Unknown) else busy_labs(nodes)


async def asked(answer: Awaitable[T]) -> T | Unknown:
    """Await an answer; its absence is unknown."""
    try:
        return await answer
    except NotReady as error:
        return Unknown(str(error), answered=True)
    except Later as error:
        return Unknown(str(error))
    except Stuck as error:
        return Unknown(str(error), answered=True, reason=error.reason)


async def answered(answer: Awaitable[T]) -> T | Unknown:
    """Await a host's answer for as long as one may take."""
    try:
        async with asyncio.timeout(HOST_SECONDS):
            return await asked(answer)
    except TimeoutError:
        return Unknown(f"no answer within {HOST_SECONDS:g} s")


def busy_labs(nodes: Mapping[str, Sequence[NodeFacts]]) -> Sequence[str]:
    """List the labs of which a node runs or is about to."""
    return sorted(lab for lab, members in nodes.items() if any(node.state not in _QUIET for node in members))


def _looks_at_machine(worker: LabWorker, rules: Rules) -> bool:
    status = worker.status
    if status.phase in _MACHINE:
        return True
    if status.phase is _P.PENDING:
        return bool(status.ec2.instance_id)
    if status.phase is _P.STOPPED:
        return not rules.monitored or status.ec2.state != InstanceState.STOPPED
    return status.phase in _WATCHED and (not rules.monitored or status.ec2.state not in _UP)


def _looks_at_licence(worker: LabWorker, rules: Rules) -> bool:
    """Tell whether CML must say itself: it takes or returns one, or nobody else has found out."""
    match worker.status.phase:
        case _P.LICENSING | _P.UNLICENSING:
            return True
        case _P.READY_UNLICENSED:
            token, known = worker.spec.cml.license_token, worker.status.cml.licensed
            return token is not None or known is not False or not rules.monitored
        case phase:
            return phase is _P.DRAINING and worker.status.cml.licensed is None


def _fresh(worker: LabWorker) -> datetime | None:
    """Say when it was launched, or at least found: of one that is new the cloud may not know yet."""
    return worker.status.ec2.launched_at or worker.metadata.created_at


def _runs(instance: object) -> bool:
    return isinstance(instance, Instance) and instance.state is InstanceState.RUNNING
