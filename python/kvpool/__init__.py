# SPDX-License-Identifier: Apache-2.0
"""kvpool: a pool of the memory of many hosts, for blocks of KV cache. Start with Pool, or with AsyncPool in asyncio."""
import os as _os
import warnings as _warnings

from . import _wheels
from ._async import AsyncPool
from ._kvpool import ON_HOST, ON_SSD, PRESENT
from ._kvpool import version as __version__
from ._pool import Pool, Reservation, View
from .errors import (ClosedError, DeadlineError, DeniedError, Error, HeldError, InvalidError, NoSpaceError, NotFoundError,
                     UnreachableError)

__all__ = ["AsyncPool", "ClosedError", "DeadlineError", "DeniedError", "Error", "HeldError", "InvalidError", "NoSpaceError", "NotFoundError",
           "ON_HOST", "ON_SSD", "PRESENT", "Pool", "Reservation", "UnreachableError", "View", "__version__"]

if _other := _wheels.find_other(_os.path.dirname(_os.path.dirname(_os.path.abspath(__file__)))):
    _warnings.warn(_other, RuntimeWarning, stacklevel=2)
