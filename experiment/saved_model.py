"""A trained model in a file of its own: --save-model FILE writes it, `load` reads it.

    model, prepare, classes = saved_model.load("model.pt")
    logits = model(prepare(images))        # images [n, c, h, w]: bytes, or floats in [0, 1]
    [classes[j] for j in logits.argmax(1)]
"""
import io

import torch

import models
from data.images import adapt, normalize, statistics, to_float
from experiment.keep import replace
from experiment.processes import rank, say


def trained_models(algorithm, state, architecture, server_model):
    """{name: [(network, state_dict), ...]} of the models in an algorithm's state.

    "server" comes first, or "server NETWORK" where the server has several; then "client 0", ...
    Where the server's network continues the clients', a client has both, one after the other.

    architecture    the network of each client
    server_model    the server's network, if it has one of its own
    """
    server, main = state.get("server"), {}
    for saved in state.get("global_models", []):             # of K models the first is the main one
        main.setdefault(saved["architecture"], saved["model"])
    found = {}
    if server:
        found["server"] = [(server.get("architecture", server_model), server["model"])]
    for network, model in main.items():
        name = f"server {network}" if server or len(main) > 1 else "server"
        found[name] = [(network, model)]
    clients = {f"client {i}": [(architecture[i], client["model"])]
               for i, client in enumerate(state.get("clients", []))}
    if algorithm.server == "features":
        return {name: pair + found["server"] for name, pair in clients.items()}
    return found | clients


def save(path, run, fed, datasets, joint):
    """Writes the models of a run's last state to a file. Only the first process does.

    fed         the federation as the algorithm sees it
    datasets    see `build.load_datasets`
    joint       do the networks have the public classes, too?
    """
    task, foreign = datasets
    mean, std = statistics(to_float(task.train.images))
    classes = task.class_names or [str(label) for label in range(task.num_classes)]
    if joint:                         # the public classes come first
        classes = [f"public {j}" for j in range(foreign.num_classes)] + classes
    found = trained_models(run.algorithm, run.state, fed.architecture, run.networks["server_model"])
    if rank() > 0:
        return
    content = io.BytesIO()       # torch.save to a file gives no reason when the disk is full
    torch.save({"models": found, "image_shape": list(task.train.images.shape[1:]),
                "classes": classes, "mean": mean, "std": std}, content)
    replace(path, content.getbuffer())
    say(f"{path} holds the models: {', '.join(found)}")


def load(path, name=None):
    """(the network in eval mode, prepare(images) -> its input, the names of its classes).

    prepare takes images [n, c, h, w], bytes or floats in [0, 1], of any size and 1 or 3 channels.

    name    which of the file's models: "server", "client 3", ...; None: the first
    raises  ValueError if the file has no such model
    """
    saved = torch.load(path, map_location="cpu", weights_only=True)
    name = name or next(iter(saved["models"]))
    if name not in saved["models"]:
        raise ValueError(f"{path} has no model {name!r}; it has {', '.join(saved['models'])}")
    image_shape, classes, networks = tuple(saved["image_shape"]), saved["classes"], []
    for network, weights in saved["models"][name]:
        networks.append(models.build(network, image_shape, len(classes)))
        networks[-1].load_state_dict(weights)
    model = networks[0] if len(networks) == 1 else models.Stacked(*networks)

    def prepare(images):
        images = adapt(to_float(images), image_shape)
        return normalize(images, saved["mean"], saved["std"])

    return model.eval(), prepare, classes
