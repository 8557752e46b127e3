"""How a model's ids become text, fetched by what its manifest cites."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from nodewire.errors import BadManifest, TooLarge
from nodewire.protocol.model.text_rules import MAX_PROGRAM_BYTES, TextRules, text_rules
from nodewire.text.detokenizer import MAX_TOKENIZER_BYTES, Detokenizer

if TYPE_CHECKING:
    from nodewire.protocol.model.manifest import Manifest
    from nodewire.public_record import PublicRecord

DRIVER = "decoder.driver"


@dataclass(frozen=True, slots=True)
class ModelText:
    """Read once for many generations."""

    rules: TextRules
    detokenizer: Detokenizer

    @classmethod
    async def load(cls, manifest: Manifest, record: PublicRecord) -> Self:
        """The text of a model that generates.

        Raises:
            NotFound, BadHash: a file that the manifest cites is not to be had.
            BadManifest, BadTask, BadVersion, TooLarge: it is not a decoder's, or its tokenizer cannot be used.

        """
        driver = manifest.driver
        if driver.engine != DRIVER:
            raise BadManifest("tasks", f"a model that generates begins with a {DRIVER}, not with a {driver.engine}")
        program = await record.fetch_blob(driver.program.sha256, min(driver.program.bytes, MAX_PROGRAM_BYTES))
        rules = text_rules(await asyncio.to_thread(program.read_bytes))
        if rules.tokenizer.bytes > MAX_TOKENIZER_BYTES:
            raise TooLarge("tokenizer", f"{rules.tokenizer.bytes} bytes, at most {MAX_TOKENIZER_BYTES}")
        path = await record.fetch_blob(rules.tokenizer.sha256, rules.tokenizer.bytes)
        return cls(rules, await asyncio.to_thread(lambda: Detokenizer(path.read_bytes())))
