"""Whose accuracy each metric is: for the summary of a run, and for tables and curves of runs."""
# In the order of the summary.
WHOSE = {"accuracy": "edges with the server", "edge_accuracy": "edges alone",          # FedGKT
         "server_accuracy": "server", "ensemble_accuracy": "ensemble", "client_accuracy": "clients",
         "client_accuracy_distilled": "clients, after distillation",
         "client_accuracy_private": "clients, after private training"}


def whose_accuracy(row, half_is_public):
    """{accuracy metric of a round: whose accuracy it is, and on which part of the test set}.

    Where half of the test set is public, a server with a network of its own is scored on that half,
    and everything else on the other.
    """
    found = {key: whose for key, whose in WHOSE.items() if row.get(key) is not None}
    if "edge_accuracy" not in found:
        found["accuracy"] = "model"
    if found.keys() & {"server_accuracy", "client_accuracy", "client_accuracy_distilled"}:
        del found["accuracy"]                                # it repeats one of the others
    for key in found if half_is_public else ():
        on_public = key == "server_accuracy" and "server_accuracy_private_test" in row
        found[key] += ", public half" if on_public else ", private half"
    return found
