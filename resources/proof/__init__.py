"""What must be shown of an engine before its vectors may be used.

Contract: `load` is the only door to an engine's vectors. It gives back a `ProvenEngine`, whose gather convention was
measured, proved and frozen, or raises with the evidence; there is no third way.
"""

from resources.proof.loading import load
from resources.proof.proven import ProvenEngine
from resources.proof.validation import ValidationReport

__all__ = ["ProvenEngine", "ValidationReport", "load"]
