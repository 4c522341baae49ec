"""Every network of the papers: `build(name, image_shape, num_classes)` returns one of NETWORKS.

name                            source                     network
cnn cnn_large                   none: for the glyphs       two convolutions; twice as wide, and a
                                                           hidden layer
mlp                             none: for the glyphs       one hidden layer
mini0 ... mini9                 none: for the glyphs       like fedmd0 ... fedmd9, an eighth as wide
                                                           (0 and 9 have one hidden layer instead)
cnn_6_16                        FedGen's code (MNIST)      two convolutions, two linear layers
resnet8 resnet20 resnet56       FedSDD section 4.1, FedDF  He's CIFAR ResNet of BasicBlocks
wrn16_2                         FedSDD section 4.1         wide residual network, depth 16, width 2
bottleneck11 ... bottleneck110  FedGEMS Tables 10, 11, 12  ResNet of Bottlenecks
fedmd0 ... fedmd9               FedMD Table 1 (MNIST)      CNN of 2 or 3 convolutions
fedmd_cifar0 ... fedmd_cifar9   FedMD Table 2 (CIFAR)      CNN of 2, 3 or 4 convolutions

FedGKT divides the work between an edge (a client) and the server. The edge's stem computes the
feature map that is uploaded, and the rest of the edge computes the edge's own logits from it. The
server's network starts from the feature map: 16 x h x w, unless the table says otherwise.

gkt_edge                        FedGKT appendix B.3        edge: stem, then two Bottlenecks
gkt_edge4 gkt_edge6             FedGKT Table 5             edge: stem, then one or two BasicBlocks
gkt_edge_table7                 FedGKT Table 7             edge: stem, then three BasicBlocks
gkt_server55 gkt_server109      FedGKT section 4.1         server: ResNet-56, -110 without the stem
gkt_server19                    FedGEMS Table 7            FedGKT's server: ResNet-20 without it
gkt_edge_small                  none: for the glyphs       edge: feature map of 8 x h/2 x w/2
gkt_server_small                none: for the glyphs       server for gkt_edge_small
gkt_full_small                  none: for the glyphs       gkt_edge_small's stem + gkt_server_small

WARNING  "ResNet-20" and "ResNet-56" each name two different networks. FedGEMS and FedGKT mean
networks of Bottlenecks (220,378 and 591,322 parameters; here `bottleneck20` and `bottleneck56`).
FedSDD means He's networks of BasicBlocks (here `resnet20` and `resnet56`).

Every network maps float images [B, c, h, w] to logits [B, C]; FedGKT's servers map feature maps to
logits. The last layer is always `.classifier`. Initial weights are drawn from torch's default
generator: the caller sets the seed. Convolutional networks use the channels-last memory format;
their input should use it too.

Papers: He et al., "Deep Residual Learning for Image Recognition", arXiv:1512.03385; Zagoruyko and
Komodakis, "Wide Residual Networks", arXiv:1605.07146; FedGKT, arXiv:2007.14513; FedGEMS,
arXiv:2110.11027; FedSDD, arXiv:2312.17029v1; FedMD, arXiv:1910.03581.

Departures (more: docs/DEPARTURES.md):
  1  FedGEMS Table 11 prints blocks 1, 1, 2 for the "ResNet-17" of clients 8 and 16. These are 14
     layers, the network of clients 2 and 10. The printed network is `bottleneck14a`;
     `bottleneck17d` has the 17 layers of the name, blocks 1, 1, 3
  2  FedSDD does not specify the shortcuts. Here they are 1x1 convolutions with BatchNorm where the
     shapes differ, and the identity elsewhere (He's option B)
  3  FedMD specifies the filters and the dropout rates, but not padding, pooling, BatchNorm and
     initialization. Here these follow the authors' code, with Keras's defaults
  4  No published code has FedMD's network of 4 convolutions. Here the fourth block of
     `fedmd_cifar9` repeats the third
  5  FedGKT Table 7 lists a max pooling of 3 x 1 after the edge's first convolution, without a
     stride. Appendix B.3's text, and the feature maps of 16 x 32 x 32 in the paper's costs, have
     none, and here there is none
"""
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

