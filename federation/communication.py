"""What federated learning costs: bytes over the wire by the papers' formulas.

A number is a float32 of 4 bytes; 1 KiB = 1024 bytes (the papers write "kb"), 1 MB of FedGEMS is
1024 KiB. The papers count the payload alone: parameters, logits or feature maps. The other bytes
have their own keys in the metrics: `*_buffers` (BatchNorm's statistics and counters), `*_indices`
(which public samples are meant), `*_logits` and `*_labels` of FedGKT.
"""
import math
import operator

FLOAT_BYTES = 4
INDEX_BYTES = 4


def product(*numbers):
    """The product of whole numbers, a Python int: one of numpy's ends at its number of bits."""
    return math.prod(map(operator.index, numbers))


def weights_bytes(model, num_clients, copies=1, number_bytes=FLOAT_BYTES):
    """Payload of one direction of a round: num_clients messages of `copies` tensors, each of the
    size of the parameters.

    copies          1 for a model, 2 for SCAFFOLD's model and control variate
    number_bytes    8 for the masked numbers of a secure sum
    source          FedGEMS Fig. 6, model size x #C
    """
    return product(number_bytes, sum(p.numel() for p in model.parameters()), copies, num_clients)


def weights_ledger(messages, copies=1, up_number_bytes=FLOAT_BYTES):
    """The metrics of a round in which weights travel.

    messages           (network, number of clients that received one and sent one), ...
    copies             see `weights_bytes`
    up_number_bytes    of the numbers that are sent to the server
    """
    def buffers(number_bytes):                   # statistics; a counter has 8 bytes
        return sum(product(n, buffer.numel(), max(number_bytes, buffer.element_size()))
                   for model, n in messages for buffer in sent_buffers(model))

    messages = list(messages)
    return {
        "bytes_up": sum(weights_bytes(model, n, copies, up_number_bytes) for model, n in messages),
        "bytes_down": sum(weights_bytes(model, n, copies) for model, n in messages),
        "bytes_up_buffers": buffers(up_number_bytes),
        "bytes_down_buffers": buffers(FLOAT_BYTES)}


def sent_buffers(model):
    """The buffers that are in the network's state_dict, each once: persistent ones."""
    names = model.state_dict()
    return [buffer for name, buffer in model.named_buffers() if name in names]


def logits_bytes(num_samples, num_classes, num_clients):
    """Payload of one direction of a round: logits (or probabilities) of num_samples per client.

    source    FedGEMS Fig. 6, Table 6; the download is one copy per client
    >>> logits_bytes(5_000, 10, 16) / 1024       # KiB: FedGEMS Table 6, public : private = 1 : 5
    3125.0
    """
    return product(FLOAT_BYTES, num_samples, num_classes, num_clients)


def logits_ledger(num_clients, num_classes, up, down, indices=0):
    """The metrics of a round in which logits travel.

    up, down    samples whose logits each client sends, and receives
    indices     sample numbers that each client receives
    """
    return {"bytes_up": logits_bytes(up, num_classes, num_clients),
            "bytes_down": logits_bytes(down, num_classes, num_clients),
            "bytes_down_indices": product(INDEX_BYTES, indices, num_clients)}


def features_bytes(num_samples, feature_numbers, num_classes, number_bytes=FLOAT_BYTES):
    """A round of FedGKT: for each sample a feature map up and soft labels down.   FedGKT Eq. (13)

    feature_numbers    size of a feature map: 16 x 32 x 32 for an image of 32 x 32
    number_bytes       bytes of each of these numbers
    >>> features_bytes(25_000, 16 * 32 * 32, 10) / 1024    # KiB: FedGEMS's "1.6M kb" and logits
    1600976.5625
    """
    return (product(num_samples, number_bytes, feature_numbers)
            + product(num_samples, FLOAT_BYTES, num_classes))


def split_learning_bytes(num_samples, feature_numbers):
    """An epoch of split learning: a feature map up and its gradient down for each sample.

    source    FedGKT Eq. (12)
    """
    return product(num_samples, 2, FLOAT_BYTES, feature_numbers)


def features_ledger(num_samples, num_answered, feature_numbers, num_classes,
                    number_bytes=FLOAT_BYTES):
    """The metrics of a round of FedGKT.

    num_samples     samples whose feature maps were sent
    num_answered    samples whose logits came back: all, unless a client was left out
    Where all are answered, bytes_up + bytes_down is Eq. (13).
    """
    return {"bytes_up": product(number_bytes, num_samples, feature_numbers),
            "bytes_down": product(FLOAT_BYTES, num_answered, num_classes),
            "bytes_up_logits": product(FLOAT_BYTES, num_samples, num_classes),
            "bytes_up_labels": product(INDEX_BYTES, num_samples)}
