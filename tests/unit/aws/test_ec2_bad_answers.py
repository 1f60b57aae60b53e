"""Every bad answer to every request of every verb ends in the right error; none looks like "nothing there"."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from aiobotocore.session import AioSession

from harness import ec2_answers
from harness.clouds import HERE, KEYS, launch
from harness.ec2_answers import ID, Answer, AwsAnswers, ec2_at
from harness.servers import LOOPBACK, free_port
from harness.stores import HandClock
from lcm.model.base.errors import Gone, Later, LcmError, Stuck, Throttled, Unreachable
from lcm.providers.aws.clients import AwsClients
from lcm.providers.aws.ec2 import Ec2
from lcm.providers.protocols.compute import Unauthorized
from lcm.system.clock import SystemClock

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TWO_PAGES = ec2_answers.instances(ec2_answers.instance(), token="2"), ec2_answers.GOOD["DescribeInstances"]
STOPPED = (ec2_answers.instances(ec2_answers.instance("stopped")),)

Bad = Answer | ec2_answers.Refusal
Where = tuple[str, int]
"""The n-th request of a verb."""
Door = tuple[AwsAnswers, Ec2]
Verb = Callable[[Ec2], Awaitable[object]]
VERBS: Mapping[str, Verb] = {
    "ensure": lambda ec2: ec2.ensure(launch("uid")),
    "find": lambda ec2: ec2.find(HERE, ID),
    "list_owned": lambda ec2: ec2.list_owned(HERE),
    "list_by_image": lambda ec2: ec2.list_by_image(HERE, "CML-*"),
    "newest_image": lambda ec2: ec2.newest_image(HERE, "CML-*"),
    "start": lambda ec2: ec2.start(HERE, ID),
    "stop": lambda ec2: ec2.stop(HERE, ID),
    "reboot": lambda ec2: ec2.reboot(HERE, ID),
    "remove": lambda ec2: ec2.remove(HERE, ID),
    "tag": lambda ec2: ec2.tag(HERE, ID, {"key": "value"}),
    "console": lambda ec2: ec2.console(HERE, ID),
    "checks": lambda ec2: ec2.checks(HERE, [ID]),
    "metrics": lambda ec2: ec2.metrics(HERE, [ID], since=NOW, until=NOW + timedelta(minutes=5)),
}
INSTANCES: Mapping[str, tuple[Answer, ...]] = {
    "ensure": (ec2_answers.instances(),),
    "list_owned": TWO_PAGES,
    "list_by_image": TWO_PAGES,
    "start": STOPPED,
}
"""What DescribeInstances answers before a verb makes all its requests."""

REQUESTS: Mapping[str, tuple[str, ...]] = {
    "ensure": ("ec2:DescribeInstances", "ec2:DescribeImages", "ec2:RunInstances"),
    "find": ("ec2:DescribeInstances",),
    "list_owned": ("ec2:DescribeInstances", "ec2:DescribeInstances"),
    "list_by_image": ("ec2:DescribeImages", "ec2:DescribeInstances", "ec2:DescribeInstances"),
    "newest_image": ("ec2:DescribeImages",),
    "start": ("ec2:DescribeInstances", "ec2:StartInstances"),
    "stop": ("ec2:DescribeInstances", "ec2:StopInstances"),
    "reboot": ("ec2:DescribeInstances", "ec2:RebootInstances"),
    "remove": ("ec2:DescribeInstances", "ec2:TerminateInstances"),
    "tag": ("ec2:DescribeInstances", "ec2:CreateTags"),
    "console": ("ec2:GetConsoleOutput",),
    "checks": ("ec2:DescribeInstanceStatus",),
    "metrics": ("cloudwatch:ListMetrics", "cloudwatch:ListMetrics", "cloudwatch:GetMetricData"),
}
EVERYWHERE = [(verb, n) for verb, requests in REQUESTS.items() for n in range(1, len(requests) + 1)]

PAGE = b"<html><head/><body>Please sign in to this network</body></html>"
BAD: Mapping[str, Bad] = {
    "cut off before a word": Answer(b""),
    "half a body": ec2_answers.http(b"<DescribeInstancesResponse><requestId>r</requestId>", length=900),
    "half a chunk": Answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n100\r\n<DescribeInst"),
    "another protocol": Answer(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "half a document": ec2_answers.http(b"<DescribeInstancesResponse><requestId>r</requestId><reservationSet>"),
    "an empty body": ec2_answers.http(b""),
    "somebody else's page": ec2_answers.http(PAGE, kind="text/html"),
    "somebody else's page, refusing": ec2_answers.http(PAGE, kind="text/html", status=403),
    "not even a page": ec2_answers.http(b"\x00\x01\x02", kind="application/octet-stream"),
    "json of another type": ec2_answers.http(b'["nothing"]', kind="application/json"),
    "an answer to another question": ec2_answers.http(b"<Other><requestId>r-1</requestId></Other>"),
    "an internal error": ec2_answers.Refusal("InternalError", status=500),
    "a bad gateway": ec2_answers.http(b"<html>502 Bad Gateway</html>", status=502, kind="text/html"),
    "unavailable": ec2_answers.Refusal("Unavailable", status=503),
    "a server's error nobody knows": ec2_answers.Refusal("SomethingNew", status=500),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door() -> AsyncIterator[Door]:
    async with AwsAnswers() as aws, ec2_at(aws.url) as ec2:
        yield aws, ec2


async def outcome(aws: AwsAnswers, ec2: Ec2, where: Where, bad: Bad) -> object:
    """Answer the n-th request of a verb badly, and return how the verb ended."""
    verb, number = where
    aws.begin()
    if verb in INSTANCES:
        aws.say("DescribeInstances", *INSTANCES[verb])
    aws.spoil(number, bad)
    try:
        return await VERBS[verb](ec2)
    except LcmError as error:
        return error


async def outcomes(door: Door, bad: Bad, places: Sequence[Where] = EVERYWHERE) -> dict[Where, object]:
    return {where: await outcome(*door, where, bad) for where in places}


async def without_an_answer(where: Where) -> object:
    async with AwsAnswers() as aws, ec2_at(aws.url, patience=0.5) as ec2:
        return await outcome(aws, ec2, where, Answer(None))


@pytest.mark.parametrize("verb", VERBS)
async def test_these_are_all_the_requests_of_a_verb(door: Door, verb: str) -> None:
    aws, ec2 = door
    aws.begin()
    if verb in INSTANCES:
        aws.say("DescribeInstances", *INSTANCES[verb])
    await VERBS[verb](ec2)
    assert [request.action for request in aws.requests] == [one.split(":")[1] for one in REQUESTS[verb]]


@pytest.mark.parametrize("name", [name for name in BAD if name != "an answer to another question"])
async def test_30_no_answer_and_no_usable_answer_are_unreachable(door: Door, name: str) -> None:
    wrong = {
        where: ended for where, ended in (await outcomes(door, BAD[name])).items() if not isinstance(ended, Unreachable)
    }
    assert not wrong


async def test_30_who_never_answers_is_unreachable() -> None:
    async with asyncio.timeout(60):
        ended = await asyncio.gather(*map(without_an_answer, EVERYWHERE))
    assert not [one for one in zip(EVERYWHERE, ended, strict=True) if not isinstance(one[1], Unreachable)]


async def in_drops(where: Where) -> tuple[object, int]:
    drops = Answer(ec2_answers.http(b"<DescribeInstancesResponse>", length=100_000).raw, trickles=True)
    async with AwsAnswers() as aws, ec2_at(aws.url, patience=1.0, limit=2.0) as ec2:
        return await outcome(aws, ec2, where, drops), len(aws.requests)


async def test_30_an_answer_that_comes_in_drops_for_ever_is_unreachable() -> None:
    places = ("find", 1), ("list_owned", 2), ("metrics", 1)
    async with asyncio.timeout(60):
        ended = await asyncio.gather(*map(in_drops, places))
    for (verb, number), (error, requests) in zip(places, ended, strict=True):
        assert isinstance(error, Unreachable), (verb, error)
        assert "TimeoutError" in str(error), verb
        assert requests == number, verb


async def test_30_a_list_without_end_is_unreachable() -> None:
    async with AwsAnswers() as aws, ec2_at(aws.url, most_pages=20) as ec2:
        aws.say("DescribeInstances", ec2_answers.Endless())
        async with asyncio.timeout(60):
            with pytest.raises(Unreachable, match="more than 20 pages"):
                await ec2.list_owned(HERE)
        assert len(aws.requests) == 21


async def test_30_an_answer_to_another_question_is_unreachable_where_anything_is_read_from_it(door: Door) -> None:
    silent = {("reboot", 2), ("tag", 2), ("console", 1)}
    ended = await outcomes(door, BAD["an answer to another question"])
    assert not {where: one for where, one in ended.items() if where not in silent and not isinstance(one, Unreachable)}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("AuthFailure", f"could not validate {KEYS.access_key_id}"),
        ("SignatureDoesNotMatch", f"Credential={KEYS.access_key_id}/x Signature=0123456789abcdef"),
        ("UnauthorizedOperation", "You are not authorized. Encoded authorization failure message: c2VjcmV0"),
    ],
)
async def test_wrong_credentials_name_the_action_and_not_themselves(door: Door, code: str, message: str) -> None:
    for (verb, number), ended in (await outcomes(door, ec2_answers.Refusal(code, message, status=403))).items():
        assert isinstance(ended, Unauthorized), (verb, number, ended)
        assert ended.action == REQUESTS[verb][number - 1]
        assert ended.action in str(ended)
        told = f"{ended}{ended.__cause__}"
        assert not [word for word in (*message.split(), KEYS.access_key_id) if len(word) > 9 and word in told]


@pytest.mark.parametrize("code", ["RequestLimitExceeded", "ThrottlingException"])
async def test_who_asks_too_often_is_told_when_to_come_back(door: Door, code: str) -> None:
    for where, ended in (await outcomes(door, ec2_answers.Refusal(code, status=503))).items():
        assert isinstance(ended, Throttled), (where, ended)
        assert ended.after >= timedelta(seconds=1)


async def test_30_an_id_that_aws_cannot_read_is_not_gone(door: Door) -> None:
    said = ec2_answers.Refusal("InvalidInstanceID.Malformed", f"Invalid id: {ID!r}")
    for where, ended in (await outcomes(door, said)).items():
        assert isinstance(ended, Stuck), (where, ended)
        assert ended.reason == "RequestInvalid", where


async def test_what_vanishes_between_two_requests_is_gone_or_removed(door: Door) -> None:
    said = ec2_answers.Refusal("InvalidInstanceID.NotFound", f"The instance ID '{ID}' does not exist")
    ended = await outcomes(door, said)
    changes = {where: one for where, one in ended.items() if where[0] in {"start", "stop", "reboot", "tag", "console"}}
    assert {type(one) for one in changes.values()} == {Gone}
    assert (ended["find", 1], ended["remove", 1], ended["remove", 2]) == (None, None, None)
    assert ended["checks", 1] == {}


async def test_6_a_fresh_instance_that_vanishes_is_not_gone() -> None:
    clock = HandClock()
    async with AwsAnswers() as aws, ec2_at(aws.url, clock=clock) as ec2:
        aws.say("DescribeInstances", ec2_answers.Refusal("InvalidInstanceID.NotFound"))
        launched_at = clock.now()
        for _ in range(5):
            with pytest.raises(Later, match="not listed yet"):
                await ec2.find(HERE, ID, launched_at=launched_at)
            clock.step(minutes=1)
        assert await ec2.find(HERE, ID, launched_at=launched_at) is None


@pytest.mark.parametrize(
    "odd",
    [
        ec2_answers.instances(ec2_answers.instance("exploding")),
        ec2_answers.instances(ec2_answers.instance().replace("2026-03-01T10:00:00.000Z", "yesterday")),
        ec2_answers.instances("<item><instanceId>i-0a</instanceId></item>"),
        ec2_answers.instances(),
        ec2_answers.instances(ec2_answers.instance(), ec2_answers.instance()),
    ],
)
async def test_an_instance_described_in_words_we_do_not_know_is_no_answer(door: Door, odd: Answer) -> None:
    ended = await outcomes(door, odd, [("find", 1)])
    assert isinstance(ended["find", 1], Unreachable)


async def test_a_machine_that_refuses_connections_is_unreachable() -> None:
    async with ec2_at(f"http://{LOOPBACK}:{free_port()}") as ec2:
        for verb in VERBS.values():
            with pytest.raises(Unreachable):
                await verb(ec2)


async def test_no_credentials_at_all_want_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    async with AwsAnswers() as aws:
        ec2 = Ec2(AwsClients(session=AioSession(), endpoint_url=aws.url), SystemClock())
        with pytest.raises(Unauthorized, match="no usable credentials"):
            await ec2.list_owned(HERE)
        await ec2.close()
    assert aws.requests == []


async def test_a_region_that_cannot_be_wants_a_person() -> None:
    async with ec2_at(f"http://{LOOPBACK}:{free_port()}") as ec2:
        with pytest.raises(Stuck, match="region"):
            await ec2.list_owned("not a region")
