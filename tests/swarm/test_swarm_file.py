"""The file of a swarm: what may stand in it, what its members agree on, and which plan it gives."""

import dataclasses

import pytest

from nodewire.errors import BadConfig, BadInput, BadPlan, NotAllowed
from nodewire.nostr.keys import Keys
from nodewire.plan.by_file import by_file, free
from nodewire.protocol.job.plan import Plan, Terms
from nodewire.provider.admission.checks import Admission
from nodewire.provider.static_swarm import ByFile
from nodewire.swarm.file import SwarmFile
from tests.plan import markets

ONE, TWO, ME, STRANGER = (Keys(bytes([n]) * 32) for n in (1, 2, 3, 4))


def text(*nodes: str, customers: str = ME.npub, more: str = "") -> str:
    return f'name = "home"\ncustomers = ["{customers}"]\n{more}\n' + "\n".join(f"[[nodes]]\n{one}" for one in nodes)


def node(keys: Keys, port: int, more: str = "") -> str:
    return f'npub = "{keys.npub}"\naddress = "127.0.0.1:{port}"\n{more}'


def read(tmp_path, said: str, split: str = "") -> SwarmFile:
    (tmp_path / "swarm.toml").write_text(said)
    return SwarmFile.read(tmp_path / "swarm.toml", split)


def test_the_digest_is_of_what_members_must_agree_on_and_not_of_addresses_and_customers(tmp_path):
    first = read(tmp_path, text(node(ONE, 1), node(TWO, 2)))
    elsewhere = read(tmp_path, text(node(ONE, 3), node(TWO, 4), customers=STRANGER.npub))
    assert first.swarm.digest() == elsewhere.swarm.digest()
    others = [
        text(node(TWO, 2), node(ONE, 1)),
        text(node(ONE, 1), node(TWO, 2), more="slots = 2"),
        text(node(ONE, 1), node(TWO, 2), more="context = 64"),
        text(node(ONE, 1, 'layers = "0"'), node(TWO, 2, 'layers = "1"')),
        text(node(ONE, 1), node(TWO, 2, "driver = true")),
    ]
    digests = {read(tmp_path, other).swarm.digest() for other in others}
    assert len(digests) == len(others) and first.swarm.digest() not in digests


def test_nodes_stand_in_any_order_and_the_ring_is_that_of_their_layers(tmp_path):
    said = [node(TWO, 2, 'layers = "3-5"'), node(ONE, 1, 'layers = "0-2"')]
    found, turned = (read(tmp_path, text(*nodes)).swarm for nodes in (said, said[::-1]))
    assert found == turned and found.borders == ((0, 2), (3, 5))
    assert found.places() == {"driver": ONE.public, "stage.0": ONE.public, "stage.1": TWO.public}


def test_the_split_of_the_command_is_as_good_as_the_files_and_does_not_contradict_it(tmp_path):
    bare, said = (
        text(node(ONE, 1, one), node(TWO, 2, two)) for one, two in (("", ""), ('layers = "0-2"', 'layers = "3-5"'))
    )
    assert read(tmp_path, bare, "0-2,3-5").swarm == read(tmp_path, said).swarm
    with pytest.raises(BadInput, match="has layers 0-2 in the file, not 0-1"):
        read(tmp_path, said, "0-1,2-5")
    with pytest.raises(BadInput, match="3 stages for the 2 nodes"):
        read(tmp_path, bare, "0,1,2")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (text(node(ONE, 1), node(ONE, 2)), "two have the npub"),
        (text(node(ONE, 1), node(TWO, 1)), "two have the address"),
        (text(node(ONE, 1), customers=ONE.npub), "is a node's key"),
        (text(node(ONE, 1, 'layers = "0-3"'), node(TWO, 2, 'layers = "3-5"')), "layer 3 stands in two stages"),
        (text(node(ONE, 1, 'layers = "0-3"'), node(TWO, 2, 'layers = "5-6"')), "layer 4 stands in no stage"),
        (text(node(ONE, 1, 'layers = "1-3"')), "layer 0 stands in no stage"),
        (text(node(ONE, 1, 'layers = "0-3"'), node(TWO, 2)), "some say their layers"),
        (text(node(ONE, 1, 'layers = "a lot"')), "is not layers such as"),
        (text(node(ONE, 1, "driver = true"), node(TWO, 2, "driver = true")), "more than one is the driver"),
        (text(node(ONE, 1), customers="npub1nonsense"), "not a valid npub"),
        (text(node(ONE, 1), more="relays = []"), "unknown field"),
        (text(), "missing"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_swarm_says_why(tmp_path, said, why):
    with pytest.raises(BadConfig, match=why):
        read(tmp_path, said)


@pytest.fixture
def file(tmp_path):
    return read(tmp_path, text(node(ONE, 1), node(TWO, 2), more="lookahead = 4"))


@pytest.fixture
def manifest():
    """A driver and two stages."""
    return markets.ring(2)


TERMS = Terms(max_chunk_msat=0, max_total_msat=0)


def test_the_plan_is_the_files_and_free_whatever_is_asked(file, manifest):
    asked = TERMS.model_copy(
        update={"max_total_msat": 5, "lookahead": 64, "excluded": (ONE.public,), "verify": "sampled"}
    )
    plan = by_file(file.swarm, manifest, terms=asked, customer=ME.public)
    assert plan.terms == free(asked, 4) and plan.terms.lookahead == 4
    assert plan.providers() == (ONE.public, TWO.public) and plan.chunk_msat == 0
    assert {plan.committee, plan.snapshot, plan.certificate, plan.beacon} == {file.swarm.digest()}
    assert Plan.parse(plan.to_json()) == plan
    with pytest.raises(BadPlan, match="stages"):
        by_file(file.swarm, markets.ring(3), terms=TERMS, customer=ME.public)


async def test_a_node_takes_the_plan_of_its_own_file_from_those_whom_it_names(file, manifest):
    admission = Admission(ONE.public, ByFile(file), None, lambda digest: manifest, 0)  # type: ignore[arg-type]
    plan = by_file(file.swarm, manifest, terms=TERMS, customer=ME.public)

    async def check(plan: Plan, customer: Keys = ME) -> None:
        request = dataclasses.make_dataclass("Request", ["plan", "customer"])(plan, customer.public)
        await admission.check(request, manifest)

    await check(plan)
    with pytest.raises(NotAllowed, match="does not name it"):
        await check(plan.model_copy(update={"customer": STRANGER.public}), STRANGER)
    with pytest.raises(NotAllowed, match="does not name it"):  # a node may compute, not ask
        await check(plan.model_copy(update={"customer": TWO.public}), TWO)
    turned = [one.model_copy(update={"provider": TWO.public}) for one in plan.tasks]
    for change in (
        {"tasks": tuple(turned)},
        {"first_result_ms": plan.first_result_ms + 1},
        {"algorithm": "assign/2"},
        {"terms": plan.terms.model_copy(update={"max_total_msat": 1})},
        {"customer": STRANGER.public},
    ):
        with pytest.raises(BadPlan, match=next(iter(change))):
            await check(plan.model_copy(update=change))
