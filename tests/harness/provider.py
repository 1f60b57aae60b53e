"""A small OpenID Connect provider on a real port: discovery, keys, a page to sign in, and a token endpoint with PKCE.

People sign in by choosing their name. Faults are set as fields, and hold from the next request on.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from joserfc.jwk import Key

from harness.credentials import P256, RSA, signed
from harness.servers import LOOPBACK

CLIENT_ID = "lcm-pages"
PAGE = """<!doctype html><html lang="en"><title>Example School</title><h1>Example School</h1>
<form method="post">{hidden}<p>Who are you?</p>
<button name="who" value="ada">Ada, operator</button> <button name="who" value="bob">Bob, learner</button>
<button name="who" value="eve">Eve, guest</button> <button name="who" value="">Cancel</button></form></html>"""
PEOPLE: dict[str, dict[str, Any]] = {
    "ada": {"sub": "1", "email": "ada@example.org", "email_verified": True, "roles": ["operator"]},
    "bob": {"sub": "2", "email": "bob@example.org", "email_verified": True, "roles": ["user"]},
    "eve": {"sub": "3", "email": "eve@example.org", "email_verified": True, "roles": ["guest"]},
}


@dataclass
class Provider:
    """What the provider knows, what it was asked, and what is wrong with it."""

    url: str = ""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    client_secret: str = ""
    secret_in_form: bool = False
    key: Key = field(default_factory=lambda: RSA)
    claims: dict[str, Any] = field(default_factory=dict)
    """Claims that replace those it would give."""
    discovery: dict[str, Any] = field(default_factory=dict)
    """Likewise, of its discovery document; None leaves one out."""
    answer: dict[str, str] = field(default_factory=dict)
    """Likewise, of what it has browsers bring back."""
    broken: dict[str, Callable[[], tuple[int, bytes]]] = field(default_factory=dict)
    """What it answers at a path, in place of what it should."""
    asked: list[str] = field(default_factory=list)
    codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def discover(self) -> dict[str, Any]:
        made = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "end_session_endpoint": f"{self.url}/end",
            "jwks_uri": f"{self.url}/jwks",
            "authorization_response_iss_parameter_supported": True,
            "token_endpoint_auth_methods_supported": [
                "client_secret_post" if self.secret_in_form else "client_secret_basic"
            ],
        } | self.discovery
        return {name: value for name, value in made.items() if value is not None}

    def sign_in(self, asked: dict[str, str], who: str) -> str:
        """Return where a browser goes whose person chose a name; an empty one declines."""
        assert asked["response_type"] == "code"
        assert asked["client_id"] == CLIENT_ID
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        back = {"state": asked["state"], "iss": self.url}
        if who:
            code = secrets.token_urlsafe(16)
            self.codes[code] = {**asked, "who": who}
            back["code"] = code
        else:
            back |= {"error": "access_denied", "error_description": "<b>you</b> said no"}
        return f"{asked['redirect_uri']}?{urlencode(back | self.answer)}"

    def exchange(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """Exchange a code, which works once, with the right verifier, and for the client that asked."""
        if self.client_secret and not self._knows(form, authorization):
            return 401, {"error": "invalid_client"}
        begun = self.codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        same = begun and begun["redirect_uri"] == form.get("redirect_uri") and begun["code_challenge"] == challenge
        if not begun or not same or form.get("grant_type") != "authorization_code":
            return 400, {"error": "invalid_grant"}
        now = int(self.now().timestamp())
        claims = {"iss": self.url, "aud": CLIENT_ID, "iat": now, "exp": now + 3600, "nonce": begun["nonce"]}
        algorithm = "ES256" if self.key is P256 else "RS256"
        token = signed(self.key, claims | PEOPLE[begun["who"]] | self.claims, alg=algorithm)
        return 200, {"id_token": token, "access_token": "none-of-our-business", "token_type": "Bearer"}

    def _knows(self, form: dict[str, str], authorization: str) -> bool:
        if self.secret_in_form:
            return form.get("client_secret") == self.client_secret
        user, _, password = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        return (unquote_plus(user), unquote_plus(password)) == (CLIENT_ID, self.client_secret)


class _Handler(BaseHTTPRequestHandler):
    provider: Provider

    def do_GET(self) -> None:
        it, parts = self.provider, urlsplit(self.path)
        it.asked.append(parts.path)
        if parts.path in it.broken:
            status, body = it.broken[parts.path]()
            self._send(status, body)
        elif parts.path == "/.well-known/openid-configuration":
            self._send(200, json.dumps(it.discover()).encode())
        elif parts.path == "/jwks":
            keys = [key.as_dict(private=False) for key in (RSA, P256)]
            self._send(200, json.dumps({"keys": keys}).encode())
        elif parts.path == "/authorize":
            asked = dict(parse_qsl(parts.query))
            rows = (f'<input type="hidden" name="{escape(n)}" value="{escape(v)}">' for n, v in asked.items())
            self._send(200, PAGE.format(hidden="".join(rows)).encode(), "text/html; charset=utf-8")
        else:
            self._send(200, b"<!doctype html><title>Bye</title><h1>Signed out at the school</h1>", "text/html")

    def do_POST(self) -> None:
        it, path = self.provider, urlsplit(self.path).path
        form = dict(parse_qsl(self.rfile.read(int(self.headers["content-length"])).decode()))
        it.asked.append(path)
        if path in it.broken:
            self._send(*it.broken[path]())
        elif path == "/authorize":
            where = it.sign_in(form, form.pop("who", ""))
            self.send_response(303)
            self.send_header("location", where)
            self.end_headers()
        else:
            status, answer = it.exchange(form, self.headers.get("authorization", ""))
            self._send(status, json.dumps(answer).encode())

    def _send(self, status: int, body: bytes, media: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", media)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        pass


def slow() -> tuple[int, bytes]:
    """Answer later than anybody waits."""
    time.sleep(2)
    return 200, b"{}"


def huge() -> tuple[int, bytes]:
    """Answer with more than anybody reads."""
    return 200, b" " * 1_000_000


@contextmanager
def run_provider(host: str = LOOPBACK, **options: Any) -> Iterator[Provider]:
    """Run a provider until the end of the block; `localhost` is another site than LOOPBACK for browsers."""
    it = Provider(**options)
    server = ThreadingHTTPServer((LOOPBACK, 0), type("Handler", (_Handler,), {"provider": it}))
    it.url = f"http://{host}:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield it
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
