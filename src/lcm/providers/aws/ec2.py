"""Machines on AWS EC2: the `Compute` protocol on aiobotocore. `compose` makes one for the whole process."""

import itertools
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from lcm.model.base.clock import Clock
from lcm.model.base.errors import Gone, Later, Stuck
from lcm.providers.aws.clients import AwsClients
from lcm.providers.aws.cloudwatch import CloudWatch
from lcm.providers.aws.ec2_messages import (
    ec2_tags,
    read_checks,
    read_image,
    read_instance,
    read_instances,
    read_machine_type,
    read_reclaim,
    read_state_change,
    run_instances_request,
)
from lcm.providers.aws.errors import REUSED_LAUNCH, SPENT_LAUNCH, UNSUPPORTED, translate_errors
from lcm.providers.protocols.compute import (
    ENDING,
    OWNER_TAG,
    WORKER_TAG,
    Image,
    Instance,
    InstanceState,
    Launch,
    MachineMetrics,
    MachineType,
    StatusChecks,
    image_missing,
    not_listed_yet,
    oldest_live,
)

if TYPE_CHECKING:
    from types_aiobotocore_ec2.type_defs import FilterTypeDef, ImageTypeDef


PAGE_SIZE: Final = 1000
MAX_FILTER_VALUES: Final = 200
"""How many values EC2 takes in one filter."""
MAX_STATUS_IDS: Final = 100
"""How many instances EC2 takes in one request for status checks."""

_TYPES_PER_PAGE: Final = 100
_RECLAIM_CODES: Final = ["marked-for-termination", "marked-for-stop"]
_STANDARD_FAMILIES: Final = ("a", "c", "d", "h", "i", "m", "r", "t", "z")
_ON_DEMAND_QUOTA: Final = "L-1216C47A"
_SPOT_QUOTA: Final = "L-34B43A08"
"""The quotas of virtual CPUs of machines of the standard families. Others have quotas of their own."""
_RETRY_AFTER: Final = timedelta(seconds=10)
_INSTANCE_ID: Final = re.compile(r"\bi-[0-9a-f]+\b")


