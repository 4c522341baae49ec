"""FedMD: parties with models of their own design learn from the consensus of their logits.

Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", arXiv:1910.03581; what
the text does not give is as in its authors' code (CIFAR, iid), whose settings are the defaults.
FedGEMS runs FedMD with public and private data of one task: --paper fedgems-homogeneous.
What travels: logits of a new public subset in each round, up and down. Public data: labeled, at
every party. With public data of another task (--joint) every model has one output layer: first the
public classes, then the classes of the task.
Run:   python fedkd_minimal.py --algo fedmd --paper fedmd

Paper              here                         shape         note
D_0                fed.public                   [N, ...], [N] public samples and their labels
D_k                fed.private[i]               [n, ...], [n] the few private samples of party k
d_0                rows                         [n]           the public subset of a round
f_k(x^0)           party_logits                 [M, n, C]     before any softmax
f~(x^0)            consensus_logits             [n, C]        the mean, or a weighted mean
c_k                consensus_weights            [M]           equal if not given

Algorithm 1, whose steps are numbered here as follows:
 0  transfer learning: each party trains on the public samples until convergence, then on its own
    (fedmd_transfer.py)
 1  the server draws a public subset
 2  communicate: each party predicts the subset
 3  aggregate: the consensus
 4  digest: each party trains towards the consensus on the subset
 5  revisit: each party trains on its own samples

Where the paper is silent or we differ:
D1  digest is the mean absolute error on raw logits (the text: softmax with a temperature makes
    no large difference) [test_digest_loss_is_the_mean_absolute_error]
D2  two optimizers per party, for digest and revisit, are kept over all rounds
    [test_fedmd_round_by_hand]
D3  accuracy, gain and each party's own accuracy are measured after the revisit, before the digest
    of the next round, as in the code; client_accuracy is measured after the digest, as for
    the baselines of FedGEMS [test_fedmd_round_by_hand]
D4  an upload with nan or infinity is left out of the consensus; without any valid upload the round
    has no digest [test_non_finite_logits_are_left_out]
D5  parties with the same network start from different weights
    [test_every_client_starts_from_weights_of_its_own]
D6  all parties have the same weight, as in the code; for CIFAR the text weighs networks 0 and 9
    slightly less, without numbers; for example --consensus-weights .5,1,1,1,1,1,1,1,1,.5
    [test_a_weighted_consensus_by_hand]
D7  --public-epochs 0 leaves out the digest: a control without collaboration; the text's is the
    transfer learning alone [test_without_public_epochs_no_client_learns_from_another]
D8  --augment: who learns sees augmented images, who teaches clean ones
    [test_augmentation_is_for_what_is_trained_on_alone]
"""
from functools import partial

import numpy as np
import torch

from algorithms.common import Trained, collect_logits, is_finite, run_clients, timed
from algorithms.communication import logits_ledger
from algorithms.evaluation import by_client, client_metrics, client_scores
from algorithms.fedmd_transfer import (check_transfer, learn_private, learn_public, penalty,
                                       train_with_penalty)
from algorithms.training import OPTIMIZERS, Optimizer, predict_logits, restore, train
from federation import stream

PUBLIC = "joint"
VALIDATION = ("early_stopping",)            # keywords that need the task's validation set
MIXED = True    # may clients have different networks?
PLATEAU = ("lr",)    # what --lr-patience reduces
COLUMNS = ("client_accuracy", "client_accuracy_private", "gain")


def consensus(client_logits, weights=None):
    """The weighted mean of the parties' logits: [M, N, C] -> [N, C].   Alg. 1, step 3

    weights    [M], >= 0, normalized here to sum to 1; None: equal
    raises     ValueError: not one weight per party, a negative or non-finite one, or all 0
    >>> consensus(torch.tensor([[[3., 0.]], [[0., 6.]]]), weights=[2, 1])
    tensor([[2., 2.]])
    """
    if weights is None:
        return client_logits.mean(0)
    logits = client_logits.to(torch.promote_types(client_logits.dtype, torch.float32))
    weights = torch.as_tensor(weights, dtype=logits.dtype, device=logits.device)
    valid = (weights.isfinite() & (weights >= 0)).all() and weights.sum() > 0
    if weights.shape != client_logits.shape[:1] or not valid:
        raise ValueError("--consensus-weights needs a weight >= 0 for each of "
                         f"{len(client_logits)} clients, not all 0, not {weights.tolist()}")
    return torch.tensordot(weights / weights.sum(), logits, dims=1).to(client_logits.dtype)


