"""Fusions from real models: what the gates, the tests and the benchmarks of fusewright run over.

Every entry has specs of realistic sizes and a small variant, of awkward sizes, for the simulator.
"""

from fusewright.corpus.activations import ACTIVATIONS
from fusewright.corpus.case import CaseArgument, CorpusCase
from fusewright.corpus.embeddings import EMBEDDINGS
from fusewright.corpus.losses import LOSSES
from fusewright.corpus.movement import MOVEMENT
from fusewright.corpus.normalisations import NORMALISATIONS
from fusewright.corpus.optimisers import OPTIMISERS
from fusewright.corpus.quantisation import QUANTISATION
from fusewright.corpus.softmaxes import SOFTMAXES
from fusewright.corpus.sums import SUMS

CORPUS: tuple[CorpusCase, ...] = (
    *NORMALISATIONS,
    *SOFTMAXES,
    *LOSSES,
    *ACTIVATIONS,
    *EMBEDDINGS,
    *OPTIMISERS,
    *QUANTISATION,
    *MOVEMENT,
    *SUMS,
)

__all__ = ["CORPUS", "CaseArgument", "CorpusCase"]
