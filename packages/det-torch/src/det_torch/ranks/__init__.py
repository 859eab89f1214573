"""Keeps several ranks of one trial in step: one gradient, one set of weights, one state of
training.
"""

from ._gradients import Gradients
from ._join import backend_of_script, join_ranks
from ._replicas import Replicas

__all__ = ["Gradients", "Replicas", "backend_of_script", "join_ranks"]
