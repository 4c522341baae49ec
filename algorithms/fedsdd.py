"""FedSDD: K groups of clients train K global models; their ensemble teaches the first one.

Kwan and Song, "FedSDD: Scalable and Diversity-enhanced Distillation for Model Aggregation in
Federated Learning", arXiv:2312.17029v1.

Run:    python fedkd_minimal.py --algo fedsdd --K 4 --R 2    small settings, about a minute
        --paper fedsdd has the paper's, which are the defaults of `run`
Data:   clients: their own labeled images; server: N unlabeled public images
Sent:   down: its group's model, to each active client; up: its trained model, its sample count

Algorithm 1; the paper does not number its lines:
 1    K global models, with different initial weights; k = 0 is the main one
 2-3  in each round the active clients are dealt at random to K groups
 4-6  each client trains its group's model on its own images
 7    model k becomes the mean of its group's models, w_{t,k}
 8-9  the server distills the ensemble, all w_{t,k} of the last R rounds, into the main model
10    the other models stay as averaged, so that the ensemble stays diverse
With several networks (A.5) there are K models of each, M in all, and k = 0, K, 2K, ... are main
ones.

Scores: on the test images. `accuracy` and server_accuracy are the main model's after distillation,
        in the mean over several main ones; ensemble_accuracy is that of the mean logits of line
        7's models of the last R rounds, before distillation
D1  Eq. (4) is printed KL(student || teacher), without the temperature that section 4.1 sets to 4;
    here it is Hinton et al.'s temperature² KL(teacher || student)
"""
import torch
import torch.nn.functional as F

from algorithms import Algorithm, checked
from algorithms.equations import average_weights, distillation_loss, ensemble_logits
from federation import stream, timed
from federation.communication import weights_ledger
from federation.evaluation import accuracy, disagreement, global_metrics
from federation.parallel import active_clients, by_architecture, count_active, run_students
from federation.training import forward, load_model, network, predict_members, shuffled
from federation.uploads import collect


def group_clients(active, K, rng):
    """The active clients dealt at random into K groups, one per global model.   Section 3.1.1; A.2

    active    list of client ids
    rng       numpy.random.Generator
    returns   K sorted lists; their sizes differ by at most 1, and the larger ones come first, so
              the main model's group is never the smaller one
    raises    ValueError if K < 1 or K > len(active): a group without clients could not be trained
    """
    if not 1 <= K <= len(active):
        raise ValueError(f"fedsdd: K = {K} global models need 1 <= K <= {len(active)}, the number "
                         "of active clients: change K, participation or the number of clients")
    dealt = rng.permutation(active).tolist()
    return [sorted(dealt[k::K]) for k in range(K)]


def deal_clients(fed, t, participation, K):
    """The groups of round t, of models 0 to M - 1: each network's active clients dealt to its K."""
    rng = stream(fed.seed, "groups", t)
    groups = []
    for active in active_clients(fed, participation, t).values():
        groups += group_clients(active, K, rng)
    return groups


def start_model(fed, architecture, k):
    """Global model k of a network before round 1; k picks the seed of its weights."""
    return {"architecture": architecture, "model": network(fed, architecture, k).state_dict()}


