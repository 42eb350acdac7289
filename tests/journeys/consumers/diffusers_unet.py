"""diffusers: training steps of a conditional UNet with DDPM noise and EMA, then DDIM."""

import json

import torch
from diffusers import DDIMScheduler, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_cosine_schedule_with_warmup
from diffusers.training_utils import EMAModel, compute_snr

STEPS = 6
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)
unet = UNet2DConditionModel(
    sample_size=8,
    in_channels=4,
    out_channels=4,
    layers_per_block=1,
    block_out_channels=(16, 32),
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    cross_attention_dim=16,
    attention_head_dim=8,
    norm_num_groups=8,
).to(device)
unet.enable_gradient_checkpointing()
unet.train()
ema = EMAModel(unet.parameters(), decay=0.9, model_cls=UNet2DConditionModel)
ema.to(device)
noise_scheduler = DDPMScheduler(num_train_timesteps=100, prediction_type="epsilon")
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-3)
schedule = get_cosine_schedule_with_warmup(optimizer, 2, STEPS)
latents = torch.randn(STEPS, 4, 4, 8, 8)  # what a VAE would have encoded
texts = torch.randn(STEPS, 4, 7, 16)
noises = torch.randn(STEPS, 4, 4, 8, 8)
losses = []
for step in range(STEPS):
    x, text = latents[step].to(device, non_blocking=True), texts[step].to(device)
    noise = noises[step].to(device)
    steps = torch.arange(4, device=device) * 23 + step
    noisy = noise_scheduler.add_noise(x, noise, steps)
    found = unet(noisy, steps, encoder_hidden_states=text).sample
    snr = compute_snr(noise_scheduler, steps)
    weight = torch.stack([snr, 5.0 * torch.ones_like(steps)], dim=1).min(dim=1)[0] / snr
    loss = torch.nn.functional.mse_loss(found.float(), noise.float(), reduction="none")
    loss = (loss.mean(dim=list(range(1, loss.dim()))) * weight).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad(set_to_none=True)
    ema.step(unet.parameters())
    losses.append(loss.item())
unet.eval()
ema.store(unet.parameters())
ema.copy_to(unet.parameters())
sampler = DDIMScheduler.from_config(noise_scheduler.config)
sampler.set_timesteps(5, device=device)
image = noises[0].to(device)
with torch.no_grad():
    for t in sampler.timesteps:
        found = unet(sampler.scale_model_input(image, t), t, encoder_hidden_states=text).sample
        image = sampler.step(found, t, image).prev_sample
ema.restore(unet.parameters())
parameters = {name: p.detach().double() for name, p in unet.named_parameters()}
print(
    json.dumps(
        {
            "losses": losses,
            "image": image.flatten()[::13].tolist(),
            "parameters": {n: [p.sum().item(), p.norm().item()] for n, p in parameters.items()},
            "is_cuda": image.is_cuda,
        }
    )
)
