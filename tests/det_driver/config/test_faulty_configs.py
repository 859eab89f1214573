"""Every mistake in a configuration is one line: where, what is wrong, and the way out."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from det_core.errors import ConfigError
from det_driver.config import load

SOUND = """\
entrypoint: model_def:Trial
searcher:
  name: single
  metric: loss
  max_length: 100
"""
CLASS = "entrypoint: model_def:Trial\n"
SEARCH = (
    CLASS
    + "searcher: {name: random, metric: loss, max_length: 1, max_trials: 4}\nhyperparameters:\n"
)
SEARCHERS = (
    "adaptive_asha, async_halving, auto, combined, custom, grid, hyperband, pbt, random, single"
)


class Faulty(NamedTuple):
    """A configuration that must be refused, and the lines that say why for `const.yaml`."""

    title: str
    text: str
    problems: tuple[str, ...]


MANY = "{type: int, minval: 0, maxval: 99, count: 100}"

FAULTY = (
    Faulty(
        "a grid that nobody lives to see the end of",
        CLASS
        + "searcher: {name: grid, metric: loss, max_length: 1}\nhyperparameters:\n"
        + "".join(f"  a{i}: {MANY}\n" for i in range(12)),
        (
            (
                "const.yaml:2:18: searcher.name is grid, of about 10^24 trials; 1,000,000 at most:"
                " lower a count, or let random draw some of them (max_trials)"
            ),
        ),
    ),
    Faulty(
        "a grid that takes too long to look through",
        CLASS
        + "searcher: {name: grid, metric: loss, max_length: 1}\n"
        + f"hyperparameters: {{a: {MANY}, b: {MANY}, deep: {{c: {MANY}, d: {{type: categorical,"
        " vals: [1, 2]}}}\n",
        (
            (
                "const.yaml:2:18: searcher.name is grid, of 2,000,000 trials; 1,000,000 at most:"
                " lower a count, or let random draw some of them (max_trials)"
            ),
        ),
    ),
    Faulty(
        "a grid of a sampler that nobody lives to see the end of",
        CLASS
        + "searcher: {sampler: grid, schedule: full, metric: loss, max_length: 1}\n"
        + "hyperparameters:\n"
        + "".join(f"  a{i}: {MANY}\n" for i in range(12)),
        (
            (
                "const.yaml:2:21: searcher.sampler is grid, of about 10^24 trials; 1,000,000 at"
                " most: lower a count, or let random draw some of them (max_trials)"
            ),
        ),
    ),
    Faulty(
        "a grid of a sampler without a count",
        CLASS
        + "searcher: {sampler: grid, schedule: full, metric: loss, max_length: 1}\n"
        + "hyperparameters: {a: {type: double, minval: 0, maxval: 1}}\n",
        (
            (
                "const.yaml:3:19: hyperparameters.a.count is missing; a grid needs to know how many"
                " values to take"
            ),
        ),
    ),
    *(
        Faulty(
            f"more than can be built: {searcher}",
            CLASS + f"searcher:\n  {{metric: loss, {searcher}}}\n",
            (said,),
        )
        for searcher, said in (
            (
                "name: random, max_length: 1, max_trials: 1000001",
                "const.yaml:3:59: searcher.max_trials is 1,000,001; 1,000,000 at most",
            ),
            (
                "name: auto, max_length: 1, max_trials: 1000000000000",
                "const.yaml:3:57: searcher.max_trials is 1,000,000,000,000; 1,000,000 at most",
            ),
            (
                "name: async_halving, max_length: 1, max_trials: 9, num_rungs: 1000000000",
                "const.yaml:3:80: searcher.num_rungs is 1,000,000,000; 1,000 at most",
            ),
            (
                "name: adaptive_asha, max_length: 1, max_trials: 9, bracket_rungs: [3, 10000000]",
                "const.yaml:3:84: searcher.bracket_rungs is 10,000,000; 1,000 at most",
            ),
            (
                "name: hyperband, max_length: 1000000, divisor: 1.00001",
                "const.yaml:3:65: searcher.divisor is 1.00001, which makes 1,381,557 rungs, 1,000"
                " at most; give a larger divisor",
            ),
            (
                "schedule: hyperband, max_length: 60000000",
                "const.yaml:3:51: searcher.max_length is 60000000 batches, and hyperband begins"
                " with about as many trials, 1,000,000 at most; give it in a larger unit, such as"
                " epochs",
            ),
            (
                "name: pbt, length_per_round: 1, population_size: 1000, num_rounds: 100000000",
                "const.yaml:3:67: searcher.population_size is 1,000 and num_rounds is 100,000,000;"
                " their product is 1,000,000 at most: lower one",
            ),
        )
    ),
    Faulty(
        "a whole number with a fraction's size",
        SOUND.replace("max_length: 100", "max_length: {batches: 9.0e+99}"),
        (
            (
                "const.yaml:5:25: searcher.max_length.batches is 9e+99; give a number that fits in"
                " 64 bits"
            ),
        ),
    ),
    Faulty(
        "bounds whose distance is no number",
        SEARCH + "  a: {type: double, minval: -1.7e+308, maxval: 1.7e+308}\n",
        (
            (
                "const.yaml:4:29: hyperparameters.a.minval is -1.7e+308 and maxval is 1.7e+308, too"
                " far apart for any number; give closer bounds"
            ),
        ),
    ),
    Faulty(
        "ranges without a type in a list",
        SEARCH + "  a: [{minval: 0, maxval: 3}]\n",
        (
            (
                "const.yaml:4:6: hyperparameters.a is a list, one constant, with a range in it;"
                " give each range a name, such as a: {first: {type: ...}, second: {type: ...}}, or"
                " wrap it: {type: const, val: […]}"
            ),
        ),
    ),
    Faulty(
        "a range as one of the choices",
        SEARCH
        + "  net: {a: {type: categorical, vals: [off, {type: int, minval: 0, maxval: 3}]}}\n",
        (
            (
                "const.yaml:4:38: hyperparameters.net.a.vals are constants, with a range in them;"
                " give each range a name of its own, with when: {a: …}, which says for which choice"
                " it is"
            ),
        ),
    ),
    Faulty(
        "a range with a count and without a type",
        SEARCH + "  a: {minval: 0, maxval: 3, count: 2}\n",
        (
            (
                "const.yaml:4:6: hyperparameters.a is a map of the constants minval and maxval and"
                " count; did you mean {type: int, minval: 0, maxval: 3, count: 2}? If not, wrap it:"
                " {type: const, val: {…}}"
            ),
        ),
    ),
    Faulty(
        "hyperband in a unit that is too small",
        CLASS + "searcher:\n  {name: hyperband, metric: loss, max_length: {batches: 60000000}}\n",
        (
            (
                "const.yaml:3:47: searcher.max_length is 60000000 batches, and hyperband begins"
                " with about as many trials, 1,000,000 at most; give it in a larger unit, such as"
                " epochs"
            ),
        ),
    ),
    Faulty(
        "bounds that are no finite numbers",
        SEARCH
        + "  a: {type: double, minval: 0, maxval: .inf}\n  b: {type: log, minval: .nan, maxval:"
        " 1}\n",
        (
            "const.yaml:4:40: hyperparameters.a.maxval is inf; give a finite number",
            "const.yaml:5:26: hyperparameters.b.minval is nan; give a finite number",
        ),
    ),
    Faulty(
        "a list of ranges",
        SEARCH
        + "  layers:\n    - {type: int, minval: 1, maxval: 3}\n    - {type: int, minval: 1, maxval:"
        " 3}\n  lr: 0.1\n",
        (
            (
                "const.yaml:5:5: hyperparameters.layers is a list, one constant, with a range in"
                " it; give each range a name, such as layers: {first: {type: ...}, second: {type:"
                " ...}}, or wrap it: {type: const, val: […]}"
            ),
        ),
    ),
    Faulty(
        "a choice deep in a list of a single run",
        SOUND + "hyperparameters: {net: {sizes: [[1, {in: {type: categorical, vals: [1, 2]}}]]}}\n",
        (
            (
                "const.yaml:6:32: hyperparameters.net.sizes is a list, one constant, with a range"
                " in it; give each range a name, such as sizes: {first: {type: ...}, second: {type:"
                " ...}}, or wrap it: {type: const, val: […]}"
            ),
        ),
    ),
    Faulty(
        "a misspelt section",
        CLASS + "hyperparameters: {}\nsercher: {name: single}\n",
        ("const.yaml:3:1: unknown key 'sercher'; did you mean 'searcher'?",),
    ),
    Faulty(
        "a negative length",
        CLASS + "searcher:\n  name: single\n  metric: loss\n  max_length: -5\n",
        ("const.yaml:5:15: searcher.max_length is -5; give a positive number of batches",),
    ),
    Faulty(
        "a length of zero",
        CLASS + "searcher: {name: single, metric: loss, max_length: 0}\n",
        ("const.yaml:2:52: searcher.max_length is 0; give a positive number of batches",),
    ),
    Faulty(
        "a negative number of epochs",
        CLASS + "searcher: {name: single, metric: loss, max_length: {epochs: -1}}\n",
        ("const.yaml:2:61: searcher.max_length.epochs is -1; give a positive number of epochs",),
    ),
    Faulty(
        "a length in two units",
        CLASS + "searcher: {name: single, metric: loss, max_length: {epochs: 1, batches: 2}}\n",
        (
            (
                "const.yaml:2:52: searcher.max_length has epochs and batches; "
                "give exactly one of batches, records or epochs"
            ),
        ),
    ),
    Faulty(
        "a length without a unit",
        CLASS + "searcher: {name: single, metric: loss, max_length: {}}\n",
        (
            (
                "const.yaml:2:52: searcher.max_length has no unit; give exactly one of batches,"
                " records or epochs"
            ),
        ),
    ),
    Faulty(
        "a misspelt unit",
        CLASS + "searcher: {name: single, metric: loss, max_length: {epoch: 1}}\n",
        ("const.yaml:2:53: unknown key 'searcher.max_length.epoch'; did you mean 'epochs'?",),
    ),
    Faulty(
        "a length that is text",
        CLASS + "searcher: {name: single, metric: loss, max_length: ten}\n",
        (
            (
                "const.yaml:2:52: searcher.max_length is 'ten'; "
                "give a number of batches, {batches: n}, {records: n} or {epochs: n}"
            ),
        ),
    ),
    Faulty(
        "a length with a fraction",
        CLASS + "searcher: {name: single, metric: loss, max_length: {epochs: 1.5}}\n",
        ("const.yaml:2:61: searcher.max_length.epochs is 1.5; give a number of epochs",),
    ),
    Faulty(
        "a length that is a list",
        CLASS + "searcher: {name: single, metric: loss, max_length: [1]}\n",
        (
            (
                "const.yaml:2:52: searcher.max_length is a list; "
                "give a number of batches, {batches: n}, {records: n} or {epochs: n}"
            ),
        ),
    ),
    Faulty(
        "a negative period",
        SOUND + "min_validation_period: {batches: -1}\n",
        (
            (
                "const.yaml:6:34: min_validation_period.batches is -1; give a positive number of"
                " batches, or 0 for never"
            ),
        ),
    ),
    Faulty(
        "an empty file",
        "\n",
        (
            (
                "const.yaml: entrypoint is missing; "
                "name your trial class as module:Class, or a command such as python3 train.py"
            ),
            (
                "const.yaml: searcher is missing; "
                "give at least {name: single, metric: validation_loss, max_length: {epochs: 1}}"
            ),
        ),
    ),
    Faulty(
        "a file that is a list",
        "- 1\n- 2\n",
        (
            (
                "const.yaml: the configuration is a list; give a map such as searcher: {name:"
                " single, …}"
            ),
        ),
    ),
    Faulty(
        "a file that is text",
        "hello\n",
        (
            (
                "const.yaml: the configuration is 'hello'; give a map such as searcher: {name:"
                " single, …}"
            ),
        ),
    ),
    Faulty(
        "no metric",
        CLASS + "searcher:\n  name: single\n  max_length: 1\n",
        (
            (
                "const.yaml:2:1: searcher.metric is missing; "
                "name the validation metric that ranks the trials, such as validation_loss"
            ),
        ),
    ),
    Faulty(
        "a metric that is null",
        CLASS + "searcher:\n  name: single\n  metric: null\n  max_length: 1\n",
        (
            (
                "const.yaml:4:11: searcher.metric is missing; "
                "name the validation metric that ranks the trials, such as validation_loss"
            ),
        ),
    ),
    Faulty(
        "no entrypoint",
        "searcher: {name: single, metric: loss, max_length: 1}\n",
        (
            (
                "const.yaml: entrypoint is missing; "
                "name your trial class as module:Class, or a command such as python3 train.py"
            ),
        ),
    ),
    Faulty(
        "an empty entrypoint",
        "entrypoint: ''\nsearcher: {name: single, metric: loss, max_length: 1}\n",
        (
            (
                "const.yaml:1:13: entrypoint is empty; give module:Class, or a command such as"
                " python3 train.py"
            ),
        ),
    ),
    Faulty(
        "an entrypoint that is a map",
        "entrypoint: {module: x}\nsearcher: {name: single, metric: loss, max_length: 1}\n",
        (
            (
                "const.yaml:1:13: entrypoint is a map; "
                "give a trial class as module:Class, or a command such as python3 train.py"
            ),
        ),
    ),
    Faulty(
        "no searcher",
        CLASS,
        (
            (
                "const.yaml: searcher is missing; "
                "give at least {name: single, metric: validation_loss, max_length: {epochs: 1}}"
            ),
        ),
    ),
    Faulty(
        "no length for a trial class",
        CLASS + "searcher:\n  name: single\n  metric: loss\n",
        (
            (
                "const.yaml:2:1: searcher.max_length is missing; say how long model_def:Trial"
                " trains, such as {epochs: 3}"
            ),
        ),
    ),
    Faulty(
        "no length for a nested class",
        "entrypoint: a.b:Outer.Inner\nsearcher: {name: random, metric: loss, max_trials: 3}\n",
        (
            (
                "const.yaml:2:1: searcher.max_length is missing; say how long a.b:Outer.Inner"
                " trains, such as {epochs: 3}"
            ),
        ),
    ),
    Faulty(
        "a searcher without a name",
        CLASS + "searcher: {metric: loss}\n",
        (f"const.yaml:2:1: searcher.name is missing; give one of {SEARCHERS}",),
    ),
    Faulty(
        "an unknown searcher",
        CLASS + "searcher: {name: bayes, metric: loss}\n",
        (f"const.yaml:2:18: searcher.name is 'bayes'; give one of {SEARCHERS}",),
    ),
    Faulty(
        "a misspelt searcher",
        CLASS + "searcher: {name: singel, metric: loss}\n",
        (f"const.yaml:2:18: searcher.name is 'singel'; did you mean 'single'? known: {SEARCHERS}",),
    ),
    Faulty(
        "the searcher sync_halving",
        CLASS + "searcher: {name: sync_halving, metric: loss}\n",
        (
            (
                "const.yaml:2:18: searcher.name is 'sync_halving', which is gone; use"
                " 'async_halving' in its place"
            ),
        ),
    ),
    Faulty(
        "a searcher that is text",
        CLASS + "searcher: single\n",
        (f"const.yaml:2:11: searcher is 'single'; give a map with a name, one of {SEARCHERS}",),
    ),
    Faulty(
        "a searcher's name that is a number",
        CLASS + "searcher: {name: 3}\n",
        (f"const.yaml:2:18: searcher.name is 3; give one of {SEARCHERS}",),
    ),
    Faulty(
        "another searcher's key",
        CLASS + "searcher: {name: single, metric: loss, max_length: 1, num_rungs: 3}\n",
        (
            (
                "const.yaml:2:55: unknown key 'searcher.num_rungs'; known there: constraints,"
                " learn_from, max_epochs_total, max_hours, max_length, metric, smaller_is_better,"
                " source_checkpoint_uuid, source_trial_id, stop_when"
            ),
        ),
    ),
    Faulty(
        "no number of trials",
        CLASS + "searcher: {name: random, metric: loss, max_length: 1}\n",
        ("const.yaml:2:1: searcher.max_trials is missing; give the number of trials to make",),
    ),
    Faulty(
        "zero trials",
        CLASS + "searcher: {name: random, metric: loss, max_length: 1, max_trials: 0}\n",
        ("const.yaml:2:67: searcher.max_trials is 0; give a whole number, 1 or more",),
    ),
    Faulty(
        "a boolean for a number",
        CLASS + "searcher: {name: random, metric: loss, max_length: 1, max_trials: true}\n",
        ("const.yaml:2:67: searcher.max_trials is true; give a whole number, 1 or more",),
    ),
    Faulty(
        "asha without a length",
        CLASS + "searcher: {name: adaptive_asha, metric: loss, max_trials: 4}\n",
        (
            (
                "const.yaml:2:1: searcher.max_length is missing; "
                "give max_length to promote trials, or max_time and time_metric to stop them"
            ),
        ),
    ),
    Faulty(
        "asha of both kinds",
        CLASS
        + "searcher: {name: adaptive_asha, metric: loss, max_trials: 4, max_length: 9, max_time: 9,"
        " time_metric: batches}\n",
        (
            (
                "const.yaml:2:74: searcher has both max_length and max_time or time_metric; "
                "give max_length to promote trials, or max_time and time_metric to stop them"
            ),
        ),
    ),
    Faulty(
        "asha without a time metric",
        CLASS + "searcher: {name: adaptive_asha, metric: loss, max_trials: 4, max_time: 9}\n",
        (
            (
                "const.yaml:2:1: searcher.time_metric is missing; "
                "name the validation metric that counts the time, such as batches"
            ),
        ),
    ),
    Faulty(
        "asha without a time",
        CLASS
        + "searcher: {name: async_halving, metric: loss, max_trials: 4, num_rungs: 2, time_metric:"
        " batches}\n",
        (
            (
                "const.yaml:2:1: searcher.max_time is missing; say how long trials train, in units"
                " of time_metric"
            ),
        ),
    ),
    Faulty(
        "asha that stops and does not",
        CLASS
        + "searcher: {name: adaptive_asha, metric: loss, max_trials: 4, max_time: 9, time_metric:"
        " batches, stop_once: false}\n",
        (
            (
                "const.yaml:2:108: searcher.stop_once is false, but max_time and time_metric stop"
                " trials; leave stop_once out, or give max_length"
            ),
        ),
    ),
    Faulty(
        "a misspelt mode",
        CLASS + "searcher: {name: adaptive_asha, metric: loss, max_trials: 4, max_length: 9, mode:"
        " agressive}\n",
        ("const.yaml:2:83: searcher.mode is 'agressive'; did you mean 'aggressive'?",),
    ),
    Faulty(
        "a divisor of one",
        CLASS
        + "searcher: {name: adaptive_asha, metric: loss, max_trials: 4, max_length: 9, divisor:"
        " 1}\n",
        ("const.yaml:2:86: searcher.divisor is 1; give a number above 1",),
    ),
    Faulty(
        "a bracket without rungs",
        CLASS + "searcher: {name: adaptive_asha, metric: loss, max_trials: 4, max_length: 9,"
        " bracket_rungs: [2, 0]}\n",
        ("const.yaml:2:96: searcher.bracket_rungs[1] is 0; give a whole number, 1 or more",),
    ),
    Faulty(
        "an empty pbt section",
        CLASS + "searcher: {name: pbt, metric: loss}\n",
        (
            (
                "const.yaml:2:1: searcher.population_size is missing; give the number of trials in"
                " a round"
            ),
            (
                "const.yaml:2:1: searcher.length_per_round is missing; give the length of a round,"
                " such as {epochs: 1}"
            ),
            "const.yaml:2:1: searcher.num_rounds is missing; give the number of rounds",
        ),
    ),
    Faulty(
        "too large a fraction",
        CLASS
        + "searcher: {name: pbt, metric: loss, population_size: 4, num_rounds: 2, length_per_round:"
        " 5, replace_function: {truncate_fraction: 0.6}}\n",
        (
            (
                "const.yaml:2:131: searcher.replace_function.truncate_fraction is 0.6; give a"
                " number from 0 to 0.5"
            ),
        ),
    ),
    Faulty(
        "a misspelt searcher with other mistakes",
        CLASS + "searcher: {name: hyperbant, metric: loss, max_lenght: 4, time_metric: [3]}\n",
        (
            (
                "const.yaml:2:18: searcher.name is 'hyperbant'; did you mean 'hyperband'? known:"
                f" {SEARCHERS}"
            ),
            "const.yaml:2:43: unknown key 'searcher.max_lenght'; did you mean 'max_length'?",
            "const.yaml:2:58: unknown key 'searcher.time_metric'; did you mean 'metric'?",
        ),
    ),
    Faulty(
        "hyperband without a length",
        CLASS + "searcher: {name: hyperband, metric: loss}\n",
        (
            (
                "const.yaml:2:1: searcher.max_length is missing; "
                "give the length of the longest trials, such as {epochs: 27}"
            ),
        ),
    ),
    Faulty(
        "a custom searcher without a class",
        CLASS + "searcher: {name: custom, metric: loss, size: 3}\n",
        ("const.yaml:2:1: searcher.entrypoint is missing; name your searcher as module:Class",),
    ),
    Faulty(
        "an old spelling beside the new",
        CLASS + "searcher:\n  name: single\n  metric: loss\n  max_steps: 3\n  max_length: 300\n",
        (
            (
                "const.yaml:5:3: searcher.max_steps is the old spelling of searcher.max_length,"
                " which is there too; keep the latter"
            ),
        ),
    ),
    Faulty(
        "a grid without counts",
        CLASS + "searcher: {name: grid, metric: loss, max_length: 1}\n"
        "hyperparameters:\n"
        "  a: {type: int, minval: 1, maxval: 3}\n"
        "  b:\n"
        "    c: {type: log, minval: -3, maxval: -1}\n"
        "  d: {type: double, minval: 0, maxval: 1, count: 2}\n",
        (
            (
                "const.yaml:4:3: hyperparameters.a.count is missing; a grid needs to know how many"
                " values to take"
            ),
            (
                "const.yaml:6:5: hyperparameters.b.c.count is missing; a grid needs to know how"
                " many values to take"
            ),
        ),
    ),
    Faulty(
        "bounds the wrong way round",
        SOUND + "hyperparameters:\n  lr: {type: double, minval: 1, maxval: 0.1}\n",
        (
            (
                "const.yaml:7:30: hyperparameters.lr.minval is 1.0 and maxval is 0.1; give a minval"
                " below maxval"
            ),
        ),
    ),
    Faulty(
        "equal bounds",
        SOUND + "hyperparameters:\n  n: {type: int, minval: 3, maxval: 3}\n",
        (
            (
                "const.yaml:7:26: hyperparameters.n.minval is 3 and maxval is 3; give a minval"
                " below maxval"
            ),
        ),
    ),
    Faulty(
        "a range without an end",
        SOUND + "hyperparameters:\n  n: {type: int, minval: 3}\n",
        ("const.yaml:7:3: hyperparameters.n.maxval is missing; give a whole number",),
    ),
    Faulty(
        "no values to choose from",
        SOUND + "hyperparameters:\n  n: {type: categorical, vals: []}\n",
        ("const.yaml:7:32: hyperparameters.n.vals is an empty list; give at least 1",),
    ),
    Faulty(
        "values that are text",
        SOUND + "hyperparameters:\n  n: {type: categorical, vals: a}\n",
        ("const.yaml:7:32: hyperparameters.n.vals is 'a'; give a list of values",),
    ),
    Faulty(
        "a map with a type of its own",
        SOUND + "hyperparameters:\n  optimizer: {type: adam, lr: 0.1}\n",
        (
            (
                "const.yaml:7:21: hyperparameters.optimizer.type is 'adam'; give one of"
                " categorical, const, double, int, log, or wrap the map: {type: const, val: {…}}"
            ),
        ),
    ),
    Faulty(
        "a misspelt range",
        SOUND + "hyperparameters:\n  n: {type: integer, minval: 1, maxval: 2}\n",
        ("const.yaml:7:13: hyperparameters.n.type is 'integer'; did you mean 'int'?",),
    ),
    Faulty(
        "a whole number with a fraction",
        SOUND + "hyperparameters:\n  n: {type: int, minval: 0.5, maxval: 2}\n",
        ("const.yaml:7:26: hyperparameters.n.minval is 0.5; give a whole number",),
    ),
    Faulty(
        "a misspelt bound",
        SOUND + "hyperparameters:\n  n: {type: int, minval: 0, max: 2}\n",
        ("const.yaml:7:29: unknown key 'hyperparameters.n.max'; did you mean 'maxval'?",),
    ),
    Faulty(
        "a base of zero",
        SOUND + "hyperparameters:\n  n: {type: log, minval: 0, maxval: 2, base: 0}\n",
        ("const.yaml:7:46: hyperparameters.n.base is 0; give a number above 0",),
    ),
    Faulty(
        "values in place of exponents",
        SOUND + "hyperparameters:\n  n: {type: log, minval: 1, maxval: 1000}\n",
        (
            (
                "const.yaml:7:6: hyperparameters.n has the bounds 1 and 1000, exponents of 10 for"
                " values that are too large; did you mean 0 and 3?"
            ),
        ),
    ),
    Faulty(
        "small values in place of exponents",
        SOUND
        + "hyperparameters:\n  lr: {type: log, minval: 0.0001, maxval: 0.1}\n"
        + "  n: {type: log, minval: 0.0625, maxval: 4, base: 2}\n",
        (
            (
                "const.yaml:7:7: hyperparameters.lr has the bounds 0.0001 and 0.1, exponents of 10"
                " for values from 1.00023 to 1.25893; did you mean -4 and -1?"
            ),
            (
                "const.yaml:8:6: hyperparameters.n has the bounds 0.0625 and 4, exponents of 2 for"
                " values from 1.04427 to 16; did you mean -4 and 2?"
            ),
        ),
    ),
    Faulty(
        "exponents of which one is too large",
        SOUND + "hyperparameters:\n  n: {type: log, minval: -1, maxval: 400}\n",
        (
            (
                "const.yaml:7:6: hyperparameters.n has the bounds -1 and 400, exponents of 10 for"
                " values that are too large; give exponents"
            ),
        ),
    ),
    Faulty(
        "ranges and choices without a type",
        SOUND
        + "hyperparameters:\n  n: {minval: 1, maxval: 8}\n  net: {act: {vals: [relu, tanh]}}\n",
        (
            (
                "const.yaml:7:6: hyperparameters.n is a map of the constants minval and maxval; did"
                " you mean {type: int, minval: 1, maxval: 8}? If not, wrap it: {type: const, val:"
                " {…}}"
            ),
            (
                "const.yaml:8:14: hyperparameters.net.act is a map of the constant vals; did you"
                " mean {type: categorical, vals: [relu, tanh]}? If not, wrap it: {type: const, val:"
                " {…}}"
            ),
        ),
    ),
    Faulty(
        "a search in which nothing varies",
        SEARCH + "  lr: {min: 0.0001, max: 0.1}\n  drop: {low: 0, high: 0.5}\n  n: [16, 32]\n  act:"
        " {values: [relu, 'no']}\n",
        (
            (
                "const.yaml:4:7: hyperparameters.lr is a map of the constants min and max; did you"
                " mean {type: log, minval: -4, maxval: -1}? If not, wrap it: {type: const, val:"
                " {…}}"
            ),
            (
                "const.yaml:5:9: hyperparameters.drop is a map of the constants low and high; did"
                " you mean {type: double, minval: 0, maxval: 0.5}? If not, wrap it: {type: const,"
                " val: {…}}"
            ),
            (
                "const.yaml:6:6: hyperparameters.n is a list, one constant; did you mean {type:"
                " categorical, vals: [16, 32]}? If not, wrap it: {type: const, val: […]}"
            ),
            (
                "const.yaml:7:8: hyperparameters.act is a map of the constant values; did you mean"
                " {type: categorical, vals: [relu, no]}? If not, wrap it: {type: const, val: {…}}"
            ),
        ),
    ),
    Faulty(
        "a count of zero",
        SOUND + "hyperparameters:\n  n: {type: log, minval: 1, maxval: 2, count: 0}\n",
        ("const.yaml:7:47: hyperparameters.n.count is 0; give a whole number, 1 or more",),
    ),
    Faulty(
        "hyperparameters in a list",
        SOUND + "hyperparameters: [1]\n",
        ("const.yaml:6:18: hyperparameters is a list; give a map of names to values or ranges",),
    ),
    Faulty(
        "a batch size of zero",
        SOUND + "hyperparameters: {global_batch_size: 0}\n",
        ("const.yaml:6:38: hyperparameters.global_batch_size is 0; give a positive whole number",),
    ),
    Faulty(
        "a batch size that is text",
        SOUND + "hyperparameters: {global_batch_size: '32'}\n",
        (
            (
                "const.yaml:6:38: hyperparameters.global_batch_size is '32'; give a positive whole"
                " number"
            ),
        ),
    ),
    Faulty(
        "a range of batch sizes from zero",
        SOUND + "hyperparameters: {global_batch_size: {type: int, minval: 0, maxval: 4}}\n",
        (
            (
                "const.yaml:6:58: hyperparameters.global_batch_size.minval is 0; give a positive"
                " whole number"
            ),
        ),
    ),
    Faulty(
        "batch sizes with fractions",
        SOUND + "hyperparameters: {global_batch_size: {type: double, minval: 1, maxval: 4}}\n",
        (
            (
                "const.yaml:6:38: hyperparameters.global_batch_size is a double range; "
                "give a positive whole number, or a range of type int"
            ),
        ),
    ),
    Faulty(
        "batch sizes of which one is wrong",
        SOUND + "hyperparameters: {global_batch_size: {type: categorical, vals: [16, 32.5]}}\n",
        (
            (
                "const.yaml:6:38: hyperparameters.global_batch_size is 32.5; give a positive whole"
                " number"
            ),
        ),
    ),
    Faulty(
        "a name that is a number",
        SOUND + "name: 123\n",
        ("const.yaml:6:7: name is 123; give text, such as '123'",),
    ),
    Faulty(
        "labels that are text",
        SOUND + "labels: one\n",
        ("const.yaml:6:9: labels is 'one'; give a list of text",),
    ),
    Faulty(
        "a label that is a number",
        SOUND + "labels: [a, 1]\n",
        ("const.yaml:6:13: labels[1] is 1; give text, such as '1'",),
    ),
    Faulty(
        "YAML 1.1's yes",
        SOUND + "debug: yes\n",
        ("const.yaml:6:8: debug is 'yes'; give true or false",),
    ),
    Faulty(
        "a negative number of restarts",
        SOUND + "max_restarts: -1\n",
        ("const.yaml:6:15: max_restarts is -1; give a whole number, 0 or more",),
    ),
    Faulty(
        "a misspelt policy",
        SOUND + "checkpoint_policy: bets\n",
        ("const.yaml:6:20: checkpoint_policy is 'bets'; did you mean 'best'?",),
    ),
    Faulty(
        "a policy that is a number",
        SOUND + "checkpoint_policy: 7\n",
        ("const.yaml:6:20: checkpoint_policy is 7; give one of best, all, none",),
    ),
    Faulty(
        "a scheduling unit of zero",
        SOUND + "scheduling_unit: 0\n",
        ("const.yaml:6:18: scheduling_unit is 0; give a whole number, 1 or more",),
    ),
    Faulty(
        "a negative seed",
        SOUND + "reproducibility: {experiment_seed: -1}\n",
        (
            (
                "const.yaml:6:36: reproducibility.experiment_seed is -1; give a whole number from 0"
                " to 4294967295"
            ),
        ),
    ),
    Faulty(
        "an unknown precision",
        SOUND + "optimizations: {precision: float16}\n",
        ("const.yaml:6:28: optimizations.precision is 'float16'; give one of fp32, fp16, bf16",),
    ),
    Faulty(
        "an aggregation of zero batches",
        SOUND + "optimizations: {aggregation_frequency: 0}\n",
        (
            (
                "const.yaml:6:40: optimizations.aggregation_frequency is 0; give a whole number, 1"
                " or more"
            ),
        ),
    ),
    Faulty(
        "a profile that ends before it begins",
        SOUND + "profiling: {begin_on_batch: 5, end_after_batch: 2}\n",
        (
            (
                "const.yaml:6:29: profiling.begin_on_batch is 5 and end_after_batch is 2; begin no"
                " later than you end"
            ),
        ),
    ),
    Faulty(
        "resources of all sorts",
        SOUND + "resources: {slots_per_trial: two, priority: 100, shm_size: 4 gigs}\n",
        (
            "const.yaml:6:30: resources.slots_per_trial is 'two'; give a whole number, 0 or more",
            "const.yaml:6:45: resources.priority is 100; give a whole number from 1 to 99",
            (
                "const.yaml:6:60: resources.shm_size is '4 gigs'; give a number of bytes, or a size"
                " such as 4GiB"
            ),
        ),
    ),
    Faulty(
        "resources that are a number",
        SOUND + "resources: 4\n",
        ("const.yaml:6:12: resources is 4; give a map",),
    ),
    Faulty(
        "a misspelt storage",
        SOUND + "checkpoint_storage: {type: shared, host_path: /a}\n",
        (
            (
                "const.yaml:6:28: checkpoint_storage.type is 'shared'; "
                "did you mean 'shared_fs'? known: azure, directory, gcs, hdfs, s3, shared_fs"
            ),
        ),
    ),
    Faulty(
        "a storage without a type, as it is the store's own",
        SOUND + "checkpoint_storage: {save_trial_best: -1, save_trial_last: 2}\n",
        (
            (
                "const.yaml:6:39: checkpoint_storage.save_trial_best is -1; give a whole number, 0"
                " or more"
            ),
            (
                "const.yaml:6:43: unknown key 'checkpoint_storage.save_trial_last'; did you mean"
                " 'save_trial_latest'?"
            ),
        ),
    ),
    Faulty(
        "a storage that has no type, and is another",
        SOUND + "checkpoint_storage: {bucket: b}\n",
        ("const.yaml:6:1: checkpoint_storage.type is missing; give one of gcs, s3",),
    ),
    Faulty(
        "a directory that has no type",
        SOUND + "checkpoint_storage: {host_path: /data}\n",
        ("const.yaml:6:1: checkpoint_storage.type is missing; give shared_fs",),
    ),
    Faulty(
        "devices of all sorts",
        SOUND + "resources:\n  devices: [a, '/a:b:c:d', 'a:/b', {host_path: /a}, 3]\n",
        (
            (
                "const.yaml:7:13: resources.devices[0] is 'a'; give a map, or"
                " host_path:container_path[:mode]"
            ),
            (
                "const.yaml:7:16: resources.devices[1] is '/a:b:c:d'; give a map, or"
                " host_path:container_path[:mode]"
            ),
            "const.yaml:7:28: resources.devices[2].host_path is 'a'; give an absolute path",
            (
                "const.yaml:7:36: resources.devices[3].container_path is missing; give the path in"
                " the container"
            ),
            (
                "const.yaml:7:53: resources.devices[4] is 3; give a map, or"
                " host_path:container_path[:mode]"
            ),
        ),
    ),
    Faulty(
        "a shared_fs without a directory",
        SOUND + "checkpoint_storage: {type: shared_fs}\n",
        ("const.yaml:6:1: checkpoint_storage.host_path is missing; name the directory",),
    ),
    Faulty(
        "a storage path beside the directory",
        SOUND + "checkpoint_storage: {type: shared_fs, host_path: /data, storage_path: /data2/x}\n",
        (
            (
                "const.yaml:6:71: checkpoint_storage.storage_path is '/data2/x', outside '/data'; "
                "give a relative path, or one below host_path"
            ),
        ),
    ),
    Faulty(
        "a storage path that climbs",
        SOUND + "checkpoint_storage: {type: shared_fs, host_path: /data, storage_path: ../x}\n",
        (
            (
                "const.yaml:6:71: checkpoint_storage.storage_path is '../x', outside '/data'; "
                "give a relative path, or one below host_path"
            ),
        ),
    ),
    Faulty(
        "an s3 of all sorts",
        SOUND + "checkpoint_storage: {type: s3, prefix: a/../b, secret_key: 5}\n",
        (
            "const.yaml:6:1: checkpoint_storage.bucket is missing; name the bucket",
            (
                "const.yaml:6:40: checkpoint_storage.prefix is 'a/../b'; "
                "give a path within the bucket, without '..' in it"
            ),
            "const.yaml:6:60: checkpoint_storage.secret_key is not what it takes; give text",
        ),
    ),
    Faulty(
        "an azure with two logins",
        SOUND
        + "checkpoint_storage: {type: azure, container: c, connection_string: x, credential: y}\n",
        (
            (
                "const.yaml:6:83: checkpoint_storage has both connection_string and credential; "
                "give connection_string alone, or account_url and credential"
            ),
        ),
    ),
    Faulty(
        "an azure without a login",
        SOUND + "checkpoint_storage: {type: azure, container: c}\n",
        (
            (
                "const.yaml:6:1: checkpoint_storage.connection_string is missing; give it, or"
                " account_url and credential"
            ),
        ),
    ),
    Faulty(
        "an hdfs path that is relative",
        SOUND + "checkpoint_storage: {type: hdfs, hdfs_url: 'http://n', hdfs_path: a}\n",
        ("const.yaml:6:67: checkpoint_storage.hdfs_path is 'a'; give an absolute path",),
    ),
    Faulty(
        "a bind mount of relative paths",
        SOUND + "bind_mounts:\n- {host_path: a, container_path: .}\n",
        (
            "const.yaml:7:15: bind_mounts[0].host_path is 'a'; give an absolute path",
            "const.yaml:7:34: bind_mounts[0].container_path is '.'; give a path other than '.'",
        ),
    ),
    Faulty(
        "an unknown kind of slot",
        SOUND + "environment: {image: {cpu: a, gpus: b}}\n",
        ("const.yaml:6:31: unknown key 'environment.image.gpus'; known there: cpu, cuda, rocm",),
    ),
    Faulty(
        "environment variables that are none",
        SOUND + "environment: {environment_variables: [A=1, =2, 3]}\n",
        (
            "const.yaml:6:44: environment.environment_variables[1] is '=2'; give NAME=VALUE",
            "const.yaml:6:48: environment.environment_variables[2] is 3; give NAME=VALUE",
        ),
    ),
    Faulty(
        "log policies of all sorts",
        SOUND
        + "log_policies:\n- {name: x, pattern: '(', action: retry}\n- {pattern: a}\n- {name: y}\n",
        (
            (
                "const.yaml:7:22: log_policies[0].pattern is '(', not a regular expression "
                "(missing ), unterminated subpattern at position 0); "
                "correct it"
            ),
            (
                "const.yaml:7:35: log_policies[0].action is 'retry'; give one of cancel_retries,"
                " exclude_node"
            ),
            "const.yaml:8:3: log_policies[1].name is missing; give the policy a name, or an action",
            (
                "const.yaml:9:3: log_policies[2].pattern is missing; "
                "give a regular expression, or null to switch the policy off"
            ),
        ),
    ),
    Faulty(
        "a log policy that is a number",
        SOUND + "log_policies:\n- {name: x, pattern: '('}\n- {name: x, pattern: b}\n- 3\n",
        (
            (
                "const.yaml:7:22: log_policies[0].pattern is '(', not a regular expression "
                "(missing ), unterminated subpattern at position 0); "
                "correct it"
            ),
            "const.yaml:9:3: log_policies[2] is 3; give a map with name, pattern and action",
        ),
    ),
    Faulty(
        "a retention of a century",
        SOUND + "retention_policy: {log_retention_days: 40000}\n",
        (
            (
                "const.yaml:6:40: retention_policy.log_retention_days is 40000; give a whole number"
                " from -1 to 32767"
            ),
        ),
    ),
    Faulty(
        "a tensorboard storage with a policy",
        SOUND + "tensorboard_storage: {type: s3, save_trial_best: 1}\n",
        (
            (
                "const.yaml:6:50: tensorboard_storage.save_trial_best has no meaning;"
                " checkpoint_storage says what is kept"
            ),
        ),
    ),
    Faulty(
        "settings of an absent plugin",
        SOUND + "plugins: {nope: {}}\n",
        (
            (
                "const.yaml:6:11: no installed plugin takes settings as 'nope'; plugins with"
                " settings: none"
            ),
        ),
    ),
    Faulty(
        "a backend that is a number",
        SOUND + "distributed: {backend: 3, hosts: a}\n",
        (
            "const.yaml:6:24: distributed.backend is 3; give text, such as '3'",
            "const.yaml:6:34: distributed.hosts is 'a'; give a list of text",
        ),
    ),
    Faulty(
        "a key given twice",
        SOUND + "name: a\nname: b\n",
        ("const.yaml:7:1: the key 'name' is given twice, first in line 6; keep one",),
    ),
    Faulty(
        "a tab",
        SOUND + "data:\n\tx: 1\n",
        (
            (
                "const.yaml:7:1: not valid YAML: while scanning for the next token, found character"
                " that cannot start any token; indent with spaces, not tabs"
            ),
        ),
    ),
    Faulty(
        "an unclosed brace",
        SOUND + "data: {a: 1\n",
        (
            (
                "const.yaml:7:1: not valid YAML: while parsing a flow mapping, did not find"
                " expected ',' or '}'"
            ),
        ),
    ),
    Faulty(
        "two documents",
        SOUND + "---\na: 1\n",
        (
            (
                "const.yaml:6:1: not valid YAML: expected a single document in the stream, but"
                " found another document"
            ),
        ),
    ),
    Faulty(
        "a key that is a number",
        SOUND + "data: {1: one}\n",
        ("const.yaml:6:8: the key 1 of data is not text; put it in quotes",),
    ),
    Faulty(
        "a set",
        SOUND + "data: {a: !!set {x}}\n",
        (
            (
                "const.yaml:6:11: data.a has the tag !!set, which does not fit; write the value"
                " without a tag"
            ),
        ),
    ),
    Faulty(
        "a Python object",
        SOUND + "data: {a: !!python/object:os.system x}\n",
        (
            (
                "const.yaml:6:11: data.a has the tag !!python/object:os.system, which does not fit;"
                " write the value without a tag"
            ),
        ),
    ),
    Faulty(
        "numbers that are not finite",
        SOUND + "data: {a: .nan}\nhyperparameters: {b: -.inf}\n",
        (
            "const.yaml:6:11: data.a is nan; give a finite number",
            "const.yaml:7:22: hyperparameters.b is -inf; give a finite number",
        ),
    ),
    Faulty(
        "a map that holds itself",
        SOUND + "data: &a {b: *a}\n",
        ("const.yaml:6:7: data.b contains itself through an alias; write it out",),
    ),
    Faulty(
        "an alias of nothing",
        SOUND + "data: *nowhere\n",
        ("const.yaml:6:7: not valid YAML: found undefined alias",),
    ),
    Faulty(
        "several mistakes at once",
        CLASS + "searcher:\n"
        "  name: random\n"
        "  metrics: loss\n"
        "  max_trials: -1\n"
        "  max_length: {epochs: 0}\n"
        "max_restart: 1\n"
        "resources: {slots_per_trial: -1}\n",
        (
            "const.yaml:4:3: unknown key 'searcher.metrics'; did you mean 'metric'?",
            "const.yaml:5:15: searcher.max_trials is -1; give a whole number, 1 or more",
            "const.yaml:6:24: searcher.max_length.epochs is 0; give a positive number of epochs",
            "const.yaml:7:1: unknown key 'max_restart'; did you mean 'max_restarts'?",
            "const.yaml:8:30: resources.slots_per_trial is -1; give a whole number, 0 or more",
        ),
    ),
    Faulty(
        "keys a level too high",
        SOUND + "num_rungs: 3\nslots_per_trial: 2\n",
        (
            "const.yaml:6:1: unknown key 'num_rungs'; it belongs under 'searcher'",
            "const.yaml:7:1: unknown key 'slots_per_trial'; it belongs under 'resources'",
        ),
    ),
    Faulty(
        "an unknown key",
        SOUND + "wibble: 1\n",
        ("const.yaml:6:1: unknown key 'wibble'; settings of your own belong under 'data'",),
    ),
    Faulty(
        "two log policies of a name",
        SOUND + "log_policies: [{name: x, pattern: a}, {name: x, pattern: b}]\n",
        ("const.yaml:6:15: log_policies has two policies of the name 'x'; keep one",),
    ),
    Faulty(
        "a merge of a number",
        SOUND + "data: {<<: 3}\n",
        ("const.yaml:6:12: << takes a map, or a list of maps, by alias",),
    ),
    Faulty(
        "a secret that is a number",
        SOUND + "weight: 1\nenvironment: {registry_auth: {password: 5}}\n",
        (
            "const.yaml:6:1: unknown key 'weight'; it belongs under 'resources'",
            "const.yaml:7:41: environment.registry_auth.password is not what it takes; give text",
        ),
    ),
    Faulty(
        "a share of nothing",
        SOUND + "resources: {weight: 0, priority: 0}\n",
        (
            "const.yaml:6:21: resources.weight is 0; give a number above 0",
            "const.yaml:6:34: resources.priority is 0; give a whole number from 1 to 99",
        ),
    ),
    Faulty(
        "ports of all sorts",
        SOUND + "environment: {ports: {a: 70000}, proxy_ports: [{}]}\n",
        (
            "const.yaml:6:26: environment.ports.a is 70000; give a whole number from 0 to 65535",
            "const.yaml:6:48: environment.proxy_ports[0].proxy_port is missing; give the port",
        ),
    ),
    Faulty(
        "a number beyond 64 bits",
        SOUND + "data: {a: 99999999999999999999}\n",
        ("const.yaml:6:11: data.a is 99999999999999999999; give a number that fits in 64 bits",),
    ),
    Faulty(
        "a constant without a value",
        SOUND + "hyperparameters: {a: {type: const}}\n",
        ("const.yaml:6:19: hyperparameters.a.val is missing; give any value",),
    ),
    Faulty(
        "a nested type of null",
        SOUND + "hyperparameters: {a: {b: {type: null}}}\n",
        (
            (
                "const.yaml:6:33: hyperparameters.a.b.type is null; give one of categorical, const,"
                " double, int, log, or wrap the map: {type: const, val: {…}}"
            ),
        ),
    ),
)


@pytest.mark.parametrize("faulty", FAULTY, ids=[case.title for case in FAULTY])
def test_a_faulty_configuration_is_refused_in_so_many_words(faulty: Faulty) -> None:
    with pytest.raises(ConfigError) as refusal:
        load(faulty.text, name="const.yaml")
    assert refusal.value.problems == faulty.problems


def test_constants_that_may_be_meant_in_a_search_are_asked_about() -> None:
    """Lists of numbers are not, as the sizes of layers.

    Nor is what is wrapped, nor anything where there is one trial.
    """
    varied = "  x: {type: log, minval: -4, maxval: -1}\n  layers: [64, 64]\n  act: [relu, tanh]\n"
    (notice,) = load(SEARCH + varied, name="const.yaml").notices
    assert notice.keys == ("hyperparameters.act",)
    assert (
        notice.message
        == "const.yaml:6:8: hyperparameters.act is a list, one constant; did you mean {type:"
        " categorical, vals: [relu, tanh]}? If not, wrap it: {type: const, val: […]}"
    )
    assert (
        load(
            SEARCH + "  act: {type: const, val: [relu, tanh]}\n  scale: {min: x, max: 2}\n"
        ).notices
        == ()
    )
    assert (
        load(SOUND + "hyperparameters: {act: [relu, tanh], scale: {min: 1, max: 2}}\n").notices
        == ()
    )


@pytest.mark.parametrize("metric", ["val_accuracy", "acc@1", "macro_f1", "r2", "mAP50", "BLEU-4"])
def test_metric_that_is_better_when_larger_is_asked_about(metric: str) -> None:
    """A trial's checkpoint and a search would otherwise be chosen by the worst value."""
    text = SOUND.replace("metric: loss", f"metric: {metric}")
    (notice,) = load(text, name="const.yaml").notices
    assert notice.keys == ("searcher.smaller_is_better",)
    assert notice.message.endswith(
        f"searcher.metric is '{metric}', and its smallest value counts as the best; write"
        " smaller_is_better: false if larger is better, or true"
    )


