"""torchao: linear layers in int8, with weights alone and with dynamic activations."""

import copy
import json

import torch
from torch import nn
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    quantize_,
)

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32)).to(device).eval()
x = torch.randn(16, 64).to(device)
result = {"float": model(x).detach().flatten()[::7].tolist(), "parameters": {}}
for name, config in {
    "weight_only": Int8WeightOnlyConfig(),
    "dynamic": Int8DynamicActivationInt8WeightConfig(),
}.items():
    quantized = copy.deepcopy(model)
    quantize_(quantized, config)
    with torch.no_grad():
        y = quantized(x)
    weight = quantized[0].weight
    result[name] = y.flatten()[::7].tolist()
    result["parameters"][name] = weight.dequantize().double().sum(1).tolist()
    result[f"{name} type"] = type(weight).__name__
result["is_cuda"] = y.is_cuda and weight.is_cuda
print(json.dumps(result))
