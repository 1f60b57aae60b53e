"""A server that answers as AWS does, or as badly as a test likes, and remembers what it was asked, byte for byte."""

import asyncio
import contextlib
import json
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Self
from urllib.parse import parse_qsl

from harness.clouds import KEYS, SESSION
from harness.servers import LOOPBACK, stop_listening
from lcm.model.base.clock import Clock
from lcm.providers.aws.clients import AwsClients
from lcm.providers.aws.ec2 import Ec2
from lcm.system.clock import SystemClock

ID = "i-0aaaaaaaaaaaaaaa1"
IMAGE = "ami-00000000000000a1"
TRICKLE_SECONDS = 0.1


@dataclass(frozen=True)
class Request:
    """What came over the wire: the action, its arguments as they were written, and the region it was signed for."""

    action: str
    region: str
    fields: Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """What goes back over the wire. Without bytes there never is an answer; one that trickles never ends."""

    raw: bytes | None
    trickles: bool = False

    def to(self, _request: Request) -> "Answer":
        return self

    def __repr__(self) -> str:
        return f"Answer({self.raw[:60]!r})" if self.raw else "Answer(nothing)"


def http(
    body: bytes, *, status: int = 200, kind: str = "text/xml", headers: str = "", length: int | None = None
) -> Answer:
    """Answer with any bytes; a length other than theirs breaks the connection off in the middle."""
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status} Status\r\nContent-Type: {kind}\r\nContent-Length: {size}\r\n{headers}"
    return Answer(head.encode() + b"Connection: close\r\n\r\n" + body)


def xml(action: str, body: str = "<return>true</return>") -> Answer:
    """Answer as EC2 does."""
    return http(f"<{action}Response><requestId>r-1</requestId>{body}</{action}Response>".encode())


@dataclass(frozen=True)
class Refusal:
    """An error of AWS, which every service writes in its own way."""

    code: str
    message: str = "no"
    status: int = 400

    def to(self, request: Request) -> Answer:
        if "Action" not in request.fields:
            return plain({"__type": self.code, "message": self.message}, status=self.status)
        text = f"<Errors><Error><Code>{self.code}</Code><Message>{self.message}</Message></Error></Errors>"
        return http(f"<Response>{text}<RequestID>r-1</RequestID></Response>".encode(), status=self.status)


@dataclass(frozen=True)
class Endless:
    """A list whose every page names another one."""

    def to(self, request: Request) -> Answer:
        return instances(instance(), token=str(int(request.fields.get("NextToken", "0")) + 1))


Script = Answer | Refusal | Endless


def plain(value: object, *, status: int = 200) -> Answer:
    """Answer as CloudWatch does."""
    body = json.dumps(value, default=datetime.timestamp).encode()
    return http(body, status=status, kind="application/x-amz-json-1.0", headers="x-amzn-requestid: r-1\r\n")


def instance(state: str = "running", instance_id: str = ID, *, more: str = "") -> str:
    return (
        f"<item><instanceId>{instance_id}</instanceId><imageId>{IMAGE}</imageId><instanceType>m5zn.metal</instanceType>"
        f"<instanceState><code>0</code><name>{state}</name></instanceState>"
        "<launchTime>2026-03-01T10:00:00.000Z</launchTime>"
        "<placement><availabilityZone>us-east-1a</availabilityZone></placement>"
        f"{more}</item>"
    )


def instances(*items: str, token: str = "") -> Answer:
    listed = (
        f"<item><reservationId>r-1</reservationId><instancesSet>{''.join(items)}</instancesSet></item>" if items else ""
    )
    more = f"<nextToken>{token}</nextToken>" if token else ""
    return xml("DescribeInstances", f"<reservationSet>{listed}</reservationSet>{more}")


def image(image_id: str, created: str) -> str:
    return (
        f"<item><imageId>{image_id}</imageId><name>CML-{image_id}</name><creationDate>{created}</creationDate>"
        "<rootDeviceName>/dev/xvda</rootDeviceName></item>"
    )


def images(*items: str, token: str = "") -> Answer:
    more = f"<nextToken>{token}</nextToken>" if token else ""
    return xml("DescribeImages", f"<imagesSet>{''.join(items)}</imagesSet>{more}")


def changed(action: str, state: str, instance_id: str = ID) -> Answer:
    current = f"<currentState><code>0</code><name>{state}</name></currentState>"
    item = f"<item><instanceId>{instance_id}</instanceId>{current}</item>"
    return xml(action, f"<instancesSet>{item}</instancesSet>")


