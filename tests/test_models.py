"""The networks have the parameters, sizes and initial weights that the papers and their published code give them."""
import math

import pytest
import torch
from torch import nn

import models
from models import BASIC_BLOCKS, BOTTLENECKS, FEDMD, NETWORKS, build

CIFAR, MNIST, GLYPHS = (3, 32, 32), (1, 28, 28), (1, 16, 16)
CONVOLUTIONAL = [name for name in NETWORKS if name not in ("mlp", "mini0", "mini9")]
RESIDUAL = [*BASIC_BLOCKS, "wrn16_2", *BOTTLENECKS]
FAMILIES = ["cnn", "mlp", "resnet8", "wrn16_2", "bottleneck11", "fedmd5", "fedmd_cifar9"]     # one network of each


def smallest_usual_shape(name):
    """Glyphs for every network but the one that cannot see them."""
    return MNIST if name == "fedmd_cifar9" else GLYPHS


def input_shape(name, image_shape):
    """What a network reads: the images, or of FedGKT's servers the edges' feature maps of them."""
    _, h, w = image_shape
    return {"gkt_server55": (16, h, w), "gkt_server109": (16, h, w), "gkt_server_small": (8, h // 2, w // 2)}.get(name, image_shape)


def random_images(count, shape, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=rng).to(memory_format=torch.channels_last)


def trainable(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def float_statistics(model):
    return sum(b.numel() for b in model.buffers() if b.is_floating_point())


# ------------------------------------------------------------------------------------ parameters, counted and published

@pytest.mark.parametrize("name, classes10, classes100", [
    ("bottleneck11", 127_642, 150_772),          # FedGEMS Table 10 prints the counts of 11, 20 and 56
    ("bottleneck14a", 198_042, 221_172),
    ("bottleneck14b", 145_434, 168_564),
    ("bottleneck14c", 132_186, 155_316),
    ("bottleneck17a", 215_834, 238_964),
    ("bottleneck17b", 202_586, 225_716),
    ("bottleneck17c", 149_978, 173_108),
    ("bottleneck17d", 268_442, 268_442 + 90 * (256 + 1)),
    ("bottleneck20", 220_378, 243_508),
    ("bottleneck38", 405_850, 428_980),
    ("bottleneck56", 591_322, 614_452),
    ("bottleneck110", 1_147_738, 1_170_868),
])
def test_bottleneck_trainable_parameters(name, classes10, classes100):
    assert [trainable(build(name, CIFAR, classes)) for classes in (10, 100)] == [classes10, classes100]


@pytest.mark.parametrize("name, classes10, classes100", [
    ("resnet8", 78_042, 78_042 + 90 * (64 + 1)),
    ("resnet20", 272_474, 278_324),
    ("resnet56", 855_770, 861_620),
    ("wrn16_2", 691_674, 703_284),
])
def test_fedsdd_network_trainable_parameters(name, classes10, classes100):
    assert [trainable(build(name, CIFAR, classes)) for classes in (10, 100)] == [classes10, classes100]


@pytest.mark.parametrize("name, mnist, cifar", [
    ("fedmd0", 989_440, 1_221_120),
    ("fedmd1", 1_483_392, 1_829_760),
    ("fedmd2", 1_977_344, 2_438_400),
    ("fedmd3", 1_285_888, 1_519_872),
    ("fedmd4", 2_568_704, 3_032_064),
    ("fedmd5", 366_464, 367_616),
    ("fedmd6", 283_328, 284_480),
    ("fedmd7", 580_416, 582_720),
    ("fedmd8", 233_728, 236_032),
    ("fedmd9", 316_864, 319_168),
])
def test_fedmd_trainable_parameters_with_16_outputs(name, mnist, cifar):
    assert [trainable(build(name, shape, 16)) for shape in (MNIST, CIFAR)] == [mnist, cifar]


FEDMD_TABLE_2 = [(128, 256), (128, 128, 192), (64, 64, 64), (128, 64, 64), (64, 64, 128),
                 (64, 128, 256), (64, 128, 192), (128, 192, 256), (128, 128, 128), (64, 64, 64, 64)]


@pytest.mark.parametrize("number, filters", list(enumerate(FEDMD_TABLE_2)))
def test_fedmd_cifar_trainable_parameters_with_16_outputs(number, filters):
    kernels = {2: (3, 3), 3: (3, 2, 3), 4: (3, 2, 3, 3)}[len(filters)]
    side = {2: 15, 3: 3, 4: 1}[len(filters)]
    inputs = (3, *filters[:-1])
    convolutions = sum(k * k * n * after for k, n, after in zip(kernels, inputs, filters, strict=True))
    biases, batchnorms, dense = sum(filters), 2 * sum(filters), side * side * filters[-1] * 16
    expected = convolutions + biases + batchnorms + dense
    assert trainable(build(f"fedmd_cifar{number}", CIFAR, 16)) == expected


@pytest.mark.parametrize("number, filters", list(enumerate(FEDMD_TABLE_2)))
def test_fedmd_cifar_filters_are_those_of_table_2(number, filters):
    model = build(f"fedmd_cifar{number}", CIFAR, 16)
    assert tuple(module.out_channels for module in model.modules() if isinstance(module, nn.Conv2d)) == filters


@pytest.mark.parametrize("name, rate", [
    *[(f"fedmd{i}", rate) for i, rate in enumerate([.2, .2, .2, .3, .4, .2, .2, .2, .3, .3])],          # Table 1
    *[(f"fedmd_cifar{i}", rate) for i, rate in enumerate([.2, .2, .2, .3, .4, .2, .2, .2, .3, .2])],    # Table 2
])
def test_fedmd_drops_out_at_the_rate_of_its_table_after_every_convolution(name, rate):
    rates = [module.p for module in build(name, MNIST, 16).modules() if isinstance(module, nn.Dropout)]
    assert rates == [rate] * len(FEDMD[name][0])


def test_cnn_parameters():
    assert trainable(build("cnn", GLYPHS, 10)) == (9 * 1 * 16 + 16) + (9 * 16 * 32 + 32) + (4 * 4 * 32 * 10 + 10)


def test_mlp_parameters():
    assert trainable(build("mlp", GLYPHS, 10)) == (256 * 128 + 128) + (128 * 10 + 10)


@pytest.mark.parametrize("name, numbers", [
    ("bottleneck11", 2_272), ("bottleneck14a", 3_040), ("bottleneck14b", 2_656), ("bottleneck14c", 2_464),
    ("bottleneck17a", 3_424), ("bottleneck17b", 3_232), ("bottleneck17c", 2_848),
    ("bottleneck17d", 3_040 + 2 * (64 + 64 + 256)),          # 14a and one more block: mean and variance of each channel
    ("bottleneck20", 3_616), ("bottleneck38", 6_304), ("bottleneck56", 8_992), ("bottleneck110", 17_056),
])
def test_bottleneck_batchnorm_statistics(name, numbers):
    assert float_statistics(build(name, CIFAR, 10)) == numbers


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_small_networks_have_no_buffers_to_average(name):
    assert list(build(name, GLYPHS, 10).buffers()) == []


@pytest.mark.parametrize("name", [*BASIC_BLOCKS, *BOTTLENECKS])
def test_number_in_the_name_counts_the_layers_outside_shortcuts(name):
    layers = [path for path, module in build(name, CIFAR, 10).named_modules()
              if isinstance(module, (nn.Conv2d, nn.Linear)) and "shortcut" not in path]
    assert len(layers) == int("".join(c for c in name if c.isdigit()))


# ---------------------------------------------------------------------------------------------------------------- sizes

@pytest.mark.parametrize("name", NETWORKS)
def test_logits_have_one_row_per_image_and_one_column_per_class(name):
    shape = smallest_usual_shape(name)
    with torch.no_grad():
        assert build(name, shape, 7).eval()(random_images(3, input_shape(name, shape))).shape == (3, 7)


@pytest.mark.parametrize("name", FAMILIES)
def test_images_need_not_be_square(name):
    shape = (2, 28, 45)
    with torch.no_grad():
        assert build(name, shape, 5).eval()(random_images(2, shape)).shape == (2, 5)


SMALLEST = [("cnn", 4), ("resnet8", 4), ("wrn16_2", 4), ("bottleneck11", 4),
            ("fedmd0", 3), ("fedmd5", 12), ("fedmd_cifar9", 28)]


@pytest.mark.parametrize("name, smallest", [*SMALLEST, ("mlp", 1)])
def test_smallest_image_gives_logits(name, smallest):
    shape = (1, smallest, smallest)
    with torch.no_grad():
        assert build(name, shape, 5).eval()(random_images(2, shape)).shape == (2, 5)


@pytest.mark.parametrize("name, smallest", [("fedmd0", 3), ("fedmd5", 12), ("fedmd_cifar9", 28)])
def test_fedmd_convolutions_have_nothing_to_look_at_in_a_smaller_image(name, smallest):
    features = build(name, (1, smallest, smallest), 5).eval().features
    with pytest.raises(RuntimeError, match="size"):
        features(random_images(1, (1, smallest - 1, smallest - 1)))


@pytest.mark.parametrize("name, smallest", SMALLEST)
@pytest.mark.parametrize("narrow", ["height", "width"])
def test_image_below_the_smallest_is_one_clear_line(name, smallest, narrow):
    h, w = (smallest - 1, 40) if narrow == "height" else (40, smallest - 1)
    message = f"{name} needs images of at least {smallest}x{smallest} pixels, these have {h}x{w}"
    with pytest.raises(ValueError, match=f"^{message}$"):
        build(name, (1, h, w), 10)


def test_unknown_name_lists_the_known_ones_in_one_line():
    with pytest.raises(ValueError, match=r"^unknown network 'resnet21'; choose from [^\n]*$") as error:
        build("resnet21", CIFAR, 10)
    assert str(error.value).split("choose from ")[1].split(", ") == list(NETWORKS)


@pytest.mark.parametrize("name, shape, sizes", [
    ("fedmd0", MNIST, [28, 28, 13]),                        # convolution, 'same' pooling, convolution
    ("fedmd0", CIFAR, [32, 32, 15]),
    ("fedmd5", MNIST, [28, 28, 14, 7, 3]),                  # the second convolution is pooled, too
    ("fedmd5", CIFAR, [32, 32, 16, 8, 3]),
    ("fedmd_cifar9", MNIST, [28, 28, 14, 7, 3, 1]),
    ("fedmd_cifar9", CIFAR, [32, 32, 16, 8, 3, 1]),
])
def test_fedmd_spatial_sizes(name, shape, sizes):
    x, found = random_images(1, shape), []
    with torch.no_grad():
        for layer in build(name, shape, 16).eval().features:
            x = layer(x)
            assert x.shape[2] == x.shape[3]
            found.append(x.shape[2])
    assert found == sizes


@pytest.mark.parametrize("name, shapes", [
    ("resnet20", [(16, 32), (16, 32), (32, 16), (64, 8)]),
    ("wrn16_2", [(16, 32), (32, 32), (64, 16), (128, 8)]),
    ("bottleneck20", [(16, 32), (64, 32), (128, 16), (256, 8)]),
])
def test_residual_stages_widen_and_halve(name, shapes):
    model, x, found = build(name, CIFAR, 10).eval(), random_images(1, CIFAR), []
    with torch.no_grad():
        for part in (model.stem, model.stage1, model.stage2, model.stage3):
            x = part(x)
            found.append((x.shape[1], x.shape[2]))
    assert found == shapes


# -------------------------------------------------------------------------------------------------- every network alike

@pytest.mark.parametrize("name", NETWORKS)
def test_classifier_is_the_layer_that_makes_the_logits(name):
    shape = smallest_usual_shape(name)
    model, outputs = build(name, shape, 10).eval(), []
    model.classifier.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    with torch.no_grad():
        logits = model(random_images(2, input_shape(name, shape)))
    assert isinstance(model.classifier, nn.Linear)
    assert outputs[0] is logits


@pytest.mark.parametrize("name", NETWORKS)
def test_train_mode_takes_a_batch_of_two(name):
    shape = smallest_usual_shape(name)
    logits = build(name, shape, 10).train()(random_images(2, input_shape(name, shape)))
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_receives_a_gradient(name):
    shape = smallest_usual_shape(name)
    torch.manual_seed(0)
    model = build(name, shape, 10).eval()       # in train mode BatchNorm cancels the bias before it: gradient 0
    nn.functional.cross_entropy(model(random_images(4, input_shape(name, shape))), torch.arange(4)).backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []
    assert [key for key, p in model.named_parameters() if not p.grad.isfinite().all() or not p.grad.any()] == []


@pytest.mark.parametrize("name", FAMILIES)
def test_eval_mode_repeats_itself_bit_for_bit(name):
    shape = smallest_usual_shape(name)
    model, images = build(name, shape, 10).eval(), random_images(3, shape)
    with torch.no_grad():
        assert torch.equal(model(images), model(images))


def test_train_mode_of_fedmd_drops_out_anew_each_time():
    model, images = build("fedmd5", GLYPHS, 10).train(), random_images(3, GLYPHS)
    with torch.no_grad():
        assert not torch.equal(model(images), model(images))


@pytest.mark.parametrize("name", FAMILIES)
def test_eval_mode_judges_an_image_apart_from_its_batch(name):
    shape = smallest_usual_shape(name)
    model, images = build(name, shape, 10).eval(), random_images(5, shape)
    with torch.no_grad():
        torch.testing.assert_close(model(images)[:1], model(images[:1]))


@pytest.mark.parametrize("name", FAMILIES)
def test_contiguous_images_give_the_same_logits_as_channels_last(name):
    shape = (3, *smallest_usual_shape(name)[1:])
    model, images = build(name, shape, 10).eval(), random_images(2, shape)
    with torch.no_grad():
        torch.testing.assert_close(model(images.contiguous()), model(images))


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_convolutions_are_channels_last(name):
    weights = [module.weight for module in build(name, CIFAR, 10).modules() if isinstance(module, nn.Conv2d)]
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


# ------------------------------------------------------------------------------------------------------ initial weights

@pytest.mark.parametrize("name", FAMILIES)
def test_same_torch_seed_gives_the_same_weights(name):
    weights = []
    for _ in range(2):
        torch.manual_seed(3)
        weights.append(list(build(name, MNIST, 10).parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_come_from_the_callers_generator_without_a_seed_of_their_own(name):
    torch.manual_seed(3)
    first, second = build(name, MNIST, 10), build(name, MNIST, 10)
    assert not torch.equal(first.classifier.weight, second.classifier.weight)


@pytest.mark.parametrize("name", ["resnet20", "wrn16_2", "bottleneck20"])
def test_residual_convolutions_start_kaiming_normal_fan_out(name):
    torch.manual_seed(0)
    for module in build(name, CIFAR, 10).modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() >= 4096:       # enough draws for a ratio within 5 %
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            assert module.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.05)


@pytest.mark.parametrize("name", ["resnet20", "wrn16_2", "bottleneck20"])
def test_residual_batchnorm_starts_at_weight_1_and_bias_0(name):
    norms = [module for module in build(name, CIFAR, 10).modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms and all((norm.weight == 1).all() and (norm.bias == 0).all() for norm in norms)


@pytest.mark.parametrize("name", ["fedmd0", "fedmd5", "fedmd_cifar9"])
def test_fedmd_is_initialised_like_keras(name):
    torch.manual_seed(0)
    for module in build(name, MNIST, 16).modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            receptive_field = module.weight[0, 0].numel() if module.weight.dim() == 4 else 1
            bound = math.sqrt(6 / (receptive_field * (module.weight.shape[0] + module.weight.shape[1])))
            assert 0.97 * bound < module.weight.abs().max().item() <= bound       # uniform in [-bound, bound]
        if isinstance(module, nn.Conv2d):
            assert (module.bias == 0).all()


@pytest.mark.parametrize("name", FEDMD)
def test_fedmd_batchnorm_has_the_constants_of_keras(name):
    norms = [module for module in build(name, MNIST, 16).modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-3, 0.01)}


@pytest.mark.parametrize("name", FEDMD)
def test_fedmd_last_layer_has_no_bias(name):
    assert build(name, MNIST, 16).classifier.bias is None


def test_fedmd_cifar9_repeats_its_third_block():
    third, fourth = build("fedmd_cifar9", CIFAR, 16).features[-2:]
    assert repr(third) == repr(fourth)


# ------------------------------------------------------------------------------------------------------ blocks, by hand

def identity_batchnorm(block):
    """Eval mode in which BatchNorm changes nothing: variance 1 - eps, so that it divides by exactly 1."""
    for module in block.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.fill_(1 - module.eps)
    return block.eval()


def set_centre(convolution, value):
    """All weights 0 but the one on the pixel itself."""
    with torch.no_grad():
        convolution.weight.zero_()
        k = convolution.kernel_size[0] // 2
        convolution.weight[:, :, k, k] = value


@pytest.mark.parametrize("block", [models.BasicBlock, models.Bottleneck])
def test_block_with_a_silent_residual_branch_is_relu_of_its_input(block):
    layer, x = block(8, 8, 1), random_images(2, (8, 5, 5))
    for module in layer.modules():
        if isinstance(module, nn.Conv2d):
            set_centre(module, 0.0)
    assert torch.equal(layer(x), x.clamp(min=0))


def test_pre_activation_block_with_a_silent_residual_branch_is_its_input():
    layer, x = models.PreActivationBlock(8, 8, 1), random_images(2, (8, 5, 5))
    set_centre(layer.conv2, 0.0)
    assert torch.equal(layer(x), x)


def test_basic_block_by_hand():
    block = identity_batchnorm(models.BasicBlock(1, 1, 1))
    set_centre(block.conv1, 3.0)
    set_centre(block.conv2, -0.2)
    x = torch.tensor([2.0, -2.0, 0.5]).view(3, 1, 1, 1)
    expected = [2 - 0.2 * (3 * 2), 0.0, 0.5 - 0.2 * (3 * 0.5)]                    # relu(x - 0.2 relu(3 x))
    torch.testing.assert_close(block(x).flatten(), torch.tensor(expected))


def test_bottleneck_by_hand():
    block = identity_batchnorm(models.Bottleneck(4, 4, 1))                               # 4 -> 1 -> 1 -> 4 channels
    for convolution, value in ((block.conv1, 0.5), (block.conv2, 3.0), (block.conv3, -0.1)):
        set_centre(convolution, value)
    x = torch.tensor([1.0, 2.0, 4.0, -1.0]).view(1, 4, 1, 1)                      # sum 6
    residual = -0.1 * (3 * (0.5 * 6))
    expected = [1 + residual, 2 + residual, 4 + residual, -1 + residual]
    torch.testing.assert_close(block(x).flatten(), torch.tensor(expected).clamp(min=0))


def test_pre_activation_block_by_hand():                                          # x - 0.2 relu(3 relu(x))
    block = identity_batchnorm(models.PreActivationBlock(1, 1, 1))
    set_centre(block.conv1, 3.0)
    set_centre(block.conv2, -0.2)
    x = torch.tensor([2.0, -2.0]).view(2, 1, 1, 1)
    torch.testing.assert_close(block(x).flatten(), torch.tensor([2 - 0.2 * (3 * 2), -2.0]))


def test_pre_activation_block_projects_the_activated_input():
    block = identity_batchnorm(models.PreActivationBlock(1, 2, 1))
    set_centre(block.conv2, 0.0)
    set_centre(block.shortcut, 5.0)
    x = torch.tensor([2.0, -2.0]).view(2, 1, 1, 1)
    torch.testing.assert_close(block(x).flatten(1), torch.tensor([[5 * 2.0] * 2, [0.0] * 2]))     # 5 relu(x), not 5 x


def test_bottleneck_strides_in_its_3x3_convolution():
    block = models.Bottleneck(64, 128, 2)
    assert [conv.stride for conv in (block.conv1, block.conv2, block.conv3)] == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize("name", RESIDUAL)
def test_shortcuts_are_projections_exactly_where_shapes_differ(name):
    model = build(name, CIFAR, 10)
    for number, part in enumerate((model.stage1, model.stage2, model.stage3), start=1):
        for position, block in enumerate(part):
            convolutions = [module for path, module in block.named_modules()
                            if "shortcut" in path and isinstance(module, nn.Conv2d)]
            changes_shape = position == 0 and (number > 1 or name not in BASIC_BLOCKS)       # He's first stage keeps 16
            strides = (2, 2) if number > 1 else (1, 1)
            assert [(conv.kernel_size, conv.stride) for conv in convolutions] == [((1, 1), strides)] * changes_shape


@pytest.mark.parametrize("name, batchnorms", [("resnet8", 2), ("bottleneck11", 3), ("wrn16_2", 0)])
def test_only_wide_resnet_projects_without_batchnorm(name, batchnorms):
    found = [path for path, module in build(name, CIFAR, 10).named_modules()
             if "shortcut" in path and isinstance(module, nn.BatchNorm2d)]
    assert len(found) == batchnorms


def normalized(x, norm):
    """BatchNorm in eval mode, by its formula."""
    def columns(v):
        return v.view(1, -1, 1, 1)
    scaled = (x - columns(norm.running_mean)) / (columns(norm.running_var) + norm.eps).sqrt()
    return scaled * columns(norm.weight) + columns(norm.bias)


def shake(model):
    """Move biases and BatchNorm off their start, where leaving them out would not show."""
    rng = torch.Generator().manual_seed(1)
    for value in [*model.parameters(), *model.buffers()]:
        if value.dim() == 1:
            value.data = value.data + torch.rand(value.shape, generator=rng)
    return model.eval()


def pixel_mean(maps):
    h, w = maps.shape[2:]
    return sum(maps[:, :, i, j] for i in range(h) for j in range(w)) / (h * w)


@pytest.mark.parametrize("name", ["resnet8", "bottleneck11"])
def test_resnet_is_a_relu_stem_three_stages_and_the_mean_over_all_pixels(name):
    model, images = shake(build(name, GLYPHS, 10)), random_images(2, GLYPHS)
    with torch.no_grad():
        conv, norm = [module for module in model.stem.modules() if isinstance(module, (nn.Conv2d, nn.BatchNorm2d))]
        x = normalized(nn.functional.conv2d(images, conv.weight, padding=1), norm).clamp(min=0)
        means = pixel_mean(model.stage3(model.stage2(model.stage1(x))))
        expected = means @ model.classifier.weight.T + model.classifier.bias
        torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-4)


def test_wide_resnet_is_a_bare_stem_three_stages_then_batchnorm_relu_and_mean():
    model, images = shake(build("wrn16_2", GLYPHS, 10)), random_images(2, GLYPHS)
    with torch.no_grad():
        x = nn.functional.conv2d(images, model.stem.weight, padding=1)
        x = model.stage3(model.stage2(model.stage1(x)))
        means = pixel_mean(normalized(x, model.bn).clamp(min=0))
        expected = means @ model.classifier.weight.T + model.classifier.bias
        torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-4)


def test_mlp_is_relu_between_two_linear_maps():
    model, images = build("mlp", GLYPHS, 10), random_images(2, GLYPHS)
    with torch.no_grad():
        hidden = (images.reshape(2, 256) @ model.hidden.weight.T + model.hidden.bias).clamp(min=0)
        torch.testing.assert_close(model(images), hidden @ model.classifier.weight.T + model.classifier.bias)


@pytest.mark.parametrize("name", ["fedmd_cifar0", "fedmd_cifar2", "fedmd_cifar9"])
def test_fedmd_is_convolution_batchnorm_relu_and_average_pooling(name):
    model, images = shake(build(name, MNIST, 16)), random_images(2, MNIST)
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    x = images
    with torch.no_grad():
        for number, (conv, norm) in enumerate(zip(convolutions, norms, strict=True)):
            stride, padding = (1, 1) if number == 0 else (2, 0)
            x = nn.functional.conv2d(x, conv.weight, conv.bias, stride, padding)
            x = normalized(x, norm).clamp(min=0)
            if number == 0:
                x = models.AveragePoolSame()(x)
            elif number == 1 and len(convolutions) > 2:
                x = (x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]) / 4
        torch.testing.assert_close(model(images), x.reshape(2, -1) @ model.classifier.weight.T, rtol=1e-4, atol=1e-4)


def test_average_pool_same_leaves_cells_outside_the_image_out_of_the_mean():
    x = random_images(2, (3, 4, 5))
    expected = torch.empty(2, 3, 4, 5)
    for n in range(2):
        for c in range(3):
            for i in range(4):
                for j in range(5):
                    cells = [x[n, c, a, b].item() for a in (i, i + 1) for b in (j, j + 1) if a < 4 and b < 5]
                    expected[n, c, i, j] = sum(cells) / len(cells)
    torch.testing.assert_close(models.AveragePoolSame()(x), expected)


def test_fedmd_pools_same_once_right_after_its_first_block():
    layers = build("fedmd5", MNIST, 16).features
    assert [i for i, layer in enumerate(layers) if isinstance(layer, models.AveragePoolSame)] == [1]


def test_cnn_by_hand_is_two_convolutions_with_relu_and_max_pooling():
    torch.manual_seed(0)
    model, images = build("cnn", GLYPHS, 10).eval(), random_images(2, GLYPHS)
    with torch.no_grad():
        x = images
        for conv in (model.conv1, model.conv2):
            x = nn.functional.max_pool2d(nn.functional.conv2d(x, conv.weight, conv.bias, padding=1).clamp(min=0), 2)
        expected = x.reshape(2, 32 * 4 * 4) @ model.classifier.weight.T + model.classifier.bias
        torch.testing.assert_close(model(images), expected)


# ------------------------------------------------------------------------------------------- a server's CNN, FedMD's ten in small

MINIS = [f"mini{j}" for j in range(10)]
MINI_FILTERS = {1: (16, 48), 2: (16, 64), 3: (32, 32), 4: (32, 64),
                5: (8, 16, 32), 6: (8, 16, 24), 7: (16, 24, 32), 8: (16, 16, 16)}
MINI_RATES = {1: .2, 2: .2, 3: .3, 4: .4, 5: .2, 6: .2, 7: .2, 8: .3}            # FedMD Table 1


@pytest.mark.parametrize("c, side", [(1, 16), (3, 32)])
def test_cnn_large_parameters(c, side):
    quarter = side // 4
    convolutions = (9 * c * 32 + 32) + (9 * 32 * 64 + 64)
    assert trainable(build("cnn_large", (c, side, side), 10)) == convolutions + (quarter**2 * 64 * 128 + 128) + (128 * 10 + 10)


def test_cnn_large_by_hand_is_two_convolutions_and_a_hidden_layer():
    torch.manual_seed(0)
    model, images = build("cnn_large", GLYPHS, 10).eval(), random_images(2, GLYPHS)
    with torch.no_grad():
        x = images
        for conv in (model.conv1, model.conv2):
            x = nn.functional.max_pool2d(nn.functional.conv2d(x, conv.weight, conv.bias, padding=1).clamp(min=0), 2)
        hidden = (x.reshape(2, 64 * 4 * 4) @ model.hidden.weight.T + model.hidden.bias).clamp(min=0)
        torch.testing.assert_close(model(images), hidden @ model.classifier.weight.T + model.classifier.bias)


def test_cnn_large_is_larger_than_the_small_networks_of_clients():
    large, small = (trainable(build(name, GLYPHS, 10)) for name in ("cnn_large", "cnn"))
    assert large > 15 * small and all(large > trainable(build(name, GLYPHS, 36)) for name in MINIS)


@pytest.mark.parametrize("name, units", [("mini0", 32), ("mini9", 16)])
@pytest.mark.parametrize("shape", [GLYPHS, CIFAR])
def test_fully_connected_minis_have_one_hidden_layer(name, units, shape):
    assert trainable(build(name, shape, 36)) == (math.prod(shape) * units + units) + (units * 36 + 36)


@pytest.mark.parametrize("j, filters", MINI_FILTERS.items())
@pytest.mark.parametrize("shape, sides", [(GLYPHS, {2: 7, 3: 1}), (CIFAR, {2: 15, 3: 3})])
def test_mini_parameters_are_those_of_fedmds_with_an_eighth_of_the_filters(j, filters, shape, sides):
    """Kernels as in FedMD, biases, two of each BatchNorm channel, a dense layer without bias: 16 -> 7; 16 -> 8 -> 4 -> 1."""
    assert tuple(8 * n for n in filters) == FEDMD[f"fedmd{j}"][0]
    kernels = {2: (3, 3), 3: (3, 2, 3)}[len(filters)]
    convolutions = sum(k * k * n * after for k, n, after in zip(kernels, (shape[0], *filters), filters))
    expected = convolutions + sum(filters) + 2 * sum(filters) + sides[len(filters)]**2 * filters[-1] * 36
    assert trainable(build(f"mini{j}", shape, 36)) == expected


@pytest.mark.parametrize("j, rate", MINI_RATES.items())
def test_minis_drop_out_at_the_rate_of_their_originals(j, rate):
    rates = [module.p for module in build(f"mini{j}", GLYPHS, 36).modules() if isinstance(module, nn.Dropout)]
    assert rates == [rate] * len(MINI_FILTERS[j])


def test_no_two_minis_are_the_same_network():
    shapes = [tuple((key, tuple(value.shape)) for key, value in build(name, GLYPHS, 36).state_dict().items()) for name in MINIS]
    assert len(set(shapes)) == 10 == len({trainable(build(name, GLYPHS, 36)) for name in MINIS})


@pytest.mark.parametrize("shape", [GLYPHS, CIFAR])
@pytest.mark.parametrize("name", ["cnn_large", *MINIS])
def test_new_small_networks_give_logits_for_glyphs_and_cifar(name, shape):
    model = build(name, shape, 36)
    with torch.no_grad():
        assert model.train()(random_images(3, shape)).shape == model.eval()(random_images(3, shape)).shape == (3, 36)


@pytest.mark.parametrize("name", ["cnn_large", "mini0", "mini9"])
def test_networks_without_batchnorm_have_no_buffers_to_average(name):
    assert list(build(name, GLYPHS, 10).buffers()) == []


@pytest.mark.parametrize("name, smallest", [("cnn_large", 4), ("mini1", 3), ("mini5", 12)])
def test_new_small_networks_say_which_images_are_too_small(name, smallest):
    assert build(name, (1, smallest, smallest), 5).eval()(random_images(1, (1, smallest, smallest))).shape == (1, 5)
    message = f"{name} needs images of at least {smallest}x{smallest} pixels, these have {smallest - 1}x40"
    with pytest.raises(ValueError, match=f"^{message}$"):
        build(name, (1, smallest - 1, 40), 5)


# ------------------------------------------------------------------------------------------------ FedGKT's edges and servers

EDGES = {"gkt_edge": ("bottleneck", 2), "gkt_edge4": ("basic", 1), "gkt_edge6": ("basic", 2), "gkt_edge_table7": ("basic", 3)}
SERVERS = {"gkt_server55": "bottleneck56", "gkt_server109": "bottleneck110"}
STEM = 9 * 3 * 16 + 2 * 16                       # a 3x3 convolution without bias, and BatchNorm's two numbers for each channel
BASIC = 2 * (9 * 16 * 16 + 2 * 16)
FIRST, SECOND = ((n * 16 + 2 * 16) + (9 * 16 * 16 + 2 * 16) + (16 * 64 + 2 * 64) for n in (16, 64))      # 1x1, 3x3, 1x1
PROJECTION = 16 * 64 + 2 * 64


@pytest.mark.parametrize("name, arithmetic, counted", [
    ("gkt_edge", STEM + FIRST + PROJECTION + SECOND + (64 * 10 + 10), 10_586),
    ("gkt_edge4", STEM + BASIC + (16 * 10 + 10), 5_306),
    ("gkt_edge6", STEM + 2 * BASIC + (16 * 10 + 10), 9_978),
    ("gkt_edge_table7", STEM + 3 * BASIC + (16 * 10 + 10), 14_650),
])
def test_fedgkt_edge_parameters(name, arithmetic, counted):
    """Appendix B.3: the stem, then two Bottlenecks; Table 5's networks of one and two BasicBlocks; Table 7's of three."""
    assert trainable(build(name, CIFAR, 10)) == arithmetic == counted


@pytest.mark.parametrize("name, width", [("gkt_edge", 64), ("gkt_edge4", 16), ("gkt_edge6", 16), ("gkt_edge_table7", 16)])
def test_fedgkt_edge_with_100_classes_has_a_wider_classifier_and_nothing_else(name, width):
    assert trainable(build(name, CIFAR, 100)) - trainable(build(name, CIFAR, 10)) == 90 * (width + 1)


def test_fedgkt_edge_has_the_papers_11k_parameters_with_batchnorm_statistics():
    """Mean and variance of the channels of the stem, of two Bottlenecks' three convolutions each, and of the projection."""
    channels = 16 + (16 + 16 + 64) + 64 + (16 + 16 + 64)
    model = build("gkt_edge", CIFAR, 10)
    assert float_statistics(model) == 2 * channels and trainable(model) + float_statistics(model) == 10_586 + 2 * channels == 11_130


@pytest.mark.parametrize("name, whole, counted", [("gkt_server55", "bottleneck56", 590_858), ("gkt_server109", "bottleneck110", 1_147_274)])
def test_fedgkt_stem_and_server_are_the_whole_resnet(name, whole, counted):
    """Parameters and running statistics: the server has all but the stem, of which it keeps nothing unused."""
    server, whole, edge = build(name, CIFAR, 10), build(whole, CIFAR, 10), build("gkt_edge", CIFAR, 10)
    assert trainable(server) == counted and trainable(edge.stem) == STEM and trainable(whole) == STEM + counted
    assert float_statistics(whole) == float_statistics(server) + float_statistics(edge.stem)
    ours, theirs = ({key: value.shape for key, value in model.state_dict().items()} for model in (server, whole))
    assert ours == {key: shape for key, shape in theirs.items() if not key.startswith("stem.")}


@pytest.mark.parametrize("name, layers", [("gkt_edge", 8), ("gkt_edge4", 4), ("gkt_edge6", 6), ("gkt_edge_table7", 8),
                                          ("gkt_server55", 55), ("gkt_server109", 109)])
def test_fedgkt_networks_have_as_many_layers_as_their_names_say(name, layers):
    """ResNet-8, -4, -6, -55, -109: convolutions outside shortcuts, and the classifier."""
    assert sum(isinstance(module, (nn.Conv2d, nn.Linear)) and "shortcut" not in path
               for path, module in build(name, CIFAR, 10).named_modules()) == layers


@pytest.mark.parametrize("name", [*EDGES, "gkt_edge_small"])
@pytest.mark.parametrize("shape", [GLYPHS, CIFAR, (2, 9, 14)])
def test_fedgkt_edge_is_its_classifier_behind_its_extractor(name, shape):
    """The map is 16 x h x w, of the small edge 8 x h/2 x w/2."""
    model, images = shake(build(name, shape, 7)), random_images(3, shape)
    with torch.no_grad():
        features = model.extract(images)
        assert features.shape == (3, *((8, shape[1] // 2, shape[2] // 2) if name == "gkt_edge_small" else (16, *shape[1:])))
        assert torch.equal(model(images), model.classify(features)) and model(images).shape == (3, 7)


@pytest.mark.parametrize("edge, server", [*((edge, server) for edge in EDGES for server in SERVERS), ("gkt_edge_small", "gkt_server_small")])
@pytest.mark.parametrize("shape", [GLYPHS, (2, 9, 14)])
def test_fedgkt_servers_read_the_edges_feature_maps(edge, server, shape):
    features = build(edge, shape, 7).train().extract(random_images(2, shape))
    assert features.shape[1:] == input_shape(server, shape)
    with torch.no_grad():
        assert build(server, shape, 7).eval()(features).shape == (2, 7)


@pytest.mark.parametrize("name", EDGES)
def test_fedgkt_edge_by_hand_is_a_relu_stem_blocks_of_one_size_and_the_mean_over_all_pixels(name):
    model, images = shake(build(name, GLYPHS, 10)), random_images(2, GLYPHS)
    kind, blocks = EDGES[name]
    with torch.no_grad():
        conv, norm = [module for module in model.stem.modules() if isinstance(module, (nn.Conv2d, nn.BatchNorm2d))]
        x = normalized(nn.functional.conv2d(images, conv.weight, padding=1), norm).clamp(min=0)
        torch.testing.assert_close(model.extract(images), x, rtol=1e-4, atol=1e-4)
        assert [type(block) for block in model.body] == [{"basic": models.BasicBlock, "bottleneck": models.Bottleneck}[kind]] * blocks
        for block in model.body:
            x = block(x)
            assert x.shape == (2, {"basic": 16, "bottleneck": 64}[kind], 16, 16)
        expected = pixel_mean(x) @ model.classifier.weight.T + model.classifier.bias
        torch.testing.assert_close(model(images), expected, rtol=1e-4, atol=1e-4)


def test_fedgkt_server_begins_at_the_map_itself():
    """The first stage is given the feature map untouched, and the stages widen and halve as the whole network's."""
    server, features, seen = build("gkt_server55", CIFAR, 10).eval(), random_images(1, (16, 32, 32)), []
    server.stage1.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    for part in (server.stage1, server.stage2, server.stage3):
        part.register_forward_hook(lambda module, args, output: seen.append(tuple(output.shape[1:])))
    with torch.no_grad():
        server(features)
    assert torch.equal(seen[0], features) and seen[1:] == [(64, 32, 32), (128, 16, 16), (256, 8, 8)]


@pytest.mark.parametrize("c, side, classes", [(1, 16, 10), (3, 32, 36)])
def test_small_edge_and_server_parameters(c, side, classes):
    half, quarter = side // 2, side // 4
    edge, server = (trainable(build(name, (c, side, side), classes)) for name in ("gkt_edge_small", "gkt_server_small"))
    assert edge == (9 * c * 8 + 8) + (8 * half**2 * classes + classes)
    assert server == (9 * 8 * 32 + 32) + (9 * 32 * 64 + 64) + (64 * quarter**2 * 128 + 128) + (128 * classes + classes)
    assert server > 5 * edge


def test_small_edge_by_hand_is_a_convolution_pooling_relu_and_a_layer():
    torch.manual_seed(0)
    model, images = build("gkt_edge_small", GLYPHS, 10).eval(), random_images(2, GLYPHS)
    with torch.no_grad():
        x = nn.functional.conv2d(images, model.stem.weight, model.stem.bias, padding=1).clamp(min=0)
        x = torch.stack([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]).amax(0)
        torch.testing.assert_close(model.extract(images), x)
        torch.testing.assert_close(model(images), x.reshape(2, 8 * 8 * 8) @ model.classifier.weight.T + model.classifier.bias)


def test_small_server_by_hand_is_two_convolutions_and_a_hidden_layer():
    torch.manual_seed(0)
    model, features = build("gkt_server_small", GLYPHS, 10).eval(), random_images(2, (8, 8, 8))
    with torch.no_grad():
        x = nn.functional.conv2d(features, model.conv1.weight, model.conv1.bias, padding=1).clamp(min=0)
        x = nn.functional.conv2d(x, model.conv2.weight, model.conv2.bias, padding=1).clamp(min=0)
        x = torch.stack([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)]).amax(0)
        hidden = (x.reshape(2, 64 * 4 * 4) @ model.hidden.weight.T + model.hidden.bias).clamp(min=0)
        torch.testing.assert_close(model(features), hidden @ model.classifier.weight.T + model.classifier.bias)


def test_the_small_pair_as_one_network_is_the_edges_extractor_with_the_server_behind_it():
    edge, full = (build(name, GLYPHS, 10) for name in ("gkt_edge_small", "gkt_full_small"))
    server, images = build("gkt_server_small", GLYPHS, 10), random_images(2, GLYPHS)
    weights = full.state_dict()
    edge.stem.load_state_dict({name: weights.pop(f"stem.{name}") for name in ("weight", "bias")})
    server.load_state_dict(weights)
    with torch.no_grad():
        assert torch.equal(full(images), server(edge.extract(images)))


def test_the_full_network_of_fedgkt_is_the_edges_extractor_with_server_55_behind_it():
    edge, full = (build(name, CIFAR, 10).eval() for name in ("gkt_edge", "bottleneck56"))
    server, images = build("gkt_server55", CIFAR, 10).eval(), random_images(2, CIFAR)
    weights = full.state_dict()
    server.load_state_dict({name: value for name, value in weights.items() if not name.startswith("stem.")})
    edge.stem.load_state_dict({name.removeprefix("stem."): value for name, value in weights.items() if name.startswith("stem.")})
    with torch.no_grad():
        torch.testing.assert_close(full(images), server(edge.extract(images)))


@pytest.mark.parametrize("name", ["gkt_edge_small", "gkt_server_small"])
def test_small_edge_and_server_have_no_buffers(name):
    assert list(build(name, GLYPHS, 10).buffers()) == []


@pytest.mark.parametrize("name", [*EDGES, *SERVERS])
def test_fedgkt_convolutions_start_kaiming_normal_fan_out(name):
    torch.manual_seed(0)
    large = [module for module in build(name, CIFAR, 10).modules() if isinstance(module, nn.Conv2d) and module.weight.numel() >= 2304]
    for module in large:
        fan_out = module.out_channels * module.kernel_size[0]**2
        assert module.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=5 / math.sqrt(2 * module.weight.numel()))
    assert large


@pytest.mark.parametrize("name", [*EDGES, *SERVERS, "gkt_edge_small", "gkt_server_small"])
def test_fedgkt_networks_say_which_images_are_too_small_and_read_the_smallest(name):
    shape = (1, 4, 4)
    assert build(name, shape, 5).eval()(random_images(1, input_shape(name, shape))).shape == (1, 5)
    with pytest.raises(ValueError, match=f"^{name} needs images of at least 4x4 pixels, these have 3x40$"):
        build(name, (1, 3, 40), 5)
