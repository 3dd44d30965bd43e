"""A site that does what the request says, and tells which process it was and how often that was asked."""

import json
import os
import time

from fedbayes.flower.client import SiteApp


class Echo:
    def __init__(self, config):
        self.name, self.calls = config["site-id"], 0

    def answer(self, request):
        order = json.loads(request)
        self.calls += 1
        what = order["orders"].get(self.name)
        if what == "raise":
            raise RuntimeError(f"secret {6 * 7 * 1001}")
        if what == "exit":
            os._exit(3)
        if isinstance(what, float):
            print("asleep in round", order["round"], "of", order["run"], flush=True)  # in the worker's log
            time.sleep(what)
        return json.dumps(
            {"site": self.name, "round": order["round"], "calls": self.calls, "pid": os.getpid()}
        ).encode()


app = SiteApp(Echo)
