"""Every mistake in a space is one line: where, what is wrong, and the way out."""

from __future__ import annotations

import pytest

from det_core.errors import ConfigError
from det_driver.config import load
from det_driver.space import Limits

BEFORE = """\
entrypoint: model_def:Trial
searcher: {name: random, metric: loss, max_trials: 4, max_length: 1}
hyperparameters:
  optimizer: {type: categorical, vals: [sgd, adam]}
  lr: {type: log, minval: -5, maxval: 0}
  hidden: {type: int, minval: 8, maxval: 512, log: true}
  net: {kind: {type: categorical, vals: [mlp, cnn]}}
"""
DASHED = """\
  weight-decay: {type: double, minval: 0, maxval: 1}
  2nd-rate: {type: double, minval: 0, maxval: 1}
"""
CONDITIONED = BEFORE + "  momentum: {type: double, minval: 0, maxval: 1, when: WHEN}\n"
CONSTRAINED = BEFORE.replace("max_length: 1", "max_length: 1, constraints: [TEXT]")
WHEN = {
    "{optimiser: sgd}": (
        "8:68: hyperparameters.momentum.when names 'optimiser', and there is no such"
        " hyperparameter; did you mean 'optimizer'?"
    ),
    "{kind: mlp}": (
        "8:63: hyperparameters.momentum.when names 'kind', and there is no such hyperparameter; did"
        " you mean 'net.kind'?"
    ),
    "{optimizer: sdg}": (
        "8:68: hyperparameters.momentum.when.optimizer is 'sdg', which optimizer never is; did you"
        " mean 'sgd'?"
    ),
    "{optimizer: [sgd, 3]}": (
        "8:68: hyperparameters.momentum.when.optimizer is 3, which optimizer never is; it takes"
        " 'sgd', 'adam'"
    ),
    "{hidden: 1000}": (
        "8:65: hyperparameters.momentum.when.hidden is 1000, which hidden never is; it takes whole"
        " numbers from 8 to 512"
    ),
    "{optimizer: []}": (
        "8:68: hyperparameters.momentum.when.optimizer is an empty list; give the values that it"
        " must have"
    ),
    "{lr: 0.1}": (
        "8:61: hyperparameters.momentum.when names 'lr', a log, which seldom has exactly one value;"
        " name a categorical, an int or a constant"
    ),
    "{momentum: 0.5}": (
        "8:67: hyperparameters.momentum.when names the hyperparameter itself; name another one"
    ),
    "sgd": "8:56: hyperparameters.momentum.when is 'sgd'; give a map such as {optimizer: sgd}",
}
CONSTRAINTS = {
    "'hidden <'": (
        "searcher.constraints[0] is 'hidden <': it cannot be read (invalid syntax); give a"
        " condition such as hidden * layers <= 1024"
    ),
    "hidden = 8": (
        "searcher.constraints[0] is 'hidden = 8': it cannot be read at column 8 (invalid syntax);"
        " compare with =="
    ),
    "hiden < 3": (
        "searcher.constraints[0] is 'hiden < 3', and there is no hyperparameter 'hiden'; did you"
        " mean 'hidden'?"
    ),
    "'sqr(lr) > 1'": (
        "searcher.constraints[0] is 'sqr(lr) > 1': 'sqr' is no function here; did you mean 'sqrt'?"
    ),
    "lr.real > 0": (
        "searcher.constraints[0] is 'lr.real > 0', and there is no hyperparameter 'lr.real'; known:"
        " hidden, lr, net.kind, optimizer"
    ),
    "weight-decay < 3": (
        "searcher.constraints[0] is 'weight-decay < 3', and there is no hyperparameter 'decay';"
        " write `weight-decay`, in backticks"
    ),
    "2nd-rate < 3": (
        "searcher.constraints[0] is '2nd-rate < 3': it cannot be read at column 1 (invalid decimal"
        " literal); give a condition such as hidden * layers <= 1024; write `2nd-rate`, in"
        " backticks"
    ),
    "'`weight-decay < 3'": (
        "searcher.constraints[0] is '`weight-decay < 3': a name in backticks ends with a second"
        " one; write `weight-decay`"
    ),
    "3 < 4": (
        "searcher.constraints[0] is '3 < 4', which names no hyperparameter; name those that it"
        " concerns"
    ),
    "hidden + 1": (
        "searcher.constraints[0] is 'hidden + 1': it gives 47, neither true nor false; compare it"
        " with something; give a condition such as hidden * layers <= 1024"
    ),
    "optimizer < 3": (
        "searcher.constraints[0] is 'optimizer < 3': '<' not supported between instances of 'str'"
        " and 'int'; give a condition such as hidden * layers <= 1024"
    ),
    "hidden < 8": (
        "searcher.constraints[0] is 'hidden < 8', which none of 2,000 samples meets; widen the"
        " ranges, or correct it"
    ),
}
RANGES = {
    "{type: int, minval: 0, maxval: 9, log: true}": (
        "8:26: hyperparameters.x.minval is 0, which has no logarithm; give 1 or more, or leave"
        " log out"
    ),
    "{type: int, minval: 1, maxval: 9, log: true, step: 2}": (
        "8:57: hyperparameters.x has both log and step; give one of them"
    ),
    "{type: double, minval: 0, maxval: 1, step: 2}": (
        "8:49: hyperparameters.x.step is 2.0, minval is 0.0 and maxval is 1.0; give a step that"
        " fits between them"
    ),
    "{type: double, minval: 0, maxval: 1, step: 0}": (
        "8:49: hyperparameters.x.step is 0; give a number above 0"
    ),
    "{type: int, minval: 0, maxval: 9, step: 0.5}": (
        "8:46: hyperparameters.x.step is 0.5; give a whole number, 1 or more"
    ),
    "{type: categorical, vals: [1], orderd: true}": (
        "8:37: unknown key 'hyperparameters.x.orderd'; did you mean 'ordered'?"
    ),
}


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        load(text, name="space.yaml")
    return refused.value.problems


