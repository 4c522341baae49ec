"""A round of FedSDD with functions in the place of training: an exercise (exercise.py)."""
import torch

from federation import average_weights


def fedsdd(models, recent_w, groups, sizes, R, train, predict, distill):
    """(the next K global models, the w_k of the last R rounds): lines 4-10 of Algorithm 1.

    models                     K global models, state_dicts; the first is the main model
    recent_w                   [w_0, ..., w_K-1] of each earlier round of the ensemble, oldest first
    groups, sizes              K lists of clients, {client: its number of images}
    train(i, model)            the state_dict of client i, after training from a model
    predict(model)             its logits [N, C] of the public images
    distill(model, teacher)    the state_dict of a model after learning from logits [N, C]
    w_k is the mean of a group's trained models, weighted by numbers of images. The teacher is the
    mean of the logits of all w_k of the last R rounds, this one included. The main model alone
    learns from it; the ensemble keeps w_0 as it was before.
    """
    w = [average_weights([train(i, model) for i in group], [sizes[i] for i in group])
         for model, group in zip(models, groups)]                                # line 4-7
    kept = [*recent_w, w][-R:]
    members = [w_k for of_round in kept for w_k in of_round]
    teacher = torch.stack([predict(w_k) for w_k in members]).mean(0)             # line 8
    return [distill(w[0], teacher), *w[1:]], kept                                # line 9-10
