"""What is compared: other machines, pools, strategies, lead times and faults; each combination is a variant."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

import msgspec

from lcm.model.base.errors import Fault, Invalid
from lcm.model.kinds.pool import LabWorkerPool, LabWorkerPoolSpec, ScalingPolicy, WorkerTemplate
from lcm.model.kinds.settings import Strategy
from lcm.model.money.prices import HARDWARE
from lcm.settings.load import Settings
from lcm.sim.plan.timetable import Timetable, pool_labels

MOST_VARIANTS: Final = 64
_MOST_WORKERS: Final = 1000
_LONGEST_LEAD: Final = 24 * 60
_MOST_FAULTS: Final = 60
_KEYS: Final = {
    "instance": "an instance type such as m5zn.metal",
    "max": "a number of workers from 1 to 1000",
    "min": "a number of workers from 0 to 1000",
    "policy": f"one of {', '.join(ScalingPolicy)}",
    "strategy": f"one of {', '.join(Strategy)}",
    "lead": "minutes that a boot is planned with, from 1 to 1440",
    "faults": "mishaps an hour from 0 to 60",
}


class VariantChoice(msgspec.Struct, frozen=True):
    """One setting of a variant; for the pools of one track only, for one pool by its name, or for all."""

    key: str
    value: str
    track: str = ""

    def __str__(self) -> str:
        """Return it as it was asked for."""
        return f"{self.key}@{self.track}={self.value}" if self.track else f"{self.key}={self.value}"


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of choices, and the random seed."""

    choices: tuple[VariantChoice, ...] = ()
    faults: float = 0.0
    seed: int = 1

    @property
    def name(self) -> str:
        """How it differs from the timetable as given."""
        return " ".join(map(str, self.choices)) or "as given"


def read_variants(asked: Sequence[str], *, faults: float = 0.0, seed: int = 1) -> list[Variant]:
    """Return the combinations of what is compared: `max=4,6` and `lead=20,30` are four variants.

    Raises Invalid when it cannot be read.
    """
    axes = [_read_axis(one) for one in asked]
    keys = [(axis[0].key, axis[0].track) for axis in axes]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise Invalid(Fault("compare", f"{twice[0]} appears twice", "list all its values in one"))
    total = 1
    for axis in axes:
        total *= len(axis)
    if total > MOST_VARIANTS:
        raise Invalid(Fault("compare", f"{total} combinations", f"compare {MOST_VARIANTS} at most"))
    return [_make_variant(choices, faults, seed) for choices in product(*axes)]


def check_tracks(timetable: Timetable, several: Sequence[Variant]) -> None:
    """Raise Invalid for choices about tracks that no pool has: they would change nothing, and look as if they had."""
    tracks = dict.fromkeys(name for names in _names_by_pool(timetable).values() for name in names if name)
    named = dict.fromkeys(choice.track for variant in several for choice in variant.choices if choice.track)
    remedy = f"use {', '.join(tracks)}"
    if faults := [Fault("compare", f"no pool serves the track {one!r}", remedy) for one in named if one not in tracks]:
        raise Invalid(*faults)


def apply_variant(timetable: Timetable, variant: Variant) -> Timetable:
    """Return the timetable with a variant's machines and pools."""
    for choice in variant.choices:
        timetable = _apply_choice(timetable, choice)
    return timetable


def settings_of(variant: Variant, settings: Settings) -> Settings:
    """Return the settings with a variant's strategy and lead time."""
    for choice in variant.choices:
        if choice.key == "strategy":
            settings = msgspec.structs.replace(settings, scheduler_strategy=Strategy(choice.value))
        elif choice.key == "lead":
            settings = msgspec.structs.replace(settings, worker_bootup_delay_minutes=int(choice.value))
    return settings


def _make_variant(choices: tuple[VariantChoice, ...], faults: float, seed: int) -> Variant:
    said = [float(one.value) for one in choices if one.key == "faults"]
    return Variant(choices=choices, faults=said[0] if said else faults, seed=seed)


