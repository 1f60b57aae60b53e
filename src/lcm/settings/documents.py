"""Defaults that the settings add to users' documents, by kind. Called by `compose` on behalf of admission."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lcm.model.access.secret import Secret
from lcm.model.kinds.pool import CapacityThresholds, LabWorkerPoolSpec
from lcm.model.kinds.worker import AwsSpec, CmlSpec, IdlePolicy, LabWorkerSpec
from lcm.settings.values import Settings

LICENSE_TOKEN: Final = "env:CML_LICENSE_TOKEN"  # noqa: S105 - where it is, not what it is
_DEFAULT_WORKER: Final = LabWorkerSpec()
_DEFAULT_POOL: Final = LabWorkerPoolSpec(lab_track="", template="none")


def document_defaults(settings: Settings) -> Mapping[str, Mapping[str, Any]]:
    """Return, by kind, the part of a document that the settings define; only what differs from the model's own."""
    worker = _differences(_worker_spec(settings), _DEFAULT_WORKER)
    pool = _differences(_pool_spec(settings), _DEFAULT_POOL)
    said = {"LabWorker": worker, "WorkerTemplate": worker and {"worker": worker}, "LabWorkerPool": pool}
    return {kind: {"spec": spec} for kind, spec in said.items() if spec}


def referenced_secrets(settings: Settings) -> Mapping[str, Secret]:
    """Return the secrets behind references made here, by variable.

    `env:` finds these also where the file set them.
    """
    said = {
        "CML_ADMIN_PASSWORD": settings.cml_admin_password,
        "CML_WORKER_API_PASSWORD": settings.cml_worker_api_password,
        "CML_LICENSE_TOKEN": settings.cml_license_token,
    }
    return {name: secret for name, secret in said.items() if secret}


def _worker_spec(settings: Settings) -> LabWorkerSpec:
    minutes = settings.idle_threshold_minutes
    warn = min(_DEFAULT_WORKER.idle.warn_minutes, minutes - 1)
    return LabWorkerSpec(
        aws=_aws_spec(settings), cml=_cml_spec(settings), idle=IdlePolicy(threshold_minutes=minutes, warn_minutes=warn)
    )


def _aws_spec(settings: Settings) -> AwsSpec:
    subnet = settings.ec2_subnet_id
    return AwsSpec(
        region=settings.aws_region,
        instance_type=settings.ec2_instance_type,
        ami_id=settings.ec2_ami_id,
        vpc_id=settings.ec2_vpc_id if subnet else None,
        subnet_ids=(subnet,) if subnet else (),
        security_group_ids=settings.ec2_security_group_ids,
        iam_instance_profile=settings.ec2_iam_instance_profile,
    )


def _cml_spec(settings: Settings) -> CmlSpec:
    """Refer to secrets by the variables that hold them; their values never enter a document."""
    own = settings.cml_worker_api_password
    return CmlSpec(
        admin_username=settings.cml_worker_api_username or settings.cml_admin_username,
        admin_password="env:CML_WORKER_API_PASSWORD" if own else _DEFAULT_WORKER.cml.admin_password,
        license_token=LICENSE_TOKEN if settings.cml_license_token else None,
    )


def _pool_spec(settings: Settings) -> LabWorkerPoolSpec:
    return LabWorkerPoolSpec(
        lab_track=_DEFAULT_POOL.lab_track,
        template=_DEFAULT_POOL.template,
        min_workers=settings.min_workers_per_pool,
        max_workers=settings.max_workers_per_pool,
        thresholds=CapacityThresholds(
            cpu_scale_up=settings.scale_up_threshold_cpu, cpu_scale_down=settings.scale_down_threshold_cpu
        ),
    )


def _differences(wanted: msgspec.Struct, usual: msgspec.Struct) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in wanted.__struct_encode_fields__:
        new, old = getattr(wanted, name), getattr(usual, name)
        if new != old:
            found[name] = _differences(new, old) if isinstance(new, msgspec.Struct) else _document_value(new)
    return found


def _document_value(value: object) -> object:
    """Convert a value to the form that a document holds."""
    return list(value) if isinstance(value, tuple) else value
