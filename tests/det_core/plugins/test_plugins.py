"""Plugins: found, checked, looked up by name, and called."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tests.support.distributions import lay_out

from det_core import (
    BackendRecord,
    CommandRecord,
    Framework,
    PluginConfig,
    PluginError,
    Plugins,
    SearcherRecord,
    Serial,
    hookimpl,
)
from det_core.hooks import ENTRY_POINT_GROUP, OURS, Found, discover


def framework(name: str, trial: str = "pkg:Trial") -> Any:
    """Return a plugin that registers one framework."""

    class Plugin:
        @hookimpl
        def det_frameworks(self) -> Iterator[Framework]:
            yield Framework(name=name, trial=trial, load=lambda: None)  # type: ignore[arg-type,return-value]

    return Plugin()


class Heard:
    """A plugin that takes two of five arguments."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @hookimpl
    def det_metrics_reported(self, batches: int, metrics: Any) -> None:
        self.seen.append((batches, metrics))


REPORT = {
    "experiment": None,
    "trial": None,
    "group": "training",
    "batches": 1,
    "metrics": {"loss": 1.0},
}


def plugins(**registered: object) -> Plugins:
    made = Plugins()
    for name, plugin in registered.items():
        made.register(plugin, name)
    return made


def test_records_are_looked_up_by_name() -> None:
    assert plugins(a=framework("torch")).frameworks()["torch"].trial == "pkg:Trial"


def test_missing_framework_error_says_what_to_install() -> None:
    """It also lists the installed frameworks and suggests a similar name."""
    with pytest.raises(
        PluginError,
        match=(
            r"no plugin registers the framework 'lightning'; installed: keras, torch\. Try: python3"
            r" -m pip install .*det-"
        ),
    ):
        plugins(a=framework("torch"), b=framework("keras")).frameworks()["lightning"]
    # A package of that name would be a stranger's.
    with pytest.raises(
        PluginError, match=r"no plugin registers the framework 'jax'; installed: keras, torch$"
    ):
        plugins(a=framework("torch"), b=framework("keras")).frameworks()["jax"]
    with pytest.raises(
        PluginError, match=r"'kreas'; did you mean 'keras'\? installed: keras, torch$"
    ):
        plugins(a=framework("torch"), b=framework("keras")).frameworks()["kreas"]


def test_a_missing_searcher_says_what_is_installed() -> None:
    with pytest.raises(
        PluginError, match=r"no plugin registers the searcher 'luck'; installed: none$"
    ):
        Plugins().searchers()["luck"]


def test_an_observer_takes_the_arguments_that_it_wants() -> None:
    heard = Heard()
    plugins(heard=heard).observe("det_metrics_reported", **REPORT)
    assert heard.seen == [(1, {"loss": 1.0})]


def test_every_kind_of_record_has_its_lookup() -> None:
    class Everything:
        @hookimpl
        def det_searchers(self) -> Any:
            return [SearcherRecord(name="luck", make=print)]

        @hookimpl
        def det_commands(self) -> Any:
            return [CommandRecord(name="dance", load=lambda: None)]  # type: ignore[arg-type,return-value]

        @hookimpl
        def det_plugin_configs(self) -> Any:
            return [PluginConfig(name="luck", config=lambda: dict)]

        @hookimpl
        def det_backends(self) -> Any:
            return [
                BackendRecord(name="native", load=lambda: Serial, framework=f)
                for f in ("torch", "keras")
            ]

    made = plugins(everything=Everything())
    assert list(made.searchers()) == ["luck"]
    assert list(made.commands()) == ["dance"]
    assert list(made.plugin_configs()) == ["luck"]
    assert [backend.framework for backend in made.backends()] == ["torch", "keras"]
    assert (made.storages(), made.launchers(), made.engines()) == ({}, {}, {})


