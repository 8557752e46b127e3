"""What turns a generation's ids into its text: the few fields of a driver's program that its customer reads. Pure.

nips/28-generation.md. The rest of the program is the driver's affair, and is not read here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from nodewire.errors import BadInput, BadTask, BadVersion
from nodewire.protocol.encoding import canonical
from nodewire.protocol.model.manifest import BlobRef, Manifest

MAX_PROGRAM_BYTES = 1_048_576
MAX_TOKENIZER_VALUES = 4_000_000
"""Of a tokenizer.json, by its commas: an empty list of three bytes takes seventy once it is read."""
_MAX_VALUES = 65_536
_MAX_VOCABULARY = 2**24
_MAX_ENDS = 32


@dataclass(frozen=True, slots=True)
class TextRules:
    """`tokenizer` cites the tokenizer.json; a token of `ends` ends the text and is no part of it."""

    tokenizer: BlobRef
    ends: frozenset[int]
    vocabulary: int
    """Ids are below it."""


def text_rules(program: bytes) -> TextRules:
    """The rules in a driver's program, canonical msgpack.

    Raises:
        BadTask: not a driver's program.
        BadVersion: of a version that is not spoken here.
        TooLarge: over 1 MiB, or too many values.

    """
    try:
        document = canonical.decode(program, max_bytes=MAX_PROGRAM_BYTES, max_values=_MAX_VALUES)
    except BadInput as error:
        raise error if error.code != BadInput.code else BadTask("program", error.reason) from error
    if not isinstance(document, dict) or not isinstance(config := document.get("config"), dict):
        raise BadTask("program", "not a driver's")
    if (version := document.get("v")) != 1:
        raise BadVersion.from_versions(version, 1)
    try:
        tokenizer = BlobRef.model_validate(document.get("tokenizer"))
    except ValidationError as error:
        raise BadTask("program.tokenizer", "does not cite a file") from error
    vocabulary = config.get("vocab_size")
    if not _is_id(vocabulary, _MAX_VOCABULARY + 1) or not vocabulary:
        raise BadTask("program.config.vocab_size", f"not from 1 to {_MAX_VOCABULARY}")
    ends = config.get("eos_token_id", [])
    if not isinstance(ends, list) or len(ends) > _MAX_ENDS or not all(_is_id(end, vocabulary) for end in ends):
        raise BadTask("program.config.eos_token_id", f"not a list of at most {_MAX_ENDS} ids")
    return TextRules(tokenizer, frozenset(ends), vocabulary)


def text_blobs(manifest: Manifest) -> dict[str, BlobRef]:
    """The files by which a generation's text is read: the driver's program, and the tokenizer.json that it cites."""
    driver = manifest.driver
    files = {"program": driver.program}
    if driver.weights:
        files["tokenizer"] = driver.weights[-1]
    return files


def _is_id(value: Any, below: int) -> bool:
    return type(value) is int and 0 <= value < below
