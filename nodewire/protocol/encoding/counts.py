"""How many items the lists and maps of a document may have, by its model: counted before anything is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import MaxLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nodewire.errors import BadInput, TooLarge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic_core import CoreSchema


@dataclass(frozen=True, slots=True)
class _CountedField:
    """A field that is a list, a map, or a document."""

    name: str
    is_many: bool
    most: int | None
    """Items of a list or map. None: the document's bytes bound them alone."""
    inner: type[BaseModel] | None
    """The model of each item, or of the field itself."""
    is_map: bool = False
    has_scalars: bool = False
    """Whether its items hold nothing themselves."""


def check(model: type[BaseModel], document: Any) -> None:
    """Count the items of a decoded document.

    Raises:
        TooLarge: a list or map has more items than its field may have.
        BadInput: it, or a document in it, has a field that its model does not know; of the class that the model raises.

    """
    _check(model, document, getattr(model, "ERROR", BadInput))


def _check(model: type[BaseModel], document: Any, error: type[BadInput]) -> None:
    if type(document) is not dict:
        return
    fields = model.model_fields
    if len(document) > len(fields):
        unknown = next(name for name in document if name not in fields)
        raise error(str(unknown)[:64], "unknown field")
    for one in _counted(model):
        value = document.get(one.name)
        if not one.is_many:
            if one.inner is not None:
                _check_item(one.inner, value, one.name, error)
        elif isinstance(value, list | tuple | dict):
            if one.most is not None and len(value) > one.most:
                raise TooLarge(one.name, f"{len(value)} items, at most {one.most}")
            if one.inner is not None:
                for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                    _check_item(one.inner, item, f"{one.name}.{key}", error)


@cache
def most(model: type[BaseModel]) -> Mapping[str, int]:
    """By field that is a list or map, how many items it may have."""
    return {one.name: one.most for one in _counted(model) if one.is_many and one.most is not None}


@cache
def longest(model: type[BaseModel]) -> int | None:
    """How many items any list or map within a field's items may have. None: its bytes bound that alone."""
    return _longest(model, frozenset())


def stop_early(schema: CoreSchema) -> CoreSchema:
    """A model's core schema, whose lists are read no further than their first wrong item."""
    _stop(schema)
    return schema


def exact(schema: CoreSchema) -> CoreSchema:
    """A core schema whose constant integers are integers: `True` and `1.0` equal 1, and are none."""
    made: CoreSchema = _exact(schema)
    return made


def _exact(part: Any) -> Any:
    if isinstance(part, dict):
        if part.get("type") == "literal" and all(type(one) is int for one in part["expected"]):
            return {"type": "chain", "steps": [{"type": "int", "strict": True}, part]}
        if part.get("type") != "chain":
            part.update({key: _exact(value) for key, value in part.items()})
    elif isinstance(part, list):
        part[:] = map(_exact, part)
    return part


def _stop(part: Any) -> None:
    if isinstance(part, dict):
        if part.get("type") in ("tuple", "list"):
            part["fail_fast"] = True
        for value in part.values():
            _stop(value)
    elif isinstance(part, list):
        for value in part:
            _stop(value)


def _check_item(model: type[BaseModel], item: Any, name: str, error: type[BadInput]) -> None:
    try:
        _check(model, item, error)
    except BadInput as fault:
        raise type(fault)(f"{name}.{fault.field}"[:200], fault.reason) from fault


@cache
def _counted(model: type[BaseModel]) -> tuple[_CountedField, ...]:
    found = (_field(name, field) for name, field in model.model_fields.items())
    return tuple(one for one in found if one is not None)


def _field(name: str, field: FieldInfo) -> _CountedField | None:
    annotation, bounds = _bare(field.annotation, field.metadata)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is tuple:
        is_open = len(args) == 2 and args[1] is Ellipsis
        are_scalars = all(_is_scalar(one) for one in args if one is not Ellipsis)
        return _CountedField(name, True, _least(bounds) if is_open else len(args), _model(args[0]), False, are_scalars)
    if origin is dict:
        return _CountedField(name, True, _least(bounds), _model(args[1]), True, _is_scalar(args[1]))
    inner = _model(annotation)
    return _CountedField(name, False, None, inner) if inner is not None else None


def _bare(annotation: Any, bounds: Iterable[Any] = ()) -> tuple[Any, list[Any]]:
    """A type without what is said about it, and without null; and what is said."""
    found = list(bounds)
    while True:
        if get_origin(annotation) is Annotated:
            annotation, *more = get_args(annotation)
            for one in more:
                found += one.metadata if isinstance(one, FieldInfo) else [one]
        elif get_origin(annotation) in (Union, UnionType):
            members = [one for one in get_args(annotation) if one is not NoneType]
            if len(members) != 1:
                return annotation, found
            annotation = members[0]
        else:
            return annotation, found


def _least(bounds: Iterable[Any]) -> int | None:
    return min((one.max_length for one in bounds if isinstance(one, MaxLen)), default=None)


def _model(annotation: Any) -> type[BaseModel] | None:
    bare, _ = _bare(annotation)
    return bare if isinstance(bare, type) and issubclass(bare, BaseModel) else None


def _is_scalar(annotation: Any) -> bool:
    bare, _ = _bare(annotation)
    if get_origin(bare) in (Union, UnionType):
        return all(_is_scalar(one) for one in get_args(bare))
    return get_origin(bare) is Literal or bare in (str, int, bool, bytes, NoneType)


def _longest(model: type[BaseModel], above: frozenset[type[BaseModel]]) -> int | None:
    """As `longest`; the outermost lists of a document are counted by themselves."""
    if model in above:
        return None
    lengths, counted = [len(model.model_fields) + 1], {one.name: one for one in _counted(model)}
    for name, field in model.model_fields.items():
        one = counted.get(name)
        if one is None:
            if not _is_scalar(field.annotation):
                return None
            continue
        if one.is_many:
            if one.inner is None and not one.has_scalars:
                return None
            if one.most is None:
                return None
            lengths.append(one.most if above or one.is_map else 1)
        if one.inner is not None:
            within = _longest(one.inner, above | {model})
            if within is None:
                return None
            lengths.append(within)
    return max(lengths)
