"""Starts the process of each message at a node: a fork of one that has imported Flower already.

Flower's ``flower-superexec`` starts a new Python for each message, and that imports Flower, for more than a second of
work. Here :mod:`multiprocessing`'s server of forks imports it once. A fork has seen no other message: what one leaves
behind, another does not find.
"""

import multiprocessing
from importlib import import_module

from flwr.supercore.cli import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime.run_clientapp import run_clientapp

from fedbayes.flower.waits import ask_sooner

_LOOP = "flwr.supercore.superexec.run_superexec"


class Forks(SubprocessExecutor):
    """Has a fork handle each message, and leaves all else to Flower."""

    def __init__(self) -> None:
        self._server = multiprocessing.get_context("forkserver")
        self._server.set_forkserver_preload([__name__, "fedbayes.flower.client"])
        self._server.Process(target=int).start()  # so that the first message finds the server ready

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of a message."""
        if spec.task_type != TaskType.CLIENT_APP:
            return super().launch(spec)
        self._server.Process(target=handle, args=(spec,), daemon=True).start()
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Forget the processes that have ended."""
        multiprocessing.active_children()


def handle(spec: ExecutionSpec) -> None:
    """Handle one message, as ``flwr-clientapp`` does."""
    ask_sooner()
    run_clientapp(
        runtime_api_address=spec.runtime_api_address,
        token=spec.token,
        insecure=spec.insecure,
        certificates=validate_and_resolve_root_certificates(spec.root_certificates_path, spec.insecure),
        parent_pid=spec.parent_pid,
        runtime_dependency_install=spec.runtime_dependency_install,
    )


def main() -> None:
    """Run ``flower-superexec``, whose flags it takes."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        loop = import_module(_LOOP)
        loop.get_executor = lambda *_, **__: Forks()  # type: ignore[attr-defined]
    flower_superexec()
