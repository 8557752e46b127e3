"""A model's folder is a stranger's: whoever registers it must not run it, publish other files, or wait for ever."""

import json
import time

import pytest
from typer.testing import CliRunner

from bench.tasks.architectures import CONFIGS
from nodewire.cli import app
from nodewire.errors import BadInput, NodewireError, NotFound, Unsupported
from nodewire.graph.families import bert, builder, encoder_directory
from nodewire.graph.families.builder import build
from nodewire.weights.directory import read_tokenizer, stored_tensors

BERT = CONFIGS["bert"]


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    "said",
    [
        {"attn_implementation": "kernels-community/any"},
        {"_attn_implementation": "someone/kernel@main:attention"},
        {"_attn_implementation_internal": "someone/kernel"},
        {"attn_implementation": "flash_attention_2"},
        {"experts_implementation": "someone/experts"},
        {"auto_map": {"AutoConfig": "someone/code--config.Config", "AutoModel": "model.Model"}},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    ],
    ids=str,
)
@pytest.mark.parametrize("inside", [False, True])
def test_a_configuration_names_no_code(said, inside, monkeypatch):
    """`transformers` fetches a kernel from a repository and imports it where a config.json asks for it."""
    from transformers import modeling_utils

    asked = []
    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", lambda *given, **_: asked.append(given))
    config = {**CONFIGS["clip"], "text_config": {**CONFIGS["clip"]["text_config"], **said}} if inside else BERT | said
    module = build(config).module
    assert asked == []
    assert module.config._attn_implementation in ("sdpa", "eager")


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("bert", {"num_hidden_layers": 10**9}),
        ("bert", {"num_hidden_layers": 1e300}),
        ("t5", {"num_layers": 10**6}),
        ("t5", {"num_decoder_layers": 10**6}),
        ("whisper", {"decoder_layers": 10**6}),
        ("clip", {"vision_config": {"num_hidden_layers": 10**6}}),
        ("resnet", {"depths": [1024] * 1024, "hidden_sizes": [8] * 1024}),
        ("bert", {"num_labels": 10**10}),
        ("bert", {"max_position_embeddings": 10**12}),
        ("llama", {"head_dim": 2**44}),
        ("bert", {"hidden_size": -1}),
        ("bert", {"hidden_size": "x"}),
        ("bert", {"num_attention_heads": 0}),
        ("bert", {"max_position_embeddings": []}),
        ("vit", {"image_size": [1, 2, 3]}),
        ("bert", {"model_type": None}),
        ("bert", {"architectures": {"0": "BertModel"}}),
        ("bert", {"architectures": 7}),
        ("bert", {"architectures": ["PreTrainedModel"]}),
        ("bert", {"hidden_act": "__import__"}),
        ("bert", {"dtype": "load"}),
    ],
    ids=str,
)
def test_a_configuration_that_makes_no_sense_is_refused_soon(family, said):
    started = time.process_time()
    with pytest.raises((BadInput, Unsupported)):
        build({**CONFIGS[family], **said})
    assert time.process_time() - started < 20


def test_a_configuration_nested_too_deep_is_refused(tmp_path):
    deep: object = {}
    for _ in range(20_000):
        deep = {"a": deep}
    with pytest.raises(BadInput):
        build({**BERT, "more": deep})
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"], "x": ' + nested(100_000) + "}")
    with pytest.raises(BadInput, match="not JSON"):
        encoder_directory.config_of(tmp_path)


def encoder(folder, **files):
    written = {
        "config.json": BERT,
        "tokenizer.json": {"model": {"type": "WordPiece"}},
        **{name.replace("__", "/").replace("_json", ".json"): said for name, said in files.items()},
    }
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    for name, said in written.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(said if isinstance(said, str) else json.dumps(said))
    return folder


def test_the_folder_of_an_encoder_is_read_as_it_should_be(tmp_path):
    assert encoder_directory.read(encoder(tmp_path)).pooling == "mean"


@pytest.mark.parametrize(
    "files",
    [
        {"modules_json": [1, "x"]},
        {"modules_json": {"type": "Pooling"}},
        {"modules_json": [{"type": "x.Pooling", "path": ".."}]},
        {"modules_json": [{"type": "x.Pooling", "path": "a/../.."}]},
        {"modules_json": [{"type": "x.Pooling", "path": "p"}], "p__config_json": [1]},
        {"modules_json": [{"type": "evil.Code"}]},
        {"sentence_bert_config_json": [1]},
        {"tokenizer_config_json": "7"},
        {"config_json": {**BERT, "pad_token_id": "zero"}},
        {"config_json": {**BERT, "pad_token_id": 2**80}},
        {"config_json": {**BERT, "pad_token_id": [1]}},
        {"config_json": nested(100_000)},
        {"tokenizer_json": "-----BEGIN OPENSSH PRIVATE KEY-----"},
        {"tokenizer_json": {"nsec": "secret"}},
        {"tokenizer_json": nested(100_000)},
    ],
    ids=str,
)
def test_an_encoders_folder_that_makes_no_sense_is_refused(tmp_path, files):
    with pytest.raises((BadInput, NotFound)):
        encoder_directory.read(encoder(tmp_path, **files))


@pytest.mark.parametrize(
    "said", [{"num_hidden_layers": 10**7}, {"hidden_size": 65}, {"num_attention_heads": "x"}], ids=str
)
def test_an_encoder_that_the_library_does_not_take_is_refused(tmp_path, said):
    with pytest.raises(BadInput):
        bert.build(encoder_directory.read(encoder(tmp_path, config_json={**BERT, **said})))


def test_what_a_link_leads_to_is_not_published_as_a_tokenizer(tmp_path):
    secret = tmp_path / "key.json"
    secret.write_text('{"key": "nsec1"}')
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").symlink_to(secret)
    with pytest.raises(BadInput, match="not a tokenizer"):
        read_tokenizer(tmp_path / "model", 2**20)


@pytest.mark.parametrize(
    "index",
    [
        {"weight_map": {"w": "../secret.safetensors"}},
        {"weight_map": {"w": "/etc/passwd"}},
        {"weight_map": {"w": ""}},
        {"weight_map": {"w": ".."}},
        {"weight_map": {"w": "."}},
        {"weight_map": {"w": 7}},
        {"weight_map": {"w": "a\0b"}},
        {"weight_map": []},
        [],
    ],
    ids=str,
)
def test_shards_lie_beside_their_index(tmp_path, index):
    (tmp_path / "secret.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(NodewireError):
        stored_tensors(tmp_path / "model")


def test_pickled_weights_are_not_looked_at(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(NotFound, match=r"model\.safetensors"):
        stored_tensors(tmp_path)


@pytest.mark.parametrize("text", [nested(100_000), "\xff", "[]", '{"architectures": []}', '{"architectures": {}}'])
def test_the_command_says_what_is_wrong_with_a_folder(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    command = ["register", str(tmp_path), "--relay", "ws://127.0.0.1:1", "--blossom", "http://127.0.0.1:1"]
    run = CliRunner().invoke(app, [*command, "--key", str(tmp_path / "key")])
    assert isinstance(run.exception, NodewireError), run.exception


def test_positions_that_the_module_makes_itself_are_bounded(monkeypatch):
    monkeypatch.setattr(builder, "MAX_BUFFER_BYTES", 64)
    with pytest.raises(BadInput, match="positions"):
        build(CONFIGS["bert"])
