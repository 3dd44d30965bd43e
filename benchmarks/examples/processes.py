"""A fit, or NUTS, in a fresh process with a time limit, and what of stored results has to be made anew."""

import hashlib
import inspect
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from examples.example import Example
from examples.measure import without_paths


def fresh(script: Path, part: str, name: str, seconds: float, cold: bool | None = None) -> dict[str, Any]:
    """``script --child part --only name``; what took more than so many CPU seconds is too slow.

    ``cold`` says whether it compiles everything: by default a fit does, and NUTS, which is only the measure, may find
    its programs on disk.
    """
    cold = part == "fit" if cold is None else cold
    environment = {**os.environ, **({"JAX_ENABLE_COMPILATION_CACHE": "false"} if cold else {})}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        command = [sys.executable, str(script), "--child", part, "--only", name, "--output", str(output)]
        done = subprocess.run(  # noqa: S603
            [*command, "--seconds", str(seconds)], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode == -signal.SIGXCPU:
            return {"slow": seconds}
        if not output.exists():
            lines = done.stderr.strip().splitlines()
            return {"died": done.returncode, "last": without_paths(lines[-1]) if lines else ""}
        return json.loads(output.read_text())


def limit(seconds: float) -> None:
    """End this process after so many CPU seconds, which don't depend on what else the machine does."""
    # The first limit sends SIGXCPU, by which `fresh` knows what happened; the second, if it were the same, kills first.
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))


def digest(example: Example) -> str:
    """Of the program and its data: NUTS has to run again when it changes."""
    text = inspect.getsource(getattr(example.model, "fn", example.model))
    if example.pooled is not None:
        text += inspect.getsource(example.pooled(example.clients())[0])
    found = hashlib.sha256(text.encode())
    for client, data in example.clients().items():
        for argument, value in data.items():
            array = value if isinstance(value, np.ndarray) else np.asarray(repr(value))
            found.update(repr((client, argument, array.shape, array.dtype.str)).encode() + array.tobytes())
    return found.hexdigest()[:16]


def measured(
    example: Example,
    before: Mapping[str, Any],
    script: Path,
    again: bool,
    reference: bool,
    seconds: float,
) -> dict[str, Any]:
    """The fit, and NUTS if there is a fit to compare; what is stored is kept unless it is asked for anew."""
    found = {"nuts": {}, **before}
    if again or "fit" not in found:
        found["fit"] = fresh(script, "fit", example.name, seconds)
    known = digest(example)
    if "mean" in found["fit"] and (reference or found["nuts"].get("digest") != known):
        found["nuts"] = {**fresh(script, "nuts", example.name, seconds), "digest": known}
    return found
