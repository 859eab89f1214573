"""The secrets of an experiment's configuration.

They are in a file of its directory, in no database.

Code that reads a database to show, index or export an experiment gets masked secrets. Code that
trains with the configuration, or opens its storage, restores the secrets.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from det_core.config import (
    ExperimentConfig,
    Extensions,
    find_secrets,
    from_json,
    masked,
    masked_hparams,
    to_builtins,
    with_secrets,
)
from det_core.errors import StoreError
from det_core.support.paths import read_regular
from det_driver.store._database import Database
from det_driver.store._schema import dump, load, load_object

FILE = "secrets.json"
_decode = msgspec.json.Decoder(list[tuple[tuple[str | int, ...], str]]).decode


def write_secrets(directory: Path, secrets: Sequence[Any]) -> None:
    """Write the result of `find_secrets` to a file that only its owner can read.

    Without secrets no file is written.
    """
    if not secrets:
        return
    part = directory / f".{FILE}"
    part.unlink(missing_ok=True)
    with os.fdopen(
        os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as file:
        json.dump(secrets, file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(directory / FILE)


def complete_config(
    directory: Path, text: str, extensions: Extensions | None = None
) -> ExperimentConfig:
    """Return a stored configuration with its secrets.

    They stay masked if there is no file of secrets, as after an import.
    """
    file = directory / FILE
    try:
        secrets = _decode(read_regular(file))
        text = json.dumps(with_secrets(json.loads(text), secrets))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StoreError(
            f"cannot read {file}: {error.strerror}; it has the secrets of the configuration"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(
            f"{file} is damaged ({error}); restore it, or remove it and run the configuration again"
        ) from error
    return from_json(text, extensions=extensions)


def find_unmasked(database: Database, config: ExperimentConfig) -> list[tuple[str, Sequence[Any]]]:
    """Return the statements that mask the secrets which an earlier det left in an experiment.

    `config` is its configuration with its secrets.
    """
    shown, secrets = masked(config), find_secrets(config)
    with database.decoding():
        text, *columns, entrypoint = database.rows(
            "SELECT config, name, description, labels, entrypoint FROM experiment"
        )[0]
        name, description, labels = columns
        if (blotted := to_builtins(load(labels), masked=True)) != load(labels):
            labels = dump(blotted)
        new = (
            *(to_builtins(each, masked=True) for each in (name, description)),
            labels,
            _joined(shown["entrypoint"])
            if entrypoint == _joined(config.entrypoint)
            else to_builtins(entrypoint, masked=True),
        )
        statements: list[tuple[str, Sequence[Any]]] = []
        if any(path[0] == "hyperparameters" for path, _ in secrets):
            for id, row in database.rows("SELECT id, hparams FROM trials"):
                hparams = load_object(row)
                if (other := masked_hparams(hparams, config)) != hparams:
                    statements.append(
                        ("UPDATE trials SET hparams = ? WHERE id = ?", (dump(other), id))
                    )
        if statements or find_secrets(from_json(text)) or [*new] != [*columns, entrypoint]:
            sql = (
                "UPDATE experiment SET config = ?, name = ?, description = ?, labels = ?,"
                " entrypoint = ?"
            )
            statements.append((sql, (json.dumps(shown, allow_nan=False), *new)))
    return statements


def _joined(entrypoint: str | Sequence[str] | None) -> str:
    return entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint or ())
