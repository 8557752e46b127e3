"""The programs of a decoder's tasks: what a stage and a driver must know beside their weights.

A program is canonical msgpack, cited by hash in the manifest. It is checked wholly before memory is taken: its fields
against their bounds, and its table of tensors against what its own configuration implies.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from nodewire.errors import BadInput, BadTask
from nodewire.llm.families import end_pieces, end_tensors, layer_pieces, stage_tensors
from nodewire.llm.families.fields.tensor_names import NUMBERS, Piece, Pieces
from nodewire.llm.spec.config import MAX_LAYERS, MAX_POSITIONS, ROUNDING, DecoderConfig
from nodewire.llm.spec.parameters import BOTH, NEITHER, Ends, Parameters, of_ends, of_layer
from nodewire.protocol.encoding.schema import Name, Schema
from nodewire.protocol.model.manifest import BlobRef
from nodewire.protocol.tensors.safetensors_dtypes import DTYPE_OF
from nodewire.weights.tensorfile import DTYPES, StoredTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_TENSORS = 32 * MAX_LAYERS

ComputeDtype = Literal["float32", "bfloat16"]
Kv = Literal["int8"]
Slots = Annotated[int, Field(ge=1, le=4_096)]
Positions = Annotated[int, Field(ge=1, le=MAX_POSITIONS)]


class TensorType(Schema):
    """A tensor as it is stored; those that are no floats are blocks, as are float8 their scales."""

    dtype: Literal["float32", "bfloat16", "float16", "uint8", "int8", "int32", "float8_e4m3fn"]
    shape: tuple[Annotated[int, Field(ge=1, le=2**20)], ...] = Field(min_length=1, max_length=4)


Table = Annotated[dict[Name, TensorType], Field(max_length=MAX_TENSORS)]


class StageProgram(Schema):
    """Layers [first, last): frames of hidden states in on one edge, out on another."""

    TAG: ClassVar[str] = "nodewire/decoder-stage/1"
    MAX_BYTES: ClassVar[int] = 4 * 1_048_576
    ERROR: ClassVar[type[BadInput]] = BadTask

    v: Literal[1] = 1
    config: DecoderConfig
    first: int = Field(ge=0, lt=MAX_LAYERS)
    last: int = Field(ge=1, le=MAX_LAYERS)
    closes: bool
    """Whether these are the model's last layers: only the last position's hidden state goes out."""
    dtype: ComputeDtype
    """Of the arithmetic and the edges; weights are converted to it."""
    slots: Slots
    positions: Positions
    """Most in one session."""
    block: int = Field(ge=2, le=65_536)
    """Positions computed at once. Parts of one row could not be told from answers of their last row alone."""
    edge_in: Name
    edge_out: Name
    tensors: Table
    takes_ids: bool = False
    """Whether it has the embedding: token ids come in, int64 [1, n, 1]."""
    gives_ids: bool = False
    """Whether it has the head: of each row the likeliest next token goes out, int64 [1, n, 1]."""
    kv: Kv | None = None
    """How keys and values are kept, if not as the arithmetic's numbers: `int8` is MXINT8."""

    @property
    def ends(self) -> Ends:
        return Ends(self.takes_ids, self.gives_ids)

    @model_serializer(mode="wrap")
    def _without_ends_that_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _said(serialize(self), "takes_ids", "gives_ids", "kv")

    @model_validator(mode="after")
    def _agrees_with_its_config(self) -> Self:
        layers = self.config.num_hidden_layers
        if not self.first < self.last <= layers:
            raise ValueError(f"last: layers {self.first} to {self.last} of {layers}")
        if self.closes != (self.last == layers):
            raise ValueError("closes: only the model's last layers close the ring")
        if (self.takes_ids and self.first) or (self.gives_ids and not self.closes):
            raise ValueError("takes_ids: only the first layers have an embedding, and the last a head")
        if self.edge_in == self.edge_out:
            raise ValueError("edge_out: the same as edge_in")
        how = self.config.quantization
        if how is not None and how.scheme in ROUNDING and self.dtype == "float32":
            raise ValueError(
                "dtype: activations are rounded, which two nodes agree on within bfloat16's tolerance only"
            )
        if self.kv is not None and self.dtype == "float32":
            raise ValueError("kv: keys are rounded, which two nodes agree on within bfloat16's tolerance only")
        _check_positions(self.positions, self.config)
        ends = end_tensors(self.config, self.ends)
        _check_table(self.tensors, chain(ends, stage_tensors(self.config, self.first, self.last)))
        for layer in range(self.first, self.last):
            _check_parameters(self.config, layer_pieces(self.config, layer), of_layer(self.config, layer))
        _check_parameters(self.config, end_pieces(self.config), of_ends(self.config, self.ends))
        return self