def test_builtins_come_through_the_hooks_of_strangers() -> None:
    made = Plugins()
    made.load(found for found in discover() if found.distribution in OURS)
    assert {"single", "random", "grid"} <= set(made.searchers())
    assert "shared_fs" in made.storages()
    assert {info.distribution for info in made.infos} == set(OURS)


def test_plugin_class_is_instantiated_once_per_plugins_object() -> None:
    class Observer:
        def __init__(self) -> None:
            self.heard: list[Any] = []

        @hookimpl
        def det_metrics_reported(self, batches: int) -> None:
            self.heard.append(batches)

    class Entry:
        name = "observer"

        def load(self) -> type:
            return Observer

    made = [Plugins(strict=True) for _ in range(2)]
    for each in made:
        each.load([Found(entry=Entry(), distribution="stranger", version="1")])  # type: ignore[arg-type]
    made[0].observe(
        "det_metrics_reported", experiment=None, trial=None, group="training", batches=5, metrics={}
    )
    heard = [
        next(p for p in each._pm.get_plugins() if isinstance(p, Observer)).heard for each in made
    ]
    assert heard == [[5], []]


# The trial's framework


class Base:
    pass


Base.__module__ = "torchlike.trial"
Base.__qualname__ = "Trial"


class Special(Base):
    pass


Special.__module__ = "special"
Special.__qualname__ = "SpecialTrial"


class Mine(Special):
    pass


def test_a_trials_framework_is_that_of_its_nearest_base() -> None:
    """A plugin may stand on another's trial class."""
    made = plugins(
        a=framework("torchlike", "torchlike:Trial"), b=framework("special", "special:SpecialTrial")
    )
    assert made.framework_of(Mine).name == "special"
    assert made.framework_of(type("Other", (Base,), {})).name == "torchlike"


def test_a_name_alone_makes_no_trial() -> None:
    """A class of the same name in another package is not the framework's."""
    made = plugins(a=framework("torchlike", "elsewhere:Trial"))
    with pytest.raises(
        PluginError,
        match=(
            r"special\.SpecialTrial is not a trial of an installed framework; .*: elsewhere\.Trial,"
        ),
    ):
        made.framework_of(Special)


def test_no_framework_at_all_says_so() -> None:
    with pytest.raises(PluginError, match="derive it from one of: none, or install its plugin"):
        Plugins().framework_of(Mine)


# Build hooks


