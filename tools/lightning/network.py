"""Sets the network up, step by step. Each step is left out if it is done: so a set-up that was broken off goes on."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.lightning.daemons import Daemon, free_ports, is_listening, wait_for
from tools.lightning.packages import SetupError, Tools, say
from tools.lightning.rpc import Rpc

NODES = ("a", "b", "c")
CHANNELS = (("a", "b"), ("b", "c"))
FUNDS_BTC = "1"
CHANNEL_BTC, PUSHED_BTC = "0.15", "0.05"
"""What a channel holds, and what of it is the other side's from the start."""
MATURE = 110
"""Blocks until the first coins of bitcoind may be spent, and some."""
PORTS = ("bitcoin_rpc", "bitcoin_peers", "electrum_server", "electrum_server_admin", "relay")
STATE = "network.json"
ROOT = Path(__file__).parent.parent.parent


@dataclass
class Network:
    """The network whose files are in `folder`."""

    folder: Path
    _settings: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.folder = self.folder.absolute()

    @property
    def state_file(self) -> Path:
        return self.folder / STATE

    @property
    def tools(self) -> Tools:
        return Tools(self.folder / "tools")

    def up(self) -> None:
        """Bring it up, and write `state_file`.

        Raises:
            SetupError: something cannot be had, or does not start.

        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self.tools.set_up()
        self._start_chain()
        self._start("relay", lambda: is_listening(self.settings["relay"]))
        for node in NODES:
            self.start_node(node)
        self.mine(1)  # wallets that slept see a chain of now
        self._fund()
        self._open_channels()
        self._connect_wallets()
        self._write_state()

    def down(self) -> None:
        """End its processes. What it has on disk stays, and `up` goes on with it."""
        for name in (*NODES, "relay", "electrum-server", "bitcoind"):
            if self.daemon(name).pid() is not None:
                say(f"ends {name}")
                if name in NODES:
                    self.node(name).works("stop")
                self.daemon(name).stop()

    def forget_invoices(self) -> None:
        """Those of earlier runs, of which a wallet would be asked over and over."""
        for node in NODES:
            self.node(node).ask("clear_requests")

    def running(self) -> dict[str, int | None]:
        """The process id of each of its parts."""
        return {name: self.daemon(name).pid() for name in ("bitcoind", "electrum-server", "relay", *NODES)}

    # Its parts

    @property
    def settings(self) -> dict[str, Any]:
        """Ports and passwords, chosen once."""
        if not self._settings:
            file = self.folder / "settings.json"
            if not file.exists():
                names = [*PORTS, *(f"{node}_{what}" for node in NODES for what in ("rpc", "peers"))]
                chosen: dict[str, Any] = dict(zip(names, free_ports(len(names)), strict=True))
                chosen |= {f"{name}_password": secrets.token_hex(16) for name in ("bitcoin", *NODES)}
                _write_secret(file, json.dumps(chosen))
            self._settings = json.loads(file.read_text())
        return self._settings

    @property
    def bitcoin(self) -> Rpc:
        return Rpc(f"http://127.0.0.1:{self.settings['bitcoin_rpc']}/", "nodewire", self.settings["bitcoin_password"])

    def node(self, name: str) -> Rpc:
        return Rpc(f"http://127.0.0.1:{self.settings[f'{name}_rpc']}/", "nodewire", self.settings[f"{name}_password"])

    def daemon(self, name: str) -> Daemon:
        command, environment = {
            "bitcoind": self._bitcoind,
            "electrum-server": self._electrum_server,
            "relay": self._relay,
        }.get(name, lambda: self._electrum(name))()
        return Daemon(name, self.folder, command, environment)

    def _bitcoind(self) -> tuple[list[str], dict[str, str]]:
        return [*self.tools.bitcoind(), "-regtest", f"-datadir={self.folder / 'bitcoin'}"], dict(os.environ)

    def _electrum_server(self) -> tuple[list[str], dict[str, str]]:
        bitcoin = self.bitcoin
        set_to = {
            "COIN": "Bitcoin",
            "NET": "regtest",
            "DB_ENGINE": "leveldb",
            "DB_DIRECTORY": str(self.folder / "electrum-server"),
            "DAEMON_URL": bitcoin.url.replace("//", f"//{bitcoin.user}:{bitcoin.password}@"),
            "SERVICES": f"tcp://127.0.0.1:{self.settings['electrum_server']},"
            f"rpc://127.0.0.1:{self.settings['electrum_server_admin']}",
            "PEER_DISCOVERY": "off",
            "COST_SOFT_LIMIT": "0",
            "COST_HARD_LIMIT": "0",
            "ALLOW_ROOT": "1",
        }
        return self.tools.electrum_server(), os.environ | set_to

    def _relay(self) -> tuple[list[str], dict[str, str]]:
        port, db = str(self.settings["relay"]), str(self.folder / "relay.sqlite")
        command = [sys.executable, "-m", "relay", "--port", port, "--db", db, "--sync", "normal"]
        return command, os.environ | {"PYTHONPATH": str(ROOT)}

    def _electrum(self, name: str) -> tuple[list[str], dict[str, str]]:
        server = f"127.0.0.1:{self.settings['electrum_server']}:t"
        command = [*self.tools.electrum(), "-D", str(self.folder / name), "daemon", "-s", server]
        return command, self.tools.electrum_environment()

    # Steps

    def _start(self, name: str, ready: Any) -> None:
        daemon = self.daemon(name)
        if daemon.pid() is None:
            say(f"starts {name}")
            daemon.start()
        daemon.wait(ready, "does not come up")

    def _start_chain(self) -> None:
        data = self.folder / "bitcoin"
        data.mkdir(exist_ok=True)
        (self.folder / "electrum-server").mkdir(exist_ok=True)
        rpc, peers = self.settings["bitcoin_rpc"], self.settings["bitcoin_peers"]
        lines = (
            f"regtest=1\n[regtest]\nserver=1\ntxindex=1\nfallbackfee=0.0001\nlisten=1\nbind=127.0.0.1:{peers}\n"
            f"rpcbind=127.0.0.1\nrpcallowip=127.0.0.1\nrpcport={rpc}\nrpcuser=nodewire\n"
            f"rpcpassword={self.settings['bitcoin_password']}\ndnsseed=0\ndiscover=0\nlistenonion=0\nconnect=0\n"
        )
        _write_secret(data / "bitcoin.conf", lines)
        self._start("bitcoind", lambda: self.bitcoin.works("getblockcount"))
        if "miner" not in self.bitcoin.ask("listwallets"):
            made = [one["name"] for one in self.bitcoin.ask("listwalletdir")["wallets"]]
            self.bitcoin.ask("loadwallet" if "miner" in made else "createwallet", "miner")
        missing = MATURE - self.bitcoin.ask("getblockcount")
        if missing > 0:
            say("mines the first blocks")
            self.bitcoin.ask("generatetoaddress", missing, self.bitcoin.ask("getnewaddress"))
        self._start("electrum-server", lambda: is_listening(self.settings["electrum_server"]))

    def start_node(self, name: str) -> None:
        """Start a node, or go on with one that was killed; its wallet is open afterwards."""
        folder = self.folder / name / "regtest"
        if not (folder / "config").exists():
            folder.mkdir(parents=True, exist_ok=True)
            _write_secret(folder / "config", json.dumps(self._electrum_settings(name)))
        if not (folder / "wallets/default_wallet").exists():
            say(f"makes the wallet of {name}")
            create = [*self.tools.electrum(), "-D", str(self.folder / name), "create", "--offline"]
            made = Daemon(f"{name}-create", self.folder, create, self.tools.electrum_environment())
            made.start()
            wait_for(lambda: made.pid() is None, f"{made.name} has not ended")
            made.log.unlink()  # it has the seed
            if not (folder / "wallets/default_wallet").exists():
                raise SetupError(f"Electrum made no wallet of {name}")
        if self.daemon(name).pid() is None:
            (folder / "daemon").unlink(missing_ok=True)  # a killed one leaves it
        self._start(name, lambda: self.node(name).works("getinfo"))
        if not self.node(name).ask("list_wallets"):
            self.node(name).ask("load_wallet")

    def _electrum_settings(self, name: str) -> dict[str, Any]:
        relay = f"ws://127.0.0.1:{self.settings['relay']}"
        return {
            "config_version": 3,
            "oneserver": True,
            "use_gossip": True,
            "lightning_listen": f"127.0.0.1:{self.settings[f'{name}_peers']}",
            "lightning_forward_payments": name == "b",
            "rpcsock": "tcp",
            "rpchost": "127.0.0.1",
            "rpcport": self.settings[f"{name}_rpc"],
            "rpcuser": "nodewire",
            "rpcpassword": self.settings[f"{name}_password"],
            "nostr_relays": relay,
            "plugins": {"nodewire": {"enabled": True}, "nwc": {"enabled": True, "relay": relay}},
        }

    def mine(self, blocks: int) -> None:
        """Mine, and wait until every wallet has seen it."""
        self.bitcoin.ask("generatetoaddress", blocks, self.bitcoin.ask("getnewaddress"))
        height = self.bitcoin.ask("getblockcount")
        wait_for(
            lambda: all(self.node(one).ask("getinfo")["blockchain_height"] == height for one in NODES),
            f"a wallet has not seen block {height}",
        )

    def _fund(self) -> None:
        poor = [one for one in NODES if not self._channels(one) and not self._confirmed(one)]
        if not poor:
            return
        say("funds the wallets")
        for one in poor:
            self.bitcoin.ask("sendtoaddress", self.node(one).ask("getunusedaddress"), FUNDS_BTC)
        self.mine(1)
        wait_for(lambda: all(map(self._confirmed, poor)), "the coins are not in the wallets")

    def _confirmed(self, node: str) -> float:
        return float(self.node(node).ask("getbalance").get("confirmed", 0))

    def _channels(self, node: str) -> list[dict[str, Any]]:
        listed = self.node(node).ask("list_channels")
        return [one for one in listed if one["state"] not in ("CLOSED", "REDEEMED")]

    def _open_channels(self) -> None:
        for here, there in CHANNELS:
            key = self.node(there).ask("nodeid")
            if not any(one["remote_pubkey"] == key.partition("@")[0] for one in self._channels(here)):
                say(f"opens a channel from {here} to {there}")
                self.node(here).ask("open_channel", connection_string=key, amount=CHANNEL_BTC, push_amount=PUSHED_BTC)
        if not all(map(self._is_ready, NODES)):
            say("waits for the channels")
            if any(one["state"] != "OPEN" for node in NODES for one in self._channels(node)):
                time.sleep(1)  # the funding is on its way to bitcoind
                self.mine(6)
            wait_for(lambda: all(map(self._is_ready, NODES)), "a channel is not open")

    def _is_ready(self, node: str) -> bool:
        """Whether its channels can be used."""
        states = [(one["state"], one["peer_state"]) for one in self._channels(node)]
        return len(states) == sum(node in ends for ends in CHANNELS) and set(states) == {("OPEN", "GOOD")}

    def wait_ready(self, node: str) -> None:
        wait_for(lambda: self._is_ready(node), f"a channel of {node} cannot be used")

    def _connect_wallets(self) -> None:
        for node in NODES:
            _write_secret(self.folder / f"{node}.rpc", f"nodewire:{self.settings[f'{node}_password']}\n")
            file = self.folder / f"{node}.nwc"
            if not file.exists():
                known = self.node(node).ask("nwc_list_connections")
                name = f"nodewire-{len(known)}"  # one whose string was lost stays
                _write_secret(file, self.node(node).ask("nwc_add_connection", name=name) + "\n")

    def _write_state(self) -> None:
        nodes = {
            node: {
                "url": self.node(node).url,
                "token_file": str(self.folder / f"{node}.rpc"),
                "nwc_file": str(self.folder / f"{node}.nwc"),
                "node": self.node(node).ask("nodeid").partition("@")[0],
            }
            for node in NODES
        }
        state = {
            "bitcoin": {"url": self.bitcoin.url, "user": self.bitcoin.user, "password": self.bitcoin.password},
            "electrum_server": f"127.0.0.1:{self.settings['electrum_server']}:t",
            "relay": f"ws://127.0.0.1:{self.settings['relay']}",
            "nodes": nodes,
        }
        _write_secret(self.state_file, json.dumps(state, indent=2) + "\n")


def wallet_settings(state_file: Path) -> Iterator[dict[str, str]]:
    """What `[wallet]` of a role's file says, for each of the three wallets: A's, B's, C's."""
    for node in json.loads(state_file.read_text())["nodes"].values():
        yield {"kind": "electrum", "url": node["url"], "token_file": node["token_file"], "network": "bcrt"}


def _write_secret(file: Path, text: str) -> None:
    """Whole or not at all, and for its owner alone."""
    part = file.with_name(f"{file.name}.part")
    part.touch(mode=0o600)
    part.write_text(text)
    part.replace(file)
