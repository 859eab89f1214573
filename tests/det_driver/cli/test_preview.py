"""`det preview`, as a person types it."""

from __future__ import annotations

import pytest

PNG = b"\x89PNG"
SEARCH = """
entrypoint: model_def:Trial
hyperparameters:
  lr: {type: log, minval: -5, maxval: 0}
  global_batch_size: 32
records_per_epoch: 3200
searcher: {name: adaptive_asha, metric: loss, max_trials: 16, max_length: {epochs: 16}, max_concurrent_trials: 4}
"""


@pytest.fixture
def search(det):
    det.cwd.joinpath("search.yaml").write_text(SEARCH)
    return det.cwd / "search.yaml"


def test_preview_counts_trials_per_length_and_total_batches(det, search):
    found = det.json("preview", search, "--slots", "4")
    assert found["trials"] == 16
    assert sum(row["trials"] for row in found["reached"]) == 16
    assert found["unit"] == "epochs"
    assert found["reached"][-1] == {
        "length": 16,
        "batches": 1600,
        "trials": found["reached"][-1]["trials"],
    }
    assert found["units"] == sum(row["length"] * row["trials"] for row in found["reached"])
    assert found["batches"] == 100 * found["units"]
    assert not det.home.exists()
    assert det.json("preview", search, "--slots", "4", "--seed", "0") == found
    assert det.json("preview", search, "--slots", "4", "--seed", "1") != found


def test_slots_are_shared_by_trials_of_several(det, search):
    alone = det.json("preview", search, "--slots", "1")
    assert (alone["trials_at_once"], alone["makespan"]) == (1, alone["units"])
    pairs = det.json("preview", search, "--slots", "5", "-c", "resources.slots_per_trial=2")
    assert pairs["trials_at_once"] == 2
    assert pairs["units"] / 2 <= pairs["makespan"] < alone["makespan"]


def test_it_says_so_in_words(det, search):
    out = det("preview", search, "--slots", "2").stdout
    assert out.startswith("adaptive_asha makes 16 trials\n")
    assert "on 2 slots, 1 for a trial: up to 2 trials at once" in out
    assert "epochs (" in out


def test_a_trial_that_has_no_length_ends_by_itself(det):
    det.cwd.joinpath("c.yaml").write_text(
        "entrypoint: 'true'\nsearcher: {name: random, metric: e, max_trials: 3}\n"
    )
    assert det.json("preview", "c.yaml")["reached"] == [
        {"length": None, "batches": None, "trials": 3}
    ]
    assert "until it ends" in det("preview", "c.yaml").stdout


def test_preview_omits_batches_without_records_per_epoch(det, search):
    search.write_text(SEARCH.replace("records_per_epoch: 3200\n", ""))
    assert det.json("preview", search)["batches"] is None


def test_a_custom_searcher_is_found_beside_the_configuration(det):
    det.cwd.joinpath("mine.py").write_text(
        "from det_driver.search import Close, Create, Searcher, Train\nclass Two(Searcher):\n   "
        " def __init__(self, config, hyperparameters, seed): pass\n    def start(self): return [op"
        " for t in (0, 1) for op in (Create(t, {}, t), Train(t, 5))]\n    def validated(self,"
        " trial, length, metrics): return [Close(trial)]\n    def exited(self, trial, reason):"
        " return []\n    def progress(self, trial_progress): return 0.0\n    def state(self):"
        " return {}\n    def restore(self, state): pass\n"
    )
    det.cwd.joinpath("c.yaml").write_text(
        "entrypoint: 'true'\nsearcher: {name: custom, entrypoint: 'mine:Two', metric: e}\n"
    )
    assert det.json("preview", "c.yaml")["reached"] == [{"length": 5, "batches": 5, "trials": 2}]


@pytest.mark.sample
@pytest.mark.parametrize("trials", [8, 4000])
def test_plot_draws_the_lengths_and_the_schedule(det, search, trials):
    pytest.importorskip("matplotlib")
    out = det(
        "preview", search, "--plot", "search.png", "-c", f"searcher.max_trials={trials}"
    ).stdout
    assert "drawn in search.png" in out
    assert (det.cwd / "search.png").read_bytes().startswith(PNG)


def test_plot_into_a_file_of_no_known_kind_is_one_line(det, search):
    pytest.importorskip("matplotlib")
    done = det("preview", search, "--plot", "search.doc", status=2)
    assert done.stderr.startswith("det: cannot draw into search.doc: ")
    assert len(done.stderr.splitlines()) == 1


def test_plot_without_matplotlib_says_what_to_install(det, search, tmp_path):
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    hidden.joinpath("matplotlib.py").write_text(
        "raise ModuleNotFoundError('gone', name='matplotlib')\n"
    )
    done = det("preview", search, "--plot", "search.png", status=2, env={"PYTHONPATH": str(hidden)})
    assert (
        done.stderr
        == "det: --plot draws with matplotlib, which is not installed; pip install matplotlib\n"
    )


def test_too_few_slots_for_a_trial_is_one_line(det, search):
    done = det("preview", search, "--slots", "1", "-c", "resources.slots_per_trial=2", status=2)
    assert (
        done.stderr
        == "det: resources.slots_per_trial is 2, and there are 1 slots; give --slots 2 or more\n"
    )


def test_a_configuration_without_a_searcher_is_one_line(det):
    det.cwd.joinpath("c.yaml").write_text("entrypoint: 'true'\n")
    done = det("preview", "c.yaml", status=2)
    assert len(done.stderr.splitlines()) == 1
    assert "searcher" in done.stderr


def test_preview_shows_samples_and_how_many_constraints_refuse(det):
    det.cwd.joinpath("c.yaml").write_text(
        "entrypoint: 'true'\nsearcher: {name: random, metric: e, max_trials: 40, constraints:"
        " [hidden * layers <= 40]}\nhyperparameters:\n  hidden: {type: int, minval: 8, maxval: 64,"
        " log: true}\n  layers: {type: int, minval: 1, maxval: 4}\n  opt: {type: categorical, vals:"
        " [sgd, adam]}\n  momentum: {type: double, minval: 0, maxval: 1, when: {opt: sgd}}\n"
    )
    found = det.json("preview", "c.yaml")
    assert len(found["samples"]) == 5
    assert all(each["hidden"] * each["layers"] <= 40 for each in found["samples"])
    assert all(("momentum" in each) == (each["opt"] == "sgd") for each in found["samples"])
    assert found["drawn"] - found["refused"] == 40
    out = det("preview", "c.yaml").stdout
    assert f"constraints refused {found['refused']} of {found['drawn']} choices" in out
    assert "momentum" in out


def test_samples_without_a_seed_are_called_examples(det, search):
    """`det run` draws a seed, so that its trials have other hyperparameters."""
    drawn = (
        "hyperparameters of 5 trials, as examples; det run draws others, unless"
        " reproducibility.experiment_seed is set\n"
    )
    assert drawn in det("preview", search).stdout
    seeded = det("preview", search, "--config", "reproducibility.experiment_seed=1").stdout
    assert "\nhyperparameters of the first 5 trials\n" in seeded
