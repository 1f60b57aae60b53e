"""What the API and its callers exchange about what labs teach and leave. Used by `api` and `client_learning`."""

import msgspec

from lcm.model.observation import ResourceObservation
from lcm.model.resource import Part, ShortText
from lcm.model.session import Artifact


class ObservationAnswer(Part):
    """What was observed of a running lab; `request_id` names the request that it answers, if any."""

    observation: ResourceObservation
    request_id: ShortText | None = None


class ArtifactList(msgspec.Struct, frozen=True):
    """The files that were collected from a session."""

    items: tuple[Artifact, ...]
