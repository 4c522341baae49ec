"""FedGEMS: a large server model learns from small clients, only from those that are right, and only where it is wrong itself.

Cheng et al., "FedGEMS: Federated Learning of Larger Server Models via Selective Knowledge Fusion", arXiv:2110.11027.
What travels: logits. Up: of the public samples that the server asks for; down: the server's, of all public samples.
Public data: labelled, on the server and on every client. Clients may have any networks, the server a larger one.
Run:   python fedkd_minimal.py --algo fedgems

Paper              here                         shape            note
X^0, Y^0           fed.public                   [N, ...], [N]    rows: positions in it, the same for the whole run
L_Global           pool_logits                  [N, C]           the server's last logits that were right, by row
idx in L_Global    in_pool                      bool [N]         a mask: rows outside the pool have no logits
S_Correct          correct                      bool [B]         of one batch
l_{C_j}            client_logits                [M, n, C]        of the n rows that are not in the pool
C_Reliable         reliable                     bool [M, n]      client j is right on the sample
alpha_{C_j}        weights                      [M, n]           Eq. (4): columns sum to 1, or are 0 where nobody is right
sum_j alpha_j l_j  fused_logits                 [N, C]           Eq. (5)
                   has_teacher                  bool [B]         False: cross-entropy alone
L_s                server_logits                [N, C]           what the clients learn from
epsilon            epsilon (--epsilon)          number           the share of the cross-entropy in Eq. (2), (5), (6)

Each public sample of each server batch is one of these cases:
  self-training          the server is right: cross-entropy, and its logits go to the pool           Eq. (1), Alg. 1, line 5-7
  self-distillation      it is wrong, but was right before: the pool teaches it                      Eq. (2), Alg. 1, line 8-9
  ensemble distillation  it is wrong and never was right: the clients that are right teach it        Eq. (3)-(5), line 10-12
  nobody right           the same, and no client is right: cross-entropy

Where the paper is silent or contradicts itself, or we differ:
D1  a round is: private training, upload, server, broadcast, distillation on the clients (section 3.2; Algorithm 1 has the
    server first, with untrained clients)                             [test_a_round_is_the_papers_algorithm]
D2  softmax(1/H) is over the reliable clients alone, the others are masked before it, with weight exactly 0
                                                                      [test_eq4_unreliable_client_gets_exactly_zero]
D3  H is at least 1e-6, so that a certain client (H = 0) has a finite 1/H         [test_eq4_certain_clients_share_equally]
D4  nobody is right: cross-entropy alone; the upload still counts     [test_nobody_right_is_plain_cross_entropy]
D5  the pool keeps the logits of the very pass that was judged right, the newest over the older; line 7 would store what line 15
    wrote a round before                                              [test_the_pool_holds_the_logits_that_were_judged_right]
D6  who is right is judged in eval mode, on clean images, with the weights before the step    [test_selection_is_in_eval_mode]
D7  the logits for the clients come from one pass of the final server model; line 15 would mix all the models of an epoch
                                                                      [test_clients_learn_from_the_final_server_model]
D8  epsilon weighs the cross-entropy, as in the equations; the text has it the other way round        [test_eq2_by_hand]
D9  one mean over the batch of the samples' own losses                [test_server_loss_is_one_mean_over_mixed_cases]
D10 Table 5, which the paper does not define: without self-training a right sample learns from the pool if it was in it already,
    else from the clients (the pool goes on being filled); without self-distillation the clients teach what the pool did;
    without ensemble distillation there is cross-entropy instead, in none of the four cases
                                                                      [test_ablations_move_samples_between_cases]
D11 clients start from different weights, and keep their optimisers   [test_every_client_starts_from_weights_of_its_own]
D12 Adam is AMSGrad, as in the public code of FedGKT                  [test_amsgrad_is_the_papers_adam]
"""
import torch
import torch.nn.functional as F

from algorithms.common import (Optimizer, asleep, batches, client_metrics, forward, is_finite, kl_divergence,
                               large_server_metrics, new_learner, predict_logits, run_clients, seconds, seeded, stream,
                               test_accuracies, train, train_with_labels, wake)
