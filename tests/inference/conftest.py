"""What holds for the tests of all methods: a planted bug has programs of its own."""

from collections.abc import Iterator

import pytest

from fedbayes.rounds.programs import forget_programs


@pytest.fixture(scope="module", autouse=True)
def _rounds_alone(rounds_alone: None) -> None:
    """What these tests are about ends with the rounds; the check of the answer has tests of its own."""


@pytest.fixture(autouse=True)
def _programs_of_their_own(request: pytest.FixtureRequest) -> Iterator[None]:
    """Programs are kept for the process: where a test patches the source, none from before serves it, nor its others.

    A negative control would otherwise run the correct program, and leave its own to the next test.
    """
    patched = "monkeypatch" in request.fixturenames
    if patched:
        forget_programs()
    yield
    if patched:
        forget_programs()


@pytest.fixture(scope="session")
def limit_dense():
    """``(patch, limit)``: from now on clients send matrices for so many globals at most."""

    def limit(patch: pytest.MonkeyPatch, most: int) -> None:
        for module in (
            "fedavg.client",
            "fedavg.method",
            "fedavg.options",
            "fedpa.answer",
            "fedpa.method",
            "fedpa.options",
            "fedpa.server",
        ):
            patch.setattr(f"fedbayes.inference.{module}.DENSE_LIMIT", most)
        forget_programs()

    return limit
