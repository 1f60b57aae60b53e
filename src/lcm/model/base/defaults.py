"""What an installation adds to users' documents, put beneath them. Called by admission with what `config` says.

What a document says always wins. A default that would contradict it is left out: a document that is sound by itself
stays so.
"""

from collections.abc import Mapping
from typing import Any, Final

from lcm.model.kinds.worker import AwsSpec

Document = Mapping[str, Any]
_OF_A_REGION: Final = {"ami_id", "vpc_id", "subnet_ids", "security_group_ids"}
_OF_A_NETWORK: Final = {"vpc_id", "subnet_ids", "security_group_ids"}


_AWS: Final = _OF_A_REGION | {"region", "instance_type", "iam_instance_profile"}
_WORKER: Final = {
    "aws": dict.fromkeys(sorted(_AWS)),
    "cml": dict.fromkeys(("admin_username", "admin_password", "license_token", "license_flavour", "telemetry")),
    "idle": dict.fromkeys(("threshold_minutes", "warn_minutes")),
}
_KEPT: Final[Mapping[str, Document]] = {
    "LabWorker": {**_WORKER, "wanted_state": None},
    "WorkerTemplate": {"worker": _WORKER},
    "LabWorkerPool": {
        "min_workers": None,
        "max_workers": None,
        "thresholds": dict.fromkeys(("cpu_scale_up", "cpu_scale_down")),
    },
}
"""What others than a document's author may have written, by kind: the settings of the installation, or an action."""


def kept(kind: str, spec: Document, defaults: Document) -> Document:
    """Give the part of a stored spec that stays where a new document says nothing.

    The settings may have been others when it was made: whoever applies the same file again changes nothing.
    """
    always = _picked(spec, _KEPT.get(kind, {}))
    return {"spec": _merged(always, _picked(spec, _part(defaults, "spec")))}


def _picked(part: Document, names: Document) -> dict[str, Any]:
    """Give what a part holds under these names; a mapping goes deeper."""
    return {
        name: _picked(part[name], deeper) if isinstance(deeper, Mapping) else part[name]
        for name, deeper in names.items()
        if name in part
    }


def beneath(document: Document, defaults: Document) -> Document:
    """Give the document with the defaults for its kind wherever it says nothing."""
    said, given = _part(document, "spec"), _part(defaults, "spec")
    if "worker" in given:
        fitting = given | {"worker": _worker(_part(said, "worker"), _part(given, "worker"))}
    else:
        fitting = _pool(said, _worker(said, given))
    return _merged(document, {**defaults, "spec": fitting} if given else defaults)


def _worker(said: Document, given: Document) -> dict[str, Any]:
    idle = _in_order(_part(said, "idle"), _part(given, "idle"), "warn_minutes", "threshold_minutes", equal=False)
    return _with(given, aws=_aws(_part(said, "aws"), _part(given, "aws")), idle=idle)


def _aws(said: Document, given: Document) -> dict[str, Any]:
    """Leave out what belongs to another region or network than the document's, and an image beside a pattern."""
    usual = given.get("region", AwsSpec().region)
    unfit = {"ami_id"} if said.get("ami_name_pattern") else set[str]()
    if said.get("region", usual) != usual:
        unfit |= _OF_A_REGION
    if "vpc_id" in said or "subnet_ids" in said:
        unfit |= _OF_A_NETWORK
    return {name: value for name, value in given.items() if name not in unfit}


def _pool(said: Document, given: Document) -> dict[str, Any]:
    limits = _part(said, "thresholds"), _part(given, "thresholds")
    bounded = _in_order(said, given, "min_workers", "max_workers", equal=True)
    return _with(bounded, thresholds=_in_order(*limits, "cpu_scale_down", "cpu_scale_up", equal=False))


def _in_order(said: Document, given: Document, low: str, high: str, *, equal: bool) -> dict[str, Any]:
    """Leave out a bound that would lie on the wrong side of the document's own."""
    bounds = {**given, **said}
    least, most = bounds.get(low), bounds.get(high)
    if not isinstance(least, int | float) or not isinstance(most, int | float):
        return dict(given)
    if least < most or (equal and least == most):
        return dict(given)
    return {name: value for name, value in given.items() if name not in (low, high)}


def _with(given: Document, **parts: Document) -> dict[str, Any]:
    """Put what is left of parts in their place."""
    return {**given, **{name: part for name, part in parts.items() if name in given}}


def _part(document: Document, name: str) -> dict[str, Any]:
    found = document.get(name)
    return dict(found) if isinstance(found, Mapping) else {}


def _merged(document: Document, defaults: Document) -> dict[str, Any]:
    merged = dict(defaults)
    for name, value in document.items():
        under = defaults.get(name)
        merged[name] = _merged(value, under) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return merged
