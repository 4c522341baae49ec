"""A trained network of a kept run, for use elsewhere."""
from functools import partial
from pathlib import Path

import torch

import models
from algorithms import ALGORITHMS
from data.images import adapt, check_range, normalize, to_float
from experiment.common import BadInput, read_config
from experiment.keep import read_checkpoint
from experiment.settings import client_network
from federation import in_bfloat16


def load_model(folder, name=None):
    """(the network in eval mode, prepare(images) -> its input, the names of its classes).

        model, prepare, classes = load_model("runs/a/fedsdd-seed0")
        logits = model(prepare(images))        # images [n, c, h, w]: bytes, or floats in [0, 1]

    name      of the model, after the run's last finished round: "server", "server 1", ...;
              "client 0", ...; "ensemble" (FedSDD); "averaged", "averaged 1", ... (fedavg with
              --average-last, fedsdd-ablations). None: the first of these that the run has
    raises    BadInput, a ValueError: the run has no such model, or is damaged

    Of a run with --amp it computes in bfloat16. logits[:, j] is of classes[j]; with a joint
    layer (FedMD) the public classes come first, as "public 0", "public 1", ...
    """
    config, path = read_config(folder), Path(folder, "checkpoint.pt")
    if not path.exists():
        raise BadInput(f"{folder} has no checkpoint.pt: no round of its run is finished")
    settings, images = config["settings"], config["images"]
    algorithm = ALGORITHMS[config["algo"].split(":")[0]]
    of_client = partial(client_network, settings["model"])
    own = of_client(0) if algorithm.server == "none" else settings["server_model"]
    found = algorithm.models(read_checkpoint(path)["state"], of_client, own)
    name = name or next(iter(found))
    if name not in found:
        raise BadInput(f"{folder} has no model {name!r}; it has {', '.join(found)}")
    model = built(found[name], config, is_stacked=algorithm.server == "features")
    mean, std = torch.tensor(images["mean"]), torch.tensor(images["std"])

    def prepare(pixels):
        if pixels.ndim != 4 or pixels.shape[1] not in (1, 3) or not len(pixels):
            raise BadInput("prepare takes a tensor of images [n, c, h, w] with n > 0 and c = 1 "
                           f"or 3, not {list(pixels.shape)}")
        pixels = to_float(pixels)
        check_range("prepare: the tensor", pixels)
        return normalize(adapt(pixels, images["shape"]), mean, std)

    return model.eval(), prepare, images["classes"]


def built(parts, config, is_stacked):
    """The network of [(network's name, weights), ...]: of several one behind the other, or else the
    mean of their logits."""
    image_shape, num_classes = tuple(config["images"]["shape"]), len(config["images"]["classes"])
    networks = []
    for name, weights in parts:
        network = models.build(name, image_shape, num_classes)
        network.load_state_dict(weights)
        if config["settings"]["amp"]:
            network.forward = in_bfloat16(network.forward)
        networks.append(network)
    if len(networks) == 1:
        return networks[0]
    return models.Stacked(*networks) if is_stacked else models.Ensemble(*networks)