def train_client(fed, i, t, global_model, local_epochs, local_steps, batch_size, lr):
    """Client i's upload in round t: its group's model after SGD on its own images."""
    images, labels = fed.private[i]                                          # [n, c, h, w], [n]
    model = load_model(fed, global_model)                # Alg. 1, line 5, Eq. (1): a copy
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)                   # new in every round
    model.train()                        # with --augment the batches are augmented
    for rows, batch in shuffled(fed, images, ("local", t, i), epochs=local_epochs,
                                batch_size=batch_size, steps=local_steps):
        loss = F.cross_entropy(forward(fed, model, batch), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()                                                     # Alg. 1, line 6
    return {"model": model.state_dict()}


def aggregate(fed, global_model, uploads):
    """The mean of a group's models {client: upload}, weighed by numbers of samples.   Eq. (2)"""
    if not uploads:      # none was usable: the model of the last round stays, in the ensemble too
        return global_model
    sizes = [len(fed.private[i].labels) for i in uploads]                    # sent with the models
    models = [upload["model"] for upload in uploads.values()]
    return global_model | {"model": average_weights(models, sizes)}


@timed
def distill(fed, t, k, student, teacher_logits, distill_steps, server_batch_size, server_lr,
            temperature):
    """Global model k after SGD towards teacher_logits [N, C] on the public images."""
    model = load_model(fed, student)
    optimizer = torch.optim.SGD(model.parameters(), lr=server_lr)            # new in every round
    model.train()        # with --augment the student's batches are augmented, the teacher's never
    for rows, batch in shuffled(fed, fed.public.images, ("distil", t, k),
                                batch_size=server_batch_size, steps=distill_steps):
        student_logits = forward(fed, model, batch)                                      # [B, C]
        # D1: temperature² times the mean over the batch of KL(teacher || student)
        loss = distillation_loss(teacher_logits[rows], student_logits, temperature)      # Eq. (4)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return student | {"model": model.state_dict()}


@timed
def evaluate(fed, main_models):
    """Test accuracy of the main model, in eval mode; with several networks, of each network's."""
    return global_metrics(fed, main_models)


@timed
def evaluate_ensemble(fed, members, num_newest):
    """The metrics of the ensemble on the test images; its last num_newest members are this round's.

    disagreement is the share of test images on which two of this round's models predict different
    classes, in the mean over the pairs
    """
    member_logits = predict_members(fed, members, fed.test.images)                       # [M, N, C]
    return {"ensemble_accuracy": accuracy(ensemble_logits(member_logits), fed.test.labels),
            "disagreement": disagreement(member_logits[-num_newest:])}


def check_settings(fed, *, participation, K, attack, **settings):
    """Raises ValueError if a group would have no client, or if uploads cannot be attacked."""
    for ids in by_architecture(fed).values():        # it raises; every deal has groups of this size
        group_clients(range(count_active(len(ids), participation)), K, stream(fed.seed))
    if attack and len(by_architecture(fed)) > 1:         # it needs the mean of all clients' models
        raise ValueError("fedsdd: an attack on weights needs one network for all clients")


@checked
def run(fed, state=None, *,
        rounds: int = 100,                   # T
        participation: float = 0.4,          # share of the clients that train in a round
        K: int = 4,                          # global models, and groups of clients
        R: int = 1,                          # rounds whose averaged models are the ensemble
        local_epochs: int = 40,              # passes of a client over its images in a round, or,
        local_steps: int | None = None,      #   if given, its SGD steps
        batch_size: int = 64,                # of a client
        lr: float = 0.8,                     # of a client
        distill_steps: int = 5000,           # SGD steps of the server in a round
        server_batch_size: int = 256,
        server_lr: float = 0.1,
        temperature: float = 4.0,            # tau, of teacher and student
        attack=None):                        # replaces the uploads of some clients
    """Yields (metrics, state) after round 0, the untrained models, and after every round."""
    if state is None:
        global_models = [start_model(fed, architecture, k)                   # Alg. 1, line 1
                         for architecture in by_architecture(fed) for k in range(K)]
        state = {"round": 0, "global_models": global_models, "undistilled": []}
        yield evaluate(fed, global_models[::K]), state
    global_models, undistilled = state["global_models"], state["undistilled"]
    main_ks = range(0, len(global_models), K)            # [0], with one network

    for t in range(state["round"] + 1, rounds + 1):                          # Alg. 1, line 2
        # Clients are dealt to the K models anew, so that each model meets the data of all.
        groups = deal_clients(fed, t, participation, K)                      # Alg. 1, line 3
        model_of = {i: model for model, group in zip(global_models, groups) for i in group}

        def train(i):
            return train_client(fed, i, t, model_of[i], local_epochs, local_steps, batch_size, lr)

        # {i: train(i)}, in parallel. Attackers' models are replaced; uploads with nan, infinity or
        # numbers of 1e30 and more are left out.
        uploads = collect(fed, sorted(model_of), train, attack)              # Alg. 1, line 4-6
        averaged = [aggregate(fed, model, {i: uploads[i] for i in group if i in uploads})
                    for model, group in zip(global_models, groups)]          # Alg. 1, line 7

        # The ensemble, the averaged models of the last R rounds (at first of fewer), predicts the
        # clean public images, in eval mode.
        undistilled = [*undistilled, averaged][-R:]
        members = [model for earlier in undistilled for model in earlier]    # up to M R models
        member_logits = predict_members(fed, members, fed.public.images)     # [M R, N, C]
        teacher_logits = ensemble_logits(member_logits)          # [N, C], Eq. (3), (5)

        def teach(k):
            return distill(fed, t, k, averaged[k], teacher_logits, distill_steps,
                           server_batch_size, server_lr, temperature)

        # Only the main models learn from the ensemble; the others stay as averaged.
        taught = dict(zip(main_ks, run_students(fed, teach, main_ks)))       # Alg. 1, line 8-9
        global_models = [taught.get(k, model)                                # Alg. 1, line 10
                         for k, model in enumerate(averaged)]

        # Measured; no step above sees it. Teacher forwards are predictions of a public image.
        metrics = {**evaluate(fed, global_models[::K]),
                   **evaluate_ensemble(fed, members, len(averaged)),
                   "teacher_forwards": len(members) * len(fed.public.images),
                   "bad_uploads": len(model_of) - len(uploads),
                   **weights_ledger([(network(fed, model["architecture"]), len(group))
                                     for model, group in zip(averaged, groups)])}
        # All that the next round needs; clients and optimizers keep nothing.
        state = {"round": t, "global_models": global_models, "undistilled": undistilled}
        yield metrics, state


ALGORITHM = Algorithm(
    "fedsdd", run, scores={"server_accuracy": "server", "ensemble_accuracy": "ensemble"},
    keeps=("global_models", "undistilled"), public="unlabeled", mixed_networks=True,
    check_settings=check_settings,
    columns=("accuracy", "ensemble_accuracy", "disagreement", "teacher_forwards"))
