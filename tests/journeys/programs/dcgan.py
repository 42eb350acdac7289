"""DCGAN as its tutorial trains it, on images of noise; with `--amp` in mixed precision."""

import json
import random
import sys

import torch
import torch.nn as nn
import torch.optim as optim
import torch.utils.data

manualSeed = 999
random.seed(manualSeed)
torch.manual_seed(manualSeed)
nz, ngf, ndf, nc, ngpu = 16, 8, 8, 3, 1
amp = "--amp" in sys.argv
device = torch.device("cuda:0" if (torch.cuda.is_available() and ngpu > 0) else "cpu")


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.02)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


class Generator(nn.Module):
    def __init__(self, ngpu):
        super().__init__()
        self.ngpu = ngpu
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, ngf, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, nc, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, input):
        if input.is_cuda and self.ngpu > 1:
            return nn.parallel.data_parallel(self.main, input, range(self.ngpu))
        return self.main(input)


class Discriminator(nn.Module):
    def __init__(self, ngpu):
        super().__init__()
        self.ngpu = ngpu
        self.main = nn.Sequential(
            nn.Conv2d(nc, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, ndf * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(ndf * 2),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf * 2, 1, 4, 1, 0, bias=False),
            nn.Identity() if amp else nn.Sigmoid(),
        )

    def forward(self, input):
        if input.is_cuda and self.ngpu > 1:
            return nn.parallel.data_parallel(self.main, input, range(self.ngpu))
        return self.main(input)


images = torch.rand(48, nc, 16, 16) * 2 - 1
noises = torch.randn(16, 16, nz, 1, 1)
netG = Generator(ngpu)
netD = Discriminator(ngpu)
netG.apply(weights_init)
netD.apply(weights_init)
netG, netD = netG.to(device), netD.to(device)
if device.type == "cuda" and ngpu > 1:
    netG = nn.DataParallel(netG, list(range(ngpu)))
    netD = nn.DataParallel(netD, list(range(ngpu)))
# BCELoss refuses autocast
criterion = nn.BCEWithLogitsLoss() if amp else nn.BCELoss()
autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=amp)
scalerD = torch.amp.GradScaler(device.type, enabled=amp)
scalerG = torch.amp.GradScaler(device.type, enabled=amp)
fixed_noise = torch.randn(4, nz, 1, 1).to(device)
optimizerD = optim.Adam(netD.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=0.0002, betas=(0.5, 0.999))
dataset = torch.utils.data.TensorDataset(images, torch.zeros(48))
dataloader = torch.utils.data.DataLoader(dataset, batch_size=16, num_workers=2)

G_losses, D_losses, iters = [], [], 0
for _ in range(4):
    for data in dataloader:
        netD.zero_grad()
        real = data[0].to(device)
        label = torch.full((real.size(0),), 1.0, dtype=torch.float, device=device)
        with autocast:
            output = netD(real).view(-1)
            errD_real = criterion(output, label)
        scalerD.scale(errD_real).backward()
        with autocast:
            fake = netG(noises[iters].to(device))
            label.fill_(0.0)
            output = netD(fake.detach()).view(-1)
            errD_fake = criterion(output, label)
        scalerD.scale(errD_fake).backward()
        scalerD.step(optimizerD)
        scalerD.update()
        netG.zero_grad()
        label.fill_(1.0)
        with autocast:
            output = netD(fake).view(-1)
            errG = criterion(output, label)
        scalerG.scale(errG).backward()
        scalerG.step(optimizerG)
        scalerG.update()
        G_losses.append(errG.item())
        D_losses.append((errD_real + errD_fake).item())
        iters += 1
with torch.no_grad():
    mean = netG(fixed_noise).detach().cpu().mean().item()
noise = torch.randn(2, nz, 1, 1, device=device)
print(json.dumps({"G": G_losses, "D": D_losses, "mean": mean, "is_cuda": noise.is_cuda}))
