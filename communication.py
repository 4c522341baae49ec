"""What goes over the wire, in bytes, by the papers' formulas.

A number is a float32 of 4 bytes; 1 KiB = 1024 bytes (the papers write "kb"), 1 MB of FedGEMS = 1024 KiB. The papers' ledger is
the payload alone: parameters or logits. What they leave out is counted apart (`*_buffers`: BatchNorm's statistics and counters;
`*_indices`: which public samples are meant).
"""
FLOAT_BYTES = 4
INDEX_BYTES = 4


def weights_bytes(model, num_clients, copies=1, number_bytes=FLOAT_BYTES):
    """Payload of one direction of one round: num_clients messages, each with `copies` tensors the size of the parameters.

    copies is 1 where a model travels, 2 for SCAFFOLD (a model and a control variate); number_bytes is 8 where sums are masked.
    source: FedGEMS Fig. 6, model size x #C
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

    source: FedGEMS Fig. 6 and Table 6, whose download is one copy for each client
    >>> logits_bytes(5_000, 10, 16) / 1024                         # in KiB; FedGEMS Table 6, public : private = 1 : 5
    3125.0
    """
    return FLOAT_BYTES * num_samples * num_classes * num_clients


def logits_ledger(num_clients, num_classes, up, down, indices=0):
    """The metrics of a round in which each client sends the logits of `up` samples, gets those of `down`, and `indices` numbers."""
    return {"bytes_up": logits_bytes(up, num_classes, num_clients), "bytes_down": logits_bytes(down, num_classes, num_clients),
            "bytes_down_indices": INDEX_BYTES * indices * num_clients}


def bytes_until(rows, accuracy):
    """ComU@x of FedGEMS Table 4: payload up and down until the clients' accuracy (the global model's, where they have none of their
    own) is at least x; None if it never is. rows: the metrics of each round."""
    total = 0
    for row in rows:
        total += row.get("bytes_up", 0) + row.get("bytes_down", 0)
        if row.get("client_accuracy", row["accuracy"]) >= accuracy:
            return total
