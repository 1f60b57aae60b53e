"""Observing what each phase needs to know of the outside, as a `WorkerView`. Called by `lifecycle`."""

import hashlib
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lcm.controllers.runtime.lifecycle import Unknown, ask, ask_host
from lcm.controllers.session.progress import owner_of
from lcm.controllers.worker.measure import SERVING, running_nodes
from lcm.controllers.worker.view import WorkerRules, WorkerView
from lcm.model.base.clock import Clock
from lcm.model.kinds.session import LabletSession
from lcm.model.kinds.worker import LabWorker, WorkerPhase
from lcm.providers.protocols.compute import WORKER_TAG, Compute, Instance, InstanceState, StatusChecks, oldest_live
from lcm.providers.protocols.labhost import Hosts, Licence, System

_RUNNING_STATES: Final = frozenset({"", str(InstanceState.RUNNING), str(InstanceState.PENDING)})
_P = WorkerPhase
_MACHINE_PHASES: Final = frozenset(
    {_P.PROVISIONING_EC2, _P.EC2_READY, _P.STARTING, _P.STOPPING, _P.TERMINATING_EC2, _P.FAILED}
)
"""Phases in which every look asks for the machine itself. In the others the monitor's facts are enough."""
_DRAINED_PHASES: Final = frozenset({_P.DRAINING, _P.UNLICENSING})


