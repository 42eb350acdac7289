"""Actor-critic on a pole that is balanced here; the actions are sampled on the host.

`--cpu` trains on the CPU.
"""

import json
import math
import random
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical

device = torch.device("cpu" if "--cpu" in sys.argv else "cuda:0")
random.seed(5)
torch.manual_seed(5)


class Pole:
    def reset(self):
        self.state = [random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state

    def step(self, action):
        x, v, angle, speed = self.state
        force = 10.0 if action == 1 else -10.0
        part = (force + 0.05 * speed**2 * math.sin(angle)) / 1.1
        turn = (9.8 * math.sin(angle) - math.cos(angle) * part) / (
            0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1)
        )
        push = part - 0.05 * turn * math.cos(angle) / 1.1
        self.state = [x + 0.02 * v, v + 0.02 * push, angle + 0.02 * speed, speed + 0.02 * turn]
        return self.state, abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine = nn.Linear(4, 32)
        self.action_head, self.value_head = nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, x):
        x = F.relu(self.affine(x))
        return F.softmax(self.action_head(x), dim=-1), self.value_head(x)


env, model = Pole(), Policy().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
losses, lengths, entropies = [], [], []
for _ in range(6):
    state, rewards, saved, entropy = env.reset(), [], [], 0.0
    for _ in range(40):
        probabilities, value = model(torch.tensor(state).float().to(device))
        drawn = Categorical(probabilities)
        action = 1 if random.random() < probabilities[1].item() else 0
        saved.append((drawn.log_prob(torch.tensor(action, device=device)), value))
        entropy += drawn.entropy().item()
        state, done = env.step(action)
        rewards.append(1.0)
        if done:
            break
    returns, total = [], 0.0
    for reward in reversed(rewards):
        total = reward + 0.99 * total
        returns.insert(0, total)
    returns = torch.tensor(returns, device=device)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    policy_losses = [
        -log * (r - value.item()) for (log, value), r in zip(saved, returns, strict=True)
    ]
    value_losses = [
        F.smooth_l1_loss(v, r.reshape(1)) for (_, v), r in zip(saved, returns, strict=True)
    ]
    loss = torch.stack(policy_losses).sum() + torch.stack(value_losses).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    lengths.append(len(rewards))
    entropies.append(entropy / len(rewards))
result = {"losses": losses, "lengths": lengths, "entropies": entropies}
print(json.dumps({**result, "is_cuda": loss.is_cuda}))
