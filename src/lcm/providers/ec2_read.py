"""What EC2 said, as our values. A missing or odd field raises what `ec2_errors.translated` takes for no answer."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from lcm.providers.compute import Check, Checks, Image, Instance, InstanceState
from lcm.providers.ec2_errors import clean

if TYPE_CHECKING:
    from types_aiobotocore_ec2.type_defs import (
        DescribeInstancesResultTypeDef,
        ImageTypeDef,
        InstanceStateChangeTypeDef,
        InstanceStatusTypeDef,
        InstanceTypeDef,
        ReservationResponseTypeDef,
        TagTypeDef,
    )

_CHECKS: Final[Mapping[str, Check]] = {
    "ok": Check.OK,
    "impaired": Check.IMPAIRED,
    "initializing": Check.INITIALIZING,
    "insufficient-data": Check.UNKNOWN,
    "not-applicable": Check.UNKNOWN,
}


def instances(pages: Sequence["DescribeInstancesResultTypeDef"], region: str) -> list[Instance]:
    """Read the instances of a list."""
    found = (one for page in pages for reservation in page["Reservations"] for one in reservation["Instances"])
    return [instance(one, region) for one in found]


def launched(answer: "ReservationResponseTypeDef", region: str) -> Instance:
    """Read the one instance of a launch."""
    (one,) = answer["Instances"]
    return instance(one, region)


def instance(said: "InstanceTypeDef", region: str) -> Instance:
    """Read one instance."""
    return Instance(
        instance_id=said["InstanceId"],
        region=region,
        state=InstanceState(said["State"]["Name"]),
        instance_type=said["InstanceType"],
        image_id=said["ImageId"],
        launched_at=said["LaunchTime"].astimezone(UTC),
        zone=said.get("Placement", {}).get("AvailabilityZone", ""),
        private_ip=said.get("PrivateIpAddress") or None,
        public_ip=said.get("PublicIpAddress") or None,
        tags=_tags(said.get("Tags", [])),
        reason=_reason(said),
    )


def changed(said: Sequence["InstanceStateChangeTypeDef"], instance_id: str) -> InstanceState:
    """Read the new state of the one instance that was to change."""
    (one,) = said
    if one["InstanceId"] != instance_id:
        raise LookupError(f"it speaks of {one['InstanceId']}, not of {instance_id}")
    return InstanceState(one["CurrentState"]["Name"])


def image(said: "ImageTypeDef") -> Image:
    """Read one image."""
    created = datetime.fromisoformat(said["CreationDate"]).astimezone(UTC)
    return Image(image_id=said["ImageId"], name=said.get("Name", ""), created_at=created)


def checks(said: "InstanceStatusTypeDef") -> Checks:
    """Read the two status checks of an instance."""
    return Checks(
        system=_CHECKS[said["SystemStatus"]["Status"]],
        instance=_CHECKS[said["InstanceStatus"]["Status"]],
    )


def _tags(said: Sequence["TagTypeDef"]) -> dict[str, str]:
    return {tag["Key"]: tag.get("Value", "") for tag in said}


def _reason(said: "InstanceTypeDef") -> str:
    return clean(said.get("StateReason", {}).get("Message", "") or said.get("StateTransitionReason", ""))