# -------------------------------------------------------------------- small networks for the glyphs


class CNN(nn.Module):
    """Two 3x3 convolutions, each followed by 2x2 max-pooling and ReLU, and a linear layer."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        c, h, w = image_shape
        self.conv1 = nn.Conv2d(c, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.classifier = nn.Linear(32 * (h // 4) * (w // 4), num_classes)

    def forward(self, images):                               # [B, c, h, w]
        # ReLU after the pooling gives the same values as before it, for a quarter of the work.
        x = F.relu(F.max_pool2d(self.conv1(images), 2))      # [B, 16, h/2, w/2]
        x = F.relu(F.max_pool2d(self.conv2(x), 2))           # [B, 32, h/4, w/4]
        return self.classifier(x.flatten(1))                 # [B, C]


class LargeCNN(nn.Module):
    """A server network: twice the filters of `CNN`, and a hidden layer of 128 units."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        c, h, w = image_shape
        self.conv1 = nn.Conv2d(c, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.hidden = nn.Linear(64 * (h // 4) * (w // 4), 128)
        self.classifier = nn.Linear(128, num_classes)

    def forward(self, images):                               # [B, c, h, w]
        x = F.relu(F.max_pool2d(self.conv1(images), 2))      # [B, 32, h/2, w/2]
        x = F.relu(F.max_pool2d(self.conv2(x), 2))           # [B, 64, h/4, w/4]
        return self.classifier(F.relu(self.hidden(x.flatten(1))))


class MLP(nn.Module):
    """A fully connected network with one hidden layer."""

    def __init__(self, image_shape, num_classes, units=128):
        super().__init__()
        c, h, w = image_shape
        self.hidden = nn.Linear(c * h * w, units)
        self.classifier = nn.Linear(units, num_classes)

    def forward(self, images):                               # [B, c, h, w]
        x = F.relu(self.hidden(images.flatten(1)))           # [B, units]
        return self.classifier(x)                            # [B, C]


def cnn_6_16(image_shape, num_classes):
    """FedGen's CNN for MNIST. There is no activation between its linear layers."""
    c, h, w = image_shape
    model = nn.Sequential(
        nn.Conv2d(c, 6, 3, stride=2, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
        nn.Conv2d(6, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * -(h // -4) * -(w // -4), 32))      # h/4, w/4, rounded up
    model.add_module("classifier", nn.Linear(32, num_classes))
    return model


# ------------------------------------------------------- residual networks: FedSDD, FedGEMS, FedGKT


def conv3x3(in_channels, out_channels, stride=1):
    return nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)


def conv1x1(in_channels, out_channels, stride=1):
    return nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False)


def projection(in_channels, out_channels, stride):
    """A shortcut: the identity if the shapes are equal, otherwise 1x1 convolution and BatchNorm."""
    if stride == 1 and in_channels == out_channels:                      # departure 2
        return nn.Identity()
    return nn.Sequential(conv1x1(in_channels, out_channels, stride), nn.BatchNorm2d(out_channels))


class BasicBlock(nn.Module):
    """The sum of two 3x3 convolutions and the shortcut, then ReLU.

    Maps [B, in_channels, h, w] to [B, out_channels, h/stride, w/stride].
    """

    expansion = 1

    def __init__(self, in_channels, out_channels, stride):
        super().__init__()
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.shortcut = projection(in_channels, out_channels, stride)

    def forward(self, x):
        residual = F.relu(self.bn1(self.conv1(x)))
        residual = self.bn2(self.conv2(residual))
        return F.relu(residual + self.shortcut(x))


class Bottleneck(nn.Module):
    """The sum of 1x1, 3x3 and 1x1 convolutions and the shortcut, then ReLU.

    The first two convolutions have a quarter of the output channels.
    """

    expansion = 4

    def __init__(self, in_channels, out_channels, stride):
        super().__init__()
        planes = out_channels // self.expansion
        self.conv1 = conv1x1(in_channels, planes)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes, stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = conv1x1(planes, out_channels)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.shortcut = projection(in_channels, out_channels, stride)

    def forward(self, x):
        residual = F.relu(self.bn1(self.conv1(x)))
        residual = F.relu(self.bn2(self.conv2(residual)))
        residual = self.bn3(self.conv3(residual))
        return F.relu(residual + self.shortcut(x))


def stage(block, blocks, in_channels, out_channels, stride):
    """A sequence of `blocks` blocks; the first one changes the number of channels and the size."""
    rest = [block(out_channels, out_channels, 1) for _ in range(blocks - 1)]
    return nn.Sequential(block(in_channels, out_channels, stride), *rest)


def initialize_convolutions(model):
    """Initialize all convolutions in place with He's normal distribution, scaled by fan_out."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class ResNet(nn.Module):
    """A 3x3 convolution, then three stages of 16e, 32e, 64e channels, where e = block.expansion."""

    def __init__(self, block, blocks, image_shape, num_classes):
        super().__init__()
        e = block.expansion
        self.stem = nn.Sequential(conv3x3(image_shape[0], 16), nn.BatchNorm2d(16), nn.ReLU())
        self.stage1 = stage(block, blocks[0], 16, 16 * e, stride=1)
        self.stage2 = stage(block, blocks[1], 16 * e, 32 * e, stride=2)
        self.stage3 = stage(block, blocks[2], 32 * e, 64 * e, stride=2)
        self.classifier = nn.Linear(64 * e, num_classes)
        initialize_convolutions(self)

    def forward(self, images):                               # [B, c, h, w]
        x = self.stem(images)                                # [B, 16, h, w]
        x = self.stage1(x)                                   # [B, 16e, h, w]
        x = self.stage2(x)                                   # [B, 32e, h/2, w/2]  rounded up
        x = self.stage3(x)                                   # [B, 64e, h/4, w/4]
        return self.classifier(x.mean((2, 3)))               # [B, C]


class Edge(nn.Module):
    """FedGKT's edge: `extract` returns the feature map to upload, `classify` the logits of it."""

    def __init__(self, block, blocks, image_shape, num_classes):
        super().__init__()
        self.stem = nn.Sequential(conv3x3(image_shape[0], 16), nn.BatchNorm2d(16), nn.ReLU())
        self.body = stage(block, blocks, 16, 16 * block.expansion, stride=1)
        self.classifier = nn.Linear(16 * block.expansion, num_classes)
        initialize_convolutions(self)

    def extract(self, images):                               # [B, c, h, w] -> [B, 16, h, w]
        return self.stem(images)

    def classify(self, features):                            # [B, 16, h, w] -> [B, C]
        return self.classifier(self.body(features).mean((2, 3)))

    def forward(self, images):
        return self.classify(self.extract(images))


class SmallEdge(nn.Module):
    """An edge for the glyphs: one convolution, then a linear layer for the logits; no BatchNorm."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        c, h, w = image_shape
        self.stem = nn.Conv2d(c, 8, 3, padding=1)
        self.classifier = nn.Linear(8 * (h // 2) * (w // 2), num_classes)

    def extract(self, images):                               # [B, c, h, w] -> [B, 8, h/2, w/2]
        return F.relu(F.max_pool2d(self.stem(images), 2))

    def classify(self, features):                            # [B, 8, h/2, w/2] -> [B, C]
        return self.classifier(features.flatten(1))

    def forward(self, images):
        return self.classify(self.extract(images))


class ServerResNet(ResNet):
    """FedGKT's server: a ResNet without stem; its input is a feature map [B, 16, h, w]."""

    def __init__(self, blocks, image_shape, num_classes):
        super().__init__(Bottleneck, blocks, image_shape, num_classes)
        self.stem = nn.Identity()


class SmallServer(LargeCNN):
    """The server for `SmallEdge`: `LargeCNN` without the first pooling, which is the edge's."""

    def __init__(self, image_shape, num_classes):
        super().__init__((8, *image_shape[1:]), num_classes)

    def forward(self, features):                             # [B, 8, h/2, w/2]
        x = F.relu(self.conv1(features))                     # [B, 32, h/2, w/2]
        x = F.relu(F.max_pool2d(self.conv2(x), 2))           # [B, 64, h/4, w/4]
        return self.classifier(F.relu(self.hidden(x.flatten(1))))


class SmallFull(SmallServer):
    """`SmallEdge.extract` and `SmallServer` as one network, for centralized training and FedAvg."""

    def __init__(self, image_shape, num_classes):
        super().__init__(image_shape, num_classes)
        self.stem = nn.Conv2d(image_shape[0], 8, 3, padding=1)

    def forward(self, images):                               # [B, c, h, w]
        return super().forward(F.relu(F.max_pool2d(self.stem(images), 2)))


class PreActivationBlock(nn.Module):
    """The sum of two 3x3 convolutions, each after BatchNorm and ReLU, and the shortcut.

    The shortcut is the block's input if the shapes are equal. Otherwise it is a 1x1 convolution of
    the activated input, without a BatchNorm of its own.
    """

    def __init__(self, in_channels, out_channels, stride):
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = conv3x3(in_channels, out_channels, stride)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv3x3(out_channels, out_channels)
        same_shape = stride == 1 and in_channels == out_channels
        self.shortcut = None if same_shape else conv1x1(in_channels, out_channels, stride)

    def forward(self, x):
        active = F.relu(self.bn1(x))
        residual = self.conv2(F.relu(self.bn2(self.conv1(active))))
        return residual + (x if self.shortcut is None else self.shortcut(active))


class WideResNet(nn.Module):
    """WRN-16-2: three stages of two pre-activation blocks, 32, 64, 128 channels; no dropout."""

    def __init__(self, image_shape, num_classes):
        super().__init__()
        self.stem = conv3x3(image_shape[0], 16)
        self.stage1 = stage(PreActivationBlock, 2, 16, 32, stride=1)
        self.stage2 = stage(PreActivationBlock, 2, 32, 64, stride=2)
        self.stage3 = stage(PreActivationBlock, 2, 64, 128, stride=2)
        self.bn = nn.BatchNorm2d(128)
        self.classifier = nn.Linear(128, num_classes)
        initialize_convolutions(self)

    def forward(self, images):                               # [B, c, h, w]
        x = self.stem(images)                                # [B, 16, h, w]
        x = self.stage1(x)                                   # [B, 32, h, w]
        x = self.stage2(x)                                   # [B, 64, h/2, w/2]
        x = self.stage3(x)                                   # [B, 128, h/4, w/4]
        x = F.relu(self.bn(x))
        return self.classifier(x.mean((2, 3)))               # [B, C]


# ------------------------------------------------------------------------------------- FedMD's CNNs


class AveragePoolSame(nn.Module):
    """2x2 average pooling with stride 1 and Keras's 'same' padding: the size does not change.

    Keras leaves pixels outside the image out of the mean. Repeating the last row and column gives
    the same means: (a + b + a + b) / 4 = (a + b) / 2.
    """

    def forward(self, x):                                    # [B, n, h, w]
        x = torch.cat([x, x[:, :, -1:]], dim=2)              # [B, n, h+1, w]
        x = torch.cat([x, x[:, :, :, -1:]], dim=3)           # [B, n, h+1, w+1]
        return F.avg_pool2d(x, 2, stride=1)                  # [B, n, h, w]


def fedmd_block(in_channels, out_channels, dropout, kernel=3, stride=2, padding=0):
    """Convolution with bias, BatchNorm, ReLU and dropout.

    BatchNorm has Keras's constants: eps 1e-3, and momentum 0.99, which torch writes as 0.01.
    """
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel, stride=stride, padding=padding),
        nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.01),           # departure 3
        nn.ReLU(),
        nn.Dropout(dropout),
    )


class FedMDNet(nn.Module):
    """FedMD's CNN: one convolution per entry of `filters`, then a linear layer without bias."""

    def __init__(self, filters, dropout, image_shape, num_classes):
        super().__init__()
        c, h, w = image_shape
        # The comments give the height and width for MNIST images.
        layers = [
            fedmd_block(c, filters[0], dropout, stride=1, padding=1),      # 28 -> 28
            AveragePoolSame(),                                             # 28 -> 28
        ]
        if len(filters) == 2:
            layers += [fedmd_block(filters[0], filters[1], dropout)]       # 28 -> 13
            h, w = (h - 1) // 2, (w - 1) // 2
        else:
            layers += [
                fedmd_block(filters[0], filters[1], dropout, kernel=2),    # 28 -> 14
                nn.AvgPool2d(2),                                           # 14 -> 7
            ]
            h, w = h // 4, w // 4
        for in_channels, out_channels in pairwise(filters[1:]):
            layers += [fedmd_block(in_channels, out_channels, dropout)]    # 7 -> 3, then 3 -> 1
            h, w = (h - 1) // 2, (w - 1) // 2
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(filters[-1] * h * w, num_classes, bias=False)
        for module in self.modules():       # Keras's default: Glorot uniform weights, zero biases
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(module.weight)
            if isinstance(module, nn.Conv2d):
                nn.init.zeros_(module.bias)

    def forward(self, images):                               # [B, c, h, w]
        x = self.features(images)                            # [B, filters[-1], h', w']
        return self.classifier(x.flatten(1))                 # [B, C]


# ---------------------------------------------------------------------------- the table of networks

# Blocks in each of the three stages. The comments give the number of trainable parameters for 3
# input channels and 10 classes.
BASIC_BLOCKS = {
    "resnet8": (1, 1, 1),                # 78,042
    "resnet20": (3, 3, 3),               # 272,474
    "resnet56": (9, 9, 9),               # 855,770
}
BOTTLENECKS = {                          # parameters, then the clients of FedGEMS with this network
    "bottleneck11": (1, 1, 1),           # 127,642   1, 9 (in the homogeneous setting all clients)
    "bottleneck14a": (1, 1, 2),          # 198,042   2, 10 (8, 16 as Table 11 prints: departure 1)
    "bottleneck14b": (1, 2, 1),          # 145,434   3, 11
    "bottleneck14c": (2, 1, 1),          # 132,186   4, 12
    "bottleneck17a": (1, 2, 2),          # 215,834   5, 13
    "bottleneck17b": (2, 1, 2),          # 202,586   6, 14
    "bottleneck17c": (2, 2, 1),          # 149,978   7, 15
    "bottleneck17d": (1, 1, 3),          # 268,442   8, 16 (by the network's name: departure 1)
    "bottleneck20": (2, 2, 2),           # 220,378   server networks from here on
    "bottleneck38": (4, 4, 4),           # 405,850
    "bottleneck56": (6, 6, 6),           # 591,322
    "bottleneck110": (12, 12, 12),       # 1,147,738
}
FEDMD = {                                # filters of each convolution, dropout rate
    "fedmd0": ((128, 256), 0.2),         # FedMD Table 1
    "fedmd1": ((128, 384), 0.2),
    "fedmd2": ((128, 512), 0.2),
    "fedmd3": ((256, 256), 0.3),
    "fedmd4": ((256, 512), 0.4),
    "fedmd5": ((64, 128, 256), 0.2),
    "fedmd6": ((64, 128, 192), 0.2),
    "fedmd7": ((128, 192, 256), 0.2),
    "fedmd8": ((128, 128, 128), 0.3),
    "fedmd9": ((128, 128, 192), 0.3),
    "fedmd_cifar0": ((128, 256), 0.2),   # FedMD Table 2
    "fedmd_cifar1": ((128, 128, 192), 0.2),
    "fedmd_cifar2": ((64, 64, 64), 0.2),
    "fedmd_cifar3": ((128, 64, 64), 0.3),
    "fedmd_cifar4": ((64, 64, 128), 0.4),
    "fedmd_cifar5": ((64, 128, 256), 0.2),
    "fedmd_cifar6": ((64, 128, 192), 0.2),
    "fedmd_cifar7": ((128, 192, 256), 0.2),
    "fedmd_cifar8": ((128, 128, 128), 0.3),
    "fedmd_cifar9": ((64, 64, 64, 64), 0.2),                             # departure 4
}
MINI = {                                 # FedMD's networks 1 to 8 with an eighth of the filters
    f"mini{j}": (tuple(n // 8 for n in FEDMD[f"fedmd{j}"][0]), FEDMD[f"fedmd{j}"][1])
    for j in range(1, 9)
}

# Convolutions -> smallest image side in pixels: the last one's input is not below its 3x3 kernel.
FEDMD_SMALLEST = {2: 3, 3: 12, 4: 28}

# name -> (smallest image side in pixels, constructor(image_shape, num_classes)). 4 pixels become
# maps of 1 x 1 after two halvings; a network that rounds up would run on fewer.
NETWORKS = {
    "cnn": (4, CNN),
    "cnn_large": (4, LargeCNN),
    "mlp": (1, MLP),
    "cnn_6_16": (4, cnn_6_16),
    "mini0": (1, partial(MLP, units=32)),
    "mini9": (1, partial(MLP, units=16)),
    **{name: (4, partial(ResNet, BasicBlock, blocks)) for name, blocks in BASIC_BLOCKS.items()},
    "wrn16_2": (4, WideResNet),
    **{name: (4, partial(ResNet, Bottleneck, blocks)) for name, blocks in BOTTLENECKS.items()},
    "gkt_edge": (4, partial(Edge, Bottleneck, 2)),
    "gkt_edge4": (4, partial(Edge, BasicBlock, 1)),
    "gkt_edge6": (4, partial(Edge, BasicBlock, 2)),
    "gkt_edge_table7": (4, partial(Edge, BasicBlock, 3)),                # departure 5: no pooling
    "gkt_server19": (4, partial(ServerResNet, (2, 2, 2))),
    "gkt_server55": (4, partial(ServerResNet, (6, 6, 6))),
    "gkt_server109": (4, partial(ServerResNet, (12, 12, 12))),
    "gkt_edge_small": (4, SmallEdge),
    "gkt_server_small": (4, SmallServer),
    "gkt_full_small": (4, SmallFull),
    **{name: (FEDMD_SMALLEST[len(filters)], partial(FedMDNet, filters, dropout))
       for name, (filters, dropout) in (FEDMD | MINI).items()},
}


def build(name, image_shape, num_classes):
    """A new network: it maps images [B, *image_shape] to logits [B, num_classes].

    name           one of NETWORKS
    image_shape    (c, h, w): channels, height and width in pixels
    raises         ValueError: the name is unknown, or the images are too small for the network
    """
    if name not in NETWORKS:
        raise ValueError(f"unknown network {name!r}; choose from {', '.join(NETWORKS)}")
    smallest, network = NETWORKS[name]
    _, h, w = image_shape
    if min(h, w) < smallest:
        raise ValueError(f"{name} needs images of at least {smallest}x{smallest} pixels, "
                         f"these have {h}x{w}")
    return network(image_shape, num_classes).to(memory_format=torch.channels_last)


class Stacked(nn.Module):
    """An edge network's extractor with a server's network behind it: images -> logits."""

    def __init__(self, edge, server):
        super().__init__()
        self.edge, self.server = edge, server

    def forward(self, images):
        return self.server(self.edge.extract(images))


class Ensemble(nn.Module):
    """The mean of the logits of several networks: images -> logits."""

    def __init__(self, *members):
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, images):
        return torch.stack([member(images) for member in self.members]).mean(0)