class Ec2:
    """The machines of one AWS account, in any region.

    `owner` tells our machines from those of another installation in the same account. Images are looked up by name
    among those of `image_owners` only: anybody may publish an image under any name.
    """

    def __init__(
        self,
        clients: AwsClients,
        clock: Clock,
        *,
        owner: str = "lcm",
        image_owners: Sequence[str] = ("self",),
        page: int = PAGE_SIZE,
    ) -> None:
        self._clients = clients
        self._clock = clock
        self._owner = owner
        self._image_owners = list(image_owners)
        self._page = page
        self._cloudwatch = CloudWatch(clients)

    async def ensure(self, launch: Launch) -> Instance:
        tagged = await self._list_instances(launch.aws.region, {f"tag:{WORKER_TAG}": [launch.worker_uid]})
        return oldest_live(tagged) or await self._launch(launch)

    async def find(self, region: str, instance_id: str, *, launched_at: datetime | None = None) -> Instance | None:
        client = await self._clients.ec2(region)
        try:
            answer = await self._clients.call(
                "ec2:DescribeInstances", client.describe_instances(InstanceIds=[instance_id])
            )
        except Gone:
            later = not_listed_yet(instance_id, launched_at=launched_at, now=self._clock.now())
            if later is not None:
                raise later from None
            return None
        with translate_errors("ec2:DescribeInstances"):
            (found,) = read_instances([answer], region)
            return found

    async def list_owned(self, region: str) -> Sequence[Instance]:
        return await self._list_instances(region, {f"tag:{OWNER_TAG}": [self._owner]})

    async def list_by_image(self, region: str, name_pattern: str) -> Sequence[Instance]:
        # Include instances of deprecated images.
        images = await self._list_images(region, {"name": [name_pattern]}, deprecated=True)
        ids = [one["ImageId"] for one in images]
        chunks = [ids[at : at + MAX_FILTER_VALUES] for at in range(0, len(ids), MAX_FILTER_VALUES)]
        return list(itertools.chain(*[await self._list_instances(region, {"image-id": chunk}) for chunk in chunks]))

    async def newest_image(self, region: str, name_pattern: str) -> Image | None:
        newest = await self._newest_image(region, name_pattern)
        return read_image(newest) if newest else None

    async def list_reclaimed(self, region: str) -> Mapping[str, datetime]:
        client, action = await self._clients.ec2(region), "ec2:DescribeSpotInstanceRequests"
        pages = client.get_paginator("describe_spot_instance_requests").paginate(
            Filters=_filters({"status-code": _RECLAIM_CODES}), PaginationConfig={"PageSize": self._page}
        )
        found = await self._clients.all_pages(action, pages)
        with translate_errors(action):
            return dict(read_reclaim(one) for page in found for one in page["SpotInstanceRequests"])

    async def machine_types(self, region: str, names: Sequence[str]) -> Mapping[str, MachineType]:
        client, action = await self._clients.ec2(region), "ec2:DescribeInstanceTypes"
        # By a filter: for a type that is not offered, a list of names would be refused as a whole.
        pages = client.get_paginator("describe_instance_types").paginate(
            Filters=_filters({"instance-type": sorted(set(names))}), PaginationConfig={"PageSize": _TYPES_PER_PAGE}
        )
        found = await self._clients.all_pages(action, pages)
        with translate_errors(action):
            types = [read_machine_type(one) for page in found for one in page["InstanceTypes"]]
        return {one.instance_type: one for one in types}

    async def vcpu_quota(self, region: str, instance_type: str, *, spot: bool) -> int | None:
        if not instance_type.startswith(_STANDARD_FAMILIES):
            return None
        return await self._clients.quota(region, "ec2", _SPOT_QUOTA if spot else _ON_DEMAND_QUOTA)

    async def start(self, region: str, instance_id: str) -> None:
        found = await self._find_living(region, instance_id)
        if found.state is InstanceState.STOPPING:
            raise Later(f"{instance_id} is still stopping", after=_RETRY_AFTER)
        if found.state is InstanceState.STOPPED:
            client = await self._clients.ec2(region)
            starting = client.start_instances(InstanceIds=[instance_id])
            answer = await self._clients.call("ec2:StartInstances", starting, subject=found.instance_type)
            with translate_errors("ec2:StartInstances"):
                read_state_change(answer["StartingInstances"], instance_id)

    async def stop(self, region: str, instance_id: str) -> None:
        found = await self._find_living(region, instance_id)
        if found.state is InstanceState.PENDING:
            raise Later(f"{instance_id} does not run yet", after=_RETRY_AFTER)
        if found.state is InstanceState.RUNNING:
            client = await self._clients.ec2(region)
            answer = await self._clients.call("ec2:StopInstances", client.stop_instances(InstanceIds=[instance_id]))
            with translate_errors("ec2:StopInstances"):
                read_state_change(answer["StoppingInstances"], instance_id)

    async def reboot(self, region: str, instance_id: str) -> None:
        found = await self._find_living(region, instance_id)
        if found.state is not InstanceState.RUNNING:
            raise Later(f"{instance_id} is {found.state}", after=_RETRY_AFTER)
        client = await self._clients.ec2(region)
        await self._clients.call("ec2:RebootInstances", client.reboot_instances(InstanceIds=[instance_id]))

    async def remove(self, region: str, instance_id: str) -> None:
        found = await self.find(region, instance_id)
        if found is not None and found.state in ENDING:
            return
        # An instance that is not listed may be too new for that: terminate it all the same.
        client = await self._clients.ec2(region)
        try:
            answer = await self._clients.call(
                "ec2:TerminateInstances", client.terminate_instances(InstanceIds=[instance_id])
            )
        except Gone:
            return
        with translate_errors("ec2:TerminateInstances"):
            state = read_state_change(answer["TerminatingInstances"], instance_id)
        if state not in ENDING:
            raise Later(f"{instance_id} is still {state}", after=_RETRY_AFTER)

    async def tag(self, region: str, instance_id: str, tags: Mapping[str, str]) -> None:
        await self._find_living(region, instance_id)
        client = await self._clients.ec2(region)
        await self._clients.call("ec2:CreateTags", client.create_tags(Resources=[instance_id], Tags=ec2_tags(tags)))

    async def console(self, region: str, instance_id: str) -> str:
        client = await self._clients.ec2(region)
        try:
            newest = client.get_console_output(InstanceId=instance_id, Latest=True)
            answer = await self._clients.call("ec2:GetConsoleOutput", newest)
        except Stuck as refused:
            if refused.reason != UNSUPPORTED:
                raise
            # Older machine types keep only the output of their last boot.
            answer = await self._clients.call("ec2:GetConsoleOutput", client.get_console_output(InstanceId=instance_id))
        return answer.get("Output", "")

    async def checks(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, StatusChecks]:
        found: dict[str, StatusChecks] = {}
        for at in range(0, len(instance_ids), MAX_STATUS_IDS):
            found.update(await self._read_checks(region, list(instance_ids[at : at + MAX_STATUS_IDS])))
        return found

    async def metrics(
        self, region: str, instance_ids: Sequence[str], *, since: datetime, until: datetime
    ) -> Mapping[str, MachineMetrics]:
        return await self._cloudwatch.read(region, instance_ids, since=since, until=until)

    async def close(self) -> None:
        await self._clients.close()

    async def _launch(self, launch: Launch) -> Instance:
        region = launch.aws.region
        chosen = await self._image_of(launch)
        client = await self._clients.ec2(region)
        with translate_errors("ec2:DescribeImages"):
            request = run_instances_request(
                launch, image_id=chosen["ImageId"], root_device=chosen["RootDeviceName"], owner=self._owner
            )
        try:
            answer = await self._clients.call(
                "ec2:RunInstances", client.run_instances(**request), subject=launch.instance_type
            )
        except Stuck as refused:
            if refused.reason not in {REUSED_LAUNCH, SPENT_LAUNCH}:
                raise
            return await self._find_launched(launch, refused)
        with translate_errors("ec2:RunInstances"):
            (launched,) = answer["Instances"]
            return read_instance(launched, region)

    async def _find_launched(self, launch: Launch, refused: Stuck) -> Instance:
        """Find what the token has launched, perhaps from another image, or in a call whose answer was lost."""
        found = await self._list_instances(launch.aws.region, {"client-token": [launch.token]})
        if found:
            return oldest_live(found) or found[0]
        if refused.reason == SPENT_LAUNCH:
            raise refused
        raise Later(f"{launch.worker_name} was launched already and is not listed yet", after=_RETRY_AFTER)

    async def _image_of(self, launch: Launch) -> "ImageTypeDef":
        aws = launch.aws
        chosen = None
        if aws.ami_id:
            found = await self._list_images(aws.region, {"image-id": [aws.ami_id]}, owners=(), deprecated=True)
            chosen = next(iter(found), None)
        elif aws.ami_name_pattern:
            chosen = await self._newest_image(aws.region, aws.ami_name_pattern)
        if chosen is None:
            raise image_missing(launch)
        return chosen

    async def _newest_image(self, region: str, name_pattern: str) -> "ImageTypeDef | None":
        found = await self._list_images(region, {"name": [name_pattern], "state": ["available"]})
        with translate_errors("ec2:DescribeImages"):
            return max(found, key=lambda one: (read_image(one).created_at, one["ImageId"]), default=None)

    async def _list_images(
        self,
        region: str,
        wanted: Mapping[str, list[str]],
        *,
        owners: Sequence[str] | None = None,
        deprecated: bool = False,
    ) -> list["ImageTypeDef"]:
        client = await self._clients.ec2(region)
        pages = client.get_paginator("describe_images").paginate(
            Owners=self._image_owners if owners is None else owners,
            Filters=_filters(wanted),
            IncludeDeprecated=deprecated,
            PaginationConfig={"PageSize": self._page},
        )
        found = await self._clients.all_pages("ec2:DescribeImages", pages)
        with translate_errors("ec2:DescribeImages"):
            return [one for page in found for one in page["Images"]]

    async def _list_instances(self, region: str, wanted: Mapping[str, list[str]]) -> list[Instance]:
        client = await self._clients.ec2(region)
        pages = client.get_paginator("describe_instances").paginate(
            Filters=_filters(wanted), PaginationConfig={"PageSize": self._page}
        )
        found = await self._clients.all_pages("ec2:DescribeInstances", pages)
        with translate_errors("ec2:DescribeInstances"):
            return read_instances(found, region)

    async def _find_living(self, region: str, instance_id: str) -> Instance:
        found = await self.find(region, instance_id)
        if found is None or found.state in ENDING:
            raise Gone(f"{instance_id} in {region} is gone")
        return found

    async def _read_checks(self, region: str, instance_ids: list[str]) -> Mapping[str, StatusChecks]:
        client = await self._clients.ec2(region)
        wanted = instance_ids
        while wanted:
            asking = client.describe_instance_status(InstanceIds=wanted, IncludeAllInstances=True)
            try:
                answer = await self._clients.call("ec2:DescribeInstanceStatus", asking)
            except Gone as refused:
                wanted = _without_unknown(wanted, refused)
                continue
            with translate_errors("ec2:DescribeInstanceStatus"):
                return {one["InstanceId"]: read_checks(one) for one in answer["InstanceStatuses"]}
        return {}


def _filters(wanted: Mapping[str, list[str]]) -> list["FilterTypeDef"]:
    return [{"Name": name, "Values": values} for name, values in wanted.items()]


def _without_unknown(asked_for: list[str], refused: Gone) -> list[str]:
    """Drop the ids that EC2 does not know: for one of them it refuses to answer about the others."""
    unknown = set(_INSTANCE_ID.findall(str(refused)))
    known = [one for one in asked_for if one not in unknown]
    if len(known) == len(asked_for):
        raise Later(f"EC2 does not say which instance it does not know: {refused}", after=_RETRY_AFTER)
    return known
