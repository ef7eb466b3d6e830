"""Two wrapped models that are trained in turns."""

import os

import torch
import torch.distributed as dist
import torchvision.utils as vutils
from torch import nn, optim
from torch.nn import SyncBatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms


class Generator(nn.Module):
    def __init__(self, nz=100, ngf=64):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, noise):
        return self.main(noise)


class Discriminator(nn.Module):
    def __init__(self, ndf=64):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(3, ndf, 4, 2, 1), nn.BatchNorm2d(ndf), nn.Conv2d(ndf, 1, 4), nn.Sigmoid()
        )

    def forward(self, images):
        return self.main(images).view(-1, 1).squeeze(1)


def weights_init(m):
    if isinstance(m, nn.Conv2d):
        torch.nn.init.normal_(m.weight, 0.0, 0.02)


def wrapped(model, device):
    model.apply(weights_init)
    model = SyncBatchNorm.convert_sync_batchnorm(model).to(device)
    return DistributedDataParallel(model, device_ids=[device.index])


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dataset = datasets.CIFAR10(
        "data", transform=transforms.Compose([transforms.Resize(8), transforms.ToTensor()])
    )
    sampler = DistributedSampler(dataset, shuffle=True)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler, num_workers=2, drop_last=True)
    generator, discriminator = wrapped(Generator(), device), wrapped(Discriminator(), device)
    criterion = nn.BCELoss()
    optimizer_d = optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
    fixed_noise = torch.randn(64, 100, 1, 1, device=device)
    for epoch in range(25):
        sampler.set_epoch(epoch)
        for i, (images, _) in enumerate(loader, 0):
            discriminator.zero_grad()
            real = images.to(device)
            ones = torch.ones(real.size(0), device=device)
            loss_real = criterion(discriminator(real), ones)
            loss_real.backward()
            fake = generator(torch.randn(real.size(0), 100, 1, 1, device=device))
            loss_fake = criterion(discriminator(fake.detach()), ones - 1)
            loss_fake.backward()
            optimizer_d.step()
            generator.zero_grad()
            loss_g = criterion(discriminator(fake), ones)
            loss_g.backward()
            optimizer_g.step()
            if i % 100 == 0 and rank == 0:
                print(f"[{epoch}][{i}/{len(loader)}] loss {loss_g.item():.4f}")
                with torch.no_grad():
                    samples = generator.module(fixed_noise)
                vutils.save_image(samples, f"fake_{epoch:03d}.png", normalize=True)
        if rank == 0:
            torch.save(generator.module.state_dict(), f"netG_{epoch}.pth")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
