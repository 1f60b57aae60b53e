"""What a launch asks of EC2: the arguments of RunInstances, made from a `Launch` and its image. Called by `ec2`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from lcm.providers.compute import Launch, ownership, subnet_of

if TYPE_CHECKING:
    from types_aiobotocore_ec2.literals import InstanceTypeType
    from types_aiobotocore_ec2.type_defs import (
        BlockDeviceMappingTypeDef,
        InstanceNetworkInterfaceSpecificationTypeDef,
        RunInstancesRequestTypeDef,
        TagSpecificationTypeDef,
        TagTypeDef,
    )


def run_instances(launch: Launch, *, image_id: str, root_device: str, owner: str) -> "RunInstancesRequestTypeDef":
    """Ask for exactly one machine. The same launch and image always give the same request, as its token demands."""
    aws = launch.aws
    request: RunInstancesRequestTypeDef = {
        "ImageId": image_id,
        "InstanceType": cast("InstanceTypeType", launch.instance_type),
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": launch.token,
        "TagSpecifications": _tags(launch, owner),
        "BlockDeviceMappings": [_root_volume(launch, root_device)],
        "NetworkInterfaces": [_network(launch)],
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required"},
    }
    if aws.iam_instance_profile:
        profile = aws.iam_instance_profile
        request["IamInstanceProfile"] = {"Arn": profile} if profile.startswith("arn:") else {"Name": profile}
    if aws.key_pair:
        request["KeyName"] = aws.key_pair
    if aws.nested_virtualization:
        request["CpuOptions"] = {"NestedVirtualization": "enabled"}
    return request


def tags_of(wanted: Mapping[str, str]) -> list["TagTypeDef"]:
    """Write tags as EC2 takes them."""
    return [{"Key": key, "Value": value} for key, value in sorted(wanted.items())]


def _tags(launch: Launch, owner: str) -> list["TagSpecificationTypeDef"]:
    tags = tags_of(ownership(launch, owner))
    return [{"ResourceType": "instance", "Tags": tags}, {"ResourceType": "volume", "Tags": tags}]


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


def _network(launch: Launch) -> "InstanceNetworkInterfaceSpecificationTypeDef":
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
