"""Rules about what the code contains and belongs elsewhere: settings, paths, packages, seeds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ._sources import FUNCTION, HOOK, Module, Sources, Text, imports, rule

_OPTIMIZER = re.compile(
    r"A?SGD|\w*Adam\w*|RMSprop|Adagrad|Adadelta|Adafactor|Rprop|LBFGS|Lion|LAMB|Lamb|LARS"
    r"|Ftrl|Muon|\w+Optimizer"
    r"|OneCycleLR|CyclicLR|ExponentialDecay|PolynomialDecay|InverseTimeDecay|CosineDecay\w*"
)
_RATES = ("lr", "learning_rate", "initial_learning_rate", "max_lr", "base_lr", "weight_decay")
_ROOTS = (
    "home|Users|data|datasets?|mnt|media|scratch|nfs|srv|lustre|gpfs|storage|shared|content|kaggle"
)
_PLACE = re.compile(rf"/({_ROOTS})(/|$)|~/\w|[A-Z]:[\\/]\w|(s3|gs|hdfs|abfs)://\w")
_NO_PLACE = (
    "add_argument",
    "option",
    "get",
    "getenv",
    "startswith",
    "split",
    "replace",
    "removeprefix",
)
_TEMPORARY = re.compile(r"(/var)?/tmp/\w|/dev/shm/\w")
_KEYS = ast.Expr | ast.JoinedStr | ast.Subscript | ast.Compare
_SEARCHED = ("PATH", "PYTHONPATH")
_TAKES = re.compile(
    r"-[rceift]|--(requirement|constraint|editable|(extra-)?index-url|find-links|target|prefix)"
)
_SEEDS = re.compile(
    r".*(manual_seed(_all)?|set_random_seed|seed_everything|set_seed|TrainingArguments"
    r"|LightningCLI|PRNGKey|random\.(seed|key))"
)
_FRAMEWORKS = ("torch", "tensorflow", "keras", "lightning", "pytorch_lightning")


@rule("DET001", of=())
def unreadable(source: Text, sources: Sources) -> Iterator[tuple[ast.AST, str]]:
    """A file that the entrypoint imports is no Python to det's own interpreter.

    No other rule can look at it, and importing it fails, unless the experiment's interpreter is of
    another version.
    """
    yield from ()


@rule("DET201")
def fixed_learning_rate(module: Module, sources: Sources) -> Iterator[tuple[ast.AST, str]]:
    """A learning rate or a weight decay is a number in the code of a trial with hyperparameters.

    A search cannot vary it, `det show` does not list it, and experiments that differ in it look the
    same. Make it one of them, read by `context.get_hparam("lr")`.
    """
    for call, name in module.calls() if sources.config.hyperparameters else ():
        package, _, last = name.rpartition(".")
        if _OPTIMIZER.fullmatch(last) and re.search(r"optim|train|keras", package):
            given = [
                (keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg in _RATES
            ]
            if not last.endswith("LR"):
                first = 1 if "torch" in package else 0
                given += [("learning rate", argument) for argument in call.args[first : first + 1]]
            for key, value in given:
                if isinstance(found := module.value(value), float) or (
                    type(found) is int and found
                ):
                    yield (
                        value,
                        (
                            f"the {key} of {last}, {found}, is fixed in the code; make it a"
                            " hyperparameter"
                        ),
                    )


@rule("DET202")
def learning_rate_by_hand(module: Module, sources: Sources) -> Iterator[tuple[ast.AST, str]]:
    """The learning rate of an optimizer is set by hand while it trains.

    A schedule overwrites it at its next step, and the configuration does not tell why it is what it
    is. Use a scheduler, which is saved and resumed at its position (`context.wrap_lr_scheduler`,
    `configure_optimizers`, `keras.callbacks.LearningRateScheduler`).
    """
    for node in module.parents:
        ups, found = list(module.around(node)), False
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Store)
            and module.value(node.slice) == "lr"
        ):
            group = ast.unparse(node.value)
            loops = [
                ast.unparse(up.iter)
                for up in ups
                if isinstance(up, ast.For) and ast.unparse(up.target) == group
            ]
            found = ".param_groups" in group or any(
                each.endswith(".param_groups") for each in loops
            )
        elif isinstance(node, ast.Attribute) and node.attr in ("lr", "learning_rate"):
            of = ast.unparse(node.value).rpartition(".")[2].lower()
            function = ast.unparse(ups[1].func) if isinstance(ups[1], ast.Call) else ""
            function = ast.unparse(ups[0].func) if isinstance(ups[0], ast.Call) else function
            written = isinstance(node.ctx, ast.Store) or re.search(
                r"\.(assign|set_value)$", function
            )
            found = of in ("optimizer", "opt", "optim") and bool(written)
        owners = [
            name
            for up in ups
            if isinstance(up, ast.ClassDef)
            for name in (up.name, *map(ast.unparse, up.bases))
        ]
        if found and not any(re.search(r"(Scheduler|Optimizer|LR)$", name) for name in owners):
            yield (
                node,
                "the learning rate is set by hand; use a scheduler, which is saved and resumed",
            )


@rule("DET203")
def fixed_path(module: Module, sources: Sources) -> Iterator[tuple[ast.AST, str]]:
    """A place of one machine, or a bucket, is written in the code.

    Elsewhere nothing is there, and what the experiment was trained on is seen in the code alone.
    Put it into `data` of the configuration, and read it by `context.get_data_config()`.
    """
    for node, text in _texts(module, _PLACE):
        above = (up for up in module.around(node) if isinstance(up, ast.Call))
        if not any(getattr(up.func, "attr", "") in _NO_PLACE for up in above):
            yield (
                node,
                f"the path {text!r} is fixed in the code; read it from `data` of the configuration",
            )


@rule("DET204")
def batch_size_ignored(module: Module, sources: Sources) -> Iterator[tuple[ast.AST, str]]:
    """The configuration says `global_batch_size`, and the training data has another batch size.

    Lengths are counted with the one, training runs with the other, and a search over it changes
    nothing. Give the loader `context.get_per_slot_batch_size()`, or take `global_batch_size` out of
    the configuration.
    """
    if "global_batch_size" not in sources.config.hyperparameters:
        return
    asked = any(re.search("(per_slot|global)_batch_size", each.text) for each in sources.modules)
    for call, name in module.calls():
        functions = " ".join(up.name for up in module.around(call) if isinstance(up, FUNCTION))
        trains = re.search(r"build_training_data_loader|train_dataloader", functions)
        shuffles = any(
            each.arg == "shuffle" and module.value(each.value) is True for each in call.keywords
        )
        if (
            name.endswith("DataLoader")
            and (trains or (shuffles and not asked))
            and not re.search("val|test|predict", functions)
        ):
            sizes = [keyword.value for keyword in call.keywords if keyword.arg == "batch_size"]
            for size in sizes or call.args[1:2]:
                if type(module.value(size)) is int or not asked:
                    yield (
                        size,
                        (
                            f"batches of {ast.unparse(size)}, not global_batch_size; use"
                            " context.get_per_slot_batch_size()"
                        ),
                    )


@rule("DET205")
def global_size_per_slot(module: Module, sources: Sources) -> Iterator[tuple[ast.AST, str]]:
    """The global batch size is given to a loader, of which each rank has one.

    On n ranks a step then takes n times the records that the configuration says. Give it
    `context.get_per_slot_batch_size()`, the global one divided by the number of ranks.
    """
    for call, name in module.calls():
        up = next((up for up in module.around(call) if isinstance(up, ast.Call)), None)
        if (
            name.endswith("get_global_batch_size")
            and up
            and re.search(r"(DataLoader|\.batch)$", ast.unparse(up.func))
        ):
            yield (
                call,
                "a loader takes the batch of one rank; use context.get_per_slot_batch_size()",
            )


@rule("DET301")
def shared_temporary(module: Module, sources: Sources) -> Iterator[tuple[ast.AST, str]]:
    """A directory for temporary files has a fixed name, the same for every rank and trial.

    Several processes of a machine write into it at once, and a trial reads what another left. Use
    `tempfile.TemporaryDirectory()`, or put the rank into the name.
    """
    for node, text in _texts(module, _TEMPORARY):
        if not re.search(r"\{.*(rank|pid|uuid|trial|tmp|temp).*\}", text, re.IGNORECASE):
            yield (
                node,
                (
                    f"{text!r} is shared by all ranks and trials of a machine; use tempfile, or"
                    " name it by rank"
                ),
            )


@rule("DET302", of=(Module, Text))
def path_edited(source: Text, sources: Sources) -> Iterator[tuple[ast.AST | tuple[int, int], str]]:
    """`PATH`, `PYTHONPATH` or `sys.path` is edited, in the code or in the startup hook.

    Which module or program is found then depends on the machine and on the order of imports. The
    directory of the code is importable as it is: keep modules there, and install what lies
    elsewhere.
    """
    way_out = "is edited; keep modules with the entrypoint, or install them"
    if not isinstance(source, Module):
        for number, line in enumerate(source.text.splitlines(), 1):
            if source.path == HOOK and (
                found := re.search(r"^\s*(?:export\s+)?(PATH|PYTHONPATH)=", line)
            ):
                yield (number, found.start(1) + 1), f"{found[1]} {way_out}"
        return
    for call, name in source.calls():
        if re.fullmatch(r"sys\.path\.(insert|append|extend)|site\.addsitedir", name):
            yield call, f"sys.path {way_out}"
        elif (
            name in ("os.putenv", "os.environ.setdefault")
            and call.args
            and source.value(call.args[0]) in _SEARCHED
        ):
            yield call, f"{source.value(call.args[0])} {way_out}"
    for node in source.parents:
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = source.dotted(node.value if isinstance(node, ast.Subscript) else node)
            key = (
                source.value(node.slice)
                if isinstance(node, ast.Subscript) and name == "os.environ"
                else name
            )
            if key in ("sys.path", *_SEARCHED):
                yield node, f"{key} {way_out}"


@rule("DET303", of=(Text,))
def unpinned_requirement(source: Text, sources: Sources) -> Iterator[tuple[tuple[int, int], str]]:
    """A requirement, in `requirements.txt` or in the startup hook, leaves its version open.

    The same experiment, run next month, trains with other libraries. Name the version
    (`torch==2.13.0`), a file or an URL; `pip freeze` and `uv pip compile` write such a list.
    """
    hook, exact = source.path == HOOK, re.compile(r"==(?!.*\*)|@|/|\.(whl|zip|gz|txt)$")
    if re.search(r"^\s*(-c|--constraint)\b", source.text, re.MULTILINE):
        return
    for number, line in enumerate(source.text.splitlines(), 1):
        if found := re.search(r"\bpip3? install\s+([^#;&|]*)" if hook else r"^([^#;]*)", line):
            words = list(re.finditer(r"[^\s\"']+", found[1]))
            for before, word in zip(
                ["", *(each[0] for each in words)], words if hook else words[:1], strict=False
            ):
                name = re.match(r"[A-Za-z][\w.-]*(\[[^]]*\])?", word[0])
                if (
                    name
                    and not exact.search(word[0] if hook else found[1].strip())
                    and not _TAKES.fullmatch(before)
                ):
                    place = number, found.start(1) + word.start() + 1
                    yield place, f"{name[0]} is not pinned; write {name[0]}==VERSION"


@rule("DET401")
def unseeded_randomness(module: Module, sources: Sources) -> Iterator[tuple[ast.AST, str]]:
    """A generator of random numbers is seeded by the clock or by the system.

    Each run draws other numbers, whatever the experiment's seed is. Draw from the global
    generators, which det seeds and saves for a trial class, or seed yours with
    `context.get_trial_seed()`.
    """
    makers = (
        r"random\.Random|numpy\.random\.(default_rng|RandomState|SeedSequence)"
        r"|(numpy\.)?random\.seed"
    )
    always = (
        r"random\.SystemRandom|torch\.(random\.)?seed"
        r"|tensorflow\.random\.Generator\.from_non_deterministic_state"
    )
    clock = re.compile(r"time\.time(_ns)?|os\.(urandom|getpid)|datetime\.\w*\.?(utc)?now")
    for call, name in module.calls():
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        inner = [
            module.dotted(n.func)
            for each in given
            for n in ast.walk(each)
            if isinstance(n, ast.Call)
        ]
        nothing = not given or (isinstance(given[0], ast.Constant) and given[0].value is None)
        up = module.parents[call]
        later = isinstance(up, ast.Assign) and any(
            f"{ast.unparse(t)}.seed(" in module.text for t in up.targets
        )
        makes = re.fullmatch(makers, name)
        from_clock = (makes or _SEEDS.fullmatch(name)) and any(map(clock.fullmatch, inner))
        if (re.fullmatch(always, name) or (makes and nothing) or from_clock) and not later:
            yield call, f"{name.lstrip('.')} has no seed of the experiment's; give it the trial's"


@rule("DET402")
def unseeded_script(module: Module, sources: Sources) -> Iterator[tuple[ast.AST, str]]:
    """A script imports a framework and seeds nothing.

    det seeds a trial class; a script does it itself, or each run begins with other weights. Call
    `torch.manual_seed`, `keras.utils.set_random_seed` or `seed_everything` with
    `info.trial.trial_seed`.
    """
    names = [name for each in sources.modules for _, name in each.calls()]
    if not sources.is_script or any(
        _SEEDS.fullmatch(name) or re.fullmatch(r"det_\w+\.init", name) for name in names
    ):
        return
    uses = [
        (each, node, name)
        for each in sources.modules
        for node in each.tree.body
        for name in imports(node)
    ]
    uses = [use for use in uses if use[2].partition(".")[0] in _FRAMEWORKS][:1]
    for _, node, name in (use for use in uses if use[0] is module):
        yield node, f"the script uses {name} and seeds nothing; seed it with info.trial.trial_seed"


def _texts(module: Module, pattern: re.Pattern[str]) -> Iterator[tuple[ast.expr, str]]:
    """Yield the texts whose beginning matches the pattern, except docstrings and keys.

    The text of an f-string has its fields in braces.
    """
    for node in module.parents:
        if isinstance(node, ast.Constant | ast.JoinedStr) and not isinstance(
            module.parents[node], _KEYS
        ):
            text = ast.unparse(node)[2:-1] if isinstance(node, ast.JoinedStr) else node.value
            if isinstance(text, str) and pattern.match(text):
                yield node, text
