"""What decoding carries from pass to pass: tensors with one entry for every row of a batch."""

from __future__ import annotations

import weakref

from torch import Tensor

from workers.decoding.sampling import stream_rows
from workers.models.cache import KVCache


class RowBuffers:
    """Tensors that change from pass to pass, each an attribute of its owner, and the KV caches of a
    batch.

    The first dimension counts captions, or rows of a transformer: every caption's conditional row,
    then every unconditional one. Owners assign new tensors to their attributes. If the buffers are
    `fixed`, `copy_back` copies these into the memory that the attribute had at first, so that a
    CUDA graph finds them; a batch that shrinks uses the front of it.
    """

    def __init__(self, size: int, *, fixed: bool) -> None:
        self.size = size
        self.capacity = size
        self.fixed = fixed
        # weak references, so that a batch, whose own tensors are here, is freed at once
        self._slots: list[tuple[weakref.ref[object], str]] = []
        self._memory: list[Tensor] = []  # if `fixed`, each attribute's memory at full size
        self._views: list[Tensor] = []  # the part of each memory that is in use
        self._caches: list[KVCache] = []

    def add(self, owner: object, *names: str) -> None:
        """Register attributes of `owner` that hold tensors."""
        for name in names:
            self._slots.append((weakref.ref(owner), name))
            if self.fixed:
                self._memory.append(getattr(owner, name).clone())
                self._views.append(self._memory[-1])
                setattr(owner, name, self._memory[-1])

    def add_cache(self, cache: KVCache) -> None:
        """Register a cache with the rows of the transformer."""
        self._caches.append(cache)

    def keep(self, indices: Tensor) -> None:
        """Keep only the captions at indices [n], in that order."""
        size = self.size
        self.size = len(indices)
        for cache in self._caches:
            cache.keep(stream_rows(indices, cache.rows // size, size))
        for owner, name in self._slots:
            x = getattr(owner(), name)
            setattr(owner(), name, x[stream_rows(indices, len(x) // size, size)])
        if self.fixed:
            self._set_views()
            self.copy_back()

    def copy_back(self) -> None:
        """If the tensors are `fixed`, copy what has been assigned since the last call into the
        fixed memory.

        Raises:
            ValueError: a tensor has another shape or dtype than at first.
        """
        if not self.fixed:
            return
        own = {memory.untyped_storage().data_ptr() for memory in self._memory}
        copies: list[tuple[Tensor, Tensor]] = []
        for (owner, name), view in zip(self._slots, self._views, strict=True):
            x = getattr(owner(), name)
            if x is view:
                continue
            if (x.shape, x.dtype) != (view.shape, view.dtype):
                was, now = (f"{part.dtype} {tuple(part.shape)}" for part in (view, x))
                raise ValueError(
                    f"{type(owner()).__name__}.{name} was {was} and became {now}: a CUDA graph "
                    "cannot hold it"
                )
            # one attribute's old value may be another's new one, so copy it first
            if x.untyped_storage().data_ptr() in own:
                x = x.clone()
            copies.append((view, x))
            setattr(owner(), name, view)
        for view, x in copies:
            view.copy_(x)

    def reset(self, size: int) -> None:
        """Use the first `size` captions' memory again, whatever has been kept or assigned. Only for
        `fixed` buffers.
        """
        for cache in self._caches:
            cache.resize(cache.capacity // self.capacity * size)
        self.size = size
        self._set_views()
        for (owner, name), view in zip(self._slots, self._views, strict=True):
            setattr(owner(), name, view)

    def _set_views(self) -> None:
        self._views = [
            memory[: len(memory) // self.capacity * self.size] for memory in self._memory
        ]
