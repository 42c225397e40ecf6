"""Documents of twins: merge patches, differences, limits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgehub.twins.document import (
    DEPTH_MAX,
    NAME_BYTES_MAX,
    PATCH_BYTES_MAX,
    SECTION_BYTES_MAX,
    TEXT_BYTES_MAX,
    WHOLE_MAX,
    ClientTwin,
    TwinError,
    check_patch,
    difference,
    merged,
    parse_patch,
    piece_of,
    size_of,
)

BAD_REQUEST, TOO_LARGE = 400, 413

names = st.sampled_from(["a", "b", "é", "a-b"])
leaves = st.sampled_from([True, False, -3, 0, 1, 7, 0.5, 1.0, "", "x", "yé"])
arrays = st.lists(leaves, max_size=2)


def objects(extra: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw objects three levels deep of leaves, arrays and whatever is `extra`."""
    members = leaves | arrays | extra
    inner = st.dictionaries(names, members, max_size=2)
    middle = st.dictionaries(names, members | inner, max_size=2)
    return st.dictionaries(names, members | middle, max_size=3)


sections = objects(st.nothing())
patches = objects(st.none())


def oracle(target: Any, patch: Any) -> Any:
    """Merge as the pseudo code of RFC 7396 has it."""
    if not isinstance(patch, dict):
        return patch
    if not isinstance(target, dict):
        target = {}
    target = dict(target)
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = oracle(target.get(name), value)
    return target


def text_of(value: Any) -> str:
    """Write a value so that 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)


def has_null(value: Any) -> bool:
    """Return whether a null is anywhere in a value."""
    if isinstance(value, dict):
        return any(map(has_null, value.values()))
    return value is None


@given(sections, patches)
def test_a_merge_is_that_of_the_rfc(section: dict[str, Any], patch: dict[str, Any]) -> None:
    """The outcome is what RFC 7396 says, without a null, and the section is unchanged."""
    before = text_of(section)
    outcome = merged(section, patch)
    assert text_of(outcome) == text_of(oracle(section, patch))
    assert text_of(section) == before
    assert not has_null(outcome)


@given(sections, sections)
def test_a_difference_leads_from_one_to_the_other(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    """Merged into the first, the difference makes the second; of equals it is empty."""
    assert text_of(merged(before, difference(before, after))) == text_of(after)
    assert difference(after, after) == {}


@given(sections, st.lists(patches, max_size=3))
def test_what_is_unsent_brings_a_peer_up_to_date(
    first: dict[str, Any], reports: list[dict[str, Any]]
) -> None:
    """However often a client reports meanwhile, one patch makes the peer's copy equal."""
    twin = ClientTwin(reported=first)
    for patch in reports:
        twin = twin.report(patch)
    assert text_of(merged(first, twin.unsent())) == text_of(twin.reported)
    sent = twin.sent(twin.reported, 7)
    assert (sent.synced, sent.peer_versions) == (None, "1,7")
    assert sent.unsent() == {}
    assert twin.reported_version == 1 + len(reports)


@given(sections, patches, st.integers(1, 30))
def test_pieces_of_a_patch_make_the_patch(
    section: dict[str, Any], patch: dict[str, Any], bytes_max: int
) -> None:
    """Merged one by one they make what the whole makes; each keeps its size if it can."""
    wanted = merged(section, patch)
    present = section
    for _ in range(100):
        left = difference(present, wanted)
        if not left:
            break
        piece = piece_of(left, bytes_max)
        assert piece
        assert size_of(piece) <= bytes_max or leaves_of(piece) == 1
        present = merged(present, piece)
    assert text_of(present) == text_of(wanted)


def leaves_of(value: Any) -> int:
    """Count what is not an object with members."""
    if isinstance(value, dict) and value:
        return sum(map(leaves_of, value.values()))
    return 1


@given(sections, sections, sections, patches)
def test_a_stored_twin_is_the_same_again(
    desired: dict[str, Any], reported: dict[str, Any], tags: dict[str, Any], patch: dict[str, Any]
) -> None:
    """Nothing is lost on the way through the table."""
    twin = ClientTwin(desired=desired, desired_version=7, reported=reported, tags=tags).report(
        patch
    )
    assert text_of(vars_of(ClientTwin.restored(twin.stored()))) == text_of(vars_of(twin))


