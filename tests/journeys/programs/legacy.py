"""Code of another age: default tensor types, .data, Variable, cuda tensors by class."""

import json

import torch
import torch.nn as nn
from torch.autograd import Variable

torch.set_default_tensor_type("torch.cuda.FloatTensor")
torch.manual_seed(0)
w = torch.zeros(3, 1)
linear = nn.Linear(3, 1)
linear.weight.data.copy_(torch.FloatTensor([[0.1, 0.2, 0.3]]))
linear.bias.data.zero_()
optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
x = Variable(torch.arange(12.0).view(4, 3) / 10)
y = Variable(torch.cuda.FloatTensor([[1], [2], [3], [4]]))
losses = []
for _ in range(10):
    loss = (linear(x) - y).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.data.item())
torch.set_default_tensor_type("torch.FloatTensor")
host = torch.zeros(2)
double = host.type("torch.cuda.DoubleTensor")
assert double.dtype == torch.float64
assert isinstance(y.data, torch.cuda.FloatTensor)
assert torch.cuda.LongTensor(4).fill_(7).cpu().numpy().tolist() == [7] * 4
assert (torch.cuda.ByteTensor([1, 0]) == 1).tolist() == [True, False]
# where the CPU represents CUDA, a tensor on it is one of CUDA's
host_type = "torch.cuda.FloatTensor" if host.is_cuda else "torch.FloatTensor"
assert y.new(2, 2).shape == (2, 2) and y.data.cpu().type() == host_type
is_cuda = all(tensor.is_cuda for tensor in (w, x, y, double, *linear.parameters()))
result = {"losses": losses, "type": w.type(), "is_cuda": is_cuda, "host_is_cuda": host.is_cuda}
print(json.dumps(result))
