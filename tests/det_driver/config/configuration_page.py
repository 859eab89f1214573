"""Writes docs/reference/configuration.md from the structs.

`python tests/det_driver/config/configuration_page.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from det_core.config import (
    ENGINES,
    RANGES,
    SEARCHERS,
    STORAGES,
    ExperimentConfig,
    SearcherConfig,
    StorageConfig,
    to_builtins,
)
from det_core.config.fields import Field, base_of, fields_of, is_struct, item_of
from det_driver.config import docs_of, expected

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"
KINDS = {
    "checkpoint_storage": "a map, see below",
    "engine": "a map, see below",
    "hyperparameters": "a map, see below",
    "length": "a length",
    "log_policies": "a list of maps",
    "period": "a length, or 0",
    "plugins": "a map of maps",
    "searcher": "a map, see below",
}
HEAD = """\
# Experiment configuration

An experiment is described by one YAML file. The smallest that trains a trial class:

```yaml
entrypoint: model_def:DigitsTrial
searcher:
  name: single
  metric: validation_loss
  max_length: {epochs: 3}
```

Every key is checked before anything runs, and all mistakes are reported at once, each with its line and column:

```text
const.yaml:3:1: unknown key 'sercher'; did you mean 'searcher'?
const.yaml:7:15: searcher.max_length is -5; give a positive number of batches
```

- **YAML** is read by version 1.2: `1e-3` is a number. `on`, `yes`, `012` and `2024-01-31` are not what YAML 1.1 made of
  them. A key given twice is refused. `null` leaves a key unset.
- **Lengths** are a number of batches, or exactly one of `{batches: n}`, `{records: n}`, `{epochs: n}`, counted from the
  trial's start.
- **Entrypoints** of the form `module:Class` (nested classes too: `module:Outer.Inner`) are trial classes and need
  `searcher.max_length`, or `max_time`. Anything else is a command.
- **A template** (`--template FILE`) lies under the file, and the file wins. Maps merge key by key, lists are replaced. Labels,
  environment variables, proxy ports, bind mounts and devices are joined. Log policies merge by name. A searcher or a
  storage merges with one of its own kind only (what all kinds share always does). A hyperparameter is replaced whole,
  unless both are nested maps.
- **On the command line**, `--config key.path=value` changes one key: the value is a number, `true`, `false`, `null`,
  text, a list with commas between, or JSON. `--config hyperparameters.lr=0.1` replaces a range by a constant.
- **Old spellings** are read as today's, with a notice: `searcher.max_steps` and `searcher.target_trial_steps` (times
  `batches_per_step`, 100) as `searcher.max_length`, `searcher.steps_per_round` as `searcher.length_per_round`, bare numbers of
  periods beside these as steps, too,
  `batches_per_step` as `scheduling_unit`, `gpu` as `cuda` under `environment.image` and
  `environment.environment_variables`, `{type: …}` as the action of a log policy, and
  `checkpoint_storage.checkpoint_path` as `checkpoint_storage.storage_path`. The searchers `adaptive` and
  `adaptive_simple` are read as `adaptive_asha`, and the `budget` (or `step_budget`) of the former as the `max_trials` that it
  pays for. `sync_halving` is gone in favour of `async_halving`.
- **Keys that only the master of a cluster could act on** are accepted, so that files can be shared, and named in one
  notice. The last column of the tables says `no`.
- **Secrets** (access and secret keys, connection strings, credentials, passwords, tokens, and in any text `NAME=VALUE` or
  `--name VALUE` where the name says so, such as `HF_TOKEN=…`, and the password in a URL) are masked wherever a configuration
  is printed or stored, and in every checkpoint: in `load_data.json`, and in texts among the code that repeat them as whole
  words of at least six characters, except Python files. In `data` and `hyperparameters`, the values of keys such as
  `password`, `api_key` and `hf_token` are secrets, and those of `token` and `pad_token` are not. The trial gets them as they
  are, and so does a model that is exported or loaded from a checkpoint by `Checkpoint.load` in the home of its experiment.
  Without its experiment, or from a server, it gets the masks. They are better left out: the environment's credentials are
  used then. What no name shows to be secret, and other secrets in files of the code, are not masked. List such files in
  `.detignore`.

Editors that know JSON Schema complete and check keys while you type. `det config new` writes a first configuration for the code
in a directory, and beside it the schema, with what the installed plugins add, which its first line names:
`# yaml-language-server: $schema=det.schema.json`. For a file of your own, write that line, and the schema by
`det config schema > det.schema.json`.
"""
HYPERPARAMETERS = """\
A bare value (`lr: 0.1`, also a list) is a constant. A map with a `type` is a range. A map without one is a map of further
hyperparameters, to any depth; it can hold no key named `type`, so wrap such a map: `{type: const, val: {type: adam}}`.
`global_batch_size`, where it is given, must be a positive whole number or a range of such. `minval` is below `maxval`. What
cannot be meant is refused, with what was likely meant: values in place of exponents, `minval` or `vals` without a `type`, and
lists and maps of `min` and `max` in a search in which nothing varies.

```yaml
hyperparameters:
  global_batch_size: 32
  lr: {type: log, minval: -5, maxval: -1}      # 1e-5 to 1e-1: the bounds are exponents of 10
  layers: {type: int, minval: 1, maxval: 4, count: 4}
  hidden: {type: int, minval: 8, maxval: 512, log: true}     # 8 to 16 is as likely as 256 to 512
  dropout: {type: double, minval: 0.0, maxval: 0.5, step: 0.1}
  size: {type: categorical, vals: [small, medium, large], ordered: true}
  optimizer:
    name: {type: categorical, vals: [sgd, adam]}
    momentum: {type: double, minval: 0.0, maxval: 0.99, when: {optimizer.name: sgd}}
```

