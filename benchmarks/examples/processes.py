"""A fit, or NUTS, in a fresh process with a time limit, and what of stored results has to be made anew."""

import hashlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from examples.example import Example
from examples.measure import without_paths


def fresh(script: Path, part: str, name: str, seconds: float) -> dict[str, Any]:
    """``script --child part --only name``; what it could not finish in time is too slow."""
    # a first call compiles; NUTS is only the measure, and may find its programs on disk
    environment = {**os.environ, **({"JAX_ENABLE_COMPILATION_CACHE": "false"} if part == "fit" else {})}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        command = [sys.executable, str(script), "--child", part, "--only", name, "--output", str(output)]
        try:
            done = subprocess.run(  # noqa: S603
                [*command, "--seconds", str(seconds)],
                env=environment,
                timeout=seconds,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"slow": seconds}
        if not output.exists():
            lines = done.stderr.strip().splitlines()
            return {"died": done.returncode, "last": without_paths(lines[-1]) if lines else ""}
        return json.loads(output.read_text())


def digest(example: Example) -> str:
    """Of the program and its data: NUTS has to run again when it changes."""
    text = inspect.getsource(getattr(example.model, "fn", example.model))
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
    fits: bool,
    reference: bool,
    seconds: float,
) -> dict[str, Any]:
    """The fit, and NUTS if there is a fit to compare; what is stored is kept unless it is asked for anew."""
    found = {"nuts": {}, **before}
    if again or "fit" not in found:
        found["fit"] = fresh(script, "fit", example.name, seconds)
    known = digest(example)
    if not fits and "mean" in found["fit"] and (reference or found["nuts"].get("digest") != known):
        found["nuts"] = {**fresh(script, "nuts", example.name, seconds), "digest": known}
    return found


def of_nuts(nuts: Mapping[str, Any]) -> str:
    """The reference in a few words: its Monte Carlo error, and what is wrong with it."""
    if "digest" not in nuts:
        return ""
    if "mean" not in nuts:
        return "too slow" if nuts.get("slow") else f"failed: {nuts.get('last', '')}"
    words = f"{max(nuts['mcse']):.3f}, {max(nuts['mcse_sd']):.3f}; {nuts['seconds']:.0f} s"
    words += f"; R-hat {nuts['r_hat']:.2f}" if nuts["r_hat"] > 1.01 else ""
    return words + (f"; {nuts['diverging']} diverging" if nuts["diverging"] else "")
