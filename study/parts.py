"""The parts of the study by name."""

from . import adapo, chain_of_step, self_evolution, sophia, srpo

PARTS = {
    "adapo": adapo,
    "srpo": srpo,
    "chain_of_step": chain_of_step,
    "sophia": sophia,
    "self_evolution": self_evolution,
}
