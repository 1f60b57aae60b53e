"""Amounts of CPU and memory as people write them: `{"cpu": "0.5", "memory": "512Mi"}`.

CPU is counted in thousandths of a core and memory in MB. Both are whole numbers, rounded up, so that sums are exact and
a claim is never smaller than the request. `Mi Gi M G` are all binary: 1G is 1024 MB.
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

import msgspec

from lcm.model.base.errors import Fault, Invalid

_MAX_AMOUNT: Final = 999_999_999
"""More than any machine has, with few enough digits to be parsed again."""

_NUMBER: Final = r"([0-9]{1,9}(?:\.[0-9]{1,9})?|\.[0-9]{1,9})"
_UNITS: Final = {"CPU": {"": 1000, "m": 1}, "memory": {"Mi": 1, "M": 1, "Gi": 1024, "G": 1024}}
_FORMS: Final = {"CPU": re.compile(_NUMBER + r"(m?)"), "memory": re.compile(_NUMBER + r"(Mi|Gi|M|G)")}
_REMEDIES: Final = {
    "CPU": 'write cores such as "2", "0.5" or "500m"',
    "memory": 'write a number and a unit such as "512Mi", "4Gi", "512M" or "4G"',
}


class Quantity(msgspec.Struct, frozen=True):
    """An exact amount of CPU and memory."""

    cpu_millis: int = 0
    memory_mb: int = 0

    def __add__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.cpu_millis + other.cpu_millis, self.memory_mb + other.memory_mb)

    def __sub__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.cpu_millis - other.cpu_millis, self.memory_mb - other.memory_mb)

    def within(self, room: "Quantity") -> bool:
        """Return True if this amount fits into `room`."""
        return self.cpu_millis <= room.cpu_millis and self.memory_mb <= room.memory_mb

    def limits(self) -> dict[str, str]:
        """Return the amount in the notation of users."""
        return {"cpu": format(Decimal(self.cpu_millis) / 1000, "f"), "memory": f"{self.memory_mb}Mi"}


def parse_limits(limits: object) -> Quantity:
    """Parse resource limits. Raises Invalid with every fault in them."""
    faults: list[Fault] = []
    amounts = {"cpu": 0, "memory": 0}
    if not isinstance(limits, Mapping):
        raise Invalid(
            Fault("resource_limits", f"{limits!r} is no set of limits", 'write {"cpu": "1", "memory": "2Gi"}')
        )
    for name, value in limits.items():
        if name not in amounts:
            faults.append(Fault(f"resource_limits.{name}", "unknown resource", "use cpu and memory"))
            continue
        try:
            amounts[name] = parse_cpu(value) if name == "cpu" else parse_memory(value)
        except Invalid as error:
            faults.extend(error.faults)
    faults += [
        Fault(f"resource_limits.{name}", "missing", _REMEDIES["CPU" if name == "cpu" else name])
        for name in amounts
        if name not in limits
    ]
    if faults:
        raise Invalid(*faults)
    return Quantity(amounts["cpu"], amounts["memory"])


def parse_cpu(text: object) -> int:
    """Parse an amount of CPU into thousandths of a core."""
    return _parse_amount("CPU", text)


def parse_memory(text: object) -> int:
    """Parse an amount of memory into MB."""
    return _parse_amount("memory", text)


def _parse_amount(what: str, text: object) -> int:
    path, remedy = f"resource_limits.{what.lower()}", _REMEDIES[what]
    found = _FORMS[what].fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise Invalid(Fault(path, f"{text!r} is no amount of {what}", remedy))
    amount = Decimal(found[1]) * _UNITS[what][found[2]]
    if amount <= 0:
        raise Invalid(Fault(path, f"{text!r} is nothing", remedy))
    if amount > _MAX_AMOUNT:
        raise Invalid(Fault(path, f"{text!r} is more than any machine has", remedy))
    return int(amount.to_integral_value(rounding="ROUND_CEILING"))
