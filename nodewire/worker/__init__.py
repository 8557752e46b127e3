"""The capped process that hosts engines, as the daemon sees it. Nothing here imports torch but `serve`, in the worker.

worker = await WorkerProcess.start("kinds.k8843_worker", Limits(memory_bytes=2**31), readable=[blobs])
"""

from nodewire.worker.client import Hello, WorkerProcess

__all__ = ["Hello", "WorkerProcess"]
