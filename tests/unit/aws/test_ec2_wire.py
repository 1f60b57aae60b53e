"""What EC2 and CloudWatch are really asked, checked on the wire: moto ignores tokens and knows no io1."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from harness import ec2_answers
from harness.clouds import HERE, THERE
from harness.ec2_answers import ID, AwsAnswers, ec2_at
from lcm.model.base.errors import Later, Stuck, Unreachable
from lcm.model.kinds.worker import AwsSpec, RootVolume
from lcm.providers.aws.ec2 import Ec2
from lcm.providers.protocols.compute import (
    InstanceState,
    Launch,
    MachineMetrics,
    MachineType,
    StatusCheckResult,
    StatusChecks,
    Unauthorized,
)

NOBODY = ec2_answers.instances()
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)

WHOLE = Launch(
    worker_uid="uid-1",
    worker_name="worker-1",
    token="uid-1-1",
    instance_type="m8i.16xlarge",
    subnet_id="subnet-2",
    aws=AwsSpec(
        region=THERE,
        ami_id="ami-00000000000000a1",
        vpc_id="vpc-1",
        subnet_ids=("subnet-1", "subnet-2"),
        security_group_ids=("sg-1", "sg-2"),
        root_volume=RootVolume(kind="io1", size_gb=250, iops=5000, encrypted=True),
        iam_instance_profile="worker-profile",
        key_pair="ops",
        nested_virtualization=True,
        tags={"team": "ccna"},
    ),
)


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[AwsAnswers]:
    async with AwsAnswers() as answers:
        yield answers


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ec2(server: AwsAnswers) -> AsyncIterator[Ec2]:
    async with ec2_at(server.url) as opened:
        yield opened


@pytest.fixture
def aws(server: AwsAnswers) -> AwsAnswers:
    server.begin()
    return server


def listed(fields: Mapping[str, str], prefix: str) -> list[str]:
    return [value for name, value in fields.items() if name.startswith(prefix)]


def tags(number: int) -> dict[str, str]:
    pairs = [("Name", "worker-1"), ("lcm:owner", "lcm"), ("lcm:worker-uid", "uid-1"), ("team", "ccna")]
    prefix = f"TagSpecification.{number}"
    return {
        f"{prefix}.Tag.{n}.{part}": word
        for n, pair in enumerate(pairs, 1)
        for part, word in zip(("Key", "Value"), pair, strict=True)
    }


async def test_4_a_launch_asks_for_everything_in_one_call_with_its_token(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("DescribeInstances", NOBODY)
    made = await ec2.ensure(WHOLE)
    assert (made.instance_id, made.state) == (ID, InstanceState.PENDING)
    (asked,) = aws.asked("RunInstances")
    assert asked == {
        "Action": "RunInstances",
        "Version": "2016-11-15",
        "ClientToken": "uid-1-1",
        "ImageId": "ami-00000000000000a1",
        "InstanceType": "m8i.16xlarge",
        "MinCount": "1",
        "MaxCount": "1",
        "BlockDeviceMapping.1.DeviceName": "/dev/xvda",
        "BlockDeviceMapping.1.Ebs.VolumeType": "io1",
        "BlockDeviceMapping.1.Ebs.VolumeSize": "250",
        "BlockDeviceMapping.1.Ebs.Iops": "5000",
        "BlockDeviceMapping.1.Ebs.Encrypted": "true",
        "BlockDeviceMapping.1.Ebs.DeleteOnTermination": "true",
        "NetworkInterface.1.DeviceIndex": "0",
        "NetworkInterface.1.AssociatePublicIpAddress": "true",
        "NetworkInterface.1.DeleteOnTermination": "true",
        "NetworkInterface.1.SubnetId": "subnet-2",
        "NetworkInterface.1.SecurityGroupId.1": "sg-1",
        "NetworkInterface.1.SecurityGroupId.2": "sg-2",
        "IamInstanceProfile.Name": "worker-profile",
        "KeyName": "ops",
        "MetadataOptions.HttpTokens": "required",
        "MetadataOptions.HttpEndpoint": "enabled",
        "CpuOptions.NestedVirtualization": "enabled",
        "TagSpecification.1.ResourceType": "instance",
        "TagSpecification.2.ResourceType": "volume",
        **tags(1),
        **tags(2),
    }


async def test_4_a_spot_machine_is_asked_for_once_with_its_token_and_never_stopped(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("DescribeInstances", NOBODY)
    await ec2.ensure(msgspec.structs.replace(WHOLE, aws=msgspec.structs.replace(WHOLE.aws, market="spot")))
    (asked,) = aws.asked("RunInstances")
    assert asked["ClientToken"] == "uid-1-1"
    assert {name: value for name, value in asked.items() if name.startswith("InstanceMarketOptions")} == {
        "InstanceMarketOptions.MarketType": "spot",
        "InstanceMarketOptions.SpotOptions.SpotInstanceType": "one-time",
        "InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior": "terminate",
    }


async def test_all_notices_of_a_region_are_one_question(aws: AwsAnswers, ec2: Ec2) -> None:
    marked = (
        f"<item><spotInstanceRequestId>sir-1</spotInstanceRequestId><instanceId>{ID}</instanceId><status>"
        "<code>marked-for-termination</code><updateTime>2026-03-01T12:00:00.000Z</updateTime></status></item>"
    )
    told = ec2_answers.xml("DescribeSpotInstanceRequests", f"<spotInstanceRequestSet>{marked}</spotInstanceRequestSet>")
    aws.say("DescribeSpotInstanceRequests", told)
    assert await ec2.list_reclaimed(HERE) == {ID: NOW + timedelta(minutes=2)}
    (asked,) = aws.asked("DescribeSpotInstanceRequests")
    assert listed(asked, "Filter.1") == ["status-code", "marked-for-termination", "marked-for-stop"]


async def test_types_are_asked_for_by_a_filter_and_say_whether_they_nest(aws: AwsAnswers, ec2: Ec2) -> None:
    nests = (
        "<item><instanceType>m8i.4xlarge</instanceType><bareMetal>false</bareMetal>"
        "<processorInfo><supportedFeatures><item>nested-virtualization</item></supportedFeatures></processorInfo>"
        "<vCpuInfo><defaultVCpus>16</defaultVCpus></vCpuInfo><memoryInfo><sizeInMiB>65536</sizeInMiB></memoryInfo></item>"
    )
    aws.say(
        "DescribeInstanceTypes", ec2_answers.xml("DescribeInstanceTypes", f"<instanceTypeSet>{nests}</instanceTypeSet>")
    )
    found = await ec2.machine_types(HERE, ["m8i.4xlarge", "m5zn.metal"])
    assert found == {
        "m8i.4xlarge": MachineType(instance_type="m8i.4xlarge", vcpus=16, memory_mb=65_536, metal=False, nested=True)
    }
    (asked,) = aws.asked("DescribeInstanceTypes")
    assert listed(asked, "Filter.1") == ["instance-type", "m5zn.metal", "m8i.4xlarge"]


@pytest.mark.parametrize(
    ("said", "quota"),
    [
        (ec2_answers.plain({"Quota": {"Value": 384.0}}), 384),
        (ec2_answers.Refusal("AccessDeniedException"), None),
        (ec2_answers.Refusal("NoSuchResourceException"), None),
    ],
)
async def test_a_quota_that_we_may_not_ask_for_is_unknown(
    aws: AwsAnswers, ec2: Ec2, said: ec2_answers.Script, quota: int | None
) -> None:
    aws.say("GetServiceQuota", said)
    assert await ec2.vcpu_quota(HERE, "m8i.4xlarge", spot=False) == quota
    (asked,) = aws.asked("GetServiceQuota")
    assert (asked["ServiceCode"], asked["QuotaCode"]) == ("ec2", "L-1216C47A")
    assert await ec2.vcpu_quota(HERE, "p5.48xlarge", spot=False) is None


async def test_an_image_named_by_its_id_may_be_anybodys_and_deprecated(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("DescribeInstances", NOBODY)
    await ec2.ensure(WHOLE)
    (asked,) = aws.asked("DescribeImages")
    assert (asked["Filter.1.Name"], asked["Filter.1.Value.1"]) == ("image-id", "ami-00000000000000a1")
    assert asked["IncludeDeprecated"] == "true"
    assert not listed(asked, "Owner")


async def test_what_a_worker_does_not_want_is_not_asked_for(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("DescribeInstances", NOBODY)
    profile = "arn:aws:iam::123456789012:instance-profile/worker"
    plain = AwsSpec(
        ami_id=ec2_answers.IMAGE, root_volume=RootVolume(encrypted=False), iam_instance_profile=profile, public_ip=False
    )
    await ec2.ensure(Launch(worker_uid="uid-1", worker_name="w", token="t", instance_type="m5zn.metal", aws=plain))
    (asked,) = aws.asked("RunInstances")
    assert asked["NetworkInterface.1.AssociatePublicIpAddress"] == "false"
    assert asked["IamInstanceProfile.Arn"] == profile
    unwanted = ("CpuOptions", "KeyName", "NetworkInterface.1.S", "BlockDeviceMapping.1.Ebs.Encrypted")
    assert not [name for name in asked if name.startswith(unwanted)]


async def test_4_a_launch_whose_answer_was_lost_is_repeated_with_the_same_token(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("DescribeInstances", NOBODY)
    aws.say("RunInstances", ec2_answers.http(b"<RunIn", length=500), ec2_answers.GOOD["RunInstances"])
    with pytest.raises(Unreachable):
        await ec2.ensure(WHOLE)
    assert (await ec2.ensure(WHOLE)).instance_id == ID
    first, second = aws.asked("RunInstances")
    assert first == second
    assert first["ClientToken"] == "uid-1-1"


async def test_4_the_librarys_own_retry_uses_the_same_token(aws: AwsAnswers) -> None:
    aws.say("DescribeInstances", NOBODY)
    aws.say("RunInstances", ec2_answers.Refusal("Unavailable", status=503), ec2_answers.GOOD["RunInstances"])
    async with ec2_at(aws.url, attempts=2) as ec2:
        await ec2.ensure(WHOLE)
    first, second = aws.asked("RunInstances")
    assert first == second


async def test_a_live_instance_with_our_tag_is_adopted_and_nothing_launched(aws: AwsAnswers, ec2: Ec2) -> None:
    ended = ec2_answers.instance("terminated", "i-0e")
    aws.say(
        "DescribeInstances",
        ec2_answers.instances(ended, ec2_answers.instance("stopped", "i-0b"), ec2_answers.instance("stopped", "i-0a")),
    )
    assert (await ec2.ensure(WHOLE)).instance_id == "i-0a"
    assert [request.action for request in aws.requests] == ["DescribeInstances"]
    (asked,) = aws.asked("DescribeInstances")
    assert (asked["Filter.1.Name"], asked["Filter.1.Value.1"]) == ("tag:lcm:worker-uid", "uid-1")


@pytest.mark.parametrize("code", ["IdempotentParameterMismatch", "IdempotentInstanceTerminated"])
@pytest.mark.parametrize("state", ["running", "terminated"])
async def test_what_a_token_launched_before_is_found_by_the_token(
    aws: AwsAnswers, ec2: Ec2, code: str, state: str
) -> None:
    aws.say("DescribeInstances", NOBODY, ec2_answers.instances(ec2_answers.instance(state)))
    aws.say("RunInstances", ec2_answers.Refusal(code))
    found = await ec2.ensure(WHOLE)
    assert (found.instance_id, found.state) == (ID, state)
    by_token = aws.asked("DescribeInstances")[1]
    assert (by_token["Filter.1.Name"], by_token["Filter.1.Value.1"]) == ("client-token", "uid-1-1")


async def test_what_a_token_launched_before_may_not_be_listed_yet(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("DescribeInstances", NOBODY)
    aws.say("RunInstances", ec2_answers.Refusal("IdempotentParameterMismatch"))
    with pytest.raises(Later, match="not listed yet"):
        await ec2.ensure(WHOLE)


async def test_a_token_whose_instance_ended_long_ago_wants_a_new_attempt(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("DescribeInstances", NOBODY)
    aws.say("RunInstances", ec2_answers.Refusal("IdempotentInstanceTerminated"))
    with pytest.raises(Stuck, match="new token"):
        await ec2.ensure(WHOLE)


async def test_26_the_newest_image_is_found_by_date_over_all_pages(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say(
        "DescribeImages",
        ec2_answers.images(
            ec2_answers.image("ami-0b", "2025-09-01T00:00:00.000Z"),
            ec2_answers.image("ami-0a", "2024-01-01T00:00:00.000Z"),
            token="2",
        ),
        ec2_answers.images(
            ec2_answers.image("ami-0c", "2026-02-01T00:00:00.000Z"),
            ec2_answers.image("ami-0d", "2025-12-01T00:00:00.000Z"),
            token="3",
        ),
        ec2_answers.images(ec2_answers.image("ami-0e", "2023-02-01T00:00:00.000Z")),
    )
    newest = await ec2.newest_image(HERE, "CML-2.*")
    assert newest is not None
    assert newest.image_id == "ami-0c"
    pages = aws.asked("DescribeImages")
    assert [page.get("NextToken") for page in pages] == [None, "2", "3"]
    assert (pages[0]["Filter.1.Name"], pages[0]["Filter.1.Value.1"]) == ("name", "CML-2.*")
    assert (pages[0]["Filter.2.Name"], pages[0]["Filter.2.Value.1"]) == ("state", "available")
    assert pages[0]["Owner.1"] == "self", "anybody may publish an image under our name"
    assert pages[0]["IncludeDeprecated"] == "false"


async def test_26_instances_of_many_images_are_asked_for_in_portions(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say(
        "DescribeImages",
        ec2_answers.images(*(ec2_answers.image(f"ami-{n:08x}", "2026-01-01T00:00:00.000Z") for n in range(450))),
    )
    aws.say(
        "DescribeInstances",
        ec2_answers.instances(ec2_answers.instance(instance_id="i-01"), token="2"),
        ec2_answers.instances(ec2_answers.instance(instance_id="i-02")),
        ec2_answers.instances(ec2_answers.instance(instance_id="i-03")),
        NOBODY,
    )
    found = await ec2.list_by_image(HERE, "CML-*")
    assert [one.instance_id for one in found] == ["i-01", "i-02", "i-03"]
    portions = [len(listed(asked, "Filter.1.Value")) for asked in aws.asked("DescribeInstances")]
    assert portions == [200, 200, 200, 50]


async def test_30_a_list_that_breaks_off_is_no_list(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say(
        "DescribeInstances",
        ec2_answers.instances(ec2_answers.instance(), token="2"),
        ec2_answers.Refusal("InternalError", status=500),
    )
    with pytest.raises(Unreachable):
        await ec2.list_owned(HERE)


async def test_30_a_list_that_turns_in_circles_is_no_list(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("DescribeInstances", ec2_answers.instances(ec2_answers.instance(), token="2"))
    with pytest.raises(Unreachable):
        await ec2.list_owned(HERE)


async def test_5_every_request_is_signed_for_the_region_it_names(aws: AwsAnswers, ec2: Ec2) -> None:
    for region in (HERE, THERE, HERE):
        await ec2.stop(region, ID)
        await ec2.metrics(region, [ID], since=NOW, until=NOW + timedelta(minutes=5))
    assert [request.region for request in aws.requests] == [HERE] * 5 + [THERE] * 5 + [HERE] * 5


async def test_7_a_terminate_that_ends_nothing_is_no_success(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("TerminateInstances", ec2_answers.changed("TerminateInstances", "running"))
    with pytest.raises(Later, match="still running"):
        await ec2.remove(HERE, ID)


async def test_7_a_protected_machine_wants_a_person(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("TerminateInstances", ec2_answers.Refusal("OperationNotPermitted", "disableApiTermination is set"))
    with pytest.raises(Stuck, match="disableApiTermination") as caught:
        await ec2.remove(HERE, ID)
    assert caught.value.reason == "Protected"


async def test_6_a_machine_too_fresh_to_be_listed_is_asked_to_end_all_the_same(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("DescribeInstances", ec2_answers.Refusal("InvalidInstanceID.NotFound"))
    await ec2.remove(HERE, ID)
    assert len(aws.asked("TerminateInstances")) == 1


@pytest.mark.parametrize(
    ("verb", "state", "action"),
    [
        ("start", "stopping", ""),
        ("start", "stopped", "StartInstances"),
        ("start", "running", ""),
        ("stop", "pending", ""),
        ("stop", "running", "StopInstances"),
        ("stop", "stopping", ""),
        ("stop", "stopped", ""),
        ("reboot", "stopped", ""),
        ("reboot", "running", "RebootInstances"),
        ("remove", "shutting-down", ""),
        ("remove", "stopped", "TerminateInstances"),
    ],
)
async def test_only_what_changes_something_is_asked(
    aws: AwsAnswers, ec2: Ec2, verb: str, state: str, action: str
) -> None:
    aws.say("DescribeInstances", ec2_answers.instances(ec2_answers.instance(state)))
    not_yet = (verb, state) in {("start", "stopping"), ("stop", "pending"), ("reboot", "stopped")}
    if not_yet:
        with pytest.raises(Later):
            await getattr(ec2, verb)(HERE, ID)
    else:
        await getattr(ec2, verb)(HERE, ID)
    effects = [request for request in aws.requests if request.action != "DescribeInstances"]
    assert [request.action for request in effects] == ([action] if action else [])
    assert all(request.fields["InstanceId.1"] == ID for request in effects)


async def test_the_console_of_an_older_machine_is_read_from_its_last_boot(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("GetConsoleOutput", ec2_answers.Refusal("UnsupportedOperation"), ec2_answers.GOOD["GetConsoleOutput"])
    assert await ec2.console(HERE, ID) == "hello"
    assert [asked.get("Latest") for asked in aws.asked("GetConsoleOutput")] == ["true", None]


async def test_checks_are_asked_for_in_portions(aws: AwsAnswers, ec2: Ec2) -> None:
    ids = [f"i-{n:017x}" for n in range(250)]
    await ec2.checks(HERE, ids)
    asked = aws.asked("DescribeInstanceStatus")
    assert [len(listed(fields, "InstanceId.")) for fields in asked] == [100, 100, 50]
    assert all(fields["IncludeAllInstances"] == "true" for fields in asked)


async def test_an_unknown_machine_does_not_hide_the_checks_of_others(aws: AwsAnswers, ec2: Ec2) -> None:
    refusal = ec2_answers.Refusal("InvalidInstanceID.NotFound", "The instance IDs 'i-0b, i-0c' do not exist")
    aws.say("DescribeInstanceStatus", refusal, ec2_answers.GOOD["DescribeInstanceStatus"])
    assert await ec2.checks(HERE, ["i-0b", ID, "i-0c"]) == {
        ID: StatusChecks(system=StatusCheckResult.OK, instance=StatusCheckResult.OK)
    }
    assert listed(aws.asked("DescribeInstanceStatus")[1], "InstanceId.") == [ID]


async def test_a_refusal_that_does_not_say_who_is_unknown_is_no_answer(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("DescribeInstanceStatus", ec2_answers.Refusal("InvalidInstanceID.NotFound", "one does not exist"))
    with pytest.raises(Later):
        await ec2.checks(HERE, [ID])


def metric(name: str, instance_id: str = ID, **dimensions: str) -> dict[str, Any]:
    pairs = {"InstanceId": instance_id, **dimensions}
    described = [{"Name": key, "Value": value} for key, value in pairs.items()]
    return {"Namespace": "CWAgent", "MetricName": name, "Dimensions": described}


def series(query: str, values: Sequence[float], *, status: str = "Complete") -> dict[str, Any]:
    moments = [NOW + timedelta(minutes=n) for n in range(len(values))]
    return {"Id": query, "Label": query, "Timestamps": moments, "Values": values, "StatusCode": status}


async def measured(ec2: Ec2, *ids: str) -> Mapping[str, MachineMetrics]:
    return await ec2.metrics(HERE, ids, since=NOW, until=NOW + timedelta(minutes=5))


async def test_metrics_are_averages_and_sums_over_all_pages(aws: AwsAnswers, ec2: Ec2) -> None:
    first = {"MetricDataResults": [series("q0", [10.0, 30.0], status="PartialData")], "NextToken": "2"}
    rest = [series("q0", [50.0]), series("q1", [100.0, 200.0]), series("q2", []), series("q3", [101.0])]
    aws.say("ListMetrics", ec2_answers.plain({"Metrics": [metric("mem_used_percent", AutoScalingGroupName="g")]}))
    aws.say("GetMetricData", ec2_answers.plain(first), ec2_answers.plain({"MetricDataResults": rest}))
    assert await measured(ec2, ID) == {
        ID: MachineMetrics(
            cpu_percent=30.0, memory_percent=100.0, network_in_bytes=300, measured_at=NOW + timedelta(minutes=1)
        )
    }


async def test_the_agents_metrics_are_asked_for_under_the_dimensions_it_chose(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say(
        "ListMetrics",
        ec2_answers.plain(
            {"Metrics": [metric("mem_used_percent", ImageId="ami-1", InstanceType="m5zn.metal")], "NextToken": "2"}
        ),
        ec2_answers.plain(
            {
                "Metrics": [
                    metric("mem_used_percent", ImageId="ami-1"),
                    metric("disk_used_percent", path="/boot", device="a"),
                    metric("disk_used_percent", path="/", device="b"),
                    metric("swap_used_percent"),
                    metric("mem_used_percent", "i-0stranger"),
                ]
            }
        ),
    )
    await measured(ec2, ID)
    wanted = [(asked["Namespace"], asked["MetricName"]) for asked in aws.asked("ListMetrics")]
    assert wanted == [("CWAgent", "mem_used_percent")] * 2 + [("CWAgent", "disk_used_percent")]
    (asked,) = aws.asked("GetMetricData")
    of_agent = [
        (
            query["MetricStat"]["Metric"]["MetricName"],
            [one["Value"] for one in query["MetricStat"]["Metric"]["Dimensions"]],
        )
        for query in asked["MetricDataQueries"]
        if query["MetricStat"]["Metric"]["Namespace"] == "CWAgent"
    ]
    assert of_agent == [("mem_used_percent", [ID, "ami-1"]), ("disk_used_percent", [ID, "/", "b"])]


async def test_metrics_of_many_machines_are_asked_for_in_portions(aws: AwsAnswers, ec2: Ec2) -> None:
    ids = [f"i-{n:017x}" for n in range(400)]
    found = await measured(ec2, *ids)
    assert [len(asked["MetricDataQueries"]) for asked in aws.asked("GetMetricData")] == [500, 500, 200]
    assert list(found) == ids


async def test_a_long_window_is_read_in_few_points(aws: AwsAnswers, ec2: Ec2) -> None:
    await ec2.metrics(HERE, [ID], since=NOW, until=NOW + timedelta(hours=24))
    (asked,) = aws.asked("GetMetricData")
    assert {query["MetricStat"]["Period"] for query in asked["MetricDataQueries"]} == {24 * 60}


@pytest.mark.parametrize(("status", "wanted"), [("InternalError", Unreachable), ("Forbidden", Unauthorized)])
async def test_a_metric_that_could_not_be_read_is_not_nothing(
    aws: AwsAnswers, ec2: Ec2, status: str, wanted: type[Exception]
) -> None:
    aws.say("GetMetricData", ec2_answers.plain({"MetricDataResults": [series("q0", [], status=status)]}))
    with pytest.raises(wanted):
        await measured(ec2, ID)


async def test_a_machine_of_another_name_is_not_ours(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("StopInstances", ec2_answers.changed("StopInstances", "stopping", "i-0other"))
    with pytest.raises(Unreachable, match="i-0other"):
        await ec2.stop(HERE, ID)


TOLD = "<stateReason><code>c</code><message>Server.InternalError: on launch</message></stateReason>"
CHANGED = "<reason>User initiated (2026-03-01 11:00:00 GMT)</reason>"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (TOLD + CHANGED, "Server.InternalError: on launch"),
        (CHANGED, "User initiated (2026-03-01 11:00:00 GMT)"),
        ("<reason/>", ""),
        ("", ""),
    ],
)
async def test_why_a_machine_ended_is_told_in_the_clouds_words(
    aws: AwsAnswers, ec2: Ec2, more: str, reason: str
) -> None:
    aws.say("DescribeInstances", ec2_answers.instances(ec2_answers.instance("terminated", more=more)))
    found = await ec2.find(HERE, ID)
    assert found is not None
    assert found.reason == reason


async def test_a_vpc_without_a_subnet_launches_nothing_in_another(aws: AwsAnswers, ec2: Ec2) -> None:
    aws.say("DescribeInstances", NOBODY)
    homeless = msgspec.structs.replace(WHOLE.aws, subnet_ids=())
    with pytest.raises(Stuck, match="vpc-1") as caught:
        await ec2.ensure(msgspec.structs.replace(WHOLE, aws=homeless, subnet_id=None))
    assert caught.value.reason == "SubnetMissing"
    assert aws.asked("RunInstances") == []


async def test_our_machines_are_listed_by_the_owners_tag(aws: AwsAnswers, ec2: Ec2) -> None:
    await ec2.list_owned(HERE)
    (asked,) = aws.asked("DescribeInstances")
    assert (asked["Filter.1.Name"], asked["Filter.1.Value.1"]) == ("tag:lcm:owner", "lcm")
    assert asked["MaxResults"] == "1000"
