"""What a release says of itself: its metadata, its licences, how it is cited."""

import re
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from lowest import lowest
from packaging.metadata import Metadata

ROOT = Path(__file__).resolve().parents[2]
in_checkout = pytest.mark.skipif(not (ROOT / "CITATION.cff").exists(), reason="this file is in the checkout alone")


@pytest.fixture(scope="module")
def installed() -> Metadata:
    """Read as an index reads it: an unknown field or a malformed value is an error."""
    return Metadata.from_email(distribution("fedbayes").read_text("METADATA"), validate=True)


def test_the_readme_is_its_description(installed) -> None:
    assert installed.description_content_type == "text/markdown"
    assert installed.description.startswith("# fedbayes")
    assert installed.summary.endswith(".")


def test_classifiers_name_the_versions_of_python_that_install_it(installed) -> None:
    named = [each.rpartition(" ")[2] for each in installed.classifiers if re.search(r":: 3\.\d+$", each)]
    assert named == ["3.11", "3.12", "3.13"]
    assert all(installed.requires_python.contains(version) for version in named)
    assert not installed.requires_python.contains("3.10")


def test_its_licence_is_the_software_s_and_the_data_s(installed) -> None:
    """Each licence that a folder of data names is in the expression, and its text travels with the package."""
    assert installed.license_expression == "Apache-2.0 AND CC-BY-4.0 AND MIT"
    texts = {
        Path(str(path)).parent.name: path.read_text()
        for path in distribution("fedbayes").files
        if path.name == "LICENSE.md"
    }
    assert {"bcg", "heart", "lung", "students"} <= texts.keys()
    assert {name for name, text in texts.items() if "CC BY 4.0" in text} == {"heart", "students"}
    assert {name for name, text in texts.items() if "MIT licence" in text} == {"lung"}


def test_the_version_is_a_release_or_names_its_commit(installed) -> None:
    """A tag's, as ``0.1.0``; after it a development version that names the commit; or a copy without history."""
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?(\.dev\d+\+g[0-9a-f]{7,}(\.d\d{8})?)?|0\.1\.dev0", str(installed.version))


@in_checkout
def test_the_citation_is_of_the_newest_release() -> None:
    """The change log has the releases; what has not been released yet is cited without a version."""
    told = dict(re.findall(r"^(\w[\w-]*): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert told.get("version") == next(iter(released), None)
    assert told["license"] == "Apache-2.0"
    assert told["cff-version"] == "1.2.0"


@in_checkout
def test_each_dependency_has_one_lower_bound() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    extras = list(tomllib.loads(text)["project"]["optional-dependencies"])
    pins = lowest(text, extras)
    assert {"demo", "flower", "formula", "test"} <= set(extras)
    assert {each.partition("==")[0] for each in pins} >= {"jax", "numpyro", "formulaic", "flwr", "pytest"}


@pytest.mark.parametrize("asked", ["jax", "jax<1", "jax>=0.8,>=0.9"])
def test_a_dependency_without_one_is_named(asked) -> None:
    with pytest.raises(ValueError, match=r"'jax.* lower bounds; write one, such as 'jax>=1.2'"):
        lowest(f"[project]\ndependencies = ['{asked}']", [])
