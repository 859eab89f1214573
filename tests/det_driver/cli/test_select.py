"""`--filter` and `--sort` of `det list` and `det show`."""

from __future__ import annotations

import pytest

from det_core import DetError
from det_driver.cli._select import select

ROWS = [
    {"trial": 1, "state": "COMPLETED", "net.lr": 0.1, "best": 0.5, "label": ["a", "b"]},
    {"trial": 2, "state": "ERROR", "net.lr": 0.01, "best": None, "label": []},
    {"trial": 10, "state": "COMPLETED", "net.lr": "auto", "best": 0.25, "label": ["b"]},
]


@pytest.mark.parametrize(
    ("conditions", "trials"),
    [
        (["state=ERROR"], [2]),
        (["state = completed"], [1, 10]),
        (["state!=ERROR", "trial>1"], [10]),
        (["lr<0.05"], [2]),
        (["net.lr>=0.1"], [1]),
        (["lr=auto"], [10]),
        (["lr~AUT"], [10]),
        (["best<=0.5"], [1, 10]),
        (["best!=0.5"], [2, 10]),
        (["label=a"], [1]),
        (["label!=a"], [2, 10]),
        ([], [1, 2, 10]),
    ],
)
def test_rows_are_those_that_satisfy_all_conditions(conditions, trials):
    assert [row["trial"] for row in select(ROWS, conditions, None, None)] == trials


@pytest.mark.parametrize(
    ("sort", "trials"),
    [("best", [10, 1, 2]), ("-best", [1, 10, 2]), ("lr", [2, 1, 10]), ("-trial", [10, 2, 1])],
)
def test_rows_are_sorted_by_a_column_and_missing_values_are_last(sort, trials):
    assert [row["trial"] for row in select(ROWS, [], sort, None)] == trials
    assert [row["trial"] for row in select(ROWS, [], sort, 1)] == trials[:1]


@pytest.mark.parametrize(
    ("conditions", "sort", "message"),
    [
        (["stat=ERROR"], None, "there is no column 'stat'; did you mean 'state'?"),
        ([], "bset", "there is no column 'bset'; did you mean 'best'?"),
        (
            ["state"],
            None,
            (
                "--filter is 'state'; give a column, one of = != < <= > >= ~, and a value, such as"
                " state=ERROR"
            ),
        ),
        ([], "xyzzy", "there is no column 'xyzzy'; known: trial, state, net.lr, best, label, lr"),
    ],
)
def test_what_cannot_be_meant_is_a_sentence(conditions, sort, message):
    with pytest.raises(DetError) as refused:
        select(ROWS, conditions, sort, None)
    assert str(refused.value) == message
