"""What goes over the wire, in bytes, by the papers' formulas.

A number is a float32 of 4 bytes; 1 KiB = 1024 bytes (the papers write "kb"), 1 MB of FedGEMS = 1024 KiB. The papers' ledger is
the payload alone: the parameters. What they leave out is counted apart (`*_buffers`: BatchNorm's statistics and counters).
"""
FLOAT_BYTES = 4


def weights_bytes(model, num_clients, copies=1):
    """Payload of one direction of one round: num_clients messages, each with `copies` tensors the size of the parameters.

    copies is 1 where a model travels, 2 for SCAFFOLD (a model and a control variate).        FedGEMS Fig. 6: model size x #C
    """
    return FLOAT_BYTES * sum(p.numel() for p in model.parameters()) * copies * num_clients


def buffers_bytes(model, num_clients):
    """What travels beside the parameters in one direction: running means and variances (4 bytes each), counters (8 bytes each)."""
    return sum(b.numel() * b.element_size() for b in model.buffers()) * num_clients


def weights_ledger(model, num_clients, copies=1):
    """The metrics of a round in which num_clients clients each got and sent `copies` tensors the size of the parameters."""
    payload, buffers = weights_bytes(model, num_clients, copies), buffers_bytes(model, num_clients)
    return {"bytes_up": payload, "bytes_down": payload, "bytes_up_buffers": buffers, "bytes_down_buffers": buffers}
