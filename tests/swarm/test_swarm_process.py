"""Three machines, one file, three commands: a generation that equals a single process's, and what becomes of it when a
node dies, has another copy of the model, or is asked by a stranger."""

import json
import signal
import subprocess

import pytest

from tests.swarm.swarm_process import NODEWIRE

PROMPT = "the cat sat on the mat and the cat sat on"
pytestmark = pytest.mark.timeout(400)


def test_a_generation_by_three_nodes_equals_a_single_process(swarm):
    for options in (["--max-tokens", "70"], ["--max-tokens", "20", "--temperature", "1.2", "--seed", "5"]):
        plain, guessed = (swarm.generate(PROMPT, *options, "--lookahead", n) for n in ("1", "8"))
        assert plain["ids"] == guessed["ids"] == swarm.alone(PROMPT, *options)["ids"]
        assert plain["spent_msat"] == 0 and plain["zaps"] == 0
        assert [one["task"] for one in plain["tasks"]] == ["driver", "stage.0", "stage.1", "stage.2"]
        assert [one["provider"] for one in plain["tasks"]][1:] == [swarm.keys[n].public for n in ("ann", "ben", "cas")]


def test_text_streams_beside_a_map_of_the_ring_and_its_speed(swarm):
    done = swarm.run("generate", PROMPT, *swarm.who("me"), "--max-tokens", "12")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip("\n") == swarm.alone(PROMPT, "--max-tokens", "12")["text"].strip("\n")
    rows = [line.split() for line in done.stderr.splitlines() if line.strip().startswith(("driver", "stage."))]
    assert [row[1] for row in rows] == ["ann", "ann", "ben", "cas"] and rows[3][-1] == "2"
    assert "tokens/s" in done.stderr and "sat" not in done.stderr.replace(PROMPT, "")


def test_a_talk_has_the_models_template_and_goes_on(swarm):
    talk = subprocess.run(
        [*NODEWIRE, "chat", *swarm.who("me"), "--json", "--max-tokens", "5"],
        input="hello\nagain\n/ring\n", env=swarm.env(), capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    said = [json.loads(line) for line in talk.stdout.splitlines()]
    answers = [one["answer"] for one in said if "answer" in one]
    assert [one["completion_tokens"] for one in answers] == [5, 5], talk.stderr
    assert answers[1]["prompt_tokens"] > answers[0]["prompt_tokens"]
    assert [row["name"] for row in said[-1]["ring"]] == ["ann", "ann", "ben", "cas"]


def test_every_node_is_asked_what_it_holds(swarm):
    found = json.loads(swarm.run("swarm", "check", *swarm.who("me")[1:], "--json").stdout)
    assert found["well"] and [row["name"] for row in found["nodes"]] == ["ann", "ben", "cas"]
    assert len({row["manifest"] for row in found["nodes"]}) == 1


def test_a_stranger_who_knows_the_file_is_not_let_in(swarm):
    refused = swarm.generate(PROMPT, who="stranger")["error"]
    assert refused["code"] == "bad-config" and "add it to customers" in refused["reason"]
    swarm.write("forged.toml", customers=("stranger",))  # it names itself in its own copy
    refused = swarm.generate(PROMPT, who="stranger", file="forged.toml")["error"]
    assert refused["code"] == "no-provider"
    assert all(f"{name} (127.0.0.1:{swarm.ports[name]}) does not let" in refused["reason"] for name in swarm.ports)


def test_another_split_is_another_swarm(swarm):
    refused = swarm.generate(PROMPT, "--split", "0,1,2")["error"]  # the same layers, but said
    assert refused["code"] == "no-provider" and "ann goes by another file" in refused["reason"]
    assert "2 stages for the 3 nodes" in swarm.generate(PROMPT, "--split", "0,1-2")["error"]["reason"]


def test_a_prompt_that_is_too_long_is_told_at_once_and_costs_the_nodes_nothing(swarm):
    refused = swarm.generate("x" * 900)["error"]
    assert refused["code"] == "too-large" and "context is 400" in refused["reason"]
    assert len(swarm.generate(PROMPT, "--max-tokens", "3")["ids"]) == 3


def test_control_c_stops_it_and_frees_the_nodes_for_the_next(swarm):
    command = [*NODEWIRE, "generate", PROMPT, *swarm.who("me"), "--max-tokens", "350"]
    asked = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=swarm.env())
    assert asked.stdout is not None and asked.stderr is not None
    assert asked.stdout.read(1)
    asked.send_signal(signal.SIGINT)
    assert asked.wait(60) == 130
    assert "stopped" in asked.stderr.read()
    for _ in range(4):  # as many as there are slots
        assert len(swarm.generate(PROMPT, "--max-tokens", "2")["ids"]) == 2


def test_a_lost_node_ends_the_generation_with_its_name_and_the_next_works_when_it_is_back(swarm):
    expected = swarm.generate(PROMPT, "--max-tokens", "9")["ids"]
    command = [*NODEWIRE, "generate", PROMPT, *swarm.who("me"), "--max-tokens", "350", "--lookahead", "1"]
    asked = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=swarm.env())
    assert asked.stdout is not None and asked.stderr is not None
    assert asked.stdout.read(1)
    swarm.stop("ben", kill=True)
    _, said = asked.communicate(timeout=40)
    assert asked.returncode == 1 and "ben" in said, said
    refused = swarm.generate(PROMPT)["error"]
    assert (
        refused["code"] == "no-provider"
        and f"ben (127.0.0.1:{swarm.ports['ben']}) does not answer" in refused["reason"]
    )
    assert "ann" not in refused["reason"]
    swarm.begin("ben")
    swarm.ready("ben")
    assert swarm.generate(PROMPT, "--max-tokens", "9")["ids"] == expected


def test_another_copy_of_the_model_is_told_by_its_node(swarm):
    swarm.stop("cas")
    swarm.begin("cas", "--model", str(swarm.folder / "other"))
    swarm.ready("cas")
    try:
        refused = swarm.generate(PROMPT)["error"]
        assert refused["code"] == "no-provider" and "different copies of the model" in refused["reason"]
        assert "ann and ben" in refused["reason"] and "cas" in refused["reason"]
        assert swarm.run("swarm", "check", *swarm.who("me")[1:]).returncode == 1
    finally:
        swarm.stop("cas")
        swarm.begin("cas")
        swarm.ready("cas")
    assert len(swarm.generate(PROMPT, "--max-tokens", "2")["ids"]) == 2


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ({"ann": "0", "ben": "1", "cas": "2-3"}, "ends with layer 3, and the model's last is 2"),
        ({"ann": "0", "ben": "1", "cas": "1-2"}, "layer 1 stands in two stages"),
        ({"ann": "0", "ben": "2", "cas": "3"}, "layer 1 stands in no stage"),
    ],
)
def test_a_node_refuses_a_split_that_is_not_the_models(swarm, split, said):
    swarm.write("wrong.toml", **split)
    own = ["--key", str(swarm.folder / "ann.key"), "--state", str(swarm.folder / "spare")]
    done = swarm.run("provider", "--swarm", str(swarm.folder / "wrong.toml"), *own, "--json")
    assert done.returncode == 1 and said in json.loads(done.stdout)["error"]["reason"], done.stdout + done.stderr
