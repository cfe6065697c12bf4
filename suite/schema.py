"""Strict models for what users write: the base class, shared types, and errors put into words.

Knows pydantic and places; knows no key of a scenario.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from suite.errors import SuiteError
from suite.yaml_source import KeyPath, Source, dotted, show

Count = Annotated[int, Field(ge=1, le=1_000_000)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Ratio = Annotated[float, Field(ge=0, le=1)]
PositiveNumber = Annotated[float, Field(gt=0, le=1e9)]


def _list_to_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


# YAML has lists only, and a strict tuple field would refuse them.
AsTuple = BeforeValidator(_list_to_tuple)

# The label of a union's member in pydantic's error locations; no key can look like it.
TAG_OPEN = "<"


def kind_tag(value: object, kinds: Mapping[str, type[BaseModel]]) -> str:
    """A union's label for a kind's name, or for an object of that kind."""
    name = next((kind for kind, model in kinds.items() if isinstance(value, model)), value)
    return f"{TAG_OPEN}{name}>"


class StrictModel(BaseModel):
    """Frozen, nothing coerced, no unknown keys, no infinities.

    Unknown and missing keys are found here and not by pydantic, so that their messages can name the keys
    there are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: object) -> object:
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise broken_rule(f"it must be a mapping with the keys {listed(cls.model_fields)}")
        for key in data:
            if key not in cls.model_fields:
                raise PydanticCustomError(
                    "unknown_key", "unknown key", {"key": key, "known": tuple(cls.model_fields)}
                )
        for name, info in cls.model_fields.items():
            if info.is_required() and name not in data:
                raise PydanticCustomError("missing_key", "missing", {"key": name, "example": _example(info)})
        return data


def _example(info: FieldInfo) -> str:
    return str(info.examples[0]) if info.examples else "value"


def broken_rule(text: str, key: str | None = None) -> PydanticCustomError:
    """An error that reads "<key> is <value>; <text>"; `key` names a field of the model in hand."""
    return PydanticCustomError("rule", "{text}", {"text": text, "key": key})


def listed(names: Iterable[object]) -> str:
    return ", ".join(str(name) for name in names)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like `name`, letter case aside, or None where none is alike."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def one_of(name: object, known: Iterable[str]) -> str:
    """The rule "must be one of ...", with the nearest of them first where there is one."""
    names = list(known)
    guess = nearest(name, names) if isinstance(name, str) else None
    hint = f"did you mean {guess}? " if guess else ""
    return f"{hint}it must be one of: {listed(names)}"


def dotted_keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every key a model and the models inside it have, in full."""
    keys = []
    for name, info in model.model_fields.items():
        keys.append(f"{prefix}{name}")
        for inner in _models_in(info.annotation, info.metadata):
            keys += dotted_keys(inner, f"{prefix}{name}.")
    return list(dict.fromkeys(keys))


def _models_in(annotation: object, metadata: Iterable[object] = ()) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], source: Source) -> Model:
    """The source's data as `model`; SuiteError lists every mistake, one a line."""
    try:
        return model.model_validate(source.data)
    except ValidationError as error:
        known = dotted_keys(model)
        lines = [_explain(details, source, known) for details in error.errors(include_url=False)]
        raise SuiteError("\n".join(dict.fromkeys(lines))) from None


def _explain(details: ErrorDetails, source: Source, known: list[str]) -> str:
    path = _written_path(details["loc"], source)
    context: dict[str, Any] = details.get("ctx", {})
    if details["type"] == "unknown_key":
        return _unknown_key((*path, str(context["key"])), context["known"], source, known)
    if details["type"] == "missing_key":
        return _missing_key((*path, context["key"]), context["example"], source)
    if context.get("key") is not None:
        path = (*path, context["key"])
    rule = _RULES.get(details["type"], _pydantic_rule)(details["input"], context | {"msg": details["msg"]})
    return value_error(source, path, rule)


