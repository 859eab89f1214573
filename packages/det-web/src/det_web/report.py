"""`det report`: one HTML file with the results of an experiment, which loads nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import click

from det_core.config import from_json
from det_core.errors import DetError
from det_driver.cli import Settings, shown_time
from det_driver.client import FEWEST_TRIALS, Client, Experiment, Mattered
from det_driver.config import to_yaml
from det_driver.store import ExperimentSummary, Store

_MOST_TRIALS = 1000
_MOST_CURVES = 20
_MOST_POINTS = 500
# The edge has room for a label of twelve characters, such as -1.23457e-05.
_WIDE, _HIGH, _EDGE = 800, 300, 96
_STYLE = """
:root{color-scheme:light dark;font:14px/1.45 system-ui,sans-serif}
body{max-width:1000px;margin:24px auto;padding:0 16px;overflow-wrap:break-word}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:3px 12px 3px 0;border-bottom:1px solid #8884;text-align:left}
td.n,th.n{text-align:right}
pre{overflow:auto;padding:8px;border:1px solid #8884}
svg{max-width:100%;height:auto}svg text{fill:currentColor;font-size:12px}
.best{font-size:30px;font-weight:700}.wide{overflow-x:auto}
"""
_HUES = (217, 28, 158, 330, 48, 265, 190, 5)


@click.command()
@click.argument("experiment", type=int)
@click.option(
    "--html",
    "file",
    type=click.Path(path_type=Path),
    help="The file to write. By default report-EXPERIMENT.html.",
)
@click.pass_obj
def report(settings: Settings, experiment: int, file: Path | None) -> None:
    """Write what came of EXPERIMENT into one HTML file to send.

    It holds the best value, the curves of the best trials, the trials, what mattered, the note and
    the configuration with secrets masked. It has no scripts and loads nothing from elsewhere.
    """
    text = make_report(settings.home, experiment)
    file = file or Path(f"report-{experiment}.html")
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DetError(
            f"cannot write {file}: {error.strerror or error}; give a file in a directory there is"
        ) from error
    click.echo(f"the report of experiment {experiment} is in {file}")


def make_report(home: Path, id: int) -> str:
    """Return the report of an experiment as an HTML page without external resources."""
    experiment = Client(home).get_experiment(id)
    with Store.reader(home) as store:
        summary = store.experiments.summary(id)
        config = from_json(summary.experiment.config)
        best = store.trials.list(id, best_first=True, limit=_MOST_CURVES)
        curves = [
            (row.id, *store.metrics.series(row.id, "validation", summary.experiment.metric))
            for row in best
        ]
    name = escape(summary.experiment.name or f"experiment {id}")
    parts = [
        f"<h1>{name}</h1>",
        *_facts(summary),
        _curves(summary.experiment.metric, curves),
        _mattered(experiment.what_mattered()),
        _trials(experiment, summary),
        f"<h2>Configuration</h2><pre>{escape(to_yaml(config, masked=True))}</pre>",
    ]
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{name}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _facts(summary: ExperimentSummary) -> Iterable[str]:
    e = summary.experiment
    if summary.best_metric is not None:
        yield f'<p><span class="best">{_number(summary.best_metric)}</span> best {escape(e.metric)}'
        yield f" by trial {summary.best_trial}</p>"
    facts = [f"experiment {e.id}", str(e.state).lower(), f"{sum(summary.trials.values())} trials"]
    if e.started is not None:
        facts.append("began " + shown_time(e.started))
    if e.started is not None and e.ended is not None:
        facts.append(f"took {e.ended - e.started:.0f} s")
    facts += [f"labels: {', '.join(e.labels)}"] if e.labels else []
    yield f"<p>{escape(' · '.join(facts))}</p>"
    if e.reason:
        yield f"<p>{escape(e.reason)}</p>"
    if e.description:
        yield f"<h2>Note</h2><pre>{escape(e.description)}</pre>"


def _curves(metric: str, curves: Sequence[tuple[int, Sequence[float], Sequence[float]]]) -> str:
    drawn = [(id, _thinned(xs, ys)) for id, xs, ys in curves]
    drawn = [(id, points) for id, points in drawn if points]
    if not drawn:
        return ""
    every = [point for _, points in drawn for point in points]
    left, right = min(x for x, _ in every), max(x for x, _ in every)
    low, high = min(y for _, y in every), max(y for _, y in every)

    def place(x: float, y: float) -> str:
        across = _EDGE + (x - left) / ((right - left) or 1) * (_WIDE - _EDGE - 10)
        return f"{across:.1f},{10 + (high - y) / ((high - low) or 1) * (_HIGH - 40):.1f}"

    lines = [
        f'<polyline fill="none" stroke="hsl({_HUES[k % len(_HUES)]} 70% 50%)" stroke-width="1.5" '
        f'points="{" ".join(place(x, y) for x, y in points)}"><title>trial {id}</title></polyline>'
        for k, (id, points) in reversed([*enumerate(drawn)])
    ]
    texts = [
        f'<text x="{_EDGE - 6}" y="18" text-anchor="end">{_number(high)}</text>',
        f'<text x="{_EDGE - 6}" y="{_HIGH - 30}" text-anchor="end">{_number(low)}</text>',
        f'<text x="{_EDGE}" y="{_HIGH - 8}">{_number(left)}</text>',
        f'<text x="{_WIDE - 10}" y="{_HIGH - 8}" text-anchor="end">{_number(right)} batches</text>',
    ]
    caption = f"{escape(metric)} of the best {len(drawn)} trials"
    return (
        f'<h2>{caption}</h2><svg viewBox="0 0 {_WIDE} {_HIGH}" width="{_WIDE}" height="{_HIGH}"'
        f' role="img" aria-label="{caption}">{"".join(lines)}{"".join(texts)}</svg>'
    )


def _thinned(xs: Sequence[float], ys: Sequence[float]) -> list[tuple[float, float]]:
    """Return the finite points of a curve, at most about `_MOST_POINTS`, with the last one."""
    points = [(x, y) for x, y in zip(xs, ys, strict=True) if abs(y) < float("inf")]
    step = -(-len(points) // _MOST_POINTS) or 1
    return points[::step] + (points[-1:] if (len(points) - 1) % step else [])


def _mattered(found: Mattered) -> str:
    if found.shares:
        percents, rest = found.percents
        shares = {**percents, "interplay and chance": rest}
        at = f" at length {found.length}" if found.length is not None else ""
        rows = [(name, f"{share} %") for name, share in shares.items()]
        return f"<h2>What mattered</h2><p>Of {found.trials} trials{at}.</p>" + _table(
            ("", "share"), rows
        )
    if 1 < found.trials < FEWEST_TRIALS:
        return (
            f"<h2>What mattered</h2><p>Too few trials to tell: {found.trials} of"
            f" {FEWEST_TRIALS}.</p>"
        )
    return ""


def _trials(experiment: Experiment, summary: ExperimentSummary) -> str:
    table = experiment.table()
    c, sign = table.columns, 1 if summary.experiment.smaller_is_better else -1
    best = c["best_metric"]
    order = sorted(range(len(best)), key=lambda i: (best[i] is None, sign * (best[i] or 0.0)))
    heads = (
        "trial",
        "state",
        f"best {summary.experiment.metric}",
        "batches",
        *table.hparams,
        "why it failed",
    )
    rows = [
        (
            *(c["id"][i], str(c["state"][i]).lower(), best[i], c["batches"][i]),
            *(values[i] for values in table.hparams.values()),
            (c["exit_reason"][i] or "") if str(c["state"][i]) != "COMPLETED" else "",
        )
        for i in order[:_MOST_TRIALS]
    ]
    more = (
        f"<p>{len(order) - len(rows)} more trials are not listed.</p>"
        if len(order) > len(rows)
        else ""
    )
    return f"<h2>Trials</h2>{_table(heads, rows)}{more}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    # A heading is at the side at which the numbers of its column are.
    right = [
        any(_cell(row[k]).startswith('<td class="n"') for row in rows) for k in range(len(heads))
    ]
    head = "".join(
        f'<th class="n">{escape(each)}</th>' if numbers else f"<th>{escape(each)}</th>"
        for each, numbers in zip(heads, right, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        "<div"
        f' class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class="n">{_number(value)}</td>'
    return f"<td>{escape('' if value is None else str(value))}</td>"


def _number(value: float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