from communication import logits_ledger

PUBLIC = "labelled"
MIXED = True    # may clients have different networks?
CASES = ("self_training", "self_distillation", "ensemble_distillation", "nobody_right")
COLUMNS = ("server_accuracy", "client_accuracy", *CASES)


def entropy(logits):
    """H = - sum_c p_c ln p_c, p = softmax(logits), over the last axis; in nats, [..., C] -> [...].         Eq. (3), whose N is C

    >>> entropy(torch.tensor([[0., 0.], [0., 1.]]))
    tensor([0.6931, 0.5822])
    """
    return torch.special.entr(logits.softmax(-1)).sum(-1)                                # entr(p) = -p ln p, and 0 at 0


def reliable_clients(client_logits, labels):
    """Which client is right on which sample: [M, N, C], [N] -> bool [M, N]. A logit that is not finite is never right.   3.3.2"""
    return (client_logits.argmax(-1) == labels) & torch.isfinite(client_logits).all(-1)


def entropy_weights(client_logits, reliable):
    """How much each client counts on each sample: softmax over the reliable clients of 1/H, 0 for the others.           Eq. (4)

    client_logits, reliable   [M, N, C], bool [M, N]
    returns                   [M, N]: each column sums to 1, or is 0 where nobody is reliable. Needs `entropy`.
    >>> logits = torch.tensor([[[2., 0.]], [[1., 0.]], [[0., 9.]]])
    >>> entropy_weights(logits, torch.tensor([[True], [True], [False]])).T
    tensor([[0.7349, 0.2651, 0.0000]])
    """
    confidence = 1 / entropy(client_logits).clamp(min=1e-6)                              # [M, N]
    weights = confidence.masked_fill(~reliable, float("-inf")).softmax(0)
    return torch.where(reliable, weights, 0.0)


def fuse_logits(client_logits, weights):
    """sum_j weights[j] * client_logits[j]: [M, N, C], [M, N] -> [N, C].                                                 Eq. (5)

    A client of weight 0 adds nothing, not even nan.
    """
    weights = weights.unsqueeze(-1)                                                      # [M, N, 1]
    return torch.where(weights > 0, weights * client_logits, 0.0).sum(0)


def server_loss(logits, labels, teacher_logits, has_teacher, epsilon):
    """Cross-entropy where has_teacher is False, epsilon CE + (1 - epsilon) KL(teacher || server) where True.  Eq. (1), (2), (5)

    logits, teacher_logits   [B, C]; no gradient to the teacher, whose rows without has_teacher may hold anything
    labels, has_teacher      [B], bool [B]
    returns                  scalar, the mean over the batch. Needs `kl_divergence`.
    """
    ce = F.cross_entropy(logits, labels, reduction="none")                               # [B]
    kl = kl_divergence(torch.where(has_teacher[:, None], teacher_logits, 0.0), logits)   # [B]
    return torch.where(has_teacher, epsilon * ce + (1 - epsilon) * kl, ce).mean()


def client_loss(logits, labels, server_logits, epsilon):
    """epsilon CE + (1 - epsilon) KL(server || client): [B, C], [B], [B, C] -> scalar. Needs `kl_divergence`.             Eq. (6)"""
    ce = F.cross_entropy(logits, labels, reduction="none")                               # [B]
    return (epsilon * ce + (1 - epsilon) * kl_divergence(server_logits, logits)).mean()


def train_client(fed, i, t, client, rows, *, local_epochs, batch_size, lr, optimizer, weight_decay):
    """Private training of client i: (its logits [n, C] on the public rows asked for, the client, its test accuracies)."""
    model = fed.client_model(i)
    update = wake(client, model, optimizer, lr, weight_decay)
    train_with_labels(fed, model, update, fed.private[i], epochs=local_epochs, batch_size=batch_size,
                      keys=("local", t, i))                                                              # Alg. 1, line 25-27
    logits = predict_logits(fed, model, fed.public.images[rows])                                         # Alg. 1, line 31-33
    return logits, asleep(model, update), test_accuracies(fed, model)


