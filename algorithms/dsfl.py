"""DS-FL: clients share class probabilities of unlabelled public samples; the server sharpens their mean, and all learn from it.

Itahara et al., "Distillation-Based Semi-Supervised Federated Learning for Communication-Efficient Collaborative Training with
Non-IID Private Data", arXiv:2008.06180; here as a baseline of FedGEMS (Cheng et al., arXiv:2110.11027), whose settings
(Table 13) are the defaults.
What travels: probabilities, up and down. Public data: unlabelled, on the server and on every client.
Run:   python fedkd_minimal.py --algo dsfl

Paper              here                         shape            note
p_k                client_probs                 [M, N, C]        of the M clients on all N public samples
T                  temperature                  number           0.1 makes the mean sharper
ERA                entropy_reduction            [N, C]           softmax(mean of the clients' probabilities / T)
SA                 --aggregation mean           [N, C]           the mean itself, for comparison
y                  target_probs                 [N, C]           what clients and server learn from: soft cross-entropy

Where the paper is silent or we differ:
D1  written from FedGEMS and public code, without DS-FL's text at hand; all public samples take part in every round, as FedGEMS's
    cost table implies                                                [test_dsfl_round_by_hand]
D2  an upload with nan or infinity is left out of the mean; without any there is no distillation in the round
                                                                      [test_non_finite_logits_are_left_out]
D3  the server's own model is kept and reported, though FedGEMS reports clients alone   [test_dsfl_round_by_hand]
D4  clients start from different weights, and keep their optimisers   [test_every_client_starts_from_weights_of_its_own]
"""
from typing import Literal

import torch

from algorithms.common import (Optimizer, asleep, client_metrics, finite, large_server_metrics, new_learner, predict_logits,
                               run_clients, seconds, soft_cross_entropy, test_accuracies, train, train_with_labels, wake)
from communication import logits_ledger

PUBLIC = "unlabelled"
MIXED = True    # may clients have different networks?
COLUMNS = ("client_accuracy", "server_accuracy")


def entropy_reduction(client_probs, temperature=0.1):
    """ERA: softmax(mean over the clients / temperature), [M, N, C] probabilities -> [N, C].

    The mean of probabilities lies in [0, 1], so at 0.1 a certain mean becomes .9996 (10 classes) and a uniform one stays so.
    >>> entropy_reduction(torch.tensor([[[.8, .2]], [[.4, .6]]]))
    tensor([[0.8808, 0.1192]])
    """
    return (client_probs.mean(0) / temperature).softmax(-1)


def train_client(fed, i, t, client, *, local_epochs, batch_size, lr, optimizer, weight_decay):
    """Private training of client i: (its probabilities [N, C] of the public samples, the client, its test accuracies)."""
    model = fed.client_model(i)
    update = wake(client, model, optimizer, lr, weight_decay)
    train_with_labels(fed, model, update, fed.private[i], epochs=local_epochs, batch_size=batch_size, keys=("local", t, i))
    return predict_logits(fed, model, fed.public.images).softmax(-1), asleep(model, update), test_accuracies(fed, model)


def distil(fed, learner, model, target_probs, *, epochs, batch_size, lr, optimizer, weight_decay, keys):
    """A client or the server after learning from target_probs [N, C] on the public samples: (it, its test accuracies)."""
    update = wake(learner, model, optimizer, lr, weight_decay)
    train(fed, model, update, fed.public.images, lambda logits, rows: soft_cross_entropy(logits, target_probs[rows]).mean(),
          epochs=epochs, batch_size=batch_size, keys=keys)
    return asleep(model, update), test_accuracies(fed, model)


def metrics_of(server_score, client_scores):
    """The accuracies of a round; the headline is the clients'."""
    clients = client_metrics(client_scores)
    return {"accuracy": clients["client_accuracy"], **clients, **large_server_metrics(server_score)}


def run(fed, state=None, *, rounds: int = 300, local_epochs: int = 1, public_epochs: int = 1, server_epochs: int = 2,
        batch_size: int = 64, server_batch_size: int = 64, lr: float = 1e-3, server_lr: float = 1e-3,
        optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4,
        aggregation: Literal["era", "mean"] = "era", temperature: float = 0.1, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    attack      (uploads [M, N, C], client ids, rows [N], t) -> uploads: what malicious clients make of theirs
    """
    adam = dict(optimizer=optimizer, weight_decay=weight_decay)
    ids, num_public = range(len(fed.private)), len(fed.public.images)
    rows = torch.arange(num_public, device=fed.device)                                   # [N]
    if state is None:
        clients, server = [new_learner(fed.client_model(i, init=i)) for i in ids], new_learner(fed.server_model())
        state = {"round": 0, "clients": clients, "server": server}
        scores = [test_accuracies(fed, fed.client_model(i, init=i)) for i in ids]
        yield metrics_of(test_accuracies(fed, fed.server_model()), scores), state
    clients, server = state["clients"], state["server"]
    for t in range(state["round"] + 1, rounds + 1):
        start = seconds(fed.device)
        trained = run_clients(lambda i: train_client(fed, i, t, clients[i], local_epochs=local_epochs, batch_size=batch_size, lr=lr,
                                                     **adam), ids, fed.device)
        client_probs = torch.stack([probs for probs, _, _ in trained])                   # [M, N, C]
        client_probs = attack(client_probs, ids, rows, t) if attack else client_probs
        trained_at = seconds(fed.device)

        good = finite(client_probs)                                                      # [m, N, C], m <= M
        target_probs = entropy_reduction(good, temperature) if aggregation == "era" else good.mean(0)    # [N, C]
        heard = len(good) > 0                                                            # from nobody nothing is learned
        server, server_score = distil(fed, server, fed.server_model(), target_probs, epochs=server_epochs * heard,
                                      batch_size=server_batch_size, lr=server_lr, keys=("server", t), **adam)
        served_at = seconds(fed.device)

        distilled = run_clients(lambda i: distil(
            fed, trained[i][1], fed.client_model(i), target_probs, epochs=public_epochs * heard, batch_size=batch_size, lr=lr,
            keys=("public", t, i), **adam), ids, fed.device)
        clients = [client for client, _ in distilled]
        distilled_at = seconds(fed.device)
        metrics = {**metrics_of(server_score, [score for _, score in distilled]),
                   **client_metrics([score for _, _, score in trained], "client_accuracy_private"),
                   "bad_uploads": len(ids) - len(good),
                   "local_seconds": trained_at - start + distilled_at - served_at, "distill_seconds": served_at - trained_at,
                   **logits_ledger(len(ids), fed.num_classes, up=num_public, down=num_public)}
        yield metrics, {"round": t, "clients": clients, "server": server}
