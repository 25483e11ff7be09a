"""Work on several processes, on this machine or a cluster, through joblib."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from atcfuse.diagnostics import AtcfuseError, UsageError, error

BACKENDS = ("loky", "dask", "ray")
_NEEDS = {"loky": ("joblib",), "dask": ("joblib", "distributed"), "ray": ("joblib", "ray")}
_INSTALL = {"loky": "pip install joblib", "dask": "pip install 'atcfuse[dask]'", "ray": "pip install 'atcfuse[ray]'"}

Item = TypeVar("Item")
Found = TypeVar("Found")


def check_backend(backend: str) -> None:
    """Raises UsageError ATF181 where a package that the backend needs is not installed."""
    for name in _NEEDS[backend]:
        _package(name, backend)


def run_all(
    function: Callable[[Item], Found], items: Sequence[Item], jobs: int, backend: str = "loky"
) -> Iterator[Found | AtcfuseError]:
    """What a function, which raises nothing, gives for each item, in their order.

    `dask` and `ray` use the cluster that DASK_SCHEDULER_ADDRESS or RAY_ADDRESS names, else `jobs` processes here.
    Where a process dies, the items without a result are done once more, each alone; the one that kills its process
    again gives an error, ATF182.
    """
    joblib = _package("joblib", backend)
    with ExitStack() as opened:
        opened.enter_context(_connected(joblib, backend, jobs))
        done = 0
        try:
            parallel = joblib.Parallel(n_jobs=jobs, return_as="generator", pre_dispatch="2*n_jobs")
            for found in parallel(joblib.delayed(function)(item) for item in items):
                done += 1
                yield found
        except Exception:  # the pool's own: each backend has another one for a process that died
            for item in items[done:]:
                yield _alone(joblib, function, item)


def _alone(joblib: ModuleType, function: Callable[[Item], Found], item: Item) -> Found | AtcfuseError:
    try:
        found: Found = joblib.Parallel(n_jobs=2)([joblib.delayed(function)(item)])[0]
        return found
    except Exception as exc:  # as above
        hint = "memory may have run out: use fewer --jobs, or optimize it alone"
        what = f"the process that worked on it died ({type(exc).__name__})"
        return AtcfuseError(error("ATF182", what, hint=hint))


def _connected(joblib: ModuleType, backend: str, jobs: int) -> AbstractContextManager[Any]:
    """The backend in place, with a cluster of its own where none is named."""
    with ExitStack() as stack:
        if backend == "dask":
            distributed = _package("distributed", backend)
            address = os.environ.get("DASK_SCHEDULER_ADDRESS")
            own = {"n_workers": jobs, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
            stack.enter_context(distributed.Client(address) if address else distributed.Client(**own))
        elif backend == "ray":
            ray = _package("ray", backend)
            own = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": jobs, "include_dashboard": False}
            ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR", **own)
            stack.callback(ray.shutdown)
            import_module("ray.util.joblib").register_ray()
        stack.enter_context(joblib.parallel_config(backend=backend))
        return stack.pop_all()


def _package(name: str, backend: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as exc:
        hint = f"install it: {_INSTALL[backend]}"
        raise UsageError(error("ATF181", f"--backend {backend} needs the package {name}", hint=hint)) from exc