def status(instance_id: str = ID) -> str:
    checks = "".join(f"<{name}><status>ok</status></{name}>" for name in ("systemStatus", "instanceStatus"))
    return f"<item><instanceId>{instance_id}</instanceId>{checks}</item>"


GOOD: Mapping[str, Answer] = {
    "DescribeInstances": instances(instance()),
    "DescribeImages": images(image(IMAGE, "2026-01-01T00:00:00.000Z")),
    "RunInstances": xml(
        "RunInstances", f"<reservationId>r-1</reservationId><instancesSet>{instance('pending')}</instancesSet>"
    ),
    "StartInstances": changed("StartInstances", "pending"),
    "StopInstances": changed("StopInstances", "stopping"),
    "TerminateInstances": changed("TerminateInstances", "shutting-down"),
    "RebootInstances": xml("RebootInstances"),
    "CreateTags": xml("CreateTags"),
    "GetConsoleOutput": xml("GetConsoleOutput", f"<instanceId>{ID}</instanceId><output>aGVsbG8=</output>"),
    "DescribeInstanceStatus": xml("DescribeInstanceStatus", f"<instanceStatusSet>{status()}</instanceStatusSet>"),
    "ListMetrics": plain({"Metrics": []}),
    "GetMetricData": plain({"MetricDataResults": []}),
}


class AwsAnswers:
    """One endpoint for all services and regions. What a test does not say is answered well."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._scripts: defaultdict[str, list[Script]] = defaultdict(list)
        self._spoilt: dict[int, Script] = {}
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://{LOOPBACK}:{self._server.sockets[0].getsockname()[1]}"

    def begin(self) -> None:
        """Forget everything that was asked and said."""
        self.requests.clear()
        self._scripts.clear()
        self._spoilt.clear()

    def say(self, action: str, *answers: Script) -> None:
        """Answer an action with these in turn, and with the last one ever after."""
        self._scripts[action] = list(answers)

    def spoil(self, number: int, answer: Script) -> None:
        """Answer the n-th request, whatever it is, with this."""
        self._spoilt[number] = answer

    def asked(self, action: str) -> list[Mapping[str, Any]]:
        """Return the arguments of every request of an action."""
        return [request.fields for request in self.requests if request.action == action]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        await stop_listening(self._server)
        for writer in self._open:
            writer.transport.abort()
        await asyncio.sleep(0)  # an aborted connection is closed a turn later

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = re.search(r"(?i)^content-length: (\d+)", head, re.MULTILINE)
            body = await reader.readexactly(int(length[1]) if length else 0)
            request = _parsed(head, body)
            answer = self._answer(request).to(request)
            if answer.raw is None:
                return
            writer.write(answer.raw)
            await writer.drain()
            while answer.trickles:
                await asyncio.sleep(TRICKLE_SECONDS)
                writer.write(b" ")
                await writer.drain()
            writer.close()

    def _answer(self, request: Request) -> Script:
        self.requests.append(request)
        if len(self.requests) in self._spoilt:
            return self._spoilt[len(self.requests)]
        script = self._scripts[request.action]
        if len(script) > 1:
            return script.pop(0)
        return script[0] if script else GOOD[request.action]


@contextlib.asynccontextmanager
async def ec2_at(
    url: str,
    *,
    clock: Clock | None = None,
    attempts: int = 1,
    patience: float = 5.0,
    limit: float = 60.0,
    most_pages: int = 100,
) -> AsyncIterator[Ec2]:
    """Open EC2 at an address; the library tries once, unless told otherwise."""
    clients = AwsClients(
        session=SESSION,
        keys=KEYS,
        endpoint_url=url,
        read_timeout=timedelta(seconds=patience),
        attempts=attempts,
        limit=timedelta(seconds=limit),
        most_pages=most_pages,
    )
    ec2 = Ec2(clients, clock or SystemClock())
    try:
        yield ec2
    finally:
        await ec2.close()


def _parsed(head: str, body: bytes) -> Request:
    signed = re.search(r"Credential=[^/]+/\d+/([^/]+)/", head)
    region = signed[1] if signed else ""
    target = re.search(r"(?m)^X-Amz-Target: \w+\.(\w+)", head)
    if target:
        return Request(target[1], region, json.loads(body))
    fields = dict(parse_qsl(body.decode(), keep_blank_values=True))
    return Request(fields["Action"], region, fields)
