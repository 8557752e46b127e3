"""Manifests and plans: what is signed is what is parsed, and nothing else is."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadInput, BadManifest, BadPlan, BadVersion, TooLarge
from nodewire.protocol.committee.committee import VALID_EPOCHS
from nodewire.protocol.job.plan import LOCAL, MAX_JOB_EPOCHS, Assignment, Plan, Terms, ends, tensor_key
from nodewire.protocol.model.manifest import Manifest
from tests.protocol import documents


def altered(document, **changes):
    return orjson.dumps({**document.document(), **changes})


def test_a_manifest_survives_json_and_msgpack():
    manifest = documents.manifest()
    assert Manifest.parse(manifest.to_json()) == manifest
    assert Manifest.unpack(manifest.pack()) == manifest
    assert Manifest.parse(manifest.to_json()).digest() == manifest.digest()


def test_a_plan_survives_json_and_msgpack():
    plan = documents.plan()
    assert Plan.parse(plan.to_json()) == plan == Plan.unpack(plan.pack())


@pytest.mark.parametrize("v", [0, 2, "1", None, True, 1.0])
def test_another_version_is_refused_as_such(v):
    with pytest.raises(BadVersion):
        Manifest.parse(altered(documents.manifest(), v=v))


def test_a_field_that_this_version_does_not_know_is_refused_by_name():
    with pytest.raises(BadManifest, match="colour"):
        Manifest.parse(altered(documents.manifest(), colour="red"))


@pytest.mark.parametrize(
    ("field", "value"),
    [("name", "Tiny Model"), ("mode", "dream"), ("context", -1), ("context", "256"), ("chunk", 0), ("tasks", [])],
)
def test_a_wrong_field_is_refused_by_name(field, value):
    with pytest.raises(BadManifest, match=field):
        Manifest.parse(altered(documents.manifest(), **{field: value}))


def test_a_chat_template_is_cited_by_a_model_that_generates_and_left_out_of_others():
    manifest, cited = documents.manifest(), {"sha256": "ab" * 32, "bytes": 900}
    assert "chat" not in manifest.document()
    talks = Manifest.parse(altered(manifest, chat=cited))
    assert talks.document()["chat"] == cited and talks.digest() != manifest.digest()
    assert Manifest.unpack(talks.pack()) == talks
    for wrong in (
        {"chat": cited, "mode": "embed"},
        {"chat": {**cited, "bytes": 131_073}},
        {"chat": {**cited, "bytes": 0}},
    ):
        with pytest.raises(BadManifest, match="chat"):
            Manifest.parse(altered(manifest, **wrong))


def test_a_cycle_is_refused():
    document = documents.manifest().document()
    edges = [dict(e) for e in document["edges"]]
    edges[3]["back"] = False
    with pytest.raises(BadManifest, match="return"):
        Manifest.parse(orjson.dumps({**document, "edges": edges}))


def test_an_edge_from_nowhere_is_refused():
    document = documents.manifest().document()
    edges = [dict(e) for e in document["edges"]]
    edges[1]["source"] = "ghost"
    with pytest.raises(BadManifest, match="ghost"):
        Manifest.parse(orjson.dumps({**document, "edges": edges}))


def test_a_document_over_its_cap_is_refused_unread():
    with pytest.raises(TooLarge):
        Plan.parse(b" " * (Plan.MAX_BYTES + 1))


def test_a_cap_counts_bytes_and_not_characters():
    region = "\N{GLOBE WITH MERIDIANS}" * 128
    plan = documents.plan(terms=Terms(max_chunk_msat=10_000, max_total_msat=100_000, regions=(region,) * 16))
    text = plan.to_json() + " " * (Plan.MAX_BYTES - len(plan.to_json().encode()))
    assert Plan.parse(text) == plan
    assert len(text) < Plan.MAX_BYTES - 1
    with pytest.raises(TooLarge):
        Plan.parse(text + " ")


def test_an_unknown_field_within_is_the_documents_fault():
    document = documents.plan().document()
    tasks = [{**task, "colour": "red"} for task in document["tasks"]]
    with pytest.raises(BadPlan, match=r"tasks\.0\.colour"):
        Plan.parse(orjson.dumps({**document, "tasks": tasks}))


def test_the_epoch_of_a_plan_is_bounded_as_all_are():
    assert Plan.parse(altered(documents.plan(), epoch=2**40)).epoch == 2**40
    with pytest.raises(BadPlan, match="epoch"):
        Plan.parse(altered(documents.plan(), epoch=2**40 + 1))


def test_a_plan_whose_prices_do_not_add_up_is_refused():
    with pytest.raises(BadPlan, match="chunk_msat"):
        Plan.parse(altered(documents.plan(), chunk_msat=2999))


def test_a_plan_in_which_somebody_stands_by_is_refused():
    document = documents.plan().document()
    with pytest.raises(BadInput, match="standby"):
        Plan.parse(orjson.dumps({**document, "tasks": [{**task, "standby": None} for task in document["tasks"]]}))
    with pytest.raises(BadInput, match="hedge"):
        Plan.parse(orjson.dumps({**document, "terms": {**document["terms"], "hedge": ["stage.0"]}}))


def test_a_plan_says_what_each_node_runs_and_for_how_much():
    first, last, _ = (keys.public for keys in documents.PROVIDERS)
    given = zip(("driver", "stage.0", "stage.1"), (LOCAL, first, last), (0, 1000, 30), strict=True)
    tasks = (*(Assignment(task=task, provider=one, price_msat=price_msat) for task, one, price_msat in given),)
    tasks = (*tasks, Assignment(task="stage.2", provider=first, price_msat=5))
    plan = documents.plan(tasks=tasks, chunk_msat=1035)
    assert plan.providers() == (first, last)
    assert [plan.node_of(task.task) for task in tasks] == [documents.CUSTOMER.public, first, last, first]
    assert [plan.tasks_of(one) for one in (LOCAL, first, last)] == [("driver",), ("stage.0", "stage.2"), ("stage.1",)]
    assert [plan.price_msat(one) for one in (first, last, documents.CUSTOMER.public)] == [1005, 30, 0]
    assert [plan.standing_msat(task, first) for task in ("driver", "stage.0", "stage.1", "stage.2")] == [0, 1000, 0, 5]


def test_everybody_knows_where_an_edge_begins_and_ends():
    found = ends(documents.manifest(), documents.plan())
    driver, first, last = (k.public for k in documents.PROVIDERS)
    me = documents.CUSTOMER.public
    assert found == {
        "prompt": (me, driver),
        "hidden.0": (driver, first),
        "hidden.1": (first, last),
        "return": (last, driver),
        "tokens": (driver, me),
    }


def test_tensor_keys_differ_by_everything_that_names_a_frame():
    base = ("aa" * 32, "hidden.0", 0, 0)
    others = [("bb" * 32, "hidden.0", 0, 0), ("aa" * 32, "hidden.1", 0, 0), ("aa" * 32, "hidden.0", 1, 0)]
    keys = {tensor_key(*k) for k in [base, *others, ("aa" * 32, "hidden.0", 0, 1)]}
    assert len(keys) == 5
    assert all(len(k) == 16 for k in keys)


@given(
    first=st.integers(0, 10_000),
    more=st.integers(1, 10_000),
    first_ms=st.integers(5_000, 600_000),
    next_ms=st.integers(2_000, 600_000),
    epoch_ms=st.integers(100, 3_600_000),
)
def test_a_later_chunk_has_no_earlier_deadline_and_none_is_endless(first, more, first_ms, next_ms, epoch_ms):
    plan = documents.plan(first_result_ms=first_ms, next_result_ms=next_ms)
    early, late = (plan.deadline_epoch(chunk, epoch_ms) for chunk in (first, first + more))
    assert plan.epoch + VALID_EPOCHS < early <= late <= plan.epoch + MAX_JOB_EPOCHS
    # all that a customer waits for has its time
    waited_ms = first_ms + first * 64 * next_ms
    assert early >= min(plan.epoch + VALID_EPOCHS + waited_ms // epoch_ms, plan.epoch + MAX_JOB_EPOCHS)
    assert documents.plan(first_result_ms=first_ms + 1, next_result_ms=next_ms).deadline_epoch(first, epoch_ms) >= early


def test_a_deadline_in_numbers():
    """Three providers, 10 s and 5 s: 7 + 3 + 1 + 8, and (30 + 4 * 10 + n * (512 * 5 + 30) + 30) s in epochs of 10 s."""
    plan = documents.plan()
    assert [plan.deadline_epoch(n, 10_000) for n in (0, 1, 2, 15)] == [29, 288, 547, 3914]
    assert plan.deadline_epoch(16, 10_000) == plan.deadline_epoch(2**53 - 1, 10_000) == 7 + MAX_JOB_EPOCHS
