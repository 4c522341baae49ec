"""What goes over the wire, in bytes, by the papers' formulas.

A number is a float32 of 4 bytes; 1 KiB = 1024 bytes (the papers write "kb"), 1 MB of FedGEMS = 1024 KiB. The papers' ledger is
the payload alone: the parameters. What they leave out is counted apart (`*_buffers`: BatchNorm's statistics and counters).
"""
FLOAT_BYTES = 4


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
