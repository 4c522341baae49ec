"""FD: each client also learns from the other clients' mean prediction for the label's class.

Jeong, Oh, Kim, Park, Bennis and Kim, "Communication-Efficient On-Device Machine Learning: Federated
Distillation and Augmentation under Non-IID Private Data", arXiv:1811.11479; without its second
half, the augmentation with generated samples. Its settings are the defaults; it does not give
gamma, the optimizer and its rate.

Run:    python fedkd_minimal.py --algo fd    small settings, less than a minute
        --paper fedgen has those in which it is compared with FedGen
Data:   clients: their own labeled images; nobody has public ones. Networks of clients may differ;
        the server has none
Sent:   up: each client's mean probabilities of each class, C rows of C; down: the others' mean rows

Algorithm 1, by the paper's line numbers. phi is the cross-entropy, F(b) the probabilities of a
sample b, which the paper calls a logit vector, "normalized by the softmax function":
 5     client i, for each sample b of a batch, with label y:
         a step on phi(F(b), y) + gamma phi(F(b), hat F_i[y]); in round 1 there is no hat F_i
 6       add F(b) to the sum of class y, and count it: during training
 7-8   for each class l: upload F_i[l] = sum / count
10-15  server, for each client i and class l: hat F_i[l] = the mean of F_j[l] over the OTHER j

Scores: `accuracy` is client_accuracy, the mean over the clients at the end of a round
D1  a step is on the mean over a batch, and line 6 takes the F(b) from before this step
D2  line 10-15: the mean is over the other clients that have drawn the class; as printed, over all
    M - 1, a target would sum to less than 1 where one of them has not. If no other client has drawn
    it, the target is a row of zeros, and the second term of line 5 is 0
"""
import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import soft_cross_entropy
from federation import timed
from federation.communication import logits_ledger
from federation.evaluation import client_metrics, client_scores
from federation.training import OPTIMIZERS, Optimizer, forward, restore, shuffled, snapshot
from federation.uploads import Trained, collect_rows, is_usable


def others_mean(client_means):
    """For client i and class l the mean of row l over the OTHER clients that drew the class.

    client_means    [M, C, C]: row l has a client's mean probabilities on class l, or zeros: it has
                    drawn no sample of the class in this round
    returns         [M, C, C]; a row of zeros: no other client drew the class
    source          Alg. 1, line 10-15
    >>> client_means = torch.tensor([[[.9, .1], [.2, .8]], [[.5, .5], [0., 0.]]])
    >>> others_mean(client_means)[0]    # client 1 drew no sample of class 1
    tensor([[0.5000, 0.5000],
            [0.0000, 0.0000]])
    """
    has_class = client_means.any(-1).to(client_means)                                # [M, C]
    is_other = 1 - torch.eye(len(client_means)).to(client_means)                     # [M, M]
    totals = torch.einsum("ij,jlc->ilc", is_other, client_means)                     # [M, C, C]
    counts = is_other @ has_class                                                    # [M, C], D2
    return totals / counts.clamp(min=1)[..., None]


def train_client(fed, i, t, client, targets, local_epochs, local_steps, batch_size, lr, gamma,
                 optimizer_name, weight_decay):
    """Client i after training on its own images; its upload: its mean probabilities [C, C].

    targets    [C, C]: row l is the target for samples of class l; zeros: no distillation
    """
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = fed.client_model(i)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters(), lr=lr, weight_decay=weight_decay)
    restore(client, model, optimizer)                    # both go on from the client's last step
    sums = torch.zeros_like(targets)                                                     # [C, C]
    counts = torch.zeros_like(targets[:, :1])                                            # [C, 1]
    model.train()                        # `shuffled` augments the images with --augment
    # ("local", t, i) names the random numbers of this training: order, augmentation, dropout.
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):
        logits = forward(fed, model, batch)                                              # [B, C]
        y = labels[rows]                                                                 # [B]
        distillation = soft_cross_entropy(logits, targets[y]).mean()
        loss = F.cross_entropy(logits, y) + gamma * distillation             # Alg. 1, line 5, D1
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probs = logits.detach().softmax(-1)      # F(b), of the pass before the step: in train mode
        is_of_class = F.one_hot(y, fed.num_classes).T.to(probs)                          # [C, B]
        sums += is_of_class @ probs                                          # Alg. 1, line 6
        counts += is_of_class.sum(1, keepdim=True)
    means = sums / counts.clamp(min=1)                                       # Alg. 1, line 7-8
    return Trained(means, snapshot(model, optimizer))


@timed
def evaluate(fed, state):
    """Test accuracies of the clients; `accuracy` is their mean."""
    metrics = client_metrics(client_scores(fed, state["clients"]))
    return {"accuracy": metrics["client_accuracy"], **metrics}


@checked
def run(fed, state=None, *,
        rounds: int = 16,                    # all clients take part in each
        local_epochs: int = 1,               # passes of a client over its images in a round, or,
        local_steps: int | None = 250,       #   if given, its steps: the paper's n
        batch_size: int = 64,
        lr: float = 1e-3,
        optimizer: Optimizer = "amsgrad",    # of each client, for all training,
        weight_decay: float = 1e-4,          #   and its L2 penalty
        gamma: float = 1.0,                  # weight of the distillation; 0: each client is alone
        attack=None):
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    ids = range(len(fed.private))                                            # M clients
    C = fed.num_classes
    classes = torch.arange(C, device=fed.device)                     # [C]: of each row of an upload
    if state is None:
        state = {"round": 0, "clients": [snapshot(fed.client_model(i, init=i)) for i in ids],
                 "targets": torch.zeros(len(ids), C, C, device=fed.device)}
        yield evaluate(fed, state), state
    clients, targets = state["clients"], state["targets"]

    for t in range(state["round"] + 1, rounds + 1):
        # Clients train on their own images, and towards the others' predictions of the label.
        def train(i):
            return train_client(fed, i, t, clients[i], targets[i], local_epochs, local_steps,
                                batch_size, lr, gamma, optimizer, weight_decay)

        # In parallel: F_i, [M, C, C], those of attackers replaced; the clients after training.
        uploads, clients = collect_rows(fed, classes, train, attack)         # Alg. 1, line 5-8

        # An upload with nan, infinity or a number of 1e30 or more is replaced by zeros, as if its
        # client had drawn no class. The client still receives its targets.
        is_valid = torch.tensor([is_usable(upload) for upload in uploads], device=fed.device)
        client_means = torch.where(is_valid[:, None, None], uploads, 0.0)

        # Each client receives the mean over the others: hat F_i, [M, C, C].
        targets = others_mean(client_means)                                  # Alg. 1, line 10-15

        # All that the next round needs; the server keeps nothing of its own.
        state = {"round": t, "clients": clients, "targets": targets}
        # Measured; no step above sees it.
        metrics = {**evaluate(fed, state), "bad_uploads": int((~is_valid).sum()),
                   **logits_ledger(len(ids), C, up=C, down=C)}
        yield metrics, state


ALGORITHM = Algorithm(
    "fd", run,
    scores={"client_accuracy": "clients"}, keeps=("clients", "targets"),
    mixed_networks=True, plateau=("lr",), evaluate=evaluate,
    columns=("client_accuracy", "client_accuracy_min", "client_accuracy_max"))
