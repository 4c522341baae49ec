"""Pixels to tensors: scale, normalization, public images in the task's shape, augmentation.

    images = to_float(task.train.images)                     # bytes are scaled to [0, 1]
    images = normalize(images, *statistics(images))          # [n, c, h, w], channels-last

Public images from another dataset go through `adapt`. Then they are normalized with the TASK's mean
and std (FedDF's code uses the public set's own).
"""
import numpy as np
import torch
import torch.nn.functional as F


class BadData(ValueError):
    """A file or a data set cannot be used, or does not go with the settings."""


def to_float(images):
    """float32 pixels: bytes are divided by 255, other numbers stay as they are."""
    return images.float().div_(255) if images.dtype == torch.uint8 else images.float()


def check_range(where, images):
    """ValueError unless the pixels, an array or a tensor of floats, are from 0 to 1."""
    low, high = images.min(), images.max()
    if not (low >= -1e-3 and high <= 1 + 1e-3):              # nan, too
        raise BadData(f"{where} holds floats from {low:.4g} to {high:.4g}; expected 0 to 1")


def statistics(images):
    """(mean [c], population std [c]) of the images; std is 1 for a constant channel, never 0."""
    std, mean = torch.std_mean(images, dim=(0, 2, 3), correction=0)
    return mean, torch.where(std > 1e-6, std, 1.0)


def normalize(images, mean, std):
    """(images - mean) / std per channel: float32 [n, c, h, w], channels-last, a new tensor."""
    normalized = (images - mean[:, None, None]) / std[:, None, None]
    return normalized.contiguous(memory_format=torch.channels_last)


def adapt(images, image_shape):
    """Public images in the task's image shape (c, h, w): [n, c, h, w] pixels, channels-last.

    RGB becomes gray by luminance (ITU-R 601); gray becomes three equal channels. Resizing is
    bilinear with antialiasing, so that pixels stay in [0, 1].
    """
    channels, height, width = image_shape
    if channels < images.shape[1]:
        luminance = images.new_tensor([.299, .587, .114])[:, None, None]
        images = (images * luminance).sum(1, keepdim=True)
    if images.shape[2:] != (height, width):
        images = F.interpolate(images, size=(height, width), mode="bilinear", antialias=True)
    if channels > images.shape[1]:
        images = images.repeat(1, 3, 1, 1)
    return images.contiguous(memory_format=torch.channels_last)


def crop_and_flip(images, rng, padding=4):
    """Randomly shifted and mirrored images: a new channels-last tensor of the same shape.

    Each image has its own shift, -padding..padding in both directions, and is mirrored left to
    right with probability 1/2. Pixels from outside are 0, the mean color of normalized images.
    `images` [n, c, h, w] may be on any device; `rng` is a numpy Generator.
    """
    n, _, h, w = images.shape
    top, left = rng.integers(0, 2 * padding + 1, size=(2, n, 1))
    mirrored = rng.integers(0, 2, size=(n, 1)) == 1
    rows = top + np.arange(h)                                                   # [n, h]
    columns = left + np.where(mirrored, np.arange(w)[::-1], np.arange(w))       # [n, w]
    rows, columns = (torch.from_numpy(index).to(images.device) for index in (rows, columns))
    padded = F.pad(images, (padding,) * 4).permute(0, 2, 3, 1)                  # [n, h+2p, w+2p, c]
    image = torch.arange(n, device=images.device)[:, None, None]
    return padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
