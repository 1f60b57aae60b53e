"""An installation's defaults, filled in below what a user's document says.

Called by admission with the defaults that `settings.load` read. What a document says always wins. A default that would
contradict the document is left out, so that a document that is valid by itself stays valid.
"""

from collections.abc import Mapping
from typing import Any, Final

from lcm.model.kinds.worker import AwsSpec

Document = Mapping[str, Any]
_REGION_FIELDS: Final = {"ami_id", "vpc_id", "subnet_ids", "security_group_ids"}
_WORKER_FIELDS: Final = {
    "aws": dict.fromkeys(sorted(_REGION_FIELDS | {"region", "instance_type", "iam_instance_profile"})),
    "cml": dict.fromkeys(("admin_username", "admin_password", "license_token", "license_flavour", "telemetry")),
    "idle": dict.fromkeys(("threshold_minutes", "warn_minutes")),
}
_KEPT_FIELDS: Final[Mapping[str, Document]] = {
    "LabWorker": {**_WORKER_FIELDS, "wanted_state": None},
    "WorkerTemplate": {"worker": _WORKER_FIELDS},
    "LabWorkerPool": {
        "min_workers": None,
        "max_workers": None,
        "thresholds": dict.fromkeys(("cpu_scale_up", "cpu_scale_down")),
    },
}
"""Fields that somebody other than a document's author may have set, by kind: the settings, or an action."""


def keep_stored_values(kind: str, spec: Document, defaults: Document) -> Document:
    """Return the part of a stored spec that stays where a new document says nothing.

    The settings may have been different when the object was created. Applying the same file again must change
    nothing.
    """
    always = _pick_fields(spec, _KEPT_FIELDS.get(kind, {}))
    return {"spec": _merge(always, _pick_fields(spec, _get_part(defaults, "spec")))}


def _pick_fields(part: Document, names: Document) -> dict[str, Any]:
    """Return the values under these names; a nested mapping of names selects within a nested value."""
    return {
        name: _pick_fields(part[name], deeper) if isinstance(deeper, Mapping) else part[name]
        for name, deeper in names.items()
        if name in part
    }


def apply_defaults(document: Document, defaults: Document) -> Document:
    """Return the document with the defaults of its kind wherever it says nothing."""
    said, given = _get_part(document, "spec"), _get_part(defaults, "spec")
    if "worker" in given:
        fitting = given | {"worker": _fit_worker(_get_part(said, "worker"), _get_part(given, "worker"))}
    else:
        fitting = _fit_pool(said, _fit_worker(said, given))
    return _merge(document, {**defaults, "spec": fitting} if given else defaults)


def _fit_worker(said: Document, given: Document) -> dict[str, Any]:
    idle = _drop_crossed_bounds(
        _get_part(said, "idle"), _get_part(given, "idle"), "warn_minutes", "threshold_minutes", equal=False
    )
    return _replace_parts(given, aws=_fit_aws(_get_part(said, "aws"), _get_part(given, "aws")), idle=idle)


def _fit_aws(said: Document, given: Document) -> dict[str, Any]:
    """Leave out defaults of another region or network than the document's, and an image beside a name pattern."""
    usual = given.get("region", AwsSpec().region)
    unfit = {"ami_id"} if said.get("ami_name_pattern") else set[str]()
    if said.get("region", usual) != usual:
        unfit |= _REGION_FIELDS
    if "vpc_id" in said or "subnet_ids" in said:
        unfit |= _REGION_FIELDS - {"ami_id"}
    return {name: value for name, value in given.items() if name not in unfit}


def _fit_pool(said: Document, given: Document) -> dict[str, Any]:
    limits = _get_part(said, "thresholds"), _get_part(given, "thresholds")
    thresholds = _drop_crossed_bounds(*limits, "cpu_scale_down", "cpu_scale_up", equal=False)
    bounded = _drop_crossed_bounds(said, given, "min_workers", "max_workers", equal=True)
    return _replace_parts(bounded, thresholds=thresholds)


def _drop_crossed_bounds(said: Document, given: Document, low: str, high: str, *, equal: bool) -> dict[str, Any]:
    """Leave out a default bound that would be on the wrong side of the document's own bound."""
    bounds = {**given, **said}
    least, most = bounds.get(low), bounds.get(high)
    if not isinstance(least, int | float) or not isinstance(most, int | float):
        return dict(given)
    if least < most or (equal and least == most):
        return dict(given)
    return {name: value for name, value in given.items() if name not in (low, high)}


def _replace_parts(given: Document, **parts: Document) -> dict[str, Any]:
    """Return the mapping with these parts replaced, if it has them."""
    return {**given, **{name: part for name, part in parts.items() if name in given}}


def _get_part(document: Document, name: str) -> dict[str, Any]:
    found = document.get(name)
    return dict(found) if isinstance(found, Mapping) else {}


def _merge(document: Document, defaults: Document) -> dict[str, Any]:
    merged = dict(defaults)
    for name, value in document.items():
        under = defaults.get(name)
        merged[name] = _merge(value, under) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return merged
