"""Asks all nodes some times, and writes down what they answered: one line of JSON for each round.

It ends early, between two rounds, where a file `<output>.enough` says so: Flower 1.41 may leave a node waiting for ever
for the reply to a message of a run that was stopped (`flwr stop`) while the message was under way.
"""

import json
import time
from pathlib import Path

from flwr.serverapp import ServerApp

from fedbayes.flower.grid import GridTransport

app = ServerApp()


@app.main()
def main(grid, context):
    config = context.run_config
    transport = GridTransport(grid, keys=None if config["node-keys"] == "named" else False)
    # which site is to do what, in which round: "1:site-0:raise 2:site-1:5.5"
    orders = [order.split(":") for order in config["order"].split()]
    # rounds with another timeout: "1:8.0"
    shorter = dict(each.split(":") for each in config["shorter"].split())
    for number in range(config["num-rounds"]):
        while len(addresses := transport.addresses()) < config["num-nodes"]:
            time.sleep(0.2)
        told = {site: float(what) if what[0].isdigit() else what for i, site, what in orders if int(i) == number}
        request = json.dumps({"run": config["output"], "round": number, "orders": told}).encode()
        started, timeout = time.monotonic(), float(shorter.get(str(number), config["timeout"]))
        answers = [
            {
                "node": node,
                "seconds": time.monotonic() - started,
                "key": addresses[node] and addresses[node].fingerprint,
            }
            | (json.loads(answer) if isinstance(answer, bytes) else {"failure": answer.name})
            for node, answer in transport.send(dict.fromkeys(addresses, request), timeout)
        ]
        with open(config["output"], "a") as file:
            file.write(json.dumps(answers) + "\n")
        print("round", number, "done:", [answer.get("site") or answer["failure"] for answer in answers], flush=True)
        if Path(config["output"] + ".enough").exists():
            break