def distil_client(fed, i, t, client, server_logits, *, public_epochs, batch_size, lr, optimizer, weight_decay, epsilon):
    """Client i after learning from the server's logits [N, C] on all public samples: (the client, its test accuracies)."""
    model = fed.client_model(i)
    update = wake(client, model, optimizer, lr, weight_decay)
    images, labels = fed.public
    train(fed, model, update, images, lambda logits, rows: client_loss(logits, labels[rows], server_logits[rows], epsilon),
          epochs=public_epochs, batch_size=batch_size, keys=("public", t, i))                            # Alg. 1, line 21-23
    return asleep(model, update), test_accuracies(fed, model)


def train_server(fed, t, server, pool_logits, in_pool, fused_logits, somebody_right, *, server_epochs, server_batch_size, server_lr,
                 optimizer, weight_decay, epsilon, self_training, self_distillation, ensemble_distillation):
    """The selective knowledge fusion of round t: Alg. 1, lines 4-15.

    pool_logits, in_pool          [N, C], bool [N]: the pool as the round begins
    fused_logits, somebody_right  [N, C], bool [N]: what the clients would teach, and where any of them is right
    returns                       (the server, its test accuracies, its logits [N, C], pool_logits, in_pool, cases, asked);
                                  cases bool [4, N], by the last pass: self-training, self-distillation, ensemble distillation,
                                  nobody right; asked bool [N]: what the clients were asked for in any pass
    """
    model = fed.server_model()
    update = wake(server, model, optimizer, server_lr, weight_decay)
    images, labels = fed.public
    pool_logits, in_pool = pool_logits.clone(), in_pool.clone()
    cases = in_pool.new_zeros(4, len(labels))
    asked = torch.zeros_like(in_pool)
    rng = stream(fed.seed, "server", t)
    with seeded(fed.seed, "server", t):
        for rows in batches(len(labels), server_batch_size, server_epochs, rng, fed.device):             # Alg. 1, line 4
            own_logits = predict_logits(fed, model, images[rows])                        # [B, C]
            correct = own_logits.argmax(1) == labels[rows]                               # bool [B]        Alg. 1, line 5
            known = in_pool[rows]                                                        # bool [B]        Alg. 1, line 8
            learns_alone = correct & self_training
            from_pool = ~learns_alone & known & self_distillation
            from_clients = ~learns_alone & ~from_pool & ensemble_distillation            #                 Alg. 1, line 10-11
            taught = from_clients & somebody_right[rows]
            teacher_logits = torch.where(from_pool[:, None], pool_logits[rows], fused_logits[rows])      # [B, C]
            has_teacher = from_pool | taught                                             # bool [B]
            pool_logits[rows[correct]] = own_logits[correct]                             #                 Alg. 1, line 7
            in_pool[rows[correct]] = True
            cases[:, rows] = torch.stack([learns_alone, from_pool, taught, from_clients & ~taught])
            asked[rows[from_clients]] = True

            model.train()
            batch = fed.augment(images[rows], rng) if fed.augment else images[rows]
            loss = server_loss(forward(fed, model, batch), labels[rows], teacher_logits, has_teacher,    # Alg. 1, line 6, 9, 12
                               epsilon)
            update.zero_grad()
            loss.backward()
            update.step()                                                                #                 Alg. 1, line 14
    server_logits = predict_logits(fed, model, images)                                   # [N, C]          Alg. 1, line 15
    return asleep(model, update), test_accuracies(fed, model), server_logits, pool_logits, in_pool, cases, asked


def metrics_of(server_score, client_scores):
    """The accuracies of a round; the headline is the server's."""
    server = large_server_metrics(server_score)
    return {"accuracy": server["server_accuracy"], **server, **client_metrics(client_scores)}


