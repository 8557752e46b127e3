"""Digits, 4 clients x 20 rounds, by Flower's simulation: FLOWER_PYTHON bench/training/flower_digits.py ROUNDS CLIENTS.

Run by a Python that has flwr[simulation], scikit-learn and torch, and need not have nodewire. Prints one line of JSON:
the seconds of its rounds (its own start not counted), those of everything, and the accuracy on what is held out.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "FLWR_TELEMETRY_ENABLED": "0"}

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

ROUNDS, CLIENTS = int(sys.argv[1]), int(sys.argv[2])
TRAINING_ROWS = 1_437
torch.set_num_threads(1)
client, server = ClientApp(), ServerApp()


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    return torch.tensor(digits.data[order] / 16.0, dtype=torch.float32), torch.tensor(digits.target[order])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


@client.train()
def train(message: Message, context: Context) -> Message:
    model, client_number = network(), int(context.node_config["partition-id"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = rows()
    x, y = x[client_number:TRAINING_ROWS:CLIENTS], y[client_number:TRAINING_ROWS:CLIENTS]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    order = torch.randperm(len(x))
    for first in range(0, len(x), 32):
        batch = order[first : first + 32]
        loss = functional.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(x)})
    return Message(
        content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )


@server.main()
def main(grid: Grid, context: Context) -> None:
    model, begun_s = network(), time.monotonic()
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(model.state_dict()), num_rounds=ROUNDS)
    seconds = time.monotonic() - begun_s
    model.load_state_dict(result.arrays.to_torch_state_dict())
    x, y = rows()
    with torch.no_grad():
        accuracy = float((model(x[TRAINING_ROWS:]).argmax(1) == y[TRAINING_ROWS:]).float().mean())
    said = {"seconds": seconds, "whole_s": time.monotonic() - STARTED_S, "accuracy": accuracy}
    print(json.dumps(said), flush=True)


STARTED_S = time.monotonic()
if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server_app=server, client_app=client, num_supernodes=CLIENTS, backend_config=resources)