def vars_of(twin: ClientTwin) -> dict[str, Any]:
    """Return the members of a twin."""
    return {name: getattr(twin, name) for name in ClientTwin.__slots__}


def test_a_client_sees_both_sections_with_versions_and_no_tags() -> None:
    """The document of a client is that of IoT Hub."""
    twin = ClientTwin(desired={"a": 1}, reported={"b": {"c": "x"}}, tags={"secret": 1}).desire(
        {"a": 2}
    )
    assert json.loads(twin.for_client()) == {
        "desired": {"a": 2, "$version": 2},
        "reported": {"b": {"c": "x"}, "$version": 1},
    }


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_a_patch_or_refused(text: bytes) -> None:
    """Junk ends in a refusal with a status, never in another error."""
    try:
        outcome: Any = parse_patch(text)
    except TwinError as error:
        outcome = error.status
    assert isinstance(outcome, dict) or outcome == BAD_REQUEST


def nested(levels: int) -> dict[str, Any]:
    """Return an object with so many objects inside of one another below it."""
    value: dict[str, Any] = {"property": "value"}
    for _ in range(levels):
        value = {"one": value}
    return value


@pytest.mark.parametrize(
    "patch",
    [
        nested(DEPTH_MAX),
        {"n" * NAME_BYTES_MAX: 1},
        {"text": "é" * (TEXT_BYTES_MAX // 2)},
        {"whole": WHOLE_MAX, "least": -WHOLE_MAX, "real": 1e300},
        {"gone": None, "in": {"gone": None}, "array": [1, "x", {"y": [True]}]},
        {},
    ],
)
def test_what_is_within_the_limits_is_taken(patch: dict[str, Any]) -> None:
    """Each limit is inclusive."""
    assert check_patch(patch) is patch
    assert parse_patch(json.dumps(patch).encode()) == patch


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (nested(DEPTH_MAX + 1), "deeper"),
        ({"a": [[[[[[[[[[[1]]]]]]]]]]]}, "deeper"),
        ({"n" * (NAME_BYTES_MAX + 1): 1}, "name"),
        ({"": 1}, "name"),
        ({"text": "é" * (TEXT_BYTES_MAX // 2) + "x"}, "text of more"),
        ({"whole": WHOLE_MAX + 1}, "number"),
        ({"array": [None]}, "null"),
        ({"array": [{"deep": None}]}, "null"),
        ({"half": "\ud800"}, "surrogate"),
        *[({"outer": {f"a{sign}b": 1}}, "'outer'") for sign in " .$#\t\x7f\x85"],
        ({"$version": 3}, "in a name"),
        ([], "object"),
        ("text", "object"),
        (None, "object"),
    ],
)
def test_what_breaks_a_limit_is_refused_with_its_place(patch: Any, said: str) -> None:
    """The reason is short and names what is wrong."""
    with pytest.raises(TwinError, match=said) as caught:
        check_patch(patch)
    assert caught.value.status == BAD_REQUEST
    assert len(str(caught.value)) < 200


def test_a_text_that_is_far_too_long_is_not_parsed() -> None:
    """It is refused as too large, whatever it holds."""
    with pytest.raises(TwinError) as caught:
        parse_patch(b"[" * (PATCH_BYTES_MAX + 1))
    assert caught.value.status == TOO_LARGE


def test_sections_have_a_limit_of_their_size() -> None:
    """A section may reach its limit and not pass it; the twin stays as it was."""
    piece = "x" * TEXT_BYTES_MAX
    full = {str(number): piece[:-1] for number in range(8)}
    assert size_of(full) == SECTION_BYTES_MAX
    twin = ClientTwin().report(full).desire(full)
    for change in (twin.report, twin.desire):
        with pytest.raises(TwinError, match="bytes") as caught:
            change({"8": True})
        assert caught.value.status == TOO_LARGE
    with pytest.raises(TwinError, match="tags"):
        twin.tag(full)
    assert twin.report({"7": None}).reported_version == twin.reported_version + 1


@pytest.mark.parametrize(
    ("value", "size"),
    [({"ab": "é"}, 4), ({"a": 1}, 9), ({"a": 0.5}, 9), ({"a": True}, 5), ({"a": [1, "x"]}, 10)],
)
def test_sizes_are_counted_as_iot_hub_does(value: Any, size: int) -> None:
    """Names and texts by their bytes, numbers 8, flags 4."""
    assert size_of(value) == size
