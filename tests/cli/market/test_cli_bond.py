"""`nodewire bond` and the network that holds bonds, as an operator types them."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nodewire.nostr.keys import Keys
from nodewire.nostr.pool import Pool
from nodewire.protocol.committee import committee as committees
from nodewire.protocol.committee.committee import Committee
from nodewire.protocol.verification import verdict
from nodewire.store.state_lock import held
from tests.cli.here import run_here
from tests.pay import bond_market as bm

ROOT = Path(__file__).parents[3]
CODE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from nodewire.cli import main; main()"
COMMAND = [sys.executable, "-c", CODE, str(ROOT)]
SIMNET = [sys.executable, "-m", "simnet"]


def run(*command, cwd, ok=True, program=()):
    """In this process, unless a program is named."""
    if program:
        done = subprocess.run([*program, *command, "--json"], cwd=cwd, capture_output=True, text=True, check=False)
    else:
        done = run_here(*command, "--json", cwd=cwd)
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return json.loads(done.stdout)


def founded(folder, holder):
    """A committee.json that lists `holder`, without relays to publish it to."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from nodewire.oracle.setup import create_committee\n"
        "create_committee(Path('committee'), name='main', f=0, genesis_s=1_700_000_000, bond_holders=[sys.argv[2]])"
    )
    subprocess.run([sys.executable, "-c", code, str(ROOT), holder], cwd=folder, check=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A provider's folder, and a network that holds bonds."""
    folder = tmp_path_factory.mktemp("bond")
    holder = run("keys", "new", "holder.nsec", cwd=folder)["public"]
    founded(folder, holder)
    simnet = ["--port", "0", "--faucet", "--key", "holder.nsec", "--committee", "committee/committee.json"]
    process = subprocess.Popen([*SIMNET, *simnet, "--json"], cwd=folder, stdout=subprocess.PIPE)
    ready = json.loads(process.stdout.readline())
    assert ready["holder"] == holder
    run("keys", "new", "key.nsec", cwd=folder)
    run("wallet", "open", ready["url"], "--out", "wallet.token", "--balance", "1000sat", cwd=folder)
    (folder / "role.toml").write_text(
        'key = "key.nsec"\nstate = "state"\nrelays = ["ws://127.0.0.1:1"]\nblossom = ["http://127.0.0.1:1"]\n'
        f'committee = "38841:{"0" * 64}:main"\n[wallet]\nurl = "{ready["url"]}"\ntoken_file = "wallet.token"\n'
    )
    yield folder
    process.terminate()
    process.wait(10)
    process.stdout.close()


def test_a_bond_is_locked_shown_raised_and_released(folder):
    config = ["--config", "role.toml"]
    assert run("bond", "show", *config, cwd=folder, ok=False)["error"]["code"] == "not-found"
    locked = run("bond", "lock", "100sat", "--days", "10", *config, cwd=folder)
    assert (locked["state"], locked["amount_msat"], locked["statement"]["kind"]) == ("locked", 100_000, 8858)
    raised = run("bond", "lock", "150sat", "--days", "10", *config, cwd=folder)
    assert (raised["id"], raised["amount_msat"]) == (locked["id"], 150_000)
    assert run("wallet", "balance", *config, cwd=folder)["balance_msat"] == 850_000
    released = run("bond", "release", *config, cwd=folder)
    assert released["state"] == "unbonding"
    assert released["frees_at_s"] >= raised["stated_until_s"] + 160  # 16 epochs of 10 s
    assert run("bond", "show", *config, cwd=folder) == released
    refused = run("bond", "lock", "150sat", *config, cwd=folder, ok=False)["error"]
    assert refused["code"] == "not-allowed"


def test_without_json_a_bond_is_told_in_words(folder):
    done = subprocess.run(
        [*COMMAND, "bond", "show", "--config", "role.toml"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("unbonding  150.000 sat of 150.000 sat")


def test_a_bond_is_never_lowered(folder):
    run("keys", "new", "low.nsec", cwd=folder)
    (folder / "low.toml").write_text((folder / "role.toml").read_text().replace("key.nsec", "low.nsec"))
    run("bond", "lock", "60sat", "--days", "10", "--config", "low.toml", cwd=folder)
    error = run("bond", "lock", "50sat", "--config", "low.toml", cwd=folder, ok=False)["error"]
    assert error["code"] == "not-allowed"
    assert "60000 msat are locked, and a bond is only raised: `nodewire bond release`" in error["reason"]


def test_an_oracles_file_serves_where_any_roles_does(folder):
    url = (folder / "role.toml").read_text().split('url = "')[1].split('"')[0]
    run("wallet", "open", url, "--out", "oracle.token", "--balance", "3sat", cwd=folder)
    (folder / "oracle.toml").write_text(
        'seat = "committee/oracle-1"\ncommittee = "committee/committee.json"\nstate = "oracle"\n'
        'relays = ["ws://127.0.0.1:1"]\nblossom = ["http://127.0.0.1:1"]\n'
        f'[bonds]\nurl = "{url}"\ntoken_file = "oracle.token"\n'
    )
    config = ["--config", "oracle.toml"]
    assert run("wallet", "balance", *config, cwd=folder) == {"balance_msat": 3_000}
    assert run("bond", "claim", "--fees", *config, cwd=folder)["claims"] == [
        {"what": "payout", "amount_msat": 0, "state": "nothing due", "payment_hash": None}
    ]
    assert run("bond", "show", *config, cwd=folder, ok=False)["error"]["code"] == "not-found"


def test_a_doctor_says_what_a_bond_lacks_and_who_does_not_answer(folder):
    serve = f'[[serve]]\nmanifest = "38840:{"0" * 64}:x"\ntasks = ["stage.0"]\nprice_msat = 1\n'
    text = (folder / "role.toml").read_text().replace("key.nsec", "new.nsec")
    (folder / "poor.toml").write_text(text + "[bond]\namount_msat = 5_000_000\n" + serve)
    found = run("doctor", "--config", "poor.toml", cwd=folder, ok=False)
    rows = {row["what"]: row for row in found["checks"]}
    assert not rows["bond"]["ok"]
    assert "5,050.000 sat are to be locked, fees included" in rows["bond"]["said"]
    assert "pay into it, or lower [bond] amount_msat" in rows["bond"]["said"]
    assert not rows["blob store http://127.0.0.1:1"]["ok"]
    assert "ws://127.0.0.1:1" in rows["relay ws://127.0.0.1:1"]["said"]


def selling(folder, name, **changes):
    """The file of a provider with a key of its own, and a bond; nothing of it can be fetched."""
    run("keys", "new", f"{name}.nsec", cwd=folder)
    text = (folder / "role.toml").read_text().replace("key.nsec", f"{name}.nsec").replace('"state"', f'"{name}"')
    for old, new in changes.items():
        text = text.replace(old, new)
    serve = f'[[serve]]\nmanifest = "38840:{"0" * 64}:x"\ntasks = ["stage.0"]\nprice_msat = 1\n'
    (folder / f"{name}.toml").write_text(f"{text}[bond]\namount_msat = 60_000\n{serve}")
    return ["--config", f"{name}.toml"]


@pytest.mark.parametrize("command", [["provider"], ["up", "--port", "0"]], ids=["provider", "up"])
def test_a_provider_with_a_bond_that_cannot_be_had_is_told_before_it_starts(folder, command):
    name = f"sells-{command[0]}"
    config = selling(folder, name)
    run("bond", "lock", "60sat", "--days", "10", *config, cwd=folder)
    run("bond", "release", *config, cwd=folder)
    refused = run(*command, *config, cwd=folder, ok=False, program=COMMAND)["error"]
    assert refused["code"] == "not-allowed" and refused["field"] == "bond"
    assert re.match(r"was asked back, and is free on \d{4}-\d\d-\d\d \d\d:\d\d UTC; until then", refused["reason"])
    config = selling(folder, f"{name}-more")
    path = folder / f"{name}-more.toml"
    path.write_text(path.read_text().replace("60_000", "5_000_000"))
    refused = run(*command, *config, cwd=folder, ok=False, program=COMMAND)["error"]
    assert refused["code"] == "payment-failed"
    assert re.match(r"5000000 msat are to be locked, and the wallet has \d+ msat: pay into it", refused["reason"])


def test_a_provider_whose_wallet_does_not_answer_or_know_it_is_told_before_it_starts(folder):
    url = (folder / "role.toml").read_text().split('url = "')[1].split('"')[0]
    config = selling(folder, "far", **{url: "http://127.0.0.1:1"})
    assert run("provider", *config, cwd=folder, ok=False, program=COMMAND)["error"]["field"] == "wallet"
    (folder / "wrong.token").write_text("00" * 32)
    (folder / "wrong.token").chmod(0o600)
    config = selling(folder, "stranger", **{"wallet.token": "wrong.token"})
    refused = run("provider", *config, cwd=folder, ok=False, program=COMMAND)["error"]
    assert (refused["code"], refused["field"]) == ("bad-config", "wallet.token_file")
    assert "does not know the token in" in refused["reason"] and "wrong.token" in refused["reason"]


def test_a_bond_is_not_released_under_a_running_provider_without_asking(folder):
    config = selling(folder, "runs")
    run("bond", "lock", "60sat", "--days", "10", *config, cwd=folder)
    with held(folder / "runs"):
        refused = run("bond", "release", *config, cwd=folder, ok=False)["error"]
        assert refused["field"] == "--yes" and "a provider runs with this bond" in refused["reason"]
        asked = subprocess.run(
            [*COMMAND, "bond", "release", *config], cwd=folder, input="n\n", capture_output=True, text=True, check=False
        )
        assert asked.returncode == 1 and "Release its bond?" in asked.stdout
        assert run("bond", "show", *config, cwd=folder)["state"] == "locked"
        assert run("bond", "release", "--yes", *config, cwd=folder)["state"] == "unbonding"


@pytest.fixture
def relay(folder):
    command = [*COMMAND, "relay", "--port", "0", "--db", "relay.db", "--blobs", "blobs", "--json"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE)
    yield json.loads(process.stdout.readline())["url"]
    process.terminate()
    process.wait(10)
    process.stdout.close()


async def test_a_verifier_claims_by_the_certificates_id(folder, relay):
    """No bond is there to slash: that is said, and the verifier is due what the treasury does not have yet."""
    committee = Committee.parse((folder / "committee" / "committee.json").read_bytes())
    oracle = Keys.from_file(folder / "committee" / "oracle-1" / "key")
    me = Keys.from_file(folder / "key.nsec")
    request = bm.request(committee=committee)
    said = bm.failed(request, committee=committee, culprit=bm.OTHER, task="stage.0")
    certificate = bm.certificate(said, [oracle])
    mine = said.model_copy(update={"chunk": 1, "outcome": "pass", "culprit": "", "verifiers": ((me.public, True),)})
    async with Pool([relay]) as pool:
        for event in (request, certificate, paid := bm.certificate(mine, [oracle])):
            await pool.publish(event)
    (folder / "online.toml").write_text((folder / "role.toml").read_text().replace("ws://127.0.0.1:1", relay))
    async with Pool([relay], keys=me) as pool:
        await pool.publish(committees.build(me, committee, created_at=1_700_000_000))
        recent = verdict.build(me, verdict.parse(paid), created_at=int(time.time()))  # older ones are others' business
        await pool.publish(recent)
    online = (folder / "online.toml").read_text().replace(f"38841:{'0' * 64}:main", f"38841:{me.public}:main")
    (folder / "online.toml").write_text(online)
    claimable = run("bond", "claim", "--config", "online.toml", cwd=folder, program=COMMAND)["claimable"]
    assert [(one["certificate"], one["outcome"], one["is_presented"]) for one in claimable] == [
        (recent.id, "pass", False)
    ]
    claimed = run("bond", "claim", certificate.id, "--config", "online.toml", cwd=folder, program=COMMAND)["claims"]
    assert [(one.get("outcome"), one["state"], one.get("refused")) for one in claimed] == [
        ("fail", "nothing due", "it never had a bond here"),
        (None, "nothing due", None),
    ]
    error = run("bond", "claim", paid.id, "--config", "online.toml", cwd=folder, ok=False, program=COMMAND)["error"]
    assert (error["code"], error["field"]) == ("payment-failed", "treasury")
    error = run("bond", "claim", "00" * 32, "--config", "online.toml", cwd=folder, ok=False, program=COMMAND)["error"]
    assert (error["code"], error["field"]) == ("not-found", "00" * 32)


def test_who_is_no_oracle_has_no_fees(folder):
    assert run("bond", "claim", "--fees", "--config", "role.toml", cwd=folder)["claims"] == [
        {"what": "payout", "amount_msat": 0, "state": "nothing due", "payment_hash": None}
    ]


def test_a_holder_is_started_with_both_its_files(folder):
    error = run("--db", "other.db", "--key", "holder.nsec", cwd=folder, ok=False, program=SIMNET)["error"]
    assert error["field"] == "--committee"
