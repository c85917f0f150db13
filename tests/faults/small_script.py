"""How scripts begin whose ranks meet in a store of the test's own, which outlives each of them."""

BEGIN = """
import os, signal, time, torch

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
store = torch.distributed.TCPStore("127.0.0.1", PORT, None, False)
torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 60), torch.nn.Tanh(), torch.nn.Linear(60, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
torch.manual_seed(1 + rank)

def end():
    time.sleep(0.5)  # in which the others come as far as they can without it
    os.kill(os.getpid(), signal.SIGKILL)
"""
"""Made of PORT: a rank with a small model and its optimizer, and how it ends."""
