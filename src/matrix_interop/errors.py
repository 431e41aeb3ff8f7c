"""Every error the library raises on purpose.

    MatrixInteropError
    +-- CopyRequiredError            (BufferError, ValueError)   sharing is impossible and copying was forbidden
    +-- UnsupportedTensorError       (BufferError, ValueError)   no plain memory behind the tensor
    +-- UnsupportedDtypeError        (TypeError)                 a data type that the target cannot hold
    +-- UnsupportedLayoutError       (ValueError)                rank, masks without a fill value
    +-- UnknownFrameworkError        (TypeError, ValueError)     neither a known name nor a known tensor
    +-- FrameworkNotInstalledError   (ImportError)               known, but not importable here
    +-- DeviceUnavailableError       (RuntimeError)              no such device, no driver, no runtime
    +-- PinnedLimitError             (MemoryError)               an arena reached its limit
    +-- FormatError                  (ValueError)                a file that contradicts its own header
    +-- ClosedError                  (ValueError)                used after close()

Each class also derives from the built-in that callers of NumPy, torch and the array API already
catch for the same cause.  The array API text asks for BufferError in one place and ValueError in
another when a copy would be needed: CopyRequiredError is both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matrix_interop.exchange.plan import CopyPlan

__all__ = [
    "ClosedError",
    "CopyRequiredError",
    "DeviceUnavailableError",
    "FormatError",
    "FrameworkNotInstalledError",
    "MatrixInteropError",
    "PinnedLimitError",
    "UnknownFrameworkError",
    "UnsupportedDtypeError",
    "UnsupportedLayoutError",
    "UnsupportedTensorError",
]


class MatrixInteropError(Exception):
    """Base of every error below; catch it to catch them all."""


class CopyRequiredError(MatrixInteropError, BufferError, ValueError):
    """Sharing is impossible and the caller forbade a copy.

    ``plan`` is the `CopyPlan` that would have been carried out, or None where the refusal comes
    from a protocol method that has no plan at hand.
    """

    def __init__(self, message: str, plan: CopyPlan | None = None) -> None:
        super().__init__(message)
        self.plan = plan


class UnsupportedTensorError(MatrixInteropError, BufferError, ValueError):
    """The tensor has no plain memory: meta, fake, freed, sparse, quantised, nested, traced."""


class UnsupportedDtypeError(MatrixInteropError, TypeError):
    """The data type cannot be carried to the target; the message names the ways out."""


class UnsupportedLayoutError(MatrixInteropError, ValueError):
    """The rank is not 2, or entries are masked or null and no ``fill`` was given."""


class UnknownFrameworkError(MatrixInteropError, TypeError, ValueError):
    """A framework name nobody registered, or an object that offers no known protocol."""


class FrameworkNotInstalledError(MatrixInteropError, ImportError):
    """The framework is known but cannot be imported; the message holds the install command."""


class DeviceUnavailableError(MatrixInteropError, RuntimeError):
    """No such device here: no driver, no runtime library, or an ordinal out of range."""


class PinnedLimitError(MatrixInteropError, MemoryError):
    """An arena cannot give a block within its limit; the message holds the arena's figures."""


class FormatError(MatrixInteropError, ValueError):
    """A file whose bytes contradict its header or its format."""


class ClosedError(MatrixInteropError, ValueError):
    """A reader, row source, arena or builder was used after it was closed."""
