"""Annotations of a simulated lab. CML keeps one smart annotation per distinct node tag and nobody else makes them."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from lcm.sim.cml.parts import Lab
from lcm.sim.cml.refusals import Refusal, bad

Json = dict[str, Any]

_COLORS: Final = ("#FFD10080", "#00A2FF80", "#61D83680", "#FF644E80", "#B36AE280", "#16E7CF80")
_SMART: Final[Json] = {
    "is_on": True,
    "padding": 35,
    "tag_offset_x": 0,
    "tag_offset_y": 0,
    "tag_size": 14,
    "group_distance": 400,
    "thickness": 1,
    "border_style": "",
    "border_color": "#00000080",
    "z_index": 1,
}
_SMART_KEYS: Final = frozenset({*_SMART, "tag", "label", "fill_color"})
_TYPES: Final = ("text", "rectangle", "ellipse", "line")


def smart(ref: str, tag: str, number: int, given: Json | None = None) -> Json:
    """Make the smart annotation of a tag, as a file describes it or by default."""
    known = {key: value for key, value in (given or {}).items() if key in _SMART_KEYS}
    default = _SMART | {"label": tag, "fill_color": _COLORS[number % len(_COLORS)]}
    return {"id": ref} | default | known | {"tag": tag}


def tidy_tags(lab: Lab, new_id: Callable[[], str], given: Iterable[Json] = ()) -> None:
    """Make the smart annotations fit the nodes' tags: new tags get one, tags that are gone lose theirs."""
    tags = dict.fromkeys(tag for node in lab.nodes.values() for tag in node.spec.tags if tag)
    kept = {one["tag"]: one for one in lab.smart_annotations.values() if one["tag"] in tags}
    drawn = {one.get("tag"): one for one in given}
    for number, tag in enumerate(tags):
        if tag not in kept:
            kept[tag] = smart(new_id(), tag, number, drawn.get(tag))
    lab.smart_annotations = {one["id"]: one for one in kept.values()}


def change_smart(lab: Lab, ref: str, change: Json) -> Json:
    """Change how a smart annotation looks."""
    unknown = set(change) - _SMART_KEYS - {"id"}
    if unknown or change.get("tag", lab.smart_annotations[ref]["tag"]) != lab.smart_annotations[ref]["tag"]:
        raise bad(f"Cannot change {', '.join(sorted(unknown)) or 'tag'} of a smart annotation.")
    lab.smart_annotations[ref] |= change | {"id": ref}
    return lab.smart_annotations[ref]


def check(annotation: Json) -> Json:
    """Refuse an annotation of an unknown type."""
    if annotation.get("type") not in _TYPES:
        raise bad("An annotation's type is text, rectangle, ellipse or line.")
    return annotation


def annotation_of(lab: Lab, ref: str) -> Json:
    """Find an annotation or refuse."""
    if ref not in lab.annotations:
        raise Refusal(404, f"Annotation not found: {ref}")
    return lab.annotations[ref]


def smart_of(lab: Lab, ref: str) -> Json:
    """Find a smart annotation or refuse."""
    if ref not in lab.smart_annotations:
        raise Refusal(404, f"Smart annotation not found: {ref}")
    return lab.smart_annotations[ref]
