"""FedGKT: small edge networks send feature maps, a large server network learns from them, and each teaches the other its logits.

He, Annavaram and Avestimehr, "Group Knowledge Transfer: Federated Learning of Large CNNs at the Edge", arXiv:2007.14513; what the
text leaves open (temperature, optimiser) is as in its public code of 2020, whose settings for iid data are the defaults.
What travels: up feature maps, logits and labels of all private samples, down the server's logits. Public data: none.
Each client is told apart by its own extractor: (extractor of client k + the server's network) is what client k predicts with.
Run:   python fedkd_minimal.py --algo fedgkt

Paper              here                         shape            note
W_e^(k), W_c^(k)   model.extract, .classify     networks         of edge k: images -> feature map -> logits
W_s                server                       network          feature map -> logits
H^(k)              features[i]                  [n, 16, h, w]    of client i's clean images in eval mode, by sample row
Z_c^(k)            client_logits[i]             [n, C]           the same
Z_s^(k)            server_logits[i]             [n, C]           the same rows; None before the server's first answer
Y^(k)              fed.private[i].labels        [n]
T                  temperature                  number           of the softmax
E_c, E_s           local_epochs, server_epochs  numbers

Where the paper is silent or we differ:
D1  logits are kept by sample row: the public code keeps them by batch number and shuffles in between, so that its clients learn
    from the logits of other images                      [test_permuting_a_clients_rows_permutes_its_server_logits]
D2  features and logits are of clean images; what a client trains on may be augmented       [test_extraction_is_of_clean_images]
D3  clients start from weights that the seed alone decides, all from the same (--no-common-start: each from its own); the public
    code starts all from a network that was trained on everyone's data   [test_initial_weights_depend_on_the_seed_alone]
D4  temperature², and one divergence per sample: Eq. (6) sums over the clients, but a sample has one client
                                                         [test_eq6_by_hand]
D5  the server's logits come from one pass in eval mode after its last epoch; in Algorithm 1 from that epoch's training passes
                                                         [test_server_logits_are_of_the_trained_server]
D6  --no-server-distill, --no-client-distill are Table 2's rows; both on are Eq. (6) and (7)  [test_table_2_switches]
D7  the server's rate is a tenth when the validation accuracy has not grown for more than lr_patience rounds; the public code
    looks at the test set                                         [test_the_rate_falls_when_validation_stands_still]
D8  asynchronous: each client's results arrive latency after latency; the server trains on what arrives at one moment, all its
    epochs, and answers at once. Equal latencies are the synchronous algorithm              [test_equal_latencies_are_synchronous]
D9  a client whose features or logits are not finite is left out of the round and keeps its old server logits
                                                         [test_non_finite_features_are_left_out]
"""
import os
from typing import Literal

import torch
import torch.nn.functional as F

from algorithms.common import (Optimizer, accuracy, asleep, batches, count_active, distillation_loss, feature_map_of, forward,
                               is_finite, new_learner, predict_logits, run_clients, sample_clients, seconds, seeded, stream,
                               train, wake)
from communication import features_ledger

PUBLIC = "none"
VALIDATION = ("lr_patience",)               # keywords that need the server's validation set, unless they are off
MIXED = True    # may clients have different networks?
COLUMNS = ("accuracy", "accuracy_min", "accuracy_max", "edge_accuracy", "clock", "clock_if_all_wait")
AT_ONCE = 100   # samples of one forward pass without training: it needs less memory than a batch of training


def server_loss(server_logits, client_logits, labels, temperature, distill=True):
    """CE plus, if `distill`, T² KL(client || server): [B, C], [B, C], [B] -> scalar. Needs `distillation_loss`.         Eq. (6)"""
    ce = F.cross_entropy(server_logits, labels)
    return ce + distillation_loss(client_logits, server_logits, temperature) if distill else ce


def client_loss(client_logits, server_logits, labels, temperature):
    """Cross-entropy plus temperature² KL(server || client): [B, C], [B, C] or None, [B] -> scalar.               Eq. (7)

    server_logits    None, as before the server's first answer: cross-entropy alone. Needs `distillation_loss`.
    """
    ce = F.cross_entropy(client_logits, labels)
    return ce if server_logits is None else ce + distillation_loss(server_logits, client_logits, temperature)


@torch.no_grad()
def extract(fed, model, images, dtype=torch.float32):
    """(feature maps [n, 16, h, w] of `dtype`, logits float32 [n, C]) of clean images, in eval mode, no graph. Eq. (3), (9)"""
    was_training = model.training
    model.eval()
    features, logits = [], []
    for batch in images.split(AT_ONCE):
        with torch.autocast(batch.device.type, torch.bfloat16, enabled=fed.amp):
            h = model.extract(batch)
            logits.append(model.classify(h).float())
        features.append(h.to(dtype))
    model.train(was_training)
    return torch.cat(features), torch.cat(logits)