class Builder:
    """A framework's plugin that wraps what is built in its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    @hookimpl
    def det_frameworks(self) -> Iterator[Framework]:
        yield Framework(name=self.name, trial="pkg:Trial", load=lambda: None)  # type: ignore[arg-type,return-value]

    @hookimpl
    def det_build_model(self, build: Callable[[], Any]) -> Any:
        return f"{self.name}({build()})"

    @hookimpl
    def det_build_data_loader(self, build: Callable[[], Any], split: str) -> Any:
        return f"{self.name}:{split}({build()})"


class Compile:
    """A stranger that wraps the model of any framework."""

    @hookimpl(wrapper=True)
    def det_build_model(self, context: Any) -> Any:
        model = yield
        return f"compiled[{context}]({model})"


def test_only_the_trials_own_framework_builds() -> None:
    made = plugins(torch=Builder("torch"), keras=Builder("keras"))
    assert made.build("torch").model("ctx", lambda: "net") == "torch(net)"
    assert made.build("keras").model("ctx", lambda: "net") == "keras(net)"
    assert (
        made.build("keras").data_loader("ctx", lambda: "data", "training") == "keras:training(data)"
    )


def test_a_stranger_may_wrap_every_frameworks_build_hooks() -> None:
    made = plugins(torch=Builder("torch"), compile=Compile(), keras=Builder("keras"))
    assert made.build("torch").model("ctx", lambda: "net") == "compiled[ctx](torch(net))"


def test_a_stranger_that_comes_later_is_called_too() -> None:
    made = plugins(torch=Builder("torch"))
    assert made.build("torch").model("ctx", lambda: "net") == "torch(net)"
    made.register(Compile(), "compile")
    assert made.build("torch").model("ctx", lambda: "net") == "compiled[ctx](torch(net))"


def test_another_frameworks_wrapper_stays_out() -> None:
    class Wrapping(Builder):
        @hookimpl(wrapper=True)
        def det_build_optimizer(self) -> Any:
            optimizer = yield
            return f"horovod({optimizer})"

    class Plain(Builder):
        @hookimpl
        def det_build_optimizer(self, build: Callable[[], Any]) -> Any:
            return build()

    made = plugins(keras=Wrapping("keras"), torch=Plain("torch"))
    assert made.build("torch").optimizer("ctx", lambda: "sgd") == "sgd"


@pytest.mark.parametrize("part", ["model", "optimizer", "lr_scheduler"])
def test_what_nobody_builds_is_as_the_user_built_it(part: str) -> None:
    """A framework that has no learning-rate schedulers need not say so."""
    build = plugins(torch=framework("torch")).build("torch")
    assert getattr(build, part)("ctx", lambda: "mine") == "mine"
    assert build.data_loader("ctx", lambda: "mine", "training") == "mine"


def test_what_is_built_as_nothing_is_built_once() -> None:
    """A trial may have no learning-rate scheduler.

    A hook that answers None has asked for it already.
    """

    class Plugin(Builder):
        @hookimpl
        def det_build_lr_scheduler(self, build: Callable[[], Any]) -> Any:
            return build()

    built: list[None] = []
    assert (
        plugins(torch=Plugin("torch"))
        .build("torch")
        .lr_scheduler("ctx", lambda: built.append(None))
        is None
    )
    assert len(built) == 1


def test_what_nobody_builds_may_still_be_wrapped() -> None:
    made = plugins(torch=framework("torch"), compile=Compile())
    assert made.build("torch").model("ctx", lambda: "net") == "compiled[ctx](net)"


# Broken plugins, in eight ways


def found(plugin: Any, name: str = "broken") -> Found:
    """Return an entry point that loads `plugin`, or raises it."""

    def load() -> Any:
        if isinstance(plugin, Exception):
            raise plugin
        return plugin

    entry = SimpleNamespace(name=name, load=load)
    return Found(entry=entry, distribution=f"det-{name}", version="0.1")  # type: ignore[arg-type]


class WrongRecord:
    @hookimpl
    def det_frameworks(self) -> Any:
        yield {"name": "torch"}


class UnknownArgument:
    @hookimpl
    def det_metrics_reported(self, metric: Any) -> None:
        pass


class Misspelt:
    @hookimpl
    def det_framework(self) -> Any:
        return []


class RaisesWhenAsked:
    @hookimpl
    def det_frameworks(self) -> Any:
        raise RuntimeError("no licence")


class NotIterable:
    @hookimpl
    def det_frameworks(self) -> Any:
        return 5


def newer() -> Exception:
    """What a plugin that was made for a newer core says when it is imported."""
    try:
        exec("from det_core import NotYetThere", {})
    except ImportError as error:
        return error
    raise AssertionError


BROKEN = {
    "import error": (
        ImportError("No module named 'torch'"),
        r"ImportError: No module named 'torch'",
    ),
    "wrong record": (
        WrongRecord(),
        r"plugin 'broken' yields \{'name': 'torch'\} from det_frameworks; yield det_core.Framework",
    ),
    "duplicate name": (
        framework("good"),
        "plugins 'broken' and 'good' both register the framework 'good'; uninstall one of them",
    ),
    "unknown argument": (
        UnknownArgument(),
        "plugin 'broken' does not fit this version of det-core: .*'metric'",
    ),
    "misspelt hook": (
        Misspelt(),
        "plugin 'broken' implements det_framework, which is no hook; did you mean 'det_frameworks",
    ),
    "old core": (newer(), "ImportError: cannot import name 'NotYetThere' from 'det_core'"),
    "raises": (RaisesWhenAsked(), "RuntimeError: no licence"),
    "not iterable": (
        NotIterable(),
        "plugin 'broken' yields 5 from det_frameworks; yield det_core.Framework",
    ),
}


@pytest.mark.parametrize(("plugin", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_is_named_and_skipped(plugin: Any, message: str) -> None:
    """And everything else works."""
    warnings: list[str] = []
    made = Plugins(warn=warnings.append)
    heard = Heard()
    made.load([found(framework("good"), "good"), found(plugin), found(heard, "heard")])
    assert list(made.frameworks()) == ["good"]
    made.observe("det_metrics_reported", **REPORT)
    assert len(heard.seen) == 1
    (warning,) = warnings
    assert "\n" not in warning
    assert warning.startswith("skipped plugin 'broken' of det-broken 0.1: ")
    assert warning.endswith("; set DET_STRICT_PLUGINS=1 to raise")
    with pytest.raises(PluginError, match=message):
        raise PluginError(warning)
    problems = {info.name: info.problem for info in made.infos}
    assert [name for name, problem in problems.items() if problem] == ["broken"]


@pytest.mark.parametrize(("plugin", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_plugin_raises_where_plugins_are_strict(plugin: Any, message: str) -> None:
    """With its own exception, whose traceback its author needs."""
    made = Plugins(strict=True)
    made.register(framework("good"), "good")
    with pytest.raises((PluginError, RuntimeError, ImportError)) as raised:
        made.load([found(plugin)])
    told = (
        str(raised.value)
        if isinstance(raised.value, PluginError)
        else f"{raised.typename}: {raised.value}"
    )
    assert re.search(message, told, re.DOTALL)


def test_framework_whose_load_raises_fails_only_when_used() -> None:
    """Other frameworks train, and its own error says what is missing."""

    def load() -> Any:
        raise ImportError("libcudart.so.12: cannot open shared object file")

    class Plugin:
        @hookimpl
        def det_frameworks(self) -> Any:
            yield Framework(name="torch", trial="pkg:Trial", load=load)

    made = plugins(torch=Plugin(), good=framework("good"))
    assert made.frameworks()["good"].load() is None
    with pytest.raises(ImportError, match="libcudart"):
        made.frameworks()["torch"].load()


class Raises:
    @hookimpl
    def det_metrics_reported(self) -> None:
        raise ValueError("disk on fire")


def test_an_observer_that_raises_is_named_and_the_others_hear() -> None:
    warnings: list[str] = []
    made, first, last = Plugins(warn=warnings.append), Heard(), Heard()
    for name, plugin in (("first", first), ("bad", Raises()), ("last", last)):
        made.register(plugin, name)
    made.observe("det_metrics_reported", **REPORT)
    assert (len(first.seen), len(last.seen)) == (1, 1)
    (warning,) = warnings
    assert warning.startswith(
        "observer 'bad' failed in det_metrics_reported: ValueError: disk on fire ("
    )
    assert Path(__file__).name in warning
    assert warning.endswith("; the experiment goes on")


def test_observer_error_is_raised_where_plugins_are_strict() -> None:
    made = Plugins(strict=True)
    made.register(Raises(), "bad")
    with pytest.raises(ValueError, match="disk on fire"):
        made.observe("det_metrics_reported", **REPORT)


def test_an_observer_that_wraps_is_refused() -> None:
    """There is nothing to wrap: observers are told after the fact, each on its own."""

    class Wrapper:
        @hookimpl(wrapper=True)
        def det_metrics_reported(self) -> Any:
            return (yield)

    with pytest.raises(
        PluginError,
        match="plugin 'wrapper' wraps det_metrics_reported, which is called after the fact;",
    ):
        plugins(wrapper=Wrapper())


def test_a_name_is_taken_once() -> None:
    made = plugins(a=framework("x"))
    with pytest.raises(PluginError, match="plugin 'a' does not fit"):
        made.register(framework("y"), "a")
    assert list(made.frameworks()) == ["x"]


def test_a_plugin_that_was_refused_leaves_nothing_behind() -> None:
    made = plugins(a=framework("x"))
    with pytest.raises(PluginError, match="both register"):
        made.register(framework("x"), "b")
    made.register(framework("y"), "b")
    assert sorted(made.frameworks()) == ["x", "y"]


def test_one_plugin_must_not_register_a_name_twice() -> None:
    class Twice:
        @hookimpl
        def det_searchers(self) -> Any:
            return [SearcherRecord(name="luck", make=print), SearcherRecord(name="luck", make=repr)]

    with pytest.raises(PluginError, match="plugin 'twice' registers the searcher 'luck' twice"):
        plugins(twice=Twice())


def test_tracing_prints_every_hook_call(capsys: pytest.CaptureFixture[str]) -> None:
    made = Plugins(trace=True)
    made.register(framework("torch"), "torch")
    made.frameworks()
    assert "det_frameworks" in capsys.readouterr().err


def test_tracing_prints_observers_too(capsys: pytest.CaptureFixture[str]) -> None:
    made = Plugins(trace=True)
    made.register(Heard(), "heard")
    made.observe("det_metrics_reported", **REPORT)
    assert "det_metrics_reported" in capsys.readouterr().err


def test_warnings_go_to_stderr_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Plugins().load([found(ImportError("no"))])
    assert capsys.readouterr().err.startswith(
        "det: skipped plugin 'broken' of det-broken 0.1: ImportError: no"
    )


def test_infos_say_what_is_there() -> None:
    made = Plugins()
    made.register(Heard(), "heard", distribution="det-heard", version="1.2")
    (info,) = made.infos
    assert (info.name, info.distribution, info.version, info.hooks) == (
        "heard",
        "det-heard",
        "1.2",
        ("det_metrics_reported",),
    )


@pytest.mark.process
def test_installed_plugins_are_found_by_their_entry_points(tmp_path: Path) -> None:
    """A distribution with an entry point of the group `det`, and one that does not import."""
    (tmp_path / "det_jax_hooks.py").write_text(
        "from det_core import Framework, hookimpl\n\n@hookimpl\ndef det_frameworks():\n"
        "    yield Framework(name='jax', trial='det_jax:JaxTrial', load=lambda: None)\n"
    )
    info = tmp_path / "det_jax-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: det-jax\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text(
        "[det]\njax = det_jax_hooks\nrotten = det_rotten._hooks\n"
    )
    code = "from det_core import Plugins; p = Plugins.installed(); print('jax' in p.frameworks())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "True"
    assert (
        "det: skipped plugin 'rotten' of det-jax 0.3: ModuleNotFoundError: No module named"
        " 'det_rotten'" in done.stderr
    )


def test_discovery_imports_nothing() -> None:
    assert all(
        isinstance(each.entry, EntryPoint) and each.entry.group == ENTRY_POINT_GROUP
        for each in discover()
    )


def test_what_was_installed_since_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found is kept until a directory of the path changes."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = [*discover()]
    assert [*discover()] == before
    lay_out(tmp_path, "det-later", entry_points={"later": "later:Plugin"})
    assert {each.entry.name for each in discover()} - {each.entry.name for each in before} == {
        "later"
    }
    shutil.rmtree(tmp_path / "det_later-1.0.dist-info")
    assert [*discover()] == before


def test_a_module_is_a_plugin() -> None:
    module = ModuleType("hooks")
    module.det_frameworks = hookimpl(
        lambda: [Framework(name="jax", trial="a:B", load=lambda: None)]
    )  # type: ignore[attr-defined,arg-type,return-value]
    assert list(plugins(jax=module).frameworks()) == ["jax"]
