"""How messages become a prompt: a model's chat template and its special tokens' texts. nips/02-manifests.md.

A template is a stranger's program in a small language (Jinja): it is data to all but `nodewire.chat`, which renders it
in a process that has nothing and may take little.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from nodewire.errors import BadInput, BadManifest
from nodewire.protocol.encoding.schema import Name, Schema
from nodewire.protocol.model.manifest import MAX_CHAT_BYTES

MAX_TEMPLATE_CHARS = 65_536


class ChatTemplate(Schema):
    """`template` is Jinja, as in a Hugging Face tokenizer_config.json, and `tokens` are what it may write.

    They stand by their names there (bos_token, eos_token ...). The prompt that it makes has its special tokens: the
    tokenizer adds none.
    """

    TAG: ClassVar[str] = "nodewire/chat/1"
    MAX_BYTES: ClassVar[int] = MAX_CHAT_BYTES
    ERROR: ClassVar[type[BadInput]] = BadManifest

    v: Literal[1] = 1
    template: Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEMPLATE_CHARS)]
    tokens: dict[Name, Annotated[str, StringConstraints(max_length=256)]] = Field(default_factory=dict, max_length=16)