@pytest.mark.parametrize("direction", ["true", "false"])
def test_metric_whose_direction_is_written_is_not_asked_about(direction: str) -> None:
    more = f"metric: accuracy\n  smaller_is_better: {direction}"
    assert load(SOUND.replace("metric: loss", more)).notices == ()


@pytest.mark.parametrize("metric", ["val_loss", "accuracy_error", "mapping", "r", "top_1_error"])
def test_metric_better_when_smaller_is_not_asked_about(metric: str) -> None:
    assert load(SOUND.replace("metric: loss", f"metric: {metric}")).notices == ()


def test_one_value_of_a_range_is_not_drawn_without_a_word() -> None:
    spaces = "hyperparameters:\n  lr: {type: log, minval: -4, maxval: -1}\n  width: 3\n"
    (notice,) = load(SOUND + spaces, name="const.yaml").notices
    assert notice.keys == ("hyperparameters.lr",)
    assert notice.message.startswith("const.yaml:")
    assert notice.message.endswith(
        "searcher.name is single, which draws one value at random: hyperparameters.lr; write a"
        " value, or choose another searcher for a search"
    )
    spaces += "  net: {act: {type: categorical, vals: [relu, tanh]}}\n"
    (notice,) = load(SOUND + spaces).notices
    assert "one value of each at random: hyperparameters.lr, hyperparameters.net.act;" in (
        notice.message
    )


@pytest.mark.parametrize("space", ["{type: const, val: 1}", "{type: categorical, vals: [adam]}"])
def test_a_range_of_one_value_is_not_said_to_be_drawn(space: str) -> None:
    assert load(SOUND + f"hyperparameters: {{a: {space}}}\n").notices == ()


def test_the_sound_part_of_the_table_is_sound() -> None:
    assert load(SOUND, name="const.yaml").notices == ()


def test_every_line_names_the_file_and_a_way_out() -> None:
    for faulty in FAULTY:
        for line in faulty.problems:
            assert line.startswith("const.yaml:")
            assert (
                "not valid YAML" in line
                or "; " in line
                or "did you mean" in line
                or "takes a map" in line
            ), line
