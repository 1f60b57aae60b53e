"""What a simulated CML answers instead of doing what it was asked; each face puts it into its own words."""


class Refusal(Exception):
    """A request that CML does not carry out: its HTTP status and its text."""

    def __init__(self, status: int, description: str) -> None:
        super().__init__(description)
        self.status = status
        self.description = description


class Full(Refusal):
    """Starting would exceed the licence's node limit or a resource pool."""

    def __init__(self, description: str) -> None:
        super().__init__(400, description)


class Down(Exception):
    """CML does not answer: its proxy answers 502 (`listening`), nothing listens, or its cloud runs no such machine."""

    def __init__(self, *, listening: bool, there: bool = True) -> None:
        nothing = "nothing listens" if there else "the machine does not run"
        super().__init__("CML is not ready yet" if listening else nothing)
        self.listening = listening
        self.there = there


def missing(what: str, ref: str) -> Refusal:
    """Say that an object is not there, in the words by which CML's own client recognises it."""
    return Refusal(404, f"{what} not found: {ref}")


def bad(description: str) -> Refusal:
    """Say that a request makes no sense as it is, or not in this state."""
    return Refusal(400, description)


def forbidden(description: str = "Access is denied.") -> Refusal:
    """Say that this user may not do this."""
    return Refusal(403, description)
