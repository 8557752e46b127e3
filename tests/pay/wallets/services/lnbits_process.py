"""LNbits itself with its FakeWallet, for tests, where NODEWIRE_LNBITS names its program (in a venv of its own)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

START_S = 120.0


class run_lnbits:  # noqa: N801 - a block is opened with it, as with a function
    """One service on loopback with new data in `folder`; `open_account(sat)` is the admin key of a new wallet there."""

    def __init__(self, program: Path, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self._program, self._folder, self._token = program.absolute(), folder, ""

    def __enter__(self) -> run_lnbits:
        settings = {
            "LNBITS_DATA_FOLDER": str(self._folder),
            "LNBITS_BACKEND_WALLET_CLASS": "FakeWallet",
            "LNBITS_ADMIN_UI": "true",
            "LNBITS_EXTENSIONS_DEFAULT_INSTALL": "[]",
            "AUTH_ALLOWED_METHODS": '["username-password"]',
            "LNBITS_RATE_LIMIT_NO": "100000",
            "LNBITS_PRICE_AGGREGATOR_ENABLED": "false",  # for each payment it would look for a bitcoin's price
            "LNBITS_EXCHANGE_RATE_PROVIDERS": "[]",
        }
        self._log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(
            [self._program, "--host", "127.0.0.1", "--port", str(self._port)],
            cwd=next(self._program.parent.parent.glob("lib/python*/site-packages")),  # where it looks for its pages
            env=os.environ | settings,
            stdout=self._log,
            stderr=self._log,
        )
        until = time.monotonic() + START_S
        secret = {"username": "admin1", "password": "secret1234", "password_repeat": "secret1234"}
        while not self._token:
            assert self._process.poll() is None and time.monotonic() < until, (self._folder / "log").read_text()
            try:
                self._token = self._ask("PUT", "/api/v1/auth/first_install", secret)["access_token"]
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.5)
        return self

    def open_account(self, sat: int) -> str:
        account = self._ask("POST", "/api/v1/account", {"name": "test"})
        if sat:
            self._ask("PUT", "/users/api/v1/balance", {"id": account["id"], "amount": sat})
        return str(account["adminkey"])

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _ask(self, method: str, path: str, body: dict) -> dict:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())
