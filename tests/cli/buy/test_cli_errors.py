"""What goes wrong at a command is one line that says what to do, or one JSON document; never a traceback."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from nodewire import cli
from nodewire.cli.buy.job_view import named
from nodewire.cli.daemon.daemons import provider_ready
from nodewire.cli.output import counted, fail
from nodewire.config import CustomerConfig, OracleConfig, ProviderConfig, TrainConfig, load_role, parse_msat
from nodewire.errors import BadConfig, BadInput, BadRecipe, LinkLost, NoProvider, OverBudget, PaymentFailed
from nodewire.protocol.committee.committee import Committee
from nodewire.protocol.encoding import validation_errors
from nodewire.protocol.market.splice_ad import Splice
from nodewire.protocol.model.families import Family
from nodewire.training.protocol.recipe import Recipe
from tests.cli.here import run_here

ROOT = Path(__file__).parents[3]
ROLE = """
key = "key.nsec"
state = "state"
relays = ["ws://127.0.0.1:7777"]
blossom = ["http://127.0.0.1:7777"]
committee = "38841:{0}:main"
[wallet]
url = "http://127.0.0.1:7778"
token_file = "wallet.token"
"""
MODEL = "38840:" + "0" * 64 + ":model"
SERVE = """
[[serve]]
manifest = "38840:{0}:model"
tasks = ["driver"]
price_msat = 1000
"""


def run(*command, cwd):
    """In a process of its own, whose log and limits a daemon sets."""
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from nodewire.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, str(ROOT), *command], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_a_port_of_another_machine_is_one_line(tmp_path):
    done = run("relay", "--host", "203.0.113.1", "--port", "0", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("bad-config")
    assert "203.0.113.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_json_an_error_is_a_document_with_advice(tmp_path):
    (tmp_path / "customer.toml").write_text("relayz = []\n")
    done = run("models", "--config", "customer.toml", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)["error"]
    assert (said["code"], said["field"]) == ("bad-config", "customer.toml, line 1")
    assert "configuration.md" in said["advice"]


@pytest.mark.parametrize("command", ["generate", "embed"])
@pytest.mark.parametrize("option", ["--verify", "--wait"])
def test_a_run_without_any_market_is_not_verified_silently(tmp_path, command, option):
    done = run_here(command, "hi", "--local", "nowhere", option, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("bad-input")
    assert option in done.stderr


@pytest.mark.parametrize("said", ["int4", "hidden.0=auto", "hidden.0=", "=bf16", ""])
def test_a_codec_that_nobody_knows_is_refused_before_anything_is_bought(said):
    from nodewire.cli.buy.purchase import codecs

    with pytest.raises(BadInput, match=r"^--edge-codec"):
        codecs([said])
    assert codecs(None) == (None, {})
    assert codecs(["auto", "hidden.0=bf16"]) == ("auto", {"hidden.0": "bf16"})


def test_a_transcript_that_is_missing_is_one_line_without_advice_on_fields(tmp_path):
    done = run_here("audit", "nope.json", "--replay", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "bad-config  nope.json: cannot be read: No such file or directory\n"


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_bought(tmp_path):
    done = run_here(
        "generate", "hi", "--report", "nowhere/report.json", "--config", "nope.toml", "-m", "x", cwd=tmp_path
    )
    assert done.returncode == 1
    assert done.stderr.startswith("bad-input  --report")


def test_a_file_that_serves_is_a_providers_and_its_faults_are_told_as_such(tmp_path):
    path = tmp_path / "role.toml"
    path.write_text(ROLE.format("0" * 64))
    assert isinstance(load_role(path), CustomerConfig)
    path.write_text((ROLE + SERVE).format("0" * 64))
    assert isinstance(load_role(path), ProviderConfig)
    path.write_text((ROLE + SERVE).format("0" * 64).replace('"driver"', '"driver", "driver"'))
    with pytest.raises(BadConfig, match=r"role\.toml: .*serve: a task is named twice"):
        load_role(path)


def test_a_file_that_follows_demand_is_a_providers_and_needs_nothing_else_to_sell(tmp_path):
    path, role = tmp_path / "role.toml", ROLE.format("0" * 64)
    path.write_text('specialize = "auto"' + role + f'[auto]\nmanifests = ["{MODEL}"]\nmemory = "2GB"\n')
    found = load_role(path)
    assert isinstance(found, ProviderConfig)
    assert (found.auto.manifests, found.auto.memory, found.serve) == ((MODEL,), 2 * 10**9, ())
    for text, said in (
        (role + f'[auto]\nmanifests = ["{MODEL}"]\n', "specialize"),
        (role + "[auto]\nrest = 9\n" + SERVE.format("0" * 64), 'auto: does nothing without specialize = "auto"'),
        ('specialize = "auto"' + role + f'[auto]\nmanifests = ["{MODEL}"]\n' + SERVE.format("0" * 64), "stands in"),
        ('specialize = "best"' + role, "specialize"),
    ):
        path.write_text(text)
        with pytest.raises(BadConfig, match=said):
            load_role(path)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ('key = "key.nsec"', "line 3: unknown field 'colour'"),
        ('token_file = "wallet.token"', "line 10: unknown field 'colour' in [wallet]"),
        ("price_msat = 1000", "line 15: unknown field 'colour' in [[serve]] number 1"),
        ("price_msat = 2000", "line 20: unknown field 'colour' in [[serve]] number 2"),
    ],
)
def test_an_unknown_field_is_named_with_its_line_and_section(tmp_path, after, said):
    text = ROLE + SERVE + SERVE.replace('"driver"', '"stage.0"').replace("1000", "2000")
    path = tmp_path / "role.toml"
    path.write_text(text.format("0" * 64).replace(after, f"{after}\ncolour = 1"))
    with pytest.raises(BadConfig) as refused:
        load_role(path)
    assert str(refused.value) == f"{path}, {said}"


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ("[trian]\nmsat_per_pflop = 1", "line 10: unknown table [trian]; did you mean [train]?"),
        (SERVE + "[trian]\nmsat_per_pflop = 1", "line 15: unknown table [trian]; did you mean [train]?"),
        ('[[srve]]\nmanifest = "m"', "line 10: unknown table [[srve]]; did you mean [[serve]]?"),
        ("[colours]\nred = 1", "line 10: unknown table [colours]"),
    ],
)
def test_a_table_that_no_role_has_is_named_and_not_taken_for_another_roles_file(tmp_path, tables, said):
    path = tmp_path / "role.toml"
    path.write_text('name = "ada"' + (ROLE + tables).format("0" * 64))
    with pytest.raises(BadConfig) as refused:
        load_role(path)
    assert str(refused.value) == f"{path}, {said}"


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("[wallet]", '[wire]\nlisten = "4000"\n[wallet]', "wire.listen: '4000' is not host:port"),
        ("[wallet]", '[wire]\nannounce = "a:1"\n[wallet]', "wire.announce: not a list: [...]"),
        ("[wallet]", '[wire]\nannounce = ["a:1", "a"]\n[wallet]', "wire.announce.1: 'a' is not host:port"),
        (
            "[wallet]",
            '[wire]\nsplices = ["a:1"]\n[wallet]',
            "wire.splices.0: 'a:1' is not splice:<public key in hex>@host:port",
        ),
        ("[wallet]", '[wire]\ncongestion = "B B R"\n[wallet]', 'such as "bbr"'),
        ("[wallet]", '[worker]\ndevice = "gpu"\n[wallet]', "worker.device: 'gpu' is not a device"),
        ("[wallet]", '[wallet]\nkind = "L N D"', "wallet.kind: 'L N D' is not the name of a kind of wallet"),
        ('key = "key.nsec"', 'key = "key.nsec"\nname = "Two Words"', "toml: name: 'Two Words' is not a name: 1 to 64"),
        ('tasks = ["driver"]', 'tasks = ["Driver"]', "serve.0.tasks.0: 'Driver' is not a name"),
        ('tasks = ["driver"]', 'tasks = ["driver"]\ndigest = "ab"', "serve.0.digest: 'ab' is not 64 lowercase hex"),
        ('manifest = "38840', 'manifest = "38841', "is not 38840:<author's public key in hex>:<name>"),
        ('committee = "38841', 'committee = "main', "is not 38841:<founder's public key in hex>:<name>"),
        ('state = "state"\n', "", "toml: state: missing"),
        ("price_msat = 1000", "", "serve.0: price_msat: name one price"),
        ("price_msat = 1000", "price_msat = 1\nprice_per_million = 1", "serve.0: price_msat: name one price"),
        (
            "price_msat = 1000",
            "price_per_million = 187.5",
            "serve.0.price_per_million: 187.5: write a text with a unit",
        ),
        ("price_msat = 1000", 'price_per_million = "187.5"', "Add a unit: 187.5sat"),
        ("price_msat = 1000", 'price_per_million = "0.1msat"', "not a whole number of millisats"),
        ("price_msat = 1000", "price_per_million = -1", "serve.0.price_per_million"),
    ],
)
def test_a_field_that_is_written_wrongly_is_told_what_it_must_be(tmp_path, before, after, said):
    path = tmp_path / "role.toml"
    path.write_text((ROLE + SERVE).format("0" * 64).replace(before, after, 1))
    with pytest.raises(BadConfig) as refused:
        load_role(path)
    assert said in str(refused.value) and "pattern" not in str(refused.value)


def _patterns(schema):
    """All that stand anywhere in a JSON schema."""
    if isinstance(schema, dict):
        yield from ([schema["pattern"]] if isinstance(schema.get("pattern"), str) else [])
        schema = list(schema.values())
    if isinstance(schema, list):
        for one in schema:
            yield from _patterns(one)


@pytest.mark.parametrize("model", [CustomerConfig, ProviderConfig, OracleConfig, Recipe, Committee, Splice])
def test_every_pattern_that_a_field_must_match_has_words(model):
    found = set(_patterns(model.model_json_schema()))
    assert found and found <= validation_errors._SHAPES.keys()


def test_a_family_that_nobody_trains_is_refused_with_those_that_are_known(tmp_path):
    path = tmp_path / "role.toml"
    path.write_text(ROLE.format("0" * 64) + '[train]\nmsat_per_pflop = 1\nfamilies = ["mlp", "transformer"]\n')
    with pytest.raises(BadConfig, match=r"train\.families\.1: .*'linear', 'mlp', 'cnn', 'decoder' or 'encoder'"):
        load_role(path)


def test_a_trainer_that_says_nothing_of_families_trains_all_that_recipes_may_name():
    families = {get_args(one.model_fields["name"].annotation)[0] for one in get_args(get_args(Family)[0])}
    assert set(TrainConfig(msat_per_pflop=1).families) == families


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "x", "--model", MODEL, "--config", "provider.toml"], "this is a provider's file"),
        (["embed", "x", "--model", MODEL, "--config", "provider.toml"], "this is a provider's file"),
        (["provider", "--config", "customer.toml"], "this is a customer's file"),
        (["generate", "x", "--model", "pycоder", "--config", "customer.toml"], "`nodewire models --config FILE`"),
        (["models", "pin", "x", "pycoder", "--config", "customer.toml"], "is a name; `nodewire models"),
        (["models", "pin", "x:y", MODEL, "--config", "customer.toml"], "has ':' (COLON)"),
        (["models", "pin", "x", MODEL, "--config", "oracle.toml"], "an oracle's file, which has no [names]"),
        (["models", "--json", "pin", "x", MODEL, "--config", "customer.toml"], "write `models pin --json`"),
        (["models"], "a role's TOML file says where the market is"),
        (["audit", "1234", "--config", "customer.toml"], "has 64 hex digits"),
        (["register", ".", "--target-vram", "12", "--relay", "ws://x", "--blossom", "http://x"], "12 of what?"),
        (["register", "."], "a customer's TOML file says where to publish"),
        (["generate", "x", "--model", MODEL, "--config", "oracle.toml"], "this is an oracle's file"),
        (["provider", "--config", "oracle.toml"], "this is an oracle's file"),
        (["oracle", "--config", "customer.toml"], "this is a customer's file: an oracle's has its seat"),
        (["wallet", "settle", "--config", "provider.toml"], "this is a provider's file"),
        (["wallet", "balance", "--config", "oracle.toml"], "this oracle has no account"),
        (["bond", "lock", "100", "--config", "provider.toml"], "100 of what? Add a unit: 100sat"),
        (["bond", "claim", "12ab", "--config", "customer.toml"], "without one lists what can be claimed"),
        (["generate", "x", "--model", MODEL, "--config", "customer.toml", "--budget", "50"], "50 of what?"),
        (["generate", "x", "--local", ".", "--verify"], "leave out --verify"),
        (["embed", "x", "--local", ".", "--wait", "--budget", "5sat"], "leave out --budget and --wait"),
        (["embed", "", "--model", MODEL, "--config", "customer.toml"], "nothing was bought"),
        (["embed", "x", "  ", "--model", MODEL, "--config", "customer.toml"], "nothing was bought"),
        (["generate", "", "--model", MODEL, "--config", "customer.toml"], "nothing was bought"),
        (["policy", "check", "--rate", "8"], "8 would be 800%; write 8% or 0.08"),
        (["policy", "check", "--rate", "108%"], "not from 0% to 100%"),
        (["models", "--config", "http.toml"], "'http://127.0.0.1:7777' is not a ws:// or wss:// URL"),
        (["models", "--config", "ws.toml"], "'ws://127.0.0.1:7777' is not an http(s) URL"),
    ],
)
def test_what_was_confused_is_said_before_anybody_is_asked(tmp_path, monkeypatch, capsys, arguments, said):
    role = ROLE.format("0" * 64)
    (tmp_path / "customer.toml").write_text(role)
    (tmp_path / "provider.toml").write_text(role + SERVE.format("0" * 64))
    (tmp_path / "oracle.toml").write_text(
        'seat = "."\ncommittee = "committee.json"\nstate = "state"\nrelays = ["ws://x"]\nblossom = ["http://x"]\n'
    )
    (tmp_path / "http.toml").write_text(role.replace('["ws:', '["http:'))
    (tmp_path / "ws.toml").write_text(role.replace('["http:', '["ws:'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["nodewire", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert said in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OverBudget("max_total_msat", "one chunk costs 84000 msat"), "max_total_msat: one chunk costs 84.000 sat"),
        (
            OverBudget("chunk_msat", "84000 msat a chunk, at most 5 msat allowed"),
            "84.000 sat a chunk, at most 0.005 sat al",
        ),
        (PaymentFailed("balance", "7 msat, 1500 msat needed"), "balance: 0.007 sat, 1.500 sat needed"),
        (
            OverBudget("--budget", "16000 msat for 8 rounds on 2 shards, at most 50 msat; it would do for 3 rounds"),
            "16.000 sat for 8 rounds on 2 shards, at most 0.050 sat; it would do for 3 rounds",
        ),
        (BadInput("amount", "8 msat is not 2 times the plan's price"), "amount: 0.008 sat is not 2 times"),
        (PaymentFailed("wallet", "has 5000 msat: pay into it"), "wallet: has 5.000 sat: pay"),
        (BadInput("max_tokens", "not an integer from 1 to 512"), "from 1 to 512"),
        (
            LinkLost("http://127.0.0.1:9", "Cannot connect to host 127.0.0.1:9 ssl:default [Connect call failed]"),
            "cannot connect to 127.0.0.1:9 (Connect call failed)",
        ),
    ],
)
def test_errors_are_in_peoples_words(capsys, error, said):
    with pytest.raises(SystemExit):
        fail(error)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (NoProvider("round 4", "nobody on the market trains it"), "`nodewire trainers --config FILE`"),
        (NoProvider("stage.0", "no live node with a free slot"), "`nodewire models`"),
        (BadRecipe("recipe.toml, line 3", "lr: missing"), "docs/reference/recipes.md"),
        (BadConfig("customer.toml: relays", "missing"), "docs/reference/configuration.md"),
    ],
)
def test_advice_is_of_what_went_wrong(capsys, error, advice):
    with pytest.raises(SystemExit):
        fail(error)
    assert advice in capsys.readouterr().err


@pytest.mark.parametrize("field", ["gguf", "device", "/models/llama", "llama/config.json"])
def test_what_is_wrong_outside_of_a_roles_file_has_no_advice_on_its_fields(capsys, field):
    with pytest.raises(SystemExit):
        fail(BadConfig(field, "not there"))
    assert "configuration.md" not in capsys.readouterr().err


def test_a_file_that_is_missing_is_not_explained_by_its_fields(capsys):
    with pytest.raises(SystemExit):
        fail(BadConfig("recipe.toml", "cannot be read: No such file or directory"))
    assert "docs" not in capsys.readouterr().err


def test_a_table_of_a_recipe_is_named_in_the_help(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["nodewire", "family", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "[family] table" in capsys.readouterr().out


def test_one_of_a_thing_is_not_many():
    assert [counted(count, "zap") for count in (0, 1, 2)] == ["0 zaps", "1 zap", "2 zaps"]


def test_the_help_begins_with_what_customers_need(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["nodewire", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    shown = capsys.readouterr().out
    in_order = ["Customers", "generate", "wallet", "Operators", "provider", "Developers and committees", "committee "]
    places = [shown.index(word) for word in in_order]
    assert places == sorted(places)


def test_a_provider_is_called_by_its_ads_name_and_its_key():
    names = {"ab" * 32: "anna", "cd" * 32: "nodewire-cdcdcdcd", "ef" * 32: "e" * 60}
    said = [named(public, names) for public in (*names, "12" * 32, "local")]
    assert said == ["anna abababab", "nodewire-cdcdcdcd", f"{'e' * 24} efefefef", "12121212", "this machine"]


def test_a_ready_provider_says_who_what_and_how_to_look(tmp_path):
    ready = {
        "name": "mine",
        "public": "ab" * 32,
        "wire": ["127.0.0.1:1"],
        "lnurl": "http://127.0.0.1:2/pay",
        "prices_msat": {"pycoder": {"stage.0": 15_000, "stage.1": 16_000}, "minilm": {"graph.0": 1_500}},
        "units": {"pycoder": ("generate", 64), "minilm": ("embed", 1)},
    }
    who, what, how = provider_ready(ready, tmp_path / "provider.toml").splitlines()
    assert "mine" in who and "abababab" in who and "127.0.0.1:1" in who
    pycoder = "stage.0 at 234,375.000 sat a million tokens, stage.1 at 250,000.000 sat a million tokens"
    assert what == f"serves pycoder: {pycoder}; minilm: graph.0 at 1.500 sat a call"
    assert "Ctrl-C stops it" in how and f"nodewire earnings --config {tmp_path}" in how


@pytest.mark.parametrize(("text", "msat"), [("100000sat", 10**8), ("5 msat", 5), ("0.5sat", 500), ("0.001 SAT", 1)])
def test_amounts_are_written_in_sat_or_msat(text, msat):
    assert parse_msat(text) == msat


@pytest.mark.parametrize("text", ["", "5eur", "0.5msat", "-1", "nan", "inf", "1e99", "1e999999999", "7", "0.5"])
def test_what_is_no_amount_is_refused(text):
    with pytest.raises(BadInput):
        parse_msat(text)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('name = "n"\n', "serve: nothing is sold here"),
        ("", "serve.price_msat: '15 sat' is not a whole number of millisats: 15000 for 15 sat"),
    ],
)
def test_a_providers_file_is_told_what_it_lacks_in_plain_words(tmp_path, said, expected):
    file = tmp_path / "provider.toml"
    serve = f'[[serve]]\nmanifest = "38840:{"0" * 64}:x"\ntasks = ["a"]\nprice_msat = "15 sat"\n'
    file.write_text(
        f'{said}key = "k"\nstate = "s"\nrelays = ["ws://x"]\nblossom = ["http://x"]\n'
        f'committee = "38841:{"0" * 64}:c"\n[wallet]\nurl = "u"\ntoken_file = "t"\n{"" if said else serve}'
    )
    with pytest.raises(BadConfig) as refused:
        load_role(file)
    assert expected in str(refused.value).replace(".0.", ".")
