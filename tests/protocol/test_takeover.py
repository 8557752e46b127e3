"""Takeovers: only the plan's standbys enter, only the customer or the driver signs, and all nodes end at one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodewire.errors import BadEvent, BadInput, BadPlan, BadSignature, BadTag, NoProvider, NotAllowed
from nodewire.nostr import event as nostr_event
from nodewire.nostr.keys import Keys
from nodewire.protocol import kinds
from nodewire.protocol import takeover as takeovers
from nodewire.protocol.plan import LOCAL, Assignment, Plan, ends
from nodewire.protocol.takeover import Takeover, assigned, ends_after, payees, price_msat
from tests.protocol.documents import CUSTOMER, PROVIDERS, manifest, plan

REQUEST = "cd" * 32
STANDBYS = [Keys(bytes([i]) * 32) for i in (5, 6, 7)]
DRIVER, STAGE_0, STAGE_1 = PROVIDERS
TASKS = ("driver", "stage.0", "stage.1")
CHUNK = 4


def market(providers=PROVIDERS, standbys=STANDBYS) -> Plan:
    """The plan with a standby for every task; a provider may be given as "local"."""
    tasks = tuple(
        Assignment(
            task=task,
            provider=provider if provider == LOCAL else provider.public,
            standby=standby.public if standby is not None else None,
            price_msat=1000,
        )
        for task, provider, standby in zip(TASKS, providers, standbys, strict=True)
    )
    return plan(tasks=tasks)


PLAN = market()


def issue(keys: Keys, *gone: Keys, known=(), of: Plan = PLAN) -> Takeover:
    return Takeover.issue(keys, request=REQUEST, plan=of, gone=[k.public for k in gone], chunk=CHUNK, known=known)


def check(takeover: Takeover, newest: Takeover | None = None, of: Plan = PLAN) -> None:
    takeover.check(REQUEST, of, manifest(), newest)


def moved(task: int, chunk: int = CHUNK) -> tuple[str, str, str, int]:
    return TASKS[task], PROVIDERS[task].public, STANDBYS[task].public, chunk


def test_the_driver_replaces_a_stage_and_the_assignment_says_so():
    takeover = issue(DRIVER, STAGE_0)
    check(takeover)
    assert (takeover.attempt, takeover.previous, takeover.replaced) == (1, REQUEST, (moved(1),))
    assert assigned(PLAN, takeover) == {
        "driver": DRIVER.public,
        "stage.0": STANDBYS[1].public,
        "stage.1": STAGE_1.public,
    }
    before, now = ends(manifest(), PLAN), ends_after(manifest(), PLAN, takeover)
    assert now["hidden.0"] == (DRIVER.public, STANDBYS[1].public)
    assert now["hidden.1"] == (STANDBYS[1].public, STAGE_1.public)
    assert {edge for edge in before if before[edge] != now[edge]} == {"hidden.0", "hidden.1"}
    assert ends_after(manifest(), PLAN, None) == before


def test_it_is_read_from_control_documents_and_events_as_it_was_written():
    takeover = issue(CUSTOMER, DRIVER, STAGE_1)
    assert Takeover.from_control({**takeover.control(), "job": REQUEST}) == takeover
    assert Takeover.from_control(takeover.stale()) == takeover
    assert takeover.stale()["t"] == "stale"
    assert Takeover.from_control({"t": "close"}) is None
    assert Takeover.unpack(takeover.pack()) == takeover
    event = takeovers.build(STAGE_0, takeover, created_at=7)
    assert takeovers.parse(event) == takeover
    assert event.tag("e") == REQUEST
    assert event.values("p") == [DRIVER.public, STANDBYS[0].public, STAGE_1.public, STANDBYS[2].public]
    with pytest.raises(BadInput):
        Takeover.from_control({"t": "takeover"})


@pytest.mark.parametrize(
    ("error", "changed"),
    [
        (BadEvent, {"kind": 8856}),
        (BadTag, {"tags": [["e", "00" * 32]]}),
        (BadTag, {"tags": [["e", REQUEST], ["p", STAGE_0.public]]}),
        (BadInput, {"content": ""}),
        (BadInput, {"content": "{}"}),
    ],
)
def test_an_event_that_says_something_else_is_refused(error, changed):
    event = takeovers.build(DRIVER, issue(DRIVER, STAGE_0), created_at=7)
    fields = {"kind": event.kind, "created_at": 7, "content": event.content, "tags": [list(t) for t in event.tags]}
    fields |= changed
    with pytest.raises(error):
        takeovers.parse(nostr_event.sign(DRIVER, fields.pop("kind"), **fields))


def signed(keys: Keys = DRIVER, **changed) -> Takeover:
    fields = {"request": REQUEST, "attempt": 1, "previous": REQUEST, "replaced": (moved(1),)}
    return Takeover.sign(keys, **(fields | changed))


@pytest.mark.parametrize(
    ("error", "field", "takeover"),
    [
        (BadPlan, "request", lambda: signed(request="ab" * 32)),
        (BadPlan, "previous", lambda: signed(previous="ab" * 32)),
        (BadPlan, "previous", lambda: signed(attempt=2)),
        (NotAllowed, "signer", lambda: signed(STAGE_1)),
        (NotAllowed, "signer", lambda: signed(STANDBYS[1])),
        (NotAllowed, "signer", lambda: signed(replaced=(moved(0),))),
        (NotAllowed, "signer", lambda: signed(STANDBYS[0], replaced=(moved(0),))),
        (BadPlan, "replaced", lambda: signed(replaced=(("stage.0", STAGE_0.public, STANDBYS[2].public, CHUNK),))),
        (BadPlan, "replaced", lambda: signed(replaced=(("stage.0", STAGE_1.public, STANDBYS[1].public, CHUNK),))),
        (BadPlan, "replaced", lambda: signed(replaced=(("stage.9", STAGE_0.public, STANDBYS[1].public, CHUNK),))),
        (BadPlan, "replaced", lambda: signed(replaced=(moved(1), moved(1)))),
        (BadPlan, "replaced", lambda: signed(replaced=(moved(2), moved(1)))),
        (BadSignature, "sig", lambda: signed().model_copy(update={"sig": "00" * 64})),
        (BadSignature, "sig", lambda: signed(CUSTOMER).model_copy(update={"signer": DRIVER.public})),
    ],
)
def test_what_the_plan_does_not_allow_is_refused(error, field, takeover):
    with pytest.raises(error) as failed:
        check(takeover())
    assert failed.value.field == field


def test_who_leaves_leaves_all_tasks_and_enters_none():
    merged = market(providers=(DRIVER, STAGE_0, STAGE_0))
    with pytest.raises(BadPlan):
        check(signed(), of=merged)
    both = issue(DRIVER, STAGE_0, of=merged)
    assert [task for task, _, _, _ in both.replaced] == ["stage.0", "stage.1"]
    check(both, of=merged)
    crossed = market(standbys=(STANDBYS[0], STAGE_1, STAGE_0))
    each_other = (("stage.0", STAGE_0.public, STAGE_1.public, 0), ("stage.1", STAGE_1.public, STAGE_0.public, 0))
    forged = signed(replaced=each_other)
    with pytest.raises(BadPlan):
        check(forged, of=crossed)


def test_without_a_standby_there_is_no_takeover():
    with pytest.raises(NoProvider):
        issue(DRIVER, STAGE_0, of=market(standbys=(None, None, None)))
    with pytest.raises(NoProvider):  # the standby of one is the other that died
        issue(DRIVER, STAGE_0, STAGE_1, of=market(standbys=(STANDBYS[0], STAGE_1, STANDBYS[2])))
    with pytest.raises(NoProvider):
        issue(DRIVER, STANDBYS[1], known=[issue(DRIVER, STAGE_0)])
    with pytest.raises(NotAllowed):
        issue(DRIVER, STANDBYS[1])


def test_a_local_driver_is_the_customer():
    local = market(providers=(LOCAL, STAGE_0, STAGE_1), standbys=(None, *STANDBYS[1:]))
    takeover = issue(CUSTOMER, STAGE_0, of=local)
    check(takeover, of=local)
    assert assigned(local, takeover)["driver"] == LOCAL
    assert ends_after(manifest(), local, takeover)["hidden.0"] == (CUSTOMER.public, STANDBYS[1].public)
    with pytest.raises(NotAllowed):
        check(issue(STAGE_1, STAGE_0, of=local), of=local)
    with pytest.raises(BadInput):
        signed(CUSTOMER, replaced=(("driver", LOCAL, STANDBYS[0].public, CHUNK),))


def test_a_driver_that_entered_signs_from_then_on():
    first = issue(CUSTOMER, DRIVER)
    second = issue(STANDBYS[0], STAGE_0, known=[first])
    check(second, newest=first)
    assert (second.attempt, second.previous, second.replaced) == (2, first.digest(), (moved(0), moved(1)))
    with pytest.raises(NotAllowed):  # who has not heard of the first believes neither
        check(second)
    with pytest.raises(NotAllowed):  # the old one has nothing to say any more
        check(issue(DRIVER, STAGE_1), newest=first)


def test_the_later_outranks_and_the_customer_at_equal_attempts():
    stage, driver = issue(DRIVER, STAGE_0), issue(CUSTOMER, DRIVER)
    both = issue(CUSTOMER, DRIVER, STAGE_0)
    assert stage.outranks(None, CUSTOMER.public)
    assert both.outranks(stage, CUSTOMER.public)
    assert not stage.outranks(both, CUSTOMER.public)
    assert not stage.outranks(stage, CUSTOMER.public)  # replayed
    assert not driver.outranks(stage, CUSTOMER.public)  # it would bring the stage back
    mended = issue(CUSTOMER, DRIVER, known=[stage])
    check(mended, newest=stage)
    assert mended.outranks(stage, CUSTOMER.public) and mended.outranks(driver, CUSTOMER.public)
    assert not driver.outranks(mended, CUSTOMER.public)


def test_the_digest_is_of_what_is_signed():
    takeover = issue(DRIVER, STAGE_0)
    assert takeover.digest() == takeover.model_copy(update={"sig": "00" * 64}).digest()
    assert takeover.digest() != issue(CUSTOMER, STAGE_0).digest()


@given(st.lists(st.tuples(st.booleans(), st.sets(st.integers(0, 2), min_size=1)), min_size=1, max_size=4))
def test_whatever_signers_said_apart_one_takeover_over_it_all_outranks_it(said):
    heard: list[Takeover] = []
    for by_customer, gone in said:
        signer = CUSTOMER if by_customer or 0 in gone else DRIVER
        heard.append(issue(signer, *(PROVIDERS[i] for i in gone)))
    mended = issue(CUSTOMER, known=heard)
    for takeover in heard:
        check(mended, newest=takeover)
        assert mended.outranks(takeover, CUSTOMER.public)
    assert {task for task, _, _, _ in mended.replaced} == {TASKS[i] for _, gone in said for i in gone}


def test_its_kind():
    assert kinds.TAKEOVER == 8857


def test_who_left_is_paid_up_to_the_chunk_in_which_it_did_and_nobody_is_paid_for_the_same():
    first = issue(DRIVER, STAGE_0)
    second = Takeover.issue(CUSTOMER, request=REQUEST, plan=PLAN, gone=[DRIVER.public], chunk=CHUNK + 2, known=[first])
    check(second, first)
    everybody = {keys.public for keys in (*PROVIDERS, *STANDBYS)}
    for chunk in range(CHUNK + 5):
        paid = payees(PLAN, second, chunk)
        assert paid["stage.0"] == (STAGE_0 if chunk < CHUNK else STANDBYS[1]).public
        assert paid["driver"] == (DRIVER if chunk < CHUNK + 2 else STANDBYS[0]).public
        assert paid["stage.1"] == STAGE_1.public
        assert sum(price_msat(PLAN, second, who, chunk) for who in everybody) == PLAN.chunk_msat


def test_the_newest_is_the_same_in_whatever_order_they_are_read():
    first = issue(DRIVER, STAGE_0)
    second = issue(CUSTOMER, STAGE_1, known=[first])
    also_second = Takeover.sign(
        DRIVER, request=REQUEST, attempt=2, previous=first.digest(), replaced=(moved(1), moved(2))
    )
    alone = Takeover.sign(DRIVER, request=REQUEST, attempt=3, previous=second.digest(), replaced=(moved(2),))
    strangers = Takeover.sign(STAGE_1, request=REQUEST, attempt=9, previous="ab" * 32, replaced=(moved(1),))
    every = [first, second, also_second, alone, strangers]
    for said in (every, every[::-1], [*every[2:], *every[:2], *every]):
        assert takeovers.newest(said, REQUEST, PLAN, manifest()) == second
        held, refused = takeovers.accepted(said, REQUEST, PLAN, manifest())
        assert held == [first, second]
        assert {one.signer for one, _ in refused} == {STAGE_1.public}
    assert takeovers.newest([], REQUEST, PLAN, manifest()) is None


def test_a_driver_that_entered_signs_on_top_of_the_takeover_that_it_entered_by():
    entered = issue(CUSTOMER, DRIVER)
    later = Takeover.issue(STANDBYS[0], request=REQUEST, plan=PLAN, gone=[STAGE_1.public], chunk=CHUNK, known=[entered])
    assert takeovers.newest([later, entered], REQUEST, PLAN, manifest()) == later
    assert takeovers.newest([later], REQUEST, PLAN, manifest()) is None
