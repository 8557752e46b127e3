"""Founding a committee: its document, and every oracle's key and beacon share in files that only their owner reads.

    DIRECTORY/committee.json            public: the document, to be pinned by its digest
    DIRECTORY/oracle-<n>/key            the oracle's nsec
    DIRECTORY/oracle-<n>/share          its secret share of the beacon's key, 64 hex digits

The shares come from a dealer, this very function, which knows the group's secret for as long as it runs.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadConfig, BadInput
from nodewire.nostr.keys import Keys
from nodewire.protocol.committee import dvrf
from nodewire.protocol.committee.committee import Committee

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, slots=True, repr=False)
class Seat:
    """One oracle's secrets: its signing key and its share of the beacon's key (32 bytes)."""

    keys: Keys
    share: bytes


def create_committee(
    directory: Path,
    *,
    name: str,
    f: int,
    genesis_s: int,
    epoch_ms: int = 10_000,
    skew_ms: int = 2_000,
    beat_ms: int = 3_000,
    random: Callable[[int], bytes] = os.urandom,
    **numbers: Any,
) -> Committee:
    """Found a committee of 3f+1 oracles in `directory`, which must not hold one yet.

    Args:
        directory: gets the committee's document and a folder of keys for each oracle.
        name: of the document's address.
        f: oracles that may fail, or lie, at a time.
        genesis_s: start of epoch 0, unix seconds.
        epoch_ms: length of an epoch.
        skew_ms: how far clocks and relays may lag.
        beat_ms: how often a node beats.
        random: gives so many random bytes; the shares of the beacon's key are dealt with them.
        numbers: any other fields of `Committee` (relays, blobs, bond_unit_msat ...).

    Raises:
        BadConfig: there is a committee already, or a number is out of range.

    """
    path = directory / "committee.json"
    if path.exists():
        raise BadConfig(str(path), "there is a committee in this directory already")
    n = 3 * f + 1
    keys = {i: Keys.generate() for i in range(1, n + 1)}
    dealt = dvrf.deal(n, 2 * f + 1, random)
    document = {
        "v": 1,
        "name": name,
        "oracles": [{"pubkey": keys[i].public, "share_index": i, "share_public": dealt.publics[i].hex()} for i in keys],
        "f": f,
        "genesis_s": genesis_s,
        "epoch_ms": epoch_ms,
        "skew_ms": skew_ms,
        "beat_ms": beat_ms,
        "vrf_public": dealt.group.hex(),
        **numbers,
    }
    try:
        committee = Committee.from_document(document)
    except BadInput as error:
        raise BadConfig(error.field, error.reason) from error
    for i in keys:
        seat = directory / f"oracle-{i}"
        seat.mkdir(parents=True, mode=0o700)
        _write_secret(seat / "key", keys[i].nsec)
        _write_secret(seat / "share", dealt.secrets[i].hex())
    path.write_text(committee.to_json() + "\n")
    return committee


def load_committee(path: Path) -> Committee:
    """The committee in a `committee.json`. Raises BadConfig."""
    try:
        return Committee.parse(path.read_bytes())
    except OSError as error:
        raise BadConfig(str(path), str(error)) from error
    except BadInput as error:
        raise BadConfig(f"{path}: {error.field}", error.reason) from error


def load_seat(directory: Path, committee: Committee) -> Seat:
    """The secrets in `oracle-<n>/`.

    Raises:
        BadConfig: a file is missing, readable by others or malformed, or the secrets are not those of an oracle of
            this committee.

    """
    if not (directory / "key").exists():
        raise BadConfig(str(directory / "key"), "no such file")
    seat = Seat(Keys.from_file(directory / "key"), _read_secret(directory / "share"))
    oracle = committee.oracle(seat.keys.public)
    if oracle is None or dvrf.public_share(seat.share).hex() != oracle.share_public:
        raise BadConfig(str(directory), "not the secrets of an oracle of this committee")
    return seat


def _write_secret(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")


def _read_secret(path: Path) -> bytes:
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise BadConfig(str(path), f"others may read this file; run: chmod 600 {path}")
        secret = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise BadConfig(str(path), "no secret share of 64 hex digits") from error
    if len(secret) != 32 or not 0 < int.from_bytes(secret, "big") < dvrf.ORDER:
        raise BadConfig(str(path), "no secret share of 64 hex digits")
    return secret
