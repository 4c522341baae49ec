"""The networks have the parameters, sizes and initial weights of the papers and their code."""
import math
from functools import cache, partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import models
from models import NETWORKS, build

CIFAR, MNIST, GLYPHS = (3, 32, 32), (1, 28, 28), (1, 16, 16)
TABLE_1 = list(zip(      # FedMD, Table 1 (MNIST): filters of each convolution, dropout rate
    [(128, 256), (128, 384), (128, 512), (256, 256), (256, 512), (64, 128, 256), (64, 128, 192),
     (128, 192, 256), (128, 128, 128), (128, 128, 192)], [.2, .2, .2, .3, .4, .2, .2, .2, .3, .3]))
TABLE_2 = list(zip(      # FedMD, Table 2 (CIFAR)
    [(128, 256), (128, 128, 192), (64, 64, 64), (128, 64, 64), (64, 64, 128), (64, 128, 256),
     (64, 128, 192), (128, 192, 256), (128, 128, 128), (64, 64, 64, 64)],
    [.2, .2, .2, .3, .4, .2, .2, .2, .3, .2]))
FEDMD = {**{f"fedmd{i}": row for i, row in enumerate(TABLE_1)},
         **{f"fedmd_cifar{i}": row for i, row in enumerate(TABLE_2)},
         **{f"mini{i}": (tuple(n // 8 for n in TABLE_1[i][0]), TABLE_1[i][1]) for i in range(1, 9)}}
PARAMETERS = {           # with CIFAR's images and 10 classes
    "cnn": 25_578, "cnn_large": 545_098, "mlp": 394_634, "mini0": 98_666, "mini9": 49_338,
    "cnn_6_16": 34_222, "gkt_edge_small": 20_714, "gkt_server_small": 546_538,
    "resnet8": 78_042, "resnet20": 272_474, "resnet56": 855_770, "wrn16_2": 691_674,
    "bottleneck11": 127_642, "bottleneck14a": 198_042, "bottleneck14b": 145_434,     # FedGEMS,
    "bottleneck14c": 132_186, "bottleneck17a": 215_834, "bottleneck17b": 202_586,    # Tables 10-12
    "bottleneck17c": 149_978, "bottleneck17d": 268_442, "bottleneck20": 220_378,
    "bottleneck38": 405_850, "bottleneck56": 591_322, "bottleneck110": 1_147_738,
    "gkt_edge": 10_586, "gkt_edge4": 5_306, "gkt_edge6": 9_978, "gkt_edge_table7": 14_650,
    "gkt_server19": 220_378 - 464, "gkt_server55": 591_322 - 464,                    # without stem
    "gkt_server109": 1_147_738 - 464}
close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)


def input_shape(name, shape):
    """What a network reads: the images, or, for FedGKT's servers, the edges' feature maps."""
    _, h, w = shape
    return {"gkt_server19": (16, h, w), "gkt_server55": (16, h, w), "gkt_server109": (16, h, w),
            "gkt_server_small": (8, h // 2, w // 2)}.get(name, shape)


def random_images(shape):
    images = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))
    return images.to(memory_format=torch.channels_last)


@cache
def network(name):
    """A network for CIFAR-10 that several tests read and none changes."""
    return build(name, CIFAR, 10)


def layers_of(model, kind):
    return [module for module in model.modules() if isinstance(module, kind)]


# ------------------------------------------------------------------------------ parameters
@pytest.mark.parametrize("name", PARAMETERS)
def test_networks_have_the_parameters_of_their_layers(name):
    assert sum(p.numel() for p in network(name).parameters()) == PARAMETERS[name]


@pytest.mark.parametrize("name", FEDMD)
def test_fedmd_network_is_the_row_of_its_table_with_kerass_batchnorm(name):
    """The filters of each convolution, each with the dropout rate after it."""
    filters, rate = FEDMD[name]
    assert tuple(layer.out_channels for layer in layers_of(network(name), nn.Conv2d)) == filters
    assert [layer.p for layer in layers_of(network(name), nn.Dropout)] == [rate] * len(filters)
    norms = layers_of(network(name), nn.BatchNorm2d)
    assert norms and {(norm.eps, norm.momentum) for norm in norms} == {(1e-3, 0.01)}


# ----------------------------------------------------------------------------------- sizes
@cache
def smallest(name):
    """A network for 7 classes and its smallest images, which need not be square; two of them."""
    side, _ = NETWORKS[name]
    shape = (2, side, side + 5)
    torch.manual_seed(0)
    return build(name, shape, 7), random_images(input_shape(name, shape))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_output_is_that_of_the_linear_layer_called_classifier(name):
    model, images = smallest(name)
    outputs = []
    hook = model.classifier.register_forward_hook(lambda *seen: outputs.append(seen[-1]))
    logits = model.train()(images)
    hook.remove()
    assert isinstance(model.classifier, nn.Linear) and outputs[0] is logits
    assert logits.shape == (2, 7) and logits.isfinite().all()


@pytest.mark.parametrize("name, side", [("cnn", 4), ("fedmd0", 3), ("fedmd5", 12), ("resnet8", 4)])
def test_a_network_refuses_smaller_images(name, side):
    for h, w in ((side - 1, 40), (40, side - 1)):
        message = f"^{name} needs .* {side}x{side} pixels, these have {h}x{w}$"
        with pytest.raises(ValueError, match=message):
            build(name, (1, h, w), 10)


# -------------------------------------------------------------------------- initial weights
@pytest.mark.parametrize("name", ["resnet20", "wrn16_2", "bottleneck20", "gkt_edge4"])
def test_residual_convolutions_start_kaiming_normal_fan_out(name):
    """Standard deviation to five standard errors. BatchNorm starts at weight 1 and bias 0."""
    torch.manual_seed(0)
    model = build(name, CIFAR, 10)
    large = [layer for layer in layers_of(model, nn.Conv2d) if layer.weight.numel() >= 2304]
    for layer in large:
        fan_out = layer.out_channels * layer.kernel_size[0]**2
        error = 5 / math.sqrt(2 * layer.weight.numel())
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=error)
        assert layer.weight.abs().max() > 3 * math.sqrt(2 / fan_out)        # normal, not uniform
    norms = layers_of(model, nn.BatchNorm2d)
    assert large and all((norm.weight == 1).all() and not norm.bias.any() for norm in norms)


@pytest.mark.parametrize("name", ["fedmd0", "fedmd5", "fedmd_cifar9"])
def test_fedmd_is_initialized_like_keras(name):
    """Glorot: uniform in [-bound, bound]. Biases are 0."""
    torch.manual_seed(0)
    for layer in layers_of(build(name, MNIST, 16), (nn.Conv2d, nn.Linear)):
        bound = math.sqrt(6 / (layer.weight[0].numel() + layer.weight[:, 0].numel()))
        assert 0.97 * bound < layer.weight.abs().max().item() <= bound
        assert layer.bias is None or not layer.bias.any()


# ---------------------------------------------------------------------------- blocks, by hand
def by_hand(block, **centers):
    """In eval mode, BatchNorm without effect (variance 1 - eps: it divides by exactly 1), and
    kernels that are 0 but for the given value at the pixel itself."""
    for norm in layers_of(block, nn.BatchNorm2d):
        norm.running_var.fill_(1 - norm.eps)
    for name, value in centers.items():
        kernel = getattr(block, name).weight.data.zero_()
        kernel[:, :, kernel.shape[2] // 2, kernel.shape[3] // 2] = value
    return block.eval()


def test_basic_block_by_hand():
    """relu(x - 0.2 relu(3 x))"""
    block = by_hand(models.BasicBlock(1, 1, 1), conv1=3.0, conv2=-0.2)
    x = torch.tensor([2.0, -2.0, 0.5]).view(3, 1, 1, 1)
    expected = [2 - 0.2 * (3 * 2), 0.0, 0.5 - 0.2 * (3 * 0.5)]
    torch.testing.assert_close(block(x).flatten(), torch.tensor(expected))


def test_bottleneck_by_hand():
    """4 -> 1 -> 1 -> 4 channels. x sums to 6. ReLU follows the first two convolutions."""
    x = torch.tensor([1.0, 2.0, 4.0, -1.0])
    residual = -0.1 * (3 * (0.5 * 6))
    expected = torch.tensor([1 + residual, 2 + residual, 4 + residual, -1 + residual])
    for conv2, image, logits in [(3.0, x, expected), (3.0, -x, -x), (-3.0, x, x)]:
        block = by_hand(models.Bottleneck(4, 4, 1), conv1=0.5, conv2=conv2, conv3=-0.1)
        torch.testing.assert_close(block(image.view(1, 4, 1, 1)).flatten(), F.relu(logits))


def test_pre_activation_block_by_hand():
    """x - 0.2 relu(3 relu(x)); a projection is 5 relu(x), not 5 x."""
    x = torch.tensor([2.0, -2.0]).view(2, 1, 1, 1)
    for conv1, expected in [(3.0, [2 - 0.2 * (3 * 2), -2.0]), (-3.0, [2.0, -2.0])]:
        block = by_hand(models.PreActivationBlock(1, 1, 1), conv1=conv1, conv2=-0.2)
        torch.testing.assert_close(block(x).flatten(), torch.tensor(expected))
    block = by_hand(models.PreActivationBlock(1, 2, 1), conv2=0.0, shortcut=5.0)
    torch.testing.assert_close(block(x).flatten(1), torch.tensor([[5 * 2.0] * 2, [0.0] * 2]))


@pytest.mark.parametrize("block, strides", [
    (models.BasicBlock, [2, 1]), (models.Bottleneck, [2]), (models.PreActivationBlock, [2, 1])])
def test_blocks_stride_in_their_first_3x3_convolution(block, strides):
    layers = layers_of(block(64, 128, 2), nn.Conv2d)
    assert [x.stride for x in layers if x.kernel_size == (3, 3)] == [(n, n) for n in strides]


# -------------------------------------------------------------------------- networks, by hand
def shake(model):
    """Move biases and BatchNorm off their start, where leaving them out would not show."""
    rng = torch.Generator().manual_seed(1)
    for value in [*model.parameters(), *model.buffers()]:
        if value.dim() == 1:
            value.data = value.data + torch.rand(value.shape, generator=rng)
    return model.eval().requires_grad_(False)


def conv(x, layer, stride=1, padding=1):
    return F.conv2d(x, layer.weight, layer.bias, stride, padding)


def hidden_layer(model, x):
    return model.classifier(F.relu(model.hidden(x.flatten(1))))


def two_convolutions(model, x):
    x = F.max_pool2d(F.relu(conv(x, model.conv1)), 2)
    return F.max_pool2d(F.relu(conv(x, model.conv2)), 2)


@pytest.mark.parametrize("name, forward", [
    ("cnn", lambda m, x: m.classifier(two_convolutions(m, x).flatten(1))),
    ("cnn_large", lambda m, x: hidden_layer(m, two_convolutions(m, x))),
    ("mlp", hidden_layer), ("mini0", hidden_layer), ("mini9", hidden_layer),
    ("gkt_edge_small",
     lambda m, x: m.classifier(F.max_pool2d(F.relu(conv(x, m.stem)), 2).flatten(1))),
    ("gkt_server_small", lambda m, x: hidden_layer(
        m, F.max_pool2d(F.relu(conv(F.relu(conv(x, m.conv1)), m.conv2)), 2)))])
def test_small_networks_by_hand(name, forward):
    """There are no buffers to average."""
    model = shake(build(name, (3, 12, 16), 5))
    x = random_images(input_shape(name, (3, 12, 16)))
    torch.testing.assert_close(model(x), forward(model, x))
    assert not list(model.buffers())


def test_fedgens_network_by_hand():
    """28 x 28 becomes 14 x 14 and 7 x 7: 784 values of 16 filters, then 32, then the classes."""
    model, images = shake(build("cnn_6_16", MNIST, 10)), random_images(MNIST)
    x = images
    for layer, norm in zip(layers_of(model, nn.Conv2d), layers_of(model, nn.BatchNorm2d)):
        x = F.relu(norm(conv(x, layer, stride=2)))
    hidden, classifier = layers_of(model, nn.Linear)
    close(model(images), classifier(hidden(x.flatten(1))))


@pytest.mark.parametrize("name", ["resnet8", "bottleneck11", "wrn16_2"])
def test_residual_network_is_a_stem_three_stages_and_the_pixel_mean(name):
    """BatchNorm and ReLU belong to the stem; in a wide ResNet they follow the stages."""
    model, images = shake(build(name, GLYPHS, 10)), random_images(GLYPHS)
    wide = name == "wrn16_2"
    x = conv(images, model.stem if wide else model.stem[0])
    x = x if wide else F.relu(model.stem[1](x))
    for stage, side in ((model.stage1, 16), (model.stage2, 8), (model.stage3, 4)):
        x = stage(x)
        assert x.shape[2:] == (side, side)
    x = F.relu(model.bn(x)) if wide else x
    close(model(images), model.classifier(x.mean((2, 3))))


@pytest.mark.parametrize("name", ["fedmd_cifar0", "fedmd_cifar2", "fedmd_cifar9"])
def test_fedmd_is_convolution_batchnorm_relu_average_pooling(name):
    """'Same' pooling follows the first block, and plain pooling the second if there are more."""
    model, images = shake(build(name, MNIST, 16)), random_images(MNIST)
    x, convolutions = images, layers_of(model, nn.Conv2d)
    for i, (layer, norm) in enumerate(zip(convolutions, layers_of(model, nn.BatchNorm2d))):
        stride, padding = (1, 1) if i == 0 else (2, 0)
        x = F.relu(norm(conv(x, layer, stride, padding)))
        if i == 0:
            x = models.AveragePoolSame()(x)
        elif i == 1 and len(convolutions) > 2:
            x = F.avg_pool2d(x, 2)
    close(model(images), model.classifier(x.flatten(1)))


def test_average_pool_same_leaves_cells_outside_the_image_out():
    x = random_images((3, 4, 5))
    total, cells = (4 * F.avg_pool2d(F.pad(y, (0, 1, 0, 1)), 2, 1) for y in (x, torch.ones_like(x)))
    torch.testing.assert_close(models.AveragePoolSame()(x), total / cells)


# ------------------------------------------------------------------------------------ FedGKT
@pytest.mark.parametrize("name", ["gkt_edge", "gkt_edge6"])
def test_fedgkt_edge_by_hand(name):
    """A ReLU stem, blocks that keep the size, and the mean over all pixels."""
    model, images = shake(build(name, GLYPHS, 10)), random_images(GLYPHS)
    x = F.relu(model.stem[1](conv(images, model.stem[0])))
    close(model.extract(images), x)
    x = model.body(x)
    assert x.shape[2:] == GLYPHS[1:]
    close(model(images), model.classifier(x.mean((2, 3))))
    assert torch.equal(model(images), model.classify(model.extract(images)))


@pytest.mark.parametrize("edge, server, whole", [
    ("gkt_edge", "gkt_server19", "bottleneck20"), ("gkt_edge", "gkt_server55", "bottleneck56"),
    ("gkt_edge", "gkt_server109", "bottleneck110"),
    ("gkt_edge_small", "gkt_server_small", "gkt_full_small")])
def test_fedgkt_stem_and_server_are_the_whole_network(edge, server, whole):
    """Parameters, statistics, logits; the server keeps nothing unused of the stem."""
    edge, server, whole = (shake(build(name, GLYPHS, 10)) for name in (edge, server, whole))
    stem, rest = {}, {}
    for key, value in whole.state_dict().items():
        (stem if key.startswith("stem.") else rest)[key.removeprefix("stem.")] = value
    edge.stem.load_state_dict(stem)
    server.load_state_dict(rest)
    images = random_images(GLYPHS)
    close(whole(images), server(edge.extract(images)))
