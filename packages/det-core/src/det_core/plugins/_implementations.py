"""Whether what a plugin implements are hooks, with arguments that these give."""

from __future__ import annotations

import difflib
import inspect

import pluggy

from ..errors import PluginError


def check_implementations(pm: pluggy.PluginManager, plugin: object, name: str) -> None:
    """Refuse hooks that core does not have and arguments that a hook does not give, with those that there are."""
    known = [hook for hook in vars(pm.hook) if not hook.startswith("_")]
    for attribute in dir(plugin):
        options = pm.parse_hookimpl_opts(plugin, attribute)
        if options is None or options.get("optionalhook"):
            continue
        hook = options.get("specname") or attribute
        spec = getattr(getattr(pm.hook, hook, None), "spec", None)
        if spec is None:
            near = difflib.get_close_matches(hook, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise PluginError(_refusal(name, f"it has no hook {hook}{hint}"))
        given = [*spec.argnames, *spec.kwargnames]
        for argument, parameter in inspect.signature(getattr(plugin, attribute)).parameters.items():
            if argument not in given and parameter.default is parameter.empty:
                listed = ", ".join(given) or "nothing"
                raise PluginError(_refusal(name, f"{hook} does not give {argument!r}, but {listed}"))


def _refusal(name: str, why: str) -> str:
    return f"plugin {name!r} does not fit this version of det-core: {why}"
