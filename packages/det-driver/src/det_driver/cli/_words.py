"""Commands of other tools: aliases, and what to use instead of what det does not have."""

from __future__ import annotations

from pathlib import Path

from det_core.errors import DetError

ALIASES = {
    "ls": "list",
    "ps": "list",
    "status": "list",
    "describe": "show",
    "delete": "rm",
    "remove": "rm",
    "log": "logs",
    "c": "checkpoint",
    "m": "model",
    "command": "cmd",
    "nb": "notebook",
}
"""What is typed, and the command that it runs."""

_WORKSPACES = (
    "labels: det label N LABEL; where a server runs, det server workspace gives them rights"
)
_DEPLOY = "det server start, for a team; alone, det run needs nothing that is deployed"
_API_ACCESS = "det server token list, or det server user token NAME, where the server runs"
_ROLES = "the roles of users: det server user, where the server runs"

INSTEAD = {
    "stop": "det pause N, to go on later with det resume N, or det cancel N, for good",
    "kill": "det cancel --now N",
    "start": "det run CONFIG, or det resume N",
    "train": "det run CONFIG",
    "submit": "det run CONFIG --detach",
    "create": "det run CONFIG",
    "init": "det config new FILE",
    "activate": "det resume N",
    "continue": "det resume N",
    "unpause": "det resume N",
    "restart": "det resume N, or det run CONFIG",
    "fork": "det run CONFIG with searcher.source_trial_id, or Fork on the page (det ui)",
    "archive": "the page (det ui), or det_driver.client.Client().get_experiment(N).archive()",
    "unarchive": "the page (det ui), or det_driver.client.Client().get_experiment(N).unarchive()",
    "download": "det checkpoint export UUID DIRECTORY",
    "wait": "det logs -f N",
    "attach": "det logs -f N",
    "top": "det list --filter state=ACTIVE",
    "diff": "det compare N M",
    "tag": "det label N LABEL",
    "validate": "det check CONFIG",
    "test": "det check CONFIG",
    "dashboard": "det ui",
    # Commands of Determined.
    "task": "det list, det cmd list, det shell list, or det notebook list",
    "tb": "det tensorboard N",
    "dev": "the client: det_driver.client.Client",
    "master": "nothing: there is no master; experiments are in $DET_HOME, or on a det server",
    "deploy": _DEPLOY,
    "d": _DEPLOY,
    **dict.fromkeys(
        ("agent", "a", "slot", "s", "resources", "rp"), "the engines: det engine check NAME"
    ),
    "resource-pool": "resources.resource_pool in the configuration",
    "job": "det queue",
    "j": "det queue",
    "template": "det run CONFIG --template FILE",
    "tpl": "det run CONFIG --template FILE",
    "project": "labels: det label N LABEL",
    "p": "labels: det label N LABEL",
    "workspace": _WORKSPACES,
    "w": _WORKSPACES,
    "auth": "det login URL",
    "rbac": _ROLES,
    "user-group": _ROLES,
    "ug": _ROLES,
    "credentials": "environment variables of the machine",
    "bind-mount": "the paths themselves: without a container they are those of the machine",
    "oauth": "det login URL",
    # A command of that name is no secret.
    "token": _API_ACCESS,  # nosec B105
}
"""What is typed, and what to use instead."""

WITHIN = {
    "run": {
        "list": "det show N, which lists its trials",
        "describe": "det show N --runs",
        "logs": "det logs N --trial TRIAL",
        "download": "det checkpoint export UUID DIRECTORY",
        **dict.fromkeys(("kill", "cancel"), "det cancel N --trial TRIAL"),
        "pause": "det pause N",
        **dict.fromkeys(("resume", "activate"), "det resume N"),
        **dict.fromkeys(
            ("archive", "unarchive"), "the page (det ui), which has archive for an experiment"
        ),
        "delete": "det rm N, which deletes them with all else",
        "move": "labels: det label N LABEL",
    },
    "tensorboard": {
        **dict.fromkeys(
            ("list", "ls"),
            "det list: det tensorboard N serves an experiment until it is interrupted",
        ),
        **dict.fromkeys(
            ("kill", "set"),
            "Ctrl-C where it runs: det tensorboard N serves until it is interrupted",
        ),
        **dict.fromkeys(
            ("logs", "config", "describe", "open"), "det tensorboard N, which prints its address"
        ),
        **dict.fromkeys(
            ("-t", "--trial-ids"), "det tensorboard N, which has all trials of experiment N"
        ),
        **dict.fromkeys(("-d", "--detach"), "det tensorboard N, with & of the shell"),
        "--config-file": "det tensorboard N: there is no task to configure",
    },
}
"""Words of Determined after a command of det, and what to use instead."""

_OF_TASKS = {
    **dict.fromkeys(
        ("--config", "--config-file", "--template"), "--slots, --priority, --max-hours or --idle"
    ),
    **dict.fromkeys(
        ("-c", "--context", "-i", "--include"), "the files themselves: it runs in this directory"
    ),
    **dict.fromkeys(
        ("-v", "--volume"), "the paths themselves: without a container they are the machine's"
    ),
    **dict.fromkeys(("-w", "--workspace-name", "--workspace-id"), "labels: det label ID LABEL"),
}
BELOW = {
    "checkpoint": {"list-files": "det checkpoint show UUID, which lists them"},
    "checkpoint download": {"--mode": "nothing: files come from where they are stored"},
    "model": {
        "list-versions": "det model show NAME, which lists them",
        "move": "labels: det model edit NAME",
    },
    "model list": dict.fromkeys(
        ("--sort-by", "--order-by"), "det model list --json, and sort that"
    ),
    "cmd": {
        **dict.fromkeys(("describe", "config"), "det show ID"),
        "open": "det cmd logs -f ID",
        "set": "det cmd run --priority P",
    },
    "cmd run": _OF_TASKS,
    "shell": {
        **dict.fromkeys(("describe", "config"), "det show ID"),
        "show-ssh-command": "det shell start, whose shell lives in its terminal",
        "logs": "the terminal itself, which has what the shell wrote",
        "set": "det shell start --priority P",
    },
    "shell start": {
        **_OF_TASKS,
        **dict.fromkeys(("-d", "--detach"), "det cmd run --detach COMMAND"),
        "--show-ssh-command": "det shell start, whose shell lives in its terminal",
    },
    "notebook": {
        **dict.fromkeys(("describe", "config"), "det show ID"),
        "logs": "det logs ID",
        "set": "det notebook start --priority P",
    },
    "notebook start": {
        **_OF_TASKS,
        "--preview": "det notebook start --detach, and det show ID",
        **dict.fromkeys(("--description", "--name"), "det rename ID NAME"),
    },
}
"""Words and options of Determined that commands of det do not know, and what to use instead."""


def refuse_word(command: str, args: list[str]) -> None:
    """Say what to use instead of a word of Determined after a command of det.

    A file of that name is what is meant where there is one. Raises DetError.
    """
    options = [word for word in args if word.startswith("-")]
    for word in (*args[:1], *options):
        if (instead := WITHIN[command].get(word)) and not Path(word).exists():
            kind, name = (
                ("option", word) if word.startswith("-") else ("command", f"{command} {word}")
            )
            raise DetError(f"no such {kind} {name!r}; use {instead}")
