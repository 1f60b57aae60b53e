"""What a cloud's or CML's answer means for a worker's status. Pure."""

from datetime import datetime
from typing import Final

import msgspec

from lcm.model.capacity import Amount
from lcm.model.worker import CmlFacts, Ec2Facts, IdleVerdict, LabWorkerSpec
from lcm.providers.compute import Checks, Instance
from lcm.providers.labhost import Licence, Stats

PORTS: Final = 6000
"""CML's PATty serves 2000 to 7999."""


def ec2_facts(known: Ec2Facts, instance: Instance) -> Ec2Facts:
    """Put what the cloud says over what is known; the launch is resolved once the instance is known."""
    return msgspec.structs.replace(
        known,
        client_token="",
        instance_id=instance.instance_id,
        instance_type=instance.instance_type,
        image_id=instance.image_id,
        state=str(instance.state),
        availability_zone=instance.zone,
        private_ip=instance.private_ip,
        public_ip=instance.public_ip,
        launched_at=instance.launched_at,
        gone_at=None,
    )


def checked(known: Ec2Facts, checks: Checks) -> Ec2Facts:
    """Put the status checks over what is known."""
    return msgspec.structs.replace(known, system_status=str(checks.system), instance_status=str(checks.instance))


def api_url(spec: LabWorkerSpec, machine: Instance | Ec2Facts) -> str:
    """Say where CML listens; "" while the machine has no such address."""
    address = machine.public_ip if spec.aws.public_ip else machine.private_ip
    return f"https://{address}" if address else ""


def unseen(known: CmlFacts) -> CmlFacts:
    """Forget what CML last said of itself: its machine is off or gone. Its licence outlasts that."""
    return msgspec.structs.replace(known, ready=None, healthy=None)


def put_off(idle: IdleVerdict | None, now: datetime) -> IdleVerdict | None:
    """Forget what was judged of a machine that is off, but not that somebody put off its next pause."""
    if idle is None or idle.snoozed_until is None or idle.snoozed_until <= now:
        return None
    return IdleVerdict(idle=False, reason="snoozed", judged_at=idle.judged_at, snoozed_until=idle.snoozed_until)


def licence_facts(known: CmlFacts, licence: Licence) -> CmlFacts:
    """Put what CML says of its licence over what is known."""
    text = licence.authorization if licence.registered else licence.registration
    return msgspec.structs.replace(known, licensed=licence.registered, license_status=text)


def declared(spec: LabWorkerSpec, stats: Stats, licence: Licence | None) -> Amount:
    """Say what a worker can hold: what the machine has, never what it uses."""
    licensed = licence is not None and licence.in_compliance
    most = (
        min(spec.cml.max_nodes_licensed, licence.node_limit) if licence and licensed else spec.cml.max_nodes_unlicensed
    )
    return Amount(
        cpu_millis=stats.cpu_count * 1000,
        memory_mb=stats.memory_total_mb,
        storage_mb=stats.disk_total_mb,
        nodes=most,
        ports=PORTS,
        labs=spec.max_concurrent_labs,
    )
