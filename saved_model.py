"""A trained model in a file of its own: --save-model FILE writes it, `load` reads it.

    model, prepare, classes = saved_model.load("model.pt")
    logits = model(prepare(images))        # images [n, c, h, w]: bytes, or floats in [0, 1]
    [classes[j] for j in logits.argmax(1)]
"""
import io

import torch

import data
import models
from algorithms.split_learning import Stacked


def trained_models(state, architecture, server_model):
    """{name: [(network, state_dict), ...]} of the models in an algorithm's state.

    "server" comes first, or "server NETWORK" where the server has several; then "client 0", ...
    FedGKT and split learning have pairs: an edge network, then the server's network.

    architecture    the network of each client
    server_model    the server's network, if it has one of its own
    raises          ValueError if the state has none of these
    """
    def server(saved):
        return saved.get("architecture", server_model), saved["model"]

    def clients(saved):
        return {f"client {i}": (architecture[i], client["model"])
                for i, client in enumerate(saved)}

    if "edge" in state:                                      # split learning
        return {"server": [(architecture[0], state["edge"]["model"]), server(state["server"])]}
    if "server_logits" in state:                             # FedGKT
        return {name: [edge, server(state["server"])]
                for name, edge in clients(state["clients"]).items()}
    found = {}
    if "server" in state:
        found["server"] = server(state["server"])
    main = {}                                                # the first model of each network
    for saved in state.get("global_models", []):
        main.setdefault(saved["architecture"], saved["model"])
    for name, model in main.items():
        found["server" if len(main) == 1 else f"server {name}"] = (name, model)
    for name, saved in state.get("networks", {}).items():    # the baselines
        if isinstance(name, int):
            found[f"client {name}"] = (architecture[name], saved["model"])
        else:
            found[name] = (server_model if name == "server" else name, saved["model"])
    found |= clients(state.get("clients", state.get("parties", [])))
    if not found:
        raise ValueError(f"found no models in a state with the keys {', '.join(state)}")
    return {name: [network] for name, network in found.items()}


def save(path, state, flags, dataset, foreign):
    """Writes the models of a run's last state to a file; returns their names.

    flags               the run's flags (`config["flags"]`)
    dataset, foreign    see `federation.load`
    """
    architecture = [flags["model"][i % len(flags["model"])] for i in range(flags["clients"])]
    mean, std = data.statistics(data.to_float(dataset.train.images))
    classes = dataset.class_names or [str(label) for label in range(dataset.num_classes)]
    if flags["joint"]:                                       # the public classes come first
        classes = [f"public {j}" for j in range(foreign.num_classes)] + classes
    found = trained_models(state, architecture, flags["server_model"])
    content = io.BytesIO()       # torch.save to a file gives no reason when the disk is full
    torch.save({"models": found, "image_shape": list(dataset.train.images.shape[1:]),
                "classes": classes, "mean": mean, "std": std}, content)
    path.write_bytes(content.getbuffer())
    return list(found)


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
    model = networks[0] if len(networks) == 1 else Stacked(*networks)

    def prepare(images):
        images = data.adapt(data.to_float(images), image_shape)
        return data.normalize(images, saved["mean"], saved["std"])

    return model.eval(), prepare, classes
