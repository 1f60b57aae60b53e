"""What CloudWatch measured on machines. Called by `ec2`.

EC2 itself publishes CPU and network; an agent on the machine publishes memory and disk, under dimensions of its own
choice, which are looked up first.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from lcm.model.base.errors import Unreachable
from lcm.providers.aws.clients import AwsClients
from lcm.providers.aws.errors import translated
from lcm.providers.protocols.compute import MachineMetrics, Unauthorized

if TYPE_CHECKING:
    from types_aiobotocore_cloudwatch.type_defs import (
        GetMetricDataOutputTypeDef,
        MetricDataQueryTypeDef,
        MetricOutputTypeDef,
    )


QUERIES: Final = 500
"""How many CloudWatch takes in one question."""

_AGENT: Final = "CWAgent"
_MEMORY: Final = "mem_used_percent"
_DISK: Final = "disk_used_percent"
_POINTS: Final = 60
_MINUTE: Final = timedelta(minutes=1)

Points = list[tuple[datetime, float]]


class Measure(NamedTuple):
    """One metric of one machine: under which name CloudWatch has it."""

    instance_id: str
    namespace: str
    name: str
    dimensions: tuple[tuple[str, str], ...]


class CloudWatch:
    """The measurements of one account."""

    def __init__(self, clients: AwsClients) -> None:
        self._clients = clients

    async def read(
        self, region: str, instance_ids: Sequence[str], *, since: datetime, until: datetime
    ) -> Mapping[str, MachineMetrics]:
        """Read the metrics of many machines; those of which nothing is known are in the answer too."""
        if not instance_ids:
            return {}
        measures = [*_of_ec2(instance_ids), *await self._of_agent(region, frozenset(instance_ids))]
        points: dict[tuple[str, str], Points] = {}
        for at in range(0, len(measures), QUERIES):
            points.update(await self._points(region, measures[at : at + QUERIES], since, until))
        return {one: _metrics(one, points) for one in instance_ids}

    async def _of_agent(self, region: str, instance_ids: frozenset[str]) -> list[Measure]:
        # An agent may publish hundreds of metrics per machine: only the two that we read are listed.
        known = [*await self._published(region, _MEMORY), *await self._published(region, _DISK)]
        return _simplest(one for one in known if one.instance_id in instance_ids)

    async def _published(self, region: str, name: str) -> list[Measure]:
        client = await self._clients.cloudwatch(region)
        pages = client.get_paginator("list_metrics").paginate(Namespace=_AGENT, MetricName=name, RecentlyActive="PT3H")
        found = await self._clients.all_pages("cloudwatch:ListMetrics", pages)
        with translated("cloudwatch:ListMetrics"):
            return [_measure(one) for page in found for one in page["Metrics"]]

    async def _points(
        self, region: str, measures: Sequence[Measure], since: datetime, until: datetime
    ) -> dict[tuple[str, str], Points]:
        client = await self._clients.cloudwatch(region)
        seconds = _period(until - since)
        pages = client.get_paginator("get_metric_data").paginate(
            MetricDataQueries=[_query(f"q{n}", one, seconds) for n, one in enumerate(measures)],
            StartTime=since,
            EndTime=until,
        )
        found = await self._clients.all_pages("cloudwatch:GetMetricData", pages)
        with translated("cloudwatch:GetMetricData"):
            by_id = _merged(found)
            return {(one.instance_id, one.name): by_id[f"q{n}"] for n, one in enumerate(measures)}


def _of_ec2(instance_ids: Iterable[str]) -> list[Measure]:
    names = ("CPUUtilization", "NetworkIn", "NetworkOut")
    return [Measure(one, "AWS/EC2", name, (("InstanceId", one),)) for one in instance_ids for name in names]


def _measure(said: "MetricOutputTypeDef") -> Measure:
    dimensions = {one["Name"]: one["Value"] for one in said.get("Dimensions", [])}
    return Measure(dimensions.get("InstanceId", ""), said["Namespace"], said["MetricName"], (*dimensions.items(),))


def _simplest(published: Iterable[Measure]) -> list[Measure]:
    """Choose one metric of each kind per machine: the agent may publish several, by disk and in sum."""
    best: dict[tuple[str, str], Measure] = {}
    for one in sorted(published, key=lambda measure: (len(measure.dimensions), measure.dimensions)):
        whole = one.name == _DISK and dict(one.dimensions).get("path", "/") == "/"
        if one.name == _MEMORY or whole:
            best.setdefault((one.instance_id, one.name), one)
    return list(best.values())


def _query(query_id: str, measure: Measure, seconds: int) -> "MetricDataQueryTypeDef":
    return {
        "Id": query_id,
        "MetricStat": {
            "Metric": {
                "Namespace": measure.namespace,
                "MetricName": measure.name,
                "Dimensions": [{"Name": name, "Value": value} for name, value in measure.dimensions],
            },
            "Period": seconds,
            "Stat": "Sum" if measure.name.startswith("Network") else "Average",
        },
    }


def _period(window: timedelta) -> int:
    """Choose whole minutes, so that a window has at most so many points."""
    minutes = -(-window // (_POINTS * _MINUTE))
    return max(1, minutes) * 60


def _merged(pages: Iterable["GetMetricDataOutputTypeDef"]) -> dict[str, Points]:
    """Put together the points of each query, which may be spread over pages."""
    merged: dict[str, Points] = defaultdict(list)
    for page in pages:
        for result in page["MetricDataResults"]:
            _refuse_failed(result["StatusCode"])
            moments = (moment.astimezone(UTC) for moment in result["Timestamps"])
            merged[result["Id"]].extend(zip(moments, result["Values"], strict=True))
    return merged


def _refuse_failed(status: str) -> None:
    if status == "Forbidden":
        raise Unauthorized("the credentials may not do cloudwatch:GetMetricData", action="cloudwatch:GetMetricData")
    if status == "InternalError":
        raise Unreachable("cloudwatch:GetMetricData: a metric could not be read")


def _metrics(instance_id: str, points: Mapping[tuple[str, str], Points]) -> MachineMetrics:
    def of(name: str) -> Points:
        return points.get((instance_id, name), [])

    moments = [moment for (one, _), series in points.items() if one == instance_id for moment, _ in series]
    return MachineMetrics(
        cpu_percent=_percent(of("CPUUtilization")),
        memory_percent=_percent(of(_MEMORY)),
        disk_percent=_percent(of(_DISK)),
        network_in_bytes=_total(of("NetworkIn")),
        network_out_bytes=_total(of("NetworkOut")),
        measured_at=max(moments, default=None),
    )


def _percent(percents: Points) -> float | None:
    if not percents:
        return None
    mean = sum(value for _, value in percents) / len(percents)
    return min(100.0, max(0.0, mean))


def _total(amounts: Points) -> int | None:
    return round(sum(value for _, value in amounts)) if amounts else None
