"""Who takes part in a run: the server waits for its sites, and ends at once where what they say can't go together."""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict

from fedbayes.errors import UNREADABLE, ClientDataError, FederatedError
from fedbayes.network.charter import Hello, Joined, Seat
from fedbayes.network.messages import LOG, Refusal, pack, unpack
from fedbayes.network.server.alike import differences
from fedbayes.network.server.register import Register
from fedbayes.network.study import Study
from fedbayes.network.transport import Address, Failure

log = logging.getLogger(__name__)

_LOOK_EVERY = 1.0  # seconds
_TELL_EVERY = 60.0  # seconds between two lines that say who is still awaited
_NOT_THERE = (
    "A node that the server does not let in says why in its own log: its clock is wrong, its key is not registered, or "
    "an earlier node of its site still counts as alive."
)


def enrolled(register: Register, num: int, sites: Sequence[str], timeout: float) -> list[Hello]:
    """Those who have joined, once they are as many as wanted.

    Raises
    ------
    FederatedError
        A site that is there takes no part, and there are not enough others; or the time is over.
    ClientDataError
        Sites that are there have told of different arguments or columns.
    """
    deadline, tell_at = time.monotonic() + timeout, time.monotonic()
    while True:
        if time.monotonic() >= tell_at:
            log.info("%s", _awaited(register, num, sites))
            tell_at = time.monotonic() + _TELL_EVERY
        register.look()
        there = [name for name in sites if name in register.hellos] if sites else sorted(register.hellos)
        if len(there) >= num:
            register.closed = True
            if left_out := sorted(register.hellos.keys() - there[:num]):
                log.warning(
                    "The sites %s are there and take no part: the run begins with %s, as asked.", left_out, there[:num]
                )
            chosen = [register.hellos[name] for name in there[:num]]
            if told := differences(chosen):
                raise ClientDataError(told)
            return chosen
        _refuse_contradictions(register, num, sites, there)
        if time.monotonic() > deadline:
            raise FederatedError(
                f"After {timeout:g} s {_too_few(register, num, sites)} Start the others, or ask for fewer. "
                f"{_NOT_THERE}{who_refused(register)}"
            )
        time.sleep(min(_LOOK_EVERY, timeout / 10.0))


def _awaited(register: Register, num: int, sites: Sequence[str]) -> str:
    """For whom the server waits, in a line for its terminal."""
    if register.hellos:
        return f"The server waits: {_too_few(register, num, sites)} {_NOT_THERE}"
    wanted = f"the sites {list(sites)} have" if sites else f"{num} site{'s have' if num > 1 else ' has'}"
    return f"The run begins as soon as {wanted} joined. A site starts its worker and reads its data, in about a minute."


def _too_few(register: Register, num: int, sites: Sequence[str]) -> str:
    wanted = f"the sites {list(sites)}" if sites else f"{num} in all"
    return f"{sorted(register.hellos) or 'no sites'} have joined, and {wanted} are needed."


def _refuse_contradictions(register: Register, num: int, sites: Sequence[str], there: Sequence[str]) -> None:
    """End a run that can't begin as things are: all who could be reached have answered, and some can't take part."""
    if told := differences([register.hellos[name] for name in there]):
        raise ClientDataError(f"{told}{who_refused(register)}")
    if any(not sites or site in sites for site in register.refused):
        raise FederatedError(
            f"The run can't begin: {_too_few(register, num, sites)}{who_refused(register)} When that is put right, "
            "start the run again; the nodes need not be started anew."
        )


def who_refused(register: Register) -> str:
    """The sites that take no part, and why, as sentences after others."""
    found = [f" Site '{site}' takes no part: it {reason}." for site, reason in sorted(register.refused.items())]
    about = [register.differing[site] for site in sorted(register.differing) if site in register.refused]
    where = f" {LOG}" if any("own log" in each for each in found) else ""
    return "".join([*found, where, *(f"\n{each}\n" for each in about)])


def all_joined(
    register: Register, study: Study, hellos: Sequence[Hello], places: Sequence[Seat], timeout: float
) -> list[Joined]:
    """What each client found out about the model on its own data.

    Raises
    ------
    FederatedError
        A site refuses, its answer can't be read, or the time is over.
    """
    found: dict[str, Joined] = {}
    deadline = time.monotonic() + timeout
    seats_of = {hello.site: seat for hello, seat in zip(hellos, places, strict=True)}
    while len(found) < len(hellos):
        there = register.look()
        missing = {there[site]: site for site in seats_of if site in there and site not in found}
        requests: dict[Address, bytes] = {
            address: pack({"kind": "join", "study": study.digest, "seat": asdict(seats_of[site])})
            for address, site in missing.items()
        }
        for address, answer in register.transport.send(requests, timeout) if requests else ():
            site = missing.pop(address, None)
            if site is not None and not isinstance(answer, Failure):  # a second answer counts for nothing
                found[site] = _read_joined(register.hellos[site], answer)
        if len(found) < len(hellos) and time.monotonic() > deadline:
            absent = [hello.site for hello in hellos if hello.site not in found]
            raise FederatedError(
                f"After {timeout:.0f} s the sites {absent} have not read the model. Each site's own log says why. {LOG}"
            )
        if len(found) < len(hellos):
            time.sleep(min(_LOOK_EVERY, timeout / 10.0))
    return [found[hello.site] for hello in hellos]


def _read_joined(hello: Hello, answer: bytes) -> Joined:
    """What a site has answered.

    Raises
    ------
    FederatedError
        It refuses, or its answer can't be read.
    """
    try:
        header = unpack(answer).header
        if header["kind"] != "refusal":
            told = Joined.read(header["told"])
            told.check(hello)
            return told
        reason = Refusal[header["reason"]].value
    except UNREADABLE as error:
        raise FederatedError(
            f"What site '{hello.site}' has found out about the model can't be read ({type(error).__name__}). Start the "
            "run again without it."
        ) from error
    raise FederatedError(f"Site '{hello.site}' {reason}.{f' {LOG}' if 'own log' in reason else ''}")
