"""What goes over the wire, in bytes, by the papers' formulas.

A number is a float32 of 4 bytes; 1 KiB = 1024 bytes (the papers write "kb"), 1 MB of FedGEMS = 1024 KiB. The papers' ledger is
the payload alone: parameters or logits. What they leave out is counted apart (`*_buffers`: BatchNorm's statistics and counters;
`*_indices`: which public samples are meant).
"""
import torch
from torch import nn

FLOAT_BYTES = 4
INDEX_BYTES = 4


def weights_bytes(model, num_clients, copies=1, number_bytes=FLOAT_BYTES):
    """Payload of one direction of one round: num_clients messages, each with `copies` tensors the size of the parameters.

    copies is 1 where a model travels, 2 for SCAFFOLD (a model and a control variate); number_bytes is 8 where sums are masked.
    source: FedGEMS Fig. 6, model size x #C. Needs `FLOAT_BYTES`.
    """
    return number_bytes * sum(p.numel() for p in model.parameters()) * copies * num_clients


def buffers_bytes(model, num_clients, number_bytes=FLOAT_BYTES):
    """What travels beside the parameters in one direction: running means and variances (number_bytes each), counters (8 each)."""
    return sum(b.numel() * max(number_bytes, b.element_size()) for b in model.buffers()) * num_clients


def weights_ledger(messages, copies=1, up_number_bytes=FLOAT_BYTES):
    """The metrics of a round. messages: [(network, how many clients got one and sent one)]; copies: see `weights_bytes`."""
    return {"bytes_up": sum(weights_bytes(model, n, copies, up_number_bytes) for model, n in messages),
            "bytes_down": sum(weights_bytes(model, n, copies) for model, n in messages),
            "bytes_up_buffers": sum(buffers_bytes(model, n, up_number_bytes) for model, n in messages),
            "bytes_down_buffers": sum(buffers_bytes(model, n) for model, n in messages)}


def logits_bytes(num_samples, num_classes, num_clients):
    """Payload of one direction of one round: from or to each client, the logits (or probabilities) of num_samples samples.

    source: FedGEMS Fig. 6 and Table 6, whose download is one copy for each client. Needs `FLOAT_BYTES`.
    >>> logits_bytes(5_000, 10, 16) / 1024                         # in KiB; FedGEMS Table 6, public : private = 1 : 5
    3125.0
    """
    return FLOAT_BYTES * num_samples * num_classes * num_clients


def logits_ledger(num_clients, num_classes, up, down, indices=0):
    """The metrics of a round in which each client sends the logits of `up` samples, gets those of `down`, and `indices` numbers."""
    return {"bytes_up": logits_bytes(up, num_classes, num_clients), "bytes_down": logits_bytes(down, num_classes, num_clients),
            "bytes_down_indices": INDEX_BYTES * indices * num_clients}


def features_bytes(num_samples, feature_numbers, num_classes, number_bytes=FLOAT_BYTES):
    """What a round of FedGKT costs by FedGKT Eq. (13): a feature map up and soft labels down for each sample.

    feature_numbers    how many numbers a feature map has: 16 x 32 x 32 for an image of 32 x 32; number_bytes: of each
    Needs `FLOAT_BYTES`.
    >>> features_bytes(25_000, 16 * 32 * 32, 10) / 1024            # in KiB: FedGEMS's "1.6M kb", which leaves out the logits
    1600976.5625
    """
    return num_samples * (number_bytes * feature_numbers + FLOAT_BYTES * num_classes)


def split_learning_bytes(num_samples, feature_numbers):
    """An epoch of split learning, FedGKT Eq. (12): a feature map up, its gradient down for each sample. Needs `FLOAT_BYTES`."""
    return num_samples * 2 * FLOAT_BYTES * feature_numbers


def features_ledger(num_samples, num_answered, feature_numbers, num_classes, number_bytes=FLOAT_BYTES):
    """The metrics of a round of FedGKT: num_samples were sent and num_answered answered, which is all unless a client was left out.

    Up and down together are Eq. (13) where all are answered; it leaves out labels and the clients' logits: they are counted apart.
    """
    return {"bytes_up": number_bytes * num_samples * feature_numbers, "bytes_down": FLOAT_BYTES * num_answered * num_classes,
            "bytes_up_logits": FLOAT_BYTES * num_samples * num_classes, "bytes_up_labels": INDEX_BYTES * num_samples}


def network_cost(model, shape):
    """What a network costs for one sample [1, *shape], found by hooks in a forward pass in eval mode: a dict of whole numbers.

    parameters     that are trained
    statistics     BatchNorm's running means and variances (its counters are not counted)
    multiply_adds  of convolutions and linear layers
    activations    bytes that all layers' outputs take, 4 each: what a backward pass would need, nearly
    """
    cost = {"parameters": sum(p.numel() for p in model.parameters()),
            "statistics": sum(b.numel() for b in model.buffers() if b.is_floating_point()), "multiply_adds": 0, "activations": 0}

    def count(module, _, output):
        cost["activations"] += FLOAT_BYTES * output.numel()
        if isinstance(module, nn.Conv2d):                # each output is a sum over kernel and input channels (of its group)
            cost["multiply_adds"] += output.numel() * module.weight[0].numel()
        elif isinstance(module, nn.Linear):
            cost["multiply_adds"] += output.numel() * module.in_features

    hooks = [module.register_forward_hook(count) for module in model.modules() if not list(module.children())]
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(next(model.parameters()).new_zeros(1, *shape))
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return cost


def bytes_until(rows, accuracy):
    """ComU@x of FedGEMS Table 4: payload up and down until the clients' accuracy (the global model's, where they have none of their
    own) is at least x; None if it never is. rows: the metrics of each round."""
    total = 0
    for row in rows:
        total += row.get("bytes_up", 0) + row.get("bytes_down", 0)
        if row.get("client_accuracy", row["accuracy"]) >= accuracy:
            return total
