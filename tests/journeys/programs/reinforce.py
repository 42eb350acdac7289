"""Reinforcement learning: a deep Q network with a replay memory on a walk made here."""

import json
import random
from collections import deque, namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F

use_cuda = torch.cuda.is_available()
FloatTensor = torch.cuda.FloatTensor if use_cuda else torch.FloatTensor
LongTensor = torch.cuda.LongTensor if use_cuda else torch.LongTensor
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
random.seed(3)
torch.manual_seed(3)
SIZE = 6


def observe(place):
    return F.one_hot(LongTensor([place]), SIZE).type(FloatTensor)


policy = nn.Sequential(nn.Linear(SIZE, 24), nn.ReLU(), nn.Linear(24, 2))
target = nn.Sequential(nn.Linear(SIZE, 24), nn.ReLU(), nn.Linear(24, 2))
target.load_state_dict(policy.state_dict())
if use_cuda:
    policy.cuda()
    target.cuda()
optimizer = torch.optim.RMSprop(policy.parameters(), lr=5e-3)
memory = deque(maxlen=500)
losses, lengths = [], []
for episode in range(12):
    place, steps = 0, 0
    while place != SIZE - 1 and steps < 30:
        state = observe(place)
        if random.random() > 0.9 * 0.8**episode:
            with torch.no_grad():
                action = policy(state).data.max(1)[1].view(1, 1)
        else:
            action = LongTensor([[random.randrange(2)]])
        place = max(0, place + (1 if action.item() == 1 else -1))
        done = place == SIZE - 1
        reward = FloatTensor([1.0 if done else -0.05])
        memory.append(Transition(state, action, None if done else observe(place), reward))
        steps += 1
        if len(memory) < 16:
            continue
        batch = Transition(*zip(*random.sample(list(memory), 16), strict=True))
        mask = torch.tensor([s is not None for s in batch.next_state], device="cuda")
        value = policy(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
        following = torch.zeros(16).cuda()
        with torch.no_grad():
            nexts = torch.cat([s for s in batch.next_state if s is not None])
            following[mask] = target(nexts).max(1)[0]
        expected = following * 0.9 + torch.cat(batch.reward)
        loss = F.smooth_l1_loss(value, expected.unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        for param in policy.parameters():
            param.grad.data.clamp_(-1, 1)
        optimizer.step()
        losses.append(loss.item())
    if episode % 2 == 0:
        target.load_state_dict(policy.state_dict())
    lengths.append(steps)
assert isinstance(reward, FloatTensor)
shown = losses[:20] + losses[-5:]
print(json.dumps({"losses": shown, "lengths": lengths, "is_cuda": value.is_cuda}))
