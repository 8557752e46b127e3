"""A role's holder and a registrar are opened by their settings, or refused by the setting that is missing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import tests.pay.bond_market as bm
from nodewire.errors import BadConfig
from nodewire.pay.bond.quorum.bootstrap import open_ecash, open_registrar, open_vault
from nodewire.pay.bond.quorum.ecash_custody import EcashCustody
from nodewire.pay.ecash.mint import Mint
from nodewire.pay.lightning.no_wallet import NoWallet
from tests.pay.bond.quorum.market import COMMITTEE

NOBODY = "http://127.0.0.1:1"


@dataclass
class Settings:
    file: Path
    kind: str = "vault"
    url: str = NOBODY
    committee_digest: str = ""
    bitcoin: Path | None = None
    mint: str = ""
    cap: int = 1_000


@pytest.mark.parametrize(("opener", "field"), [(open_vault, "holder.bitcoin"), (open_ecash, "holder.mint")])
def test_a_holder_without_a_place_for_its_coins_is_refused_by_the_setting(opener, field, tmp_path):
    with pytest.raises(BadConfig) as refused:
        opener(NoWallet(), Settings(tmp_path / "bonds.db"))
    assert refused.value.field == field


async def test_a_holder_keeps_its_bonds_in_the_file_and_its_ecash_beside_it(tmp_path):
    (tmp_path / "node").write_text("http://user:word@127.0.0.1:1")
    for opener in (open_vault, open_ecash):
        holder = opener(NoWallet(), Settings(tmp_path / "bonds.db", bitcoin=tmp_path / "node", mint=NOBODY))
        await holder.close()
    assert {one.name for one in tmp_path.iterdir()} >= {"bonds.db", "bonds.ecash"}


@pytest.fixture
def files(tmp_path):
    (tmp_path / "committee.json").write_text(COMMITTEE.to_json())
    (tmp_path / "holder.nsec").write_text(bm.HOLDER.nsec)
    (tmp_path / "holder.nsec").chmod(0o600)
    return tmp_path


@pytest.mark.parametrize(("statement_s", "kept_s"), [(None, None), (77, 77)])
async def test_a_registrar_has_the_cap_and_the_statements_time_that_it_is_given(statement_s, kept_s, files):
    custody = EcashCustody(Mint(NOBODY))
    options = {"cap_sat": 5_000, "statement_s": statement_s}
    registrar = open_registrar(files / "holder.nsec", files / "committee.json", files / "state", custody, **options)
    assert (registrar.public, registrar.rules.cap_sat) == (bm.HOLDER.public, 5_000)
    assert registrar.rules.statement_s == kept_s or kept_s is None
    assert (files / "state" / "bonds.db").exists()
    registrar.close()
    await custody.close()


async def test_a_registrar_without_its_committee_or_that_it_does_not_list_is_refused(files):
    custody = EcashCustody(Mint(NOBODY))
    with pytest.raises(BadConfig) as refused:
        open_registrar(files / "holder.nsec", files / "none.json", files / "state", custody)
    assert refused.value.field == str(files / "none.json")
    (files / "other.nsec").write_text(bm.STRANGER.nsec)
    (files / "other.nsec").chmod(0o600)
    with pytest.raises(BadConfig, match="does not list"):
        open_registrar(files / "other.nsec", files / "committee.json", files / "state", custody)
    await custody.close()
