# SPDX-License-Identifier: Apache-2.0
"""kvpool: a pool of the memory of many hosts, for blocks of KV cache. Start with Pool, or with AsyncPool in asyncio."""
from ._async import AsyncPool
from ._kvpool import ON_HOST, ON_SSD, PRESENT
from ._kvpool import version as __version__
from ._pool import Pool, Reservation, View
from .errors import (ClosedError, DeadlineError, Error, HeldError, InvalidError, NoSpaceError, NotFoundError,
                     UnreachableError)

__all__ = ["AsyncPool", "ClosedError", "DeadlineError", "Error", "HeldError", "InvalidError", "NoSpaceError", "NotFoundError",
           "ON_HOST", "ON_SSD", "PRESENT", "Pool", "Reservation", "UnreachableError", "View", "__version__"]