@dataclass(frozen=True, slots=True)
class WorkerLook:
    """Observes machines and what runs on them."""

    cloud: Compute
    hosts: Hosts
    clock: Clock

    async def look(self, worker: LabWorker, sessions: Sequence[LabletSession], rules: WorkerRules) -> WorkerView:
        """Observe what a worker's phase needs."""
        seen: dict[str, Any] = {}
        phase = worker.status.phase
        if _needs_machine(worker, rules):
            seen["instance"] = await self._find_instance(worker)
        if phase is _P.PENDING and not worker.status.ec2.instance_id:
            seen["image_missing"] = await self._is_image_missing(worker)
        machine = seen.get("instance")
        if phase is _P.STARTING and isinstance(machine, Instance) and machine.state is InstanceState.RUNNING:
            seen |= await self._observe_boot(worker, rules)
        if _needs_licence(worker, rules):
            seen |= await self._observe_licence(worker, labs=phase is _P.UNLICENSING)
        # A failed machine may go with all that is on it. One whose CML never told its version was never trusted.
        may_go = phase in _DRAINED_PHASES or (phase is _P.FAILED and worker.status.cml.version)
        if may_go and not sessions:
            seen["session_labs"] = await self._list_session_labs(worker)
        return WorkerView(worker, self.clock.now(), rules, sessions, **seen)

    async def _list_session_labs(self, worker: LabWorker) -> Sequence[str] | Unknown:
        host = await ask_host(self.hosts.of(worker))
        labs = host if isinstance(host, Unknown) else await ask_host(host.labs())
        return labs if isinstance(labs, Unknown) else [lab.lab_id for lab in labs if owner_of(lab.title)]

    async def _find_instance(self, worker: LabWorker) -> Instance | Unknown | None:
        known, region = worker.status.ec2, worker.spec.aws.region
        if known.instance_id:
            recorded_at = known.launched_at or worker.metadata.created_at  # the cloud may not know a new one yet
            return await ask(self.cloud.find(region, known.instance_id, launched_at=recorded_at))
        if worker.status.phase is not _P.TERMINATING_EC2:
            return Unknown()
        owned = await ask(self.cloud.list_owned(region))
        if isinstance(owned, Unknown):
            return owned
        return oldest_live(one for one in owned if one.tags.get(WORKER_TAG) == worker.metadata.uid)

    async def _is_image_missing(self, worker: LabWorker) -> bool | Unknown:
        aws = worker.spec.aws
        if aws.ami_id or not aws.ami_name_pattern:
            return False
        image = await ask(self.cloud.newest_image(aws.region, aws.ami_name_pattern))
        return image if isinstance(image, Unknown) else image is None

    async def _observe_boot(self, worker: LabWorker, rules: WorkerRules) -> Mapping[str, Any]:
        region, instance_id = worker.spec.aws.region, worker.status.ec2.instance_id
        every = await ask(self.cloud.checks(region, [instance_id]))
        missing = Unknown("EC2 does not say")
        checks: StatusChecks | Unknown = every if isinstance(every, Unknown) else every.get(instance_id, missing)
        seen: dict[str, Any] = {"checks": checks}
        certificate = worker.status.cml.certificate or await self._fetch_certificate(worker, rules)
        if isinstance(certificate, Unknown):
            return seen | {"system": certificate}
        seen["certificate"] = certificate
        if certificate != worker.status.cml.certificate:
            return seen | {"system": Unknown("its certificate is pinned first", answered=True)}
        host = await ask_host(self.hosts.of(worker))
        if isinstance(host, Unknown):
            return seen | {"system": host}
        system = await ask_host(host.system())
        seen["system"] = system
        if not isinstance(system, System) or not system.ready:
            return seen
        stats = await ask_host(host.stats())
        is_silent = isinstance(stats, Unknown) and not stats.answered
        if is_silent:
            return seen | {"stats": stats, "licence": stats}
        definitions = await ask_host(host.node_definitions())
        return seen | {"stats": stats, "licence": await ask_host(host.licence()), "definitions": definitions}

    async def _fetch_certificate(self, worker: LabWorker, rules: WorkerRules) -> str | Unknown:
        """Return the certificate to pin; Unknown also while the machine's console does not confirm it."""
        shown = await ask_host(self.hosts.certificate(worker))
        if isinstance(shown, Unknown) or not shown or not rules.console_trust:
            return shown
        printed = await ask(self.cloud.console(worker.spec.aws.region, worker.status.ec2.instance_id))
        if isinstance(printed, Unknown) or has_fingerprint(printed, shown):
            return printed if isinstance(printed, Unknown) else shown
        return Unknown("the console does not show the fingerprint of its certificate", answered=True)

    async def _observe_licence(self, worker: LabWorker, *, labs: bool) -> Mapping[str, Any]:
        host = await ask_host(self.hosts.of(worker))
        if isinstance(host, Unknown):
            return {"licence": host, "busy_labs": host}
        licence: Licence | Unknown = await ask_host(host.licence())
        if not labs or isinstance(licence, Unknown):
            return {"licence": licence}
        nodes = await ask_host(host.all_nodes())
        if isinstance(nodes, Unknown):
            return {"licence": licence, "busy_labs": nodes}
        return {"licence": licence, "busy_labs": sorted(lab for lab, each in nodes.items() if running_nodes(each))}


def has_fingerprint(console: str, certificate: str) -> bool:
    """Return whether a console shows the SHA-256 fingerprint of a PEM certificate, as openssl prints it or bare."""
    wanted = hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()
    return wanted in console.replace(":", "").lower()


def _needs_machine(worker: LabWorker, rules: WorkerRules) -> bool:
    status = worker.status
    if status.phase in _MACHINE_PHASES:
        return True
    if status.phase is _P.PENDING:
        return bool(status.ec2.instance_id)
    if status.phase is _P.STOPPED:
        return not rules.monitored or status.ec2.state != InstanceState.STOPPED
    return status.phase in SERVING and (not rules.monitored or status.ec2.state not in _RUNNING_STATES)


def _needs_licence(worker: LabWorker, rules: WorkerRules) -> bool:
    """Return whether CML must be asked: it takes or returns a licence now, or nobody else has found out."""
    match worker.status.phase:
        case _P.LICENSING | _P.UNLICENSING:
            return True
        case _P.READY_UNLICENSED:
            token, known = worker.spec.cml.license_token, worker.status.cml.licensed
            return token is not None or known is not False or not rules.monitored
        case phase:
            return phase is _P.DRAINING and worker.status.cml.licensed is None