def train_client(fed, i, t, client, server_logits, *, local_epochs, batch_size, lr, optimizer, weight_decay, temperature, dtype):
    """Client i's t-th local training: (feature maps [n, 16, h, w], logits [n, C], the client).                        Eq. (10)

    server_logits    [n, C], by sample row, or None
    """
    model = fed.client_model(i)
    update = wake(client, model, optimizer, lr, weight_decay)
    images, labels = fed.private[i]

    def loss(logits, rows):
        return client_loss(logits, None if server_logits is None else server_logits[rows], labels[rows], temperature)

    train(fed, model, update, images, loss, epochs=local_epochs, batch_size=batch_size,
          keys=("local", t, i))                                                                          # Alg. 1, line 19-22
    features, logits = extract(fed, model, images, dtype)                                                # Alg. 1, line 24-29
    return features, logits, asleep(model, update)                                                       # Alg. 1, line 30


def train_server(fed, event, server, uploads, *, server_epochs, server_batch_size, server_lr, server_optimizer, weight_decay,
                 temperature, server_distill):
    """The server after training on uploads {client: (feature maps, logits)}: (it, {client: its logits [n, C]}).        Eq. (8)"""
    model = fed.server_model()
    update = wake(server, model, server_optimizer, server_lr, weight_decay)
    for group in update.param_groups:                    # the rate may have fallen since
        group["lr"] = server_lr
    rng = stream(fed.seed, "server", event)
    with seeded(fed.seed, "server", event):
        for _ in range(server_epochs):                                                                   # Alg. 1, line 7
            for i, (features, client_logits) in uploads.items():                                         # Alg. 1, line 8
                labels = fed.private[i].labels
                for rows in batches(len(labels), server_batch_size, 1, rng, fed.device):                 # Alg. 1, line 9
                    logits = forward(fed, model, features[rows].float())
                    loss = server_loss(logits, client_logits[rows], labels[rows], temperature, server_distill)
                    update.zero_grad()
                    loss.backward()
                    update.step()                                                                        # Alg. 1, line 10
    answers = {i: predict_logits(fed, model, features.float(), AT_ONCE)                                  # Alg. 1, line 11-12
               for i, (features, _) in uploads.items()}                                                  # z_s* of Eq. (11)
    return asleep(model, update), answers


def accuracies(fed, clients, server, data):
    """[(accuracy of client i's extractor with the server's network behind it, of client i's own network)], in [0, 1]."""
    server_model = fed.server_model()
    server_model.load_state_dict(server["model"])
    both = []
    for i, client in enumerate(clients):
        model = fed.client_model(i)
        model.load_state_dict(client["model"])
        stacked, own = [], []
        for images in data.images.split(AT_ONCE):                                        # not all feature maps at once
            features, logits = extract(fed, model, images)
            stacked.append(predict_logits(fed, server_model, features))
            own.append(logits)
        both.append((accuracy(torch.cat(stacked), data.labels), accuracy(torch.cat(own), data.labels)))
    return both


def metrics_of(fed, clients, server):
    """What each client predicts with: mean, least and largest accuracy; and the mean of the edge networks alone."""
    stacked, own = zip(*accuracies(fed, clients, server, fed.test))
    mean = sum(stacked) / len(stacked)
    return {"accuracy": mean, "accuracy_min": min(stacked), "accuracy_max": max(stacked), "edge_accuracy": sum(own) / len(own)}


def features_memory(fed, dtype):
    """(bytes of the feature maps of all private samples, numbers in one map). ValueError: see `feature_map_of`."""
    numbers = feature_map_of(fed).numel()
    return sum(len(private.labels) for private in fed.private) * numbers * dtype.itemsize, numbers


def statement(fed, settings):
    """What is said before the run begins."""
    memory, numbers = features_memory(fed, getattr(torch, settings["features"]))
    samples = sum(len(private.labels) for private in fed.private)
    return f"the feature maps of {samples} samples, {numbers} numbers each, take {memory / 2**20:.1f} MiB"


