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
from lcm.providers.aws.ec2_messages import changed, checks, image, instances, launched, run_instances, tags_of
from lcm.providers.aws.errors import REUSED, SPENT, UNSUPPORTED, translated
from lcm.providers.protocols.compute import (
    ENDING,
    OWNER_TAG,
    WORKER_TAG,
    Checks,
    Image,
    Instance,
    InstanceState,
    Launch,
    MachineMetrics,
    no_image,
    not_listed_yet,
    oldest_live,
)

if TYPE_CHECKING:
    from types_aiobotocore_ec2.type_defs import FilterTypeDef, ImageTypeDef


PAGE: Final = 1000
FILTER_VALUES: Final = 200
"""How many values EC2 takes in one filter."""
STATUS_IDS: Final = 100
"""How many instances EC2 takes in one question about status checks."""

_AFTER: Final = timedelta(seconds=10)
_ID: Final = re.compile(r"\bi-[0-9a-f]+\b")


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
        page: int = PAGE,
    ) -> None:
        self._clients = clients
        self._clock = clock
        self._owner = owner
        self._image_owners = list(image_owners)
        self._page = page
        self._cloudwatch = CloudWatch(clients)

    async def ensure(self, launch: Launch) -> Instance:
        tagged = await self._listed(launch.aws.region, {f"tag:{WORKER_TAG}": [launch.worker_uid]})
        return oldest_live(tagged) or await self._launch(launch)

    async def find(self, region: str, instance_id: str, *, launched_at: datetime | None = None) -> Instance | None:
        client = await self._clients.ec2(region)
        try:
            answer = await self._clients.asked(
                "ec2:DescribeInstances", client.describe_instances(InstanceIds=[instance_id])
            )
        except Gone:
            later = not_listed_yet(instance_id, launched_at=launched_at, now=self._clock.now())
            if later is not None:
                raise later from None
            return None
        with translated("ec2:DescribeInstances"):
            (found,) = instances([answer], region)
            return found

    async def list_owned(self, region: str) -> Sequence[Instance]:
        return await self._listed(region, {f"tag:{OWNER_TAG}": [self._owner]})

    async def list_by_image(self, region: str, name_pattern: str) -> Sequence[Instance]:
        # Those that run from a deprecated image are wanted too.
        images = await self._images(region, {"name": [name_pattern]}, deprecated=True)
        ids = [one["ImageId"] for one in images]
        chunks = [ids[at : at + FILTER_VALUES] for at in range(0, len(ids), FILTER_VALUES)]
        return list(itertools.chain(*[await self._listed(region, {"image-id": chunk}) for chunk in chunks]))

    async def newest_image(self, region: str, name_pattern: str) -> Image | None:
        newest = await self._newest(region, name_pattern)
        return image(newest) if newest else None

    async def start(self, region: str, instance_id: str) -> None:
        found = await self._living(region, instance_id)
        if found.state is InstanceState.STOPPING:
            raise Later(f"{instance_id} is still stopping", after=_AFTER)
        if found.state is InstanceState.STOPPED:
            client = await self._clients.ec2(region)
            starting = client.start_instances(InstanceIds=[instance_id])
            answer = await self._clients.asked("ec2:StartInstances", starting, machine=found.instance_type)
            with translated("ec2:StartInstances"):
                changed(answer["StartingInstances"], instance_id)

    async def stop(self, region: str, instance_id: str) -> None:
        found = await self._living(region, instance_id)
        if found.state is InstanceState.PENDING:
            raise Later(f"{instance_id} does not run yet", after=_AFTER)
        if found.state is InstanceState.RUNNING:
            client = await self._clients.ec2(region)
            answer = await self._clients.asked("ec2:StopInstances", client.stop_instances(InstanceIds=[instance_id]))
            with translated("ec2:StopInstances"):
                changed(answer["StoppingInstances"], instance_id)

    async def reboot(self, region: str, instance_id: str) -> None:
        found = await self._living(region, instance_id)
        if found.state is not InstanceState.RUNNING:
            raise Later(f"{instance_id} is {found.state}", after=_AFTER)
        client = await self._clients.ec2(region)
        await self._clients.asked("ec2:RebootInstances", client.reboot_instances(InstanceIds=[instance_id]))

    async def remove(self, region: str, instance_id: str) -> None:
        found = await self.find(region, instance_id)
        if found is not None and found.state in ENDING:
            return
        # One that is not listed may only be too fresh for that: it is asked to end all the same.
        client = await self._clients.ec2(region)
        try:
            answer = await self._clients.asked(
                "ec2:TerminateInstances", client.terminate_instances(InstanceIds=[instance_id])
            )
        except Gone:
            return
        with translated("ec2:TerminateInstances"):
            state = changed(answer["TerminatingInstances"], instance_id)
        if state not in ENDING:
            raise Later(f"{instance_id} is still {state}", after=_AFTER)

    async def tag(self, region: str, instance_id: str, tags: Mapping[str, str]) -> None:
        await self._living(region, instance_id)
        client = await self._clients.ec2(region)
        await self._clients.asked("ec2:CreateTags", client.create_tags(Resources=[instance_id], Tags=tags_of(tags)))

    async def console(self, region: str, instance_id: str) -> str:
        client = await self._clients.ec2(region)
        try:
            newest = client.get_console_output(InstanceId=instance_id, Latest=True)
            answer = await self._clients.asked("ec2:GetConsoleOutput", newest)
        except Stuck as refused:
            if refused.reason != UNSUPPORTED:
                raise
            # Older machine types keep only what they wrote at their last boot.
            answer = await self._clients.asked(
                "ec2:GetConsoleOutput", client.get_console_output(InstanceId=instance_id)
            )
        return answer.get("Output", "")

    async def checks(self, region: str, instance_ids: Sequence[str]) -> Mapping[str, Checks]:
        found: dict[str, Checks] = {}
        for at in range(0, len(instance_ids), STATUS_IDS):
            found.update(await self._checks(region, list(instance_ids[at : at + STATUS_IDS])))
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
        with translated("ec2:DescribeImages"):
            request = run_instances(
                launch, image_id=chosen["ImageId"], root_device=chosen["RootDeviceName"], owner=self._owner
            )
        try:
            answer = await self._clients.asked(
                "ec2:RunInstances", client.run_instances(**request), machine=launch.instance_type
            )
        except Stuck as refused:
            if refused.reason not in {REUSED, SPENT}:
                raise
            return await self._launched_before(launch, refused)
        with translated("ec2:RunInstances"):
            return launched(answer, region)

    async def _launched_before(self, launch: Launch, refused: Stuck) -> Instance:
        """Find what the token has launched, perhaps from another image, or by somebody who did not hear of it."""
        found = await self._listed(launch.aws.region, {"client-token": [launch.token]})
        if found:
            return oldest_live(found) or found[0]
        if refused.reason == SPENT:
            raise refused
        raise Later(f"{launch.worker_name} was launched already and is not listed yet", after=_AFTER)

    async def _image_of(self, launch: Launch) -> "ImageTypeDef":
        aws = launch.aws
        chosen = None
        if aws.ami_id:
            found = await self._images(aws.region, {"image-id": [aws.ami_id]}, owners=(), deprecated=True)
            chosen = next(iter(found), None)
        elif aws.ami_name_pattern:
            chosen = await self._newest(aws.region, aws.ami_name_pattern)
        if chosen is None:
            raise no_image(launch)
        return chosen

    async def _newest(self, region: str, name_pattern: str) -> "ImageTypeDef | None":
        found = await self._images(region, {"name": [name_pattern], "state": ["available"]})
        with translated("ec2:DescribeImages"):
            return max(found, key=lambda one: (image(one).created_at, one["ImageId"]), default=None)

    async def _images(
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
        with translated("ec2:DescribeImages"):
            return [one for page in found for one in page["Images"]]

    async def _listed(self, region: str, wanted: Mapping[str, list[str]]) -> list[Instance]:
        client = await self._clients.ec2(region)
        pages = client.get_paginator("describe_instances").paginate(
            Filters=_filters(wanted), PaginationConfig={"PageSize": self._page}
        )
        found = await self._clients.all_pages("ec2:DescribeInstances", pages)
        with translated("ec2:DescribeInstances"):
            return instances(found, region)

    async def _living(self, region: str, instance_id: str) -> Instance:
        found = await self.find(region, instance_id)
        if found is None or found.state in ENDING:
            raise Gone(f"{instance_id} in {region} is gone")
        return found

    async def _checks(self, region: str, instance_ids: list[str]) -> Mapping[str, Checks]:
        client = await self._clients.ec2(region)
        wanted = instance_ids
        while wanted:
            asking = client.describe_instance_status(InstanceIds=wanted, IncludeAllInstances=True)
            try:
                answer = await self._clients.asked("ec2:DescribeInstanceStatus", asking)
            except Gone as refused:
                wanted = _known(wanted, refused)
                continue
            with translated("ec2:DescribeInstanceStatus"):
                return {one["InstanceId"]: checks(one) for one in answer["InstanceStatuses"]}
        return {}


def _filters(wanted: Mapping[str, list[str]]) -> list["FilterTypeDef"]:
    return [{"Name": name, "Values": values} for name, values in wanted.items()]


def _known(asked_for: list[str], refused: Gone) -> list[str]:
    """Leave out the ids that EC2 says it does not know: for one of them it refuses to speak about the others."""
    unknown = set(_ID.findall(str(refused)))
    known = [one for one in asked_for if one not in unknown]
    if len(known) == len(asked_for):
        raise Later(f"EC2 does not say which instance it does not know: {refused}", after=_AFTER)
    return known
