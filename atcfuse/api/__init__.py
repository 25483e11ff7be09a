"""The Python API: a model in memory or a file through the whole way, and what came of it."""

from atcfuse.api.file import FileResult, KernelSink, Progress, optimize_file
from atcfuse.api.memory import Result, optimize, project_of, settled
from atcfuse.api.outputs import default_output, kernels_folder, report_files, sha256_of

__all__ = [
    "FileResult",
    "KernelSink",
    "Progress",
    "Result",
    "default_output",
    "kernels_folder",
    "optimize",
    "optimize_file",
    "project_of",
    "report_files",
    "settled",
    "sha256_of",
]