@pytest.mark.parametrize("when", WHEN)
def test_a_condition_that_cannot_be_meant(when: str) -> None:
    assert problems(CONDITIONED.replace("WHEN", when)) == (f"space.yaml:{WHEN[when]}",)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_a_constraint_that_cannot_be_meant(constraint: str) -> None:
    text = CONSTRAINED.replace("TEXT", constraint) + (DASHED if "-" in constraint else "")
    assert problems(text) == (f"space.yaml:2:84: {CONSTRAINTS[constraint]}",)


def test_a_constraint_names_a_dashed_name_in_backticks() -> None:
    text = CONSTRAINED.replace("TEXT", "'`weight-decay` < `2nd-rate`'") + DASHED
    config = load(text, name="space.yaml").config
    assert config.searcher is not None
    limits = Limits(config.hyperparameters, config.searcher.constraints)
    assert limits.allow({"weight-decay": 0.2, "2nd-rate": 0.3})
    assert not limits.allow({"weight-decay": 0.3, "2nd-rate": 0.2})


@pytest.mark.parametrize("hp", RANGES)
def test_a_range_that_cannot_be_meant(hp: str) -> None:
    assert problems(f"{BEFORE}  x: {hp}\n") == (f"space.yaml:{RANGES[hp]}",)


def test_conditions_in_a_circle() -> None:
    text = (
        BEFORE
        + "  a: {type: categorical, vals: [1, 2], when: {b: 3}}\n  b: {type: categorical, vals: [3,"
        " 4], when: {a: 1}}\n"
    )
    (problem,) = problems(text)
    assert "goes round in a circle: " in problem


def test_constraints_that_cannot_be_met_together() -> None:
    (problem,) = problems(CONSTRAINED.replace("TEXT", "hidden < 20, hidden > 30"))
    assert (
        problem
        == "space.yaml:2:83: searcher.constraints are met together by none of 2,000 samples; widen"
        " the ranges, or correct them"
    )


def test_nothing_is_said_of_a_condition_on_what_is_faulty_itself() -> None:
    text = CONDITIONED.replace("WHEN", "{optimizer: sgd}").replace("vals: [sgd, adam]", "vals: []")
    assert problems(text) == (
        "space.yaml:4:40: hyperparameters.optimizer.vals is an empty list; give at least 1",
    )
