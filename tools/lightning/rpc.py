"""JSON-RPC over HTTP, as bitcoind and Electrum speak it, for one question at a time."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any


class RpcError(Exception):
    """The service refuses, in its words."""


@dataclass(frozen=True, slots=True)
class Rpc:
    url: str
    user: str
    password: str = field(repr=False)

    def ask(self, method: str, /, *params: Any, timeout_s: float = 60.0, **named: Any) -> Any:
        """Its result. Raises RpcError, OSError (it cannot be reached)."""
        body = {"id": 1, "jsonrpc": "2.0", "method": method, "params": named or list(params)}
        secret = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {secret}"}
        request = urllib.request.Request(self.url, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as response:
                answer = json.loads(response.read())
        except urllib.error.HTTPError as error:
            said = error.read()
            try:
                answer = json.loads(said)
            except ValueError:
                raise RpcError(f"{method}: {error.code} {said[:200]!r}") from None
        if answer.get("error"):
            raise RpcError(f"{method}: {str(answer['error'])[:600]}")
        return answer["result"]

    def works(self, method: str) -> bool:
        try:
            self.ask(method, timeout_s=5.0)
        except (RpcError, OSError, ValueError):
            return False
        return True
