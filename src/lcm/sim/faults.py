"""Failures on request, for everything made up that stands behind a protocol: `compute`, `artifacts`, `cml.direct`."""

import inspect
from dataclasses import dataclass

from lcm.model.errors import LcmError


@dataclass(slots=True)
class _Failure:
    error: LcmError
    times: int
    after_effect: bool


class Failures:
    """Failures that wait for the next calls of a protocol's verbs."""

    def __init__(self, protocol: type) -> None:
        asynchronous = {name for name, verb in vars(protocol).items() if inspect.iscoroutinefunction(verb)}
        self._waiting: dict[str, list[_Failure]] = {verb: [] for verb in asynchronous - {"close"}}

    def fail_next(self, verb: str, error: LcmError, *, times: int = 1, after_effect: bool = False) -> None:
        """Let the next calls of a verb fail: before their effect, or after it, as when an answer is lost."""
        assert verb in self._waiting, f"there is no verb {verb}"
        self._waiting[verb].append(_Failure(error, times, after_effect))

    def before(self, verb: str) -> None:
        """Raise what stands between a call and its effect."""
        self._raise(verb, after_effect=False)

    def after(self, verb: str) -> None:
        """Raise what stands between an effect and its caller."""
        self._raise(verb, after_effect=True)

    def _raise(self, verb: str, *, after_effect: bool) -> None:
        waiting = self._waiting[verb]
        failure = next((one for one in waiting if one.times and one.after_effect is after_effect), None)
        if failure:
            failure.times -= 1
            raise failure.error