def digest_loss(logits, consensus_logits):
    """The mean of |logits - consensus_logits|: [B, C], [B, C] -> scalar.   Alg. 1, step 4"""
    return (logits - consensus_logits.detach()).abs().mean()


def public_subset(labels, size, rng):
    """Sorted rows of a stratified subset of `size` samples; all if size is None or too large.

    labels    int array [N]; each class gets its share, to within one sample
    """
    shuffled = rng.permutation(len(labels))
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    size = len(labels) if size is None else min(size, len(labels))
    places = (np.arange(size) + rng.random()) * len(labels) / size
    return np.sort(by_class[places.astype(np.int64)])


def valid_consensus(party_logits, weights):
    """(the consensus [n, C] of the parties whose logits are finite, their number).

    weights    one for each party, or None; if those of valid parties sum to 0, consensus is None
    """
    valid = [i for i, logits in enumerate(party_logits) if is_finite(logits)]
    weights = [1.0 if weights is None else weights[i] for i in valid]
    return consensus(party_logits[valid], weights) if sum(weights) > 0 else None, len(valid)


def transfer(fed, public_stage, private_stage):
    """(metrics, state) of round 0: all parties after the transfer learning.   Alg. 1, step 0

    public_stage     public_stage(i) -> state_dict: `learn_public`
    private_stage    private_stage(i, state_dict) -> state_dict: `learn_private`
    """
    ids = range(len(fed.private))
    models = run_clients(fed, public_stage, ids)
    scores = client_scores(fed, [{"model": model_state} for model_state in models])
    public_metrics = client_metrics(scores, "client_accuracy_public_stage")
    models = run_clients(fed, lambda i: private_stage(i, models[i]), ids)
    parties = [{"model": model_state, "digest": None, "revisit": None} for model_state in models]
    state = {"round": 0, "clients": parties, "start": None}
    metrics = evaluate(fed, state)
    state["start"] = [metrics[f"client_accuracy_{i}"] for i in ids]
    return metrics | public_metrics, state


def predict_party(fed, i, party, rows):
    """Party i uploads its logits [n, C] of the public subset.   Alg. 1, step 2"""
    model = fed.client_model(i)
    model.load_state_dict(party["model"])
    return Trained(predict_logits(fed, model, fed.public.images[rows]), None)


def digest(fed, i, t, party, rows, consensus_logits, *, public_epochs, public_batch_size,
           new_optimizer, kernel_l2):
    """Party i after training towards consensus_logits [n, C] of the rows [n].   Alg. 1, step 4

    consensus_logits    None: there was no valid upload, and the party keeps its model
    """
    def loss(logits, places):
        return digest_loss(logits, consensus_logits[places]) + penalty(model, kernel_l2)

    model = fed.client_model(i)
    saved = {"model": party["model"], "optimizer": party["digest"]}
    optimizer = restore(saved, model, new_optimizer)
    if consensus_logits is not None:
        train(fed, model, optimizer, fed.public.images[rows], loss, epochs=public_epochs,
              batch_size=public_batch_size, keys=("digest", t, i))
    return party | {"model": model.state_dict(), "digest": optimizer.state_dict()}


def revisit(fed, i, t, party, *, local_epochs, batch_size, new_optimizer, kernel_l2):
    """Party i after training on its own samples.   Alg. 1, step 5"""
    model = fed.client_model(i)
    saved = {"model": party["model"], "optimizer": party["revisit"]}
    optimizer = restore(saved, model, new_optimizer)
    train_with_penalty(fed, model, optimizer, fed.private[i], kernel_l2, epochs=local_epochs,
                       batch_size=batch_size, keys=("revisit", t, i))
    return party | {"model": model.state_dict(), "revisit": optimizer.state_dict()}


@timed
def evaluate(fed, state, digested=None):
    """Test accuracies after the revisit, and client_accuracy, _min and _max after the digest.

    Measured after the revisit: accuracy and client_accuracy_private (the parties' mean),
    client_accuracy_0, ... (each party's) and gain (the mean gain since the transfer).
    digested    the parties after the digest; None in round 0, which has no digest: then
                client_accuracy is measured on the same networks as accuracy
    """
    scores = client_scores(fed, state["clients"])
    private = client_metrics(scores, "client_accuracy_private")
    start = state["start"] or [score.test for score in scores]                   # [M]
    gains = [score.test - before for score, before in zip(scores, start, strict=True)]
    return {"accuracy": private["client_accuracy_private"],
            **client_metrics(client_scores(fed, digested) if digested else scores), **private,
            "gain": sum(gains) / len(gains), **by_client(scores)}


