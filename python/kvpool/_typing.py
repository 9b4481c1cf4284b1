# SPDX-License-Identifier: Apache-2.0
"""Types of signatures. Key: text (encoded as UTF-8) or bytes. Memory: an object with the buffer protocol or DLPack.
Lineage: (sequence, parent, depth), kvpool_lineage_t. Group: an id, or (id, members, member), kvpool_group_t."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Literal, Optional, Protocol, Sequence, Tuple, Union

if TYPE_CHECKING:
    from typing_extensions import Buffer


class SupportsDLPack(Protocol):
    """A tensor, as of torch."""

    @property
    def __dlpack__(self) -> Callable[..., Any]: ...


Key = Union[str, bytes]
Memory = Union["Buffer", SupportsDLPack]
Parts = Union[Memory, Sequence[Memory]]
Lineage = Tuple[int, int, int]
Group = Union[Key, Tuple[Key, int, int]]
Pin = Optional[Literal["soft", "hard"]]
