"""What the echo app's server has written down, read."""

from federation import wait_until


def by_site(answers):
    """The answers of one round."""
    return {answer["site"]: answer for answer in answers if "site" in answer}


def failures(answers):
    """How the others failed."""
    return sorted(answer["failure"] for answer in answers if "failure" in answer)


def wait_for_sleep(federation, site, number):
    """Until the site works on that round's request."""
    asleep = f"asleep in round {number}"
    wait_until(lambda: asleep in federation.worker_log(site), 60, f"{site} is {asleep}")
