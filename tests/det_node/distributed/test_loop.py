"""The loop on two ranks, in two processes, over the socket backend."""

from __future__ import annotations

import pytest

TRIAL = """
    from pathlib import Path
    from det_core import Adapter, Loop, RunLoop, Schedule, Every, Target, LocalHost, Progress

    class Counting(Adapter):
        batches_per_epoch = 10

        def __init__(self, c, pace, at_batch):
            self.c, self.pace, self.at_batch, self.seen = c, pace, at_batch, []

        @classmethod
        def create(cls, trial, run):
            raise NotImplementedError

        def train(self, loop):
            n = loop.done
            while True:
                n += 1
                self.at_batch(n)
                time.sleep(self.pace)
                if loop.step({"loss": float(n)}):
                    return

        def validate(self):
            self.seen.append(["validate", sum(self.c.allgather(1))])
            return {"val_loss": 1.0}

        def save(self, path):
            pass

        def load(self, path):
            pass

    def run(c, at_batch=lambda n: None, *, target=Target(n=50), host=None, pace=0.002, progress=None, **schedule):
        adapter, saves = Counting(c, pace, at_batch), []
        host = host or LocalHost(target)
        def save(progress):
            saves.append([progress.batches, progress.asked])
            return True
        loop = RunLoop(adapter, Schedule(**schedule), host, c, save, progress)
        holder.append((loop, host))
        if not loop.begin():
            adapter.train(loop)
        say({"stop": loop.stop.name, "batches": loop.progress.batches, "saves": saves, "validations": adapter.seen})

    holder = []
"""


def outcomes(processes, script, size=2):
    processes.start(TRIAL + script, size=size)
    return processes.finish()


def test_every_rank_completes_at_the_target(processes):
    first, second = outcomes(
        processes,
        """
    run(context(), validate=Every(20), checkpoint=Every(30), policy="none")
    """,
    )
    assert first == second
    assert first == [
        {
            "stop": "COMPLETED",
            "batches": 50,
            "saves": [[30, False], [50, False]],
            "validations": [["validate", 2]] * 3,
        }
    ]


def test_nothing_that_the_loop_says_is_pickled(processes):
    said = outcomes(
        processes,
        """
    from det_node.backends import _words
    del _words.pickle
    run(context(), validate=Every(20), checkpoint=Every(30))
    """,
    )
    assert [each["stop"] for rank in said for each in rank] == ["COMPLETED"] * 2


@pytest.mark.parametrize("who", [0, 1])
def test_a_preemption_of_one_rank_stops_all_at_the_same_batch(processes, who):
    (first,), (second,) = outcomes(
        processes,
        f"""
    def preempt(n):
        if n == 37 and rank == {who}:
            holder[0][1].preempted.raised = True
    run(context(), preempt, target=Target(n=100_000))
    """,
    )
    assert first == second
    assert first["stop"] == "PREEMPTED"
    assert first["saves"] == [[first["batches"], False]]
    assert 37 <= first["batches"] < 37 + 1000, "noticed within about a second of batches of 2 ms"


@pytest.mark.parametrize("who", [0, 1])
def test_stop_request_of_one_rank_stops_all_at_the_same_batch(processes, who):
    (first,), (second,) = outcomes(
        processes,
        f"""
    def ask(n):
        if n == 12 and rank == {who}:
            holder[0][0].request_stop()
    run(context(), ask, target=Target(n=100_000))
    """,
    )
    assert first == second
    assert first["stop"] == "USER_STOPPED"
    assert first["validations"] == [["validate", 2]]
    assert first["saves"] == [[first["batches"], True]]


def test_ranks_of_different_pace_keep_in_step(processes):
    """The chief is the slower one; the other must not run ahead of an agreement."""
    (first,), (second,) = outcomes(
        processes,
        """
    def preempt(n):
        if n == 30 and rank == 1:
            holder[0][1].preempted.raised = True
    run(context(), preempt, target=Target(n=100_000), pace=0.004 if rank == 0 else 0.0, report=Every(7))
    """,
    )
    assert first == second
    assert first["stop"] == "PREEMPTED"


def test_a_driver_that_the_chief_loses_stops_all(processes):
    (first,), (second,) = outcomes(
        processes,
        """
    from det_core import HostLost
    class Leaving(LocalHost):
        def validated(self, batches, metrics, length):
            if rank == 0 and batches == 20:
                raise HostLost("gone")
            return super().validated(batches, metrics, length)
    run(context(), host=Leaving(Target(n=50)), validate=Every(10))
    """,
    )
    assert first == second
    assert (first["stop"], first["batches"]) == ("PREEMPTED", 20)


def test_the_chiefs_answer_is_the_target_of_all(processes):
    (first,), (second,) = outcomes(
        processes,
        """
    class Climbing(LocalHost):
        def target(self):
            assert rank == 0, "the chief alone speaks with the driver"
            return super().target()
        def validated(self, batches, metrics, length):
            assert rank == 0, "the chief alone speaks with the driver"
            return Target(n=40 if batches < 40 else None, best=True)
    run(context(), host=Climbing(Target(n=15)))
    """,
    )
    assert first == second
    assert (first["stop"], first["batches"]) == ("COMPLETED", 40)


def test_stop_request_of_another_rank_survives_a_preemption(processes):
    """The checkpoint of that very batch must know that the trial has asked for its end."""
    (first,), (second,) = outcomes(
        processes,
        """
    def both(n):
        if n == 10:
            if rank == 1:
                holder[0][0].request_stop()
            else:
                holder[0][1].preempted.raised = True
    run(context(), both, target=Target(n=1000), checkpoint=Every(10))
    """,
    )
    assert first["stop"] == second["stop"] == "PREEMPTED"
    assert first["saves"][-1] == [first["batches"], True], "what a later run starts from"


def test_killed_rank_ends_the_loop_of_the_other_with_its_number(processes):
    processes.start(
        TRIAL
        + """
    def die(n):
        if n == 20 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        run(context(), die, target=Target(n=100_000), pace=0.001)
    except RankLost as error:
        say(error.rank)
    """
    )
    assert processes.hear(0) == 1
    assert processes.started[0].wait(timeout=10) == 0
