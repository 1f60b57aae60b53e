"""What a token or key must look like so that it can be sent: used by whoever presents one, and by who checks settings.

Libraries repeat a header that they cannot send in their error, so that it must not come so far.
"""

from typing import Final

from lcm.model.errors import Fault, Invalid
from lcm.model.secret import Secret

LONGEST: Final = 16_384
"""Those of issuers are long; what is longer is nobody's."""


def bearer(text: str, path: str) -> Secret:
    """Take a token as it was typed or pasted; Invalid, without repeating it, when it cannot be one."""
    token = text.strip()
    if problem := trouble(token):
        raise Invalid(Fault(path, problem, "copy the token again, all of it and nothing else"))
    return Secret(token)


def trouble(token: str) -> str:
    """Say what is wrong with a token, in words that do not give it away; empty when nothing is."""
    if not token:
        return "empty"
    if len(token) > LONGEST:
        return f"{len(token)} characters, of which a token has at most {LONGEST}"
    if not (token.isascii() and token.isprintable() and " " not in token):
        return "holds a blank or a character that no token has"
    return ""
