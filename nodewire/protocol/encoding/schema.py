"""The frozen model that every document of the protocol is, and the field types they share.

A document travels as JSON (in an event's content) or canonical msgpack (as a blob) and is hashed over its canonical
msgpack. Models are strict and closed: a field that a version does not know is an error, so what was parsed hashes to
what was signed. Lists in documents are tuples in Python.

Items are counted (`counts`) before anything is made of them, and reading stops at the first that is wrong. A megabyte
of empty maps was else told of in millions of errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import orjson
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, StringConstraints, ValidationError

from nodewire.core.slices import Sliced, whole
from nodewire.errors import BadInput, BadVersion, TooLarge
from nodewire.protocol.encoding import canonical, counts
from nodewire.protocol.encoding.validation_errors import in_words, shaped

if TYPE_CHECKING:
    from pydantic_core import CoreSchema

Hex32 = Annotated[str, shaped(r"^[0-9a-f]{64}$", "64 lowercase hex digits")]
"""32 bytes as lowercase hex: event ids, public keys, hashes."""
Hex64 = Annotated[str, shaped(r"^[0-9a-f]{128}$", "128 lowercase hex digits")]
Name = Annotated[
    str,
    shaped(r"^[a-z0-9][a-z0-9._-]{0,63}$", "a name: 1 to 64 of a-z, 0-9, ., _ and -, the first a letter or digit"),
]
"""Names of tasks, edges, tensors, models."""
Label = Annotated[str, StringConstraints(max_length=128)]
"""Short free text for people."""
Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
Msat = Annotated[int, Field(ge=0, le=2_100_000_000_000_000_000)]
Seconds = Annotated[int, Field(ge=0, le=2**53 - 1)]


_LISTS = (list, dict)


class Schema(BaseModel):
    """Base of all documents. Subclasses set `TAG` (hash domain), `MAX_BYTES` and `ERROR` (raised by `parse`).

    Errors about a whole document have `NAME` as their field; by default it is the class's name.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    TAG: ClassVar[str] = ""
    NAME: ClassVar[str] = ""
    MAX_BYTES: ClassVar[int] = 32_768
    ERROR: ClassVar[type[BadInput]] = BadInput

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if "NAME" not in cls.__dict__:
            cls.NAME = cls.__name__.lower()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return counts.exact(counts.stop_early(handler(source)))

    @classmethod
    def parse(cls, data: bytes | str) -> Self:
        """The document in JSON text.

        Raises:
            TooLarge: longer than MAX_BYTES.
            BadVersion: its `v` is one that this software does not speak.
            cls.ERROR: any other fault, naming the field.

        """
        encoded = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        if len(encoded) > cls.MAX_BYTES:
            raise TooLarge(cls.NAME, f"{len(encoded)} bytes, at most {cls.MAX_BYTES}")
        try:
            return cls.from_document(orjson.loads(encoded))
        except orjson.JSONDecodeError as error:
            raise cls.ERROR(cls.NAME, "not JSON") from error

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """The document in canonical msgpack. Raises as `parse`."""
        try:
            return cls.from_document(whole(cls.read(data)))
        except TooLarge:
            raise
        except BadInput as error:
            raise (
                error if isinstance(error, cls.ERROR | BadVersion) else cls.ERROR(error.field, error.reason)
            ) from error

    @classmethod
    def read(cls, data: bytes) -> Sliced[dict[str, Any]]:
        """The document in canonical msgpack, its lists counted and nothing else checked. Raises TooLarge, BadInput."""
        most, longest = counts.most(cls), counts.longest(cls)
        return canonical.read(data, max_bytes=cls.MAX_BYTES, most=most, longest=longest)

    @classmethod
    def from_document(cls, document: Any, *, context: Any = None) -> Self:
        """The model of decoded JSON or msgpack; `context` is handed to its fields' validators. Raises as `parse`."""
        if "v" in cls.model_fields and isinstance(document, dict):
            BadVersion.check(document.get("v"), cls.model_fields["v"].default)
        counts.check(cls, document)
        try:
            return cls.model_validate(_tuples(document), context=context)
        except RecursionError as error:
            raise cls.ERROR(cls.NAME, "nested too deeply") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or cls.NAME
            raise cls.ERROR(where[:200], in_words(first)[:200]) from error

    def document(self) -> dict[str, Any]:
        return self.model_dump(mode="python")

    def to_json(self) -> str:
        return orjson.dumps(self.document(), option=orjson.OPT_SORT_KEYS).decode()

    def pack(self) -> bytes:
        return canonical.encode(self.document())

    def digest(self) -> str:
        """The tagged hash by which others cite this document (64 hex digits)."""
        assert self.TAG, type(self)
        return canonical.tagged_hash(self.TAG, self.pack()).hex()


def _tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple([_tuples(item) if type(item) in _LISTS else item for item in value])
    if isinstance(value, dict):
        return {key: _tuples(item) if type(item) in _LISTS else item for key, item in value.items()}
    return value
