"""The entry to the experiments of a home or a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from det_core.support.paths import expand_user

from ..remote import RemoteServer, SignIns, check_address
from ..store import ModelChanges, Visible, import_experiment
from . import _calls
from ._checkpoint import Checkpoint
from ._experiment import Experiment, Trial
from ._home import AnyHome, Home
from ._model import Model, ModelVersion
from ._watch import Watch


class Client:
    """The experiments of a home, or of a server.

    - `home`: the directory of a home, by default `$DET_HOME` or `~/.det`.
    - `master`: the address of a `det server`. Without both it is that of `$DET_MASTER`, if set.
    - `token`: a token of that server, by default that of `det login`.
    - `visible`: the numbers of the experiments of a home that it has, and those that it makes. By
      default all.
    - `user`: who owns the experiments that it makes in a home, for what serves several users.

    Raises DetError for what is no address, and where nobody is signed in.
    """

    def __init__(
        self,
        home: str | Path | None = None,
        *,
        master: str | None = None,
        token: str | None = None,
        visible: Visible | None = None,
        user: str = "",
    ) -> None:
        environ = dict(os.environ)
        address = master if master is not None or home is not None else environ.get("DET_MASTER")
        self._home: AnyHome
        if address:
            from ._server import ServerHome

            address = check_address(address, insecure=True)
            token = token or SignIns(environ).get(address).token
            self._home = ServerHome(RemoteServer(address, token), environ)
            return
        chosen = home if home is not None else environ.get("DET_HOME") or "~/.det"
        self._home = Home(expand_user(chosen).absolute(), environ, visible, user)

    def create_experiment(
        self,
        config: str | Path | Mapping[str, Any],
        model_dir: str | Path | None = None,
        *,
        start: bool = True,
    ) -> Experiment:
        """Make an experiment of a configuration and a directory of code, which is copied.

        - `config`: a mapping, or the path of a YAML file.
        - `model_dir`: the code, or None.
        - `start`: whether to run it in the background. Otherwise it is paused.

        Raises ConfigError for mistakes in the configuration.
        """
        source, name = config, "experiment"
        if not isinstance(config, Mapping):
            source, name = Path(config), Path(config).absolute().parent.name
        code = Path(model_dir) if model_dir is not None else None
        return self.get_experiment(self._home.make(source, code, name, start=start))

    def watch(self, seconds: float = 0.25) -> Watch:
        """Return an iterator over the changes in the home. It looks for changes every `seconds`."""
        return Watch(self._home.local("Client.watch").reader(), seconds)

    def import_experiment(self, file: str | Path) -> Experiment:
        """Import an experiment that `Experiment.export` wrote.

        It keeps its number, unless that is taken.
        """
        with self._home.local("Client.import_experiment").writer() as store:
            return self.get_experiment(import_experiment(store, Path(file)))

    def list_experiments(
        self, *, archived: bool | None = False, limit: int | None = None
    ) -> list[Experiment]:
        """Return the experiments, the newest first, at most `limit`.

        `archived` chooses those that are archived or those that are not. None means all.
        """
        rows = self._home.call(_calls.experiments, archived, limit)
        return [Experiment(self._home, row) for row in rows]

    def get_experiment(self, experiment_id: int) -> Experiment:
        """Return an experiment. Raises StoreError if there is none with this number."""
        return Experiment(self._home, self._home.call(_calls.experiment, experiment_id))

    def get_trial(self, trial_id: int) -> Trial:
        """Return a trial. Raises StoreError if there is none with this number."""
        return Trial(self._home, self._home.call(_calls.trial, trial_id))

    def create_model(self, name: str, /, **given: Unpack[ModelChanges]) -> Model:
        """Make a model in the registry.

        `given` are its description, notes, labels and metadata. Raises StoreError for a name that
        is taken, or that has "/", "@", ":", digits alone, or characters that cannot be printed.
        """
        return Model(self._home, self._home.call(_calls.create_model, name, given))

    def list_models(self, *, archived: bool | None = False) -> list[Model]:
        """Return the models of the registry by name. `archived` None means all."""
        return [Model(self._home, row) for row in self._home.call(_calls.models, archived)]

    def get_model(self, name: str) -> Model:
        """Return a model of the registry. Raises StoreError if there is none of this name."""
        return Model(self._home, self._home.call(_calls.model, name))

    def get_model_version(self, reference: str) -> ModelVersion:
        """Return the version that `NAME@ALIAS` or `NAME/VERSION` names, or the newest of `NAME`.

        Raises StoreError if there is none.
        """
        return ModelVersion(self._home, self._home.call(_calls.refer, reference))

    def get_checkpoint(self, uuid: str) -> Checkpoint:
        """Return the checkpoint whose uuid is `uuid`, or the only one whose uuid begins with it.

        `model:NAME@ALIAS` and `model:NAME/VERSION` name that of a version of a model, and
        `model:NAME` that of the newest. Raises StoreError if there is none.
        """
        return Checkpoint(self._home, self._home.call(_calls.checkpoint, uuid))
