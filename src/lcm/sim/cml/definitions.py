"""What a simulated CML can run: the node definitions that CML ships, as the engine needs and as CML writes them."""

from dataclasses import dataclass
from typing import Any, Final

from lcm.model.topology.node_definitions import NodeSize, ShippedNode, shipped_nodes

Json = dict[str, Any]

_SLOWEST_BOOT_SECONDS: Final = 600.0
_TIMEOUT_PER_BOOT: Final = 2
"""A definition's time-out is this many times what booting usually takes."""


@dataclass(frozen=True, slots=True)
class NodeKind:
    """A node definition with what the simulator needs beyond CML's own table."""

    shipped: ShippedNode
    boot_seconds: float
    main_file: str

    @property
    def id(self) -> str:
        return self.shipped.definition_id

    @property
    def nature(self) -> str:
        return self.shipped.nature

    @property
    def needs_licence(self) -> bool:
        """Whether a running node counts against the licence; the host's switches and connectors do not."""
        return self.shipped.driver != "none"

    @property
    def image(self) -> str | None:
        """The image that it runs unless its file names another."""
        return next(iter(self.shipped.image_definitions), None)

    def interface_label(self, slot: int) -> str:
        """Return the name of the interface in a slot."""
        known = self.shipped.interfaces
        return known[slot] if slot < len(known) else f"eth{slot}"


def kind_of(shipped: ShippedNode) -> NodeKind:
    """Add what the engine needs to a node definition."""
    boot = min(shipped.boot_timeout_seconds / _TIMEOUT_PER_BOOT, _SLOWEST_BOOT_SECONDS)
    cisco = shipped.nature in {"router", "switch", "firewall"} and shipped.driver != "none"
    return NodeKind(shipped, boot, "ios_config.txt" if cisco else "node.cfg")


_USUAL_SIZE: Final = NodeSize(cpus=1, ram_mb=1_024, boot_disk_gb=16)


def custom_kind(definition_id: str, size: NodeSize = _USUAL_SIZE) -> NodeKind:
    """Make a kind for a definition that CML does not ship; one that is not installed has the usual size."""
    return kind_of(
        ShippedNode(
            definition_id=definition_id,
            nature="server",
            driver="kvm",
            cpus=size.cpus,
            ram_mb=size.ram_mb,
            boot_disk_gb=size.boot_disk_gb,
            data_volume_gb=size.data_volume_gb,
            boot_timeout_seconds=180,
            serial_ports=2,
            interfaces=(),
            default_interfaces=1,
            has_vnc=True,
        )
    )


KINDS: Final = {ref: kind_of(shipped) for ref, shipped in shipped_nodes().items()}


def write_definition(kind: NodeKind) -> Json:
    """Return a node definition as CML writes it."""
    size = _size(kind)
    files = [{"name": kind.main_file, "content": "", "editable": True}]
    return {
        "id": kind.id,
        "boot": {"timeout": kind.shipped.boot_timeout_seconds, "completed": [], "uses_regex": False},
        "sim": {
            "linux_native": {"libvirt_domain_driver": kind.shipped.driver, "driver": "server", **size},
            "parameters": {},
            "usage_estimations": {"cpus": size["cpus"] * 20, "ram": size["ram"], "disk": size["boot_disk_size"] * 100},
        },
        "general": _general(kind),
        "configuration": {
            "generator": {"driver": None},
            "provisioning": {"files": files, "media_type": "iso", "volume_name": "disk0"},
        },
        "device": {"interfaces": _interfaces(kind)},
        "ui": _ui(kind),
        "inherited": {"image": {"ram": True, "cpus": True}, "node": {"ram": True, "cpus": True}},
        "schema_version": "0.0.1",
    }


def write_simplified(kind: NodeKind) -> Json:
    """Return the short form: what a node of this kind gets when its file says nothing."""
    more = {"console": kind.shipped.serial_ports > 0, "simulate": True, "custom_mac": kind.needs_licence}
    return {
        "id": kind.id,
        "general": _general(kind),
        "device": {"interfaces": _interfaces(kind)},
        "ui": _ui(kind),
        "sim": _size(kind) | more | {"vnc": kind.shipped.has_vnc},
        "image_definitions": list(kind.shipped.image_definitions),
    }


def write_image(kind: NodeKind) -> Json:
    """Return the definition of a kind's image, as CML writes it."""
    return {
        "id": kind.image,
        "node_definition_id": kind.id,
        "label": kind.id,
        "description": "",
        "disk_image": f"{kind.image}.qcow2",
        "read_only": True,
        "schema_version": "0.0.1",
        "ram": None,
        "cpus": None,
    }


def _size(kind: NodeKind) -> Json:
    return {
        "ram": kind.shipped.ram_mb,
        "cpus": int(kind.shipped.cpus),
        "cpu_limit": 100,
        "boot_disk_size": int(kind.shipped.boot_disk_gb),
        "data_volume": int(kind.shipped.data_volume_gb),
    }


def _general(kind: NodeKind) -> Json:
    return {"nature": kind.nature, "description": kind.id, "read_only": True}


def _interfaces(kind: NodeKind) -> Json:
    return {
        "serial_ports": kind.shipped.serial_ports,
        "default_console": 0,
        "physical": list(kind.shipped.interfaces),
        "has_loopback_zero": kind.shipped.has_loopback,
        "default_count": kind.shipped.default_interfaces,
        "min_count": 0,
        "loopback": ["Loopback0"] if kind.shipped.has_loopback else [],
        "management": [],
    }


def _ui(kind: NodeKind) -> Json:
    return {
        "label_prefix": f"{kind.id}-",
        "icon": kind.nature if kind.nature in {"router", "switch", "server", "firewall"} else "host",
        "label": kind.id,
        "visible": True,
        "group": "Cisco" if kind.main_file == "ios_config.txt" else "Others",
        "description": kind.id,
    }
