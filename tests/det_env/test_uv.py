"""What uv is told, and what of its words a person reads."""

from __future__ import annotations

from pathlib import Path

from det_env.uv import environ, pip_variables, sentence


def test_pips_indexes_are_uvs_unless_uv_is_told_others(tmp_path: Path) -> None:
    conf = tmp_path / "pip.conf"
    conf.write_text(
        "[global]\nindex-url = https://a/simple\nextra-index-url = https://b/simple\n "
        " https://c/simple\n"
    )
    base = {"PIP_CONFIG_FILE": str(conf), "PIP_FIND_LINKS": "/one /two", "HOME": str(tmp_path)}
    told = pip_variables(base)
    assert told["UV_DEFAULT_INDEX"] == "https://a/simple"
    assert told["UV_INDEX"] == "https://b/simple https://c/simple"
    assert told["UV_FIND_LINKS"] == "/one,/two"
    assert told["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert (
        environ({**base, "UV_DEFAULT_INDEX": "https://mine"}, tmp_path)["UV_DEFAULT_INDEX"]
        == "https://mine"
    )
    assert "UV_INDEX" not in environ(
        {**base, "UV_CONFIG_FILE": "/uv.toml", "XDG_CONFIG_HOME": str(tmp_path)}, tmp_path
    )


def test_uv_uses_its_own_cache_and_ignores_other_environments(tmp_path: Path) -> None:
    found = environ({"PATH": "/bin", "VIRTUAL_ENV": "/v", "PYTHONPATH": "/p"}, tmp_path)
    assert found["UV_CACHE_DIR"] == str(tmp_path / "uv")
    assert not found.keys() & {"VIRTUAL_ENV", "PYTHONPATH"}


def test_shims_of_pyenv_give_way_to_its_interpreters(tmp_path: Path) -> None:
    (tmp_path / "versions/3.12.1/bin").mkdir(parents=True)
    path = environ({"PATH": f"{tmp_path}/shims:/bin", "PYENV_ROOT": str(tmp_path)}, tmp_path)[
        "PATH"
    ]
    assert path == f"/bin:{tmp_path}/versions/3.12.1/bin"


def test_a_drawing_of_uvs_is_a_sentence() -> None:
    drawn = (
        "  × No solution found:\n  ╰─▶ Because six==99 is not there\n      and you require it.\n"
    )
    assert sentence(drawn) == "No solution found: Because six==99 is not there and you require it"
    assert sentence("warning: odd\nerror: no such file\n") == "no such file"
    assert sentence("") == "it does not say why"
