"""Registers numpy with det; imports det_core only."""

from det_core import Framework, hookimpl


@hookimpl
def det_frameworks():
    yield Framework(
        name="numpy", trial="det_numpy:NumpyTrial", load=_load, requires=("numpy>=1.24",)
    )


def _load():
    from .adapter import NumpyAdapter

    return NumpyAdapter
