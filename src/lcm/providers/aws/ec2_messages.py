"""EC2's requests and answers: the arguments of RunInstances from a `Launch`, and EC2's answers as our values.

Used by `ec2`. A missing or odd field raises what `errors.translate_errors` takes for no answer.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

from lcm.providers.aws.errors import redact
from lcm.providers.protocols.compute import (
    RECLAIM_NOTICE,
    Image,
    Instance,
    InstanceState,
    Launch,
    MachineType,
    StatusCheckResult,
    StatusChecks,
    ownership_tags,
    subnet_of,
)

if TYPE_CHECKING:
    from types_aiobotocore_ec2.literals import InstanceTypeType
    from types_aiobotocore_ec2.type_defs import (
        BlockDeviceMappingTypeDef,
        DescribeInstancesResultTypeDef,
        ImageTypeDef,
        InstanceNetworkInterfaceSpecificationTypeDef,
        InstanceStateChangeTypeDef,
        InstanceStatusTypeDef,
        InstanceTypeDef,
        InstanceTypeInfoTypeDef,
        RunInstancesRequestTypeDef,
        SpotInstanceRequestTypeDef,
        SpotMarketOptionsTypeDef,
        TagTypeDef,
    )

_TRANSITION_MOMENT: Final = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) GMT\)")


def run_instances_request(
    launch: Launch, *, image_id: str, root_device: str, owner: str
) -> "RunInstancesRequestTypeDef":
    """Request exactly one machine. The same launch and image make the same request, as its token demands."""
    aws, tags = launch.aws, ec2_tags(ownership_tags(launch, owner))
    request: RunInstancesRequestTypeDef = {
        "ImageId": image_id,
        "InstanceType": cast("InstanceTypeType", launch.instance_type),
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": launch.token,
        "TagSpecifications": [{"ResourceType": "instance", "Tags": tags}, {"ResourceType": "volume", "Tags": tags}],
        "BlockDeviceMappings": [_root_volume(launch, root_device)],
        "NetworkInterfaces": [_network_interface(launch)],
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required"},
    }
    if aws.iam_instance_profile:
        profile = aws.iam_instance_profile
        request["IamInstanceProfile"] = {"Arn": profile} if profile.startswith("arn:") else {"Name": profile}
    if aws.key_pair:
        request["KeyName"] = aws.key_pair
    if aws.market == "spot":
        # A one-time request: EC2 never launches another machine for it, which would have no worker.
        options: SpotMarketOptionsTypeDef = {
            "SpotInstanceType": "one-time",
            "InstanceInterruptionBehavior": "terminate",
        }
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    if aws.nested_virtualization:
        request["CpuOptions"] = {"NestedVirtualization": "enabled"}
    return request


def ec2_tags(wanted: Mapping[str, str]) -> list["TagTypeDef"]:
    """Return tags in EC2's form."""
    return [{"Key": key, "Value": value} for key, value in sorted(wanted.items())]


def _root_volume(launch: Launch, root_device: str) -> "BlockDeviceMappingTypeDef":
    volume = launch.aws.root_volume
    mapping: BlockDeviceMappingTypeDef = {
        "DeviceName": root_device,
        "Ebs": {
            "VolumeType": volume.kind,
            "VolumeSize": volume.size_gb,
            "Iops": volume.iops,
            "DeleteOnTermination": True,
        },
    }
    if volume.encrypted:  # EC2 refuses to be told "not encrypted" for an image that is
        mapping["Ebs"]["Encrypted"] = True
    return mapping


def _network_interface(launch: Launch) -> "InstanceNetworkInterfaceSpecificationTypeDef":
    aws = launch.aws
    network: InstanceNetworkInterfaceSpecificationTypeDef = {
        "DeviceIndex": 0,
        "AssociatePublicIpAddress": aws.public_ip,
        "DeleteOnTermination": True,
    }
    subnet = subnet_of(launch)
    if subnet:
        network["SubnetId"] = subnet
    if aws.security_group_ids:
        network["Groups"] = list(aws.security_group_ids)
    return network


_CHECKS: Final[Mapping[str, StatusCheckResult]] = {
    "ok": StatusCheckResult.OK,
    "impaired": StatusCheckResult.IMPAIRED,
    "initializing": StatusCheckResult.INITIALIZING,
    "insufficient-data": StatusCheckResult.UNKNOWN,
    "not-applicable": StatusCheckResult.UNKNOWN,
}


def read_instances(pages: Sequence["DescribeInstancesResultTypeDef"], region: str) -> list[Instance]:
    """Read the instances of a list."""
    found = (one for page in pages for reservation in page["Reservations"] for one in reservation["Instances"])
    return [read_instance(one, region) for one in found]


def read_instance(said: "InstanceTypeDef", region: str) -> Instance:
    """Read one instance."""
    return Instance(
        spot=said.get("InstanceLifecycle") == "spot",
        instance_id=said["InstanceId"],
        region=region,
        state=InstanceState(said["State"]["Name"]),
        instance_type=said["InstanceType"],
        image_id=said["ImageId"],
        launched_at=said["LaunchTime"].astimezone(UTC),
        zone=said.get("Placement", {}).get("AvailabilityZone", ""),
        private_ip=said.get("PrivateIpAddress") or None,
        public_ip=said.get("PublicIpAddress") or None,
        tags={tag["Key"]: tag.get("Value", "") for tag in said.get("Tags", [])},
        reason=redact(said.get("StateReason", {}).get("Message", "") or said.get("StateTransitionReason", "")),
        state_since=_read_state_since(said.get("StateTransitionReason", "")),
    )


def _read_state_since(said: str) -> datetime | None:
    """Read the moment in a text such as "User initiated (2026-11-02 08:00:00 GMT)"; None if it has none."""
    found = _TRANSITION_MOMENT.search(said)
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC) if found else None


def read_state_change(said: Sequence["InstanceStateChangeTypeDef"], instance_id: str) -> InstanceState:
    """Read the new state of the one instance that was to change."""
    (one,) = said
    if one["InstanceId"] != instance_id:
        raise LookupError(f"it speaks of {one['InstanceId']}, not of {instance_id}")
    return InstanceState(one["CurrentState"]["Name"])


def read_image(said: "ImageTypeDef") -> Image:
    """Read one image."""
    created = datetime.fromisoformat(said["CreationDate"]).astimezone(UTC)
    return Image(image_id=said["ImageId"], name=said.get("Name", ""), created_at=created)


def read_reclaim(said: "SpotInstanceRequestTypeDef") -> tuple[str, datetime]:
    """Read which machine is taken away, and when."""
    return said["InstanceId"], said["Status"]["UpdateTime"].astimezone(UTC) + RECLAIM_NOTICE


def read_machine_type(said: "InstanceTypeInfoTypeDef") -> MachineType:
    """Read what a type of machine has."""
    return MachineType(
        instance_type=said["InstanceType"],
        vcpus=said["VCpuInfo"]["DefaultVCpus"],
        memory_mb=said["MemoryInfo"]["SizeInMiB"],
        metal=said.get("BareMetal", False),
        nested="nested-virtualization" in said.get("ProcessorInfo", {}).get("SupportedFeatures", []),
    )


def read_checks(said: "InstanceStatusTypeDef") -> StatusChecks:
    """Read the two status checks of an instance."""
    return StatusChecks(
        system=_CHECKS[said["SystemStatus"]["Status"]],
        instance=_CHECKS[said["InstanceStatus"]["Status"]],
    )
