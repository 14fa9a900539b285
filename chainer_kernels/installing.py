"""Puts kernels in place of Chainer's methods."""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any, Callable

from chainer_kernels import catalogue, memory, product_dtype, switch
from chainer_kernels.catalogue import KernelEntry

#: The attribute of a method in which its entry is, of the catalogue.
_MARK = "chainer_kernels_entry"

_warn_once = functools.cache(switch.warn_of_products)


def loaded(module: ModuleType) -> None:
    """Puts kernels into a module of Chainer that was just loaded, but once."""
    _warn_once()
    for entry in catalogue.by_module().get(module.__name__, ()):
        *owner, name = entry.name.split(".")
        place = getattr(module, owner[0]) if owner else module
        chainers = getattr(place, name)
        # One module may go by two names.
        if getattr(chainers, _MARK, None) == entry:
            continue
        is_method = isinstance(place, type)
        call = (
            _method(entry, place, chainers) if is_method else _function(entry, chainers)
        )
        call = functools.wraps(chainers)(call)
        setattr(call, _MARK, entry)
        setattr(place, name, call)


@functools.cache
def keep_product_dtypes() -> None:
    """Makes functions compute their backward in the dtype of products of their forward.

    Where all products have one dtype this is not needed.
    """
    for entry in catalogue.CATALOGUE:
        owner, _, method = entry.name.partition(".")
        if method and "{provider}" in entry.by:
            owner = getattr(importlib.import_module(entry.module), owner)
            # A link has no backward, and its functions record what they compute in.
            if hasattr(owner, "backward"):
                owner.backward = _in_recorded_dtype(owner.backward)


def _in_recorded_dtype(backward: Callable) -> Callable:
    @functools.wraps(backward)
    def call(self: Any, indexes: Any, grad_outputs: Any) -> Any:
        dtype = product_dtype.recorded(self)
        with product_dtype.scope(dtype):
            if dtype == product_dtype.FLOAT32:
                return backward(self, indexes, grad_outputs)
            products = importlib.import_module("chainer_kernels.functions.products")
            with products.rounding_once(grad_outputs):
                return backward(self, indexes, grad_outputs)

    return call


def _method(entry: KernelEntry, owner: type, chainers: Callable) -> Callable:
    """Returns a method that calls a kernel, and Chainer's where there is none."""
    kernel = _Kernel(entry)

    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        # A subclass may do anything between, and expect anything.
        if type(self) is owner and switch.is_ours():
            result = kernel(self, *arguments, **options)
            if result is not NotImplemented:
                return result
        return chainers(self, *arguments, **options)

    return call


def _function(entry: KernelEntry, chainers: Callable) -> Callable:
    kernel = _Kernel(entry)

    def call(*arguments: Any, **options: Any) -> Any:
        if switch.is_ours():
            result = kernel(*arguments, **options)
            if result is not NotImplemented:
                return result
        return chainers(*arguments, **options)

    return call


class _Kernel:
    """A kernel that is loaded when it is called first."""

    def __init__(self, entry: KernelEntry) -> None:
        self._entry = entry

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._loaded(*arguments, **options)

    @functools.cached_property
    def _loaded(self) -> Callable:
        memory.keep_freed()
        return self._entry.load()