def _read_axis(text: str) -> list[VariantChoice]:
    head, sign, values = text.partition("=")
    key, _, track = head.strip().partition("@")
    if not sign or key not in _KEYS:
        raise Invalid(Fault("compare", f"{text!r}", f"write KEY=VALUE,VALUE with a key of {', '.join(_KEYS)}"))
    if track and key not in {"instance", "max", "min", "policy"}:
        raise Invalid(Fault("compare", f"{key} is the same for all tracks", f"write {key}={values}"))
    found = [VariantChoice(key, value.strip(), track) for value in values.split(",")]
    if bad := next((one for one in found if not _is_valid(one)), None):
        raise Invalid(Fault("compare", f"{bad.value!r} is no value for {key}", f"use {_KEYS[key]}"))
    return list(dict.fromkeys(found))


def _is_valid(choice: VariantChoice) -> bool:
    value = choice.value
    match choice.key:
        case "instance":
            return value in HARDWARE
        case "strategy":
            return value in set(Strategy)
        case "policy":
            return value in set(ScalingPolicy)
        case "faults":
            return value.replace(".", "", 1).isdecimal() and float(value) <= _MOST_FAULTS
        case "lead":
            return value.isdecimal() and 1 <= int(value) <= _LONGEST_LEAD
        case _:
            return value.isdecimal() and (choice.key == "max") <= int(value) <= _MOST_WORKERS


def _apply_choice(timetable: Timetable, choice: VariantChoice) -> Timetable:
    if choice.key == "instance":
        return msgspec.structs.replace(timetable, templates=tuple(_change_type(timetable, choice)))
    if choice.key in {"max", "min", "policy"}:
        return msgspec.structs.replace(timetable, pools=tuple(_change_pools(timetable, choice)))
    return timetable


def _names_by_pool(timetable: Timetable) -> Mapping[str, Sequence[str]]:
    """Return what each pool may be called in a choice: by nothing, by its track, or by its own label."""
    labels = pool_labels(timetable.pools)
    return {one.metadata.name: ("", one.spec.lab_track, labels[one.metadata.name]) for one in timetable.pools}


def _change_type(timetable: Timetable, choice: VariantChoice) -> Iterator[WorkerTemplate]:
    """Yield every template with the chosen type, at the price of that type; its own price was for another."""
    names = _names_by_pool(timetable)
    concerned = {one.spec.template for one in timetable.pools if choice.track in names[one.metadata.name]}
    for template in timetable.templates:
        worker = template.spec.worker
        aws = worker.aws
        if template.metadata.name not in concerned or aws.instance_type == choice.value:
            yield template
            continue
        nested = ".metal" not in choice.value
        new = msgspec.structs.replace(
            aws, instance_type=choice.value, instance_type_alternatives=(), nested_virtualization=nested
        )
        spec = msgspec.structs.replace(
            template.spec,
            worker=msgspec.structs.replace(worker, aws=new),
            price_per_hour_usd=timetable.hourly(aws.region, choice.value),
        )
        yield msgspec.structs.replace(template, spec=spec)


def _change_pools(timetable: Timetable, choice: VariantChoice) -> Iterator[LabWorkerPool]:
    """Yield every pool, with the chosen size or policy if the choice is about it."""
    names = _names_by_pool(timetable)
    for pool in timetable.pools:
        concerned = choice.track in names[pool.metadata.name]
        yield msgspec.structs.replace(pool, spec=_change_spec(pool.spec, choice)) if concerned else pool


def _change_spec(spec: LabWorkerPoolSpec, choice: VariantChoice) -> LabWorkerPoolSpec:
    if choice.key == "policy":
        return msgspec.structs.replace(spec, policy=ScalingPolicy(choice.value))
    count = int(choice.value)
    if choice.key == "max":
        return msgspec.structs.replace(spec, max_workers=count, min_workers=min(spec.min_workers, count))
    return msgspec.structs.replace(spec, min_workers=count, max_workers=max(spec.max_workers, count))
