"""What is told of a lab file that somebody uploaded. Made by `control.topologies`."""

from lcm.model.definition import PortTemplate, ResourceRequirements
from lcm.model.resource import Count, Part


class TopologyFault(Part):
    """Something about a lab file that its author should know; it can be used all the same."""

    path: str
    problem: str
    remedy: str = ""


class TopologyReport(Part):
    """A lab file that was stored, and what it says.

    `needs` is null when the size of a node is not known; `faults` says of which.
    """

    uri: str
    digest: str
    size_bytes: Count
    title: str
    node_count: Count
    link_count: Count
    needs: ResourceRequirements | None
    port_template: PortTemplate
    node_definitions: tuple[str, ...]
    faults: tuple[TopologyFault, ...] = ()