def run(fed, state=None, *, rounds: int = 200, local_epochs: int = 1, public_epochs: int = 1, server_epochs: int = 1,
        batch_size: int = 256, server_batch_size: int = 256, lr: float = 1e-3, server_lr: float = 1e-3,
        optimizer: Optimizer = "amsgrad", weight_decay: float = 1e-4, epsilon: float = 0.75,
        self_training: bool = True, self_distillation: bool = True, ensemble_distillation: bool = True, attack=None):
    """Yields (metrics, state) after round 0, the untrained start, and after every round.

    attack      (uploads [M, n, C], client ids, rows [n], t) -> uploads: what malicious clients make of theirs
    """
    adam = dict(optimizer=optimizer, weight_decay=weight_decay)
    client_adam = dict(batch_size=batch_size, lr=lr, **adam)
    ids, num_public, labels = range(len(fed.private)), len(fed.public.labels), fed.public.labels
    if state is None:
        clients, server = [new_learner(fed.client_model(i, init=i)) for i in ids], new_learner(fed.server_model())
        state = {"round": 0, "clients": clients, "server": server,
                 "pool_logits": torch.zeros(num_public, fed.num_classes, device=fed.device),
                 "in_pool": torch.zeros(num_public, dtype=torch.bool, device=fed.device)}
        scores = [test_accuracies(fed, fed.client_model(i, init=i)) for i in ids]
        yield {**metrics_of(test_accuracies(fed, fed.server_model()), scores), "pool": 0.0}, state
    clients, server, pool_logits, in_pool = (state[key] for key in ("clients", "server", "pool_logits", "in_pool"))
    for t in range(state["round"] + 1, rounds + 1):                                                      # Alg. 1, line 2
        start = seconds(fed.device)
        rows = torch.arange(num_public, device=fed.device)                               # [n]: what the server may ask for
        rows = rows[~in_pool] if self_distillation else rows
        rows = rows if ensemble_distillation else rows[:0]
        trained = run_clients(lambda i: train_client(fed, i, t, clients[i], rows, local_epochs=local_epochs, **client_adam),
                              ids, fed.device)                                                           # Alg. 1, line 19
        client_logits = torch.stack([logits for logits, _, _ in trained])                # [M, n, C]       Alg. 1, line 33
        client_logits = attack(client_logits, ids, rows, t) if attack else client_logits
        trained_at = seconds(fed.device)

        reliable = reliable_clients(client_logits, labels[rows])                         # bool [M, n]
        weights = entropy_weights(client_logits, reliable)                               # [M, n]          Eq. (4)
        fused_logits, somebody_right = torch.zeros_like(pool_logits), torch.zeros_like(in_pool)
        fused_logits[rows] = fuse_logits(client_logits, weights)                         # [N, C]          Eq. (5)
        somebody_right[rows] = reliable.any(0)                                           # bool [N]
        server, server_score, server_logits, pool_logits, in_pool, cases, asked = train_server(
            fed, t, server, pool_logits, in_pool, fused_logits, somebody_right, server_epochs=server_epochs,
            server_batch_size=server_batch_size, server_lr=server_lr, epsilon=epsilon, self_training=self_training,
            self_distillation=self_distillation, ensemble_distillation=ensemble_distillation, **adam)
        served_at = seconds(fed.device)

        distilled = run_clients(lambda i: distil_client(fed, i, t, trained[i][1], server_logits, public_epochs=public_epochs,
                                                        epsilon=epsilon, **client_adam), ids, fed.device)  # Alg. 1, line 17
        clients = [client for client, _ in distilled]
        distilled_at = seconds(fed.device)
        taught = weights[:, asked[rows] & reliable.any(0)]                               # [M, number of rows taught by clients]
        metrics = {**metrics_of(server_score, [score for _, score in distilled]),
                   **client_metrics([score for _, _, score in trained], "client_accuracy_private"),
                   **dict(zip(CASES, cases.float().mean(1).tolist())), "pool": in_pool.float().mean().item(),
                   "effective_teachers": (1 / taught.square().sum(0)).mean().item() if taught.numel() else None,
                   "bad_uploads": sum(not is_finite(logits[asked[rows]]) for logits in client_logits),
                   "local_seconds": trained_at - start + distilled_at - served_at, "distill_seconds": served_at - trained_at,
                   **logits_ledger(len(ids), fed.num_classes, up=int(asked.sum()), down=num_public, indices=int(asked.sum()))}
        yield metrics, {"round": t, "clients": clients, "server": server, "pool_logits": pool_logits, "in_pool": in_pool}
