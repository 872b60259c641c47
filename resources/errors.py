"""The errors of the pure core: few, flat, each message saying what was seen, what was expected and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resources.proof.validation import ValidationReport


class FabricError(Exception):
    """Base of every error that this project raises on purpose."""


class ConfigurationError(FabricError):
    """A setting, path or argument that the user can put right."""


class ProbeFileError(FabricError):
    """A probe file that cannot be read as a whole; a bad row is a refusal, not this."""


class CheckpointError(FabricError):
    """A checkpoint that cannot be read, or whose mathematics this project does not support."""


class EngineError(FabricError):
    """An engine that cannot be built, bound or run."""


class BrokerError(FabricError):
    """Work that no worker takes, or a broker that cannot be reached."""


class EngineRefused(EngineError):
    """An engine that ran but could not be proved; `report` holds the evidence."""

    def __init__(self, message: str, report: ValidationReport) -> None:
        super().__init__(message)
        self.report = report
