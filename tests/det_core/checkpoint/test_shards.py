"""What the ranks' directories and metadata make together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from det_core.checkpoint._shards import directory_id, merge_metadata, plan_shards, sources
from det_core.checkpoint.manifest import FileEntry
from det_core.errors import CheckpointError

A, B = FileEntry(1, "a"), FileEntry(1, "b")


def test_one_directory_has_one_id(tmp_path: Path) -> None:
    """By whatever name it is reached."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    assert directory_id(tmp_path / "one") == directory_id(tmp_path / "link")
    assert directory_id(tmp_path / "one") != directory_id(tmp_path / "two")


@pytest.mark.parametrize(
    ("directories", "selecting", "brings"),
    [
        (["x", "y"], [False, False], [True, True]),
        (["x", "x", "y", "x"], [False] * 4, [True, False, True, False]),
        ([None, "x", "x"], [False] * 3, [False, True, False]),
        (["x", "x", "x"], [False, True, False], [True, True, False]),
        (["x", "x", "x"], [True, False, False], [True, True, False]),
    ],
)
def test_of_those_that_share_a_directory_the_lowest_brings_it(
    directories: list[str | None], selecting: list[bool], brings: list[bool]
) -> None:
    """Those that select bring what they selected."""
    assert sources(directories, selecting) == brings


def test_without_any_directory_there_is_no_checkpoint() -> None:
    with pytest.raises(
        CheckpointError, match="no rank gave a directory to checkpoint; at least one must"
    ):
        sources([None, None], [False, False])


def test_a_selector_needs_a_directory() -> None:
    with pytest.raises(
        CheckpointError, match="rank 1 gave a selector without a directory; give it one"
    ):
        sources(["x", None], [False, True])


def test_each_rank_uploads_its_own_files() -> None:
    """Directories may be common to all."""
    assert plan_shards([{"d/0": A, "x": A}, {"d/1": B}, {}]) == [["d/0", "x"], ["d/1"], []]


def test_a_file_that_is_the_same_everywhere_is_uploaded_once() -> None:
    """By the lowest rank that has it."""
    assert plan_shards([{}, {"same": A, "one": B}, {"same": A, "two": B}]) == [
        [],
        ["same", "one"],
        ["two"],
    ]


def test_files_that_differ_conflict() -> None:
    """All conflicts are told, with the ranks that have each."""
    with pytest.raises(CheckpointError) as raised:
        plan_shards(
            [{"x": A, "y": A, "same": A}, {"x": B, "same": A}, {"x": A, "y": FileEntry(2, "a")}]
        )
    assert (
        str(raised.value)
        == "the ranks' files conflict: x differs between ranks [0, 1, 2]; y differs between ranks"
        " [0, 2]; give each rank names of its own"
    )


def test_a_file_and_a_directory_of_one_name_conflict() -> None:
    """At any depth."""
    with pytest.raises(
        CheckpointError, match=r"a/b is a file on ranks \[0\] and a directory on ranks \[1, 2\]"
    ):
        plan_shards([{"a/b": A}, {"a/b/c/d": A}, {"a/b/e": A}])


names = st.sampled_from(["a", "b", "a/x", "a/y", "b/x/z"])
claims = st.lists(
    st.dictionaries(names, st.sampled_from([A, B]), max_size=4), min_size=1, max_size=4
)


@given(claims)
def test_every_file_is_uploaded_once_or_the_ranks_conflict(
    claims: list[dict[str, FileEntry]],
) -> None:
    """Whoever uploads it has it."""
    together: dict[str, set[str]] = {}
    for files in claims:
        for name, entry in files.items():
            together.setdefault(name, set()).add(entry.digest)
    differ = any(len(digests) > 1 for digests in together.values())
    nested = any(other.startswith(f"{name}/") for name in together for other in together)
    if differ or nested:
        with pytest.raises(CheckpointError):
            plan_shards(claims)
        return
    plan = plan_shards(claims)
    assert sorted(name for shard in plan for name in shard) == sorted(together)
    assert all(name in claims[rank] for rank, shard in enumerate(plan) for name in shard)


