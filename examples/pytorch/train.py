"""Fits a line with one process a task. Flux tells each its rank, their number, and where the first one is."""
import os
import socket
import subprocess

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

PORT = 29500


def lead(rank):
    """The address of rank 0, which writes it to the job's part of Flux's key-value store. The others wait there."""
    if rank == 0:
        own = socket.gethostbyname(socket.gethostname())
        subprocess.run(["flux", "kvs", "put", f"lead={own}"], check=True)
    get = ["flux", "kvs", "get", "--waitcreate", "lead"]
    return subprocess.run(get, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


rank, size = int(os.environ["FLUX_TASK_RANK"]), int(os.environ["FLUX_JOB_SIZE"])
dist.init_process_group("gloo", init_method=f"tcp://{lead(rank)}:{PORT}", rank=rank, world_size=size)
print(f"rank {rank} of {size} on {socket.gethostname()}", flush=True)

# Each rank has a part of the data, of its own; y = 3x + 1. DDP averages the gradients, so that all have one model.
torch.manual_seed(rank)
x = torch.rand(1000, 1)
y = 3 * x + 1
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(61):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    dist.all_reduce(mean := loss.detach() / size)
    if rank == 0 and step % 20 == 0:
        print(f"step {step}: loss {mean.item():.6f}", flush=True)
if rank == 0:
    print(f"y = {model.module.weight.item():.2f} x + {model.module.bias.item():.2f}", flush=True)
dist.destroy_process_group()
