"""Which code a site runs: where its worker finds that code, and a fingerprint that changes with it."""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_KINDS = ("*.py", "*.json", "*.jsonl", "*.toml", "*.yaml", "*.yml")  # what Flower brings to a site, but for prose


def locate(app: object) -> tuple[str, str]:
    """The module that holds an app, and the name that the app has there.

    Raises
    ------
    LookupError
        No module has it among its names.
    """
    for module, content in list(sys.modules.items()):
        for name, value in list(getattr(content, "__dict__", {}).items()):
            if value is app and module != "__main__":
                return module, name
    raise LookupError("the client app must be a name in its module, as in `app = client_app(...)`: no module holds it")


def fingerprint(facts: Mapping[str, Any], modules: Iterable[str]) -> str:
    """A text that changes with the facts, and with any source file of the packages that hold these modules."""
    digest = hashlib.sha256(json.dumps([facts, sys.executable, sys.version, _versions()], sort_keys=True).encode())
    for _, path in sources_of((*modules, "fedbayes")):
        digest.update(f"\n{path} {hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return digest.hexdigest()


def sources_of(modules: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """The files of the packages that hold these modules, each with its name wherever the package lies.

    Those of Python, and those that it may read, such as what sites have agreed on. A package is a top-level one, or a
    single file; nothing is imported.
    """
    for package in sorted({name.partition(".")[0] for name in modules}):
        spec = find_spec(package)
        for folder in (spec and spec.submodule_search_locations) or []:
            for path in sorted(each for kind in _KINDS for each in Path(folder).rglob(kind)):
                yield f"{package}/{path.relative_to(folder).as_posix()}", path
        if spec and spec.origin and not spec.submodule_search_locations:
            yield Path(spec.origin).name, Path(spec.origin)


def _versions() -> dict[str, str]:
    """Of the packages that the answers depend on."""
    found = {}
    for package in ("jax", "jaxlib", "numpyro", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