def check(fed, *, early_stopping, consensus_weights, **settings):
    """Raises ValueError for what `check_transfer` or `consensus` refuses."""
    check_transfer(fed, early_stopping=early_stopping)
    if consensus_weights is not None:
        consensus(torch.zeros(len(fed.private), 1, 1), consensus_weights)


def run(fed, state=None, *, rounds: int = 20, transfer_public_epochs: int = 20,
        transfer_public_batch_size: int = 128, transfer_local_epochs: int = 25,
        transfer_batch_size: int = 32, early_stopping: bool = True, min_delta: float = 0.005,
        subset_size: int | None = 5000, public_epochs: int = 1, public_batch_size: int = 256,
        local_epochs: int = 4, batch_size: int = 5, lr: float = 1e-3, optimizer: Optimizer = "adam",
        weight_decay: float = 0.0, kernel_l2: float = 1e-3,
        consensus_weights: tuple[float, ...] | None = None, attack=None):
    """Yields (metrics, state) after round 0, the transfer learning, and after every round.

    transfer_public_epochs        passes over the public data in the transfer learning, at most
    transfer_public_batch_size    batch size of these passes
    transfer_local_epochs         passes over a party's own data in the transfer learning, at most
    transfer_batch_size           batch size of these passes
    early_stopping                a stage of the transfer stops when validation stops improving
    subset_size                   public samples in a round; none: all
    public_epochs                 passes of the digest over the public subset; 0: no digest
    public_batch_size             batch size of the digest
    local_epochs                  passes of the revisit over a party's own data
    batch_size                    batch size of the revisit
    lr                            learning rate of all training
    optimizer                     optimizer of all training, two per party, kept over the rounds
    consensus_weights             weight of each party in the consensus; none: equal. The text
                                  lowers those of CIFAR's networks 0 and 9 but gives no numbers
    The other keywords are in hyperparameters.py.
    """
    new_optimizer = partial(OPTIMIZERS[optimizer], lr=lr, weight_decay=weight_decay)
    training = dict(new_optimizer=new_optimizer, kernel_l2=kernel_l2)
    ids = range(len(fed.private))
    if state is None:
        check(fed, early_stopping=early_stopping, consensus_weights=consensus_weights)
        public_stage = partial(learn_public, fed, epochs=transfer_public_epochs,
                               batch_size=transfer_public_batch_size, min_delta=min_delta,
                               early_stopping=early_stopping, **training)
        private_stage = partial(learn_private, fed, epochs=transfer_local_epochs,
                                batch_size=transfer_batch_size, early_stopping=early_stopping,
                                **training)
        metrics, state = transfer(fed, public_stage, private_stage)          # Alg. 1, step 0
        yield metrics, state
    parties, start = state["clients"], state["start"]
    labels = fed.public.labels.cpu().numpy()
    for t in range(state["round"] + 1, rounds + 1):
        # The server draws a public subset, and each party uploads its logits of it.
        rows = public_subset(labels, subset_size, stream(fed.seed, "subset", t))
        rows = torch.from_numpy(rows).to(fed.device)                         # [n], Alg. 1, step 1
        party_logits, _ = collect_logits(fed, rows, lambda i: predict_party(
            fed, i, parties[i], rows), attack)                               # Alg. 1, step 2
        # Each party trains towards the consensus, then on its own data.
        consensus_logits, num_valid = valid_consensus(                       # Alg. 1, step 3
            party_logits, consensus_weights)
        digested = run_clients(fed, lambda i: digest(                        # Alg. 1, step 4
            fed, i, t, parties[i], rows, consensus_logits, public_epochs=public_epochs,
            public_batch_size=public_batch_size, **training), ids)
        parties = run_clients(fed, lambda i: revisit(                        # Alg. 1, step 5
            fed, i, t, digested[i], local_epochs=local_epochs, batch_size=batch_size,
            **training), ids)

        state = {"round": t, "clients": parties, "start": start}
        metrics = {**evaluate(fed, state, digested), "bad_uploads": len(ids) - num_valid,
                   **logits_ledger(len(ids), fed.num_classes, up=len(rows), down=len(rows),
                                   indices=len(rows))}
        yield metrics, state