def available_memory(device):
    """Bytes that can be had on the device: what is free, on Linux with what caches would give back; elsewhere all there is."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if os.path.exists("/proc/meminfo"):
        with open("/proc/meminfo") as lines:
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else float("inf")


def run(fed, state=None, *, rounds: int = 200, participation: float = 1.0, local_epochs: int = 1, server_epochs: int = 20,
        batch_size: int = 256, server_batch_size: int = 256, lr: float = 1e-3, server_lr: float = 1e-3,
        optimizer: Optimizer = "amsgrad", server_optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4,
        temperature: float = 3.0, server_distill: bool = True, client_distill: bool = True, lr_patience: int | None = 10,
        common_start: bool = True, features: Literal["float32", "bfloat16"] = "float32", asynchronous: bool = False,
        latencies: tuple[float, ...] | None = None, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    lr_patience     rounds without a better validation accuracy; after one more the server's rate is a tenth; none: it stays
    common_start    edges of one architecture begin with the same weights, so that their feature maps are alike
    features        the type in which feature maps are sent and kept
    asynchronous    the server answers whoever is there; a round ends when as many results have come as there are clients, or more
    latencies       simulated time from an answer to the client's next results; none: drawn from 1 to 10, one for each client
    attack          attack.samples([n_i, ...] of each client, client ids, t) -> the same: what malicious clients make of theirs
    """
    ids, dtype = range(len(fed.private)), getattr(torch, features)
    waits = list(latencies) if latencies is not None else stream(fed.seed, "latencies").uniform(1, 10, len(ids)).tolist()
    if len(waits) != len(ids) or min(waits) <= 0:
        raise ValueError(f"--latencies needs a time greater than 0 for each of {len(ids)} clients, not {waits}")
    if asynchronous and participation < 1:
        raise ValueError("--asynchronous has everyone take part: --participation 1")
    if asynchronous and attack:
        raise ValueError("--attack with --asynchronous: who arrives alone has nobody to imitate")
    if lr_patience is not None and fed.validation is None:
        raise ValueError("fedgkt needs a validation set for --lr-patience")
    memory, feature_numbers = features_memory(fed, dtype)
    free = available_memory(fed.device)
    if memory > free:
        raise ValueError(f"the feature maps take {memory / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free: "
                         "--features bfloat16 halves them")
    settings = dict(local_epochs=local_epochs, batch_size=batch_size, lr=lr, optimizer=optimizer, weight_decay=weight_decay,
                    temperature=temperature, dtype=dtype)
    if state is None:
        state = {"round": 0, "event": 0, "clock": 0.0, "server": new_learner(fed.server_model()),
                 "clients": [new_learner(fed.client_model(i, init=0 if common_start else i)) for i in ids],
                 "server_logits": [None] * len(ids), "trained": [0] * len(ids),
                 "server_lr": server_lr, "best": -1.0, "stale": 0}
        yield {**metrics_of(fed, state["clients"], state["server"]), "server_lr": server_lr, "clock": 0.0,
               "clock_if_all_wait": 0.0}, state
    clients, server_logits, trained = (list(state[key]) for key in ("clients", "server_logits", "trained"))
    server, event, clock, server_lr, best, stale = map(state.get, ("server", "event", "clock", "server_lr", "best", "stale"))
    for t in range(state["round"] + 1, rounds + 1):                                                      # Alg. 1, line 2
        start, heard, answered = seconds(fed.device), [], []
        while len(heard) < count_active(len(ids), participation):
            event += 1
            if asynchronous:                             # whose results are next to arrive, maybe several at one moment
                arrivals = [round((trained[i] + 1) * waits[i], 9) for i in ids]
                clock = min(arrivals)
                group = [i for i in ids if arrivals[i] == clock]
            else:                                        # all are waited for
                group = sample_clients(len(ids), participation, stream(fed.seed, "active", t))
                clock = round(clock + max(waits[i] for i in group), 9)
            results = run_clients(lambda i: train_client(fed, i, trained[i] + 1, clients[i],
                                                         server_logits[i] if client_distill else None, **settings),
                                  group, fed.device)                                                     # Alg. 1, line 3-5
            sent = [[result[part] for result in results] for part in (0, 1)]             # feature maps and logits, client by client
            sent = [attack.samples(values, group, event) for values in sent] if attack else sent
            uploads = {i: (h, z) for i, h, z in zip(group, *sent) if is_finite((h, z))}
            answers = {}
            if uploads:
                server, answers = train_server(fed, event, server, uploads, server_epochs=server_epochs, server_lr=server_lr,
                                               server_batch_size=server_batch_size, server_optimizer=server_optimizer,
                                               weight_decay=weight_decay, temperature=temperature, server_distill=server_distill)
            for i, (_, _, client) in zip(group, results):
                clients[i], trained[i] = client, trained[i] + 1
                server_logits[i] = answers.get(i, server_logits[i])                                      # Alg. 1, line 14-15
            heard, answered = heard + group, answered + list(answers)
            del results, sent, uploads                   # all feature maps, before the next are made
        trained_at = seconds(fed.device)

        if lr_patience is not None:                      # the server's rate falls where validation stands still
            validated = [stacked for stacked, _ in accuracies(fed, clients, server, fed.validation)]
            mean = sum(validated) / len(validated)
            best, stale = (mean, 0) if mean > best else (best, stale + 1)
            if stale > lr_patience:
                server_lr, stale = server_lr / 10, 0
        num_samples, num_answered = (sum(len(fed.private[i].labels) for i in who) for who in (heard, answered))
        metrics = {**metrics_of(fed, clients, server), "server_lr": server_lr, "clock": clock,
                   "clock_if_all_wait": sum(trained) / len(ids) * max(waits), "bad_uploads": len(heard) - len(answered),
                   "answers_min": min(trained), "answers_max": max(trained), "train_seconds": trained_at - start,
                   **features_ledger(num_samples, num_answered, feature_numbers, fed.num_classes, dtype.itemsize)}
        yield metrics, {"round": t, "event": event, "clock": clock, "clients": list(clients), "server": server,
                        "server_logits": list(server_logits), "trained": list(trained), "server_lr": server_lr, "best": best,
                        "stale": stale}