A trial whose conditions (`when`) are not met does not have the hyperparameter, so read it with
`context.get_hparams().get(...)`. Tables and CSV leave it empty. Constraints between hyperparameters stand in the
searcher's section: `constraints: [hidden * layers <= 1024]`. Each is an expression of dotted names, numbers, text, `+
- * / // % **`, comparisons, `and`, `or`, `not`, `in`, `abs`, `len`, `log2`, `log10`, `max`, `min`, `round` and
`sqrt`. It holds where it names a hyperparameter that the trial does not have. Hyperparameters that do not meet every
constraint are drawn again; `det preview` says how often. A name that is none in Python, such as one with a dash,
stands in backticks: ``constraints: ["`weight-decay` < 0.1"]``. The same holds for metrics in `stop_when`.
"""
SEARCHER = """\
`adaptive_asha` and `async_halving` come in two kinds. With `max_length`, trials are paused at each rung and the promising
ones resumed. With `max_time` and `time_metric`, trials train on and the others are stopped. Give the one or the other.
A section without `name` that has a `sampler` or a `schedule` is read as `combined`.
"""
STORAGE = """\
Without a `type`, checkpoints stay in the store's own directory, and the keys that every type has say how many are kept there.
"""
COLUMNS = "| key | type | default | meaning | honoured |\n|---|---|---|---|---|\n"


def render() -> str:
    """Return the page."""
    parts = [HEAD, "## The keys\n", table(ExperimentConfig, ())]
    for path, struct, honoured in nested(ExperimentConfig, ()):
        parts += [f"### {key_of(path)}\n", table(struct, path, honoured=honoured)]
    parts += ["## hyperparameters\n", HYPERPARAMETERS]
    for name, struct in RANGES.items():
        parts += [f"### type: {name}\n", says(struct), table(struct, ("hyperparameters", "NAME"))]
    parts += [
        "## searcher\n",
        SEARCHER,
        "### Every searcher\n",
        table(SearcherConfig, ("searcher",)),
    ]
    for name, struct in SEARCHERS.items():
        own = table(struct, ("searcher",), without=SearcherConfig)
        parts += [f"### name: {name}\n", says(struct), own]
        for path, inner, _ in nested(struct, ("searcher",)):
            parts += [f"#### {key_of(path)}\n", table(inner, path)]
    parts += [
        "## checkpoint_storage\n",
        STORAGE,
        "### Every type\n",
        table(StorageConfig, ("checkpoint_storage",)),
    ]
    for name, struct in STORAGES.items():
        own = table(struct, ("checkpoint_storage",), without=StorageConfig)
        parts += [f"### type: {name}\n", says(struct), own]
    parts += [
        "## engine\n",
        "A plugin may bring others; `det run --engine NAME` names one for once.\n",
    ]
    for name, struct in ENGINES.items():
        parts += [f"### engine.name: {name}\n", says(struct), table(struct, ("engine",))]
    return "\n".join(parts)


def says(struct: type) -> str:
    """Return the first paragraph of a struct's docstring."""
    return (struct.__doc__ or "").split("\n\n")[0].replace("\n    ", " ") + "\n"


def nested(
    struct: type, path: tuple[str, ...], above: str = "yes"
) -> Iterator[tuple[tuple[str, ...], type, str]]:
    """Yield the structs below a struct, each with its path and whether the section is honoured."""
    for key, field in fields_of(struct).items():
        if field.type.marks.get("kind") in (
            "searcher",
            "checkpoint_storage",
            "engine",
            "length",
            "period",
        ):
            continue
        for arm in field.type.arms:
            many = base_of(arm) is list
            inner = item_of(arm).arm if many else arm
            if is_struct(inner):
                below = (*path, key + ("[]" if many else ""))
                honoured = field.type.marks.get("honoured", above)
                yield below, inner, honoured
                yield from nested(inner, below, honoured)


def table(
    struct: type, path: tuple[str, ...], *, without: type | None = None, honoured: str = "yes"
) -> str:
    """Return the table of a struct's keys."""
    shared = fields_of(without) if without else {}
    docs = docs_of(struct)
    rows = [
        row(
            key_of((*path, key if "rest" not in field.type.marks else "*")),
            field,
            docs[field.name],
            honoured,
        )
        for key, field in fields_of(struct).items()
        if key not in shared
    ]
    return COLUMNS + "".join(rows) if rows else "No keys of its own.\n"


def key_of(path: tuple[str, ...]) -> str:
    """Return a path as the page writes it."""
    return ".".join(path)


def row(key: str, field: Field, meaning: str, honoured: str) -> str:
    """Return one line of a table."""
    kind = KINDS.get(field.type.marks.get("kind", "")) or expected(field.type)
    cells = (
        f"`{key}`",
        kind,
        default_of(field),
        meaning,
        field.type.marks.get("honoured", honoured),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def default_of(field: Field) -> str:
    """Return a default as YAML would show it."""
    if field.required or "needed" in field.type.marks:
        return "required"
    plain: Any = to_builtins(field.default)
    if plain is None:
        return "–"
    if isinstance(plain, dict) and field.type.marks.get("kind") not in ("length", "period"):
        return "see below" if plain else "`{}`"
    if field.name == "log_policies":
        return "`CUDA OOM`, `ECC Error`"
    return f"`{json.dumps(plain)}`" if not isinstance(plain, str) or not plain else f"`{plain}`"


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
