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

from det_core.config import ExperimentConfig, Extensions, from_json, with_secrets
from det_core.errors import StoreError
from det_core.support.paths import read_regular

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