@pytest.mark.parametrize(
    ("parts", "merged"),
    [
        ([], {}),
        ([None, {"a": 1}, None], {"a": 1}),
        ([{"a": 1}, {"b": 2}], {"a": 1, "b": 2}),
        ([{"a": 1}, {"a": 1}], {"a": 1}),
        ([{"a": {"b": 1}}, {"a": {"c": 2}}], {"a": {"b": 1, "c": 2}}),
        ([{"a": {}}, {"a": {"c": 2}}], {"a": {"c": 2}}),
        ([{"a": [1, 2]}, {"a": [1, 2]}], {"a": [1, 2]}),
        ([{"a": None}, {"a": None}], {"a": None}),
    ],
)
def test_metadata_merges(parts: list[dict[str, Any] | None], merged: dict[str, Any]) -> None:
    assert merge_metadata(parts) == merged


def test_ranks_may_agree_on_nan() -> None:
    """It equals nothing, not even itself, but both say the same."""
    assert merge_metadata([{"a": float("nan")}, {"a": float("nan")}])["a"] != 0


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{"a": 1}, {"a": 2}], "metadata conflicts at a: rank 1 gives 2, a rank before it 1;"),
        (
            [{"a": {"b": 1}}, {}, {"a": {"b": 2}}],
            "metadata conflicts at a/b: rank 2 gives 2, a rank before it 1;",
        ),
        (
            [{"a": {"b": 1}}, {"a": 1}],
            "metadata conflicts at a: rank 1 gives 1, a rank before it {'b': 1};",
        ),
        (
            [{"a": 1}, {"a": {"b": 1}}],
            "metadata conflicts at a: rank 1 gives {'b': 1}, a rank before it 1;",
        ),
        (
            [{"a": {}}, {"a": None}],
            "metadata conflicts at a: rank 1 gives None, a rank before it {};",
        ),
        (
            [{"a": None}, {"a": 1}],
            "metadata conflicts at a: rank 1 gives 1, a rank before it None;",
        ),
    ],
)
def test_metadata_conflicts_name_the_key(parts: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        merge_metadata(parts)
    assert str(raised.value) == f"{message} give both the same, or a key of their own"


keys = st.sampled_from(["a", "b", "c"])
trees = st.dictionaries(
    keys, st.recursive(st.integers(0, 1), lambda inner: st.dictionaries(keys, inner, max_size=2))
)


@given(trees, trees)
def test_a_merge_holds_every_leaf_of_both_and_changes_neither(
    one: dict[str, Any], two: dict[str, Any]
) -> None:
    """Or there is a conflict, whichever comes first."""
    before = (repr(one), repr(two))
    try:
        merged = merge_metadata([one, two])
    except CheckpointError:
        with pytest.raises(CheckpointError):
            merge_metadata([two, one])
    else:
        assert _leaves(merged) == _leaves(one) | _leaves(two)
        assert merge_metadata([two, one]) == merged
        assert merge_metadata([merged, one, two]) == merged
    assert (repr(one), repr(two)) == before


def _leaves(tree: dict[str, Any], path: tuple[str, ...] = ()) -> set[tuple[tuple[str, ...], int]]:
    found: set[tuple[tuple[str, ...], int]] = set()
    for key, value in tree.items():
        found |= (
            _leaves(value, (*path, key)) if isinstance(value, dict) else {((*path, key), value)}
        )
    return found


@given(trees)
def test_merging_a_tree_with_itself_or_nothing_changes_nothing(tree: dict[str, Any]) -> None:
    assert (
        merge_metadata([tree])
        == merge_metadata([tree, tree])
        == merge_metadata([{}, tree, None])
        == tree
    )
