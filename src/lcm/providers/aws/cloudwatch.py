"""CloudWatch's metrics of machines. Called by `ec2`.

EC2 itself publishes CPU and network; an agent on the machine publishes memory and disk, under dimensions of its own
choice, which are looked up first.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from lcm.model.base.errors import Unreachable
from lcm.providers.aws.clients import AwsClients
from lcm.providers.aws.errors import translate_errors
from lcm.providers.protocols.compute import MachineMetrics, Unauthorized

if TYPE_CHECKING:
    from types_aiobotocore_cloudwatch.type_defs import (
        GetMetricDataOutputTypeDef,
        MetricDataQueryTypeDef,
        MetricOutputTypeDef,
    )


MAX_QUERIES: Final = 500
"""How many queries CloudWatch takes in one request."""

_AGENT_NAMESPACE: Final = "CWAgent"
_MEMORY: Final = "mem_used_percent"
_DISK: Final = "disk_used_percent"
_MAX_POINTS: Final = 60
_MINUTE: Final = timedelta(minutes=1)

MetricPoints = list[tuple[datetime, float]]


class CloudWatchMetric(NamedTuple):
    """One metric of one machine, as CloudWatch names it."""

    instance_id: str
    namespace: str
    name: str
    dimensions: tuple[tuple[str, str], ...]


class CloudWatch:
    """The CloudWatch metrics of one account."""

    def __init__(self, clients: AwsClients) -> None:
        self._clients = clients

    async def read(
        self, region: str, instance_ids: Sequence[str], *, since: datetime, until: datetime
    ) -> Mapping[str, MachineMetrics]:
        """Read the metrics of many machines. Those without any are in the answer too."""
        if not instance_ids:
            return {}
        names = ("CPUUtilization", "NetworkIn", "NetworkOut")
        measures = [
            CloudWatchMetric(one, "AWS/EC2", name, (("InstanceId", one),)) for one in instance_ids for name in names
        ]
        # An agent may publish hundreds of metrics per machine: list only the two that we read.
        known = [*await self._list_metrics(region, _MEMORY), *await self._list_metrics(region, _DISK)]
        wanted = frozenset(instance_ids)
        measures += _choose_metrics(one for one in known if one.instance_id in wanted)
        points: dict[tuple[str, str], MetricPoints] = {}
        for at in range(0, len(measures), MAX_QUERIES):
            points.update(await self._read_points(region, measures[at : at + MAX_QUERIES], since, until))
        return {one: _summarize(one, points) for one in instance_ids}

    async def _list_metrics(self, region: str, name: str) -> list[CloudWatchMetric]:
        client = await self._clients.cloudwatch(region)
        pages = client.get_paginator("list_metrics").paginate(
            Namespace=_AGENT_NAMESPACE, MetricName=name, RecentlyActive="PT3H"
        )
        found = await self._clients.all_pages("cloudwatch:ListMetrics", pages)
        with translate_errors("cloudwatch:ListMetrics"):
            return [_parse_metric(one) for page in found for one in page["Metrics"]]

    async def _read_points(
        self, region: str, measures: Sequence[CloudWatchMetric], since: datetime, until: datetime
    ) -> dict[tuple[str, str], MetricPoints]:
        client = await self._clients.cloudwatch(region)
        seconds = _period_seconds(until - since)
        pages = client.get_paginator("get_metric_data").paginate(
            MetricDataQueries=[_query(f"q{n}", one, seconds) for n, one in enumerate(measures)],
            StartTime=since,
            EndTime=until,
        )
        found = await self._clients.all_pages("cloudwatch:GetMetricData", pages)
        with translate_errors("cloudwatch:GetMetricData"):
            by_id = _merge_pages(found)
            return {(one.instance_id, one.name): by_id[f"q{n}"] for n, one in enumerate(measures)}


def _parse_metric(said: "MetricOutputTypeDef") -> CloudWatchMetric:
    dimensions = {one["Name"]: one["Value"] for one in said.get("Dimensions", [])}
    return CloudWatchMetric(
        dimensions.get("InstanceId", ""), said["Namespace"], said["MetricName"], (*dimensions.items(),)
    )


def _choose_metrics(published: Iterable[CloudWatchMetric]) -> list[CloudWatchMetric]:
    """Choose one metric of each kind per machine: the agent may publish several, by disk and in sum."""
    best: dict[tuple[str, str], CloudWatchMetric] = {}
    for one in sorted(published, key=lambda measure: (len(measure.dimensions), measure.dimensions)):
        whole = one.name == _DISK and dict(one.dimensions).get("path", "/") == "/"
        if one.name == _MEMORY or whole:
            best.setdefault((one.instance_id, one.name), one)
    return list(best.values())


def _query(query_id: str, measure: CloudWatchMetric, seconds: int) -> "MetricDataQueryTypeDef":
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


def _period_seconds(window: timedelta) -> int:
    """Return a period in whole minutes, such that a window has at most `_MAX_POINTS` points."""
    minutes = -(-window // (_MAX_POINTS * _MINUTE))
    return max(1, minutes) * 60


def _merge_pages(pages: Iterable["GetMetricDataOutputTypeDef"]) -> dict[str, MetricPoints]:
    """Merge the points of each query, which may be spread over pages."""
    merged: dict[str, MetricPoints] = defaultdict(list)
    for page in pages:
        for result in page["MetricDataResults"]:
            if result["StatusCode"] == "Forbidden":
                action = "cloudwatch:GetMetricData"
                raise Unauthorized(f"the credentials may not do {action}", action=action)
            if result["StatusCode"] == "InternalError":
                raise Unreachable("cloudwatch:GetMetricData: a metric could not be read")
            moments = (moment.astimezone(UTC) for moment in result["Timestamps"])
            merged[result["Id"]].extend(zip(moments, result["Values"], strict=True))
    return merged


def _summarize(instance_id: str, points: Mapping[tuple[str, str], MetricPoints]) -> MachineMetrics:
    def of(name: str) -> MetricPoints:
        return points.get((instance_id, name), [])

    moments = [moment for (one, _), series in points.items() if one == instance_id for moment, _ in series]
    return MachineMetrics(
        cpu_percent=_mean_percent(of("CPUUtilization")),
        memory_percent=_mean_percent(of(_MEMORY)),
        disk_percent=_mean_percent(of(_DISK)),
        network_in_bytes=_total(of("NetworkIn")),
        network_out_bytes=_total(of("NetworkOut")),
        measured_at=max(moments, default=None),
    )


def _mean_percent(percents: MetricPoints) -> float | None:
    if not percents:
        return None
    mean = sum(value for _, value in percents) / len(percents)
    return min(100.0, max(0.0, mean))


def _total(amounts: MetricPoints) -> int | None:
    return round(sum(value for _, value in amounts)) if amounts else None
