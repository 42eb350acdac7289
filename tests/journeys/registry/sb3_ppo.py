"""stable-baselines3: PPO and DQN on an environment made here, saved, loaded, evaluated."""

import json
import os
import sys
import tempfile

import gymnasium as gym
import numpy as np
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.evaluation import evaluate_policy

device = "cpu" if "--cpu" in sys.argv else "cuda"


class Walk(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def _observe(self):
        return np.array([self.place / 5, self.steps / 20], dtype=np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.steps = 0
        return self._observe(), {}

    def step(self, action):
        self.place = max(-5, min(5, self.place + (1 if action == 1 else -1)))
        self.steps += 1
        done = self.place == 5
        return self._observe(), 1.0 if done else -0.05, done, self.steps >= 20, {}


def play(kind, steps, **options):
    model = kind("MlpPolicy", Walk(), device=device, seed=0, verbose=0, **options)
    model.learn(steps)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "agent")
        model.save(path)
        again = kind.load(path, device=device)
    reward, _ = evaluate_policy(again, Walk(), n_eval_episodes=3, warn=False)
    norm = sum(p.detach().double().pow(2).sum().item() for p in model.policy.parameters())
    return {"reward": float(reward), "norm": norm, "is_cuda": model.device.type == "cuda"}


result = {"ppo": play(PPO, 256, n_steps=64, batch_size=32, n_epochs=2)}
result["dqn"] = play(DQN, 200, learning_starts=50, train_freq=4, batch_size=16)
print(json.dumps(result))
