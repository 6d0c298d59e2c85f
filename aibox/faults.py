"""How a wrong value is described to the person who wrote it."""

from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ValidationError

from aibox.decide.nearest import did_you_mean

_KINDS: tuple[tuple[type, str], ...] = (
    (bool, "true/false"),
    (str, "text"),
    (int, "a whole number"),
    (float, "a number"),
    (Mapping, "a mapping"),
    (Sequence, "a list"),
)


def shown(value: object) -> str:
    """A value with its kind, cut to a readable length: `'8000' (text)`."""
    if value is None:
        return "nothing"
    try:
        text = repr(value)
    except Exception:  # a foreign object's repr may do anything; it must not hide the fault
        text = "something unprintable"
    text = text if len(text) <= 80 else text[:77] + "..."
    kind = next((words for kind, words in _KINDS if isinstance(value, kind)), type(value).__name__)
    return f"{text} ({kind})"


def faults_of(error: ValidationError, model: type[BaseModel]) -> list[tuple[str, str]]:
    """(key, fault in words) for every error of a pydantic model.

    What is expected of a value stands in the description of its field.
    """
    faults: dict[str, str] = {}
    for one in error.errors(include_url=False):
        place = ".".join(str(step) for step in one["loc"])
        fault = _fault(dict(one), model)
        faults.setdefault(f"{place}\0{fault}", fault)  # a union reports the same value twice
    return [(place.partition("\0")[0], fault) for place, fault in faults.items()]


def _fault(one: Mapping[str, object], model: type[BaseModel]) -> str:
    steps = one["loc"]
    assert isinstance(steps, tuple)
    fields, description = _fields_at(model, steps)
    if one["type"] == "extra_forbidden":
        return "unknown" + did_you_mean(str(steps[-1]), fields)
    if one["type"] == "missing":
        return f"missing; expected {description}"
    found = f"found {shown(one['input'])}"
    if one["type"] == "value_error":
        context = one["ctx"]
        assert isinstance(context, dict)
        return f"{found}; {context['error']}"
    return f"{found}; expected {description}"


def _fields_at(model: type[BaseModel], steps: tuple[object, ...]) -> tuple[list[str], str]:
    """The known names beside the last step, and the deepest description on the way to it."""
    current: type[BaseModel] | None = model
    names = list(model.model_fields)
    description = "a mapping"
    for step in steps:
        if current is not None:
            names = list(current.model_fields)
        field = current.model_fields.get(str(step)) if current is not None else None
        if field is None:
            continue
        description = field.description or description
        current = _model_in(field.annotation)
    return names, description


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The pydantic model inside an annotation such as `Head | None` or `tuple[File, ...]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in getattr(annotation, "__args__", ()):
        found = _model_in(part)
        if found is not None:
            return found
    return None