def value_error(source: Source, path: KeyPath, rule: str) -> str:
    """ "<place>: <key> is <value>; <rule>" """
    at = source.place(path).text
    if not source.has(path):
        return f"{at}: {dotted(path)} is not given; {rule}"
    name = dotted(path) or "the file"
    return f"{at}: {name} is {show(source.get(path))}; {rule}"


def _written_path(location: tuple[str | int, ...], source: Source) -> KeyPath:
    """pydantic's location without its union labels, cut back to what the user wrote.

    A number that stands for {fixed: number} has an error at `.fixed`, a key its author never saw.
    """
    path = tuple(part for part in location if not str(part).startswith(TAG_OPEN))
    while path and not source.has(path):
        path = path[:-1]
    return path


def _unknown_key(path: KeyPath, siblings: Iterable[str], source: Source, known: list[str]) -> str:
    name = str(path[-1])
    siblings = list(siblings)
    guess = nearest(name, siblings)
    if guess is not None:
        hint = f"did you mean {dotted((*path[:-1], guess))}?"
    else:
        elsewhere = [key for key in known if key.rpartition(".")[2] == name]
        is_of_another_kind = dotted(path) in elsewhere  # it fits here, with other keys around it
        hint = f"did you mean {elsewhere[0]}?" if elsewhere and not is_of_another_kind else "remove it."
    return (
        f"{source.place(path).text}: unknown key {dotted(path)} (its value is {show(source.get(path))}); "
        f"{hint} Known keys here: {listed(siblings)}"
    )


def _missing_key(path: KeyPath, example: str, source: Source) -> str:
    return f"{source.place(path[:-1]).text}: {dotted(path)} is missing; add `{path[-1]}: {example}`"


def _number_rule(kind: str) -> Callable[[object, Mapping[str, Any]], str]:
    def rule(value: object, context: Mapping[str, Any]) -> str:
        if isinstance(value, bool):
            return f"it must be {kind}, not a truth value"
        if isinstance(value, str) and _is_number(value):
            return f"it must be {kind}: write {value} without quotes"
        return f"it must be {kind}"

    return rule


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _text_rule(value: object, context: Mapping[str, Any]) -> str:
    return "it must be text: put it in quotes" if value is not None else "it must be text: write some"


def _pydantic_rule(value: object, context: Mapping[str, Any]) -> str:
    message = str(context["msg"])
    return f"{message[:1].lower()}{message[1:]}"


def _literal_rule(value: object, context: Mapping[str, Any]) -> str:
    names = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
    return one_of(value, names)


def _limit(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


_RULES: Mapping[str, Callable[[object, Mapping[str, Any]], str]] = {
    "rule": lambda value, context: str(context["text"]),
    "int_type": _number_rule("a whole number"),
    "int_from_float": _number_rule("a whole number"),
    "float_type": _number_rule("a number"),
    "finite_number": lambda value, context: "it must be a finite number",
    "bool_type": lambda value, context: "it must be true or false",
    "string_type": _text_rule,
    "tuple_type": lambda value, context: "it must be a list: write [value, ...]",
    "mapping_type": lambda value, context: "it must be a mapping: write `key: value`",
    "dict_type": lambda value, context: "it must be a mapping: write `key: value`",
    "too_short": lambda value, context: f"it must have at least {context['min_length']} item",
    "too_long": lambda value, context: f"it must have at most {context['max_length']} items",
    "string_too_short": lambda value, context: "it must not be empty",
    "string_too_long": lambda value, context: f"it must have at most {context['max_length']} characters",
    "literal_error": _literal_rule,
    "greater_than": lambda value, context: f"it must be above {context['gt']:g}",
    "greater_than_equal": lambda value, context: f"it must be at least {context['ge']:,.10g}",
    "less_than": lambda value, context: f"it must be below {_limit(context['lt'])}",
    "less_than_equal": lambda value, context: f"it must be at most {context['le']:,.10g}",
}