class DriverProgram(Schema):
    """Embedding, head, tokenizer and sampling: a prompt in, hidden states around the ring, tokens out.

    Its weights are the tensors' blobs, then the tokenizer.json. One that `lends` its ends to the first and the last
    stage has the tokenizer alone: ids go around the ring, and come back.
    """

    TAG: ClassVar[str] = "nodewire/decoder-driver/1"
    MAX_BYTES: ClassVar[int] = 1_048_576
    ERROR: ClassVar[type[BadInput]] = BadTask

    v: Literal[1] = 1
    config: DecoderConfig
    dtype: ComputeDtype
    slots: Slots
    positions: Positions
    chunk: int = Field(ge=1, le=4_096)
    """Positions that one payment covers."""
    edge_prompt: Name
    edge_return: Name
    edge_hidden: Name
    edge_tokens: Name
    tokenizer: BlobRef
    tensors: Table
    lends: bool = False

    @property
    def ends(self) -> Ends:
        return NEITHER if self.lends else BOTH

    @model_serializer(mode="wrap")
    def _without_what_it_does_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _said(serialize(self), "lends")

    @model_validator(mode="after")
    def _agrees_with_its_config(self) -> Self:
        edges = {self.edge_prompt, self.edge_return, self.edge_hidden, self.edge_tokens}
        if len(edges) != 4:
            raise ValueError("edge_tokens: edges share a name")
        _check_positions(self.positions, self.config)
        _check_table(self.tensors, end_tensors(self.config, self.ends))
        _check_parameters(self.config, end_pieces(self.config), of_ends(self.config, self.ends))
        return self


def _said(document: dict[str, Any], *names: str) -> dict[str, Any]:
    """The document without those of these fields that are not set."""
    return {name: value for name, value in document.items() if value or name not in names}


def _check_positions(positions: int, config: DecoderConfig) -> None:
    if positions > config.max_position_embeddings:
        raise ValueError(f"positions: {positions}, the model was made for {config.max_position_embeddings}")


def _check_parameters(config: DecoderConfig, pieces: Pieces, parameters: Parameters) -> None:
    """Raises ValueError: the family's tensors do not make up a parameter. What nothing fills would be stale memory."""
    for role, parameter in parameters.items():
        if sum(piece.count for piece in pieces.get(role, ())) != parameter.count:
            raise ValueError(f"config: the tensors of a {config.family} make up no such {role}")


def stored_type(stored: StoredTensor) -> tuple[str, tuple[int, ...]]:
    """A stored tensor's dtype and shape, as a table says them."""
    return DTYPE_OF.get(stored.dtype, stored.dtype), stored.shape


def _check_table(table: Mapping[str, TensorType], pieces: Iterable[Piece]) -> None:
    seen = set()
    for piece in pieces:
        for name, (dtype, shape) in piece.stored().items():
            found = table.get(name)
            if found is None:  # the first is enough: a hostile configuration names millions
                raise ValueError(f"tensors: {name} is missing")
            if found.shape != shape:
                raise ValueError(f"tensors: {name} has shape {found.shape}, not {shape}")
            if found.dtype not in (DTYPES if dtype == NUMBERS else (dtype,)):
                raise ValueError(f"tensors: {name} is {found.dtype}")
            seen.add(name)
    if len(seen) != len(table):
        raise ValueError(f"tensors: {min(table.keys() - seen)} is not one of this task")
